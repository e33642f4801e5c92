"""LocalNR: this project's own no-reference quality tool, trained without human scores. It is no published
metric, so its figures are ours.

EfficientNet-lite0 (Tan and Le, ICML 2019; ImageNet weights, Apache-2.0), frozen, describes each place of a
picture by the mean and the deviation of its features at five depths, at the picture's own resolution and at
half of it. One hidden layer makes of their pooled statistics the quality, the family and the severity;
another makes of a single place how strong each family is there. Both learned from synthetic distortions of
clean photographs whose quality four full-reference metrics gave (scripts/train_local_nr.py,
docs/local_nr.md); no human score was used. Knows nothing of pyiqa, of maps to 1..5 or of models that answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, gelu

from agentic_iqa_local.levels import DISTORTION_TYPES, EVERYWHERE, PLACES

WEIGHTS = Path(__file__).parent / "data" / "local_nr.safetensors"
ENCODER = "tf_efficientnet_lite0"
CELL = 64  # pixels a side, about: a picture is divided into round(side / CELL) rows and columns of equal size
SCALES = 2
CHANNELS = 16 + 24 + 40 + 112 + 320  # of the five depths, strides 2 to 32
STATISTICS = 2 * SCALES * CHANNELS
FAMILIES = (*DISTORTION_TYPES, "none")
SMALLEST = 0.02  # a deviation below it counts as none: added before the logarithm
FARTHEST = 6.0  # standard deviations from the training's mean; what lies beyond says no more
QUALITY, SEVERITY = 3.0, 2.0  # the middle of each scale, around which the outputs lie
# Damage is of one quarter where that quarter's lead over the second is more than LOCAL_LEAD of its severity,
# and this is at least LOCAL_SEVERITY. It is everywhere where it is not, unless the picture is clean with at
# least CLEAN.
LOCAL_LEAD, LOCAL_SEVERITY, CLEAN = 0.5, 0.6, 0.3


@dataclass(frozen=True)
class Examination:
    """What LocalNR says of a picture.

    `quality` 1..5; `families` the probability of each of FAMILIES to be the strongest distortion's ("none":
    clean); `severity` of the strongest, 0 (none) to 5; `places` by family a rows×columns float32 array of its
    severity there, 0..5: cell (r, c) covers the pixels from r·height/rows to (r + 1)·height/rows and from
    c·width/columns to (c + 1)·width/columns.
    """

    quality: float
    families: dict[str, float]
    severity: float
    places: dict[str, np.ndarray]

    def damaged_part(self) -> str | None:
        """Where the damage lies: one of PLACES, by the family whose strength differs most between them, or
        EVERYWHERE; None where none is seen."""
        if min(next(iter(self.places.values())).shape) > 1:
            quarters = np.array([quarter_means(severity) for severity in self.places.values()])
            second, first = np.sort(quarters)[:, -2:].T
            family = (first - second).argmax()
            if first[family] >= LOCAL_SEVERITY and first[family] - second[family] > LOCAL_LEAD * (
                first[family] + 0.1
            ):
                return list(PLACES)[quarters[family].argmax()]
        return EVERYWHERE if self.families["none"] < CLEAN else None


def quarter_means(severity: np.ndarray) -> list[float]:
    """The means of a rows×columns map, two or more of each, over the quarters in the order of PLACES; a
    middle row or column belongs to none."""
    rows, columns = ((slice(0, side // 2), slice((side + 1) // 2, side)) for side in severity.shape)
    return [float(severity[rows[row], columns[column]].mean()) for row, column in PLACES.values()]


class LocalNR(nn.Module):
    """The network. `picture_width` and `place_width` are the hidden layers' sizes. It is built without
    weights: `load` reads them."""

    def __init__(self, picture_width: int, place_width: int):
        super().__init__()
        self.encoder = timm.create_model(ENCODER, pretrained=False, features_only=True)
        self.picture = _Head(picture_width, 1 + len(FAMILIES) + 1)
        self.place = _Head(place_width, len(DISTORTION_TYPES))

    @classmethod
    def load(cls, path: Path = WEIGHTS, device: str = "cpu") -> LocalNR:
        """The network with the weights of a safetensors file, in float32, ready to measure."""
        weights = load_file(path)
        with torch.device("meta"):  # nothing is drawn from torch's generator, which is the whole process's
            network = cls(len(weights["picture.hidden.bias"]), len(weights["place.hidden.bias"]))
        network.load_state_dict(weights, assign=True)
        network.float().to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's overloads lack it
        return network.eval().requires_grad_(False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """B×3×H×W in 0..1 → B qualities in 1..5."""
        return self._quality(self.picture(pooled(self.encode(pixels))))

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """B×3×H×W in 0..1 → B×rows×columns×STATISTICS: of each scale the mean of each channel and its
        deviation in the cell."""
        rows, columns = (max(1, round(side / CELL)) for side in pixels.shape[2:])
        statistics = []
        for picture in (pixels, avg_pool2d(pixels, SCALES)):
            depths = self.encoder((2 * picture - 1).contiguous(memory_format=torch.channels_last))
            mean = torch.cat([adaptive_avg_pool2d(depth, (rows, columns)) for depth in depths], 1)
            square = torch.cat([adaptive_avg_pool2d(depth.square(), (rows, columns)) for depth in depths], 1)
            statistics += [mean, (square - mean.square()).clamp_min(0).sqrt()]
        return torch.cat(statistics, 1).permute(0, 2, 3, 1)

    def pixels(self, image: Image.Image | np.ndarray) -> torch.Tensor:
        """An RGB picture, as an image or H×W×3 uint8 → 1×3×H×W in 0..1 on the network's device."""
        device = self.picture.hidden.weight.device
        return torch.from_numpy(np.array(image)).to(device).permute(2, 0, 1)[None].float() / 255

    @torch.inference_mode()
    def examine(self, image: Image.Image) -> Examination:
        """All that the network says of an RGB picture of 64 pixels a side or more."""
        cells = self.encode(self.pixels(image))
        outputs = self.picture(pooled(cells))
        families = outputs[0, 1:-1].softmax(-1).tolist()
        places = self.place(per_cell(cells))[0].clamp(0, 5).cpu().numpy()
        return Examination(
            quality=self._quality(outputs).item(),
            families=dict(zip(FAMILIES, families, strict=True)),
            severity=(outputs[0, -1] + SEVERITY).clamp(0, 5).item(),
            places={family: places[..., i] for i, family in enumerate(DISTORTION_TYPES)},
        )

    def quality(self, image: Image.Image) -> float:
        """Quality of an RGB picture, 1..5."""
        return self.examine(image).quality

    @staticmethod
    def _quality(outputs: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] + QUALITY).clamp(1, 5)


