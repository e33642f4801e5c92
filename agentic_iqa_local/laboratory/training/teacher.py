"""What the vision tower learns from: the features of the tool LocalNR's encoder, pretrained on ImageNet, over
the whole pool.

Of each cell of 64×64 pixels the means and deviations of the encoder's maps at five depths and two scales,
reduced to their first principal components. They are computed once, a picture in about 0.15 seconds on one
core.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentic_iqa_local.iqa_tools.local_nr import LocalNR
from agentic_iqa_local.laboratory.training.data import CELL, SHARD, Pool

logger = logging.getLogger(__name__)

COMPONENTS = 128


def encoder(network: LocalNR) -> Callable[[np.ndarray], np.ndarray]:
    """LocalNR's: a picture (H×W×3 uint8) → (H/64)×(W/64)×features."""

    @torch.inference_mode()
    def encode(picture: np.ndarray) -> np.ndarray:
        return network.encode(network.pixels(picture))[0].cpu().numpy()

    return encode


def kept(file: Path, encode: Callable[[np.ndarray], np.ndarray] | None, pictures: np.ndarray) -> np.ndarray:
    """The features of pictures, N×rows×columns×features float16, memory mapped from `file`, which is made
    where it is not there."""
    if not file.exists():
        if encode is None:
            raise ValueError(f"{file}: expected the features of all pictures there, or what computes them")
        partial = file.with_suffix(".partial.npy")
        np.save(partial, np.stack([encode(picture) for picture in pictures]).astype(np.float16))
        partial.replace(file)
        logger.info("teacher: %s made", file.name)
    return np.load(file, mmap_mode="r")


class Cells:
    """The features of crops, of unit variance. `encode` is as `encoder` returns; None where `folder` holds
    all of them."""

    def __init__(self, pool: Pool, folder: Path, encode: Callable[[np.ndarray], np.ndarray] | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.shards = [
            kept(folder / f"cells_{n:03d}.npy", encode, pictures) for n, pictures in enumerate(pool.pictures)
        ]
        basis = folder / "basis.npz"
        if not basis.exists():
            sample = np.concatenate([s[::8].reshape(-1, s.shape[-1]) for s in self.shards])
            parts: dict[str, Any] = _principal_components(sample)
            np.savez(basis, **parts)
        self.basis = dict(np.load(basis))

    def __call__(
        self, index: int, height: int, width: int, top: int, left: int, mirrored: bool
    ) -> np.ndarray:
        """(height/64)×(width/64)×COMPONENTS, float32, of the crop of pool row `index` at `top`, `left`."""
        rows, columns = (
            slice(top // CELL, (top + height) // CELL),
            slice(left // CELL, (left + width) // CELL),
        )
        cells = self.shards[index // SHARD][index % SHARD, rows, columns].astype(np.float32)
        cells = cells[:, ::-1] if mirrored else cells
        return ((cells - self.basis["mean"]) / self.basis["deviation"] @ self.basis["components"]).astype(
            np.float32
        )


def _principal_components(features: np.ndarray) -> dict[str, np.ndarray]:
    features = features.astype(np.float32)
    mean, deviation = features.mean(0), features.std(0) + 1e-3
    normalised = (features - mean) / deviation
    variance, vectors = np.linalg.eigh(normalised.T @ normalised / len(normalised))
    kept = slice(-1, -COMPONENTS - 1, -1)
    return {"mean": mean, "deviation": deviation, "components": vectors[:, kept] / np.sqrt(variance[kept])}
