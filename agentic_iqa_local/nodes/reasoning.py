"""Whether the model's reasoning fits the evidence, and the sentences that stand in where it does not. Pure:
text in, text out.

One rule: reasoning that names another level, distortion, severity, place or answer than the evidence gives
way to sentences made of the evidence.
"""

import re
from collections.abc import Sequence

from agentic_iqa_local.nodes.evidence import by_object, of_object
from agentic_iqa_local.nodes.query import holds
from agentic_iqa_local.state import (
    EVERYWHERE,
    LEVEL_WORDS,
    PLACES,
    UNCLEAR,
    DistortionAnalysis,
    ExecutorOutput,
)

# What says that a distortion is there; words that name a virtue or the subject as well ("sharp", "bright")
# are left out.
_DAMAGE = {
    "Blurs": r"(?<!background )blur\w*(?! background)|out of focus|(?:de|un)focus\w*|unsharp",
    "Color distortions": r"colou?r (?:distortion|cast|shift|bleed|fring)\w*|(?:de|over|under)-?saturat\w*|discolou?r\w*|chromatic aberration",
    "Compression": r"compression|mosquito artefacts?|blocking|blocky|blockiness|ringing|banding|pixelat\w*|jpe?g (?:artifacts?|blocks?)",
    "Noise": r"nois(?:e|y)(?! reduction)|grain(?:y|iness)|(?<!wood )grain(?! of)|speckl\w*|blotch\w*",
    "Brightness change": r"brightness (?:change|shift|distortion)\w*|too (?:bright|dark)|(?:over|under)-?\s?expos\w*|blown highlights",
    "Sharpness": r"over-?\s?sharpen\w*|halos?(?! of light)|sharpness (?:distortion|artifact)\w*",
    "Contrast": r"contrast (?:change|loss|distortion)\w*|(?:low|poor|lack of|reduced|harsh|excessive) contrast",
}
_SEVERITY = r"(slight|moderate|severe|extreme)"
_NAMED = {
    kind: re.compile(
        rf"\b(?:(?:{_SEVERITY}(?:ly)? )?(?:{damage})|{_SEVERITY} {kind.removesuffix('s')}s?)\b", re.IGNORECASE
    )
    for kind, damage in _DAMAGE.items()
}
_ALIKE = {"Blurs": {"Sharpness"}, "Sharpness": {"Blurs"}}  # words of one describe the other
_CLAUSE = re.compile(r"[.;:!?\n]|\b(?:but|however|although|though|while|whereas|yet)\b", re.IGNORECASE)
_UNSURE = re.compile(
    r"\b(no|not|nor|without|none|nothing|free (of|from)|absen(t|ce)|lack of|hardly|barely|never|neither|minimal|negligible|low|little"
    r"|would|could|apart from|except|if)\b|n['’]t\b|-free\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?<!not )(?<!n't )\b(no|zero|free of|free from|absence of) ((visible|noticeable|any|apparent) )?$",
    re.IGNORECASE,
)
_DENIED_BEHIND = re.compile(
    r"-free\b| (is|are) (minimal|negligible|absent|invisible|not (visible|present))\b", re.IGNORECASE
)
_NOTHING = re.compile(
    r"\bno (visible |noticeable |apparent |obvious )?(distortions?|degradations?|artifacts?|defects?|damage)\b|\b(clean|flawless|pristine)\b"
    r"|\blooks? natural\b|\bperfect (picture|image|photo)",
    re.IGNORECASE,
)
_LEVELS = "|".join(LEVEL_WORDS.values())
_LEVEL = re.compile(
    rf"\bquality (?:is|was|seems|appears|looks)(?: (?!not\b|very\b|too\b)\w+){{0,2}}? ({_LEVELS})\b"
    rf"|(?<!not of )(?<!to )\b({_LEVELS})(?: (?:overall|image|picture|visual|perceptual|technical))* quality\b(?! tool)"
    rf"|\b(?:rating|level|grade|verdict)(?: is)?[: ]+({_LEVELS})\b|\brate (?:it|this) (?:as )?({_LEVELS})\b",
    re.IGNORECASE,
)
_EVERYDAY = re.compile(r"yes|no|none|other|maybe|.", re.IGNORECASE)  # answers that are words of every text


def findings(evidence: ExecutorOutput | None) -> dict[str, list[DistortionAnalysis]]:
    """The distortions of each object that the analysis found, without those of severity none (looked for in
    vain) and unclear (nothing is known)."""
    return {
        name: [item for item in items if item.severity not in ("none", UNCLEAR)]
        for name, items in by_object(evidence, "distortion_analysis").items()
    }


def misstatements(text: str, evidence: ExecutorOutput | None, level: str | None) -> list[str]:
    """What in `text` the evidence or the fused `level` ("Good"; None where no level was decided) contradicts,
    a line each.

    Without an analysis nothing is known of distortions, so that only the level is compared. Where a sentence
    can be read either way it is let pass: sound reasoning that is taken for wrong costs more than wrong
    reasoning that is overlooked.
    """
    lines = [] if level is None else _wrong_levels(text, level)
    if evidence is None or not evidence.distortion_analysis:
        return lines
    if evidence.damaged_part and (elsewhere := _places(text) - _known_places(evidence)):
        where = f"LocalNR's map has the damage {evidence.damaged_part}"
        lines.append(f"names the {', '.join(sorted(elsewhere))}, {where}")
    held, analysed = _severities(findings(evidence)), _severities(evidence.distortion_analysis)
    known = [kind for kind in _NAMED if kind in held or UNCLEAR not in analysed.get(kind, ())]
    for clause in _CLAUSE.split(text):
        for kind in known:
            for found in _NAMED[kind].finditer(clause):
                lines += _wrong_mention(kind, found, clause, held)
    visible = any(words - {"slight"} for words in held.values())
    if visible and _NOTHING.search(text) and not names_a_distortion(text):
        lines.append(f"says that nothing is visible, the evidence has {', '.join(sorted(held))}")
    return list(dict.fromkeys(lines))


