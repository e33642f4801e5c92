"""Makes a set of questions with choices about distorted photographs that the embedded model has not seen, for
`study run`: what calibrates the sets of answers.

    python scripts/training/choice_set.py PHOTOS OUT [--per-photo 12]
"""

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[2]))

from distortions import Part, Sample, distort, draw_parts
from synthetic import load_tiles, split_photos

from agentic_iqa_local.cli.console import safe_streams
from agentic_iqa_local.output.tables import write_csv
from agentic_iqa_local.state import DISTORTION_TYPES

SEED = 7019
COLUMNS = ("image", "question", "choices", "answer", "question_type")

WHICH = (
    "Which distortion is most visible in the image?",
    "What is the main distortion?",
    "What is wrong with this picture?",
)
WHETHER = (
    "Is the image {a}?",
    "Does the picture look {a}?",
    "Is there {n} in this image?",
    "Do you see {n}?",
)
HOW_SEVERE = (
    "How severe is the distortion?",
    "How visible are the artifacts?",
    "How badly is the picture degraded?",
)
# a noun and an adjective for each family
WORDS = {
    "Blurs": ("blur", "blurry"),
    "Color distortions": ("color damage", "wrong in color"),
    "Compression": ("compression damage", "damaged by compression"),
    "Noise": ("noise", "noisy"),
    "Brightness change": ("wrong exposure", "too dark or too bright"),
    "Sharpness": ("oversharpening", "oversharpened"),
    "Contrast": ("wrong contrast", "wrong in contrast"),
}

SEVERITY_WORDS = ("none", "slight", "moderate", "moderate", "severe", "extreme")  # of each severity 0..5

Asked = tuple[str, list[str], str]  # question, choices, the right one


def visible(sample: Sample) -> list[Part]:
    """The distortions that count as seen, the strongest first."""
    return [part for part in sample.parts if part.severity > 1]


def families(sample: Sample) -> set[str]:
    return {part.family for part in sample.parts}


def which(sample: Sample, rng: random.Random) -> Asked:
    """The distortion that is there, among three or four that are not."""
    parts = visible(sample)
    right = parts[0].family if parts else "None"
    absent = [family for family in DISTORTION_TYPES if family not in families(sample)]
    wrong = rng.sample(absent, rng.choice((2, 3, 4)))
    if parts and rng.random() < 0.5:
        wrong[0] = "None"
    choices = [right, *wrong]
    rng.shuffle(choices)
    return rng.choice(WHICH), choices, right


def whether(sample: Sample, rng: random.Random) -> Asked:
    """Yes or no to a flaw that is there, or to one that is not."""
    parts = visible(sample)
    there = bool(parts) and rng.random() < 0.55
    absent = [family for family in DISTORTION_TYPES if family not in families(sample)]
    family = parts[0].family if there else rng.choice(absent)
    noun, adjective = WORDS[family]
    return rng.choice(WHETHER).format(n=noun, a=adjective), ["Yes", "No"], "Yes" if there else "No"


def how_severe(sample: Sample, rng: random.Random) -> Asked:
    """The strength of the strongest distortion."""
    parts = visible(sample)
    right = SEVERITY_WORDS[parts[0].severity].capitalize() if parts else "None"
    return rng.choice(HOW_SEVERE), ["None", "Slight", "Moderate", "Severe", "Extreme"], right


KINDS: tuple[tuple[str, Callable[[Sample, random.Random], Asked]], ...] = (
    ("which distortion", which),
    ("yes or no", whether),
    ("how severe", how_severe),
)


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("photos", type=Path, help="folder of clean photographs; the part held out is used")
    parser.add_argument("out", type=Path, help="new folder for pictures and questions.csv")
    parser.add_argument("--per-photo", type=int, default=12, help="questions about each (default: 12)")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True)
    rng, drawn, rows = random.Random(SEED), np.random.default_rng(SEED), []
    photos = load_tiles(split_photos(args.photos)[1])
    for i, photo in enumerate(track([photo for photo in photos for _ in range(args.per_photo)])):
        name, (kind, ask) = f"{i:04}.png", KINDS[i % len(KINDS)]
        sample = distort(photo, draw_parts(drawn), drawn)
        Image.fromarray(sample.image).save(args.out / name)
        question, choices, right = ask(sample, rng)
        told = {"image": name, "question": question, "choices": "|".join(choices), "answer": right}
        rows.append(told | {"question_type": kind})
    with (args.out / "questions.csv").open("w", newline="", encoding="utf-8") as file:
        write_csv(file, COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
