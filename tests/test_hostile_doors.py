"""Attacks at the other doors: image files, objects that Python code hands in, options, environment variables,
folders that the doctor examines. Damaged bytes of every format and bombs by header are in test_hostile.py;
each defect by itself in test_images.py.
"""

import io
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from agentic_iqa_local.offline.doctor.checks import Setup
from agentic_iqa_local.offline.doctor.examination import examinations
from attacks import ODD_FILES, in_time, is_sentence
from conftest import ROOT
from PIL import Image
from scripted import ScriptedClient, ScriptedTools, scripted_answers, scripted_services

from agentic_iqa_local import assess
from agentic_iqa_local.api import choose_settings
from agentic_iqa_local.images.reading import ImageError, load_image

PIXELS = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
MIB = 2**20


@pytest.fixture(autouse=True)
def _in_time():
    with in_time():
        yield


# Image files. All are loaded in one process, which measures itself.


def saved(form: str, **options) -> bytes:
    made = io.BytesIO()
    Image.fromarray(PIXELS).save(made, form, **options)
    return made.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(
    *chunks: bytes, header: bytes = struct.pack(">IIBBBBB", 96, 64, 8, 2, 0, 0, 0), body: bytes | None = None
) -> bytes:
    rows = b"".join(b"\0" + row.tobytes() for row in PIXELS)
    data = chunk(b"IDAT", zlib.compress(rows) if body is None else body)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunks) + data + chunk(b"IEND", b"")


def jpeg(*segments: tuple[int, bytes]) -> bytes:
    """A JPEG with more segments behind its beginning."""
    more = b"".join(struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body for marker, body in segments)
    whole = saved("JPEG")
    return whole[:2] + more + whole[2:]


def exif(*entries: tuple[int, int, int, int], following: int = 0) -> bytes:
    """EXIF, big-endian, whose first folder has `entries` (tag, type, count, value) and names where the next
    one lies."""
    rows = b"".join(struct.pack(">HHII", *each) for each in entries)
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, len(entries)) + rows + struct.pack(">I", following)


def tiff(
    width: int = 96,
    height: int = 64,
    folders: int = 1,
    last: int = 0,
    more: tuple[tuple[int, int, int, int], ...] = (),
) -> bytes:
    """An uncompressed grey TIFF with `folders` (IFDs) in a row, of which the last one leads to byte
    `last`."""
    entries = sorted(
        {(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8), (277, 3, 1, 1),
         (278, 4, 1, height), (279, 4, 1, width * height), *more}
    )  # fmt: skip
    body = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *each) for each in entries)
    begin, step = 8 + 96 * 64, len(body) + 4
    chain = b"".join(
        body + struct.pack("<I", begin + (i + 1) * step if i + 1 < folders else last) for i in range(folders)
    )
    return b"II*\0" + struct.pack("<I", begin) + bytes(96 * 64) + chain


def bmp(
    width: int = 96, height: int = 64, bits: int = 24, compression: int = 0, body: bytes = bytes(96 * 64 * 3)
) -> bytes:
    about = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(body), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(body), 0, 0, 54) + about + body


def box(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body) + 8) + name + body


def patched(whole: bytes, at: int, to: bytes) -> bytes:
    return whole[:at] + to + whole[at + len(to) :]


def frames(form: str, **options) -> bytes:
    made = io.BytesIO()
    pages = [Image.fromarray(np.roll(PIXELS, i, 0)) for i in range(3)]
    pages[0].save(made, form, save_all=True, append_images=pages[1:], **options)
    return made.getvalue()


def jp2_with(width: int, height: int, tile: int) -> bytes:
    """A JPEG 2000 whose codestream (SIZ marker) claims a size and tiles."""
    whole = saved("JPEG2000")
    at = whole.index(b"\xff\x51") + 6
    said = struct.pack(">IIIIIIII", width, height, 0, 0, tile, tile, 0, 0)
    whole = patched(whole, at, said)
    header = whole.find(b"ihdr")
    return patched(whole, header + 4, struct.pack(">II", height, width)) if header > 0 else whole


