"""Measures what the program says, end to end: the evidence of damaged and of clean photographs, its answers to
questions about them, graphics, and the rank correlation of q with human scores.

    python scripts/bench/verdict.py families clean visible questions graphics --work runs/local_nr --photos PHOTOS MORE
    python scripts/bench/verdict.py scores --scores DATA_SET_FOLDER ... --reference

--work is the folder of scripts/training/local_nr_pool.py, of which the held-out pictures are used. Each part prints its
figures with 95 % bootstrap intervals by photograph where it has them, and appends its rows to --out (JSON lines).
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from graphics import KINDS, draw
from local_nr import parts_of
from local_nr_pool import split
from measures import photograph_of
from questions import FAMILIES

from agentic_iqa_local import assess
from agentic_iqa_local.result import Assessment

RNG = np.random.default_rng(20261125)
WORDS = {"none": 0, "slight": 1, "moderate": 2, "severe": 3, "extreme": 4}
STEPS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 4}  # the word of each severity of the pool
Ask = Callable[..., Any]  # a picture and what is asked → its row


def severities(row: Assessment) -> list[tuple[str, int]]:
    """(family, step of severity) of each item of a row's evidence, the strongest first."""
    analysis = (row.evidence.distortion_analysis or {}) if row.evidence else {}
    items = [
        (item.type, WORDS.get(item.severity, 0)) for items in analysis.values() for item in items
    ]
    return sorted(items, key=lambda item: -item[1])


def found(row: Assessment) -> list[str]:
    """The families that a row's evidence holds, the strongest first."""
    return [family for family, step in severities(row) if step]


def held_out(work: Path) -> Iterator[tuple[np.ndarray, list]]:
    """(picture, parts) of the held-out pool."""
    for file in sorted((work / "held_out").glob("rows_*.json")):
        pictures = np.load(work / "held_out" / f"pictures_{file.stem[5:]}.npy", mmap_mode="r")
        for picture, row in zip(pictures, json.loads(file.read_text()), strict=True):
            yield np.asarray(picture), parts_of(row)


