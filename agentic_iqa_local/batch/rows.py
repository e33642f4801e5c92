"""Files of JSON lines that survive a kill and a full disk, and the description of the run that a file's rows
belong to.

A line is written whole before `append` returns, and synced too unless rows come so fast that several share a
sync. What a kill left of a line is cut off by `recover`.
"""

import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import (
    DEEPEST,
    LARGEST,
    FileError,
    create,
    first_mistake,
    open_regular,
    parse_json,
    place_for,
    read_json,
)

NAMED_CHANGES, LONGEST_VALUE = 5, 60  # changed settings that a message names, and characters of each value
LONG_SYNC = 1.0  # seconds: rows wait for a sync that takes longer
LARGEST_NOTE = 2**26  # bytes of a run's description, which holds its command line and its unfinished items


class RowsError(UserError, ValueError):
    """A file of rows that cannot be used; one sentence for the user."""


class OtherRun(RowsError):
    """Rows that depend on other settings."""


class WriteError(RowsError):
    """A row that the disk did not take; the file holds the rows before it, whole."""


class UnreadableRow(WriteError):
    """A row that `RowFile` would refuse to read again; it is not written."""


class Replaced(WriteError):
    """A file of rows whose name another file has by now."""


AnySchema = TypeVar("AnySchema", bound=BaseModel)


class AnyRow(BaseModel):
    """Any JSON object."""


