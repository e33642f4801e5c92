"""Every scoring mode from a run's stored rows, without touching a model.

A mode gives one number for each image, higher for better, nan where the image failed. Lines of a frame and entries of
an array are images, in the order of the rows. Levels are 1..5, with 5 best.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.iqa_tools import find_tool
from agentic_iqa_local.nodes.evidence import votes
from agentic_iqa_local.score_fusion import fused_distribution, perceptual_weights, softmax
from agentic_iqa_local.state import LETTER_TO_LEVEL, LETTERS, ExecutorOutput

LEVELS = np.arange(1.0, 6.0)
BOTH = ("forward", "reversed")  # orders of the letters
BY_LEVEL = sorted(LETTERS, key=lambda letter: LETTER_TO_LEVEL[letter])

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Mode:
    """What a number for an image is made of, what that is called in tables and commands, and of a run the numbers.

    `kind`: p_c times α_c ("fused"), the letters alone, the mean of the tools that the agent ran, the mean of `tools`
    on 1..5, or one tool's own number. `read` is what the model was shown, as the rows name it. `source` says where p_c
    comes from: the letters in the usual order or in both, the letter that the model wrote with the configured
    confidence, or no letters at all. `fitted` takes a fit's temperature and η in place of the configuration's; without
    `normalized`, q is the sum without its denominator. `scores` are (rows,), `p`, where it has them, the probabilities
    of the levels, (rows, 5).
    """

    name: str
    kind: Literal["fused", "letters", "tool mean", "mean of tools", "tool"]
    read: str = ""
    source: Literal["forward", "both orders", "generated", "uniform"] = "forward"
    fitted: bool = False
    normalized: bool = True
    tools: tuple[str, ...] = ()
    scores: np.ndarray = field(default_factory=lambda: np.empty(0))
    p: np.ndarray | None = None

    @property
    def answered(self) -> np.ndarray:
        return np.isfinite(self.scores)

    @property
    def asks_model(self) -> bool:
        return self.kind not in ("mean of tools", "tool")

    @property
    def cost(self) -> list[str]:
        """The parts of a row's cost that it needs."""
        if not self.asks_model:
            return [*self.tools]
        own = [f"{self.read}, {self.source}"] if self.read else []
        return (
            own
            if self.kind == "letters" and self.read.startswith("image_alone")
            else ["agent", *own]
        )


PRODUCT = {
    "logits": "logits",
    "classification": "classification",
    "uniform": "uniform (Gaussian weights alone)",
}
MODES = (
    Mode("logits", "fused", "all_evidence"),
    Mode("logits, fitted", "fused", "all_evidence", fitted=True),
    Mode("logits, both orders", "fused", "all_evidence", "both orders"),
    Mode("unnormalised sum", "fused", "all_evidence", normalized=False),
    Mode("classification", "fused", "all_evidence", "generated"),
    Mode("letters, all evidence", "letters", "all_evidence"),
    Mode("logits, no scores in the prompt", "fused", "without_scores"),
    Mode("classification, no scores in the prompt", "fused", "without_scores", "generated"),
    Mode("letters, no scores in the prompt", "letters", "without_scores"),
    Mode("logits, image alone", "fused", "image_alone"),
    Mode("classification, image alone", "fused", "image_alone", "generated"),
    Mode("letters, image alone", "letters", "image_alone"),
    Mode("letters, image alone, both orders", "letters", "image_alone", "both orders"),
    Mode("letters, image alone, crops", "letters", "image_alone/crops"),
)


class Readings:
    """What was read of a run's images, in three frames.

    `letters` are log-probabilities: a line for each read, order ("forward", "reversed", and "generated" for the one
    letter that the model wrote), image and view, a column for each level. `tools` are each tool's raw score, turned so
    that higher is better, and its score on 1..5. `agent` is, of the tools that the agent ran, the mean q̄ of those that
    vote, how far scores lie apart, which voted, and the η and σ of its fusion; nan where not known.
    """

    def __init__(self, rows: Sequence[Row], vote: str = "runs"):
        self.rows = rows
        names = ["read", "order", "image", "view"]
        lines = pd.DataFrame(_letters(rows), columns=[*names, *LEVELS])
        self.reads = tuple(lines["read"].unique())
        self.letters = lines.set_index(names).astype(float).sort_index()
        facts = {
            (tool, fact): [row.get("tools", {}).get(tool, {}).get(fact) for row in rows]
            for tool in sorted({tool for row in rows for tool in row.get("tools", {})})
            for fact in ("raw", "normalized")
        }
        self.tools = pd.DataFrame(facts, index=range(len(rows)), dtype=float)
        lower_better = [
            key for key in self.tools.columns if key[1] == "raw" and find_tool(key[0]).lower_better
        ]
        self.tools[lower_better] *= -1
        self.agent = pd.DataFrame([_agent(row, vote) for row in rows])

    def p_of_views(
        self, read: str, orders: Sequence[str] = BOTH[:1], temperature: float = 1.0
    ) -> pd.DataFrame:
        """Probabilities of the levels by image and view, the mean of the orders."""
        if read not in self.reads:
            return self.letters.droplevel([0, 1]).head(0)
        logprobs = [self.letters.loc[read, order] for order in orders]
        p = np.mean([softmax(each.to_numpy() / temperature) for each in logprobs], axis=0)
        return pd.DataFrame(p, logprobs[0].index)

    def p(
        self, read: str, orders: Sequence[str] = BOTH[:1], temperature: float = 1.0
    ) -> np.ndarray:
        """Probabilities of the levels (rows, 5), the mean of an image's views and orders; nan where not read."""
        p = self.p_of_views(read, orders, temperature).groupby("image").mean()
        return np.ascontiguousarray(
            p.reindex(range(len(self.rows)))
        )  # its products do not depend on its layout

    def eta(self, eta: float | str) -> np.ndarray:
        """η of each row (rows,); where it is "auto", what the row was fused with, nan where it was not."""
        return (
            self.agent["eta"].to_numpy() if eta == "auto" else np.full(len(self.rows), float(eta))
        )


