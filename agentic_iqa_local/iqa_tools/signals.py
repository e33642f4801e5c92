"""Classical measurements of a picture's signal that LocalNR reads beside its encoder's features: block grids, frequency
bands, noise, tones, colours.

An encoder that was trained to recognise objects keeps little of them. Each is cheap, and none is learned.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate

BLOCK = 8  # of JPEG
BANDS = ((1, 2), (3, 4), (5, 6), (7, 9), (10, 14))  # of u + v in a block's DCT
TONES = (0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995)
SPREADS = (0.1, 0.5, 0.9)
SIGNALS = 84

# ITU-R BT.601, luma and the two colour differences, all in 0..255 or ±128
_YCC = torch.tensor(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]]
)


def signals(pixels: Tensor) -> Tensor:
    """B×3×H×W RGB in 0..1, at least 32 pixels a side → B×SIGNALS numbers, most of them logarithms."""
    return torch.stack([_of_one(picture) for picture in pixels])


def _of_one(rgb: Tensor) -> Tensor:
    ycc = torch.einsum("ij,jhw->ihw", _YCC.to(rgb), 255 * rgb)
    luma = ycc[0]
    (row, across), (column, down) = _block_grid(luma.T), _block_grid(luma)
    spectrum = [*_bands(luma, row, column), *_noise(ycc), *_pyramid(ycc)]
    return torch.stack([*across, *down, *spectrum, *_tones(rgb, ycc), *_edges(rgb)]).float()


def _log(value: Tensor, floor: float = 1e-2) -> Tensor:
    return (value.clamp_min(0) + floor).log()


def _block_grid(luma: Tensor) -> tuple[int, list[Tensor]]:
    """Of the columns' edges: the phase of a grid of 8 pixels, and how far the third difference there, at phase 0,
    and on a grid of 4 stands out."""
    third = (luma[:, 3:] - 3 * luma[:, 2:-1] + 3 * luma[:, 1:-2] - luma[:, :-3]).abs().mean(0)
    third = third[: len(third) // BLOCK * BLOCK].view(-1, BLOCK).mean(0)
    phase = int(third.argmax())
    middle = _log(third.median())
    fours = third.view(2, 4).mean(0)
    return (phase + 2) % BLOCK, [
        _log(third[phase]) - middle,
        _log(third[6 - 1]) - middle,  # a grid that begins at the picture's edge
        _log(fours.max()) - _log(fours.median()),
    ]


def _dct() -> Tensor:
    """The 64 basis pictures of the orthonormal 8×8 DCT, 64×1×8×8."""
    place = torch.arange(BLOCK)
    basis = torch.cos(math.pi * (2 * place[None] + 1) * place[:, None] / (2 * BLOCK)) * math.sqrt(
        2 / BLOCK
    )
    basis[0] /= math.sqrt(2)
    return torch.einsum("ui,vj->uvij", basis, basis).reshape(BLOCK**2, 1, BLOCK, BLOCK)


_BASIS = _dct()
_ORDER = torch.arange(BLOCK)[:, None] + torch.arange(BLOCK)[None]


def _bands(luma: Tensor, row: int, column: int) -> list[Tensor]:
    """Of the blocks on the grid that begins at (row, column): the energy in each band and the share of coefficients
    that quantisation left at zero; and how both differ half a block away."""

    def measured(row: int, column: int) -> tuple[list[Tensor], list[Tensor]]:
        blocks = conv2d(luma[None, None, row:, column:], _BASIS.to(luma), stride=BLOCK)[0].abs()
        energy, zeros = [], []
        for first, last in BANDS:
            band = blocks[((first <= _ORDER) & (last >= _ORDER)).flatten()]
            energy.append(_log(band.mean(), 0.05))
            zeros.append((band < 0.75).float().mean())
        return energy, zeros

    energy, zeros = measured(row, column)
    energy_off, zeros_off = measured((row + 4) % BLOCK, (column + 4) % BLOCK)
    risen = [off - on for on, off in zip(energy, energy_off, strict=True)]
    return [*energy, *risen, *zeros, *(on - off for on, off in zip(zeros, zeros_off, strict=True))]


def _noise(ycc: Tensor) -> list[Tensor]:
    """The median and the mean of the finest diagonal detail of each channel at two scales, and how the deviation of
    luma is spread over small blocks."""
    values = []
    for channels in (ycc, avg_pool2d(ycc[None], 2)[0]):
        rows, columns = (side // 2 * 2 for side in channels.shape[1:])
        even = channels[:, :rows, :columns]
        detail = (
            even[:, ::2, ::2] - even[:, 1::2, ::2] - even[:, ::2, 1::2] + even[:, 1::2, 1::2]
        ).abs() / 2
        flat = detail.flatten(1)
        middle, mean = _log(flat.median(1).values, 0.1), _log(flat.mean(1), 0.1)
        values += [*middle, *(mean - middle)]
        luma = channels[:1]
        mean, square = (avg_pool2d(part[None], BLOCK).flatten() for part in (luma, luma.square()))
        deviation = (square - mean.square()).clamp_min(0).sqrt()
        values += [*_log(deviation.quantile(_at(SPREADS, mean)), 0.1)]
    return values


def _pyramid(ycc: Tensor) -> list[Tensor]:
    """The deviation in each band of a Laplacian pyramid, five of luma and three of colour, and how peaked the first
    three of luma are."""
    values, level = [], ycc
    for depth in range(5):
        smaller = avg_pool2d(level[None], 2, ceil_mode=True, count_include_pad=False)
        band = (
            level - interpolate(smaller, level.shape[1:], mode="bilinear", align_corners=False)[0]
        )
        spread = _log(band.flatten(1).square().mean(1).sqrt(), 0.05)
        values += list(spread) if depth < 3 else [spread[0]]
        if depth < 3:
            values.append(_log(band[0].abs().mean(), 0.05) - spread[0])
        level = smaller[0]
    return values


def _tones(rgb: Tensor, ycc: Tensor) -> list[Tensor]:
    """Percentiles of luma, clipped shares, contrast; saturation, the mean colour of all, of the lightest and of the
    darkest pixels; how many colours there are."""
    luma, colour = ycc[0].flatten(), ycc[1:].flatten(1)
    saturation = (rgb.amax(0) - rgb.amin(0)).flatten()
    tones = (
        luma.quantile(_at(TONES, luma))
        if luma.numel() < 2**24
        else luma[::8].quantile(_at(TONES, luma))
    )
    light, dark = luma >= tones[-2], luma <= tones[1]
    codes = (255 * rgb).round().long().flatten(1)[:, :: max(1, luma.numel() // 65536)]
    distinct = torch.tensor(
        len((codes[0] * 65536 + codes[1] * 256 + codes[2]).unique()) / codes.shape[1]
    )
    return [
        *(tones / 255),
        (luma <= 3).float().mean(),
        (luma >= 252).float().mean(),
        luma.std() / 64,
        *saturation[:: max(1, len(saturation) // 2**22)].quantile(_at((0.5, 0.95), luma)),
        *(colour.mean(1) / 32),
        *_log(colour.std(1), 0.5),
        *(colour[:, light].mean(1) / 32),
        *(colour[:, dark].mean(1) / 32),
        _log(distinct.to(luma), 1e-4),
    ]


def _edges(rgb: Tensor) -> list[Tensor]:
    """How well the gradients of red and of blue agree with green's, along rows and along columns, and how often a
    pixel stands out from its neighbours on both sides."""
    values = []
    for step in (rgb[:, :, 1:] - rgb[:, :, :-1], rgb[:, 1:] - rgb[:, :-1]):
        flat = step.flatten(1)
        flat = flat / (flat.norm(dim=1, keepdim=True) + 1e-3)
        values += [_log(1 - flat[0] @ flat[1], 1e-3), _log(1 - flat[2] @ flat[1], 1e-3)]
    green = 255 * rgb[1]
    spike = torch.minimum(
        (green[:, 1:-1] - green[:, :-2]).abs(), (green[:, 1:-1] - green[:, 2:]).abs()
    )
    values.append(_log((spike > 25).float().mean(), 1e-4))
    return values


def _at(shares: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(shares, dtype=like.dtype, device=like.device)
