"""One assessment as text: its headline, and the account of --explain. Pure: a row in, text out."""

import re
from collections.abc import Collection

from agentic_iqa_local.errors import one_line, percent
from agentic_iqa_local.nodes.evidence import found_damage, has_shallow_focus, not_looked_for
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.query import asked_about, asks_where, distortions_in, says_present
from agentic_iqa_local.nodes.reasoning import at_part
from agentic_iqa_local.output.account import Part, account_of, map_sentences
from agentic_iqa_local.output.words import (
    forced_eye,
    named,
    raw_with_scale,
    safe_lines,
    trial_notice,
    unmeasured,
    whole_scale,
    wrapped,
)
from agentic_iqa_local.result import OTHER_QUERY, Assessment
from agentic_iqa_local.state import ExecutorOutput, PlannerOutput, plain_words

# A question that Yes or No answers
_YES_OR_NO = re.compile(
    r"(is|are|was|were|does|do|did|has|have|can|could|would|will|should)\b", re.IGNORECASE
)


def headline(row: Assessment) -> str:
    """One line: the picture and its answer, or why there is none; then what came of the tools that
    the query names."""
    if row.error:
        return one_line(f"FAILED: {row.image}: {row.reason}")
    parts = _found_of_question(row)
    if row.map and row.map.worst:
        parts.append(f"worst at the {' and the '.join(box.place for box in row.map.worst)}")
    parts.append(f"{_answer(row)}{trial_notice(row)}")
    parts += forced_eye(row)
    if row.unlike_photograph:
        parts.append("unlike a photograph")
    parts += named_tools(row)
    against = f" against {row.reference}" if row.reference else ""
    return one_line(f"{row.image}{against}: {'; '.join(parts)}")


def _found_of_question(row: Assessment) -> list[str]:
    """What was found of the distortions that a question names, or of all where it names none, since
    a rating is not yet an answer to it; nothing for the default query and for an answer in
    words."""
    if row.query == DEFAULT_QUERY or named(row) or not (row.level and row.plan and row.evidence):
        return []
    return _found_of(row.query, row.plan, row.evidence)


def _found_of(query: str, plan: PlannerOutput, evidence: ExecutorOutput) -> list[str]:
    kinds = distortions_in(query)
    sought = " or ".join(plain_words(kind) for kind in kinds) or "damage"
    if not_looked_for(evidence):
        return [f"{sought} was not looked for"]
    if not evidence.distortion_analysis:
        return []
    found = found_damage(evidence)
    if kinds:
        found = [one for one in found if one.type in kinds]
    said = " and ".join(one.with_severity for one in found) or f"no {sought} found"
    if asks_where(query):
        return [f"{said}{_where(evidence, kinds, bool(found))}"]
    return [f"{_lead(query, kinds, bool(found))}{said}"]


def _where(evidence: ExecutorOutput, kinds: list[str], found: bool) -> str:
    """In which part it was found, or would be, or how to see which part is worse."""
    soft = "Blurs" in kinds and has_shallow_focus(evidence)
    if evidence.damaged_part and (found or soft or not kinds):
        at = at_part(evidence.damaged_part)
        return f" {at}" if found else f"; if there is any, {at}"
    lacking = ", but not in which part" if found else " in any part"
    return f"{lacking} (--map draws how good each is)"


def _lead(query: str, kinds: list[str], found: bool) -> str:
    """What stands before what was found: an answer to a question that names distortions and is one
    of Yes or No."""
    if not kinds:
        return "judged for picture quality alone: "
    if not _YES_OR_NO.match(query):
        return ""
    return "yes, " if says_present(asked_about(query), kinds) == found else "no, "


def _answer(row: Assessment) -> str:
    """The answer with what is known of how sure it is."""
    said = f"{row.gate.verdict.upper()}: {row.answer}" if row.gate else row.answer
    if row.level:
        alone = "; the model's opinion alone" if unmeasured(row) else ""
        return f"{said} of 5 (5 is best{alone}{_between(row)})"
    if row.answer_set and row.choices and len(row.answer_set.letters) == len(row.choices):
        return f"{said}, but no other answer can be ruled out"
    return said


def _between(row: Assessment) -> str:
    """The interval of a rating, or why it is not narrow; nothing of an answer to another question,
    of which nobody expects one (the account has it)."""
    if row.interval is None or row.interval.widened[:1] == [OTHER_QUERY]:
        return ""
    if whole_scale(row.interval):
        return "; not known to any useful accuracy"
    if row.interval.widened:
        return f"; no narrow interval, since {row.interval.widened[0]}"
    return f"; 90 % interval {row.interval.low:.1f} to {row.interval.high:.1f}"


def named_tools(row: Assessment) -> list[str]:
    """What each tool that the query names says, or why it could not run and what measured
    instead."""
    others = dict.fromkeys(run.tool_name for run in row.tools if not run.error)
    measured = " and ".join(others) or "no other tool"
    names, scores, failures = named(row), dict[str, None](), dict[str, None]()
    for run in row.tools:
        if run.tool_name not in names:
            continue
        if run.error:
            failures[f"{run.error.partition(' (')[0].rstrip('.')}; {measured} measured"] = None
        else:
            score = f"{raw_with_scale(run)}: {run.normalized_score:.2f} of 5"
            scores[f"{run.tool_name} {score}"] = None
    return [*scores, *failures]


def summary(row: Assessment) -> str:
    """The headline with its reasoning, and what a map found."""
    lines = wrapped(headline(row), indent="")
    if not row.error:
        lines += wrapped(row.quality_reasoning or "")
        lines += wrapped(" ".join(map_sentences(row)))
    return safe_lines(lines)


def account(row: Assessment, told: Collection[str] = ()) -> str:
    """The account of `--explain`, of several lines that fit the terminal, without the sentences
    that are `told` elsewhere."""
    lines = [*wrapped(headline(row), indent=""), ""]
    for part in account_of(row):
        sentences = [one for one in part.sentences if one not in told]
        if sentences:
            lines += wrapped(f"{part.title}: {' '.join(sentences)}")
        elif not part.sentences:
            if lines[-1]:
                lines.append("")
            lines += [*_table(part), ""]
    return safe_lines(lines)


def _table(part: Part) -> list[str]:
    """A title and a line for each answer or score."""
    if part.shares:
        return [
            f"  {part.title}",
            *(f"  {percent(p, 1):>7}  {answer}" for answer, p in part.shares),
        ]
    lines = [f"  {part.title:<14}{'1 to 5':>6}"]
    for name, score, about in part.scores:
        figure = "–" if score is None else f"{score:.2f}"
        begin = f"  {name[:14]:<14}{figure:>6}  "
        lines += wrapped(about, begin, " " * len(begin))
    return lines
