"""How often do intervals of q hold the truth of pictures, and how wide are they? No picture is judged by a
calibration that has seen its scene.

A trial is one calibration and the pictures that it judges: those of a run under a calibration that was made
elsewhere, or, `SPLITS` times, a random half of the run's scenes under one that was made on the other half.
"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from agentic_iqa_local.judgement.intervals import COVERAGE, FEATURES, HIGHEST, LOWEST, WIDENED, Errors
from agentic_iqa_local.result import Condition
from agentic_iqa_local.state import lower_edge
from agentic_iqa_local.studies.calibrating import errors

SPLITS = 20
VALUES = 41  # of a picture's predictive distribution: enough for the probability that one of two is better
GATES = {letter: lower_edge(letter) for letter in ("B", "C", "D")}  # the quality that --at-least asks for


def trial(part: Errors, known: pd.DataFrame, around_q: float = math.nan) -> pd.DataFrame:
    """One calibration's word on pictures, a table of `calibrating.cases`: a line for each, in levels.

    Columns are q, the truth and what q lets expect of it, the interval's `low`, `high` and `width`, whether it holds
    the truth (`covered`) and is `widened`, the widths of intervals that are as wide for all pictures (`constant`
    around what is expected, and `constant_of_q`, of half width `around_q`), under each letter of GATES the probability
    that the truth is that or better, and as `values` VALUES equally probable values of the truth, rising.
    """
    q, truth = known.q.to_numpy(), known.truth.to_numpy()
    expected, difficulty = part.expected(q), part.difficulty(known[[*FEATURES]].to_numpy())
    widened = np.array([voters not in part.tools for voters in known.voters])
    usual, wide = (part.ends(q, difficulty, coverage) for coverage in (COVERAGE, WIDENED))
    low, high = np.where(widened[:, None], wide, usual).T
    table = pd.DataFrame({"q": q, "truth": truth, "expected": expected, "low": low, "high": high}, known.index)
    table["width"], table["widened"] = high - low, widened.astype(float)
    table["covered"] = ((low <= truth) & (truth <= high)).astype(float)
    table["constant"] = _width(expected, half_width(np.array(part.errors)))
    table["constant_of_q"] = _width(q, around_q)
    for letter, quality in GATES.items():
        table[letter] = part.probability_at_least(q, difficulty, quality)
    return table.assign(values=list(part.quantiles(q, difficulty, VALUES)))


def half_width(distances: np.ndarray) -> float:
    """Of the interval that is as wide for all pictures: the ⌈(n + 1) · 0.9⌉-th smallest of n absolute distances,
    infinite where there are too few (split conformal: Lei et al., JASA 2018, algorithm 2)."""
    rank = math.ceil(round((len(distances) + 1) * COVERAGE, 9))
    return float(np.sort(np.abs(distances))[rank - 1]) if rank <= len(distances) else math.inf


def _width(center: np.ndarray, half: float) -> np.ndarray:
    """Within the scale, as the intervals are."""
    return np.clip(center + half, LOWEST, HIGHEST) - np.clip(center - half, LOWEST, HIGHEST)


def halves(known: pd.DataFrame) -> Iterator[np.ndarray]:
    """Which pictures are calibrated on, (pictures,), in SPLITS random halves of the scenes."""
    rng = np.random.default_rng(0)
    names, scene = np.unique(known.scene, return_inverse=True)
    for _ in range(SPLITS):
        yield np.isin(scene, rng.permutation(len(names))[: len(names) // 2])


def cross_fitted(condition: Condition, known: pd.DataFrame) -> list[pd.DataFrame]:
    """The trials of every half of `halves` under the calibration of the other."""
    rng = np.random.default_rng(0)
    return [_of_other(condition, known, half, rng) for half in halves(known)]


def both_halves(condition: Condition, known: pd.DataFrame) -> pd.DataFrame:
    """All pictures, each half of the first of `halves` under the calibration of the other."""
    rng, half = np.random.default_rng(0), next(halves(known))
    return pd.concat([_of_other(condition, known, used, rng) for used in (half, ~half)]).sort_index()


def _of_other(condition: Condition, known: pd.DataFrame, used: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    part = errors(condition, known[used], rng)
    return trial(part, known[~used], half_width((known.truth - known.q)[used].to_numpy()))


def rank_matched(quality: np.ndarray, given: np.ndarray) -> np.ndarray:
    """`given` in the order of the qualities, both (pictures,): the quality with rank r gets the value with rank r.
    Equal qualities share the mean of their ranks."""
    return np.interp(rankdata(quality), np.arange(1, len(given) + 1), np.sort(given))
