"""Studies the agent on images with human scores. Nothing leaves this machine.

examples:
  {study} run /data/tid2013 --out runs/tid2013
  {study} run my40.csv --mos-range 1 5 --out runs/my40
  {study} run /data/koniq10k --split test --gpu 0 --out runs/koniq10k
  {study} report runs/tid2013 runs/koniq10k --out reports/both
  {study} compare runs/koniq10k runs/koniq10k_qwen
  {study} COMMAND --help

Results go to stdout, all else to stderr. Exit status: 0 done, 2 wrong usage or a run that cannot be used, 130
interrupted: the rows so far are kept, and the same run goes on.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path

from agentic_iqa_local.cli import study_report, study_run
from agentic_iqa_local.cli.command import Command, Help, Parser
from agentic_iqa_local.cli.options import TRACK, add
from agentic_iqa_local.files import command
from agentic_iqa_local.output.tracking import tracked

# name → (what it does, its help, which adds its options, its work)
COMMANDS = {
    "run": (
        "each image's inference, once, into a folder that survives a kill",
        study_run.ABOUT, study_run.options, study_run.run,
    ),
    "fit": (
        "p_c's temperature and η, and intervals of q, from a part of a run, for assess.py and report --fit",
        study_report.FIT, study_report.fit_options, study_report.fit,
    ),
    "report": (
        "every scoring mode of cached runs against the human scores, without touching a model",
        study_report.REPORT, study_report.report_options, study_report.report,
    ),
    "compare": (
        "run against run on the same images: two models, or two versions of the program",
        study_report.COMPARE, study_report.compare_options, study_report.compare,
    ),
}  # fmt: skip


def options(parser: Parser) -> None:
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (about, text, add_options, work) in COMMANDS.items():
        text = text.replace("{study}", command("study"))
        one = commands.add_parser(name, help=about, description=text, formatter_class=Help)
        add_options(one)
        if name in ("run", "report"):
            add(one, TRACK)
        one.set_defaults(work=work)


def study(args: argparse.Namespace) -> int:
    """The command's work; with --track its figures are noted when it is done. Raises UserError."""
    with tracked(getattr(args, "track", None), str(getattr(args, "out", "")), vars(args)) as log:
        status = args.work(args)
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


main = Command("study", __doc__, options, study, interrupted="interrupted: the same run goes on")
