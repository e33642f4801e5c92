"""How well maps find damage: planted in one quarter of clean photographs, and what cropping alone does.

    python -m agentic_iqa_local.laboratory.planted_damage find --photos DIR --out benchmarks/maps/planted.json
    python -m agentic_iqa_local.laboratory.planted_damage bias --photos DIR --out configs/tile_bias.json

`find` plants blur, noise, blocks or colour of severity 2 to 5 in a random quarter of each held-out
photograph, five times with other draws. It asks whether the centre of the worst window lies in that quarter,
and how much the window and the thresholded map overlap it. Beside it stand the letters alone, LocalNR alone,
and NIQE and PIQE on the same tiles, averaged over cells in the same way. `--split training` takes photographs
to tune on; --rows keeps each picture's grids, and goes on where an earlier run ended.

`bias` measures the mean over clean training photographs of the tiles' expected level less that of the whole
photograph.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage, stats

from agentic_iqa_local.cli.console import Parser, bar, safe_streams
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.judgement.quality_map import MapRequest, make_map, read_boxes, tile_sides
from agentic_iqa_local.judgement.tiles import CLEARLY, Box, Tiling, tiling, windows
from agentic_iqa_local.levels import LETTERS, PLACES
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.provenance import commit, folder_hash, machine
from agentic_iqa_local.result import QualityMap
from agentic_iqa_local.score_fusion import expected_level
from agentic_iqa_local.services import Services
from agentic_iqa_local.synthetic.distortions import DISTORTIONS, Part, distort, place_mask
from agentic_iqa_local.synthetic.photos import SIDE, split_photos

PIXELATE = "pixelate"  # beside the table's kinds: blocks of one colour, as a censored or enlarged picture has
DAMAGE = {
    "blur": ("gaussian_blur", "defocus_blur", "motion_blur"),
    "noise": ("white_noise", "chroma_noise", "impulse_noise", "speckle_noise"),
    "blocks": ("jpeg", PIXELATE),
    "colour": ("desaturate", "colour_cast", "colour_bleed"),
}
BLOCKS = (2, 3, 4, 6, 8)  # sides in pixels of pixelation's blocks by severity
FAMILY = {kind: distortion.family for kind, distortion in DISTORTIONS.items()} | {PIXELATE: "Compression"}
PER_PHOTO, SEED = 5, 19
WINDOWED = ("NIQE", "PIQE")
BIAS_PHOTOS = 40


@dataclass(frozen=True)
class Planted:
    """A clean photograph with damage in one quarter."""

    photo: str
    group: str
    kind: str
    severity: int
    place: str
    pixels: np.ndarray

    @property
    def quarter(self) -> Box:
        row, column = PLACES[self.place]
        half = SIDE // 2
        return column * half, row * half, (column + 1) * half, (row + 1) * half


def plant(files: Sequence[Path], per_photo: int, seed: int = SEED) -> Iterator[Planted]:
    """`per_photo` pictures of each photograph in random order: groups and severities 2 to 5 as even as their
    number allows, kinds and quarters drawn."""
    rng = np.random.default_rng(seed)
    cases = [(group, severity) for group in DAMAGE for severity in (2, 3, 4, 5)]
    count = len(files) * per_photo
    drawn = [cases[i % len(cases)] for i in rng.permutation(count)]
    order = rng.permutation(np.repeat(np.arange(len(files)), per_photo))
    for photo, (group, severity) in zip(order, drawn, strict=True):
        kind, place = str(rng.choice(DAMAGE[group])), str(rng.choice(list(PLACES)))
        with Image.open(files[photo]) as opened:
            clean = np.asarray(opened.convert("RGB").crop((0, 0, SIDE, SIDE)))
        if kind == PIXELATE:
            mask = place_mask(place, SIDE, SIDE)[..., None]
            damaged = np.rint(mask * pixelated(clean, severity) + (1 - mask) * clean).astype(np.uint8)
        else:
            damaged = distort(clean, (Part(kind, severity, place),), rng).image
        yield Planted(files[photo].name, group, kind, severity, place, damaged)


def pixelated(image: np.ndarray, severity: int) -> np.ndarray:
    """H×W×3 with each block of BLOCKS pixels a side replaced by its mean."""
    side, (height, width, _) = BLOCKS[severity - 1], image.shape
    rows, columns = np.arange(height) // side, np.arange(width) // side
    labels = rows[:, None] * (columns[-1] + 1) + columns
    means = [ndimage.mean(image[..., c], labels, np.arange(labels.max() + 1)) for c in range(3)]
    return np.stack([mean[labels] for mean in means], -1)


def overlap(one: Box, other: Box) -> float:
    """Intersection over union."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(right - left) * (bottom - top) for left, top, right, bottom in (one, other)]
    return shared / (sum(areas) - shared)


