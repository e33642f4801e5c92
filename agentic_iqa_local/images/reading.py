"""From a file to upright 8-bit RGB pixels, or to one sentence saying why not."""

import hashlib
import os
import re
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TypedDict, Unpack

from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from agentic_iqa_local.images.colour_signs import colour_doubts
from agentic_iqa_local.images.files import ImageError, read_file
from agentic_iqa_local.images.rgb import bits_per_sample, to_rgb8
from agentic_iqa_local.text import one_line

# Only these decoders run: Pillow also knows formats that start other programs (EPS) or hold no photograph.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "JPEG2000", "GIF", "PPM", "AVIF")
# cameras write several pictures into these: the main one is the photograph
SEVERAL_PICTURES = ("MPO", "HEIF")
# pillow-heif reads files that begin as ISO 23008-12 says. It is called directly: registering it would change
# Pillow for the whole process.
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")

_ORIENTATION = 274  # EXIF tag
# neither stuffing nor a marker without a segment behind it
_JPEG_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")
_START_OF_SCAN, _END_OF_IMAGE = b"\xda", b"\xd9"
_COMPRESSED = ("JPEG", "MPO", "WEBP", "AVIF", "JPEG2000", "HEIF")
_LEAST_ZEROS, _LEAST_ZEROS_PART = 512, 50  # bytes, and the fraction of a file, that data which are lost take
_MOST_SCANS = 100  # as in libtiff: cameras write about ten, and each costs a pass over all pixels


@dataclass(frozen=True)
class LoadedImage:
    path: str
    pixels: Image.Image  # 8-bit RGB, upright, without metadata, so that nothing downstream rotates it again
    width: int
    height: int
    sha256: str  # hex, of the file's bytes
    warnings: tuple[str, ...]  # a sentence for each conversion that the pixels went through
    offset: tuple[int, int] = (0, 0)  # left and top of the pixels in the upright original, if it had a frame
    damaged: bool = False  # whether much of the file's compressed data is missing


class LoadOptions(TypedDict, total=False):
    """Limits of `load_image`."""

    max_pixels: int
    min_side: int
    background: str | None


def load_image(
    path: str | os.PathLike[str],
    *,
    max_pixels: int = 100_000_000,
    min_side: int = 32,
    background: str | None = None,
) -> LoadedImage:
    """Reads and fully decodes one picture, or raises `ImageError`. Its content decides what it is, never its
    name.

    `max_pixels` (width × height) is checked on the header, before anything is decoded; Pillow's own limit
    (twice `Image.MAX_IMAGE_PIXELS`) stays in force above it. `min_side` is in pixels. `background` is a
    colour that Pillow's ImageColor knows; transparent pixels are composited onto it.

    Refused: what is missing, unreadable, empty, damaged, of another format, animated, too small or too large,
    has 32-bit samples or more than a hundred scans, or is transparent anywhere while there is no background.
    Converted with a warning: EXIF orientation, more than 8 bits a sample (scaled, not clipped), CMYK,
    greyscale, palettes, an opaque alpha channel. HEIC is turned as its container says. An ICC profile of RGB
    or grey data is only named, and so is what else says that numbers are not sRGB's: metrics and models read
    them raw. Compressed data that are lost, as a long run of zeros, are warned of; other damage in the middle
    of a JPEG decodes unnoticed.

    Threads wait for each other: Pillow's strictness and the warning filters are settings of the whole
    process.
    """
    path = os.fspath(path)
    data = read_file(path)
    if not data:
        raise ImageError(
            f"{path}: expected an image, but the file is empty (0 bytes)", "copy it again from its source."
        )
    with _DECODING, _strict_pillow() as caught:
        with _damage_as_image_error(path):
            image = _open(path, data, max_pixels)
            animated = getattr(image, "is_animated", False)
        _check_header(path, image, animated, max_pixels, min_side)
        with _damage_as_image_error(path):
            pixels, notes = _upright_rgb(path, image, data, animated, background)
    if zeros := _zeros(image, data):
        notes.append(
            f"{zeros} of the file's {len(data)} bytes are zeros in a row, as where data are lost: what the"
            " picture shows in their place was made up by the decoder."
        )
    notes += [f"Pillow: {warning.message}" for warning in caught]
    return LoadedImage(
        path,
        pixels,
        *pixels.size,
        sha256=hashlib.sha256(data).hexdigest(),
        warnings=tuple(dict.fromkeys(map(one_line, notes))),
        damaged=zeros > 0,
    )


