"""The list of IQA tools as text. Pure: results in, lines out."""

from collections.abc import Sequence

from agentic_iqa_local.iqa_tools import ToolInfo, ToolSpec
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.output.words import safe_lines, wrapped


def tool_table(tools: Sequence[ToolInfo]) -> str:
    """Every tool with its availability, what it costs, how reliable it is and the range that its map can reach."""
    lines, reliability = ["FR needs a reference, NR none; then the scores of 1 to 5 it can give"], load_reliability()
    for tool in tools:
        reach = f"{tool.reachable[0]:.2f}..{tool.reachable[1]:.2f}" if tool.reachable else "no map"
        state, why = ("available", "") if tool.available else ("unavailable", f" Unavailable: {tool.reason}.")
        about = (
            f"{tool.spec.description}.{why} Raw score: {'lower' if tool.spec.lower_better else 'higher'} is better."
            f" Cost: {_cost(tool.spec)}. Reliability: {reliability.account(tool.name)}."
        )
        lines += [f"{tool.name:<14}{tool.spec.reference:<4}{reach:<12}{state}", *wrapped(about)]
    return safe_lines(lines)


def _cost(tool: ToolSpec) -> str:
    if tool.seconds is None:
        return "not measured"
    limit = f"; beyond {tool.most_megapixels:g} megapixels it measures crops" if tool.most_megapixels else ""
    return f"about {tool.seconds:g} s a megapixel on one CPU core{limit}"
