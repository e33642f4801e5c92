#!/usr/bin/env python
"""Fits the maps from raw tool scores to 1..5 that configs/tool_maps.yaml holds."""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
import yaml
from PIL import Image
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentic_iqa_local.cli.command import Parser, exit_status
from agentic_iqa_local.cli.console import safe_streams
from agentic_iqa_local.files import (
    DRAWN_BY,
    ROOT,
    FileError,
    place_for,
    read_yaml,
    require_own,
    write_whole,
)
from agentic_iqa_local.images.reading import load_image
from agentic_iqa_local.iqa_tools import ToolRunner, find_tool
from agentic_iqa_local.iqa_tools.calibration import CalibrationError, LogisticMap, read_map_file
from agentic_iqa_local.studies.datasets import MOST, Dataset, DatasetError, load_dataset
from scripts.training.map_fit import FitQuality, evaluate, fit_logistic

ANCHORS = ("FSIM", "SSIM", "VIF", "GMSD")
HELD_OUT = 0.3

HEADER = """\
# Maps from raw tool scores to the 1..5 quality scale, one entry a tool:
#
#   f(x) = b1 * (1/2 - 1 / (1 + exp(b2 * (x - b3)))) + b4 * x + b5   (Sheikh, Sabir and Bovik, TIP 2006)
#
# evaluated inside `domain` and clipped to [1, 5]. Each map is checked at load: it must run one way over its
# domain.
# An entry marked `status: rejected` is kept to show why a tool has no map; it is never used.
# `fitted_on` is the data set behind the parameters: scores on that set are in-sample.
# scripts/fit_tools.py replaces entries here; rows of the paper come from its Table 5, digit for digit.
"""

FIT = "python scripts/fit_tools.py"
EPILOG = f"""\
examples:
  # maps from synthetic distortions of clean photographs, for tools without human scores
  {FIT} maps --photos photos/ --tools VSI MS-SSIM PSNR

  # maps from human scores: a data set as its authors ship it, or a manifest with columns image,reference,mos
  {FIT} dataset /data/koniq10k --split train --tools TOPIQ_NR NIQE --plots plots/
  {FIT} dataset mine/scores.csv --mos-range 0 100 --name my-study --tools TOPIQ_NR

A fitted entry replaces the tool's usable entry in --out; rejected entries and other tools stay as they are.
Printed beside each fit: RMSE in quality levels, SRCC and PLCC on held-out images. A tool whose held-out SRCC
is low gets a flat map: its scores stay near the mean, which is what it knows.
"""


@dataclass
class Measured:
    """What a map is fitted on: of each image its group, the tools' raw scores and the quality, 1..5. `rng`
    splits them; `source` and `fitted_on` go into the map."""

    rng: np.random.Generator
    groups: list[str] = field(default_factory=list)
    raws: list[list[float]] = field(default_factory=list)
    qualities: list[float] = field(default_factory=list)
    source: str = ""
    fitted_on: str = ""


def photo_samples(
    photos: Path, count: int, per_photo: int, crop: int, rng: np.random.Generator
) -> Iterator[tuple[str, Image.Image, Image.Image]]:
    """(file name, reference, image) of `per_photo` samples of centre crops of `count` photographs drawn from
    the folder."""
    from agentic_iqa_local.studies.distortions import distort, draw_parts

    files = sorted(p for p in photos.iterdir() if p.suffix.lower() in {".webp", ".png", ".jpg", ".jpeg", ".bmp"})
    if len(files) < count:
        raise DatasetError(
            f"{photos}: expected at least {count} photographs (--count), found {len(files)}",
            "add some or lower it",
        )
    for choice in track(rng.choice(len(files), count, replace=False), "photographs"):
        file = files[choice]
        photo = load_image(file).pixels
        if min(photo.size) < crop:
            raise DatasetError(
                f"{file}: expected at least {crop} pixels a side (--crop), got {photo.width}×{photo.height}",
                "take it away or lower it",
            )
        left, top = (photo.width - crop) // 2, (photo.height - crop) // 2
        reference = photo.crop((left, top, left + crop, top + crop))
        for _ in range(per_photo):
            yield file.name, reference, Image.fromarray(distort(np.asarray(reference), draw_parts(rng), rng).image)


