#!/usr/bin/env python
"""Studies the agent on images with human scores. Nothing leaves this machine.

examples:
  python scripts/study.py report runs/tid2013 --out reports/tid2013
  python scripts/study.py report runs/tid2013 runs/koniq10k --out reports/both --draws 2000
  python scripts/study.py report runs/koniq10k --out reports/koniq10k --baseline "letters, image alone" --pictures

Exit status: 0 done, 2 wrong usage or a run that cannot be used.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


# report


def add_report(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "report",
        help="every scoring mode of cached runs against the human scores, without touching a model",
        description="Derives every scoring mode from a run's stored rows and compares them: tables as CSV and Markdown, figures "
        "as PNG and SVG, and report.html, one page that opens offline. Several runs get a section each and a table over the data "
        "sets; what a mode was made with is marked and left out of its mean.",
    )
    command.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run (run.json and rows.jsonl)")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the report; made if it is not there")
    command.add_argument(
        "--draws", type=int, default=1000, metavar="N", help="bootstrap draws; 1000 decide up to 25 comparisons (default: 1000)"
    )
    command.add_argument(
        "--baseline",
        default="classification",
        metavar="MODE",
        help="the mode that every other is compared with; name it before you look (default: classification)",
    )
    command.add_argument(
        "--fits", type=Path, metavar="FILE", help="JSON with a fitted temperature and eta: adds the mode they give"
    )
    command.add_argument(
        "--pictures",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="thumbnails of the worst ten images in the page; mind the data set's terms before you pass it on (default: no)",
    )
    command.set_defaults(main=report)


def report(args: argparse.Namespace) -> int:
    from agentic_iqa_local.iqa_tools import ToolError
    from agentic_iqa_local.iqa_tools.calibration import CalibrationError
    from agentic_iqa_local.studies.analysis import StudyError
    from agentic_iqa_local.studies.store import StoreError

    if args.draws < 1:
        print("error: --draws: expected at least 1", file=sys.stderr)
        return 2
    try:
        write_report(args)
    except (StudyError, StoreError, ToolError, CalibrationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def write_report(args: argparse.Namespace) -> None:
    from agentic_iqa_local.studies.analysis import analyse, dataset_info
    from agentic_iqa_local.studies.plots import draw
    from agentic_iqa_local.studies.report import (
        DATASETS_TABLE,
        TABLES,
        markdown,
        over_datasets,
        write_figures,
        write_html,
        write_table,
        write_tables,
    )
    from agentic_iqa_local.studies.store import read_run

    fitted = read_fits(args.fits) if args.fits else None
    parts = []
    for folder, name in zip(args.runs, names_of(args.runs), strict=True):
        run, rows = read_run(folder)
        study = analyse(run, rows, dataset_info(run), name=name, draws=args.draws, baseline=args.baseline, fitted=fitted)
        parts.append((study, draw(study)))
    for study, drawings in parts:
        folder = args.out / study.name if len(parts) > 1 else args.out
        write_tables(study, folder)
        write_figures(drawings, folder)
    write_html(parts, args.out / "report.html", pictures=args.pictures)
    if len(parts) > 1:
        table = over_datasets([study for study, _ in parts])
        write_table(args.out, "datasets", *DATASETS_TABLE, table)
        print(markdown(*DATASETS_TABLE, table))
    else:
        print(markdown(*TABLES["modes"], parts[0][0].tables["modes"]))
    print(f"Written to {args.out}: open {args.out / 'report.html'}")


def read_fits(file: Path):
    from agentic_iqa_local.studies.analysis import StudyError
    from agentic_iqa_local.studies.readings import Letters

    try:
        return Letters(**{"source": file.name} | json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise StudyError(f"--fits {file}: expected JSON with temperature and eta, got: {error}") from error


def names_of(runs: list[Path]) -> list[str]:
    """The runs' folder names, numbered where two are the same."""
    names = [run.resolve().name for run in runs]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    return [f"{name}-{i}" if name in repeated else name for i, name in enumerate(names, 1)]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_report(commands)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        return args.main(args)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
