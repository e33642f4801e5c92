"""Classical measurements of a picture's signal that LocalNR reads beside its encoder's features:
block grids, frequency bands, noise, tones, colours.

An encoder that was trained to recognise objects keeps little of them. Each is cheap, and none is
learned.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate

BLOCK = 8  # of JPEG
BANDS = ((1, 2), (3, 4), (5, 6), (7, 9), (10, 14))  # of u + v in a block's DCT
TONES = (0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995)
SPREADS = (0.1, 0.5, 0.9)
# Pixels, at least, of which tones are taken; all of a picture with less than twice as many
SAMPLE = 2**19
SIGNALS = 84

# ITU-R BT.601, luma and the two colour differences, all in 0..255 or ±128
_YCC = torch.tensor(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]]
)


def signals(pixels: Tensor) -> Tensor:
    """B×3×H×W RGB in 0..1, at least 32 pixels a side → B×SIGNALS numbers, most of them
    logarithms."""
    return torch.stack([_of_one(picture) for picture in pixels])


def _of_one(rgb: Tensor) -> Tensor:
    ycc = (_YCC.to(rgb) @ (255 * rgb).flatten(1)).view_as(rgb)
    luma = ycc[0]
    row, across = _block_grid(luma.T)
    column, down = _block_grid(luma)
    values = [*across, *down, *_bands(luma, row, column), *_noise(ycc), *_pyramid(ycc)]
    values += [*_tones(rgb, ycc), *_edges(rgb)]
    return torch.stack(values).float()


def _log(value: Tensor, floor: float = 1e-2) -> Tensor:
    return (value.clamp_min(0) + floor).log()


def _quantiles(values: Tensor, shares: Sequence[float]) -> Tensor:
    """As torch.quantile, whose sorting takes a CPU ten times as long as NumPy's."""
    ranks = torch.tensor(shares).double() * (len(values) - 1)
    ordered = torch.from_numpy(np.sort(values.cpu().numpy()))
    low, high = ordered[ranks.floor().long()], ordered[ranks.ceil().long()]
    return low.lerp(high, ranks.frac().float()).to(values)


def _medians(rows: Tensor) -> Tensor:
    """As torch.median of each row: of an even number the lower of the two in the middle."""
    middle = (rows.shape[1] - 1) // 2
    ordered = np.partition(rows.cpu().numpy(), middle, axis=1)
    return torch.from_numpy(ordered[:, middle]).to(rows)


def _halved(channels: Tensor) -> Tensor:
    """As avg_pool2d over 2×2 of C×H×W, and faster. What is left of an odd side has its own mean."""
    if channels.shape[1] % 2 or channels.shape[2] % 2:
        return avg_pool2d(channels[None], 2, ceil_mode=True, count_include_pad=False)[0]
    upper, lower = channels[:, ::2], channels[:, 1::2]
    sums = upper[..., ::2] + upper[..., 1::2]
    return sums.add_(lower[..., ::2]).add_(lower[..., 1::2]).div_(4)


