import hashlib
import itertools
import math
import os
import struct
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile, TiffImagePlugin

from agentic_iqa_local.batch.inputs import expand_inputs
from agentic_iqa_local.images.files import ImageError, check_file
from agentic_iqa_local.images.reading import load_image, load_pair, same_pixels
from agentic_iqa_local.images.views import View, native_views

GREY_40 = Image.new("L", (40, 40), 100)


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
    channels = len(mode)
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    return Image.fromarray(values[..., 0] if channels == 1 else values, mode)


def png(width, height, depth, colour_type, rows=b"", *, level=9, extra=b""):
    """A PNG by its specification: `rows` as packed samples without the filter bytes, `extra` chunks before
    the pixels."""
    stride = len(rows) // height
    scanlines = b"".join(b"\0" + rows[y * stride : (y + 1) * stride] for y in range(height)) if rows else b""
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + extra
        + chunk(b"IDAT", zlib.compress(scanlines, level))
        + chunk(b"IEND", b"")
    )


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def tiff(width, height, bits, photometric, strip, sample_format=1):
    """A little-endian TIFF with one uncompressed grey strip behind its one directory."""
    tags = {
        256: width,
        257: height,
        258: bits,
        259: 1,
        262: photometric,
        273: 8 + 2 + 10 * 12 + 4,
        277: 1,
        278: height,
        279: len(strip),
        339: sample_format,
    }
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0) + strip


def cmyk_profile(name=b"Test inks"):
    """An ICC 2.4 CMYK profile of that name: paper is L* 100, any cyan ink alone makes L* 50, black ink L* 0,
    all neutral."""

    def padded(data):
        return data + b"\0" * (-len(data) % 4)

    # 0xFF00 is 100
    lightness = [0 if k else 0x7F80 if c else 0xFF00 for c, m, y, k in itertools.product((0, 1), repeat=4)]
    identity = [0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x10000]
    table = (
        b"mft2\0\0\0\0"
        + bytes([4, 3, 2, 0])
        + struct.pack(">9i2H", *identity, 2, 2)
        + struct.pack(">8H", *[0, 65535] * 4)
        + b"".join(struct.pack(">3H", value, 0x8000, 0x8000) for value in lightness)
        + struct.pack(">6H", *[0, 65535] * 3)
    )
    name += b"\0"
    description = b"desc\0\0\0\0" + struct.pack(">I", len(name)) + name + bytes(4 + 4 + 2 + 1 + 67)
    d50 = struct.pack(">3i", 63190, 65536, 54061)
    tags = {b"desc": padded(description), b"wtpt": b"XYZ \0\0\0\0" + d50, b"A2B0": padded(table)}
    offset, directory, body = 128 + 4 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for signature, data in tags.items():
        directory += signature + struct.pack(">II", offset + len(body), len(data))
        body += data
    header = struct.pack(
        ">IIIII", offset + len(body), 0, 0x02400000, int.from_bytes(b"prtr"), int.from_bytes(b"CMYK")
    )
    header += b"Lab " + struct.pack(">6H", 2024, 1, 1, 0, 0, 0) + b"acsp" + bytes(28) + d50
    return header.ljust(128, b"\0") + directory + body


def refusal(path, **limits):
    with pytest.raises(ImageError) as caught:
        load_image(path, **limits)
    message = str(caught.value)
    assert message.startswith(f"{path}: expected ")
    assert message.endswith(".")
    assert "\n" not in message
    return message


# What loads


def test_threads_leave_pillow_and_warnings_as_they_were(tmp_path):
    """Strictness and warning filters belong to the whole process: overlapping loads would restore each
    other's."""
    good, broken = tmp_path / "good.png", tmp_path / "broken.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)).save(good)
    broken.write_bytes(good.read_bytes()[:-5000])
    tolerant, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, True
    shower = warnings._showwarnmsg_impl

    def refused(path):
        try:
            load_image(str(path))
        except ImageError:
            return True
        return False

    try:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(refused, [good, broken] * 40)) == [False, True] * 40
        assert ImageFile.LOAD_TRUNCATED_IMAGES is True
        assert warnings._showwarnmsg_impl is shower
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


def test_rgb_comes_through_untouched(saved):
    image = noise()
    path = saved("a.png", image)
    loaded = load_image(path)
    assert loaded.pixels.mode == "RGB"
    assert loaded.pixels.tobytes() == image.tobytes()
    assert (loaded.path, loaded.width, loaded.height, loaded.warnings) == (path, 64, 64, ())
    assert loaded.sha256 == hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "name", ["a.jpg", "a.webp", "a.bmp", "a.tif", "a.jp2", "a.ppm", "a.avif", "png_inside.jpg"]
)
def test_every_format_loads(saved, name):
    file_format = "PNG" if name == "png_inside.jpg" else None  # the content decides, not the suffix
    loaded = load_image(saved(name, noise(), format=file_format))
    assert loaded.pixels.size == (64, 64)
    assert loaded.warnings == ()


# Where EXIF 2.32 puts the stored 0th row and 0th column, so where the stored top left corner is seen
@pytest.mark.parametrize(
    ("orientation", "corner"),
    [
        (1, "top left"),
        (2, "top right"),
        (3, "bottom right"),
        (4, "bottom left"),
        (5, "top left"),
        (6, "top right"),
        (7, "bottom right"),
        (8, "bottom left"),
    ],
)
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_exif_orientation_is_applied_once(saved, suffix, orientation, corner):
    stored = Image.new("RGB", (64, 48), "black")
    stored.paste("white", (0, 0, 16, 16))
    exif = Image.Exif()
    exif[274] = orientation
    loaded = load_image(saved(f"a.{suffix}", stored, exif=exif))
    width, height = (48, 64) if orientation >= 5 else (64, 48)  # from 5 on rows and columns change places
    assert (loaded.width, loaded.height) == loaded.pixels.size == (width, height)
    vertical, horizontal = corner.split()
    seen = {
        (v, h): (
            loaded.pixels.getpixel((4 if h == "left" else width - 5, 4 if v == "top" else height - 5))[0]
            > 128
        )
        for v in ("top", "bottom")
        for h in ("left", "right")
    }
    assert seen == {place: place == (vertical, horizontal) for place in seen}
    expected = (
        [] if orientation == 1 else [f"The picture was turned upright (EXIF orientation {orientation})."]
    )
    assert list(loaded.warnings) == expected
    assert loaded.pixels.getexif().get(274, 1) == 1  # a processor that transposes too must find nothing to do


