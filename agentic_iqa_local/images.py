"""From a file to upright 8-bit RGB pixels, or to one sentence saying why not; and which native-size views a
model gets.

Knows no model: sizes, factors and limits are passed in.
"""

import difflib
import glob
import hashlib
import math
import os
import re
import struct
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
from PIL import Image, ImageCms, ImageFile, ImageOps, UnidentifiedImageError

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, open_regular
from agentic_iqa_local.state import IMAGE_SUFFIXES
from agentic_iqa_local.text import one_line

# Only these decoders run: Pillow also knows formats that start other programs (EPS) or hold no photograph.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "JPEG2000", "GIF", "PPM", "AVIF")
# Beside them pillow-heif reads what begins as ISO 23008-12 says. It is asked for directly: registering it
# would change Pillow for all.
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")

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
_ORIENTATION, _BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 274, 258, 262, 0  # EXIF and TIFF tags

_JPEG_BLOCK = 8
# neither stuffing nor a marker without a segment behind it
_JPEG_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")
_START_OF_SCAN, _END_OF_IMAGE = b"\xda", b"\xd9"
_MOST_SCANS = (
    100  # as in libtiff: cameras and editors write about ten, and each goes over the whole picture again
)
_MOST_BYTES = 2**30  # of a file: more than a hundred million pixels need in any of the formats
_LISTED = 10_000  # names of a folder among which a misspelt one is looked for
# pathlib makes one slash of two
_ADDRESS = re.compile(r"(https?|ftps?|s3|gs|gcs|azure|hdfs):/+", re.IGNORECASE)
_MAX_ASPECT = 100  # Qwen's processors refuse sides beyond 200:1, and rounding may stretch them


class ImageError(UserError, ValueError):
    """One sentence: the path, what was expected, what came, what to do."""


@dataclass(frozen=True)
class LoadedImage:
    path: str
    pixels: Image.Image  # 8-bit RGB, upright, without metadata, so that nothing downstream rotates it again
    width: int
    height: int
    sha256: str  # hex, of the file's bytes
    warnings: tuple[str, ...]  # a sentence for each conversion that the pixels went through


def load_image(
    path: str | os.PathLike[str],
    *,
    max_pixels: int = 100_000_000,
    min_side: int = 32,
    background: str | None = None,
) -> LoadedImage:
    """Read and fully decode one picture, or raise `ImageError`. Its content decides what it is, never its
    name.

    `max_pixels` (width × height) is checked on the header, before anything is decoded; Pillow's own limit
    (twice `Image.MAX_IMAGE_PIXELS`) stays in force above it. `min_side` is in pixels. `background` is a
    colour that Pillow's ImageColor knows; transparent pixels are composited onto it.

    Refused: what is missing, unreadable, empty, damaged, of another format, animated, too small or too large,
    has 32-bit samples or more than a hundred scans, or is transparent anywhere while there is no background.
    Converted with a warning: EXIF orientation, more than 8 bits a sample (scaled, not clipped), CMYK,
    greyscale, palettes, an opaque alpha channel. HEIC is turned as its container says. An ICC profile of RGB
    or grey data is only named: metrics and models read raw numbers. A JPEG damaged in its middle still
    decodes, so that is not noticed.

    Threads wait for each other: Pillow's strictness and the warning filters are settings of the whole
    process.
    """
    path = os.fspath(path)
    data = read_file(path)
    if not data:
        raise ImageError(
            f"{path}: expected an image, but the file is empty (0 bytes); copy it again from its source."
        )
    with _DECODING, _strict_pillow() as caught:
        try:
            image = _open(path, data)
            animated = getattr(image, "is_animated", False)
        except ImageError:
            raise
        except UnidentifiedImageError:
            raise ImageError(
                f"{path}: expected a {', '.join(FORMATS)} or HEIC image, but the content is none of these or"
                " its header is damaged; convert it to PNG or get an intact copy."
            ) from None
        except Image.DecompressionBombError as error:
            raise ImageError(
                f"{path}: expected at most {max_pixels} pixels, but its header claims far more "
                f"({str(error).rstrip('.')}); crop it first."
            ) from error
        except Exception as error:  # plugins raise nearly any type on damaged data
            raise _damaged(path, error) from error
        _check_header(path, image, animated, max_pixels, min_side)
        try:
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
                notes.append(
                    f"Only the {'first' if image.format == 'MPO' else 'main one'} of the file's"
                    f" {image.n_frames} pictures was taken."
                )
            pixels, conversions = _to_rgb8(path, upright, image, _bits_per_sample(image, data), background)
        except ImageError:
            raise
        except Exception as error:
            raise _damaged(path, error) from error
    notes += conversions + [f"Pillow: {warning.message}" for warning in caught]
    told = tuple(dict.fromkeys(map(one_line, notes)))
    return LoadedImage(path, pixels, *pixels.size, hashlib.sha256(data).hexdigest(), told)


