"""Measures what cropping alone does to the letters of clean photographs: configs/tile_bias.json.

    python scripts/training/tile_bias.py --photos PHOTOS --out configs/tile_bias.json

The mean over clean training photographs of the tiles' expected level less that of the whole photograph, with its 95 %
interval by Student's t.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[2]))

from synthetic import SIDE, split_photos

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.devices import commit, machine
from agentic_iqa_local.files import folder_hash
from agentic_iqa_local.images.crops import Box
from agentic_iqa_local.judgement.quality_map import read_boxes, tile_sides
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.score_fusion import expected_level
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS

SEED = 19


def tiles_of(width: int, height: int, side: int) -> list[Box]:
    """Nine tiles of a picture, or four where nine would nearly coincide."""
    steps = (0, 0.5, 1) if side <= width // 2 else (0, 1)
    starts = [(int((width - side) * x) // 8 * 8, int((height - side) * y) // 8 * 8) for y in steps for x in steps]
    return [(left, top, left + side, top + side) for left, top in starts]


def bias(photos: Path, count: int) -> dict[str, Any]:
    """The content of the file."""
    training, _ = split_photos(photos)
    files = [training[i] for i in np.random.default_rng(SEED).permutation(len(training))[:count]]
    services, prompt = Services(load_settings()), summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    sides = [side for side in tile_sides(services.client(ROLE).limits) if side < SIDE]
    differences: dict[int, list[float]] = {side: [] for side in sides}
    for file in files:
        images = OpenImages(services, str(file))
        whole = min(images.image.width, SIDE), min(images.image.height, SIDE)

        def level(boxes: Sequence[Box], images: OpenImages = images) -> float:
            reads = read_boxes(images, boxes, prompt, ANSWER_PREFIX, LETTERS)
            return statistics.mean(map(expected_level, reads))

        of_whole = level([(0, 0, *whole)])
        for side in sides:
            differences[side].append(level(tiles_of(*whole, side)) - of_whole)
        images.close()
    return {
        "model": folder_hash(services.settings.folder(services.section(ROLE).backend)),
        "name": services.client(ROLE).describe()["name"],
        "source": f"{len(files)} clean training photographs of {SIDE}×{SIDE}, {time.strftime('%Y-%m-%d')}",
        "tiles": {str(side): mean(values) for side, values in differences.items()},
        "environment": machine(("torch", "transformers", "pyiqa", "timm", "numpy", "pillow")),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def mean(values: Sequence[float]) -> dict[str, Any]:
    """A mean in levels with its 95 % interval."""
    value, error = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    bounds = {"low": round(value - half, 4), "high": round(value + half, 4)}
    return {"levels": round(value, 4), **bounds, "photographs": len(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder of clean photographs")
    parser.add_argument("--out", type=Path, required=True, help="result file (JSON)")
    parser.add_argument("--pictures", type=int, default=40, metavar="N", help="default: %(default)s")
    args = parser.parse_args()
    args.out.write_text(json.dumps(bias(args.photos, args.pictures), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
