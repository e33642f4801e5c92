"""Is a reference the pristine original of its picture? Plain image statistics say where it looks otherwise.

The bounds below lie between two groups of measurements: clean photographs as references of pictures with 25
kinds of distortion at five severities, and references that are another picture or shifted.
"""

import numpy as np
from PIL import Image
from scipy import fft

_SIDE = 768  # pixels a side of the middle part that is looked at
_LEAST_SIDE = 128  # pixels a side below which the statistics are of too few pixels
_FLAT = 2.0  # standard deviation of luma below which there is nothing to compare

_SAME_SCENE = 0.2  # correlation of coarse structure: other photographs reach 0.15, strong noise leaves 0.4
_PEAK = 13.5  # that correlation in standard deviations over all shifts: other photographs reach 12
_SHIFT_BETTER = 0.8  # largest correlation without a shift, as a part of that at the best shift


def doubts(image: Image.Image, reference: Image.Image) -> list[str]:
    """Sentences on what speaks against `reference` as the pristine original of `image` (RGB, of one size).

    Looks at the luma of at most 768×768 pixels in the middle. Empty where nothing speaks against it, and where
    the pictures are too small (below 128 pixels a side) or too flat to tell."""
    if min(image.size) < _LEAST_SIDE:
        return []
    left, top = (max(side - _SIDE, 0) // 2 for side in image.size)
    box = (left, top, left + min(image.width, _SIDE), top + min(image.height, _SIDE))
    picture, original = (np.asarray(x.crop(box).convert("L"), np.float32) for x in (image, reference))
    if min(picture.std(), original.std()) < _FLAT:
        return []
    surface = _correlation(picture, original, 0.12)
    if surface.max() <= min(_SAME_SCENE, _PEAK * surface.std()):
        return ["the reference looks like another picture, or is turned or scaled: give its original"]
    if moved := _shift(_correlation(picture, original, 0.35, power=2)):
        return [f"the reference looks shifted by {moved} against the picture: align the two first"]
    return []


def _correlation(picture: np.ndarray, original: np.ndarray, finest: float, power: int = 1) -> np.ndarray:
    """How alike the two are (at most 1) at each shift, from 0.02 to `finest` cycles a pixel. Amplitudes count
    by their square root: between plain correlation, which large shapes decide, and phase correlation, which
    noise decides. With `power` 2 phases are doubled, against blurs that turn phases by half a circle: a shift
    of n shows at 2n."""
    height, width = picture.shape
    window = np.outer(np.hanning(height), np.hanning(width)).astype(np.float32)
    frequency = np.hypot(fft.fftfreq(height)[:, None], fft.rfftfreq(width)[None])
    one, other = (np.asarray(fft.rfft2((luma - luma.mean()) * window)) for luma in (picture, original))
    band = (frequency > 0.02) & (frequency < finest)
    product = (one * other.conj() * band) ** power
    surface = fft.irfft2(product / (np.abs(product) ** (1 - 0.5 / power) + 1e-9), s=picture.shape)
    energy = np.abs(one[band]).sum() * np.abs(other[band]).sum()
    return surface * picture.size / (2 * np.sqrt(energy) + 1e-9)


def _shift(surface: np.ndarray) -> str:
    """Where the reference lies against the picture, in words; empty where it lies on it."""
    peak = np.unravel_index(np.argmax(surface), surface.shape)
    if surface[peak] < _PEAK * surface.std() or surface[0, 0] > _SHIFT_BETTER * surface[peak]:
        return ""
    # places beyond the middle are negative shifts
    centred = (np.array(peak) + np.array(surface.shape) // 2) % surface.shape - np.array(surface.shape) // 2
    down, right = (-round(int(at) / 2) for at in centred)
    return f"{right} pixels to the right and {down} pixels down"
