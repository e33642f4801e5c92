"""An assessment as text for a terminal. Pure: results in, lines out."""

import textwrap
import unicodedata
from collections.abc import Sequence

from agentic_iqa_local.assessment import Assessment
from agentic_iqa_local.iqa_tools import ToolInfo
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LEVEL_WORDS

BAR_WIDTH = 30
WIDTH = 100


def headline(row: Assessment) -> str:
    """One line: the image and its answer, or why there is none."""
    if row.error:
        return f"{row.image}: FAILED: {row.error}"
    answer = row.final_answer
    if row.q is not None:
        answer = f"{answer} {LEVEL_WORDS[LETTER_TO_LEVEL[answer]]}, q {row.q:.2f} of 5"
    elif row.choices and row.p_c:
        answer = f"{answer}. {row.choices[ord(answer) - 65]} (p {row.p_c[answer]:.2f})"
    notice = " [small embedded model]" if (row.model or {}).get("notice") else ""
    return f"{row.image}: {answer}{notice}"


def summary(row: Assessment) -> str:
    """The headline with its reasoning."""
    lines = [headline(row)]
    if row.quality_reasoning and not row.error:
        lines += _wrapped(row.quality_reasoning)
    return _safe(lines)


def account(row: Assessment) -> str:
    """The readable account of `--explain`: plan, evidence, probabilities, tools, the fused score and why."""
    lines = [headline(row), *_wrapped(f"Query: {row.query}")]
    if row.plan:
        scope = ", ".join(row.plan.objects)
        on = [name for name, flag in row.plan.plan.model_dump().items() if flag] or ["nothing"]
        lines += [
            "",
            "Plan",
            f"  {row.plan.query_type}, scope {scope}, {row.plan.reference_mode}, {row.plan.distortion_source.lower()} distortions",
        ]
        lines += _wrapped(f"runs {', '.join(on)}; tool named: {row.plan.required_tool or 'none'}")
        lines += _wrapped(f"corrected by rule: {'; '.join(row.plan_corrections)}") if row.plan_corrections else []
        lines += [line for reason in row.replan_history for line in _wrapped(f"replanned: {reason}")]
    if row.evidence and row.evidence.distortion_analysis:
        lines += ["", "Evidence"]
        for name, items in row.evidence.distortion_analysis.items():
            for item in items:
                lines += _wrapped(f"{name}: {item.severity} {item.type}. {item.explanation}")
            if not items:
                lines.append(f"  {name}: no distortion seen")
    if row.p_c:
        lines += ["", f"Letters (p_c, mode {row.mode})", *bars(row)]
        if row.off_letter_mass is not None:
            lines.append(f"  off the letters: {row.off_letter_mass:.2%} of the probability")
    if row.tools:
        lines += ["", "Tools", f"  {'tool':<12}{'object':<16}{'distortion':<20}{'raw':>10}{'1..5':>8}{'seconds':>9}"]
        for run in row.tools:
            raw = "failed" if run.raw_score is None else f"{run.raw_score:.4g}"
            score = "–" if run.normalized_score is None else f"{run.normalized_score:.2f}"
            marks = (" (stands in)" if run.fallback else "") + (
                " (whole image)" if run.object_name != "Global" and run.region == "global" else ""
            )
            lines.append(
                f"  {run.tool_name:<12}{run.object_name[:15]:<16}{run.distortion[:19]:<20}{raw:>10}{score:>8}{run.execution_time:>9.2f}{marks}"
            )
    if row.q is not None:
        lines += ["", "Fusion"]
        if row.q_bar is None:
            lines.append(f"  no tool scores, so q is the model's expectation: {row.q:.3f}")
        else:
            lines.append(
                f"  tools' mean q̄ {row.q_bar:.3f}, letters → q {row.q:.3f}; dq/dq̄ {row.dq_dqbar:.2f} (how much the tools counted)"
            )
        lines.append(f"  model's own letter {row.vlm_letter or 'not read'}, fused level {row.final_answer}")
    if row.quality_reasoning:
        lines += ["", "Why", *_wrapped(row.quality_reasoning)]
    if row.warnings:
        lines += ["", "Warnings", *(line for warning in row.warnings for line in _wrapped(warning))]
    if row.tokens and row.seen and row.model:
        lines += [
            "",
            f"{row.model['name']} on {row.model['device']} ({row.model['dtype']}): saw {len(row.seen.views)} view(s), "
            f"{row.seen.pixels} pixels, {row.seen.tokens} tokens; prefilled {row.tokens.prefilled}, "
            f"reused {row.tokens.reused}, decoded {row.tokens.decoded}; {row.seconds:.1f} s",
        ]
        if row.model.get("notice"):
            lines += _wrapped(f"Note: {row.model['notice']}.")
    return _safe(lines)


def bars(row: Assessment) -> list[str]:
    """The letters' probabilities as a bar chart, one line each."""
    words = row.choices or [LEVEL_WORDS[LETTER_TO_LEVEL[letter]] for letter in row.p_c]
    width = min(24, max(len(word) for word in words))
    return [
        f"  {letter} {word[:width]:<{width}} {'█' * round(p * BAR_WIDTH):<{BAR_WIDTH}} {p:.3f}"
        for (letter, p), word in zip(row.p_c.items(), words, strict=True)
    ]


def tool_table(tools: Sequence[ToolInfo]) -> str:
    """Every tool with its availability, what it costs, the range its map can reach, and where the map comes from."""
    lines = []
    for tool in tools:
        reach = f"{tool.reachable[0]:.2f}..{tool.reachable[1]:.2f}" if tool.reachable else "no map"
        why = "" if tool.available else f" Unavailable: {tool.reason}."
        lines += [
            f"{tool.name:<14}{tool.reference:<4}{reach:<12}{'available' if tool.available else 'unavailable'}",
            *_wrapped(f"{tool.description}.{why} Cost: {cost(tool)}. Map: {tool.source or 'none'}"),
        ]
    return "\n".join(lines)


def cost(tool: ToolInfo) -> str:
    """What a tool takes, in words."""
    if tool.seconds is None:
        return "not measured"
    limit = f"; beyond {tool.most_megapixels:g} megapixels it measures crops" if tool.most_megapixels else ""
    return f"about {tool.seconds:g} s a megapixel on one CPU core{limit}"


def _safe(lines: Sequence[str]) -> str:
    """The lines without what could steer a terminal: file names, queries and models' answers may hold anything."""
    return "\n".join("".join("�" if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in line) for line in lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
