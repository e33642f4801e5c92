"""The least-squares fit of a map from a tool's raw score to 1..5, and how well a map predicts."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import least_squares

from agentic_iqa_local.iqa_tools.calibration import (
    FLAT,
    CalibrationError,
    LogisticMap,
    logistic_curve,
)


@dataclass(frozen=True)
class FitQuality:
    """How well a map predicts: RMSE in quality levels, rank and linear correlation (after mapping), number of
    images."""

    rmse: float
    srcc: float
    plcc: float
    n: int

    def __str__(self) -> str:
        return f"RMSE {self.rmse:.3f}, SRCC {self.srcc:.3f}, PLCC {self.plcc:.3f}, n {self.n}"


def evaluate(logistic: LogisticMap, raw: np.ndarray, quality: np.ndarray) -> FitQuality:
    """Quality of `logistic` on raw scores with known quality (1..5). SRCC is that of the raw scores, signed
    so that a good tool is positive: clipping to 1..5 would make ties."""
    raw, quality = np.asarray(raw, float), np.asarray(quality, float)
    mapped = np.array([logistic(x) for x in raw])
    sign = -1.0 if logistic.lower_better else 1.0
    rank: Any = stats.spearmanr(sign * raw, quality)  # scipy does not declare what it returns
    linear: Any = stats.pearsonr(mapped, quality)
    rmse = float(np.sqrt(np.mean((mapped - quality) ** 2)))
    return FitQuality(rmse, float(rank.statistic), float(linear.statistic), len(raw))


def fit_logistic(
    raw: np.ndarray,
    quality: np.ndarray,
    *,
    domain: tuple[float, float],
    lower_better: bool,
    **about: Any,
) -> tuple[LogisticMap, FitQuality]:
    """Least-squares fit of a monotone map from `raw` to `quality` (1..5), and its quality on the same data.

    Monotone by construction: b2 > 0, and b1 and b4 both carry the sign of the tool's direction, so that no
    term of the slope can oppose another. The fit runs on standardised raw scores, so that one set of starting
    points serves all tools. `about` are the map's other fields: `tool`, `source`, `fitted_on`, `license` and
    `notes`. Raises CalibrationError for fewer than ten finite pairs, constant scores, or scores that do not
    follow quality in the tool's direction, for which the best monotone map is a constant.
    """
    raw, quality = np.asarray(raw, float), np.asarray(quality, float)
    finite = np.isfinite(raw) & np.isfinite(quality)
    x, y = np.clip(raw[finite], *domain), quality[finite]
    if len(x) < 10 or np.ptp(x) == 0:
        raise CalibrationError(
            f"{about['tool']}: expected ten or more scores that differ, got {len(x)}."
        )
    centre, scale = float(np.mean(x)), float(np.std(x))
    sign = -1.0 if lower_better else 1.0
    b1, b2, b3, b4, b5 = _least_squares((x - centre) / scale, y, sign)
    slope = sign * b4 / scale
    parameters = (sign * b1, b2 / scale, centre + scale * b3, slope, b5 - slope * centre)
    # As the file of maps holds them, so that what is evaluated is what is written. A slope at its bound comes
    # out as 1e-18 or so and means zero.
    rounded = [float(f"{value:.8g}") if abs(value) > 1e-12 else 0.0 for value in parameters]
    fields = dict(zip(("b1", "b2", "b3", "b4", "b5"), rounded, strict=True)) | about
    logistic = LogisticMap.model_validate(fields | {"domain": domain, "lower_better": lower_better})
    low, high = logistic.reachable
    if high - low < FLAT:
        expected = f"{'lower' if lower_better else 'higher'} raw scores for better images"
        raise CalibrationError(f"{about['tool']}: expected {expected}, got others.")
    return logistic, evaluate(logistic, x, y)


def _least_squares(z: np.ndarray, y: np.ndarray, sign: float) -> np.ndarray:
    """b1..b5 for standardised raw scores `z`, the best fit from several starting points; b1 and b4 without
    their `sign`."""

    def residuals(b: np.ndarray) -> np.ndarray:
        return logistic_curve((sign * b[0], b[1], b[2], sign * b[3], b[4]), z) - y

    # b1 up to twice the scale's length; beyond b2 = 20 the curve is a step.
    bounds = (
        [0.0, 0.05, float(z.min()) - 1, 0.0, -10.0],
        [8.0, 20.0, float(z.max()) + 1, 4.0, 10.0],
    )
    starts = itertools.product((1.0, 4.0), (0.8, 3.0), (-0.7, 0.0, 0.7), (0.1,), (y.mean(),))
    fits = [least_squares(residuals, np.clip(start, *bounds), bounds=bounds) for start in starts]
    return min(fits, key=lambda fit: fit.cost).x