def decode(image: Image.Image) -> None:
    """Decodes a Pillow image that was only opened, as strictly as `load_image`. Raises `ImageError`."""
    with _DECODING, _strict_pillow(), _damage_as_image_error("image"):
        image.load()


def load_pair(
    path: str | os.PathLike[str], reference_path: str | os.PathLike[str], **options: Unpack[LoadOptions]
) -> tuple[LoadedImage, LoadedImage]:
    """A picture and its reference, of one size once both are upright; `options` as for `load_image`.

    Raises `ImageError` when either cannot be loaded or the sizes differ: resizing would itself be a
    distortion.
    """
    image, reference = load_image(path, **options), load_image(reference_path, **options)
    if image.pixels.size != reference.pixels.size:
        raise ImageError(
            f"{image.path}: expected a reference of the same size, {image.width}x{image.height},"
            f" but {reference.path} is {reference.width}x{reference.height}",
            "use the reference that this picture was made from, cropped alike, or assess it"
            " without a reference.",
        )
    return image, reference


def same_pixels(image: LoadedImage, reference: LoadedImage) -> bool:
    """Whether two pictures of one size are the same, pixel by pixel."""
    return image.pixels.tobytes() == reference.pixels.tobytes()


_DECODING = threading.Lock()


@contextmanager
def _strict_pillow() -> Iterator[list[warnings.WarningMessage]]:
    """Makes Pillow refuse truncated files, and collects its warnings instead of printing them."""
    tolerant = ImageFile.LOAD_TRUNCATED_IMAGES  # importing pyiqa.data turns it on
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # max_pixels decides
            yield caught
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


@contextmanager
def _damage_as_image_error(path: str) -> Iterator[None]:
    """Turns whatever Pillow raises into `ImageError`."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:  # plugins raise nearly any type on damaged data
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise ImageError(
            f"{path}: expected a complete image, but decoding failed ({reason})", "get an intact copy."
        ) from error


def _open(path: str, data: bytes, max_pixels: int) -> Image.Image:
    """The image, opened but not decoded. Raises ImageError, and nearly anything on a damaged header."""
    try:
        return _open_pillow_or_heic(path, data)
    except UnidentifiedImageError:
        what = "the content is none of these or its header is damaged"
        if reason := _why_not_opened(data):
            what = f"this one cannot be opened ({reason})"
        raise ImageError(
            f"{path}: expected a {', '.join(FORMATS)} or HEIC image, but {what}",
            "convert it to PNG or get an intact copy.",
        ) from None
    except Image.DecompressionBombError as error:
        raise ImageError(
            f"{path}: expected at most {max_pixels} pixels, but its header claims far more"
            f" ({str(error).rstrip('.')})",
            "crop it first.",
        ) from error


def _why_not_opened(data: bytes) -> str | None:
    """What a format's reader says of a file that begins as its files do, which Pillow does not tell."""
    for name in FORMATS:
        reader, accepts = Image.OPEN[name]
        if accepts and accepts(data[:16]) is True:
            try:
                reader(BytesIO(data), "")
            except Exception as error:  # plugins raise nearly any type
                reason = str(error).strip().rstrip(".") or type(error).__name__
                return f"{name}: {reason}"
    return None


