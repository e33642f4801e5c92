"""The files that pictures lie in: paths, file:// addresses, and one sentence for whatever cannot be
read."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote, urlsplit

from agentic_iqa_local.errors import UserError, did_you_mean
from agentic_iqa_local.files import FileError, open_regular, read_bytes

_MOST_BYTES = 2**30  # of a file: more than a hundred million pixels need in any of the formats
# pathlib turns // into /
_ADDRESS = re.compile(r"(https?|ftps?|s3|gs|gcs|azure|hdfs):/+", re.IGNORECASE)


class ImageError(UserError, ValueError):
    """One sentence: the path, what was expected, what came, what to do."""


def check_file(path: str | os.PathLike[str]) -> None:
    """Raises `ImageError` where there is no regular file of at most 1 GiB; its content is not
    read."""
    path = local_path(os.fspath(path))
    if not os.path.lexists(path):
        raise ImageError(
            f"{path}: expected an image file, but there is no such file", _similar_name(path)
        )
    try:
        os.close(open_regular(path))
    except FileError as error:
        raise ImageError(f"{path}: {error}", "name a picture's file that you may read.") from error
    if (size := os.stat(path).st_size) > _MOST_BYTES:
        raise ImageError(
            f"{path}: expected at most {_MOST_BYTES} bytes, but it has {size}", "crop it."
        )


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a picture's file, at most 1 GiB. Raises `ImageError`."""
    check_file(path)
    try:
        return read_bytes(os.fspath(path), os.stat(path).st_size)
    except (FileError, OSError) as error:
        raise ImageError(f"{os.fspath(path)}: {error}", "check its disk.") from error


@contextmanager
def within_memory(path: str | os.PathLike[str]) -> Iterator[None]:
    """Memory that runs out in this block becomes an `ImageError` about a picture."""
    try:
        yield
    except MemoryError as error:
        said = f"{os.fspath(path)}: memory ran out while the picture was opened"
        raise ImageError(said, "free some memory, assess fewer at once, or crop it.") from error


def local_path(item: str) -> str:
    """`item` as a path: that of a file:// address. Raises `ImageError` for an address on a
    network."""
    if os.path.lexists(item):
        return item
    if _ADDRESS.match(item):
        address = re.sub(":/+", "://", item, count=1)
        expected = "expected a file, but this is an address on a network"
        raise ImageError(
            f"{address}: {expected}",
            "only files are read: download it first and give the file's path.",
        )
    return unquote(urlsplit(item).path) if item.lower().startswith("file://") else item


def _similar_name(path: str) -> str:
    folder, name = os.path.split(path)
    with suppress(OSError, ValueError):
        # ValueError: a NUL, or what the file system's encoding lacks
        return did_you_mean(name, os.listdir(folder or ".")).removeprefix("; ") or "check the path."
    return "check the path."
