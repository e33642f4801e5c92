"""Which frame of a burst to keep: frames of one scene are aligned and compared cell by cell, where
the group is sharpest.

Sharpness counts in the cells that are sharpest in the group as a whole, so that a background out of
focus is no fault (the blocks of Bahrami and Kot, IEEE SPL 2014); noise is what the quietest cells
still hold. A Bradley-Terry model of the differences says how probable it is that a frame is the
best of its group; configs/bursts.json has its weights (scripts/training/bursts.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

import numpy as np
from PIL import Image
from pydantic import Field
from scipy.ndimage import gaussian_filter

from agentic_iqa_local.files import ROOT, read_json, read_record
from agentic_iqa_local.iqa_tools.specs import FileRecord

SHIPPED = ROOT / "configs" / "bursts.json"
MOST_PIXELS = 2_000_000  # of a frame; a larger one is reduced by a whole number
THUMBNAIL = 512  # pixels of the long side on which frames are aligned
FARTHEST = 0.2  # of a side: frames that lie farther apart are not compared cell by cell
CELL = 32  # pixels
FINE, COARSE = 0.7, 1.8  # deviations of the Gaussians whose difference is the detail, in pixels
SHARPEST, QUIETEST = 0.15, 0.1  # shares of the cells that tell sharpness and noise
STEADY = 0.1  # stops of the mean luma by which frames of one exposure differ
MUCH = 0.4  # of the log-odds
FLOOR = 0.05  # squared steps of 255: detail or noise below it says no more

# By measure that speaks for a frame, what a reader is told of it and the others
WORDS = {
    "sharpness": "{others} {be} less sharp where the scene is sharpest",
    "noise": "{others} {has} more noise",
    "darkness": "{others} {be} darker than the rest",
    "brightness": "{others} {be} brighter than the rest",
    "blocks": "{others} {be} more compressed",
    "q": "its q is higher than that of {others}",
}


class BurstFit(FileRecord):
    """The weight of each measure's difference in the log-odds that a frame is the better one."""

    weights: dict[str, float] = Field(min_length=1)
    groups: int  # that it was learned from
    source: str
    date: str


@cache
def load_fit() -> BurstFit:
    """The weights that ship. Raises FileError."""
    return read_record(SHIPPED, BurstFit, read_json)


@dataclass(frozen=True)
class Frame:
    """One frame, as it is compared."""

    luma: np.ndarray  # H×W uint8
    blocks: float  # see `blockiness`

    @classmethod
    def of(cls, image: Image.Image) -> "Frame":
        """The frame of an upright RGB picture."""
        luma = image.convert("L")
        blocks = blockiness(np.asarray(luma, np.float32))
        factor = int(np.ceil((luma.width * luma.height / MOST_PIXELS) ** 0.5))
        return cls(np.asarray(luma.reduce(factor)), blocks)


def blockiness(luma: np.ndarray) -> float:
    """By how much more neighbours differ across the edges of 8×8 blocks than elsewhere, as a
    logarithm, about 0 without blocks; the mean over both directions (Wang, Bovik and Evans, ICIP
    2000), wherever the grid of blocks begins."""
    found = []
    for axis in (0, 1):
        profile = np.abs(np.diff(luma, axis=axis)).mean(1 - axis)
        phases = np.array([profile[phase::8].mean() for phase in range(8)]) + FLOOR
        found.append(np.log(phases.max() / np.median(phases)))
    return float(np.mean(found))


@dataclass(frozen=True)
class Compared:
    """Aligned frames: `measures` of each, and `energies`, frames×cells, their detail without noise."""

    measures: list[dict[str, float]]
    energies: np.ndarray


def compared(frames: Sequence[Frame]) -> Compared | None:
    """The frames of a group, laid over each other; None where that cannot be done (other sizes, or
    another part of the scene)."""
    lumas = _aligned([frame.luma for frame in frames])
    if lumas is None:
        return None
    means = np.array([luma.mean() + 1 for luma in lumas])
    energies = np.array([_energies(luma, mean) for luma, mean in zip(lumas, means, strict=True)])
    quiet, sharp = _cells_that_tell(energies)
    noise = energies[:, quiet].mean(1)
    detail = np.maximum(energies - noise[:, None], 0)
    sharpness = np.log(detail[:, sharp].mean(1) + FLOOR) / 2
    measures = []
    for i, frame in enumerate(frames):
        one = {"sharpness": sharpness[i], "noise": np.log(noise[i] + FLOOR) / 2}
        stops = np.log2(means[i] / np.median(means))
        one |= {"darkness": max(-stops - STEADY, 0), "brightness": max(stops - STEADY, 0)}
        one |= {"blocks": frame.blocks}
        measures.append({name: float(value) for name, value in one.items()})
    return Compared(measures, detail)


