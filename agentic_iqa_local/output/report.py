"""An assessment as text for a terminal. Pure: results in, lines out."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import TOOLS, ToolInfo, ToolSpec
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.prompts import chosen_answer, worst_part_in_words
from agentic_iqa_local.nodes.query import named_metrics
from agentic_iqa_local.result import Assessment, Gate
from agentic_iqa_local.score_fusion import expected_level
from agentic_iqa_local.state import (
    LETTER_TO_LEVEL,
    LEVEL_WORDS,
    OVERALL,
    UNCLEAR,
    DistortionAnalysis,
    PassRecord,
    PlannerOutput,
    ToolExecutionLog,
)

BAR_WIDTH = 30
WIDEST, NARROWEST = 100, 40  # columns of text
AGREE, DISAGREE = 0.5, 1.0  # levels between the tools' mean and the model's expectation
WHOLE = "whole picture"
DECIDED = {
    "seen": "what the model saw decided",
    "measured": "what the tools measured decided",
    "concluded": "no part outweighed the others",
}
MODES = {
    "logits": "read from its logits",
    "classification": "the letter it wrote, and the rest shared",
    "uniform": "mode uniform: none is read",
}


def headline(row: Assessment) -> str:
    """One line: the image and its answer, or why there is none; the raw scores of tools that the query names,
    or what ran instead."""
    if row.error:
        return one_line(f"FAILED: {why_failed(row.image, row.error)}")
    notice = " [small embedded model]" if (row.model or {}).get("notice") else ""
    asked = {run.tool_name: run for run in row.tools if run.tool_name in _named(row) and not run.error}
    scores = [f"{name} {run.raw_score:.4g} ({run.normalized_score:.2f} of 5)" for name, run in asked.items()]
    unlike = ["unlike a photograph"] if row.unlike_photograph else []
    return one_line("; ".join([f"{row.image}: {_answer(row)}{notice}", *unlike, *scores, *stand_ins(row)]))


def _answer(row: Assessment) -> str | None:
    """The answer with its level and score, or its choice and probability."""
    answer = row.final_answer
    if answer is not None and row.q is not None:
        rated = f"{answer} {level_word(answer)}, q {row.q:.2f} of 5"
        if row.interval:
            rated += f" ({row.interval.low:.1f} to {row.interval.high:.1f})"
        verdict = f"{row.gate.verdict.upper()}: " if row.gate else ""
        return f"{verdict}{'not sure: ' if row.not_sure else ''}{rated}"
    if answer is not None and row.choices and row.p:
        return f"{answer}. {chosen_answer(row.choices, answer)} (p {row.p[answer]:.2f})"
    return answer


def level_word(letter: str) -> str:
    """Excellent (A) to Bad (E)."""
    return LEVEL_WORDS[LETTER_TO_LEVEL[letter]]


def _named(row: Assessment) -> list[str]:
    """The metrics that the query names."""
    return named_metrics(row.query, row.reference is not None)


def stand_ins(row: Assessment) -> list[str]:
    """One line for each tool that the query names and that could not run: why, and what ran instead."""
    named = _named(row)
    lines: dict[str, str] = {}
    for i, run in enumerate(row.tools):
        if run.error and run.tool_name in named:
            instead = next(
                (
                    f"{later.tool_name} ran instead"
                    for later in row.tools[i + 1 :]
                    if later.error is None
                    and (later.object_name, later.distortion) == (run.object_name, run.distortion)
                ),
                "no other tool could run",
            )
            reason = _why_not(run.tool_name, run.error)
            lines.setdefault(run.tool_name, f"{run.tool_name} could not run ({reason}), {instead}")
    return list(lines.values())


def _why_not(tool: str, error: str) -> str:
    """Why a tool could not run, in short."""
    if tool not in TOOLS:
        return "it is not in the table of tools"
    reason = error.removeprefix(f"{tool} ").removeprefix("is unavailable: ")
    return re.split(r" \(|;", reason)[0].rstrip(".")


def summary(row: Assessment) -> str:
    """The headline with its reasoning."""
    lines = wrapped(headline(row), indent="")
    if row.quality_reasoning and not row.error:
        lines += wrapped(row.quality_reasoning)
    return safe_lines(lines)


def account(row: Assessment) -> str:
    """The readable account of `--explain`: plan, evidence, probabilities, tools, the fused score and why."""
    sections = [
        ("Plan", _plan_lines(row)),
        ("Passes", paragraphs(map(pass_in_words, row.passes)) if len(row.passes) > 1 else None),
        ("Evidence", _evidence_lines(row)),
        (
            "Detection: the model's odds times those of LocalNR's reading",
            _detection_lines(row),
        ),
        (f"Letters: how probable the model finds each answer ({MODES.get(row.mode)})", _letter_lines(row)),
        ("Tools", tools_in_words(row) if row.plan or row.tools else None),
        ("Score", None if row.q is None else wrapped(score_in_words(row))),
        ("How sure", sureness_in_words(row)),
        ("Where the damage is", map_in_words(row)),
        ("Why", wrapped(row.quality_reasoning) if row.quality_reasoning else None),
    ]
    lines = wrapped(headline(row), indent="") + wrapped(f"Query: {row.query}")
    for title, text in sections:
        lines += [] if text is None else ["", title, *text]
    lines += _doubt_lines(row)
    if row.warnings:
        lines += ["", "Warnings", *paragraphs(row.warnings)]
    return safe_lines(lines + _cost_lines(row))


def map_in_words(row: Assessment) -> list[str] | None:
    """What a map found and cost, or why there is none; None where none was asked for."""
    if (found := row.map) is None:
        return wrapped(row.no_map) if row.no_map else None
    lines = [
        f"{box.place}, pixels {box.box[:2]} to {box.box[2:]}: q {box.q:.2f}, {box.below:.2f} below the map's"
        + (f" median; {box.seen} (p {box.probability:.2f})" if box.seen else " median")
        for box in found.worst
    ] or [f"No part is clearly worse than the rest: the map's median is {found.median:.2f}."]
    cost = f"{found.cost.read} of {found.cost.tiles} tiles of {found.tile}×{found.tile} pixels were read"
    lines += [f"{cost} in {found.cost.seconds:.1f} s", *found.notes, found.cost.stopped, found.not_drawn]
    return paragraphs(filter(None, [*lines, found.png and f"drawn to {found.png}"]))


def _plan_lines(row: Assessment) -> list[str] | None:
    if row.plan is None:
        return None
    return paragraphs(
        [
            plan_in_words(row.plan),
            *(f"Corrected by rule: {correction}" for correction in row.plan_corrections),
            *(f"Planned again: {later.asked}" for later in row.passes[1:]),
        ]
    )


def _evidence_lines(row: Assessment) -> list[str] | None:
    if row.evidence is None or row.evidence.distortion_analysis is None:
        return None
    analysis, worst = row.evidence.distortion_analysis, row.evidence.worst_part
    lines = [line for name, items in analysis.items() for line in evidence_in_words(name, items)]
    return paragraphs([*lines, f"worst part: {worst_part_in_words(worst)}"] if worst else lines)


def _detection_lines(row: Assessment) -> list[str] | None:
    """Of each object and family: the model's probability, what LocalNR's reading is worth, the product, and how severe
    LocalNR reads it."""
    if row.evidence is None or not row.evidence.detection:
        return None
    lines = []
    for name, detection in row.evidence.detection.items():
        lines.append(f"  {_owner(name)[:22]:<24}{'model':>7}{'LocalNR':>9}{'together':>10}{'if there':>12}")
        for kind, family in detection.families.items():
            model, measured = ("–" if p is None else f"{p:.2f}" for p in (family.model, family.measured))
            severity = "" if family.severity is None else f"{family.severity:.1f} of 5"
            lines.append(f"    {kind:<22}{model:>7}{measured:>9}{family.probability:>10.2f}{severity:>12}")
        if detection.error:
            lines += wrapped(f"LocalNR could not read it: {detection.error}.")
        if not detection.model_trust:
            lines += wrapped("This model's own column does not count: it was measured to tell nothing.")
        elif detection.model_trust < 1:
            lines += wrapped(f"This model's own odds count with the exponent {detection.model_trust:g}, as measured.")
    return lines


def _letter_lines(row: Assessment) -> list[str] | None:
    if not row.p_c:
        return None
    lines = bars(row.p_c, row.choices)
    if row.product and row.measured:
        detections = (row.evidence.detection or {}).values() if row.evidence else ()
        ignored = any(detection.model_trust == 0 for detection in detections) and row.product == row.measured
        lines += ["", "  What was measured" if ignored else "  Times what was measured"]
        lines += bars(row.measured, row.choices)
        lines += (
            ["  It decides alone: of this model's own word about distortions it was measured that it tells nothing."]
            if ignored
            else ["", "  Together", *bars(row.product, row.choices)]
        )
    if row.measurement:
        lines += wrapped(f"Measured: {row.measurement}.")
    if row.off_letter_mass is not None:
        lines += wrapped(f"{row.off_letter_mass:.2%} of the probability lies on other words than these answers.")
    return lines


def sureness_in_words(row: Assessment) -> list[str] | None:
    """The interval or the set of answers, what it rests on, and what follows from it."""
    lines = []
    if row.interval:
        interval = row.interval
        lines.append(
            f"The true quality lies between {interval.low:.2f} and {interval.high:.2f} with"
            f" {interval.coverage:.0%} probability (calibrated on {interval.calibrated_on})."
        )
        lines += [f"It is wider than that calibration alone says: {reason}." for reason in interval.widened]
    if row.answer_set and row.choices:
        answers = [chosen_answer(row.choices, letter) for letter in row.answer_set.letters]
        lines.append(
            f"The right answer is {_one_of(answers)} with {row.answer_set.coverage:.0%} probability"
            f" (calibrated on {row.answer_set.calibrated_on})."
        )
        lines += [f"There are more of them because {reason}." for reason in row.answer_set.widened]
    if row.no_interval:
        lines.append(f"{row.no_interval[0].upper()}{row.no_interval[1:]}.")
    if row.not_sure:
        lines.append(f"The answer is held back, {row.not_sure}.")
    if row.gate:
        lines.append(_gate_in_words(row.gate))
    return paragraphs(lines) if lines else None


def _one_of(answers: Sequence[str]) -> str:
    return answers[0] if len(answers) == 1 else f"one of {', '.join(answers)}"


def _gate_in_words(gate: Gate) -> str:
    sure = f"at most {gate.error_rate:.0%} of such verdicts are wrong"
    ends = {
        "pass": f"so it passes; {sure}",
        "fail": f"so it fails; {sure}",
        "unsure": f"too near to even for a verdict of which {sure}",
    }
    return f"It is {gate.at_least:g} or better with {gate.probability:.0%} probability, {ends[gate.verdict]}."


def _doubt_lines(row: Assessment) -> list[str]:
    """What the model got wrong on the way to its answer."""
    lines = []
    if row.reasoning_corrections:
        wrong = "; ".join(row.reasoning_corrections)
        lines += wrapped(
            "(Put together from the evidence and the answer, because the model's own words contradicted"
            f" them: it {wrong}.)"
        )
    if row.failed_tries:
        tries = f"{len(row.failed_tries)} failed {'try' if len(row.failed_tries) == 1 else 'tries'} of the model"
        lines += wrapped(f"({tries} on the way; the JSON row holds what it wrote.)")
    return lines


def _cost_lines(row: Assessment) -> list[str]:
    """The model, what it saw and what that took."""
    if not (row.tokens and row.seen and row.model):
        return []
    views = "1 view" if len(row.seen.views) == 1 else f"{len(row.seen.views)} views"
    cost = (
        f"{row.model['name']} on {row.model['device']} ({row.model['dtype']}) saw {views},"
        f" {row.seen.pixels or 'tiled'} pixels, {row.seen.tokens} tokens; {row.tokens.prefilled} tokens"
        f" computed, {row.tokens.reused} reused, {row.tokens.decoded} written; {row.seconds:.1f} s"
    )
    notice = row.model.get("notice")
    return ["", *wrapped(cost), *(wrapped(f"Note: {notice}.") if notice else [])]


def plan_in_words(plan: PlannerOutput) -> str:
    """What is asked, about what, and which parts answer it."""
    if plan.query_type == "Other":
        return "The question is not about technical quality: the model answers from the picture, without tools."
    about = "the whole picture" if plan.query_scope == "Global" else ", ".join(plan.objects)
    against = "against the reference" if plan.reference_mode == "Full-Reference" else "without a reference"
    looks = (
        "the query names the distortions"
        if plan.distortion_source == "Explicit"
        else "the model looks for distortions itself"
    )
    tool = f"; {plan.required_tool} is asked for" if plan.required_tool else ""
    parts = [name.replace("_", " ") for name, on in plan.plan.model_dump().items() if on]
    return f"Quality of {about}, {against}; {looks}{tool}. Parts: {', '.join(parts) or 'none'}."


def pass_in_words(record: PassRecord) -> str:
    """What a pass was to close, saw, measured and concluded, and what it left open."""
    asked = f", to close: {record.asked.rstrip('.')}" if record.asked else ""
    moved = f" ({record.dq:+.2f})" if record.dq is not None else ""
    left = f" Left open: {'; '.join(record.gaps)}." if record.gaps else ""
    kept = " Its answer counts." if record.kept else ""
    cost = f"{record.tokens} tokens, {record.seconds:.1f} s"
    return (
        f"{record.number}{asked}. Seen: {record.seen}. Measured: {record.measured}. Concluded:"
        f" {record.concluded}{moved}; {DECIDED[record.decided]}.{left} {cost}.{kept}"
    )


def evidence_in_words(name: str, items: Sequence[DistortionAnalysis]) -> list[str]:
    """What the analysis found of one object; what it looked for in vain is no finding."""
    owner = _owner(name)
    lines = [
        f"{owner}: {item.severity} {item.type}. {item.explanation}"
        for item in items
        if item.severity not in ("none", UNCLEAR)
    ]
    lines += [
        f"{owner}: how severe {item.type} is cannot be told. {item.explanation}"
        for item in items
        if item.severity == UNCLEAR
    ]
    sought = ", ".join(item.type for item in items if item.severity == "none")
    if lines and sought:
        return [*lines, f"{owner}: not found: {sought}"]
    return lines or [f"{owner}: no distortion found" + (f" (looked for {sought})" if sought else "")]


def tools_in_words(row: Assessment) -> list[str]:
    """The tools' runs as a table, or why none ran."""
    if not row.tools:
        return wrapped(_why_none_ran(row.plan))
    lines = [f"  {'tool':<12}{'of':<15}{'for':<22}{'raw score':>12}{'1 to 5':>8}{'seconds':>9}"]
    for run in row.tools:
        raw = "failed" if run.raw_score is None else f"{run.raw_score:.4g} {_arrow(run.tool_name)}"
        score = "–" if run.normalized_score is None else f"{run.normalized_score:.2f}"
        purpose = OVERALL if run.distortion.startswith(OVERALL) else run.distortion
        lines.append(
            f"  {run.tool_name[:11]:<12}{_owner(run.object_name)[:14]:<15}{purpose[:21]:<22}"
            f"{raw:>12}{score:>8}{run.execution_time:>9.2f}"
        )
    lines += wrapped("↑: a higher raw score is better; ↓: a lower one is")
    return lines + paragraphs(dict.fromkeys(note for run in row.tools for note in _run_notes(run)))