def _wrong_levels(text: str, level: str) -> list[str]:
    if re.search(r"\btools?\b", text, re.IGNORECASE):  # it may quote the tools
        return []
    named = {next(filter(None, found.groups())).capitalize() for found in _LEVEL.finditer(text)}
    return [
        f"says that the quality is {word.lower()}, the level is {level.lower()}"
        for word in sorted(named - {level})
    ]


def _wrong_mention(kind: str, found: re.Match[str], clause: str, held: dict[str, set[str]]) -> list[str]:
    """What words of a clause that name a distortion contradict of the severities that are `held`, by type."""
    if kind not in held:
        may_be_right = held.keys() & _ALIKE.get(kind, set()) or _UNSURE.search(clause)
        return [] if may_be_right else [f"names {kind}, which the evidence does not hold"]
    if _DENIED.search(clause[: found.start()]) or _DENIED_BEHIND.match(clause, found.end()):
        return [f"denies {kind}, which the evidence holds"] if held[kind] - {"slight"} else []
    said = (found[1] or found[2] or "").lower()
    if (
        said
        and said not in held[kind]
        and not re.search(r"\b(to|or|and|almost|not) $", clause[: found.start()])
    ):
        return [f"calls {kind} {said}, the evidence has {', '.join(sorted(held[kind]))}"]
    return []


def _severities(analysis: dict[str, list[DistortionAnalysis]]) -> dict[str, set[str]]:
    severities: dict[str, set[str]] = {}
    for items in analysis.values():
        for item in items:
            severities.setdefault(item.type, set()).add(item.severity)
    return severities


def _places(text: str) -> set[str]:
    """The quarters of a picture that a text names."""
    plain = re.sub(r"[ -](hand[ -])?", " ", text.lower()).replace("upper", "top").replace("lower", "bottom")
    return {place for place in PLACES if place in plain or " ".join(reversed(place.split())) in plain}


def _known_places(evidence: ExecutorOutput) -> set[str | None]:
    return {evidence.damaged_part, evidence.worst_part and evidence.worst_part.place}


def names_a_distortion(text: str) -> bool:
    """Whether a text speaks of a type of distortion."""
    return any(pattern.search(text) for pattern in _NAMED.values())


def says_nothing_measured(text: str) -> bool:
    """Whether a text speaks neither of a distortion nor of there being none."""
    return not (_NOTHING.search(text) or names_a_distortion(text))


def speaks_for_another(text: str, choices: Sequence[str], chosen: str) -> list[str]:
    """A line where `text` names other answers than the `chosen` one and not that."""
    named = [choice for choice in choices if not _EVERYDAY.fullmatch(choice.strip()) and holds(text, choice)]
    return [f"speaks for {', '.join(named)}, the answer is {chosen}"] if named and chosen not in named else []


def place_of_damage(evidence: ExecutorOutput | None) -> str | None:
    """A sentence that says where the damage is; None where that was not measured."""
    if evidence and (worst := evidence.worst_part):
        where = "in the middle" if worst.place == "middle" else f"at the {worst.place}"
        return f"The worst part of the picture is {where}{f' ({worst.seen})' if worst.seen else ''}."
    if evidence is None or evidence.damaged_part is None:
        return None
    everywhere = evidence.damaged_part == EVERYWHERE
    where = "everywhere in the picture" if everywhere else f"in the {evidence.damaged_part} quarter"
    return f"LocalNR's map has the damage {where}."


def from_evidence(evidence: ExecutorOutput | None, level: str | None) -> str:
    """Sentences that say what the evidence holds and nothing else; an explanation that contradicts it is left
    out."""
    sentences = [] if evidence is None else _evidence_sentences(evidence, level)
    return " ".join([*sentences, *([] if level is None else [f"The quality is {level.lower()}."])])


def _evidence_sentences(evidence: ExecutorOutput, level: str | None) -> list[str]:
    sentences = []
    for name, items in findings(evidence).items():
        for item in items:
            short = f"{item.severity.capitalize()} {item.type.lower()}{of_object(name)}"
            explained = f"{short}: {item.explanation.rstrip('.')}."
            sentences.append(f"{short}." if misstatements(explained, evidence, level) else explained)
    for name, items in by_object(evidence, "distortion_analysis").items():
        if unclear := " and ".join(item.type.lower() for item in items if item.severity == UNCLEAR):
            sentences.append(f"The severity of {unclear}{of_object(name)} cannot be told.")
    place = place_of_damage(evidence)
    if not sentences and evidence.distortion_analysis:
        unread = any(detection.error for detection in by_object(evidence, "detection").values())
        if unread:
            sentences.append("The model saw no distortion; LocalNR could not read the picture.")
        else:
            found = "The model saw no distortion in the picture as a whole."
            sentences.append(found if place else "No visible distortion was found.")
    return [*sentences, *([place] if place else [])]
