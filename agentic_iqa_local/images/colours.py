"""A decoded picture as plain 8-bit RGB, whatever samples, inks and transparency its file holds."""

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO

import numpy as np
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import TiffImageFile

from agentic_iqa_local.images.files import ImageError

_BLOCK = 64  # rows
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # TIFF tags, and a value of the second


def to_rgb8(path: str, image: Image.Image, background: str | None) -> tuple[Image.Image, list[str]]:
    """An image as plain 8-bit RGB, a block of rows at a time, so that no second copy of it is in
    memory.

    Args:
        path: of its file, for messages.
        image: upright, as Pillow opened it.
        background: a colour that Pillow knows, which transparent pixels are laid over.

    Returns:
        The pixels, and sentences on colours that could not be read as meant.

    Raises:
        ImageError: for samples without a fixed black and white, or transparent pixels without a background.
    """
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):  # a 16-bit PGM is I too
        expected = (
            f"expected samples of 8 or 16 bits, got a {image.format} of Pillow mode {image.mode}"
        )
        raise ImageError(
            f"{path}: {expected}, without a fixed black and white", "save it as RGB first."
        )
    doubts = _doubts(image.mode, image.info.get("icc_profile"))
    greys = _grey_scale(image)
    pixels = Image.new("RGB", image.size)
    for top in range(0, image.height, _BLOCK):
        block = image.crop((0, top, image.width, min(top + _BLOCK, image.height)))
        if block.has_transparency_data:
            block = _opaque(path, block, background)
        elif block.mode.startswith("I"):
            block = greys(block)
        pixels.paste(block.convert("RGB"), (0, top))
    return pixels, doubts


def _opaque(path: str, image: Image.Image, background: str | None) -> Image.Image:
    """An image over a background. Raises ImageError where there is none, and some pixels are
    transparent."""
    image = image.convert("RGBA")
    if image.getchannel("A").getextrema()[0] == 255:
        return image
    if background is None:
        expected = "expected opaque pixels, but some are transparent, so the look depends on the background"
        advice = "composite it onto the background it is meant for first, or name that with --background white."
        raise ImageError(f"{path}: {expected}", advice)
    return Image.alpha_composite(Image.new("RGBA", image.size, background), image)


def grey8(image: Image.Image) -> Image.Image:
    """A grey image of 9 to 16 bits, scaled so that its white is 255."""
    return _grey_scale(image)(image)


def _grey_scale(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """What makes 8 bits of a grey image of 9 to 16 bits, or of a part of it. A TIFF's tags tell how
    many bits it has, and whether its white is zero: Pillow turns those of 8 bits only."""
    tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    peak = 2 ** max(tags.get(_BITS_PER_SAMPLE, (16,))) - 1
    turned = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO

    def scaled(part: Image.Image) -> Image.Image:
        samples = np.asarray(part).astype(np.uint32)
        samples = peak - samples if turned else samples
        return Image.fromarray(((samples * 255 + peak // 2) // peak).astype(np.uint8))

    return scaled


def _doubts(mode: str, profile: bytes | None) -> list[str]:
    """A sentence on inks or numbers that are read as if they were plain ones, though they may not
    be."""
    if mode == "CMYK":
        return ["The CMYK pixels were converted without colour management."]
    with suppress(ImageCms.PyCMSError, OSError):
        name = ImageCms.getProfileDescription(
            ImageCms.ImageCmsProfile(BytesIO(profile or b""))
        ).strip()
        if "srgb" not in name.lower() or "linear" in name.lower():
            return [
                f"The embedded ICC profile ({name}) was not applied: the numbers are read as sRGB."
            ]
    return []
