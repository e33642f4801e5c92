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
_KINDS = {1: "whole", 2: "signed", 3: "floating-point"}  # by _SAMPLE_FORMAT
_MOST_PICTURES = 64  # that are looked at
_DEEPEST = 16  # bits of a sample that is a colour


def check_tiff(path: str, data: bytes) -> None:
    """Raises ImageError if the picture that would be read of a file built like a TIFF is not the
    one that is meant: a preview, one page of several, or samples without a fixed black and
    white."""
    pictures = _pictures(data) if data.startswith(_HEADERS) else []
    if not pictures:
        return
    if _is_of_sensor(data, pictures):
        expected = "expected a picture, but this is a camera's raw photograph"
        raise ImageError(f"{path}: {expected}", "develop it first: export it as JPEG or TIFF.")
    sizes = [_size(picture) for picture in pictures]
    largest = max(sizes, key=math.prod)
    if math.prod(sizes[0]) < math.prod(largest):
        said = "{}×{} pixels, is smaller than another in it, {}×{}".format(*sizes[0], *largest)
        expected = "expected one picture, but the first in this file"
        advice = "export the one that you mean as JPEG or TIFF."
        raise ImageError(f"{path}: {expected}, {said}", advice)
    if sum(not _first(picture, _SUBFILE, 0) & _VERSIONS for picture in pictures) > 1:
        expected = "expected a single picture, but this TIFF holds several frames or pages"
        raise ImageError(f"{path}: {expected}", "extract one frame first.")
    _check_samples(path, pictures[0])


def is_raw_tiff(data: bytes) -> bool:
    """Whether a file is a camera's raw photograph that is built like a TIFF."""
    return data.startswith(_HEADERS) and _is_of_sensor(data, _pictures(data))


def _is_of_sensor(data: bytes, pictures: list[Directory]) -> bool:
    of_sensor = any(_first(picture, _PHOTOMETRIC, 0) in _SENSOR for picture in pictures)
    return of_sensor or data[8:10] == b"CR"


def _check_samples(path: str, picture: Directory) -> None:
    """Raises ImageError if a picture's samples have no fixed black and white."""
    kind = _KINDS.get(_first(picture, _SAMPLE_FORMAT, 1), "other")
    bits = _first(picture, _BITS, 1)
    if kind in ("signed", "floating-point") or bits > _DEEPEST:
        got = f"{_first(picture, _SAMPLES, 1)} × {bits}-bit {kind} numbers a pixel"
        expected = f"expected grey, RGB or CMYK samples of 8 or 16 bits, but this TIFF has {got}"
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


def _pictures(data: bytes) -> list[Directory]:
    """The pictures in a file, those that hang below others too; first the one that would be
    read."""
    pictures: list[Directory] = []
    waiting = [_header(data).next]
    seen = {0}  # no directory lies there
    while waiting and len(seen) <= _MOST_PICTURES:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        picture = _read(data, place)
        if picture is not None:
            pictures.append(picture)
            waiting += [*_numbers(picture, _BELOW), picture.next]
    return pictures


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
