"""Which pictures are near-duplicates, which pairs of pictures are worth comparing, and the order
that follows.

Near-duplicates (frames of a burst; copies that were compressed, retouched or resized) have similar
perceptual hashes (pHash: Zauner, 2010; the library imagehash), since noise, blur, compression and
size hardly move the lowest frequencies. The order is Bradley and Terry's (Biometrika, 1952): P(i is
better than j) is the sigmoid of the difference of their strengths. The library choix finds these
(Maystre and Grossglauser, NeurIPS 2015); a comparison that is probable rather than decided counts
in part for either side.
"""

import itertools
from collections.abc import Mapping, Sequence

import choix
import imagehash
import numpy as np
from PIL import Image
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform

HASH_SIDE = 16  # frequencies a side: 256 bits
MOST_DIFFERENT = 80 / HASH_SIDE**2
"""Share of bits that may differ between two pictures of one scene. Set on training photographs: a
distortion of severity 5, a crop of 95 % or a turn by 2° changes at most 76 bits of 256; two
photographs differ in at least 88."""

PAIRS_PER_PICTURE = 3
NEAR = 4  # places in the order by prior strength
MOST_PICTURES = 2000  # the comparisons are kept as a square matrix
REGULARISATION = 1e-7  # of the strengths, which else could grow beyond numbers
SURE = 0.999  # a comparison counts for no more, so that the strengths stay finite


def fingerprint(image: Image.Image) -> np.ndarray:
    """The perceptual hash of an upright RGB picture, (256,) bool."""
    return imagehash.phash(image, hash_size=HASH_SIDE).hash.ravel()


def scene_distance(one: np.ndarray, other: np.ndarray) -> float:
    """The share of bits in which two fingerprints differ, 0..1: up to MOST_DIFFERENT for
    near-duplicates, about 0.5 for pictures of other subjects."""
    return float(np.mean(one != other))


def scene_groups(
    fingerprints: Sequence[np.ndarray], linked: Sequence[tuple[int, int]] = ()
) -> list[list[int]]:
    """The pictures' numbers in groups of near-duplicates, and of those that are `linked` otherwise:
    two pictures that are linked by neighbours belong together. Groups and their members keep the
    pictures' order."""
    if not fingerprints:
        return []
    near = squareform(pdist(np.array(fingerprints), "hamming")) <= MOST_DIFFERENT
    for one, other in linked:
        near[one, other] = True
    groups: dict[int, list[int]] = {}
    for picture, label in enumerate(connected_components(near, directed=False)[1].tolist()):
        groups.setdefault(label, []).append(picture)
    return list(groups.values())


def pairs_to_compare(prior: Sequence[float]) -> list[tuple[int, int]]:
    """At most PAIRS_PER_PICTURE·n pairs of n pictures; the better one by `prior` stands first.

    They are all neighbours in the order by prior strength, so that every two pictures are linked;
    one link of each picture over 2, 4, 8, ... places, since along neighbours alone errors would add
    up; and then the nearest others.
    """
    count = len(prior)
    order = sorted(range(count), key=lambda i: -prior[i])
    chosen = dict.fromkeys(itertools.pairwise(order))
    powers = max((count - 1).bit_length() - 1, 0)  # 2, 4, ... below the count
    for place in range(count if powers else 0):
        end = place + 2 ** (place % powers + 1)
        if end < count:
            chosen[order[place], order[end]] = None
    for apart in range(2, NEAR + 1):
        chosen |= dict.fromkeys(zip(order, order[apart:], strict=False))
    return list(chosen)[: PAIRS_PER_PICTURE * count]


def strengths(ahead: Mapping[tuple[int, int], float], prior: Sequence[float]) -> np.ndarray:
    """Bradley–Terry strengths, (pictures,), of mean 0, from the probabilities that i is better than
    j and j than i, of pairs that link all pictures. `prior`: where the search starts,
    (pictures,)."""
    pictures = len(prior)
    if pictures < 2:
        return np.zeros(pictures)
    wins = np.zeros((pictures, pictures))
    for (i, j), p in ahead.items():
        wins[i, j] = np.clip(p, 1 - SURE, SURE)
    start = np.array(prior, np.float64) - float(np.mean(prior))
    return choix.ilsr_pairwise_dense(
        wins, alpha=REGULARISATION, initial_params=start, max_iter=1000, tol=1e-6
    )
