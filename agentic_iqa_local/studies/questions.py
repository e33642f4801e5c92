"""Accuracy on multiple-choice questions: all together, by task and by question type."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.studies.study import StudyError

Row = dict[str, Any]


def accuracy(rows: Sequence[Row]) -> list[Row]:
    """One line for all rows, one for each task and one for each question type. Raises StudyError without
    rows."""
    if not rows:
        raise StudyError("expected rows of a study of questions, got none", "let the run go on first")
    table = [_line("all", "", rows)]
    for part in ("task", "question_type"):
        for value in sorted({row[part] for row in rows if row.get(part) is not None}):
            table.append(_line(part.replace("_", " "), value, [row for row in rows if row.get(part) == value]))
    return table


def _line(part: str, value: str, rows: Sequence[Row]) -> Row:
    answered = [row for row in rows if row.get("answered") is not None]
    right = sum(row["answered"] == choice_letters(row["choices"])[row["answer"]] for row in answered)
    line = {"part": part, "value": value, "n": len(answered), "failed": len(rows) - len(answered)}
    if not answered:
        return line | dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high", "chance", "p_right"), float("nan"))
    ends = binomtest(right, len(answered)).proportion_ci(method="wilson")
    return line | {
        "accuracy": right / len(answered),
        "accuracy_low": ends.low,
        "accuracy_high": ends.high,
        "chance": float(np.mean([1 / len(row["choices"]) for row in answered])),
        "p_right": float(np.mean([row["probabilities"][row["answer"]] for row in answered])),
    }
