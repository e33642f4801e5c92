"""Files become upright 8-bit RGB pixels or one sentence, and large pictures native crops. Files are written by
their formats' specifications; expected numbers come from the derivations in the comments."""

import hashlib
import io
import math
import os
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from attacks import ODD_FILES, in_time, is_sentence
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageFile
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from agentic_iqa_local.images.files import ImageError, local_path
from agentic_iqa_local.images.pictures import as_file, check_picture
from agentic_iqa_local.images.reading import load_image, load_pair
from agentic_iqa_local.state import native_views

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000", "AVIF")


@pytest.fixture
def saved(tmp_path):
    """Saves a picture or bytes under a name in the test's folder and gives the path."""

    def save(name, content, **options):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content.save(path, **options)
        return str(path)

    return save


def noise(mode="RGB", size=(64, 64)):
    values = np.random.default_rng(0).integers(
        0, 256, (size[1], size[0], len(mode)), dtype=np.uint8
    )
    return Image.fromarray(values[..., 0] if len(mode) == 1 else values, mode)


def encoded(form, image=None, **options):
    made = io.BytesIO()
    (image or noise()).save(made, form, **options)
    return made.getvalue()


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width, height, depth, colour_type, rows=b"", extra=b""):
    """A PNG by its specification: `rows` as packed samples without the filter bytes, `extra` chunks before
    the pixels."""
    stride = len(rows) // height
    scanlines = (
        b"".join(b"\0" + rows[y * stride : (y + 1) * stride] for y in range(height))
        if rows
        else b""
    )
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(scanlines, 0)) + chunk(
        b"IEND", b""
    )  # stored, not compressed
    return b"\x89PNG\r\n\x1a\n" + header + extra + data


def directory(tags, place, following=0, order="<", big=False):
    """A TIFF's directory that lies at `place`, with the values of its tags behind it, by TIFF 6.0 and BigTIFF."""
    count, entry, offset, kind = ("Q", "HHQ", "Q", 16) if big else ("H", "HHI", "I", 4)
    room = struct.calcsize(order + offset)
    behind = place + struct.calcsize(order + count) + len(tags) * (4 + 2 * room) + room
    entries, values = struct.pack(order + count, len(tags)), b""
    for tag, value in sorted(tags.items()):
        numbers = value if isinstance(value, list) else [value]
        packed = struct.pack(f"{order}{len(numbers)}{offset}", *numbers)
        entries += struct.pack(order + entry, tag, kind, len(numbers))
        if len(packed) > room:
            entries += struct.pack(order + offset, behind + len(values))
            values += packed
        else:
            entries += packed
    return entries + struct.pack(order + offset, following) + values


def tiff(width, height, bits, photometric, strip, sample_format=1, order="<", **more):
    """A TIFF with one uncompressed strip before its directories: that of the picture, with the tags in `more` too
    (t254=1), which leads to the `pages` and below which lie the pictures `below`, each a mapping of tags. With `big`
    a BigTIFF."""
    pages, below, big = more.pop("pages", []), more.pop("below", []), more.pop("big", False)
    mark = b"II" if order == "<" else b"MM"
    head = 16 if big else 8
    samples = len(bits) if isinstance(bits, list) else 1
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: head, 277: samples,
            278: height, 279: len(strip), 339: [sample_format] * samples}  # fmt: skip
    tags |= {int(name[1:]): value for name, value in more.items()}
    content, places = strip, []
    for one in below:
        places.append(head + len(content))
        content += directory(one, places[-1], order=order, big=big)
    tags |= {330: places} if places else {}
    following = 0
    for one in [*reversed(pages), tags]:
        place = head + len(content)
        content += directory(one, place, following, order, big)
        following = place
    version = struct.pack(order + ("HHHQ" if big else "HI"), *((43, 8, 0) if big else (42,)), place)
    return mark + version + content


def refusal(path, **limits):
    with pytest.raises(ImageError) as caught:
        load_image(path, **limits)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert is_sentence(message)
    return message


@pytest.mark.parametrize("form", [*FORMATS, "MPO"])
def test_every_format_loads_whatever_its_name(saved, form):
    path = saved("a.png", encoded(form))
    loaded = load_image(path)
    assert (loaded.path, loaded.pixels.size, loaded.warnings) == (path, (64, 64), ())
    assert loaded.sha256 == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if form in ("PNG", "BMP", "TIFF", "PPM"):
        assert loaded.pixels.tobytes() == noise().tobytes()


