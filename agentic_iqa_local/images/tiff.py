"""What a file built like a TIFF holds, by its tags: photographs, previews, or numbers that are no colours yet. The raw
files of many cameras (DNG, NEF, CR2, ARW) are built so, and the first picture in them is a preview."""

import struct
from dataclasses import dataclass

from agentic_iqa_local.images.files import ImageError

_ORDERS = {b"II": "<", b"MM": ">"}  # of bytes
_PLAIN, _BIG = 42, 43  # versions of the format
_NUMBERS = {3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}  # types of values that are read
_SUBFILE, _WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _SAMPLES = 254, 256, 257, 258, 262, 277
_BELOW, _SAMPLE_FORMAT = 330, 339
_TAGS = (_SUBFILE, _WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _SAMPLES, _BELOW, _SAMPLE_FORMAT)
_VERSIONS = 1 | 4  # bits of _SUBFILE: a smaller version of another picture, or where one is seen
_SENSOR = (32803, 34892)  # values of _PHOTOMETRIC: what a camera's sensor measured
_KINDS = {1: "whole numbers", 2: "signed numbers", 3: "floating-point numbers"}
_MOST_PICTURES, _MOST_TAGS, _MOST_VALUES = 64, 1024, 64  # that are looked at
MEANT = "export the one that you mean as JPEG or TIFF."
_DEEPEST = 16  # bits of a sample that is a colour


@dataclass(frozen=True)
class _Picture:
    """A picture in a file, by its tags."""

    tags: dict[int, tuple[int, ...]]

    def first(self, tag: int, default: int = 0) -> int:
        return next(iter(self.tags.get(tag, ())), default)

    @property
    def size(self) -> tuple[int, int]:
        return self.first(_WIDTH), self.first(_HEIGHT)

    @property
    def pixels(self) -> int:
        return self.first(_WIDTH) * self.first(_HEIGHT)

    @property
    def is_version(self) -> bool:
        """Whether it says that it is no picture of its own, but a preview or a mask of another."""
        return bool(self.first(_SUBFILE) & _VERSIONS)

    @property
    def from_sensor(self) -> bool:
        return self.first(_PHOTOMETRIC) in _SENSOR

    @property
    def is_colour(self) -> bool:
        """Whether its samples have a fixed black and white."""
        return self.first(_SAMPLE_FORMAT, 1) not in (2, 3) and self.first(_BITS, 1) <= _DEEPEST


def is_tiff(data: bytes) -> bool:
    """Whether a file is built like a TIFF or a BigTIFF."""
    order = _ORDERS.get(data[:2])
    return order is not None and data[2:4] in (
        struct.pack(f"{order}H", version) for version in (_PLAIN, _BIG)
    )


def check_tiff(path: str, data: bytes) -> None:
    """Raises ImageError where the picture that would be read of a file built like a TIFF is not the one that is meant:
    a preview, one page of several, or samples without a fixed black and white."""
    pages, below = _pictures(data)
    if not pages:
        return
    shown, largest = pages[0], max(pages + below, key=lambda picture: picture.pixels)
    raw = any(picture.from_sensor for picture in pages + below) or data[8:10] == b"CR"
    preview = "{}×{} pixels".format(*shown.size)
    if raw:
        expected = "expected a picture, but this is a camera's raw photograph"
        only = f", of which only a preview of {preview} can be shown"
        raise ImageError(
            f"{path}: {expected}{'' if shown.from_sensor else only}",
            "develop it first: export it as JPEG or TIFF.",
        )
    if shown.pixels < largest.pixels:
        raise preview_only(path, shown.size, largest.size)
    originals = [picture for picture in pages + below if not picture.is_version]
    if shown.is_version and originals:
        expected = (
            "expected a picture, but the first in this file is a preview or a mask of another"
        )
        raise ImageError(f"{path}: {expected} in it", MEANT)
    if sum(not page.is_version for page in pages) > 1:
        expected = "expected a single picture, but this TIFF holds several frames or pages"
        raise ImageError(f"{path}: {expected}", "extract one frame first.")
    if not shown.is_colour and (error := not_a_colour(path, data)):
        raise error


def preview_only(path: str, first: tuple[int, int], largest: tuple[int, int]) -> ImageError:
    """What is wrong with a file whose first picture is smaller than another."""
    sizes = "{}×{} pixels, is smaller than another in it, {}×{}".format(*first, *largest)
    return ImageError(
        f"{path}: expected one picture, but the first in this file, {sizes}",
        MEANT,
    )


def not_a_colour(path: str, data: bytes) -> ImageError | None:
    """What is wrong with a TIFF whose samples are not read; None where it cannot be told."""
    pages, _ = _pictures(data)
    if not pages or not pages[0].pixels:
        return None
    picture = pages[0]
    kind = _KINDS.get(picture.first(_SAMPLE_FORMAT, 1), "numbers of another kind")
    samples, bits = picture.first(_SAMPLES, 1), picture.first(_BITS, 1)
    colours = f"photometric interpretation {picture.first(_PHOTOMETRIC)}"
    got = f"this TIFF has {samples} × {bits}-bit {kind} a pixel ({colours})"
    return ImageError(
        f"{path}: expected grey, RGB or CMYK samples of 8 or 16 bits, but {got}",
        "export it as it is meant to look, as RGB with 8 or 16 bits a sample.",
    )


def _pictures(data: bytes) -> tuple[list[_Picture], list[_Picture]]:
    """The pages of a file, and the pictures that hang below them."""
    order = _ORDERS[data[:2]]
    big = struct.unpack_from(f"{order}H", data, 2)[0] == _BIG
    pages, below, seen = list[_Picture](), list[_Picture](), set[int]()
    start = struct.unpack_from(f"{order}{'Q' if big else 'I'}", data.ljust(16), 8 if big else 4)[0]
    waiting = [(start, pages)]
    while waiting and len(seen) < _MOST_PICTURES:
        place, found = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        try:
            picture, following = _read(data, place, order, big)
        except struct.error:  # it lies beyond the end of the file
            continue
        found.append(picture)
        waiting += [(other, below) for other in picture.tags.get(_BELOW, ())]
        waiting += [(following, found)] if following else []
    return pages, below


def _read(data: bytes, place: int, order: str, big: bool) -> tuple[_Picture, int]:
    """A picture's tags, from its directory, and the place of the next directory. Raises struct.error."""
    counts, entries, offsets = ("Q", "HHQ8s", "Q") if big else ("H", "HHI4s", "I")
    (count,) = struct.unpack_from(order + counts, data, place)
    place += struct.calcsize(order + counts)
    tags = {}
    for _ in range(min(count, _MOST_TAGS)):
        tag, kind, number, value = struct.unpack_from(order + entries, data, place)
        place += struct.calcsize(order + entries)
        if tag not in _TAGS or kind not in _NUMBERS or number > _MOST_VALUES:
            continue
        numbers = f"{order}{number}{_NUMBERS[kind]}"
        if struct.calcsize(numbers) <= len(value):
            tags[tag] = struct.unpack_from(numbers, value)
        else:
            (elsewhere,) = struct.unpack(order + offsets, value)
            tags[tag] = struct.unpack_from(numbers, data, elsewhere)
    return _Picture(tags), struct.unpack_from(order + offsets, data, place)[0]
