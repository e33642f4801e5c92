"""A decoded picture as plain 8-bit RGB, with a sentence for each conversion."""

from io import BytesIO

import numpy as np
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import TiffImageFile

from agentic_iqa_local.images.colour_signs import acts_as_srgb
from agentic_iqa_local.images.files import ImageError

# Pillow modes that become RGB by a plain conversion, and what to call them; "I" only where it holds 16 bits.
_PLAIN_MODES = {
    "RGB": "RGB",
    "RGBA": "RGB",
    "RGBX": "RGB",
    "1": "1-bit",
    "L": "greyscale",
    "RGBa": "RGB",
    "LA": "greyscale",
    "P": "palette",
    "PA": "palette",
    "YCbCr": "YCbCr",
    "CMYK": "CMYK",
    "I;16": "greyscale",
    "I;16B": "greyscale",
    "I": "greyscale",
}
_TWELVE_BITS = 16  # of 255, what 4095 of 65535 becomes
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # TIFF tags, and a value of the second


def bits_per_sample(image: Image.Image, data: bytes) -> int:
    """Stored bits a sample of an opened image, as far as its file `data` tells: Pillow opens 16-bit colour as
    8-bit RGB without saying so."""
    if image.format == "PNG":
        # IHDR is always first: 8 bytes signature, 8 chunk head, 4 width, 4 height, 1 bit depth
        return data[24]
    if isinstance(image, TiffImageFile):
        return max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))
    if image.format == "HEIF":
        return image.info["bit_depth"]
    return {"I": 16, "I;16": 16, "F": 32}.get(image.mode, 8)


def white_is_zero(stored: Image.Image) -> bool:
    """Whether an image, as it was opened, has grey samples of more than 8 bits whose largest is black: Pillow
    inverts these at 8 bits only."""
    return (
        isinstance(stored, TiffImageFile)
        and stored.mode.startswith("I")
        and stored.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    )


def to_rgb8(
    path: str, image: Image.Image, stored: Image.Image, bits: int, background: str | None
) -> tuple[Image.Image, list[str]]:
    """`image` as plain 8-bit RGB, and a sentence for each conversion. `stored` is the image as it was opened,
    with `bits` a sample; `background` a colour to composite transparent pixels onto. Raises ImageError."""
    mode, profile, notes = image.mode, image.info.get("icc_profile"), []
    # Pillow opens a 16-bit PGM as "I"
    if mode not in _PLAIN_MODES or (mode == "I" and stored.format != "PPM"):
        raise ImageError(
            f"{path}: expected 8-bit or 16-bit grey, RGB or CMYK samples, but this {stored.format}"
            f" has {bits}-bit samples (Pillow mode {mode}) without a fixed black and white",
            "save it as RGB first.",
        )
    if image.has_transparency_data:
        image, note = _opaque(path, image, bits, background)
        notes.append(note)
    if bits > 8:
        notes.append(f"The {bits}-bit samples were scaled to 8 bits.")
    if mode.startswith("I"):
        image = _scaled_to_8_bits(image, stored, bits)
    if mode == "CMYK":
        image, note = _cmyk_to_rgb(image, profile)
        notes.append(note)
    elif _PLAIN_MODES[mode] != "RGB":
        notes.append(f"The {_PLAIN_MODES[mode]} pixels were converted to RGB.")
    if (
        profile
        and mode != "CMYK"
        and not ("srgb" in (name := _profile_name(profile)).lower() and acts_as_srgb(profile))
    ):
        notes.append(f"The embedded ICC profile ({name}) was not applied: the numbers are read as sRGB.")
    pixels = image.convert("RGB")
    pixels.info = {}
    if bits == 16 and max(high for _, high in pixels.getextrema()) <= _TWELVE_BITS:  # pyright: ignore[reportGeneralTypeIssues]
        notes.append(
            "No sample reaches a sixteenth of what 16 bits hold: if they have 12 bits or fewer, the picture"
            " is read much too dark; scale its samples to all 16."
        )
    return pixels, notes


def _opaque(path: str, image: Image.Image, bits: int, background: str | None) -> tuple[Image.Image, str]:
    """An image with transparency data as opaque RGBA, and what was done. Raises ImageError where a pixel is
    transparent and there is no background, or where that cannot be told."""
    # Beside 16-bit samples a transparent colour (tRNS) cannot be compared exactly with what Pillow has
    # decoded.
    exact = bits <= 8 or image.mode[-1] == "A"
    image = image.convert("RGBA")
    if exact and image.getchannel("A").getextrema()[0] == 255:
        return image, "The transparency data was dropped: every pixel is opaque."
    if exact and background is not None:
        image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
        return image, f"The transparent pixels were composited onto {background}."
    raise ImageError(
        f"{path}: expected opaque pixels, but some are transparent, so the look depends on the background",
        "composite it onto the background it is meant"
        f" for{' first, or name that with --background white' if exact else ' at 8 bits first'}.",
    )


def _scaled_to_8_bits(image: Image.Image, stored: Image.Image, bits: int) -> Image.Image:
    """Grey samples of more than 8 bits, scaled and rounded."""
    peak = 2**bits - 1
    samples = np.asarray(image).astype(np.uint32)
    if white_is_zero(stored):
        samples = peak - samples
    return Image.fromarray(((samples * 255 + peak // 2) // peak).astype(np.uint8))


def _cmyk_to_rgb(image: Image.Image, profile: bytes | None) -> tuple[Image.Image, str]:
    plain = "The CMYK pixels were converted to RGB without colour management: "
    if profile is None:
        return image.convert("RGB"), f"{plain}they carry no ICC profile."
    try:
        converted = ImageCms.profileToProfile(
            image,
            ImageCms.ImageCmsProfile(BytesIO(profile)),
            ImageCms.createProfile("sRGB"),
            outputMode="RGB",
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (ImageCms.PyCMSError, OSError) as error:
        return image.convert("RGB"), f"{plain}their ICC profile cannot be used ({error})."
    note = (
        f"The CMYK pixels were converted to sRGB through the embedded ICC profile ({_profile_name(profile)})."
    )
    return converted, note  # pyright: ignore[reportReturnType]  # None only where it converts in place


def _profile_name(profile: bytes) -> str:
    try:
        return ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(BytesIO(profile))).strip()
    except (ImageCms.PyCMSError, OSError) as error:
        return f"unreadable: {error}"
