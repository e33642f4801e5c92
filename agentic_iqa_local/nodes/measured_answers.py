"""What the evidence says of a question with choices, as a probability of each choice.

It says something where the answers or the question name what was measured: distortions, their
severity, exposure or the level of quality.
"""

import re
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any

import numpy as np

from agentic_iqa_local.iqa_tools.detector import WORD_SEVERITIES
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.detection import strongest
from agentic_iqa_local.nodes.evidence import Evidence, votes
from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.nodes.query import WORDS, asked_about, distortions_in, pattern, says_present
from agentic_iqa_local.state import Detection, ExecutorOutput, PlannerOutput

EXPOSURE = "Brightness change"
SCORES, DETECTED = "the tools' scores", "LocalNR's reading of the distortions"
LEAST = 0.01  # no choice is ruled out by a measurement

Weights = list[float] | None  # one for each choice

_YES_NO = {"yes": re.compile(r"^\W*yes\b", re.I), "no": re.compile(r"^\W*no\b(?! \w)", re.I)}
_SIDES, _SEVERITIES, _LEVELS = (
    {key: pattern(words) for key, words in WORDS[table].items()}
    for table in ("exposures", "severities", "levels")
)
_NONE, _QUALITY, _GOOD, _BAD = (
    pattern(WORDS[name]) for name in ("no_distortion", "quality", "good", "bad")
)


def measure_choices(
    query: str, choices: Sequence[str], plan: PlannerOutput, evidence: Evidence
) -> tuple[dict[str, float] | None, str]:
    """The probability of each choice's letter by the evidence, and what it rests on (SCORES or
    DETECTED); None where the evidence says nothing, and why."""
    if plan.query_type != "IQA" or evidence is None or len(plan.objects) != 1:
        about = "the question is not about the technical quality of one object"
        return None, f"{about}: the letters stand alone"
    asked = asked_about(query)
    weights, basis = _by_distortions(asked, choices, plan.objects[0], evidence), DETECTED
    if weights is None:
        weights, basis = _by_scores(asked, choices, evidence), SCORES
    if weights is None:
        return None, "no answer names what was measured: the letters stand alone"
    p = np.maximum(weights, LEAST)
    p /= p.sum()
    return dict(zip(choice_letters(choices), p.tolist(), strict=True)), basis


def _matched(choices: Sequence[str], table: Mapping[Any, re.Pattern[str]]) -> list[Any] | None:
    """For each choice the key of the last pattern that it holds; None where one holds none, or two
    the same."""
    keys = []
    for choice in choices:
        held = [key for key, words in table.items() if words.search(choice)]
        keys += held[-1:]
    return keys if len(keys) == len(choices) == len(set(keys)) else None


def _yes_or_no(choices: Sequence[str], yes: float) -> Weights:
    answers = _matched(choices, _YES_NO)
    return [yes if one == "yes" else 1 - yes for one in answers] if answers else None


# By the distortions that were detected


def _by_distortions(
    asked: str, choices: Sequence[str], name: str, evidence: ExecutorOutput
) -> Weights:
    """Choices that are severities of the one family that the question names, that name families, or
    that are Yes and No to a question whether a family is there."""
    kinds = distortions_in(asked, [name])
    words = _matched(choices, _SEVERITIES)
    read = (evidence.severity_probabilities or {}).get(name, {})
    if words and len(kinds) == 1 and kinds[0] in read:
        return _severities(words, read[kinds[0]])
    detection = (evidence.detection or {}).get(name)
    if detection is None or detection.unread:
        return None
    named = families_named(choices)
    if named:
        return _strongest(named, detection)
    return _presence(asked, choices, kinds, detection)


def _severities(words: Sequence[str], read: Mapping[str, float]) -> Weights:
    """A word that is no choice counts for the nearest that is."""
    weights = dict.fromkeys(words, 0.0)
    for word, p in read.items():
        severity = WORD_SEVERITIES[word]
        nearest = min(words, key=lambda one: abs(WORD_SEVERITIES[one] - severity))
        weights[nearest] += p
    return list(weights.values())


def families_named(choices: Sequence[str]) -> list[list[str]] | None:
    """For each choice the families that it names, or the side of a right exposure; ["none"] where
    it says that there is no distortion. None where one names neither, or none names a family."""
    named = [_family_or_side(choice) for choice in choices]
    return named if all(named) and any(kinds != ["none"] for kinds in named) else None


def _family_or_side(choice: str) -> list[str]:
    kinds = distortions_in(choice)
    if kinds == [EXPOSURE]:
        kinds = _sides_in(choice) or kinds
    if kinds in ([], [EXPOSURE]) and _NONE.search(choice):
        return ["none"]
    return kinds


def _sides_in(text: str) -> list[str]:
    return [side for side, words in _SIDES.items() if words.search(text)]


def _by_side(detection: Detection, changed: float) -> dict[str, float]:
    """The probability of too dark and of too bright, where that of a change of brightness is
    `changed`."""
    read = detection.exposure or dict.fromkeys(_SIDES, 1.0)
    total = sum(read.values()) or 1.0
    return {side: changed * share / total for side, share in read.items()}


def _strongest(named: Sequence[Sequence[str]], detection: Detection) -> Weights:
    """How probable each choice is the strongest of all families; of sides of a right exposure, how
    probable it is."""
    if len(set(map(tuple, named))) < len(named):
        return None
    changed = detection.families[EXPOSURE].probability
    p = _by_side(detection, changed) | {"none": 1 - changed}
    if not set().union(*named) <= p.keys():
        p = strongest(detection)
        p |= _by_side(detection, p[EXPOSURE])
    return [max(p[kind] for kind in kinds) for kinds in named]


def _presence(
    asked: str, choices: Sequence[str], kinds: Sequence[str], detection: Detection
) -> Weights:
    """Yes and No to a question whether a named family, or any distortion, is there."""
    present = says_present(asked, kinds)
    if present is None:
        return None
    families, sides = detection.families, _sides_in(asked)
    there = max(families[kind].probability for kind in kinds or families)
    if present and kinds == [EXPOSURE] and len(sides) == 1:
        there = _by_side(detection, there)[sides[0]]
    return _yes_or_no(choices, there if present else 1 - there)


# By the tools' scores


def _by_scores(asked: str, choices: Sequence[str], evidence: ExecutorOutput) -> Weights:
    """Choices that are levels of quality, or Yes and No to a question whether the quality is good
    or bad."""
    scores = votes(evidence)
    if not scores or not _QUALITY.search(asked):
        return None
    sigma = load_reliability().sigma_of_mean(scores, {})
    quality = NormalDist(fmean(score for _, score in scores), sigma)
    levels = _matched(choices, _LEVELS)
    if levels:
        return [quality.pdf(level) / quality.pdf(quality.mean) for level in levels]
    good, bad = bool(_GOOD.search(asked)), bool(_BAD.search(asked))
    if good == bad:
        return None
    return _yes_or_no(choices, 1 - quality.cdf(3.5) if good else quality.cdf(2.5))