class RowFile:
    """Rows (JSON objects), one line each; iterating yields them. One process at a time writes.

    `schema` validates every row. Raises RowsError for a file that another process writes, that cannot be
    written, or that is a link (`files.place_for` follows a link beforehand).
    """

    def __init__(self, path: Path, schema: type[BaseModel] = AnyRow):
        self.path, self._schema = path, schema
        try:
            if place_for(path) != path:
                raise FileError("expected a file of its own, got a link")
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._file = locked(path, os.open(path, flags, 0o666))
        except FileError as error:
            raise RowsError(f"{path}: {error}", "choose another --out") from error
        except BlockingIOError as error:
            raise RowsError(
                f"{path}: another process is writing it", "wait for it or choose another --out"
            ) from error
        except OSError as error:
            raise RowsError(
                f"{path}: expected a file that can be written, got {error.strerror}", "choose another --out"
            ) from error
        self._remember_place()
        self._replaced: BinaryIO | None = None
        self._syncing = threading.Lock()
        self._sync_began = self._synced_at = -math.inf  # of `time.monotonic`
        self._timer: threading.Timer | None = None  # of the next sync, where rows wait for one
        self._unsynced: OSError | None = None  # why the last one that a timer began failed

    def _remember_place(self) -> None:
        state = os.fstat(self._file.fileno())
        self._end = self._synced = state.st_size  # bytes that are written, and those of them that are on disk
        self._place = state.st_dev, state.st_ino

    def check_place(self) -> None:
        """Raises Replaced when this file's name is gone or now names another file: nobody would find the
        rows."""
        try:
            there = os.lstat(self.path)
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != self._place:
            raise Replaced(
                f"{self.path}: expected that the file of rows stays in its place while it is written, but"
                f" {self._whereabouts()}"
            )

    def _whereabouts(self) -> str:
        """What became of the file: moved, or else deleted or replaced."""
        with suppress(OSError, ValueError):  # ValueError: it is closed
            now = os.readlink(f"/proc/self/fd/{self._file.fileno()}")
            if os.fstat(self._file.fileno()).st_nlink:
                return f"it was moved to {now} with its rows; move it back"
        return "it was deleted or another took its name; restore it"

    @property
    def empty(self) -> bool:
        return self._end == 0

    def recover(self) -> None:
        """Cuts off an incomplete last line, which a killed process leaves. Call it only for a file that is
        known to hold rows. Raises RowsError where that line is longer than a row can be."""
        with self._opened() as file:
            start = max(0, self._end - LARGEST)
            file.seek(start)
            tail = file.read(LARGEST)
        whole = tail.rfind(b"\n") + 1
        if start and not whole:
            raise RowsError(
                f"{self.path}: expected rows of at most {LARGEST} bytes, the last is longer",
                "choose another --out",
            )
        self._end = self._synced = start + whole
        os.ftruncate(self._file.fileno(), self._end)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _, row in self._lines():
            yield row

    def _lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        with self._opened() as file:
            yield from rows_in(file, self.path, self._schema)

    def _opened(self) -> BinaryIO:
        self.check_place()
        try:
            return open(open_regular(self.path), "rb")
        except FileError as error:
            raise RowsError(f"{self.path}: {error}", "choose another --out") from error

    def append(self, line: str, *, within: float = 0.0, checked: bool = False) -> None:
        """Writes one row, given as JSON text, and waits until the disk has it. With `within` it does not wait
        where the last sync ended less than so many seconds ago, or where one began that has gone on for less
        than LONG_SYNC: the next sync is for all such rows together, and due `within` seconds later at the
        latest (`sync` waits for it). `checked`: `checked_row` has taken the line already.

        Raises WriteError, also where the sync of rows before it failed, and UnreadableRow for one that could
        not be read again.
        """
        content = line.encode() + b"\n"
        try:
            if not checked:
                checked_row(content, self._schema)
        except FileError as error:
            raise UnreadableRow(
                f"{self.path}: a row could not be written ({error})", "the rows before it are kept"
            ) from error
        try:
            self._end += _write(self._file, content)
        except OSError as error:
            self._cut(self._end)
            raise self._unwritten(error) from error
        now = time.monotonic()
        joins = self._syncing.locked() and now - self._sync_began < LONG_SYNC
        wait = within if joins else self._synced_at + within - now
        if wait <= 0 or self._unsynced:
            self.sync()
        elif self._timer is None:
            self._timer = threading.Timer(wait, self._sync_in_turn)
            self._timer.daemon = True
            self._timer.start()
        self.check_place()

    def sync(self) -> None:
        """Waits until the disk has every row. Raises WriteError where it does not take them: the file then
        holds the rows before, whole."""
        with self._syncing:
            try:
                if self._unsynced:
                    raise self._unsynced
                self._sync()
            except OSError as error:
                self._unsynced = None
                self._cut(self._synced)
                raise self._unwritten(error) from error

    def _sync(self) -> None:
        if self._synced < (end := self._end):
            self._sync_began = time.monotonic()
            os.fsync(self._file.fileno())
            self._synced_at = time.monotonic()
            self._synced = end

    def _sync_in_turn(self) -> None:
        """A sync that a timer began; where it fails, the next row says so."""
        with self._syncing:
            self._timer = None  # not before: while it waits for another sync, no more timers are needed
            if self._unsynced:  # the system tells of a failure once: another sync would seem to succeed
                return
            try:
                self._sync()
            except (OSError, ValueError) as error:  # ValueError: the file was closed meanwhile, synced
                self._unsynced = error if isinstance(error, OSError) else None

    def _cut(self, end: int) -> None:
        """Leaves the first `end` bytes."""
        self._end = end
        with suppress(OSError):
            os.ftruncate(self._file.fileno(), end)

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Removes the rows that are not `wanted`. A new file takes the old one's place, or nothing changes.
        Raises WriteError, RowsError."""
        self.sync()
        partial = self.path.with_name(self.path.name + ".partial")
        file = None
        try:
            file = locked(partial, create(partial))
            for line, row in self._lines():
                if wanted(row):
                    _write(file, line)
            os.fsync(file.fileno())
            self.check_place()
            partial.replace(self.path)
            sync_folder(self.path)
        except (OSError, RowsError) as error:
            if file:
                file.close()
            with suppress(OSError):
                partial.unlink()
            if isinstance(error, OSError):
                raise self._unwritten(error) from error
            raise
        # The old file stays locked: a process that opened it before it was replaced is refused too.
        self._replaced, self._file = self._file, file
        self._remember_place()

    def _unwritten(self, error: OSError) -> WriteError:
        return WriteError(
            f"{self.path}: a row could not be written ({error.strerror}); the rows before it are kept"
        )

    def close(self) -> None:
        """Raises WriteError where rows that waited for a sync are not on disk."""
        try:
            if not self._file.closed:
                self.sync()
        finally:
            self._file.close()
            if self._replaced:
                self._replaced.close()


def rows_in(
    file: BinaryIO, path: Path, schema: type[BaseModel], *, going_on: bool = False
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """(line, row) of an open file of rows; `path` names it in messages. While a run may still be writing it
    (`going_on`), an incomplete last line is left out. Raises RowsError, which names a line that is no row."""
    for number, line in enumerate(iter(lambda: file.readline(LARGEST + 1), b""), 1):
        if going_on and len(line) <= LARGEST and not line.endswith(b"\n"):
            return
        try:
            yield line, checked_row(line, schema)[0]
        except FileError as error:
            raise RowsError(f"{path}, line {number}: {error}", "choose another --out") from error


def checked_row(line: bytes, schema: type[AnySchema]) -> tuple[dict[str, Any], AnySchema]:
    """A line's row as JSON and as `schema` has it. Raises FileError for a line that is no such row."""
    if len(line) > LARGEST:
        raise FileError(f"expected a line of at most {LARGEST} bytes, got a longer one")
    row = None
    with suppress(ValueError):
        row = from_json(line)
    if not isinstance(row, dict):
        row = parse_json(line, None)  # slower, but it says what is wrong
    _check_values(row)
    try:
        return row, schema.model_validate_json(line, strict=True)
    except ValidationError as error:
        raise FileError(f"expected rows as this program writes them, got {first_mistake(error)}") from error