def share(name: str, hits: list, groups: list | None = None) -> None:
    """Prints the share of hits with its interval, resampled by group."""
    if not hits:
        print(f"{name}: nothing")
        return
    values = np.array(hits, float)
    labels = (
        np.arange(len(values))
        if groups is None
        else np.unique(np.array(groups), return_inverse=True)[1]
    )
    members = [np.flatnonzero(labels == g) for g in np.unique(labels)]
    drawn = [
        values[
            np.concatenate([members[i] for i in RNG.integers(0, len(members), len(members))])
        ].mean()
        for _ in range(1000)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    print(f"{name}: {values.mean():.3f} ({low:.3f} to {high:.3f}), n {len(values)}", flush=True)


def families(args: argparse.Namespace, ask: Ask) -> None:
    """Strongest family, severity and whether anything is found, of held-out pictures."""
    right, right_whole, missed, near = [], [], [], []
    for picture, parts in islice(held_out(args.work), args.count):
        if not parts:
            continue
        worst = max(part.severity for part in parts)
        strongest = {part.family for part in parts if part.severity == worst}
        row = ask(picture, part="families", truth=sorted(strongest), severity=worst)
        said = severities(row)
        named = found(row)
        if worst >= 2:
            right.append(bool(named) and named[0] in strongest)
            right_whole += [right[-1]] if not any(part.place for part in parts) else []
        missed += [not named] if worst >= 3 else []
        near.append(abs((said[0][1] if said else 0) - STEPS[worst]) <= 1)
    share("strongest family right, severity 2 and above", right)
    share("  of these, of the whole picture", right_whole)
    share("none found, severity 3 and above", missed)
    share("severity within one step", near)


def clean(args: argparse.Namespace, ask: Ask) -> None:
    """Held-out clean photographs."""
    files = list(split(args.photos)[1])
    rows = [ask(Image.open(file).convert("RGB"), part="clean", file=file.name) for file in files]
    groups = [photograph_of(file.name) for file in files]
    share("clean: no distortion said", [not found(row) for row in rows], groups)
    share("clean: Good or better", [row.q >= 3.5 for row in rows], groups)


def damages(image: Image.Image) -> Iterator[tuple[str, str, float, bool, Image.Image]]:
    """(family, kind, strength, visible, picture): the grid of which docs/measurements.md shows figures."""
    pixels, rng = np.asarray(image, np.float32), np.random.default_rng(5)
    for quality in (90, 70, 50, 30, 20, 10, 5):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        yield "Compression", "jpeg", quality, quality <= 30, Image.open(buffer).convert("RGB")
    for sigma in (0.5, 1, 2, 4):
        yield "Blurs", "blur", sigma, sigma >= 1, image.filter(ImageFilter.GaussianBlur(sigma))
    for sigma in (2, 5, 10, 20, 40):
        noisy = np.clip(np.rint(pixels + rng.normal(0, sigma, pixels.shape)), 0, 255).astype(
            np.uint8
        )
        yield "Noise", "noise", sigma, sigma >= 10, Image.fromarray(noisy)
    for factor in (0.8, 0.6, 0.4):
        dark = Image.fromarray((pixels * factor).astype(np.uint8))
        yield "Brightness change", "dark", factor, factor <= 0.6, dark
    for factor in (2, 4):
        small = image.resize(
            (image.width // factor, image.height // factor), Image.Resampling.BICUBIC
        )
        yield "Blurs", "scaled", factor, True, small.resize(image.size, Image.Resampling.BICUBIC)


def visible(args: argparse.Namespace, ask: Ask) -> None:
    """Six held-out photographs times 21 damages, with and without their reference."""
    every = list(split(args.photos)[1])
    for with_reference in (False, True):
        hits, groups, false, kinds = [], [], [], {}
        for file in every[:: max(1, len(every) // 6)][:6]:
            image = Image.open(file).convert("RGB")
            for family, kind, strength, is_visible, damaged in damages(image):
                about = {"part": "visible", "kind": kind, "strength": strength, "family": family}
                named = found(ask(damaged, image if with_reference else None, **about))
                if is_visible:
                    hits.append(family in named)
                    groups.append(file.name)
                    kinds.setdefault(kind, []).append(family in named)
                else:
                    false.append(bool(named))
        share(
            f"visible damage named, {'with' if with_reference else 'without'} a reference",
            hits,
            groups,
        )
        shares = {kind: round(float(np.mean(hit)), 2) for kind, hit in kinds.items()}
        print(shares, "faint ones called damaged", np.mean(false))


def questions(args: argparse.Namespace, ask: Ask) -> None:
    """Four choices "which distortion", and yes or no, of held-out pictures with one damage of severity 2 and above."""
    which, is_it, against = [], [], []
    one = (pair for pair in held_out(args.work) if len(pair[1]) == 1)
    clear = (
        (picture, parts[0])
        for picture, parts in one
        if parts[0].severity >= 2 and not parts[0].place
    )
    for picture, part in islice(clear, args.count):
        right = FAMILIES[part.family][0]
        others = RNG.permutation([name for name, _ in FAMILIES.values() if name != right])[:2]
        choices = [str(choice) for choice in RNG.permutation([right, *others, "None"])]
        row = ask(
            picture, query="Which distortion dominates?", choices=choices, part="which", truth=right
        )
        said = row.choices[ord(row.final_answer) - 65]
        which.append(said == right)
        against.append((said == "None") == bool(found(row)))
        for family in (
            part.family,
            str(RNG.choice([family for family in FAMILIES if family != part.family])),
        ):
            about = {"part": "yes", "kind": family, "truth": family == part.family}
            row = ask(picture, query=FAMILIES[family][1], choices=["Yes", "No"], **about)
            yes = row.final_answer == "A"
            is_it.append(yes == about["truth"])
            against.append(yes != (family in found(row)))
    share("which distortion, four choices", which)
    share("is it ..., yes or no", is_it)
    share("answers that contradict their evidence", against)


def graphics(args: argparse.Namespace, ask: Ask) -> None:
    """Graphics that are said to be unlike a photograph, and photographs that are."""
    rng = np.random.default_rng(99)
    drawn = [
        ask(draw(kind, rng, 512), part="graphics", kind=kind) for kind in KINDS for _ in range(5)
    ]
    share(
        "graphics: unlike a photograph said", [row.unlike_photograph is not None for row in drawn]
    )
    files = split(args.photos)[1]
    rows = [
        ask(Image.open(file).convert("RGB"), part="photographs", file=file.name) for file in files
    ]
    share(
        "photographs: unlike a photograph said", [row.unlike_photograph is not None for row in rows]
    )


def scores(args: argparse.Namespace, ask: Ask) -> None:
    """SRCC of q with human scores."""
    for folder in args.scores:
        entries = list(csv.DictReader((folder / "manifest.csv").open()))
        for with_reference in (False, True) if args.reference else (False,):
            rows = []
            for entry in entries:
                about = {"part": folder.name, "fr": with_reference} | {
                    key: entry[key] for key in ("level", "distortion")
                }
                reference = folder / entry["reference"] if with_reference else None
                rows.append(
                    ask(folder / entry["image"], reference, mos=float(entry["mos"]), **about)
                )
            rank = spearmanr([row.q for row in rows], [float(entry["mos"]) for entry in entries])[0]
            print(
                f"{folder.name}, {'with' if with_reference else 'without'} a reference: SRCC {rank:.3f}"
            )
            strong = [
                row
                for row, entry in zip(rows, entries, strict=True)
                if entry["level"] in ("3", "4", "5")
            ]
            share("  levels 3 to 5 of which nothing is found", [not found(row) for row in strong])


PARTS = {one.__name__: one for one in (families, clean, visible, questions, graphics, scores)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    parser.add_argument("--work", type=Path, help="folder of the pool")
    parser.add_argument("--photos", type=Path, nargs="+", help="folders of clean photographs")
    parser.add_argument(
        "--scores",
        type=Path,
        nargs="+",
        default=[],
        help="folders with manifest.csv of human scores",
    )
    parser.add_argument("--reference", action="store_true", help="scores: with references too")
    parser.add_argument(
        "--count",
        type=int,
        default=150,
        help="pictures of the held-out pool (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, help="file for the rows, JSON lines")
    args = parser.parse_args()
    out = args.out.open("a") if args.out else None

    def ask(image, reference=None, query=None, choices=None, **about) -> Assessment:
        row = assess(image, reference, query, choices)
        if row.error:
            raise SystemExit(f"{about}: {row.error}")
        if out:
            out.write(json.dumps({"about": about, "row": row.to_dict()}) + "\n")
        return row

    for part in args.parts:
        PARTS[part](args, ask)


if __name__ == "__main__":
    main()
