"""From a file to upright 8-bit RGB pixels, or to one sentence saying why not."""

import hashlib
import os
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from agentic_iqa_local.images.colours import to_rgb8
from agentic_iqa_local.images.files import ImageError, read_file, within_memory
from agentic_iqa_local.images.raw import preview_of
from agentic_iqa_local.images.tiff import check_tiff, is_raw_tiff

# Only these decoders run: Pillow also knows formats that start other programs (EPS) or hold no
# photograph.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "JPEG2000", "GIF", "PPM", "AVIF")
SEVERAL_PICTURES = ("MPO", "HEIF")  # of a camera: the main one is the photograph
# Brands of ISO 23008-12
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_RAW = "a camera's raw photograph"
_NOT_READ = {  # beginnings of files that people take for pictures of one of FORMATS, and what they are
    b"\xff\x0a": "a JPEG XL file", b"\0\0\0\x0cJXL ": "a JPEG XL file", b"8BPS": "a Photoshop document",
    b"v/1\x01": "an OpenEXR file", b"#?RADIANCE": "a Radiance file", b"%PDF": "a PDF", b"<svg": "a drawing (SVG)",
    b"\0\0\0\x18ftypcrx ": _RAW, b"FUJIFILM": _RAW, b"IIRO": _RAW, b"IIU\0": _RAW,
}  # fmt: skip
_DECODING = threading.Lock()  # Pillow's settings and the warning filters are the whole process's


@dataclass(frozen=True)
class LoadedImage:
    """A picture as it is judged."""

    path: str
    pixels: (
        Image.Image
    )  # 8-bit RGB, upright, without metadata, so that nothing downstream rotates it again
    width: int
    height: int
    sha256: str  # hex, of the file's bytes
    warnings: tuple[str, ...]  # a sentence for each thing that may move a score
    offset: tuple[int, int] = (
        0,
        0,
    )  # left and top of the pixels in the upright original, if it had a frame
    raw_size: str | None = None  # of the RAW data whose preview this is: width×height


def load_image(
    path: str | os.PathLike[str],
    *,
    max_pixels: int = 100_000_000,
    min_side: int = 32,
    background: str | None = None,
    raw_previews: bool = False,
) -> LoadedImage:
    """Reads and fully decodes one picture. Its content decides what it is, never its name.

    Args:
        path: the file.
        max_pixels: width × height at most, checked on the header.
        min_side: pixels a side at least.
        background: a colour that Pillow's ImageColor knows, for transparent pixels.
        raw_previews: whether of a camera's RAW file the preview in it is read, which a warning says.

    Raises:
        ImageError: for what is missing, unreadable, damaged, of another format, animated, too small or too
            large, a preview of a larger one, has samples of more than 16 bits or without a fixed black and
            white, is transparent anywhere while there is no background, or needs more memory than there is.
    """
    path = os.fspath(path)
    with within_memory(path):
        data = picture = read_file(path)
        raw_size, said = None, []
        if raw_previews and _is_raw(data):
            picture, raw_size = preview_of(path, data)
            said.append(f"the camera's preview was judged, not the RAW data ({raw_size} pixels)")
        with strict_pillow(path):
            image = _open(path, picture)
            _check_header(path, image, max_pixels, min_side)
            image.load()
            with suppress(SyntaxError, ValueError, struct.error):
                # EXIF data that cannot be read turn nothing
                ImageOps.exif_transpose(image, in_place=True)
            pixels, notes = to_rgb8(path, image, background)
    digest = hashlib.sha256(data).hexdigest()
    said += notes
    return LoadedImage(path, pixels, *pixels.size, digest, tuple(said), raw_size=raw_size)


def load_pair(
    path: str | os.PathLike[str], reference_path: str | os.PathLike[str], **limits: Any
) -> tuple[LoadedImage, LoadedImage]:
    """A picture and its reference; `limits` as for `load_image`. Raises `ImageError` when either
    cannot be loaded or their upright sizes differ: resizing would itself be a distortion."""
    image = load_image(path, **limits)
    reference = load_image(reference_path, **limits)
    if image.pixels.size != reference.pixels.size:
        expected = f"expected a reference of the same size, {image.width}x{image.height}"
        got = f"{reference.path} is {reference.width}x{reference.height}"
        advice = (
            "use the original of this picture, cropped alike, or assess it without a reference."
        )
        raise ImageError(f"{image.path}: {expected}, but {got}", advice)
    return image, reference


