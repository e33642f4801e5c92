"""Accuracy on multiple-choice questions: all together, by task and by question type."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.studies.store import StudyError

Row = dict[str, Any]
FIGURES = ("accuracy", "accuracy_low", "accuracy_high", "chance", "p_right")


def accuracy(rows: Sequence[Row]) -> list[Row]:
    """A line for all rows, one for each task and one for each question type. Raises StudyError without rows."""
    if not rows:
        raise StudyError("expected rows of a study of questions, got none", "let the run go on first")
    table = [{"part": "all", "value": ""} | _figures(rows)]
    for part in ("task", "question_type"):
        for value in sorted({row[part] for row in rows if row.get(part) is not None}):
            chosen = [row for row in rows if row.get(part) == value]
            table.append({"part": part.replace("_", " "), "value": value} | _figures(chosen))
    return table


def _figures(rows: Sequence[Row]) -> Row:
    answered = [row for row in rows if row.get("answered") is not None]
    counts = {"n": len(answered), "failed": len(rows) - len(answered)}
    if not answered:
        return counts | dict.fromkeys(FIGURES, float("nan"))
    right = sum(row["answered"] == choice_letters(row["choices"])[row["answer"]] for row in answered)
    ends = binomtest(right, len(answered)).proportion_ci(method="wilson")
    chance = np.mean([1 / len(row["choices"]) for row in answered])
    p_right = np.mean([row["probabilities"][row["answer"]] for row in answered])
    return counts | dict(zip(FIGURES, (right / len(answered), ends.low, ends.high, chance, p_right), strict=True))
