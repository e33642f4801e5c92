"""LocalNR: this project's own no-reference quality tool. It is no published metric, so its figures
are ours.

EfficientNet-lite0 (Tan and Le, ICML 2019; ImageNet weights, Apache-2.0), frozen, describes each
place of a picture by the mean and the deviation of its features at five depths, at the picture's
own resolution and at half of it. One hidden layer makes of their pooled statistics the quality, the
family and the severity; another makes of a single place how strong each family is there. Both
learned from synthetic distortions of clean photographs whose quality four full-reference metrics
gave (scripts/training/local_nr.py, docs/tools.md). A linear head on the same statistics learned what
people said of 580 real photographs (scripts/training/people.py), and the quality is made of both.
Knows nothing of pyiqa, of maps to 1..5 or of models that answer.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import timm
import torch
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, gelu

from agentic_iqa_local.iqa_tools.kernels import as_tensor, fold_norms, work_in_bands
from agentic_iqa_local.iqa_tools.measures import measured
from agentic_iqa_local.iqa_tools.signals import SIGNALS, signals
from agentic_iqa_local.state import DISTORTION_TYPES, EVERYWHERE, PLACES, ninth

WEIGHTS = Path(__file__).parent / "data" / "local_nr.safetensors"
PEOPLE = Path(__file__).parent / "data" / "local_nr_people.safetensors"
ENCODER = "tf_efficientnet_lite0"
CELL = 64  # pixels a side, about: a picture has round(side / CELL) rows and columns of equal size
# A larger picture goes through the encoder in strips, for the sake of memory: its first layers make a hundred
# numbers of each pixel. A strip is read with so many cells beside it, for a cut would show.
WHOLE, MARGIN = 2**20, 2
SCALES = 2
CHANNELS = 16 + 24 + 40 + 112 + 320  # of the five depths, strides 2 to 32
STATISTICS = 2 * SCALES * CHANNELS
FAMILIES = (*DISTORTION_TYPES, "none")
SMALLEST = 0.02  # a deviation below it counts as none: added before the logarithm
FARTHEST = 6.0  # standard deviations from the training's mean; what lies beyond says no more
QUALITY, SEVERITY = 3.0, 2.5  # the middle of each scale, around which the outputs lie
# The outputs of the heads of whole pictures: quality; which family is the strongest; of each family
# whether it is there (logit) and how severe it is if so; whether the picture was made too dark or
# too bright, and whether it is no photograph (logits).
STRONGEST, PRESENCE, SEVERITIES = slice(1, 9), slice(9, 16), slice(16, 23)
TOO_DARK, TOO_BRIGHT, GRAPHIC, OUTPUTS = 23, 24, 25, 26
# Damage is of one quarter if that quarter's lead over the second is more than LOCAL_LEAD of its
# severity, and the severity is at least LOCAL_SEVERITY. Otherwise it is everywhere, unless the
# picture is clean with at least CLEAN.
LOCAL_LEAD, LOCAL_SEVERITY, CLEAN = 0.5, 0.6, 0.3
# A smaller part, of WINDOW cells a side, is damaged if a family is there by so much more severe than
# in the median of the cells. Blur is not among them: sound photographs have it.
WINDOW, STANDS_OUT = 2, {"Noise": 1.0, "Compression": 1.6}


@dataclass(frozen=True)
class Examination:
    """What LocalNR reads of a picture.

    `quality` is in 1..5, and `clean` is the probability that there is no distortion. By family,
    `presence` is the probability that it is there, read of the whole picture; `presence_in_part` is
    the same of the quarter in which it is likeliest; `severities` say how strong it is if it is
    there, 1..5, read where it is likeliest; and `places` are rows×columns float32 arrays of its
    severity there, 0..5, in cells of equal size that cover the picture. `exposure` has the
    probabilities that the picture is "too dark" and "too bright", and `graphic` is the probability
    that it is no photograph but a screenshot, a drawing, a chart or a code. `statistics` are what
    all of this but the places was read from, float32. `measures` are what the pixels alone say
    (`measures.py`); with a reference there are none.
    """

    quality: float
    clean: float
    presence: dict[str, float]
    presence_in_part: dict[str, float]
    severities: dict[str, float]
    exposure: dict[str, float]
    graphic: float
    places: dict[str, np.ndarray]
    statistics: np.ndarray
    measures: dict[str, float] = field(default_factory=dict)

    def damaged_part(self) -> str | None:
        """Where the damage lies: one of PLACES, by the family whose strength differs most between
        them, or the ninth of the picture in which a smaller part stands out, or EVERYWHERE; None if
        none is seen."""
        grid = torch.from_numpy(np.stack([*self.places.values()]))
        if min(grid.shape[1:]) > 1:
            quarters = [quarter_of(grid, place).mean((1, 2)) for place in PLACES]
            strengths, places = torch.stack(quarters, 1).sort(descending=True)
            leads = strengths[:, 0] - strengths[:, 1]
            family = leads.argmax()
            most = strengths[family, 0]
            if most >= LOCAL_SEVERITY and leads[family] > LOCAL_LEAD * (most + 0.1):
                return list(PLACES)[places[family, 0]]
        for kind, least in STANDS_OUT.items():
            lead, place = standing_out(self.places[kind])
            if lead >= least:
                return place
        return EVERYWHERE if self.clean < CLEAN else None


def standing_out(cells: np.ndarray) -> tuple[float, str]:
    """By how much the severest window of a rows×columns grid exceeds the grid's median, and in
    which ninth of the picture its centre lies."""
    size = tuple(min(WINDOW, side) for side in cells.shape)
    windows = sliding_window_view(cells, size).mean((2, 3))
    row, column = (int(i) for i in np.unravel_index(windows.argmax(), windows.shape))
    box = column, row, column + size[1], row + size[0]
    lead = float(windows[row, column] - np.median(cells))
    return lead, ninth(box, cells.shape[1], cells.shape[0])


def quarter_of(grid: torch.Tensor, place: str) -> torch.Tensor:
    """One quarter of a B×rows×columns×… grid; a middle row or column belongs to none."""
    is_lower, is_right = PLACES[place]
    rows, columns = grid.shape[1] // 2, grid.shape[2] // 2
    half = grid[:, -rows:] if is_lower else grid[:, :rows]
    return half[:, :, -columns:] if is_right else half[:, :, :columns]


class LocalNR(nn.Module):
    """The network. The widths are the hidden layers' sizes. It is built without weights: `load`
    reads them."""

    def __init__(self, picture_width: int, pair_width: int, place_width: int):
        super().__init__()
        self.encoder = timm.create_model(ENCODER, pretrained=False, features_only=True)
        self.picture = _Head(STATISTICS + SIGNALS, picture_width, OUTPUTS)
        self.pair = _Head(STATISTICS + SIGNALS, pair_width, OUTPUTS)
        self.place = _Head(STATISTICS, place_width, len(DISTORTION_TYPES))
        self.people = _Standardised(STATISTICS + SIGNALS, 1)
        self.level_map = _Logistic()

    @classmethod
    def load(cls, path: Path = WEIGHTS, device: str = "cpu") -> Self:
        """The network with the weights of a safetensors file, in float32, ready to measure."""
        weights = load_file(path)
        people = load_file(PEOPLE)
        widths = [len(weights[f"{head}.hidden.bias"]) for head in ("picture", "pair", "place")]
        # on no device, so that nothing is drawn from torch's generator, which is the whole
        # process's
        with torch.device("meta"):
            network = cls(*widths)
        network.load_state_dict(weights | people, assign=True)
        network.float().to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        fold_norms(network.encoder)
        if device == "cpu":
            work_in_bands(network.encoder)
        return network.eval().requires_grad_(False)

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """B×3×H×W in 0..1 → B×rows×columns×STATISTICS: of each scale the mean of each channel and
        its deviation in the cell. Pictures of more than WHOLE pixels are cut along the longer side."""
        height, width = pixels.shape[2:]
        grid = max(1, round(height / CELL)), max(1, round(width / CELL))
        if height * width <= WHOLE:
            return self._encode(pixels, grid)
        axis = int(width >= height)  # of the grid
        side, cells = pixels.shape[2 + axis], grid[axis]
        count = min(cells, math.ceil(height * width / WHOLE))
        strips = []
        for first, last in pairwise(cells * i // count for i in range(count + 1)):
            before, after = max(first - MARGIN, 0), min(last + MARGIN, cells)
            start, end = side * before // cells, side * after // cells
            part = (grid[0], after - before) if axis else (after - before, grid[1])
            strip = self._encode(pixels.narrow(2 + axis, start, end - start), part)
            strips.append(strip.narrow(1 + axis, first - before, last - first))
        return torch.cat(strips, 1 + axis)

    def _encode(self, pixels: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """What `encode` returns of a strip with a grid of these rows and columns."""
        statistics = []
        for picture in (pixels, avg_pool2d(pixels, SCALES)):
            means, deviations = [], []
            for depth in self.encoder(
                (2 * picture - 1).contiguous(memory_format=torch.channels_last)
            ):
                mean = adaptive_avg_pool2d(depth, grid)
                square = adaptive_avg_pool2d(depth.square(), grid)
                means.append(mean)
                deviations.append((square - mean.square()).clamp_min(0).sqrt())
            statistics += means + deviations
        return torch.cat(statistics, 1).permute(0, 2, 3, 1)

    def describe(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """1×3×H×W in 0..1 → (views×(STATISTICS + SIGNALS) of the whole picture and, if it is large
        enough, of its quarters; its cells as `encode` gives them)."""
        numbers = [signals(pixels)]  # before the encoder, whose freed memory stays in pieces
        cells = self.encode(pixels)
        statistics = [pooled(cells)]
        if min(cells.shape[1:3]) > 1:
            for place in PLACES:
                quarter = quarter_of(pixels[0], place)  # rows and columns come second and third
                numbers.append(signals(quarter[None]))
                statistics.append(pooled(quarter_of(cells, place)))
        return torch.cat([torch.cat(statistics), torch.cat(numbers)], 1), cells

    def quality(self, described: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """The levels, N in 1..5, of pictures that are described so and have these outputs of the head
        of whole pictures: the lower of what people would say and of what the synthetic distortions
        taught, since people's few photographs do not show every damage."""
        synthetic = self.level_map.of(outputs[:, 0] + QUALITY)
        return torch.minimum(self.people(described)[:, 0], synthetic).clamp(1, 5)

    @torch.inference_mode()
    def examine(self, image: Image.Image, reference: Image.Image | None = None) -> Examination:
        """All that the network reads of an RGB picture of 64 pixels a side or more. With a
        `reference` of the same size families and severities are read from what differs: what the
        original shows too is content, not damage."""
        device = self.picture.hidden.weight.device
        described, cells = self.describe(as_tensor(image, device))
        damage = outputs = self.picture(described)
        places = self.place(per_cell(cells))
        if reference is not None:
            original, original_cells = self.describe(as_tensor(reference, device))
            damage = self.pair(described - original)
            places = places - self.place(per_cell(original_cells))
        presence = damage[:, PRESENCE].sigmoid()
        quarters = presence[1:] if len(presence) > 1 else presence
        likeliest = presence.argmax(0, keepdim=True)
        severities = damage[:, SEVERITIES].gather(0, likeliest)[0] + SEVERITY
        local = _by_family(places[0].clamp(0, 5).permute(2, 0, 1).cpu().numpy())
        measures = {}
        if reference is None:
            leads = {f"lead of {kind}": standing_out(local[kind])[0] for kind in STANDS_OUT}
            measures = measured(np.array(image)) | leads
        dark, bright = damage[0, TOO_DARK : TOO_BRIGHT + 1].sigmoid().tolist()
        return Examination(
            quality=self.quality(described[:1], outputs[:1]).item(),
            clean=damage[0, STRONGEST].softmax(-1)[FAMILIES.index("none")].item(),
            presence=_by_family(presence[0].tolist()),
            presence_in_part=_by_family(quarters.amax(0).tolist()),
            severities=_by_family(severities.clamp(1, 5).tolist()),
            exposure={"too dark": dark, "too bright": bright},
            graphic=outputs[0, GRAPHIC].sigmoid().item(),
            places=local,
            statistics=described[0].cpu().numpy(),
            measures=measures,
        )


