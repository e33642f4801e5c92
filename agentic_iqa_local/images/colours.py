"""A decoded picture as plain 8-bit RGB, with a sentence for each conversion that may move a score."""

from io import BytesIO

import numpy as np
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import TiffImageFile

from agentic_iqa_local.images.files import ImageError

_MODES = ("RGB", "RGBA", "RGBX", "RGBa", "1", "L", "LA", "P", "PA", "YCbCr", "CMYK", "I;16", "I;16B")
_TRANSFERS = {8: "linear", 16: "PQ", 18: "HLG"}  # of ITU-T H.273, those that sRGB numbers do not look like
_TWELVE_BITS = 16  # of 255, what 4095 of 65535 becomes
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # TIFF tags, and a value of the second


def to_rgb8(
    path: str, image: Image.Image, stored: Image.Image, data: bytes, background: str | None
) -> tuple[Image.Image, list[str]]:
    """An upright image as plain 8-bit RGB, and a sentence for each conversion.

    Args:
        path: the file's name, for messages.
        image: the decoded picture, upright.
        stored: the same as Pillow opened it, with the file's own tags.
        data: the file's bytes.
        background: a colour to composite transparent pixels onto.

    Raises:
        ImageError: for samples without a fixed black and white, or transparent pixels without a background.
    """
    mode, bits, profile, notes = image.mode, _bits(stored, data), image.info.get("icc_profile"), []
    if mode not in _MODES and (mode, stored.format) != ("I", "PPM"):  # a 16-bit PGM
        raise ImageError(
            f"{path}: expected 8-bit or 16-bit grey, RGB or CMYK samples, but this {stored.format}"
            f" has {bits}-bit samples (Pillow mode {mode}) without a fixed black and white",
            "save it as RGB first.",
        )
    if image.has_transparency_data:
        image = _opaque(path, image, bits, background, notes)
    if bits > 8:
        notes.append(f"The {bits}-bit samples were scaled to 8 bits.")
    if mode.startswith("I"):
        samples = plain_grey(image, stored, peak := 2**bits - 1).astype(np.uint32)
        image = Image.fromarray(((samples * 255 + peak // 2) // peak).astype(np.uint8))
    if mode == "CMYK":
        image = _from_inks(image, profile, notes)
    else:
        notes += _other_than_srgb(stored, data, profile)
    pixels = image.convert("RGB")
    pixels.info = {}
    if bits == 16 and np.asarray(pixels).max() <= _TWELVE_BITS:
        notes.append("No sample reaches a sixteenth of 16 bits: if they have 12, scale them to all 16.")
    return pixels, notes


def plain_grey(image: Image.Image, stored: Image.Image, peak: int) -> np.ndarray:
    """The samples of a grey image of more than 8 bits, white being `peak`: Pillow turns TIFFs whose white is
    zero at 8 bits only."""
    tags = stored.tag_v2 if isinstance(stored, TiffImageFile) else {}
    samples = np.asarray(image).astype(np.uint16)
    return np.uint16(peak) - samples if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else samples


def _bits(stored: Image.Image, data: bytes) -> int:
    """Stored bits a sample: Pillow opens 16-bit colour as 8-bit RGB without saying so."""
    if stored.format == "PNG":
        return data[24]  # of IHDR: 8 bytes signature, 8 chunk head, 4 width, 4 height, 1 bit depth
    if isinstance(stored, TiffImageFile):
        return max(stored.tag_v2.get(_BITS_PER_SAMPLE, (1,)))
    return stored.info.get("bit_depth") or {"I": 16, "I;16": 16, "F": 32}.get(stored.mode, 8)  # HEIC says so


def _other_than_srgb(stored: Image.Image, data: bytes, profile: bytes | None) -> list[str]:
    """Sentences on what says that the numbers are not sRGB's: the transfer characteristics in a PNG's cICP chunk, or
    an AVIF's or HEIC's colr box, and the name of an ICC profile."""
    notes, at = [], -1
    if stored.format == "PNG" and (at := data.find(b"cICP", 0, data.find(b"IDAT"))) >= 0:
        at += 5
    elif stored.format in ("AVIF", "HEIF") and (at := data.find(b"colrnclx")) >= 0:
        at += 11  # the lower of two bytes
    if transfer := _TRANSFERS.get(data[at]) if at >= 0 else None:
        notes.append(f"The file says that its numbers are {transfer}: they are read as sRGB all the same.")
    if profile and ("srgb" not in (name := _profile_name(profile)).lower() or "linear" in name.lower()):
        notes.append(f"The embedded ICC profile ({name}) was not applied: the numbers are read as sRGB.")
    return notes


def _opaque(
    path: str, image: Image.Image, bits: int, background: str | None, notes: list[str]
) -> Image.Image:
    # Beside 16-bit samples a transparent colour (tRNS) cannot be compared exactly with what Pillow decoded
    exact = bits <= 8 or image.mode[-1] == "A"
    image = image.convert("RGBA")
    if exact and image.getchannel("A").getextrema()[0] == 255:
        return image
    if exact and background is not None:
        notes.append(f"The transparent pixels were composited onto {background}.")
        return Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    raise ImageError(
        f"{path}: expected opaque pixels, but some are transparent, so the look depends on the background",
        "composite it onto the background it is meant"
        f" for{' first, or name that with --background white' if exact else ' at 8 bits first'}.",
    )


def _from_inks(image: Image.Image, profile: bytes | None, notes: list[str]) -> Image.Image:
    """CMYK as sRGB through its own profile; without a usable one plainly."""
    intent, flags = ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION
    try:
        own = ImageCms.ImageCmsProfile(BytesIO(profile or b""))
        return ImageCms.profileToProfile(
            image, own, ImageCms.createProfile("sRGB"), intent, "RGB", False, flags
        )  # pyright: ignore[reportReturnType]
    except (ImageCms.PyCMSError, OSError) as error:
        reason = f"their ICC profile cannot be used ({error})" if profile else "they carry no ICC profile"
        notes.append(f"The CMYK pixels were converted to RGB without colour management: {reason}.")
    return image.convert("RGB")


def _profile_name(profile: bytes) -> str:
    try:
        return ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(BytesIO(profile))).strip()
    except (ImageCms.PyCMSError, OSError) as error:
        return f"unreadable: {error}"
