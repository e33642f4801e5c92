"""Every scoring mode from stored rows, without touching a model.

A mode gives one number for each image, higher for better, nan where the image failed. p are probabilities of
the levels 1..5, of shape (rows, 5), averaged over an image's views; a row of nan failed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.evidence import tool_scores
from agentic_iqa_local.iqa_tools import ToolError, find_tool
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LETTERS
from agentic_iqa_local.score_fusion import (
    fused_distribution,
    perceptual_weights,
    softmax,
    written_probabilities,
)
from agentic_iqa_local.state import ExecutorOutput

LEVELS = np.arange(1.0, 6.0)
BY_LEVEL = sorted(LETTERS, key=LETTER_TO_LEVEL.get)

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Reading:
    """A mode's scores (rows,), its probabilities where it has them, and what it rests on.

    `cost` names the parts of a row's cost that it needs, `tools` the tools whose scores it uses; `mapped`
    says that those went through maps to 1..5, `model` that the VLM was asked.
    """

    scores: np.ndarray
    p: np.ndarray | None = None
    cost: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    mapped: bool = False
    model: bool = True

    @property
    def answered(self) -> np.ndarray:
        return np.isfinite(self.scores)


@dataclass(frozen=True)
class Letters:
    """Parameters of p_c and α_c that a fit can replace. `eta` is a number, or "auto" for the η that each row
    was fused with."""

    temperature: float = 1.0
    eta: float | str = 1.0
    confidence: float = 0.8
    vote: str = "runs"
    source: str = field(default="defaults")

    @classmethod
    def of(cls, settings: FusionSettings) -> "Letters":
        return cls(
            settings.temperature,
            settings.eta,
            settings.classification_confidence,
            settings.vote,
            "configuration",
        )


def letter_logprobs(rows: Sequence[Row], read: str, order: str) -> list[np.ndarray]:
    """For each row an array (views, 5) of the letters' log-probabilities by level, empty where the read
    failed."""
    return [
        np.array(
            [
                [view[order][letter] for letter in BY_LEVEL]
                for view in row.get("reads", {}).get(read, {}).get("views", [])
            ]
        )
        for row in rows
    ]


def probabilities(
    rows: Sequence[Row], read: str, orders: Sequence[str] = ("forward",), temperature: float = 1.0
) -> np.ndarray:
    """p of a read, its orders averaged by meaning."""
    p = np.full((len(rows), 5), np.nan)
    per_order = [letter_logprobs(rows, read, order) for order in orders]
    for i, views in enumerate(zip(*per_order, strict=True)):
        if all(len(v) for v in views):
            p[i] = softmax(np.concatenate(views) / temperature).mean(0)
    return p


def generated(rows: Sequence[Row], read: str, confidence: float) -> np.ndarray:
    """p of the letter that the model wrote: `confidence` for it, the rest shared."""
    p = np.full((len(rows), 5), np.nan)
    for i, row in enumerate(rows):
        letters = [view["generated"] for view in row.get("reads", {}).get(read, {}).get("views", [])]
        if letters:
            views = [written_probabilities(letter, BY_LEVEL, confidence) for letter in letters]
            p[i] = np.mean([list(view.values()) for view in views], 0)
    return p


def tool_means(rows: Sequence[Row], vote: str) -> np.ndarray:
    """q̄ of the tools that the agent ran (rows,), nan where none scored."""
    means = np.full(len(rows), np.nan)
    for i, row in enumerate(rows):
        if row.get("evidence"):
            scores = tool_scores(ExecutorOutput.model_validate(row["evidence"]), vote)
            means[i] = np.mean(scores) if scores else np.nan
    return means


def etas(rows: Sequence[Row], eta: float | str) -> np.ndarray:
    """η of each row (rows,); where it is "auto", what the row's own fusion says, nan where there was none."""
    if eta != "auto":
        return np.full(len(rows), float(eta))
    told = (((row.get("agent") or {}).get("fusion") or {}).get("eta") for row in rows)
    return np.array([np.nan if value is None else value for value in told])


def fuse(p: np.ndarray, q_bar: np.ndarray, eta: float | np.ndarray, *, normalize: bool = True) -> np.ndarray:
    """q of `score_fusion` (4) for many rows; without `normalize` the literal sum, without its denominator."""
    weights = fused_distribution(p, q_bar, eta) if normalize else perceptual_weights(q_bar, eta) * p
    return weights @ LEVELS


def raw_scores(rows: Sequence[Row], tool: str) -> np.ndarray:
    """A tool's own numbers (rows,), turned so that higher is better; nan where it failed."""
    sign = -1.0 if find_tool(tool).lower_better else 1.0
    return np.array([sign * _number(row, tool, "raw") for row in rows])


def _number(row: Row, tool: str, key: str) -> float:
    value = row.get("tools", {}).get(tool, {}).get(key)
    return np.nan if value is None else value


