"""Bands and frames are left out and said; pictures of one colour are refused; photographs stay whole."""

import tracemalloc
from io import BytesIO

import numpy as np
import pytest
from conftest import DATA
from PIL import Image, ImageOps

from agentic_iqa_local import assess
from agentic_iqa_local.images.frames import content_box, without_frames
from agentic_iqa_local.images.reading import load_pair


@pytest.fixture(scope="module")
def small(photo):
    return photo.crop((128, 96, 384, 288))  # 256×192


def framed(picture, left=0, top=0, right=0, bottom=0, colour="black"):
    return ImageOps.expand(picture, (left, top, right, bottom), colour)


def reopened(picture, form, quality):
    picture.save(file := BytesIO(), form, quality=quality)
    return Image.open(file).convert("RGB")


@pytest.mark.parametrize(
    ("margins", "colour", "form", "quality"),
    [
        ((0, 96, 0, 96), "black", "PNG", None),
        ((48, 0, 30, 0), "#101010", "JPEG", 85),
        ((20, 20, 20, 40), "white", "WEBP", 75),
        ((0, 0, 0, 14), "red", "JPEG", 85),
    ],
)
def test_a_frame_is_found_to_a_few_pixels(small, margins, colour, form, quality):
    box = content_box(reopened(framed(small, *margins, colour), form, quality))
    assert (
        np.abs(np.subtract(box, (margins[0], margins[1], margins[0] + 256, margins[1] + 192))).max()
        <= 2
    )


def test_frames_within_frames_are_found(small):
    inner = framed(small, 30, 30, 30, 30, "white")
    assert content_box(framed(inner, 20, 20, 20, 20, "grey")) == (50, 50, 306, 242)


def test_a_photograph_is_not_trimmed(small):
    night = np.asarray(small).copy()
    for column in range(256):  # a skyline ends raggedly
        night[: 60 + (37 * column) % 41, column] = 0
    soft = np.asarray(framed(small, 0, 64, 0, 0, "white"), np.float32)
    soft[64:128] += (255 - soft[64:128]) * np.linspace(1, 0, 64)[:, None, None]
    too_little = framed(small.crop((0, 0, 60, 60)), 100, 100, 100, 100)
    photographs = [
        Image.open(DATA / name).convert("RGB") for name in ("sumac.png", "prudential.png")
    ]
    for picture in (
        *photographs,
        Image.fromarray(night),
        Image.fromarray(soft.astype(np.uint8)),
        too_little,
    ):
        assert content_box(picture) == (0, 0, *picture.size)


def test_a_framed_picture_is_judged_as_the_photograph_in_it(photo, services):
    alone, banded = (
        assess(picture, map=True, services=services)
        for picture in (photo, framed(photo, 0, 200, 0, 56))
    )
    assert banded.q == alone.q
    assert (
        "a frame of one colour was left out, and the 512×512 pixels in it judged" in banded.warnings
    )
    (view,) = banded.seen.views
    assert view.box == (0, 200, 512, 712)
    assert banded.map.q == alone.map.q
    assert (banded.map.xs, banded.map.ys) == (alone.map.xs, [y + 200 for y in alone.map.ys])


def test_a_reference_decides_what_is_a_frame(small, tmp_path):
    lacking = np.asarray(small).copy()
    lacking[96:] = 0
    framed(Image.fromarray(lacking), 0, 64, 0, 64).save(tmp_path / "a.png")
    framed(small, 0, 64, 0, 64).save(tmp_path / "b.png")
    image, reference = without_frames(*load_pair(tmp_path / "a.png", tmp_path / "b.png"))
    assert image.pixels.size == (256, 192)
    assert image.offset == (0, 64)
    assert reference.pixels.tobytes() == small.tobytes()


@pytest.mark.parametrize("colour", ["black", "#808080", "white"])
def test_a_picture_of_one_colour_fails_with_the_reason(colour, small, tmp_path, services):
    Image.new("RGB", (256, 192), colour).save(tmp_path / "a.jpg")
    for images in ([tmp_path / "a.jpg"], [small, tmp_path / "a.jpg"]):
        row = assess(*images, services=services)
        assert f"{tmp_path}/a.jpg: nothing to judge, the picture is one colour" in row.error


@pytest.mark.parametrize("kind", ["one colour", "gradient", "bands", "photograph"])
def test_frames_are_looked_for_in_little_memory(kind, photo):
    """One byte a pixel is the luma. What is made of a part of the picture beside it does not grow with its height."""
    width, height = 400, 5000
    picture = Image.new("RGB", (width, height), "teal")
    if kind == "gradient":
        picture = Image.linear_gradient("L").resize((width, height)).convert("RGB")
    elif kind == "bands":
        picture.paste(photo.resize((width, height - 2000)), (0, 1000))
    elif kind == "photograph":
        picture = photo.resize((width, height))
    tracemalloc.start()
    content_box(picture)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most / (width * height) < 1.5
