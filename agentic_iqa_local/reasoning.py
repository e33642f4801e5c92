"""Whether the model's reasoning fits the evidence, and the sentences that stand in where it does not. Pure: text in, text out.

The check is made of words: a distortion counts as named where a clause names its damage, or its type beside a severity.
"""

import re
from collections.abc import Sequence

from agentic_iqa_local.levels import DISTORTION_TYPES, LEVEL_WORDS
from agentic_iqa_local.query import holds
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput

# What says that a distortion is there. Words that name a virtue or the subject as well ("sharp", "bright") are not among them.
_DAMAGE = {
    "Blurs": r"\bblur\w*|\b(out of|lacks?|lost|missed) focus|\b(de|un)focus\w*|\b(is|are|looks?|appears?) (too )?soft\b",
    "Color distortions": r"\bcolou?r (distortion|cast|shift|bleed|fring)\w*|\btint(ed)?\b|\b(de|over|under)-?saturat\w*|\bchromatic "
    r"aberration|\bdiscolou?r\w*|\bhue shift",
    "Compression": r"\bcompress\w*|\bjpe?g\b|\bblocking\b|\bblocky\b|\bblockiness\b|\bringing\b|\bbanding\b|\bcoding artifacts?",
    "Noise": r"\bnois(e|y)\b|\bgrain(y|iness)?\b|\bspeckl\w*",
    "Brightness change": r"\bbrightness (change|shift|distortion)\w*|\btoo (bright|dark)\b|\b(over|under)-?\s?expos\w*",
    "Sharpness": r"\b(over-?\s?sharpen\w*|halos?\b)|\bsharpness (distortion|artifact)\w*",
    "Contrast": r"\bcontrast (change|loss|distortion)\w*|\b(low|poor|lack of|reduced|harsh|excessive) contrast\b",
}
_SEVERITIES = {
    "slight": r"slight(ly)?|mild(ly)?|minor|faint(ly)?",
    "moderate": r"moderate(ly)?",
    "severe": r"severe(ly)?|strong(ly)?|heavy|heavily",
    "extreme": r"extreme(ly)?",
}
_ANY_SEVERITY = "|".join(_SEVERITIES.values())
_NAMED = {
    kind: re.compile(rf"{damage}|\b({_ANY_SEVERITY})\s+{kind.rstrip('s')}", re.IGNORECASE) for kind, damage in _DAMAGE.items()
}
_SEVERITY = {name: re.compile(rf"\b({words})\b", re.IGNORECASE) for name, words in _SEVERITIES.items()}
_CLAUSE = re.compile(r"[.;:!?,\n]|\b(?:but|however|although|though|while|whereas|yet|except)\b", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(no|not|nor|without|none|free (of|from)|absence|lacks? of|hardly|barely|never|neither)\b|n['’]t\b", re.IGNORECASE
)
_EVERYDAY = re.compile(r"yes|no|none|other|maybe|.", re.IGNORECASE)
_NOTHING = re.compile(
    r"\bno (?!other|further|more|additional)(\w+ ){0,2}?(distortions?|degradations?|artifacts?|defects?|damage)\b|\b(picture|image|photo) is clean\b|\blooks? natural\b|\bflawless\b|\bpristine\b",
    re.IGNORECASE,
)
_LEVELS = "|".join(LEVEL_WORDS.values())
_QUALITY = re.compile(
    rf"\bquality (?:is|as|seems|appears|looks)(?: \w+){{0,2}}? (?P<after>{_LEVELS})\b|\b(?P<before>{_LEVELS})(?: \w+){{0,2}}? quality\b",
    re.IGNORECASE,
)


def findings(evidence: ExecutorOutput | None) -> dict[str, list[DistortionAnalysis]]:
    """The distortions of each object that the analysis found; one whose severity is none was looked for and not found."""
    analysis = (evidence and evidence.distortion_analysis) or {}
    return {name: [item for item in items if item.severity != "none"] for name, items in analysis.items()}


def misstatements(text: str, evidence: ExecutorOutput | None, level: str | None) -> list[str]:
    """What in `text` the evidence or the fused `level` ("Good"; None where no level was decided) contradicts, a line each.

    Without an analysis nothing is known of distortions, so that only the level is compared.
    """
    lines = []
    if level is not None:
        said = {(found["after"] or found["before"]).capitalize() for found in _QUALITY.finditer(text)}
        lines += [f"says that the quality is {word.lower()}, the level is {level.lower()}" for word in sorted(said - {level})]
    if evidence is None or evidence.distortion_analysis is None:
        return lines
    found: dict[str, set[str]] = {}
    for items in findings(evidence).values():
        for item in items:
            found.setdefault(item.type, set()).add(item.severity)
    for clause in _CLAUSE.split(text):
        named = [kind for kind in DISTORTION_TYPES if _NAMED[kind].search(clause)]
        if found and not named and _NOTHING.search(clause):
            lines.append(f"says that nothing is visible, the evidence has {', '.join(sorted(found))}")
        strengths = {name for name, pattern in _SEVERITY.items() if pattern.search(clause)}
        negated = bool(_NEGATION.search(clause))
        for kind in named:
            if negated and found.get(kind, set()) - {"slight"}:
                lines.append(f"denies {kind}, which the evidence holds")
            elif not negated and kind not in found:
                lines.append(f"names {kind}, which the evidence does not hold")
            elif not negated and len(named) == len(strengths) == 1 and not strengths & found[kind]:
                lines.append(f"calls {kind} {strengths.pop()}, the evidence has {', '.join(sorted(found[kind]))}")
    return list(dict.fromkeys(lines))


def speaks_for_another(text: str, choices: Sequence[str], chosen: str) -> list[str]:
    """A line where `text` names other answers than the `chosen` one and not that. Yes, no and none are words of every text."""
    named = [choice for choice in choices if not _EVERYDAY.fullmatch(choice.strip()) and holds(text, choice)]
    if named and chosen not in named:
        return [f"speaks for {', '.join(named)}, the answer is {chosen}"]
    return []


def from_evidence(evidence: ExecutorOutput | None, level: str | None) -> str:
    """Sentences that say what the evidence holds and nothing else; an explanation that contradicts it is left out."""
    sentences = []
    for name, items in findings(evidence).items():
        of = "" if name == "Global" else f" of {name}"
        for item in items:
            sentence = f"{item.severity.capitalize()} {item.type.lower()}{of}"
            told = f"{sentence}: {item.explanation.rstrip('.')}."
            sentences.append(f"{sentence}." if misstatements(told, evidence, level) else told)
    if not sentences and evidence is not None and evidence.distortion_analysis is not None:
        sentences.append("No visible distortion was found.")
    if level is not None:
        sentences.append(f"The quality is {level.lower()}.")
    return " ".join(sentences)
