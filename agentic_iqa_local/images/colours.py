"""A decoded picture as plain 8-bit RGB, whatever samples, inks and transparency its file holds."""

from contextlib import suppress
from io import BytesIO

import numpy as np
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import TiffImageFile

from agentic_iqa_local.images.files import ImageError

_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # TIFF tags, and a value of the second


def to_rgb8(path: str, image: Image.Image, background: str | None) -> tuple[Image.Image, list[str]]:
    """An upright image as plain 8-bit RGB, and a sentence on colours that could not be read as meant.

    Args:
        path: the file's name, for messages.
        image: the picture as Pillow opened it, decoded and upright.
        background: a colour to composite transparent pixels onto.

    Raises:
        ImageError: for samples without a fixed black and white, or transparent pixels without a background.
    """
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):  # a 16-bit PGM is I too
        raise ImageError(
            f"{path}: expected samples of 8 or 16 bits, but those of this {image.format} (Pillow mode"
            f" {image.mode}) are without a fixed black and white",
            "save it as RGB first.",
        )
    profile = image.info.get("icc_profile")
    if image.has_transparency_data:
        image = _opaque(path, image, background)
    image = grey8(image) if image.mode.startswith("I") else image
    managed = _from_inks(image, profile) if image.mode == "CMYK" else None
    pixels = managed or image.convert("RGB")
    pixels.info = {}
    return pixels, [] if managed else _doubts(image.mode, profile)


def grey8(image: Image.Image) -> Image.Image:
    """A grey image of 9 to 16 bits, scaled so that its white is 255. A TIFF's tags tell how many bits it has,
    and whether its white is zero: Pillow turns those of 8 bits only."""
    tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    peak = 2 ** max(tags.get(_BITS_PER_SAMPLE, (16,))) - 1
    samples = np.asarray(image).astype(np.uint32)
    samples = peak - samples if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else samples
    return Image.fromarray(((samples * 255 + peak // 2) // peak).astype(np.uint8))


def _opaque(path: str, image: Image.Image, background: str | None) -> Image.Image:
    image = image.convert("RGBA")
    if image.getchannel("A").getextrema()[0] == 255:
        return image
    if background is None:
        raise ImageError(
            f"{path}: expected opaque pixels, but some are transparent, so the look depends on the background",
            "composite it onto the background it is meant for first, or name that with --background white.",
        )
    return Image.alpha_composite(Image.new("RGBA", image.size, background), image)


def _from_inks(image: Image.Image, profile: bytes | None) -> Image.Image | None:
    """CMYK as sRGB through its own profile; None without a usable one."""
    intent, flags = ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION
    try:
        inks, srgb = ImageCms.ImageCmsProfile(BytesIO(profile or b"")), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, inks, srgb, intent, "RGB", flags=flags)
    except (ImageCms.PyCMSError, OSError):
        return None


def _doubts(mode: str, profile: bytes | None) -> list[str]:
    """A sentence on inks or numbers that were read as if they were plain ones, though they may not be."""
    if mode == "CMYK":
        return ["The CMYK pixels were converted without colour management: they have no usable ICC profile."]
    with suppress(ImageCms.PyCMSError, OSError):
        name = ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(BytesIO(profile or b""))).strip()
        if "srgb" not in name.lower() or "linear" in name.lower():
            return [f"The embedded ICC profile ({name}) was not applied: the numbers are read as sRGB."]
    return []
