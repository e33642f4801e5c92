"""Measures what docs/measurements.md says of maps and of comparisons, on photographs that nothing was trained on.

    python scripts/bench/judgement.py maps PHOTOS MORE --out maps.jsonl
    python scripts/training/comparisons.py versions --photos PHOTOS --held-out --out versions.jsonl
    python scripts/bench/judgement.py pairs versions.jsonl

maps: one quarter of each photograph is damaged at severity 2 to 5; *found* means that the worst window of the map lies
there. Rows are kept in --out, and the same command goes on. pairs: the truth is the pseudo-MOS.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from comparisons import Version, pairs_of_photographs, read_versions
from distortions import DISTORTIONS
from local_nr_pool import place_mask, split
from synthetic import load_tiles

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.preference import fit_for, sigmoid
from agentic_iqa_local.result import QualityMap
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import PLACES

SEED = 20261128
SIDE = 512
KINDS = {  # of damage, in turn
    "blur": ("gaussian_blur", "defocus_blur", "motion_blur", "denoise"),
    "noise": ("white_noise", "chroma_noise", "impulse_noise", "poisson_noise"),
    "blocks": ("jpeg", "webp", "jpeg2000", "palette"),
    "colour": ("desaturate", "colour_cast", "colour_bleed", "brighten"),
}
WINDOW = SIDE // 2


def share(right: int, count: int) -> str:
    """In per cent with the exact 95 % interval (Clopper and Pearson, 1934)."""
    found = binomtest(right, count).proportion_ci()
    bounds = f"{100 * found.low:.1f} to {100 * found.high:.1f}"
    return f"{100 * right / count:.1f} % ({bounds}) of {count}"


# Maps


def damaged(clean: np.ndarray, number: int) -> tuple[np.ndarray, str, str, str]:
    """A photograph with one damaged quarter, the group and the family of the damage, and its place."""
    rng = np.random.default_rng([SEED, number])
    group = list(KINDS)[number % len(KINDS)]
    kind = str(rng.choice(KINDS[group]))
    place = str(rng.choice(list(PLACES)))
    worse = DISTORTIONS[kind].apply(clean, int(rng.integers(2, 6)), rng).astype(float)
    mask = place_mask(place, SIDE, SIDE)[..., None]
    mixed = np.rint(clean + mask * (worse - clean)).astype(np.uint8)
    return mixed, group, DISTORTIONS[kind].family, place


def collect_maps(args: argparse.Namespace) -> None:
    """Assesses the photographs that --out lacks, each once clean and once damaged."""
    files = split(args.photos)[1]
    order = np.random.default_rng(SEED).permutation(len(files))
    clean = itertools.chain.from_iterable(load_tiles([files[i]])[:2] for i in order)
    done = set[int]()
    if args.out.exists():
        done = {json.loads(line)["number"] for line in args.out.read_text().splitlines()}
    services = Services(load_settings(), "cpu")
    with args.out.open("a", encoding="utf-8") as file:
        for number, tile in enumerate(itertools.islice(clean, args.pictures)):
            if number in done:
                continue
            pixels, group, family, place = damaged(tile, number)
            row: dict[str, Any] = {"number": number, "group": group, "family": family}
            row["place"] = place
            for name, picture in (("clean", tile), ("damaged", pixels)):
                made = assess(picture, pipeline="letters", map=True, services=services)
                if made.map is None:
                    raise RuntimeError(made.error or made.no_map)
                row[name] = made.map.model_dump()
            print(json.dumps(row), file=file, flush=True)


def worst_window(found: QualityMap, levels: Sequence[Sequence[float]]) -> tuple[int, int]:
    """Left and top of the window of a quarter's size with the lowest mean level."""
    wide, high = np.diff(found.xs), np.diff(found.ys)
    pixels = np.repeat(np.repeat(np.array(levels), high, axis=0), wide, axis=1)
    sums = np.pad(pixels.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    totals = sums[WINDOW:, WINDOW:] - sums[:-WINDOW, WINDOW:]
    totals = totals - sums[WINDOW:, :-WINDOW] + sums[:-WINDOW, :-WINDOW]
    top, left = np.unravel_index(int(np.argmin(totals)), totals.shape)
    return int(left), int(top)


def overlap(left: int, top: int, place: str) -> tuple[bool, float]:
    """Whether a window's centre lies in the damaged quarter, and the intersection over union."""
    is_lower, is_right = PLACES[place]
    right_left, right_top = WINDOW * is_right, WINDOW * is_lower
    shared = max(0, WINDOW - abs(left - right_left)) * max(0, WINDOW - abs(top - right_top))
    x, y = left + WINDOW / 2, top + WINDOW / 2
    is_in = (x >= WINDOW) == bool(is_right) and (y >= WINDOW) == bool(is_lower)
    return is_in, shared / (2 * WINDOW**2 - shared)


def map_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What the rows show, a line each."""
    for what in ("q", "letters", "tool"):
        hits, unions = list[bool](), list[float]()
        by_group: dict[str, list[bool]] = {group: [] for group in KINDS}
        for row in rows:
            found = QualityMap.model_validate(row["damaged"])
            hit, union = overlap(*worst_window(found, getattr(found, what)), row["place"])
            hits.append(hit)
            unions.append(union)
            by_group[row["group"]].append(hit)
        groups = ", ".join(f"{name} {np.mean(one):.0%}" for name, one in by_group.items())
        yield f"{what}: found {share(sum(hits), len(hits))}, IoU {np.mean(unions):.2f}; {groups}"
    boxes = [(row, row["damaged"]["worst"]) for row in rows]
    deep = [(row, worst[0]) for row, worst in boxes if worst and worst[0]["below"] >= 0.5]
    named = sum(box["distortion"] == row["family"] for row, box in deep)
    yield f"worst boxes half a level or more below the median, right family: {share(named, len(deep))}"
    without = sum(not worst for _, worst in boxes)
    yield f"damaged pictures without a box: {share(without, len(rows))}"
    yield f"clean pictures with one: {share(sum(bool(row['clean']['worst']) for row in rows), len(rows))}"


def maps(args: argparse.Namespace) -> None:
    collect_maps(args)
    for line in map_lines([json.loads(line) for line in args.out.read_text().splitlines()]):
        print(line)


# Comparisons


def pairs(args: argparse.Namespace) -> None:
    """Prints how often the shipped fit prefers the better of two versions of a photograph."""
    fit = fit_for(load_settings(), "letters", reference=False)
    assert fit is not None
    found = pairs_of_photographs(read_versions(args.versions))
    p = np.array([_probability(fit, *pair) for pair in found])
    better = np.array([first.mos > second.mos for first, second in found])
    right = (p > 0.5) == better
    one_kind = np.array([_milder_is_plain(*pair) for pair in found])
    print(f"one distortion, two or more severities apart: {share(*_counted(right[one_kind]))}")
    print(f"all pairs of versions: {share(*_counted(right))}")
    print(f"Brier score {np.mean((p - better) ** 2):.3f}")
    sure = np.maximum(p, 1 - p)
    for low, high in itertools.pairwise((0.5, 0.6, 0.7, 0.8, 0.9, 1.01)):
        within = (sure >= low) & (sure < high)
        print(
            f"probability {low:.1f} to {min(high, 1):.1f}: right {share(*_counted(right[within]))}"
        )


def _counted(right: np.ndarray) -> tuple[int, int]:
    return int(right.sum()), len(right)


def _probability(fit: Any, first: Version, second: Version) -> float:
    return sigmoid(fit.strength(first.row) - fit.strength(second.row))


def _milder_is_plain(first: Version, second: Version) -> bool:
    """Whether both are of one kind of distortion, of severities that lie two or more apart."""
    same = first.series == second.series and first.series.startswith("pair")
    return same and abs(first.severity - second.severity) >= 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("maps", help="where the damage is")
    mapping.add_argument("photos", type=Path, nargs="+", help="folders of clean photographs")
    mapping.add_argument("--out", type=Path, required=True, help="rows, JSON lines")
    mapping.add_argument("--pictures", type=int, default=100)
    comparing = commands.add_parser("pairs", help="which of two is better")
    comparing.add_argument("versions", type=Path, nargs="+", help="what `versions` wrote")
    args = parser.parse_args()
    (maps if args.command == "maps" else pairs)(args)


if __name__ == "__main__":
    main()
