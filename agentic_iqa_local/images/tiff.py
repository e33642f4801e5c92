"""What a file built like a TIFF holds, by its tags: photographs, previews, or numbers that are no
colours yet. The raw files of many cameras (DNG, NEF, CR2, ARW) are built so, and the first picture
in them is a preview."""

import math
from io import BytesIO

from PIL.TiffImagePlugin import ImageFileDirectory_v2 as Directory

from agentic_iqa_local.images.files import ImageError

_BIG = b"II\x2b\x00"  # a BigTIFF, which Pillow reads in this order of bytes alone
_HEADERS = (b"II\x2a\x00", b"MM\x00\x2a", _BIG)
_SUBFILE, _WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _SAMPLES = 254, 256, 257, 258, 262, 277
_BELOW, _SAMPLE_FORMAT = 330, 339
_VERSIONS = 1 | 4  # bits of _SUBFILE: a smaller version of another picture, or a mask of one
_SENSOR = (32803, 34892)  # values of _PHOTOMETRIC: what a camera's sensor measured
_KINDS = {1: "whole numbers", 2: "signed numbers", 3: "floating-point numbers"}
_MOST_PICTURES = 64  # that are looked at
_DEEPEST = 16  # bits of a sample that is a colour
_ADVICE = "export the one that you mean as JPEG or TIFF."


def is_tiff(data: bytes) -> bool:
    """Whether a file is built like a TIFF or a BigTIFF."""
    return data.startswith(_HEADERS)


def check_tiff(path: str, data: bytes) -> None:
    """Raises ImageError if the picture that would be read of a file built like a TIFF is not the
    one that is meant: a preview, one page of several, or samples without a fixed black and
    white."""
    pages, below = _pictures(data)
    if not pages:
        return
    shown = pages[0]
    every = pages + below
    _check_no_raw_file(path, data, every)
    check_largest(path, _size(shown), [_size(picture) for picture in every])
    if _is_version(shown) and not all(map(_is_version, every)):
        expected = "expected a picture, but the first in this file is a preview or a mask"
        raise ImageError(f"{path}: {expected} of another in it", _ADVICE)
    if sum(not _is_version(page) for page in pages) > 1:
        expected = "expected a single picture, but this TIFF holds several frames or pages"
        raise ImageError(f"{path}: {expected}", "extract one frame first.")
    if _first(shown, _SAMPLE_FORMAT, 1) in (2, 3) or _first(shown, _BITS, 1) > _DEEPEST:
        check_colour(path, data)


def _check_no_raw_file(path: str, data: bytes, pictures: list[Directory]) -> None:
    """Raises ImageError if one of a file's pictures is what a camera's sensor measured."""
    if not any(map(_is_of_sensor, pictures)) and data[8:10] != b"CR":
        return
    expected = "expected a picture, but this is a camera's raw photograph"
    if not _is_of_sensor(pictures[0]):
        width, height = _size(pictures[0])
        expected += f", of which only a preview of {width}×{height} pixels can be shown"
    raise ImageError(f"{path}: {expected}", "develop it first: export it as JPEG or TIFF.")


def check_largest(path: str, first: tuple[int, int], sizes: list[tuple[int, int]]) -> None:
    """Raises ImageError if a file's first picture has fewer pixels than another, so that it is a
    preview."""
    largest = max(sizes, key=math.prod)
    if math.prod(first) < math.prod(largest):
        said = "{}×{} pixels, is smaller than another in it, {}×{}".format(*first, *largest)
        expected = "expected one picture, but the first in this file"
        raise ImageError(f"{path}: {expected}, {said}", _ADVICE)


def check_colour(path: str, data: bytes) -> None:
    """Raises ImageError that names the samples of a TIFF that no decoder takes, if its tags tell of
    a picture."""
    pages, _ = _pictures(data)
    if not pages or not math.prod(_size(pages[0])):
        return
    picture = pages[0]
    kind = _KINDS.get(_first(picture, _SAMPLE_FORMAT, 1), "numbers of another kind")
    samples, bits = _first(picture, _SAMPLES, 1), _first(picture, _BITS, 1)
    colours = f"photometric interpretation {_first(picture, _PHOTOMETRIC, 0)}"
    got = f"this TIFF has {samples} × {bits}-bit {kind} a pixel ({colours})"
    expected = f"expected grey, RGB or CMYK samples of 8 or 16 bits, but {got}"
    advice = "export it as it is meant to look, as RGB with 8 or 16 bits a sample."
    raise ImageError(f"{path}: {expected}", advice)


def _first(picture: Directory, tag: int, default: int) -> int:
    """The first number of a tag; `default` if there is none."""
    return next(iter(_numbers(picture, tag)), default)


def _numbers(picture: Directory, tag: int) -> list[int]:
    """The whole numbers of a tag, which Pillow gives as one, as several or as something else."""
    value = picture.get(tag, ())
    values = value if isinstance(value, tuple) else (value,)
    return [number for number in values if isinstance(number, int)]


def _size(picture: Directory) -> tuple[int, int]:
    return _first(picture, _WIDTH, 0), _first(picture, _HEIGHT, 0)


def _is_version(picture: Directory) -> bool:
    """Whether it says that it is no picture of its own, but a preview or a mask of another."""
    return bool(_first(picture, _SUBFILE, 0) & _VERSIONS)


def _is_of_sensor(picture: Directory) -> bool:
    return _first(picture, _PHOTOMETRIC, 0) in _SENSOR


def _pictures(data: bytes) -> tuple[list[Directory], list[Directory]]:
    """The pages of a file, and the pictures that hang below them."""
    pages = list[Directory]()
    below = list[Directory]()
    waiting = [(_header(data).next, pages)]
    seen = {0}  # no directory lies there
    while waiting and len(seen) <= _MOST_PICTURES:
        place, found = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        picture = _read(data, place)
        if picture is None:
            continue
        found.append(picture)
        for other in _numbers(picture, _BELOW):
            waiting.append((other, below))
        waiting.append((picture.next, found))
    return pages, below


def _read(data: bytes, place: int) -> Directory | None:
    """The tags of a picture; None if they lie beyond the end of the file."""
    picture = _header(data)
    file = BytesIO(data)
    try:
        file.seek(place)
        picture.load(file)
    except (OverflowError, ValueError):
        return None
    return picture if len(picture) else None


def _header(data: bytes) -> Directory:
    """An empty directory whose `next` is the place of the first one of the file."""
    length = 16 if data.startswith(_BIG) else 8
    return Directory(data[:length].ljust(length, b"\0"))