def scored_samples(
    dataset: Dataset, split: str | None, mos_range: tuple[float, float] | None
) -> Iterator[tuple[str, Image.Image | None, Image.Image, float]]:
    """(scene or file name, reference or None, image, quality 1..5) of the images of `split`. Raises
    DatasetError, also where the scale's ends are unknown and `mos_range` (worst, best) does not give them."""
    items = [item for item in dataset.items if split is None or item.split == split]
    if not items:
        raise DatasetError(f"{dataset.root}: expected scored images of the split {split}, found none")
    worst, best = mos_range or scale_of(dataset)
    if not (abs(worst) <= MOST and abs(best) <= MOST and worst != best):
        raise DatasetError(
            f"--mos-range {worst:g} {best:g}: expected two numbers of at most {MOST:g} that differ",
            "correct them",
        )
    for item in track(items, "images"):
        image = load_image(item.image).pixels
        reference = load_image(item.reference).pixels if item.reference else None
        # Split by what is pictured: all distortions of one reference fall on one side.
        yield item.group or item.image.name, reference, image, 1 + 4 * (item.mos - worst) / (best - worst)


def scale_of(dataset: Dataset) -> tuple[float, float]:
    """The worst and the best score of a data set's scale. Raises DatasetError where they are unknown."""
    info = dataset.info
    if info.low is None or info.high is None or info.higher_is_better is None:
        raise DatasetError(f"{dataset.root}: the scale's ends are unknown", "give them with --mos-range WORST BEST")
    return (info.low, info.high) if info.higher_is_better else (info.high, info.low)


def held_out_groups(groups: list[str], rng: np.random.Generator) -> np.ndarray:
    """True for the images of the files that are kept out of the fit."""
    names = sorted(set(groups))
    chosen = {names[i] for i in rng.permutation(len(names))[: round(HELD_OUT * len(names))]}
    return np.array([group in chosen for group in groups])


def fit_one(
    tool: str, raw: np.ndarray, quality: np.ndarray, held_out: np.ndarray, measured: Measured
) -> tuple[LogisticMap, FitQuality]:
    """The map of one tool from its raw scores to `quality`, and how well it does on the images that
    `held_out` keeps out of its fit."""
    spec = find_tool(tool)
    logistic, _ = fit_logistic(
        raw[~held_out],
        quality[~held_out],
        tool=spec.name,
        domain=spec.domain,
        lower_better=spec.lower_better,
        source=measured.source,
        fitted_on=measured.fitted_on,
    )
    check = evaluate(logistic, raw[held_out], quality[held_out])
    return LogisticMap.model_validate(logistic.model_dump() | {"notes": f"held out: {check}"}), check


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
    """Puts the `fitted` maps into the file `path`, which need not be there yet. Raises CalibrationError and
    WriteError."""
    place = place_of_maps(path)
    entries = read_yaml(place)["maps"] if place.exists() else []
    for logistic in fitted:
        entry = logistic.model_dump(mode="json", exclude_none=True)
        places = [i for i, e in enumerate(entries) if e["tool"] == logistic.tool and "status" not in e]
        if places:
            entries[places[0]] = entry
        else:
            entries.append(entry)
    body = yaml.safe_dump({"maps": entries}, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)
    write_whole(place, HEADER + body)


def run_maps(args: argparse.Namespace) -> Measured:
    """Scores of synthetic distortions; their quality is the mean of the maps of ANCHORS."""
    runner = ToolRunner(device=args.device, maps_path=args.anchor_maps)
    measured = Measured(np.random.default_rng(args.seed))
    samples = photo_samples(args.photos, args.count, args.per_photo, args.crop, measured.rng)
    for group, reference, image in samples:
        anchors = [runner.score(tool, image, reference).normalized for tool in ANCHORS]
        measured.groups.append(group)
        measured.qualities.append(float(np.mean(anchors)))
        measured.raws.append([runner.measure(tool, image, reference) for tool in args.tools])
    measured.source = (
        f"scripts/fit_tools.py maps: {len(measured.groups)} synthetic distortions of {args.count} clean"
        f" photographs ({args.crop}x{args.crop} crops, seed {args.seed}), target the mean of the maps of"
        f" {', '.join(ANCHORS)} in AgenticIQA's Table 5"
    )
    measured.fitted_on = f"synthetic distortions of {args.photos_name} (anchored on KADID-10k maps)"
    return measured


def run_dataset(args: argparse.Namespace) -> Measured:
    """Scores of a data set's images; their quality is what people said."""
    dataset = load_dataset(args.folder, args.key)  # nosec B615 # of this project, reads local files
    runner = ToolRunner(device=args.device)
    measured = Measured(np.random.default_rng(args.seed))
    samples = scored_samples(dataset, args.split, args.mos_range and tuple(args.mos_range))
    for group, reference, image, quality in samples:
        measured.groups.append(group)
        measured.qualities.append(quality)
        measured.raws.append([runner.measure(tool, image, reference) for tool in args.tools])
    measured.fitted_on = args.name or dataset.info.title
    of_split = f", split {args.split}" if args.split else ""
    measured.source = (
        f"scripts/fit_tools.py dataset: {len(measured.groups)} images of {measured.fitted_on}{of_split},"
        " linear from its scale"
    )
    return measured


