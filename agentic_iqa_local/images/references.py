"""Is a reference the pristine original of its picture? Plain image statistics say where it looks
otherwise.

Full-reference tools assume that it is. The bounds below lie between two groups of measurements:
clean photographs as references of pictures with 25 kinds of distortion at five severities, and
references that are another picture, shifted, softer, re-encoded or swapped. A doubt is a warning,
never a refusal.
"""

from collections.abc import Iterator

import numpy as np
from PIL import Image
from scipy import fft, ndimage

_SIDE = 768  # pixels a side of the middle part that is looked at
_LEAST_SIDE = 128  # pixels a side below which the statistics are of too few pixels
_FLAT = 2.0  # standard deviation of luma below which there is nothing to compare

# correlation of coarse structure: other photographs reach 0.15, strong noise leaves 0.4
_SAME_SCENE = 0.2
_PEAK = 13.5  # that correlation in standard deviations over all shifts: other photographs reach 12
_SHIFT_BETTER = 0.8  # largest correlation without a shift, as a part of that at the best shift
_SOFT = -0.92  # `_sharpness` of photographs lies above
_LESS_DETAIL = 0.3  # by which the picture's sharpness exceeds that of a softer reference
_SAME_DETAIL = 0.25  # rank correlation of the picture's fine detail with the reference's structure
# clean photographs reach 0.02, JPEGs of quality 92 mostly 0.1, of quality 20 0.2 to 4
_BLOCKS = 0.18
_NOISE = 5.0  # standard deviation, of 255
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
    return list(_doubts(picture, original))


def _doubts(picture: np.ndarray, original: np.ndarray) -> Iterator[str]:
    surface = _correlation(picture, original, 0.12)
    if surface.max() <= min(_SAME_SCENE, _PEAK * surface.std()):
        yield "the reference looks like another picture, or is turned, mirrored or scaled: give this picture's original"
        return
    if moved := _shift(_correlation(picture, original, 0.35, power=2)):
        yield f"the reference looks shifted by {moved} against the picture: align the two first"
    blocks = _blocks(original)
    if _has_less_detail(original, picture):
        yield "the reference is softer than the picture: they may be swapped, or the reference is blurred or enlarged"
    if blocks > _BLOCKS:
        hardly = _blocks(picture) < blocks / 4
        swapped = ", and the picture hardly any: the two may be swapped" if hardly else ""
        yield f"the reference shows the 8×8 blocks of JPEG compression{swapped}: give the uncompressed original"
    if (noise := _noise(original)) > _NOISE and _noise(picture) < noise / 3:
        yield "the reference is noisier than the picture: the two may be swapped, or the picture was denoised"


def _by_tiles(values: np.ndarray) -> np.ndarray:
    """Means of 16×16 pixels."""
    height, width = (side // 16 for side in values.shape)
    return values[: height * 16, : width * 16].reshape(height, 16, width, 16).mean((1, 3))


def _correlation(
    picture: np.ndarray, original: np.ndarray, finest: float, power: int = 1
) -> np.ndarray:
    """How alike the two are (at most 1) at each shift, from 0.02 to `finest` cycles a pixel.
    Amplitudes count by their square root: between plain correlation, which large shapes decide, and
    phase correlation, which noise decides. With `power` 2 phases are doubled, against blurs that
    turn phases by half a circle: a shift of n shows at 2n."""
    height, width = picture.shape
    window = np.outer(*(np.hanning(side).astype(np.float32) for side in picture.shape))
    one, other = (
        np.asarray(fft.rfft2((luma - luma.mean()) * window)) for luma in (picture, original)
    )
    frequency = np.hypot(fft.fftfreq(height)[:, None], fft.rfftfreq(width)[None])
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
    sides = zip(peak, surface.shape, strict=True)
    down, right = (-round(((int(at) + side // 2) % side - side // 2) / 2) for at, side in sides)
    parts = []
    if right:
        parts.append(f"{abs(right)} px to the {'right' if right > 0 else 'left'}")
    if down:
        parts.append(f"{abs(down)} px {'down' if down > 0 else 'up'}")
    return " and ".join(parts)


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
    return float(np.sqrt(np.pi / 2) / 6 * np.percentile(_by_tiles(answer), 10))


def _detail(luma: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Energy, by tiles, of detail finer than about three pixels and of structure some four to ten
    wide, and log10 of their ratio: −0.9 to 0.8 in clean photographs."""
    fine = _by_tiles((luma - ndimage.gaussian_filter(luma, 1)) ** 2)
    coarse = _by_tiles((ndimage.gaussian_filter(luma, 1.5) - ndimage.gaussian_filter(luma, 4)) ** 2)
    return fine, coarse, float(np.log10((fine.mean() + 0.05) / (coarse.mean() + 0.05)))


def _has_less_detail(original: np.ndarray, picture: np.ndarray) -> bool:
    """Whether the reference is softer than photographs are, and the picture has finer detail where
    the reference has structure: noise of the picture's own would lie everywhere."""
    (_, coarse, of_original), (fine, _, of_picture) = _detail(original), _detail(picture)
    if of_original > _SOFT or of_picture - of_original < _LESS_DETAIL:
        return False
    one, other = (np.argsort(np.argsort(energy, axis=None)) for energy in (fine, coarse))
    return bool(np.corrcoef(one, other)[0, 1] > _SAME_DETAIL)
