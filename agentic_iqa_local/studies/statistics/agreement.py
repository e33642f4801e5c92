"""Agreement of scores with a target: correlations, RMSE, and the mapping before PLCC and RMSE."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import least_squares

from agentic_iqa_local.iqa_tools.calibration import logistic_curve

FEWEST_ROWS_TO_FIT = 10
# Spread over magnitude below which values differ by rounding alone; scipy warns of near-constant input below
# the same.
CONSTANT = np.finfo(float).eps ** 0.75


def srcc(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation, ties at their average rank, of two columns of shape (n,).

    nan for a constant column; ValueError for values that are not finite (also in `plcc`, `krcc` and `rmse`).
    """
    x, y = columns(x, y)
    return np.nan if is_constant(x) or is_constant(y) else _statistic(stats.spearmanr(x, y))


def plcc(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's linear correlation of two columns of shape (n,); nan for a constant column."""
    x, y = columns(x, y)
    return np.nan if is_constant(x) or is_constant(y) else _statistic(stats.pearsonr(x, y))


def krcc(x: np.ndarray, y: np.ndarray) -> float:
    """Kendall's tau-b of two columns of shape (n,); nan for a constant column."""
    x, y = columns(x, y)
    if is_constant(x) or is_constant(y):
        return np.nan
    # of p, which is not used: the former divides by n − 2, the latter is slow
    method = "asymptotic" if len(x) > 2 else "exact"
    return _statistic(stats.kendalltau(x, y, method=method))


def rmse(x: np.ndarray, y: np.ndarray) -> float:
    """Root mean square error of two columns of shape (n,) in the same unit; nan without rows."""
    x, y = columns(x, y)
    return float(np.sqrt(np.mean((x - y) ** 2))) if len(x) else np.nan


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """b1..b5 of `vqeg_logistic` in the units of x and y, and x mapped by them, shape (n,); all nan if not
    converged."""

    parameters: np.ndarray
    mapped: np.ndarray
    converged: bool


def vqeg_logistic(x: np.ndarray, y: np.ndarray) -> LogisticFit:
    """Least-squares fit of the five-parameter `logistic_curve` from scores `x` to human scores `y`, for PLCC
    and RMSE after mapping, as Sheikh, Sabir and Bovik (IEEE TIP 15(11), 2006) report them. VQEG's FR-TV Phase
    II (2003, section 4.7) fell back on three parameters because its richer fits did not converge; later
    papers use four or five, so a table has to say which.

    f is monotone by construction, as the ITU-T P.1401 mappings are: b2 > 0, and b1 and b4 share a sign. An
    unbounded fit may turn, and then rewards scores for ranking wrongly. Both directions are tried. A straight
    line is among the candidates, so PLCC after mapping is at least |PLCC| raw. The map is fitted to the rows
    that it is judged on: fit it once, on all rows, and resample `mapped`. Not converged for a constant column
    or fewer than ten rows.
    """
    x, y = columns(x, y)
    if len(x) < FEWEST_ROWS_TO_FIT or is_constant(x) or is_constant(y):
        return LogisticFit(np.full(5, np.nan), np.full(len(x), np.nan), False)
    # Standardised, one set of starts and bounds serves scores of any range; beyond b2 = 50 the curve is a
    # step.
    z, target = np.asarray(stats.zscore(x)), np.asarray(stats.zscore(y))
    bounds = [0.0, 0.05, z.min() - 1, 0.0, -np.inf], [np.inf, 50.0, z.max() + 1, np.inf, np.inf]

    def error(sign: float, b: np.ndarray) -> np.ndarray:
        return sign * logistic_curve(b, z) - target

    def fit(sign: float, slope: float) -> tuple[float, np.ndarray]:
        found = least_squares(partial(error, sign), (2.0, slope, 0.0, 0.1, 0.0), bounds=bounds, max_nfev=2000)
        return sign, found.x  # also where the last digits have not settled: what counts is how well it fits

    slope = float(np.mean(z * target))
    line = np.copysign(1.0, slope), np.array([0.0, 1.0, 0.0, abs(slope), 0.0])
    fits = [line, *(fit(sign, steepness) for sign in (1.0, -1.0) for steepness in (1.0, 4.0))]
    sign, best = min(fits, key=lambda pair: np.sum(error(*pair) ** 2))
    b1, b2, b3, b4, b5 = best
    scale = sign * y.std()
    slope = scale * b4 / x.std()
    parameters = [
        scale * b1,
        b2 / x.std(),
        x.mean() + x.std() * b3,
        slope,
        y.mean() + scale * b5 - slope * x.mean(),
    ]
    return LogisticFit(np.array(parameters), y.mean() + scale * logistic_curve(best, z), True)


def columns(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as columns of floats. Raises ValueError unless they are finite and equally long."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.ndim != 1 or x.shape != y.shape or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(
            f"columns: expected finite values, as many in each, got shapes {x.shape} and {y.shape}"
        )
    return x, y


def _statistic(result: Any) -> float:
    """Of what scipy's tests return, whose types it does not declare."""
    return float(result.statistic)


def is_constant(x: np.ndarray) -> bool:
    """Whether the values of a column differ by rounding alone."""
    return bool(len(x) < 2 or np.linalg.norm(x - x.mean()) <= CONSTANT * abs(x.mean()))
