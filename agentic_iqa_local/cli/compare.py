"""The commands compare and best: the pictures are assessed as a batch, and compared by that."""

import argparse
import json
from functools import partial

from agentic_iqa_local.batch.inputs import Item, expand_inputs, row_key
from agentic_iqa_local.batch.work import Assessing
from agentic_iqa_local.cli import options
from agentic_iqa_local.cli.command import stopped_by_ctrl_c
from agentic_iqa_local.cli.console import Console, Progress, tell
from agentic_iqa_local.cli.outputs import answer_files, check_apart, check_outputs
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.images.files import check_file
from agentic_iqa_local.judgement.comparison import Judge
from agentic_iqa_local.judgement.ordering import MOST_PICTURES
from agentic_iqa_local.judgement.preference import fit_for
from agentic_iqa_local.output.comparison_report import comparison_csv, explain, headline_of
from agentic_iqa_local.result import Assessment, Result


def compare(args: argparse.Namespace, best: bool = False) -> int:
    """Compares two pictures, orders several, or finds the best of each group. Raises UserError."""
    check_outputs(args, compared=True)
    settings, pipeline = options.chosen_settings(args), args.pipeline or "letters"
    items = [Item(file, args.reference) for file in expand_inputs(args.pictures)]
    check_apart(answer_files(args), [args.reference, args.config, *(item.image for item in items)])
    for file in filter(None, (args.reference, *(item.image for item in items))):
        check_file(file)
    if not best and not 2 <= len(items) <= MOST_PICTURES:
        raise options.UsageError(
            f"expected 2 to {MOST_PICTURES} different pictures, got {len(items)}", "name as many"
        )
    options.check_set_up(settings, pipeline)
    made, work = dict[str, Assessment](), Assessing(settings, pipeline)
    batch = options.batch_of(args, work, options.device_of(args))
    with Console() as console:
        with Progress(len(items)) as progress, stopped_by_ctrl_c(batch, "compare anew"):
            for row in batch.rows(items):
                made[row_key(vars(row))] = row
                progress.count(row.error is not None)
        if len(made) < len(items):
            tell(
                f"interrupted: {len(made)} of {len(items)} pictures were assessed, none was compared; compare anew"
            )
            return 130
        judge = Judge(settings, fit_for(settings, pipeline, reference=args.reference is not None))
        rows, files = [made[item.key] for item in items], [item.image for item in items]
        if best:
            groups = judge.groups(judge.candidates(rows, files))
            return _show(args, console, [*(row for row in rows if row.error), *groups])
        return _show(
            args, console, [(judge.compared if len(rows) == 2 else judge.ranked)(rows, files)]
        )


best = partial(compare, best=True)


def _show(args: argparse.Namespace, console: Console, results: list[Result]) -> int:
    """Shows and writes the results; the exit status."""
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
