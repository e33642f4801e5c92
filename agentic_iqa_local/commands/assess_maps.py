"""Where the maps of the command assess are drawn to, and what is said of those that were not."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.quality_map.result import MapRequest

if TYPE_CHECKING:
    from agentic_iqa_local.inputs import Item
    from agentic_iqa_local.result import Assessment

SUFFIX = ".map.png"


class MapPlaceError(UserError):
    """A --map that no maps can be drawn to."""


def map_requests(args: argparse.Namespace, items: "Sequence[Item]") -> dict[str, MapRequest]:
    """What is asked of each item's map, by the item's key; nothing without --map. Raises MapPlaceError."""
    if args.map is None:
        return {}
    given = {"max_tiles": args.map_tiles, "seconds": args.map_seconds}
    limits: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if args.map.is_dir():
        files = _in_folder(args.map, items)
    else:
        _check_file(args.map, items)
        files = {items[0].key: args.map}
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


def _check_file(place: Path, items: "Sequence[Item]") -> None:
    """Raises MapPlaceError for a file that the one map cannot be drawn to."""
    from agentic_iqa_local.files import FileError, place_for

    folder = place if len(items) != 1 else place.absolute().parent
    if not folder.is_dir():
        needed = f" for the maps of {len(items)} pictures" if len(items) != 1 else ""
        raise MapPlaceError(
            f"--map {place}: expected a folder {folder}{needed}, there is none",
            f"make it first: mkdir -p {shlex.quote(str(folder))}",
        )
    if place.suffix.lower() != ".png":
        raise MapPlaceError(f"--map {place}: expected a file named .png, or a folder", f"name it {place}.png")
    try:
        place_for(place)
    except FileError as error:
        raise MapPlaceError(f"--map {place}: {error}", "choose a file in a folder of yours") from error
    for picture in filter(None, (items[0].image, items[0].reference)):
        if place.exists() and picture.exists() and place.samefile(picture):
            raise MapPlaceError(
                f"--map {place}: expected a file of its own, this one is read", "choose another --map"
            )


def about_map(row: "Assessment") -> str | None:
    """Why a row that should have one has no drawn map; None where it has, or failed altogether."""
    if row.error or (row.map and row.map.png):
        return None
    return row.no_map or (row.map and row.map.not_drawn) or "map: none was made"
