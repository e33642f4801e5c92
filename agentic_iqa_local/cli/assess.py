"""Assesses the quality of pictures with a local vision-language model and IQA tools. Nothing leaves this
machine.

examples:
  {assess} photo.jpg --explain
  {assess} photo.jpg --reference original.png --gpu 0
  {assess} photo.jpg --query "Use NIQE to score this picture."
  {assess} photo.jpg --query "Which distortion dominates?" --choices Blur Noise Compression None
  {assess} photo.jpg --interactive
  {assess} scans/ --pipeline letters --out results.jsonl --csv results.csv --gallery results.html
  {assess} --manifest images.csv --out results.jsonl --resume --retry-failed
  {assess} photo.jpg --config qwen2_5_vl_7b --gpu 0
  {assess} scans/ --at-least Good --error-rate 0.05 --strict --csv gate.csv
  {assess} scans/ --pipeline letters --out results.jsonl --cluster 10.0.0.1:6379 --workers 8
  {assess} --compare before.jpg after.jpg
  {assess} --best-of burst/
  {assess} --list-tools
Without a picture the sample photograph that ships is assessed. With --gpu 0 and neither --config nor --model
the largest complete vision-language model below the models folder is taken, and named.

On a terminal the answer is text, of several pictures one line each, coloured unless NO_COLOR is set;
piped, or with --json, it is one JSON object a line on stdout and nothing
else there. With --out the objects go to a file instead, each synced to disk as it is finished: after a kill,
Ctrl-C or a full disk the same command with --resume goes on.
With --interactive questions about one picture are read from stdin, one a line ("Rate it", then "And the
sky?"), until its end, "exit" or "quit". The picture stays open, and each question is told of those before it;
Ctrl-C stops a question, or between two the session. Exit status: 0 all assessed, 1 some picture failed (its
row has "error") or the batch could not go on, 2 wrong usage or a model that cannot run, with --strict 4 where
a picture fails --at-least and 3 where an answer is not sure, 130 interrupted by Ctrl-C or a polite kill (the
rows so far are written).
"""

import argparse
import glob
import logging
import os
import shlex
import signal
from collections.abc import Iterable
from pathlib import Path

from agentic_iqa_local.cli import chosen_settings
from agentic_iqa_local.cli.assess_options import parse
from agentic_iqa_local.cli.assess_run import AssessRun, show
from agentic_iqa_local.cli.cluster_options import place_of
from agentic_iqa_local.cli.compare_run import CompareRun, check_number
from agentic_iqa_local.cli.console import Console, exit_status, like_ctrl_c, safe_streams, start_logging
from agentic_iqa_local.cli.outputs import UsageError, result_file
from agentic_iqa_local.files import ROOT, command

# What follows is imported where it is needed, so that --help and wrong usage are answered at once.

NAMED_FILES = 5  # in a message
SAMPLE = ROOT / "tests" / "data" / "sumac.png"  # a wheel has it inside


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv, __doc__ or "")
    start_logging(args.verbose)

    def assess() -> int:
        with like_ctrl_c(signal.default_int_handler), Console() as console:
            return assess_all(args, console)
        return 0  # the console has ended this because nobody reads stdout any more

    return exit_status(assess, interrupted="interrupted before the first picture")


def assess_all(args: argparse.Namespace, console: Console) -> int:
    """Everything that can be checked without a model is checked before anything that takes seconds to load.
    Raises UserError."""
    notes: list[str] = []  # said once it is clear that the device is there
    settings = chosen_settings(args, notes.append)
    if not (args.list_tools or args.manifest or args.pictures):
        yours = f"{command('assess')} photo.jpg"
        notes.append(f"no picture named: assessing the sample photograph that ships; yours: {yours}")
    items = [] if args.list_tools else wanted(args, console)
    check_pictures(args, items)
    if args.interactive and len(items) != 1:
        raise UsageError(f"--interactive: expected one picture, got {len(items)}", "name one of them")
    if args.compare or args.best_of:
        check_number(args, items)
    rows = "file of comparisons" if args.compare or args.best_of else "file of rows"
    for option, kind in (("out", rows), ("csv", "table"), ("gallery", "gallery")):
        if file := getattr(args, option):
            setattr(args, option, place := result_file(f"--{option}", file, kind))
            check_own(f"--{option}", place, args)
    if args.csv and args.csv == args.gallery:
        raise UsageError(f"--gallery {args.gallery}: expected a file of its own, this is --csv's")
    if args.engine != "server" and not args.list_tools:
        check_models(settings, args.pipeline)
    if args.explain and not args.verbose:
        for name in ("workbench", "score_fusion"):  # the account holds a picture's warnings
            logging.getLogger(f"agentic_iqa_local.{name}").setLevel(logging.ERROR)
    from agentic_iqa_local.devices import choose_device

    place = place_of(args)
    device = place.device if place else choose_device(args.gpu, args.cpu)
    for note in notes:
        console.say(note)
    if args.list_tools:
        return list_tools(settings, device, console)
    if args.interactive:
        from agentic_iqa_local.cli.interactive import converse

        return converse(args, settings, items[0], device, console, show)
    if args.compare or args.best_of:
        return CompareRun(args, settings, items, device, console).finish()
    return AssessRun(args, settings, items, device, console, place).finish()


