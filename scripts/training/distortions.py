"""Synthetic distortions of clean photographs: 25 kinds in the paper's seven families, five severities each.

Severity 1 is just visible on a monitor, 5 ruins the picture. The strengths follow the ranges that KADID-10k and TID2013
use for the same kinds.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageFilter
from scipy import ndimage

from agentic_iqa_local.state import DISTORTION_TYPES

# ITU-R BT.601 luma and its two colour differences; rows are Y, Cb, Cr.
RGB_TO_YCC = np.array(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], np.float32
)
YCC_TO_RGB = np.linalg.inv(RGB_TO_YCC).astype(np.float32)
CLEAN_SHARE, PAIR_SHARE = 0.12, 0.35
# The order in which a camera and what follows it do their damage: light, lens, sensor, processing, storage.
STAGES = (
    "Brightness change",
    "Contrast",
    "Color distortions",
    "Blurs",
    "Noise",
    "Sharpness",
    "Compression",
)


@dataclass(frozen=True)
class Distortion:
    """One kind of distortion. `function` takes float32 H×W×3 in 0..255, a strength and a generator; there is a strength
    for each severity."""

    family: str
    function: Callable[[np.ndarray, Any, np.random.Generator], np.ndarray]
    strengths: tuple[Any, Any, Any, Any, Any]

    def apply(self, image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
        """`image`, uint8 H×W×3, at a severity of 1 to 5. Raises ValueError for another."""
        if not 1 <= severity <= 5:
            raise ValueError(f"severity: expected 1 to 5, got {severity}")
        out = self.function(image.astype(np.float32), self.strengths[severity - 1], rng)
        return np.clip(np.rint(out), 0, 255).astype(np.uint8)


def _blurred(x, sigma):
    return ndimage.gaussian_filter(x, (sigma, sigma, 0))


def _picture(x):
    return Image.fromarray(x.astype(np.uint8))


def _normal(x, rng):
    return rng.standard_normal(x.shape, dtype=np.float32)


def _convolve(x, kernel):
    return np.stack(
        [ndimage.convolve(x[..., c], kernel / kernel.sum(), mode="nearest") for c in range(3)], -1
    )


def _defocus_blur(x, radius, rng):
    n = int(np.ceil(radius))
    yy, xx = np.mgrid[-n : n + 1, -n : n + 1]
    return _convolve(x, np.clip(radius + 0.5 - np.hypot(yy, xx), 0, 1).astype(np.float32))


def _motion_blur(x, length, rng):
    angle, n = rng.uniform(0, np.pi), length // 2 + 1
    kernel = np.zeros((2 * n + 1, 2 * n + 1), np.float32)
    for t in np.linspace(-length / 2, length / 2, 4 * length):
        kernel[n + round(t * np.sin(angle)), n + round(t * np.cos(angle))] += 1
    return _convolve(x, kernel)


def _upscale(x, factor, rng):
    height, width = x.shape[:2]
    small = _picture(x).resize(
        (round(width / factor), round(height / factor)), Image.Resampling.BOX
    )
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.float32)


def _denoise(x, strength, rng):
    """Detail lost to a denoiser: noise, then a median filter that is wider than the noise asks for."""
    sigma, side = strength
    noisy = np.clip(x + _normal(x, rng) * sigma, 0, 255)
    return np.asarray(_picture(noisy).filter(ImageFilter.MedianFilter(side)), np.float32)


def _chroma_noise(x, sigma, rng):
    ycc = x @ RGB_TO_YCC.T
    ycc[..., 1:] += _normal(ycc[..., 1:], rng) * sigma
    return ycc @ YCC_TO_RGB.T


def _impulse_noise(x, share, rng):
    hit = rng.random(x.shape[:2]) < share
    x[hit] = rng.choice(np.array([0, 255], np.float32), (int(hit.sum()), 1))
    return x


def _poisson_noise(x, photons, rng):
    """`photons` at each of the 255 steps of brightness."""
    return rng.poisson(x * photons).astype(np.float32) / photons


def _blotchy_noise(x, sigma, rng):
    """Noise of a demosaiced or enlarged picture: its neighbours agree."""
    grain = _blurred(_normal(x, rng), 1.2)
    return x + grain / grain.std() * sigma


def through_codec(x: np.ndarray, **save: Any) -> np.ndarray:
    """`x` (H×W×3, 0..255) as a file holds it that Pillow saved so, float32."""
    buffer = io.BytesIO()
    _picture(x).save(buffer, **save)
    return np.asarray(Image.open(buffer).convert("RGB"), np.float32)


def _codec(x, quality, rng, **save):
    return through_codec(x, quality=quality, **save)


def _jpeg2000(x, rate, rng):
    return through_codec(x, format="JPEG2000", quality_mode="rates", quality_layers=[rate])


def _palette(x, colours, rng):
    return np.asarray(
        _picture(x).quantize(colours, dither=Image.Dither.NONE).convert("RGB"), np.float32
    )


def _brighten(x, strength, rng):
    """Towards white, as an overexposed picture."""
    gain, offset = strength
    return 255 - (255 - x) * (1 - gain) + offset


def _contrast(x, factor, rng):
    return (x - x.mean()) * factor + x.mean()


def _desaturate(x, saturation, rng):
    grey = (x @ RGB_TO_YCC[0])[..., None]
    return grey + (x - grey) * saturation


def _colour_cast(x, strength, rng):
    angle = rng.uniform(0, 2 * np.pi)
    return x + YCC_TO_RGB @ (np.array([0, np.cos(angle), np.sin(angle)], np.float32) * strength)


def _colour_bleed(x, strength, rng):
    sigma, gain = strength
    ycc = x @ RGB_TO_YCC.T
    ycc[..., 1:] = _blurred(ycc[..., 1:], sigma) * gain
    return ycc @ YCC_TO_RGB.T


def _aberration(x, shift, rng):
    """Lateral: red and blue are shifted apart, as through a cheap lens."""
    angle = rng.uniform(0, 2 * np.pi)
    for channel, half in ((0, 0.5 * shift), (2, -0.5 * shift)):
        moved = half * np.sin(angle), half * np.cos(angle)
        x[..., channel] = ndimage.shift(x[..., channel], moved, order=1, mode="nearest")
    return x


def _unsharp(x, amount, rng, sigma):
    return x + amount * (x - _blurred(x, sigma))


DISTORTIONS: dict[str, Distortion] = {
    "gaussian_blur": Distortion(
        "Blurs", lambda x, sigma, rng: _blurred(x, sigma), (0.7, 1.2, 1.9, 3.0, 4.8)
    ),
    "defocus_blur": Distortion("Blurs", _defocus_blur, (1.2, 2.0, 3.2, 5.0, 7.5)),
    "motion_blur": Distortion("Blurs", _motion_blur, (4, 7, 11, 17, 26)),
    "upscale": Distortion("Blurs", _upscale, (1.5, 2.0, 2.9, 4.2, 6.5)),
    "denoise": Distortion("Blurs", _denoise, ((2, 3), (6, 3), (8, 5), (10, 7), (13, 11))),
    "white_noise": Distortion(
        "Noise", lambda x, sigma, rng: x + _normal(x, rng) * sigma, (7, 13, 23, 38, 62)
    ),
    "chroma_noise": Distortion("Noise", _chroma_noise, (10, 18, 30, 48, 75)),
    "impulse_noise": Distortion("Noise", _impulse_noise, (0.006, 0.017, 0.045, 0.1, 0.2)),
    "speckle_noise": Distortion(
        "Noise", lambda x, s, rng: x * (1 + s * _normal(x, rng)), (0.07, 0.13, 0.22, 0.36, 0.6)
    ),
    "poisson_noise": Distortion("Noise", _poisson_noise, (1.2, 0.35, 0.12, 0.04, 0.012)),
    "blotchy_noise": Distortion("Noise", _blotchy_noise, (6, 11, 18, 28, 44)),
    "jpeg": Distortion("Compression", partial(_codec, format="JPEG"), (40, 24, 15, 9, 4)),
    "jpeg2000": Distortion("Compression", _jpeg2000, (24, 45, 85, 160, 300)),
    # Its scale is flat at the low end; halving the size first would mix in blur, so quality alone is used.
    "webp": Distortion("Compression", partial(_codec, format="WEBP", method=2), (30, 16, 8, 3, 0)),
    "palette": Distortion("Compression", _palette, (40, 22, 13, 8, 4)),
    "brighten": Distortion(
        "Brightness change", _brighten, ((0.13, 3), (0.24, 6), (0.37, 10), (0.52, 16), (0.7, 24))
    ),
    "darken": Distortion(
        "Brightness change", lambda x, factor, rng: x * factor, (0.82, 0.67, 0.52, 0.37, 0.22)
    ),
    "contrast_decrease": Distortion("Contrast", _contrast, (0.75, 0.58, 0.43, 0.29, 0.16)),
    "contrast_increase": Distortion("Contrast", _contrast, (1.35, 1.7, 2.2, 3.0, 4.2)),
    "desaturate": Distortion("Color distortions", _desaturate, (0.62, 0.45, 0.28, 0.13, 0.0)),
    "colour_cast": Distortion("Color distortions", _colour_cast, (12, 20, 31, 46, 66)),
    "colour_bleed": Distortion(
        "Color distortions",
        _colour_bleed,
        ((2.5, 1.1), (4.5, 1.2), (7.5, 1.35), (12, 1.5), (20, 1.7)),
    ),
    "aberration": Distortion("Color distortions", _aberration, (1.2, 2.2, 3.6, 5.5, 9.0)),
    "oversharpen": Distortion("Sharpness", partial(_unsharp, sigma=1.2), (0.9, 1.7, 2.9, 4.8, 8.0)),
    "halo": Distortion("Sharpness", partial(_unsharp, sigma=3.0), (0.7, 1.2, 2.0, 3.2, 5.0)),
}
KINDS_BY_FAMILY: dict[str, tuple[str, ...]] = {
    family: tuple(k for k, d in DISTORTIONS.items() if d.family == family)
    for family in DISTORTION_TYPES
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
    parts = [
        Part(str(rng.choice(KINDS_BY_FAMILY[str(f)])), int(rng.integers(1, 6))) for f in families
    ]
    return tuple(sorted(parts, key=lambda part: -part.severity))


def distort(image: np.ndarray, parts: tuple[Part, ...], rng: np.random.Generator) -> Sample:
    """Applies `parts` everywhere on `image` (uint8 H×W×3), in the order of STAGES."""
    for part in sorted(parts, key=lambda part: STAGES.index(part.family)):
        image = DISTORTIONS[part.kind].apply(image, part.severity, rng)
    return Sample(image, parts)
