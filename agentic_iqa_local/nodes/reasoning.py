"""The reasoning of an answer: the model's words, or sentences made of the evidence where these contradict it. A text
that can be read either way is let pass. English words alone are known."""

import re
from collections.abc import Sequence

from agentic_iqa_local.nodes.evidence import by_object, contradictions, of_object
from agentic_iqa_local.nodes.letter_reading import answer_letter
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.nodes.query import holds
from agentic_iqa_local.state import EVERYWHERE, LETTER_TO_LEVEL, LEVEL_WORDS, UNCLEAR, ExecutorOutput, FusionResult

# What says that a distortion is there, but for words that name a virtue or the subject as well ("sharp", "bright")
_DAMAGE = {
    "Blurs": r"(?<!background )blur\w*(?! background)|out of focus|(?:de|un)focus\w*|unsharp",
    "Color distortions": r"colou?r (?:distortion|cast|shift|bleed|fring)\w*|(?:de|over|under)-?saturat\w*|chromatic aberration",
    "Compression": r"compression|mosquito artefacts?|block(?:ing|y|iness)|ringing|banding|pixelat\w*|jpe?g (?:artifacts?|blocks?)",
    "Noise": r"nois(?:e|y)(?! reduction)|grain(?:y|iness)|(?<!wood )grain(?! of)|speckl\w*|blotch\w*",
    "Brightness change": r"brightness (?:change|shift|distortion)\w*|too (?:bright|dark)|(?:over|under)-?\s?expos\w*|blown highlights",
    "Sharpness": r"over-?\s?sharpen\w*|halos?(?! of light)|sharpness (?:distortion|artifact)\w*",
    "Contrast": r"contrast (?:change|loss|distortion)\w*|(?:low|poor|lack of|reduced|harsh|excessive) contrast",
}
SEVERITIES = ("slight", "moderate", "severe", "extreme")
_SEVERITY = rf"(?:(?<!to )(?<!or )(?<!and )(?<!almost )(?<!not )({'|'.join(SEVERITIES)})(?:ly)? )"  # "slight to severe"
_NAMED = {
    kind: re.compile(rf"\b(?:{_SEVERITY}?(?:{damage})|{_SEVERITY}{kind.removesuffix('s')}s?)\b", re.I)
    for kind, damage in _DAMAGE.items()
}
_ALIKE = {"Blurs": {"Sharpness"}, "Sharpness": {"Blurs"}}  # words of one describe the other
_CLAUSE = re.compile(r"[.;:!?\n]|\b(?:but|however|although|though|while|whereas|yet)\b", re.I)
_DENIED = re.compile(  # \0 stands for the distortion
    r"(?<!not )(?<!n't )\b(no|zero|free (of|from)|absence of) ((visible|noticeable|any) )?\0"
    r"|\0(-free\b| (is|are) (minimal|negligible|absent|invisible|not (visible|present))\b)",
    re.I,
)
_UNSURE = re.compile(
    r"\b(no|not|nor|without|none|nothing|free|absen(t|ce)|lack|hardly|barely|never|neither|minimal|negligible|low|little|would|could"
    r"|apart from|except|if)\b|n['’]t\b",
    re.I,
)
_NOTHING = re.compile(
    r"\bno (visible |noticeable |apparent )?(distortions?|degradations?|artifacts?|defects?|damage)\b|\b(clean|flawless|pristine)\b"
    r"|\bperfect (picture|image|photo)",
    re.I,
)
_LEVELS = "|".join(LEVEL_WORDS.values())
_LEVEL = re.compile(
    rf"\bquality (?:is|was|seems|appears|looks)(?: (?!not\b|very\b|too\b)\w+){{0,2}}? ({_LEVELS})\b"
    rf"|(?<!not of )(?<!to )\b({_LEVELS})(?: (?:overall|image|picture|visual))* quality\b(?! tool)"
    rf"|\b(?:rating|level|verdict)(?: is)?[: ]+({_LEVELS})\b|\brate (?:it|this) (?:as )?({_LEVELS})\b",
    re.I,
)
_EVERYDAY = re.compile(r"yes|no|none|other|maybe|.", re.I)  # answers that are words of every text


def reasoned(
    text: str | None, evidence: ExecutorOutput | None, fusion: FusionResult | None, choices: Sequence[str] | None
) -> tuple[str, list[str]]:
    """(the reasoning, what the model's `text` got wrong). Sentences made of the evidence stand in for a text that
    contradicts it or the chosen answer, and for one that is missing; behind either stands what a reader must know."""
    letter = answer_letter(fusion) if fusion else ""
    level = LEVEL_WORDS[LETTER_TO_LEVEL[letter]] if letter and not choices else None
    wrong = misstatements(text or "", evidence, level)
    facts = [from_evidence(evidence, level)]
    if fusion and choices:
        chosen = chosen_answer(choices, letter)
        facts.insert(0, f"The most probable answer is {chosen} ({fusion.p[letter]:.2f}).")
        named = [choice for choice in choices if not _EVERYDAY.fullmatch(choice.strip()) and holds(text or "", choice)]
        if named and chosen not in named:
            wrong.append(f"speaks for {', '.join(named)}, the answer is {chosen}")
    said = facts if text is None or wrong else [text]
    return " ".join(filter(None, [_place(evidence), *said, *_notes(evidence, fusion)])), wrong


