"""Correlation with human scores, its intervals by resampling whole scenes, and how good probabilities are.

A statistic is a function of two columns (one entry an image) that returns a float. Failed images stay among the
rows and are left out by a mask. All modes are resampled on the same `Draws`, so any two can be compared.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import least_squares
from scipy.special import expit

FEWEST_ROWS_TO_FIT = 10
FEWEST_GROUPS = 10  # below this a bootstrap of whole groups says little
# Spread over magnitude below which values differ by rounding alone; scipy warns below the same.
CONSTANT = np.finfo(float).eps ** 0.75

Statistic = Callable[[np.ndarray, np.ndarray], float]


def _correlation(of: Callable[..., Any]) -> Statistic:
    """`of` two columns (n,); nan where one is constant."""
    return lambda x, y: np.nan if _is_constant(x) or _is_constant(y) else float(of(x, y).statistic)


srcc = _correlation(stats.spearmanr)  # of ranks, ties at their average
plcc = _correlation(stats.pearsonr)
krcc = _correlation(stats.kendalltau)  # tau-b


def rmse(x: np.ndarray, y: np.ndarray) -> float:
    """Root mean square error of two columns (n,) in the same unit."""
    return float(np.sqrt(np.mean((x - y) ** 2)))


def _is_constant(x: np.ndarray) -> bool:
    return bool(len(x) < 2 or np.linalg.norm(x - x.mean()) <= CONSTANT * abs(x.mean()))


def vqeg_logistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Scores `x` mapped to human scores `y`, (n,), by a monotone five-parameter logistic fitted on them.

    Least squares of the map of Sheikh, Sabir and Bovik (IEEE TIP 15(11), 2006), monotone as ITU-T P.1401 asks. Both
    directions are tried, and a straight line. nan for a constant column or fewer than ten rows.
    """
    if len(x) < FEWEST_ROWS_TO_FIT or _is_constant(x) or _is_constant(y):
        return np.full(len(x), np.nan)
    # Standardised, one set of starts and bounds serves scores of any range; beyond b2 = 50 it is a step.
    z, target = np.asarray(stats.zscore(x)), np.asarray(stats.zscore(y))
    bounds = [0.0, 0.05, z.min() - 1, 0.0, -np.inf], [np.inf, 50.0, z.max() + 1, np.inf, np.inf]

    def error(b: np.ndarray, sign: float) -> np.ndarray:
        return sign * (b[0] * (expit(b[1] * (z - b[2])) - 0.5) + b[3] * z + b[4]) - target

    slope = float(np.mean(z * target))
    fits = [(np.array([0.0, 1.0, 0.0, abs(slope), 0.0]), np.copysign(1.0, slope))]
    for sign, steepness in itertools.product((1.0, -1.0), (1.0, 4.0)):
        start = (2.0, steepness, 0.0, 0.1, 0.0)
        fits.append(
            (least_squares(error, start, bounds=bounds, max_nfev=2000, args=(sign,)).x, sign)
        )
    best = min((error(*fit) for fit in fits), key=lambda errors: np.sum(errors**2))
    return y.mean() + y.std() * (best + target)


class Draws:
    """Bootstrap draws of a run, made once and shared by all modes: how often each draw holds each unit (`counts`,
    (draws, units)) and each row (`weights`, (draws, rows)), the unit of each row (`unit`, (rows,)), and what the units
    are, for the reader (`over`)."""

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], rng: np.random.Generator, count: int = 1000
    ):
        """`count` draws with replacement of whole scenes (the rows' "group"), where ten or more are known; of fewer
        scenes by distortion type, or by row, which speaks of these scenes alone; without scenes by row."""
        groups = [
            f"row {i}" if row.get("group") is None else str(row["group"])
            for i, row in enumerate(rows)
        ]
        kinds = [
            "none" if row.get("distortion") is None else str(row["distortion"]) for row in rows
        ]
        self.over, labels = "rows", np.arange(len(rows))
        if any(row.get("group") is not None for row in rows):
            self.over = "rows, within these scenes"
            if len(set(groups)) >= FEWEST_GROUPS:
                self.over, labels = "groups", groups
            elif len(set(kinds)) > 1:
                self.over, labels = "distortion types, within these scenes", kinds
        units, self.unit = np.unique(labels, return_inverse=True)
        drawn = (rng.integers(len(units), size=len(units)) for _ in range(count))
        self.counts = np.array(
            [np.bincount(each, minlength=len(units)) for each in drawn], np.int32
        )
        self.weights = self.counts[:, self.unit]

    def of(
        self,
        statistic: Statistic,
        x: np.ndarray,
        y: np.ndarray,
        kept: np.ndarray,
        first: int | None = None,
    ) -> tuple[float, np.ndarray]:
        """A statistic of the `kept` rows of two columns, all (rows,), and of each draw of them, or of the `first` so
        many: the value and (draws,); nan where undefined, as the draws of a single unit are."""
        x, y, weights = x[kept], y[kept], self.weights[:first, kept]
        if len(np.unique(self.unit[kept])) < 2:
            return statistic(x, y) if len(x) else np.nan, np.full(len(weights), np.nan)
        if (
            statistic in _ON_WEIGHTS
        ):  # without a sort of every draw, and in parts that fit the memory
            on_draws = np.concatenate(
                [_ON_WEIGHTS[statistic](x, y, part) for part in np.array_split(weights, 20)]
            )
        else:
            places = (np.repeat(np.arange(len(x)), each) for each in weights)
            on_draws = np.array([statistic(x[place], y[place]) for place in places])
        return statistic(x, y), on_draws

    def mean(self, name: str, values: np.ndarray) -> dict[str, float]:
        """The mean of one number a row, (rows,), nan where there is none, in the columns of `interval`."""
        kept = np.isfinite(values)
        weights = self.weights[:, kept]
        total = weights.sum(axis=1)
        return interval(
            name, mean(values[kept]), (weights @ values[kept])[total > 0] / total[total > 0]
        )


