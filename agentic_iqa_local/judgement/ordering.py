"""Which pairs of pictures are worth comparing, and which order follows from how the comparisons came out?

The order is Bradley and Terry's (Biometrika, 1952): each picture has a strength, and P(i is better than j) is
the sigmoid of the difference. The library choix finds the strengths (iterative Luce spectral ranking, Maystre
and Grossglauser, NeurIPS 2015); a comparison that is probable rather than decided counts in part for either
side.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import choix
import numpy as np

PAIRS_PER_PICTURE = 3
NEAR = 4  # places in the order by prior strength
MOST_PICTURES = 2000  # the comparisons are kept as a square matrix
REGULARISATION = 1e-7  # of the strengths, which else could grow beyond numbers
SURE = 0.999  # a comparison counts for no more, so that the strengths stay finite


def pairs_to_compare(
    prior: Sequence[float], probability: Callable[[int, int], float], per_picture: int = PAIRS_PER_PICTURE
) -> list[tuple[int, int]]:
    """At most `per_picture`·n pairs of the n pictures whose prior strengths are given (greater is better):
    all neighbours in their order, so that every two pictures are linked; one link of each over 2, 4, 8, ...
    places, since along neighbours alone errors would add up; and of the pairs up to NEAR places apart those
    whose `probability` is nearest to ½. The better picture by `prior` stands first."""
    order = sorted(range(len(prior)), key=lambda i: -prior[i])
    neighbours = list(itertools.pairwise(order))
    reaches = [2**k for k in range(1, len(order).bit_length()) if 2**k < len(order)]
    links: dict[tuple[int, int], None] = {}
    for place in range(len(order)):
        reach = reaches[place % len(reaches)] if reaches else 0
        if reach and place + reach < len(order):
            links[order[place], order[place + reach]] = None
    others = [
        pair
        for apart in range(2, NEAR + 1)
        for pair in zip(order, order[apart:], strict=False)
        if pair not in links
    ]
    others.sort(key=lambda pair: abs(probability(*pair) - 0.5))
    chosen = [*neighbours, *links]
    return chosen + others[: max(0, per_picture * len(order) - len(chosen))]


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
    start = np.array(prior, np.float64) - float(np.mean(prior))
    return choix.ilsr_pairwise_dense(
        wins, alpha=REGULARISATION, initial_params=start, max_iter=1000, tol=1e-6
    )