def profile(size: int, tags: int, offset: int = 128) -> bytes:
    """An ICC profile of a kind that cannot be: `tags` of them, all at `offset`."""
    head = (
        struct.pack(">I4sI4s4s4s", size, b"lcms", 0x04400000, b"mntr", b"RGB ", b"XYZ ")
        + bytes(12)
        + b"acsp"
        + bytes(88)
    )
    return (
        head[:128] + struct.pack(">I", tags) + struct.pack(">4sII", b"desc", offset, size) * min(tags, 1000)
    )


ZEROS = zlib.compress(bytes(200 * MIB), 9)
IMAGES: dict[str, Callable[[], bytes]] = {
    "PNG of 2^31 columns": lambda: png(header=struct.pack(">IIBBBBB", 2**31 - 1, 1, 8, 2, 0, 0, 0)),
    "PNG of 0 rows": lambda: png(header=struct.pack(">IIBBBBB", 96, 0, 8, 2, 0, 0, 0)),
    "PNG of 10,000 x 10,000 from 300 kB": lambda: png(header=struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0), body=zlib.compress(bytes(300_010_000), 9)),
    "PNG of 10,000 x 10,000 without data": lambda: png(header=struct.pack(">IIBBBBB", 10_000, 10_000, 16, 6, 0, 0, 0), body=b""),
    "PNG with too much data": lambda: png(body=ZEROS),
    "PNG of an unknown depth": lambda: png(header=struct.pack(">IIBBBBB", 96, 64, 7, 2, 0, 0, 0)),
    "PNG interlaced without end": lambda: png(header=struct.pack(">IIBBBBB", 9_999, 9_999, 8, 2, 0, 0, 1), body=b""),
    "PNG as CgBI": lambda: png().replace(chunk(b"IHDR", struct.pack(">IIBBBBB", 96, 64, 8, 2, 0, 0, 0)), chunk(b"CgBI", b"\x50\0\x20\2") + chunk(b"IHDR", struct.pack(">IIBBBBB", 96, 64, 8, 2, 0, 0, 0))),
    "PNG animated": lambda: frames("PNG"),
    "PNG animated by a million frames": lambda: png(chunk(b"acTL", struct.pack(">II", 1_000_000, 0))),
    "PNG with a profile bomb": lambda: png(chunk(b"iCCP", b"bomb\0\0" + ZEROS)),
    "PNG with ten text bombs": lambda: png(*[chunk(b"zTXt", b"bomb\0\0" + zlib.compress(bytes(MIB - 10), 9)) for _ in range(100)]),
    "PNG with 100,000 texts": lambda: png(*[chunk(b"tEXt", b"a%d\0b" % i) for i in range(100_000)]),
    "PNG with a text of escapes": lambda: png(chunk(b"tEXt", b"\x1b[2J\0\x1b[2J")),
    "PNG with two headers": lambda: png(chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))),
    "PNG with a palette of nothing": lambda: png(chunk(b"PLTE", b""), header=struct.pack(">IIBBBBB", 96, 64, 8, 3, 0, 0, 0)),
    "PNG with a chunk of 2 GB": lambda: png()[:33] + struct.pack(">I4s", 2**31 - 1, b"tEXt") + bytes(100),
    "PNG with EXIF in a loop": lambda: png(chunk(b"eXIf", exif((274, 3, 1, 6 << 16), following=8)[6:])),
    "JPEG with 10,000 segments": lambda: jpeg(*[(0xE5, b"a")] * 10_000),
    "JPEG with 10,000 comments of 64 kB": lambda: jpeg(*[(0xFE, bytes(65_000))] * 1_000),
    "JPEG of 65,535 x 65,535": lambda: saved("JPEG").replace(struct.pack(">HH", 64, 96), b"\xff\xff\xff\xff", 1),
    "JPEG of 9,999 x 9,999 without data": lambda: saved("JPEG").replace(struct.pack(">HH", 64, 96), struct.pack(">HH", 9_999, 9_999), 1),
    "JPEG of 0 rows": lambda: saved("JPEG").replace(struct.pack(">HH", 64, 96), struct.pack(">HH", 0, 96), 1),
    "JPEG of a million empty markers": lambda: saved("JPEG")[:2] + b"\xff" * 1_000_000 + saved("JPEG")[2:],
    "JPEG turned by 2^31": lambda: jpeg((0xE1, exif((274, 4, 1, 2**31)))),
    "JPEG turned by 0": lambda: jpeg((0xE1, exif((274, 3, 1, 0)))),
    "JPEG turned by a text": lambda: jpeg((0xE1, exif((274, 2, 4, 0x61616100)))),
    "JPEG turned by a fraction of 0": lambda: jpeg((0xE1, exif((274, 5, 1, 0)))),
    "JPEG with EXIF in a loop": lambda: jpeg((0xE1, exif((34665, 4, 1, 8), (34853, 4, 1, 8), following=8))),
    "JPEG with EXIF of 4 billion numbers": lambda: jpeg((0xE1, exif((274, 3, 2**32 - 1, 8)))),
    "JPEG with EXIF of 60,000 entries": lambda: jpeg((0xE1, exif(*[(i, 4, 1, 8) for i in range(5_000)]))),
    "JPEG with MPF in a loop": lambda: jpeg((0xE2, b"MPF\0MM\0*" + struct.pack(">IHHHII", 8, 1, 45057, 4, 1, 2**32 - 1))),
    "JPEG with a profile of endless tags": lambda: jpeg((0xE2, b"ICC_PROFILE\0\1\1" + profile(2**32 - 1, 2**32 - 1))),
    "JPEG with a profile that is its own tag": lambda: jpeg((0xE2, b"ICC_PROFILE\0\1\1" + profile(1000, 1, offset=0))),
    "JPEG with 255 parts of a profile": lambda: jpeg(*[(0xE2, b"ICC_PROFILE\0" + bytes([i + 1, 255]) + bytes(60_000)) for i in range(255)]),
    "JPEG with a thumbnail of another world": lambda: jpeg((0xE0, b"JFIF\0\1\1\0\0\1\0\1\xff\xff" + bytes(100))),
    "JPEG with Photoshop blocks of 4 GB": lambda: jpeg((0xED, b"Photoshop 3.0\x008BIM\4\4\0\0\xff\xff\xff\xff")),
    "TIFF with folders in a loop": lambda: tiff(folders=3, last=8 + 96 * 64),
    "TIFF whose folder leads to itself": lambda: tiff(last=8 + 96 * 64),
    "TIFF of 100,000 folders": lambda: tiff(folders=100_000),
    "TIFF of 65,535 x 65,535": lambda: tiff(65_535, 65_535),
    "TIFF of 9,999 x 9,999 without data": lambda: tiff(9_999, 9_999),
    "TIFF of 10,000 samples": lambda: tiff(more=((277, 3, 1, 10_000),)),
    "TIFF with 4 billion strips": lambda: tiff(more=((273, 4, 2**32 - 1, 8),)),
    "TIFF with tiles of 4 billion": lambda: tiff(more=((322, 4, 1, 2**32 - 1), (323, 4, 1, 2**32 - 1), (324, 4, 1, 8))),
    "TIFF with 64,000 bits": lambda: tiff(more=((258, 3, 1, 64_000),)),
    "TIFF as an old JPEG": lambda: tiff(more=((259, 3, 1, 6),)),
    "TIFF compressed with LZW of nothing": lambda: tiff(more=((259, 3, 1, 5),)),
    "TIFF compressed with deflate of zeros": lambda: tiff(more=((259, 3, 1, 8),)),
    "BigTIFF of endless entries": lambda: b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**64 - 1) + bytes(100),
    "JPEG 2000 of 10^9 tiles": lambda: jp2_with(9_999, 9_999, 1),
    "JPEG 2000 of one tile of 2^32": lambda: jp2_with(2**32 - 1, 2**32 - 1, 2**32 - 1),
    "JPEG 2000 of 9,999 x 9,999": lambda: jp2_with(9_999, 9_999, 9_999),
    "JPEG 2000 of endless boxes": lambda: box(b"jP  ", b"\r\n\x87\n") + box(b"ftyp", b"jp2 \0\0\0\0jp2 ") + box(b"free", b"") * 100_000,
    "JPEG 2000 of nested boxes": lambda: box(b"jP  ", b"\r\n\x87\n") + struct.pack(">I4s", 0, b"jp2h") * 10_000,
    "GIF of 65,535 x 65,535": lambda: patched(saved("GIF"), 6, b"\xff\xff\xff\xff"),
    "GIF whose frame leaves its canvas": lambda: saved("GIF").replace(b",\0\0\0\0\x60\0\x40\0", b",\xff\xff\xff\xff\xff\xff\xff\xff", 1),
    "GIF of 10,000 frames": lambda: saved("GIF")[:-1] + saved("GIF")[saved("GIF").index(b",\0\0\0\0") : -1] * 3_000 + b";",
    "GIF of endless comments": lambda: saved("GIF")[:-1] + b"!\xfe" + b"\xffa" * 100_000,
    "WebP animated": lambda: frames("WEBP"),
    "WebP of 16,383 x 16,383": lambda: patched(saved("WEBP"), 26, b"\xff\x3f\xff\x3f"),
    "WebP whose container has 4 GB": lambda: patched(saved("WEBP"), 4, b"\xff\xff\xff\xff"),
    "WebP of a canvas of 2^24": lambda: b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + b"\2\0\0\0" + b"\xff" * 6,
    "AVIF with a grid of 65,536 tiles": lambda: saved("AVIF").replace(b"av01", b"grid", 1),
    "AVIF of endless boxes": lambda: box(b"ftyp", b"avif\0\0\0\0avifmif1") + box(b"meta", bytes(4) + box(b"free", b"") * 100_000),
    "AVIF of nested boxes": lambda: box(b"ftyp", b"avif\0\0\0\0avifmif1") + struct.pack(">I4sI", 0, b"meta", 0) * 10_000,
    "AVIF of 9,999 x 9,999": lambda: saved("AVIF").replace(struct.pack(">II", 96, 64), struct.pack(">II", 9_999, 9_999)),
    "HEIC of a grid of 2^32": lambda: box(b"ftyp", b"heic\0\0\0\0heicmif1") + box(b"meta", bytes(4) + box(b"iprp", box(b"ipco", box(b"ispe", bytes(4) + b"\xff" * 8)))),
    "HEIC of nested boxes": lambda: box(b"ftyp", b"heic\0\0\0\0heicmif1") + struct.pack(">I4sI", 0, b"meta", 0) * 10_000,
    "PPM of 10^9 pixels": lambda: b"P6 100000 10000 255\n" + bytes(100),
    "PPM of 10^4300 columns": lambda: b"P6 " + b"9" * 5000 + b" 1 255\n" + bytes(100),
    "PPM of negative size": lambda: b"P6 -96 -64 255\n" + bytes(96 * 64 * 3),
    "PPM of comments without end": lambda: b"P6\n" + b"# a\n" * 2_000_000,
    "PPM of one comment without end": lambda: b"P6\n#" + b"a" * 20_000_000,
    "PPM of 64 levels in text": lambda: b"P3 96 64 255\n" + b"999999999 " * 96 * 64 * 3,
    "PPM of letters": lambda: b"P3 96 64 255\n" + b"x " * 96 * 64 * 3,
    "PPM of 9,999 x 9,999 in text": lambda: b"P3 9999 9999 255\n" + b"1 " * 100,
    "PPM of blanks": lambda: b"P3 96 64 255\n" + b" " * 30_000_000,
    "PFM of NaN": lambda: b"Pf 96 64 -1.0\n" + struct.pack("<f", float("nan")) * 96 * 64,
    "PAM of 10^6 channels": lambda: b"P7\nWIDTH 96\nHEIGHT 64\nDEPTH 1000000\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n" + bytes(1000),
    "BMP of negative height": lambda: bmp(height=-64),
    "BMP of the most negative height": lambda: bmp(height=-(2**31)),
    "BMP of negative width": lambda: bmp(width=-96),
    "BMP of 9,999 x 9,999 in runs": lambda: bmp(9_999, 9_999, 8, 1, b"\0\1"),
    "BMP of runs without end": lambda: bmp(bits=8, compression=1, body=b"\0\2\xff\xff" * 100_000),
    "BMP of 2^31 colours": lambda: patched(bmp(bits=8), 46, b"\xff\xff\xff\x7f"),
    "BMP of another header": lambda: patched(bmp(), 14, b"\xff\xff\xff\x7f"),
    "an EPS behind a PNG's name": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 96 64\n(/etc/passwd) (r) file\n",
    "an SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "a PNG that is a ZIP too": lambda: png() + b"PK\x05\x06" + bytes(18),
    "a Python pickle": lambda: b"\x80\x04cos\nsystem\n(S'touch evil'\ntR.",
    "an icon of 256 pictures": lambda: b"\0\0\1\0\xff\xff" + bytes(16) * 1000,
    "text that steers a terminal": lambda: b"\x1b]0;evil\x07\x1b[2J" * 1000,
}  # fmt: skip