def _plcc_on_weights(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(draws,) of columns (rows,) or (draws, rows), where row i occurs weights[:, i] times."""
    with np.errstate(invalid="ignore", divide="ignore"):
        total = weights.sum(axis=1, keepdims=True)
        means = [(weights * column).sum(axis=1, keepdims=True) / total for column in (x, y)]
        x, y = x - means[0], y - means[1]
        squares = (weights * x**2).sum(axis=1), (weights * y**2).sum(axis=1)
        alike = (
            np.minimum(
                *(s - (CONSTANT * m[:, 0]) ** 2 for s, m in zip(squares, means, strict=True))
            )
            <= 0
        )
        return np.where(
            alike, np.nan, (weights * x * y).sum(axis=1) / np.sqrt(squares[0] * squares[1])
        )


def _srcc_on_weights(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return _plcc_on_weights(_ranks_on_weights(x, weights), _ranks_on_weights(y, weights), weights)


def _ranks_on_weights(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Average ranks (draws, rows), less a half."""
    values, tie = np.unique(x, return_inverse=True)
    order = np.argsort(tie, kind="stable")
    occurs = np.add.reduceat(
        weights[:, order], np.searchsorted(tie[order], np.arange(len(values))), axis=1
    )
    return (occurs.cumsum(axis=1) - occurs / 2)[:, tie]


_ON_WEIGHTS = {srcc: _srcc_on_weights, plcc: _plcc_on_weights}


def interval(name: str, value: float, on_draws: np.ndarray) -> dict[str, float]:
    """The columns `name`, `name`_low and `name`_high: a value and its 95 % percentile interval. Draws on which it is
    undefined are left out; the bounds are nan where these are more than one in twenty."""
    defined = on_draws[np.isfinite(on_draws)]
    low, high = np.nan, np.nan
    if len(defined) and len(defined) >= 0.95 * len(on_draws):
        low, high = np.percentile(defined, [2.5, 97.5]).tolist()
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def difference(
    name: str, first: tuple[float, np.ndarray], second: tuple[float, np.ndarray]
) -> dict[str, float]:
    """A paired difference of two results of `Draws.of` on the same rows, in the columns of `interval`, and its `p`:
    twice the smaller share of draws on either side of 0, counting the sample itself as a draw (Davison and Hinkley,
    Bootstrap Methods and their Application, 1997)."""
    on_draws = first[1] - second[1]
    line = interval(name, first[0] - second[0], on_draws)
    smaller = 1 + min((on_draws <= 0).sum(), (on_draws >= 0).sum())
    p = min(1.0, 2 * smaller / (1 + np.isfinite(on_draws).sum()))
    return line | {"p": np.nan if np.isnan(line[f"{name}_low"]) else float(p)}


def holm(p_values: Sequence[float]) -> np.ndarray:
    """p-values adjusted for their number, in the order given (Holm, Scandinavian Journal of Statistics 6, 1979). An
    unknown one (nan) counts as a comparison and stays unknown."""
    p = np.asarray(p_values, float)
    order = np.argsort(p)  # nan last
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def share(name: str, count: float, of: float) -> dict[str, float]:
    """The columns of `interval` for `count` of `of` cases, with Wilson's interval at 95 %."""
    ends = stats.binomtest(round(count), round(of)).proportion_ci(method="wilson")
    return {name: count / of, f"{name}_low": ends.low, f"{name}_high": ends.high}


def mean(values: np.ndarray) -> float:
    """The mean; nan without values."""
    return float(values.mean()) if len(values) else np.nan


def ranked_probability_scores(p: np.ndarray, level: np.ndarray) -> np.ndarray:
    """How far probabilities of the levels 1..K, (n, K), lie from the truth within [1, K], (n,): 0 is best, 1 worst.

    The sum of squared differences of cumulated probabilities over K − 1 (Constantinou and Fenton, J. Quantitative
    Analysis in Sports 8(1), 2012); between whole levels the integral of that square (Matheson and Winkler, 1976).
    """
    below = np.cumsum(p, axis=1)[:, :-1]
    # The share of each step between levels that lies under the target.
    passed = np.clip(level[:, None] - np.arange(1, p.shape[1]), 0, 1)
    return np.mean(passed * below**2 + (1 - passed) * (1 - below) ** 2, axis=1)


def reliability_bins(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> pd.DataFrame:
    """Mean `confidence` and `accuracy`, 0..1, and `n` of every filled bin of equal width, closed on its right."""
    which = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1)
    table = pd.DataFrame({"confidence": confidence, "accuracy": correct, "n": 1}).astype(float)
    return table.groupby(which).agg({"confidence": "mean", "accuracy": "mean", "n": "sum"})


def expected_calibration_error(bins: pd.DataFrame) -> float:
    """Mean distance of confidence from accuracy over `reliability_bins`: 0 best, 1 worst (Guo, Pleiss, Sun and
    Weinberger, ICML 2017, equation 3)."""
    return float(np.average((bins.confidence - bins.accuracy).abs(), weights=bins.n))


def risk_curve(uncertainty: np.ndarray, error: np.ndarray) -> np.ndarray:
    """The mean error of the most certain 1, 2, … n of n rows, (n,); its mean is AURC (Geifman, Uziel and El-Yaniv,
    ICLR 2019). Of equally uncertain rows any may go first: the risk is its mean over their orders."""
    shared = pd.Series(error).groupby(uncertainty).transform("mean").to_numpy()
    return np.cumsum(shared[np.argsort(uncertainty, kind="stable")]) / np.arange(1, len(error) + 1)
