"""Is a reference the pristine original of its picture? Plain image statistics say where it looks otherwise.

Full-reference tools assume that it is. The bounds below lie between two groups of measurements: clean
photographs as references of pictures with 25 kinds of distortion at five severities, and references that are
another picture, shifted, enlarged, re-encoded or swapped. A doubt is a warning, never a refusal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image
from scipy import fft, ndimage

_SIDE = 768  # pixels a side of the middle part that is looked at
_LEAST_SIDE = 128  # pixels a side below which the statistics are of too few pixels
_FLAT = 2.0  # standard deviation of luma below which there is nothing to compare

_SAME_SCENE = 0.2  # correlation of coarse structure: other photographs reach 0.15, strong noise leaves 0.4
_PEAK = 13.5  # that correlation in standard deviations over all shifts: other photographs reach 12
_SHIFT_BETTER = 0.8  # largest correlation without a shift, as a part of that at the best shift
_ENLARGED = -1.85  # `cut_off` of what was enlarged lies below
_UNEVEN = 0.05  # `unevenness` of what was enlarged lies above
_SOFT = -0.92  # `sharpness` of photographs lies above
_LESS_DETAIL = 0.3  # by which the picture's sharpness exceeds that of a softer reference
_SAME_DETAIL = 0.25  # rank correlation of the picture's fine detail with the reference's structure
_BLOCKS = 0.18  # clean photographs reach 0.02, JPEGs of quality 92 mostly 0.1, of quality 20 0.2 to 4
_NOISE = 5.0  # standard deviation, of 255


@dataclass(frozen=True)
class _Luma:
    """One picture's luma (BT.601, float32, H×W), and what is measured on it."""

    pixels: np.ndarray

    @cached_property
    def spectrum(self) -> np.ndarray:
        window = np.outer(*(np.hanning(side).astype(np.float32) for side in self.pixels.shape))
        return np.asarray(fft.rfft2((self.pixels - self.pixels.mean()) * window))

    @cached_property
    def frequency(self) -> np.ndarray:
        """Cycles a pixel, at each place of the spectrum."""
        height, width = self.pixels.shape
        return np.hypot(fft.fftfreq(height)[:, None], fft.rfftfreq(width)[None])

    @property
    def cut_off(self) -> float:
        """log10 of the ratio of the power at 0.33 to 0.5 cycles a pixel, where an enlarged picture has none,
        to that at 0.12 to 0.22."""
        power = np.abs(self.spectrum) ** 2
        high = power[(self.frequency > 0.33) & (self.frequency < 0.5)].mean()
        return float(
            np.log10((high + 1e-6) / (power[(self.frequency > 0.12) & (self.frequency < 0.22)].mean() + 1e-6))
        )

    @cached_property
    def _steps(self) -> list[np.ndarray]:
        """Mean absolute difference from each row to the next, and from each column to the next."""
        return [np.abs(np.diff(self.pixels, axis=axis)).mean(1 - axis) for axis in (0, 1)]

    @property
    def unevenness(self) -> float:
        """How much steps between pixels at odd places differ from those at even ones, relative to the mean
        step: doubling a picture's size makes them differ."""
        return max(
            float(abs(step[0::2].mean() - step[1::2].mean()) / max(step.mean(), 0.05)) for step in self._steps
        )

    @property
    def blocks(self) -> float:
        """How much every eighth step between pixels stands out from its neighbours, beyond the other seven:
        the 8×8 blocks of a JPEG."""
        leads = []
        for step in self._steps:
            jumps = step[1:-1] - (step[:-2] + step[2:]) / 2
            highest = np.sort([np.median(jumps[phase::8]) for phase in range(8)])
            leads.append((highest[-1] - highest[-2]) / max(step.mean(), 0.05))
        return float(min(leads))

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in the smoothest tenth (J. Immerkær, Fast Noise Variance
        Estimation, CVIU 64, 1996)."""
        mask = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
        answer = np.abs(ndimage.convolve(self.pixels, mask, mode="nearest"))
        return float(np.sqrt(np.pi / 2) / 6 * np.percentile(_by_tiles(answer), 10))

    @cached_property
    def fine(self) -> np.ndarray:
        """Energy of detail finer than about three pixels, by tiles."""
        return _by_tiles((self.pixels - ndimage.gaussian_filter(self.pixels, 1)) ** 2)

    @cached_property
    def coarse(self) -> np.ndarray:
        """Energy of structure some four to ten pixels wide, by tiles."""
        return _by_tiles(
            (ndimage.gaussian_filter(self.pixels, 1.5) - ndimage.gaussian_filter(self.pixels, 4)) ** 2
        )

    @property
    def sharpness(self) -> float:
        """log10 of the ratio of fine to coarse energy: −0.9 to 0.8 in clean photographs."""
        return float(np.log10((self.fine.mean() + 0.05) / (self.coarse.mean() + 0.05)))


def doubts(image: Image.Image, reference: Image.Image) -> list[str]:
    """Sentences on what speaks against `reference` as the pristine original of `image` (both RGB, of one
    size).

    Looks at the luma of at most 768×768 pixels in the middle. Empty where nothing speaks against it, where
    the pictures are too small (below 128 pixels a side) or too flat to tell, and for what leaves no trace in
    such statistics: a darkened reference, a slight blur.
    """
    if min(image.size) < _LEAST_SIDE:
        return []
    picture, original = (_Luma(_middle(x)) for x in (image, reference))
    if min(picture.pixels.std(), original.pixels.std()) < _FLAT:
        return []
    return list(_doubts(picture, original))


def _doubts(picture: _Luma, original: _Luma) -> Iterator[str]:
    if not _same_scene(picture, original):
        yield (
            "the reference looks like another picture, or one that is turned, mirrored or scaled:"
            " full-reference scores then say nothing; give the original that this picture was made from"
        )
        return
    if moved := _shift(picture, original):
        yield (
            f"the reference looks shifted by {moved} against the picture: full-reference scores will be too"
            " low; align the two first"
        )
    if original.cut_off < _ENLARGED and original.unevenness > _UNEVEN > original.blocks:
        yield (
            "the reference looks enlarged: it has no detail as fine as its pixels, so full-reference scores"
            " miss what the picture lost there; give the original at its own size"
        )
    elif _has_less_detail(original, picture):
        yield (
            "the reference is softer than the picture: it may be blurred or enlarged, or the two may be"
            " swapped; give the pristine original as the reference"
        )
    if (blocks := original.blocks) > _BLOCKS:
        swapped = (
            ", and the picture hardly any: the two may be swapped" if picture.blocks < blocks / 4 else ""
        )
        yield (
            f"the reference shows the 8×8 blocks of JPEG compression{swapped}; full-reference scores then"
            " count the reference's own losses as the picture's; give the original before it was compressed"
        )
    if (noise := original.noise) > _NOISE and picture.noise < noise / 3:
        yield (
            "the reference is noisier than the picture: the two may be swapped, or the picture was denoised,"
            " which full-reference tools count as a loss; give the pristine original as the reference"
        )


def _middle(image: Image.Image) -> np.ndarray:
    left, top = (max(side - _SIDE, 0) // 2 for side in image.size)
    box = (left, top, left + min(image.width, _SIDE), top + min(image.height, _SIDE))
    return np.asarray(image.crop(box).convert("L"), np.float32)


def _by_tiles(values: np.ndarray) -> np.ndarray:
    """Means of 16×16 pixels."""
    height, width = (side // 16 for side in values.shape)
    return values[: height * 16, : width * 16].reshape(height, 16, width, 16).mean((1, 3))


def _correlation(picture: _Luma, original: _Luma, finest: float, power: int = 1) -> np.ndarray:
    """How alike the two are (at most 1) at each shift, from 0.02 to `finest` cycles a pixel. Amplitudes count
    by their square root. That lies between plain correlation, which a few large shapes decide, and phase
    correlation, which noise decides.

    With `power` 2 phases are doubled: a shift of n shows at 2n, and a blur that turns phases by half a circle
    no longer shows.
    """
    band = (picture.frequency > 0.02) & (picture.frequency < finest)
    amplitudes = [np.abs(x.spectrum) * band for x in (picture, original)]
    product = (picture.spectrum * original.spectrum.conj() * band) ** power
    surface = fft.irfft2(product / (np.abs(product) ** (1 - 0.5 / power) + 1e-9), s=picture.pixels.shape)
    return surface * picture.pixels.size / (2 * np.sqrt(amplitudes[0].sum() * amplitudes[1].sum()) + 1e-9)


def _same_scene(picture: _Luma, original: _Luma) -> bool:
    surface = _correlation(picture, original, 0.12)
    return bool(surface.max() > min(_SAME_SCENE, _PEAK * surface.std()))


def _shift(picture: _Luma, original: _Luma) -> str:
    """Where the reference lies against the picture, in words; empty where it lies on it."""
    surface = _correlation(picture, original, 0.35, power=2)
    peak = np.unravel_index(np.argmax(surface), surface.shape)
    if surface[peak] < _PEAK * surface.std() or surface[0, 0] > _SHIFT_BETTER * surface[peak]:
        return ""
    down, right = (
        -round(((int(at) + side // 2) % side - side // 2) / 2)
        for at, side in zip(peak, surface.shape, strict=True)
    )
    parts = [
        (abs(right), "to the right" if right > 0 else "to the left"),
        (abs(down), "down" if down > 0 else "up"),
    ]
    return " and ".join(f"{pixels} pixel{'s' * (pixels > 1)} {where}" for pixels, where in parts if pixels)


def _has_less_detail(original: _Luma, picture: _Luma) -> bool:
    """Whether the reference is softer than photographs are, and the picture has finer detail where the
    reference has structure: noise of the picture's own would lie everywhere."""
    if original.sharpness > _SOFT or picture.sharpness - original.sharpness < _LESS_DETAIL:
        return False
    fine, coarse = (np.argsort(np.argsort(energy, axis=None)) for energy in (picture.fine, original.coarse))
    return bool(np.corrcoef(fine, coarse)[0, 1] > _SAME_DETAIL)
