"""Correlation with human scores, intervals by resampling whole scenes, paired comparisons and calibration of
the letters.

A statistic here is a function of columns (one entry a row, a row being one image) that returns a float.
`Draws.of` gives it on all rows and on every bootstrap draw; `interval` and `paired_difference` read that, so
that each scoring mode is resampled once and any two modes are compared on the same draws. Failed images stay
rows: they are named in `answered`, left out of the statistic, and counted in its `Figure`. Knows nothing of
data sets, models or files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import special, stats
from scipy.optimize import isotonic_regression, least_squares

from agentic_iqa_local.iqa_tools.calibration import logistic_curve

FEWEST_ROWS_TO_FIT = 10
FEWEST_GROUPS = 10  # below this a bootstrap of whole groups says little
BINS = 15  # of confidence
UNDECIDED = "undecided: too few images"
# Spread over magnitude below which values differ by rounding alone; scipy warns of near-constant input below
# the same.
CONSTANT = np.finfo(float).eps ** 0.75

Statistic = Callable[..., float]
Level = Literal["groups", "distortion types", "rows"]


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


def vqeg_logistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Scores `x` mapped to human scores `y`, (n,), by the least-squares fit of the five-parameter
    `logistic_curve`, for PLCC and RMSE after mapping, as Sheikh, Sabir and Bovik (IEEE TIP 15(11), 2006)
    report them. VQEG's FR-TV Phase II (2003, section 4.7) fell back on three parameters because its richer
    fits did not converge; later papers use four or five, so a table has to say which.

    The map is monotone by construction, as the ITU-T P.1401 mappings are: b2 > 0, and b1 and b4 share a sign.
    An unbounded fit may turn, and then rewards scores for ranking wrongly. Both directions are tried. A
    straight line is among the candidates, so PLCC after mapping is at least |PLCC| raw. The map is fitted to
    the rows that it is judged on: fit it once, on all rows, and resample what it gives. nan for a constant
    column or fewer than ten rows.
    """
    x, y = columns(x, y)
    if len(x) < FEWEST_ROWS_TO_FIT or is_constant(x) or is_constant(y):
        return np.full(len(x), np.nan)
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
    return y.mean() + sign * y.std() * logistic_curve(best, z)


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


@dataclass(frozen=True)
class Figure:
    """A statistic with its 95 % interval (nan where undefined), the rows it is over, and the rows that failed
    beside them."""

    value: float
    low: float
    high: float
    n: int
    failed: int
    interval_over: str


@dataclass(frozen=True, eq=False)
class Draws:
    """Bootstrap draws of a data set, made once and shared by all modes.

    `counts` (draws, units): how often a draw holds each unit; `unit` (rows,): the unit of each row; `over`:
    what the units are, for the reader.
    """

    counts: np.ndarray
    unit: np.ndarray
    over: str

    @classmethod
    def make(
        cls,
        rows: int,
        rng: np.random.Generator,
        groups: Sequence | None = None,
        distortions: Sequence | None = None,
        count: int = 1000,
    ) -> "Draws":
        """`count` draws with replacement of the units that `resampling_unit` chooses from the labels of the
        rows."""
        level = resampling_unit(groups, distortions)
        chosen = {"groups": groups, "distortion types": distortions}.get(level)
        labels = range(rows) if chosen is None else chosen
        if len(labels) != rows or not rows:
            raise ValueError(
                f"{level}: expected a label for each of at least one row, got {len(labels)} for {rows} rows"
            )
        over = level if groups is None or level == "groups" else f"{level}, within these scenes"
        return cls.of_units(labels, rng, over, count)

    @classmethod
    def of_units(
        cls, labels: Sequence | np.ndarray, rng: np.random.Generator, over: str, count: int
    ) -> "Draws":
        """`count` draws with replacement of the units that the rows' labels name."""
        units, unit = np.unique(np.asarray(labels), return_inverse=True)
        k = len(units)
        counts = np.array([np.bincount(rng.integers(k, size=k), minlength=k) for _ in range(count)], np.int32)
        return cls(counts, unit, over)

    @property
    def weights(self) -> np.ndarray:
        """How often each draw holds each row, integers of shape (draws, rows)."""
        return self.counts[:, self.unit]

    def of(
        self,
        statistic: Statistic,
        *columns: np.ndarray,
        answered: np.ndarray | None = None,
        among: np.ndarray | None = None,
        first: int | None = None,
    ) -> "Resampled":
        """`statistic` of the columns (one entry a row, also for failed rows) on all rows and on each draw.

        `answered` (rows,) is False for failed rows, `among` (rows,) for rows outside the subset asked for;
        None means no such row. `first` uses the first so many draws only, for statistics with no fast form,
        such as `krcc`; 0 gives no interval. Raises ValueError for columns of another length and for answered
        rows that are not finite. Rows of a single unit have no interval.
        """
        whole = np.ones(len(self.unit), bool)
        answered, among = (whole if mask is None else np.asarray(mask, bool) for mask in (answered, among))
        kept = answered & among
        arrays = _kept(columns, kept)
        unit = self.unit[kept]
        on_draws = np.full(len(self.counts[:first]), np.nan)
        if len(np.unique(unit)) > 1:
            on_weights = _ON_WEIGHTS.get(statistic, partial(_on_repeated_rows, statistic))(*arrays)
            for i, counts in enumerate(self.counts[:first]):
                weights = counts[unit]
                if weights.any():
                    on_draws[i] = on_weights(weights)
        value = float(statistic(*arrays)) if kept.any() else np.nan
        return Resampled(value, on_draws, self, kept, int((among & ~answered).sum()))


