"""Files of JSON lines that survive a kill and a full disk: one durable row for each item, and beside it the
description of the run that the rows belong to."""

import errno
import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from agentic_iqa_local.files import (
    LARGEST,
    FileError,
    WriteError,
    create,
    first_mistake,
    open_regular,
    place_for,
    read_json,
    sync_folder,
    write_whole,
)

NAMED_CHANGES, LONGEST_VALUE = 5, 60  # changed settings that a message names, and characters of each value
LARGEST_NOTE = 2**26  # bytes of a run's description, which holds its command line
SYNC_AFTER = 0.05  # seconds since the last sync: a disk takes a few milliseconds for each


class RowsError(WriteError):
    """A file of rows that cannot be used or written; one sentence for the user. The rows in it are kept."""


class OtherRun(RowsError):
    """Rows that depend on other settings."""


class AnyRow(BaseModel):
    """Any JSON object."""


class RowFile:
    """Rows (JSON objects), one line each; iterating yields them. One process at a time writes: PATH.lock is
    its lock. `done` has the keys of the rows that are there.

    Args:
        path: The file. Where it is a link, the file that it leads to.
        schema: Validates every row.
        key: Tells rows apart.

    Raises:
        RowsError: Another process writes the file, or it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        schema: type[BaseModel] = AnyRow,
        key: Callable[[dict[str, Any]], str] = lambda row: "",
    ):
        self._schema, self._key = schema, key
        self.done: set[str] = set()
        try:
            self.path = place_for(path)
            self._lock = FileLock(f"{self.path}.lock", timeout=0, thread_local=False)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._use(os.open(self.path, flags, 0o666))
            self._lock.acquire()  # after the file: this makes missing folders
            sync_folder(self.path)
        except Timeout as error:
            self._file.close()
            remedy = "wait for it or choose another --out"
            raise RowsError(f"{path}: another process is writing it", remedy) from error
        except (FileError, OSError) as error:
            if isinstance(error, OSError):
                error = FileError(f"expected a file that can be written, got {error.strerror}")
            raise RowsError(f"{path}: {error}", "choose another --out") from error

    def _use(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        state = os.fstat(descriptor)
        self._end = self._synced = state.st_size  # bytes that are written, and those of them that are on disk
        self._inode, self._when = state.st_ino, 0.0

    @property
    def empty(self) -> bool:
        return self._end == 0

    def _check_place(self) -> None:
        """Raises RowsError where the file was moved or deleted: nobody would find its rows."""
        with suppress(OSError):
            if os.lstat(self.path).st_ino == self._inode:
                return
        raise RowsError(
            f"{self.path}: expected that the file of rows stays in its place while it is written, but it was"
            " moved, deleted or replaced",
            "put it back with its rows",
        )

    def recover(self, drop: Callable[[dict[str, Any]], bool] = lambda row: False) -> None:
        """Cuts off the incomplete last line that a killed process leaves, learns which rows are there, and takes
        out those to `drop`: a new file takes the old one's place, or nothing changes. Call it only for a file
        that is known to hold rows. Raises RowsError, which names a line that is no row."""
        end, dropped = 0, False
        with self._opened() as file:
            for line, row in rows_in(file, self.path, self._schema, going_on=True):
                end += len(line)
                if drop(row):
                    dropped = True
                else:
                    self.done.add(self._key(row))
        self._cut(end)
        if dropped:
            self._keep_done()

    def _keep_done(self) -> None:
        partial = self.path.with_name(f"{self.path.name}.partial")
        try:
            with open(create(partial), "wb") as new, self._opened() as old:
                for line, row in rows_in(old, self.path, self._schema):
                    if self._key(row) in self.done:
                        new.write(line)
                new.flush()
                os.fsync(new.fileno())
            os.replace(partial, self.path)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise self._not_written(error) from error
        self._file.close()
        self._use(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        sync_folder(self.path)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._opened() as file:
            for _, row in rows_in(file, self.path, self._schema):
                yield row

    def _opened(self) -> BinaryIO:
        self._check_place()
        try:
            return open(open_regular(self.path), "rb")
        except FileError as error:
            raise RowsError(f"{self.path}: {error}", "choose another --out") from error

    def append(self, line: str) -> None:
        """Writes one row, given as JSON text; it is on the disk unless another row was synced less than 50 ms ago
        (see `sync`). Raises RowsError for a row that could not be read again, and where the disk does not take
        it: the rows before it are whole."""
        content = line.encode() + b"\n"
        try:
            row = checked_row(content, self._schema)
        except FileError as error:
            raise RowsError(f"{self.path}: a row could not be written ({error})") from error
        self._check_place()
        try:
            if self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._cut(self._end)
            raise self._not_written(error) from error
        self._end += len(content)
        self.done.add(self._key(row))
        if time.monotonic() - self._when >= SYNC_AFTER:
            self.sync()

    def sync(self) -> None:
        """Brings every row to the disk. Raises RowsError where it does not take them: the file then holds the rows
        before, whole."""
        try:
            if self._synced < self._end:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._cut(self._synced)
            raise self._not_written(error) from error
        self._synced, self._when = self._end, time.monotonic()

    def _cut(self, end: int) -> None:
        """Leaves the first `end` bytes."""
        self._end, self._synced = end, min(end, self._synced)
        with suppress(OSError):
            os.ftruncate(self._file.fileno(), end)

    def _not_written(self, error: OSError) -> RowsError:
        return RowsError(f"{self.path}: a row could not be written ({error.strerror}); the rows before it are kept")

    def close(self) -> None:
        """Raises RowsError where rows are not on disk."""
        try:
            if not self._file.closed:
                self.sync()
        finally:
            self._file.close()
            self._lock.release()


def rows_in(
    file: BinaryIO, path: Path, schema: type[BaseModel], *, going_on: bool = False
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """(line, row) of an open file of rows; `path` names it in messages. While a run may still be writing it
    (`going_on`), an incomplete last line is left out. Raises RowsError, which names a line that is no row."""
    for number, line in enumerate(iter(lambda: file.readline(LARGEST + 1), b""), 1):
        if going_on and len(line) <= LARGEST and line.startswith(b"{") and not line.endswith(b"\n"):
            return
        try:
            yield line, checked_row(line, schema)
        except FileError as error:
            raise RowsError(f"{path}, line {number}: {error}", "choose another --out") from error


def checked_row(line: bytes, schema: type[BaseModel]) -> dict[str, Any]:
    """A line's row. Raises FileError for a line that is none."""
    if len(line) > LARGEST:
        raise FileError(f"expected a line of at most {LARGEST} bytes, got a longer one")
    try:
        schema.model_validate_json(line, strict=True)
        return from_json(line, allow_inf_nan=False)
    except ValidationError as error:
        raise FileError(f"expected rows as this program writes them ({first_mistake(error)})") from error
    except ValueError as error:
        raise FileError(f"expected JSON, got something else ({error})") from error


