"""How probable it is that one assessed picture is better than another.

Of two scenes the answer follows from both intervals: the probability that a draw of one picture's true quality
lies above a draw of the other's. Pictures of one scene share what makes scores err, so their differences are more
certain than independent draws say. There a logistic regression on the differences of what was measured answers,
fitted on synthetic pairs: a Bradley–Terry model whose strengths are linear in the measurements (Bradley and Terry,
Biometrika 1952).
"""

import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from scipy import special
from scipy.stats import norm

from agentic_iqa_local.config import Pipeline
from agentic_iqa_local.files import ROOT
from agentic_iqa_local.judgement.intervals import IntervalCalibration
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.score_fusion import LEVELS, expected_level, fused_distribution
from agentic_iqa_local.state import LETTERS

SHIPPED = ROOT / "configs" / "comparisons.json"
DRAWS = 400  # values that stand for a distribution
UNKNOWN_SIGMA = 1.0  # levels: the error of the letters, where no tool tells its own
MOST_LOGIT = 7.0  # a probability of 0.9991: no fit was tested beyond it

Basis = Literal["same scene, fitted", "intervals", "fused distributions", "same pixels"]


class PairFit(BaseModel):
    """How differences between two pictures of one scene give the probability that the first is better:
    sigmoid(Σ weight · difference), without an offset, so that neither place is preferred."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str  # hash of the model's folder (`files.folder_hash`)
    pipeline: Pipeline
    reference: bool
    # by measurement, per level: q, letters (their expected level), or a tool's name (its score)
    weights: dict[str, float] = Field(min_length=1)
    pairwise: float = Field(ge=0)  # weight of the log-odds of the pairwise read; 0: it adds nothing
    pairs: Annotated[int, Field(ge=1)]
    photographs: Annotated[int, Field(ge=1)]
    source: str
    date: str

    @property
    def fitted_on(self) -> str:
        return f"{self.source}, {self.pairs} pairs of {self.photographs} photographs, {self.date}"

    def strength(self, row: Assessment) -> float | None:
        """A picture's part of the log-odds; None where a measurement is missing."""
        values = measurements(row)
        if not self.weights.keys() <= values.keys():
            return None
        return sum(weight * values[name] for name, weight in self.weights.items())

    def probability(self, one: Assessment, other: Assessment, read: float | None = None) -> float | None:
        """P(`one` is better than `other`) of one scene; None where a measurement is missing. `read` is what a
        pairwise read says, 0..1."""
        first, second = self.strength(one), self.strength(other)
        if first is None or second is None:
            return None
        return sigmoid(first - second + (0.0 if read is None else self.pairwise * logit(read)))


class PairFits(BaseModel):
    """The file of fits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fits: tuple[PairFit, ...]

    def of(self, model: str | None, pipeline: Pipeline, *, reference: bool) -> PairFit | None:
        """The fit of a model's hash in a pipeline; None where there is none."""
        wanted = (model, pipeline, reference)
        alike = (fit for fit in self.fits if (fit.model, fit.pipeline, fit.reference) == wanted)
        return next(alike, None)


def read_fits(file: Path = SHIPPED) -> PairFits:
    """The fits of a file; none where there is no file."""
    return PairFits.model_validate_json(file.read_bytes()) if file.is_file() else PairFits(fits=())


def measurements(row: Assessment) -> dict[str, float]:
    """What a fit may weigh of an assessment, in levels: q, the letters' expected level, and each tool's score of
    the whole picture."""
    values = {} if row.q is None else {"q": row.q}
    if row.p_c and set(row.p_c) == set(LETTERS):
        values["letters"] = expected_level(row.p_c)
    for run in row.tools:
        if run.normalized_score is not None and run.object_name == "Global":
            values.setdefault(run.tool_name, run.normalized_score)
    return values


def draws_of(row: Assessment, calibration: IntervalCalibration | None) -> np.ndarray:
    """Equally probable values of an assessed picture's true quality, 1..5, rising: those of its interval's
    calibration; without one the fused distribution w ∝ α·p_c over the levels, widened by the tools' error σ.
    Raises ValueError for a row without q."""
    if row.q is None or row.p_c is None:
        raise ValueError(f"{row.image}: expected a rated picture, got one without q")
    if calibration is not None and row.interval is not None:
        return np.sort(calibration.predictive(row.interval, row.q))
    p = np.array([row.p_c[letter] for letter in reversed(LETTERS)])
    weights = fused_distribution(p, math.nan if row.q_bar is None else row.q_bar, row.eta or 1.0)
    sigma = row.sigma or UNKNOWN_SIGMA
    grid = np.linspace(min(LEVELS) - 4 * sigma, max(LEVELS) + 4 * sigma, 2001)
    below = norm.cdf((grid[:, None] - np.array(LEVELS)) / sigma) @ weights
    shares = (np.arange(DRAWS) + 0.5) / DRAWS
    return np.clip(np.interp(shares, below, grid), min(LEVELS), max(LEVELS))


def probability_above(one: np.ndarray, other: np.ndarray) -> float:
    """P(X > Y) + ½·P(X = Y) of independent draws, X of `one` and Y of `other`: exact, over all pairs of their
    values (the statistic of Mann and Whitney, 1947)."""
    ordered = np.sort(other)
    below, up_to = (np.searchsorted(ordered, one, side) for side in ("left", "right"))
    return float(np.mean(below + up_to) / 2 / len(ordered))


def sigmoid(log_odds: float) -> float:
    """The probability of log-odds, which are cut at ±MOST_LOGIT."""
    return float(special.expit(np.clip(log_odds, -MOST_LOGIT, MOST_LOGIT)))


def logit(probability: float) -> float:
    """The log-odds of a probability, cut at ±MOST_LOGIT."""
    return float(np.clip(special.logit(probability), -MOST_LOGIT, MOST_LOGIT))
