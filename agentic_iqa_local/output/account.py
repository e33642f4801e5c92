"""The account of one assessment in titled parts: the terminal prints them, and the pages show the
same ones."""

from dataclasses import asdict, dataclass, field
from typing import Any

from agentic_iqa_local.errors import counted, percent
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY, chosen_answer
from agentic_iqa_local.nodes.reasoning import told_by
from agentic_iqa_local.output.words import raw_with_scale, whole_scale
from agentic_iqa_local.result import AnswerSet, Assessment, Gate, Interval
from agentic_iqa_local.score_fusion import expected_level, model_alone
from agentic_iqa_local.state import (
    EYE,
    LETTER_WORDS,
    DamagedBox,
    FusionResult,
    ToolExecutionLog,
    in_words,
)

WIDE = 1.0  # levels: an interval that holds more than one level


@dataclass(frozen=True)
class Part:
    """A part of an account, with one of: sentences, probabilities by answer, or a table of
    scores."""

    title: str
    sentences: list[str] = field(default_factory=list)
    shares: list[tuple[str, float]] = field(default_factory=list)
    # what gave a score, the score from 1 to 5, and what it is made of
    scores: list[tuple[str, float | None, str]] = field(default_factory=list)


def account_of(row: Assessment) -> list[Part]:
    """The parts that have something to say."""
    parts = []
    if not row.error:
        parts += [
            Part("Question", [] if row.query == DEFAULT_QUERY else [row.query]),
            Part("Reasoning", [row.quality_reasoning] if row.quality_reasoning else []),
            Part("Evidence", _evidence(row) + _eye(row)),
            Part("Where", map_sentences(row)),
            Part("How sure", _sureness(row)),
            Part("Answers" if row.choices else "Levels by the model", shares=_shares(row)),
            Part("Scores", scores=_scores(row)),
        ]
    parts += [
        Part("Replanned", [f"{line}." for line in row.replan_history]),
        Part("Corrections", [f"{line};" for line in row.plan_corrections]),
        Part("Warnings", row.warnings),
        Part("Cost", _cost(row)),
    ]
    return [part for part in parts if part.sentences or part.shares or part.scores]


def parts_of(row: Assessment) -> list[dict[str, Any]]:
    """The account as data, for the pages' script."""
    return [asdict(part) for part in account_of(row)]


def _evidence(row: Assessment) -> list[str]:
    """What was found and measured, as far as the reasoning does not tell it."""
    reasoning = (row.quality_reasoning or "").casefold()
    said = [one for one in told_by(row.evidence) if one.casefold() not in reasoning]
    measurement = row.fusion and row.fusion.measurement
    if measurement and measurement.casefold() not in reasoning:
        said += _measurement(row)
    return said


def _measurement(row: Assessment) -> list[str]:
    if row.fusion is None or row.fusion.measurement is None:
        return []
    what = "The answer also rests on" if row.fusion.measured else "No measurement counts:"
    return [f"{what} {row.fusion.measurement}."]


def _eye(row: Assessment) -> list[str]:
    """What the person's own ratings changed."""
    if row.eye is None:
        return []
    sentences = []
    levels = {run.tool_name: run.normalized_score for run in row.tools}
    learned, general = levels.get(EYE), levels.get("LocalNR")
    if learned is not None and general is not None:
        ratings = f"from {counted(row.eye.ratings, 'rating')} of yours"
        sentences.append(f"LocalNR says {general:.1f}; {ratings} {EYE} says {learned:.1f}.")
    if row.eye.forced:
        sentences.append("This eye was written with --force: nothing showed that it helps.")
    if _is_outside(row.fusion):
        sentences.append(
            "q may lie outside of what the model and the tools say: it is the mean of the levels 1 to 5,"
            " each weighted by how well it agrees with both."
        )
    return sentences


def _is_outside(fusion: FusionResult | None) -> bool:
    """Whether q does not lie between the mean of the tools and the letters' level."""
    if fusion is None or fusion.q is None or fusion.q_bar is None:
        return False
    letters = expected_level(model_alone(fusion))
    return not min(letters, fusion.q_bar) <= fusion.q <= max(letters, fusion.q_bar)