def _block_grid(luma: Tensor) -> tuple[int, list[Tensor]]:
    """Of the columns' edges: the phase of a grid of 8 pixels, and how far the third difference
    there, at phase 0, and on a grid of 4 stands out."""
    third = luma.diff(n=3).abs().mean(0)
    third = third[: len(third) // BLOCK * BLOCK].view(-1, BLOCK).mean(0)
    phase = int(third.argmax())
    middle = _log(third.median())
    fours = third.view(2, 4).mean(0)
    at_phase = _log(third[phase]) - middle
    at_edge = _log(third[5]) - middle  # a grid that begins at the picture's edge
    on_fours = _log(fours.max()) - _log(fours.median())
    return (phase + 2) % BLOCK, [at_phase, at_edge, on_fours]


def _dct() -> Tensor:
    """The 64 basis pictures of the orthonormal 8×8 DCT, 64×1×8×8."""
    place = torch.arange(BLOCK)
    angles = math.pi * (2 * place[None] + 1) * place[:, None] / (2 * BLOCK)
    basis = torch.cos(angles) * math.sqrt(2 / BLOCK)
    basis[0] /= math.sqrt(2)
    return torch.einsum("ui,vj->uvij", basis, basis).reshape(BLOCK**2, 1, BLOCK, BLOCK)


_BASIS = _dct()
_ORDER = torch.arange(BLOCK)[:, None] + torch.arange(BLOCK)[None]


def _bands(luma: Tensor, row: int, column: int) -> list[Tensor]:
    """Of the blocks on the grid that begins at (row, column): the energy in each band and the share
    of coefficients that quantisation left at zero; and how both differ half a block away."""
    energy, zeros = _on_grid(luma, row, column)
    energy_off, zeros_off = _on_grid(luma, (row + 4) % BLOCK, (column + 4) % BLOCK)
    return [*energy, *(energy_off - energy), *zeros, *(zeros - zeros_off)]


def _on_grid(luma: Tensor, row: int, column: int) -> tuple[Tensor, Tensor]:
    """The energy and the share of zeros in each of BANDS."""
    blocks = conv2d(luma[None, None, row:, column:], _BASIS.to(luma), stride=BLOCK)[0].abs()
    energy, zeros = [], []
    for first, last in BANDS:
        band = blocks[((first <= _ORDER) & (last >= _ORDER)).flatten()]
        energy.append(_log(band.mean(), 0.05))
        zeros.append((band < 0.75).float().mean())
    return torch.stack(energy), torch.stack(zeros)


def _even(channels: Tensor) -> Tensor:
    """C×H×W without the last row or column of an odd number."""
    height, width = channels.shape[1:]
    return channels[:, : height // 2 * 2, : width // 2 * 2]


def _noise(ycc: Tensor) -> list[Tensor]:
    """The median and the mean of the finest diagonal detail of each channel at two scales, and how
    the deviation of luma is spread over small blocks."""
    values = []
    for channels in (ycc, _halved(_even(ycc))):
        even = _even(channels)
        rising = even[:, ::2] - even[:, 1::2]
        detail = (rising[..., ::2] - rising[..., 1::2]).abs() / 2
        flat = detail.flatten(1)
        middle = _log(_medians(flat), 0.1)
        values += [*middle, *(_log(flat.mean(1), 0.1) - middle)]
        luma = channels[:1]
        mean, square = avg_pool2d(luma, BLOCK).flatten(), avg_pool2d(luma.square(), BLOCK).flatten()
        deviation = (square - mean.square()).clamp_min(0).sqrt()
        values += _log(_quantiles(deviation, SPREADS), 0.1)
    return values


def _pyramid(ycc: Tensor) -> list[Tensor]:
    """The deviation in each band of a Laplacian pyramid, five of luma and three of colour, and how
    peaked the first three of luma are."""
    values, level = [], ycc
    for depth in range(5):
        smaller = _halved(level)
        bands = []
        for channel, small in zip(level, smaller, strict=True):
            size = channel.shape
            enlarged = interpolate(small[None, None], size, mode="bilinear", align_corners=False)
            band = enlarged[0, 0].sub_(channel)  # a channel at a time, in place: it is a large one
            bands.append((_log(band.square().mean().sqrt(), 0.05), band.abs().mean()))
        spread, change = bands[0]
        if depth < 3:
            values += [*(each for each, _ in bands), _log(change, 0.05) - spread]
        else:
            values.append(spread)
        level = smaller
    return values


def _tones(rgb: Tensor, ycc: Tensor) -> list[Tensor]:
    """Percentiles of luma, clipped shares, contrast; saturation, the mean colour of all, of the
    lightest and of the darkest pixels; how many colours there are."""
    pixels = ycc[0].numel()
    sample = slice(None, None, max(1, pixels // SAMPLE))
    luma, colour = ycc[0].flatten()[sample], ycc[1:].flatten(1)[:, sample]
    tones = _quantiles(luma, TONES)
    shown = rgb.flatten(1)
    saturation = shown[:, sample].amax(0) - shown[:, sample].amin(0)
    light, dark = luma >= tones[-2], luma <= tones[1]
    codes = (255 * shown[:, :: max(1, pixels // 65536)]).round().long()
    distinct = (codes[0] * 65536 + codes[1] * 256 + codes[2]).unique()
    return [
        *(tones / 255),
        (luma <= 3).float().mean(),
        (luma >= 252).float().mean(),
        luma.std() / 64,
        *_quantiles(saturation, (0.5, 0.95)),
        *(colour.mean(1) / 32),
        *_log(torch.stack([each.std() for each in colour]), 0.5),
        *(colour[:, light].mean(1) / 32),
        *(colour[:, dark].mean(1) / 32),
        _log(luma.new_tensor(len(distinct) / codes.shape[1]), 1e-4),
    ]


def _agreement(first: Tensor, second: Tensor) -> Tensor:
    """The cosine between two planes; rows are summed in double precision, so that the number of threads
    does not show."""
    lengths = [_product(plane, plane).sqrt() + 1e-3 for plane in (first, second)]
    return _product(first, second) / (lengths[0] * lengths[1])


def _product(first: Tensor, second: Tensor) -> Tensor:
    return torch.einsum("hw,hw->h", first, second).cpu().double().sum().to(first)


def _edges(rgb: Tensor) -> list[Tensor]:
    """How well the gradients of red and of blue agree with green's, along rows and along columns,
    and how often a pixel stands out from its neighbours on both sides."""
    values = []
    for axis in (2, 1):
        red, green, blue = rgb.diff(dim=axis)
        values += [_log(1 - _agreement(part, green), 1e-3) for part in (red, blue)]
    steps = (255 * rgb[1]).diff().abs()
    spike = torch.minimum(steps[:, :-1], steps[:, 1:])
    values.append(_log((spike > 25).float().mean(), 1e-4))
    return values
