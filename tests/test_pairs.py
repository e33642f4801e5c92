"""What is noticed of a reference: pairs made here from two real photographs, whose truth is how they were
made."""

import io

import numpy as np
import pytest
from conftest import DATA
from PIL import Image

from agentic_iqa_local.images.pairs import doubts
from agentic_iqa_local.synthetic.distortions import DISTORTIONS


@pytest.fixture(scope="module")
def photos():
    return [np.asarray(Image.open(DATA / name).convert("RGB")) for name in ("sumac.png", "prudential.png")]


def of(picture: np.ndarray, reference: np.ndarray) -> list[str]:
    return doubts(*(Image.fromarray(np.ascontiguousarray(x)) for x in (picture, reference)))


def through_jpeg(pixels: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer).convert("RGB"))


def halved_and_doubled(pixels: np.ndarray, method: Image.Resampling) -> np.ndarray:
    image = Image.fromarray(pixels)
    return np.asarray(
        image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX).resize(image.size, method)
    )


def test_the_pristine_original_raises_no_doubt_whatever_was_done_to_the_picture(photos):
    rng = np.random.default_rng(0)
    alarms = [
        (kind, severity)
        for number, (kind, distortion) in enumerate(DISTORTIONS.items())
        for severity in (1, 3, 5)
        if of(distortion.apply(photos[number % 2], severity, rng), photos[number % 2])
    ]
    assert len(alarms) <= 1, alarms  # of 75


@pytest.mark.parametrize("kind", ["gaussian_blur", "white_noise", "jpeg", "darken", "oversharpen"])
def test_another_photograph_is_noticed(photos, kind):
    picture = DISTORTIONS[kind].apply(photos[0], 3, np.random.default_rng(0))
    (line,) = of(picture, photos[1])
    assert line.startswith("the reference looks like another picture")


def test_a_mirrored_original_is_another_picture(photos):
    (line,) = of(photos[0], photos[0][:, ::-1])
    assert "turned, mirrored or scaled" in line


@pytest.mark.parametrize(
    ("down", "right", "words"),
    [
        (0, 1, "1 pixel to the right"),
        (0, -2, "2 pixels to the left"),
        (1, 0, "1 pixel down"),
        (-8, 3, "3 pixels to the right and 8 pixels up"),
    ],
)
@pytest.mark.parametrize(
    "kind", [None, "gaussian_blur", "motion_blur", "white_noise", "jpeg2000", "contrast_decrease"]
)
def test_a_shifted_reference_is_noticed_and_measured(photos, down, right, words, kind):
    # What both show lies `down` and `right` further in the reference than in the picture.
    picture, reference = (
        photos[0][20:-20, 20:-20],
        photos[0][20 - down : -20 - down, 20 - right : -20 - right],
    )
    if kind:
        picture = DISTORTIONS[kind].apply(picture, 2, np.random.default_rng(0))
    (line,) = of(picture, reference)
    assert f"shifted by {words} against the picture" in line
    assert "align the two first" in line


@pytest.mark.parametrize(
    "method", [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS]
)
def test_an_enlarged_reference_is_noticed(photos, method):
    rng = np.random.default_rng(0)
    for photo in photos:
        for kind in ("jpeg", "white_noise", "gaussian_blur", "darken"):
            lines = of(DISTORTIONS[kind].apply(photo, 2, rng), halved_and_doubled(photo, method))
            assert any("looks enlarged" in line for line in lines), (kind, lines)


def test_a_compressed_reference_is_noticed_and_a_fine_jpeg_is_not(photos):
    for photo in photos:
        (line,) = of(DISTORTIONS["darken"].apply(photo, 3, np.random.default_rng(0)), through_jpeg(photo, 20))
        assert "8×8 blocks of JPEG compression" in line
        assert of(through_jpeg(photo, 30), through_jpeg(photo, 95)) == []


@pytest.mark.parametrize(
    "kind", ["jpeg", "gaussian_blur", "defocus_blur", "upscale", "white_noise", "impulse_noise"]
)
def test_a_swapped_pair_is_noticed(photos, kind):
    for photo in photos:
        distorted = DISTORTIONS[kind].apply(photo, 3, np.random.default_rng(0))
        assert any("may be swapped" in line or "looks enlarged" in line for line in of(photo, distorted))


@pytest.mark.parametrize("size", [(127, 400), (40, 40)])
def test_pictures_too_small_to_tell_raise_no_doubt(photos, size):
    width, height = size
    assert of(photos[0][:height, :width], photos[1][:height, :width]) == []


def test_flat_pictures_raise_no_doubt(photos):
    flat = np.full_like(photos[0], 90)
    assert of(flat, photos[0]) == of(photos[0], flat) == of(flat, flat) == []


def test_only_the_middle_of_a_large_picture_is_looked_at(photos):
    large = np.tile(photos[0], (3, 3, 1))
    outside = large.copy()
    # 1536 pixels: the middle begins at 384
    outside[:300], outside[-300:], outside[:, :300], outside[:, -300:] = (
        0,
        0,
        0,
        0,
    )
    assert of(large, outside) == []
