"""Measures comparisons: how often the better of two pictures and the best of a burst is found, what a
pairwise read adds, and what it all costs; and fits configs/comparisons.json.

python -m agentic_iqa_local.laboratory.pairwise versions --photos PHOTOS --part training --out training.jsonl
python -m agentic_iqa_local.laboratory.pairwise reads --photos PHOTOS --part held-out --out reads.jsonl
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from agentic_iqa_local.commands.console import Parser, bar
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.devices import choose_device
from agentic_iqa_local.laboratory.pairwise_versions import Collection
from agentic_iqa_local.services import Services


def main(argv: list[str] | None = None) -> int:
    parser = Parser.of("laboratory.pairwise", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (("versions", "assess versions of photographs"), ("reads", "show the model pairs")):
        making = commands.add_parser(name, help=about)
        making.add_argument("--photos", type=Path, required=True, help="clean photographs")
        making.add_argument("--part", choices=("training", "held-out"), required=True)
        making.add_argument("--out", type=Path, required=True, help="a new file of JSON lines")
        making.add_argument("--config", help="a set-up (default: embedded)")
        making.add_argument("--seed", type=int, default=1)
        if name == "versions":
            making.add_argument("--photographs", type=int, default=40)
            making.add_argument("--pairs", type=int, default=4, help="of one kind, for each photograph")
            making.add_argument("--bursts", type=int, default=2, help="for each photograph")
            making.add_argument("--reference", action="store_true", help="assess against the clean one")
        else:
            making.add_argument("--count", type=int, default=100)
    args = parser.parse_args(argv)
    return collect(args)


def collect(args: argparse.Namespace) -> int:
    """Writes versions or reads, one line as soon as it is there."""
    services = Services(load_settings(args.config), choose_device())
    reference = args.command == "versions" and args.reference
    collection = Collection(services, args.photos, args.part, args.seed, reference)
    lines: Iterable[str]
    if args.command == "versions":
        versions = collection.versions(args.photographs, args.pairs, args.bursts)
        lines = (version.line() for version in versions)
    else:
        lines = map(json.dumps, collection.reads(args.count))
    with args.out.open("x") as file:
        for line in bar(lines):
            print(line, file=file, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
