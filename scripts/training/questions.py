"""Questions with known answers about distorted photographs, by which the sets of answers are calibrated.

  python scripts/training/questions.py PHOTOS MORE --out questions      pictures and manifest.csv
  python scripts/study.py run questions/manifest.csv --out runs/questions
  python scripts/study.py fit runs/rated runs/questions --objective keep --share 1 --out fit.json

The photographs are those that LocalNR was not trained on. Each is clean or has one distortion, and three questions are
asked: which distortion is the strongest, whether a distortion is there, and how severe one is.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from distortions import KINDS_BY_FAMILY, Part, distort
from local_nr_pool import split
from PIL import Image
from synthetic import load_tiles

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentic_iqa_local.output.tables import write_csv

SEED, CLEAN = 20261127, 0.25
FAMILIES = {  # what choices call each, and a question about it
    "Blurs": ("Blur", "Is this picture blurry?"),
    "Noise": ("Noise", "Is there noise in this picture?"),
    "Compression": ("Compression", "Are there visible compression artefacts?"),
    "Contrast": ("Contrast", "Is the contrast wrong?"),
    "Sharpness": ("Oversharpening", "Is it oversharpened?"),
    "Brightness change": ("Brightness", "Is it too dark or too bright?"),
    "Color distortions": ("Colour distortion", "Is there a colour cast?"),
}
WORDS = ("none", "slight", "moderate", "severe", "extreme")
STEPS = (0, 1, 2, 2, 3, 4)  # the word of each severity of `distortions`, from 0 for a clean picture


def asked(part: Part | None, rng: np.random.Generator) -> Iterator[tuple[str, list[str], str]]:
    """(question, choices, right answer) about a picture with this distortion, or with none."""
    present = [part.family] if part else []
    absent = [family for family in FAMILIES if family not in present]
    absent = list(map(str, rng.permutation(absent)))
    family, severity = absent[0], 0
    if part and rng.random() < 0.5:
        family, severity = part.family, part.severity
    count = int(rng.integers(2, 5))
    names = [FAMILIES[one][0] for one in (present + absent)[:count]]
    choices = list(map(str, rng.permutation([*names, "None"])))
    yield "Which distortion is the strongest?", choices, names[0] if present else "None"
    yield FAMILIES[family][1], ["Yes", "No"], "Yes" if severity else "No"
    yield f"How severe is the {FAMILIES[family][0].lower()}?", [*WORDS], WORDS[STEPS[severity]]


def write_set(photos: Sequence[Path], folder: Path) -> Iterator[dict[str, Any]]:
    """Writes a picture of each photograph; yields the rows of the manifest."""
    rng = np.random.default_rng(SEED)
    for number, tile in enumerate(load_tiles(photos)):
        part = None
        if rng.random() >= CLEAN:
            family = str(rng.choice([*FAMILIES]))
            kind = str(rng.choice(KINDS_BY_FAMILY[family]))
            part = Part(kind, int(rng.integers(2, 6)))
        name = f"{number:03}.png"
        Image.fromarray(distort(tile, (part,) if part else (), rng).image).save(folder / name)
        for question, choices, answer in asked(part, rng):
            row = {"image": name, "question": question, "choices": "|".join(choices)}
            yield row | {"answer": answer}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path, nargs="+", help="folders of clean photographs")
    parser.add_argument("--out", type=Path, required=True, help="new folder for the set")
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    with (args.out / "manifest.csv").open("w", newline="", encoding="utf-8") as file:
        columns = ("image", "question", "choices", "answer")
        write_csv(file, columns, write_set(split(args.photos)[1], args.out))


if __name__ == "__main__":
    main()
