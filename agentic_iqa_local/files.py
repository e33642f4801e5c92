"""Reads small files that come from elsewhere (manifests, notes, a model's configuration), and makes new files
where somebody may have left a link. Standard library alone.

A name can stand for a pipe that nobody writes to, a device without an end, or a file larger than memory; JSON
can be nested until its parser fails. None of these may hang the program or end it in a traceback.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.errors import UserError

if TYPE_CHECKING:
    from pydantic import ValidationError

LARGEST = 4 * 2**20
DEEPEST = 64
LONGEST_MISTAKE = 300  # characters of a message that quotes keys

DRAWN_BY = "agentic_iqa_local"  # the text Software of every PNG that is drawn
_HEAD = 2**16  # bytes of a file that tell its kind
_ROW = rb'\{"schema_version": ?\d'
_OWN = {
    "file of rows": _ROW,
    # --best-of begins with the pictures that failed
    "file of comparisons": rb"(?:" + _ROW + rb'[^\n]*\n)*\{"kind": ?"(?:comparison|ranking|group)"',
    "table": rb"(?:\xef\xbb\xbf)?(?:image,reference,query,choices,answer,level,q"
    rb"|kind,group,place,image,answer,level,q),",
    "gallery": rb"<!DOCTYPE html>(?s:.)*<title>[^<]* \xc2\xb7 gallery</title>",
    "drawing": rb"\x89PNG\r\n\x1a\n(?s:.)*tEXtSoftware\0" + DRAWN_BY.encode(),
    "fit": rb'\{(?:"format": \d+, )?"temperature": ',
    "bundle": rb"manifest\.json\.sha256\0",
}
"""How the files that this program writes begin, by their kind."""


class FileError(UserError, ValueError):
    """A file that is not what was expected. The message lacks the file's name: "expected a regular file, got
    a pipe". Whoever catches it adds the name and what to do."""


def open_regular(path: str | Path) -> int:
    """A descriptor of the regular file at `path`, open for reading; the caller closes it. Links are followed.

    Raises FileError for anything else, without waiting for it. A device is not even opened: opening alone
    makes some of them act.
    """
    try:
        _require_regular(os.stat(path))
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise FileError(
            f"expected a file that can be read, got {getattr(error, 'strerror', None) or error}"
        ) from error
    try:
        _require_regular(os.fstat(descriptor))  # another may have taken the name since
    except FileError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise FileError(f"expected a regular file, got {kinds.get(stat.S_IFMT(state.st_mode), 'a device')}")


def place_for(path: Path) -> Path:
    """Where to write the file `path`, which need not exist: the end of the link, if it is one.

    Raises FileError for a link that leads to no file, and for anything but a regular file. Nothing is opened.
    """
    is_link = False
    try:
        is_link = path.is_symlink()
        place = Path(os.path.realpath(path, strict=True)) if is_link else path
        _require_regular(os.stat(place))
    except FileError:
        raise
    except FileNotFoundError:
        if is_link:
            raise FileError("expected a file, got a link that leads nowhere") from None
    except (OSError, ValueError) as error:
        raise FileError(
            f"expected a file that can be written, got {getattr(error, 'strerror', None) or error}"
        ) from error
    return place


def require_own(path: Path, kind: str) -> None:
    """Raises FileError where `path` holds anything but a file of that kind (see `_OWN`) which this program
    wrote: what writes its output there would destroy it. An empty file is nobody's."""
    if os.path.lexists(path):
        with open(open_regular(path), "rb") as file:
            head = file.read(_HEAD)
        if head and not re.match(_OWN[kind], head):
            raise FileError(
                f"expected a new file or a {kind} that this program wrote, got another file, which is not"
                " replaced"
            )


def create(path: Path) -> int:
    """A descriptor of a new file at `path`, open for appending; the caller closes it. Raises OSError.

    What has the name already, such as a link or what a killed process left, is removed; a link is not
    followed.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(
        path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
    )


def read_bytes(path: str | Path, largest: int = LARGEST) -> bytes:
    """The content of a regular file of at most `largest` bytes. Raises FileError.

    The size that the file system reports is not trusted: in /proc it is 0 for files that never end.
    """
    with open(open_regular(path), "rb") as file:
        try:
            content = file.read(largest + 1)
        except OSError as error:
            raise FileError(f"expected a file that can be read, got {error.strerror}") from error
    if content is None:
        raise FileError("expected a regular file, got one that would have to be waited for")
    if len(content) > largest:
        raise FileError(f"expected at most {largest} bytes, got more")
    return content


def read_json(path: str | Path, largest: int = LARGEST, deepest: int = DEEPEST) -> dict[str, Any]:
    """The JSON object in a file of at most `largest` bytes, nested at most `deepest` deep. Raises
    FileError."""
    return parse_json(read_bytes(path, largest), deepest)


def parse_json(content: bytes, deepest: int | None = DEEPEST) -> dict[str, Any]:
    """The JSON object that is `content` in UTF-8, nested at most `deepest` deep; with None its caller looks.
    Raises FileError."""
    try:
        value = json.loads(content.decode("utf-8"))
    except RecursionError:
        raise FileError(f"expected JSON nested at most {deepest or DEEPEST} deep, got it deeper") from None
    except ValueError as error:
        raise FileError(f"expected JSON, got something else ({error})") from error
    if not isinstance(value, dict):
        raise FileError(f"expected a JSON object, got {_kind(value)}")
    if deepest is None:
        return value
    for _, depth in walk(value):
        if depth > deepest:
            raise FileError(f"expected JSON nested at most {deepest} deep, got it deeper")
    return value


def first_mistake(error: "ValidationError") -> str:
    """A validation's first error as text, without the value: "fusion.eta: Input should be a valid number"."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return (f"{place}: {message}" if place else message)[:LONGEST_MISTAKE]


def walk(value: Any) -> Iterator[tuple[dict | list, int]]:
    """Each object and list in parsed JSON with its depth (1: `value` itself), without recursion."""
    waiting = [(value, 1)]
    while waiting:
        part, depth = waiting.pop()
        yield part, depth
        waiting += [
            (x, depth + 1)
            for x in (part.values() if isinstance(part, dict) else part)
            if isinstance(x, (dict, list))
        ]


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {list: "a list", str: "a text", bool: "true or false"}.get(type(value), "a number")


def with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` for `json.loads`. Raises ValueError for an object that has a key twice, where
    Python would take the last."""
    if len(unique := dict(pairs)) < len(pairs):
        raise ValueError(f"expected each key once, got {[key for key, _ in pairs]}")
    return unique


class WriteError(UserError, ValueError):
    """What the disk did not take; what was there before is whole."""


def write_whole(path: Path, content: str | bytes, *, sync: bool = False, encoding: str = "utf-8") -> None:
    """Replaces a file, so that a killed process leaves either the old or the new content; with `sync` a power
    failure does too. A text ends with exactly one line end. A link at `path` is replaced, never followed.
    Raises WriteError.
    """
    partial = path.with_name(path.name + ".partial")
    if isinstance(content, str):
        content = (content.rstrip("\n") + "\n").encode(encoding)
    try:
        with open(create(partial), "wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        partial.replace(path)
        if sync:
            sync_folder(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise WriteError(
            f"{path}: could not be written ({error.strerror})", "make room there or choose another place"
        ) from error


def sync_folder(path: Path) -> None:
    """Puts the name of a new file on disk, where the file system can."""
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    with suppress(OSError):
        os.fsync(folder)
    os.close(folder)
