"""One assessment in words: a headline, and the account of --explain with its numbers at the end. Pure: text out."""

import re
from collections.abc import Iterator

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import is_tool
from agentic_iqa_local.iqa_tools.specs import nearest_tools
from agentic_iqa_local.nodes.evidence import found_damage, not_looked_for
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY, choice_letters, chosen_answer
from agentic_iqa_local.nodes.query import asked_about, distortions_in, says_present
from agentic_iqa_local.output.words import (
    bullets,
    level_word,
    named,
    nothing_found,
    raw_with_scale,
    safe_lines,
    trial,
    wrapped,
)
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.score_fusion import expected_level
from agentic_iqa_local.state import UNCLEAR, PassRecord, ToolExecutionLog, in_words

# A question that Yes or No answers
_YES_OR_NO = re.compile(
    r"(is|are|was|were|does|do|did|has|have|can|could|would|will|should)\b", re.IGNORECASE
)
AGREE = 0.5  # levels between the tools' mean and the model's expectation


def headline(row: Assessment) -> str:
    """One line: the picture and its answer, or why there is none; then what came of the tools that the query names."""
    if row.error:
        return one_line(f"FAILED: {row.image}: {row.reason}")
    asked = {
        run.tool_name: run for run in row.tools if run.tool_name in named(row) and not run.error
    }
    scores = [
        f"{name} {raw_with_scale(run)}: {run.normalized_score:.2f} of 5"
        for name, run in asked.items()
    ]
    unlike = ["unlike a photograph"] if row.unlike_photograph else []
    worst = (
        [f"worst at the {' and the '.join(box.place for box in row.map.worst)}"]
        if row.map and row.map.worst
        else []
    )
    answer = "; ".join([*found_of_question(row), *worst, f"{_answer(row)}{trial(row)}"])
    against = f" against {row.reference}" if row.reference else ""
    return one_line(
        "; ".join([f"{row.image}{against}: {answer}", *unlike, *scores, *_stand_ins(row)])
    )


def found_of_question(row: Assessment) -> list[str]:
    """What was found of the distortions that a question names, or of all where it names none, since a rating is not
    yet an answer to it; nothing for the default query and for an answer in words."""
    if row.query == DEFAULT_QUERY or not row.level or not row.plan or named(row):
        return []
    kinds = distortions_in(row.query, row.plan.objects)
    words = [in_words(None, "", kind) for kind in kinds]
    sought = " or ".join(words) or "damage"
    if not_looked_for(row.evidence):
        return [f"{sought} was not looked for"]
    if not (row.evidence and row.evidence.distortion_analysis):
        return []
    found = [
        finding.with_severity
        for finding in found_damage(row.evidence)
        if not kinds or finding.type in kinds
    ]
    said = " and ".join(found) or f"no {sought} found"
    if not kinds:
        return [f"judged for picture quality alone: {said}"]
    if not _YES_OR_NO.match(row.query):
        return [said]
    yes = says_present(asked_about(row.query), kinds) == bool(found)
    return [f"{'yes' if yes else 'no'}, {said}"]


def _answer(row: Assessment) -> str | None:
    """The answer with its level and score, or its choice and probability."""
    if row.level:
        interval = row.interval
        between = f"; 90 % interval {interval.low:.1f} to {interval.high:.1f}" if interval else ""
        if interval and interval.widened:
            between = f"; no narrow interval, since {interval.widened[0]}"
        verdict = f"{row.gate.verdict.upper()}: " if row.gate else ""
        held_back = "not sure: " if row.not_sure else ""
        return (
            f"{verdict}{held_back}{row.letter} {row.level}, q {row.q:.2f} of 5 (5 is best{between})"
        )
    if row.letter and row.choices and row.p:
        open_ = row.answer_set and len(row.answer_set.letters) == len(row.choices)
        unsure = "; at 90 % no answer is ruled out" if open_ else ""
        return f"“{chosen_answer(row.choices, row.letter)}” (probability {row.p[row.letter]:.0%}{unsure})"
    return row.answer


def _stand_ins(row: Assessment) -> list[str]:
    """One line for each tool that the query names and that could not run: why, and what measured instead."""
    failed = {run.tool_name: run for run in row.tools if run.error and run.tool_name in named(row)}
    measured = [run for run in row.tools if not run.error]
    stand_in = [f"{run.tool_name} ran instead" for run in measured if run.fallback]
    others = " and ".join(dict.fromkeys(run.tool_name for run in measured))
    instead = [*stand_in, f"{others} measured" if others else "no other tool could run"][0]
    return [f"{_why_not(run)}, {instead}" for run in failed.values()]


def _why_not(run: ToolExecutionLog) -> str:
    """That a tool could not run and why, in short."""
    if not is_tool(run.tool_name):
        near = nearest_tools(run.tool_name)
        nearest = f" (the nearest: {' and '.join(near)})" if near else ""
        return f"there is no tool {run.tool_name} here{nearest}"
    reason = (run.error or "").removeprefix(f"{run.tool_name} ").removeprefix("is unavailable: ")
    short = re.split(r" \(|;", reason)[0].rstrip(".")
    return f"{run.tool_name} could not run ({short})"


