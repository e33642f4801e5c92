"""Photographs on disk → batches of distorted crops. Every batch follows from (seed, phase, step) alone, so training resumes exactly."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from agentic_iqa_local.training.distortions import Sample, draw_sample
from agentic_iqa_local.training.embedded import FACTOR

PHOTO_SUFFIXES = (".png", ".webp", ".jpg", ".jpeg")
HELD_OUT = 40
SPLIT_SEED = 20261121


def split_photos(folder: Path, held_out: int = HELD_OUT, seed: int = SPLIT_SEED) -> tuple[list[Path], list[Path]]:
    """(training files, held-out files), split by file with a committed seed."""
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in PHOTO_SUFFIXES)
    if len(files) <= held_out:
        raise ValueError(f"{folder}: expected more than {held_out} photographs ({', '.join(PHOTO_SUFFIXES)}), got {len(files)}")
    order = np.random.default_rng(seed).permutation(len(files))
    return [files[i] for i in sorted(order[held_out:])], [files[i] for i in sorted(order[:held_out])]


def load_photos(files: list[Path]) -> list[np.ndarray]:
    """The photographs as uint8 H×W×3."""
    return [np.asarray(Image.open(f).convert("RGB")) for f in files]


@dataclass(frozen=True)
class Crop:
    """A distorted crop and the clean crop it was made from."""

    sample: Sample
    clean: np.ndarray


def _crop(photo: np.ndarray, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    top, left = (int(rng.integers(0, limit + 1)) for limit in (photo.shape[0] - height, photo.shape[1] - width))
    crop = photo[top : top + height, left : left + width]
    return np.ascontiguousarray(crop[:, ::-1] if rng.random() < 0.5 else crop)


def draw_crops(photos: list[np.ndarray], tokens: int, sides: tuple[int, ...], rng: np.random.Generator) -> list[Crop]:
    """Crops of one random size (so that they stack), as many as `tokens` image tokens allow."""
    height, width = (FACTOR * int(rng.choice(sides)) for _ in range(2))
    count = max(1, tokens // (height * width // FACTOR**2))
    crops = []
    for index in rng.integers(len(photos), size=count):
        clean = _crop(photos[index], height, width, rng)
        crops.append(Crop(draw_sample(clean, rng), clean))
    return crops


def level_targets(severities: np.ndarray, width: float) -> np.ndarray:
    """N severities 0..5 → N×5 probabilities of the letters A..E: a Gaussian of `width` levels around 5 − 0.8·severity."""
    centre = 5 - 0.8 * severities[:, None]
    weight = np.exp(-0.5 * ((np.arange(5, 0, -1)[None] - centre) / width) ** 2)
    return weight / weight.sum(1, keepdims=True)


def pixel_values(images: list[np.ndarray], processor) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches and grids as the processor makes them, without any resizing."""
    out = processor.image_processor(images=images, do_resize=False, return_tensors="pt", input_data_format="channels_last")
    return out["pixel_values"], out["image_grid_thw"]
