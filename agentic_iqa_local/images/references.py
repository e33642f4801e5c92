"""Is a reference the pristine original of its picture? Plain image statistics say where it looks
otherwise.

Full-reference tools assume that it is. The bounds below lie between two groups of measurements:
clean photographs as references of pictures with 25 kinds of distortion at five severities, and
references that are another picture, shifted, softer, re-encoded or swapped. A doubt is a warning,
never a refusal.
"""

import numpy as np
from numpy import fft
from PIL import Image
from scipy import ndimage

_SIDE = 768  # pixels a side of the middle part that is looked at
_LEAST_SIDE = 128  # pixels a side below which the statistics are of too few pixels
_FLAT = 2.0  # standard deviation of luma below which there is nothing to compare

# largest correlation in standard deviations over all shifts: other photographs reach 6, a mirrored
# one 9, and the same one under strong damage 14
_PEAK = 9.5
_SHIFT_BETTER = 0.8  # largest correlation without a shift, as a part of that at the best shift
_SOFT = -0.92  # `_sharpness` of photographs lies above
_LESS_DETAIL = 0.3  # by which the picture's sharpness exceeds that of a softer reference
# clean photographs reach 0.02, JPEGs of quality 92 mostly 0.1, of quality 20 0.2 to 4
_BLOCKS = 0.18
_NOISE = 5.0  # standard deviation, of 255

_ANOTHER = (
    "the reference looks like another picture, or is turned, mirrored or scaled: give this"
    " picture's original"
)
_SOFTER = (
    "the reference is softer than the picture: they may be swapped, or the reference is blurred or"
    " enlarged"
)
_COMPRESSED = (
    "the reference shows the 8×8 blocks of JPEG compression: give the uncompressed original"
)
_NOISIER = (
    "the reference is noisier than the picture: the two may be swapped, or the picture was denoised"
)
_LAPLACIANS = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)


def doubts(image: Image.Image, reference: Image.Image) -> list[str]:
    """Sentences on what speaks against `reference` as the pristine original of `image` (RGB, of one
    size).

    Looks at the luma of at most 768×768 pixels in the middle. Empty where nothing speaks against
    it, where the pictures are too small (below 128 pixels a side) or too flat to tell, and for what
    leaves no trace in such statistics: a darkened reference, a slight blur.
    """
    if min(image.size) < _LEAST_SIDE:
        return []
    left, top = (max(side - _SIDE, 0) // 2 for side in image.size)
    box = (left, top, left + min(image.width, _SIDE), top + min(image.height, _SIDE))
    picture, original = (
        np.asarray(x.crop(box).convert("L"), np.float32) for x in (image, reference)
    )
    if min(picture.std(), original.std()) < _FLAT:
        return []
    return _doubts(picture, original)


def _doubts(picture: np.ndarray, original: np.ndarray) -> list[str]:
    surface = _correlation(picture, original)
    if surface.max() <= _PEAK * surface.std():
        return [_ANOTHER]
    found = []
    if surface[0, 0] < _SHIFT_BETTER * surface.max():
        down, right = _shift(surface)
        found.append(
            f"the reference looks shifted against the picture, by {right} px to the right and"
            f" {down} px down: align the two first"
        )
    sharpness = _sharpness(original)
    if sharpness < _SOFT and _sharpness(picture) > sharpness + _LESS_DETAIL:
        found.append(_SOFTER)
    if _blocks(original) > _BLOCKS:
        found.append(_COMPRESSED)
    noise = _noise(original)
    if noise > _NOISE and _noise(picture) < noise / 3:
        found.append(_NOISIER)
    return found


def _correlation(picture: np.ndarray, original: np.ndarray) -> np.ndarray:
    """How alike the two are at each shift, in the middle frequencies. Amplitudes count by their
    square root: between plain correlation, which large shapes decide, and phase correlation, which
    noise decides. Phases are doubled, against blurs that turn phases by half a circle: a shift of n
    shows at 2n."""
    height, width = picture.shape
    window = np.outer(np.hanning(height), np.hanning(width))
    one, other = (fft.rfft2((luma - luma.mean()) * window) for luma in (picture, original))
    frequency = np.hypot(fft.fftfreq(height)[:, None], fft.rfftfreq(width)[None])
    product = one * other.conj() * ((frequency > 0.02) & (frequency < 0.35))
    return fft.irfft2(product**2 / (np.abs(product) ** 1.5 + 1e-9), s=picture.shape)


def _shift(surface: np.ndarray) -> list[int]:
    """How many pixels further down and to the right the reference shows what the picture shows."""
    peak = np.unravel_index(surface.argmax(), surface.shape)
    sides = zip(peak, surface.shape, strict=True)
    return [round((side // 2 - (at + side // 2) % side) / 2) for at, side in sides]


def _blocks(luma: np.ndarray) -> float:
    """How much every eighth step between pixels stands out from its neighbours, beyond the other
    seven: the 8×8 blocks of a JPEG."""
    leads = []
    for axis in (0, 1):
        step = np.abs(np.diff(luma, axis=axis)).mean(1 - axis)
        jumps = step[1:-1] - (step[:-2] + step[2:]) / 2
        second, first = np.sort([np.median(jumps[phase::8]) for phase in range(8)])[-2:]
        leads.append((first - second) / max(step.mean(), 0.05))
    return float(min(leads))


def _noise(luma: np.ndarray) -> float:
    """Standard deviation of the noise in the smoothest tenth (J. Immerkær, Fast Noise Variance
    Estimation, CVIU 64, 1996)."""
    answer = np.abs(ndimage.convolve(luma, _LAPLACIANS, mode="nearest"))
    tiles = ndimage.uniform_filter(answer, 16)[8::16, 8::16]
    return float(np.sqrt(np.pi / 2) / 6 * np.percentile(tiles, 10))


def _sharpness(luma: np.ndarray) -> float:
    """log10 of the energy of detail finer than about three pixels, to that of structure some four
    to ten wide: −0.9 to 0.8 in clean photographs."""
    fine = luma - ndimage.gaussian_filter(luma, 1)
    coarse = ndimage.gaussian_filter(luma, 1.5) - ndimage.gaussian_filter(luma, 4)
    return float(np.log10((np.mean(fine**2) + 0.05) / (np.mean(coarse**2) + 0.05)))
