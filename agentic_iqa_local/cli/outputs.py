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

SUFFIXES = {
    "out": (".jsonl", ".json"),
    "csv": (".csv",),
    "parquet": (".parquet",),
    "gallery": (".html", ".htm"),
}
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

    folder, place, wrong = file.absolute().parent, file, ""
    try:
        place = place_for(file)
        if place.suffix.lower() not in suffixes:
            wrong = f"expected a name with {' or '.join(suffixes)}"
        elif not folder.is_dir():
            make = f"mkdir -p {shlex.quote(str(folder))}"
            wrong = f"there is no folder {folder}, make it first: {make}"
        elif not os.access(place if place.exists() else folder, os.W_OK):
            wrong = "it cannot be written"
        elif mark and not is_replaceable(place, mark):
            wrong = "expected a new name, there is a file that this command did not write"
    except FileError as error:
        wrong = str(error)
    if wrong:
        raise UsageError(f"{option} {file}: {wrong}", "choose a new file in a folder of yours")
    return place


def check_outputs(
    args: argparse.Namespace,
    inputs: Iterable[Path | str | None],
    *,
    maps: Iterable[Path] = (),
    compared: bool = False,
) -> None:
    """Gives the options for files of answers the places that they lead to.

    Args:
        args: The command line.
        inputs: What is read, and so may not be written.
        maps: Files of --map.
        compared: Whether answers are comparisons, which replace those under --out; whoever goes on
            with rows looks there itself.

    Raises:
        UsageError: See `output_file` and `check_apart`.
    """
    from agentic_iqa_local.output.tables import CSV, PARQUET

    own = COMPARISONS if compared else None
    marks = {"out": own, "csv": CSV, "parquet": PARQUET, "gallery": PAGE}
    outputs = [("--map", file) for file in maps]
    for name, suffixes in SUFFIXES.items():
        file = getattr(args, name, None)
        if file:
            place = output_file(f"--{name}", file, *suffixes, mark=marks[name])
            setattr(args, name, place)
            outputs.append((f"--{name}", place))
    if args.out:
        outputs.append(("--out", Path(f"{args.out}.run.json")))
    check_apart(outputs, inputs)


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


def _identity(path: Path) -> tuple[int, int] | str:
    """What is the same for two names of one file, links and hard links too, also of one that is not
    there yet."""
    with suppress(OSError, ValueError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return os.path.realpath(path)