class _Head(nn.Module):
    """One hidden layer on standardised statistics; `centre` and `scale` are the training's mean and
    deviation."""

    centre: torch.Tensor
    scale: torch.Tensor

    def __init__(self, width: int, outputs: int):
        super().__init__()
        self.register_buffer("centre", torch.zeros(STATISTICS))
        self.register_buffer("scale", torch.ones(STATISTICS))
        self.hidden, self.out = nn.Linear(STATISTICS, width), nn.Linear(width, outputs)

    def forward(self, statistics: torch.Tensor) -> torch.Tensor:
        standard = ((statistics - self.centre) / self.scale).clamp(-FARTHEST, FARTHEST)
        return self.out(gelu(self.hidden(standard)))


def _parts(cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and deviations of cells, each ...×SCALES·CHANNELS."""
    parts = cells.unflatten(-1, (SCALES, 2, CHANNELS))
    return parts[..., 0, :].flatten(-2), parts[..., 1, :].flatten(-2)


def per_cell(cells: torch.Tensor) -> torch.Tensor:
    """...×STATISTICS as `encode` makes them → the same with the logarithms of the deviations."""
    mean, deviation = _parts(cells)
    return torch.cat([mean, (deviation + SMALLEST).log()], -1)


def pooled(cells: torch.Tensor) -> torch.Tensor:
    """B×rows×columns×STATISTICS → B×STATISTICS: mean and log-deviation over the whole picture.

    The variance over the picture is the mean over its cells, all of one size, of variance and squared mean,
    less the squared mean.
    """
    mean, deviation = _parts(cells.flatten(1, 2))
    over_all = mean.mean(1)
    spread = ((deviation.square() + mean.square()).mean(1) - over_all.square()).clamp_min(0).sqrt()
    return torch.cat([over_all, (spread + SMALLEST).log()], -1)