def decode(image: Image.Image) -> None:
    """Decodes what Pillow has opened and not read yet, as strictly as `load_image`. Raises `ImageError`."""
    with _DECODING, _strict_pillow():
        try:
            image.load()
        except Exception as error:  # plugins raise nearly any type on damaged data
            raise _damaged("image", error) from error


def load_pair(
    path: str | os.PathLike[str], reference_path: str | os.PathLike[str], **options: int | str | None
) -> tuple[LoadedImage, LoadedImage]:
    """A picture and its reference, of one size once both are upright; `options` as for `load_image`.

    Raises `ImageError` when either cannot be loaded or the sizes differ: resizing would itself be a
    distortion.
    """
    image, reference = load_image(path, **options), load_image(reference_path, **options)
    if image.pixels.size != reference.pixels.size:
        raise ImageError(
            f"{image.path}: expected a reference of the same size, {image.width}x{image.height}, but"
            f" {reference.path} is {reference.width}x{reference.height}; use the reference that this picture"
            " was made from, cropped alike, or assess it without a reference."
        )
    return image, reference


def same_pixels(image: LoadedImage, reference: LoadedImage) -> bool:
    """Whether two pictures of one size are the same, pixel by pixel."""
    return image.pixels.tobytes() == reference.pixels.tobytes()


def check_file(path: str | os.PathLike[str]) -> None:
    """Raises `ImageError` where there is no file, without reading any: for a missing one with the nearest
    name beside it."""
    with _file_errors(path := os.fspath(path)):
        _check_file(path)