def summary(row: Assessment) -> str:
    """The headline with its reasoning, and what a map found."""
    more = [] if row.error else [row.quality_reasoning or "", " ".join(map_sentences(row))]
    return safe_lines(
        [*wrapped(headline(row), indent=""), *(line for text in more for line in wrapped(text))]
    )


def account(row: Assessment) -> str:
    """The account of `--explain`, of several lines that fit the terminal."""
    lines = wrapped(headline(row), indent="")
    for text in (
        [] if row.error else [_verdict(row), _damage(row), sureness(row), decision(row)],
        _way(row),
    ):
        if said := " ".join(filter(None, text)):
            lines += ["", *wrapped(said)]
    if row.quality_reasoning and row.final_answer != row.quality_reasoning:
        lines += ["", *wrapped(f"Reasoning: {row.quality_reasoning}")]
    lines += _numbers(row) + bullets("Warnings", row.warnings)
    if row.model:
        cost = f"{row.model['name']} on {row.model['device']} ({row.model['dtype']}), {row.seconds:.1f} s"
        notice = row.model.get("notice")
        lines += ["", *wrapped(f"{cost}. With --json every step and number.")]
        lines += wrapped(f"Note: {notice}.") if notice else []
    return safe_lines(lines)


def _verdict(row: Assessment) -> str:
    asked = "" if row.query == DEFAULT_QUERY else f"You asked: “{row.query.rstrip('.')}”. "
    if row.level:
        scale = f"{row.q:.2f} on the scale from 1 (bad) to 5 (excellent)"
        what = (
            "the picture"
            if row.plan is None or row.plan.query_scope == "Global"
            else ", ".join(row.plan.objects)
        )
        said = f"The quality of {what} is {row.level.lower()}: {scale}"
        against = f", compared with its original {row.reference}" if row.reference else ""
        return f"{asked}{said}{against}.{_gate(row)}"
    if row.letter and row.choices and row.p:
        said = f"“{chosen_answer(row.choices, row.letter)}”, with a probability of {row.p[row.letter]:.0%}"
        return f"{asked}The answer is {said}."
    return f"{asked}The model answers: {row.final_answer}"


def _gate(row: Assessment) -> str:
    if not row.gate:
        return ""
    wrong = f"at most {row.gate.error_rate:.0%} of such verdicts are wrong"
    ends = {"pass": f"so it passes ({wrong})", "fail": f"so it fails ({wrong})"}
    unsure = f"too close for a verdict of which at most {row.gate.error_rate:.0%} may be wrong"
    chance = f"It is {row.gate.at_least:g} or better with {row.gate.probability:.0%} probability"
    return f" {chance}, {ends.get(row.gate.verdict, unsure)}."


def _damage(row: Assessment) -> str:
    """What is wrong and where; what it looked for in vain is no finding."""
    analysis = (row.evidence and row.evidence.distortion_analysis) or {}
    found = found_damage(row.evidence)
    seen = [finding for finding in found if finding.severity != UNCLEAR]
    shown = [f"{one.with_severity} ({one.explanation.rstrip('.')})" for one in seen]
    lines = [f"It shows {' and '.join(shown)}."] if shown else []
    unclear = [finding.in_place for finding in found if finding.severity == UNCLEAR]
    lines += (
        [f"How severe the {' and the '.join(unclear)} would be cannot be told."] if unclear else []
    )
    if analysis and not seen and not unclear and not row.choices:
        lines.append(f"{nothing_found(row).capitalize()} was found.")
    if row.map is None and row.evidence and row.evidence.damaged_part:
        where = row.evidence.damaged_part
        lines.append(f"The damage is {where if where == 'everywhere' else f'at the {where}'}.")
    return " ".join([*lines, *map_sentences(row)])


def map_sentences(row: Assessment) -> Iterator[str]:
    """Where a map finds the damage, or why there is none; nothing where none was asked for."""
    if row.map is None:
        yield from [f"There is no map: {row.no_map.removeprefix('map: ')}."] if row.no_map else []
        return
    for box in row.map.worst:
        how = f"{box.q:.2f} of 5, {box.below:.2f} below the rest"
        severity = f"{'barely visible' if box.severity == 'none' else box.severity} " * bool(
            box.severity
        )
        seen = (
            f" ({severity}{in_words(row.evidence, 'Global', box.distortion)})"
            if box.distortion
            else ""
        )
        yield f"By the map the {box.place}, pixels {box.box[:2]} to {box.box[2:]}, has {how}{seen}."
    if not row.map.worst:
        yield "By the map no part is clearly worse than the rest."
    if row.map.not_drawn or row.map.png:
        yield row.map.not_drawn or f"The map is drawn to {row.map.png}."