def map_sentences(row: Assessment) -> list[str]:
    """Where a map finds the damage, or why there is no map; nothing if none was asked for."""
    if row.map is None:
        return [f"There is no map: {row.no_map.removeprefix('map: ')}."] if row.no_map else []
    sentences = [_box(row, box) for box in row.map.worst]
    if not sentences:
        sentences.append("By the map no part is clearly worse than the rest.")
    if row.map.png:
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
        interval = row.interval
        learnt = f"learnt from {interval.calibrated_on}"
        between = f"the true quality lies between {interval.low:.1f} and {interval.high:.1f}"
        said = f"With {percent(interval.coverage)} probability {between}"
        if whole_scale(interval):
            said = "The score is not known to any useful accuracy: the interval is the whole scale"
        sentences.append(f"{said} ({learnt}).")
        sentences += _why_wide(row, interval)
    if row.answer_set and row.choices:
        sentences += _answer_set(row.answer_set, row.choices)
    if row.no_interval:
        sentences.append(f"{row.no_interval[0].upper()}{row.no_interval[1:]}.")
    if row.not_sure:
        sentences.append(f"The answer is held back: {row.not_sure.removeprefix('not sure: ')}.")
    if row.gate:
        sentences.append(_gate(row.gate))
    return sentences


def _why_wide(row: Assessment, interval: Interval) -> list[str]:
    """Why an interval is wider than that of another picture or with a reference could be."""
    reasons = [*interval.widened, *interval.disagreements]
    sentences = [f"The range is wider because {reason}." for reason in reasons]
    error = row.fusion and row.fusion.sigma
    if error and interval.width > WIDE and not (interval.condition.reference or row.eye):
        alone = f"Without a reference the tools err by about {error:.1f} levels"
        sentences.append(f"{alone}; with the original to compare with they err less.")
    return sentences


def _answer_set(found: AnswerSet, choices: list[str]) -> list[str]:
    answers = " or ".join(chosen_answer(choices, letter) for letter in found.letters)
    said = f"With {percent(found.coverage)} probability the right answer is {answers}"
    if len(found.letters) == len(choices):
        wrong = "too many such answers were wrong"
        said = f"At {percent(found.coverage)} no answer can be ruled out: {wrong}"
    more = [f"There are more of them because {reason}." for reason in found.widened]
    return [f"{said} (learnt from {found.calibrated_on}).", *more]


def _gate(gate: Gate) -> str:
    chance = f"It is {gate.at_least:g} or better with {percent(gate.probability)} probability"
    verdict = {"pass": "it passes", "fail": "it fails", "unsure": "too close for a verdict"}
    rate = f"at most {percent(gate.error_rate)} of such verdicts are wrong"
    return f"{chance}: {verdict[gate.verdict]} ({rate})."


def _shares(row: Assessment) -> list[tuple[str, float]]:
    """The probability of each answer, as it was chosen; of a rating that of each level by the model
    alone."""
    shares, fusion = [], row.fusion
    if fusion and fusion.q is not None:
        alone = model_alone(fusion)
        shares += [(f"{letter} {LETTER_WORDS[letter]}", p) for letter, p in alone.items()]
    elif fusion and row.choices:
        for letter, p in fusion.p.items():
            shares.append((f"{letter}. {chosen_answer(row.choices, letter)}", p))
    return shares


def _scores(row: Assessment) -> list[tuple[str, float | None, str]]:
    """Each tool, the model and what came of both."""
    scores = [(run.tool_name, run.normalized_score, _measured(run)) for run in row.tools]
    fusion = row.fusion
    if fusion and fusion.q is not None:
        alone = model_alone(fusion)
        letters = "its letters" if fusion.vlm_letter else "it was not asked: all levels count alike"
        if fusion.temperature != 1:
            letters += f", which count at a temperature of {fusion.temperature:.3g}"
        scores.append(("model alone", expected_level(alone), letters))
        about = "q"
        if fusion.sigma is not None and fusion.eta is not None:
            about += f"; standard error of the tools {fusion.sigma:.2f} (η {fusion.eta:.2f})"
        scores.append(("together", fusion.q, about))
    return list(dict.fromkeys(scores))


def _measured(run: ToolExecutionLog) -> str:
    """A tool's raw score, of what, and why it has no vote."""
    if run.raw_score is None:
        return f"failed: {run.error}"
    parts = [f"raw {raw_with_scale(run)}"]
    if run.object_name != "Global":
        parts.append(f"of the {run.measured}")
    if run.outvoted:
        parts.append("not counted: it stands apart from every other tool")
    elif run.trailing:
        parts.append("not counted: it only checks a more reliable tool")
    return "; ".join(parts)


def _cost(row: Assessment) -> list[str]:
    if not row.model:
        return []
    model = f"{row.model['name']} on {row.model['device']} ({row.model['dtype']})"
    sentences = [f"{model}, {row.seconds:.1f} s after loading the model."]
    if notice := row.model.get("notice"):
        sentences.append(f"Note: {notice}.")
    return sentences
