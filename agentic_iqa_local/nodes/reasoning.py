"""The reasoning of an answer: the model's words or sentences made of the evidence, and what a reader must know."""

import re
from collections.abc import Sequence

from agentic_iqa_local.nodes.evidence import (
    Evidence,
    by_object,
    contradictions,
    found_damage,
    of_object,
)
from agentic_iqa_local.nodes.letter_reading import answer_letter
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.nodes.query import distortions_in
from agentic_iqa_local.state import (
    EVERYWHERE,
    LETTER_TO_LEVEL,
    LEVEL_WORDS,
    UNCLEAR,
    FusionResult,
    in_words,
)

Choices = Sequence[str] | None

_CLAIM = re.compile(r"\b(slight|moderate|severe|extreme)(?:ly)? (\w+(?: \w+)?)", re.IGNORECASE)
_NOTHING = re.compile(r"\bno (visible )?(distortion|degradation|damage|defect)", re.IGNORECASE)
_CLEAN = re.compile(
    r"\b(picture|image|photo(graph)?) is (clean|undamaged|pristine)\b", re.IGNORECASE
)
_LEVEL = re.compile(rf"\bquality is ({'|'.join(LEVEL_WORDS.values())})\b", re.IGNORECASE)


def reasoned(
    text: str | None, evidence: Evidence, fusion: FusionResult | None, choices: Choices
) -> str:
    """Where the damage is, the model's `text` and the notes. Sentences made of the evidence and of the answer stand in
    for a `text` of None, and for one that says something else than was found."""
    written = (
        ""
        if text is None or contradicts(text, evidence, fusion, choices)
        else text.removeprefix("None: ")
    )
    for name, item in found_damage(
        evidence
    ):  # a small model begins a sentence with a name of our list
        label, words = f"{item.type}:", f"{in_words(evidence, name, item.type)}:"
        written = written.replace(label, words.capitalize()).replace(label.lower(), words)
    said = [written] if written else from_evidence(evidence, fusion, choices)
    return " ".join([*_place(evidence), *filter(None, said), *_notes(evidence, fusion)])


def contradicts(
    text: str, evidence: Evidence, fusion: FusionResult | None, choices: Choices
) -> bool:
    """Whether a text gives a distortion another severity than was found, sees none where there is damage, or names
    another level than the answer. A small model writes so of clean pictures too."""
    found: dict[str, set[str]] = {}
    analysis = by_object(evidence, "distortion_analysis")
    for _, item in found_damage(evidence):
        found.setdefault(item.type, set()).add(item.severity)
    claims = [
        (kind, claim[1].lower())
        for claim in _CLAIM.finditer(text)
        for kind in distortions_in(claim[2])
    ]
    if analysis and any(severity not in found.get(kind, ()) for kind, severity in claims):
        return True
    clean = _CLEAN.search(text) or (not claims and _NOTHING.search(text))
    if clean and any(words - {"slight", UNCLEAR} for words in found.values()):
        return True
    level = (
        None if choices or fusion is None else LEVEL_WORDS[LETTER_TO_LEVEL[answer_letter(fusion)]]
    )
    return level is not None and any(word.capitalize() != level for word in _LEVEL.findall(text))


def from_evidence(evidence: Evidence, fusion: FusionResult | None, choices: Choices) -> list[str]:
    """Sentences that say what was found, and the level or the answer that was chosen."""
    letter, analysis = fusion and answer_letter(fusion), by_object(evidence, "distortion_analysis")
    said = []
    if fusion and letter and choices:
        said.append(
            f"The most probable answer is {chosen_answer(choices, letter)} ({fusion.p[letter]:.2f})."
        )
    found = found_damage(evidence)
    for name, item in found:
        what, seen = (
            f"{in_words(evidence, name, item.type)}{of_object(name)}",
            item.explanation.rstrip("."),
        )
        unclear = f"The severity of {what} cannot be told."
        said.append(
            unclear if item.severity == UNCLEAR else f"{item.severity.capitalize()} {what}: {seen}."
        )
    if analysis and not found:
        partly = _place(evidence) or any(
            one.error for one in by_object(evidence, "detection").values()
        )
        said.append(
            "The model saw no distortion as a whole."
            if partly
            else "No visible distortion was found."
        )
    if evidence and letter and not choices:
        said.append(f"The quality is {LEVEL_WORDS[LETTER_TO_LEVEL[letter]].lower()}.")
    return said


def _place(evidence: Evidence) -> list[str]:
    """A sentence that says where the damage is; none where that was not measured."""
    part = evidence and evidence.damaged_part
    where = "everywhere in the picture" if part == EVERYWHERE else f"in the {part} quarter"
    return [f"LocalNR's map has the damage {where}."] if part else []


def _notes(evidence: Evidence, fusion: FusionResult | None) -> list[str]:
    """What must stand in the reasoning whatever the model wrote: missing evidence, contradictions, the fused score."""
    if evidence is None or evidence.is_empty:
        notes = [
            "No distortion analysis or tool scores were available; judged from the image directly."
        ]
    else:
        notes = (
            []
            if evidence.quality_scores or (fusion and fusion.measured)
            else ["No tool scores were available."]
        )
        notes += [f"{line}." for line in contradictions(evidence)]
    if evidence and evidence.error:
        notes.append(f"Part of the evidence is missing: {evidence.error}.")
    if (
        fusion
        and fusion.measured
        and answer_letter(fusion) != max(fusion.measured, key=fusion.measured.__getitem__)
    ):
        notes.append("The model's letters decided against what was measured.")
    if fusion and fusion.q is not None:
        whose = (
            f"{fusion.voters[0]} says" if len(fusion.voters) == 1 else "the tools say on average"
        )
        tools = "no tool gave a score" if fusion.q_bar is None else f"{whose} {fusion.q_bar:.2f}"
        level = fusion.vlm_letter and LEVEL_WORDS[LETTER_TO_LEVEL[fusion.vlm_letter]]
        notes.append(
            f"Fused score {fusion.q:.2f} of 5: {tools}, the model alone {level or 'was not asked'}."
        )
    return notes