def test_damaged_exif_leaves_the_picture_as_it_is(saved):
    loaded = load_image(saved("a.png", noise(), exif=b"Exif\0\0nonsense"))
    assert loaded.pixels.tobytes() == noise().tobytes()
    assert len(loaded.warnings) == 1
    assert "EXIF data cannot be read" in loaded.warnings[0]


def test_what_pillow_complains_about_is_kept(saved):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # its directory lies outside
        loaded = load_image(saved("a.jpg", noise(), exif=b"Exif\0\0II*\0\xff\xff\xff\xff"))
    assert len(loaded.warnings) == 1
    assert loaded.warnings[0].startswith("Pillow: Corrupt EXIF data")


@pytest.mark.parametrize("kind", ["png", "tif", "big-endian tif", "pgm"])
def test_16_bit_grey_is_scaled_not_clipped(saved, kind):
    # v / 257: 128 and 129 lie on either side of one half, 25700 = 100·257, 65535 = 255·257
    values, expected = [0, 128, 129, 25700, 65535], [0, 0, 1, 100, 255]
    samples = np.tile(np.array(values, dtype=np.uint16), (40, 8))
    if kind == "png":
        path = saved("a.png", png(40, 40, 16, 0, samples.astype(">u2").tobytes()))
    elif kind == "pgm":
        path = saved("a.pgm", b"P5 40 40 65535\n" + samples.astype(">u2").tobytes())
    elif kind == "tif":
        path = saved("a.tif", tiff(40, 40, 16, 1, samples.astype("<u2").tobytes()))
    else:
        path = saved("a.tif", Image.frombytes("I;16B", (40, 40), samples.astype(">u2").tobytes()))
    loaded = load_image(path)
    assert [loaded.pixels.getpixel((x, 7)) for x in range(5)] == [(v, v, v) for v in expected]
    assert loaded.warnings == (
        "The 16-bit samples were scaled to 8 bits.",
        "The greyscale pixels were converted to RGB.",
    )


def test_16_bit_grey_tiff_with_white_as_zero_is_no_negative(saved):
    samples = np.tile(np.array([0, 65535], dtype="<u2"), (40, 20))
    loaded = load_image(saved("a.tif", tiff(40, 40, 16, 0, samples.tobytes())))
    assert [loaded.pixels.getpixel((x, 0))[0] for x in range(2)] == [255, 0]


def test_12_bit_grey_spans_the_whole_range(saved):
    strip = bytes([0xFF, 0xF0, 0x00]) * 20 * 40  # 0xFFF, 0x000: white and black of 12 bits
    loaded = load_image(saved("a.tif", tiff(40, 40, 12, 1, strip)))
    assert [loaded.pixels.getpixel((x, 0))[0] for x in range(2)] == [255, 0]
    assert "The 12-bit samples were scaled to 8 bits." in loaded.warnings


def test_16_bit_rgb_png_is_noticed(saved):
    rows = struct.pack(">3H", 0x0000, 0x8080, 0xFFFF) * 40 * 40  # 0, 128·257, 255·257
    loaded = load_image(saved("a.png", png(40, 40, 16, 2, rows)))
    assert loaded.pixels.getpixel((39, 39)) == (0, 128, 255)
    assert loaded.warnings == ("The 16-bit samples were scaled to 8 bits.",)


def test_cmyk_without_a_profile_is_converted_plainly(saved):
    loaded = load_image(saved("a.jpg", Image.new("CMYK", (40, 40), (255, 0, 0, 0)), quality=100))
    # all cyan ink, nothing else: no red, full green and blue, up to the JPEG's rounding
    assert np.abs(np.subtract(loaded.pixels.getpixel((20, 20)), (0, 255, 255))).max() <= 2
    assert loaded.warnings == (
        "The CMYK pixels were converted to RGB without colour management: they carry no ICC profile.",
    )


@pytest.mark.parametrize(("ink", "grey"), [((255, 0, 0, 0), 119), ((0, 0, 0, 0), 255), ((0, 0, 0, 255), 0)])
def test_cmyk_goes_through_its_profile(saved, ink, grey):
    # L* 50 is Y = ((50 + 16) / 116)³ = 0.1842, in sRGB 255·(1.055·0.1842^(1/2.4) − 0.055) = 118.9
    loaded = load_image(
        saved("a.jpg", Image.new("CMYK", (40, 40), ink), quality=100, icc_profile=cmyk_profile())
    )
    assert np.abs(np.subtract(loaded.pixels.getpixel((20, 20)), grey)).max() <= 2
    assert loaded.warnings == (
        "The CMYK pixels were converted to sRGB through the embedded ICC profile (Test inks).",
    )


