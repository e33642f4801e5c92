"""Damaged image files at the loader: each is loaded or refused in one sentence."""

import argparse
import struct
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from agentic_iqa_local.paths import ROOT
from endurance.checks import ALLOWED, guarded, is_one_line, peak_memory, require

PNG = b"\x89PNG\r\n\x1a\n"
Step = tuple[str, float, bytes]  # what to do, where (0 to 1 of the length), with which bytes
STEPS = ("flip", "overwrite", "insert", "delete", "repeat", "flood", "truncate", "header", "checksums")
NUMBERS = (
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\0\0\0\0",
    b"\xff\xff",
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
)


def encoded(image: Image.Image, kind: str, *, more: bool = False, **options: Any) -> bytes:
    """The bytes of a file; with `more`, of one with a second frame or page."""
    # copies, for saving leaves settings of the format in them
    file, frames = (
        BytesIO(),
        [
            image.copy(),
            image.rotate(180),
        ],
    )
    frames[0].save(file, kind, **options, **({"save_all": True, "append_images": frames[1:]} if more else {}))
    return file.getvalue()


def valid_pictures(photo: Image.Image) -> dict[str, bytes]:
    """`photo` (RGB) in every format that is read, and in the modes and with the features that readers treat
    apart."""
    grey, palette = photo.convert("L"), photo.quantize(16)
    samples = np.asarray(grey).astype(np.uint16) * 257
    opaque = photo.copy()
    opaque.putalpha(255)
    turned = Image.Exif()
    turned[274] = 6
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return {
        "rgb.png": encoded(photo, "PNG"),
        "exif.png": encoded(photo, "PNG", exif=turned, icc_profile=srgb),
        "rgba.png": encoded(opaque, "PNG"),
        "grey.png": encoded(grey, "PNG"),
        "16_bits.png": encoded(Image.fromarray(samples), "PNG"),
        "palette.png": encoded(palette, "PNG", transparency=255),
        "1_bit.png": encoded(photo.convert("1"), "PNG"),
        "animated.png": encoded(photo, "PNG", more=True),
        "rgb.jpg": encoded(photo, "JPEG", exif=turned, icc_profile=srgb),
        "progressive.jpg": encoded(photo, "JPEG", progressive=True),
        "grey.jpg": encoded(grey, "JPEG"),
        "cmyk.jpg": encoded(photo.convert("CMYK"), "JPEG"),
        "two.jpg": encoded(photo, "MPO", more=True),
        "lossy.webp": encoded(photo, "WEBP", exif=turned),
        "lossless.webp": encoded(opaque, "WEBP", lossless=True),
        "animated.webp": encoded(photo, "WEBP", more=True),
        "raw.tif": encoded(photo, "TIFF", exif=turned),
        "cmyk.tif": encoded(photo.convert("CMYK"), "TIFF", compression="tiff_lzw"),
        "deflate.tif": encoded(palette, "TIFF", compression="tiff_deflate"),
        "jpeg.tif": encoded(photo, "TIFF", compression="jpeg"),
        "16_bits.tif": encoded(Image.fromarray(samples), "TIFF"),
        "pages.tif": encoded(photo, "TIFF", more=True),
        "palette.gif": encoded(palette, "GIF"),
        "animated.gif": encoded(photo, "GIF", more=True),
        "rgb.bmp": encoded(photo, "BMP"),
        "palette.bmp": encoded(palette, "BMP"),
        "rgb.jp2": encoded(photo, "JPEG2000"),
        "rgb.ppm": encoded(photo, "PPM"),
        "16_bits.pgm": b"P5 %d %d 65535\n" % photo.size + samples.astype(">u2").tobytes(),
        "text.ppm": (
            b"P3 %d %d 255\n" % photo.size + b" ".join(b"%d" % value for value in np.asarray(photo).ravel())
        ),
        "rgb.avif": encoded(photo, "AVIF"),
    }