def _by_family(values: Any) -> dict[str, Any]:
    return dict(zip(DISTORTION_TYPES, values, strict=True))


class _Standardised(nn.Module):
    """A linear layer on standardised statistics; `centre` and `scale` are the training's mean and
    deviation."""

    centre: torch.Tensor
    scale: torch.Tensor

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.register_buffer("centre", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))
        self.out = nn.Linear(inputs, outputs)

    def standard(self, statistics: torch.Tensor) -> torch.Tensor:
        return ((statistics - self.centre) / self.scale).clamp(-FARTHEST, FARTHEST)

    def forward(self, statistics: torch.Tensor) -> torch.Tensor:
        return self.out(self.standard(statistics))


class _Head(_Standardised):
    """The same with a hidden layer before it."""

    def __init__(self, inputs: int, width: int, outputs: int):
        super().__init__(inputs, outputs)
        self.hidden = nn.Linear(inputs, width)
        self.out = nn.Linear(width, outputs)

    def forward(self, statistics: torch.Tensor) -> torch.Tensor:
        return self.out(gelu(self.hidden(self.standard(statistics))))


class _Logistic(nn.Module):
    """The map of the synthetic quality to levels: the logistic of VQEG without its line, b1 to b3
    and b5 (Sheikh, Sabir and Bovik, IEEE TIP 2006)."""

    b: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.zeros(4))

    def of(self, quality: torch.Tensor) -> torch.Tensor:
        height, slope, middle, level = self.b
        return height * (0.5 - 1 / (1 + (slope * (quality - middle)).exp())) + level


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

    The variance over the picture is the mean over its cells, all of one size, of variance and
    squared mean, less the squared mean.
    """
    mean, deviation = _parts(cells.flatten(1, 2))
    over_all = mean.mean(1)
    spread = ((deviation.square() + mean.square()).mean(1) - over_all.square()).clamp_min(0).sqrt()
    return torch.cat([over_all, (spread + SMALLEST).log()], -1)