def examine_images(folder: Path) -> None:
    """Prints a line of JSON for each file in `folder`: what became of it, and the largest memory in bytes
    that this process had."""
    for file in sorted(folder.iterdir(), key=lambda file: int(file.name)):
        try:
            with in_time():
                said, texts = "loaded", load_image(file).warnings
        except ImageError as error:
            said, texts = "refused", (str(error),)
        # not getrusage: a process that another started counts that one's memory too
        peak = 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
        print(json.dumps([said, texts, peak]), flush=True)


@pytest.fixture(scope="module")
def examined(tmp_path_factory) -> dict[str, list]:
    """What became of each of IMAGES, as `examine_images` prints it; none for those that its process did not
    live to see."""
    folder = tmp_path_factory.mktemp("images")
    for i, make in enumerate(IMAGES.values()):
        (folder / str(i)).write_bytes(make())
    code = "import sys, test_hostile_doors as t; t.examine_images(t.Path(sys.argv[1]))"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, env=environment
    )
    found = dict(zip(IMAGES, map(json.loads, done.stdout.splitlines()), strict=False))
    if len(found) < len(IMAGES):
        found[list(IMAGES)[len(found)]] = ["died", [done.stderr[-500:]], 0]
    return found


@pytest.mark.parametrize("kind", IMAGES)
def test_a_hostile_image_is_loaded_or_refused_in_time_and_memory(kind, examined):
    said, texts, peak = examined[kind]
    assert said in ("loaded", "refused"), texts
    assert all(map(is_sentence, texts))
    assert peak < 1536 * MIB


