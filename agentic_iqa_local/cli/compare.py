"""Says which picture is better, and how probable that is: `compare` two or more, or find the `best` of each group of
near-duplicates, such as the frames of a burst. No file is moved or deleted.

examples:
  {compare} before.jpg after.jpg --explain
  {best} burst/ --csv best.csv

Exit status: 0 compared, 1 some picture failed, 2 wrong usage or a model that cannot run, 130 interrupted.
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from agentic_iqa_local.cli import options as shared
from agentic_iqa_local.cli.command import Command, Parser, UsageError, stopped_by_ctrl_c
from agentic_iqa_local.cli.console import Console, Progress, tell
from agentic_iqa_local.errors import one_line

if TYPE_CHECKING:
    from agentic_iqa_local.batch.inputs import Item
    from agentic_iqa_local.config import Settings
    from agentic_iqa_local.result import Assessment, Result

OPTIONS = """
--reference PATH  a pristine original of all pictures
--out FILE        write JSON lines to FILE
--csv FILE        write a table of the pictures and their places
"""


def options(parser: Parser) -> None:
    parser.set_defaults(pipeline="letters", best=False)
    parser.add_argument("pictures", nargs="+", metavar="PICTURE", help="pictures, folders or globs")
    shared.add(parser, OPTIONS)
    shared.add_options(parser, *shared.SET_UP, *shared.HOW, "background")
    shared.add(parser, shared.WORK + shared.ANSWER)


def best_options(parser: Parser) -> None:
    options(parser)
    parser.set_defaults(best=True)


def compare(args: argparse.Namespace) -> int:
    """Assesses the pictures as a batch and shows what comes of them. Raises UserError."""
    from agentic_iqa_local.batch.inputs import Item, expand_inputs
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.images.files import check_file
    from agentic_iqa_local.judgement.ordering import MOST_PICTURES

    shared.check_outputs(args)
    settings = shared.chosen_settings(args)
    items = [Item(file, args.reference) for file in expand_inputs(args.pictures, tell)]
    for file in filter(None, (args.reference, *(item.image for item in items))):
        check_file(file)
    if not args.best and not 2 <= len(items) <= MOST_PICTURES:
        raise UsageError(f"compare: expected 2 to {MOST_PICTURES} different pictures, got {len(items)}", "name others")
    shared.check_models(settings, args.pipeline)
    device = choose_device(args.gpu, args.cpu)
    with Console() as console:
        rows = _assessed(args, settings, items, device)
        if len(rows) < len(items):
            tell(f"interrupted: {len(rows)} of {len(items)} pictures were assessed, none was compared; compare anew")
            return 130
        return _show(args, console, _results(args, settings, items, rows))


def _assessed(args: argparse.Namespace, settings: "Settings", items: "list[Item]", device: str) -> "list[Assessment]":
    """The pictures' assessments in their order; fewer after Ctrl-C."""
    from agentic_iqa_local.batch.inputs import row_key
    from agentic_iqa_local.batch.runner import Runner
    from agentic_iqa_local.batch.work import Assessing

    work = Assessing(settings, args.pipeline, args.max_replan_iterations)
    batch = Runner(work, device, jobs=args.jobs, timeout=args.timeout)
    rows: dict[str, Assessment] = {}
    with Progress(len(items)) as progress, stopped_by_ctrl_c(batch, "compare anew"):
        for row in batch.rows(items):
            rows[row_key(vars(row))] = row
            progress.count(row.error is not None)
    return [rows[item.key] for item in items if item.key in rows]


def _results(
    args: argparse.Namespace, settings: "Settings", items: "list[Item]", rows: "list[Assessment]"
) -> "list[Result]":
    """A comparison, an order, or what failed and the groups."""
    from agentic_iqa_local.judgement.comparison import Judge
    from agentic_iqa_local.judgement.preference import fit_for

    judge = Judge(settings, fit_for(settings, args.pipeline, reference=args.reference is not None))
    files = [item.image for item in items]
    if args.best:
        return [*(row for row in rows if row.error), *judge.groups(judge.candidates(rows, files))]
    return [(judge.compared if len(rows) == 2 else judge.ranked)(rows, files)]


def _show(args: argparse.Namespace, console: Console, results: "list[Result]") -> int:
    """Shows and writes the results; the exit status."""
    from agentic_iqa_local.files import write_whole
    from agentic_iqa_local.output.comparison_report import explain, headline_of
    from agentic_iqa_local.output.comparison_table import comparison_csv

    status, lines = 0, []
    for result in results:
        lines.append(one_line(json.dumps(result.to_dict(), ensure_ascii=False)))
        failed = bool(getattr(result, "error", None) or getattr(result, "failed", None))
        status |= failed
        console.show_answer(args, lines[-1], partial(explain, result), headline_of(result), failed)
    if args.out:
        write_whole(args.out, "\n".join(lines))
        tell(one_line(f"{len(results)} rows in {args.out}"))
    if args.csv:
        write_whole(args.csv, comparison_csv(results), encoding="utf-8-sig")
        tell(one_line(f"the pictures as a table in {args.csv}"))
    return status


main = Command("compare", __doc__, options, compare, shared.read, "%(prog)s PICTURE ... [options]")
best = replace(main, name="best", add=best_options)