def _arrow(tool: str) -> str:
    """Which way a tool's raw score gets better; blank for a tool that is not known here."""
    return " " if tool not in TOOLS else "↓" if TOOLS[tool].lower_better else "↑"


def _why_none_ran(plan: PlannerOutput | None) -> str:
    if plan and plan.query_type == "Other":
        return "None ran: tools measure technical quality, and the question is about something else."
    if plan and plan.query_scope != "Global":
        about = ", ".join(plan.objects)
        return (
            f"None ran: tools measure whole pictures, and the question is about {about}. Name a tool in the"
            " query to have it run."
        )
    return "None ran."


def _run_notes(run: ToolExecutionLog) -> Iterator[str]:
    """What to know of a run: why it failed, what it stands in for, why it has no vote, what it measured."""
    if run.error:
        yield f"{run.tool_name} failed: {run.error}"
    elif run.fallback:
        yield f"{run.tool_name} stood in for it."
    if run.outvoted:
        yield f"{run.tool_name} has no vote: it stands apart from every other tool."
    elif run.trailing:
        yield f"{run.tool_name} has no vote: it checks a tool that is clearly better."
    if run.error is None and run.object_name != "Global" and run.region == "global":
        yield f"{run.tool_name} measured the whole picture: {run.object_name} has no box."


