"""A role's sample, what is true of a picture, and the evidence that the Executor would hand over of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.laboratory.training.queries import pick
from agentic_iqa_local.laboratory.training.sentences import SEVERITY_WORDS, explanation
from agentic_iqa_local.levels import DISTORTION_TYPES, OVERALL
from agentic_iqa_local.prompts import ANSWER_PREFIX, Prompt
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput
from agentic_iqa_local.synthetic.distortions import DISTORTIONS, Part
from agentic_iqa_local.synthetic.photos import Crop

# Pseudo-MOS from which a distortion of severity 1 does not count as seen; a clean photograph has 4.27.
BARELY_VISIBLE = 4.0
MOST_FOUND = 3  # distortions of one object in a detection
NOT_THERE = "It is not visible."


@dataclass(frozen=True)
class RoleSample:
    """A prompt and its answer.

    `letters` is the distribution at the letter position (None: no letter is read) and `levels` the quality
    level that each letter stands for, 0 where they stand for none. Of a `read_only` sample nothing but the
    letter is learned.
    """

    prompt: Prompt
    answer: str
    letters: np.ndarray | None = None
    levels: np.ndarray | None = None
    read_only: bool = False


def visible_parts(crop: Crop) -> tuple[Part, ...]:
    """The distortions that count as seen, the strongest first: all but a barely visible one of severity 1."""
    seen = [p for p in crop.sample.parts if p.severity > 1 or crop.quality < BARELY_VISIBLE]
    return tuple(sorted(seen, key=lambda part: -part.severity))


def hidden_families(crop: Crop) -> tuple[str, ...]:
    """The families of damage that is there and does not count as seen: questions about it have no true
    answer."""
    seen = {part.family for part in visible_parts(crop)}
    return tuple(family for family in crop.sample.families if family not in seen)


def as_json(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def child(rng: np.random.Generator) -> np.random.Generator:
    """A generator for the words of an answer, so that their number does not move what is drawn next."""
    return np.random.default_rng(int(rng.integers(2**32)))


def judged(distortion: str, parts: Sequence[Part], rng: np.random.Generator) -> DistortionAnalysis:
    """What is true of one family, given all that is there."""
    for part in parts:
        if part.family == distortion:
            return DistortionAnalysis(
                type=distortion, severity=SEVERITY_WORDS[part.severity], explanation=explanation(part, rng)
            )
    return DistortionAnalysis(type=distortion, severity="none", explanation=NOT_THERE)


def types_asked(crop: Crop, parts: Sequence[Part], rng: np.random.Generator) -> list[str]:
    """What an analysis is asked about: the true distortions, and at times one that is not there."""
    true = [str(p.family) for p in parts][:MOST_FOUND]
    others = [str(t) for t in rng.permutation(DISTORTION_TYPES) if t not in crop.sample.families]
    types = true + others[: int(not true or rng.random() < 0.3)]
    return [types[i] for i in rng.permutation(len(types))]


def wrong_analysis(rng: np.random.Generator) -> DistortionAnalysis:
    part = Part(pick(rng, list(DISTORTIONS)), int(rng.integers(1, 6)))
    return judged(part.family, [part], rng)


def misjudged(parts: Sequence[Part], rng: np.random.Generator) -> tuple[Part, ...]:
    """The parts as an analysis may find them: every fourth a step too strong or too weak."""
    step = [int(rng.choice((-1, 1))) if rng.random() < 0.25 else 0 for _ in parts]
    return tuple(
        replace(p, severity=int(np.clip(p.severity + s, 1, 5))) for p, s in zip(parts, step, strict=True)
    )


def _scores(crop: Crop, types: Sequence[str], rng: np.random.Generator) -> dict[str, tuple[str, float]]:
    """Scores around the pseudo-MOS, one in seven around nothing, for the types and one or two that judge the
    whole."""
    centre = float(rng.uniform(1, 5)) if rng.random() < 0.15 else crop.quality + rng.normal(0, 0.5)
    names = [str(name) for name in rng.permutation(list(TOOLS))]
    scores = {}
    for purpose in (types or [OVERALL])[:2] if rng.random() < 0.5 else []:
        scores[purpose] = names.pop()
    for _ in range(int(rng.integers(0 if scores else 1, 3))):
        scores[f"{OVERALL} ({names[-1]})"] = names.pop()
    return {
        purpose: (name, float(np.clip(centre + rng.normal(0, 0.5), 1, 5))) for purpose, name in scores.items()
    }


def evidence_of(
    crop: Crop,
    parts: Sequence[Part],
    rng: np.random.Generator,
    asked: Sequence[str] = (),
    name: str = "Global",
    analysed: float = 0.85,
) -> ExecutorOutput:
    """What the Executor hands over when it finds `parts`; where the query names types (`asked`) it judges
    those alone."""
    types = list(asked) or (types_asked(crop, parts, rng) if parts or rng.random() < 0.2 else [])
    analyses = [judged(t, parts, rng) for t in types]
    scores = _scores(crop, types, rng) if name == "Global" and rng.random() < 0.85 else None
    return ExecutorOutput(
        distortion_analysis={name: analyses} if rng.random() < analysed else None,
        quality_scores={name: scores} if scores else None,
    )


def letter_answer(letter: str, text: str) -> str:
    return f'{ANSWER_PREFIX}{letter}", "quality_reasoning": {as_json(text)}}}'