def misstatements(text: str, evidence: ExecutorOutput | None, level: str | None) -> list[str]:
    """What in `text` the evidence or the fused `level` ("Good"; None where none was decided) contradicts, a line
    each. Without an analysis nothing is known of distortions; a severity that cannot be told contradicts nothing."""
    lines = set()
    if level and not re.search(r"\btools?\b", text, re.I):  # it may quote the tools
        named = {next(filter(None, found.groups())).capitalize() for found in _LEVEL.finditer(text)} - {level}
        lines |= {f"says that the quality is {word.lower()}, the level is {level.lower()}" for word in named}
    found: dict[str, set[str]] = {}  # by type, its severities
    for item in (item for items in by_object(evidence, "distortion_analysis").values() for item in items):
        if item.severity != "none":
            found.setdefault(item.type, set()).add(item.severity)
    claims = _claims(text) if by_object(evidence, "distortion_analysis") else []
    for kind, said in claims:
        severities = found.get(kind, set())
        if not severities and said not in ("denied", "unsure") and not found.keys() & _ALIKE.get(kind, set()):
            lines.add(f"names {kind}, but nothing of that kind was found")
        elif said == "denied" and severities - {"slight", UNCLEAR}:
            lines.add(f"denies {kind}, but that was found")
        elif said in SEVERITIES and severities and not severities & {said, UNCLEAR}:
            lines.add(f"calls {kind} {said}, but what was found is {', '.join(sorted(severities))}")
    if not claims and _NOTHING.search(text) and any(words - {"slight", UNCLEAR} for words in found.values()):
        lines.add(f"says that nothing is visible, but this was found: {', '.join(sorted(found))}")
    return sorted(lines)


def _claims(text: str) -> list[tuple[str, str]]:
    """Each distortion that a text names, with what it says of it: a severity, "denied", "unsure", or nothing."""
    claims = []
    for clause in _CLAUSE.split(text):
        for kind, pattern in _NAMED.items():
            for named in pattern.finditer(clause):
                rest = f"{clause[: named.start()]}\0{clause[named.end() :]}"
                said = (
                    "denied" if _DENIED.search(rest) else "unsure" if _UNSURE.search(clause) else named[1] or named[2]
                )
                claims.append((kind, (said or "").lower()))
    return claims


def _place(evidence: ExecutorOutput | None) -> str | None:
    """A sentence that says where the damage is; None where that was not measured."""
    if evidence and (worst := evidence.worst_part):
        return f"The worst part of the picture is at its {worst.place}{f' ({worst.seen})' if worst.seen else ''}."
    part = evidence and evidence.damaged_part
    where = "everywhere in the picture" if part == EVERYWHERE else f"in the {part} quarter"
    return f"LocalNR's map has the damage {where}." if part else None


def from_evidence(evidence: ExecutorOutput | None, level: str | None) -> str:
    """Sentences that say what the evidence holds and nothing else, without explanations that contradict it."""
    sentences = []
    for name, items in by_object(evidence, "distortion_analysis").items():
        for item in items:
            what = f"{item.type.lower()}{of_object(name)}"
            if item.severity == UNCLEAR:
                sentences.append(f"The severity of {what} cannot be told.")
            elif item.severity != "none":
                short = f"{item.severity.capitalize()} {what}"
                long = f"{short}: {item.explanation.rstrip('.')}."
                sentences.append(f"{short}." if misstatements(long, evidence, level) else long)
    if not sentences and by_object(evidence, "distortion_analysis"):
        unread = any(detection.error for detection in by_object(evidence, "detection").values())
        sure = not (unread or _place(evidence))
        sentences.append("No visible distortion was found." if sure else "The model saw no distortion as a whole.")
    return " ".join(sentences + ([f"The quality is {level.lower()}."] if level and evidence else []))


def _notes(evidence: ExecutorOutput | None, fusion: FusionResult | None) -> list[str]:
    """What must stand in the reasoning whatever the model wrote: missing evidence, contradictions, the fused score."""
    if evidence is None or evidence.is_empty:
        notes = ["No distortion analysis or tool scores were available; judged from the image directly."]
    else:
        notes = [] if evidence.quality_scores else ["No tool scores were available."]
        notes += [f"{line}." for line in contradictions(evidence)]
    if evidence and evidence.error:
        notes.append(f"Part of the evidence is missing: {evidence.error}.")
    if fusion and fusion.measured and answer_letter(fusion) != max(fusion.measured, key=fusion.measured.__getitem__):
        notes.append("The model's letters decided against what was measured.")
    if fusion and fusion.q is not None:
        whose = fusion.voters[0] if len(fusion.voters) == 1 else "tools' mean"
        tools = "no tool scores" if fusion.q_bar is None else f"{whose} {fusion.q_bar:.2f}"
        notes.append(
            f"Fused score {fusion.q:.2f} of 5 ({tools}, model's own letter {fusion.vlm_letter or 'not read'})."
        )
    return notes
