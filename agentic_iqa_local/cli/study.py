"""The commands study run, fit, report and compare: the agent on images with human scores."""

import argparse
import shlex
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from agentic_iqa_local.cli.command import stopped_by_ctrl_c
from agentic_iqa_local.cli.console import Progress, say, tell
from agentic_iqa_local.cli.options import (
    UsageError,
    batch_of,
    check_set_up,
    chosen_settings,
    device_of,
)
from agentic_iqa_local.cli.outputs import output_file
from agentic_iqa_local.config import Settings
from agentic_iqa_local.errors import counted, one_line
from agentic_iqa_local.files import PROGRAM, write_whole
from agentic_iqa_local.iqa_tools import find_tool
from agentic_iqa_local.judgement.fit import FIT, read_fit
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.studies.compare import compare as compare_runs
from agentic_iqa_local.studies.datasets import Dataset, absences, load_dataset
from agentic_iqa_local.studies.fitting import fit_runs
from agentic_iqa_local.studies.report import as_text, report_runs, write_tables
from agentic_iqa_local.studies.run import Plan, StudyWork, chosen, run_study
from agentic_iqa_local.studies.store import check_report_folder, make_report_folder, read_run

GO_ON = "the same command goes on"


def run(args: argparse.Namespace) -> int:
    """Makes a study's rows; the exit status. Raises UserError."""
    found = load_dataset(args.dataset, part_of=args.part_of, mos_range=args.mos_range)  # nosec B615
    dataset = chosen(found, args.split, args.limit)
    for note in absences(dataset.missing, dataset.left_out):
        tell(one_line(note))
    settings = chosen_settings(args)
    work = work_of(args, settings, dataset)
    batch, total = batch_of(args, work, device_of(args)), len(dataset.items)
    with closing(run_study(dataset, batch, args.out)) as counts:
        done = next(counts)
        with Progress(total, done, batch) as shown, stopped_by_ctrl_c(batch, GO_ON):
            for done in counts:  # noqa: B007
                shown.count()
    if batch.stopping and done < total:
        tell(f"interrupted: {done} of {total} images have their rows; {GO_ON}")
        return 130
    errors = [row["error"] for row in read_run(args.out)[1] if row.get("error")]
    failed = ""
    if errors:
        failed = f", {counted(len(errors), 'failure')} among them (the first: {one_line(str(errors[0]))})"
    report_on = f"{PROGRAM} study report {shlex.quote(str(args.out))}"
    say(one_line(f"{counted(total, 'row')} in {args.out}{failed}; next: {report_on} --out DIR"))
    return 0


def work_of(args: argparse.Namespace, settings: Settings, dataset: Dataset) -> StudyWork:
    """What is asked of each image, by tools that are there. Raises UserError."""
    full_reference = any(item.reference for item in dataset.items)
    names = args.tools or settings.tools.configured(full_reference)
    tools = tuple(find_tool(name).name for name in names)
    check_set_up(settings, "agent", *tools)
    return StudyWork(settings, Plan(args.query or DEFAULT_QUERY, tools))


def fit(args: argparse.Namespace) -> None:
    place = output_file("--out", args.out, ".json", mark=FIT)
    found = fit_runs(args.runs, args.objective, split=args.split, share=args.share)
    write_whole(place, found.model_dump_json())
    own = found.intervals
    ratings, questions = (len(own.ratings), len(own.questions)) if own else (0, 0)
    said = (
        f"calibrated: intervals of q for {ratings} ways to assess, sets of answers for {questions}"
    )
    say(one_line(f"{found.account}; {said}; written to {args.out}"))


def report(args: argparse.Namespace) -> None:
    fitted = read_fit(Path(args.fit)) if args.fit else None
    how = {"draws": args.draws, "baseline": args.baseline}
    out = args.out or args.runs[0] / "report"
    say(report_runs(read_runs(args.runs), out, fit=fitted, **how))


def compare(args: argparse.Namespace) -> None:
    if len({folder.resolve() for folder in args.runs}) < len(args.runs):
        raise UsageError("compare: one run is named twice", "name two different runs")
    if args.out:
        check_report_folder(args.out)
    tables, notes = compare_runs(read_runs(args.runs), modes=args.modes, draws=args.draws)
    say("\n".join([*(as_text(name, table) for name, table in tables.items()), *notes]))
    if args.out:
        make_report_folder(args.out)
        write_tables(args.out, tables)
        say(f"\nWritten to {one_line(str(args.out))}")


def read_runs(folders: list[Path]) -> dict[str, Any]:
    """The runs by the names of their folders, which are numbered where two are the same."""
    names = [folder.resolve().name for folder in folders]
    times = Counter(names)
    called = [f"{name}-{i}" if times[name] > 1 else name for i, name in enumerate(names, 1)]
    return dict(zip(called, map(read_run, folders), strict=True))
