"""study fit, report and compare: what is made of stored rows, without a model."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from agentic_iqa_local.cli.command import Parser
from agentic_iqa_local.cli.options import add, output_file
from agentic_iqa_local.errors import one_line

# The rest is imported where it is needed, so that --help and wrong usage are answered at once.

FIT = """Fits on a part of a run; report --fit leaves those rows out. rps: ranked probability score (scales of absolute
categories, whose intervals of q are calibrated too); srcc: any scale; keep: both stay as configured, several runs
make one file, runs on questions calibrate the sets of answers, and --share 1 uses all rows.

examples:
  {study} fit runs/koniq10k --split val --objective rps --out fit.json
  {study} fit runs/syn runs/questions --objective keep --share 1 --called "synthetic distortions" --out fit.json
"""
REPORT = """Writes tables as CSV and Parquet, figures as SVG, and report.html, one page that opens offline. Several runs
get a section each and a table over the data sets; what a mode was made with is marked.

examples:
  {study} report runs/tid2013 runs/koniq10k --out reports/both
  {study} report runs/koniq10k --out reports/koniq10k --baseline "letters, image alone"
"""
COMPARE = """Compares each run with the first on the images that all of them answered: SRCC and PLCC, and their
differences with intervals from the same draws and p after Holm's correction.

examples:
  {study} compare runs/old runs/new --mode logits "tool mean" --out reports/old_new
"""
RUNS = "runs DIR...  folders of runs"


def fit_options(parser: Parser) -> None:
    table = f"""
    {RUNS}
    --out FILE!       the fit (JSON)
    --objective rps|srcc|keep  what is minimised (rps)
    --called TEXT     what rows call the set that intervals are calibrated on
    --split NAME      official split to fit on, such as train or val
    --share X         without --split: this share of the scenes, seed 0 (default: 0.3)
    """
    add(parser, table)
    parser.set_defaults(objective="rps")


def fit(args: argparse.Namespace) -> int:
    from agentic_iqa_local.files import write_whole
    from agentic_iqa_local.studies.fitting import fit_runs

    place = output_file("--out", args.out, ".json")
    found = fit_runs(args.runs, args.objective, split=args.split, share=args.share, called=args.called)
    write_whole(place, found.model_dump_json())
    calibrated = "intervals of q are not calibrated, they need an absolute category scale"
    if found.intervals:
        answers = " and sets of answers" if found.intervals.questions else ""
        calibrated = f"calibrates intervals of q for {len(found.intervals.ratings)} ways to assess{answers}"
    print(one_line(f"{found.account}; {calibrated}; written to {args.out}"))
    return 0


def report_options(parser: Parser) -> None:
    table = f"""
    {RUNS}
    --out DIR!        folder for the report; made if it is not there
    --draws N         bootstrap draws; 1000 decide up to 25 comparisons (default: 1000)
    --baseline MODE   compared with every mode; name it before you look (classification)
    --fit FILE        a fit: adds its mode, leaves out the rows it was made on
    --png             figures as PNG too
    """
    add(parser, table)


def report(args: argparse.Namespace) -> int:
    from agentic_iqa_local.judgement.fit import read_fit
    from agentic_iqa_local.studies.report import report_runs

    options = {"draws": args.draws, "baseline": args.baseline, "fit": read_fit(args.fit) if args.fit else None}
    kinds = ("svg", "png") if args.png else ("svg",)
    print(report_runs(_read(args.runs), args.out, kinds=kinds, **options))
    return 0


def compare_options(parser: Parser) -> None:
    table = f"""
    {RUNS}, all against the first
    --mode MODE...    scoring modes, or all (logits)
    --draws N         bootstrap draws (default: 1000)
    --out DIR         folder for the tables as CSV and Parquet (otherwise they are printed alone)
    """
    add(parser, table)
    parser.set_defaults(mode=["logits"])


def compare(args: argparse.Namespace) -> int:
    from agentic_iqa_local.studies.compare import compare as compare_runs
    from agentic_iqa_local.studies.report import as_text, write_tables

    tables, notes = compare_runs(_read(args.runs), modes=args.mode, draws=args.draws)
    print(*(as_text(name, table) for name, table in tables.items()), *notes, sep="\n")
    if args.out:
        write_tables(args.out, tables)
        print(f"\nWritten to {one_line(str(args.out))}")
    return 0


def _read(folders: list[Path]) -> dict[str, Any]:
    """The runs by the names of their folders, which are numbered where two are the same."""
    from agentic_iqa_local.studies.store import read_run

    names = [folder.resolve().name for folder in folders]
    times = Counter(names)
    called = [f"{name}-{i}" if times[name] > 1 else name for i, name in enumerate(names, 1)]
    return {name: read_run(folder) for name, folder in zip(called, folders, strict=True)}