def readings(
    rows: Sequence[Row], letters: Letters, fitted: Letters | None = None, configured: Sequence[str] = ()
) -> dict[str, Reading]:
    """All modes that the rows allow, by name. The first is the product's own; `configured` are the tools that
    the configuration names, whose mean is a mode of its own."""
    found = {read for row in rows for read in row.get("reads", {})}
    tools = sorted({tool for row in rows for tool in row.get("tools", {})})
    agent_tools = tuple(
        sorted(
            {
                _known(log["tool_name"])
                for row in rows
                for log in (row.get("evidence") or {}).get("tool_logs", [])
            }
        )
    )
    q_bar = tool_means(rows, letters.vote)
    modes: dict[str, Reading] = {}

    def fused(
        name: str, p: np.ndarray, *reads: str, with_: Letters = letters, normalize: bool = True
    ) -> None:
        scores = fuse(p, q_bar, etas(rows, with_.eta), normalize=normalize)
        modes[name] = Reading(scores, p, ("agent", *reads), agent_tools, mapped=True)

    def expected(name: str, p: np.ndarray, *reads: str) -> None:
        cost = reads if reads[0].startswith("image_alone") else ("agent", *reads)
        modes[name] = Reading(p @ LEVELS, p, cost, agent_tools if reads[0].startswith("all_evidence") else ())

    if "all_evidence" in found:
        p = probabilities(rows, "all_evidence", temperature=letters.temperature)
        fused("logits", p, "all_evidence")
        if fitted:
            fused(
                "logits, fitted",
                probabilities(rows, "all_evidence", temperature=fitted.temperature),
                "all_evidence",
                with_=fitted,
            )
        both = probabilities(rows, "all_evidence", ("forward", "reversed"), letters.temperature)
        fused("logits, both orders", both, "all_evidence", "all_evidence, reversed")
        fused("unnormalised sum", p, "all_evidence", normalize=False)
        fused(
            "classification", generated(rows, "all_evidence", letters.confidence), "all_evidence, generated"
        )
        fused("classification, one-hot", generated(rows, "all_evidence", 1.0), "all_evidence, generated")
        expected("letters, all evidence", p, "all_evidence")
    for read, words in (("without_scores", "no scores in the prompt"), ("image_alone", "image alone")):
        if read in found:
            p = probabilities(rows, read, temperature=letters.temperature)
            fused(f"logits, {words}", p, read)
            fused(f"classification, {words}", generated(rows, read, letters.confidence), f"{read}, generated")
            expected(f"letters, {words}", p, read)
    if "image_alone" in found:
        both = probabilities(rows, "image_alone", ("forward", "reversed"), letters.temperature)
        expected("letters, image alone, both orders", both, "image_alone", "image_alone, reversed")
        expected(
            "generated letter, image alone", generated(rows, "image_alone", 1.0), "image_alone, generated"
        )
    for read in sorted(read for read in found if "/" in read):
        context, position = read.split("/")
        expected(
            f"letters, {context.replace('_', ' ')}, {position}",
            probabilities(rows, read, temperature=letters.temperature),
            read,
        )
    if np.isfinite(q_bar).any():
        flat = np.where(np.isnan(q_bar)[:, None], np.nan, np.full((len(rows), 5), 0.2))
        fused("uniform (Gaussian weights alone)", flat)
        modes["tool mean"] = Reading(q_bar, None, ("agent",), agent_tools, mapped=True)
    of_configuration = tuple(tool for tool in tools if tool in {_known(name) for name in configured})
    for name, members in (
        ("mean of the configured tools", of_configuration),
        ("mean of all tools", tuple(tools)),
    ):
        if len(members) > 1 and (name != "mean of all tools" or members != of_configuration):
            normalized = np.array([[_number(row, tool, "normalized") for tool in members] for row in rows])
            cost = tuple(f"tool {tool}" for tool in members)
            modes[name] = Reading(normalized.mean(1), None, cost, members, mapped=True, model=False)
    for tool in tools:
        modes[tool] = Reading(raw_scores(rows, tool), None, (f"tool {tool}",), (tool,), model=False)
    return modes


def _known(tool: str) -> str:
    try:
        return find_tool(tool).name
    except ToolError:
        return tool


def seconds(rows: Sequence[Row], reading: Reading) -> np.ndarray:
    """Seconds that each image's inference took for this mode alone (rows,), nan where a part is missing."""

    def spent(row: Row, part: str) -> float:
        if part.startswith("tool "):
            return _number(row, part.removeprefix("tool "), "seconds")
        return row.get("cost", {}).get(part, {}).get("seconds", np.nan)

    return np.array([sum(spent(row, part) for part in reading.cost) for row in rows])


def product_score(row: Row) -> float:
    """The agent's own q of this row, nan where it gave none: the mode "logits" must repeat it."""
    fusion = (row.get("agent") or {}).get("fusion") or {}
    return np.nan if fusion.get("q") is None else fusion["q"]
