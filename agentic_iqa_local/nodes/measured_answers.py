"""What the evidence says of a question with choices, as a probability of each choice.

It says something where the answers or the question name what was measured: distortions, their
severity, exposure or the level of quality.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from statistics import NormalDist, fmean
from typing import Any

import numpy as np

from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.detection import PRESENT, shared_by_weight
from agentic_iqa_local.nodes.evidence import Evidence, votes
from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.nodes.query import WORDS, asked_about, distortions_in, pattern, says_present
from agentic_iqa_local.state import Detection, ExecutorOutput, PlannerOutput

EXPOSURE, COMPRESSION, PIXELATION = "Brightness change", "Compression", "pixelation"
SCORES, DETECTED = "the tools' scores", "the measured distortions"
LEAST = 0.01  # no choice is ruled out by a measurement
PLACED = 0.94  # of the quarters that are named, the right ones: 68 of 72 % (docs/measurements.md)

Patterns = Mapping[Any, re.Pattern[str]]
# What answers may say, the probability of each by the evidence, and what that rests on
Measured = tuple[Patterns, Mapping[Any, float], str]

_YES_NO = {True: re.compile(r"^\W*yes\b", re.I), False: re.compile(r"^\W*no\b(?! \w)", re.I)}
_SIDES, _PLACES, _SEVERITIES, _LEVELS = (
    {key: pattern(words) for key, words in WORDS[table].items()}
    for table in ("exposures", "sides", "severities", "levels")
)
_NONE, _QUALITY, _GOOD, _BAD, _BETTER, _PIXELATED = (
    pattern(WORDS[name])
    for name in ("no_distortion", "quality", "good", "bad", "better", "pixelation")
)


def measure_choices(
    query: str, choices: Sequence[str], plan: PlannerOutput, evidence: Evidence
) -> tuple[dict[str, float] | None, str]:
    """The probability of each choice's letter by the evidence, and what it rests on (SCORES or
    DETECTED); None where the evidence says nothing, and why."""
    if plan.query_type != "IQA" or evidence is None or len(plan.objects) != 1:
        about = "the question is not about the technical quality of one object"
        return None, f"{about}: the letters stand alone"
    asked, name = asked_about(query), plan.objects[0]
    weights, basis = _strongest(choices, _detection(evidence, name)), DETECTED
    measured = [
        *_by_place(asked, evidence),
        *_by_distortions(asked, name, evidence),
        *_by_scores(asked, evidence),
    ]
    for table, p, source in measured:
        keys = _matched(choices, table) or []
        shares = [p[key] for key in keys]
        if len(set(shares)) > 1 and not weights:  # equal ones tell nothing
            weights, basis = shares, source
    if not weights:
        return None, "no answer names what was measured: the letters stand alone"
    shares = np.maximum(weights, LEAST)
    shares /= shares.sum()
    return dict(zip(choice_letters(choices), shares.tolist(), strict=True)), basis


def _detection(evidence: ExecutorOutput, name: str) -> Detection | None:
    """What was read of an object's distortions; None where nobody looked."""
    detection = (evidence.detection or {}).get(name)
    return None if detection is None or detection.unread else detection


def _matched(choices: Sequence[str], table: Patterns) -> list[Any] | None:
    """For each choice the key of the last pattern that it holds; None where one holds none, or two
    the same."""
    keys = []
    for choice in choices:
        held = [key for key, words in table.items() if words.search(choice)]
        keys += held[-1:]
    return keys if len(keys) == len(choices) == len(set(keys)) else None


def _by_place(asked: str, evidence: ExecutorOutput) -> Iterator[Measured]:
    """Sides of the picture, for a question about the worse one."""
    if evidence.damaged_part and not _BETTER.search(asked):
        part = set(evidence.damaged_part.split())
        p = {side: PLACED if part >= set(side.split()) else 1 - PLACED for side in _PLACES}
        yield _PLACES, p, DETECTED