def _check_file(path: str) -> None:
    if os.path.isdir(path):
        raise ImageError(f"{path}: expected an image file, but this is a folder; name a file inside it.")
    if os.path.exists(path) and not os.path.isfile(path):  # reading a pipe or a device may never end
        raise ImageError(
            f"{path}: expected an image file, but this is a pipe or a device; save the picture to a file."
        )
    if (size := os.path.getsize(path)) > _MOST_BYTES:
        raise ImageError(
            f"{path}: expected an image of at most {_MOST_BYTES} bytes, but it has {size}; crop or"
            " compress it."
        )


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a picture's file, at most 1 GiB. Raises `ImageError`.

    No more is read than the file system says that there is: what stands in /proc as an empty file may have no
    end.
    """
    with _file_errors(path := os.fspath(path)):
        _check_file(path)
        with open(open_regular(path), "rb") as file:
            return file.read(os.fstat(file.fileno()).st_size)


@contextmanager
def _file_errors(path: str) -> Iterator[None]:
    """What the file system raises becomes `ImageError`."""
    try:
        yield
    except ImageError:
        raise
    except FileError as error:
        raise ImageError(f"{path}: {error}; check its permissions and its disk.") from error
    except FileNotFoundError:
        _refuse_address(path)
        raise ImageError(
            f"{path}: expected an image file, but there is no such file; {_near(path)}"
        ) from None
    except ValueError as error:  # a NUL, or a character that the file system's encoding has not
        raise ImageError(
            f"{path}: expected an image file, but no file can have this name ({error}); check the path."
        ) from None
    except OSError as error:
        raise ImageError(
            f"{path}: expected a readable image file, but reading failed ({error.strerror}); check its"
            " permissions and its disk."
        ) from error


def _near(path: str) -> str:
    """What to do about a file that is not there: the name of its folder that is most like it, if any is."""
    folder, name = os.path.split(path)
    try:
        names = {
            entry.name.casefold(): entry.name
            for entry, _ in zip(os.scandir(folder or "."), range(_LISTED), strict=False)
        }
    except OSError:
        return "check the path."
    found = difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.75)
    return f"did you mean {os.path.join(folder, names[found[0]])}?" if found else "check the path."


def _refuse_address(path: str) -> None:
    if _ADDRESS.match(path):
        address = re.sub(":/+", "://", path, count=1)
        raise ImageError(
            f"{address}: expected a file, but this is an address on a network; this program reads files only:"
            " download it first and give the file's path."
        )


_DECODING = threading.Lock()


@contextmanager
def _strict_pillow() -> Iterator[list[warnings.WarningMessage]]:
    """Pillow that refuses truncated files, and whose warnings go to the caller instead of the screen."""
    # importing pyiqa.data turns it on
    tolerant, ImageFile.LOAD_TRUNCATED_IMAGES = (
        ImageFile.LOAD_TRUNCATED_IMAGES,
        False,
    )
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # max_pixels decides
            yield caught
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


def _open(path: str, data: bytes) -> Image.Image:
    """Opened, not decoded. Raises UnidentifiedImageError, and nearly anything on a damaged header."""
    try:
        return Image.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        if data[4:8] != b"ftyp" or data[8:12] not in _HEIC_BRANDS:
            raise
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        raise ImageError(
            f"{path}: expected an image that can be read here, but this is a HEIC photograph; install"
            " pillow-heif or convert it to PNG."
        ) from None
    return HeifImageFile(BytesIO(data))


def _damaged(path: str, error: Exception) -> ImageError:
    reason = str(error).strip().rstrip(".") or type(error).__name__
    return ImageError(
        f"{path}: expected a complete image, but decoding failed ({reason}); get an intact copy."
    )


def _check_header(path: str, image: Image.Image, animated: bool, max_pixels: int, min_side: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"{path}: expected at most {max_pixels} pixels, but its header claims {width}x{height} = "
            f"{width * height}; crop it, or raise max_pixels."
        )
    if min(width, height) < min_side:
        raise ImageError(
            f"{path}: expected at least {min_side} pixels on each side, but it is {width}x{height}; "
            "use the original instead of a thumbnail."
        )
    # a camera's files: the main picture is the photograph
    if animated and image.format not in (
        "MPO",
        "HEIF",
    ):
        raise ImageError(
            f"{path}: expected a single picture, but this {image.format} holds several frames or pages;"
            " extract one frame first."
        )


def _check_structure(image: Image.Image, data: bytes) -> None:
    """Raises ValueError for what Pillow takes and no encoder makes."""
    if image.format == "PNG" and data[12:16] != b"IHDR":
        raise ValueError("IHDR is not the first chunk")
    if image.format in ("JPEG", "MPO"):
        at, scans = 0, 0
        while (marker := _JPEG_MARKER.search(data, at)) and marker[1] != _END_OF_IMAGE:
            # over the segment, by its length
            at = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2])
            scans += marker[1] == _START_OF_SCAN
        if scans > _MOST_SCANS:
            raise ValueError(f"{scans} scans, where a JPEG has a dozen at most")


def _orientation(image: Image.Image) -> tuple[int, list[str]]:
    """The EXIF orientation, 1 (upright) to 8, and what to tell about it."""
    if image.format == "HEIF":  # its decoder has turned it, as the container says; EXIF may repeat that
        return 1, []
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except (SyntaxError, ValueError, struct.error) as error:
        return 1, [f"The EXIF data cannot be read ({error}), so the picture was taken as upright."]
    if orientation not in range(2, 9):
        return 1, []
    return orientation, [f"The picture was turned upright (EXIF orientation {orientation})."]


def _bits_per_sample(image: Image.Image, data: bytes) -> int:
    """Stored bits a sample, as far as the file tells: Pillow opens 16-bit colour as 8-bit RGB without a
    word."""
    if image.format == "PNG":
        # IHDR is always first: 8 bytes signature, 8 chunk head, 4 width, 4 height, 1 bit depth
        return data[24]
    if image.format == "TIFF":
        return max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))
    if image.format == "HEIF":
        return image.info["bit_depth"]
    return {"I": 16, "I;16": 16, "F": 32}.get(image.mode, 8)


def _to_rgb8(
    path: str, image: Image.Image, stored: Image.Image, bits: int, background: str | None
) -> tuple[Image.Image, list[str]]:
    """`image` as plain 8-bit RGB, and a sentence for each conversion; `stored` is `image` as opened, with
    `bits` a sample."""
    mode, profile, notes = image.mode, image.info.get("icc_profile"), []
    # Pillow opens a 16-bit PGM as "I"
    if mode not in _PLAIN_MODES or (mode == "I" and stored.format != "PPM"):
        raise ImageError(
            f"{path}: expected 8-bit or 16-bit grey, RGB or CMYK samples, but this {stored.format} has "
            f"{bits}-bit samples (Pillow mode {mode}) without a fixed black and white; save it as RGB first."
        )
    if image.has_transparency_data:
        # Beside 16-bit samples a transparent colour (tRNS) cannot be compared exactly with what Pillow has
        # decoded.
        exact = bits <= 8 or mode[-1] == "A"
        image = image.convert("RGBA")
        if exact and image.getchannel("A").getextrema()[0] == 255:
            notes.append("The transparency data was dropped: every pixel is opaque.")
        elif exact and background is not None:
            image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
            notes.append(f"The transparent pixels were composited onto {background}.")
        else:
            raise ImageError(
                f"{path}: expected opaque pixels, but some are transparent, so the look depends on the"
                " background; composite it onto the background it is meant"
                f" for{' first, or name that with --background white' if exact else ' at 8 bits first'}."
            )
    if bits > 8:
        notes.append(f"The {bits}-bit samples were scaled to 8 bits.")
    if mode.startswith("I"):
        peak = 2**bits - 1
        samples = np.asarray(image).astype(np.uint32)
        if stored.format == "TIFF" and stored.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
            samples = peak - samples  # Pillow inverts these at 8 bits only
        image = Image.fromarray(((samples * 255 + peak // 2) // peak).astype(np.uint8))
    if mode == "CMYK":
        image, note = _cmyk_to_rgb(image, profile)
        notes.append(note)
    elif _PLAIN_MODES[mode] != "RGB":
        notes.append(f"The {_PLAIN_MODES[mode]} pixels were converted to RGB.")
    if profile and mode != "CMYK" and "srgb" not in (name := _profile_name(profile)).lower():
        notes.append(f"The embedded ICC profile ({name}) was not applied: the numbers are read as sRGB.")
    pixels = image.convert("RGB")
    pixels.info = {}
    return pixels, notes


def _cmyk_to_rgb(image: Image.Image, profile: bytes | None) -> tuple[Image.Image, str]:
    if profile is None:
        return (
            image.convert("RGB"),
            "The CMYK pixels were converted to RGB without colour management: they carry no ICC profile.",
        )
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
        return (
            image.convert("RGB"),
            (
                "The CMYK pixels were converted to RGB without colour management: their ICC profile cannot be"
                f" used ({error})."
            ),
        )
    return (
        converted,
        (
            "The CMYK pixels were converted to sRGB through the embedded ICC profile"
            f" ({_profile_name(profile)})."
        ),
    )


def _profile_name(profile: bytes) -> str:
    try:
        return ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(BytesIO(profile))).strip()
    except (ImageCms.PyCMSError, OSError) as error:
        return f"unreadable: {error}"


@dataclass(frozen=True)
class View:
    """A part of the upright image that goes to the model at native resolution."""

    box: tuple[int, int, int, int]  # left, top, right, bottom in pixels, as for Image.crop


def native_views(
    width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int, max_views: int = 5
) -> list[View]:
    """The resolution contract: the views of an image that reach the model without being shrunk or resampled.

    Blur, noise, ringing and blocking live at the scale of single pixels. A processor rounds each side to a
    multiple of `factor` (patch × merge, e.g. 28 or 32) and scales anything beyond `max_pixels` down, and that
    resampling erases what is to be judged. So each view has sides that are multiples of `factor` and at most
    `max_pixels`, and the processor leaves it alone.

    - An image that fits, once cropped about its centre to multiples of `factor`: that crop.
    - A larger one: up to `max_views` (1 to 5) crops of one size, with about the image's aspect but at most
      100:1. Their centres are the image's centre, then those of its top left, bottom right, top right and
      bottom left quarter, moved inwards where the crop would leave the image. Crops that coincide are given
      once.
    - An image whose crop would have fewer than `min_pixels`, or a side below `factor`: one view of all of it,
      which the processor enlarges, so the caller warns. A side that the processor would round down is cropped
      to the multiple below (it loses half a `factor` at most), so that nothing is shrunk here either.

    Offsets are multiples of 8: a JPEG's blocks keep their place in the model's patches. Sizes are in pixels,
    the result is deterministic. Raises ValueError for a size or a limit that allows no view.
    """
    if (
        min(width, height, factor) < 1
        or not 1 <= max_views <= 5
        or max_pixels < factor**2 <= min(width, height) ** 2
    ):
        raise ValueError(
            "native_views: expected positive sides, max_pixels of at least factor² and max_views from 1 to"
            f" 5, got {width}x{height}, {factor=}, {max_pixels=}, {max_views=}; correct the limits."
        )
    whole = width - width % factor, height - height % factor
    if math.prod(whole) < min_pixels or 0 in whole:
        whole = size = _side_rounded_up(width, factor), _side_rounded_up(height, factor)
    else:
        size = _view_size(*whole, factor, max_pixels)
    quarters = [(2, 2)] if size == whole else [(2, 2), (1, 1), (3, 3), (3, 1), (1, 3)]
    boxes = []
    for x, y in quarters:
        left, top = _offset(width, size[0], x), _offset(height, size[1], y)
        boxes.append((left, top, left + size[0], top + size[1]))
    return [View(box) for box in dict.fromkeys(boxes)][:max_views]


def _side_rounded_up(side: int, factor: int) -> int:
    """`side` if rounding it to a multiple of `factor` enlarges it, else the multiple below. Half may be
    rounded either way."""
    rest = side % factor
    return side if side < factor or 2 * rest > factor else side - rest


def _view_size(width: int, height: int, factor: int, max_pixels: int) -> tuple[int, int]:
    """The sides of a view of an image of width × height, both multiples of `factor`."""
    if width * height <= max_pixels and max(width, height) <= _MAX_ASPECT * min(width, height):
        return width, height
    sizes = []
    for view_height in range(factor, min(height, max_pixels // factor) + 1, factor):
        view_width = min(width, max_pixels // view_height, _MAX_ASPECT * view_height) // factor * factor
        if view_height <= _MAX_ASPECT * view_width:
            sizes.append((view_width, view_height))
    return min(sizes, key=lambda size: abs(math.log(size[0] * height / (size[1] * width))))


def _offset(side: int, view_side: int, quarter: int) -> int:
    """Where a view starts whose centre is at `quarter`/4 of the side, moved inside the image."""
    start = min(max(side * quarter // 4 - view_side // 2, 0), side - view_side)
    return start // _JPEG_BLOCK * _JPEG_BLOCK


def expand_inputs(items: Sequence[str], tell: Callable[[str], None] | None = None) -> list[Path]:
    """Files, folders and globs as a list of files in the order given, without duplicates.

    A folder stands for the image files directly in it, a glob (`**` for any depth) for those it matches, both
    by suffix, sorted as people count (2 before 10) and without hidden files; `tell` gets a line for each that
    held other files or folders. Raises `ImageError` when one of these yields nothing, and for an address on a
    network (file:// is a path). A plain path is kept even if nothing is there: `load_image` reports it as
    that row's failure, `check_file` before.
    """
    files: list[Path] = []
    for item in map(local_path, items):
        is_folder = os.path.isdir(item)
        if is_folder:
            found = Path(item).glob("*")
        elif glob.has_magic(item) and not os.path.exists(item):
            found = map(Path, glob.iglob(item, recursive=True))
        else:
            files.append(Path(item))
            continue
        seen = [file for file in found if not file.name.startswith(".")]
        others = [file for file in seen if file.is_file() and file.suffix.lower() not in IMAGE_SUFFIXES]
        matches = [file for file in seen if file.is_file() and file.suffix.lower() in IMAGE_SUFFIXES]
        left_out = _left_out(item, others, sum(file.is_dir() for file in seen) if is_folder else 0)
        if not matches:
            raise ImageError(
                f"{item}: expected a folder or a pattern with image files"
                f" ({' '.join(sorted(IMAGE_SUFFIXES))}), but found none; check the"
                f" path{f' ({left_out})' if left_out else ''}."
            )
        if left_out and tell:
            place = os.path.join(item, "") if is_folder else item
            tell(one_line(f"{place}: {len(matches)} image{'s' * (len(matches) > 1)}; {left_out}"))
        files += sorted(matches, key=_natural)
    unique: dict[str, Path] = {}
    for file in files:
        unique.setdefault(os.path.abspath(file), file)
    return list(unique.values())


def _left_out(item: str, others: list[Path], folders: int) -> str:
    """What a folder or glob holds beside images, in words; empty when nothing."""
    said = []
    if others:
        kinds = Counter(file.suffix.lower() or "without a suffix" for file in others)
        listed = ", ".join(
            f"{kinds[kind]} {kind}" for kind in sorted(kinds, key=lambda kind: (-kinds[kind], kind))
        )
        said.append(f"skipped {len(others)} file{'s' * (len(others) > 1)}: {listed}")
    if folders:
        said.append(
            f"subfolders are not searched ({folders}): use '{os.path.join(glob.escape(item), '**', '*')}'"
        )
    return "; ".join(said)


def local_path(item: str) -> str:
    """`item` as a path: that of a file:// address. Raises `ImageError` for an address on a network."""
    if not os.path.exists(item):
        _refuse_address(item)
        if item.lower().startswith("file://"):
            return unquote(urlsplit(item).path)
    return item


def _natural(path: Path) -> tuple[list[str | int], str]:
    parts = re.split(r"(\d+)", str(path).casefold())
    return [int(part) if part.isdecimal() else part for part in parts], str(path)