def test_cmyk_with_a_useless_profile_says_so(saved):
    loaded = load_image(
        saved("a.jpg", Image.new("CMYK", (40, 40), (255, 0, 0, 0)), icc_profile=b"no profile")
    )
    assert len(loaded.warnings) == 1
    assert "their ICC profile cannot be used" in loaded.warnings[0]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_an_opaque_alpha_channel_is_dropped(saved, mode):
    image = noise(mode[:-1], (40, 40))
    with_alpha = image.copy()
    with_alpha.putalpha(255)
    loaded = load_image(saved("a.png", with_alpha))
    assert loaded.pixels.tobytes() == image.convert("RGB").tobytes()
    assert loaded.warnings[0] == "The transparency data was dropped: every pixel is opaque."


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        (GREY_40, "greyscale"),
        (GREY_40.convert("1"), "1-bit"),
        (GREY_40.convert("RGB").quantize(4), "palette"),
    ],
)
def test_other_modes_become_rgb(saved, image, kind):
    loaded = load_image(saved("a.png", image))
    assert loaded.pixels.mode == "RGB"
    assert loaded.pixels.tobytes() == image.convert("RGB").tobytes()
    assert loaded.warnings == (f"The {kind} pixels were converted to RGB.",)


def test_an_unused_transparent_palette_entry_is_harmless(saved):
    image = Image.new("P", (40, 40), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    loaded = load_image(saved("a.png", image, transparency=0))
    assert loaded.pixels.getpixel((0, 0)) == (10, 20, 30)
    assert loaded.warnings == (
        "The transparency data was dropped: every pixel is opaque.",
        "The palette pixels were converted to RGB.",
    )


def test_a_foreign_icc_profile_is_named_and_not_applied(saved):
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
    loaded = load_image(saved("a.png", noise(), icc_profile=lab.tobytes()))
    assert loaded.pixels.tobytes() == noise().tobytes()
    assert loaded.pixels.info == {}  # saving or showing the pixels must not bring the profile back
    name = ImageCms.getProfileDescription(lab).strip()
    assert loaded.warnings == (
        f"The embedded ICC profile ({name}) was not applied: the numbers are read as sRGB.",
    )


def test_an_srgb_profile_needs_no_warning(saved):
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert load_image(saved("a.png", noise(), icc_profile=srgb)).warnings == ()


def test_an_unreadable_icc_profile_is_said_to_be_so(saved):
    assert "(unreadable: " in load_image(saved("a.png", noise(), icc_profile=b"no profile")).warnings[0]


def test_a_cameras_preview_behind_the_photograph_is_left_out(saved):
    photograph = noise()
    loaded = load_image(
        saved("a.jpg", photograph, format="MPO", save_all=True, append_images=[GREY_40.convert("RGB")])
    )
    assert loaded.pixels.size == (64, 64)
    assert loaded.warnings == ("Only the first of the file's 2 pictures was taken.",)


# What is refused


def test_missing(tmp_path):
    assert "there is no such file; check the path" in refusal(str(tmp_path / "none.png"))


def test_folder(tmp_path):
    assert "this is a folder; name a file inside it" in refusal(str(tmp_path))


def test_a_file_that_is_too_long_is_not_read(tmp_path):
    (tmp_path / "a.png").touch()
    os.truncate(tmp_path / "a.png", 2**30 + 1)  # sparse: it takes no space
    with pytest.raises(ImageError, match="at most 1073741824 bytes, but it has 1073741825"):
        load_image(tmp_path / "a.png")


def test_pipe(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    assert "this is a pipe or a device; save the picture to a file" in refusal(str(tmp_path / "a.png"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(saved):
    path = saved("a.png", noise())
    os.chmod(path, 0)
    assert "Permission denied); check its permissions" in refusal(path)


def test_empty(saved):
    assert "the file is empty (0 bytes); copy it again" in refusal(saved("a.png", b""))


@pytest.mark.parametrize(
    "content", [b"this is text\n" * 100, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n"]
)
def test_no_image(saved, content):
    message = refusal(saved("a.jpg", content))
    assert "PNG, JPEG" in message
    assert "the content is none of these" in message
    assert "convert it to PNG" in message


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "tif", "gif", "ppm", "jp2", "avif"])
def test_half_a_file(saved, monkeypatch, suffix, tolerant):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", tolerant)  # as another library may have left it
    whole = Path(saved(f"whole.{suffix}", noise())).read_bytes()
    message = refusal(saved(f"half.{suffix}", whole[: len(whole) // 2]))
    assert "intact copy" in message
    assert ImageFile.LOAD_TRUNCATED_IMAGES is tolerant


def test_a_flipped_bit_in_a_png(saved):
    # stored uncompressed: it would decode to a wrong pixel
    content = bytearray(png(40, 40, 8, 0, bytes(1600), level=0))
    content[len(content) // 2] ^= 1
    assert "decoding failed" in refusal(saved("a.png", bytes(content)))


def progressive(scans):
    """A progressive JPEG whose last scan comes again and again, as often as makes so many."""
    file = BytesIO()
    noise().save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content[content.rindex(b"\xff\xda") : -2]  # the end of the image is the last two bytes
    return content[:-2] + last * (scans - content.count(b"\xff\xda")) + content[-2:]


def test_a_jpeg_of_endless_scans_is_refused(saved):
    assert load_image(saved("a.jpg", progressive(100))).width == 64
    assert "decoding failed (101 scans, where a JPEG has a dozen at most)" in refusal(
        saved("b.jpg", progressive(101))
    )


def test_what_looks_like_scans_in_a_comment_is_none(saved):
    assert load_image(saved("a.jpg", noise(), comment=b"\xff\xda" * 300)).width == 64


def test_a_png_whose_header_is_not_its_first_chunk(saved):
    # Where the bit depth stands in a PNG's header, this one has a letter.
    content = png(40, 40, 16, 0, b"\x80\x80" * 1600)
    content = content[:8] + chunk(b"tEXt", b"Comment\0" + b"\1" * 20) + content[8:]
    assert "decoding failed (IHDR is not the first chunk)" in refusal(saved("a.png", content))


@pytest.mark.parametrize("name", ["a\0.png", "a\ud800.png"])
def test_a_name_that_no_file_can_have(name):
    with pytest.raises(ImageError, match="no file can have this name"):
        load_image(name)


def test_control_characters_of_a_name_are_escaped(saved):
    with pytest.raises(ImageError) as caught:
        load_image(saved("a\n\x1b[2J\u202e.png", b"no image"))
    assert "/a\\n\\u001b[2J\\u202e.png: expected a" in str(caught.value)


def test_control_characters_of_a_profile_are_escaped(saved):
    path = saved("a.jpg", Image.new("CMYK", (40, 40)), icc_profile=cmyk_profile(b"Evil\x1b[2Jinks"))
    assert "(Evil\\u001b[2Jinks)" in load_image(path).warnings[0]


def test_threads_do_not_change_each_others_strictness(saved, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # as another library may have left it
    whole = saved("whole.jpg", noise(size=(400, 400)), exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    half = saved("half.jpg", Path(whole).read_bytes()[:-5000])

    def load(path):
        try:
            return load_image(path).warnings
        except ImageError:
            return None

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(load, [whole, half] * 50))
    assert found == [load_image(whole).warnings, None] * 50
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_pages_are_not_counted(saved, monkeypatch):
    # A file may chain a million of them: that there is a second one is enough.
    path = saved("a.tif", noise(), save_all=True, append_images=[noise()])
    monkeypatch.setattr(TiffImagePlugin.TiffImageFile, "n_frames", property(lambda image: 1 / 0))
    assert "this TIFF holds several frames or pages" in refusal(path)


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tif"])
def test_several_frames(saved, name):
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "green", "blue")]
    message = refusal(saved(name, frames[0], save_all=True, append_images=frames[1:]))
    assert "holds several frames or pages; extract one frame first" in message


@pytest.mark.parametrize("size", [(1, 1), (31, 200), (200, 31)])
def test_too_small(saved, size):
    message = refusal(saved("a.png", Image.new("RGB", size)))
    assert f"at least 32 pixels on each side, but it is {size[0]}x{size[1]}; use the original" in message


def test_the_smallest_side_is_a_parameter(saved):
    path = saved("a.png", Image.new("RGB", (8, 9)))
    assert load_image(path, min_side=8).width == 8
    assert "at least 9 pixels" in refusal(path, min_side=9)


def test_too_large(saved):
    path = saved("a.png", noise())  # 64·64 = 4096
    assert load_image(path, max_pixels=4096).width == 64
    message = refusal(path, max_pixels=4095)
    assert (
        "at most 4095 pixels, but its header claims 64x64 = 4096; crop it, or raise max_pixels under images"
        in message
    )


@pytest.mark.parametrize(
    ("side", "limit", "came"),
    [
        (
            60000,
            100_000_000,
            "3600000000 pixels",
        ),  # 60000² = 3.6e9, beyond twice Pillow's 89 478 485: its error
        (10001, 100_000_000, "10001x10001 = 100020001"),  # above Pillow's limit, where it only warns
    ],
)
def test_a_decompression_bomb_is_refused_by_its_header(saved, side, limit, came):
    path = saved("bomb.png", png(side, side, 8, 2))  # no pixels behind the header: decoding it would say so
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        message = refusal(path, max_pixels=limit)
    assert f"at most {limit} pixels" in message
    assert came in message
    assert "crop it" in message


def test_pillows_warning_does_not_leak(saved, monkeypatch):
    # a picture of 4096 pixels is between it and its double
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_image(saved("a.png", noise())).warnings == ()


def half_transparent():
    image = noise("RGBA", (40, 40))
    image.putalpha(255)
    image.putpixel((39, 39), (1, 2, 3, 254))
    return image


def transparent_palette():
    image = Image.new("P", (40, 40), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.info["transparency"] = 1
    return image


@pytest.mark.parametrize(
    "content",
    [
        half_transparent(),
        transparent_palette(),
        png(40, 40, 8, 2, bytes([1, 2, 3]) * 1600, extra=chunk(b"tRNS", struct.pack(">3H", 1, 2, 3))),
        png(40, 40, 8, 0, bytes(1600), extra=chunk(b"tRNS", struct.pack(">H", 0))),
        png(40, 40, 16, 0, b"\x80\x80" * 1600, extra=chunk(b"tRNS", b"\x80\x80")),
        png(40, 40, 16, 2, b"\x80\x80" * 4800, extra=chunk(b"tRNS", b"\x80\x80" * 3)),
    ],
    ids=["rgba", "palette", "rgb tRNS", "grey tRNS", "16-bit grey tRNS", "16-bit rgb tRNS"],
)
def test_transparency(saved, content):
    message = refusal(saved("a.png", content))
    assert "some are transparent" in message
    assert "composite it onto the background" in message


def test_a_transparent_gif(saved):
    assert "some are transparent" in refusal(saved("a.gif", transparent_palette(), transparency=1))


@pytest.mark.parametrize(("mode", "bits"), [("F", 32), ("I", 32)])
def test_32_bit_samples(saved, mode, bits):
    message = refusal(saved("a.tif", Image.new(mode, (40, 40), 7)))
    assert f"this TIFF has {bits}-bit samples" in message
    assert "save it as RGB first" in message


def test_signed_samples(saved):
    message = refusal(saved("a.tif", tiff(40, 40, 16, 1, bytes(3200), sample_format=2)))
    assert "without a fixed black and white" in message


# Pairs


def test_a_pair_of_one_size(saved):
    image, reference = load_pair(saved("a.png", noise()), saved("b.png", Image.new("RGB", (64, 64))))
    assert image.pixels.tobytes() == noise().tobytes()
    assert reference.pixels.getpixel((0, 0)) == (0, 0, 0)


def test_a_pair_is_compared_upright(saved):
    exif = Image.Exif()
    exif[274] = 6
    turned = saved("turned.jpg", Image.new("RGB", (64, 48)), exif=exif)  # upright it is 48x64
    assert load_pair(turned, saved("tall.png", Image.new("RGB", (48, 64))))[0].height == 64
    wide = saved("wide.png", Image.new("RGB", (64, 48)))
    with pytest.raises(ImageError) as caught:
        load_pair(turned, wide)
    message = str(caught.value)
    for part in (turned, "48x64", wide, "64x48", "cropped alike, or assess it without a reference"):
        assert part in message


def test_a_pair_passes_its_limits_on(saved):
    # 1600 and 4096 pixels
    small, large = (
        saved("small.png", noise(size=(40, 40))),
        saved("large.png", noise()),
    )
    for pair in ((small, large), (large, small)):
        with pytest.raises(ImageError, match=r"large\.png: expected at most 1600 pixels"):
            load_pair(*pair, max_pixels=1600)


# Views

SIDES = [32, 33, 47, 100, 127, 255, 256, 500, 1023, 1920, 4000, 6001]
LIMITS = [
    (28, 56 * 56, 1280 * 28 * 28),
    (32, 256 * 256, 1024 * 1024),
    (16, 1, 224 * 224),
    (56, 112 * 112, 400_000),
]


def views_of_all():
    for (width, height), (factor, low, high), count in itertools.product(
        itertools.product(SIDES, SIDES), LIMITS, (1, 3, 5)
    ):
        limits = {"factor": factor, "min_pixels": low, "max_pixels": high}
        yield (
            width,
            height,
            limits,
            count,
            [view.box for view in native_views(width, height, max_views=count, **limits)],
        )


def test_views_keep_their_invariants():
    for width, height, limits, count, boxes in views_of_all():
        case = (width, height, limits, boxes)
        factor = limits["factor"]
        assert 1 <= len(boxes) <= count, case
        assert len(set(boxes)) == len(boxes), case
        assert len({(right - left, bottom - top) for left, top, right, bottom in boxes}) == 1, case
        for left, top, right, bottom in boxes:
            assert 0 <= left < right <= width, case
            assert 0 <= top < bottom <= height, case
            assert left % 8 == top % 8 == 0, case
        left, top, right, bottom = boxes[0]
        # The first is central: its margins differ by the rounding to 8 and an odd pixel at most.
        assert 0 <= (width - right) - left <= 16, case
        assert 0 <= (height - bottom) - top <= 16, case
        cropped = width // factor * factor, height // factor * factor
        if math.prod(cropped) >= max(limits["min_pixels"], 1):
            assert (right - left) % factor == (bottom - top) % factor == 0, case
            assert (right - left) * (bottom - top) <= limits["max_pixels"], case
        if len(boxes) > 1:
            assert math.prod(cropped) > limits["max_pixels"] or max(cropped) > 100 * min(cropped), case
            for x, y in itertools.product((0, 1), repeat=2):  # each quarter of the image is touched
                assert any(
                    left < (x + 1) * width / 2
                    and right > x * width / 2
                    and top < (y + 1) * height / 2
                    and bottom > y * height / 2
                    for left, top, right, bottom in boxes
                ), case


def test_views_are_the_same_every_time_and_fewer_are_the_first_ones():
    for width, height, limits, count, boxes in views_of_all():
        assert [view.box for view in native_views(width, height, **limits)][:count] == boxes


def test_large_views_are_large_and_shaped_like_the_image():
    for width, height, limits, _, boxes in views_of_all():
        left, top, right, bottom = boxes[0]
        if len(boxes) > 1 and max(width, height) < 20 * min(width, height):
            # one step of the grid on either side is the freedom that the multiples leave
            w, h, step = right - left, bottom - top, limits["factor"]
            aspect = (width - width % step) / (height - height % step)
            assert (w - step) / (h + step) <= aspect <= (w + step) / max(h - step, 1), (
                width,
                height,
                limits,
                boxes,
            )
            assert (w + step) * (h + step) > limits["max_pixels"], (width, height, limits, boxes)


def qwen_size(height, width, factor, min_pixels, max_pixels):
    """What smart_resize of transformers (models/qwen2_vl/image_processing_qwen2_vl.py) makes of an image's
    size."""
    assert max(height, width) <= 200 * min(height, width)  # or it raises
    sides = round(height / factor) * factor, round(width / factor) * factor
    scale = math.sqrt(height * width / max_pixels), math.sqrt(min_pixels / (height * width))
    if math.prod(sides) > max_pixels:
        return tuple(max(factor, math.floor(side / scale[0] / factor) * factor) for side in (height, width))
    if math.prod(sides) < min_pixels:
        return tuple(math.ceil(side * scale[1] / factor) * factor for side in (height, width))
    return sides


def test_qwens_processor_shrinks_no_view_and_leaves_large_ones_alone():
    for _, _, limits, _, boxes in views_of_all():
        left, top, right, bottom = boxes[0]
        height, width, factor = bottom - top, right - left, limits["factor"]
        seen_height, seen_width = qwen_size(height, width, **limits)
        assert seen_height >= height, (boxes, limits)
        assert seen_width >= width, (boxes, limits)
        if height % factor == width % factor == 0 and height * width >= limits["min_pixels"]:
            assert (seen_height, seen_width) == (height, width), (boxes, limits)


def test_an_image_that_fits_is_cropped_about_its_centre():
    # 1000 = 31·32 + 8 and 650 = 20·32 + 10: half of the rest, 4 and 5, rounded down to multiples of 8
    assert native_views(1000, 650, factor=32, min_pixels=1, max_pixels=1_000_000) == [View((0, 0, 992, 640))]
    # 1021 = 36·28 + 13 (6 → 0) and 1035 = 36·28 + 27 (13 → 8)
    assert native_views(1021, 1035, factor=28, min_pixels=1, max_pixels=2_000_000) == [
        View((0, 8, 1008, 1016))
    ]


def test_a_large_image_gets_its_centre_and_its_quarters():
    # 512² = 262144 pixels fit; the centres 1000, 500 and 1500 less 256, rounded down to multiples of 8
    views = native_views(2000, 2000, factor=32, min_pixels=1, max_pixels=262144)
    assert [view.box[:2] for view in views] == [
        (744, 744),
        (240, 240),
        (1240, 1240),
        (1240, 240),
        (240, 1240),
    ]
    assert views[0].box == (744, 744, 1256, 1256)


def test_a_strip_gets_its_middle_and_its_halves():
    # 32 rows and 100:1 at most make 3200x32; the centres 5008, 2504 and 7512 less 1600, the latter at most
    # 10016 − 3200
    assert native_views(10016, 32, factor=32, min_pixels=1, max_pixels=1_000_000) == [
        View((3408, 0, 6608, 32)),
        View((904, 0, 4104, 32)),
        View((5912, 0, 9112, 32)),
    ]


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((20, 30), (0, 0, 20, 30)),  # both sides below the factor, rounded up
        ((60, 60), (0, 0, 60, 60)),  # 60 is rounded up to 64
        ((80, 50), (8, 0, 72, 50)),  # 80 would be rounded down to 64; its rest of 16 is halved
    ],
)
def test_a_small_image_is_one_view(size, box):
    assert native_views(*size, factor=32, min_pixels=4097, max_pixels=1_000_000) == [View(box)]


def test_an_image_below_the_factor_needs_no_room_for_it():
    # a caller without a limit gives the image's own pixels, here fewer than one factor² (1024)
    assert native_views(20, 20, factor=32, min_pixels=1, max_pixels=400) == [View((0, 0, 20, 20))]


@pytest.mark.parametrize(
    "wrong", [{"width": 0}, {"factor": 0}, {"max_pixels": 1023}, {"max_views": 0}, {"max_views": 6}]
)
def test_impossible_limits(wrong):
    with pytest.raises(ValueError, match="correct the limits"):
        native_views(
            **{"width": 100, "height": 100, "factor": 32, "min_pixels": 1, "max_pixels": 1024, **wrong}
        )


# Inputs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in (
        "img10.png",
        "img2.JPG",
        "img1.jpeg",
        ".hidden.png",
        "notes.txt",
        "sub/deep.webp",
        "empty/notes.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["."], ["img1.jpeg", "img2.JPG", "img10.png"]),
        (["img*"], ["img1.jpeg", "img2.JPG", "img10.png"]),
        (["**/*.webp"], ["sub/deep.webp"]),
        (["**"], ["img1.jpeg", "img2.JPG", "img10.png", "sub/deep.webp"]),
        (["img10.png", "img*", "./img1.jpeg"], ["img10.png", "img1.jpeg", "img2.JPG"]),
        (
            ["img2.JPG", "sub/../img2.JPG", "missing.png", "notes.txt"],
            ["img2.JPG", "missing.png", "notes.txt"],
        ),
        ([], []),
    ],
)
def test_inputs_are_expanded(folder, items, expected):
    assert [str(path) for path in expand_inputs(items)] == expected


def test_a_file_named_like_a_pattern_is_a_file(folder):
    (folder / "a[1].png").touch()
    assert [str(path) for path in expand_inputs(["a[1].png"])] == ["a[1].png"]


@pytest.mark.parametrize("item", ["empty", "*.tiff", "no/such/*.png", "notes.*"])
def test_nothing_found_is_an_error(folder, item):
    with pytest.raises(ImageError) as caught:
        expand_inputs(["img2.JPG", item])
    assert str(caught.value).startswith(f"{item}: expected a folder or a pattern with image files")
    assert "found none; check the path" in str(caught.value)


# HEIC


def heic(path, image, **options):
    """`image` as pillow-heif encodes it: without loss unless `options` say otherwise."""
    pillow_heif = pytest.importorskip("pillow_heif")
    options = {"quality": -1, "chroma": 444, "matrix_coefficients": 0} | options
    pillow_heif.encode(image.mode, image.size, image.tobytes(), str(path), **options)
    return str(path)


@pytest.mark.parametrize("brand", [None, b"mif1"])
def test_heic_loads(tmp_path, photo, brand):
    path = Path(heic(tmp_path / "a.heic", photo))
    if brand:
        content = path.read_bytes()
        path.write_bytes(content[:8] + brand + content[12:])
    loaded = load_image(path)
    assert loaded.pixels.tobytes() == photo.tobytes()
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("orientation", "corner"),
    [(1, "top left"), (3, "bottom right"), (4, "bottom left"), (6, "top right"), (8, "bottom left")],
)
def test_heic_is_turned_once(tmp_path, orientation, corner):
    """The encoder writes the EXIF orientation and, as cameras do, the container's rotation beside it."""
    stored = Image.new("RGB", (64, 48), "black")
    stored.paste("white", (0, 0, 16, 16))
    exif = Image.Exif()
    exif[274] = orientation
    loaded = load_image(heic(tmp_path / "a.heic", stored, exif=exif.tobytes()))
    width, height = (48, 64) if orientation >= 5 else (64, 48)
    assert loaded.pixels.size == (width, height)
    vertical, horizontal = corner.split()
    x, y = 4 if horizontal == "left" else width - 5, 4 if vertical == "top" else height - 5
    assert loaded.pixels.getpixel((x, y))[0] > 128
    assert loaded.pixels.getpixel((width - 1 - x, height - 1 - y))[0] < 128


def test_10_bit_heic_spans_the_whole_range(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    samples = np.tile(np.arange(1024, dtype=np.uint16)[None, :, None], (64, 1, 3))  # every value of 10 bits
    content = (samples << 6).tobytes()  # the encoder takes 16 bits and keeps the upper 10
    path = str(tmp_path / "a.heic")
    pillow_heif.encode("RGB;16", (1024, 64), content, path, quality=-1, chroma=444, matrix_coefficients=0)
    loaded = load_image(path)
    row = np.asarray(loaded.pixels)[7, :, 0].astype(int)
    assert np.abs(row - np.arange(1024) * 255 / 1023).max() <= 1  # rounded or cut off
    assert loaded.warnings == ("The 10-bit samples were scaled to 8 bits.",)


def test_the_main_picture_of_a_heic_is_taken(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    file = pillow_heif.from_pillow(noise())
    file.add_from_pillow(noise(size=(96, 80)))
    file.save(str(tmp_path / "a.heic"), primary_index=1)
    loaded = load_image(tmp_path / "a.heic")
    assert loaded.pixels.size == (96, 80)
    assert loaded.warnings == ("Only the main one of the file's 2 pictures was taken.",)


def test_a_transparent_heic_needs_a_background(tmp_path):
    path = heic(tmp_path / "a.heic", half_transparent())
    assert "some are transparent" in refusal(path)
    assert load_image(path, background="white").warnings == (
        "The transparent pixels were composited onto white.",
    )


@pytest.mark.parametrize("kept", [12, 40, 400, 0.5, 0.98])
def test_part_of_a_heic(tmp_path, photo, kept):
    path = Path(heic(tmp_path / "a.heic", photo, quality=80))
    content = path.read_bytes()
    path.write_bytes(content[: kept if kept > 1 else int(kept * len(content))])
    assert "get an intact copy" in refusal(str(path))


def test_a_damaged_heic_is_refused_in_one_sentence_or_loads(tmp_path):
    path = Path(heic(tmp_path / "a.heic", noise(), quality=80))
    content, rng = path.read_bytes(), np.random.default_rng(0)
    refusals, loaded = [], 0
    for _ in range(200):
        damaged = bytearray(content)
        for at in rng.integers(12, len(content), size=3):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            load_image(path)
            loaded += 1
        except ImageError as error:
            refusals.append(str(error))
    assert loaded
    assert refusals
    assert all(line.startswith(f"{path}: expected ") and line.endswith(".") for line in refusals)


def test_a_huge_heic_is_refused_by_its_header(tmp_path):
    path = heic(tmp_path / "a.heic", noise())
    assert "at most 4095 pixels, but its header claims 64x64 = 4096" in refusal(path, max_pixels=4095)


def test_heic_is_named_where_it_cannot_be_read(tmp_path, monkeypatch):
    path = heic(tmp_path / "a.heic", noise())
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # importing it fails
    assert "this is a HEIC photograph; install pillow-heif or convert it to PNG" in refusal(path)


# Transparency


def test_transparent_pixels_are_composited_onto_the_background(saved):
    image = Image.new("RGBA", (40, 40), (100, 0, 0, 0))
    image.paste((0, 200, 0, 255), (0, 0, 20, 40))
    image.paste((0, 0, 0, 51), (20, 20, 40, 40))
    loaded = load_image(saved("a.png", image), background="#0000ff")
    assert loaded.pixels.getpixel((0, 0)) == (0, 200, 0)
    assert loaded.pixels.getpixel((30, 0)) == (0, 0, 255)
    assert loaded.pixels.getpixel((30, 30)) == (0, 0, 204)  # 51/255 black over blue: 0.8·255
    assert loaded.warnings == ("The transparent pixels were composited onto #0000ff.",)


def test_a_background_changes_no_opaque_picture(saved):
    path = saved("a.png", noise())
    assert load_image(path, background="white").pixels.tobytes() == noise().tobytes()
    with_alpha = noise()
    with_alpha.putalpha(255)
    assert load_image(saved("b.png", with_alpha), background="red").warnings == (
        "The transparency data was dropped: every pixel is opaque.",
    )


def test_a_pair_is_composited_alike(saved):
    paths = saved("a.png", half_transparent()), saved("b.png", half_transparent())
    with pytest.raises(ImageError, match="--background white"):
        load_pair(*paths)
    image, reference = load_pair(*paths, background="white")
    assert same_pixels(image, reference)


def test_a_16_bit_transparent_colour_is_refused_on_any_background(saved):
    path = saved("a.png", png(40, 40, 16, 2, b"\x80\x80" * 4800, extra=chunk(b"tRNS", b"\x80\x80" * 3)))
    assert "meant for at 8 bits first" in refusal(path, background="white")


# Files


def test_same_pixels_in_another_format_are_the_same(saved):
    assert same_pixels(*load_pair(saved("a.png", noise()), saved("b.bmp", noise())))
    other = noise()
    other.putpixel((3, 3), (1, 2, 3))
    assert not same_pixels(*load_pair(saved("a.png", noise()), saved("b.png", other)))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("photo.jpg", "photo.jpeg"), ("Photo.JPEG", "photo.jpeg"), ("ing_0001.png", "img_0001.png")],
)
def test_a_misspelt_name_is_answered_with_the_nearest(saved, tmp_path, wrong, right):
    saved("photo.jpeg", noise())
    saved("img_0001.png", noise())
    path = tmp_path / wrong
    assert f"did you mean {tmp_path / right}?" in refusal_of(path)
    with pytest.raises(ImageError, match="did you mean"):
        check_file(path)


def refusal_of(path):
    with pytest.raises(ImageError) as caught:
        load_image(path)
    return str(caught.value)


def test_nothing_is_suggested_where_nothing_is_near(saved, tmp_path):
    saved("notes.txt", b"")
    assert refusal_of(tmp_path / "sunset.png").endswith("there is no such file; check the path.")
    assert refusal_of(tmp_path / "no folder" / "sunset.png").endswith(
        "there is no such file; check the path."
    )


def test_a_file_that_is_there_passes_the_check_unread(saved, tmp_path):
    check_file(saved("a.png", b"no image"))
    with pytest.raises(ImageError, match="this is a folder"):
        check_file(tmp_path)


@pytest.mark.parametrize(
    "address",
    ["https://example.org/a.png", "HTTP://example.org/a.png", "s3://bucket/a.png", "gs://bucket/a.png"],
)
def test_an_address_on_a_network_is_said_to_be_one(address):
    for read in (
        lambda: expand_inputs([address]),
        lambda: load_image(address),
        lambda: load_image(Path(address)),
    ):
        with pytest.raises(ImageError) as caught:
            read()
        message = str(caught.value)
        assert message.startswith(f"{address}: expected a file, but this is an address on a network")
        assert "download it first and give the file's path" in message


def test_the_address_of_a_file_is_a_path(folder):
    (folder / "a b.png").touch()
    assert expand_inputs([(folder / "a b.png").as_uri()]) == [folder / "a b.png"]  # the space is %20 there


def test_what_a_folder_holds_besides_images_is_told(folder):
    for name in ("clip.mov", "clip2.MOV", "README"):
        (folder / name).touch()
    told = []
    expand_inputs([".", "*"], told.append)
    # *.png: one is a folder, one is hidden; sub, empty and folder.png are folders
    assert told == [
        (
            "./: 3 images; skipped 4 files: 2 .mov, 1 .txt, 1 without a suffix; subfolders are not searched"
            " (3): use './**/*'"
        ),
        "*: 3 images; skipped 4 files: 2 .mov, 1 .txt, 1 without a suffix",
    ]


def test_nothing_is_told_of_images_alone(saved, tmp_path):
    saved("a.png", noise())
    told = []
    expand_inputs([str(tmp_path), str(tmp_path / "a.png")], told.append)
    assert told == []


def test_a_folder_without_images_is_refused_with_what_it_holds(folder):
    with pytest.raises(ImageError, match=r"found none; check the path \(skipped 1 file: 1 .txt\)"):
        expand_inputs(["empty"])


# Signs of numbers that are not plain sRGB


def text_chunk_with_wrong_crc():
    return chunk(b"tEXt", b"a\0b")[:-4] + b"\0\0\0\0"


GREY_RAMP = bytes(range(64)) * 64


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (chunk(b"cICP", bytes([9, 16, 0, 1])), "its numbers are PQ"),
        (chunk(b"cICP", bytes([9, 18, 0, 1])), "its numbers are HLG"),
        (chunk(b"gAMA", struct.pack(">I", 100_000)), "a gamma of 1 (sRGB: about 0.45)"),
        (chunk(b"gAMA", struct.pack(">I", 45455)), None),
        (chunk(b"gAMA", struct.pack(">I", 100_000)) + chunk(b"sRGB", b"\0"), None),
        (chunk(b"cICP", bytes([1, 13, 0, 1])), None),
    ],
)
def test_a_png_that_says_its_numbers_are_not_srgbs_is_warned_of(saved, extra, said):
    told = [
        w
        for w in load_image(saved("a.png", png(64, 64, 8, 0, GREY_RAMP, extra=extra))).warnings
        if "sRGB" in w
    ]
    assert [said in line for line in told] == ([True] if said else [])


