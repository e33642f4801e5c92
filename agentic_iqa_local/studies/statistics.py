"""Agreement with human scores, its intervals by resampling whole scenes, and how good probabilities
are.

A statistic is a function of one or more columns (one entry an image) that returns a float. A failed
image has nan in its place, and every statistic leaves it out. All modes are resampled on the same
`Draws`, so any two can be compared.
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

Statistic = Callable[..., float]


def plcc(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation of two columns (n,); nan where one is constant."""
    if _is_constant(x) or _is_constant(y):
        return np.nan
    return float(np.corrcoef(x, y)[0, 1])


def srcc(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation: Pearson's of the ranks, ties at their average."""
    return plcc(stats.rankdata(x), stats.rankdata(y))


def krcc(x: np.ndarray, y: np.ndarray) -> float:
    """Kendall's tau-b."""
    return float(stats.kendalltau(x, y).statistic)


def rmse(x: np.ndarray, y: np.ndarray) -> float:
    """Root mean square error of two columns (n,) in the same unit."""
    return float(np.sqrt(np.mean((x - y) ** 2)))


def _is_constant(x: np.ndarray) -> bool:
    return bool(len(x) < 2 or np.linalg.norm(x - x.mean()) <= CONSTANT * abs(x.mean()))


def vqeg_logistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Scores `x` mapped to human scores `y`, (n,), by a monotone logistic fitted on them; nan where
    x is.

    Least squares of the five-parameter map of Sheikh, Sabir and Bovik (IEEE TIP 15(11), 2006),
    monotone as ITU-T P.1401 asks. Both directions are tried, and a straight line. nan for a
    constant column or fewer than ten rows.
    """
    mapped, answered = np.full(len(x), np.nan), np.isfinite(x)
    x, y = x[answered], y[answered]
    if len(x) < FEWEST_ROWS_TO_FIT or _is_constant(x) or _is_constant(y):
        return mapped
    # Standardised, one set of starts and bounds serves scores of any range; beyond b2 = 50 it is a
    # step.
    z, target = np.asarray(stats.zscore(x)), np.asarray(stats.zscore(y))
    bounds = [0.0, 0.05, z.min() - 1, 0.0, -np.inf], [np.inf, 50.0, z.max() + 1, np.inf, np.inf]

    def error(b: np.ndarray, sign: float) -> np.ndarray:
        return sign * (b[0] * (expit(b[1] * (z - b[2])) - 0.5) + b[3] * z + b[4]) - target

    errors = [np.mean(z * target) * z - target]  # of the straight line
    for sign, steepness in itertools.product((1.0, -1.0), (1.0, 4.0)):
        start = (2.0, steepness, 0.0, 0.1, 0.0)
        fit = least_squares(error, start, bounds=bounds, max_nfev=2000, args=(sign,))
        errors.append(error(fit.x, sign))
    best = min(errors, key=lambda error: np.sum(error**2))
    mapped[answered] = y.mean() + y.std() * (best + target)
    return mapped


class Draws:
    """Bootstrap draws of a run, made once and shared by all modes.

    `unit` (rows,) numbers what is drawn as a whole, with replacement; `over` says what that is, and
    `places` has the rows of each draw.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], rng: np.random.Generator, count: int = 1000
    ):
        self.over, labels = _units(rows)
        names, self.unit = np.unique(labels, return_inverse=True)
        self.units = len(names)
        rows_of = [np.flatnonzero(self.unit == unit) for unit in range(self.units)]
        self.places = []
        for drawn in rng.integers(self.units, size=(count, self.units)):
            self.places.append(np.concatenate([rows_of[unit] for unit in drawn]))

    def of(self, statistic: Statistic, *columns: np.ndarray) -> tuple[float, np.ndarray]:
        """A statistic of columns (rows,), and of each draw of them.

        Rows with nan in a column are left out. A draw is nan where the statistic is undefined, as
        are all draws of a single unit.
        """
        table = np.array(columns, float)
        kept = np.isfinite(table).all(axis=0)
        on_draws = np.full(len(self.places), np.nan)
        if not kept.any():
            return np.nan, on_draws
        if np.ptp(self.unit[kept]):
            for draw, rows in enumerate(self.places):
                drawn = rows[kept[rows]]
                if len(drawn):
                    on_draws[draw] = statistic(*table[:, drawn])
        return statistic(*table[:, kept]), on_draws

    def figure(self, name: str, statistic: Statistic, *columns: np.ndarray) -> dict[str, float]:
        """A statistic with its interval, in the columns of `interval`; see `of`."""
        return interval(name, *self.of(statistic, *columns))

    def difference(
        self,
        name: str,
        statistic: Statistic,
        one: np.ndarray,
        other: np.ndarray,
        quality: np.ndarray,
    ) -> dict[str, float]:
        """A statistic of `one` score with the `quality` less that of the `other`, on the rows that
        have both, in the columns of `interval`; and its `p`: twice the smaller share of draws on
        either side of 0, counting the sample itself as a draw (Davison and Hinkley, Bootstrap
        Methods and their Application, 1997)."""
        value, on_draws = self.of(
            lambda x, z, y: statistic(x, y) - statistic(z, y), one, other, quality
        )
        line = interval(name, value, on_draws)
        smaller = 1 + min((on_draws <= 0).sum(), (on_draws >= 0).sum())
        p = min(1.0, 2 * smaller / (1 + np.isfinite(on_draws).sum()))
        return line | {"p": np.nan if np.isnan(line[f"{name}_low"]) else float(p)}


