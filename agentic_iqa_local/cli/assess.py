"""The command assess, until a model is needed: what can be checked before that is checked here."""

import argparse
import os
from pathlib import Path

from agentic_iqa_local.batch.inputs import Item, expand_inputs, read_manifest, references_in
from agentic_iqa_local.cli.console import Console, tell
from agentic_iqa_local.cli.options import (
    UsageError,
    check_set_up,
    chosen_settings,
    device_of,
)
from agentic_iqa_local.cli.outputs import answer_files, check_apart, check_outputs
from agentic_iqa_local.files import ROOT, command
from agentic_iqa_local.images.files import check_file
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY

SAMPLE = ROOT / "tests" / "data" / "sumac.png"  # a wheel has it inside


def assess(args: argparse.Namespace) -> int:
    """Assesses what the command line names; the exit status. Raises UserError."""
    with Console() as console:
        notes: list[
            str
        ] = []  # said once it is clear that the device is there: a mistake is one line
        check_outputs(args)
        check_apart(answer_files(args), [args.manifest, args.config, args.fit])
        settings = chosen_settings(args, notes.append)
        if not (args.manifest or args.pictures):
            notes.append(
                f"no picture named: assessing the sample that ships; yours: {command('assess')} photo.jpg"
            )
        items = wanted(args)
        check_set_up(settings, args.pipeline or "agent")
        device = device_of(args)
        from agentic_iqa_local.cli.assess_run import AssessRun  # which takes seconds

        for note in notes:
            tell(note)
        return AssessRun(args, settings, items, device, console).finish()


def wanted(args: argparse.Namespace) -> list[Item]:
    """The items that the command line names. Raises UserError, also for pictures that are not there."""
    if args.manifest:
        return read_manifest(args.manifest, query=args.query, choices=args.choices, box=args.box)
    sample = os.path.relpath(SAMPLE) if SAMPLE.is_relative_to(Path.cwd()) else str(SAMPLE)
    files = expand_inputs(args.pictures or [sample])
    for file in files:
        if not os.path.lexists(file):
            check_file(file)
    references: list[Path | None] = [args.reference] * len(files)
    if args.reference and args.reference.is_dir():
        references = [*references_in(args.reference, files)]
    elif args.reference:
        check_file(args.reference)
    if args.choices and not args.query:
        raise UsageError(
            "--choices needs --query, the question that they answer", 'add --query "QUESTION"'
        )
    query, choices = args.query or DEFAULT_QUERY, args.choices and tuple(args.choices)
    return [
        Item(file, original, query, choices, args.box)
        for file, original in zip(files, references, strict=True)
    ]
