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
_RINGING = 16  # rows at a band's end that compression disturbs
_LEAST, _LEAST_PART = 10, 50  # a band's pixels, and the fraction of the side that it takes at least
_LEAST_SIDE = 64  # what is left of a picture has so many pixels a side, or nothing is taken away
_ONE_COLOUR = 6  # largest difference of any two pixels, in each channel


def without_frames(
    image: LoadedImage, reference: LoadedImage | None = None
) -> tuple[LoadedImage, LoadedImage | None]:
    """The photograph within a picture's frame, and the same part of its reference, with a warning.

    With a reference its frame decides: what is one colour in the picture alone was lost. Raises ImageError
    where either is one colour, which leaves nothing to judge."""
    box = content_box((reference or image).pixels)
    if box != (0, 0, image.width, image.height):
        image, reference = _cropped(image, box), reference and _cropped(reference, box)
        said = f"a frame of one colour was left out, and the {image.width}×{image.height} pixels in it judged"
        image = replace(image, warnings=(*image.warnings, said))
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
    where it has none, or where less than 64 pixels a side would be left."""
    luma = np.asarray(image.convert("L"), np.int16)
    margins, grows = [0, 0, 0, 0], True  # top, right, bottom, left: as a picture shows them that turns left
    box = whole = (0, 0, *image.size)
    while grows:
        grows = False
        for side in range(4):
            rows = np.rot90(luma[box[1] : box[3], box[0] : box[2]], side)
            band = _band(rows)
            margins[side] += band
            grows |= band > 0
            top, right, bottom, left = margins
            box = left, top, whole[2] - right, whole[3] - bottom
            if min(box[2] - box[0], box[3] - box[1]) < _LEAST_SIDE:
                return whole
    return box


def _band(rows: np.ndarray) -> int:
    """How many rows of luma (n×w), counted from the first, are a band of one colour that ends in a straight
    line; 0 where they are none."""
    level = np.median(rows[0])
    beyond = (number for number, row in enumerate(rows) if (np.abs(row - level) > _FLAT).mean() > _STRAYS)
    flat = next(beyond, 0)
    near = rows[max(0, flat - 1) : flat + _RINGING]
    steps = np.flatnonzero((np.abs(np.diff(near, axis=0)) > _CLEAR).mean(1) >= _STEP)
    if flat < 2 or not len(steps) or (np.abs(near[steps[0]] - level) > _CLEAR).mean() > _RAGGED:
        return 0
    band = flat + int(steps[0])
    return band if band >= max(_LEAST, len(rows) // _LEAST_PART) else 0


def _cropped(image: LoadedImage, box: Box) -> LoadedImage:
    pixels = image.pixels.crop(box)
    return replace(image, pixels=pixels, width=pixels.width, height=pixels.height, offset=(box[0], box[1]))
