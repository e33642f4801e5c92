"""study run: makes a study's rows."""

import argparse
import shlex
import sys
from contextlib import closing
from pathlib import Path

from agentic_iqa_local.cli import options
from agentic_iqa_local.cli.command import stopped_by_ctrl_c
from agentic_iqa_local.cli.console import Progress, start_logging
from agentic_iqa_local.cli.options import add
from agentic_iqa_local.cli.study_options import STUDY, Subcommands, add_command, count
from agentic_iqa_local.errors import one_line

# The rest is imported where it is needed, so that --help and wrong usage are answered at once.

GO_ON = "the same command goes on"
DATA = """
--key NAME      which data set it is, where the layout does not tell
--part-of NAME  a manifest: the data set whose scale and direction its scores have
--split NAME    only images of this official split (train, val, test)
"""
TOOLS = """
--tools TOOL...  tools scored on every image (default: the configuration's)
"""


def add_run(commands: Subcommands) -> None:
    from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
    from agentic_iqa_local.studies.inference import CONTEXTS

    command = add_command(
        commands,
        "run",
        "each image's inference, once, into a folder that survives a kill",
        "Reads a data set as its authors ship it, or a manifest of your own: a CSV or JSON-lines file with"
        " image and mos, and if you have them reference, group, distortion, level, split; or with image,"
        " question, choices (in CSV separated by |) and answer. Paths in it are relative to it, or absolute."
        " Stores for each image plan, evidence, tools' raw scores, the letters forward and reversed in every"
        " context, and the cost. Run the same command again to go on after an interruption.",
        "/data/koniq10k --split test --out runs/koniq10k",
        "my40.csv --mos-range 1 5 --out runs/my40     # image,mos: your own scores from 1 to 5",
        "questions.csv --out runs/questions           # image,question,choices,answer: yes|no, yes",
    )
    what = command.add_argument_group("what to read")
    folder = "folder of the data set, or a manifest (.csv, .jsonl)"
    what.add_argument("dataset", type=Path, metavar="FOLDER", help=folder)
    add(what, DATA)
    ends = "a manifest: the ends of its scale, such as 1 5 or 0 100, higher is better; fit --objective rps and the"
    ends += " report's calibration on the scale need them"
    what.add_argument("--mos-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help=ends)
    drawn = "only N images, drawn evenly over the data set with a fixed seed"
    what.add_argument("--limit", type=count, metavar="N", help=drawn)
    place = "the run's folder: run.json and rows.jsonl"
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help=place)
    how = command.add_argument_group("how")
    options.add_options(how, *options.SET_UP)
    how.add_argument("--query", default=DEFAULT_QUERY, help="what is asked of each image (default: %(default)s)")
    shown = "what stands in the prompt (default: all)"
    how.add_argument("--contexts", nargs="+", choices=CONTEXTS, default=CONTEXTS, help=shown)
    add(how, TOOLS + options.WORK)
    add(command.add_argument_group("on several workers or machines, with Ray"), options.CLUSTER)
    command.set_defaults(main=run)


def run(args: argparse.Namespace) -> int:
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.iqa_tools import find_tool
    from agentic_iqa_local.services import Services
    from agentic_iqa_local.studies.datasets import load_dataset
    from agentic_iqa_local.studies.run import Plan, Studying, check_plan, chosen, run_study
    from agentic_iqa_local.studies.store import check_folder, read_run

    start_logging(0)
    place = options.place_of(args)
    check_folder(args.out)
    dataset = load_dataset(args.dataset, args.key, part_of=args.part_of, mos_range=args.mos_range)  # nosec B615
    dataset = chosen(dataset, args.split, args.limit)
    for name in dataset.missing[:5]:
        print(f"missing: {one_line(name):.300}", file=sys.stderr)
    if dataset.missing:
        print(f"{len(dataset.missing)} files that the scores name are missing", file=sys.stderr)
    for reason, number in dataset.left_out.items():
        print(f"{number} rows are left out: {one_line(reason)}", file=sys.stderr)
    settings = options.chosen_settings(args)
    full_reference = dataset.info.kind == "FR" or any(item.reference for item in dataset.items)
    configured = settings.tools.full_reference if full_reference else settings.tools.no_reference
    tools = tuple(find_tool(tool).name for tool in args.tools or configured)
    plan = Plan(args.query, tuple(args.contexts), tools)
    device = place.device if place else choose_device(args.gpu, args.cpu)
    named = tools if args.tools else ()
    check_plan(args.query, named, Services(settings, device), full_reference=full_reference)
    batch = options.chosen_batch(Studying(settings, plan), device, place, jobs=args.jobs, timeout=args.timeout)
    total = len(dataset.items or dataset.questions)
    with closing(run_study(dataset, batch, args.out)) as counts:
        done = next(counts)
        with Progress(total, done) as shown, stopped_by_ctrl_c(batch, GO_ON):
            for done in counts:  # noqa: B007
                shown.count(where=batch.by_node)
    if batch.by_node:
        print(f"rows by node: {batch.by_node}", file=sys.stderr)
    if batch.stopping and done < total:
        print(f"interrupted: {done} of {total} images have their rows; {GO_ON}", file=sys.stderr)
        return 130
    errors = [row["error"] for row in read_run(args.out)[1] if row.get("error")]
    failed = f", {len(errors)} of them failures (the first: {one_line(str(errors[0]))})" if errors else ""
    report_on = shlex.join([*STUDY.split(), "report", str(args.out), "--out", "DIR"])
    print(one_line(f"{total} rows in {args.out}{failed}; next: {report_on}"))
    return 0
