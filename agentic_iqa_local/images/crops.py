"""Which parts of an image a model or a tool gets at native resolution. Knows neither: limits are passed in."""

import math

_JPEG_BLOCK = 8
_MAX_ASPECT = 100  # Qwen's processors refuse sides beyond 200:1, and rounding may stretch them
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels, as for Image.crop


def native_views(
    width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int, max_views: int = 5
) -> list[Box]:
    """The views of an image that reach the model without being shrunk or resampled.

    A processor rounds each side to a multiple of `factor` (patch × merge, e.g. 28 or 32) and scales anything
    beyond `max_pixels` (at least factor²) down, which erases the blur, noise or blocking to be judged.

    - An image that fits: its crop about the centre to multiples of `factor`.
    - A larger one: up to `max_views` (1 to 5) crops of one size, with about its aspect but at most 100:1, at
      its centre and at those of its top left, bottom right, top right and bottom left quarter, moved inside.
    - One with fewer than `min_pixels`, or a side below `factor`: a view of all of it, which the processor enlarges.

    Offsets are multiples of 8: a JPEG's blocks keep their place in the model's patches.
    """
    whole = width - width % factor, height - height % factor
    if math.prod(whole) < min_pixels or 0 in whole:
        # a side stays as it is where rounding it to a multiple of `factor` enlarges it
        sides = ((side, side % factor) for side in (width, height))
        whole = size = tuple(
            side if side < factor or 2 * rest > factor else side - rest for side, rest in sides
        )
    else:
        size = _view_size(*whole, factor, max_pixels)
    quarters = [(2, 2)] if size == whole else [(2, 2), (1, 1), (3, 3), (3, 1), (1, 3)]
    corners = [(_offset(width, size[0], x), _offset(height, size[1], y)) for x, y in quarters]
    boxes = [(left, top, left + size[0], top + size[1]) for left, top in corners]
    return list(dict.fromkeys(boxes))[:max_views]


def _view_size(width: int, height: int, factor: int, max_pixels: int) -> tuple[int, int]:
    """The sides of a view, multiples of `factor`, of an image of width × height, which are too."""
    if width * height <= max_pixels and max(width, height) <= _MAX_ASPECT * min(width, height):
        return width, height
    sizes = []
    for tall in range(factor, min(height, max_pixels // factor) + 1, factor):
        wide = min(width, max_pixels // tall, _MAX_ASPECT * tall) // factor * factor
        if tall <= _MAX_ASPECT * wide:
            sizes.append((wide, tall))
    return min(sizes, key=lambda size: abs(math.log(size[0] * height / (size[1] * width))))


def _offset(side: int, view_side: int, quarter: int) -> int:
    """Where a view starts whose centre is at `quarter`/4 of the side, moved inside the image."""
    start = min(max(side * quarter // 4 - view_side // 2, 0), side - view_side)
    return start // _JPEG_BLOCK * _JPEG_BLOCK
