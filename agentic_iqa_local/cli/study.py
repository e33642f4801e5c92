"""Studies the agent on images with human scores. Nothing leaves this machine.

examples:
  python scripts/study.py run /data/tid2013 --out runs/tid2013
  python scripts/study.py run my40.csv --mos-range 1 5 --out runs/my40
  python scripts/study.py run /data/koniq10k --split test --gpu 0 --out runs/koniq10k
  python scripts/study.py report runs/tid2013 runs/koniq10k --out reports/both
  python scripts/study.py compare runs/koniq10k runs/koniq10k_qwen
  python scripts/study.py COMMAND --help

Results go to stdout, all else to stderr. Exit status: 0 done, 2 wrong usage or a
run that cannot be used, 130 interrupted.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path

from agentic_iqa_local.cli.command import Parser, exit_status
from agentic_iqa_local.cli.console import safe_streams
from agentic_iqa_local.cli.options import TRACK, add
from agentic_iqa_local.cli.study_options import STUDY
from agentic_iqa_local.cli.study_report import add_compare, add_fit, add_report
from agentic_iqa_local.cli.study_run import add_run
from agentic_iqa_local.output.tracking import tracked


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog=STUDY,
        description=(__doc__ or "").replace("python scripts/study.py", STUDY),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_run(commands)
    add_fit(commands)
    add_report(commands)
    add_compare(commands)
    for name in ("run", "report"):
        add(commands.choices[name], TRACK)
    return parser.parse_args(argv)


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    kept = ": the rows so far are kept; the same command goes on" if args.command == "run" else ""
    return exit_status(lambda: _tracked(args), interrupted=f"interrupted{kept}")


def _tracked(args: argparse.Namespace) -> int:
    """The command's work; with --track its figures are noted when it is done."""
    with tracked(getattr(args, "track", None), str(getattr(args, "out", "")), vars(args)) as log:
        status = args.main(args)
        for found in figures(args.out) if getattr(args, "track", None) else ():
            log(found)
    return status


def figures(folder: Path) -> Iterator[dict[str, float]]:
    """Of a run how many images it has and how many failed; of a report each mode's SRCC and PLCC."""
    rows = folder / "rows.jsonl"
    if rows.is_file():
        errors = [json.loads(line).get("error") for line in rows.read_text(encoding="utf-8").splitlines()]
        yield {"images": len(errors), "failures": sum(error is not None for error in errors)}
    for file in sorted(folder.rglob("modes.csv")):
        for mode in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
            name = f"{file.parent.name}/{mode['mode']}"
            yield {f"{name} {kind}": float(mode[kind]) for kind in ("srcc", "plcc") if mode[kind]}
