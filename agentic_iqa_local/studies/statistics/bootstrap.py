"""Intervals by resampling whole scenes: a statistic on all rows and on draws that all modes share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from agentic_iqa_local.studies.statistics.agreement import CONSTANT, plcc, rmse, srcc

FEWEST_GROUPS = 10  # below this a bootstrap of whole groups says little

Statistic = Callable[..., float]
Level = Literal["groups", "distortion types", "rows"]


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
        arrays = [np.asarray(column, float) for column in columns]
        if any(len(array) != len(kept) for array in arrays):
            raise ValueError(f"columns: expected {len(kept)} rows, got {[len(array) for array in arrays]}")
        arrays = [array[kept] for array in arrays]
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError(
                "columns: expected finite values in answered rows; mark a failed row in `answered`"
            )
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
