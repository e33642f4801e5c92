"""The commands compare and best: the pictures are assessed as a batch, and compared by that."""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from agentic_iqa_local.batch.inputs import Item, expand_inputs, row_key
from agentic_iqa_local.batch.work import Assessing
from agentic_iqa_local.cli import options
from agentic_iqa_local.cli.command import stopped_by_ctrl_c
from agentic_iqa_local.cli.console import Console, Progress, tell
from agentic_iqa_local.cli.outputs import answer_files, check_apart, check_outputs
from agentic_iqa_local.errors import counted, one_line
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.images.files import check_file
from agentic_iqa_local.judgement.comparison import Judge
from agentic_iqa_local.judgement.ordering import MOST_PICTURES
from agentic_iqa_local.judgement.preference import fit_for
from agentic_iqa_local.output.comparison_report import comparison_csv, explain, headline_of
from agentic_iqa_local.result import Assessment, Result

Judgement = Callable[[Judge, list[Assessment], list[Path]], list[Result]]


def compare(args: argparse.Namespace) -> int:
    """Compares two pictures, or orders several. Raises UserError."""
    return _judge(args, _compared, most=MOST_PICTURES)


def best(args: argparse.Namespace) -> int:
    """Finds the best of each group of near-duplicates. Raises UserError."""
    return _judge(args, _best_of_groups)


def _compared(judge: Judge, rows: list[Assessment], files: list[Path]) -> list[Result]:
    return [judge.compared(rows, files) if len(rows) == 2 else judge.ranked(rows, files)]


def _best_of_groups(judge: Judge, rows: list[Assessment], files: list[Path]) -> list[Result]:
    failures = [row for row in rows if row.error]
    return [*failures, *judge.groups(judge.candidates(rows, files))]


def _judge(args: argparse.Namespace, judged: Judgement, most: int | None = None) -> int:
    """Assesses the pictures, and shows and writes what is `judged` of them; the exit status. Raises UserError."""
    check_outputs(args, compared=True)
    settings, pipeline = options.chosen_settings(args), args.pipeline or "letters"
    items = [Item(file, args.reference) for file in expand_inputs(args.pictures)]
    files = [item.image for item in items]
    check_apart(answer_files(args), [args.reference, args.config, *files])
    for file in files:
        check_file(file)
    if args.reference:
        check_file(args.reference)
    if most and not 2 <= len(items) <= most:
        wrong = f"expected 2 to {most} different pictures, got {len(items)}"
        raise options.UsageError(wrong, "name as many")
    options.check_set_up(settings, pipeline)
    batch = options.batch_of(args, Assessing(settings, pipeline), options.device_of(args))
    with Console() as console:
        made = {}
        with Progress(len(items)) as progress, stopped_by_ctrl_c(batch, "compare anew"):
            for row in batch.rows(items):
                made[row_key(vars(row))] = row
                progress.count(row.error is not None)
        if len(made) < len(items):
            done = f"{len(made)} of {counted(len(items), 'picture')}"
            tell(f"interrupted: {done} were assessed, none was compared; compare anew")
            return 130
        fit = fit_for(settings, pipeline, reference=args.reference is not None)
        rows = [made[item.key] for item in items]
        return _show(args, console, judged(Judge(settings, fit), rows, files))


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
        tell(one_line(f"{counted(len(results), 'row')} in {args.out}"))
    if args.csv:
        write_whole(args.csv, comparison_csv(results), encoding="utf-8-sig")
        tell(one_line(f"the pictures as a table in {args.csv}"))
    return status
