"""What the evidence says of a question with choices, as a probability of each choice, where the answers or the question
name what was measured: distortions, their severity, exposure or the level of quality. Else the letters stand alone."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from agentic_iqa_local.iqa_tools.detector import WORD_SEVERITIES
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.detection import strongest
from agentic_iqa_local.nodes.evidence import Evidence, votes
from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.nodes.query import WORDS, asked_about, distortions_in, pattern, says_present
from agentic_iqa_local.state import Detection, ExecutorOutput, PlannerOutput, in_words

EXPOSURE, SIDES = "Brightness change", ("too dark", "too bright")
SCORES = "the tools' scores"
LEAST = 0.01  # no choice is ruled out by a measurement

Weights = tuple[list[float], str]  # of the choices, and what they rest on

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
    """The probability of each choice's letter by the evidence, and what it rests on (SCORES, or words for what was
    detected); None where the evidence says nothing, and why."""
    if plan.query_type != "IQA" or evidence is None or len(plan.objects) != 1:
        return (
            None,
            "the question is not about the technical quality of one object: the letters stand alone",
        )
    (name,), query = plan.objects, asked_about(query)
    kinds, detection = (
        distortions_in(query, plan.objects),
        (evidence.detection or {}).get(name),
    )
    if detection and detection.unread:
        detection = None
    found = (
        _severities(choices, kinds, (evidence.severity_probabilities or {}).get(name, {}))
        or (detection and (_exposures(choices, detection) or _families(choices, detection)))
        or _levels(query, choices, evidence)
        or (detection and _presence(query, choices, kinds, detection))
    )
    if not found:
        return None, "no answer names what was measured: the letters stand alone"
    weights, basis = [max(LEAST, weight) for weight in found[0]], found[1]
    return {
        letter: w / sum(weights) for letter, w in zip(choice_letters(choices), weights, strict=True)
    }, basis


def _matched(choices: Sequence[str], table: Mapping[Any, re.Pattern[str]]) -> list[Any] | None:
    """For each choice the key of the last pattern that it holds; None where one holds none, or two the same."""
    found = [[key for key, words in table.items() if words.search(choice)] for choice in choices]
    keys = [hit[-1] for hit in found if hit]
    return keys if len(keys) == len(choices) == len(set(keys)) else None


def _severities(
    choices: Sequence[str], kinds: Sequence[str], read: dict[str, dict[str, float]]
) -> Weights | None:
    """Choices that are severities of the one family that the question names; a word that is no choice counts for
    the nearest that is."""
    words = _matched(choices, _SEVERITIES)
    if words is None or len(kinds) != 1 or kinds[0] not in read:
        return None
    weights = dict.fromkeys(words, 0.0)
    for word, p in read[kinds[0]].items():
        weights[
            min(words, key=lambda other: abs(WORD_SEVERITIES[other] - WORD_SEVERITIES[word]))
        ] += p
    return (
        list(weights.values()),
        f"LocalNR's reading of how severe the {in_words(None, '', kinds[0])} is",
    )


def _exposures(choices: Sequence[str], detection: Detection) -> Weights | None:
    """Choices between too dark, too bright and neither."""
    sides, p = _matched(choices, _SIDES), _sides(detection)
    if not p or sides is None or not {*SIDES} <= {*sides}:
        return None
    return [
        p[side] for side in sides
    ], "LocalNR's reading of whether the picture is too dark or too bright"


def _sides(detection: Detection) -> dict[str, float]:
    """How probable either side is: a change of brightness, divided as LocalNR reads it; empty where it could not."""
    changed, sides = detection.families[EXPOSURE].probability, detection.exposure or {}
    p = {side: changed * share / (sum(sides.values()) or 1.0) for side, share in sides.items()}
    return p and p | {"neither": 1 - changed}


def families_named(choices: Sequence[str]) -> list[list[str]] | None:
    """For each choice the families that it names, or the side of a right exposure; ["none"] where it says that there
    is no distortion. None where one names neither, or none names a family."""
    named = [
        distortions_in(choice) or (["none"] if _NONE.search(choice) else []) for choice in choices
    ]
    for choice, kinds in zip(choices, named, strict=True):
        if kinds == [EXPOSURE] and (
            side := [name for name in SIDES if _SIDES[name].search(choice)]
        ):
            kinds[:] = side
    return named if all(named) and any(kinds != ["none"] for kinds in named) else None


def _families(choices: Sequence[str], detection: Detection) -> Weights | None:
    """Choices that name families of distortions, or that there is none."""
    named, p, shares = (
        families_named(choices),
        strongest(detection),
        detection.exposure or dict.fromkeys(SIDES, 0.5),
    )
    if named is None or len({tuple(kinds) for kinds in named}) < len(named):
        return None
    p |= {
        side: p[EXPOSURE] * share / (sum(shares.values()) or 1.0) for side, share in shares.items()
    }
    return [
        max(p[kind] for kind in kinds) for kinds in named
    ], "LocalNR's reading of which distortion is the strongest"


def _levels(query: str, choices: Sequence[str], evidence: ExecutorOutput) -> Weights | None:
    """Choices that are levels of quality, or Yes and No to a question whether the quality is good."""
    scores, levels, good = votes(evidence), _matched(choices, _LEVELS), bool(_GOOD.search(query))
    if not scores or not _QUALITY.search(query):
        return None
    mean, sigma = (
        statistics.fmean(score for _, score in scores),
        load_reliability().sigma_of_mean(scores, {}),
    )
    if levels:
        return [math.exp(-0.5 * ((mean - level) / sigma) ** 2) for level in levels], SCORES
    if good == bool(_BAD.search(query)):
        return None
    short = (3.5 - mean) if good else (mean - 2.5)
    return _yes_or_no(choices, 0.5 * math.erfc(short / (sigma * math.sqrt(2))), SCORES)


def _presence(
    query: str, choices: Sequence[str], kinds: Sequence[str], detection: Detection
) -> Weights | None:
    """Yes and No to a question whether a named family, or any distortion, is there."""
    if (affirmed := says_present(query, kinds)) is None:
        return None
    there, p = (
        max(detection.families[kind].probability for kind in kinds or detection.families),
        _sides(detection),
    )
    sides = [side for side in SIDES if side in p and _SIDES[side].search(query)]
    sought = " or ".join(in_words(None, "", kind) for kind in kinds) or "any distortion"
    basis = f"LocalNR's reading of whether there is {sought}"
    if affirmed and list(kinds) == [EXPOSURE] and len(sides) == 1:
        there, basis = p[sides[0]], f"LocalNR's reading of whether the picture is {sides[0]}"
    return _yes_or_no(choices, there if affirmed else 1 - there, basis)


def _yes_or_no(choices: Sequence[str], yes: float, basis: str) -> Weights | None:
    answers = _matched(choices, _YES_NO)
    return ([yes if one == "yes" else 1 - yes for one in answers], basis) if answers else None
