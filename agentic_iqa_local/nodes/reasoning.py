"""The reasoning of an answer: what decided it, the model's words where they agree with the
evidence, and what a reader must know."""

import re
from collections.abc import Sequence

from agentic_iqa_local.nodes.evidence import (
    Evidence,
    Finding,
    contradictions,
    findings,
    found_damage,
    not_looked_for,
    of_object,
    votes,
)
from agentic_iqa_local.nodes.letter_reading import answer_letter
from agentic_iqa_local.nodes.measured_answers import SCORES
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.nodes.query import distortions_in, says_present
from agentic_iqa_local.nodes.repetition import repeats_itself
from agentic_iqa_local.state import (
    EVERYWHERE,
    LETTER_WORDS,
    UNCLEAR,
    ExecutorOutput,
    FusionResult,
    plain_words,
)

Choices = Sequence[str] | None

_CLAIM = re.compile(r"\b(slight|moderate|severe|extreme)(?:ly)? (\w+(?: \w+)?)", re.IGNORECASE)
_CLEAN = re.compile(
    r"\bno (visible )?(distortion|degradation|damage|defect)"
    r"|\b(picture|image|photo(graph)?) is (clean|undamaged|pristine)\b",
    re.IGNORECASE,
)
_LEVEL = re.compile(rf"\bquality is ({'|'.join(LETTER_WORDS.values())})\b", re.IGNORECASE)
# What a negation reaches ends with its clause: "sharp, with moderate noise and no compression"
_END_OF_CLAUSE = re.compile(
    r"[.;:!?]|,? \b(?:but|with|while|though|although|whereas)\b"
    r"|,?(?: and)? (?=\b(?:no|without|free of|not)\b)",
    re.IGNORECASE,
)


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
    words = text if text and agrees(text, known, fusion, choices) else ""
    said = from_evidence(known, fusion, choices)
    if fusion and fusion.measured:
        named, _ = named_in(words)
        found = {finding.type for finding in found_damage(known)}
        said += [words] if named & found else []
    elif words:
        said = [words]
    return " ".join([*_place(known), *said, *_missing(known, fusion), *_of_fusion(fusion)])


# Do the model's words agree with the evidence?


def agrees(
    text: str, evidence: ExecutorOutput, fusion: FusionResult | None, choices: Choices
) -> bool:
    """Whether a text can be the reason of an answer: it says something, does not repeat itself,
    names no level but the answer, and contradicts nothing that was found."""
    if len(text.split()) < (2 if choices else 1) or repeats_itself(text):
        return False
    levels = {level.capitalize() for level in _LEVEL.findall(text)}
    if fusion and levels and (choices or levels != {LETTER_WORDS[answer_letter(fusion)]}):
        return False
    looked = evidence.distortion_analysis or not_looked_for(evidence)
    return not looked or _fits(text, evidence)


def _fits(text: str, evidence: ExecutorOutput) -> bool:
    """Whether a text names only distortions that were found, with the severity that was found,
    denies none that is more than slight, and calls the picture clean only where all distortions
    were looked for."""
    judged = {(finding.type, finding.severity) for finding in found_damage(evidence)}
    damaged = {kind for kind, severity in judged if severity not in ("slight", UNCLEAR)}
    there, denied = named_in(text)
    if denied & damaged or not there <= dict(judged).keys() or not _claims(text) <= judged:
        return False
    partly = evidence.distortion_set is None or not_looked_for(evidence)
    return not (_CLEAN.search(text) and (damaged or partly))


def _claims(text: str) -> set[tuple[str, str]]:
    """The distortions that a text gives a severity, with that severity."""
    claims = set()
    for claim in _CLAIM.finditer(text):
        claims.update((kind, claim[1].lower()) for kind in distortions_in(claim[2]))
    return claims


def named_in(text: str) -> tuple[set[str], set[str]]:
    """The distortions that a text says are there, and those that it says are not."""
    there, denied = set[str](), set[str]()
    for clause in _END_OF_CLAUSE.split(text):
        kinds = distortions_in(clause)
        named = there if says_present(clause, kinds) else denied
        named.update(kinds)
    return there, denied


def speaks_of(text: str, kind: str) -> bool:
    """Whether a text that explains a distortion is about it, as far as it names any."""
    there, denied = named_in(text)
    return kind not in denied and (not there or kind in there)


# Sentences made of the evidence


def from_evidence(evidence: Evidence, fusion: FusionResult | None, choices: Choices) -> list[str]:
    """Sentences that say which answer was chosen and by what, what was found of all that was looked
    for, and the level."""
    said = _what_was_found(evidence or ExecutorOutput())
    if fusion and choices:
        return [_chosen(evidence, fusion, choices), *said]
    if fusion:
        said.append(f"The quality is {LETTER_WORDS[answer_letter(fusion)].lower()}.")
    return said


def _chosen(evidence: Evidence, fusion: FusionResult, choices: Sequence[str]) -> str:
    """The answer with its probability, by the measurement and by the letters where there is one."""
    letter = answer_letter(fusion)
    answer = (
        f"The most probable answer is {chosen_answer(choices, letter)} ({fusion.p[letter]:.2f})"
    )
    if not fusion.measured:
        return f"{answer}."
    basis = fusion.measurement
    if basis == SCORES:
        scores = ", ".join(f"{tool} {score:.2f} of 5" for tool, score in votes(evidence))
        basis = f"{basis} ({scores})"
    shares = f"{fusion.measured[letter]:.2f}, by the model's letters {fusion.p_c[letter]:.2f}"
    return f"{answer}: by {basis} it has {shares}."


def _what_was_found(evidence: ExecutorOutput) -> list[str]:
    """What was found, and what was looked for in vain."""
    said = [_sentence(finding) for finding in findings(evidence)]
    if evidence.distortion_analysis and not said:
        nothing = "No visible distortion was found."
        said = ["The model saw no distortion as a whole." if evidence.damaged_part else nothing]
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
    where = "everywhere in the picture" if part == EVERYWHERE else f"in the {part} quarter"
    return [f"LocalNR's map has the damage {where}."] if part else []


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
    """That the letters decided against the measurement, and what the fused score is made of."""
    if fusion is None:
        return []
    measured = fusion.measured
    if measured and answer_letter(fusion) != max(measured, key=measured.__getitem__):
        return ["The model's letters decided against what was measured."]
    if fusion.q is None:
        return []
    tools = "no tool gave a score"
    if fusion.q_bar is not None:
        one = len(fusion.voters) == 1
        whose = f"{fusion.voters[0]} says" if one else "the tools say on average"
        tools = f"{whose} {fusion.q_bar:.2f}"
    model = LETTER_WORDS[fusion.vlm_letter] if fusion.vlm_letter else "was not asked"
    return [f"Fused score {fusion.q:.2f} of 5: {tools}, the model alone {model}."]
