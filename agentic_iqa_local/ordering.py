"""Which pairs of pictures are worth comparing, and which order follows from how the comparisons came out?

The order is Bradley and Terry's (Biometrika, 1952): each picture has a strength, and P(i is better than j) is
the sigmoid of the difference. The library choix finds the strengths (iterative Luce spectral ranking, Maystre
and Grossglauser, NeurIPS 2015); a comparison that is probable rather than decided counts in part for either
side.
"""

from collections.abc import Callable, Mapping, Sequence

import choix
import numpy as np

PAIRS_PER_PICTURE = 3
NEAR = 4  # places in the order by prior strength: pairs that lie farther apart tell little
MOST_PICTURES = 2000  # the comparisons are kept as a square matrix
SURE = 0.999  # a comparison counts for no more, so that the strengths stay finite


def pairs_to_compare(
    prior: Sequence[float], probability: Callable[[int, int], float], per_picture: int = PAIRS_PER_PICTURE
) -> list[tuple[int, int]]:
    """At most `per_picture`·n pairs of the n pictures whose prior strengths are given (greater is better):
    all neighbours in their order, so that every two pictures are linked, and of those up to NEAR places apart
    the ones whose `probability` is nearest to ½. The better picture by `prior` stands first."""
    order = sorted(range(len(prior)), key=lambda i: -prior[i])
    neighbours = list(zip(order, order[1:], strict=False))
    others = [
        (order[place], order[place + apart])
        for apart in range(2, NEAR + 1)
        for place in range(len(order) - apart)
    ]
    others.sort(key=lambda pair: abs(probability(*pair) - 0.5))
    return neighbours + others[: max(0, per_picture * len(order) - len(neighbours))]


def strengths(
    pictures: int, comparisons: Mapping[tuple[int, int], float], prior: Sequence[float]
) -> np.ndarray:
    """Bradley–Terry strengths, (pictures,), of mean 0: `comparisons` gives for pairs (i, j) the probability
    that i is better. They must link all pictures. `prior` is where the search starts."""
    if pictures < 2:
        return np.zeros(pictures)
    wins = np.zeros((pictures, pictures))
    for (i, j), p in comparisons.items():
        wins[i, j] = min(SURE, max(1 - SURE, p))
        wins[j, i] = 1 - wins[i, j]
    start = np.array(prior) - np.mean(prior)
    return choix.ilsr_pairwise_dense(wins, initial_params=start, max_iter=1000, tol=1e-6)
