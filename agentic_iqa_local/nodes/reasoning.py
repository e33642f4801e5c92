"""The reasoning of an answer: the model's words, or sentences made of the evidence where these contradict it. A text
that can be read either way is let pass. English words alone are known."""

import re
from collections.abc import Sequence

from agentic_iqa_local.nodes.evidence import by_object, contradictions, of_object, votes
from agentic_iqa_local.nodes.letter_reading import answer_letter
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.nodes.query import holds
from agentic_iqa_local.state import (
    EVERYWHERE,
    LETTER_TO_LEVEL,
    LEVEL_WORDS,
    UNCLEAR,
    ExecutorOutput,
    FusionResult,
)

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
_SEVERITY = r"(slight|moderate|severe|extreme)"
_NAMED = {
    kind: re.compile(rf"\b(?:(?:{_SEVERITY}(?:ly)? )?(?:{damage})|{_SEVERITY} {kind.removesuffix('s')}s?)\b", re.I)
    for kind, damage in _DAMAGE.items()
}
_ALIKE = {"Blurs": {"Sharpness"}, "Sharpness": {"Blurs"}}  # words of one describe the other
_CLAUSE = re.compile(r"[.;:!?\n]|\b(?:but|however|although|though|while|whereas|yet)\b", re.I)
_UNSURE = re.compile(
    r"\b(no|not|nor|without|none|nothing|free|absen(t|ce)|lack|hardly|barely|never|neither|minimal|negligible|low|little|would|could"
    r"|apart from|except|if)\b|n['’]t\b",
    re.I,
)
_DENIED = re.compile(r"(?<!not )(?<!n't )\b(no|zero|free (of|from)|absence of) ((visible|noticeable|any) )?$", re.I)
_DENIED_BEHIND = re.compile(r"-free\b| (is|are) (minimal|negligible|absent|invisible|not (visible|present))\b", re.I)
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
    text: str | None,
    evidence: ExecutorOutput | None,
    fusion: FusionResult | None,
    choices: Sequence[str] | None,
    vote: str = "runs",
) -> tuple[str, list[str]]:
    """(the reasoning, what the model's `text` got wrong). Sentences made of the evidence stand in for a text that
    contradicts it, and for one that is missing; behind either stands what a reader must know.

    Args:
        text: the model's words; None where it gave none.
        evidence: what was found and measured.
        fusion: the letters that were read and their fusion, if any were.
        choices: the user's own answers.
        vote: which scores count, `fusion.vote` of the configuration.
    """
    letter = answer_letter(fusion) if fusion else ""
    level = LEVEL_WORDS[LETTER_TO_LEVEL[letter]] if letter and not choices else None
    wrong = [] if text is None else misstatements(text, evidence, level)
    facts = "" if evidence is None else from_evidence(evidence, level)
    if fusion and choices:
        chosen = chosen_answer(choices, letter)
        facts = f"The most probable answer is {chosen} ({fusion.p[letter]:.2f}). {facts}".strip()
        if text is not None:
            wrong += _speaks_otherwise(text, choices, chosen, measured=fusion.measured is not None)
    said = facts if text is None or wrong else text
    return " ".join(filter(None, [_place(evidence), said, *_notes(evidence, fusion, vote)])), wrong


def _mentions(text: str) -> list[tuple[str, re.Match[str], str]]:
    """(distortion, the words that name it, the clause that they stand in)."""
    return [
        (kind, found, clause)
        for clause in _CLAUSE.split(text)
        for kind, pattern in _NAMED.items()
        for found in pattern.finditer(clause)
    ]


def misstatements(text: str, evidence: ExecutorOutput | None, level: str | None) -> list[str]:
    """What in `text` the evidence or the fused `level` ("Good"; None where none was decided) contradicts, a line
    each. Without an analysis nothing is known of distortions."""
    lines = []
    if level and not re.search(r"\btools?\b", text, re.I):  # it may quote the tools
        named = {next(filter(None, found.groups())).capitalize() for found in _LEVEL.finditer(text)} - {level}
        lines += [f"says that the quality is {word.lower()}, the level is {level.lower()}" for word in named]
    if evidence is None or not evidence.distortion_analysis:
        return lines
    held: dict[str, set[str]] = {}  # by type, the severities that were found; {"unclear"} contradicts nothing
    for item in (item for items in evidence.distortion_analysis.values() for item in items):
        if item.severity != "none":
            held.setdefault(item.type, set()).add(item.severity)
    mentions = _mentions(text)
    wrong = (_wrong(*mention, held) for mention in mentions if held.get(mention[0]) != {UNCLEAR})
    lines += filter(None, wrong)
    if not mentions and _NOTHING.search(text) and any(words - {"slight", UNCLEAR} for words in held.values()):
        lines.append(f"says that nothing is visible, the evidence has {', '.join(sorted(held))}")
    return sorted(set(lines))