# The run that rows belong to


def write_run(path: Path, run: dict[str, Any], identity: dict[str, Any]) -> None:
    """Writes the description of a run as JSON; `identity` is the part that its rows depend on. Raises
    WriteError."""
    write_whole(path, json.dumps(run | {"identity": identity}, indent=1), sync=True)


def run_began(path: Path) -> float:
    """When the run that `path` describes was begun or last gone on with, in seconds since 1970; 0 where that
    is not known."""
    try:
        date = read_json(path, LARGEST_NOTE)["date"]
        return datetime.strptime(date, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (FileError, KeyError, TypeError, ValueError):
        return 0.0


def check_run(path: Path, identity: dict[str, Any], may_be_set: Collection[str] = ()) -> None:
    """Compares `identity` with that of the run which `path` describes, see `differences`. Raises OtherRun where
    they differ, and RowsError for a file that describes no run."""
    try:
        expected = read_json(path, LARGEST_NOTE).get("identity")
        if not isinstance(expected, dict):
            raise FileError("expected an object `identity`, found none")
    except FileError as error:
        said = f"{path}: this is no description of the run: {error}"
        raise RowsError(said, "choose another --out") from error
    if changed := differences(identity, expected, may_be_set):
        raise OtherRun(
            f"{path}: the rows are of a run with other settings: {changed}",
            "go on with the same or choose another --out",
        )


def differences(now: dict[str, Any], expected: dict[str, Any], may_be_set: Collection[str] = ()) -> str:
    """What is otherwise than expected, in words with both values; empty where all is alike. A value of
    `may_be_set` may be set where none is expected."""
    had, has = dict(_flat(expected)), dict(_flat(json.loads(json.dumps(now))))
    told = [
        f"{key:.{LONGEST_VALUE}} is {_short(has.get(key))}, expected {_short(had.get(key))}"
        for key in sorted(had.keys() | has.keys())
        if had.get(key) != has.get(key) and not (key in may_be_set and had.get(key) is None)
    ]
    if more := len(told[NAMED_CHANGES:]):
        told[NAMED_CHANGES:] = [f"and {more} more"]
    return "; ".join(told)


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of each setting of nested sections."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _short(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
