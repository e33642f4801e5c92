"""From a file to upright 8-bit RGB pixels, or to one sentence saying why not."""

import hashlib
import os
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.images.colours import to_rgb8
from agentic_iqa_local.images.files import ImageError, read_file

# Only these decoders run: Pillow also knows formats that start other programs (EPS) or hold no photograph.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "JPEG2000", "GIF", "PPM", "AVIF")
SEVERAL_PICTURES = ("MPO", "HEIF")  # of a camera: the main one is the photograph
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")  # ISO 23008-12
_ORIENTATION = 274  # EXIF tag
_COMPRESSED = ("JPEG", "MPO", "WEBP", "AVIF", "JPEG2000", "HEIF")
_LEAST_ZEROS, _LEAST_ZEROS_PART = 512, 50  # bytes, and the fraction of a file, that data which are lost take
_DECODING = threading.Lock()  # Pillow's strictness and the warning filters belong to the whole process


@dataclass(frozen=True)
class LoadedImage:
    path: str
    pixels: Image.Image  # 8-bit RGB, upright, without metadata, so that nothing downstream rotates it again
    width: int
    height: int
    sha256: str  # hex, of the file's bytes
    warnings: tuple[str, ...]  # a sentence for each conversion that may move a score
    offset: tuple[int, int] = (0, 0)  # left and top of the pixels in the upright original, if it had a frame
    damaged: bool = False  # whether much of the file's compressed data is missing


def load_image(
    path: str | os.PathLike[str],
    *,
    max_pixels: int = 100_000_000,
    min_side: int = 32,
    background: str | None = None,
) -> LoadedImage:
    """Reads and fully decodes one picture. Its content decides what it is, never its name.

    Args:
        path: the file.
        max_pixels: width × height at most, checked on the header; Pillow's own limit stays above it.
        min_side: pixels a side at least.
        background: a colour that Pillow's ImageColor knows, for transparent pixels.

    Raises:
        ImageError: for what is missing, unreadable, damaged, of another format, animated, too small or too
            large, has 32-bit samples, or is transparent anywhere while there is no background.
    """
    path = os.fspath(path)
    data = read_file(path)
    if not data:
        raise ImageError(f"{path}: expected an image, but the file is empty (0 bytes)", "copy it again.")
    with _strict_pillow(path) as caught:
        image = _open(path, data, max_pixels)
        _check_header(path, image, max_pixels, min_side)
        orientation, notes = _orientation(image)  # before load(), which already turns a TIFF
        image.load()
        upright = ImageOps.exif_transpose(image) if orientation != 1 else image
        pixels, conversions = to_rgb8(path, upright, image, data, background)
    notes += conversions
    if zeros := _zeros(image, data):
        notes.append(
            f"{zeros} of the file's {len(data)} bytes are zeros in a row, as where data are lost: what the"
            " picture shows in their place was made up by the decoder."
        )
    notes += [f"Pillow: {warning.message}" for warning in caught]
    lines = tuple(dict.fromkeys(map(one_line, notes)))
    return LoadedImage(path, pixels, *pixels.size, hashlib.sha256(data).hexdigest(), lines, damaged=zeros > 0)


def load_pair(
    path: str | os.PathLike[str], reference_path: str | os.PathLike[str], **limits: Any
) -> tuple[LoadedImage, LoadedImage]:
    """A picture and its reference; `limits` as for `load_image`. Raises `ImageError` when either cannot be
    loaded or their upright sizes differ: resizing would itself be a distortion."""
    image, reference = load_image(path, **limits), load_image(reference_path, **limits)
    if image.pixels.size != reference.pixels.size:
        raise ImageError(
            f"{image.path}: expected a reference of the same size, {image.width}x{image.height},"
            f" but {reference.path} is {reference.width}x{reference.height}",
            "use the original of this picture, cropped alike, or assess it without a reference.",
        )
    return image, reference


def same_pixels(image: LoadedImage, reference: LoadedImage) -> bool:
    """Whether two pictures of one size are the same, pixel by pixel."""
    return image.pixels.tobytes() == reference.pixels.tobytes()


def decode(image: Image.Image) -> None:
    """Decodes a Pillow image that was only opened, as strictly as `load_image`. Raises `ImageError`."""
    with _strict_pillow("image"):
        image.load()


@contextmanager
def _strict_pillow(path: str) -> Iterator[list[warnings.WarningMessage]]:
    """Makes Pillow refuse truncated files, turns all that it raises into `ImageError`, and collects its
    warnings instead of printing them."""
    with _DECODING:
        tolerant = ImageFile.LOAD_TRUNCATED_IMAGES  # importing pyiqa.data turns it on
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # max_pixels decides
                yield caught
        except ImageError:
            raise
        except Exception as error:  # plugins raise nearly any type on damaged data
            reason = str(error).strip().rstrip(".") or type(error).__name__
            expected = f"{path}: expected a complete image, but decoding failed"
            raise ImageError(f"{expected} ({reason})", "get an intact copy.") from error
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


def _open(path: str, data: bytes, max_pixels: int) -> Image.Image:
    """The image, opened but not decoded. Raises ImageError, and nearly anything on a damaged header."""
    try:
        return Image.open(BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        said = f"{path}: expected at most {max_pixels} pixels, but its header claims far more ({error})"
        raise ImageError(said.replace(".)", ")"), "crop it first.") from error
    except UnidentifiedImageError:
        if data[4:8] != b"ftyp" or data[8:12] not in _HEIC_BRANDS:
            raise ImageError(
                f"{path}: expected a {', '.join(FORMATS)} or HEIC image, but the content is none of these or"
                " its header is damaged",
                "convert it to PNG or get an intact copy.",
            ) from None
    try:  # called directly: registering it would change Pillow for the whole process
        from pillow_heif import HeifImageFile  # an extra, which need not be installed
    except ImportError:
        raise ImageError(
            f"{path}: expected an image that can be read here, but this is a HEIC photograph",
            "install pillow-heif or convert it to PNG.",
        ) from None
    return HeifImageFile(BytesIO(data))


def _check_header(path: str, image: Image.Image, max_pixels: int, min_side: int) -> None:
    width, height = image.size
    if (pixels := width * height) > max_pixels:
        raise ImageError(
            f"{path}: expected at most {max_pixels} pixels, but its header claims {width}x{height} = {pixels}",
            "crop it, or raise max_pixels under images in a configuration.",
        )
    if min(width, height) < min_side:
        raise ImageError(
            f"{path}: expected at least {min_side} pixels on each side, but it is {width}x{height}",
            "use the original instead of a thumbnail.",
        )
    if image.format not in SEVERAL_PICTURES and getattr(image, "is_animated", False):
        raise ImageError(
            f"{path}: expected a single picture, but this {image.format} holds several frames or pages",
            "extract one frame first.",
        )


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


def _zeros(image: Image.Image, data: bytes) -> int:
    """The length of the first long run of zeros in compressed data, where an encoder writes none."""
    if image.format not in _COMPRESSED:
        return 0
    begin = data.rfind(b"\xff\xda") if image.format in ("JPEG", "MPO") else 0
    at = data.find(bytes(max(_LEAST_ZEROS, len(data) // _LEAST_ZEROS_PART)), begin)
    return len(data) - at - len(data[at:].lstrip(b"\0")) if at >= 0 else 0