def plot(
    folder: Path,
    logistic: LogisticMap,
    raw: np.ndarray,
    quality: np.ndarray,
    held_out: np.ndarray,
    check: FitQuality,
) -> None:
    """The scores, those kept out of the fit marked, and the map, as `folder`/TOOL.png."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 3), layout="constrained")
    axes = figure.subplots()
    for part, label, colour in ((~held_out, "fitted", "#777777"), (held_out, "held out", "#0072b2")):
        axes.plot(raw[part], quality[part], ".", color=colour, markersize=3, label=label)
    places = np.linspace(raw.min(), raw.max(), 200)
    axes.plot(places, [logistic(x) for x in places], color="#d55e00", label="map")
    axes.set(xlabel=logistic.tool, ylabel="quality, 1..5", title=f"held out: {check}")
    axes.legend(frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    content = BytesIO()
    figure.savefig(content, dpi=150, metadata={"Software": DRAWN_BY})
    write_whole(figure_of(folder, logistic.tool), content.getvalue())


def figure_of(folder: Path, tool: str) -> Path:
    """The file of a tool's figure. Raises CalibrationError for one that holds something else."""
    place = folder / f"{tool.replace('/', '_')}.png"
    try:
        require_own(place, "drawing")
    except FileError as error:
        raise CalibrationError(f"{place}: {error}", "choose another --plots") from error
    return place


def build_parser() -> argparse.ArgumentParser:
    shipped = ROOT / "configs" / "tool_maps.yaml"
    parser = Parser(description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    common = Parser(add_help=False)
    common.add_argument("--tools", nargs="+", required=True, metavar="TOOL", help="tools to fit, by any spelling")
    common.add_argument("--out", type=Path, default=shipped, help="file of maps to write into (default: %(default)s)")
    common.add_argument("--seed", type=int, default=0, help="draws photographs, distortions and the split (default: 0)")
    common.add_argument("--plots", type=Path, metavar="DIR", help="a figure of each fit")
    common.add_argument("--device", default="cpu", help="where the tools run (default: cpu)")
    maps = commands.add_parser("maps", parents=[common], help="fit on synthetic distortions of clean photographs")
    maps.add_argument(
        "--photos", type=Path, required=True, help="folder of clean photographs, 512 pixels a side or more"
    )
    maps.add_argument("--photos-name", default="clean photographs", help="what to call them in the file")
    maps.add_argument("--count", type=int, default=60, help="photographs to draw (default: 60)")
    maps.add_argument("--per-photo", type=int, default=10, help="samples of each, 12%% of them clean (default: 10)")
    maps.add_argument("--crop", type=int, default=384, help="side of the centre crop in pixels (default: 384)")
    maps.add_argument("--anchor-maps", type=Path, default=shipped, help=f"file with the maps of {', '.join(ANCHORS)}")
    maps.set_defaults(collect=run_maps)
    scored = commands.add_parser("dataset", parents=[common], help="fit on human scores")
    scored.add_argument(
        "folder", type=Path, metavar="FOLDER", help="folder of a data set, or a manifest (.csv, .jsonl)"
    )
    scored.add_argument("--key", metavar="NAME", help="which data set it is, where the layout does not tell")
    scored.add_argument("--split", metavar="NAME", help="only images of this official split, such as train")
    scored.add_argument(
        "--mos-range",
        type=float,
        nargs=2,
        metavar=("WORST", "BEST"),
        help="mapped to 1 and 5 (default: the data set's scale)",
    )
    scored.add_argument("--name", help="name of the data set; studies on it are then in-sample (default: its title)")
    scored.set_defaults(collect=run_dataset)
    return parser


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    return exit_status(lambda: fit(args))


def fit(args: argparse.Namespace) -> int:
    """Measures the tools, fits their maps and writes them. Raises UserError and OSError."""
    args.tools = [find_tool(tool).name for tool in args.tools]
    place_of_maps(args.out)  # before the work
    for tool in args.tools if args.plots else ():
        figure_of(args.plots, tool)
    measured: Measured = args.collect(args)
    raw, quality = np.array(measured.raws), np.array(measured.qualities)
    held_out = held_out_groups(measured.groups, measured.rng)
    fitted = []
    for column, tool in enumerate(args.tools):
        logistic, check = fit_one(tool, raw[:, column], quality, held_out, measured)
        fitted.append(logistic)
        if args.plots:
            plot(args.plots, logistic, raw[:, column], quality, held_out, check)
        low, high = logistic.reachable
        print(f"{tool}: held out {check}; reaches {low:.2f} to {high:.2f}")
    write_maps(args.out, fitted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
