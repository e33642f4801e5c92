"""Role samples: for one distorted crop, the pipeline's own prompts with the answers that are true of it.

No leak: tool scores stand in less than half of the rating prompts, and those that do are drawn around the truth with noise
of 0.7 levels, or are missing, or contradict it, so that the letters must come from the pixels.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.levels import DISTORTION_TYPES, LETTER_TO_LEVEL, LETTERS, LEVEL_WORDS, OVERALL
from agentic_iqa_local.nodes.executor import tool_line
from agentic_iqa_local.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    Prompt,
    analysis_prompt,
    choice_letters,
    detection_prompt,
    planner_prompt,
    selection_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput
from agentic_iqa_local.training.data import Crop, level_targets
from agentic_iqa_local.training.distortions import Sample
from agentic_iqa_local.training.queries import ADJECTIVES, OBJECTS, OTHER, RATINGS, draw_query, pick
from agentic_iqa_local.training.vision import LEVEL_WIDTH

SEVERITY_WORDS = ("none", "slight", "moderate", "moderate", "severe", "extreme")
EFFECTS = {
    "Blurs": ("Edges appear soft.", "Fine detail is smeared.", "Contours lose their definition."),
    "Color distortions": ("Colors look unnatural.", "The hues are shifted or dull.", "Color no longer follows the objects."),
    "Compression": ("Block edges and ringing show.", "Flat areas break into blocks.", "Texture is replaced by coding artifacts."),
    "Noise": ("Grain covers flat areas.", "Random speckles hide fine texture.", "Noise is visible all over."),
    "Brightness change": ("Exposure is off and tones are lost.", "Detail is lost in the tones.", "The picture is lit wrongly."),
    "Sharpness": ("Halos line the edges.", "Edges are exaggerated.", "Oversharpening makes texture harsh."),
    "Contrast": ("The tonal range is wrong.", "Tones are flattened or clipped.", "Light and dark are out of balance."),
}
CLEAN = ("No distortion is visible.", "Edges and textures look natural.", "The picture is clean.")
FREE_ANSWER = ("I can only judge technical quality.", "This question is not about technical quality.")


@dataclass(frozen=True)
class RoleSample:
    """A prompt and its answer; `letters` is the distribution at the letter position (None: no letter is read)."""

    prompt: Prompt
    answer: str
    letters: np.ndarray | None = None
    read_only: bool = False


def _json(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def _reasoning(crop: Crop, letter: str, rng: np.random.Generator) -> str:
    word = LEVEL_WORDS[LETTER_TO_LEVEL[letter]].lower()
    sample = crop.sample
    if sample.family is None:
        return f"{pick(rng, CLEAN)} The quality is {word}."
    return f"{SEVERITY_WORDS[sample.severity].capitalize()} {sample.family.lower()}: {pick(rng, EFFECTS[sample.family])} The quality is {word}."


def _objects(rng: np.random.Generator) -> list[str]:
    if rng.random() < 0.6:
        return ["Global"]
    return [str(x) for x in rng.choice(OBJECTS, 1 if rng.random() < 0.7 else 2, replace=False)]


def _analysis(crop: Crop, distortion: str, rng: np.random.Generator) -> DistortionAnalysis:
    if distortion == crop.sample.family:
        return DistortionAnalysis(
            type=distortion, severity=SEVERITY_WORDS[crop.sample.severity], explanation=pick(rng, EFFECTS[distortion])
        )
    return DistortionAnalysis(type=distortion, severity="none", explanation=CLEAN[0])


def _types(crop: Crop, rng: np.random.Generator) -> list[str]:
    true = crop.sample.family
    others = [str(t) for t in rng.permutation(DISTORTION_TYPES) if t != true]
    if true is None:
        return others[:1]
    return [true] if rng.random() < 0.6 else [true, others[0]] if rng.random() < 0.5 else [others[0], true]


def _evidence(crop: Crop, rng: np.random.Generator) -> ExecutorOutput:
    types = _types(crop, rng) if crop.sample.family or rng.random() < 0.3 else []
    centre = float(rng.uniform(1, 5)) if rng.random() < 0.15 else 5 - 0.8 * crop.sample.severity
    names = list(TOOLS)
    scores = {t: (str(pick(rng, names)), float(np.clip(centre + rng.normal(0, 0.7), 1, 5))) for t in (types or [OVERALL])}
    return ExecutorOutput(
        distortion_analysis={"Global": [_analysis(crop, t, rng) for t in types]} if rng.random() < 0.8 else None,
        quality_scores={"Global": scores} if rng.random() < 0.8 else None,
    )


def _letter_answer(letter: str, reasoning: str) -> str:
    return f'{ANSWER_PREFIX}{letter}", "quality_reasoning": {_json(reasoning)}}}'


def rating(crop: Crop, rng: np.random.Generator, with_evidence: bool, read_only: bool) -> RoleSample:
    """The Summarizer's scoring prompt with a soft target at the letter."""
    target = level_targets(np.array([crop.sample.severity]), LEVEL_WIDTH)[0]
    letter = str(rng.choice(LETTERS, p=target))
    query = DEFAULT_QUERY if rng.random() < 0.3 else pick(rng, RATINGS)
    evidence = _evidence(crop, rng) if with_evidence else None
    prompt = summarizer_prompt(query, evidence, scoring=True)
    return RoleSample(prompt, _letter_answer(letter, _reasoning(crop, letter, rng)), target, read_only)


