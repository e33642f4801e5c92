"""Where a picture differs from its reference: the maps that SSIM, GMSD and FSIM are made of.

Each is a map of similarities, 1 where nothing was lost, computed as pyiqa does. It returns their pooled
scores alone, so that the last steps stand here: the mean of SSIM's map, the standard deviation of GMSD's and
the weighted mean of FSIM's are pyiqa's own scores.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pyiqa.archs.fsim_arch import _phase_congruency, gradient_map, similarity_map
from pyiqa.archs.func_util import preprocess_rgb
from pyiqa.archs.ssim_arch import ssim
from pyiqa.utils.color_util import rgb2yiq, to_y_channel
from torch.nn.functional import avg_pool2d, conv2d

MAPS = ("SSIM", "GMSD", "FSIM")


@dataclass(frozen=True)
class SimilarityMap:
    """A metric's map, rows×columns float32 of similarities of about 0..1, which covers the whole picture but
    for a few pixels of its edge; `weights` of the same shape where its score is a weighted mean."""

    values: np.ndarray
    weights: np.ndarray | None = None

    def cell_means(self, xs: Sequence[int], ys: Sequence[int]) -> np.ndarray:
        """rows×columns float64: the mean between each two edges, which are in pixels of the picture and go
        from 0 to its sides."""
        rows, columns = (
            list(itertools.pairwise(round(edge * length / edges[-1]) for edge in edges))
            for edges, length in zip((ys, xs), self.values.shape, strict=True)
        )
        return np.array(
            [[self.values[slice(*row), slice(*column)].mean() for column in columns] for row in rows], float
        )


def similarity_maps(picture: torch.Tensor, reference: torch.Tensor) -> dict[str, SimilarityMap]:
    """The maps of 1×3×H×W pictures in 0..1, by the metric's name. Raises RuntimeError for pictures that are
    too small."""
    return {name: make(picture, reference) for name, make in zip(MAPS, (_ssim, _gmsd, _fsim), strict=True)}


def _ssim(picture: torch.Tensor, reference: torch.Tensor) -> SimilarityMap:
    """Wang et al., IEEE TIP 13(4), 2004, equation 13 at each place (pyiqa: float64, luma)."""
    lumas = [preprocess_rgb(x, True, 255).double() for x in (picture, reference)]
    values = ssim(*lumas, data_range=255, get_ssim_map=True)
    assert isinstance(values, torch.Tensor)  # a pair with other options
    return SimilarityMap(_plain(values))


def _gmsd(picture: torch.Tensor, reference: torch.Tensor) -> SimilarityMap:
    """Xue et al., IEEE TIP 23(2), 2014, equation 4: gradients by Prewitt's filter at half the resolution."""
    prewitt = torch.tensor([[1.0, 0.0, -1.0]] * 3).to(picture) / 3
    kernels = torch.stack([prewitt, prewitt.T])[:, None]

    def gradient(x: torch.Tensor) -> torch.Tensor:
        halved = avg_pool2d(to_y_channel(x, 255), 2)
        return (conv2d(halved, kernels, padding=1).square().sum(1, keepdim=True) + 1e-12).sqrt()

    return SimilarityMap(_plain(similarity_map(gradient(picture), gradient(reference), 170.0)))


def _fsim(picture: torch.Tensor, reference: torch.Tensor) -> SimilarityMap:
    """Zhang et al., IEEE TIP 20(8), 2011, equations 4 to 10 (FSIMc), with their constants."""
    step = max(1, round(min(picture.shape[-2:]) / 256))
    one, other = (rgb2yiq(avg_pool2d(x * 255, step)) for x in (picture, reference))
    scharr = torch.tensor([[[-3.0, 0.0, 3.0], [-10.0, 0.0, 10.0], [-3.0, 0.0, 3.0]]]).to(picture) / 16
    kernels = torch.stack([scharr, scharr.transpose(-1, -2)])
    congruency = [_phase_congruency(x[:, :1]) for x in (one, other)]
    gradients = [gradient_map(x[:, :1], kernels) for x in (one, other)]
    chroma = similarity_map(one[:, 1:2], other[:, 1:2], 200) * similarity_map(one[:, 2:], other[:, 2:], 200)
    similarity = similarity_map(congruency[0], congruency[1], 0.85) * chroma.abs() ** 0.03
    similarity = similarity * similarity_map(gradients[0], gradients[1], 160)
    return SimilarityMap(_plain(similarity), _plain(torch.maximum(*congruency)))


def _plain(values: torch.Tensor) -> np.ndarray:
    return values[0, 0].float().cpu().numpy()
