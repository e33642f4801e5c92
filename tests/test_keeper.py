"""Which frame of a burst to keep, and what is kept whole."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image
from scipy.ndimage import gaussian_filter

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.judgement import burst, series
from agentic_iqa_local.judgement.comparison import Candidate, Judge
from agentic_iqa_local.judgement.keeper import groups
from agentic_iqa_local.judgement.ordering import fingerprint
from agentic_iqa_local.result import Assessment

PHOTO = np.asarray(Image.open(ROOT / "tests" / "data" / "prudential.png").convert("RGB"))


def frame(top: int = 0, left: int = 0, side: int = 440) -> np.ndarray:
    return PHOTO[top : top + side, left : left + side]


def blurred(pixels: np.ndarray, sigma: float) -> np.ndarray:
    return gaussian_filter(pixels, (sigma, sigma, 0))


def noisy(pixels: np.ndarray, sigma: float) -> np.ndarray:
    rng = np.random.default_rng(7)
    return np.clip(pixels + rng.normal(0, sigma, pixels.shape), 0, 255).astype(np.uint8)


def found(folder: Path, frames: dict[str, np.ndarray], exif: dict[str, Image.Exif] | None = None):
    """The groups of frames that all have the same q."""
    candidates = []
    for number, (name, pixels) in enumerate(frames.items()):
        image, file = Image.fromarray(pixels), folder / f"{name}.png"
        image.save(file, exif=(exif or {}).get(name, Image.Exif()))
        row = Assessment(image=name, query="", final_answer="B", fusion=None)
        seen, draws = fingerprint(image), np.zeros(1)
        candidates.append(Candidate(number, row, seen, draws, file))
    return list(groups(Judge(load_settings(), None), candidates))


def test_the_sharp_frame_is_kept_in_whatever_place_and_the_reason_names_the_others(tmp_path):
    frames = {
        "shaken": blurred(frame(8, 3), 1.5),
        "dark": (frame(2, 9) * 0.55).astype(np.uint8),
        "sharp": frame(5, 5),
        "noisy": noisy(frame(0, 4), 12),
    }
    (group,) = found(tmp_path, frames)
    assert group.verdict == "keep"
    assert group.best is not None
    assert group.best.image == "sharp"
    for other in ("shaken", "dark", "noisy"):
        assert other in (group.reason or "")
    assert group.to_dict()["best"] == "sharp"


def test_a_background_out_of_focus_is_no_fault(tmp_path):
    """Everything but the middle is blurred; one frame's middle is out of focus, another's
    background is sharper."""
    sharp, far = frame(4, 4), blurred(frame(4, 4), 5)
    middle = np.zeros((440, 440, 1))
    middle[150:300, 150:300] = 1
    portrait = (middle * sharp + (1 - middle) * far).astype(np.uint8)
    nearer = (middle * blurred(sharp, 2) + (1 - middle) * blurred(sharp, 3.5)).astype(np.uint8)
    (group,) = found(tmp_path, {"nearer": nearer, "portrait": portrait})
    assert group.order[0].assessment.image == "portrait"


def test_the_same_frame_twice_is_undecided(tmp_path):
    (group,) = found(tmp_path, {"a": frame(), "b": frame(), "other": blurred(frame(), 3)})
    assert (group.verdict, group.best) == ("undecided", None)
    assert group.undecided == ["a", "b"]
    assert group.probability == pytest.approx(0.5, abs=0.01)


def test_frames_are_laid_over_each_other_to_the_pixel():
    luma = np.asarray(Image.fromarray(PHOTO).convert("L"))
    for down, right in itertools.product((-11, 0, 30), (-7, 25)):
        one, other = luma[60:460, 60:460], luma[60 - down : 460 - down, 60 - right : 460 - right]
        assert burst.offset(one, other) == (down, right)


# What is kept whole


def taken(second: int, seconds: float, frame_number: float = 0) -> Image.Exif:
    """What a camera writes."""
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "Maker", "Camera"
    inside = exif.get_ifd(0x8769)
    inside[0x9003], inside[0x9291] = f"2026:11:28 10:00:{second:02}", "000"
    inside[0x829A], inside[0x829D], inside[0x8827] = seconds, 8.0, 100
    return exif


def test_a_bracket_a_focus_stack_and_a_panorama_are_kept_whole(tmp_path):
    exposures = {"under": 0.5, "middle": 0.8, "over": 1.2}
    frames = {
        name: np.clip(frame() * gain, 0, 255).astype(np.uint8) for name, gain in exposures.items()
    }
    times = {"under": 1 / 400, "middle": 1 / 100, "over": 1 / 25}
    exif = {name: taken(i, seconds) for i, (name, seconds) in enumerate(times.items())}
    (bracket,) = found(tmp_path, frames, exif)
    assert (bracket.verdict, bracket.series, bracket.best) == (
        "kept whole",
        "exposure bracket",
        None,
    )

    stack = {}
    for i in range(3):
        near = np.zeros((440, 440, 1))
        near[:, 147 * i : 147 * (i + 1)] = 1
        stack[f"focus{i}"] = (near * frame() + (1 - near) * blurred(frame(), 3)).astype(np.uint8)
    (focus,) = found(tmp_path, stack)
    assert (focus.verdict, focus.series) == ("kept whole", "focus stack")

    wide = np.asarray(Image.fromarray(PHOTO).resize((1024, 512), Image.Resampling.BICUBIC))
    turns = {f"turn{i}": wide[:, 256 * i : 256 * i + 512] for i in range(3)}
    exif = {name: taken(10 + i, 1 / 100) for i, name in enumerate(turns)}
    (panorama,) = found(tmp_path, turns, exif)
    assert (panorama.verdict, panorama.series) == ("kept whole", "panorama")
    assert len(found(tmp_path, turns)) == 3  # without EXIF they are pictures of their own


def test_what_a_camera_writes_may_be_anything(tmp_path):
    file = tmp_path / "odd.png"
    odd = taken(0, 0.0)
    Image.fromarray(frame()).save(file, exif=odd)
    assert series.read_shot(file) is None
    Image.fromarray(frame()).save(file, exif=taken(0, 1 / 100))
    shot = series.read_shot(file)
    assert shot is not None
    assert shot.ev == pytest.approx(np.log2(8.0**2 * 100))  # APEX: Av + Tv at ISO 100
