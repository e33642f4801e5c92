"""How often do intervals of q hold the truth of a run's pictures, and how wide are they? No picture is judged
by a calibration that has seen its scene.

A trial is one calibration and the pictures that it judges: those of a run under a calibration that was made
elsewhere, or, `SPLITS` times, a random half of the run's scenes under one that was made on the other half.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy.stats import rankdata

from agentic_iqa_local.judgement.intervals import COVERAGE, HIGHEST, LOWEST, WIDENED, Errors
from agentic_iqa_local.studies.calibrating import Cases, errors

SPLITS = 20
VALUES = 41  # of a picture's predictive distribution: enough for the probability that one of two is better


@dataclass(frozen=True, eq=False)
class Trial:
    """One calibration's word on pictures, arrays (pictures,) in levels: which of the cases they are, the
    truth that q lets expect, the interval's ends, whether the truth lies between them, whether it is widened,
    and the widths of intervals with the same half width for all pictures, around the expected truth and
    around q (nan where that one is not known). `values` (pictures, VALUES) are equally probable values of the
    truth; `at_least` (pictures, thresholds) probabilities that it is that or better."""

    at: np.ndarray
    expected: np.ndarray
    low: np.ndarray
    high: np.ndarray
    covered: np.ndarray
    widened: np.ndarray
    constant: np.ndarray
    constant_of_q: np.ndarray
    values: np.ndarray
    at_least: np.ndarray

    @property
    def width(self) -> np.ndarray:
        return self.high - self.low


def trial(
    part: Errors,
    known: Cases,
    at: np.ndarray,
    *,
    around_q: float = math.nan,
    thresholds: Sequence[float] = (),
) -> Trial:
    """`part` on the cases of rising indices `at`. `around_q` is the half width of a constant interval around
    q."""
    judged = known.part(np.isin(np.arange(len(known.q)), at))
    expected, difficulty = part.expected(judged.q), part.difficulty(judged.features)
    low, high = part.ends(judged.q, difficulty, COVERAGE).T
    widened = np.array([voters not in part.tools for voters in judged.voters])
    if widened.any():
        wide = part.ends(judged.q, difficulty, WIDENED).T
        low, high = np.where(widened, wide[0], low), np.where(widened, wide[1], high)
    probable = [part.probability_at_least(judged.q, difficulty, quality) for quality in thresholds]
    return Trial(
        at,
        expected,
        low,
        high,
        (low <= judged.truth) & (judged.truth <= high),
        widened,
        _width(expected, half_width(np.array(part.errors))),
        _width(judged.q, around_q),
        part.quantiles(judged.q, difficulty, VALUES),
        np.reshape(probable, (len(thresholds), len(at))).T,
    )


def half_width(distances: np.ndarray) -> float:
    """Of the interval with the same width for all pictures: the ⌈(n + 1) · 0.9⌉-th smallest of the n absolute
    distances, infinite where there are too few (split conformal: Lei et al., JASA 2018, algorithm 2)."""
    rank = math.ceil(round((len(distances) + 1) * COVERAGE, 9))
    return float(np.sort(np.abs(distances))[rank - 1]) if rank <= len(distances) else math.inf


def _width(center: np.ndarray, half: float) -> np.ndarray:
    """Within the scale, as the intervals are."""
    return np.clip(center + half, LOWEST, HIGHEST) - np.clip(center - half, LOWEST, HIGHEST)


def halves(known: Cases, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(calibrated on, judged), indices of cases (pictures,), of SPLITS random halves of the scenes."""
    rng = np.random.default_rng(seed)
    names, scene = np.unique(known.scenes, return_inverse=True)
    for _ in range(SPLITS):
        chosen = np.isin(scene, rng.permutation(len(names))[: len(names) // 2])
        yield np.flatnonzero(chosen), np.flatnonzero(~chosen)


def cross_fitted(known: Cases, thresholds: Sequence[float] = (), seed: int = 0) -> list[Trial]:
    """Every half of `halves` under the calibration of the other."""
    rng = np.random.default_rng(seed)
    return [_from(known, used, at, rng, thresholds) for used, at in halves(known, seed)]


def both_halves(known: Cases, seed: int = 0) -> Trial:
    """All pictures, each half of the first of `halves` under the calibration of the other."""
    rng = np.random.default_rng(seed)
    one, other = next(halves(known, seed))
    parts = [_from(known, one, other, rng), _from(known, other, one, rng)]
    order = np.argsort(np.concatenate([part.at for part in parts]))
    names = [field.name for field in fields(Trial)]
    return Trial(*(np.concatenate([getattr(part, name) for part in parts])[order] for name in names))


def _from(
    known: Cases,
    used: np.ndarray,
    at: np.ndarray,
    rng: np.random.Generator,
    thresholds: Sequence[float] = (),
) -> Trial:
    fitted = known.part(np.isin(np.arange(len(known.q)), used))
    return trial(
        errors(fitted, rng),
        known,
        at,
        around_q=half_width(fitted.truth - fitted.q),
        thresholds=thresholds,
    )


def rank_matched(quality: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`values` in the order of the qualities, both (pictures,): the quality with rank r is given the value
    with rank r. Equal qualities share the mean of their ranks."""
    return np.interp(rankdata(quality), np.arange(1, len(values) + 1), np.sort(values))


def per_picture(trials: Sequence[Trial], name: str, count: int) -> np.ndarray:
    """The mean of a field over the trials that judge a picture, (count,); nan where none does."""
    total, times = np.zeros(count), np.zeros(count)
    for found in trials:
        total[found.at] += getattr(found, name)
        times[found.at] += 1
    return np.divide(total, times, out=np.full(count, np.nan), where=times > 0)