def found(tiles: Tiling, cells: np.ndarray, case: Planted) -> dict[str, Any]:
    """Where a map (rows×columns, lower is worse) has the worst window, against the quarter that was
    damaged."""
    _, box = windows(tiles, cells)[0]
    left, top, right, bottom = case.quarter
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    low = cells < (np.nanmin(cells) + np.nanmedian(cells)) / 2
    marked = np.kron(low, np.ones((8, 8))).astype(bool)  # cells are of equal size: 8×8 points of each
    side = [(np.arange(8 * length) + 0.5) / (8 * length) * SIDE for length in cells.shape]
    inside = ((side[0] > top) & (side[0] < bottom))[:, None] & ((side[1] > left) & (side[1] < right))
    return {
        "inside": bool(left < x < right and top < y < bottom),
        "iou_box": overlap(box, case.quarter),
        "iou_map": float((marked & inside).sum() / (marked | inside).sum()),
        "below": float(np.nanmedian(cells) - windows(tiles, cells)[0][0]),
    }


def examine(case: Planted, services: Services, folder: Path) -> dict[str, Any]:
    """One picture's row: what each map finds, and its seconds."""
    file = folder / "picture.png"
    Image.fromarray(case.pixels).save(file)
    images = OpenImages(services, str(file))
    try:
        q_map, _ = make_map(images, MapRequest())
        tiles = _tiles(q_map)
        letters, tool = np.array(q_map.letters, float), np.array(q_map.tool)
        rows = {
            "map": found(tiles, np.array(q_map.q, float), case),
            "letters alone": found(tiles, letters, case),
            "LocalNR alone": found(tiles, tool, case),
        }
        for name in WINDOWED:
            rows[f"{name} in windows"] = found(tiles, windowed(services, name, images, tiles), case)
    finally:
        images.close()
    boxes = [
        {"box": box.box, "distortion": box.distortion, "below": box.below, "p": box.probability}
        for box in q_map.worst
    ]
    return {
        "photo": case.photo,
        "group": case.group,
        "kind": case.kind,
        "severity": case.severity,
        "place": case.place,
        "found": rows,
        "boxes": boxes,
        "named": bool(boxes) and boxes[0]["distortion"] == FAMILY[case.kind],
        "tiles": q_map.cost.read,
        "seconds": q_map.cost.seconds,
        "letters": letters.tolist(),
        "tool": tool.tolist(),
    }


def windowed(services: Services, name: str, images: OpenImages, tiles: Tiling) -> np.ndarray:
    """A tool's own number on each tile, over the cells as the letters are, turned so that lower is worse.
    Tiles that the tool cannot measure are left out."""
    scores: list[float | None] = []
    for box in tiles.boxes:
        try:
            scores.append(-services.tools.measure(name, images.image.pixels.crop(box)))
        except ToolError:
            scores.append(None)
    cells = tiles.cells(scores)
    return np.where(np.isnan(cells), np.nanmax(cells), cells)


def _tiles(q_map: QualityMap) -> Tiling:
    """The tiling of a map."""
    made = tiling(q_map.xs[-1], q_map.ys[-1], [q_map.tile], q_map.cost.max_tiles)
    assert made is not None
    return made


