"""The pictures and the questions that gaps are planted in."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.synthetic.distortions import draw_sample
from agentic_iqa_local.synthetic.photos import Crop, load_tiles, photo_files
from agentic_iqa_local.synthetic.pseudo_mos import PseudoMos

SEED = 20261123
FAIR = 3.0
REGIONS = (
    ("foreground", "background"),
    ("left side", "right side"),
    ("upper half", "lower half"),
    ("centre", "corners"),
)
WORDINGS = (
    "Rate the quality of the {} and the {}.",
    "Rate the {} and the {}.",
    "How good are the {} and the {}?",
)
REFERENCE, NO_REFERENCE, TWO_REGIONS = FORMS = ("with a reference", "without a reference", "two regions")

VARIED_SIDE = 384
KERNELS = (Image.Resampling.BOX, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS)


def vary(tile: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A clean picture like `tile` but not it: another scale, frame, gamma, saturation and white balance, all
    still natural.

    Without it a model learns a few hundred photographs by heart, and with them what each should look like.
    H×W×3 uint8 → 384×384×3.
    """
    kernel = KERNELS[int(rng.integers(len(KERNELS)))]
    side = int(rng.integers(VARIED_SIDE, tile.shape[0] + 1))
    picture = Image.fromarray(tile).resize((side, side), kernel)
    top, left = rng.integers(0, side - VARIED_SIDE + 1, size=2)
    picture = picture.crop((left, top, left + VARIED_SIDE, top + VARIED_SIDE))
    picture = ImageEnhance.Color(picture).enhance(rng.uniform(0.8, 1.2))
    picture = ImageEnhance.Contrast(picture).enhance(rng.uniform(0.92, 1.08))
    gains = rng.uniform(0.95, 1.05, size=3)
    pixels = 255 * (np.asarray(picture, np.float32) / 255) ** rng.uniform(0.85, 1.18) * gains
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Case:
    """One synthetic picture: its crop with what was done to it and its pseudo-MOS, its files, and the
    photograph that it is of."""

    number: int
    crop: Crop
    photo: str
    image: Path
    reference: Path


@dataclass(frozen=True)
class Question:
    """What is asked of a case; `scope` is None for the whole picture."""

    form: str
    query: str
    scope: tuple[str, ...] | None
    reference: Path | None

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that it names, none for the whole picture."""
        return self.scope or ()


def make_cases(photos: Path, count: int, folder: Path, progress: Callable[[str], None]) -> list[Case]:
    """`count` pictures of 384×384 in `folder`, made of the photographs in the folder `photos` in turn.

    Each is another crop, scale and tone of its photograph, with distortions drawn as for the training: 12 %
    clean, a third of the others with two, severities uniform in 1..5. Raises UserError for a folder without
    photographs, and for one that cannot be used.
    """
    files = photo_files(photos) if photos.is_dir() else []
    if not files:
        raise UserError(
            f"{photos}: expected a folder of photographs of at least 512×512 pixels, found none",
            "check the path",
        )
    order = np.random.default_rng(SEED).permutation(len(files))[:count]
    measure, cases, tiles = PseudoMos(), [], {}
    for number in range(count):
        file = files[order[number % len(order)]]
        rng = np.random.default_rng([SEED, number])
        if file not in tiles:
            try:
                tiles[file] = load_tiles([file])
            except ValueError as error:  # too small
                raise UserError(f"{error}", "take it out of the folder") from error
        clean = vary(tiles[file][int(rng.integers(len(tiles[file])))], rng)
        sample = draw_sample(clean, rng)
        case = Case(
            number,
            Crop(sample, clean, measure(sample.image, clean)),
            file.name,
            folder / f"{number}.png",
            folder / f"{number}_clean.png",
        )
        Image.fromarray(sample.image).save(case.image)
        Image.fromarray(clean).save(case.reference)
        cases.append(case)
        progress(f"picture {number + 1} of {count}")
    return cases


def question(case: Case, form: str) -> Question:
    """The question of one of FORMS. A clean picture is its own reference, so that it can be asked about
    without one alone."""
    if form == TWO_REGIONS:
        rng = np.random.default_rng([SEED, case.number, 1])
        scope = REGIONS[int(rng.integers(len(REGIONS)))]
        return Question(form, WORDINGS[int(rng.integers(len(WORDINGS)))].format(*scope), scope, None)
    return Question(form, DEFAULT_QUERY, None, case.reference if form == REFERENCE else None)
