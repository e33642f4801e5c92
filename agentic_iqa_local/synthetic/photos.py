"""Clean photographs of a folder, a fixed part of which is held out, and synthetic pictures of known quality
made of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from agentic_iqa_local.images.reading import load_image
from agentic_iqa_local.synthetic.distortions import Part, Sample, draw_sample
from agentic_iqa_local.synthetic.pseudo_mos import PseudoMos

PHOTO_SUFFIXES = (".png", ".webp", ".jpg", ".jpeg")
HELD_OUT = 40
SPLIT_SEED = 20261121
TEST_SEED = 7001
SAMPLES_PER_PHOTO = 10
SIDE = 512
# Pseudo-MOS from which a distortion of severity 1 does not count as seen; a clean photograph has 4.27.
BARELY_VISIBLE = 4.0
SEVERITY_WORDS = ("none", "slight", "moderate", "moderate", "severe", "extreme")  # of each severity 0..5


def photo_files(folder: Path) -> list[Path]:
    """The photographs in a folder, by name."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in PHOTO_SUFFIXES)


def split_photos(
    folder: Path, held_out: int = HELD_OUT, seed: int = SPLIT_SEED
) -> tuple[list[Path], list[Path]]:
    """(training files, held-out files), split by file with a committed seed."""
    files = photo_files(folder)
    if len(files) <= held_out:
        raise ValueError(
            f"{folder}: expected more than {held_out} photographs ({', '.join(PHOTO_SUFFIXES)}), got"
            f" {len(files)}"
        )
    order = np.random.default_rng(seed).permutation(len(files))
    return [files[i] for i in sorted(order[held_out:])], [files[i] for i in sorted(order[:held_out])]


def load_tiles(files: Sequence[Path]) -> list[np.ndarray]:
    """The photographs as uint8 tiles of 512×512.

    Those with more than 1024 pixels on their short side are first reduced to that by averaging areas, which
    removes what a camera's JPEG left. Raises ImageError for a file that is no such picture, ValueError for
    one that is too small.
    """
    tiles = []
    for file in files:
        photo = load_image(file).pixels
        short = min(photo.size)
        if short < SIDE:
            raise ValueError(
                f"{file}: expected at least {SIDE} pixels a side, got {photo.width}×{photo.height}"
            )
        if short > 2 * SIDE:
            scale = 2 * SIDE / short
            photo = photo.resize(
                (round(photo.width * scale), round(photo.height * scale)), Image.Resampling.BOX
            )
        pixels = np.asarray(photo)
        tiles += [
            np.ascontiguousarray(pixels[top : top + SIDE, left : left + SIDE])
            for top in range(0, pixels.shape[0] - SIDE + 1, SIDE)
            for left in range(0, pixels.shape[1] - SIDE + 1, SIDE)
        ]
    return tiles


@dataclass(frozen=True)
class Crop:
    """A crop of a distorted photograph, the same crop of the clean one, and the whole photograph's pseudo-MOS
    (1..5)."""

    sample: Sample
    clean: np.ndarray
    quality: float

    @property
    def visible_parts(self) -> tuple[Part, ...]:
        """The distortions that count as seen, the strongest first: all but a barely visible one of severity
        1."""
        seen = [part for part in self.sample.parts if part.severity > 1 or self.quality < BARELY_VISIBLE]
        return tuple(sorted(seen, key=lambda part: -part.severity))


def held_out_crops(
    photos: list[np.ndarray], per_photo: int = SAMPLES_PER_PHOTO, seed: int = TEST_SEED
) -> Iterator[Crop]:
    """`per_photo` samples of each photograph, one after another: 12 % clean, a third of the others with two
    distortions, severities uniform 1..5."""
    rng = np.random.default_rng(seed)
    measure = PseudoMos()
    for photo in photos:
        for _ in range(per_photo):
            sample = draw_sample(photo, rng)
            yield Crop(sample, photo, measure(sample.image, photo))
