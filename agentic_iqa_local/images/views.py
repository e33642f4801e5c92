"""Which parts of an image a model or a tool gets at native resolution.

Knows no model: sizes, factors and limits are passed in.
"""

import math
from dataclasses import dataclass

_JPEG_BLOCK = 8
_MAX_ASPECT = 100  # Qwen's processors refuse sides beyond 200:1, and rounding may stretch them


@dataclass(frozen=True)
class View:
    """A part of the upright image that goes to the model at native resolution."""

    box: tuple[int, int, int, int]  # left, top, right, bottom in pixels, as for Image.crop


def native_views(
    width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int, max_views: int = 5
) -> list[View]:
    """The resolution contract: the views of an image that reach the model without being shrunk or resampled.

    Blur, noise, ringing and blocking live at the scale of single pixels. A processor rounds each side to a
    multiple of `factor` (patch × merge, e.g. 28 or 32) and scales anything beyond `max_pixels` down, and that
    resampling erases what is to be judged. So each view has sides that are multiples of `factor` and at most
    `max_pixels`, and the processor leaves it alone.

    - An image that fits, once cropped about its centre to multiples of `factor`: that crop.
    - A larger one: up to `max_views` (1 to 5) crops of one size, with about the image's aspect but at most
      100:1. Their centres are the image's centre, then those of its top left, bottom right, top right and
      bottom left quarter, moved inwards where the crop would leave the image. Crops that coincide are given
      once.
    - An image whose crop would have fewer than `min_pixels`, or a side below `factor`: one view of all of it,
      which the processor enlarges, so the caller warns. A side that the processor would round down is cropped
      to the multiple below (it loses half a `factor` at most), so that nothing is shrunk here either.

    Offsets are multiples of 8: a JPEG's blocks keep their place in the model's patches. Sizes are in pixels,
    the result is deterministic. Raises ValueError for a size or a limit that allows no view.
    """
    if (
        min(width, height, factor) < 1
        or not 1 <= max_views <= 5
        or max_pixels < factor**2 <= min(width, height) ** 2
    ):
        raise ValueError(
            "native_views: expected positive sides, max_pixels of at least factor² and max_views from 1 to"
            f" 5, got {width}x{height}, {factor=}, {max_pixels=}, {max_views=}; correct the limits."
        )
    whole = width - width % factor, height - height % factor
    if math.prod(whole) < min_pixels or 0 in whole:
        whole = size = _side_rounded_up(width, factor), _side_rounded_up(height, factor)
    else:
        size = _view_size(*whole, factor, max_pixels)
    quarters = [(2, 2)] if size == whole else [(2, 2), (1, 1), (3, 3), (3, 1), (1, 3)]
    boxes = []
    for x, y in quarters:
        left, top = _offset(width, size[0], x), _offset(height, size[1], y)
        boxes.append((left, top, left + size[0], top + size[1]))
    return [View(box) for box in dict.fromkeys(boxes)][:max_views]


def _side_rounded_up(side: int, factor: int) -> int:
    """`side` if rounding it to a multiple of `factor` enlarges it, else the multiple below. Half may be
    rounded either way."""
    rest = side % factor
    return side if side < factor or 2 * rest > factor else side - rest


def _view_size(width: int, height: int, factor: int, max_pixels: int) -> tuple[int, int]:
    """The sides of a view of an image of width × height, both multiples of `factor`."""
    if width * height <= max_pixels and max(width, height) <= _MAX_ASPECT * min(width, height):
        return width, height
    sizes = []
    for view_height in range(factor, min(height, max_pixels // factor) + 1, factor):
        view_width = min(width, max_pixels // view_height, _MAX_ASPECT * view_height) // factor * factor
        if view_height <= _MAX_ASPECT * view_width:
            sizes.append((view_width, view_height))
    return min(sizes, key=lambda size: abs(math.log(size[0] * height / (size[1] * width))))


def _offset(side: int, view_side: int, quarter: int) -> int:
    """Where a view starts whose centre is at `quarter`/4 of the side, moved inside the image."""
    start = min(max(side * quarter // 4 - view_side // 2, 0), side - view_side)
    return start // _JPEG_BLOCK * _JPEG_BLOCK