def _aligned(lumas: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The part of each frame that all show, laid over each other to the pixel, float32; None where
    there is none."""
    if len({luma.shape for luma in lumas}) > 1:
        return None
    moves = np.array([offset(lumas[0], luma) for luma in lumas])  # frames × (down, right)
    size = np.array(lumas[0].shape)
    if (np.abs(moves) > FARTHEST * size).any():
        return None
    first = -moves.min(0)  # of the rows and columns of the first frame that all show
    shared = size - moves.max(0) - first
    if shared.min() < 4 * CELL:
        return None
    parts = []
    for luma, move in zip(lumas, moves, strict=True):
        top, left = first + move
        parts.append(luma[top : top + shared[0], left : left + shared[1]].astype(np.float32))
    return parts


def offset(one: np.ndarray, other: np.ndarray) -> tuple[int, int]:
    """Where the scene of one frame lies in another of the same size: rows down and columns right,
    by phase correlation (Kuglin and Hines, 1975)."""
    factor = max(1, max(one.shape) // THUMBNAIL)
    small = [_thumbnail(luma, factor) for luma in (one, other)]
    if np.array_equal(small[0], small[1]):
        return 0, 0
    spectrum = np.fft.rfft2(small[1]) * np.conj(np.fft.rfft2(small[0]))
    surface = np.fft.irfft2(spectrum / np.maximum(np.abs(spectrum), 1e-9), small[0].shape)
    surface = gaussian_filter(surface, 1, mode="wrap")
    peak = np.unravel_index(int(surface.argmax()), surface.shape)
    sizes = small[0].shape
    moved = [
        int(at) - size if at > size // 2 else int(at) for at, size in zip(peak, sizes, strict=True)
    ]
    return moved[0] * factor, moved[1] * factor


def _thumbnail(luma: np.ndarray, factor: int) -> np.ndarray:
    """A reduced frame with faded edges, without its mean."""
    small = np.asarray(Image.fromarray(luma).reduce(factor), np.float32)
    fade = np.outer(np.hanning(small.shape[0]), np.hanning(small.shape[1]))
    return (small - small.mean()) * fade


def _energies(luma: np.ndarray, mean: float) -> np.ndarray:
    """The mean squared detail of each cell, in steps of a picture of middle brightness."""
    even = luma * (128 / mean)
    detail = gaussian_filter(even, FINE) - gaussian_filter(even, COARSE)
    rows, columns = luma.shape[0] // CELL, luma.shape[1] // CELL
    whole = detail[: rows * CELL, : columns * CELL] ** 2
    return whole.reshape(rows, CELL, columns, CELL).mean((1, 3)).ravel()


def _cells_that_tell(energies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the quietest cells and of those that are sharpest in the group as a whole."""
    order = np.log(energies + FLOOR).mean(0).argsort()
    quietest = max(1, round(QUIETEST * len(order)))
    sharpest = max(1, round(SHARPEST * len(order)))
    return order[:quietest], order[-sharpest:]


def strengths(measures: Sequence[Mapping[str, float]], weights: Mapping[str, float]) -> np.ndarray:
    """The log-odds of each frame up to a constant, (frames,)."""
    return np.array([sum(w * one[name] for name, w in weights.items()) for one in measures])


def chances(strength: np.ndarray) -> np.ndarray:
    """The probability of each frame that it is the best of all (Plackett, 1975; Luce, 1959)."""
    odds = np.exp(strength - strength.max())
    return odds / odds.sum()


def why(
    best: Mapping[str, float], other: Mapping[str, float], weights: Mapping[str, float]
) -> str | None:
    """The measure that speaks most for `best` against another frame, q only where no other says
    much; None where none does."""
    parts = {name: weight * (best[name] - other[name]) for name, weight in weights.items()}
    seen = {name: part for name, part in parts.items() if name != "q" and part > MUCH}
    name = max(seen or parts, key=parts.__getitem__)
    return name if parts[name] > 0 else None


def said(name: str, others: Sequence[str]) -> str:
    """In words that a measure speaks for a frame against others."""
    names = [PurePath(other).name for other in others]
    listed = ", ".join([*names[:-2], " and ".join(names[-2:])])
    has, be = ("has", "is") if len(others) == 1 else ("have", "are")
    return WORDS[name].format(others=listed, has=has, be=be)
