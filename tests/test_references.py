"""What is noticed of a reference: pairs made here from two real photographs, whose truth is how they were
made."""

import io

import numpy as np
import pytest
from conftest import DATA
from distortions import DISTORTIONS
from PIL import Image

from agentic_iqa_local.images.references import doubts


@pytest.fixture(scope="module")
def photos():
    return [
        np.asarray(Image.open(DATA / name).convert("RGB"))
        for name in ("sumac.png", "prudential.png")
    ]


def of(picture, reference):
    return doubts(*(Image.fromarray(np.ascontiguousarray(x)) for x in (picture, reference)))


def distorted(pixels, kind, severity):
    return DISTORTIONS[kind].apply(pixels, severity, np.random.default_rng(0))


def through_jpeg(pixels, quality):
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "JPEG", quality=quality)
    return np.asarray(Image.open(buffer).convert("RGB"))


def test_a_pristine_original_raises_no_doubt(photos):
    cases = [(kind, severity) for kind in DISTORTIONS for severity in (1, 3, 5)]
    photo = [photos[number % 2][96:352, 96:352] for number in range(len(cases))]
    alarms = [
        case for case, one in zip(cases, photo, strict=True) if of(distorted(one, *case), one)
    ]
    assert len(alarms) <= 1, alarms  # of 75


def test_another_photograph_is_noticed(photos):
    for other in (photos[1], photos[0][:, ::-1]):
        for kind in ("gaussian_blur", "white_noise", "jpeg", "darken"):
            (line,) = of(distorted(photos[0], kind, 3), other)
            assert "looks like another picture" in line


@pytest.mark.parametrize(
    ("down", "right", "words"),
    [(0, 1, "1 px to the right and 0 px down"), (-8, 3, "3 px to the right and -8 px down")],
)
@pytest.mark.parametrize("kind", ["motion_blur", "white_noise"])
def test_a_shifted_reference_is_noticed_and_measured(photos, down, right, words, kind):
    # What both show lies `down` and `right` further in the reference than in the picture.
    picture, reference = (
        photos[0][20:-20, 20:-20],
        photos[0][20 - down : -20 - down, 20 - right : -20 - right],
    )
    (line,) = of(distorted(picture, kind, 2), reference)
    assert f"shifted against the picture, by {words}" in line


def test_a_compressed_reference_is_noticed_a_fine_jpeg_not(photos):
    for photo in photos:
        (line,) = of(distorted(photo, "darken", 3), through_jpeg(photo, 20))
        assert "8×8 blocks of JPEG compression" in line
        assert of(through_jpeg(photo, 30), through_jpeg(photo, 95)) == []


@pytest.mark.parametrize("kind", ["upscale", "white_noise"])
def test_a_swapped_pair_is_noticed(photos, kind):
    for photo in photos:
        lines = of(photo, distorted(photo, kind, 3))
        assert any("may be swapped" in line for line in lines)


def test_where_nothing_can_be_told_no_doubt_is_raised(photos):
    for size in ((127, 400), (40, 40)):
        assert of(*(photo[: size[1], : size[0]] for photo in photos)) == []
    flat = np.full_like(photos[0], 90)
    assert of(flat, photos[0]) == of(photos[0], flat) == of(flat, flat) == []
    outside = (
        large := np.tile(photos[0], (3, 3, 1))
    ).copy()  # 1536 pixels: the middle begins at 384
    outside[:300] = outside[-300:] = outside[:, :300] = outside[:, -300:] = 0
    assert of(large, outside) == []
