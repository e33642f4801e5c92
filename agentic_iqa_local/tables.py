"""Rows of assessments as a table for spreadsheets."""

import csv
import io
from collections.abc import Callable, Iterable
from typing import Any

from agentic_iqa_local.levels import LETTER_TO_LEVEL, LEVEL_WORDS
from agentic_iqa_local.prompts import chosen_answer

Row = dict[str, Any]


def safe_cell(value: Any) -> Any:
    """`value` as a cell that no spreadsheet takes for a formula: text that begins like one gets an apostrophe before it."""
    if isinstance(value, str) and value.lstrip()[:1] in ("=", "+", "-", "@"):
        return f"'{value}"
    return value


def csv_text(rows: Callable[[], Iterable[Row]]) -> str:
    """The rows (JSON objects of assess.py; `rows` gives them anew at each call) as CSV with a header, one line each.

    Every tool has two columns, its raw score and that in 1..5; letters have one each. A failed row has its error and no score.
    """
    letters, tools = set(LETTER_TO_LEVEL), set()
    for row in rows():
        letters |= set(row["p_c"] or ())
        tools |= {run["tool_name"] for run in row["tools"]}
    text = io.StringIO()
    table = csv.DictWriter(text, _columns(sorted(letters), sorted(tools)), restval="", extrasaction="raise")
    table.writeheader()
    for row in rows():
        table.writerow({name: safe_cell(value) for name, value in _cells(row).items()})
    return text.getvalue()


def _columns(letters: list[str], tools: list[str]) -> list[str]:
    return [
        "image", "reference", "query", "choices", "answer", "level", "q", "tools_mean", "model_letter",
        *(f"p_{letter}" for letter in letters), "distortions", *(f"{tool}{kind}" for tool in tools for kind in (" raw", " 1-5")),
        "reasoning", "warnings", "error", "seconds", "model", "sha256",
    ]  # fmt: skip


def _cells(row: Row) -> Row:
    scored = row["q"] is not None
    analysis = (row["evidence"] or {}).get("distortion_analysis") or {}
    found = [
        f"{item['severity']} {item['type']}" + ("" if name == "Global" else f" ({name})")
        for name, items in analysis.items()
        for item in items
        if item["severity"] != "none"
    ]
    cells = {
        "image": row["image"], "reference": row["reference"], "query": row["query"], "choices": "|".join(row["choices"] or ()),
        "answer": _answer(row), "level": LEVEL_WORDS[LETTER_TO_LEVEL[row["final_answer"]]] if scored else "", "q": row["q"],
        "tools_mean": row["q_bar"], "model_letter": row["vlm_letter"], "distortions": "; ".join(found),
        "reasoning": row["quality_reasoning"], "warnings": " | ".join(row["warnings"]), "error": row["error"],
        "seconds": row["seconds"], "model": (row["model"] or {}).get("name"), "sha256": row["sha256"],
    }  # fmt: skip
    cells |= {f"p_{letter}": p for letter, p in (row["p_c"] or {}).items()}
    for run in row["tools"]:
        if run["raw_score"] is not None:
            cells |= {f"{run['tool_name']} raw": run["raw_score"], f"{run['tool_name']} 1-5": run["normalized_score"]}
    return cells


def _answer(row: Row) -> str | None:
    """The letter, or the chosen answer's own words."""
    if row["error"]:
        return None
    return chosen_answer(row["choices"], row["final_answer"]) if row["choices"] else row["final_answer"]
