"""Assesses pictures with a local vision-language model and IQA tools.

examples:
  {assess} photo.jpg --explain
  {assess} photo.jpg --reference original.png --gpu 0
  {assess} photo.jpg --query "Is the sky noisy?" --choices Yes No
  {assess} scans/ --out results.jsonl --csv results.csv
  {assess} scans/ --at-least Good --error-rate 0.05 --strict
On a terminal the answer is text, piped it is one JSON object a line.

Exit status: 0 all assessed, 1 some picture failed or the batch ended early,
2 wrong usage or no model, 130 interrupted; with --strict 4 where a picture
fails --at-least, 3 where an answer is not sure.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from agentic_iqa_local import __version__
from agentic_iqa_local.cli import options as shared
from agentic_iqa_local.cli.command import Command, Parser, UsageError
from agentic_iqa_local.cli.console import Console, tell
from agentic_iqa_local.files import ROOT, command

if TYPE_CHECKING:
    from agentic_iqa_local.batch.inputs import Item

# What follows is imported where it is needed, so that --help and wrong usage are answered at once.

SAMPLE = ROOT / "tests" / "data" / "sumac.png"  # a wheel has it inside
INPUTS = """
--manifest FILE     instead: .csv, .jsonl or .parquet with image, and if wanted reference, query, choices of each row
--reference PATH    pristine original of the same size; for many pictures a folder with originals of the same names
"""
STRICT = "--strict   exit status 4 where a picture fails --at-least, 3 where an answer is not sure"
OUTPUTS = """
--out FILE          JSON lines to FILE, one durable row for each picture
--resume            go on with FILE: assess what it lacks, and what changed
--retry-failed      with --resume: assess its failed pictures again
--csv FILE          a table for spreadsheets too, when the run ends
--gallery FILE      a page to look through, sort and triage too, when the run ends
--map PATH          draw the quality from place to place to a PNG; for several pictures into a folder
"""
BASIC = (
    "help", "help_all", "pictures", "manifest", "reference", "query", "choices", "gpu", "cpu", "config", "model",
    "pipeline", "at_least", "out", "resume", "csv", "json", "explain",
)  # fmt: skip


def options(parser: Parser) -> None:
    parser.basic = BASIC
    parser.add_argument("--help-all", action="help", help="show every option")
    parser.add_argument("--version", action="version", version=f"agentic_iqa_local {__version__}")
    what = parser.add_argument_group("what to assess")
    what.add_argument("pictures", nargs="*", metavar="PICTURE", help="pictures, folders or globs")
    shared.add(what, INPUTS)
    shared.add_options(what, "query", "choices", "background")
    how = parser.add_argument_group("how: with what, and where")
    shared.add_options(how, *shared.SET_UP, *shared.HOW)
    shared.add(how, shared.WORK)
    shared.add(parser.add_argument_group("on several workers or machines, with Ray"), shared.CLUSTER)
    shared.add_options(how, *shared.HOW_SURE)
    shared.add(how, STRICT)
    output = parser.add_argument_group("output")
    shared.add(output, OUTPUTS + shared.TRACK)
    shared.add_options(output, "map_tiles")
    shared.add(output, shared.ANSWER)


def read(parser: Parser, argv: list[str] | None) -> argparse.Namespace:
    args = shared.read(parser, argv)
    if args.strict and args.at_least is None and args.abstain_wider_than is None:
        parser.error("--strict: expected with --at-least or --abstain-wider-than")
    return args


def assess(args: argparse.Namespace) -> int:
    """Everything that can be checked without a model is checked before anything that takes seconds to load.
    Raises UserError."""
    with Console() as console:
        notes: list[str] = []  # said once it is clear that the device is there
        shared.check_outputs(args)
        if args.manifest and args.csv and args.csv.resolve() == args.manifest.resolve():
            raise UsageError(f"--csv {args.csv}: expected another file than the manifest", "name a new one")
        settings = shared.chosen_settings(args, notes.append)
        if not (args.manifest or args.pictures):
            yours = f"{command('assess')} photo.jpg"
            notes.append(f"no picture named: assessing the sample photograph that ships; yours: {yours}")
        items = wanted(args)
        shared.check_models(settings, args.pipeline or "agent")
        place = shared.place_of(args)
        from agentic_iqa_local.cli.assess_run import AssessRun
        from agentic_iqa_local.devices import choose_device

        device = place.device if place else choose_device(args.gpu, args.cpu)
        for note in notes:
            tell(note)
        return AssessRun(args, settings, items, device, console, place).finish()


def wanted(args: argparse.Namespace) -> "list[Item]":
    """The items that the command line names. Raises UserError, also for pictures that are not there."""
    from agentic_iqa_local.batch.inputs import Item, expand_inputs, read_manifest, references_in
    from agentic_iqa_local.images.files import check_file
    from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY

    if args.manifest:
        return read_manifest(args.manifest, args.query, args.choices)
    sample = os.path.relpath(SAMPLE) if SAMPLE.is_relative_to(Path.cwd()) else str(SAMPLE)
    files = expand_inputs(args.pictures or [sample], tell)
    for file in files:
        if not os.path.lexists(file):
            check_file(file)
    references: list[Path | None] = [args.reference] * len(files)
    if args.reference and args.reference.is_dir():
        references = [*references_in(args.reference, files)]
    elif args.reference:
        check_file(args.reference)
    query, choices = args.query or DEFAULT_QUERY, args.choices and tuple(args.choices)
    return [Item(file, original, query, choices) for file, original in zip(files, references, strict=True)]


main = Command("assess", __doc__, options, assess, read, "%(prog)s [PICTURE ...] [options]")
