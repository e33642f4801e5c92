"""Synthetic distortions of clean photographs: 25 kinds in the paper's seven families, five severities each.

Severity 1 is just visible on a monitor, 5 ruins the picture. The strengths follow the ranges that KADID-10k and TID2013
use for the same kinds.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter
from scipy import ndimage

from agentic_iqa_local.state import DISTORTION_TYPES

# ITU-R BT.601 luma and its two colour differences; rows are Y, Cb, Cr.
RGB_TO_YCC = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], np.float32)
YCC_TO_RGB = np.linalg.inv(RGB_TO_YCC).astype(np.float32)
CLEAN_SHARE, PAIR_SHARE = 0.12, 0.35
# The order in which a camera and what follows it do their damage: light, lens, sensor, processing, storage.
STAGES = ("Brightness change", "Contrast", "Color distortions", "Blurs", "Noise", "Sharpness", "Compression")


@dataclass(frozen=True)
class Distortion:
    """One kind of distortion. `apply` takes and returns uint8 H×W×3; `severity` is 1..5."""

    family: str
    function: Callable[[np.ndarray, int, np.random.Generator], np.ndarray]

    def apply(self, image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
        if not 1 <= severity <= 5:
            raise ValueError(f"severity: expected 1 to 5, got {severity}")
        out = self.function(image.astype(np.float32), severity - 1, rng)
        return np.clip(np.rint(out), 0, 255).astype(np.uint8)


def _gaussian_blur(x, s, rng):
    sigma = (0.7, 1.2, 1.9, 3.0, 4.8)[s]
    return ndimage.gaussian_filter(x, (sigma, sigma, 0))


def _convolve(x, kernel):
    kernel = kernel / kernel.sum()
    return np.stack([ndimage.convolve(x[..., c], kernel, mode="nearest") for c in range(3)], -1)


def _defocus_blur(x, s, rng):
    radius = (1.2, 2.0, 3.2, 5.0, 7.5)[s]
    n = int(np.ceil(radius))
    yy, xx = np.mgrid[-n : n + 1, -n : n + 1]
    return _convolve(x, np.clip(radius + 0.5 - np.hypot(yy, xx), 0, 1).astype(np.float32))


def _motion_blur(x, s, rng):
    length = (4, 7, 11, 17, 26)[s]
    angle = rng.uniform(0, np.pi)
    n = length // 2 + 1
    kernel = np.zeros((2 * n + 1, 2 * n + 1), np.float32)
    for t in np.linspace(-length / 2, length / 2, 4 * length):
        kernel[n + round(t * np.sin(angle)), n + round(t * np.cos(angle))] += 1
    return _convolve(x, kernel)


def _upscale(x, s, rng):
    height, width = x.shape[:2]
    factor = (1.5, 2.0, 2.9, 4.2, 6.5)[s]
    small = Image.fromarray(x.astype(np.uint8)).resize(
        (round(width / factor), round(height / factor)), Image.Resampling.BOX
    )
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.float32)


def _denoise(x, s, rng):
    # Detail lost to a denoiser: noise, then a median filter that is wider than the noise asks for.
    noisy = np.clip(x + rng.standard_normal(x.shape, dtype=np.float32) * (2, 6, 8, 10, 13)[s], 0, 255)
    return np.asarray(
        Image.fromarray(noisy.astype(np.uint8)).filter(ImageFilter.MedianFilter((3, 3, 5, 7, 11)[s])),
        np.float32,
    )


def _white_noise(x, s, rng):
    return x + rng.standard_normal(x.shape, dtype=np.float32) * (7, 13, 23, 38, 62)[s]


def _chroma_noise(x, s, rng):
    ycc = x @ RGB_TO_YCC.T
    ycc[..., 1:] += rng.standard_normal((*x.shape[:2], 2), dtype=np.float32) * (10, 18, 30, 48, 75)[s]
    return ycc @ YCC_TO_RGB.T


def _impulse_noise(x, s, rng):
    hit = rng.random(x.shape[:2]) < (0.006, 0.017, 0.045, 0.1, 0.2)[s]
    x[hit] = rng.choice(np.array([0, 255], np.float32), (int(hit.sum()), 1))
    return x


def _speckle_noise(x, s, rng):
    return x * (1 + rng.standard_normal(x.shape, dtype=np.float32) * (0.07, 0.13, 0.22, 0.36, 0.6)[s])


def _poisson_noise(x, s, rng):
    photons = (1.2, 0.35, 0.12, 0.04, 0.012)[s]  # at each of the 255 steps of brightness
    return rng.poisson(x * photons).astype(np.float32) / photons


def _blotchy_noise(x, s, rng):
    # Noise of a demosaiced or enlarged picture: its neighbours agree.
    grain = ndimage.gaussian_filter(rng.standard_normal(x.shape, dtype=np.float32), (1.2, 1.2, 0))
    return x + grain / grain.std() * (6, 11, 18, 28, 44)[s]


def _through_codec(x, **save):
    buffer = io.BytesIO()
    Image.fromarray(x.astype(np.uint8)).save(buffer, **save)
    return np.asarray(Image.open(buffer).convert("RGB"), np.float32)


def _jpeg(x, s, rng):
    return _through_codec(x, format="JPEG", quality=(40, 24, 15, 9, 4)[s])


def _jpeg2000(x, s, rng):
    return _through_codec(x, format="JPEG2000", quality_mode="rates", quality_layers=[(24, 45, 85, 160, 300)[s]])


def _webp(x, s, rng):
    # WebP's quality scale is flat at its low end; halving the size first would mix in blur, so quality alone
    # is used.
    return _through_codec(x, format="WEBP", quality=(30, 16, 8, 3, 0)[s], method=2)


def _palette(x, s, rng):
    colours = (40, 22, 13, 8, 4)[s]
    return np.asarray(
        Image.fromarray(x.astype(np.uint8)).quantize(colours, dither=Image.Dither.NONE).convert("RGB"),
        np.float32,
    )


def _brighten(x, s, rng):
    # towards white, as an overexposed picture: 255 − (255 − x)·(1 − gain)
    gain = (0.13, 0.24, 0.37, 0.52, 0.7)[s]
    return 255 - (255 - x) * (1 - gain) + (3, 6, 10, 16, 24)[s]


def _darken(x, s, rng):
    return x * (0.82, 0.67, 0.52, 0.37, 0.22)[s]


def _contrast(x, factor):
    mean = x.mean()
    return (x - mean) * factor + mean


def _contrast_decrease(x, s, rng):
    return _contrast(x, (0.75, 0.58, 0.43, 0.29, 0.16)[s])


def _contrast_increase(x, s, rng):
    return _contrast(x, (1.35, 1.7, 2.2, 3.0, 4.2)[s])


def _desaturate(x, s, rng):
    grey = (x @ RGB_TO_YCC[0])[..., None]
    return grey + (x - grey) * (0.62, 0.45, 0.28, 0.13, 0.0)[s]


def _colour_cast(x, s, rng):
    angle = rng.uniform(0, 2 * np.pi)
    shift = np.array([0, np.cos(angle), np.sin(angle)], np.float32) * (12, 20, 31, 46, 66)[s]
    return x + YCC_TO_RGB @ shift


def _colour_bleed(x, s, rng):
    ycc = x @ RGB_TO_YCC.T
    sigma = (2.5, 4.5, 7.5, 12, 20)[s]
    ycc[..., 1:] = ndimage.gaussian_filter(ycc[..., 1:], (sigma, sigma, 0)) * (1.1, 1.2, 1.35, 1.5, 1.7)[s]
    return ycc @ YCC_TO_RGB.T


def _aberration(x, s, rng):
    # Lateral: red and blue are magnified about the centre and shifted, as through a cheap lens.
    shift = (1.2, 2.2, 3.6, 5.5, 9.0)[s]
    angle = rng.uniform(0, 2 * np.pi)
    moved = [
        ndimage.shift(x[..., c], (sign * shift * np.sin(angle), sign * shift * np.cos(angle)), order=1, mode="nearest")
        for c, sign in ((0, 0.5), (2, -0.5))
    ]
    return np.stack([moved[0], x[..., 1], moved[1]], -1)


def _unsharp(x, amount, sigma):
    return x + amount * (x - ndimage.gaussian_filter(x, (sigma, sigma, 0)))


def _oversharpen(x, s, rng):
    return _unsharp(x, (0.9, 1.7, 2.9, 4.8, 8.0)[s], 1.2)


def _halo(x, s, rng):
    return _unsharp(x, (0.7, 1.2, 2.0, 3.2, 5.0)[s], 3.0)


DISTORTIONS: dict[str, Distortion] = {
    "gaussian_blur": Distortion("Blurs", _gaussian_blur),
    "defocus_blur": Distortion("Blurs", _defocus_blur),
    "motion_blur": Distortion("Blurs", _motion_blur),
    "upscale": Distortion("Blurs", _upscale),
    "denoise": Distortion("Blurs", _denoise),
    "white_noise": Distortion("Noise", _white_noise),
    "chroma_noise": Distortion("Noise", _chroma_noise),
    "impulse_noise": Distortion("Noise", _impulse_noise),
    "speckle_noise": Distortion("Noise", _speckle_noise),
    "poisson_noise": Distortion("Noise", _poisson_noise),
    "blotchy_noise": Distortion("Noise", _blotchy_noise),
    "jpeg": Distortion("Compression", _jpeg),
    "jpeg2000": Distortion("Compression", _jpeg2000),
    "webp": Distortion("Compression", _webp),
    "palette": Distortion("Compression", _palette),
    "brighten": Distortion("Brightness change", _brighten),
    "darken": Distortion("Brightness change", _darken),
    "contrast_decrease": Distortion("Contrast", _contrast_decrease),
    "contrast_increase": Distortion("Contrast", _contrast_increase),
    "desaturate": Distortion("Color distortions", _desaturate),
    "colour_cast": Distortion("Color distortions", _colour_cast),
    "colour_bleed": Distortion("Color distortions", _colour_bleed),
    "aberration": Distortion("Color distortions", _aberration),
    "oversharpen": Distortion("Sharpness", _oversharpen),
    "halo": Distortion("Sharpness", _halo),
}

KINDS_BY_FAMILY: dict[str, tuple[str, ...]] = {
    family: tuple(k for k, d in DISTORTIONS.items() if d.family == family) for family in DISTORTION_TYPES
}


@dataclass(frozen=True)
class Part:
    """One distortion of a picture; severity 1..5. `place` is a quarter of the picture, None when it is everywhere."""

    kind: str
    severity: int
    place: str | None = None

    @property
    def family(self) -> str:
        return DISTORTIONS[self.kind].family


@dataclass(frozen=True)
class Sample:
    """A photograph with what was done to it, the strongest first; a clean one has no parts."""

    image: np.ndarray
    parts: tuple[Part, ...]


def draw_parts(rng: np.random.Generator) -> tuple[Part, ...]:
    """12 % none, else one kind or two of different families: family, kind within it, and severity 1..5 are uniform."""
    if rng.random() < CLEAN_SHARE:
        return ()
    families = rng.permutation(DISTORTION_TYPES)[: 2 if rng.random() < PAIR_SHARE else 1]
    parts = [Part(str(rng.choice(KINDS_BY_FAMILY[str(f)])), int(rng.integers(1, 6))) for f in families]
    return tuple(sorted(parts, key=lambda part: -part.severity))


def distort(image: np.ndarray, parts: tuple[Part, ...], rng: np.random.Generator) -> Sample:
    """Applies `parts` everywhere on `image` (uint8 H×W×3), in the order of STAGES."""
    for part in sorted(parts, key=lambda part: STAGES.index(part.family)):
        image = DISTORTIONS[part.kind].apply(image, part.severity, rng)
    return Sample(image, parts)