def _check_values(row: dict[str, Any]) -> None:
    """Raises FileError for numbers that are not finite, and for rows that are nested too deep."""
    waiting: list[tuple[Any, int]] = [(row, 1)]
    while waiting:
        part, depth = waiting.pop()
        if depth > DEEPEST:
            raise FileError(f"expected JSON nested at most {DEEPEST} deep, got it deeper")
        for value in part.values() if type(part) is dict else part:
            kind = type(value)
            if kind is dict or kind is list:
                waiting.append((value, depth + 1))
            elif (kind is float or kind is int) and not _finite(value):
                raise FileError("expected numbers that are finite, got another")


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond every float
        return False


def locked(path: Path, descriptor: int) -> BinaryIO:
    """The file opened for appending, unbuffered and locked, with its name on disk. Raises BlockingIOError
    where another process has the lock."""
    file = os.fdopen(descriptor, "ab", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sync_folder(path)
    except OSError:
        file.close()
        raise
    return file


def _write(file: BinaryIO, data: bytes) -> int:
    """Writes all of `data` and returns its length; a disk that fills up may take a part first."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
    return len(data)


def sync_folder(path: Path) -> None:
    """Puts the name of a new file on disk, where the file system can."""
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    with suppress(OSError):
        os.fsync(folder)
    os.close(folder)


def write_run(path: Path, run: dict[str, Any], identity: dict[str, Any]) -> None:
    """Writes the description of a run as JSON; `identity` is the part that its rows depend on. Raises
    WriteError."""
    write_whole(path, json.dumps(run | {"identity": identity}, indent=1), sync=True)


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


def run_began(path: Path) -> float:
    """When the run that `path` describes was begun or last gone on with, in seconds since 1970; 0 where that
    is not known."""
    try:
        date = read_json(path, LARGEST_NOTE)["date"]
        return datetime.strptime(date, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (FileError, KeyError, TypeError, ValueError):
        return 0.0


def check_run(path: Path, identity: dict[str, Any], may_be_set: Collection[str] = ()) -> bool:
    """Compares `identity` with that of the run which `path` describes; whether a setting of `may_be_set` that
    was not set then is set now. Raises OtherRun for every other difference, with the old and new values, and
    RowsError for a file that describes no run.
    """
    try:
        run = read_json(path, LARGEST_NOTE)
        if not isinstance(run.get("identity"), dict):
            raise FileError("expected an object `identity`, found none")
    except FileError as error:
        raise RowsError(
            f"{path}: this is no description of the run: {error}", "choose another --out"
        ) from error
    differ = differences(run["identity"], json.loads(json.dumps(identity)))
    newly_set = {key for key, (old, _) in differ.items() if key in may_be_set and old is None}
    if changed := {key: values for key, values in differ.items() if key not in newly_set}:
        raise OtherRun(
            f"{path}: the rows are of a run with other settings:"
            f" {told_differences(changed, '{} was {}, is now {}')}",
            "go on with the same or choose another --out",
        )
    return bool(newly_set)


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ between two identities, by their dotted names: (value in `old`, in `new`),
    None where one is not set."""
    flat, other = dict(_flat(old)), dict(_flat(new))
    return {
        key: (flat.get(key), other.get(key))
        for key in sorted(flat.keys() | other.keys())
        if flat.get(key) != other.get(key)
    }


def told_differences(differ: dict[str, tuple[Any, Any]], sentence: str) -> str:
    """The first of them in words; `sentence` has places for the name and both values."""
    lines = [
        sentence.format(f"{key:.{LONGEST_VALUE}}", _short(old), _short(new))
        for key, (old, new) in list(differ.items())[:NAMED_CHANGES]
    ]
    more = f"; and {len(differ) - NAMED_CHANGES} more" if len(differ) > NAMED_CHANGES else ""
    return "; ".join(lines) + more


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
