"""Whether a new version of pictures is worse than the old one: a verdict with a known error from
paired losses of quality. Pure: numbers in, a decision out.

A loss is the old picture's q less the new one's, in levels. What both share, the scene, is in
neither, and pictures of one scene count as one. Two rules: the mean loss against a margin, or the
share of pictures that lost more than the margin against a share. The first is decided by the
studentised bootstrap over scenes (Hall, Annals of Statistics 16(3), 1988; Efron and Tibshirani, An
Introduction to the Bootstrap, 1993, 12.5), the second by the binomial (Clopper and Pearson,
Biometrika 26(4), 1934).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel
from scipy import stats

Verdict = Literal["not worse", "undecided", "worse"]
MARGIN, ERROR_RATE = 0.1, 0.05
FEWEST = 10  # scenes: with fewer a bootstrap of skewed losses errs too often
ENOUGH = 40  # scenes: with fewer it errs more often than the error rate says (docs/measurements.md)
FLOOR = 0.02  # levels: no sample of losses counts as less spread, where nearly all are the same
SPREAD = 0.1  # levels: standard deviation of the losses by a harmless change (docs/gate.md)
POWER = 0.8  # with which the needed number of pictures lets an unchanged version pass
DRAWS, BLOCK, SEED = 4000, 2**20, 20261128


@dataclass(frozen=True)
class Rule:
    """What counts as worse: a mean loss of more than `margin` levels, or, with a `share`, a loss of
    more than `margin` in more than that share of the pictures. Either verdict is wrong at most
    with `error_rate`."""

    margin: float = MARGIN
    share: float | None = None
    error_rate: float = ERROR_RATE

    @property
    def limit(self) -> float:
        """What the estimate is compared with."""
        return self.margin if self.share is None else self.share

    def needed(self) -> int:
        """How many scenes it takes, about, until a version without any loss is not worse."""
        if self.share is not None:  # exactly: none of them may be worse
            return math.ceil(math.log(self.error_rate) / math.log(1 - self.share))
        z = stats.norm.ppf(1 - self.error_rate) + stats.norm.ppf(POWER)
        return max(FEWEST, math.ceil((z * SPREAD / self.margin) ** 2))


class Decision(BaseModel):
    """The verdict, and what it rests on: a mean loss in levels, or a share of the pictures."""

    verdict: Verdict
    estimate: float
    # one-sided bounds, each wrong at most with the error rate; None where too few scenes have any
    low: float | None
    high: float | None
    pictures: int
    scenes: int


def decide(losses: Sequence[float], scenes: Sequence[int], rule: Rule) -> Decision:
    """Worse where the estimate surely lies above the rule's limit, not worse where it surely lies
    below, or where no picture changed.

    Args:
        losses: Of each picture, in levels: positive where the new one is worse. At least one.
        scenes: Which scene each picture is of.
        rule: What counts as worse.
    """
    values = np.asarray(losses, np.float64)
    lost = values if rule.share is None else (values > rule.margin).astype(np.float64)
    _, places = np.unique(scenes, return_inverse=True)
    of_scenes = np.bincount(places, lost) / np.bincount(places)
    low = high = None
    if not values.any():
        low = high = 0.0
    elif rule.share is not None:
        low, high = _share_bounds(of_scenes, rule.error_rate)
    elif len(of_scenes) >= FEWEST:
        low, high = _mean_bounds(of_scenes, rule.error_rate)
    verdict: Verdict = "undecided"
    if low is not None and low > rule.limit:
        verdict = "worse"
    elif high is not None and high < rule.limit:
        verdict = "not worse"
    return Decision(
        verdict=verdict,
        estimate=float(of_scenes.mean()),
        low=low,
        high=high,
        pictures=len(values),
        scenes=len(of_scenes),
    )


def _mean_bounds(values: np.ndarray, error_rate: float) -> tuple[float, float]:
    """One-sided bounds of the mean of independent values, (n,), by the studentised bootstrap."""
    count, mean = len(values), float(values.mean())
    error = _standard_error(values[None])[0]
    rng = np.random.default_rng(SEED)
    drawn = []
    for draws in np.array_split(np.arange(DRAWS), math.ceil(DRAWS * count / BLOCK)):
        samples = values[rng.integers(count, size=(len(draws), count))]
        drawn.append((samples.mean(1) - mean) / _standard_error(samples))
    below, above = np.quantile(np.concatenate(drawn), [error_rate, 1 - error_rate])
    return float(mean - above * error), float(mean - below * error)


def _standard_error(samples: np.ndarray) -> np.ndarray:
    """Of the mean of each row, (draws, n) → (draws,)."""
    return np.sqrt((samples.var(axis=1, ddof=1) + FLOOR**2) / samples.shape[1])


def _share_bounds(shares: np.ndarray, error_rate: float) -> tuple[float, float]:
    """One-sided bounds of a share, by the scenes' own shares: one between 0 and 1 varies less than
    a yes or no, so that the bounds are on the safe side."""
    worse, count = float(shares.sum()), len(shares)
    low = stats.beta.ppf(error_rate, worse, count - worse + 1) if worse else 0.0
    high = stats.beta.ppf(1 - error_rate, worse + 1, count - worse) if worse < count else 1.0
    return float(low), float(high)
