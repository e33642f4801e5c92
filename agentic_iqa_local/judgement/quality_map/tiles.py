"""Which tiles of a picture are read for a map of its quality, and how their scores become a grid of cells.

Knows no model: sizes and limits are passed in.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels

BLOCK = 8  # a JPEG's blocks keep their place in the model's patches
FEWEST = 3  # tiles along a side: with fewer no part of the picture stands out against a rest


@dataclass(frozen=True)
class Tiling:
    """Overlapping tiles of a picture and the cells that they score, all in pixels.

    `lefts` and `tops` are where tiles begin, in columns and rows; `xs` and `ys` the edges of the cells. A
    cell is smaller than a tile: what lies around it is the context in which it is judged.
    """

    tile: int
    lefts: tuple[int, ...]
    tops: tuple[int, ...]
    xs: tuple[int, ...]
    ys: tuple[int, ...]

    @property
    def boxes(self) -> list[Box]:
        """The tiles, row by row."""
        return [
            (left, top, left + self.tile, top + self.tile)
            for top, left in itertools.product(self.tops, self.lefts)
        ]

    @property
    def stride(self) -> int:
        """The widest step between neighbours."""
        steps = [b - a for starts in (self.lefts, self.tops) for a, b in itertools.pairwise(starts)]
        return max(steps)

    def order(self) -> list[int]:
        """The tiles' numbers in the order to read them: every other one of every other row first, so that
        those that are read before the time is up are spread over the picture."""
        rows, columns = len(self.tops), len(self.lefts)
        return [
            row * columns + column
            for first_row, first_column in ((0, 0), (1, 1), (0, 1), (1, 0))
            for row in range(first_row, rows, 2)
            for column in range(first_column, columns, 2)
        ]

    def cells(self, scores: Sequence[float | None]) -> np.ndarray:
        """rows×columns float64: of each cell the mean of the tiles' scores (one for each of `boxes`; None
        where a tile was not read), weighted by how much of the cell each covers; nan where none does."""
        known = np.array([score is not None for score in scores], float).reshape(len(self.tops), -1)
        values = np.array([score or 0.0 for score in scores]).reshape(known.shape)
        down, across = _overlaps(self.ys, self.tops, self.tile), _overlaps(self.xs, self.lefts, self.tile)
        weights = down @ known @ across.T
        with np.errstate(invalid="ignore"):
            return np.where(weights > 0, (down @ (values * known) @ across.T) / weights, np.nan)

    def resampled(self, grid: np.ndarray) -> np.ndarray:
        """rows×columns float64: the mean in each cell of another grid, whose cells are of equal size and
        cover the picture."""
        down, across = (
            _shares(edges, length) for edges, length in ((self.ys, grid.shape[0]), (self.xs, grid.shape[1]))
        )
        return down @ grid @ across.T


def _overlaps(edges: Sequence[int], starts: Sequence[int], tile: int) -> np.ndarray:
    """cells×tiles: the pixels that each cell and each tile share along one side."""
    low, high = np.array(edges[:-1])[:, None], np.array(edges[1:])[:, None]
    begin = np.array(starts)[None]
    return np.clip(np.minimum(high, begin + tile) - np.maximum(low, begin), 0, None).astype(float)


def _shares(edges: Sequence[int], count: int) -> np.ndarray:
    """cells×count: how much of each cell lies in each of `count` equal parts of the side; rows sum to 1."""
    parts = np.linspace(0, edges[-1], count + 1)
    low, high = np.array(edges[:-1])[:, None], np.array(edges[1:])[:, None]
    shared = np.clip(np.minimum(high, parts[1:]) - np.maximum(low, parts[:-1]), 0, None)
    return shared / shared.sum(1, keepdims=True)


def tiling(width: int, height: int, sides: Sequence[int], max_tiles: int) -> Tiling | None:
    """At most `max_tiles` tiles of the smallest of `sides` (rising, in pixels) that cover width×height, half
    overlapping where that many are allowed and less where not; None where the picture is too small for
    FEWEST tiles along a side.

    Tiles begin at multiples of 8 and are spread evenly; up to 7 pixels at the right and lower edge are in no
    tile.
    """
    fitting = [side for side in sides if min(width, height) >= smallest_side(side)]
    for side in fitting:
        whole_steps = [max(FEWEST, -(-(length - side) // (side // 2)) + 1) for length in (width, height)]
        fewest = [max(FEWEST, -(-length // side)) for length in (width, height)]
        if fewest[0] * fewest[1] > max_tiles:
            continue
        columns, rows = _at_most(whole_steps, fewest, max_tiles)
        return Tiling(
            side,
            _starts(width, side, columns),
            _starts(height, side, rows),
            _edges(width, columns),
            _edges(height, rows),
        )
    return None


def smallest_side(tile: int) -> int:
    """The side of the smallest picture that has FEWEST tiles along it, each half over the next."""
    return tile + (FEWEST - 1) * (tile // 2) // BLOCK * BLOCK


def _at_most(wanted: Sequence[int], fewest: Sequence[int], most: int) -> tuple[int, int]:
    """(columns, rows): as near to `wanted` as allows for at most `most` tiles, and no fewer than `fewest`."""
    columns, rows = wanted
    while columns * rows > most:
        if (columns / fewest[0] >= rows / fewest[1] and columns > fewest[0]) or rows == fewest[1]:
            columns -= 1
        else:
            rows -= 1
    return columns, rows


def _starts(length: int, tile: int, count: int) -> tuple[int, ...]:
    last = length - tile
    return tuple(int(last * i / (count - 1)) // BLOCK * BLOCK for i in range(count))


def _edges(length: int, count: int) -> tuple[int, ...]:
    return tuple(round(length * i / count) for i in range(count + 1))
