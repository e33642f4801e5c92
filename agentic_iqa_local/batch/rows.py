"""Files of JSON lines that survive a kill and a full disk: one durable row for each item, and
beside them the description of the run that they belong to."""

import codecs
import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

from filelock import FileLock, Timeout
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)
from pydantic_core import from_json

from agentic_iqa_local.files import (
    FileError,
    WriteError,
    parsed_object,
    place_for,
    read_json,
    reason,
    sync_folder,
    write_whole,
)
from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.result import SCHEMA_VERSION, Assessment
from agentic_iqa_local.state import LETTERS, FusionResult

NAMED_CHANGES = 5  # changed settings that a message names
LONGEST_VALUE = 60  # characters of each of their values
LARGEST_NOTE = 2**26  # bytes of a run's description, which holds its command line
ELSEWHERE = "choose another --out"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RowsError(WriteError):
    """A file of rows that cannot be used or written; one sentence for the user. The rows in it are
    kept."""


class _RowModel(BaseModel):
    """What is told of a row's model to whoever reads the row."""

    name: str
    device: str
    dtype: str
    notice: str | None = None


class StoredRow(Assessment):
    """A row of assess as it was written, with all fields."""

    model_config = ConfigDict(allow_inf_nan=False)
    schema_version: int = Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)
    model: _RowModel | None = None  # pyright: ignore[reportIncompatibleVariableOverride]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if missing := sorted(type(self).model_fields.keys() - self.model_fields_set):
            raise ValueError(f"no {', '.join(missing)}")
        if self.fusion and not self.error:
            self._has_answer(self.fusion)
        return self

    def _has_answer(self, fusion: FusionResult) -> None:
        """Raises ValueError unless the answer is among those that have a probability, which a
        rating and given choices name."""
        known = set(fusion.p_c)
        if self.final_answer not in known or known != set(fusion.p):
            raise ValueError("final_answer: expected an answer that has a probability")
        if self.q is not None and known != set(LETTERS):
            raise ValueError(f"p_c: expected {', '.join(LETTERS)}")
        if self.choices and not known <= set(choice_letters(self.choices)):
            raise ValueError("p_c: expected the letters of the choices")


class RowFile:
    """Rows (JSON objects), one line each; iterating yields them. One process at a time writes:
    PATH.lock is its lock.

    Args:
        path: The file. Where it is a link, the file that it leads to.
        schema: Validates every row that is read.

    Raises:
        RowsError: Another process writes the file, or it cannot be written.
    """

    def __init__(self, path: Path, schema: type[BaseModel]):
        self._schema = schema
        self.done: set[str] = set()
        """The keys of the rows that `recover` found."""
        try:
            self.path = place_for(path)
            self._open(os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
            self._lock = FileLock(f"{self.path}.lock", timeout=0, thread_local=False)
            self._lock.acquire()  # after the file: this makes missing folders
            sync_folder(self.path)
        except Timeout as error:
            self._file.close()
            said = f"{path}: another process is writing it"
            raise RowsError(said, "wait for it or choose another --out") from error
        except (FileError, OSError) as error:
            said = f"{path}: expected a file that can be written ({reason(error)})"
            raise RowsError(said, ELSEWHERE) from error

    def _open(self, flags: int = 0) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o666)
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    @property
    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    @property
    def empty(self) -> bool:
        return self._size == 0

    def recover(
        self,
        key: Callable[[dict[str, Any]], str] = lambda row: "",
        drop: Callable[[dict[str, Any]], bool] = lambda row: False,
    ) -> None:
        """Makes a file of rows ready to go on with: cuts off the beginning of a row that a kill
        leaves at its end, or gives the last row the line end that it lacks, and takes out rows.

        Args:
            key: Tells rows apart, for `done`.
            drop: Whether a row is taken out. A new file takes the old one's place, or nothing changes.

        Raises:
            RowsError: A line that is no row, which is named.
            WriteError: The disk does not take the new file.
        """
        end = 0
        line = b"\n"
        dropped = set[int]()
        with open(self.path, "rb") as file:
            for number, (line, row) in enumerate(rows_in(file, self.path, self._schema)):
                end += len(line)
                if drop(row):
                    dropped.add(number)
                else:
                    self.done.add(key(row))
        os.ftruncate(self._file.fileno(), end)
        if not line.endswith(b"\n"):
            self._file.write(b"\n")
        if dropped:
            with open(self.path, "rb") as old:
                kept = (line for number, line in enumerate(old) if number not in dropped)
                write_whole(self.path, kept, sync=True)
            self._file.close()
            self._open()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with open(self.path, "rb") as file:
            for _, row in rows_in(file, self.path, self._schema):
                yield row

    def append(self, line: str) -> None:
        """Writes one row, given as JSON text, to the disk. Raises RowsError where that does not take
        it: the rows before it are whole."""
        content = line.encode() + b"\n"
        end = self._size
        try:
            if self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), end)
            said = f"a row could not be written ({error.strerror}); the rows before it are kept"
            raise RowsError(f"{self.path}: {said}") from error

    def close(self) -> None:
        self._file.close()
        self._lock.release()


