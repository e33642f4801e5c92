"""Photographs on disk → a pool of distorted photographs with their pseudo-MOS, made once: the metrics are too
slow to run inside training."""

import json
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance

from agentic_iqa_local.synthetic.distortions import (
    Part,
    distort,
    draw_camera_parts,
    draw_local_part,
    draw_parts,
)
from agentic_iqa_local.synthetic.photos import SIDE, load_tiles

logger = logging.getLogger(__name__)

VARIED_SIDE = 384
KERNELS = (Image.Resampling.BOX, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS)
SHARD = 100
LOCAL_SHARE, CAMERA_SHARE = 0.2, 0.2  # of the pool: one distortion in one quarter; several mild ones at once


def vary(tile: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A clean picture like `tile` but not it: another scale, frame, gamma, saturation and white balance, all
    still natural.

    Without it a model learns a few hundred photographs by heart, and with them what each should look like.
    H×W×3 uint8 → 384×384×3.
    """
    kernel = KERNELS[int(rng.integers(len(KERNELS)))]
    side = int(rng.integers(VARIED_SIDE, tile.shape[0] + 1))
    picture = Image.fromarray(tile).resize((side, side), kernel)
    top, left = rng.integers(0, side - VARIED_SIDE + 1, size=2)
    picture = picture.crop((left, top, left + VARIED_SIDE, top + VARIED_SIDE))
    picture = ImageEnhance.Color(picture).enhance(rng.uniform(0.8, 1.2))
    picture = ImageEnhance.Contrast(picture).enhance(rng.uniform(0.92, 1.08))
    gains = rng.uniform(0.95, 1.05, size=3)
    pixels = 255 * (np.asarray(picture, np.float32) / 255) ** rng.uniform(0.85, 1.18) * gains
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def parts_of(row: dict) -> tuple[Part, ...]:
    """What was done to the picture of a pool's row."""
    return tuple(Part(**part) for part in row["parts"])


@dataclass(frozen=True)
class Pool:
    """N distorted photographs with their clean originals, memory mapped in shards, and what was done to
    each."""

    pictures: list[np.ndarray]
    clean: list[np.ndarray]
    rows: list[dict]


def _make_shard(number: int, folder: Path, varied: bool, seed: int, count: int = SHARD) -> int:
    from agentic_iqa_local.synthetic.pseudo_mos import PseudoMos

    torch.set_num_threads(1)
    tiles, measure = np.load(folder / "tiles.npy", mmap_mode="r"), PseudoMos()
    side = VARIED_SIDE if varied else SIDE
    pictures, clean = np.empty((2, count, side, side, 3), np.uint8)
    rows = []
    for i in range(count):
        rng = np.random.default_rng([seed, 9, number * SHARD + i])
        tile = np.asarray(tiles[rng.integers(len(tiles))])
        clean[i] = vary(tile, rng) if varied else tile
        drawn = rng.random()
        if drawn < LOCAL_SHARE:
            parts = draw_local_part(rng)
        else:
            parts = draw_camera_parts(rng) if drawn < LOCAL_SHARE + CAMERA_SHARE else draw_parts(rng)
        pictures[i] = distort(clean[i], parts, rng).image
        rows.append(
            {"quality": round(measure(pictures[i], clean[i]), 4), "parts": [asdict(p) for p in parts]}
        )
    np.save(folder / f"pictures_{number:03d}.npy", pictures)
    np.save(folder / f"clean_{number:03d}.npy", clean)
    partial = folder / f"rows_{number:03d}.partial"
    partial.write_text(json.dumps(rows))
    partial.replace(folder / f"rows_{number:03d}.json")  # its presence says that the shard is whole
    return number


def build_pool(files: Sequence[Path], folder: Path, plain: int, varied: int, seed: int, workers: int) -> Pool:
    """Makes what is missing of `plain` distorted 512×512 photographs and `varied` ones of 384×384 in
    `folder`, and opens them.

    A third of a second each and worker.
    """
    if plain % SHARD or varied % SHARD:
        raise ValueError(
            f"the pool is made in shards of {SHARD}: expected multiples of it, got {plain} and {varied}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tiles.npy").exists():
        np.save(folder / "tiles.partial.npy", np.stack(load_tiles(files)))
        (folder / "tiles.partial.npy").replace(folder / "tiles.npy")
    numbers = range((plain + varied) // SHARD)
    missing = [n for n in numbers if not (folder / f"rows_{n:03d}.json").exists()]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as executor:
        made = [executor.submit(_make_shard, n, folder, n >= plain // SHARD, seed) for n in missing]
        for done, future in enumerate(as_completed(made), start=1):
            logger.info("pool: shard %d made, %d of %d", future.result(), done, len(missing))
    return open_pool(folder, numbers)


def open_pool(folder: Path, numbers: Iterable[int]) -> Pool:
    """The pool of the shards `numbers`, which must be from 0 on."""
    numbers = list(numbers)
    return Pool(
        pictures=[np.load(folder / f"pictures_{n:03d}.npy", mmap_mode="r") for n in numbers],
        clean=[np.load(folder / f"clean_{n:03d}.npy", mmap_mode="r") for n in numbers],
        rows=[row for n in numbers for row in json.loads((folder / f"rows_{n:03d}.json").read_text())],
    )
