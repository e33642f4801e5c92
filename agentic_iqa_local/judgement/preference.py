"""How probable it is that one assessed picture is better than another: by their intervals, or by a
fit.

Of two scenes it is the probability that a draw of one picture's true quality lies above a draw of
the other's. Pictures of one scene share what makes scores err, so that their differences are more
certain: there a logistic regression on the differences of what was measured answers, fitted on
synthetic pairs.
"""

import math
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy import special
from scipy.stats import mannwhitneyu, norm

from agentic_iqa_local.config import Pipeline, Settings
from agentic_iqa_local.files import ROOT, folder_hash, read_json, read_record
from agentic_iqa_local.iqa_tools.calibration import HIGHEST, LOWEST
from agentic_iqa_local.iqa_tools.specs import FileRecord
from agentic_iqa_local.judgement.intervals import IntervalCalibration
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.score_fusion import LEVELS, expected_level, fused_distribution
from agentic_iqa_local.state import LETTERS

SHIPPED = ROOT / "configs" / "comparisons.json"
DRAWS = 400  # values that stand for a distribution
UNKNOWN_SIGMA = 1.0  # levels: the error of the letters, where no tool tells its own
MOST_LOGIT = 7.0  # a probability of 0.9991: no fit was tested beyond it


class PairFit(FileRecord):
    """How differences between two pictures of one scene give the probability that the first is
    better: sigmoid(Σ weight · difference), without an offset, so that neither place is
    preferred."""

    model: str  # hash of the model's folder (`files.folder_hash`)
    pipeline: Pipeline
    reference: bool
    # by measurement, per level: q, letters (their expected level), or a tool's name (its score)
    weights: dict[str, float] = Field(min_length=1)
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


class PairFits(FileRecord):
    """The file of fits that ships."""

    fits: tuple[PairFit, ...]


def fit_for(settings: Settings, pipeline: Pipeline, *, reference: bool) -> PairFit | None:
    """The shipped fit of a set-up's model for pictures that were assessed so; None where there is
    none. Raises FileError for a damaged file."""
    folder = settings.folder(settings.summarizer.backend)
    wanted = folder.is_dir() and folder_hash(folder), pipeline, reference
    fits = read_record(SHIPPED, PairFits, read_json).fits
    return next((fit for fit in fits if (fit.model, fit.pipeline, fit.reference) == wanted), None)


def measurements(row: Assessment) -> dict[str, float]:
    """What a fit may weigh of an assessment, in levels: q, the letters' expected level, and each
    tool's score of the whole picture."""
    values = {} if row.q is None else {"q": row.q}
    if row.fusion and set(row.fusion.p_c) == set(LETTERS):
        values["letters"] = expected_level(row.fusion.p_c)
    for run in row.tools:
        if run.normalized_score is not None and run.object_name == "Global":
            values.setdefault(run.tool_name, run.normalized_score)
    return values


def draws_of(row: Assessment, calibration: IntervalCalibration | str) -> np.ndarray:
    """Equally probable values of a rated picture's true quality, 1..5, rising: those of its
    interval's calibration; without an interval the fused distribution w ∝ α·p_c over the levels, widened by
    the tools' error σ."""
    fusion = row.fusion
    assert fusion is not None
    assert fusion.q is not None
    if row.interval is not None and isinstance(calibration, IntervalCalibration):
        return calibration.predictive(row.interval, fusion.q)
    p = np.array([fusion.p_c[letter] for letter in reversed(LETTERS)])
    q_bar = math.nan if fusion.q_bar is None else fusion.q_bar
    weights = fused_distribution(p, q_bar, fusion.eta or 1.0)
    sigma = fusion.sigma or UNKNOWN_SIGMA
    grid = np.linspace(LOWEST - 4 * sigma, HIGHEST + 4 * sigma, 2001)
    below = norm.cdf((grid[:, None] - LEVELS) / sigma) @ weights
    shares = (np.arange(DRAWS) + 0.5) / DRAWS
    return np.clip(np.interp(shares, below, grid), LOWEST, HIGHEST)


def probability_above(one: np.ndarray, other: np.ndarray) -> float:
    """P(X > Y) + ½·P(X = Y) of independent draws, X of `one` and Y of `other`, both rising: exact,
    over all pairs of their values (the statistic of Mann and Whitney, 1947)."""
    return float(mannwhitneyu(one, other, method="asymptotic").statistic / (len(one) * len(other)))


def sigmoid(log_odds: float) -> float:
    """The probability of log-odds, which are cut at ±MOST_LOGIT."""
    return float(special.expit(np.clip(log_odds, -MOST_LOGIT, MOST_LOGIT)))