@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_file_as_an_image(kind, tmp_path):
    ODD_FILES[kind](tmp_path / "a.png")
    with pytest.raises(ImageError) as caught:
        load_image(tmp_path / "a.png")
    assert is_sentence(str(caught.value))


# What Python code hands in


class Named:
    """A path that is what it is told to be."""

    def __init__(self, name):
        self.name = name

    def __fspath__(self):
        return self.name


class Texts(str):
    """A text that is another one whenever it is asked."""

    def __str__(self):
        return "\x1b[2J"

    def __format__(self, spec):
        return "\x1b[2J"

    __repr__ = __str__


def lazy(content: bytes) -> Image.Image:
    """A Pillow image that nobody has decoded yet."""
    return Image.open(io.BytesIO(content))


def odd_array(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], np.ndarray]:
    return lambda folder: change(PIXELS.copy())


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


REFUSED = {
    "object dtype": odd_array(lambda array: array.astype(object)),
    "float with NaN": odd_array(lambda array: np.full((64, 96, 3), np.nan)),
    "complex": odd_array(lambda array: array.astype(complex)),
    "text dtype": odd_array(lambda array: array.astype(str)),
    "structured dtype": odd_array(lambda array: np.zeros((64, 96), [("r", "u1"), ("g", "u1")])),
    "a date": odd_array(lambda array: np.zeros((64, 96), "M8[s]")),
    "0-d": odd_array(lambda array: np.array(5, np.uint8)),
    "0-d object": odd_array(lambda array: np.array({"a": 1}, object)),
    "no pixels": odd_array(lambda array: array[:0]),
    "64 dimensions": odd_array(lambda array: np.zeros((1,) * 32, np.uint8)),
    "10^15 pixels that are one": odd_array(lambda array: np.broadcast_to(np.uint8(3), (2**25, 2**25))),
    "10^10 pixels that are one": odd_array(lambda array: np.broadcast_to(np.uint8(3), (100_000, 100_000, 3))),
    "one row": odd_array(lambda array: array[:1]),
    "bytes of nothing": lambda folder: b"",
    "bytes of text": lambda folder: b"\x1b[2J" * 100,
    "bytes of a pickle": lambda folder: b"\x80\x04cos\nsystem\n(S'touch evil'\ntR.",
    "half a PNG": lambda folder: png()[:500],
    "a lazy image of half a PNG": lambda folder: lazy(saved("PNG")[:-2000]),
    "a lazy image of half a JPEG": lambda folder: lazy(saved("JPEG")[:-500]),
    "a lazy image of a bomb": lambda folder: lazy(
        png(header=struct.pack(">IIBBBBB", 12_000, 12_000, 8, 2, 0, 0, 0), body=b"")
    ),
    "a closed image": lambda folder: (image := lazy(saved("PNG"))).close() or image,
    "an image of no size": lambda folder: Image.new("RGB", (0, 0)),
    "an image of one row": lambda folder: Image.new("RGB", (96, 1)),
    "a name with NUL": lambda folder: "a\0.png",
    "a name with a lone surrogate": lambda folder: "a\ud800.png",
    "a name with escapes": lambda folder: "\x1b[2J.png",
    "an empty name": lambda folder: "",
    "a name of 4000 characters": lambda folder: "x" * 4000,
    "a path of bytes": lambda folder: Named(b"a.png"),
    "a path of bytes that are no UTF-8": lambda folder: Named(b"\xff.png"),
    "a path of bytes with NUL": lambda folder: Named(b"a\0"),
    "a text that lies": lambda folder: Texts("a.png"),
    "a folder": lambda folder: folder,
    "a file:// address with NUL": lambda folder: "file:///a%00b.png",
    "a file:// address with escapes": lambda folder: "file:///a%1b%5b2J.png",
    "a file:// address of another machine": lambda folder: "file://[::1/a.png",
    "a pipe": lambda folder: os.mkfifo(folder / "pipe") or folder / "pipe",
    "a path into the memory": lambda folder: "/proc/self/mem",
    "a path to the kernel's log": lambda folder: "/proc/kmsg",
}


