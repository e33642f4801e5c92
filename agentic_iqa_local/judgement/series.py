"""Files that belong together as one picture: exposure brackets and panoramas, by what the camera
wrote and how the frames overlap, and focus stacks, by where each frame is sharp."""

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import ExifTags

from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.reading import own_exif
from agentic_iqa_local.judgement import ordering
from agentic_iqa_local.judgement.burst import FLOOR, offset

Series = Literal["exposure bracket", "focus stack", "panorama"]

LEAST_STEP, MOST_UNEVEN = 0.3, 1.7  # EV between frames of a bracket; the largest step by the least
SAME_EXPOSURE = 0.2  # EV
AT_ONCE, BEFORE_NEXT = 4.0, 15.0  # seconds between frames of a bracket, and of a panorama
BRACKETED = 0.45  # share of the bits by which frames of a bracket may differ
OVERLAP = 0.2, 0.9  # shares of a frame that the next one of a panorama shows too
ALIKE = 0.6  # correlation of what two frames both show
CLEARLY, PART = 0.5, 0.15  # a frame is sharpest by so much (in logs of energy) in so many cells
FEWEST_FRAMES = 3


@dataclass(frozen=True)
class Shot:
    """How a frame was taken."""

    camera: str
    time: float  # seconds
    ev: float  # exposure: larger lets less light in


def read_shot(file: Path) -> Shot | None:
    """What the camera wrote of a frame; None where it did not write its time and exposure."""
    try:
        known = own_exif(file)
    except (ImageError, OSError, ValueError, SyntaxError, TypeError, ArithmeticError, LookupError):
        return None
    with suppress(ValueError, TypeError, ArithmeticError, LookupError):
        taken = datetime.strptime(str(known[ExifTags.Base.DateTimeOriginal]), "%Y:%m:%d %H:%M:%S")
        fraction = float(f"0.{str(known.get(ExifTags.Base.SubsecTimeOriginal) or 0).strip()}")
        speed = _number(known[ExifTags.Base.ISOSpeedRatings])
        stop, seconds = (
            _number(known[tag]) for tag in (ExifTags.Base.FNumber, ExifTags.Base.ExposureTime)
        )
        ev = math.log2(stop**2 / seconds) - math.log2(speed / 100)
        camera = f"{known.get(ExifTags.Base.Make)} {known.get(ExifTags.Base.Model)}"
        return Shot(camera, taken.timestamp() + fraction, ev)
    return None


def _number(value: object) -> float:
    first = value[0] if isinstance(value, tuple) else value
    return float(first)  # pyright: ignore[reportArgumentType] what Pillow read may be anything


def linked(
    shots: Sequence[Shot | None],
    fingerprints: Sequence[np.ndarray],
    luma_of: Callable[[int], np.ndarray],
) -> list[tuple[int, int]]:
    """Pairs of frames that follow each other in a bracket or a panorama, by their numbers.

    Args:
        shots: How each was taken.
        fingerprints: Their perceptual hashes.
        luma_of: Gives a frame's luma, H×W uint8, by its number.
    """
    taken = [(shot.time, number, shot) for number, shot in enumerate(shots) if shot]
    taken.sort(key=lambda one: one[:2])
    pairs = []
    for (_, i, one), (_, j, other) in itertools.pairwise(taken):
        distance = ordering.scene_distance(fingerprints[i], fingerprints[j])
        follows = _may_be_panorama(one, other, distance) and overlaps(luma_of(i), luma_of(j))
        if follows or _may_be_bracket(one, other, distance):
            pairs.append((i, j))
    return pairs


def _may_be_bracket(one: Shot, other: Shot, distance: float) -> bool:
    near = one.camera == other.camera and other.time - one.time <= AT_ONCE
    return near and abs(one.ev - other.ev) >= LEAST_STEP and distance <= BRACKETED


def _may_be_panorama(one: Shot, other: Shot, distance: float) -> bool:
    near = one.camera == other.camera and other.time - one.time <= BEFORE_NEXT
    return near and abs(one.ev - other.ev) <= SAME_EXPOSURE and distance > ordering.MOST_DIFFERENT


def overlaps(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether one frame shows a part of the other, moved along a side."""
    if one.shape != other.shape:
        return False
    # a correlation by Fourier transforms does not tell a move from one the other way round
    moves = zip(offset(one, other), one.shape, strict=True)
    ways = [(move, move - size if move > 0 else move + size) for move, size in moves]
    return any(_alike(one, other, y, x) for y, x in itertools.product(*ways))


def _alike(one: np.ndarray, other: np.ndarray, y: int, x: int) -> bool:
    """Whether one frame, moved by y rows and x columns, shows what the other does."""
    height, width = one.shape
    shared = max(0, 1 - abs(y) / height) * max(0, 1 - abs(x) / width)
    if not OVERLAP[0] <= shared <= OVERLAP[1]:
        return False
    part = one[max(0, -y) : height - max(0, y), max(0, -x) : width - max(0, x)]
    same = other[max(0, y) : height - max(0, -y), max(0, x) : width - max(0, -x)]
    with np.errstate(invalid="ignore"):  # of parts of one colour, which show nothing
        return bool(np.corrcoef(part.ravel(), same.ravel())[0, 1] >= ALIKE)


def series_of(
    shots: Sequence[Shot | None], same_scene: bool, energies: np.ndarray | None
) -> Series | None:
    """What the frames of a group are together; None for frames of which one is to be chosen.

    Args:
        shots: How each was taken.
        same_scene: Whether all are near-duplicates.
        energies: frames×cells, the detail in each cell without its noise; None if they do not align.
    """
    exposures = [shot.ev for shot in shots if shot]
    if _are_steps(exposures, len(shots)):
        return "exposure bracket"
    if not same_scene:
        return "panorama"
    even = not exposures or max(exposures) - min(exposures) <= SAME_EXPOSURE
    return "focus stack" if even and _focus_moves(energies) else None


def _are_steps(exposures: list[float], count: int) -> bool:
    """Whether the exposures of all frames stand in regular steps."""
    if len(exposures) < max(count, FEWEST_FRAMES):
        return False
    steps = np.diff(sorted(exposures))
    if steps.min() < LEAST_STEP:
        return False
    return bool(steps.max() <= MOST_UNEVEN * steps.min())


def _focus_moves(energies: np.ndarray | None) -> bool:
    """Whether three frames or more are each the sharpest of all in a part of the picture."""
    if energies is None or len(energies) < FEWEST_FRAMES:
        return False
    logs = np.log(energies + FLOOR)
    second = np.sort(logs, axis=0)[-2]
    detailed = logs.max(0) >= np.median(logs.max(0))
    clearly = (logs >= second + CLEARLY) & detailed
    shares = clearly.sum(1) / detailed.sum()
    return int((shares >= PART).sum()) >= FEWEST_FRAMES