def _open_pillow_or_heic(path: str, data: bytes) -> Image.Image:
    try:
        return Image.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        if data[4:8] != b"ftyp" or data[8:12] not in _HEIC_BRANDS:
            raise
    try:
        from pillow_heif import HeifImageFile  # an extra, which need not be installed
    except ImportError:
        raise ImageError(
            f"{path}: expected an image that can be read here, but this is a HEIC photograph",
            "install pillow-heif or convert it to PNG.",
        ) from None
    return HeifImageFile(BytesIO(data))


def _upright_rgb(
    path: str, image: Image.Image, data: bytes, animated: bool, background: str | None
) -> tuple[Image.Image, list[str]]:
    """Decodes an opened image; its pixels, and a sentence for each conversion. Raises ImageError, and nearly
    anything on damaged data."""
    _check_structure(image, data)
    orientation, notes = _orientation(image)  # before load(), which already turns a TIFF
    size = image.size
    image.load()
    if image.format == "HEIF" and image.size != size:
        raise ValueError(
            f"its header claims {size[0]}x{size[1]}, its pixels are {image.width}x{image.height}"
        )
    upright = ImageOps.exif_transpose(image) if orientation != 1 else image
    if animated:  # a preview behind the photograph, or a burst
        count = getattr(image, "n_frames", 1)
        which = "first" if image.format == "MPO" else "main one"
        notes.append(f"Only the {which} of the file's {count} pictures was taken.")
    notes += colour_doubts(image, data)
    pixels, conversions = to_rgb8(path, upright, image, bits_per_sample(image, data), background)
    return pixels, notes + conversions


def _check_header(path: str, image: Image.Image, animated: bool, max_pixels: int, min_side: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"{path}: expected at most {max_pixels} pixels, but its header claims {width}x{height}"
            f" = {width * height}",
            "crop it, or raise max_pixels under images in a configuration.",
        )
    if min(width, height) < min_side:
        raise ImageError(
            f"{path}: expected at least {min_side} pixels on each side, but it is {width}x{height}",
            "use the original instead of a thumbnail.",
        )
    if animated and image.format not in SEVERAL_PICTURES:
        raise ImageError(
            f"{path}: expected a single picture, but this {image.format} holds several frames or pages",
            "extract one frame first.",
        )


def _check_structure(image: Image.Image, data: bytes) -> None:
    """Raises ValueError for a file that Pillow accepts and no encoder writes."""
    if image.format == "PNG" and data[12:16] != b"IHDR":
        raise ValueError("IHDR is not the first chunk")
    if image.format in ("JPEG", "MPO"):
        at, scans = 0, 0
        while (marker := _JPEG_MARKER.search(data, at)) and marker[1] != _END_OF_IMAGE:
            # skip the segment by its length
            at = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2])
            scans += marker[1] == _START_OF_SCAN
        if scans > _MOST_SCANS:
            raise ValueError(f"{scans} scans, where a JPEG has a dozen at most")


def _zeros(image: Image.Image, data: bytes) -> int:
    """The length of the first long run of zeros in a picture's compressed data, where an encoder writes none;
    0 where there is none."""
    if image.format not in _COMPRESSED:
        return 0
    begin = data.rfind(b"\xff\xda") if image.format in ("JPEG", "MPO") else 0
    least = bytes(max(_LEAST_ZEROS, len(data) // _LEAST_ZEROS_PART))
    if (at := data.find(least, begin)) < 0:
        return 0
    return len(data) - at - len(data[at:].lstrip(b"\0"))


def _orientation(image: Image.Image) -> tuple[int, list[str]]:
    """The EXIF orientation, 1 (upright) to 8, and a sentence about it where there is something to say."""
    if image.format == "HEIF":  # its decoder has turned it, as the container says; EXIF may repeat that
        return 1, []
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except (SyntaxError, ValueError, struct.error) as error:
        return 1, [f"The EXIF data cannot be read ({error}), so the picture was taken as upright."]
    if orientation not in range(2, 9):
        return 1, []
    return orientation, [f"The picture was turned upright (EXIF orientation {orientation})."]
