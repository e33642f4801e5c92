"""Which picture a person should rate next: the one that would teach most about all the others."""

from collections.abc import Sequence

import numpy as np

from agentic_iqa_local.iqa_tools.eye import Standard

AXES = 30  # principal axes of the statistics that count
NOISE = 0.1  # variance of a rating's error, in units of the mean variance of levels


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
    covariance = _covariance(Standard.of(statistics)(statistics))
    noise = NOISE * float(covariance.diagonal().mean()) or 1.0  # 0 where all pictures are the same
    if rated:
        known = list(rated)
        of_known = covariance[:, known]
        noisy = covariance[np.ix_(known, known)] + noise * np.eye(len(known))
        covariance = covariance - of_known @ np.linalg.solve(noisy, of_known.T)
    asked = list(candidates)
    gain = (covariance[:, asked] ** 2).sum(0) / (covariance[asked, asked] + noise)
    return asked[int(gain.argmax())]


def _covariance(standardised: np.ndarray) -> np.ndarray:
    """Of the levels of pictures, (n, n), if the weights of the first principal axes of their
    statistics are independent and of variance 1."""
    centred = standardised - standardised.mean(0)
    values, axes = np.linalg.eigh(centred @ centred.T)
    return axes[:, -AXES:] * values[-AXES:] @ axes[:, -AXES:].T
