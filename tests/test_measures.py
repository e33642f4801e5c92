"""Measures of pixels on pictures whose answer is known by construction, and what is said of a photograph by them."""

import math

import numpy as np
import pytest
from PIL import Image, ImageFilter
from scipy import ndimage

from agentic_iqa_local.iqa_tools.blurred_part import NONE, blurred_part
from agentic_iqa_local.iqa_tools.detector import load_detector, load_measures, logit
from agentic_iqa_local.iqa_tools.local_nr import standing_out
from agentic_iqa_local.iqa_tools.measures import EDGE, EVEN, FEWEST, measured, shown
from agentic_iqa_local.state import (
    DISTORTION_TYPES,
    Detection,
    ExecutorOutput,
    FamilyDetection,
    in_words,
)

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (128, 160, 3), dtype=np.uint8)


def grey(rows: np.ndarray) -> np.ndarray:
    """A picture of 128 columns whose rows have these values."""
    return np.repeat(np.repeat(rows.astype(np.uint8)[:, None], 128, 1)[..., None], 3, 2)


def said_of(pixels: np.ndarray) -> set[str]:
    """The families that the measures alone would make evidence of."""
    nothing = dict.fromkeys(DISTORTION_TYPES, -1.0)
    leads = {"lead of Noise": 0.0, "lead of Compression": 0.0}
    least = -logit(load_detector().no_reference.prior)
    ratios = load_measures().with_measures(nothing, measured(pixels) | leads, least)
    return {kind for kind, ratio in ratios.items() if ratio > least}


@pytest.mark.parametrize("side", [2, 3, 8])
def test_enlarged_pixels_differ_only_at_their_edges(side):
    blocks = NOISE.repeat(side, 0).repeat(side, 1)[:128, :160]
    assert measured(blocks)["pixelation"] == pytest.approx(-np.log(EVEN))  # no change but at edges
    assert measured(NOISE)["pixelation"] < 0.2


def test_a_step_is_sharp_and_a_ramp_is_not():
    """Within EDGE pixels a step is all of the contrast, one of EDGE − 1 equal steps so much of it."""
    stripes = measured(grey(200 * (np.arange(128) // 16 % 2)))
    assert stripes["sharpest"] == pytest.approx(1, abs=1e-5)
    ramp = measured(grey(5 * (np.arange(128) % 51)[:128]))
    assert ramp["softest"] == pytest.approx(1 / (EDGE - 1), rel=0.05)


def test_shares_of_clipped_pixels_and_the_white_point():
    half_white = measured(grey(np.where(np.arange(128) < 64, 255, 102)))
    assert half_white["clipped"] == pytest.approx(math.log(0.5 + FEWEST))
    assert half_white["white point"] == 1
    assert half_white["middle"] in (pytest.approx(0.4), pytest.approx(0.7), pytest.approx(1))
    assert half_white["black point"] == pytest.approx(0.4)
    assert "50 %" in shown("blown out", half_white)


def test_a_cast_colours_white_and_leaves_black():
    """Greys of which blue is halved: white is (255, 255, 127), and a line through all is black at 0."""
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None], 256, 0)
    cast = measured(np.stack([ramp, ramp, ramp // 2], -1))
    assert cast["white green"] == pytest.approx(255 - (255 + 127) / 2, abs=1)
    assert cast["white range"] == pytest.approx(math.log1p(128), rel=0.01)
    assert cast["one hue"] == pytest.approx(1, abs=0.01)
    assert cast["chroma at black"] == pytest.approx(0, abs=0.7)  # within half a step of rounding
    assert measured(np.stack([ramp] * 3, -1))["white chroma"] == pytest.approx(0, abs=1e-3)


def test_a_strong_cast_is_found(photo):
    cast = np.clip(np.asarray(photo) + np.array([30.0, -40, 30]), 0, 255).astype(np.uint8)
    assert "Color distortions" in said_of(cast)


def test_the_part_without_detail_is_where_it_was_made():
    """Noise, but for a rectangle of a third of each side, whose cells have no detail at all."""
    noise = RNG.normal(128, 40, (384, 384))
    noise[128:256, 200:328] = 128
    part = blurred_part(noise)
    assert (part["part x"], part["part y"]) == pytest.approx((264 / 384, 192 / 384), abs=0.02)
    assert part["step of detail"] > 3
    assert blurred_part(noise[:100, :100]) == NONE


def test_a_blurred_ninth_is_found_and_shallow_focus_is_none(photo):
    sharp = np.asarray(photo, np.float32)
    soft = np.asarray(photo.filter(ImageFilter.GaussianBlur(4)), np.float32)
    rows, columns = (side // 3 for side in sharp.shape[:2])
    mask = np.zeros(sharp.shape[:2])
    mask[rows : 2 * rows, columns : 2 * columns] = 1
    mixed = np.rint(mask[..., None] * soft + (1 - mask[..., None]) * sharp).astype(np.uint8)
    assert "Blurs" in said_of(mixed)
    around = ndimage.gaussian_filter(1 - mask, 12)[..., None]
    shallow = np.rint(around * soft + (1 - around) * sharp).astype(np.uint8)
    assert "Blurs" not in said_of(shallow)


@pytest.mark.parametrize(
    ("factor", "side", "family"),
    [(1.9, "blown out", "Brightness change"), (0.5, "too dark", "Brightness change")],
)
def test_a_wrong_exposure_is_told_from_contrast(photo, factor, side, family):
    pixels = np.clip(np.asarray(photo) * factor, 0, 255).astype(np.uint8)
    assert said_of(pixels) == {family}
    p = load_measures().measurements["tones"].probabilities(measured(pixels))
    assert max(p, key=p.__getitem__) == side


def test_a_photograph_and_its_mosaic(photo):
    assert said_of(np.asarray(photo)) == set()
    small = photo.reduce(8)
    mosaic = small.resize((8 * small.width, 8 * small.height), Image.Resampling.NEAREST)
    assert said_of(np.asarray(mosaic)) >= {"Compression"}
    told = ExecutorOutput(detection={"Global": Detection(pixelation=0.9)})
    assert in_words(told, "Global", "Compression") == "pixelation"


@pytest.mark.parametrize(
    ("shown", "words"), [("white has a colour", "colour cast"), (None, "colour distortion")]
)
def test_a_cast_that_the_pixels_show_is_called_one(shown, words):
    families = {"Color distortions": FamilyDetection(probability=0.9, shown=shown)}
    told = ExecutorOutput(detection={"Global": Detection(families=families)})
    assert in_words(told, "Global", "Color distortions") == words


def test_a_part_that_stands_out_has_a_place():
    cells = np.zeros((9, 9), np.float32)
    cells[4:6, 3:5] = 3
    assert standing_out(cells) == (3, "middle")
    assert standing_out(np.full((2, 2), 3.0)) == (0, "middle")