# Where EXIF 2.32 puts the stored 0th row and 0th column, so where the stored top left corner is seen
CORNERS = ["top left", "top right", "bottom right", "bottom left"] * 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "tif", "heic"])
def test_exif_orientation_is_applied_once(saved, tmp_path, suffix, orientation):
    stored = Image.new("RGB", (64, 48), "black")
    stored.paste("white", (0, 0, 16, 16))
    exif = Image.Exif()
    exif[274] = orientation
    if suffix == "heic":
        if orientation in (2, 5, 7):  # cameras mirror none, and its encoder writes none
            return
        path = heic(tmp_path / "a.heic", stored, exif=exif.tobytes())
    else:
        path = saved(f"a.{suffix}", stored, exif=exif)
    loaded = load_image(path)
    width, height = (
        (48, 64) if orientation >= 5 else (64, 48)
    )  # from 5 on rows and columns change places
    assert (loaded.width, loaded.height) == loaded.pixels.size == (width, height)
    rows, columns = {"top": 4, "bottom": height - 5}, {"left": 4, "right": width - 5}
    row, column = CORNERS[orientation - 1].split()
    assert loaded.pixels.getpixel((columns[column], rows[row]))[0] > 128
    assert (
        loaded.pixels.getexif().get(274, 1) == 1
    )  # a processor that transposes too must find nothing to do


@pytest.mark.parametrize("kind", ["png", "tif", "white is zero", "big-endian tif", "pgm"])
def test_16_bit_grey_is_scaled_not_clipped(saved, kind):
    # v / 257: 128 and 129 lie on either side of one half, 25700 = 100·257, 65535 = 255·257
    values, expected = [0, 128, 129, 25700, 65535], [0, 0, 1, 100, 255]
    samples = np.tile(np.array(values, dtype=np.uint16), (40, 8))
    big_endian = samples.astype(">u2").tobytes()
    content = {
        "png": png(40, 40, 16, 0, big_endian),
        "pgm": b"P5 40 40 65535\n" + big_endian,
        "tif": tiff(40, 40, 16, 1, samples.astype("<u2").tobytes()),
        "white is zero": tiff(40, 40, 16, 0, (65535 - samples).astype("<u2").tobytes()),
        "big-endian tif": encoded("TIFF", Image.frombytes("I;16B", (40, 40), big_endian)),
    }[kind]
    loaded = load_image(saved("a", content))
    assert [loaded.pixels.getpixel((x, 7)) for x in range(5)] == [(v, v, v) for v in expected]


def test_16_bit_colour_is_scaled_not_clipped(saved):
    rows = struct.pack(">3H", 0x0000, 0x8080, 0xFFFF) * 40 * 40  # 0, 128·257, 255·257
    assert load_image(saved("a.png", png(40, 40, 16, 2, rows))).pixels.getpixel((39, 39)) == (
        0,
        128,
        255,
    )


def test_cmyk_is_converted_plainly(saved):
    loaded = load_image(saved("a.jpg", Image.new("CMYK", (40, 40), (255, 0, 0, 0)), quality=100))
    # all cyan ink, nothing else: no red, full green and blue, up to the JPEG's rounding
    assert np.abs(np.subtract(loaded.pixels.getpixel((20, 20)), (0, 255, 255))).max() <= 2
    assert "without colour management" in loaded.warnings[0]


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA"])
def test_other_modes_become_rgb(saved, mode):
    image = noise("RGB", (40, 40))
    if mode.endswith("A"):
        image = noise(mode[:-1], (40, 40))
        (stored := image.copy()).putalpha(255)
    else:
        stored = image = image.convert(mode)
    assert load_image(saved("a.png", stored)).pixels.tobytes() == image.convert("RGB").tobytes()


def test_a_foreign_icc_profile_is_named_and_not_applied(saved):
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
    loaded = load_image(saved("a.png", noise(), icc_profile=lab.tobytes()))
    assert loaded.pixels.tobytes() == noise().tobytes()
    assert loaded.pixels.info == {}  # saving or showing the pixels must not bring the profile back
    assert "ICC profile" in loaded.warnings[0]
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for harmless in (srgb, b"no profile"):
        assert load_image(saved("a.png", noise(), icc_profile=harmless)).warnings == ()