@pytest.fixture
def scripted():
    return scripted_services(
        ScriptedClient(scripted_answers()), ScriptedTools({"NIQE": 2.6, "VSI": 4.0, "FSIM": 4.0})
    )


@pytest.mark.parametrize("place", ["image", "reference"])
@pytest.mark.parametrize("kind", REFUSED)
def test_an_object_that_is_no_picture(kind, place, scripted, picture, tmp_path):
    given = REFUSED[kind](tmp_path)
    pair = {"image": given} if place == "image" else {"image": picture, "reference": given}
    try:
        row = assess(**pair, services=scripted)
    except (TypeError, ValueError) as error:
        said = [str(error)]
    else:
        assert row.q is row.p_c is row.final_answer is None
        said = [row.error, *row.warnings, repr(row)]
        assert "\x1b" not in row.model_dump_json() + row.explain()
    assert all(map(is_sentence, said)), said


PIXELS_ALL_THE_SAME = {
    "read-only": odd_array(read_only),
    "upside down": odd_array(lambda array: np.flipud(np.flipud(array).copy())),
    "every second of a larger one": odd_array(
        lambda array: np.repeat(np.repeat(array, 2, 0), 2, 1)[::2, ::2]
    ),
    "in columns": odd_array(np.asfortranarray),
    "a subclass": odd_array(lambda array: array.view(type("Mine", (np.ndarray,), {}))),
    "a memory map": (
        lambda folder: np.memmap(folder / "map", np.uint8, "w+", shape=PIXELS.shape).__iadd__(PIXELS)
    ),
    "bytes": lambda folder: saved("PNG"),
    "a bytearray": lambda folder: bytearray(saved("PNG")),
    "a memoryview": lambda folder: memoryview(saved("PNG")),
    "every second byte of a memoryview": lambda folder: memoryview(
        np.repeat(np.frombuffer(saved("PNG"), np.uint8), 2)
    )[::2],
    "a memoryview of numbers": (
        lambda folder: memoryview(saved("PNG") + bytes(-len(saved("PNG")) % 4)).cast("I")
    ),
    "a PNG that is a ZIP too": lambda folder: png() + b"PK\x05\x06" + bytes(18),
    "a lazy image": lambda folder: lazy(saved("PNG")),
    "a lazy image that claims another format": lambda folder: (
        image := lazy(saved("PNG")),
        setattr(image, "format", "EPS"),
    )[0],
    "an image with hostile notes": lambda folder: (
        image := lazy(saved("PNG")),
        image.info.update(icc_profile=b"evil", a="\x1b[2J"),
    )[0],
}


