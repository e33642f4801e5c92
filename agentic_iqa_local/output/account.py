"""The account of one assessment in titled parts: the terminal prints them, and the pages show the same ones."""

from dataclasses import asdict, dataclass, field
from typing import Any

from agentic_iqa_local.nodes.evidence import found_damage
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY, choice_letters, chosen_answer
from agentic_iqa_local.output.words import nothing_found, raw_with_scale
from agentic_iqa_local.result import AnswerSet, Assessment, Gate, Interval
from agentic_iqa_local.score_fusion import expected_level
from agentic_iqa_local.state import (
    LETTER_WORDS,
    UNCLEAR,
    DamagedBox,
    FusionResult,
    ToolExecutionLog,
    in_words,
)

AGREE = 0.5  # levels between the tools' mean and the model's expectation


@dataclass(frozen=True)
class Part:
    """A part of an account, with one of: sentences, a list, probabilities by answer, or a table of scores."""

    title: str
    sentences: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    shares: list[tuple[str, float]] = field(default_factory=list)
    # what gave a score, the score from 1 to 5, and what it is made of
    scores: list[tuple[str, float | None, str]] = field(default_factory=list)


def account_of(row: Assessment) -> list[Part]:
    """The parts that have something to say; of a picture that failed only what was done, not what was found."""
    parts = []
    if not row.error:
        reasoning = row.quality_reasoning
        parts += [
            Part("Answer", _verdict(row)),
            Part("Reasoning", [reasoning] if reasoning and reasoning != row.final_answer else []),
            Part("Evidence", _evidence(row)),
            Part("Where", map_sentences(row)),
            Part("How sure", _sureness(row)),
            Part("Rests on", _decision(row)),
        ]
    parts.append(Part("Passes", _passes(row)))
    if not row.error:
        parts.append(Part("Answers" if row.choices else "Levels by the model", shares=_shares(row)))
    parts += [
        Part("Scores", scores=_scores(row)),
        Part("Corrections of the plan", items=row.plan_corrections),
        Part("Warnings", items=row.warnings),
        Part("Cost", _cost(row)),
    ]
    return [part for part in parts if part.sentences or part.items or part.shares or part.scores]


def parts_of(row: Assessment) -> list[dict[str, Any]]:
    """The account as data, for the pages' script."""
    return [asdict(part) for part in account_of(row)]


def _verdict(row: Assessment) -> list[str]:
    asked = [] if row.query == DEFAULT_QUERY else [f"You asked: “{row.query.rstrip('.')}”."]
    if row.choices and row.letter and row.p:
        answer = chosen_answer(row.choices, row.letter)
        probability = f"{row.p[row.letter]:.0%}"
        return [*asked, f"The answer is “{answer}”, with a probability of {probability}."]
    if not row.level:
        return [*asked, f"The model answers: {row.answer}"]
    regions = row.plan is not None and row.plan.query_scope != "Global"
    what = ", ".join(row.plan.objects) if row.plan and regions else "the picture"
    against = f", compared with its original {row.reference}" if row.reference else ""
    scale = f"{row.q:.2f} on the scale from 1 (bad) to 5 (excellent)"
    sentences = [*asked, f"The quality of {what} is {row.level.lower()}: {scale}{against}."]
    if row.gate:
        sentences.append(_gate(row.gate))
    return sentences


def _gate(gate: Gate) -> str:
    chance = f"It is {gate.at_least:g} or better with {gate.probability:.0%} probability"
    rate = f"at most {gate.error_rate:.0%}"
    if gate.verdict == "unsure":
        return f"{chance}, too close for a verdict: {rate} of verdicts may be wrong."
    passes = {"pass": "passes", "fail": "fails"}[gate.verdict]
    return f"{chance}, so it {passes} ({rate} of such verdicts are wrong)."


def _evidence(row: Assessment) -> list[str]:
    """What is wrong; what it looked for in vain is no finding."""
    evidence, sentences = row.evidence, []
    if not (evidence and evidence.distortion_analysis):
        return []
    for finding in found_damage(evidence):
        if finding.severity == UNCLEAR:
            sentences.append(f"How severe the {finding.in_place} would be cannot be told.")
        else:
            because = finding.explanation.rstrip(".")
            sentences.append(f"It shows {finding.with_severity} ({because}).")
    if not sentences and not row.choices:
        sentences.append(f"{nothing_found(row).capitalize()} was found.")
    if row.map is None and evidence.damaged_part:
        part = evidence.damaged_part
        sentences.append(f"The damage is {part if part == 'everywhere' else f'at the {part}'}.")
    return sentences


def map_sentences(row: Assessment) -> list[str]:
    """Where a map finds the damage, or why there is none; nothing where none was asked for."""
    if row.map is None:
        return [f"There is no map: {row.no_map.removeprefix('map: ')}."] if row.no_map else []
    sentences = [_box(row, box) for box in row.map.worst]
    if not sentences:
        sentences.append("By the map no part is clearly worse than the rest.")
    if row.map.not_drawn:
        sentences.append(row.map.not_drawn)
    elif row.map.png:
        sentences.append(f"The map is drawn to {row.map.png}.")
    return sentences


def _box(row: Assessment, box: DamagedBox) -> str:
    seen = ""
    if box.distortion:
        kind = in_words(row.evidence, "Global", box.distortion)
        severity = "barely visible" if box.severity == "none" else box.severity
        seen = f" ({severity} {kind})" if severity else f" ({kind})"
    pixels = f"pixels {box.box[:2]} to {box.box[2:]}"
    level = f"{box.q:.2f} of 5, {box.below:.2f} below the rest"
    return f"By the map the {box.place}, {pixels}, has {level}{seen}."


