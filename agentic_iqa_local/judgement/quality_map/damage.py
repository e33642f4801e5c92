"""Which parts of a map are clearly worse than the rest of the picture."""

import numpy as np

from agentic_iqa_local.judgement.quality_map.result import DamagedBox
from agentic_iqa_local.judgement.quality_map.tiles import Box, Tiling

MOST_BOXES = 3
CLEARLY = 0.4  # levels below the map's median; about one clean photograph in fifteen has a part that is


def damaged_boxes(tiles: Tiling, cells: np.ndarray) -> list[DamagedBox]:
    """At most MOST_BOXES windows of about a tile's size that do not overlap, the worst first, each CLEARLY
    below the median of `cells` (rows×columns of quality, nan where nothing was read)."""
    median, found = float(np.nanmedian(cells)), []
    left = windows(tiles, cells)
    while left and len(found) < MOST_BOXES:
        q, box = left[0]
        if median - q < CLEARLY:
            break
        place = place_in(box, tiles.xs[-1], tiles.ys[-1])
        found.append(DamagedBox(box=box, place=place, q=q, below=median - q))
        left = [(other, place) for other, place in left if not _overlap(place, box)]
    return found


def place_in(box: Box, width: int, height: int) -> str:
    """Which ninth of a picture the centre of a part lies in, in words."""
    left, top, right, bottom = box
    column = ("left", "", "right")[min(2, 3 * (left + right) // (2 * width))]
    row = ("top", "", "bottom")[min(2, 3 * (top + bottom) // (2 * height))]
    return f"{row} {column}".strip() or "middle"


def windows(tiles: Tiling, cells: np.ndarray) -> list[tuple[float, Box]]:
    """(mean quality, box) of every window of whole cells that is about as large as a tile, worst first."""
    rows, columns = cells.shape
    high = max(1, round(tiles.tile * rows / tiles.ys[-1]))
    wide = max(1, round(tiles.tile * columns / tiles.xs[-1]))
    found = []
    for row in range(rows - high + 1):
        for column in range(columns - wide + 1):
            part = cells[row : row + high, column : column + wide]
            if not np.isnan(part).any():
                left, top = tiles.xs[column], tiles.ys[row]
                box = left, top, tiles.xs[column + wide], tiles.ys[row + high]
                found.append((float(part.mean()), box))
    return sorted(found)


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