def _owner(name: str) -> str:
    return WHOLE if name == "Global" else name


def score_in_words(row: Assessment) -> str:
    """How the letters and the tools made q, and how far they agree. Raises ValueError for a row without
    either."""
    if row.q is None or row.p_c is None or row.final_answer is None:
        raise ValueError(f"{row.image}: expected a fused score, got none")
    expected = expected_level(row.p_c)
    nearest = f"nearest to {row.final_answer} {level_word(row.final_answer)}"
    if row.q_bar is None:
        return f"No tool measured this, so the score rests on the model alone: q {row.q:.2f}, {nearest}."
    apart = abs(row.q_bar - expected)
    agree = "agree" if apart < AGREE else "differ somewhat" if apart < DISAGREE else "disagree"
    alone = "no preference" if row.vlm_letter is None else f"{expected:.2f}, its likeliest letter {row.vlm_letter}"
    return (
        f"{_voters(row)} (q̄) is {row.q_bar:.2f}, the model's letters alone say {alone}: they {agree}"
        f" ({row.q_bar:.1f} against {expected:.1f}); together q {row.q:.2f}, {nearest}{_decided(row)}."
        f" {_trust(row)}One level more from the tools would move q by {row.dq_dqbar:.2f}."
    )


def _voters(row: Assessment) -> str:
    """Whose score q̄ is."""
    names = {
        run.tool_name for run in row.tools if run.normalized_score is not None and not run.trailing and not run.outvoted
    }
    return f"{names.pop()}'s score" if len(names) == 1 else "The tools' mean"


