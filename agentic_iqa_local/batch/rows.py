"""Files of JSON lines that survive a kill and a full disk: one durable row for each item, and beside it the
description of the run that the rows belong to."""

import json
import os
import threading
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
    parse_json,
    place_for,
    read_json,
    sync_folder,
    write_whole,
)

NAMED_CHANGES, LONGEST_VALUE = 5, 60  # changed settings that a message names, and characters of each value
LARGEST_NOTE = 2**26  # bytes of a run's description, which holds its command line


class RowsError(WriteError):
    """A file of rows that cannot be used or written; one sentence for the user. The rows in it are kept."""


class OtherRun(RowsError):
    """Rows that depend on other settings."""


class AnyRow(BaseModel):
    """Any JSON object."""


class RowFile:
    """Rows (JSON objects), one line each; iterating yields them. One process at a time writes: PATH.lock is
    its lock.

    `append` writes a row whole; a thread brings it to the disk at once, together with those that come
    meanwhile, and `sync` waits for that. `schema` validates every row, and `key` tells them apart: `done` has
    the keys that are there, `failed` is how many of the rows are failures. Raises RowsError for a file that
    another process writes, that cannot be written, or that is a link (`files.place_for` follows one).
    """

    def __init__(
        self,
        path: Path,
        schema: type[BaseModel] = AnyRow,
        key: Callable[[dict[str, Any]], str] = lambda row: "",
    ):
        self.path, self._schema, self._key = path, schema, key
        self.done: set[str] = set()
        self.failed = 0
        self._lock = FileLock(path.with_name(f"{path.name}.lock"), timeout=0, thread_local=False)
        try:
            if place_for(path) != path:
                raise FileError("expected a file of its own, got a link")
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._use(os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0))
            self._lock.acquire()
            sync_folder(path)
        except Timeout as error:
            self._file.close()
            raise RowsError(
                f"{path}: another process is writing it", "wait for it or choose another --out"
            ) from error
        except (FileError, OSError) as error:
            why = getattr(error, "strerror", None)
            said = f"expected a file that can be written, got {why}" if why else str(error)
            raise RowsError(f"{path}: {said}", "choose another --out") from error
        self._turn, self._syncing, self._due = threading.Lock(), threading.Lock(), threading.Event()
        self._syncer: threading.Thread | None = None
        self._unsynced: OSError | None = None

    def _use(self, file: BinaryIO) -> None:
        self._file, state = file, os.fstat(file.fileno())
        self._end = self._synced = state.st_size  # bytes that are written, and those of them that are on disk
        self._inode = state.st_ino

    @property
    def empty(self) -> bool:
        return self._end == 0

    def _check_place(self) -> None:
        """Raises RowsError where the file was moved or deleted: nobody would find its rows."""
        try:
            same = os.lstat(self.path).st_ino == self._inode
        except OSError:
            same = False
        if not same:
            raise RowsError(
                f"{self.path}: expected that the file of rows stays in its place while it is written, but it"
                " was moved, deleted or replaced",
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
                    self._know(row)
        self._cut(end)
        if dropped:
            self._keep(lambda row: self._key(row) in self.done)

    def _know(self, row: dict[str, Any]) -> None:
        self.done.add(self._key(row))
        self.failed += row.get("error") is not None

    def _keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        partial = self.path.with_name(f"{self.path.name}.partial")
        try:
            file = os.fdopen(create(partial), "ab", buffering=0)
            try:
                with self._opened() as old:
                    for line, row in rows_in(old, self.path, self._schema):
                        if wanted(row):
                            _write(file, line)
                os.fsync(file.fileno())
                partial.replace(self.path)
            except BaseException:
                file.close()
                partial.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._not_written(error) from error
        self._file.close()
        self._use(file)
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
        """Writes one row, given as JSON text. Raises RowsError for one that could not be read again, where the
        disk does not take it, and where it did not take the rows before."""
        content = line.encode() + b"\n"
        try:
            row = checked_row(content, self._schema)
        except FileError as error:
            raise RowsError(f"{self.path}: a row could not be written ({error})") from error
        with self._turn:
            if self._unsynced:
                raise self._not_written(self._unsynced) from self._unsynced
            self._check_place()
            try:
                self._end += _write(self._file, content)
            except OSError as error:
                self._cut(self._end)
                raise self._not_written(error) from error
        self._know(row)
        if self._syncer is None:
            self._syncer = threading.Thread(target=self._sync_in_turn, daemon=True)
            self._syncer.start()
        self._due.set()

    def sync(self) -> None:
        """Waits until the disk has every row. Raises RowsError where it does not take them: the file then holds
        the rows before, whole."""
        with self._syncing:
            end = self._end
            try:
                if self._unsynced is None and self._synced < end:
                    os.fsync(self._file.fileno())
                    self._synced = end
            except OSError as error:  # the system says so once: another sync would seem to succeed
                self._unsynced = error
                with self._turn:
                    self._cut(self._synced)
            if self._unsynced:
                raise self._not_written(self._unsynced) from self._unsynced

    def _sync_in_turn(self) -> None:
        while self._due.wait() and not self._file.closed:
            self._due.clear()
            with suppress(
                RowsError, ValueError
            ):  # the next row says so; ValueError: closed meanwhile, synced
                self.sync()

    def _cut(self, end: int) -> None:
        """Leaves the first `end` bytes."""
        self._end, self._synced = end, min(end, self._synced)
        with suppress(OSError):
            os.ftruncate(self._file.fileno(), end)

    def _not_written(self, error: OSError) -> RowsError:
        return RowsError(
            f"{self.path}: a row could not be written ({error.strerror}); the rows before it are kept"
        )

    def close(self) -> None:
        """Raises RowsError where rows are not on disk."""
        try:
            if not self._file.closed:
                self.sync()
        finally:
            self._file.close()
            self._due.set()
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
        row = from_json(line, allow_inf_nan=False)
        if isinstance(row, dict):
            schema.model_validate_json(line, strict=True)
            return row
    except ValidationError as error:
        raise FileError(f"expected rows as this program writes them ({first_mistake(error)})") from error
    except ValueError as error:
        raise FileError(f"expected JSON, got something else ({error})") from error
    return parse_json(line)  # it says what else it is


def _write(file: BinaryIO, data: bytes) -> int:
    """Writes all of `data` and returns its length; a disk that fills up may take a part first."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
    return len(data)


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
    """Compares `identity` with that of the run which `path` describes. A setting of `may_be_set` that was not
    set then may be set now. Raises OtherRun for every other difference, with the old and new values, and
    RowsError for a file that describes no run."""
    try:
        old = read_json(path, LARGEST_NOTE).get("identity")
        if not isinstance(old, dict):
            raise FileError("expected an object `identity`, found none")
    except FileError as error:
        raise RowsError(
            f"{path}: this is no description of the run: {error}", "choose another --out"
        ) from error
    if changed := differences(identity, old, may_be_set):
        raise OtherRun(
            f"{path}: the rows are of a run with other settings: {changed}",
            "go on with the same or choose another --out",
        )


def differences(now: dict[str, Any], expected: dict[str, Any], may_be_set: Collection[str] = ()) -> str:
    """What is otherwise than expected, in words with both values; empty where all is alike. Values of
    `may_be_set` may be set where none is expected."""
    had, has = dict(_flat(expected)), dict(_flat(json.loads(json.dumps(now))))
    told = [
        f"{key:.{LONGEST_VALUE}} is {_short(has.get(key))}, expected {_short(had.get(key))}"
        for key in sorted(had.keys() | has.keys())
        if had.get(key) != has.get(key) and not (key in may_be_set and had.get(key) is None)
    ]
    return "; ".join(told[:NAMED_CHANGES]) + (f"; and {len(told) - NAMED_CHANGES} more" if told[NAMED_CHANGES:] else "")


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
