"""The reasoning of an answer: what decided it, the model's words where they agree with the
evidence, and what a reader must know."""

import re
from collections.abc import Iterable, Sequence

from agentic_iqa_local.nodes.evidence import (
    Evidence,
    Finding,
    contradictions,
    findings,
    found_damage,
    has_shallow_focus,
    not_looked_for,
    of_object,
)
from agentic_iqa_local.nodes.letter_reading import answer_letter
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.nodes.query import distortions_in, says_present
from agentic_iqa_local.state import (
    EVERYWHERE,
    LETTER_WORDS,
    PLACES,
    UNCLEAR,
    ExecutorOutput,
    FusionResult,
    plain_words,
)

Choices = Sequence[str] | None
SHALLOW_FOCUS = "Shallow focus: the sharpest part is sharp, the rest is out of focus."

_SEVERITY = re.compile(r"\b(slight|moderate|severe|extreme)(?:ly)?\b", re.IGNORECASE)
_CLEAN = re.compile(
    r"\bno (visible )?(distortion|degradation|damage|defect)"
    r"|\b(picture|image|photo(graph)?) is (clean|undamaged|pristine)\b",
    re.IGNORECASE,
)
_LEVEL = re.compile(rf"\bquality is ({'|'.join(LETTER_WORDS.values())})\b", re.IGNORECASE)


def reasoned(
    text: str | None, evidence: Evidence, fusion: FusionResult | None, choices: Choices
) -> str:
    """Where the damage is, why the answer is what it is, and the notes.

    Args:
        text: What the model wrote; None where it wrote nothing that could be used.
        evidence: What was gathered; None where nothing was.
        fusion: The letters with what they were multiplied by; None for an answer in words.
        choices: The answers that were offered.

    Returns:
        For a choice that rests on evidence that evidence, and behind it the model's words if they
        name what was found. Else the model's words, or sentences made of the evidence where the
        words contradict it.
    """
    known = evidence or ExecutorOutput()
    words = [text] if text and agrees(text, known, fusion) else []
    said = from_evidence(known, fusion, choices)
    if not (fusion and fusion.measured):
        said = words or said
    elif words and distortions_in(words[0]):
        said += words
    return " ".join([*_place(known), *said, *_missing(known, fusion), *_of_fusion(fusion)])


# Do the model's words agree with the evidence?


def agrees(text: str, evidence: ExecutorOutput, fusion: FusionResult | None) -> bool:
    """Whether a text can be the reason of an answer: it names no level but the answer, and only
    distortions and severities that were found; and it calls the picture clean only where all
    distortions were looked for, and none is more than slight."""
    if not _names_the_answer(text, fusion):
        return False
    unread = not_looked_for(evidence)
    if not (evidence.distortion_analysis or unread):
        return True
    found = {finding.type: finding.severity for finding in found_damage(evidence)}
    severities = set(found.values())
    named = {severity.lower() for severity in _SEVERITY.findall(text)}
    if not (names_only(text, found) and named <= severities):
        return False
    some_or_unknown = severities - {"slight", UNCLEAR} or evidence.distortion_set is None or unread
    return not (some_or_unknown and _CLEAN.search(text))


def _names_the_answer(text: str, fusion: FusionResult | None) -> bool:
    """Whether a text about a rating names no level but the answer."""
    if fusion is None or fusion.q is None:
        return True
    level = LETTER_WORDS[answer_letter(fusion)].lower()
    return all(named.lower() == level for named in _LEVEL.findall(text))


def names_only(text: str, kinds: Iterable[str]) -> bool:
    """Whether a text names no other distortions than these, and says that they are there."""
    named = distortions_in(text)
    return not named or (set(named) <= set(kinds) and says_present(text, named) is True)


def speaks_of(text: str, kind: str) -> bool:
    """Whether a text that explains a distortion says that it is there, as far as it names any."""
    named = distortions_in(text)
    return not named or (kind in named and says_present(text, named) is True)


# Sentences made of the evidence


def from_evidence(evidence: Evidence, fusion: FusionResult | None, choices: Choices) -> list[str]:
    """Sentences that say which answer was chosen and by what, what was found of all that was looked
    for, and the level."""
    said = _what_was_found(evidence or ExecutorOutput())
    if fusion and choices:
        return [_chosen(fusion, choices), *said]
    if fusion:
        said.append(f"The quality is {LETTER_WORDS[answer_letter(fusion)].lower()}.")
    return said


def _chosen(fusion: FusionResult, choices: Sequence[str]) -> str:
    """The answer with its probability, by the measurement and by the letters where there is one."""
    letter = answer_letter(fusion)
    answer = (
        f"The most probable answer is {chosen_answer(choices, letter)} ({fusion.p[letter]:.2f})"
    )
    if not fusion.measured:
        return f"{answer}."
    shares = f"{fusion.measured[letter]:.2f}, by the model's letters {fusion.p_c[letter]:.2f}"
    return f"{answer}: by {fusion.measurement} it has {shares}."


def _what_was_found(evidence: ExecutorOutput) -> list[str]:
    """What was found, and what was looked for in vain."""
    said = [_sentence(finding) for finding in findings(evidence)]
    if evidence.distortion_analysis and not said and not evidence.damaged_part:
        said.append("No visible distortion was found.")
    if has_shallow_focus(evidence):
        said.append(SHALLOW_FOCUS)
    return said


def _sentence(finding: Finding) -> str:
    if finding.severity == "none":
        return f"No {plain_words(finding.type)}{of_object(finding.object)} was found."
    if finding.severity == UNCLEAR:
        return f"The severity of {finding.in_place} cannot be told."
    return f"{finding.with_severity.capitalize()}: {finding.explanation.rstrip('.')}."


# Where the damage is, and what must be said whatever the model wrote


def _place(evidence: ExecutorOutput) -> list[str]:
    """A sentence that says where the damage is; none where that was not measured."""
    part = evidence.damaged_part
    return [f"LocalNR's map has the damage {_at(part)}."] if part else []


def _at(part: str) -> str:
    if part == EVERYWHERE:
        return "everywhere in the picture"
    if part in PLACES:
        return f"in the {part} quarter"
    return "in the middle" if part == "middle" else f"at the {part}"


def _missing(evidence: ExecutorOutput, fusion: FusionResult | None) -> list[str]:
    """Which evidence is missing, and which contradicts itself."""
    notes = []
    measured = evidence.quality_scores or (fusion and fusion.measured)
    if evidence.is_empty:
        nothing = "No distortion analysis or tool scores were available"
        notes.append(f"{nothing}; judged from the image directly.")
    elif not measured:
        notes.append("No tool scores were available.")
    notes += [f"{line}." for line in contradictions(evidence)]
    for name, why in not_looked_for(evidence).items():
        notes.append(f"Distortions{of_object(name)} were not looked for: {why.rstrip('.')}.")
    if evidence.error:
        notes.append(f"Part of the evidence is missing: {evidence.error}.")
    return notes


def _of_fusion(fusion: FusionResult | None) -> list[str]:
    """What the fused score is made of."""
    if fusion is None or fusion.q is None:
        return []
    tools = "no tool gave a score"
    if fusion.q_bar is not None:
        one = len(fusion.voters) == 1
        tools = f"{fusion.voters[0] + ' says' if one else 'the tools say'} {fusion.q_bar:.2f}"
    model = LETTER_WORDS[fusion.vlm_letter] if fusion.vlm_letter else "was not asked"
    return [f"Fused score {fusion.q:.2f} of 5: {tools}, the model alone {model}."]
