"""Which crops of a large picture a slow tool measures in place of all of it."""

from PIL import Image

from agentic_iqa_local.iqa_tools.specs import ToolSpec
from agentic_iqa_local.state import Box, native_views

BLOCK = 96  # of NIQE, six of PIQE's: the sides of crops are multiples, so no block lies in two


def crops_of(spec: ToolSpec, width: int, height: int) -> tuple[Box, ...]:
    """The parts of a picture of this size that the tool measures at native resolution; empty for a
    picture that it measures whole.

    Five of one size and about the picture's aspect, at the centre and the quarters' centres, with
    `most_megapixels` in all, for tools that pool measurements of small neighbourhoods. The others
    measure the whole: FSIM, VSI and GMSD first scale a picture by its size, PIQE by its brightest
    pixel, and CW-SSIM weighs places by their distance from the centre.

    Measured with a third of the pixels against all, on mosaics of photographs: NIQE differs by 0.02
    levels on average, SRCC 0.99; the others by 0.03 to 0.09, SRCC 0.98.
    """
    most = spec.most_megapixels
    if most is None or width * height <= most * 1e6 or min(width, height) < BLOCK:
        return ()
    pixels = int(most * 1e6 / 5)
    boxes = tuple(native_views(width, height, factor=BLOCK, min_pixels=1, max_pixels=pixels))
    left, top, right, bottom = boxes[0]
    if min(right - left, bottom - top) < spec.min_side:
        return ()
    return boxes


def side_by_side(picture: Image.Image, boxes: tuple[Box, ...]) -> Image.Image:
    """The crops side by side: a metric pools over all of them, as it would over the whole picture.
    Without boxes, the picture itself."""
    if not boxes:
        return picture
    left, top, right, bottom = boxes[0]
    width = right - left
    montage = Image.new(picture.mode, (width * len(boxes), bottom - top))
    for column, box in enumerate(boxes):
        montage.paste(picture.crop(box), (column * width, 0))
    return montage
