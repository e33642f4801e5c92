"""Where the maps of the command assess are drawn to, and what is said of those that were not."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.cli.outputs import UsageError, result_file

if TYPE_CHECKING:
    from agentic_iqa_local.batch.inputs import Item
    from agentic_iqa_local.judgement.quality_map import MapRequest
    from agentic_iqa_local.result import Assessment

SUFFIX = ".map.png"


def map_requests(args: argparse.Namespace, items: "Sequence[Item]") -> "dict[str, MapRequest]":
    """What is asked of each item's map, by the item's key; nothing without --map. Raises UsageError."""
    if args.map is None:
        return {}
    from agentic_iqa_local.judgement.quality_map import MapRequest

    given = {"max_tiles": args.map_tiles, "seconds": args.map_seconds}
    limits: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if args.map.is_dir():
        files = _in_folder(args.map, items)
    else:
        _check_name(args.map, len(items))
        files = {items[0].key: args.map}
    for file in files.values():
        result_file("--map", file, "drawing")
    return {key: MapRequest(png=file, **limits) for key, file in files.items()}


def _in_folder(folder: Path, items: "Sequence[Item]") -> dict[str, Path]:
    """A file in `folder` for each item's map; pictures of one name are told apart by a number."""
    taken: set[str] = set()
    files = {}
    for item in items:
        name, number = item.image.stem, 1
        while f"{name}{SUFFIX}".lower() in taken:
            number += 1
            name = f"{item.image.stem}-{number}"
        taken.add(f"{name}{SUFFIX}".lower())
        files[item.key] = folder / f"{name}{SUFFIX}"
    return files


def _check_name(file: Path, pictures: int) -> None:
    """Raises UsageError for what is no name of the one map."""
    if pictures != 1:
        raise UsageError(
            f"--map {file}: expected a folder {file} for the maps of {pictures} pictures, there is none",
            f"make it first: mkdir -p {shlex.quote(str(file))}",
        )
    if file.suffix.lower() != ".png":
        raise UsageError(f"--map {file}: expected a file named .png, or a folder", f"name it {file}.png")


def about_map(row: "Assessment") -> str | None:
    """Why a row that should have one has no drawn map; None where it has, or failed altogether."""
    if row.error or (row.map and row.map.png):
        return None
    return row.no_map or (row.map and row.map.not_drawn) or "map: none was made"