def wanted(args: argparse.Namespace, console: Console) -> list:
    """The items that the command line names, with --shard its share of them. Raises UserError."""
    from agentic_iqa_local.batch.inputs import Item, expand_inputs, read_manifest, references_in

    if args.manifest:
        return read_manifest(args.manifest, args.query, args.choices)
    from agentic_iqa_local.images.files import check_file
    from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY

    choices = args.choices and tuple(args.choices)
    for words in args.pictures:
        if (
            " " in words
            and not os.path.lexists(words)
            and not glob.glob(words, recursive=True)
            and not Path(words.rstrip("?!.")).suffix
        ):
            raise UsageError(
                f"{words!r} is no file", f"a question goes behind its option: --query {shlex.quote(words)}"
            )
    sample = os.path.relpath(SAMPLE) if SAMPLE.is_relative_to(Path.cwd()) else str(SAMPLE)
    files = expand_inputs(args.pictures or [sample], console.say)
    references: list[Path | None] = [args.reference] * len(files)
    if args.reference and args.reference.is_dir():
        references = [*references_in(args.reference, files)]
    elif args.reference:
        check_file(args.reference)
    return [
        Item(path, reference, args.query or DEFAULT_QUERY, choices)
        for path, reference in zip(files, references, strict=True)
    ]


def check_pictures(args: argparse.Namespace, items: Iterable) -> None:
    """Raises UsageError for pictures that are not there."""
    missing = [item.image for item in items if not os.path.lexists(item.image)] if not args.manifest else []
    if missing:
        raise UsageError(about_missing(args, missing))


def check_own(option: str, file: Path, args: argparse.Namespace) -> None:
    """Raises UsageError for an output that would replace the manifest, which may be a table or rows of ours,
    or for a --csv or --gallery that would replace what lies beside the rows."""
    beside = ("", ".run.json", ".lock", ".partial", ".run.json.partial")
    if option != "--out" and args.out and file in [args.out.with_name(args.out.name + end) for end in beside]:
        of = "this one belongs to the rows"
    elif args.manifest and file.exists() and args.manifest.exists() and file.samefile(args.manifest):
        of = "this one is read"
    else:
        return
    raise UsageError(f"{option} {file}: expected a file of its own, {of}", f"choose another {option}")


def about_missing(args: argparse.Namespace, missing: list[Path]) -> str:
    """What to type instead of pictures that are not there."""
    from agentic_iqa_local.images.files import ImageError, check_file

    first = missing[0]
    words = [*([args.query] if args.query and len(args.query.split()) == 1 else []), *map(str, missing)]
    if len(words) > 1 and not any(path.suffix.rstrip("?!.") for path in missing):
        return (
            f"'{first}' is no file; put a query of several words in quotes: --query"
            f" {shlex.quote(' '.join(words))}"
        )
    more = (
        f" (and {len(missing) - 1} more are not there: {', '.join(map(str, missing[1:NAMED_FILES]))})"
        if missing[1:]
        else ""
    )
    try:
        check_file(first)
    except ImageError as error:
        return f"{error}{more}"
    return f"{first}: it came while we looked; try again"


def check_models(settings, pipeline: str) -> None:
    """Raises UsageError for a model folder that is not there."""
    from agentic_iqa_local.files import about_missing_model

    for role in ("planner", "executor", "summarizer") if pipeline == "agent" else ("summarizer",):
        folder = settings.folder(settings.role(role).backend)
        if not os.path.isdir(folder):
            raise UsageError(*about_missing_model(folder))


def list_tools(settings, device: str, console: Console) -> int:
    from agentic_iqa_local.output.report import tool_table
    from agentic_iqa_local.services import Services

    console.show(tool_table(Services(settings, device).tools.info()))
    return 0
