"""Files of JSON lines that survive a kill and a full disk, and the description of the run that a file's rows belong to.

A line is written whole and synced before `append` returns. What a kill left of a line is cut off by `recover`.
"""

import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from agentic_iqa_local.errors import UserError

NAMED_CHANGES, LONGEST_VALUE = 5, 60  # of a changed setting in a message: how many, and characters of each


class RowsError(UserError, ValueError):
    """A file of rows that cannot be used; one sentence for the user."""


class OtherRun(RowsError):
    """Rows that depend on other settings."""


class WriteError(RowsError):
    """A row that the disk did not take; the file holds the rows before it, whole."""


class RowFile:
    """Rows (JSON objects), one line each; iterating gives those that are there. One process at a time writes.

    Raises RowsError for a file that another process writes, that cannot be written, or that holds something else.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            if path.exists() and not path.is_file():
                raise RowsError(f"{path}: expected a file, found a folder or a device; choose another --out")
            self._file = _locked(path)
        except BlockingIOError as error:
            raise RowsError(f"{path}: another process is writing it; wait for it or choose another --out") from error
        except OSError as error:
            raise RowsError(f"{path}: expected a file that can be written, got {error.strerror}; choose another --out") from error
        self._end = os.fstat(self._file.fileno()).st_size
        self._replaced: BinaryIO | None = None

    @property
    def empty(self) -> bool:
        return self._end == 0

    def recover(self) -> None:
        """Cuts off what a kill left of a line: only for a file that is known to hold rows."""
        with self.path.open("rb") as file:
            self._end = sum(len(line) for line in file if line.endswith(b"\n"))
        os.ftruncate(self._file.fileno(), self._end)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    raise RowsError(
                        f"{self.path}, line {number}: expected a JSON object, found something else; choose another --out"
                    )
                yield row

    def append(self, line: str) -> None:
        """Writes one row, given as JSON text, and waits until the disk has it. Raises WriteError."""
        try:
            written = _write(self._file, line.encode() + b"\n")
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), self._end)
            raise self._unwritten(error) from error
        self._end += written

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Takes all rows out that are not `wanted`: a new file takes the old one's place, or nothing changes. Raises WriteError."""
        partial = self.path.with_name(self.path.name + ".partial")
        try:
            partial.unlink(missing_ok=True)
            file = _locked(partial)
            end = 0
            with self.path.open("rb") as lines:
                for row, line in zip(self, lines, strict=True):
                    if wanted(row):
                        end += _write(file, line)
            os.fsync(file.fileno())
            partial.replace(self.path)
            _sync_folder(self.path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise self._unwritten(error) from error
        # The old file stays locked: a process that opened it before it was replaced is refused too.
        self._replaced, self._file, self._end = self._file, file, end

    def _unwritten(self, error: OSError) -> WriteError:
        return WriteError(f"{self.path}: a row could not be written ({error.strerror}); the rows before it are kept")

    def close(self) -> None:
        self._file.close()
        if self._replaced:
            self._replaced.close()


def _locked(path: Path) -> BinaryIO:
    """The file opened for appending, unbuffered, with its name on disk. Raises BlockingIOError where another has the lock."""
    file = path.open("ab", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sync_folder(path)
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


def _sync_folder(path: Path) -> None:
    """Puts the name of a new file on disk, where the file system can."""
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    with suppress(OSError):
        os.fsync(folder)
    os.close(folder)


def write_run(path: Path, run: dict[str, Any], identity: dict[str, Any]) -> None:
    """Describes a run in a JSON file; `identity` is the part that its rows depend on. Raises RowsError."""
    write_whole(path, json.dumps(run | {"identity": identity}, indent=1), sync=True)


def write_whole(path: Path, text: str, *, sync: bool = False, encoding: str = "utf-8") -> None:
    """Writes a text file anew, so that a killed process leaves the old or the new one; with `sync`, a failing machine too.
    Raises RowsError."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding=encoding, newline="") as file:
            file.write(text.rstrip("\n") + "\n")
            file.flush()
            if sync:
                os.fsync(file.fileno())
        partial.replace(path)
        if sync:
            _sync_folder(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise WriteError(f"{path}: could not be written ({error.strerror}); make room there or choose another --out") from error


def check_run(path: Path, identity: dict[str, Any], may_be_set: Collection[str] = ()) -> bool:
    """Whether something was set of what `may_be_set` later. Raises OtherRun unless the run that the file describes depends on the
    same apart from that, and names what differs with its old and new value; RowsError for a file that describes none."""
    try:
        known = dict(_flat(json.loads(path.read_text(encoding="utf-8"))["identity"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RowsError(f"{path}: expected the description of the run, got: {error}; choose another --out") from error
    now = dict(_flat(json.loads(json.dumps(identity))))
    differ = {key for key in known.keys() | now.keys() if known.get(key) != now.get(key)}
    newly_set = {key for key in differ if key in may_be_set and known.get(key) is None}
    if changed := sorted(differ - newly_set):
        lines = [f"{key} was {_short(known.get(key))}, is now {_short(now.get(key))}" for key in changed[:NAMED_CHANGES]]
        more = f"; and {len(changed) - NAMED_CHANGES} more" if len(changed) > NAMED_CHANGES else ""
        raise OtherRun(
            f"{path}: the rows are of a run with other settings: {'; '.join(lines)}{more}; go on with the same or choose another --out"
        )
    return bool(newly_set)


def _flat(settings: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of each setting of nested sections."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _short(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