def detection(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """The distortions of each object: the crop's own, which is the same everywhere."""
    objects = _objects(rng)
    query = pick(rng, RATINGS) if objects == ["Global"] else f"Rate the {' and the '.join(objects)}."
    found = [crop.sample.family] if crop.sample.family else []
    return RoleSample(detection_prompt(query, objects), _json(dict.fromkeys(objects, found)))


def analysis(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """Severity and impact of the true distortion and, at times, of one that is not there."""
    asked = {name: _types(crop, rng) for name in _objects(rng)}
    items = {name: [_analysis(crop, t, rng).model_dump() for t in types] for name, types in asked.items()}
    return RoleSample(analysis_prompt(pick(rng, RATINGS), asked), _json(items))


def selection(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """The first listed tool that is good for the distortion, else the first listed."""
    tools = [TOOLS[str(n)] for n in rng.permutation(list(TOOLS))[: int(rng.integers(2, 6))]]
    asked = {name: _types(crop, rng) if rng.random() < 0.8 else [] for name in _objects(rng)}

    def best(distortion: str) -> str:
        return next((t.name for t in tools if distortion in t.good_for), tools[0].name)

    answer = {name: {t: best(t) for t in types or [OVERALL]} for name, types in asked.items()}
    lines = [(t.name, tool_line(t.reference, t.good_for)) for t in tools]
    return RoleSample(selection_prompt(pick(rng, RATINGS), asked, lines), _json(answer))


def choice_question(crop: Crop, rng: np.random.Generator) -> RoleSample:
    """A question with choices in random order; the truth is among them."""
    true, severity = crop.sample.family, crop.sample.severity
    draw = rng.random()
    if draw < 0.4:
        others = [str(t) for t in rng.permutation(DISTORTION_TYPES) if t != true]
        right = true or "None"
        choices = [right, *others[: int(rng.integers(1, 4))]]
        if right != "None" and rng.random() < 0.5:
            choices.append("None")
        query = pick(
            rng,
            (
                "Which distortion is most visible in the image?",
                "What is the main distortion?",
                "Which of these affects the image?",
            ),
        )
    elif draw < 0.7:
        asked = true if true and rng.random() < 0.5 else str(pick(rng, [t for t in DISTORTION_TYPES if t != true]))
        right, choices = ("Yes" if asked == true else "No"), ["Yes", "No"]
        query = f"Is the image {pick(rng, ADJECTIVES[asked])}?"
    elif draw < 0.85:
        right = SEVERITY_WORDS[severity].capitalize()
        choices = ["None", "Slight", "Moderate", "Severe", "Extreme"]
        query = "How severe is the distortion?"
    else:
        right = LEVEL_WORDS[max(1, 5 - severity)]
        choices = list(LEVEL_WORDS.values())
        query = pick(rng, ("What is the quality of the image?", "How good is the image?"))
    choices = [str(c) for c in rng.permutation(choices)]
    letter = choice_letters(choices)[choices.index(right)]
    evidence = _evidence(crop, rng) if rng.random() < 0.25 else None
    target = np.zeros(len(choices))
    target[choices.index(right)] = 1
    effect = pick(rng, EFFECTS[true]) if true else pick(rng, CLEAN)
    prompt = summarizer_prompt(query, evidence, scoring=False, choices=choices)
    return RoleSample(prompt, _letter_answer(letter, f"{right}: {effect}"), target)


def free_question(rng: np.random.Generator) -> RoleSample:
    """A question that is not about quality: the honest answer is that the model cannot tell."""
    answer = {"final_answer": "I cannot tell", "quality_reasoning": pick(rng, FREE_ANSWER)}
    return RoleSample(summarizer_prompt(pick(rng, OTHER), None, scoring=False), _json(answer))


def planning(rng: np.random.Generator, has_reference: bool) -> RoleSample:
    """A plan for a query of the grammar."""
    drawn = draw_query(rng)
    while drawn.has_reference != has_reference:
        drawn = draw_query(rng)
    prompt = planner_prompt(drawn.query, has_reference, drawn.choices, drawn.replan_history)
    return RoleSample(prompt, _json(drawn.plan.model_dump()))


def draw_roles(crop: Crop, has_reference: bool, rng: np.random.Generator, planning_share: float = 0.25) -> list[RoleSample]:
    """What one picture is asked in one training step; every prompt continues from the same image prefix."""
    first = [rating(crop, rng, with_evidence=False, read_only=rng.random() < 0.6)]
    if rng.random() < planning_share:
        first.append(planning(rng, has_reference))
    others = [
        draw()
        for share, draw in (
            (0.6, lambda: detection(crop, rng)),
            (0.16, lambda: analysis(crop, rng)),
            (0.08, lambda: selection(crop, rng)),
            (0.12, lambda: rating(crop, rng, with_evidence=True, read_only=False)),
            (0.2, lambda: choice_question(crop, rng)),
            (0.04, lambda: free_question(rng)),
        )
        if rng.random() < share
    ]
    return first + [others[i] for i in rng.permutation(len(others))]


def corpus(seed: int, rows: int = 6000) -> Iterator[str]:
    """Prompts and answers to train a tokenizer on; the pictures behind them are blank."""
    rng = np.random.default_rng([seed, 2])
    blank = np.zeros((8, 8, 3), np.uint8)
    for _ in range(rows):
        family = str(pick(rng, DISTORTION_TYPES)) if rng.random() < 0.88 else None
        crop = Crop(Sample(blank, None, family, int(rng.integers(1, 6)) if family else 0), blank)
        for sample in draw_roles(crop, bool(rng.random() < 0.2), rng):
            yield f"{sample.prompt.instructions}\n\n{sample.prompt.case}\n{sample.answer}"
