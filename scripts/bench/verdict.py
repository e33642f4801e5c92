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
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from graphics import KINDS, draw
from local_nr import parts_of
from local_nr_pool import split

from agentic_iqa_local import assess
from agentic_iqa_local.result import Assessment

RNG = np.random.default_rng(20261125)
NAMES = {
    "Blurs": "Blur",
    "Noise": "Noise",
    "Compression": "Compression",
    "Contrast": "Contrast",
    "Sharpness": "Oversharpening",
    "Brightness change": "Brightness",
    "Color distortions": "Colour distortion",
}
QUESTIONS = {
    "Blurs": "Is this picture blurry?",
    "Noise": "Is there noise in this picture?",
    "Compression": "Are there visible compression artefacts?",
    "Contrast": "Is the contrast wrong?",
    "Sharpness": "Is it oversharpened?",
    "Brightness change": "Is it too dark or too bright?",
    "Color distortions": "Is there a colour cast?",
}


def found(row: Assessment) -> list[str]:
    """The families that a row's evidence holds, the strongest first."""
    order = {"extreme": 0, "severe": 1, "moderate": 2, "slight": 3}
    items = (
        [item for items in (row.evidence.distortion_analysis or {}).values() for item in items] if row.evidence else []
    )
    there = [item for item in items if item.severity in order]
    return [item.type for item in sorted(there, key=lambda item: order[item.severity])]


def held_out(work: Path, count: int) -> Iterator[tuple[np.ndarray, list]]:
    """(picture, parts) of the held-out pool."""
    for file in sorted((work / "held_out").glob("rows_*.json")):
        pictures = np.load(work / "held_out" / f"pictures_{file.stem[5:]}.npy", mmap_mode="r")
        for picture, row in zip(pictures, json.loads(file.read_text()), strict=True):
            if count <= 0:
                return
            count -= 1
            yield np.asarray(picture), parts_of(row)


