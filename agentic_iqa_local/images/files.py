"""The files that pictures lie in: paths, file:// addresses, and one sentence for whatever cannot be read."""

import difflib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from urllib.parse import unquote, urlsplit

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, open_regular

_MOST_BYTES = 2**30  # of a file: more than a hundred million pixels need in any of the formats
_MOST_NAMES = 10_000  # of a folder, among which a misspelt one is looked for
_ADDRESS = re.compile(r"(https?|ftps?|s3|gs|gcs|azure|hdfs):/+", re.IGNORECASE)  # pathlib turns // into /
_SENT: ContextVar[Mapping[str, bytes]] = ContextVar("_SENT")


class ImageError(UserError, ValueError):
    """One sentence: the path, what was expected, what came, what to do."""


def check_file(path: str | os.PathLike[str]) -> None:
    """Raises `ImageError` where there is no regular file of at most 1 GiB; it is not opened. For a missing
    file the most similar name in its folder is suggested."""
    path = os.fspath(path)
    expected = f"{path}: expected an image file"
    try:
        state = os.stat(path)
    except FileNotFoundError:
        _refuse_address(path)
        raise ImageError(f"{expected}, but there is no such file", _advice_on_missing(path)) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL, or what the file system's encoding lacks
        raise ImageError(f"{expected}, but it cannot be read ({error})", "check its name and disk.") from None
    if stat.S_ISDIR(state.st_mode):
        raise ImageError(f"{expected}, but this is a folder", "name a file inside it.")
    if not stat.S_ISREG(state.st_mode):  # reading a pipe or a device may never end
        raise ImageError(f"{expected}, but this is a pipe or a device", "save the picture to a file.")
    if (size := state.st_size) > _MOST_BYTES:
        raise ImageError(f"{expected} of at most {_MOST_BYTES} bytes, but it has {size}", "crop it.")


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a picture's file, at most 1 GiB. Raises `ImageError`."""
    path = os.fspath(path)
    if (sent := _SENT.get({}).get(path)) is not None:
        return sent
    check_file(path)
    try:
        with open(open_regular(path), "rb") as file:
            return file.read(os.fstat(file.fileno()).st_size)  # a file in /proc of size 0 may never end
    except (FileError, OSError) as error:
        raise ImageError(f"{path}: {error}", "check its permissions and its disk.") from error


@contextmanager
def sent_files(data: Mapping[str, bytes]) -> Iterator[None]:
    """Meanwhile `read_file` gives these bytes, by path, in this thread: another machine sent them."""
    before = _SENT.set(data)
    try:
        yield
    finally:
        _SENT.reset(before)


def local_path(item: str) -> str:
    """`item` as a path: that of a file:// address. Raises `ImageError` for an address on a network."""
    if not os.path.exists(item):
        _refuse_address(item)
        if item.lower().startswith("file://"):
            return unquote(urlsplit(item).path)
    return item


def _advice_on_missing(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        names = {
            entry.name.casefold(): entry.name for entry in islice(os.scandir(folder or "."), _MOST_NAMES)
        }
    except OSError:
        names = {}
    similar = difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.75)
    return f"did you mean {os.path.join(folder, names[similar[0]])}?" if similar else "check the path."


def _refuse_address(path: str) -> None:
    if _ADDRESS.match(path):
        raise ImageError(
            f"{re.sub(':/+', '://', path, count=1)}: expected a file, but this is an address on a network",
            "this program reads files only: download it first and give the file's path.",
        )
