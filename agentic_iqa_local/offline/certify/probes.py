"""The probe pictures: the sample photographs that ship and synthetic distortions of them, the same
everywhere."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.reading import load_image
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.synthetic.distortions import DISTORTIONS

FOLDER = ROOT / "tests" / "data"
SEED = 20261124
WINDOW = (128, 144, 384, 368)  # 256×224: whole tokens of 28 and of 32 pixels, so that nothing is resized
ODD = (101, 77, 351, 307)  # 250×230: no whole tokens, so that a part is shown or it is resized
WHOLE = (0, 0, 512, 512)
SMALL = 128  # pixels a side of the parts that batches are made of

# photograph, part, distortion and severity
_MADE = (
    ("sumac", WINDOW, None, 0),
    ("sumac", WINDOW, "gaussian_blur", 2),
    ("sumac", WINDOW, "gaussian_blur", 4),
    ("sumac", WINDOW, "white_noise", 3),
    ("sumac", WINDOW, "jpeg", 4),
    ("sumac", WINDOW, "darken", 4),
    ("prudential", WINDOW, None, 0),
    ("prudential", WINDOW, "upscale", 3),
    ("prudential", WINDOW, "impulse_noise", 3),
    ("prudential", WINDOW, "jpeg", 2),
    ("prudential", WINDOW, "brighten", 3),
    ("prudential", WINDOW, "contrast_increase", 4),
    ("sumac", WHOLE, None, 0),
    ("prudential", WHOLE, "white_noise", 2),
    ("sumac", ODD, None, 0),
    ("prudential", ODD, "gaussian_blur", 3),
)


class ProbeError(UserError, ValueError):
    """Sample photographs that are not there."""


@dataclass(frozen=True)
class Probe:
    """One picture. `sha256` is of its size and its pixels, not of a file; `clean` is the same part without
    the distortion."""

    name: str
    pixels: Image.Image
    clean: Image.Image
    sha256: str


def photograph(name: str) -> np.ndarray:
    """A sample photograph, uint8 512×512×3. Raises ProbeError."""
    try:
        return np.asarray(load_image(FOLDER / f"{name}.png").pixels)
    except ImageError as error:
        raise ProbeError(error.message, "get the checkout or the installation again") from error


def make_probes() -> list[Probe]:
    """All probes. Raises ProbeError."""
    photos = {name: photograph(name) for name in dict.fromkeys(made[0] for made in _MADE)}
    probes = []
    for number, (photo, (left, top, right, bottom), kind, severity) in enumerate(_MADE):
        clean = np.ascontiguousarray(photos[photo][top:bottom, left:right])
        rng = np.random.default_rng([SEED, number])
        pixels = clean if kind is None else DISTORTIONS[kind].apply(clean, severity, rng)
        name = f"{number:02d}_{photo}_{right - left}x{bottom - top}_{kind or 'clean'}{severity or ''}"
        probes.append(Probe(name, Image.fromarray(pixels), Image.fromarray(clean), _digest(pixels)))
    return probes


def _digest(pixels: np.ndarray) -> str:
    return hashlib.sha256(f"{pixels.shape}".encode() + pixels.tobytes()).hexdigest()


def write_probes(probes: Iterable[Probe], folder: Path) -> None:
    """Each probe as NAME.png, its clean part as NAME.clean.png."""
    for probe in probes:
        probe.pixels.save(folder / f"{probe.name}.png")
        probe.clean.save(folder / f"{probe.name}.clean.png")


def small_part(picture: Image.Image) -> Image.Image:
    """The middle of a picture, SMALL pixels a side: parts of one size, which engines can read side by
    side."""
    left, top = (picture.width - SMALL) // 2, (picture.height - SMALL) // 2
    return picture.crop((left, top, left + SMALL, top + SMALL))