def _sureness(row: Assessment) -> list[str]:
    """The interval or the set of answers, what it rests on, and what follows from it."""
    sentences = []
    if row.interval:
        sentences += _interval(row.interval)
    if row.answer_set and row.choices:
        sentences += _answers(row.answer_set, row.choices)
    if row.no_interval:
        sentences.append(f"{row.no_interval[0].upper()}{row.no_interval[1:]}.")
    if row.not_sure:
        sentences.append(f"The answer is held back: {row.not_sure.removeprefix('not sure: ')}.")
    return sentences


def _interval(interval: Interval) -> list[str]:
    between = f"the true quality lies between {interval.low:.1f} and {interval.high:.1f}"
    learnt = f"learnt from {interval.calibrated_on}"
    sentences = [f"With {interval.coverage:.0%} probability {between} ({learnt})."]
    return sentences + [f"The range is wider because {reason}." for reason in interval.widened]


def _answers(found: AnswerSet, choices: list[str]) -> list[str]:
    if len(found.letters) == len(choices):
        said = f"At {found.coverage:.0%} no answer is ruled out: too many such answers were wrong"
    else:
        answers = " or ".join(chosen_answer(choices, letter) for letter in found.letters)
        said = f"With {found.coverage:.0%} probability the right answer is {answers}"
    sentences = [f"{said} (learnt from {found.calibrated_on})."]
    return sentences + [f"There are more of them because {reason}." for reason in found.widened]


def _decision(row: Assessment) -> list[str]:
    """What the answer rests on: the model's eye, the tools, or both."""
    fusion = row.fusion
    if row.plan and row.plan.query_type == "Other":
        return ["The question is not about technical quality, so no tool measured anything."]
    if fusion is None:
        return []
    if fusion.measurement:
        what = "The answer also rests on" if fusion.measured else "No measurement counts:"
        return [f"{what} {fusion.measurement}."]
    if fusion.q is None:
        return []
    if fusion.q_bar is None:
        return ["No tool gave a score, so the score is the model's alone."]
    return [_weighed(row, fusion, fusion.q, fusion.q_bar)]


def _weighed(row: Assessment, fusion: FusionResult, q: float, tools: float) -> str:
    """What the tools say, what the model says, and which of them decided."""
    expected = expected_level(fusion.p_c)
    ends = "they agree"
    if abs(tools - expected) >= AGREE:
        decided = "the tools" if abs(q - tools) <= abs(q - expected) else "the model"
        ends = f"they differ, and {decided} decided"
    model = "has no preference" if fusion.vlm_letter is None else f"alone says {expected:.2f}"
    scored = [run for run in row.tools if run.normalized_score is not None]
    voters = {run.tool_name for run in scored if not _no_vote(run)}
    who = f"The tool {voters.pop()} says" if len(voters) == 1 else "The tools say on average"
    return f"{who} {tools:.2f}, the model {model}: {ends}."


def _passes(row: Assessment) -> list[str]:
    """What each pass concluded, where there were several; of a question the choice in place of its letter."""
    if len(row.passes) < 2:
        return []
    letters = choice_letters(row.choices) if row.choices else []
    sentences = []
    for one in row.passes:
        asked = f", to close the gap “{one.asked.rstrip('.')}”" if one.asked else ""
        concluded = one.concluded
        if row.choices and concluded in letters:
            concluded = chosen_answer(row.choices, concluded)
        sentences.append(f"Pass {one.number}{asked}: {concluded}.")
    return sentences


def _shares(row: Assessment) -> list[tuple[str, float]]:
    """The probability of each answer, as it was chosen; of a rating that of each level by the model alone."""
    if row.fusion is None:
        return []
    if row.q is not None:
        return [(f"{letter} {LETTER_WORDS[letter]}", p) for letter, p in row.fusion.p_c.items()]
    choices = row.choices or []
    return [
        (f"{letter}. {chosen_answer(choices, letter)}", p) for letter, p in row.fusion.p.items()
    ]


def _scores(row: Assessment) -> list[tuple[str, float | None, str]]:
    """Each tool, the model and what came of both."""
    scores = [(run.tool_name, run.normalized_score, _measured(run)) for run in row.tools]
    fusion = row.fusion
    if fusion and fusion.q is not None:
        scores.append(("model alone", expected_level(fusion.p_c), "its letters"))
        about = "q"
        if fusion.sigma is not None:
            about += f"; standard error of the tools {fusion.sigma:.2f} (η {fusion.eta:.2f})"
        scores.append(("together", fusion.q, about))
    return list(dict.fromkeys(scores))


def _measured(run: ToolExecutionLog) -> str:
    """A tool's raw score, of what, and why it has no vote."""
    if run.error:
        return f"failed: {run.error}"
    parts = [f"raw {raw_with_scale(run)}"]
    if run.object_name != "Global":
        parts.append(f"of the {run.measured}")
    if run.fallback:
        parts.append("stood in for another")
    if why := _no_vote(run):
        parts.append(why)
    return "; ".join(parts)


def _no_vote(run: ToolExecutionLog) -> str:
    """Why a tool that measured does not count; empty where it does."""
    if run.outvoted:
        return "not counted: it stands apart from every other tool"
    return "not counted: it only checks a more reliable tool" if run.trailing else ""


def _cost(row: Assessment) -> list[str]:
    if not row.model:
        return []
    model = f"{row.model['name']} on {row.model['device']} ({row.model['dtype']})"
    sentences = [f"{model}, {row.seconds:.1f} s."]
    if row.tokens:
        read = f"{row.tokens.prefilled} tokens read, {row.tokens.reused} reused"
        sentences.append(f"{read}, {row.tokens.decoded} written.")
    if notice := row.model.get("notice"):
        sentences.append(f"Note: {notice}.")
    return sentences
