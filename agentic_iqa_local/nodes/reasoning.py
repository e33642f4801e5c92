"""Whether the model's reasoning fits the evidence, and the sentences that stand in where it does not. Pure:
text in, text out.

The check is made of words: a distortion counts as named where a clause names its damage, or its type beside a
severity.
"""

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from agentic_iqa_local.levels import DISTORTION_TYPES, EVERYWHERE, LEVEL_WORDS, UNCLEAR
from agentic_iqa_local.nodes.evidence import of_object
from agentic_iqa_local.nodes.query import holds
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput

# What says that a distortion is there. Words that name a virtue or the subject as well ("sharp", "bright")
# are not among them.
_DAMAGE = {
    "Blurs": (
        r"blur\w*|(out of|lacks?|lost|missed)"
        r" focus|(de|un)focus\w*|unsharp|(edges?|details?|textures?|image|picture|photo) "
        r"(is|are|looks?|appears?) (too )?soft"
    ),
    "Color distortions": (
        r"colou?r (distortion|cast|shift|bleed|fring)\w*|tint(ed)?|(de|over|under)-?saturat\w*|chromatic"
        r" aberration"
        r"|discolou?r\w*|hue shift"
    ),
    "Compression": (
        r"compression|blocking|blocky|blockiness|ringing|banding|pixelat\w*|coding artifacts?|jpe?g"
        r" (artifacts?|blocks?)"
        r"|mosquito (noise|artifacts?|artefacts?)"
    ),
    "Noise": r"nois(e|y)|grain(y|iness)?|speckl\w*|blotch\w*",
    "Brightness change": (
        r"brightness (change|shift|distortion)\w*|too (bright|dark)|(over|under)-?\s?expos\w*|blown"
        r" highlights"
    ),
    "Sharpness": r"over-?\s?sharpen\w*|halos?|sharpness (distortion|artifact)\w*",
    "Contrast": r"contrast (change|loss|distortion)\w*|(low|poor|lack of|reduced|harsh|excessive) contrast",
}
# Uses of those words that are no damage.
_HARMLESS = re.compile(
    r"(\w+ly )?blurred background|background blur|bokeh|(wood|sand|leather|fabric|stone)\w* grain|grain of"
    r" (the )?\w+"
    r"|tinted (window|glass|lens|visor)\w*|halos? of light|noise reduction|uncompressed",
    re.IGNORECASE,
)
_SEVERITY_WORDS = {
    r"slight(ly)?|minor|faint(ly)?": {"slight"},
    r"mild(ly)?": {"slight", "moderate"},
    r"moderate(ly)?|medium": {"moderate"},
    r"severe(ly)?": {"severe"},
    r"strong(ly)?|heavy|heavily": {"severe", "extreme"},
    r"extreme(ly)?": {"extreme"},
}
_ANY_SEVERITY = "|".join(_SEVERITY_WORDS)
_SEVERITY_ALONE = re.compile(rf"\W*({_ANY_SEVERITY}|none)\W*", re.IGNORECASE)
_NAMED = {
    kind: re.compile(
        rf"\b({damage})\b|(?<=\b)(({_ANY_SEVERITY})\s+{kind.removesuffix('s')}s?)\b", re.IGNORECASE
    )
    for kind, damage in _DAMAGE.items()
}
_ALIKE = {"Blurs": {"Sharpness"}, "Sharpness": {"Blurs"}}  # words of one describe the other
_CLAUSE = re.compile(r"[.;:!?\n]|\b(?:but|however|although|though|while|whereas|yet)\b", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(no|not|nor|without|none|nothing|free (of|from)|absen(t|ce)|lacks?"
    r" of|hardly|barely|never|neither|minimal|negligible|low|zero"
    r"|little|would|could)\b|n['’]t\b",
    re.IGNORECASE,
)
_DENIED_BEFORE = re.compile(
    r"(?<!isn't )(?<!not )\b(no|zero|without|free of|free from|absence of|negligible|minimal) "
    r"((visible|noticeable|any|apparent) )?$",
    re.IGNORECASE,
)
_DENIED_BEHIND = re.compile(
    r"^(-free|\w* (is|are) (not visible|not present|absent|negligible|minimal|invisible))\b", re.IGNORECASE
)
_CONDITION = re.compile(r"\b(would|could|apart from|besides|except|other than|if)\b", re.IGNORECASE)
_NOTHING = re.compile(
    r"\bno (visible |noticeable |apparent |obvious"
    r" )?(distortions?|degradations?|artifacts?|defects?|damage)\b|\bclean\b|\blooks? natural\b"
    r"|\bflawless\b|\bpristine\b|\bperfect (picture|image|photo)",
    re.IGNORECASE,
)
_LEVELS = "|".join(LEVEL_WORDS.values())
_LEVEL = re.compile(
    rf"\bquality (?:is|was|seems|appears|looks)(?: (?!not\b|very\b|too\b)\w+){{0,2}}? (?P<after>{_LEVELS})\b"
    rf"|(?<!not of )(?<!to )\b(?P<before>{_LEVELS})(?:"
    r" (?:overall|image|picture|visual|perceptual|technical))* quality\b(?! tool)"
    rf"|\b(?:overall |final )?(?:rating|level|grade|verdict)(?: is)?[: ]+(?P<told>{_LEVELS})\b"
    rf"|\brate (?:it|this|the (?:image|picture|photo)) (?:as )?(?P<rated>{_LEVELS})\b",
    re.IGNORECASE,
)
_HIGH, _LOW = (
    re.compile(r"\bhigh(est)? quality\b", re.IGNORECASE),
    re.compile(r"\b(low quality|quality (is|was) (terrible|awful|low))\b", re.IGNORECASE),
)
_COMPARISON = re.compile(r"\b(to|or|and|almost|not)\b[^,]*$|\bto\b", re.IGNORECASE)
_EVERYDAY = re.compile(r"yes|no|none|other|maybe|.", re.IGNORECASE)


def findings(evidence: ExecutorOutput | None) -> dict[str, list[DistortionAnalysis]]:
    """The distortions of each object that the analysis found, without those of severity none (looked for in
    vain) and unclear (nothing is known)."""
    analysis = (evidence and evidence.distortion_analysis) or {}
    return {
        name: [item for item in items if item.severity not in ("none", UNCLEAR)]
        for name, items in analysis.items()
    }


_QUARTER = re.compile(
    r"\b(?:(?P<row>top|upper|bottom|lower)[ -](?:hand[ -])?(?P<column>left|right)|(?P<c>left|right)["
    r" -](?:hand[ -])?(?P<r>top|upper|bottom|lower))\b",
    re.IGNORECASE,
)
_ROWS = {"upper": "top", "lower": "bottom"}


def quarters_named(text: str) -> set[str]:
    """The quarters of a picture that a text names, as "top left"."""
    pairs = ((m["row"] or m["r"], m["column"] or m["c"]) for m in _QUARTER.finditer(text))
    return {f"{_ROWS.get(row.lower(), row.lower())} {column.lower()}" for row, column in pairs}


def place_of_damage(evidence: ExecutorOutput | None) -> str | None:
    """A sentence that says where the damage is; None where that was not measured."""
    if evidence and (worst := evidence.worst_part):
        where = "in the middle" if worst.place == "middle" else f"at the {worst.place}"
        seen = f" ({worst.seen})" if worst.seen else ""
        return f"The worst part of the picture is {where}{seen}."
    part = evidence and evidence.damaged_part
    if not part:
        return None
    return (
        "LocalNR's map has the damage everywhere in the picture."
        if part == EVERYWHERE
        else f"LocalNR's map has the damage in the {part} quarter."
    )


def misstatements(text: str, evidence: ExecutorOutput | None, level: str | None) -> list[str]:
    """What in `text` the evidence or the fused `level` ("Good"; None where no level was decided) contradicts,
    a line each.

    Without an analysis nothing is known of distortions, so that only the level is compared. Where a sentence
    can be read either way it is let pass: sound reasoning that is taken for wrong costs more than wrong
    reasoning that is overlooked.
    """
    lines = _wrong_levels(text, level) if level is not None else []
    if _SEVERITY_ALONE.fullmatch(text):
        lines.append("says too little")
    if evidence is None or not evidence.distortion_analysis:
        return lines
    known = {evidence.damaged_part, evidence.worst_part and evidence.worst_part.place}
    if evidence.damaged_part and (elsewhere := quarters_named(text) - known):
        lines.append(
            f"names the {', '.join(sorted(elsewhere))}, LocalNR's map has the damage {evidence.damaged_part}"
        )
    severities = _severities_by_type(findings(evidence))
    analysed = _severities_by_type(evidence.distortion_analysis)
    unclear = {kind for kind, words in analysed.items() if UNCLEAR in words}
    text = _HARMLESS.sub("it", text)
    mentions = list(_mentions(text, unclear - severities.keys()))
    lines += filter(None, (_wrong_mention(mention, severities) for mention in mentions))
    admits = any(mention.kind in severities and not mention.is_denied for mention in mentions)
    visible = any(words - {"slight"} for words in severities.values())
    if visible and not admits and _NOTHING.search(text):
        lines.append(f"says that nothing is visible, the evidence has {', '.join(sorted(severities))}")
    return list(dict.fromkeys(lines))


def names_a_distortion(text: str) -> bool:
    """Whether a text speaks of a type of distortion, or of there being none."""
    return bool(_NOTHING.search(text)) or any(pattern.search(text) for pattern in _NAMED.values())


def _severities_by_type(analysis: dict[str, list[DistortionAnalysis]]) -> dict[str, set[str]]:
    severities: dict[str, set[str]] = {}
    for items in analysis.values():
        for item in items:
            severities.setdefault(item.type, set()).add(item.severity)
    return severities


@dataclass(frozen=True)
class _Mention:
    """Words of a clause that name a type of distortion, with the clause before and behind them."""

    kind: str
    before: str
    words: str
    behind: str

    @property
    def clause(self) -> str:
        return self.before + self.words + self.behind

    @property
    def is_denied(self) -> bool:
        return bool(_DENIED_BEFORE.search(self.before) or _DENIED_BEHIND.search(self.behind))


def _mentions(text: str, ignored: Container[str]) -> Iterator[_Mention]:
    """Each mention of a distortion, but for the types that are `ignored`."""
    for clause in _CLAUSE.split(text):
        for kind in DISTORTION_TYPES:
            for match in _NAMED[kind].finditer(clause) if kind not in ignored else ():
                yield _Mention(kind, clause[: match.start()], match[0], clause[match.end() :])


def _wrong_mention(mention: _Mention, severities: dict[str, set[str]]) -> str | None:
    """What contradicts the `severities` that were found of each type; None where a mention may be right."""
    kind, clause = mention.kind, mention.clause
    if kind not in severities:
        alike = severities.keys() & _ALIKE.get(kind, set())
        if alike or _NEGATION.search(clause) or mention.behind.startswith("-free"):
            return None
        return f"names {kind}, which the evidence does not hold"
    if mention.is_denied and severities[kind] - {"slight"} and not _CONDITION.search(clause):
        return f"denies {kind}, which the evidence holds"
    stated = _stated_severity(mention)
    if stated and not stated[1] & severities[kind]:
        return f"calls {kind} {stated[0].lower()}, the evidence has {', '.join(sorted(severities[kind]))}"
    return None


def _wrong_levels(text: str, level: str) -> list[str]:
    if re.search(r"\btools?\b", text, re.IGNORECASE):  # it may quote the tools
        return []
    levels_named = {next(filter(None, match.groups())).capitalize() for match in _LEVEL.finditer(text)}
    lines = [
        f"says that the quality is {word.lower()}, the level is {level.lower()}"
        for word in sorted(levels_named - {level})
    ]
    for pattern, levels, word in ((_HIGH, ("Poor", "Bad"), "high"), (_LOW, ("Excellent", "Good"), "low")):
        if level in levels and pattern.search(text):
            lines.append(f"says that the quality is {word}, the level is {level.lower()}")
    return lines


def _stated_severity(mention: _Mention) -> tuple[str, set[str]] | None:
    """The word for a severity that stands right at a mention, and the severities that it can mean."""
    for words, meant in _SEVERITY_WORDS.items():
        match = (
            re.search(rf"\b({words}) (\w+ )?$", mention.before, re.IGNORECASE)
            or re.match(rf"({words})\b", mention.words, re.IGNORECASE)
            or re.match(rf"\w* (is|are) ({words})\b", mention.behind, re.IGNORECASE)
        )
        around = mention.before[-12:] + mention.behind[:24]
        if match and not _COMPARISON.search(around):
            groups = filter(None, match.groups())
            return next(group for group in groups if re.fullmatch(words, group, re.IGNORECASE)), meant
    return None


def speaks_for_another(text: str, choices: Sequence[str], chosen: str) -> list[str]:
    """A line where `text` names other answers than the `chosen` one and not that. Yes, no and none are words
    of every text."""
    named = [choice for choice in choices if not _EVERYDAY.fullmatch(choice.strip()) and holds(text, choice)]
    if named and chosen not in named:
        return [f"speaks for {', '.join(named)}, the answer is {chosen}"]
    return []


def from_evidence(evidence: ExecutorOutput | None, level: str | None) -> str:
    """Sentences that say what the evidence holds and nothing else; an explanation that contradicts it is left
    out."""
    sentences = [] if evidence is None else _evidence_sentences(evidence, level)
    if level is not None:
        sentences.append(f"The quality is {level.lower()}.")
    return " ".join(sentences)


def _evidence_sentences(evidence: ExecutorOutput, level: str | None) -> list[str]:
    sentences = [
        _finding_sentence(name, item, evidence, level)
        for name, items in findings(evidence).items()
        for item in items
    ]
    for name, items in (evidence.distortion_analysis or {}).items():
        if unclear := " and ".join(item.type.lower() for item in items if item.severity == UNCLEAR):
            sentences.append(f"The severity of {unclear}{of_object(name)} cannot be told.")
    if not sentences and evidence.distortion_analysis:
        unread = any(detection.error for detection in (evidence.detection or {}).values())
        sentences.append(
            "The model saw no distortion; LocalNR could not read the picture."
            if unread
            else "The model saw no distortion in the picture as a whole."
            if place_of_damage(evidence)
            else "No visible distortion was found."
        )
    if place := place_of_damage(evidence):
        sentences.append(place)
    return sentences


def _finding_sentence(
    name: str, item: DistortionAnalysis, evidence: ExecutorOutput, level: str | None
) -> str:
    short = f"{item.severity.capitalize()} {item.type.lower()}{of_object(name)}"
    explained = f"{short}: {item.explanation.rstrip('.')}."
    return f"{short}." if misstatements(explained, evidence, level) else explained