def damaged(content: bytes, steps: Iterable[Step]) -> bytes:
    """`content` after `steps`; "header" overwrites within the first 64 bytes, "flood" inserts 100 kB of one
    byte (what reads those with a search that backtracks takes minutes), "checksums" makes those of a PNG
    right again."""
    data = bytearray(content)
    for kind, place, extra in steps:
        at = int(place * (min(len(data), 64) if kind == "header" else len(data)))
        if kind == "flip" and at < len(data):
            data[at] ^= extra[0] if extra else 1
        elif kind in ("overwrite", "header"):
            data[at : at + len(extra)] = extra
        elif kind == "insert":
            data[at:at] = extra
        elif kind == "delete":
            del data[at : at + 1 + len(extra)]
        elif kind == "repeat":
            data[at:at] = data[at : at + 64 * len(extra)]
        elif kind == "flood":
            data[at:at] = extra[:1] * 100_000
        elif kind == "truncate":
            del data[at:]
        elif kind == "checksums" and data.startswith(PNG):
            _right_checksums(data)
    return bytes(data)


def _right_checksums(data: bytearray) -> None:
    at = len(PNG)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4])
        if end + 4 > len(data):
            return
        data[end : end + 4] = struct.pack(">I", zlib.crc32(data[at + 4 : end]))
        at = end + 4


def random_steps(rng: np.random.Generator) -> list[Step]:
    def extra() -> bytes:
        return (
            NUMBERS[rng.integers(len(NUMBERS))] if rng.random() < 0.5 else rng.bytes(int(rng.integers(1, 9)))
        )

    steps = [(str(rng.choice(STEPS)), float(rng.random()), extra()) for _ in range(rng.integers(1, 5))]
    return [*steps, ("checksums", 0.0, b"")] if rng.random() < 0.7 else steps


def random_pictures(pictures: dict[str, bytes], count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """`count` times a name and content: a damaged picture, or, one in twenty, random bytes behind a picture's
    beginning."""
    names = list(pictures)
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        name = names[rng.integers(len(names))]
        if rng.random() < 0.05:
            yield name, pictures[name][: int(rng.integers(2, 40))] + rng.bytes(int(rng.integers(0, 2000)))
        else:
            yield name, damaged(pictures[name], random_steps(rng))


def examine_picture(path: Path, **limits: Any) -> str:
    """Whether `load_image` loaded or refused it. Raises Wrong when it did not as it promises, and whatever
    else it raises."""
    from agentic_iqa_local.images.reading import ImageError, load_image

    try:
        loaded = load_image(path, **limits)
    except ImageError as error:
        said = str(error)
        require(said.startswith(f"{path}: expected ") and said.endswith("."), f"no sentence: {said}")
        require(is_one_line(said), f"more than a line: {said!r}")
        return "refused"
    width, height = loaded.pixels.size
    require(
        (loaded.width, loaded.height, loaded.pixels.mode) == (width, height, "RGB"),
        f"not as described: {loaded}",
    )
    require(limits.get("min_side", 32) <= min(width, height), f"too small: {loaded}")
    require(width * height <= limits.get("max_pixels", 100_000_000), f"too large: {loaded}")
    require(all(map(is_one_line, loaded.warnings)), f"more than a line: {loaded.warnings}")
    return "loaded"


def small_photo() -> Image.Image:
    return Image.open(ROOT / "tests" / "data" / "sumac.png").convert("RGB").crop((200, 200, 296, 264))


def images(args: argparse.Namespace) -> dict:
    seconds, outcomes, wrong = [0.0], Counter(), []
    pictures = valid_pictures(small_photo())
    with tempfile.TemporaryDirectory() as folder:
        for name, content in pictures.items():
            (Path(folder) / name).write_bytes(content)
            examine_picture(Path(folder) / name)
        before = peak_memory()
        for number, (name, content) in enumerate(random_pictures(pictures, args.count, args.seed)):
            path = Path(folder) / name
            path.write_bytes(content)
            began = time.perf_counter()
            outcome = guarded(lambda path=path: examine_picture(path), f"picture {number}, {name}", wrong)
            seconds.append(time.perf_counter() - began)
            outcomes[f"{path.suffix[1:]} {outcome}"] += 1
            if seconds[-1] > ALLOWED:
                wrong.append(f"picture {number}, {name}: took {seconds[-1]:.1f} s")
    return {
        "count": args.count,
        "outcomes": dict(sorted(outcomes.items())),
        "slowest_seconds": round(max(seconds), 3),
        "peak_memory_grew_by_mib": round((peak_memory() - before) / 2**20),
        "wrong": wrong,
    }
