"""The reasoning of an answer: what decided it, the model's words where they agree with the evidence, and what a reader
must know."""

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
from agentic_iqa_local.nodes.query import WORDS, distortions_in, pattern, says_present
from agentic_iqa_local.nodes.repetition import repeats_itself
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
_ABSENCE = pattern(WORDS["absence"])
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
        Of a choice that rests on evidence that evidence, and behind it the model's words if they are about the same.
        Else the model's words, or sentences made of the evidence where these say something else than was found.
    """
    written = text or ""
    if not agrees(written, evidence, fusion, choices):
        written = ""
    written = _in_plain_words(written, evidence)
    said = [written] if written else from_evidence(evidence, fusion, choices)
    if fusion and choices and (fusion.measured or _analysed(evidence)):
        said = from_evidence(evidence, fusion, choices)
        if written and _is_about(written, evidence, fusion, choices):
            said.append(written)
    return " ".join([*_place(evidence), *filter(None, said), *_notes(evidence, fusion)])


def _in_plain_words(text: str, evidence: Evidence) -> str:
    """A text whose sentences begin with a name of our list, as a small model's do, with that name in plain words."""
    text = text.removeprefix("None: ")
    for finding in found_damage(evidence):
        label, words = f"{finding.type}:", f"{finding.words}:"
        text = text.replace(label, words.capitalize()).replace(label.lower(), words)
    return text


# Do the model's words agree with the evidence?


def agrees(text: str, evidence: Evidence, fusion: FusionResult | None, choices: Choices) -> bool:
    """Whether a text can be the reason of an answer: it says something, does not repeat itself, and contradicts
    nothing that was found."""
    if choices and len(text.split()) < 2:
        return False
    return not repeats_itself(text) and not contradicts(text, evidence, fusion, choices)


def contradicts(
    text: str, evidence: Evidence, fusion: FusionResult | None, choices: Choices
) -> bool:
    """Whether a text gives a distortion another severity than was found, sees none where there is damage or nobody
    looked for it, or names another level than the answer. Of a question about distortions also whether it names one
    that was not found. A small model writes so of clean pictures too."""
    found: dict[str, set[str]] = {}
    for finding in found_damage(evidence):
        found.setdefault(finding.type, set()).add(finding.severity)
    damaged = {kind for kind, severities in found.items() if severities - {"slight", UNCLEAR}}
    analysed = bool(_analysed(evidence) or not_looked_for(evidence))
    claims = [
        (kind, claim[1].lower())
        for claim in _CLAIM.finditer(text)
        for kind in distortions_in(claim[2])
    ]
    if analysed and any(severity not in found.get(kind, ()) for kind, severity in claims):
        return True
    there, denied = named_in(text)
    if denied & damaged:
        return True
    limited = choices or _looked_for(evidence) or not_looked_for(evidence)
    if analysed and limited and not there <= found.keys():
        return True
    clean = _CLEAN.search(text) or (not claims and _NOTHING.search(text))
    if clean and (damaged or _looked_for(evidence) or not_looked_for(evidence)):
        return True
    return _names_another_level(text, fusion, choices)


def named_in(text: str) -> tuple[set[str], set[str]]:
    """The distortions that a text says are there, and those that it says are not."""
    there, denied = set[str](), set[str]()
    for clause in _END_OF_CLAUSE.split(text):
        kinds = distortions_in(clause)
        present = says_present(clause, kinds) if kinds else None
        absent = present is False or (present is None and _ABSENCE.search(clause))
        (denied if absent else there).update(kinds)
    return there, denied


def speaks_of(text: str, kind: str) -> bool:
    """Whether a text that explains a distortion is about it, as far as it names any."""
    there, denied = named_in(text)
    return kind not in denied and (not there or kind in there)


def _analysed(evidence: Evidence) -> bool:
    """Whether distortions were judged, found or not."""
    return evidence is not None and bool(evidence.distortion_analysis)


def _looked_for(evidence: Evidence) -> list[Finding]:
    """Each distortion that a query names, where only these were looked for; empty where all were."""
    if evidence is None or evidence.distortion_set is not None:
        return []
    return findings(evidence)


def _names_another_level(text: str, fusion: FusionResult | None, choices: Choices) -> bool:
    """Whether a text names a level that is not the answer; no level answers a question with choices."""
    named = [word.capitalize() for word in _LEVEL.findall(text)]
    if fusion is None or not named:
        return False
    level = None if choices else LEVEL_WORDS[LETTER_TO_LEVEL[answer_letter(fusion)]]
    return any(word != level for word in named)


def _is_about(text: str, evidence: Evidence, fusion: FusionResult, choices: Choices) -> bool:
    """Whether a text names a distortion that was found, or words of the answer that was chosen."""
    found = {finding.type for finding in found_damage(evidence)}
    answer = chosen_answer(choices or (), answer_letter(fusion)).casefold()
    words = {word for word in re.findall(r"\w+", answer) if word not in ("yes", "no", "none")}
    return bool(named_in(text)[0] & found or words & {*re.findall(r"\w+", text.casefold())})


# Sentences made of the evidence


def from_evidence(evidence: Evidence, fusion: FusionResult | None, choices: Choices) -> list[str]:
    """Sentences that say which answer was chosen and by what, what was found of all that was looked for, and the
    level."""
    said = [_chosen(evidence, fusion, choices)] if fusion and choices else []
    said += _findings(evidence, choices)
    if evidence and fusion and not choices:
        level = LEVEL_WORDS[LETTER_TO_LEVEL[answer_letter(fusion)]]
        said.append(f"The quality is {level.lower()}.")
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


def _findings(evidence: Evidence, choices: Choices) -> list[str]:
    """What was found, and what was looked for in vain. Damage that no choice names stands behind the rest."""
    offered = {kind for choice in choices or () for kind in distortions_in(choice)}
    found = found_damage(evidence)
    asked = [finding for finding in found if not offered or finding.type in offered]
    said = [_finding(finding) for finding in asked]
    others = [f"{one.severity} {one.in_place}" for one in found if one not in asked]
    missing = [
        f"{in_words(None, one.object, one.type)}{of_object(one.object)}"
        for one in findings(evidence)
        if one.severity == "none" and (found or _looked_for(evidence))
    ]
    said += [f"No {kind} was found." for kind in missing]
    if _analysed(evidence) and not found and not missing:
        detections = (evidence and evidence.detection) or {}
        errors = [one.error for one in detections.values() if one.error]
        partly = "The model saw no distortion as a whole."
        said.append(partly if errors or _place(evidence) else "No visible distortion was found.")
    return said + ([f"Not among the answers: {' and '.join(others)}."] if others else [])


def _finding(finding: Finding) -> str:
    if finding.severity == UNCLEAR:
        return f"The severity of {finding.in_place} cannot be told."
    return f"{finding.with_severity.capitalize()}: {finding.explanation.rstrip('.')}."


# Where the damage is, and what must be said


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
    for name, why in not_looked_for(evidence).items():
        notes.append(f"Distortions{of_object(name)} were not looked for: {why.rstrip('.')}.")
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
