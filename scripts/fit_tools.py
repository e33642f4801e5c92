#!/usr/bin/env python
"""Fits the maps from raw tool scores to 1..5 that configs/tool_maps.yaml holds."""

import argparse
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import numpy as np
import yaml
from PIL import Image
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentic_iqa_local.cli.command import Parser, exit_status
from agentic_iqa_local.files import ROOT, FileError, place_for, read_yaml, write_whole
from agentic_iqa_local.images.reading import load_image
from agentic_iqa_local.iqa_tools import ToolRunner, find_tool
from agentic_iqa_local.iqa_tools.calibration import CalibrationError, LogisticMap, read_map_file
from agentic_iqa_local.studies.datasets import MOST, Dataset, DatasetError, load_dataset
from scripts.training.map_fit import evaluate, fit_logistic

HELD_OUT = 0.3
FIT = "python scripts/fit_tools.py"
EPILOG = f"""\
examples:
  # a data set as its authors ship it, or a manifest with columns image,reference,mos
  {FIT} /data/koniq10k --split train --tools TOPIQ_NR NIQE
  {FIT} mine/scores.csv --mos-range 0 100 --name my-study --tools TOPIQ_NR

  # synthetic distortions of clean photographs, for tools without human scores
  python scripts/training/synthetic.py photos/ --all --metrics FSIM SSIM VIF GMSD --out synthetic
  {FIT} synthetic/manifest.csv --mos-range 1 5 --tools VSI MS-SSIM PSNR

A fitted entry replaces the tool's entry in --out; other tools stay as they are.
Printed beside each fit: RMSE in quality levels, SRCC and PLCC on held-out images. A tool whose held-out SRCC
is low gets a flat map: its scores stay near the mean, which is what it knows.
"""

Sample = tuple[str, Image.Image | None, Image.Image, float]  # group, reference, image, quality 1..5


def samples(args: argparse.Namespace, dataset: Dataset) -> Iterator[Sample]:
    """The images of a data set's split with what people said, linear from its scale. Raises DatasetError, also where
    the scale's ends are unknown and --mos-range does not give them."""
    items = [item for item in dataset.items if args.split is None or item.split == args.split]
    if not items:
        raise DatasetError(
            f"{dataset.root}: expected scored images of the split {args.split}, found none"
        )
    worst, best = args.mos_range or scale_of(dataset)
    if not (abs(worst) <= MOST and abs(best) <= MOST and worst != best):
        wanted = f"expected two numbers of at most {MOST:g} that differ"
        raise DatasetError(f"--mos-range {worst:g} {best:g}: {wanted}", "correct them")
    for item in track(items, "images"):
        image = load_image(item.image).pixels
        reference = load_image(item.reference).pixels if item.reference else None
        # Split by what is pictured: all distortions of one reference fall on one side.
        yield (
            item.group or item.image.name,
            reference,
            image,
            1 + 4 * (item.mos - worst) / (best - worst),
        )


def scale_of(dataset: Dataset) -> tuple[float, float]:
    """The worst and the best score of a data set's scale. Raises DatasetError where they are unknown."""
    info = dataset.info
    if info.low is None or info.high is None:
        raise DatasetError(
            f"{dataset.root}: the scale's ends are unknown", "give them with --mos-range WORST BEST"
        )
    return (info.low, info.high) if info.higher_is_better else (info.high, info.low)


def held_out_groups(groups: list[str], rng: np.random.Generator) -> np.ndarray:
    """True for the images of the files that are kept out of the fit."""
    names = sorted(set(groups))
    chosen = {names[i] for i in rng.permutation(len(names))[: round(HELD_OUT * len(names))]}
    return np.array([group in chosen for group in groups])


def place_of_maps(path: Path) -> Path:
    """The file of maps that is written as `path`: a link is followed. Raises CalibrationError for one that
    holds something else."""
    try:
        place = place_for(path)
    except FileError as error:
        raise CalibrationError(f"{path}: {error}", "choose another --out") from error
    if place.exists():
        read_map_file(place)
    return place


def write_maps(path: Path, fitted: list[LogisticMap]) -> None:
    """Puts the `fitted` maps into the file `path`, which need not be there yet; its first comment stays. Raises
    CalibrationError and WriteError."""
    place = place_of_maps(path)
    entries, comment = [], ""
    if place.exists():
        entries = read_yaml(place)["maps"]
        comment = "".join(
            takewhile(lambda line: line.startswith("#"), place.open(encoding="utf-8"))
        )
    for logistic in fitted:
        entry = logistic.model_dump(mode="json", exclude_none=True)
        entries = [other for other in entries if other["tool"] != logistic.tool] + [entry]
    body = yaml.safe_dump(
        {"maps": entries}, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True
    )
    write_whole(place, comment + body)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a data set, or a manifest (.csv, .jsonl)"
    )
    parser.add_argument(
        "--tools", nargs="+", required=True, metavar="TOOL", help="tools to fit, by any spelling"
    )
    shipped = ROOT / "configs" / "tool_maps.yaml"
    parser.add_argument(
        "--out",
        type=Path,
        default=shipped,
        help="file of maps to write into (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="draws what is held out (default: 0)")
    parser.add_argument("--device", default="cpu", help="where the tools run (default: cpu)")
    parser.add_argument(
        "--split", metavar="NAME", help="only images of this official split, such as train"
    )
    scale = "mapped to 1 and 5 (default: the data set's scale)"
    parser.add_argument("--mos-range", type=float, nargs=2, metavar=("WORST", "BEST"), help=scale)
    parser.add_argument(
        "--name", help="name of the data set; studies on it are then in-sample (default: its title)"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    return exit_status(lambda: fit(args))


def fit(args: argparse.Namespace) -> int:
    """Measures the tools, fits their maps and writes them. Raises UserError and OSError."""
    specs, rng = [find_tool(tool) for tool in args.tools], np.random.default_rng(args.seed)
    place_of_maps(args.out)  # before the work
    runner = ToolRunner(device=args.device)
    dataset = load_dataset(args.folder)  # nosec B615 # of this project, reads local files
    name, of_split = args.name or dataset.info.title, f", split {args.split}" if args.split else ""
    groups, qualities, raws = [], [], []
    for group, reference, image, quality in samples(args, dataset):
        groups.append(group)
        qualities.append(quality)
        raws.append([runner.measure(spec.name, image, reference) for spec in specs])
    source = (
        f"scripts/fit_tools.py: {len(groups)} images of {name}{of_split}, linear from its scale"
    )
    raw, quality, held_out = np.array(raws), np.array(qualities), held_out_groups(groups, rng)
    fitted = []
    for spec, scores in zip(specs, raw.T, strict=True):
        told = {"tool": spec.name, "domain": spec.domain, "lower_better": spec.lower_better}
        told |= {"source": source, "fitted_on": name}
        logistic, _ = fit_logistic(scores[~held_out], quality[~held_out], **told)
        check = evaluate(logistic, scores[held_out], quality[held_out])
        fitted.append(
            LogisticMap.model_validate(logistic.model_dump() | {"notes": f"held out: {check}"})
        )
        low, high = logistic.reachable
        print(f"{spec.name}: held out {check}; reaches {low:.2f} to {high:.2f}")
    write_maps(args.out, fitted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
