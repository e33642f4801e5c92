"""Files become upright 8-bit RGB pixels or one sentence, and large pictures native crops. Files are written by
their formats' specifications; expected numbers come from the derivations in the comments."""

import hashlib
import io
import math
import os
import struct
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tifffile
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


def tiff(*pictures, **options):
    """A TIFF of pictures, each (samples, tags as `tifffile` names them), written in their order."""
    made = io.BytesIO()
    with tifffile.TiffWriter(made, **options) as writer:
        for samples, tags in pictures:
            writer.write(samples, metadata=None, **tags)
    return made.getvalue()


def grey(side=64, dtype="u1"):
    return np.random.default_rng(0).integers(0, 255, (side, side)).astype(dtype)


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
        "png": encoded("PNG", Image.fromarray(samples)),
        "pgm": b"P5 40 40 65535\n" + big_endian,
        "tif": tiff((samples, {})),
        "white is zero": tiff((65535 - samples, {"photometric": "miniswhite"})),
        "big-endian tif": encoded("TIFF", Image.frombytes("I;16B", (40, 40), big_endian)),
    }[kind]
    loaded = load_image(saved("a", content))
    assert [loaded.pixels.getpixel((x, 7)) for x in range(5)] == [(v, v, v) for v in expected]


def test_16_bit_colour_is_scaled_not_clipped(saved):
    samples = np.full((40, 40, 3), (0, 0x8080, 0xFFFF), np.uint16)  # 0, 128·257, 255·257
    content = tiff((samples, {"photometric": "rgb"}))
    assert load_image(saved("a.tif", content)).pixels.getpixel((39, 39)) == (0, 128, 255)


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
        encoded("PNG", Image.new("RGB", (40, 40), (1, 2, 3)), transparency=(1, 2, 3)),
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
    bomb = bytearray(encoded("BMP"))  # no pixels behind the header: decoding it would say so
    struct.pack_into("<ii", bomb, 18, 60000, 60000)
    assert "at most 100000000 pixels, but its header claims 60000x60000" in refusal(
        saved("bomb.bmp", bytes(bomb))
    )


@pytest.mark.parametrize(
    ("dtype", "said"),
    [("f4", "32-bit floating-point"), ("i2", "16-bit signed"), ("u4", "32-bit whole")],
)
def test_samples_without_a_fixed_black_and_white(saved, dtype, said):
    assert f"1 × {said} numbers" in refusal(saved("a.tif", tiff((grey(dtype=dtype), {}))))


FOREIGN = [(b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"), (b"8BPS\0\1", "Photoshop"),
           (b"FUJIFILMCCD-RAW ", "raw photograph"), (b"\0\0\0\x18ftypcrx ", "raw photograph"),
           (b"v/1\1", "OpenEXR"), (b"%PDF-1.7", "PDF")]  # fmt: skip


@pytest.mark.parametrize(("beginning", "said"), FOREIGN)
def test_what_is_no_picture_here_is_named(saved, beginning, said):
    assert said in refusal(saved("a.jpg", beginning + bytes(100)))


# Several pictures in one file

SENSOR = (grey(200, "u2"), {"photometric": "cfa"})
LARGE = (grey(200), {})
SMALL = (grey(32), {"subfiletype": 1})
RAW = "a camera's raw photograph; develop it first"
OTHER = "64×64 pixels, is smaller than another in it, 200×200"


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("first", "other", "said"),
    [
        ({"subfiletype": 1, "subifds": 1}, SENSOR, RAW),
        ({"subifds": 1}, SENSOR, RAW),
        ({"subfiletype": 1, "subifds": 1}, LARGE, OTHER),
        ({}, LARGE, OTHER),
        ({}, (grey(), {}), "several frames or pages"),
    ],
)
def test_no_preview_is_judged_in_place_of_its_photograph(saved, order, first, other, said):
    content = tiff((grey(), first), other, byteorder=order)
    assert said in refusal(saved("a.jpg", content))


def test_a_raw_file_has_to_be_developed(saved):
    assert RAW in refusal(saved("a.dng", tiff(SENSOR, bigtiff=True)))


@pytest.mark.parametrize(
    "content",
    [
        tiff((grey(), {"subifds": 1}), SMALL),  # a pyramid, as GDAL, vips and OME write them
        tiff((grey(), {}), SMALL, SMALL),
        tiff((grey(), {"extratags": [(330, "I", 4, (2**31, 8, 8, 0), False)]})),  # leads nowhere
    ],
)
def test_smaller_versions_beside_a_photograph_do_not_matter(saved, content):
    with in_time():
        assert load_image(saved("a.tif", content)).pixels.size == (64, 64)


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
@given(width=SIDES, height=SIDES, limits=LIMITS)
def test_views_reach_the_model_as_they_are(width, height, limits):
    options = dict(zip(("factor", "min_pixels", "max_pixels"), limits, strict=True))
    boxes = native_views(width, height, **options)
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    left, top, right, bottom = boxes[0]
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