@contextmanager
def _header(path: str | os.PathLike[str]) -> Iterator[Image.Image]:
    """A picture of which no pixel is decoded. Raises ImageError."""
    path = os.fspath(path)
    with within_memory(path), strict_pillow(path), Image.open(path, formats=FORMATS) as image:
        yield image


def own_exif(path: str | os.PathLike[str]) -> dict[int, object]:
    """What the camera wrote into a picture's file, by tag. Raises ImageError, and what Pillow does
    for values that are none."""
    with _header(path) as image:
        exif = image.getexif()
        return {**exif, **exif.get_ifd(ExifTags.IFD.Exif)}


def own_xmp(path: str | os.PathLike[str]) -> bytes:
    """The XMP that a picture's file holds itself; empty where it holds none. Raises ImageError."""
    with _header(path) as image:
        own = image.info.get("xmp", b"")
    own = own if isinstance(own, bytes) else str(own).encode()
    return own.rstrip(b"\0")


@contextmanager
def strict_pillow(path: str) -> Iterator[None]:
    """Makes Pillow refuse truncated files but no large ones, without warnings, and raise
    `ImageError` only."""
    with _DECODING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = (
            ImageFile.LOAD_TRUNCATED_IMAGES,
            Image.MAX_IMAGE_PIXELS,
        )  # pyiqa.data sets the first
        ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = False, None
        try:
            yield
        except (ImageError, MemoryError):
            raise
        except Exception as error:  # plugins raise nearly any type on damaged data
            reason = str(error).strip().rstrip(".") or type(error).__name__
            expected = f"{path}: expected a complete image, but decoding failed"
            raise ImageError(f"{expected} ({reason})", "get an intact copy.") from error
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = before


def _open(path: str, data: bytes) -> Image.Image:
    if data[4:8] == b"ftyp" and data[8:12] in _HEIC_BRANDS:
        try:  # called directly: registering it would change Pillow for the whole process
            from pillow_heif import HeifImageFile  # an extra, which need not be installed
        except ImportError:
            advice = "install pillow-heif or convert it to PNG."
            raise ImageError(
                f"{path}: this is a HEIC photograph, which needs an extra", advice
            ) from None
        return HeifImageFile(BytesIO(data))
    check_tiff(path, data)
    try:
        return Image.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise _not_read(path, data) from None


def _is_raw(data: bytes) -> bool:
    beginnings = tuple(beginning for beginning, kind in _NOT_READ.items() if kind == _RAW)
    return data.startswith(beginnings) or is_raw_tiff(data)


def _not_read(path: str, data: bytes) -> ImageError:
    """What is wrong with a file that no decoder takes."""
    expected = f"{path}: expected a {', '.join(FORMATS)} or HEIC image"
    for beginning, kind in _NOT_READ.items():
        if data.startswith(beginning):
            return ImageError(f"{expected}, but this is {kind}", "export it as PNG or JPEG.")
    if not data:
        return ImageError(f"{expected}, but the file is empty", "get an intact copy.")
    said = "but the content is no such picture, or damaged"
    return ImageError(f"{expected}, {said}", "get an intact copy or convert it to PNG.")


def _check_header(path: str, image: Image.Image, max_pixels: int, min_side: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        expected = f"expected at most {max_pixels} pixels, but its header claims {width}x{height}"
        raise ImageError(
            f"{path}: {expected}", "crop it, or raise max_pixels under images in a configuration."
        )
    if min(width, height) < min_side:
        expected = f"expected at least {min_side} pixels on each side, but it is {width}x{height}"
        raise ImageError(f"{path}: {expected}", "use the original instead of a thumbnail.")
    if image.format not in (*SEVERAL_PICTURES, "TIFF") and getattr(image, "is_animated", False):
        expected = (
            f"expected a single picture, but this {image.format} holds several frames or pages"
        )
        raise ImageError(f"{path}: {expected}", "extract one frame first.")