def half_transparent():
    image = noise("RGBA", (40, 40))
    image.putalpha(255)
    image.putpixel((39, 39), (1, 2, 3, 254))
    return image


@pytest.mark.parametrize(
    "content",
    [
        encoded("PNG", half_transparent()),
        encoded("GIF", Image.new("P", (40, 40), 1), transparency=1),
        png(40, 40, 8, 2, bytes([1, 2, 3]) * 1600, chunk(b"tRNS", struct.pack(">3H", 1, 2, 3))),
    ],
    ids=["rgba", "palette", "tRNS"],
)
def test_transparent_pixels_need_a_background(saved, content):
    message = refusal(path := saved("a.png", content))
    assert "some are transparent" in message
    assert "--background white" in message
    assert load_image(path, background="white").pixels.size == (40, 40)


def test_compositing_mixes_with_the_background(saved):
    image = Image.new("RGBA", (40, 40), (100, 0, 0, 0))
    image.paste((0, 200, 0, 255), (0, 0, 20, 40))
    image.paste((0, 0, 0, 51), (20, 20, 40, 40))
    pixels = load_image(saved("a.png", image), background="#0000ff").pixels
    # 51/255 black over blue: 0.8·255
    expected = [(0, 200, 0), (0, 0, 255), (0, 0, 204)]
    assert [pixels.getpixel(at) for at in ((0, 0), (30, 0), (30, 30))] == expected


def test_files_that_are_none(saved, tmp_path):
    assert "there is no such file; check the path" in refusal(str(tmp_path / "none.png"))
    assert "got a folder" in refusal(str(tmp_path))
    saved("photo.jpeg", noise())
    assert refusal(str(tmp_path / "photo.jpg")).endswith("did you mean photo.jpeg?")
    assert "the file is empty" in refusal(saved("a.png", b""))
    os.truncate(saved("large.png", b""), 2**30 + 1)  # sparse: it takes no space
    assert "at most 1073741824 bytes, but it has 1073741825" in refusal(str(tmp_path / "large.png"))
    for name in ("a\0.png", "a\ud800.png", "a" * 300):
        with pytest.raises(ImageError, match="no such file"):
            load_image(name)
    with pytest.raises(ImageError, match=r"/a\\n\\u001b\[2J\\u202e\.png: expected a"):
        load_image(saved("a\n\x1b[2J\u202e.png", b"no image"))


@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_file_is_refused_without_waiting(kind, tmp_path):
    ODD_FILES[kind](tmp_path / "a.png")
    with in_time():
        refusal(str(tmp_path / "a.png"))


def test_addresses(tmp_path):
    for address in ("HTTP://example.org/a.png", "s3://bucket/a.png"):
        assert "download it first" in refusal(address)
    (tmp_path / "a b.png").touch()
    assert local_path((tmp_path / "a b.png").as_uri()) == str(
        tmp_path / "a b.png"
    )  # the space is %20 there


