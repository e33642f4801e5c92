"""Measures comparisons: how often the better of two pictures and the best of a burst is found, what a
pairwise read adds, and what it all costs; and fits configs/comparisons.json.

python -m agentic_iqa_local.laboratory.pairwise versions --photos PHOTOS --part training --out training.jsonl
python -m agentic_iqa_local.laboratory.pairwise reads --photos PHOTOS --part training --out reads.jsonl
python -m agentic_iqa_local.laboratory.pairwise fit training.jsonl --reads reads.jsonl
python -m agentic_iqa_local.laboratory.pairwise report held_out.jsonl --reads reads.jsonl --photos PHOTOS \\
    --people ROWS --out FILE

`versions` and `reads` draw the same pictures where --part, --seed, --photographs, --pairs and --bursts are
the same. `fit` takes training photographs, `report` those that are held out.
"""

import argparse
import datetime
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from agentic_iqa_local.batch.rows import write_whole
from agentic_iqa_local.cli.console import Parser, bar, safe_streams
from agentic_iqa_local.config import Settings, load_settings
from agentic_iqa_local.devices import choose_device, describe_device
from agentic_iqa_local.judgement.comparison import Judge
from agentic_iqa_local.judgement.preference import SHIPPED, PairFits, read_fits
from agentic_iqa_local.laboratory.pairwise_figures import cut_and_turned, figures
from agentic_iqa_local.laboratory.pairwise_fit import fit_pairs
from agentic_iqa_local.laboratory.pairwise_people import against_people
from agentic_iqa_local.laboratory.pairwise_versions import Collection, read_versions
from agentic_iqa_local.provenance import commit, folder_hash, machine
from agentic_iqa_local.services import Services
from agentic_iqa_local.synthetic.photos import split_photos

PACKAGES = ("torch", "transformers", "pyiqa", "imagehash", "choix", "scikit-learn")


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = Parser.of("laboratory.pairwise", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (("versions", "assess versions of photographs"), ("reads", "show the model pairs")):
        making = commands.add_parser(name, help=about)
        making.add_argument("--photos", type=Path, required=True, help="clean photographs")
        making.add_argument("--part", choices=("training", "held-out"), required=True)
        making.add_argument("--out", type=Path, required=True, help="a new file of JSON lines")
        making.add_argument("--seed", type=int, default=1)
        making.add_argument("--photographs", type=int, default=40)
        making.add_argument("--pairs", type=int, default=3, help="of one kind, for each photograph")
        making.add_argument("--bursts", type=int, default=1, help="for each photograph")
        making.add_argument("--reference", action="store_true", help="assess against the clean one")
        making.add_argument("--count", type=int, default=100, help="reads")
    for name, about in (("fit", "fit the weights"), ("report", "measure")):
        using = commands.add_parser(name, help=about)
        using.add_argument("versions", nargs="+", type=Path, help="what `versions` wrote")
        using.add_argument("--reads", type=Path, help="what `reads` wrote")
        using.add_argument("--out", type=Path, default=SHIPPED if name == "fit" else None)
        using.add_argument("--photos", type=Path, help="their clean photographs, for copies of them")
        using.add_argument("--people", type=Path, help="rows.jsonl of a study on human scores")
        using.add_argument("--source", default="synthetic distortions of training photographs")
    for command in commands.choices.values():
        command.add_argument("--config", help="a set-up (default: embedded)")
    args = parser.parse_args(argv)
    action = {"fit": fit, "report": report}.get(args.command, collect)
    return action(args, load_settings(args.config))


def collect(args: argparse.Namespace, settings: Settings) -> int:
    """Writes versions or reads, each line as soon as it is there."""
    services = Services(settings, choose_device())
    collection = Collection(services, args.photos, args.part, args.seed, args.reference)
    pictures = collection.pictures(args.photographs, args.pairs, args.bursts)
    lines: Iterable[str]
    if args.command == "versions":
        lines = (version.line() for version in collection.versions(pictures))
    else:
        lines = map(json.dumps, collection.reads(pictures, args.count))
    with args.out.open("x") as file:
        for line in bar(lines):
            print(line, file=file, flush=True)
    return 0


def _reads(args: argparse.Namespace) -> list[dict[str, Any]]:
    return [json.loads(line) for line in args.reads.read_text().splitlines()] if args.reads else []


def fit(args: argparse.Namespace, settings: Settings) -> int:
    """Puts the fit into the file, in place of an earlier one of the same model, pipeline and kind."""
    model = folder_hash(settings.folder(settings.summarizer.backend))
    reads = {(line["photo"], line["series"]): line["read"]["probability"] for line in _reads(args)}
    found, losses = fit_pairs(read_versions(args.versions), model, args.source, reads)
    others = [
        other
        for other in read_fits(args.out).fits
        if (other.model, other.pipeline, other.reference) != (model, found.pipeline, found.reference)
    ]
    write_whole(args.out, PairFits(fits=(*others, found)).model_dump_json(indent=1))
    print(json.dumps({"log_loss": losses, "fit": found.model_dump()}, indent=1))
    return 0


def _held_out(photos: Path) -> list[Image.Image]:
    _, files = split_photos(photos)
    return [Image.open(file).convert("RGB") for file in files]


def report(args: argparse.Namespace, settings: Settings) -> int:
    """Writes the figures with the machine, the versions and the date."""
    versions = read_versions(args.versions)
    judge = Judge(settings, "letters", any(version.row.reference is not None for version in versions))
    people = [json.loads(line) for line in args.people.read_text().splitlines()] if args.people else []
    text = json.dumps(
        {
            "date": datetime.date.today().isoformat(),
            "commit": commit(),
            "machine": machine(PACKAGES) | {"device": describe_device(choose_device())},
            "fit": judge.fit and judge.fit.model_dump(),
            "figures": figures(versions, judge, _reads(args)),
            "copies": args.photos and cut_and_turned(_held_out(args.photos)),
            "people": people and against_people(people, settings, versions[0].row.model or {}),
        },
        indent=1,
    )
    if args.out:
        write_whole(args.out, text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