def _by_distortions(asked: str, name: str, evidence: ExecutorOutput) -> Iterator[Measured]:
    """Severities of the one family that a question names, and whether a family, or any distortion,
    is there."""
    kinds, detection = distortions_in(asked), _detection(evidence, name)
    read = (evidence.severity_probabilities or {}).get(name, {})
    if len(kinds) == 1 and kinds[0] in read:
        yield _SEVERITIES, read[kinds[0]], DETECTED
    present = says_present(asked, kinds)
    if detection and present is not None:
        p = {kind: family.probability for kind, family in detection.families.items()}
        there = max(_with_sides(p, detection)[kind] for kind in _sides_of(asked, kinds) or p)
        yes = there if present else 1 - there
        yield _YES_NO, {True: yes, False: 1 - yes}, DETECTED


def _by_scores(asked: str, evidence: ExecutorOutput) -> Iterator[Measured]:
    """Levels of quality, and whether the quality is good or bad."""
    scores = votes(evidence)
    if not scores or not _QUALITY.search(asked):
        return
    sigma = load_reliability().sigma_of_mean(scores, {})
    quality = NormalDist(fmean(score for _, score in scores), sigma)
    most = quality.pdf(quality.mean)
    yield _LEVELS, {level: quality.pdf(level) / most for level in _LEVELS}, SCORES
    good = bool(_GOOD.search(asked))
    if good != bool(_BAD.search(asked)):
        yes = 1 - quality.cdf(3.5) if good else quality.cdf(2.5)
        yield _YES_NO, {True: yes, False: 1 - yes}, SCORES


# Choices that name families


def families_named(choices: Sequence[str]) -> list[list[str]] | None:
    """For each choice the families that it names, or the side of one; ["none"] where it says that
    there is no distortion. None where one names neither, or none names a family."""
    named = []
    for choice in choices:
        kinds = _sides_of(choice, distortions_in(choice))
        if kinds in ([], [EXPOSURE]) and _NONE.search(choice):
            kinds = ["none"]
        named.append(kinds)
    return named if all(named) and any(kinds != ["none"] for kinds in named) else None


def _sides_of(text: str, kinds: list[str]) -> list[str]:
    """The families that a text names, or the one side of a right exposure, or pixelation alone of
    what compression does."""
    if kinds == [COMPRESSION] and _PIXELATED.search(text):
        return [PIXELATION]
    sides = [side for side, words in _SIDES.items() if words.search(text)]
    return sides if kinds == [EXPOSURE] and len(sides) == 1 else kinds


def _with_sides(p: Mapping[str, float], detection: Detection) -> dict[str, float]:
    """Probabilities of families with those of too dark and of too bright, which share that of a
    change of brightness, and of pixelation, whose share of compression the pixels say."""
    read = detection.exposure or dict.fromkeys(_SIDES, 1.0)
    total = sum(read.values()) or 1.0
    sides = {side: p[EXPOSURE] * share / total for side, share in read.items()}
    pixelated = detection.pixelation
    sides[PIXELATION] = p.get(COMPRESSION, 0.0) * (1.0 if pixelated is None else pixelated)
    return {**p, **sides}


def _strongest(choices: Sequence[str], detection: Detection | None) -> list[float]:
    """How probable each choice is the strongest of the families that are offered; of sides of a
    right exposure, how probable it is. Nothing where the choices name no families."""
    named = families_named(choices)
    if not named or not detection or len(set(map(tuple, named))) < len(named):
        return []
    family_of = dict.fromkeys(_SIDES, EXPOSURE) | {PIXELATION: COMPRESSION}
    offered = {family_of.get(kind, kind) for kind in set().union(*named)}
    p = _with_sides(_strongest_of(offered - {"none"}, detection), detection)
    if [PIXELATION] in named:
        p[COMPRESSION] -= p[PIXELATION]
    return [max(p[kind] for kind in kinds) for kinds in named]


def _strongest_of(offered: set[str], detection: Detection) -> dict[str, float]:
    """{family or "none": probability that it is the strongest of those offered}. Those that count
    as found share what is left by none of them, as if they came independently of each other, by
    probability times severity; so "none" is never likelier than they where one was found."""
    families = {kind: detection.families[kind] for kind in offered}
    found = {kind: one for kind, one in families.items() if one.probability >= PRESENT}
    shared = found or families
    missing = [1 - one.probability for one in shared.values()]
    absent = prod(missing) if found else min(missing)
    shares = shared_by_weight(shared, 1 - absent)
    return dict.fromkeys([*families, EXPOSURE], 0.0) | shares | {"none": absent}
