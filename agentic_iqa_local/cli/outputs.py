"""Where the output options of all commands write: a new file, or one of their own kind that this program
wrote."""

import os
import shlex
import tempfile
from pathlib import Path

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, place_for, require_own

LONGEST_NAME = 255  # bytes of a file's name
LONGEST_SUFFIX = ".run.json.partial"  # of what lies beside --out


class UsageError(UserError):
    """A command line that cannot be carried out."""


def result_file(option: str, file: Path, kind: str) -> Path:
    """The file that `option` writes, where `file` is a link the one that it leads to.

    Raises UsageError for a place where no file can be written, and for one that holds a file which is not of
    this `kind` (of `files.require_own`).
    """
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(
            f"{option} {file}: there is no folder {folder}",
            f"make it first: mkdir -p {shlex.quote(str(folder))}",
        )
    try:
        place = place_for(file)
        require_own(place, kind)
    except FileError as error:
        raise UsageError(f"{option} {file}: {error}", "choose a new file in a folder of yours") from error
    if len(os.fsencode(place.name + LONGEST_SUFFIX)) > LONGEST_NAME:
        raise UsageError(
            f"{option} {file}: expected a name that leaves room for {LONGEST_SUFFIX} behind it",
            "choose a shorter one",
        )
    try:
        with tempfile.TemporaryFile(dir=place.absolute().parent):
            pass
        if place.exists() and not os.access(place, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise UsageError(
            f"{option} {file}: it cannot be written ({error.strerror})", "choose a file in a folder of yours"
        ) from error
    return place


def result_folder(option: str, folder: Path, *marks: str) -> None:
    """Raises UsageError for a folder that holds files, but none that has the name of one of `marks`, which
    `option` writes: they are another's, and might be replaced."""
    if any((folder / mark).exists() for mark in marks):
        return
    try:
        others = sorted(entry.name for entry in os.scandir(folder) if not entry.is_dir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"{option} {folder}: expected a folder, got {error.strerror}", "choose another"
        ) from error
    if others:
        raise UsageError(
            f"{option} {folder}: expected a new folder or one that this command wrote, got one that holds"
            f" {others[0]}",
            "choose another",
        )
