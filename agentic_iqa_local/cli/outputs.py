"""Where the output options of all commands write: a new file, or one of their own kind that this program wrote."""

import os
import shlex
from pathlib import Path

from agentic_iqa_local.cli.command import UsageError
from agentic_iqa_local.files import FileError, place_for, require_own


def result_file(option: str, file: Path, kind: str) -> Path:
    """The file that `option` writes, where `file` is a link the one that it leads to.

    Raises UsageError for a place where no file can be written, and for one that holds a file which is not of
    this `kind` (of `files.require_own`).
    """
    folder = file.absolute().parent
    if not folder.is_dir():
        remedy = f"make it first: mkdir -p {shlex.quote(str(folder))}"
        raise UsageError(f"{option} {file}: there is no folder {folder}", remedy)
    try:
        place = place_for(file)
        require_own(place, kind)
    except FileError as error:
        raise UsageError(f"{option} {file}: {error}", "choose a new file in a folder of yours") from error
    if not os.access(place if place.exists() else place.absolute().parent, os.W_OK):
        raise UsageError(f"{option} {file}: it cannot be written", "choose a file in a folder of yours")
    return place


def result_folder(option: str, folder: Path, *marks: str) -> None:
    """Raises UsageError for a folder that holds files, but none that has the name of one of `marks`, which
    `option` writes: they are another's, and might be replaced."""
    others = [entry.name for entry in folder.glob("*") if not entry.is_dir()]
    if folder.is_file() or (others and not any((folder / mark).exists() for mark in marks)):
        got = f"one that holds {min(others)}" if others else "a file"
        expected = "expected a new folder or one that this command wrote"
        raise UsageError(f"{option} {folder}: {expected}, got {got}", "choose another")
