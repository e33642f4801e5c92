"""The commands compare and best: the pictures are assessed as a batch, and compared by that."""

import argparse
import json
from functools import partial
from pathlib import Path

from agentic_iqa_local.batch.inputs import Item, expand_inputs, row_key
from agentic_iqa_local.batch.work import AssessWork
from agentic_iqa_local.cli import options
from agentic_iqa_local.cli.command import stopped_by_ctrl_c
from agentic_iqa_local.cli.console import Console, Progress, tell
from agentic_iqa_local.cli.outputs import check_outputs
from agentic_iqa_local.cli.sidecars import mark_best, sidecars_of, take_back, told
from agentic_iqa_local.errors import counted, one_line
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.images.files import check_file
from agentic_iqa_local.judgement.comparison import Group, Judge
from agentic_iqa_local.judgement.keeper import groups
from agentic_iqa_local.judgement.ordering import MOST_PICTURES
from agentic_iqa_local.output.comparison_report import explain, headline_of
from agentic_iqa_local.result import Assessment, Result


def compare(args: argparse.Namespace) -> int:
    """Compares two pictures, or orders several. Raises UserError."""
    return _judge(args, best_of_groups=False)


def best(args: argparse.Namespace) -> int:
    """Finds the best of each group of near-duplicates. Raises UserError."""
    if args.undo:
        files = expand_inputs(args.pictures, raw_previews=bool(args.raw_previews))
        return take_back(files)
    return _judge(args, best_of_groups=True)


def _judge(args: argparse.Namespace, best_of_groups: bool) -> int:
    """Assesses the pictures, compares them by that, and shows and writes what came out; the exit
    status."""
    files = expand_inputs(args.pictures, raw_previews=bool(args.raw_previews))
    check_outputs(args, [args.reference, args.config, *files], compared=True)
    sidecars_of(args, files)  # a mistake is told before anything is loaded
    settings, pipeline = options.chosen_settings(args), args.pipeline or "letters"
    for file in (*files, args.reference):
        if file:
            check_file(file)
    if not best_of_groups and not 2 <= len(files) <= MOST_PICTURES:
        wrong = f"expected 2 to {MOST_PICTURES} different pictures, got {len(files)}"
        raise options.UsageError(wrong, "name as many")
    options.check_set_up(settings, pipeline)
    with Console() as console:
        rows = _rows(args, AssessWork(settings, pipeline), files)
        if rows is None:
            return 130
        judge = Judge.of(settings, pipeline, reference=args.reference is not None)
        candidates = judge.candidates(rows, files)
        failed = [row for row in rows if row.error]
        if best_of_groups:
            found = list(groups(judge, candidates))
            return _show_groups(args, console, failed, found, files)
        if len(rows) == 2:
            return _show(args, console, [judge.compared(rows, candidates)])
        return _show(args, console, [judge.rank(candidates, failed)])


def _show_groups(
    args: argparse.Namespace,
    console: Console,
    failed: list[Assessment],
    found: list[Group],
    files: list[Path],
) -> int:
    """Shows the groups, and marks the best of each in its sidecar; the exit status."""
    sidecars = sidecars_of(args, files)
    mark_best(sidecars, found)
    status = _show(args, console, [*failed, *found])
    return max(status, told(sidecars))


def _rows(args: argparse.Namespace, work: AssessWork, files: list[Path]) -> list[Assessment] | None:
    """The row of each file; None if Ctrl-C ended the batch before all were made."""
    items = [Item(file, args.reference) for file in files]
    batch = options.batch_of(args, work, options.device_of(args))
    made = {}
    with Progress(len(items), batch=batch) as progress, stopped_by_ctrl_c(batch, "compare anew"):
        for row in batch.rows(items):
            made[row_key(vars(row))] = row
            progress.count(row.error is not None)
    if len(made) < len(items):
        done = f"{len(made)} of {counted(len(items), 'picture')}"
        tell(f"interrupted: {done} were assessed, none was compared; compare anew")
        return None
    return [made[item.key] for item in items]


def _show(args: argparse.Namespace, console: Console, results: list[Result]) -> int:
    """Shows and writes the results; the exit status."""
    status, lines = 0, []
    for result in results:
        lines.append(one_line(json.dumps(result.to_dict(), ensure_ascii=False)))
        failed = bool(getattr(result, "error", None) or getattr(result, "failed", None))
        status |= failed
        shown = lines[-1], partial(explain, result), headline_of(result), failed
        console.show_answer(args, *shown, brief=True)
    if args.out:
        write_whole(args.out, "\n".join(lines))
        tell(one_line(f"{counted(len(results), 'row')} in {args.out}"))
    return status