def _units(rows: Sequence[Mapping[str, Any]]) -> tuple[str, Any]:
    """What is drawn as a whole, and its label for each row: whole scenes (the rows' "group"), where
    ten or more are known; of fewer scenes distortion types, or rows, which speaks of these scenes
    alone; without scenes rows."""
    table = pd.DataFrame(list(rows), columns=["group", "distortion"])
    if table.group.isna().all():
        return "rows", list(table.index)
    scenes = table.group.fillna(table.index.to_series().map("row {}".format))
    if scenes.nunique() >= FEWEST_GROUPS:
        return "groups", scenes
    kinds = table.distortion.fillna("none")
    if kinds.nunique() > 1:
        return "distortion types, within these scenes", kinds
    return "rows, within these scenes", list(table.index)


def interval(name: str, value: float, on_draws: np.ndarray) -> dict[str, float]:
    """The columns `name`, `name`_low and `name`_high: a value and its 95 % percentile interval.
    Draws on which it is undefined are left out; the bounds are nan where these are more than one in
    twenty."""
    defined = on_draws[np.isfinite(on_draws)]
    low, high = np.nan, np.nan
    if len(defined) and len(defined) >= 0.95 * len(on_draws):
        low, high = np.percentile(defined, [2.5, 97.5]).tolist()
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def holm(p_values: Sequence[float]) -> np.ndarray:
    """p-values adjusted for their number, in the order given (Holm, Scandinavian Journal of
    Statistics 6, 1979). An unknown one (nan) counts as a comparison and stays unknown."""
    p = pd.Series(p_values, dtype=float).sort_values()  # nan last
    adjusted = (p * np.arange(len(p), 0, -1)).cummax().clip(upper=1)
    return adjusted.sort_index().to_numpy()


def share(name: str, count: float, of: float) -> dict[str, float]:
    """The columns of `interval` for `count` of `of` cases, with Wilson's interval at 95 %; nan of
    no cases."""
    if not of:
        return {name: np.nan}
    ends = stats.binomtest(round(count), round(of)).proportion_ci(method="wilson")
    return {name: count / of, f"{name}_low": ends.low, f"{name}_high": ends.high}


def ranked_probability_scores(p: np.ndarray, level: np.ndarray) -> np.ndarray:
    """How far probabilities of the levels 1..K, (n, K), lie from the truth within [1, K], (n,): 0
    is best, 1 worst.

    The sum of squared differences of cumulated probabilities over K − 1 (Constantinou and Fenton,
    J. Quantitative Analysis in Sports 8(1), 2012); between whole levels the integral of that square
    (Matheson and Winkler, 1976).
    """
    below = np.cumsum(p, axis=1)[:, :-1]
    # The share of each step between levels that lies under the target.
    passed = np.clip(level[:, None] - np.arange(1, p.shape[1]), 0, 1)
    return np.mean(passed * below**2 + (1 - passed) * (1 - below) ** 2, axis=1)


def expected_calibration_error(
    confidence: np.ndarray, correct: np.ndarray, bins: int = 15
) -> float:
    """Mean distance of confidence from accuracy over bins of equal width, closed on their right,
    weighted by their images: 0 best, 1 worst (Guo, Pleiss, Sun and Weinberger, ICML 2017, equation
    3)."""
    too_high = pd.Series(confidence - correct)
    per_bin = too_high.groupby(np.clip(np.ceil(confidence * bins), 1, bins)).sum()
    return float(per_bin.abs().sum() / len(too_high))
