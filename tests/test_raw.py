"""The previews in cameras' RAW files: judged if asked, and named as that."""

import struct
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from agentic_iqa_local.batch.inputs import expand_inputs
from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.reading import load_image

pytest.importorskip("rawpy")
WIDTH, HEIGHT = 192, 128  # of the sensor
FORMATS = {1: "B", 2: "B", 3: "H", 4: "I", 5: "I", 10: "i"}  # types of TIFF 6.0, section 2


def directory(place: int, tags: dict[int, tuple]) -> bytes:
    """An image file directory of TIFF at this place in a file; by tag its type and its values."""
    head, tail = struct.pack("<H", len(tags)), b""
    end = place + 2 + 12 * len(tags) + 4
    for tag, (kind, *values) in sorted(tags.items()):
        data = struct.pack(f"<{len(values)}{FORMATS[kind]}", *values)
        count = len(values) // 2 if kind in (5, 10) else len(values)
        if len(data) > 4:
            head += struct.pack("<HHII", tag, kind, count, end + len(tail))
            tail += data + b"\0" * (len(data) % 2)
        else:
            head += struct.pack("<HHI", tag, kind, count) + data.ljust(4, b"\0")
    return head + bytes(4) + tail


def dng(preview: Image.Image, orientation: int) -> bytes:
    """A DNG 1.4: first a JPEG preview, below it what a sensor of 16 bits measured (Adobe's specification, chapter 4)."""
    encoded = BytesIO()
    preview.save(encoded, "JPEG")
    jpeg = encoded.getvalue() + b"\0" * (encoded.tell() % 2)
    sensor = np.random.default_rng(0).integers(0, 4095, (HEIGHT, WIDTH), np.uint16).tobytes()
    at = 8 + len(jpeg)
    raw = directory(at + len(sensor), {
        254: (4, 0), 256: (4, WIDTH), 257: (4, HEIGHT), 258: (3, 16), 259: (3, 1), 262: (3, 32803), 273: (4, at), 277: (3, 1),
        278: (4, HEIGHT), 279: (4, len(sensor)), 33421: (3, 2, 2), 33422: (1, 0, 1, 1, 2), 50717: (3, 4095),
    })  # fmt: skip
    first = at + len(sensor) + len(raw)
    unit = [number for i in range(9) for number in (int(i % 4 == 0), 1)]
    main = directory(first, {
        254: (4, 1), 256: (4, preview.width), 257: (4, preview.height), 258: (3, 8, 8, 8), 259: (3, 7), 262: (3, 6),
        271: (2, *b"Test\0"), 272: (2, *b"Camera\0"), 273: (4, 8), 274: (3, orientation), 277: (3, 3), 278: (4, preview.height),
        279: (4, len(jpeg)), 330: (4, at + len(sensor)), 50706: (1, 1, 4, 0, 0), 50708: (2, *b"Test Camera\0"),
        50721: (10, *unit), 50728: (5, 1, 1, 1, 1, 1, 1), 50778: (3, 21),
    })  # fmt: skip
    return struct.pack("<2sHI", b"II", 42, first) + jpeg + sensor + raw + main


def test_a_preview_is_judged_if_asked_upright_and_named_as_that(photo, tmp_path):
    preview = photo.resize((160, 120))
    file = tmp_path / "a.dng"
    file.write_bytes(
        dng(preview, orientation=6)
    )  # taken with the camera turned: 90° clockwise makes it upright
    with pytest.raises(ImageError, match="raw photograph"):
        load_image(file)
    found = load_image(file, raw_previews=True)
    assert (found.width, found.height) == (120, 160)
    assert found.raw_size == "192×128"
    assert found.warnings == ("the camera's preview was judged, not the RAW data (192×128 pixels)",)
    turned = np.asarray(preview.transpose(Image.Transpose.ROTATE_270), float)
    assert np.abs(np.asarray(found.pixels, float) - turned).mean() < 8  # JPEG


def test_what_has_no_preview_says_so(tmp_path):
    file = tmp_path / "a.cr3"
    file.write_bytes(b"\0\0\0\x18ftypcrx " + bytes(1000))
    with pytest.raises(ImageError, match="expected a RAW file with a preview"):
        load_image(file, raw_previews=True)


def test_a_folder_tells_its_raw_files_or_takes_them(photo_path, tmp_path, caplog):
    for name in ("a.NEF", "b.png"):
        (tmp_path / name).touch()
    assert [file.name for file in expand_inputs([str(tmp_path)])] == ["b.png"]
    assert "1 .nef (--raw-previews judges the previews in RAW files)" in caplog.text
    assert len(expand_inputs([str(tmp_path)], raw_previews=True)) == 2