def _letters(rows: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
    for i, row in enumerate(rows):
        for read, stored in row.get("reads", {}).items():
            for v, view in enumerate(stored["views"]):
                for order in BOTH:
                    yield read, order, i, v, *(view[order][letter] for letter in BY_LEVEL)
                if letter := view.get("generated"):
                    yield (
                        read,
                        "generated",
                        i,
                        v,
                        *(0.0 if letter == each else -np.inf for each in BY_LEVEL),
                    )


def _agent(row: Row, vote: str) -> dict[str, Any]:
    fusion = {"eta": None, "sigma": None} | ((row.get("agent") or {}).get("fusion") or {})
    evidence = ExecutorOutput.model_validate(row["evidence"]) if row.get("evidence") else None
    voting = votes(evidence, vote)
    scores = [score for _, score in votes(evidence, checking=True)]
    return {
        "q_bar": float(np.mean([score for _, score in voting])) if voting else np.nan,
        "disagreement": max(scores) - min(scores) if voting else np.nan,
        "voters": tuple(sorted({tool for tool, _ in voting})),
        "eta": np.nan if fusion["eta"] is None else fusion["eta"],
        "sigma": np.nan if fusion["sigma"] is None or not voting else fusion["sigma"],
    }


def scored_modes(
    readings: Readings,
    settings: FusionSettings,
    fitted: FusionSettings | None,
    configured: Sequence[str],
) -> dict[str, Mode]:
    """All modes that the rows allow, by name, the product's own first. `settings` is the fusion that the run was made
    with, `fitted` the same with a fit's temperature and η, which adds a mode, and `configured` are the tools of the
    configuration, whose mean is a mode of its own."""
    modes = [mode for mode in MODES if mode.read in readings.reads and (fitted or not mode.fitted)]
    if readings.agent["q_bar"].notna().to_numpy().any():
        modes += [
            Mode(PRODUCT["uniform"], "fused", source="uniform"),
            Mode("tool mean", "tool mean"),
        ]
    logs = [
        log for row in readings.rows for log in (row.get("evidence") or {}).get("tool_logs", [])
    ]
    ran = tuple(sorted({find_tool(log["tool_name"]).name for log in logs}))
    modes = [
        replace(mode, tools=ran) if mode.kind != "letters" or mode.read == "all_evidence" else mode
        for mode in modes
    ]
    tools = list(dict.fromkeys(tool for tool, _ in readings.tools.columns))
    of_configuration = tuple(
        tool for tool in tools if tool in {find_tool(name).name for name in configured}
    )
    if len(of_configuration) > 1:
        modes.append(Mode("mean of the configured tools", "mean of tools", tools=of_configuration))
    modes += [Mode(tool, "tool", tools=(tool,)) for tool in tools]
    return {
        mode.name: _scored(readings, mode, fitted if mode.fitted and fitted else settings)
        for mode in modes
    }


def _scored(readings: Readings, mode: Mode, settings: FusionSettings) -> Mode:
    """The mode with its scores and probabilities."""
    q_bar = readings.agent["q_bar"].to_numpy()
    if mode.kind == "tool":
        return replace(mode, scores=readings.tools[mode.name, "raw"].to_numpy())
    if mode.kind == "mean of tools":
        columns = [(tool, "normalized") for tool in mode.tools]
        return replace(mode, scores=readings.tools[columns].mean(axis=1, skipna=False).to_numpy())
    if mode.kind == "tool mean":
        return replace(mode, scores=q_bar)
    if mode.source == "uniform":
        p = np.where(np.isfinite(q_bar)[:, None], np.full(5, 1 / 5), np.nan)
    elif mode.source == "generated":  # the letters not written share what is left of the confidence
        rest = (1 - settings.classification_confidence) / 4
        p = rest + (settings.classification_confidence - rest) * readings.p(
            mode.read, ["generated"]
        )
    else:
        p = readings.p(
            mode.read, BOTH if mode.source == "both orders" else BOTH[:1], settings.temperature
        )
    if mode.kind == "letters":
        return replace(mode, scores=p @ LEVELS, p=p)
    eta = readings.eta(settings.eta)
    w = fused_distribution(p, q_bar, eta) if mode.normalized else perceptual_weights(q_bar, eta) * p
    return replace(mode, scores=w @ LEVELS, p=p)
