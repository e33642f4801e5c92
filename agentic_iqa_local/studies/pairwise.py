"""Of two of a run's pictures, how often does q rank the better one higher, and how often is it the likelier better one,
as its probability says?"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from agentic_iqa_local.studies.scored_run import ScoredRun
from agentic_iqa_local.studies.statistics import Draws, mean

MOST = 2000  # pictures whose pairs are all looked at
APART = (0.0, 0.5, 1.0, 2.0, math.inf)  # levels between the human scores
CONFIDENCE = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MOST_DRAWS = 200  # each takes a product of matrices of all pairs
PAIRS = 20_000  # whose probability is looked at


def pairwise(run: ScoredRun, known: pd.DataFrame, values: np.ndarray) -> Iterator[dict[str, Any]]:
    """A line for each bin of the human difference, over all pairs and over those of one scene, and one for each bin of
    the probability that the likelier one is better. Pairs of equal human scores are left out.

    Args:
        run: The run that the pictures are of.
        known: A table of `calibrating.cases`.
        values: Equally probable values of each picture's truth, rising, (pictures, n).
    """
    rng = np.random.default_rng(0)
    at = np.arange(len(known))
    if len(at) > MOST:
        at = np.sort(rng.choice(at, MOST, replace=False))
    known, values = known.iloc[at], values[at]
    truth, q, scenes = (known[name].to_numpy() for name in ("truth", "q", "scene"))
    draws = Draws(run.draws.counts[:MOST_DRAWS], run.draws.unit[known.index], run.draws.over)
    apart = np.triu(truth[:, None] - truth[None, :], 1)
    ranked = np.sign(q[:, None] - q[None, :]) * np.sign(apart)
    right = np.where(ranked == 0, 0.5, ranked > 0)
    among = {"all": np.ones_like(apart, bool)}
    if any(row.get("group") is not None for row in run.rows):
        among["same scene"] = scenes[:, None] == scenes[None, :]
    for (pairs, together), (low, high) in itertools.product(among.items(), itertools.pairwise(APART)):
        chosen = (np.abs(apart) > low) & (np.abs(apart) <= high) & together
        label = f"{low:g} to {high:g}" if high < math.inf else f"beyond {low:g}"
        if chosen.any():
            yield {"pairs": pairs, "by": "levels apart", "bin": label, **_share(chosen, right, draws)}

    first, second = np.nonzero(apart)
    if len(first) > PAIRS:
        drawn = rng.choice(len(first), PAIRS, replace=False)
        first, second = first[drawn], second[drawn]
    better = np.array([_better(values[a], values[b]) for a, b in zip(first, second, strict=True)])
    confidence, right = np.maximum(better, 1 - better), np.zeros_like(right)
    right[first, second] = np.where(better == 0.5, 0.5, (better > 0.5) == (apart[first, second] > 0))
    place = np.clip(np.searchsorted(CONFIDENCE, confidence, side="right") - 1, 0, len(CONFIDENCE) - 2)
    for i, (low, high) in enumerate(itertools.pairwise(CONFIDENCE)):
        chosen = np.zeros(right.shape, bool)
        chosen[first[place == i], second[place == i]] = True
        if chosen.any():
            line = {"pairs": "all", "by": "probability of the likelier", "bin": f"{low:g} to {high:g}"}
            yield line | _share(chosen, right, draws, expected=mean(confidence[place == i]))


def _share(chosen: np.ndarray, right: np.ndarray, draws: Draws, expected: float = math.nan) -> dict[str, Any]:
    """The share of the `chosen` pairs, (pictures, pictures), that is `right`, with the interval over the draws: a pair
    counts as often as a draw holds both pictures, and once a copy where they share a unit."""
    together = chosen & (draws.unit[:, None] == draws.unit[None, :])
    apart, weights = (chosen & ~together).astype(np.float32), draws.weights.astype(np.float32)
    sums = [
        ((weights @ (apart * of)) * weights).sum(axis=1) + weights @ (together * of).sum(axis=1)
        for of in (right.astype(np.float32), np.ones_like(apart))
    ]
    shares = sums[0][sums[1] > 0] / sums[1][sums[1] > 0]
    low, high = np.quantile(shares, [0.025, 0.975]) if len(shares) else (math.nan, math.nan)
    count, share = int(chosen.sum()), mean(right[chosen])
    return {"n": count, "expected": expected, "right": share, "right_low": float(low), "right_high": float(high)}


def _better(one: np.ndarray, other: np.ndarray) -> float:
    """The probability that a draw of one, (values,), is above one of the other, both rising; equal ones count half."""
    below = np.searchsorted(other, one) + np.searchsorted(other, one, side="right")
    return float(below.mean() / 2 / len(other))
