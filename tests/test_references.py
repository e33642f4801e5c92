"""What is noticed of a reference: pairs made here from two real photographs, whose truth is how they were
made."""

import numpy as np
import pytest
from conftest import DATA
from PIL import Image

from agentic_iqa_local.images.references import doubts
from agentic_iqa_local.studies.distortions import DISTORTIONS


@pytest.fixture(scope="module")
def photos():
    return [np.asarray(Image.open(DATA / name).convert("RGB")) for name in ("sumac.png", "prudential.png")]


def of(picture, reference):
    return doubts(*(Image.fromarray(np.ascontiguousarray(x)) for x in (picture, reference)))


def distorted(pixels, kind, severity):
    return DISTORTIONS[kind].apply(pixels, severity, np.random.default_rng(0))


def test_the_pristine_original_raises_no_doubt_whatever_was_done_to_the_picture(photos):
    cases = [
        (kind, severity, photos[number % 2]) for number, kind in enumerate(DISTORTIONS) for severity in (1, 5)
    ]
    assert [case[:2] for case in cases if of(distorted(case[2], *case[:2]), case[2])] == []


def test_another_photograph_is_noticed(photos):
    for other in (photos[1], photos[0][:, ::-1]):
        for kind in ("gaussian_blur", "white_noise", "jpeg", "darken"):
            (line,) = of(distorted(photos[0], kind, 3), other)
            assert "looks like another picture" in line


@pytest.mark.parametrize(("down", "right"), [(0, 1), (1, 0), (-8, 3)])
@pytest.mark.parametrize("kind", [None, "gaussian_blur", "white_noise", "contrast_decrease"])
def test_a_shifted_reference_is_noticed_and_measured(photos, down, right, kind):
    # What both show lies `down` and `right` further in the reference than in the picture.
    picture = photos[0][20:-20, 20:-20]
    reference = photos[0][20 - down : -20 - down, 20 - right : -20 - right]
    (line,) = of(distorted(picture, kind, 2) if kind else picture, reference)
    assert f"shifted by {right} pixels to the right and {down} pixels down against" in line


def test_where_nothing_can_be_told_no_doubt_is_raised(photos):
    assert of(*(photo[:127, :400] for photo in photos)) == []
    flat = np.full_like(photos[0], 90)
    assert of(flat, photos[0]) == of(photos[0], flat) == []
