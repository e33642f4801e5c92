"""Tables for other programs: CSV in which no spreadsheet finds a formula."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TextIO

from agentic_iqa_local.batch.cells import safe_cell
from agentic_iqa_local.iqa_tools import ToolInfo, ToolSpec
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.output.words import damage, safe_lines, wrapped
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.state import LETTER_TO_LEVEL

Cells = dict[str, Any]  # a row of a table: values by the names of their columns


def write_csv(
    file: TextIO, columns: Sequence[str], rows: Iterable[Cells], lineterminator: str = "\r\n"
) -> None:
    """A header with the columns' names and a line for each row, empty where a row lacks a column;
    every cell is a `safe_cell`. Raises ValueError for a row with another column."""
    table = csv.DictWriter(file, columns, restval="", lineterminator=lineterminator)
    header = dict(zip(columns, columns, strict=True))
    table.writerows(
        {name: safe_cell(value) for name, value in row.items()} for row in chain([header], rows)
    )


FIRST = ("image", "reference", "query", "choices", "answer", "level", "q", "q_low", "q_high",
         "not_sure", "gate", "tools_mean", "model_letter")  # fmt: skip
LAST = ("reasoning", "warnings", "error", "seconds", "model", "sha256")


def csv_text(rows: Iterable[Assessment]) -> str:
    """Rows as CSV with a header, one line each.

    Every tool has three columns, its raw score, how that is read and its score in 1..5; every
    letter has one. A failed row has its error and no score.
    """
    cells, letters, tools = [], set(LETTER_TO_LEVEL), set[str]()
    for row in rows:
        cells.append(row_cells(row))
        letters |= set(row.p or ())
        tools |= {run.tool_name for run in row.tools}
    columns = [
        *FIRST,
        *(f"p_{letter}" for letter in sorted(letters)),
        "distortions",
        *(f"{tool}{kind}" for tool in sorted(tools) for kind in (" raw", " scale", " 1-5")),
        *LAST,
    ]
    text = io.StringIO()
    write_csv(text, columns, cells)
    return text.getvalue()


CSV = re.compile(
    rb"\A\xef\xbb\xbf"
    + ",".join(FIRST).encode()
    + rb",[^\r\n]*"
    + ",".join(LAST).encode()
    + rb"\r?\n"
)
"""What a file of `csv_text` begins with: the very columns, and none of a user's own."""


PARQUET_KEY = "agentic_iqa_local:rows"  # of a Parquet file's metadata, which stand at its end
PARQUET = re.compile(rb"\APAR1.*" + PARQUET_KEY.encode() + rb".*PAR1\Z", re.DOTALL)


def row_cells(row: Assessment) -> Cells:
    """The cells of a row by the names of their columns."""
    interval = row.interval
    cells = row.model_dump(include={*FIRST, *LAST}) | {
        "level": row.level,
        "q_low": interval and interval.low,
        "q_high": interval and interval.high,
        "choices": "|".join(row.choices or ()),
        "gate": row.gate and row.gate.verdict,
        "distortions": "; ".join(damage(row)),
        "reasoning": row.quality_reasoning,
        "warnings": " | ".join(row.warnings),
        "model": row.model and row.model["name"],
    }
    if row.choices and row.letter:
        cells["answer"] = chosen_answer(row.choices, row.letter)
    elif not row.error:
        cells["answer"] = row.final_answer
    if row.fusion:
        cells |= {"tools_mean": row.fusion.q_bar, "model_letter": row.fusion.vlm_letter}
        cells |= {f"p_{letter}": p for letter, p in row.fusion.p.items()}
    return cells | _scores(row)


def _scores(row: Assessment) -> Cells:
    cells = {}
    for run in row.tools:
        if run.raw_score is not None:
            cells[f"{run.tool_name} raw"] = run.raw_score
            cells[f"{run.tool_name} scale"] = run.scale
            cells[f"{run.tool_name} 1-5"] = run.normalized_score
    return cells


def tool_table(tools: Sequence[ToolInfo]) -> str:
    """Every tool with its availability, what it costs, how reliable it is and the range that its
    map can reach."""
    lines = ["FR needs a reference, NR none; then the scores of 1 to 5 it can give"]
    for tool in tools:
        lines += _tool_lines(tool)
    can = sum(tool.available for tool in tools)
    srcc = "SRCC is agreement with people on a data set, at most 1."
    return safe_lines([*lines, "", f"{can} of {len(tools)} tools can run here. {srcc}"])


def _tool_lines(tool: ToolInfo) -> list[str]:
    reach, state, why = "no scale", "available", ""
    if tool.reachable:
        reach = f"{tool.reachable[0]:.2f}..{tool.reachable[1]:.2f}"
    if not tool.available:
        state, why = "unavailable", f" Unavailable: {tool.reason}."
    about = (
        f"{tool.spec.description}.{why} Raw score: {tool.spec.scale}. Cost: {_cost(tool.spec)}."
        f" Reliability: {load_reliability().account(tool.name)}."
    )
    return [f"{tool.name:<14}{tool.spec.reference:<4}{reach:<12}{state}", *wrapped(about)]


def _cost(tool: ToolSpec) -> str:
    if tool.seconds is None:
        return "not measured"
    cost = f"about {tool.seconds:g} s a megapixel on one CPU core"
    if tool.most_megapixels:
        cost += f"; beyond {tool.most_megapixels:g} megapixels it measures crops"
    return cost