def test_a_profile_is_judged_by_what_it_does_not_by_its_name(saved):
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    at = profile.find(b"rTRC")
    offset, size = struct.unpack(">II", profile[at + 4 : at + 12])
    assert profile[offset : offset + 4] == b"para"
    profile[offset : offset + size] = (b"curv" + bytes(8)).ljust(size, b"\0")  # no entries: linear
    (line,) = load_image(saved("a.png", noise(), icc_profile=bytes(profile))).warnings
    assert "was not applied: the numbers are read as sRGB" in line


def test_a_cmyk_jpeg_without_adobes_marker_is_warned_of(saved):
    path = Path(saved("a.jpg", noise("CMYK")))
    assert not any("Adobe" in line for line in load_image(path).warnings)
    data = path.read_bytes()
    at = data.find(b"\xff\xee")
    path.write_bytes(data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4]) :])
    assert any("have no Adobe marker" in line for line in load_image(path).warnings)


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3)])
def test_12_bit_samples_in_16_bits_are_warned_of(saved, colour_type, channels):
    samples = np.random.default_rng(0).integers(0, 4096, (64, 64, channels))
    for scale, doubted in ((1, True), (16, False)):
        rows = (samples * scale).astype(">u2").tobytes()
        told = load_image(saved("a.png", png(64, 64, 16, colour_type, rows))).warnings
        assert any("12 bits or fewer" in line for line in told) == doubted


# Reasons


def test_the_reason_why_a_file_cannot_be_opened_is_its_readers(saved):
    wrong_crc = saved("a.png", png(64, 64, 8, 0, GREY_RAMP, extra=text_chunk_with_wrong_crc()))
    assert "cannot be opened (PNG: broken PNG file (bad header checksum in b'tEXt'))" in refusal_of(wrong_crc)


def test_a_link_to_nothing_is_called_so(tmp_path):
    (tmp_path / "x.png").symlink_to("gone.png")
    message = refusal_of(tmp_path / "x.png")
    assert "this is a link to gone.png, which is not there" in message
    assert "did you mean" not in message