@pytest.mark.parametrize("form", FORMATS)
def test_half_a_file(saved, monkeypatch, form):
    monkeypatch.setattr(
        ImageFile, "LOAD_TRUNCATED_IMAGES", True
    )  # as another library may have left it
    whole = encoded(form)
    assert "intact copy" in refusal(saved("half", whole[: len(whole) // 2]))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_several_frames(saved, form):
    content = encoded(
        form, noise(), save_all=True, append_images=[Image.new("RGB", (64, 64), "red")]
    )
    assert "holds several frames or pages; extract one frame first" in refusal(saved("a", content))


def test_limits_of_size(saved):
    path = saved("a.png", noise())  # 64·64 = 4096
    assert load_image(path, max_pixels=4096, min_side=64).width == 64
    assert "at most 4095 pixels, but its header claims 64x64; crop it" in refusal(
        path, max_pixels=4095
    )
    assert "at least 65 pixels on each side, but it is 64x64" in refusal(path, min_side=65)
    assert "at least 32 pixels" in refusal(saved("b.png", Image.new("RGB", (200, 31))))
    bomb = saved(
        "bomb.png", png(60000, 60000, 8, 2)
    )  # no pixels behind the header: decoding it would say so
    assert "at most 100000000 pixels, but its header claims 60000x60000" in refusal(bomb)


@pytest.mark.parametrize(
    ("samples", "bits", "kind", "said"),
    [
        (1, 32, 3, "32-bit floating-point"),
        (3, 16, 3, "16-bit floating-point"),
        (1, 16, 2, "16-bit signed"),
        (3, 32, 1, "32-bit whole"),
        (5, 8, 1, "8-bit whole"),
    ],
)
def test_samples_without_a_fixed_black_and_white(saved, samples, bits, kind, said):
    strip = bytes(40 * 40 * samples * bits // 8)
    content = tiff(40, 40, [bits] * samples, 1 + samples // 3, strip, kind)
    assert f"{samples} × {said} numbers" in refusal(saved("a.tif", content))


def test_premultiplied_grey_is_laid_over_a_background(saved):
    """By TIFF 6.0 ExtraSamples 1 says that grey is multiplied by alpha: 51 at alpha 102 is 127.5, and over white
    51 + (1 − 102/255)·255 = 204."""
    content = tiff(40, 40, [8, 8], 1, bytes([51, 102]) * 1600, t338=[1])
    pixels = load_image(saved("a.tif", content), background="white").pixels
    assert abs(pixels.getpixel((0, 0))[0] - 204) <= 1


FOREIGN = [(b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"), (b"8BPS\0\1", "Photoshop"),
           (b"FUJIFILMCCD-RAW ", "raw photograph"), (b"\0\0\0\x18ftypcrx ", "raw photograph"),
           (b"v/1\1", "OpenEXR"), (b"%PDF-1.7", "PDF")]  # fmt: skip


@pytest.mark.parametrize(("beginning", "said"), FOREIGN)
def test_what_is_no_picture_here_is_named(saved, beginning, said):
    assert said in refusal(saved("a.jpg", beginning + bytes(100)))


# Several pictures in one file

SENSOR, LINEAR = 32803, 34892  # PhotometricInterpretation of DNG 1.4
LARGE = {254: 0, 256: 1500, 257: 1500, 258: 16, 262: SENSOR, 259: 1}
RAW = "a camera's raw photograph"
OTHER = "64×64 pixels, is smaller than another in it, 1500×1500"


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"t254": 1, "below": [LARGE]}, f"{RAW}, of which only a preview of 64×64 pixels"),
        ({"t254": 1, "below": [{254: 1, 513: 8, 514: 9}, LARGE | {262: LINEAR}]}, RAW),
        ({"below": [LARGE]}, RAW),
        ({"t254": 1, "below": [LARGE | {262: 2}]}, OTHER),
        ({"pages": [LARGE | {262: 2}]}, OTHER),
        ({"pages": [{256: 64, 257: 64, 262: 1}]}, "several frames or pages"),
        ({"t254": 1, "below": [{256: 64, 257: 64, 262: 1}]}, "a preview or a mask of another"),
    ],
)
def test_no_preview_is_judged_in_place_of_its_photograph(saved, order, more, said):
    content = tiff(64, 64, 8, 1, noise("L").tobytes(), order=order, **more)
    assert said in refusal(saved("a.jpg", content))


@pytest.mark.parametrize("big", [False, True])
def test_raw_files_have_to_be_developed(saved, big):
    content = tiff(64, 64, 16, SENSOR, bytes(8192), big=big)
    assert refusal(saved("a.dng", content)).endswith("export it as JPEG or TIFF.")
    of_canon = tiff(64, 64, 8, 1, b"CR\2\0" + bytes(4092))  # whose mark lies behind the header
    assert RAW in refusal(saved("a.cr2", of_canon))


@pytest.mark.parametrize(
    "more",
    [
        {
            "below": [{254: 1, 256: 32, 257: 32, 262: 1}]
        },  # a pyramid, as GDAL, vips and OME write them
        {"pages": [{254: 1, 256: 32, 257: 32, 262: 1}, {254: 1, 256: 16, 257: 16, 262: 1}]},
        {"pages": [{254: 4, 256: 64, 257: 64, 262: 4}]},  # a mask
        {"t254": 1},  # says that it is a preview, but of nothing
        {"t330": [2**31, 8, 8, 0]},  # leads nowhere
        {"t330": [8 + 4096]},  # leads to itself
    ],
)
def test_smaller_versions_beside_a_photograph_do_not_matter(saved, more):
    content = tiff(64, 64, 8, 1, noise("L").tobytes(), **more)
    with in_time():
        assert load_image(saved("a.tif", content)).pixels.size == (64, 64)


@pytest.mark.parametrize(("sizes", "fine"), [((96, 64), True), ((64, 64), True), ((64, 96), False)])
def test_of_a_camera_s_jpeg_the_first_picture_is_no_preview(saved, sizes, fine):
    first, second = (noise(size=(side, side)) for side in sizes)
    path = saved("a.jpg", encoded("MPO", first, save_all=True, append_images=[second]))
    if fine:
        assert load_image(path).pixels.size == first.size
    else:
        assert "smaller than another in it, 96×96" in refusal(path)


# Memory


def test_samples_of_16_bits_take_little_memory(saved):
    """Beside Pillow's own pixels, which are not counted, there is the file alone, and parts."""
    path = saved("a.png", Image.fromarray(np.zeros((4000, 400), np.uint16)))
    tracemalloc.start()
    load_image(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most / (4000 * 400) < 1


def test_memory_that_runs_out_is_said_and_no_damage(saved, monkeypatch):
    def exhausted(*_, **__):
        raise MemoryError

    monkeypatch.setattr("agentic_iqa_local.images.reading.to_rgb8", exhausted)
    said = refusal(saved("a.png", noise()))
    assert "memory ran out while the picture was opened; free some memory" in said


WHOLE = {form: encoded(form) for form in FORMATS}


@settings(max_examples=200, derandomize=True, database=None, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(
    form=st.sampled_from(FORMATS),
    changes=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=8)), min_size=1, max_size=4),
    cut=st.floats(0, 2),
)
def test_a_damaged_file_loads_or_is_refused_in_one_sentence(tmp_path, form, changes, cut):
    data = bytearray(WHOLE[form])
    for place, what in changes:
        at = int(place * (len(data) - 1))
        data[at : at + len(what)] = what
    (tmp_path / "a").write_bytes(data[: int(cut * len(data)) + 1])
    said = "loaded"
    try:
        assert math.prod(load_image(tmp_path / "a", max_pixels=10_000).pixels.size) <= 10_000
    except ImageError as error:
        said = str(error)
    assert is_sentence(said)


def heic(path, image, **options):
    """`image` as pillow-heif encodes it: without loss unless `options` say otherwise."""
    pillow_heif = pytest.importorskip("pillow_heif")
    options = {"quality": -1, "chroma": 444, "matrix_coefficients": 0} | options
    pillow_heif.encode(image.mode, image.size, image.tobytes(), str(path), **options)
    return str(path)


def test_heic_loads_or_is_named_where_it_cannot_be_read(tmp_path, photo, monkeypatch):
    loaded = load_image(path := heic(tmp_path / "a.heic", photo))
    assert loaded.pixels.tobytes() == photo.tobytes()
    assert "at most 4095 pixels" in refusal(path, max_pixels=4095)
    content = Path(path).read_bytes()
    (tmp_path / "part.heic").write_bytes(content[: len(content) // 2])
    assert "get an intact copy" in refusal(str(tmp_path / "part.heic"))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # importing it fails
    assert "install pillow-heif or convert it to PNG" in refusal(path)


def test_a_pair_has_one_size_once_upright(saved):
    exif = Image.Exif()
    exif[274] = 6
    turned = saved("turned.jpg", Image.new("RGB", (64, 48)), exif=exif)  # upright it is 48x64
    assert load_pair(turned, saved("tall.png", Image.new("RGB", (48, 64))))[0].height == 64
    wide = saved("wide.png", Image.new("RGB", (64, 48)))
    with pytest.raises(ImageError) as caught:
        load_pair(turned, wide)
    for part in (turned, "48x64", wide, "64x48", "without a reference"):
        assert part in str(caught.value)


def test_pictures_in_memory_are_files_of_the_same_pixels():
    pixels, data = np.asarray(noise()), encoded("PNG")
    lazy = Image.open(io.BytesIO(data))
    lazy.info["icc_profile"] = b"evil"
    inputs = [np.repeat(pixels, 2, 1)[:, ::2], data, memoryview(data), noise(), lazy]
    for picture in inputs:
        with as_file(picture) as file:
            assert load_image(file.path).pixels.tobytes() == noise().tobytes()
            assert file.hide(f"{file.path}: no") == f"{file.name}: no"
        assert not os.path.exists(file.path)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (np.zeros((64, 96), np.uint16), "64×96 of uint16; scale it with (array * (255 / white))"),
        (np.zeros((3, 64, 96), np.uint8), "channels last"),
        (np.zeros((2, 64, 96, 3), np.uint8), "got 2×64×96×3 of uint8"),
        (
            Image.new("I", (64, 64)),
            "scale its values",
        ),  # .convert("RGB") would clip 16-bit values to white
        (Image.open(io.BytesIO(encoded("JPEG")[:-500])), "get an intact copy"),
        (
            Image.open(io.BytesIO(encoded("GIF", save_all=True, append_images=[noise("L")]))),
            "image.copy()",
        ),
        ("data:image/png;base64," + "A" * 5000, "base64.b64decode"),
        (3, "got int"),
    ],
)
def test_what_is_no_picture_is_told_in_one_sentence(wrong, said):
    with pytest.raises((ValueError, TypeError)) as caught:
        check_picture(wrong)
    assert said in str(caught.value)
    assert is_sentence(str(caught.value))


SIDES = st.integers(
    32, 6400
)  # from the smallest side that is assessed to an aspect that Qwen takes
LIMITS = st.sampled_from(
    [(28, 56 * 56, 1280 * 28 * 28), (32, 256**2, 1024**2), (16, 1, 224**2), (56, 112**2, 400_000)]
)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(width=SIDES, height=SIDES, limits=LIMITS, count=st.integers(1, 5))
def test_views_reach_the_model_as_they_are(width, height, limits, count):
    options = dict(zip(("factor", "min_pixels", "max_pixels"), limits, strict=True))
    boxes = native_views(width, height, max_views=count, **options)
    assert boxes == native_views(width, height, **options)[:count]
    assert len(set(boxes)) == len(boxes)
    assert len({(right - left, bottom - top) for left, top, right, bottom in boxes}) == 1
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert left % 8 == top % 8 == 0
    left, top, right, bottom = boxes[0]
    # The first is central: its margins differ by the rounding to 8 and an odd pixel at most.
    assert 0 <= (width - right) - left <= 16
    assert 0 <= (height - bottom) - top <= 16
    factor, least, most = limits
    tall, wide, cropped = (
        bottom - top,
        right - left,
        (width // factor * factor, height // factor * factor),
    )
    seen = smart_resize(tall, wide, *limits)
    assert seen[0] >= tall
    assert seen[1] >= wide
    if math.prod(cropped) >= max(least, 1):
        assert wide * tall <= most
        assert wide % factor == tall % factor == 0
        if wide * tall >= least:
            assert seen == (tall, wide)


@pytest.mark.parametrize(
    ("size", "least", "most", "boxes"),
    [
        # 1000 = 31·32 + 8 and 650 = 20·32 + 10: half of the rest, 4 and 5, rounded down to multiples of 8
        ((1000, 650), 1, 1_000_000, [(0, 0, 992, 640)]),
        # 512² = 262144 pixels fit; the centres 1000, 500 and 1500 less 256, rounded down to multiples of 8
        ((2000, 2000), 1, 262144, [(x, y, x + 512, y + 512) for x, y in
                                   ((744, 744), (240, 240), (1240, 1240), (1240, 240), (240, 1240))]),
        # 32 rows and 100:1 at most make 3200x32; the centres less 1600, the last at most 10016 − 3200
        ((10016, 32), 1, 1_000_000, [(3408, 0, 6608, 32), (904, 0, 4104, 32), (5912, 0, 9112, 32)]),
        ((20, 30), 1, 1_000_000, [(0, 0, 20, 30)]),  # rounded up
        ((80, 50), 4097, 1_000_000, [(8, 0, 72, 50)]),  # 80 would go down to 64
    ],
)  # fmt: skip
def test_views_by_hand(size, least, most, boxes):
    assert native_views(*size, factor=32, min_pixels=least, max_pixels=most) == boxes
