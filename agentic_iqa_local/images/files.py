"""The files that pictures lie in: paths, file:// addresses, and one sentence for whatever cannot be read."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import unquote, urlsplit

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, open_regular

_MOST_BYTES = 2**30  # of a file: more than a hundred million pixels need in any of the formats
_MOST_NAMES = 10_000  # of a folder, among which a misspelt one is looked for
# pathlib turns "//" into "/"
_ADDRESS = re.compile(r"(https?|ftps?|s3|gs|gcs|azure|hdfs):/+", re.IGNORECASE)

_SENT: ContextVar[Mapping[str, bytes]] = ContextVar("_SENT")


class ImageError(UserError, ValueError):
    """One sentence: the path, what was expected, what came, what to do."""


def check_file(path: str | os.PathLike[str]) -> None:
    """Raises `ImageError` where there is no readable file, without opening it. The message about a missing
    file suggests the most similar name in its folder."""
    with _file_errors(path := os.fspath(path)):
        _check_file(path)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a picture's file, at most 1 GiB. Raises `ImageError`.

    Reads no more than the size that the file system reports: a file in /proc that looks empty may never end.
    """
    if (sent := _SENT.get({}).get(os.fspath(path))) is not None:
        return sent
    with _file_errors(path := os.fspath(path)):
        _check_file(path)
        with open(open_regular(path), "rb") as file:
            return file.read(os.fstat(file.fileno()).st_size)


@contextmanager
def sent_files(data: Mapping[str, bytes]) -> Iterator[None]:
    """Meanwhile `read_file` gives these bytes, by path, in this thread: those of files that another machine
    sent."""
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


def _check_file(path: str) -> None:
    if os.path.isdir(path):
        raise ImageError(f"{path}: expected an image file, but this is a folder", "name a file inside it.")
    if os.path.exists(path) and not os.path.isfile(path):  # reading a pipe or a device may never end
        raise ImageError(
            f"{path}: expected an image file, but this is a pipe or a device", "save the picture to a file."
        )
    if (size := os.path.getsize(path)) > _MOST_BYTES:
        raise ImageError(
            f"{path}: expected an image of at most {_MOST_BYTES} bytes, but it has {size}",
            "crop or compress it.",
        )


@contextmanager
def _file_errors(path: str) -> Iterator[None]:
    """Turns what the file system raises into `ImageError`."""
    try:
        yield
    except ImageError:
        raise
    except FileError as error:
        raise ImageError(f"{path}: {error}", "check its permissions and its disk.") from error
    except FileNotFoundError:
        _refuse_address(path)
        if os.path.islink(path):
            raise ImageError(
                f"{path}: expected an image file, but this is a link to {os.readlink(path)}, which is not"
                " there",
                "mend the link.",
            ) from None
        raise ImageError(
            f"{path}: expected an image file, but there is no such file", _advice_on_missing(path)
        ) from None
    except ValueError as error:  # a NUL, or a character that the file system's encoding lacks
        raise ImageError(
            f"{path}: expected an image file, but no file can have this name ({error})", "check the path."
        ) from None
    except OSError as error:
        raise ImageError(
            f"{path}: expected a readable image file, but reading failed ({error.strerror})",
            "check its permissions and its disk.",
        ) from error


def _advice_on_missing(path: str) -> str:
    """Suggests the most similar name in the folder of a missing file, if there is a similar one."""
    folder, name = os.path.split(path)
    try:
        names = {
            entry.name.casefold(): entry.name
            for entry, _ in zip(os.scandir(folder or "."), range(_MOST_NAMES), strict=False)
        }
    except OSError:
        return "check the path."
    similar = difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.75)
    return f"did you mean {os.path.join(folder, names[similar[0]])}?" if similar else "check the path."


def _refuse_address(path: str) -> None:
    if _ADDRESS.match(path):
        address = re.sub(":/+", "://", path, count=1)
        raise ImageError(
            f"{address}: expected a file, but this is an address on a network",
            "this program reads files only: download it first and give the file's path.",
        )