def sureness(row: Assessment) -> str:
    """The interval or the set of answers, what it rests on, and what follows from it."""
    lines = []
    if interval := row.interval:
        between = f"the true quality lies between {interval.low:.1f} and {interval.high:.1f}"
        lines.append(
            f"With {interval.coverage:.0%} probability {between} (learnt from {interval.calibrated_on})."
        )
        lines += [f"The range is wider because {reason}." for reason in interval.widened]
    if (found := row.answer_set) and row.choices:
        answers = " or ".join(chosen_answer(row.choices, letter) for letter in found.letters)
        said = f"With {found.coverage:.0%} probability the right answer is {answers}"
        if len(found.letters) == len(row.choices):
            said = (
                f"At {found.coverage:.0%} no answer is ruled out: too many such answers were wrong"
            )
        lines.append(f"{said} (learnt from {found.calibrated_on}).")
        lines += [f"There are more of them because {reason}." for reason in found.widened]
    lines += [f"{row.no_interval[0].upper()}{row.no_interval[1:]}."] if row.no_interval else []
    held_back = (row.not_sure or "").removeprefix("not sure: ")
    lines += [f"The answer is held back: {held_back}."] if held_back else []
    return " ".join(lines)


def decision(row: Assessment) -> str:
    """What the answer rests on: the model's eye, the tools, or both."""
    if row.plan and row.plan.query_type == "Other":
        return "The question is not about technical quality, so no tool measured anything."
    fusion = row.fusion
    if fusion and fusion.measurement:
        what = "The answer also rests on" if fusion.measured else "No measurement counts:"
        return f"{what} {fusion.measurement}."
    if fusion is None or fusion.q is None:
        return ""
    if fusion.q_bar is None:
        return "No tool gave a score, so the score is the model's alone."
    expected = expected_level(fusion.p_c)
    apart = abs(fusion.q_bar - expected)
    decided = (
        "the tools" if abs(fusion.q - fusion.q_bar) <= abs(fusion.q - expected) else "the model"
    )
    ends = "they agree" if apart < AGREE else f"they differ, and {decided} decided"
    model = "has no preference" if fusion.vlm_letter is None else f"alone says {expected:.2f}"
    voters = {
        run.tool_name for run in row.tools if run.normalized_score is not None and not _no_vote(run)
    }
    tools = f"The tool {voters.pop()} says" if len(voters) == 1 else "The tools say on average"
    return f"{tools} {fusion.q_bar:.2f}, the model {model}: {ends}."


def _way(row: Assessment) -> list[str]:
    """What each pass concluded, where there were several."""
    return [
        f"Pass {one.number}{f', to close the gap “{asked}”' if (asked := (one.asked or '').rstrip('.')) else ''}:"
        f" {_concluded(row, one)}."
        for one in (row.passes if len(row.passes) > 1 else ())
    ]


def _concluded(row: Assessment, one: PassRecord) -> str:
    """What a pass answered: of a question the choice in place of its letter."""
    letters = choice_letters(row.choices) if row.choices else []
    return (
        chosen_answer(row.choices or [], one.concluded)
        if one.concluded in letters
        else one.concluded
    )


def _numbers(row: Assessment) -> list[str]:
    """A table: each tool, the model and what came of both, with the score from 1 to 5 and what it is made of."""
    cells = [(run.tool_name, run.normalized_score, _measured(run)) for run in row.tools]
    fusion = row.fusion
    if fusion and fusion.q is not None:
        shares = ", ".join(f"{level_word(letter)} {p:.0%}" for letter, p in fusion.p_c.items())
        cells.append(("model alone", expected_level(fusion.p_c), shares))
        weight = (
            ""
            if fusion.sigma is None
            else f"; standard error of the tools {fusion.sigma:.2f} (η {fusion.eta:.2f})"
        )
        cells.append(("together", fusion.q, f"q{weight}"))
    elif row.choices and row.p:
        words = {
            f"{letter}. {chosen_answer(row.choices, letter)}": p for letter, p in row.p.items()
        }
        return ["", "  Answers", *(f"  {p:>6.1%}  {word}" for word, p in words.items())]
    lines: list[str] = []
    for name, score, about in dict.fromkeys(cells):
        begin = f"  {name[:14]:<14}{'–' if score is None else f'{score:.2f}':>6}  "
        lines += wrapped(about, begin, " " * len(begin))
    return ["", f"  {'Numbers':<14}{'1 to 5':>6}", *lines] if lines else []


def _measured(run: ToolExecutionLog) -> str:
    """A tool's raw score, of what, and why it has no vote."""
    if run.error:
        return f"failed: {run.error}"
    parts = [f"raw {raw_with_scale(run)}"]
    if run.object_name != "Global":
        parts.append(f"of the {run.measured}")
    parts += ["stood in for another"] if run.fallback else []
    return "; ".join([*parts, *filter(None, [_no_vote(run)])])


def _no_vote(run: ToolExecutionLog) -> str:
    """Why a tool that measured does not count; empty where it does."""
    if run.outvoted:
        return "not counted: it stands apart from every other tool"
    return "not counted: it only checks a more reliable tool" if run.trailing else ""