@dataclass(frozen=True, eq=False)
class Resampled:
    """A statistic on the `kept` rows and on each draw of them, shape (draws,), nan where it is undefined."""

    value: float
    on_draws: np.ndarray
    draws: Draws
    kept: np.ndarray
    failed: int


def _kept(columns: Sequence[np.ndarray], kept: np.ndarray) -> list[np.ndarray]:
    """The columns at the `kept` rows. Raises ValueError for another length and for values that are not
    finite."""
    arrays = [np.asarray(column, float) for column in columns]
    if any(len(array) != len(kept) for array in arrays):
        raise ValueError(f"columns: expected {len(kept)} rows, got {[len(array) for array in arrays]}")
    arrays = [array[kept] for array in arrays]
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("columns: expected finite values in answered rows; mark a failed row in `answered`")
    return arrays


def resampling_unit(groups: Sequence | None, distortions: Sequence | None = None) -> Level:
    """What to resample: whole reference groups where there are ten or more, rows where no groups are known.

    With fewer groups, the distortion types (rows, if there are not two): such an interval speaks of these
    scenes only.
    """
    if groups is None:
        return "rows"
    if len(set(groups)) >= FEWEST_GROUPS:
        return "groups"
    return "distortion types" if distortions is not None and len(set(distortions)) > 1 else "rows"


def interval(sampled: Resampled) -> Figure:
    """The statistic with its 95 % percentile interval.

    Draws on which the statistic is undefined are left out; nan bounds where these are more than one in
    twenty.
    """
    low, high = bounds(sampled.on_draws)
    return Figure(sampled.value, low, high, int(sampled.kept.sum()), sampled.failed, sampled.draws.over)


