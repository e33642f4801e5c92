"""Long runs against what goes wrong: kills, many images, damaged images, damaged answers, injections. The
tests do the same in short.

    python scripts/endurance.py kill --rows runs/x/rows.jsonl --out benchmarks/studies/kill.json -- \
        python scripts/study.py run data.csv --out runs/x
    python scripts/endurance.py kill --rows rows.jsonl --out benchmarks/endurance/kill.json -- \
        python scripts/assess.py --image scans/ --pipeline letters --jobs 4 --out rows.jsonl --resume
    OMP_NUM_THREADS=1 python scripts/endurance.py cluster-kills --out benchmarks/cluster/kills.json
    python scripts/endurance.py memory --out benchmarks/endurance/memory.json
    python scripts/endurance.py images --out benchmarks/endurance/images.json
    python scripts/endurance.py outputs --out benchmarks/endurance/outputs.json
    python scripts/endurance.py end-to-end --out benchmarks/endurance/end_to_end.json
    python scripts/endurance.py injections --out benchmarks/endurance/injections.json

kill: kills a run again and again and checks that nothing is lost and nothing doubled; the command after --
must go on where it stopped when it is run again. cluster-kills: workers, a node and the driver of a cluster
of two nodes on this machine; the rows must be those of the plain batch. memory: of a batch of many small
images, which must stay flat. images: damaged files at the loader, each loaded or refused in one sentence.
outputs: damaged answers at the parser, each refused or exactly what it says. end-to-end: both through whole
assessments on the embedded model. injections: how far texts in queries and pictures move the score. Each
prints its result as JSON, or writes it with --out.

Exit status: 0 nothing went wrong, 1 something did (it is in the result), 2 wrong usage. A crash ends the run
with a signal, a hang with the stack after a minute.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from agentic_iqa_local.cli.console import Parser, safe_streams
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.laboratory.endurance.cluster_kills import cluster_kills
from agentic_iqa_local.laboratory.endurance.damaged_answers import outputs
from agentic_iqa_local.laboratory.endurance.damaged_assessments import end_to_end
from agentic_iqa_local.laboratory.endurance.damaged_pictures import images
from agentic_iqa_local.laboratory.endurance.injections import injections
from agentic_iqa_local.laboratory.endurance.kills import kill, memory
from agentic_iqa_local.paths import ROOT

PACKAGES = ("pillow", "numpy", "pydantic", "torch", "transformers", "llguidance", "pyiqa")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("kill", help="kill -9 at random moments, then let it end")
    command.add_argument(
        "--rows", type=Path, required=True, metavar="FILE", help="JSON lines that the command writes"
    )
    command.add_argument("--kills", type=int, default=20, help="default: %(default)s")
    command.add_argument(
        "--within",
        type=float,
        default=5.0,
        metavar="S",
        help="kill at most S seconds after a first new row, every fourth time after the start",
    )
    command.add_argument("run", nargs="+", help="the command, after --")
    command = commands.add_parser("cluster-kills", help="kill -9 of a cluster's workers, a node, the driver")
    command.add_argument("--kills", type=int, default=20, help="default: %(default)s")
    command.add_argument("--count", type=int, default=200, help="pictures (default: %(default)s)")
    command.add_argument(
        "--model", type=Path, default=ROOT / "models" / "embedded", help="model folder (default: embedded)"
    )
    for name, count, what in (
        ("memory", 2_000, "memory of a batch of small images"),
        ("images", 10_000, "damaged images at the loader"),
        ("outputs", 10_000, "damaged model output at the parser"),
        ("end-to-end", 200, "damaged images, then damaged model output, through whole assessments"),
    ):
        commands.add_parser(name, help=what).add_argument(
            "--count", type=int, default=count, help="default: %(default)s"
        )
    command = commands.add_parser(
        "injections", help="texts in queries and pictures that try to move the score"
    )
    command.add_argument(
        "--images",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="default: tests/data and a portrait of matplotlib's",
    )
    command.add_argument(
        "--config", metavar="NAME", help="a set-up of configs/ by name, or a YAML file (default: embedded)"
    )
    command.add_argument("--gpu", metavar="N", help="GPU by index, UUID or MIG name (default: the CPU)")
    for name, command in commands.choices.items():
        if name != "injections":
            command.add_argument(
                "--seed", type=int, default=0, help="of what is random (default: %(default)s)"
            )
        command.add_argument("--out", type=Path, metavar="FILE", help="result (JSON; default: printed)")
    return parser.parse_args(argv)


def environment() -> dict[str, str]:
    from agentic_iqa_local.provenance import machine

    return {"date": time.strftime("%Y-%m-%d")} | machine(PACKAGES)


def as_json(found: dict[str, Any]) -> str:
    """Indented, each of the `cases` on a line."""
    text = json.dumps(
        {name: value for name, value in found.items() if name != "cases"}, indent=1, ensure_ascii=False
    )
    if "cases" in found:
        lines = ",\n  ".join(json.dumps(case, ensure_ascii=False) for case in found["cases"])
        text = f'{text[:-2]},\n "cases": [\n  {lines}\n ]\n}}'
    return text + "\n"


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    runs = {
        "kill": kill,
        "cluster-kills": cluster_kills,
        "memory": memory,
        "images": images,
        "outputs": outputs,
        "end-to-end": end_to_end,
        "injections": injections,
    }
    began = time.perf_counter()
    try:
        found = runs[args.command](args) | {"seconds": round(time.perf_counter() - began)} | environment()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if "seed" in args:
        found["seed"] = args.seed
    if args.out:
        args.out.write_text(as_json(found), encoding="utf-8")
    else:
        print(as_json(found), end="")
    return 1 if found.get("wrong") else 0
