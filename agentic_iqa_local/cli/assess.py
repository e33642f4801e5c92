"""The command assess, until a model is needed: what can be checked before that is checked here."""

import argparse
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agentic_iqa_local.batch.inputs import Item, expand_inputs, read_manifest, references_in
from agentic_iqa_local.cli.console import Console, tell
from agentic_iqa_local.cli.options import UsageError, check_set_up, chosen_settings, device_of
from agentic_iqa_local.cli.outputs import check_outputs, output_file
from agentic_iqa_local.cli.sidecars import sidecars_of, take_back
from agentic_iqa_local.files import PNG, PROGRAM, ROOT
from agentic_iqa_local.images.files import check_file
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY

SAMPLE = ROOT / "tests" / "data" / "sumac.png"  # a wheel has it inside


def assess(args: argparse.Namespace) -> int:
    """Assesses what the command line names; the exit status. Raises UserError."""
    with Console() as console:
        settings = chosen_settings(args)
        items = items_of(args)
        maps = map_files(args.map, items) if args.map else []
        pictures = [path for item in items for path in (item.image, item.reference)]
        check_outputs(args, [*pictures, args.manifest, args.config, args.fit], maps=maps)
        if args.undo:
            return take_back([item.image for item in items])
        sidecars = sidecars_of(args, [item.image for item in items])
        check_set_up(settings, args.pipeline or "agent")
        device = device_of(args)
        from agentic_iqa_local.cli.assess_run import AssessRun  # which takes seconds

        if not args.manifest and not args.pictures:
            sample = "no picture named: assessing the sample that ships"
            tell(f"{sample}; yours: {PROGRAM} assess photo.jpg")
        return AssessRun(args, settings, items, device, console, maps, sidecars).finish()


def map_files(place: Path, items: Sequence[Item]) -> list[Path]:
    """The file of each item's map: `place`, or files in that folder. Raises UsageError."""
    files = [place]
    if place.is_dir():
        times = Counter[str]()
        files = []
        for item in items:
            name = item.image.stem
            times[name.lower()] += 1
            number = times[name.lower()]
            suffix = ".map.png" if number == 1 else f".{number}.map.png"
            files.append(place / f"{name}{suffix}")
    elif len(items) != 1:
        expected = f"expected a folder {place} for the maps of {len(items)} pictures, there is none"
        make = f"make it first: mkdir -p {shlex.quote(str(place))}"
        raise UsageError(f"--map {place}: {expected}", make)
    return [output_file("--map", file, ".png", mark=PNG) for file in files]


def items_of(args: argparse.Namespace) -> list[Item]:
    """The items that the command line names. Raises UserError, also for pictures that are not
    there."""
    if args.manifest:
        return read_manifest(args.manifest, query=args.query, choices=args.choices, box=args.box)
    files = expand_inputs(
        args.pictures or [os.path.relpath(SAMPLE)], raw_previews=bool(args.raw_previews)
    )
    for file in files:
        if not os.path.lexists(file):
            check_file(file)
    query, choices = args.query or DEFAULT_QUERY, args.choices and tuple(args.choices)
    items = []
    for file, original in zip(files, _references(args.reference, files), strict=True):
        items.append(Item(file, original, query, choices, args.box))
    return items


def _references(given: Path | None, files: Sequence[Path]) -> Sequence[Path | None]:
    """The reference of each file: none, the one that is given, or those of a folder. Raises
    ImageError."""
    if given and given.is_dir():
        return list(references_in(given, files))
    if given:
        check_file(given)
    return [given] * len(files)
