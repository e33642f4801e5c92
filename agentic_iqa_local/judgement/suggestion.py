"""Which picture a person should rate next: the one that would teach most about all the others."""

from collections.abc import Sequence

import numpy as np

from agentic_iqa_local.iqa_tools.eye import Standard

NOISE = 1000.0  # variance of a rating's error, in units of a standardised statistic's weight


def most_informative(
    statistics: np.ndarray, rated: Sequence[int], candidates: Sequence[int]
) -> int:
    """The candidate whose rating would lower the variance of a ridge regression's levels of all
    pictures most (the V-optimal next experiment: Yu, Bi and Tresp, ICML 2006). Ratings themselves
    do not change it, so the next but one can be told too.

    Args:
        statistics: LocalNR's, of all pictures, (n, d).
        rated: Numbers of the pictures that have a rating.
        candidates: Numbers of those that may be next, at least one.
    """
    standardised = Standard.of(statistics)(statistics)
    covariance = standardised @ standardised.T
    if rated:
        known = list(rated)
        of_known = covariance[:, known]
        noisy = covariance[np.ix_(known, known)] + NOISE * np.eye(len(known))
        covariance = covariance - of_known @ np.linalg.solve(noisy, of_known.T)
    asked = list(candidates)
    gain = (covariance[:, asked] ** 2).sum(0) / (covariance[asked, asked] + NOISE)
    return asked[int(gain.argmax())]
