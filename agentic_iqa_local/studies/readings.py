"""What the rows of a run say: the letters, the tools and the agent's own mean of them, without
touching a model.

Entries of an array and lines of a frame are images, in the order of the rows. What a row lacks is
nan.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from agentic_iqa_local.iqa_tools import find_tool
from agentic_iqa_local.nodes.evidence import votes
from agentic_iqa_local.score_fusion import softmax
from agentic_iqa_local.state import LETTER_TO_LEVEL, LETTERS, ExecutorOutput

BY_LEVEL = sorted(LETTERS, key=LETTER_TO_LEVEL.__getitem__)
MEASURED = ["q_bar", "eta", "sigma", "disagreement"]  # by the tools of an image

StoredRow = Mapping[str, Any]


class Readings:
    """The rows with the letters of each read.

    `agent` says of the tools that the agent ran the mean q̄ of those that vote, the η and σ of its
    fusion, how far their scores lie apart, and which voted.
    """

    def __init__(self, rows: Sequence[StoredRow], vote: str = "runs"):
        self.rows = rows
        self.agent = as_measured([_agent_line(row, vote) for row in rows])
        self._logprobs: dict[tuple[str, str], np.ndarray] = {}

    def has(self, read: str) -> bool:
        return any(read in row.get("reads", {}) for row in self.rows)

    def p_of_views(self, read: str, order: str = "forward", temperature: float = 1.0) -> np.ndarray:
        """Probabilities of the levels, (rows, views, 5).

        `read` is what the model was shown, as the rows name it. `order` is that of the letters,
        "forward" or "reversed", or "generated" for the one letter that the model wrote.
        """
        if (read, order) not in self._logprobs:
            self._logprobs[read, order] = _log_probabilities(self.rows, read, order)
        return softmax(self._logprobs[read, order] / temperature)

    def p(self, read: str, order: str = "forward", temperature: float = 1.0) -> np.ndarray:
        """Probabilities of the levels (rows, 5), the mean of an image's views."""
        return mean_of_views(self.p_of_views(read, order, temperature))

    def eta(self, eta: float | str) -> np.ndarray:
        """η of each row (rows,); where it is "auto", what the row was fused with, nan where it was
        not."""
        if eta == "auto":
            return self.agent["eta"].to_numpy()
        return np.full(len(self.rows), float(eta))

    def tools_of_agent(self) -> tuple[str, ...]:
        """The tools that the agent ran on any of the images."""
        found = set()
        for row in self.rows:
            evidence = row.get("evidence") or {}
            found |= {find_tool(log["tool_name"]).name for log in evidence.get("tool_logs", [])}
        return tuple(sorted(found))

    def raw_scores(self) -> pd.DataFrame:
        """The raw score of each tool that was asked for, turned so that higher is better: a column
        for each."""
        lines = []
        for row in self.rows:
            tools = row.get("tools", {})
            lines.append({tool: reading.get("raw") for tool, reading in tools.items()})
        table = pd.DataFrame(lines, dtype=float).sort_index(axis=1)
        for tool in table.columns:
            if find_tool(tool).lower_better:
                table[tool] *= -1
        return table


def mean_of_views(values: np.ndarray) -> np.ndarray:
    """The mean over the second axis of (rows, views, ...), without the views that a row lacks."""
    with warnings.catch_warnings(action="ignore"):  # of a row that has none, which stays nan
        return np.nanmean(values, axis=1)


def as_measured(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A table of MEASURED and of the tools that voted (`voters`), nan where a line does not say."""
    table = pd.DataFrame(lines, columns=[*MEASURED, "voters"])
    return table.astype(dict.fromkeys(MEASURED, float))


def _log_probabilities(rows: Sequence[StoredRow], read: str, order: str) -> np.ndarray:
    """Of the levels, (rows, views, 5); nan where an image has fewer views than others."""
    views = [row.get("reads", {}).get(read, {}).get("views", []) for row in rows]
    most = max(1, *map(len, views))
    found = np.full((len(rows), most, 5), np.nan)
    for i, of_row in enumerate(views):
        for v, view in enumerate(of_row):
            found[i, v] = _by_level(view[order])
    return found


def _by_level(read: Mapping[str, float] | str) -> list[float]:
    """The log-probabilities of the levels 1..5 from those of the letters, or from the letter that
    was written."""
    if isinstance(read, str):
        return [0.0 if letter == read else -np.inf for letter in BY_LEVEL]
    return [read[letter] for letter in BY_LEVEL]


def _agent_line(row: StoredRow, vote: str) -> dict[str, Any]:
    evidence = row.get("evidence") and ExecutorOutput.model_validate(row["evidence"])
    fusion = (row.get("agent") or {}).get("fusion") or {}
    errors = {"eta": fusion.get("eta"), "sigma": fusion.get("sigma")}
    return said_by_tools(evidence, vote) | errors


def said_by_tools(evidence: ExecutorOutput | None, vote: str) -> dict[str, Any]:
    """Of the tools in evidence the mean of those that vote, which these are, and how far all lie
    apart; no mean without a vote."""
    voting = votes(evidence, vote)
    voters = tuple(sorted({tool for tool, _ in voting}))
    if not voting:
        return {"voters": voters}
    scores = [score for _, score in votes(evidence, checking=True)]
    return {
        "voters": voters,
        "q_bar": np.mean([score for _, score in voting]),
        "disagreement": max(scores) - min(scores),
    }
