"""How often the gate says worse, not worse and undecided: its error where nothing changed, and its power.

    python scripts/bench/gate.py rows PHOTOS MORE --photographs 80 --out rows.jsonl
    python scripts/bench/gate.py table rows.jsonl --draws 200

`rows` assesses each change of each photograph once by the letters pipeline, alone and with the original; the same
command goes on. `table` draws sets of photographs from those rows and judges each as the command gate does.
"""

import argparse
import io
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.preference import measurements
from agentic_iqa_local.judgement.worse import Rule, decide
from agentic_iqa_local.services import load_services

SEED = 20261128
Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def coded(kind: str, **how: int) -> Change:
    """What an encoder and its decoder make of a picture."""

    def change(picture: Image.Image, _: np.random.Generator) -> Image.Image:
        content = io.BytesIO()
        picture.save(content, kind, **how)
        return Image.open(content).convert("RGB")

    return change


def computed(function: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Change:
    """A change of the values, H×W×3 in 0..255."""

    def change(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
        values = function(np.asarray(picture, np.float64), rng)
        return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))

    return change


def _shifted(values: np.ndarray, _: np.random.Generator) -> np.ndarray:
    return np.concatenate([values[:, :1], values[:, :-1]], axis=1)


PICTURES: dict[str, Change] = {
    "original": computed(lambda values, _: values),
    "JPEG 90": coded("JPEG", quality=90),
    "JPEG 70": coded("JPEG", quality=70),
    "JPEG 90, 4:4:4": coded("JPEG", quality=90, subsampling=0),
    "JPEG 95": coded("JPEG", quality=95, subsampling=0),
    "blur .8": computed(lambda values, _: ndimage.gaussian_filter(values, (0.8, 0.8, 0))),
    "noise 6": computed(lambda values, rng: values + 6 * rng.standard_normal(values.shape)),
    "gamma 1.25": computed(lambda values, _: 255 * (values / 255) ** 1.25),
    "shift": computed(_shifted),
    "JPEG 15": coded("JPEG", quality=15),
}
CHANGES = {  # what is compared: the old picture and the new one
    "lossless re-encoding": ("original", "original"),  # the gate compares pixels: never asked
    "JPEG 95": ("original", "JPEG 95"),
    "JPEG 90 → 70": ("JPEG 90", "JPEG 70"),
    "blur σ .8": ("original", "blur .8"),
    "noise σ 6": ("original", "noise 6"),
    "gamma 1.25": ("original", "gamma 1.25"),
    "chroma subsampling": ("JPEG 90, 4:4:4", "JPEG 90"),
    "shift by a pixel": ("original", "shift"),
    "JPEG 15 of one in five": ("original", "JPEG 15"),
}
SOME = "JPEG 15 of one in five"  # the other pictures stay as they were


def photographs(folders: list[Path], count: int) -> list[Path]:
    """As many files of each folder, one of each photograph."""
    chosen = []
    for number, folder in enumerate(folders):
        # of a photograph's tiles, NAME_0 to NAME_9, the last
        one_each = {re.sub(r"_\d$", "", file.stem): file for file in sorted(folder.glob("*.webp"))}
        order = np.random.default_rng(SEED + number).permutation(len(one_each))
        files = list(one_each.values())
        chosen.append([files[i] for i in order[: count // len(folders)]])
    return [file for pair in zip(*chosen, strict=False) for file in pair]


def rows(args: argparse.Namespace) -> None:
    """Appends a row for each picture that has none yet."""
    args.out.touch()
    done = {(row["photo"], row["name"], row["reference"]) for row in stored(args.out)}
    services = load_services()
    with args.out.open("a") as out:
        for file in photographs(args.folders, args.photographs):
            original = Image.open(file).convert("RGB")
            for name, change in PICTURES.items():
                picture = change(original, np.random.default_rng(SEED))
                for reference in (False, True):
                    if (file.stem, name, reference) not in done:
                        row = _row(picture, original if reference else None, services)
                        about = {"photo": file.stem, "name": name, "reference": reference}
                        print(json.dumps(about | row), file=out, flush=True)


def _row(picture: Image.Image, original: Image.Image | None, services) -> dict:
    began = time.perf_counter()
    found = assess(picture, original, pipeline="letters", services=services)
    if found.fusion is None:
        raise SystemExit(found.error)
    seconds = time.perf_counter() - began
    return {"measured": measurements(found), "q_bar": found.fusion.q_bar, "seconds": seconds}


def stored(path: Path) -> Iterator[dict]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


SIZES, MARGINS = (20, 40, 80), (0.05, 0.1, 0.3)


def table(args: argparse.Namespace) -> None:
    """Prints, of each change, how often it is called worse and not worse, by margin and number of
    pictures. Pictures are drawn with replacement, each as a scene of its own."""
    measured: dict[tuple[bool, str], dict[str, float]] = {}
    for row in stored(args.rows):
        q = measured.setdefault((row["reference"], row["name"]), {})
        q[row["photo"]] = row["measured"]["q"]
    sizes = " | ".join(f"{margin:g}: {size}" for margin in MARGINS for size in SIZES)
    for reference in (False, True):
        print(f"\n{'with' if reference else 'without'} originals: worse / not worse in % of draws")
        limits = " | ".join(f"moved to 0.1: {size}" for size in SIZES)
        print(f"| change | pictures | mean loss ± its deviation | {sizes} | {limits} |")
        for name, (old, new) in CHANGES.items():
            before, after = measured[reference, old], measured[reference, new]
            losses = np.array([before[photo] - after[photo] for photo in before if photo in after])
            part = 5 if name == SOME else 1
            about = f"{losses.mean() / part:.3f} ± {losses.std(ddof=1):.3f}"
            cells = _shares(name, losses, args.draws)
            if name not in (SOME, "lossless re-encoding"):
                # at the limit itself either verdict is wrong: the error where it is largest
                at_limit = _shares(name, losses - losses.mean() + Rule().margin, args.draws)
                cells += at_limit[len(SIZES) : 2 * len(SIZES)]
            print(f"| {name} | {len(losses)} | {about} | {' | '.join(cells)} |", flush=True)


def _shares(name: str, losses: np.ndarray, draws: int) -> list[str]:
    """For each margin and size, how often draws are worse and not worse."""
    counts = np.zeros((len(MARGINS), len(SIZES), 2))
    for column, size in enumerate(SIZES):
        rng = np.random.default_rng(SEED)
        for _ in range(draws):
            drawn = rng.choice(losses, size)
            if name == SOME:
                drawn[size // 5 :] = 0
            found = decide(drawn.tolist(), range(size), Rule())
            assert found.low is not None
            assert found.high is not None
            for row, margin in enumerate(MARGINS):
                counts[row, column] += found.low > margin, found.high < margin
    shares = (100 * counts / draws).round().astype(int).reshape(-1, 2)
    return [f"{worse} / {passed}" for worse, passed in shares]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("rows")
    part.add_argument("folders", nargs="+", type=Path)
    part.add_argument("--photographs", type=int, default=80)
    part.add_argument("--out", type=Path, required=True)
    part.set_defaults(work=rows)
    part = parts.add_parser("table")
    part.add_argument("rows", type=Path)
    part.add_argument("--draws", type=int, default=200)
    part.set_defaults(work=table)
    args = parser.parse_args()
    args.work(args)


if __name__ == "__main__":
    main()
