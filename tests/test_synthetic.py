"""Synthetic distortions of photographs: what is done to them, and their pseudo-MOS."""

import numpy as np
import pytest
from distortions import DISTORTIONS, KINDS_BY_FAMILY, Part, distort
from PIL import Image
from synthetic import PseudoMos, load_tiles, split_photos

from agentic_iqa_local.state import DISTORTION_TYPES


@pytest.fixture(scope="module")
def pixels(photo):
    return np.asarray(photo)[:256, :256]


def test_all_seven_families_have_kinds():
    assert set(KINDS_BY_FAMILY) == set(DISTORTION_TYPES)
    assert all(KINDS_BY_FAMILY.values())


@pytest.mark.parametrize("kind", DISTORTIONS)
def test_a_higher_severity_departs_further_from_the_original(kind, pixels):
    """Root mean square error rises with severity; the seed is the same, so that angles and signs are."""
    errors = []
    for severity in range(1, 6):
        distorted = DISTORTIONS[kind].apply(pixels, severity, np.random.default_rng(0))
        assert (distorted.shape, distorted.dtype) == (pixels.shape, np.uint8)
        errors.append(np.sqrt(np.mean((distorted.astype(float) - pixels) ** 2)))
    assert errors == sorted(errors)
    assert errors[0] > 1


def test_pairs_are_applied_in_the_order_of_a_camera(pixels):
    """Blur, then noise, then compression: noise after blur keeps its high frequencies."""
    blur, noise = Part("gaussian_blur", 5), Part("white_noise", 2)
    one, other = (
        distort(pixels, parts, np.random.default_rng(3)) for parts in ((blur, noise), (noise, blur))
    )
    assert np.array_equal(one.image, other.image)


def test_the_pseudo_mos_falls_with_severity(photo):
    clean = np.asarray(photo)[:256, :256]
    measure = PseudoMos()
    # On a clean picture FSIM = VSI = 1 and GMSD = NLPD = 0; through the maps of configs/tool_maps.yaml:
    # FSIM 265.7031·(½ − 1/(1 + e^(23.294·(1−1.2003)))) + 1.9193 + 133.0061 = 4.55
    # GMSD −5.9925·(½ − 1/(1 + e^(−23.3876·59.6895))) + 1.0789 = 4.075
    # VSI 8·(½ − 1/(1 + e^(77.987697·(1−1.0181689)))) + 6.8997142 − 0.25390505 = 4.21
    # NLPD −8·(½ − 1/(1 + e^(4.1268039·0.15537285))) + 5.4919541 = 4.25
    assert measure(clean, clean) == pytest.approx((4.55 + 4.075 + 4.21 + 4.25) / 4, abs=0.02)
    for kind in ("gaussian_blur", "white_noise", "darken"):
        scores = [
            measure(DISTORTIONS[kind].apply(clean, s, np.random.default_rng(0)), clean)
            for s in (1, 3, 5)
        ]
        assert scores == sorted(scores, reverse=True)


def test_photographs_are_split_by_file_and_cut_into_tiles(tmp_path):
    for i, size in enumerate([(512, 512)] * 5 + [(1100, 600), (3000, 2200)]):
        Image.new("RGB", size, (i, i, i)).save(tmp_path / f"{i}.png")
    training, held_out = split_photos(tmp_path, held_out=2)
    assert len(held_out) == 2
    assert not set(training) & set(held_out)
    with pytest.raises(ValueError, match="more than 7"):
        split_photos(tmp_path, held_out=7)
    # 1100×600 holds two tiles; 3000×2200 is reduced to 1396×1024 and holds 2×2.
    assert len(load_tiles(sorted(tmp_path.iterdir()))) == 5 + 2 + 4
