"""Bands, frames and mats: rows and columns of one colour around a photograph, which are no part of
it."""

from dataclasses import replace

import numpy as np
from PIL import Image

from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.reading import LoadedImage
from agentic_iqa_local.state import Box

# Of the 841 photographs that these were set on none is trimmed. A band is flat, but for what
# compression does to its last rows, and ends in a straight line, where a sky, a night or a white
# background ends raggedly.
_FLAT = 4  # distance from the band's luma, of 255
_STRAYS = 0.01  # the share of a row's pixels that may lie beyond it
_CLEAR = 24  # distance that compression does not reach
_STEP = 0.25  # share of pixels that change clearly where a band ends
_RAGGED = 0.04  # share of them that may one row before
_RINGING = 16  # rows at a band's end that compression disturbs
_LEAST = 10  # pixels of a band
_LEAST_PART = 50  # the fraction of the side that a band takes at least
_LEAST_SIDE = 64  # what is left of a picture has so many pixels a side, or nothing is taken away
_ONE_COLOUR = 6  # largest difference of any two pixels, in each channel, but for compression
_BLOCK = 64  # rows whose luma is made in one go


def without_frames(
    image: LoadedImage, reference: LoadedImage | None = None
) -> tuple[LoadedImage, LoadedImage | None]:
    """The photograph within a picture's frame, and the same part of its reference, with a warning.

    With a reference its frame decides: what is one colour in the picture alone was lost. Raises
    ImageError where either is one colour, which leaves nothing to judge."""
    box = content_box((reference or image).pixels)
    if box != (0, 0, image.width, image.height):
        said = f"a frame of one colour was left out, and the {box[2] - box[0]}×{box[3] - box[1]} pixels in it judged"
        image = replace(_cropped(image, box), warnings=(*image.warnings, said))
        reference = reference and _cropped(reference, box)
    for one in filter(None, (image, reference)):
        if np.ptp(one.pixels.getextrema(), axis=1).max() <= _ONE_COLOUR:
            raise ImageError(
                f"{one.path}: nothing to judge, the picture is one colour", "give a photograph."
            )
    return image, reference


def moved(box: Box, offset: tuple[int, int]) -> Box:
    """A part of what is left of a picture, in pixels of the original."""
    (left, top, right, bottom), (x, y) = box, offset
    return left + x, top + y, right + x, bottom + y


def content_box(image: Image.Image) -> Box:
    """The part of an RGB picture within all bands and frames, one within another; the whole picture
    where it has none, or where too little would be left."""
    inside = _luma(image)
    cut = [0, 0, 0, 0]  # at the left, top, right, bottom
    before: list[int] = []
    while before != cut:
        before = [*cut]
        for side in range(4):
            rows = np.rot90(inside, side - 1)
            band = _band(rows)
            inside = np.rot90(rows[band:], 1 - side)
            cut[side] += band
    if min(inside.shape) < _LEAST_SIDE:
        return 0, 0, *image.size
    left, top, right, bottom = cut
    return left, top, image.width - right, image.height - bottom


def _luma(image: Image.Image) -> np.ndarray:
    """The luma of an RGB picture, one byte a pixel, made a block of rows at a time: Pillow's own
    copies would take three times as much."""
    luma = np.empty((image.height, image.width), np.uint8)
    for top in range(0, image.height, _BLOCK):
        bottom = min(top + _BLOCK, image.height)
        block = image.crop((0, top, image.width, bottom))
        luma[top:bottom] = np.asarray(block.convert("L"))
    return luma


def _band(rows: np.ndarray) -> int:
    """How many rows of luma (n×w), counted from the first, are a band of one colour that ends in a
    straight line; 0 where they are none."""
    flat = _flat_rows(rows)
    if flat < 2 or flat == len(rows):
        return 0
    near = rows[flat - 1 : flat + _RINGING].astype(np.int16)
    steps = np.flatnonzero((np.abs(np.diff(near, axis=0)) > _CLEAR).mean(1) >= _STEP)
    if not len(steps):
        return 0
    last = near[steps[0]]  # row of the band
    if (np.abs(last - np.median(rows[0])) > _CLEAR).mean() > _RAGGED:
        return 0
    end = flat + int(steps[0])
    return end if end >= max(_LEAST, len(rows) // _LEAST_PART) else 0


def _flat_rows(rows: np.ndarray) -> int:
    """How many rows from the first have one luma. They are looked at one by one: most pictures have
    no band, which their first rows show, and of one that is all band no copy is made."""
    colour = np.median(rows[0])
    for place, row in enumerate(rows):
        if (np.abs(row - colour) > _FLAT).mean() > _STRAYS:
            return place
    return len(rows)


def _cropped(image: LoadedImage, box: Box) -> LoadedImage:
    pixels = image.pixels.crop(box)
    return replace(
        image, pixels=pixels, width=pixels.width, height=pixels.height, offset=(box[0], box[1])
    )
