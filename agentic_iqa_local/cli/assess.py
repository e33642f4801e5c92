"""The command assess, until a model is needed: what can be checked before that is checked here."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from agentic_iqa_local.batch.inputs import Item, expand_inputs, read_manifest, references_in
from agentic_iqa_local.cli.console import Console, tell
from agentic_iqa_local.cli.options import (
    UsageError,
    check_set_up,
    chosen_settings,
    device_of,
)
from agentic_iqa_local.cli.outputs import check_outputs
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
        check_outputs(args, [args.manifest, args.config, args.fit])
        settings = chosen_settings(args, notes.append)
        if not args.manifest and not args.pictures:
            sample = "no picture named: assessing the sample that ships"
            notes.append(f"{sample}; yours: {command('assess')} photo.jpg")
        items = items_of(args)
        check_set_up(settings, args.pipeline or "agent")
        device = device_of(args)
        from agentic_iqa_local.cli.assess_run import AssessRun  # which takes seconds

        for note in notes:
            tell(note)
        return AssessRun(args, settings, items, device, console).finish()


def items_of(args: argparse.Namespace) -> list[Item]:
    """The items that the command line names. Raises UserError, also for pictures that are not
    there."""
    if args.manifest:
        return read_manifest(args.manifest, query=args.query, choices=args.choices, box=args.box)
    if args.choices and not args.query:
        wrong = "--choices needs --query, the question that they answer"
        raise UsageError(wrong, 'add --query "QUESTION"')
    files = expand_inputs(args.pictures or [_sample()])
    for file in files:
        if not os.path.lexists(file):
            check_file(file)
    query, choices = args.query or DEFAULT_QUERY, args.choices and tuple(args.choices)
    items = []
    for file, original in zip(files, _references(args.reference, files), strict=True):
        items.append(Item(file, original, query, choices, args.box))
    return items


def _sample() -> str:
    is_near = SAMPLE.is_relative_to(Path.cwd())
    return os.path.relpath(SAMPLE) if is_near else str(SAMPLE)


def _references(given: Path | None, files: Sequence[Path]) -> Sequence[Path | None]:
    """The reference of each file: none, the one that is given, or those of a folder. Raises
    ImageError."""
    if given and given.is_dir():
        return list(references_in(given, files))
    if given:
        check_file(given)
    return [given] * len(files)