def _decided(row: Assessment) -> str:
    kept = next((record for record in reversed(row.passes) if record.kept), None)
    return f"; {DECIDED[kept.decided]}" if kept and kept.decided != "concluded" else ""


def _trust(row: Assessment) -> str:
    if row.sigma is None:
        return ""
    return f"Tools like these are off by about {row.sigma:.2f} levels (σ), which makes their weight η {row.eta:.2f}. "


def bars(p_c: Mapping[str, float], choices: Sequence[str] | None) -> list[str]:
    """The probabilities of the letters, which mean levels or `choices`, as a bar chart, one line each."""
    words = choices or [level_word(letter) for letter in p_c]
    width = min(24, max(len(word) for word in words))
    return [
        f"  {letter} {word[:width]:<{width}} {'█' * round(p * BAR_WIDTH):<{BAR_WIDTH}} {p:.3f}"
        for (letter, p), word in zip(p_c.items(), words, strict=True)
    ]


def why_failed(image: str, error: str) -> str:
    """Which image failed, and why."""
    image = one_line(image)
    return error if error.startswith(image) else f"{image}: {error}"


def tool_table(tools: Sequence[ToolInfo]) -> str:
    """Every tool with its availability, what it costs, how reliable it is, the range its map can reach, and
    where the map comes from."""
    lines, reliability = [], load_reliability()
    for tool in tools:
        reach = f"{tool.reachable[0]:.2f}..{tool.reachable[1]:.2f}" if tool.reachable else "no map"
        state, why = ("available", "") if tool.available else ("unavailable", f" Unavailable: {tool.reason}.")
        lines += [
            f"{tool.name:<14}{tool.spec.reference:<4}{reach:<12}{state}",
            *wrapped(
                f"{tool.spec.description}.{why} Raw score: {'lower' if tool.spec.lower_better else 'higher'} is better."
                f" Cost: {cost(tool.spec)}. Reliability: {reliability.account(tool.name)}."
                f" Map: {tool.source or 'none'}"
            ),
        ]
    return safe_lines(lines)


def cost(tool: ToolSpec) -> str:
    """What a tool takes, in words."""
    if tool.seconds is None:
        return "not measured"
    limit = f"; beyond {tool.most_megapixels:g} megapixels it measures crops" if tool.most_megapixels else ""
    return f"about {tool.seconds:g} s a megapixel on one CPU core{limit}"


def safe_lines(lines: Sequence[str]) -> str:
    """Each on a line of its own: file names, queries and models' answers may hold anything."""
    return "\n".join(map(one_line, lines))


def paragraphs(texts: Iterable[str]) -> list[str]:
    """Each text wrapped."""
    return [line for text in texts for line in wrapped(text)]


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """The lines of a text that fits the terminal; `indent` begins the first one."""
    width = min(WIDEST, max(NARROWEST, shutil.get_terminal_size((WIDEST, 24)).columns))
    safe = one_line(" ".join(text.split()))
    return textwrap.wrap(safe, width, initial_indent=indent, subsequent_indent="  ", break_on_hyphens=False)
