"""What the evidence says of a question with choices, as a probability of each choice, where the question is
about distortions, their severity, exposure or the level of quality.

Words decide, the same for every model: the answers or the question must name what was measured. Everywhere
else the model's letters stand alone.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from agentic_iqa_local.iqa_tools.detector import WORD_SEVERITIES
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.detection import PRESENT, strongest
from agentic_iqa_local.nodes.evidence import by_object, object_votes
from agentic_iqa_local.nodes.named_distortions import distortions_in
from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.state import Detection, DistortionAnalysis, ExecutorOutput, PlannerOutput, Severity

Claim = tuple[Sequence[str], Sequence[str]]
"""What a choice says of families (none: of all): "there", or that their severity is one of these words."""


@dataclass(frozen=True)
class Measured:
    """The probability of each choice's letter by the evidence, None where it says nothing; what that rests
    on, or why there is none; and what each choice says of the evidence, where it does."""

    p: dict[str, float] | None
    basis: str
    claims: Mapping[str, Claim] = field(default_factory=dict)


EXPOSURE = "Brightness change"
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
LEAST = 0.01  # no choice is ruled out by a measurement


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b({pattern})\b", re.IGNORECASE)


_YES, _NO = re.compile(r"^\W*yes\b", re.IGNORECASE), re.compile(r"^\W*no\b(?! \w)", re.IGNORECASE)
_NONE = _words(
    r"none|nothing|no (visible |noticeable )?(distortions?|damage|problems?|issues?|defects?|artifacts?)|neither"
    r"|undamaged|clean|not (visible|present|at all)|absent|invisible|just right|fine|ok(ay)?|correct|well exposed"
)
_DARK = _words(r"(too |very )?(dark|dim)(er)?|under-?\s?expos\w+|underlit")
_BRIGHT = _words(r"(too |very )?(bright|light)(er)?|over-?\s?expos\w+|blown[ -]out|washed[ -]out")
_SEVERITIES = {
    "none": _NONE,
    "slight": _words(r"slight(ly)?|mild(ly)?|minor|weak(ly)?|low|light(ly)?|a little|barely"),
    "moderate": _words(r"moderate(ly)?|medium|noticeabl[ey]"),
    "severe": _words(r"severe(ly)?|strong(ly)?|heavy|heavily|high|serious(ly)?"),
    "extreme": _words(r"extreme(ly)?|very (strong|severe|heavy)|overwhelming"),
}
_LEVELS = {
    5: _words(r"excellent|perfect|pristine|outstanding"),
    4: _words(r"good|high|fine"),
    3: _words(r"fair|average|medium|acceptable|ok(ay)?|mediocre|so-so"),
    2: _words(r"poor|low|weak"),
    1: _words(r"bad|terrible|awful|very poor|unusable"),
}
_ANY_DAMAGE = _words(
    r"distort(ed|ions?)|degraded|degradations?|damaged?|artifacts?|artefacts?|defects?|flaws?|flawed"
)
_QUALITY = _words(r"quality")
# What says that a family is not there, where the question names it by what it spoils ("Is it sharp?").
_VIRTUE = _words(
    r"(?<!too )(?<!over)sharp|(?<!too )crisp|in focus|(well|properly|correctly) (exposed|lit|focus\w+)"
    r"|(natural|accurate|true|realistic|good|correct|fine|right|nice|balanced|proper)"
)
_DAMAGE = _words(
    r"too|over-?\w+|under-?\w+|blur\w*|out[ -]of[ -]focus|soft|unsharp|nois\w+|grain\w*|compress\w+|art[ie]facts?"
    r"|block\w*|banding|cast|tint\w*|dark|bright|dim|flat|washed|faded|dull|halos?|problems?|wrong|bad|poor|loss"
    r"|lacks?|low|unnatural|un\w+|distort\w*|change[ds]?"
)
_ABSENCE = _words(r"free (of|from)|without|no|not|lacks?|absence of|devoid of")


def measure_choices(
    query: str, choices: Sequence[str], plan: PlannerOutput, evidence: ExecutorOutput | None
) -> Measured:
    """What the evidence says of each of `choices`."""
    if plan.query_type != "IQA" or evidence is None:
        return Measured(None, "the question is not about technical quality: the letters stand alone")
    if len(plan.objects) != 1:
        return Measured(None, "the question is about several objects: the letters stand alone")
    (name,) = plan.objects
    kinds = distortions_in(query, plan.objects if name != "Global" else ())
    found = _severities(choices, kinds, name, evidence)
    detection = by_object(evidence, "detection").get(name)
    if detection:
        found = found or _exposures(choices, detection) or _families(choices, detection)
    found = found or _levels(query, choices, name, evidence)
    if detection:
        found = found or _yes_no(query, choices, kinds, detection)
    if found is None:
        return Measured(None, "no answer names what was measured: the letters stand alone")
    weights, basis, claims = found
    letters, weights = choice_letters(choices), [max(LEAST, weight) for weight in weights]
    p = {letter: weight / sum(weights) for letter, weight in zip(letters, weights, strict=True)}
    return Measured(p, basis, dict(zip(letters, claims, strict=True)) if claims else {})


Weights = tuple[list[float], str, list[Claim]]


def _matched(choices: Sequence[str], patterns: Mapping) -> list | None:
    """For each choice the key of the one pattern that it holds, the last where several do; None where a
    choice holds none, or two choices the same."""
    found = [[key for key, pattern in patterns.items() if pattern.search(choice)] for choice in choices]
    keys = [hit[-1] for hit in found if hit]
    return keys if len(keys) == len(choices) == len(set(keys)) else None


def _severities(
    choices: Sequence[str], kinds: Sequence[str], name: str, evidence: ExecutorOutput
) -> Weights | None:
    """Choices that are severities of the one family that the question names; a word that is no choice counts
    for the nearest that is."""
    words = _matched(choices, _SEVERITIES)
    of_object = by_object(evidence, "severity_probabilities").get(name, {})
    if words is None or len(kinds) != 1 or kinds[0] not in of_object:
        return None
    nearest = {
        word: min(words, key=lambda other: abs(WORD_SEVERITIES[other] - WORD_SEVERITIES[word]))
        for word in SEVERITIES
    }
    stands_for = {word: [other for other in SEVERITIES if nearest[other] == word] for word in words}
    p = of_object[kinds[0]]
    weights = [math.fsum(p.get(other, 0.0) for other in stands_for[word]) for word in words]
    return weights, f"how severe {kinds[0]} is", [(kinds, stands_for[word]) for word in words]


def _exposures(choices: Sequence[str], detection: Detection) -> Weights | None:
    """Choices between too dark, too bright and neither."""
    sides = _matched(choices, {"neither": _NONE, "too dark": _DARK, "too bright": _BRIGHT})
    if sides is None or not {"too dark", "too bright"} <= set(sides) or detection.exposure is None:
        return None
    shares = {side: _exposure(detection, side) for side in detection.exposure}
    shares["neither"] = 1 - detection.families[EXPOSURE].probability
    claims: list[Claim] = [([EXPOSURE], ["none" if side == "neither" else "there"]) for side in sides]
    return [shares[side] for side in sides], "exposure", claims


def _exposure(detection: Detection, side: str) -> float:
    """The probability that the picture is "too dark" or "too bright": a change of brightness, divided as
    LocalNR reads the two."""
    sides = detection.exposure or {}
    return detection.families[EXPOSURE].probability * sides[side] / (sum(sides.values()) or 1.0)


def families_named(choices: Sequence[str]) -> list[list[str]] | None:
    """For each choice the families that it names, ["none"] where it says that there is no distortion; None
    where one names neither, or none names a family."""
    named = [distortions_in(choice) or (["none"] if _NONE.search(choice) else []) for choice in choices]
    return named if all(named) and any(kinds != ["none"] for kinds in named) else None


def _families(choices: Sequence[str], detection: Detection) -> Weights | None:
    """Choices that name families of distortions, or that there is none."""
    named = families_named(choices)
    if named is None or len({tuple(kinds) for kinds in named}) < len(named):
        return None
    p = strongest(detection)
    claims: list[Claim] = [((), ["none"]) if kinds == ["none"] else (kinds, ["there"]) for kinds in named]
    return [max(p[kind] for kind in kinds) for kinds in named], "which distortion is the strongest", claims


def _levels(query: str, choices: Sequence[str], name: str, evidence: ExecutorOutput) -> Weights | None:
    """Choices that are levels of quality, or Yes and No to a question whether the quality is good."""
    scores = object_votes(evidence, name)
    if not scores or not _QUALITY.search(query):
        return None
    mean = sum(score for _, score in scores) / len(scores)
    sigma = load_reliability().sigma_of_mean(scores, {})
    if levels := _matched(choices, _LEVELS):
        return [math.exp(-0.5 * ((mean - level) / sigma) ** 2) for level in levels], "the tools' scores", []
    good, bad = (bool(_words(word).search(query)) for word in ("good|high|excellent", "bad|poor|low"))
    if good == bad:
        return None
    likely = 0.5 * math.erfc(((3.5 if good else mean) - (mean if good else 2.5)) / (sigma * math.sqrt(2)))
    return (weights, "the tools' scores", []) if (weights := _yes_or_no(choices, likely)) else None


def _yes_or_no(choices: Sequence[str], yes: float) -> list[float] | None:
    """The probability of each choice, where they are Yes and No; None where they are not."""
    answers = _matched(choices, {"yes": _YES, "no": _NO})
    return answers and [yes if answer == "yes" else 1 - yes for answer in answers]


def _yes_no(query: str, choices: Sequence[str], kinds: Sequence[str], detection: Detection) -> Weights | None:
    """Yes and No to a question whether a named family, or any distortion, is there."""
    if (affirmed := says_present(query, kinds)) is None:
        return None
    there = max(detection.families[kind].probability for kind in kinds or detection.families)
    dark, bright = bool(_DARK.search(query)), bool(_BRIGHT.search(query))
    if affirmed and list(kinds) == [EXPOSURE] and dark != bright and detection.exposure:
        there = _exposure(detection, "too dark" if dark else "too bright")
    weights = _yes_or_no(choices, there if affirmed else 1 - there)
    if weights is None:
        return None
    says = [bool(_YES.search(choice)) == affirmed for choice in choices]
    claims: list[Claim] = [(kinds, ["there" if present else "none"]) for present in says]
    return weights, f"whether there is {' or '.join(kinds) or 'any distortion'}", claims


def says_present(query: str, kinds: Sequence[str]) -> bool | None:
    """Whether Yes says that the distortions named are there (True) or that they are not (False); None where
    the question names none, or both a virtue and a damage."""
    damaged = bool(_DAMAGE.search(query)) if kinds else bool(_ANY_DAMAGE.search(query))
    virtue = bool(_VIRTUE.search(query)) and bool(kinds)
    if damaged == virtue:
        return None
    return damaged != bool(_ABSENCE.search(query))


def agree(evidence: ExecutorOutput, name: str, claim: Claim, probability: float) -> None:
    """Brings the evidence of an object into line with an answer that the letters decided against it, since
    they were asked the same."""
    kinds, words = claim
    families = by_object(evidence, "detection")[name].families
    items = {item.type: item for item in by_object(evidence, "distortion_analysis").get(name, [])}
    there = [kind for kind in kinds or families if families[kind].probability >= PRESENT]
    if list(words) == ["none"]:
        for kind in there:
            _set(evidence, name, kind, "none", min(probability, 1 - probability, 0.49))
        return
    kind = max(kinds or families, key=lambda one: families[one].probability)
    allowed = SEVERITIES[1:] if "there" in words else words
    if ("there" in words and there) or (kind in items and items[kind].severity in allowed):
        return
    severity = families[kind].severity or WORD_SEVERITIES["moderate"]
    nearest = min(allowed, key=lambda other: abs(WORD_SEVERITIES[other] - severity))
    _set(evidence, name, kind, nearest, max(probability, PRESENT))


def _set(evidence: ExecutorOutput, name: str, kind: str, severity: Any, probability: float) -> None:
    """Puts a family's probability and severity into the evidence of an object."""
    by_object(evidence, "detection")[name].families[kind].probability = probability
    said = "As the letters of the answer say, against the measurement."
    found = DistortionAnalysis(type=kind, severity=severity, explanation=said)
    items = [item for item in by_object(evidence, "distortion_analysis").get(name, []) if item.type != kind]
    evidence.distortion_analysis = by_object(evidence, "distortion_analysis") | {name: [*items, found]}
    listed = [one for one in by_object(evidence, "distortion_set").get(name, []) if one != kind]
    listed += [] if severity == "none" else [kind]
    evidence.distortion_set = by_object(evidence, "distortion_set") | {name: listed}
    p = dict.fromkeys(SEVERITIES, 0.0) | {"none": 1 - probability}
    p[severity] += 1 - sum(p.values())
    known = by_object(evidence, "severity_probabilities")
    evidence.severity_probabilities = known | {name: known.get(name, {}) | {kind: p}}