def share(name: str, hits: list[bool], groups: list | None = None) -> None:
    """Prints a share with its interval, resampled by group."""
    values = np.array(hits, float)
    labels = np.arange(len(values)) if groups is None else np.unique(np.array(groups), return_inverse=True)[1]
    if not len(values):
        print(f"{name}: nothing")
        return
    members = [np.flatnonzero(labels == g) for g in np.unique(labels)]
    drawn = [
        values[np.concatenate([members[i] for i in RNG.integers(0, len(members), len(members))])].mean()
        for _ in range(1000)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    print(f"{name}: {values.mean():.3f} ({low:.3f} to {high:.3f}), n {len(values)}", flush=True)


def families(args: argparse.Namespace, ask: Callable) -> None:
    """Strongest family, severity and whether anything is found, of held-out pictures."""
    right, right_whole, missed, near = [], [], [], []
    words = {"none": 0, "slight": 1, "moderate": 2, "severe": 3, "extreme": 4}
    for picture, parts in held_out(args.work, args.count):
        if not parts:
            continue
        worst = parts[0].severity if parts else 0
        worst = max(part.severity for part in parts)
        strongest = {part.family for part in parts if part.severity == worst}
        row = ask(picture, part="families", truth=sorted(strongest), severity=worst)
        named = found(row)
        if worst >= 2:
            right.append(bool(named) and named[0] in strongest)
            if not any(part.place for part in parts):
                right_whole.append(right[-1])
        if worst >= 3:
            missed.append(not named)
        items = [item for items in (row.evidence.distortion_analysis or {}).values() for item in items]
        said = max((words.get(item.severity, 0) for item in items), default=0)
        near.append(abs(said - {1: 1, 2: 2, 3: 2, 4: 3, 5: 4}[worst]) <= 1)
    share("strongest family right, severity 2 and above", right)
    share("  of these, of the whole picture", right_whole)
    share("none found, severity 3 and above", missed)
    share("severity within one step", near)


def clean(args: argparse.Namespace, ask: Callable) -> None:
    """Held-out clean photographs."""
    none, good, groups = [], [], []
    for file in split(args.photos)[1]:
        row = ask(Image.open(file).convert("RGB"), part="clean", file=file.name)
        none.append(not found(row)), good.append(row.q >= 3.5), groups.append(file.name.rsplit("_", 1)[0])
    share("clean: no distortion said", none, groups)
    share("clean: Good or better", good, groups)


def damages(image: Image.Image) -> Iterator[tuple[str, str, float, bool, Image.Image]]:
    """(family, kind, strength, visible, picture) of the grid that found_2026_11_25 was measured on."""
    pixels, rng = np.asarray(image, np.float32), np.random.default_rng(5)
    for quality in (90, 70, 50, 30, 20, 10, 5):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        yield "Compression", "jpeg", quality, quality <= 30, Image.open(buffer).convert("RGB")
    for sigma in (0.5, 1, 2, 4):
        yield "Blurs", "blur", sigma, sigma >= 1, image.filter(ImageFilter.GaussianBlur(sigma))
    for sigma in (2, 5, 10, 20, 40):
        noisy = np.clip(np.rint(pixels + rng.normal(0, sigma, pixels.shape)), 0, 255).astype(np.uint8)
        yield "Noise", "noise", sigma, sigma >= 10, Image.fromarray(noisy)
    for factor in (0.8, 0.6, 0.4):
        yield (
            "Brightness change",
            "dark",
            factor,
            factor <= 0.6,
            Image.fromarray((pixels * factor).astype(np.uint8)),
        )
    for factor in (2, 4):
        small = image.resize((image.width // factor, image.height // factor), Image.Resampling.BICUBIC)
        yield "Blurs", "scaled", factor, True, small.resize(image.size, Image.Resampling.BICUBIC)


def visible(args: argparse.Namespace, ask: Callable) -> None:
    """Six held-out photographs times 21 damages, with and without their reference."""
    files = list(split(args.photos)[1])[:: max(1, len(split(args.photos)[1]) // 6)][:6]
    for with_reference in (False, True):
        hits, groups, false, kinds = [], [], [], {}
        for file in files:
            image = Image.open(file).convert("RGB")
            for family, kind, strength, is_visible, damaged in damages(image):
                row = ask(
                    damaged,
                    image if with_reference else None,
                    part="visible",
                    kind=kind,
                    strength=strength,
                    family=family,
                )
                named = found(row)
                if is_visible:
                    hits.append(family in named), groups.append(file.name)
                    kinds.setdefault(kind, []).append(family in named)
                else:
                    false.append(bool(named))
        share(f"visible damage named, {'with' if with_reference else 'without'} a reference", hits, groups)
        print(
            {kind: round(float(np.mean(hit)), 2) for kind, hit in kinds.items()},
            "faint ones called damaged",
            np.mean(false),
        )


def questions(args: argparse.Namespace, ask: Callable) -> None:
    """Four choices "which distortion", and yes or no, of held-out pictures with one damage of severity 2 and above."""
    which, is_it, against = [], [], []
    for picture, parts in held_out(args.work, 10 * args.count):
        if len(which) >= args.count:
            break
        if len(parts) != 1 or parts[0].severity < 2 or parts[0].place:
            continue
        family = parts[0].family
        others = RNG.permutation([name for kind, name in NAMES.items() if kind != family])[:2]
        choices = [str(c) for c in RNG.permutation([NAMES[family], *others, "None"])]
        row = ask(picture, query="Which distortion dominates?", choices=choices, part="which", truth=NAMES[family])
        which.append(row.choices[ord(row.final_answer) - 65] == NAMES[family])
        said = row.choices[ord(row.final_answer) - 65]
        against.append((said == "None") == bool(found(row)))
        for kind in (family, str(RNG.choice([kind for kind in NAMES if kind != family]))):
            row = ask(
                picture,
                query=QUESTIONS[kind],
                choices=["Yes", "No"],
                part="yes",
                kind=kind,
                truth=kind == family,
            )
            yes = row.final_answer == "A"
            is_it.append(yes == (kind == family)), against.append(yes != (kind in found(row)))
    share("which distortion, four choices", which)
    share("is it ..., yes or no", is_it)
    share("answers that contradict their evidence", against)


def graphics(args: argparse.Namespace, ask: Callable) -> None:
    """Graphics that are said to be unlike a photograph, and photographs that are."""
    rng = np.random.default_rng(99)
    said = [
        ask(draw(kind, rng, 512), part="graphics", kind=kind).unlike_photograph is not None
        for kind in KINDS
        for _ in range(5)
    ]
    share("graphics: unlike a photograph said", said)
    wrong = [
        ask(Image.open(file).convert("RGB"), part="photographs", file=file.name).unlike_photograph is not None
        for file in split(args.photos)[1]
    ]
    share("photographs: unlike a photograph said", wrong)


def scores(args: argparse.Namespace, ask: Callable) -> None:
    """SRCC of q with human scores."""
    for folder in args.scores:
        for with_reference in (False, True) if args.reference else (False,):
            said, mos, nothing = [], [], []
            for entry in csv.DictReader((folder / "manifest.csv").open()):
                reference = folder / entry["reference"] if with_reference else None
                row = ask(
                    folder / entry["image"],
                    reference,
                    part=folder.name,
                    fr=with_reference,
                    mos=float(entry["mos"]),
                    level=entry["level"],
                    distortion=entry["distortion"],
                )
                said.append(row.q), mos.append(float(entry["mos"]))
                if entry["level"] in ("3", "4", "5"):
                    nothing.append(not found(row))
            kind = "with" if with_reference else "without"
            print(f"{folder.name}, {kind} a reference: SRCC {spearmanr(said, mos)[0]:.3f}")
            share("  levels 3 to 5 of which nothing is found", nothing)


PARTS = {one.__name__: one for one in (families, clean, visible, questions, graphics, scores)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    parser.add_argument("--work", type=Path, help="folder of the pool")
    parser.add_argument("--photos", type=Path, nargs="+", help="folders of clean photographs")
    parser.add_argument("--scores", type=Path, nargs="+", default=[], help="folders with manifest.csv of human scores")
    parser.add_argument("--reference", action="store_true", help="scores: with references too")
    parser.add_argument("--count", type=int, default=150, help="pictures of the held-out pool (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file for the rows, JSON lines")
    args = parser.parse_args()
    out = args.out.open("a") if args.out else None

    def ask(image, reference=None, query=None, choices=None, **about) -> Assessment:
        row = assess(image, reference if not isinstance(reference, bool) else None, query, choices)
        if row.error:
            raise SystemExit(f"{about}: {row.error}")
        if out:
            out.write(json.dumps({"about": about, "row": row.to_dict()}) + "\n")
        return row

    for part in args.parts:
        PARTS[part](args, ask)


if __name__ == "__main__":
    main()
