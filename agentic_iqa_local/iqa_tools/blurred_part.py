"""A part of a picture that is blurred or smeared on its own: the rectangle at whose sides detail
ends most abruptly, which no lens does.

Shallow focus sets in slowly, or at the outline of a thing where coarse contrast changes too. So the
step of fine detail at each side is taken less half the step of coarse contrast, and a part counts
by its least step beside the mean. What the numbers are worth stands in
configs/detector_measures.json (scripts/training/measures.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

CELL, MOST_CELLS = 8, 64  # pixels a side of a cell at least, and cells along the shorter side
FEWEST_CELLS = 24  # along a side; a smaller picture has too few to tell
SHARES = (0.25, 1 / 3, 0.42)  # of the picture's sides, that a part has
STRIP = 2  # cells within and without a side that are compared
FAINT = 0.15  # steps of 255: a change below it says no more, added before the logarithm
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
SHARPEST = 0.98  # quantile of the cells of a part
NONE = {
    "step of detail": 0.0,
    "detail in part": 0.0,
    "contrast in part": 0.0,
    "part x": 0.5,
    "part y": 0.5,
}


@dataclass(frozen=True)
class _Part:
    """A window of cells: how abruptly detail ends at its sides, and where it lies."""

    step: float
    top: int
    left: int
    rows: int
    columns: int


def blurred_part(luma: np.ndarray) -> dict[str, float]:
    """Of H×W luma, 0..255: the step of detail at the sides of the part that ends most abruptly, its
    sharpest cell's detail and its mean coarse contrast (logarithms of steps of 255), and where its
    centre lies, 0..1 from the left and from the top. No step for a picture that is too small."""
    side = max(CELL, min(luma.shape) // MOST_CELLS)
    if min(luma.shape) < side * FEWEST_CELLS:
        return dict(NONE)
    fine = np.log(_detail(luma, side) + FAINT)
    coarse = np.log(_contrast(_means(luma, side)) + FAINT)
    part = max(_candidates(fine, coarse), key=lambda one: one.step)
    place = slice(part.top, part.top + part.rows), slice(part.left, part.left + part.columns)
    return {
        "step of detail": part.step,
        "detail in part": float(np.quantile(fine[place], SHARPEST)),
        "contrast in part": float(coarse[place].mean()),
        "part x": (part.left + part.columns / 2) / fine.shape[1],
        "part y": (part.top + part.rows / 2) / fine.shape[0],
    }


def _detail(luma: np.ndarray, side: int) -> np.ndarray:
    """The mean second difference, over four directions, of each cell."""
    height, width = luma.shape
    middle = 2 * luma[1:-1, 1:-1]
    total = np.zeros_like(luma)
    for down, right in DIRECTIONS:
        after = luma[1 + down : height - 1 + down, 1 + right : width - 1 + right]
        before = luma[1 - down : height - 1 - down, 1 - right : width - 1 - right]
        total[1:-1, 1:-1] += np.abs(middle - after - before)
    return _means(total, side) / len(DIRECTIONS)


def _contrast(means: np.ndarray) -> np.ndarray:
    """How much the means of neighbouring cells differ."""
    down, right = np.gradient(means)
    return np.hypot(down, right)


def _means(values: np.ndarray, side: int) -> np.ndarray:
    rows, columns = values.shape[0] // side, values.shape[1] // side
    whole = values[: rows * side, : columns * side]
    return whole.reshape(rows, side, columns, side).mean((1, 3))


def _candidates(fine: np.ndarray, coarse: np.ndarray) -> Iterator[_Part]:
    """Of each size the window with the greatest step."""
    for share in SHARES:
        rows, columns = (round(share * count) for count in fine.shape)
        steps = _steps(fine, rows, columns) - _steps(coarse, rows, columns) / 2
        step = np.nanmin(steps, 0) + np.nanmean(steps, 0) / 2
        top, left = np.unravel_index(step.argmax(), step.shape)
        yield _Part(float(step[top, left]), int(top), int(left), rows, columns)


def _steps(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """4×windows: at the upper, lower, left and right side of each window the mean of the cells
    outside less that of the cells inside; nan at a side on the picture's own border."""
    across, along = _sums(values, STRIP, columns), _sums(values, rows, STRIP)
    tops, lefts = values.shape[0] - rows + 1, values.shape[1] - columns + 1
    steps = np.full((4, tops, lefts), np.nan)
    upper, lower = across[:tops], across[rows - STRIP :]
    left, right = along[:, :lefts], along[:, columns - STRIP :]
    steps[0, STRIP:] = upper[:-STRIP] - upper[STRIP:]
    steps[1, :-STRIP] = lower[STRIP:] - lower[:-STRIP]
    steps[2, :, STRIP:] = left[:, :-STRIP] - left[:, STRIP:]
    steps[3, :, :-STRIP] = right[:, STRIP:] - right[:, :-STRIP]
    return steps


def _sums(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The mean of each window of rows×columns."""
    sums = np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    whole = sums[rows:, columns:] - sums[:-rows, columns:]
    return (whole - sums[rows:, :-columns] + sums[:-rows, :-columns]) / (rows * columns)