def share(hits: Sequence[bool]) -> dict[str, Any]:
    """A proportion with Wilson's 95 % interval."""
    interval = stats.binomtest(sum(hits), len(hits)).proportion_ci(0.95, "wilson")
    return {
        "value": round(sum(hits) / len(hits), 4),
        "low": round(float(interval.low), 4),
        "high": round(float(interval.high), 4),
        "n": len(hits),
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Each map's figures over all rows, by group and by severity."""
    result: dict[str, Any] = {}
    for name in rows[0]["found"]:
        cells = [row["found"][name] for row in rows]

        def by(key: str, name: str = name) -> dict[str, Any]:
            return {
                str(value): share([row["found"][name]["inside"] for row in rows if row[key] == value])
                for value in sorted({row[key] for row in rows})
            }

        result[name] = {
            "worst_inside": share([cell["inside"] for cell in cells]),
            "mean_iou_of_box": round(statistics.mean(cell["iou_box"] for cell in cells), 4),
            "mean_iou_of_map": round(statistics.mean(cell["iou_map"] for cell in cells), 4),
            "by_group": by("group"),
            "by_severity": by("severity"),
        }
    with_box = [row for row in rows if row["boxes"]]
    result["map"]["shows_a_box"] = share([row["found"]["map"]["below"] >= CLEARLY for row in rows])
    if with_box:
        result["map"]["names_the_family"] = share([row["named"] for row in with_box])
    return result


def find(args: argparse.Namespace) -> dict[str, Any]:
    training, held_out = split_photos(args.photos)
    files, services = (held_out if args.split == "held-out" else training), Services(load_settings())
    if args.split == "training":  # another part for each use
        files = list(np.random.default_rng(SEED).permutation(np.array(files, object)))[
            : -(-args.pictures // 2)
        ]
    per_photo = -(-args.pictures // len(files))
    rows = _earlier(args.rows)[: args.pictures]
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(bar(plant(files, per_photo), total=args.pictures), 1):
            if number <= len(rows):
                continue
            rows.append(examine(case, services, Path(folder)))
            if args.rows:
                with args.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
            if number == args.pictures:
                break
    return {
        "what": "damage planted in one quarter of clean photographs",
        "split": args.split,
        "photographs": len(files),
        "pictures": len(rows),
        "model": services.client(ROLE).describe()["name"],
        "tile": _tile(services),
        "maps": summary(rows),
        "median_seconds": round(statistics.median(row["seconds"] for row in rows), 2),
        **_made(),
    }


def _drawn(files: Sequence[Path], count: int) -> list[Path]:
    """`count` files at random, always the same."""
    return [files[i] for i in np.random.default_rng(SEED).permutation(len(files))[:count]]


def _earlier(file: Path | None) -> list[dict[str, Any]]:
    """The rows of an earlier run that was interrupted: pictures are drawn in the same order each time."""
    if file is None or not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def bias(args: argparse.Namespace) -> dict[str, Any]:
    """The file that `quality_map.bias` reads."""
    training, _ = split_photos(args.photos)
    files = _drawn(training, args.pictures)
    services, prompt = Services(load_settings()), summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    sides = [side for side in tile_sides(services.client(ROLE).limits) if side < SIDE]
    differences: dict[int, list[float]] = {side: [] for side in sides}
    for file in bar(files):
        images = OpenImages(services, str(file))
        whole = min(images.image.width, SIDE), min(images.image.height, SIDE)

        def level(boxes: Sequence[Box], images: OpenImages = images) -> float:
            reads = read_boxes(images, boxes, prompt, ANSWER_PREFIX, LETTERS)
            return statistics.mean(map(expected_level, reads))

        of_whole = level([(0, 0, *whole)])
        for side in sides:
            differences[side].append(level(_spread(*whole, side)) - of_whole)
        images.close()
    folder = services.settings.folder(services.section(ROLE).backend)
    return {
        "model": folder_hash(folder),
        "name": services.client(ROLE).describe()["name"],
        "source": f"{len(files)} clean training photographs of {SIDE}×{SIDE}, {time.strftime('%Y-%m-%d')}",
        "tiles": {str(side): _mean(values) for side, values in differences.items()},
        **_made(),
    }


def _spread(width: int, height: int, side: int) -> list[Box]:
    """Nine tiles of a picture, or four where they would nearly coincide."""
    steps = (0, 0.5, 1) if side <= width // 2 else (0, 1)
    starts = [
        (int((width - side) * x) // 8 * 8, int((height - side) * y) // 8 * 8) for y in steps for x in steps
    ]
    return [(left, top, left + side, top + side) for left, top in starts]


def _mean(values: Sequence[float]) -> dict[str, Any]:
    """A mean with its 95 % interval by Student's t."""
    mean, error = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return {
        "levels": round(mean, 4),
        "low": round(mean - half, 4),
        "high": round(mean + half, 4),
        "photographs": len(values),
    }


def _tile(services: Services) -> int:
    return tile_sides(services.client(ROLE).limits)[0]


def _made() -> dict[str, Any]:
    packages = ("torch", "transformers", "pyiqa", "timm", "numpy", "pillow")
    return {"environment": machine(packages), "commit": commit(), "date": time.strftime("%Y-%m-%d")}


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_find = commands.add_parser("find", help="does the map find planted damage?")
    of_bias = commands.add_parser("bias", help="what does cropping do to the letters of clean photographs?")
    for command, pictures in ((of_find, 200), (of_bias, BIAS_PHOTOS)):
        command.add_argument("--photos", type=Path, required=True, help="folder of clean photographs")
        command.add_argument("--out", type=Path, required=True, help="result file (JSON)")
        command.add_argument(
            "--pictures", type=int, default=pictures, metavar="N", help="default: %(default)s"
        )
    of_find.add_argument("--split", choices=("held-out", "training"), default="held-out")
    of_find.add_argument("--rows", type=Path, metavar="FILE", help="each picture's grids as JSON lines")
    args = parser.parse_args(argv)
    result = find(args) if args.command == "find" else bias(args)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
