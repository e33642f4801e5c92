"""Two modes against each other, and several such comparisons at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from agentic_iqa_local.studies.statistics.bootstrap import Figure, Resampled, bounds

UNDECIDED = "undecided: too few images"


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


@dataclass(frozen=True)
class MengTest:
    """z and its two-sided p."""

    z: float
    p: float


def meng(r_xy: float, r_xz: float, r_yz: float, n: int) -> MengTest:
    """Do y and z correlate equally with x? For correlations that share x, on the same n rows.

    Meng, Rosenthal and Rubin, "Comparing correlated correlation coefficients", Psychological Bulletin 111(1),
    1992, formulas 1 to 3. Assumes independent rows from a normal distribution: images of one scene are not
    independent, and on Spearman's correlations it is an approximation. So it stands beside
    `paired_difference` and does not decide. nan where a correlation is nan, where y and z agree wholly or one
    of them agrees wholly with x. Raises ValueError for correlations beyond ±1 or n of three or less.
    """
    if n <= 3 or any(abs(r) > 1 for r in (r_xy, r_xz, r_yz)):
        raise ValueError(
            f"Meng's test: expected correlations in [-1, 1] and n > 3, got {r_xy}, {r_xz}, {r_yz} and {n}"
        )
    if not (abs(r_xy) < 1 and abs(r_xz) < 1 and r_yz < 1):
        return MengTest(np.nan, np.nan)
    mean_square = (r_xy**2 + r_xz**2) / 2
    f = min(1.0, (1 - r_yz) / (2 * (1 - mean_square)))
    h = (1 - f * mean_square) / (1 - mean_square)
    z = float((np.arctanh(r_xy) - np.arctanh(r_xz)) * np.sqrt((n - 3) / (2 * (1 - r_yz) * h)))
    return MengTest(z, float(2 * stats.norm.sf(abs(z))))


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
