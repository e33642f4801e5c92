"""The reasoning of an answer: what decided it, the model's words where they agree with the
evidence, and what a reader must know. One rule for ratings, choices and free questions."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from agentic_iqa_local.nodes.evidence import (
    SEVERE,
    Evidence,
    Finding,
    contradictions,
    findings,
    found_damage,
    has_shallow_focus,
    in_object,
    is_undamaged,
    not_looked_for,
    worst_damage,
)
from agentic_iqa_local.nodes.measured_answers import families_named
from agentic_iqa_local.nodes.prompts import choice_letters, chosen_answer
from agentic_iqa_local.nodes.query import (
    asks_for_advice,
    asks_why,
    distortions_in,
    pattern,
    says_present,
)
from agentic_iqa_local.nodes.written import in_english
from agentic_iqa_local.score_fusion import answer_letter, expected_level, model_alone
from agentic_iqa_local.state import (
    DISTORTION_TYPES,
    EVERYWHERE,
    LETTER_TO_LEVEL,
    LETTER_WORDS,
    PLACES,
    UNCLEAR,
    ExecutorOutput,
    FusionResult,
    Severity,
    SummarizerOutput,
    plain_words,
)

Choices = Sequence[str] | None
GOOD = 4
# the kinds that are found often; a smear or pale colours mostly are not
NOTHING_FOUND = "No blur, noise, compression or wrong exposure was found."
SHALLOW_FOCUS = (
    "Shallow focus: the sharpest part is sharp, the rest is soft, which is not counted as damage; a"
    " part that was blurred afterwards can look the same."
)

_LABEL = re.compile(rf"^(?:{'|'.join(DISTORTION_TYPES)}): ")
_FEW = 3  # words, too few to say something of a distortion that they do not name
_CLAUSE = re.compile(r"[.;:,]\s|\b(?:and|but|while)\b")
_SEVERITY = re.compile(r"\b(slight|moderate|severe|extreme)(?:ly)?\b", re.IGNORECASE)
_CLEAN = re.compile(
    r"\bno (visible )?(distortion|degradation|damage|defect)"
    r"|\b(picture|image|photo(graph)?) is (clean|undamaged|pristine)\b",
    re.IGNORECASE,
)
_ALL_OVER = re.compile(r"\b(everywhere|all over|throughout|whole|entire)\b", re.IGNORECASE)
_LEVEL = re.compile(rf"\bquality is ({'|'.join(LETTER_WORDS.values())})\b", re.IGNORECASE)


def reasoned(
    text: str | None,
    evidence: Evidence,
    fusion: FusionResult | None,
    choices: Choices,
    unplaced: Sequence[str] = (),
    query: str = "",
) -> str:
    """Where the damage is, why the answer is what it is, and the notes.

    Args:
        text: What the model wrote; None where it wrote nothing that could be used.
        evidence: What was gathered; None where nothing was.
        fusion: The letters with what they were multiplied by; None for an answer in words.
        choices: The answers that were offered.
        unplaced: The regions that were asked about and of which no place is known.
        query: The question, which may ask for advice or for the reason of a grade.

    Returns:
        The model's words where they agree with the evidence, else sentences made of it; of a choice
        always these sentences, which say what decided it, and behind them words that agree.
    """
    known = evidence or ExecutorOutput()
    refused = [] if choices else _no_advice(query, known)
    usable = text and not refused and agrees(text, known, fusion, choices)
    words = text if usable else None
    said = from_evidence(known, fusion, choices)
    if words and choices:
        behind = _LABEL.sub("", words)
        is_new = behind.rstrip(".").casefold() not in " ".join(said).casefold()
        said += [behind] if is_new else []
    elif words:
        said = [words]
    notes = [*_why(query, known, fusion), *_of_part(known, fusion), *_of_whole(unplaced)]
    notes += [*_missing(known, fusion), *_of_fusion(fusion)]
    return " ".join([*refused, *_place(known), *said, *notes])


def told_by(evidence: Evidence) -> list[str]:
    """The evidence in sentences: where the damage is, and what was found of all that was looked
    for."""
    known = evidence or ExecutorOutput()
    return [*_place(known), *_what_was_found(known)]


# Do the model's words agree with the evidence?


def agrees(
    text: str, evidence: ExecutorOutput, fusion: FusionResult | None, choices: Choices = None
) -> bool:
    """Whether a text can be the reason of an answer: it names no other answer or level, and it
    tells what was found, the worst of it at least, with its severity and nothing else, and spreads
    no damage of a part over the picture. Where nobody looked for distortions it must not speak of any.
    That a picture is clean is more than what was looked for can say."""
    if not (in_english(text) and _names_the_answer(text, fusion, choices)):
        return False
    if _spreads_a_part(text, evidence):
        return False
    if not evidence.distortion_analysis:
        return _judged_directly(evidence, fusion) or _leaves_distortions_out(text)
    found = _severities(evidence)
    return bool(found) and not _CLEAN.search(text) and _tells(text, found)


def _spreads_a_part(text: str, evidence: ExecutorOutput) -> bool:
    """Whether a text has damage of a part all over the picture."""
    return evidence.damaged_part not in (None, EVERYWHERE) and bool(_ALL_OVER.search(text))


def _judged_directly(evidence: ExecutorOutput, fusion: FusionResult | None) -> bool:
    """Whether the picture alone was judged, which the reason says, and nothing stood in the way of
    looking for distortions."""
    return fusion is not None and evidence.is_empty and not not_looked_for(evidence)


def _leaves_distortions_out(text: str) -> bool:
    return not (distortions_in(text) or _judges(text) or _SEVERITY.search(text))


def answers(text: str, query: str, evidence: Evidence) -> bool:
    """Whether a text can be the answer to a question: it is in its language, and what it says of
    distortions or of the quality was found."""
    if in_english(query) and not in_english(text):
        return False
    found = _severities(evidence or ExecutorOutput())
    if found and distortions_in(text):
        return _tells(text, found)
    return not _judges(text)


def explains(text: str, kind: str, severity: str) -> bool:
    """Whether a text can explain a distortion: it says something of it, names no other one, no
    other severity, and does not deny it."""
    if not in_english(text) or _CLEAN.search(text) or _LEVEL.search(text):
        return False
    if len(text.split()) < _FEW and not distortions_in(text):
        return False
    named = {said.lower() for said in _SEVERITY.findall(text)}
    return names_only(text, [kind]) and named <= {severity}


def names_only(text: str, kinds: Iterable[str]) -> bool:
    """Whether a text names no other distortions than these, and says that they are there."""
    named = distortions_in(text)
    return not named or (set(named) <= set(kinds) and says_present(text, named) is True)


def _severities(evidence: ExecutorOutput) -> dict[str, set[str]]:
    """{distortion: its severities} of what was found."""
    found: dict[str, set[str]] = {}
    for finding in found_damage(evidence):
        found.setdefault(finding.type, set()).add(finding.severity)
    return found


def _judges(text: str) -> bool:
    """Whether a text says how severe a distortion is, that there is none, or how good the quality
    is."""
    severe = _SEVERITY.search(text) and distortions_in(text)
    return bool(severe or _CLEAN.search(text) or _LEVEL.search(text))


def _tells(text: str, found: Mapping[str, set[str]]) -> bool:
    """Whether a text names the worst of the distortions found, each with its severity, and no
    others."""
    order = [UNCLEAR, *get_args(Severity)]
    most = max(order.index(severity) for severities in found.values() for severity in severities)
    worst = {kind for kind, severities in found.items() if order[most] in severities}
    if not (names_only(text, found) and worst <= set(distortions_in(text))):
        return False
    return all(_right_severity(clause, found) for clause in _CLAUSE.split(text))


def _right_severity(clause: str, found: Mapping[str, set[str]]) -> bool:
    kinds = distortions_in(clause) or list(found)
    named = {severity.lower() for severity in _SEVERITY.findall(clause)}
    return named <= set().union(*(found[kind] for kind in kinds))


def _names_the_answer(text: str, fusion: FusionResult | None, choices: Choices) -> bool:
    """Whether a text names no level and no choice but the answer."""
    if fusion is None:
        return True
    letter = answer_letter(fusion)
    if choices:
        answer = chosen_answer(choices, letter)
        others = pattern(re.escape(choice) for choice in choices if choice != answer)
        return not others.search(text)
    level = LETTER_WORDS[letter].lower()
    return all(named.lower() == level for named in _LEVEL.findall(text))


# Sentences made of the evidence


def from_evidence(evidence: Evidence, fusion: FusionResult | None, choices: Choices) -> list[str]:
    """Sentences that say which answer was chosen and by what, what was found of all that was looked
    for, and the level."""
    said = _what_was_found(evidence or ExecutorOutput())
    if fusion and choices:
        return [_chosen(fusion, choices), *said, *_not_offered(evidence, fusion, choices)]
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
    measured, read = f"{fusion.measured[letter]:.2f}", f"{fusion.p_c[letter]:.2f}"
    if math.isclose(fusion.p[letter], fusion.measured[letter], abs_tol=1e-9):
        return f"{answer}, by {fusion.measurement} alone: the model's own answer ({read}) changes nothing."
    return f"{answer}: by {fusion.measurement} it has {measured}, by the model's letters {read}, and both count."


def _not_offered(evidence: Evidence, fusion: FusionResult, choices: Sequence[str]) -> list[str]:
    """What was found and no answer names, where the answer is that there is none of those."""
    letters = choice_letters(choices)
    named = families_named(choices)
    if not named or named[letters.index(answer_letter(fusion))] != ["none"]:
        return []
    offered = set().union(*map(distortions_in, choices))
    others = [one.words for one in found_damage(evidence) if one.type not in offered]
    return [f"No answer names {' or '.join(dict.fromkeys(others))}."] if others else []


def _what_was_found(evidence: ExecutorOutput) -> list[str]:
    """What was found, and what was looked for in vain."""
    said = [_sentence(finding) for finding in findings(evidence)]
    if evidence.distortion_analysis and not said:
        said.append(NOTHING_FOUND)
    if has_shallow_focus(evidence):
        said.append(SHALLOW_FOCUS)
    return said


def _sentence(finding: Finding) -> str:
    if finding.severity == "none":
        return f"No {plain_words(finding.type)}{in_object(finding.object)} was found."
    if finding.severity == UNCLEAR:
        return f"The severity of {finding.in_place} cannot be told."
    return f"{finding.with_severity.capitalize()}: {finding.explanation.rstrip('.')}."


# Where the damage is, and what must be said whatever the model wrote


def _place(evidence: ExecutorOutput) -> list[str]:
    """A sentence that says where the damage is; none where that was not measured."""
    if not evidence.damaged_part:
        return []
    lies = "If there is damage, it lies" if is_undamaged(evidence) else "The damage lies"
    return [f"{lies} {at_part(evidence.damaged_part)}."]


def at_part(part: str) -> str:
    """Where a part of the picture is: "in the top left quarter"."""
    if part == EVERYWHERE:
        return "everywhere in the picture"
    if part in PLACES:
        return f"in the {part} quarter"
    return f"in the {part}" if part.endswith(("middle", "half")) else f"at the {part}"


def _no_advice(query: str, evidence: ExecutorOutput) -> list[str]:
    """That nobody says what to do about a picture, but what is worst in it."""
    if not asks_for_advice(query):
        return []
    said = "This program judges pictures and gives no advice on editing"
    worst = worst_damage(evidence)
    if worst:
        said += f"; the strongest distortion that it found is {worst.with_severity}"
    return [f"{said}."]


def _why(query: str, evidence: ExecutorOutput, fusion: FusionResult | None) -> list[str]:
    """What a grade rests on, for a question why it is so where no distortion was found."""
    if not (fusion and fusion.voters and asks_why(query) and is_undamaged(evidence)):
        return []
    read = "reads" if len(fusion.voters) == 1 else "read"
    grade = f"the grade is what {' and '.join(fusion.voters)} {read}"
    said = [f"None of the distortions that are looked for explains it: {grade}."]
    if "LocalNR" in fusion.voters:
        learned = "LocalNR learned from people's scores"
        said.append(f"{learned}: people rated photographs of this kind so.")
    return said


def _of_part(evidence: ExecutorOutput, fusion: FusionResult | None) -> list[str]:
    """Why the quality is good although damage is severe, where it is that of a part."""
    if fusion is None or fusion.q is None or LETTER_TO_LEVEL[answer_letter(fusion)] < GOOD:
        return []
    severe = any(one.severity in SEVERE for one in found_damage(evidence))
    if not severe or evidence.damaged_part in (None, EVERYWHERE):
        return []
    return ["The damage is severe, but in one part alone."]


def _of_whole(unplaced: Sequence[str]) -> list[str]:
    """That the whole picture was judged in the stead of regions."""
    if not unplaced:
        return []
    where = f"No place is known of the {' and the '.join(unplaced)}"
    return [f"{where}: all of this is about the whole picture."]


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
        notes.append(f"Distortions{in_object(name)} were not looked for: {why.rstrip('.')}.")
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
    model = "the model was not asked"
    if fusion.vlm_letter:
        model = f"the model alone {expected_level(model_alone(fusion)):.2f}"
    return [f"Fused score {fusion.q:.2f} of 5: {tools}, {model}."]


def without_words(
    fusion: FusionResult,
    evidence: ExecutorOutput | None,
    choices: Choices,
    unplaced: Sequence[str] = (),
    query: str = "",
) -> SummarizerOutput:
    """The answer of a fusion whose reasoning failed: its letter, and sentences made of the
    evidence."""
    reasoning = reasoned(None, evidence, fusion, choices, unplaced, query)
    return SummarizerOutput(
        final_answer=answer_letter(fusion), quality_reasoning=reasoning, fusion=fusion
    )