@pytest.mark.parametrize("kind", PIXELS_ALL_THE_SAME)
def test_an_odd_object_that_is_a_picture_is_read_as_its_pixels(kind, scripted, tmp_path):
    row = assess(PIXELS_ALL_THE_SAME[kind](tmp_path), services=scripted)
    assert row.error is None
    assert row.q == assess(PIXELS, services=scripted).q
    assert all(map(is_sentence, [*row.warnings, row.image]))


# Folders and variables that the doctor meets


def checks(**options) -> dict[str, str]:
    """The status of each of the doctor's checks by its name, made in this process; all their texts are one
    line."""
    setup = Setup(choose_settings(**options), cpu=True, quick=True)
    found = list(examinations(setup, lambda examination, *about: examination(setup, *about)))
    assert all(is_sentence(text) for each in found for text in (each.name, each.found, each.remedy or "none"))
    return {each.name: each.status for each in found}


NAMES = {
    "no UTF-8": "a\udcff",
    "escapes": "a\x1b[2J",
    "line end": "a\nb",
    "reversed": "a\u202eb",
    "plain": "a",
}
ROOTS = {
    **{f"folder of a name {kind}": lambda folder, name=name: (folder / name).mkdir() or folder / name for kind, name in NAMES.items()},
    **{f"a {kind}": lambda folder, kind=kind: ODD_FILES[kind](folder / "odd") or folder / "odd" for kind in ODD_FILES if kind != "folder"},
    **{f"a {kind} as a manifest": lambda folder, kind=kind: ODD_FILES[kind](folder / "manifest.json") or folder for kind in ODD_FILES},
    "below a file": lambda folder: Path(__file__) / "a",
    "5000 characters": lambda folder: "/" + "x" * 5000,
    "3000 folders": lambda folder: "/x" * 3000,
}  # fmt: skip


@pytest.mark.parametrize("kind", ROOTS)
def test_the_doctor_examines_any_models_folder(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(ROOTS[kind](tmp_path)))
    found = checks()
    assert found["models folder"] == ("warn" if kind.startswith("folder of") else "fail")


VARIABLES = ["TMPDIR", "TORCH_HOME", "HF_HUB_CACHE", "HF_HOME", "TRITON_CACHE_DIR", "TRITON_HOME", "MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"]  # fmt: skip
VALUES = {
    "a device": "/dev/zero",
    "5000 characters": "/" + "x" * 5000,
    "no UTF-8 and escapes": "/\udcff\x1b[2J",
    "a user": "~nobody-here",
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("variable", VARIABLES)
def test_the_doctor_stands_any_value_of_a_variable(variable, value, monkeypatch):
    monkeypatch.setenv(variable, VALUES[value])
    assert checks()["python"] == "pass"
