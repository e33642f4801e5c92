"""Which files a command may write: of the right kind, apart from its inputs, and where nobody's
file lies. All of it is checked before anything is loaded."""

import argparse
import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from agentic_iqa_local.cli.options import UsageError
from agentic_iqa_local.files import PAGE, FileError, is_replaceable, place_for

SUFFIXES = {"out": (".jsonl", ".json"), "csv": (".csv",), "gallery": (".html", ".htm")}
COMPARISONS = re.compile(rb'^\{"kind": "(comparison|ranking|group)"', re.MULTILINE)


def output_file(
    option: str, file: Path, *suffixes: str, mark: re.Pattern[bytes] | None = None
) -> Path:
    """The file that `option` writes: `file`, or the one that it leads to if it is a link.

    Args:
        option: As it is typed, for messages.
        file: As the user names it.
        suffixes: Those that its name may have.
        mark: What a file that is there bears if it may be replaced; None if the caller looks itself.

    Raises:
        UsageError: Another suffix, a place where nothing can be written, or somebody's file.
    """

    def refused(wrong: str, remedy: str = "choose a new file in a folder of yours") -> UsageError:
        return UsageError(f"{option} {file}: {wrong}", remedy)

    folder = file.absolute().parent
    try:
        place = place_for(file)
        replaceable = mark is None or is_replaceable(place, mark)
    except FileError as error:
        raise refused(str(error)) from error
    if place.suffix.lower() not in suffixes:
        expected = f"expected a name with {' or '.join(suffixes)}"
        raise refused(expected, f"name it {file.stem}{suffixes[0]}")
    if not folder.is_dir():
        make = f"make it first: mkdir -p {shlex.quote(str(folder))}"
        raise refused(f"there is no folder {folder}", make)
    if not os.access(place if place.exists() else folder, os.W_OK):
        raise refused("it cannot be written")
    if not replaceable:
        expected = "expected a new name, there is a file that this command did not write"
        raise refused(expected, "choose another name, or move that file away")
    return place


def check_outputs(
    args: argparse.Namespace, inputs: Iterable[Path | str | None], *, compared: bool = False
) -> None:
    """Gives the options for files of answers the places that they lead to.

    Args:
        args: The command line.
        inputs: What is read, and so may not be written.
        compared: Whether answers are comparisons, which replace those under --out; whoever goes on
            with rows looks there itself.

    Raises:
        UsageError: See `output_file` and `check_apart`.
    """
    from agentic_iqa_local.output.tables import CSV

    marks = {"out": COMPARISONS if compared else None, "csv": CSV, "gallery": PAGE}
    for name, suffixes in SUFFIXES.items():
        file = getattr(args, name, None)
        if file:
            setattr(args, name, output_file(f"--{name}", file, *suffixes, mark=marks[name]))
    check_apart(answer_files(args), inputs)


def check_apart(outputs: Iterable[tuple[str, Path]], inputs: Iterable[Path | str | None]) -> None:
    """Raises UsageError if an output, (option, place), is one of the `inputs`, or another
    output."""
    taken = {_identity(Path(file)): f"the input {file}" for file in inputs if file}
    for option, place in outputs:
        this = _identity(place)
        if this in taken:
            wrong = f"expected another file than {taken[this]}"
            raise UsageError(f"{option} {place}: {wrong}", "name a new one")
        taken[this] = f"that of {option}"


def answer_files(args: argparse.Namespace) -> list[tuple[str, Path]]:
    """The files of answers that a command line asks for, by option, with what is written beside
    them."""
    files = [(f"--{name}", file) for name in SUFFIXES if (file := getattr(args, name, None))]
    if args.out:
        files.append(("--out", Path(f"{args.out}.run.json")))
    return files


def _identity(path: Path) -> tuple[int, int] | str:
    """What is the same for two names of one file, links and hard links too, also of one that is not
    there yet."""
    with suppress(OSError, ValueError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return os.path.realpath(path)
