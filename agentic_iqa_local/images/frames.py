"""Bands, frames and mats: rows and columns of one colour around a photograph, which are no part of it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from PIL import Image

from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.reading import LoadedImage

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels, as for Image.crop

# Of the 841 photographs that these were set on none is trimmed. A band is flat, but for what compression does
# to its last rows, and ends in a straight line, where a sky, a night or a white background ends raggedly.
_FLAT, _STRAYS = 4, 0.01  # distance from the band's luma, of 255, and the share of a row's pixels beyond it
_CLEAR = 24  # distance that compression does not reach
_STEP = 0.25  # share of pixels that change clearly from one row to the next where a band ends
_RAGGED = 0.04  # share of pixels that may be clear one row before
_MOST_RAGGED = 0.5  # the same of what stands for missing data: its first row of blocks may begin later
_NOTHING = 128  # luma of the grey that JPEG decoders give where there is nothing
_DRIFT, _FILLED_STRAYS = 16, 0.05  # distance from its luma, and the share of a row's pixels beyond it
_SMOOTHED = 4  # rows at a band's end that WebP smooths
_RINGING = 16  # rows at a band's end that compression disturbs: two JPEG blocks
_LEAST, _LEAST_PART = 10, 50  # a band's pixels, and the fraction of the side that it takes at least
_LEAST_SIDE = 64  # what is left of a picture has so many pixels a side, or nothing is taken away
_ONE_COLOUR = 6  # largest difference of any two pixels, in each channel

_SIDES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "left": lambda luma: luma.T,
    "top": lambda luma: luma,
    "right": lambda luma: luma.T[::-1],
    "bottom": lambda luma: luma[::-1],
}


def without_frames(
    image: LoadedImage, reference: LoadedImage | None = None
) -> tuple[LoadedImage, LoadedImage | None]:
    """The photograph within a picture's frame, and the same part of its reference, with a warning of what was
    left out.

    With a reference its frame decides: what is one colour in the picture alone was lost. Raises ImageError
    where either is one colour, which leaves nothing to judge or to compare with.
    """
    original = reference or image
    box = content_box(original.pixels, original.damaged)
    sizes = image.width, image.height
    if box != (0, 0, *sizes):
        image, reference = _cropped(image, box), reference and _cropped(reference, box)
        image = _warned(
            image,
            f"{_margins(box, *sizes)} are one colour (a frame, or what a damaged file lacks): they were left"
            f" out, and the other {image.width}×{image.height} pixels judged",
        )
    if reference:
        if colour := one_colour(reference.pixels):
            raise ImageError(
                f"{reference.path}: expected a pristine original, but the reference is one colour ({colour})",
                f"give the original that {image.path} was made from, or leave the reference out.",
            )
        if (rest := content_box(image.pixels, image.damaged)) != (0, 0, image.width, image.height):
            image = _warned(
                image,
                f"{_margins(rest, image.width, image.height)} are one colour where the reference is not: they"
                " count as lost",
            )
    if colour := one_colour(image.pixels):
        raise ImageError(f"{image.path}: nothing to judge, the picture is one colour ({colour})")
    return image, reference


def moved(box: Box, offset: tuple[int, int]) -> Box:
    """A part of what is left of a picture, in pixels of the original."""
    left, top, right, bottom = box
    return left + offset[0], top + offset[1], right + offset[0], bottom + offset[1]


def one_colour(image: Image.Image) -> str | None:
    """The colour ("#808080") of an RGB picture that has only one, but for compression; None of others."""
    extremes = image.getextrema()
    if any(high - low > _ONE_COLOUR for low, high in extremes):  # pyright: ignore[reportOperatorIssue, reportGeneralTypeIssues]
        return None
    return "#" + "".join(f"{round((low + high) / 2):02x}" for low, high in extremes)  # pyright: ignore[reportOperatorIssue, reportGeneralTypeIssues]


def content_box(image: Image.Image, damaged: bool = False) -> Box:
    """The part of an RGB picture within all bands, frames and mats, one within another; the whole picture
    where it has none, or where too little would be left. Of a file that is `damaged` the end may be filled in
    less regularly."""
    luma = np.asarray(image.convert("L"), np.int16)
    margins, grows = dict.fromkeys(_SIDES, 0), True
    while grows:
        grows = False
        for side, turned in _SIDES.items():
            left, top, right, bottom = _box(margins, *image.size)
            if min(right - left, bottom - top) < _LEAST_SIDE:
                return (0, 0, *image.size)
            rows = turned(luma[top:bottom, left:right])
            if band := _band(rows, margins[side] > 0, damaged and side == "bottom"):
                margins[side] += band
                grows = True
    for side, opposite in zip(_SIDES, ("right", "bottom", "left", "top"), strict=True):
        if margins[side] == 0 < (wide := margins[opposite]):  # it may go over into a dark or white photograph
            rows = _SIDES[side](luma)
            if abs(np.median(rows[0]) - np.median(rows[-1])) <= _FLAT:
                flat = _flat_rows(rows[:wide])
                margins[side] = wide if flat >= wide - _SMOOTHED else flat
    left, top, right, bottom = _box(margins, *image.size)
    enough = min(right - left, bottom - top) >= _LEAST_SIDE
    return (left, top, right, bottom) if enough else (0, 0, *image.size)


def _box(margins: dict[str, int], width: int, height: int) -> Box:
    return margins["left"], margins["top"], width - margins["right"], height - margins["bottom"]


def _band(rows: np.ndarray, nested: bool, damaged: bool) -> int:
    """How many rows of luma (n×w), counted from the first, are a band of one colour; 0 where they are none.

    One that is `nested` in another may be a thin line, after a few rows that compression disturbed. Rows that
    stand for missing data begin after a ragged row of blocks.
    """
    if nested:
        for skip in range(0, _RINGING + 1, 4):
            if (end := _end(rows[skip:], _flat_rows(rows[skip:], _DRIFT, _FILLED_STRAYS))) > 1:
                return skip + end
    least = max(_LEAST, len(rows) // _LEAST_PART)
    ends = [_end(rows, _flat_rows(rows))]
    if damaged or abs(np.median(rows[0]) - _NOTHING) <= 1:
        ends.append(_end(rows, _filled_rows(rows), 2 * _RINGING, _MOST_RAGGED))
    return max((end for end in ends if end >= least), default=0)


def _flat_rows(rows: np.ndarray, flat: int = _FLAT, strays: float = _STRAYS) -> int:
    """How many rows from the first have one luma."""
    level, end = np.median(rows[:1]), 0
    while end < len(rows) and (np.abs(rows[end] - level) > flat).mean() <= strays:
        end += 1
    return end


def _filled_rows(rows: np.ndarray) -> int:
    """How many rows from the first look as a decoder fills in for missing data: each equals the one before,
    and the luma drifts from block to block at most."""
    level, end = np.median(rows[:1]), 1
    while (
        end < len(rows)
        and ((np.abs(rows[end] - rows[end - 1]) > 1) | (np.abs(rows[end] - level) > _DRIFT)).mean()
        <= _FILLED_STRAYS
    ):
        end += 1
    return end


def _end(rows: np.ndarray, flat: int, reach: int = _RINGING, ragged: float = _RAGGED) -> int:
    """The row with which a band ends in a straight line, at most `reach` after its `flat` ones; 0 where it
    does not."""
    if flat < 2 or flat == len(rows):
        return 0
    near, level = rows[flat - 1 : flat + reach], np.median(rows[0])
    steps = np.flatnonzero((np.abs(np.diff(near, axis=0)) > _CLEAR).mean(1) >= _STEP)
    if not len(steps) or (np.abs(near[steps[0]] - level) > _CLEAR).mean() > ragged:
        return 0
    return flat + int(steps[0])


def _margins(box: Box, width: int, height: int) -> str:
    """What lies outside the box, in words: "256 pixels at the top and 256 at the bottom"."""
    left, top, right, bottom = box
    sizes = {"left": left, "top": top, "right": width - right, "bottom": height - bottom}
    first, *others = [f"{size} at the {side}" for side, size in sizes.items() if size]
    words = [first.replace(" at", " pixels at", 1), *others]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _cropped(image: LoadedImage, box: Box) -> LoadedImage:
    pixels = image.pixels.crop(box)
    return replace(image, pixels=pixels, width=pixels.width, height=pixels.height, offset=(box[0], box[1]))


def _warned(image: LoadedImage, line: str) -> LoadedImage:
    return replace(image, warnings=(*image.warnings, line))
