"""Every scoring mode from stored rows, without touching a model.

A mode gives one number for each image, higher for better, nan where the image failed. p are probabilities of
the levels 1..5, of shape (rows, 5), averaged over an image's views; a row of nan failed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.iqa_tools import ToolError, find_tool
from agentic_iqa_local.nodes.evidence import votes
from agentic_iqa_local.score_fusion import (
    fused_distribution,
    perceptual_weights,
    softmax,
    written_probabilities,
)
from agentic_iqa_local.state import LETTER_TO_LEVEL, LETTERS, ExecutorOutput

LEVELS = np.arange(1.0, 6.0)
BY_LEVEL = sorted(LETTERS, key=lambda letter: LETTER_TO_LEVEL[letter])
UNIFORM_P = 0.2

Row = Mapping[str, Any]
Kind = Literal["fused", "letters", "tool mean", "mean of tools", "tool"]
Source = Literal["forward", "both orders", "generated", "one-hot", "uniform"]


@dataclass(frozen=True)
class Mode:
    """What a number for an image is made of. `name` is what it is called by in tables and commands.

    `kind`: p_c times α_c ("fused"), the letters alone, the mean of the tools that the agent ran, the mean of
    `tools` on 1..5, or one tool's own number. `source` says where p_c comes from: the letters'
    log-probabilities in the usual order, in both orders, the letter that the model wrote with the configured
    confidence or with all of it, or no letters at all. `context` and `position` are what the model was shown
    and where it wrote the letter, as study.py run names them. `fitted` takes the fit's temperature and η in
    place of the configuration's; without `normalized`, q is the sum without its denominator.
    """

    name: str
    kind: Kind
    context: str = ""
    source: Source = "forward"
    position: str = "json"
    fitted: bool = False
    normalized: bool = True
    tools: tuple[str, ...] = ()

    @property
    def read(self) -> str:
        """The stored read that its letters come from."""
        return self.context if self.position == "json" else f"{self.context}/{self.position}"

    @property
    def letters(self) -> tuple[str, Source, bool]:
        """The same for modes that rest on the same p_c."""
        return self.read, self.source, self.fitted

    @property
    def is_part(self) -> bool:
        """Whether it is one side of the fusion by itself."""
        return self.kind != "fused" and self.source != "one-hot"

    @property
    def cost(self) -> tuple[str, ...]:
        """The parts of a row's cost that it needs, beside its own tools."""
        if self.kind in ("tool", "mean of tools"):
            return ()
        agent = () if self.kind == "letters" and self.context == "image_alone" else ("agent",)
        if self.kind == "tool mean" or self.source == "uniform":
            return agent
        if self.source in ("generated", "one-hot"):
            return (*agent, f"{self.read}, generated")
        return (*agent, self.read, *([f"{self.read}, reversed"] if self.source == "both orders" else []))


LOGITS = Mode("logits", "fused", "all_evidence")
CLASSIFICATION = Mode("classification", "fused", "all_evidence", "generated")
UNIFORM = Mode("uniform (Gaussian weights alone)", "fused", source="uniform")
TOOL_MEAN = Mode("tool mean", "tool mean")
MODES = (
    LOGITS,
    Mode("logits, fitted", "fused", "all_evidence", fitted=True),
    Mode("logits, both orders", "fused", "all_evidence", "both orders"),
    Mode("unnormalised sum", "fused", "all_evidence", normalized=False),
    CLASSIFICATION,
    Mode("classification, one-hot", "fused", "all_evidence", "one-hot"),
    Mode("letters, all evidence", "letters", "all_evidence"),
    Mode("logits, no scores in the prompt", "fused", "without_scores"),
    Mode("classification, no scores in the prompt", "fused", "without_scores", "generated"),
    Mode("letters, no scores in the prompt", "letters", "without_scores"),
    Mode("logits, image alone", "fused", "image_alone"),
    Mode("classification, image alone", "fused", "image_alone", "generated"),
    Mode("letters, image alone", "letters", "image_alone"),
    Mode("letters, image alone, both orders", "letters", "image_alone", "both orders"),
    Mode("generated letter, image alone", "letters", "image_alone", "one-hot"),
)


@dataclass(frozen=True, eq=False)
class Reading:
    """A mode's scores (rows,), its probabilities where it has them, and the tools whose scores it uses."""

    mode: Mode
    scores: np.ndarray
    p: np.ndarray | None = None
    tools: tuple[str, ...] = ()

    @property
    def answered(self) -> np.ndarray:
        return np.isfinite(self.scores)

    @property
    def mapped(self) -> bool:
        """Whether the tools' scores went through maps to 1..5."""
        return self.mode.kind not in ("letters", "tool")

    @property
    def model(self) -> bool:
        """Whether the VLM was asked."""
        return self.mode.kind not in ("mean of tools", "tool")


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
            scores = [score for _, score in votes(ExecutorOutput.model_validate(row["evidence"]), vote)]
            means[i] = np.mean(scores) if scores else np.nan
    return means