def rows_in(
    file: BinaryIO, path: Path, schema: type[BaseModel]
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """(line, row) of an open file of rows, which messages call `path`. The beginning of a row at its
    end is left out. Raises RowsError, which names a line that `schema` does not take."""
    for number, line in enumerate(file, 1):
        if _is_beginning(line, schema):
            return
        try:
            row = parsed_object(line)
            schema.model_validate_json(line)
            yield line, row
        except ValueError as error:
            said = f"expected rows as this program writes them ({reason(error)})"
            raise RowsError(f"{path}, line {number}: {said}", ELSEWHERE) from error


def _is_beginning(line: bytes, schema: type[BaseModel]) -> bool:
    """Whether a line is what a kill leaves of a row: JSON that begins with the first field of
    `schema` and ends before it is complete. Whatever else has no line end is somebody's, and is not
    cut off."""
    first_field = json.dumps(next(iter(schema.model_fields)))
    head = f"{{{first_field}:".encode()
    if line.endswith(b"\n") or not head.startswith(line[: len(head)]):
        return False
    try:
        from_json(codecs.getincrementaldecoder("utf-8")().decode(line))  # without half a character
    except ValueError as error:
        return str(error).startswith("EOF while parsing")
    return False


# The run that rows belong to


def write_run(path: Path, run: dict[str, Any], identity: dict[str, Any]) -> None:
    """Writes the description of a run as JSON; `identity` is the part that its rows depend on.
    Raises WriteError."""
    write_whole(path, json.dumps(run | {"identity": identity}, indent=1), sync=True)


class RunNote(BaseModel):
    """What is read again of a run's description: when it was last gone on with, and what its rows
    depend on."""

    date: Annotated[AwareDatetime, Field(ge=EPOCH)] = EPOCH
    identity: dict[str, JsonValue]


def read_note(path: Path) -> RunNote:
    """The description of a run. Raises RowsError."""
    try:
        return RunNote.model_validate(read_json(path, LARGEST_NOTE))
    except (FileError, ValueError) as error:
        said = f"{path}: this is no description of the run: {reason(error)}"
        raise RowsError(said, ELSEWHERE) from error


def check_run(path: Path, identity: dict[str, Any]) -> float:
    """Raises RowsError unless the run that `path` describes has this `identity`; otherwise tells
    when that run was begun or last gone on with, in seconds since 1970."""
    run = read_note(path)
    changed = differences(identity, run.identity)
    if changed:
        said = f"{path}: the rows are of a run with other settings: {changed}"
        raise RowsError(said, f"go on with the same or {ELSEWHERE}")
    return run.date.timestamp()


def differences(now: dict[str, Any], expected: dict[str, Any]) -> str:
    """The first settings that are otherwise than expected, with both values; empty where all are
    alike."""
    had = dict(_flat(expected))
    has = dict(_flat(json.loads(json.dumps(now))))
    said = list[str]()
    for key in sorted(had.keys() | has.keys()):
        is_now, was = has.get(key), had.get(key)
        if is_now != was:
            said.append(f"{key:.{LONGEST_VALUE}} is {_short(is_now)}, expected {_short(was)}")
    return "; ".join(said[:NAMED_CHANGES])


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of each setting of nested sections."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _short(value: Any) -> str:
    if value is None:
        return "not set"
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > LONGEST_VALUE:
        return f"{text[: LONGEST_VALUE - 1]}…"
    return text
