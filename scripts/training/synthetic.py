"""Sets of known quality: clean photographs with synthetic distortions, and a pseudo-MOS in the place of human scores.

The pseudo-MOS is the mean of four weight-free full-reference metrics against the clean original, each on 1..5 through
its map. A clean photograph comes out below 5, as those maps do.

  python scripts/training/synthetic.py photos/ --all --out synthetic      images, references and manifest.csv
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from distortions import distort, draw_parts
from PIL import Image
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.images.reading import load_image
from agentic_iqa_local.iqa_tools import ToolRunner, find_tool
from agentic_iqa_local.output.tables import write_csv

METRICS = ("FSIM", "VSI", "GMSD", "NLPD")
PHOTO_SUFFIXES = (".png", ".webp", ".jpg", ".jpeg")
HELD_OUT, SPLIT_SEED, TEST_SEED, SIDE = 40, 20261121, 7001, 512


class PseudoMos:
    """Metrics built once; `__call__(image, clean)` takes uint8 H×W×3 and returns the pseudo-MOS, 1..5."""

    def __init__(self, metrics: Sequence[str] = METRICS) -> None:
        self.metrics = metrics
        self.runner = ToolRunner(device="cpu")

    def __call__(self, image: np.ndarray, clean: np.ndarray) -> float:
        pair = Image.fromarray(image), Image.fromarray(clean)
        return float(
            np.mean([self.runner.score(metric, *pair).normalized for metric in self.metrics])
        )


def photo_files(folder: Path) -> list[Path]:
    """The photographs in a folder, by name."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in PHOTO_SUFFIXES)


def split_photos(folder: Path, held_out: int = HELD_OUT) -> tuple[list[Path], list[Path]]:
    """(training files, held-out files), split by file with a committed seed. Raises ValueError for too few."""
    files = photo_files(folder)
    if len(files) <= held_out:
        expected = f"more than {held_out} photographs ({', '.join(PHOTO_SUFFIXES)})"
        raise ValueError(f"{folder}: expected {expected}, got {len(files)}; --all takes every one")
    order = np.random.default_rng(SPLIT_SEED).permutation(len(files))
    return [files[i] for i in sorted(order[held_out:])], [
        files[i] for i in sorted(order[:held_out])
    ]


def load_tiles(files: Sequence[Path]) -> list[np.ndarray]:
    """The photographs as uint8 tiles of 512×512.

    Those with more than 1024 pixels on their short side are first reduced to that by averaging areas, which removes
    what a camera's JPEG left. Raises ImageError for what is no picture, ValueError for one that is too small.
    """
    tiles = []
    for file in files:
        photo = load_image(file).pixels
        if (short := min(photo.size)) < SIDE:
            raise ValueError(
                f"{file}: expected at least {SIDE} pixels a side, got {photo.width}×{photo.height}"
            )
        if short > 2 * SIDE:
            width, height = (round(side * (2 * SIDE / short)) for side in photo.size)
            photo = photo.resize((width, height), Image.Resampling.BOX)
        pixels = np.asarray(photo)
        for top in range(0, pixels.shape[0] - SIDE + 1, SIDE):
            for left in range(0, pixels.shape[1] - SIDE + 1, SIDE):
                tiles.append(np.ascontiguousarray(pixels[top : top + SIDE, left : left + SIDE]))
    return tiles


def write_set(
    tiles: list[np.ndarray], measure: PseudoMos, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Writes --per-photo samples of each tile into --out; yields each one's row of the manifest."""
    rng, folder, per_photo = np.random.default_rng(TEST_SEED), args.out, args.per_photo
    for scene, clean in enumerate(tiles):
        original = f"clean_{scene:03}.png"
        Image.fromarray(clean).save(folder / original)
        for i in range(scene * per_photo, (scene + 1) * per_photo):
            sample = distort(clean, draw_parts(rng), rng)
            Image.fromarray(sample.image).save(folder / f"{i:04}.png")
            kind, level = (
                (sample.parts[0].kind, sample.parts[0].severity) if sample.parts else ("none", 0)
            )
            yield {
                "image": f"{i:04}.png",
                "reference": "" if args.no_reference else original,
                "mos": f"{measure(sample.image, clean):.6f}",
                "group": f"{scene:03}",
                "distortion": kind,
                "level": level,
            }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="example: python scripts/training/synthetic.py photos/ --all --out synthetic",
    )
    parser.add_argument("photos", type=Path, metavar="PHOTOS", help="folder of clean photographs")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="new folder for the set"
    )
    parser.add_argument(
        "--per-photo", type=int, default=10, metavar="N", help="samples of each (default: 10)"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="take every photograph, not only those kept out of training",
    )
    parser.add_argument(
        "--no-reference", action="store_true", help="a set for no-reference studies"
    )
    parser.add_argument(
        "--metrics", nargs="+", default=METRICS, metavar="TOOL", help="whose mean is the score"
    )
    args = parser.parse_args(argv)
    try:
        tiles = load_tiles(photo_files(args.photos) if args.all else split_photos(args.photos)[1])
        measure = PseudoMos([find_tool(tool).name for tool in args.metrics])
        args.out.mkdir(parents=True)
    except (UserError, ValueError, OSError) as error:
        parser.error(str(error))
    total, columns = (
        len(tiles) * args.per_photo,
        ("image", "reference", "mos", "group", "distortion", "level"),
    )
    rows = write_set(tiles, measure, args)
    with (args.out / "manifest.csv").open("w", newline="", encoding="utf-8") as file:
        write_csv(file, columns, track(rows, "distorted", total=total))
    print(f"{total} images of {len(tiles)} photographs in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