def bounds(on_draws: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile bounds of a statistic's draws; nan where more than one in twenty are undefined."""
    defined = on_draws[np.isfinite(on_draws)]
    if not len(defined) or len(defined) < 0.95 * len(on_draws):
        return np.nan, np.nan
    low, high = np.percentile(defined, [2.5, 97.5])
    return float(low), float(high)


def _on_repeated_rows(statistic: Statistic, *columns: np.ndarray) -> Callable[[np.ndarray], float]:
    def on_weights(weights: np.ndarray) -> float:
        rows = np.repeat(np.arange(len(weights)), weights)
        return statistic(*(column[rows] for column in columns))

    return on_weights


def _weighted_correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """Pearson's correlation when row i occurs weights[i] times."""
    total = weights.sum()
    mean_x, mean_y = weights @ x / total, weights @ y / total
    x, y = x - mean_x, y - mean_y
    weighted = weights * x
    square_x, square_y = weighted @ x, weights @ y**2
    if min(square_x - (CONSTANT * mean_x) ** 2, square_y - (CONSTANT * mean_y) ** 2) <= 0:
        return np.nan
    return float((weighted @ y) / np.sqrt(square_x * square_y))


def _weighted_ranks(tie: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Average ranks when row i, of the tie[i]-th smallest value, occurs weights[i] times.

    Exact: a value that occurs m times, up to the c-th place, has the rank c − (m − 1)/2, half of a whole
    number.
    """
    occurs = np.bincount(tie, weights)
    return (np.cumsum(occurs) - (occurs - 1) / 2)[tie]


def _srcc_on_weights(x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], float]:
    tie_x, tie_y = (np.unique(column, return_inverse=True)[1] for column in (x, y))
    return lambda weights: _weighted_correlation(
        _weighted_ranks(tie_x, weights), _weighted_ranks(tie_y, weights), weights
    )


def _plcc_on_weights(x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], float]:
    return lambda weights: _weighted_correlation(x, y, weights)


def _rmse_on_weights(x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], float]:
    square = (x - y) ** 2
    return lambda weights: float(np.sqrt(weights @ square / weights.sum()))


# Row weights stand for repeated rows: the same value, without sorting every draw anew.
_ON_WEIGHTS = {srcc: _srcc_on_weights, plcc: _plcc_on_weights, rmse: _rmse_on_weights}


@dataclass(frozen=True)
class Difference(Figure):
    """A paired difference of a statistic between two modes; `p` is two-sided."""

    p: float


def paired_difference(first: Resampled, second: Resampled) -> Difference:
    """first − second of one statistic for two modes on the same rows and draws, with its 95 % percentile
    interval.

    p inverts that interval: twice the smaller share of draws on either side of 0, counting the sample itself
    as a draw (Davison and Hinkley, Bootstrap Methods and their Application, 1997). B draws cannot give less
    than 2/(B + 1): after `holm`, 1,000 draws can reject at 0.05 among 25 comparisons at most. Give scores
    that run the same way. Raises ValueError where draws or rows differ: then resample both with `answered`
    where both modes answered.
    """
    if first.draws is not second.draws or len(first.on_draws) != len(second.on_draws):
        raise ValueError("paired difference: expected both modes on the same draws")
    if not np.array_equal(first.kept, second.kept):
        raise ValueError(
            "paired difference: expected both modes on the same rows; resample them where both answered"
        )
    on_draws = first.on_draws - second.on_draws
    low, high = bounds(on_draws)
    smaller = 1 + min((on_draws <= 0).sum(), (on_draws >= 0).sum())
    p = np.nan if np.isnan(low) else min(1.0, 2 * smaller / (1 + np.isfinite(on_draws).sum()))
    n, failed = int(first.kept.sum()), max(first.failed, second.failed)
    return Difference(first.value - second.value, low, high, n, failed, first.draws.over, float(p))


def verdict(difference: Figure, margin: float) -> str:
    """What a difference's interval shows, where more is better and a loss of up to `margin` does not matter:
    a gain or a loss where it lies wholly on one side of 0, else a loss of no more than the margin where it
    lies wholly above −margin, else nothing.
    """
    if difference.low > 0:
        return "gains"
    if difference.high < 0:
        return f"loses less than {margin:g}" if difference.low > -margin else "loses"
    return f"loses no more than {margin:g}" if difference.low > -margin else UNDECIDED


def holm(p_values: Sequence[float]) -> np.ndarray:
    """p-values adjusted for their number, in the order given: Holm, Scandinavian Journal of Statistics 6,
    1979.

    Holds whatever the dependence among the comparisons. Raises ValueError for values outside [0, 1].
    """
    p = np.asarray(p_values, float)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values: expected numbers in [0, 1], got {list(p_values)}")
    order = np.argsort(p)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def ranked_probability_scores(p: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Scores (n,) of probabilities `p` (n, K) over the levels 1..K (rising quality) against targets `level`
    (n,) in [1, K].

    0 is best, 1 worst: the sum of squared differences of cumulated probabilities over K − 1 (Epstein, J.
    Applied Meteorology 8, 1969; in the form of Constantinou and Fenton, J. Quantitative Analysis in Sports
    8(1), 2012). Between whole levels it is the integral of that square, the continuous score of Matheson and
    Winkler (Management Science 22, 1976). The target is a mean opinion, not one rater's: p as wide as the
    raters' votes does not score best. Raises ValueError for rows that are no probabilities or targets off the
    scale.
    """
    p, level = _probabilities(p, level)
    below = np.cumsum(p, axis=1)[:, :-1]
    # share of each step between levels under the target
    passed = np.clip(level[:, None] - np.arange(1, p.shape[1]), 0, 1)
    return np.mean(passed * below**2 + (1 - passed) * (1 - below) ** 2, axis=1)


def reliability_bins(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> list[dict[str, Any]]:
    """Mean confidence and accuracy, both 0..1, and the number of rows of every bin of equal width that has
    rows; each bin is closed on its right."""
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(which, minlength=bins)
    sums = [np.bincount(which, values, bins) for values in (confidence, correct)]
    return [
        {"confidence": sums[0][i] / count[i], "accuracy": sums[1][i] / count[i], "n": int(count[i])}
        for i in np.flatnonzero(count)
    ]


def expected_calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """Mean distance of confidence from accuracy over `reliability_bins`: 0 best, 1 worst.

    Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, equation 3.
    `confidence` (n,) in [0, 1], `correct` (n,) 0 or 1.
    """
    found = reliability_bins(confidence, correct, bins)
    return sum(each["n"] * abs(each["confidence"] - each["accuracy"]) for each in found) / len(confidence)


def monotone_map(x: np.ndarray, y: np.ndarray, *, increasing: bool = True) -> Callable[..., np.ndarray]:
    """The piecewise linear isotonic least-squares fit from `x` to `y`, both (n,), to be used on rows other
    than these; beyond the outermost x it stays at their values.

    Barlow, Bartholomew, Bremner and Brunk, Statistical Inference under Order Restrictions, 1972. Equal x
    share one value. Raises ValueError for values that are not finite.
    """
    x, y = columns(x, y)
    knots, knot = np.unique(x, return_inverse=True)
    rows = np.bincount(knot)
    fit = isotonic_regression(np.bincount(knot, y) / rows, weights=rows, increasing=increasing)
    return partial(np.interp, xp=knots, fp=fit.x)


def entropy(p: np.ndarray) -> np.ndarray:
    """Shannon's entropy in nats, (n,), of probabilities (n, K): 0 for one certain level, log K for all
    alike."""
    return special.entr(_probabilities(p)[0]).sum(axis=1)


class RiskCoverage(NamedTuple):
    """Mean error (`risk`) of the most certain share (`coverage`) of n rows, both (n,), and the mean of that
    curve."""

    coverage: np.ndarray
    risk: np.ndarray
    aurc: float


def risk_coverage(uncertainty: np.ndarray, error: np.ndarray) -> RiskCoverage:
    """Error of the rows kept when the most uncertain are set aside, for every number of rows kept.

    Geifman, Uziel and El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers", ICLR 2019
    (AURC). `uncertainty` and `error` are (n,), in any units; of equally uncertain rows any may go first, and
    the risk is its mean over their orders. ValueError without rows.
    """
    uncertainty, error = columns(uncertainty, error)
    if not len(error):
        raise ValueError("risk and coverage: expected at least one row, got none")
    _, tie, rows = np.unique(uncertainty, return_inverse=True, return_counts=True)
    kept = np.arange(1, len(error) + 1)
    risk = np.cumsum(np.repeat(np.bincount(tie, error) / rows, rows)) / kept
    return RiskCoverage(kept / len(error), risk, float(risk.mean()))


def _probabilities(p: np.ndarray, level: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    p = np.asarray(p, float)
    if p.ndim != 2 or not ((p >= 0).all() and np.allclose(p.sum(axis=1), 1, rtol=0, atol=1e-6)):
        raise ValueError(
            f"probabilities: expected rows of non-negative numbers that sum to 1, got shape {p.shape}"
        )
    level = np.ones(len(p)) if level is None else np.asarray(level, float)
    if level.shape != (len(p),) or not ((level >= 1) & (level <= p.shape[1])).all():
        raise ValueError(f"levels: expected {len(p)} numbers in [1, {p.shape[1]}], got shape {level.shape}")
    return p, level
