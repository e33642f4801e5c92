"""Bands, frames and mats: rows and columns of one colour around a photograph, which are no part of it."""

from dataclasses import replace

import numpy as np
from PIL import Image

from agentic_iqa_local.images.crops import Box
from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.reading import LoadedImage

# Of the 841 photographs that these were set on none is trimmed. A band is flat, but for what compression does
# to its last rows, and ends in a straight line, where a sky, a night or a white background ends raggedly.
_FLAT, _STRAYS = 4, 0.01  # distance from the band's luma, of 255, and the share of a row's pixels beyond it
_CLEAR = 24  # distance that compression does not reach
_STEP, _RAGGED = 0.25, 0.04  # share of pixels that change clearly where a band ends, and may one row before
_NOTHING = 128  # luma of the grey that JPEG decoders give where there is nothing: it begins with ragged blocks
_MOST_RAGGED, _DRIFT, _FILLED_STRAYS = 0.5, 16, 0.05  # the same of what stands for missing data
_RINGING, _SMOOTHED = 16, 4  # rows at a band's end that compression disturbs, and that WebP smooths
_LEAST, _LEAST_PART = 10, 50  # a band's pixels, and the fraction of the side that it takes at least
_LEAST_SIDE = 64  # what is left of a picture has so many pixels a side, or nothing is taken away
_ONE_COLOUR = 6  # largest difference of any two pixels, in each channel
_LEFT, _TOP, _RIGHT, _BOTTOM = 3, 0, 1, 2  # quarter turns that bring a side to the top


def without_frames(image: LoadedImage, reference: LoadedImage | None = None) -> tuple[LoadedImage, LoadedImage | None]:
    """The photograph within a picture's frame, and the same part of its reference, with a warning.

    With a reference its frame decides: what is one colour in the picture alone was lost. Raises ImageError
    where either is one colour, which leaves nothing to judge."""
    box = content_box((reference or image).pixels)
    if box != (0, 0, image.width, image.height):
        image, reference = _cropped(image, box), reference and _cropped(reference, box)
        said = f"a frame of one colour was left out, and the {image.width}×{image.height} pixels in it judged"
        image = replace(image, warnings=(*image.warnings, said))
        if reference and content_box(image.pixels) != (0, 0, image.width, image.height):
            lost = "a part of the picture is one colour where the reference is not: it counts as lost"
            image = replace(image, warnings=(*image.warnings, lost))
    for one in filter(None, (image, reference)):
        if one_colour(one.pixels):
            raise ImageError(f"{one.path}: nothing to judge, the picture is one colour", "give a photograph.")
    return image, reference


def moved(box: Box, offset: tuple[int, int]) -> Box:
    """A part of what is left of a picture, in pixels of the original."""
    (left, top, right, bottom), (x, y) = box, offset
    return left + x, top + y, right + x, bottom + y


def one_colour(image: Image.Image) -> bool:
    """Whether an RGB picture has only one colour, but for compression."""
    return bool(np.ptp(image.getextrema(), axis=1).max() <= _ONE_COLOUR)


def content_box(image: Image.Image) -> Box:
    """The part of an RGB picture within all bands, frames and mats, one within another; the whole picture
    where it has none, or where too little would be left."""
    luma, cut = np.asarray(image.convert("L"), np.int16), [0, 0, 0, 0]

    def box() -> Box:
        return cut[_LEFT], cut[_TOP], image.width - cut[_RIGHT], image.height - cut[_BOTTOM]

    def inside() -> np.ndarray:
        left, top, right, bottom = box()
        return luma[top:bottom, left:right]

    before: list[int] | None = None
    while before != cut:
        before = [*cut]
        for side in (_LEFT, _TOP, _RIGHT, _BOTTOM):
            if min(inside().shape) < _LEAST_SIDE:
                return 0, 0, *image.size
            cut[side] += _band(np.rot90(inside(), side), nested=cut[side] > 0)
    for side in range(4):  # one band of two may go over into a dark or white photograph
        rows, wide = np.rot90(luma, side), cut[(side + 2) % 4]
        if cut[side] == 0 < wide and abs(np.median(rows[0]) - np.median(rows[-1])) <= _FLAT:
            flat = _flat_rows(rows[:wide])
            cut[side] = wide if flat >= wide - _SMOOTHED else flat
    return box() if min(inside().shape) >= _LEAST_SIDE else (0, 0, *image.size)


def _band(rows: np.ndarray, nested: bool) -> int:
    """How many rows of luma (n×w), counted from the first, are a band of one colour; 0 where they are none.

    One that is `nested` in another may be a thin line, after a few rows that compression disturbed. Rows that
    stand for missing data begin after a ragged row of blocks.
    """
    for skip in range(0, _RINGING + 1, 4) if nested else ():
        if (end := _end(rows[skip:], _flat_rows(rows[skip:], _DRIFT, _FILLED_STRAYS))) > 1:
            return skip + end
    end = _end(rows, _flat_rows(rows))
    if abs(np.median(rows[0]) - _NOTHING) <= 1:
        filled = _flat_rows(rows, _DRIFT, _FILLED_STRAYS, constant=True)
        end = max(end, _end(rows, filled, 2 * _RINGING, _MOST_RAGGED))
    return end if end >= max(_LEAST, len(rows) // _LEAST_PART) else 0


def _flat_rows(rows: np.ndarray, flat: int = _FLAT, strays: float = _STRAYS, constant: bool = False) -> int:
    """How many rows from the first have one luma, and with `constant` each that of the row before."""
    for first in (rows[:32], rows):  # most pictures have no band: their first rows show it
        beyond = np.abs(first - np.median(rows[:1])) > flat
        if constant:
            beyond[1:] |= np.abs(np.diff(first, axis=0)) > 1
        uneven = beyond.mean(1) > strays
        if uneven.any():
            return int(uneven.argmax())
    return len(rows)


def _end(rows: np.ndarray, flat: int, reach: int = _RINGING, ragged: float = _RAGGED) -> int:
    """The row with which a band ends in a straight line, at most `reach` after its `flat` ones, or 0."""
    if flat < 2 or flat == len(rows):
        return 0
    near, level = rows[flat - 1 : flat + reach], np.median(rows[0])
    steps = np.flatnonzero((np.abs(np.diff(near, axis=0)) > _CLEAR).mean(1) >= _STEP)
    if not len(steps) or (np.abs(near[steps[0]] - level) > _CLEAR).mean() > ragged:
        return 0
    return flat + int(steps[0])


def _cropped(image: LoadedImage, box: Box) -> LoadedImage:
    pixels = image.pixels.crop(box)
    return replace(image, pixels=pixels, width=pixels.width, height=pixels.height, offset=(box[0], box[1]))
