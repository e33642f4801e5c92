"""study run: makes a study's rows."""

import argparse
import shlex
from contextlib import closing

from agentic_iqa_local.cli import options as shared
from agentic_iqa_local.cli.command import Parser, stopped_by_ctrl_c
from agentic_iqa_local.cli.console import Progress, tell
from agentic_iqa_local.cli.options import add
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import command as command_line

# The rest is imported where it is needed, so that --help and wrong usage are answered at once.

ABOUT = """Reads a data set as its authors ship it, or a manifest of your own: a CSV or JSON-lines file with image and
mos, and if you have them reference, group, distortion, level, split; or with image, question, choices (in CSV
separated by |) and answer. Paths in it are relative to it, or absolute. Stores for each image plan, evidence, tools'
raw scores, the letters forward and reversed in every context, and the cost. Run the same command again to go on after
an interruption.

examples:
  {study} run /data/koniq10k --split test --out runs/koniq10k
  {study} run my40.csv --mos-range 1 5 --out runs/my40     # image,mos: your own scores from 1 to 5
  {study} run questions.csv --out runs/questions           # image,question,choices,answer: yes|no, yes
"""
GO_ON = "the same command goes on"
DATA = """
dataset PATH    folder of the data set, or a manifest (.csv, .jsonl)
--key NAME      which data set it is, where the layout does not tell
--part-of NAME  a manifest: the data set whose scale and direction its scores have
--split NAME    only images of this official split (train, val, test)
--limit N       only N images, drawn evenly over the data set with a fixed seed
--out DIR!      the run's folder: run.json and rows.jsonl
"""
HOW = """
--query TEXT    what is asked of each image (a rating of its quality)
--contexts image_alone|without_scores|all_evidence...  what stands in the prompt (all of them)
--tools TOOL...  tools scored on every image (those of the configuration)
"""


def options(parser: Parser) -> None:
    what = parser.add_argument_group("what to read")
    add(what, DATA)
    ends = "a manifest: the ends of its scale, such as 1 5 or 0 100, higher is better; fit --objective rps and the"
    ends += " report's calibration on the scale need them"
    what.add_argument("--mos-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help=ends)
    how = parser.add_argument_group("how")
    shared.add_options(how, *shared.SET_UP)
    add(how, HOW + shared.WORK)
    add(parser.add_argument_group("on several workers or machines, with Ray"), shared.CLUSTER)


def run(args: argparse.Namespace) -> int:
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.iqa_tools import find_tool
    from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
    from agentic_iqa_local.studies.datasets import load_dataset
    from agentic_iqa_local.studies.inference import CONTEXTS
    from agentic_iqa_local.studies.run import Plan, Studying, chosen, run_study
    from agentic_iqa_local.studies.store import read_run

    shared.check_together(args)
    place = shared.place_of(args)
    dataset = load_dataset(args.dataset, args.key, part_of=args.part_of, mos_range=args.mos_range)  # nosec B615
    dataset = chosen(dataset, args.split, args.limit)
    if dataset.missing:
        tell(
            one_line(f"{len(dataset.missing)} files that the scores name are missing, the first: {dataset.missing[0]}")
        )
    for reason, number in dataset.left_out.items():
        tell(f"{number} rows are left out: {one_line(reason)}")
    settings = shared.chosen_settings(args)
    full_reference = dataset.info.kind == "FR" or any(item.reference for item in dataset.items)
    configured = settings.tools.full_reference if full_reference else settings.tools.no_reference
    tools = tuple(find_tool(tool).name for tool in args.tools or configured)
    plan = Plan((args.query or "").strip() or DEFAULT_QUERY, tuple(args.contexts or CONTEXTS), tools)
    device = place.device if place else choose_device(args.gpu, args.cpu)
    batch = shared.chosen_batch(Studying(settings, plan), device, place, jobs=args.jobs, timeout=args.timeout)
    total = len(dataset.items or dataset.questions)
    with closing(run_study(dataset, batch, args.out)) as counts:
        done = next(counts)
        with Progress(total, done) as shown, stopped_by_ctrl_c(batch, GO_ON):
            for done in counts:  # noqa: B007
                shown.count()
    if batch.stopping and done < total:
        tell(f"interrupted: {done} of {total} images have their rows; {GO_ON}")
        return 130
    errors = [row["error"] for row in read_run(args.out)[1] if row.get("error")]
    failed = f", {len(errors)} of them failures (the first: {one_line(str(errors[0]))})" if errors else ""
    report_on = shlex.join([*command_line("study").split(), "report", str(args.out), "--out", "DIR"])
    print(one_line(f"{total} rows in {args.out}{failed}; next: {report_on}"))
    return 0
