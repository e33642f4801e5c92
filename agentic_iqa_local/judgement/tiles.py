"""Which tiles of a picture a map of its quality reads, how their scores become a grid of cells, and
which parts of the grid are clearly worse than the rest. Knows no model: sizes and limits are passed
in. Lengths are in pixels."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from agentic_iqa_local.state import Box, DamagedBox, ninth

BLOCK = 8  # a JPEG's blocks keep their place in the model's patches
FEWEST = 3  # tiles along a side: with fewer no part of the picture stands out against a rest
MOST_BOXES = 3
# levels below the map's median; about one clean photograph in fifteen has a part that is
CLEARLY = 0.4


@dataclass(frozen=True)
class Tiling:
    """Overlapping tiles of a picture, where they begin (`lefts`, `tops`), and the edges `xs`, `ys`
    of the cells that they score. A cell is smaller than a tile: what lies around it is the context
    in which it is judged."""

    tile: int
    lefts: tuple[int, ...]
    tops: tuple[int, ...]
    xs: tuple[int, ...]
    ys: tuple[int, ...]

    @property
    def boxes(self) -> list[Box]:
        """The tiles, row by row."""
        return [(x, y, x + self.tile, y + self.tile) for y in self.tops for x in self.lefts]

    @property
    def stride(self) -> int:
        """The widest step between neighbours."""
        return max(
            b - a for starts in (self.lefts, self.tops) for a, b in itertools.pairwise(starts)
        )

    def cells(self, scores: np.ndarray) -> np.ndarray:
        """The grid of the tiles' scores, (tiles,); rows×columns float64: of each cell the mean of
        the tiles weighted by how much of the cell each covers."""
        down, across = (
            _shared(self.ys, self.tops, self.tile),
            _shared(self.xs, self.lefts, self.tile),
        )
        values = scores.reshape(len(self.tops), -1)
        return (down @ values @ across.T) / (down @ np.ones_like(values) @ across.T)

    def resampled(self, grid: np.ndarray) -> np.ndarray:
        """The mean in each cell of another grid, whose cells are of equal size and cover the
        picture, rows×columns float64."""
        shares = []
        for edges, count in zip((self.ys, self.xs), grid.shape, strict=True):
            side = edges[-1] / count
            shared = _shared(edges, np.arange(count) * side, side)
            shares.append(shared / shared.sum(1, keepdims=True))
        return shares[0] @ grid @ shares[1].T


def _shared(edges: Sequence[int], starts: Sequence[int] | np.ndarray, length: float) -> np.ndarray:
    """The pixels that each cell shares along one side with each part of that `length`,
    cells×parts."""
    low, high = np.array(edges[:-1], float)[:, None], np.array(edges[1:])[:, None]
    return np.clip(np.minimum(high, np.array(starts) + length) - np.maximum(low, starts), 0, None)


def tiling(width: int, height: int, sides: Sequence[int], max_tiles: int) -> Tiling | None:
    """At most `max_tiles` tiles of the smallest of `sides` (rising) that cover width×height; None
    where the picture is too small for FEWEST tiles along a side, or too large.

    They overlap by half where that many are allowed and by less where not, begin at multiples of 8
    and are spread evenly; up to 7 pixels at the right and lower edge are in no tile.
    """
    for side in sides:
        columns, rows = _counts((width, height), side, max_tiles)
        if min(width, height) >= smallest_side(side) and columns * rows <= max_tiles:
            sizes = ((width, columns), (height, rows))
            starts = [
                [int((length - side) * i / (n - 1)) // BLOCK * BLOCK for i in range(n)]
                for length, n in sizes
            ]
            edges = [[round(length * i / n) for i in range(n + 1)] for length, n in sizes]
            return Tiling(side, *map(tuple, starts + edges))
    return None


def _counts(size: tuple[int, int], side: int, most: int) -> tuple[int, int]:
    """How many columns and rows of tiles there are: half overlapping, or as many as `most` tiles
    allow, or as few as cover the picture."""
    fewest = [max(FEWEST, -(-length // side)) for length in size]
    columns, rows = (max(FEWEST, -(-(length - side) // (side // 2)) + 1) for length in size)
    while columns * rows > most and [columns, rows] != fewest:
        if (columns / fewest[0] >= rows / fewest[1] and columns > fewest[0]) or rows == fewest[1]:
            columns -= 1
        else:
            rows -= 1
    return columns, rows


def smallest_side(tile: int) -> int:
    """The side of the smallest picture that has FEWEST tiles along it, each half over the next."""
    return tile + (FEWEST - 1) * (tile // 2) // BLOCK * BLOCK


def damaged_boxes(tiles: Tiling, cells: np.ndarray) -> list[DamagedBox]:
    """At most MOST_BOXES windows of about a tile's size that do not overlap, the worst first, each
    CLEARLY below the median of `cells` (rows×columns of quality)."""
    rows, columns = cells.shape
    xs, ys, median = tiles.xs, tiles.ys, float(np.median(cells))
    high = max(1, round(tiles.tile * rows / ys[-1]))
    wide = max(1, round(tiles.tile * columns / xs[-1]))
    windows = sliding_window_view(cells, (high, wide)).mean((2, 3))
    chosen: list[DamagedBox] = []
    while len(chosen) < MOST_BOXES and windows.min() <= median - CLEARLY:
        top, left = (int(i) for i in np.unravel_index(windows.argmin(), windows.shape))
        q = float(windows[top, left])
        box = (xs[left], ys[top], xs[left + wide], ys[top + high])
        place = ninth(box, xs[-1], ys[-1])
        chosen.append(DamagedBox(box=box, place=place, q=q, below=median - q))
        # what overlaps it is taken
        windows[max(0, top - high + 1) : top + high, max(0, left - wide + 1) : left + wide] = np.inf
    return chosen