def _wrong(kind: str, found: re.Match[str], clause: str, held: dict[str, set[str]]) -> str | None:
    before = clause[: found.start()]
    if kind not in held:
        may_be_right = held.keys() & _ALIKE.get(kind, set()) or _UNSURE.search(clause)
        return None if may_be_right else f"names {kind}, which the evidence does not hold"
    if _DENIED.search(before) or _DENIED_BEHIND.match(clause, found.end()):
        return f"denies {kind}, which the evidence holds" if held[kind] - {"slight"} else None
    said = (found[1] or found[2] or "").lower()
    if not said or said in held[kind] or re.search(r"\b(to|or|and|almost|not) $", before):
        return None
    return f"calls {kind} {said}, the evidence has {', '.join(sorted(held[kind]))}"


def _speaks_otherwise(text: str, choices: Sequence[str], chosen: str, *, measured: bool) -> list[str]:
    """Lines where `text` names other answers than the `chosen` one alone, or nothing of what was `measured`."""
    named = [choice for choice in choices if not _EVERYDAY.fullmatch(choice.strip()) and holds(text, choice)]
    lines = [f"speaks for {', '.join(named)}, the answer is {chosen}"] if named and chosen not in named else []
    silent = measured and not (_NOTHING.search(text) or _mentions(text))
    return lines + (["says nothing of what was measured"] if silent else [])


def _place(evidence: ExecutorOutput | None) -> str | None:
    """A sentence that says where the damage is; None where that was not measured."""
    if evidence and (worst := evidence.worst_part):
        where = "in the middle" if worst.place == "middle" else f"at the {worst.place}"
        return f"The worst part of the picture is {where}{f' ({worst.seen})' if worst.seen else ''}."
    if evidence is None or evidence.damaged_part is None:
        return None
    everywhere = evidence.damaged_part == EVERYWHERE
    where = "everywhere in the picture" if everywhere else f"in the {evidence.damaged_part} quarter"
    return f"LocalNR's map has the damage {where}."


def from_evidence(evidence: ExecutorOutput, level: str | None) -> str:
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
    if not sentences and evidence.distortion_analysis:
        unread = any(detection.error for detection in by_object(evidence, "detection").values())
        but = "; LocalNR could not read the picture" if unread else " in the picture as a whole"
        sure = not (unread or _place(evidence))
        sentences.append("No visible distortion was found." if sure else f"The model saw no distortion{but}.")
    return " ".join(sentences + ([f"The quality is {level.lower()}."] if level else []))


def _notes(evidence: ExecutorOutput | None, fusion: FusionResult | None, vote: str) -> list[str]:
    """What must stand in the reasoning whatever the model wrote: missing evidence, contradictions, the fused score."""
    notes, scores = [], votes(evidence, vote)
    if evidence is None or evidence.is_empty:
        notes.append("No distortion analysis or tool scores were available; judged from the image directly.")
    elif not scores:
        notes.append("No tool scores were available.")
    notes += [f"{line}." for line in contradictions(evidence)] if evidence else []
    if evidence and evidence.error:
        notes.append(f"Part of the evidence is missing: {evidence.error}.")
    if fusion and fusion.measured and answer_letter(fusion) != max(fusion.measured, key=fusion.measured.__getitem__):
        notes.append("The model's letters decided against what was measured.")
    if fusion and fusion.q is not None:
        whose = scores[0][0] if len(scores) == 1 else "tools' mean"
        tools = "no tool scores" if fusion.q_bar is None else f"{whose} {fusion.q_bar:.2f}"
        letter = fusion.vlm_letter or "not read"
        notes.append(f"Fused score {fusion.q:.2f} of 5 ({tools}, model's own letter {letter}).")
    return notes
