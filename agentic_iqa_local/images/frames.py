"""Bands, frames and mats: rows and columns of one colour around a photograph, which are no part of it."""

from dataclasses import replace

import numpy as np
from PIL import Image

from agentic_iqa_local.images.crops import Box
from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.reading import LoadedImage

# Of the 841 photographs that these were set on none is trimmed. A band is flat, but for what compression does
# to its last rows, and ends in a straight line, where a sky, a night or a white background ends raggedly.
_FLAT, _STRAYS = (
    4,
    0.01,
)  # distance from the band's luma, of 255, and the share of a row's pixels beyond it
_CLEAR = 24  # distance that compression does not reach
_STEP, _RAGGED = (
    0.25,
    0.04,
)  # share of pixels that change clearly where a band ends, and may one row before
_RINGING, _SMOOTHED = 16, 4  # rows at a band's end that compression disturbs, and that WebP smooths
_LEAST, _LEAST_PART = 10, 50  # a band's pixels, and the fraction of the side that it takes at least
_LEAST_SIDE = 64  # what is left of a picture has so many pixels a side, or nothing is taken away
_ONE_COLOUR = 6  # largest difference of any two pixels, in each channel, but for compression


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
        if reference and content_box(image.pixels) != (0, 0, image.width, image.height):
            lost = (
                "a part of the picture is one colour where the reference is not: it counts as lost"
            )
            image = replace(image, warnings=(*image.warnings, lost))
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
    """The part of an RGB picture within all bands and frames, one within another; the whole picture where it has none,
    or where too little would be left."""
    luma, cut = (
        np.asarray(image.convert("L"), np.int16),
        [0, 0, 0, 0],
    )  # cut at the left, top, right, bottom

    def inside() -> np.ndarray:
        return luma[cut[1] : image.height - cut[3], cut[0] : image.width - cut[2]]

    before: list[int] = []
    while before != cut:
        before = [*cut]
        for side in range(4):
            cut[side] += _band(np.rot90(inside(), side - 1))
    for side in range(4):  # one band of two may go over into a dark or white photograph
        rows, wide = np.rot90(luma, side - 1), cut[(side + 2) % 4]
        if cut[side] == 0 < wide and abs(np.median(rows[0]) - np.median(rows[-1])) <= _FLAT:
            flat = _flat_rows(rows[:wide])
            cut[side] = wide if flat >= wide - _SMOOTHED else flat
    if min(inside().shape) < _LEAST_SIDE:
        return 0, 0, *image.size
    return cut[0], cut[1], image.width - cut[2], image.height - cut[3]


def _band(rows: np.ndarray) -> int:
    """How many rows of luma (n×w), counted from the first, are a band of one colour that ends in a straight line; 0
    where they are none."""
    flat = _flat_rows(rows)
    if flat < 2 or flat == len(rows):
        return 0
    near = rows[flat - 1 : flat + _RINGING]
    steps = np.flatnonzero((np.abs(np.diff(near, axis=0)) > _CLEAR).mean(1) >= _STEP)
    if not len(steps) or (np.abs(near[steps[0]] - np.median(rows[0])) > _CLEAR).mean() > _RAGGED:
        return 0
    end = flat + int(steps[0])
    return end if end >= max(_LEAST, len(rows) // _LEAST_PART) else 0


def _flat_rows(rows: np.ndarray) -> int:
    """How many rows from the first have one luma."""
    for first in (rows[:32], rows):  # most pictures have no band: their first rows show it
        uneven = (np.abs(first - np.median(rows[:1])) > _FLAT).mean(1) > _STRAYS
        if uneven.any():
            return int(uneven.argmax())
    return len(rows)


def _cropped(image: LoadedImage, box: Box) -> LoadedImage:
    pixels = image.pixels.crop(box)
    return replace(
        image, pixels=pixels, width=pixels.width, height=pixels.height, offset=(box[0], box[1])
    )