def etas(rows: Sequence[Row], eta: float | str) -> np.ndarray:
    """η of each row (rows,); where it is "auto", what the row's own fusion says, nan where there was none."""
    if eta != "auto":
        return np.full(len(rows), float(eta))
    stored = (((row.get("agent") or {}).get("fusion") or {}).get("eta") for row in rows)
    return np.array([np.nan if value is None else value for value in stored])


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
    q_bar = tool_means(rows, letters.vote)
    logs = [log for row in rows for log in (row.get("evidence") or {}).get("tool_logs", [])]
    agent_tools = tuple(sorted({_known(log["tool_name"]) for log in logs}))
    modes = [*_letter_modes(rows, fitted=fitted is not None)]
    if np.isfinite(q_bar).any():
        modes += [UNIFORM, TOOL_MEAN]
    modes += _tool_modes(rows, configured)
    known: dict[tuple[str, Source, bool], np.ndarray] = {}  # modes with the same letters share their p

    def reading(mode: Mode) -> Reading:
        if mode.kind == "tool":
            return Reading(mode, raw_scores(rows, mode.tools[0]), tools=mode.tools)
        if mode.kind == "mean of tools":
            normalized = [[_number(row, tool, "normalized") for tool in mode.tools] for row in rows]
            return Reading(mode, np.array(normalized).mean(1), tools=mode.tools)
        if mode.kind == "tool mean":
            return Reading(mode, q_bar, tools=agent_tools)
        parameters = fitted if mode.fitted and fitted else letters
        if mode.letters not in known:
            known[mode.letters] = _probabilities(rows, mode, parameters, q_bar)
        p = known[mode.letters]
        if mode.kind == "letters":
            return Reading(mode, p @ LEVELS, p, agent_tools if mode.context == "all_evidence" else ())
        scores = fuse(p, q_bar, etas(rows, parameters.eta), normalize=mode.normalized)
        return Reading(mode, scores, p, agent_tools)

    return {mode.name: reading(mode) for mode in modes}


def _probabilities(rows: Sequence[Row], mode: Mode, parameters: Letters, q_bar: np.ndarray) -> np.ndarray:
    """p (rows, 5) that a mode rests on."""
    if mode.source == "uniform":
        return np.where(np.isnan(q_bar)[:, None], np.nan, np.full((len(rows), len(LEVELS)), UNIFORM_P))
    if mode.source in ("generated", "one-hot"):
        return generated(rows, mode.read, 1.0 if mode.source == "one-hot" else parameters.confidence)
    orders = ("forward", "reversed") if mode.source == "both orders" else ("forward",)
    return probabilities(rows, mode.read, orders, parameters.temperature)


def _letter_modes(rows: Sequence[Row], *, fitted: bool) -> Iterator[Mode]:
    reads = {read for row in rows for read in row.get("reads", {})}
    yield from (mode for mode in MODES if mode.read in reads and (fitted or not mode.fitted))
    for context, position in (read.split("/") for read in sorted(reads) if "/" in read):
        name = f"letters, {context.replace('_', ' ')}, {position}"
        yield Mode(name, "letters", context, position=position)


def _tool_modes(rows: Sequence[Row], configured: Sequence[str]) -> Iterator[Mode]:
    tools = tuple(sorted({tool for row in rows for tool in row.get("tools", {})}))
    names = {_known(name) for name in configured}
    of_configuration = tuple(tool for tool in tools if tool in names)
    if len(of_configuration) > 1:
        yield Mode("mean of the configured tools", "mean of tools", tools=of_configuration)
    if len(tools) > 1 and tools != of_configuration:
        yield Mode("mean of all tools", "mean of tools", tools=tools)
    yield from (Mode(tool, "tool", tools=(tool,)) for tool in tools)


def _known(tool: str) -> str:
    try:
        return find_tool(tool).name
    except ToolError:
        return tool


def seconds(rows: Sequence[Row], reading: Reading) -> np.ndarray:
    """Seconds that each image's inference took for this mode alone (rows,), nan where a part is missing."""

    def spent(row: Row) -> float:
        parts = [row.get("cost", {}).get(part, {}).get("seconds", np.nan) for part in reading.mode.cost]
        return sum(parts) + sum(_number(row, tool, "seconds") for tool in reading.mode.tools)

    return np.array([spent(row) for row in rows])


def product_score(row: Row) -> float:
    """The agent's own q of this row, nan where it gave none: the mode "logits" must repeat it."""
    fusion = (row.get("agent") or {}).get("fusion") or {}
    return np.nan if fusion.get("q") is None else fusion["q"]
