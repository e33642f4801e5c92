"""Do two pictures show the same scene? Perceptual hashes tell near-duplicates: the frames of a burst, copies
that were compressed, retouched or resized.

The hash is pHash (Zauner, 2010; the library imagehash): which of the lowest 16×16 frequencies of the reduced
grey picture lie above their median. Noise, blur, compression and size hardly move it; another subject moves
about half of its bits. A crop moves it the more the more it leaves out.
"""

from collections.abc import Sequence

import imagehash
import numpy as np
from PIL import Image
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

HASH_SIDE = 16  # frequencies a side: 256 bits
MOST_DIFFERENT = 80 / HASH_SIDE**2
"""Share of bits that may differ between two pictures of one scene. Set on training photographs: a
distortion of severity 5, a crop of 95 % or a turn by 2° changes at most 76 bits of 256, while two photographs
differ in at least 88."""


def fingerprint(image: Image.Image) -> np.ndarray:
    """The perceptual hash of an upright RGB picture, (256,) bool."""
    return imagehash.phash(image, hash_size=HASH_SIDE).hash.ravel()


def scene_distance(one: np.ndarray, other: np.ndarray) -> float:
    """The share of bits in which two fingerprints differ, 0..1; about 0.5 for pictures of other subjects."""
    return float(np.mean(one != other))


def same_scene(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two fingerprints are of near-duplicates."""
    return scene_distance(one, other) <= MOST_DIFFERENT


def scene_groups(fingerprints: Sequence[np.ndarray]) -> list[list[int]]:
    """The pictures' numbers in groups of near-duplicates: two that are linked by neighbours belong together.
    Groups and what is in them keep the pictures' order."""
    if not fingerprints:
        return []
    bits = np.array(fingerprints)
    rows, columns = [], []
    for i in range(len(bits) - 1):
        near = np.flatnonzero((bits[i + 1 :] != bits[i]).mean(axis=1) <= MOST_DIFFERENT) + i + 1
        rows += [i] * len(near)
        columns += near.tolist()
    links = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(bits), len(bits)))
    _, labels = connected_components(links, directed=False)
    groups: dict[int, list[int]] = {}
    for i, label in enumerate(labels.tolist()):
        groups.setdefault(label, []).append(i)
    return list(groups.values())
