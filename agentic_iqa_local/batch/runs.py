"""A run on disk: a file of rows, beside it what the rows depend on, and while it goes on what is in hand.

A kill at any moment loses the images in hand at most, and the next process knows of which images this one may
have died. `Results` is the file that assess writes; a study's folder is `studies.store.Store`.
"""

import json
import os
import sys
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, NonNegativeInt

from agentic_iqa_local.batch.inputs import row_key
from agentic_iqa_local.batch.keys import Keys
from agentic_iqa_local.batch.rows import (
    LARGEST_NOTE,
    OtherRun,
    RowFile,
    RowsError,
    WriteError,
    check_run,
    run_began,
    write_run,
    write_whole,
)
from agentic_iqa_local.batch.stored_row import StoredRow, as_line
from agentic_iqa_local.batch.work import ROLES, AnyItem, key_of
from agentic_iqa_local.config import Pipeline, Settings
from agentic_iqa_local.files import FileError, parse_json, place_for, read_bytes
from agentic_iqa_local.judgement.assessment import file_sha256
from agentic_iqa_local.judgement.intervals import SHIPPED as SHIPPED_INTERVALS
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.offline.store import file_hash
from agentic_iqa_local.provenance import folder_hash, of_settings
from agentic_iqa_local.result import SCHEMA_VERSION, Assessment
from agentic_iqa_local.text import one_line, path_from_text, path_text

SET_LATER = ("images.background",)  # no stored row changes: without it transparent pictures failed
TOGETHER = 0.02
"""Seconds after a sync in which rows share the next one, as do those that come during a sync: what a power
cut may take of a fast run. Slower rows are on disk before the next is begun."""
LONGEST_NOTE = 2**20  # bytes, after which the note is written anew


class _Note(BaseModel):
    """What is written while a run goes on: keys of the items in hand, and of those suspected with how often a
    process died."""

    in_hand: list[str]
    suspects: dict[str, NonNegativeInt]


class Run:
    """A file of rows that goes on: which keys are `done`, how many of those rows `failed`, and the items in
    hand, noted in `note`.

    `suspects` are the items that were in hand when a process died, each with how often one died of it alone.
    The note's first line is a `_Note`, each further one the key of an item that was begun since: those of
    them are in hand that have no row.
    """

    def __init__(self, rows: RowFile, note: Path):
        self._rows, self._note_file = rows, note
        self._begun: BinaryIO | None = None  # the note, where keys can be added to it
        self._in_hand: set[str] = set()
        self.done = Keys()
        self.failed = 0
        self.suspects: dict[str, int] = {}

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows in the file. Raises Replaced when another file has its name by now."""
        return iter(self._rows)

    def begun(self, items: Iterable[AnyItem]) -> Iterator[AnyItem]:
        """The items, each of them in hand from the moment that it is taken."""
        for item in items:
            self._note_begun(item.key)
            yield item

    def write(self, key: str, line: str, *, failed: bool, checked: bool = False) -> None:
        """Writes a row, whose line may have been `checked`; the disk has it, or will have it with the next
        sync, see `TOGETHER`; `sync` waits for that. Raises WriteError, also for rows before it, and Replaced
        when another file has its name by now."""
        self._rows.append(line, within=TOGETHER, checked=checked)
        self._know(key, failed=failed)
        self._in_hand.discard(key)

    def sync(self) -> None:
        """Waits until the disk has every row. Raises WriteError."""
        self._rows.sync()

    def _know(self, key: str, *, failed: bool) -> None:
        """Counts a row that is there."""
        self.done.add(key)
        self.failed += failed
        self.suspects.pop(key, None)

    def _note(self, in_hand: set[str]) -> None:
        """Writes the note anew."""
        self._close_note()
        self._in_hand = in_hand
        write_whole(self._note_file, json.dumps({"in_hand": sorted(in_hand), "suspects": self.suspects}))

    def _note_begun(self, key: str) -> None:
        """Notes one item more that is in hand. Raises WriteError."""
        if self._begun is None or self._begun.tell() > LONGEST_NOTE:
            self._note(self._in_hand | {key})
            with suppress(OSError):  # otherwise the next one is noted the same way
                flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self._begun = os.fdopen(os.open(self._note_file, flags), "ab", buffering=0)
            return
        self._in_hand.add(key)
        line = json.dumps(key).encode() + b"\n"
        try:
            if self._begun.write(line) == len(line):
                return
            reason = "no room is left"
        except OSError as error:
            reason = error.strerror
        self._close_note()  # what it took of the line is no key: the next is noted anew
        raise WriteError(
            f"{self._note_file}: could not be written ({reason})", "make room there or choose another --out"
        )

    def _close_note(self) -> None:
        if self._begun:
            self._begun.close()
        self._begun = None

    def _left_in_hand(self) -> dict[str, int]:
        """The suspects as the last process left them, with one death more for an item that was alone in its
        hand. Which rows are there is known by now."""
        try:
            note = _read_note(self._note_file)
        except (FileError, ValueError):  # none, or damaged: nobody is suspected
            return {}
        in_hand = [key for key in note.in_hand if key not in self.done]
        return {
            key: note.suspects.get(key, 0) + (in_hand == [key])
            for key in (*note.suspects, *in_hand)
            if key not in self.done
        }

    def settle(self, *, lost: bool = False) -> None:
        """Notes that no process died of what is in hand; where the model was `lost`, it is suspected all the
        same."""
        if lost:
            self.suspects |= {key: self.suspects.get(key, 0) for key in self._in_hand}
        with suppress(RowsError, OSError):  # on a full disk the note of before stays: too much is suspected
            if self.suspects:
                self._note(set())
            else:
                self._close_note()
                self._note_file.unlink(missing_ok=True)

    def close(self, *, lost: bool = False) -> None:
        """Ends an orderly run, or one whose model was `lost`. Raises WriteError for rows that the disk does
        not take after all."""
        self.settle(lost=lost)
        self._rows.close()


def _read_note(path: Path) -> _Note:
    """Raises FileError, and ValueError for what is no note."""
    content = read_bytes(path, LARGEST_NOTE)
    try:
        note, begun = parse_json(content), []
    except FileError:
        first, *lines = content.split(b"\n")[:-1]  # a kill may have torn the last line: it was not begun
        note, begun = parse_json(first), [json.loads(line) for line in lines]
    note = _Note.model_validate(note, strict=True)
    return _Note.model_validate({"in_hand": [*note.in_hand, *begun], "suspects": note.suspects}, strict=True)


def picture_changed(row: dict[str, Any], since: float) -> bool:
    """Whether a row's picture is there and no longer the file of the row's `sha256`, where it has one. A
    picture that nobody touched `since` then, when the rows agreed with their pictures, is not read."""
    path = path_from_text(row["image"])
    try:
        touched = os.stat(path).st_ctime >= since
    except (OSError, ValueError):
        return False
    return touched and row["sha256"] is not None and file_sha256(path) != row["sha256"]


class Results(Run):
    """The file of rows (`path`) that assess writes, one for each item. Beside it PATH.run.json says what the
    rows depend on; PATH.in_hand.json is there while a run goes on.

    A file with rows is taken only to `resume` it, with the same `identity`; `retry` has the keys of items
    whose failed rows are taken out, to be assessed again, as are the rows of those items of the run (`asked`
    has their keys) whose picture or reference `changed` meanwhile. Rows of other pictures that are `gone`
    stay in the file, but `rows` leaves them out. Where `path` is a link, the file that it leads to now is
    meant, and all of this lies beside that. Raises RowsError.
    """

    def __init__(
        self,
        path: Path,
        identity: dict[str, Any],
        *,
        resume: bool = False,
        retry: Container[str] = (),
        asked: Container[str] | None = None,
    ):
        try:
            path = place_for(path)
        except FileError as error:
            raise RowsError(f"{path}: {error}", "choose another --out") from error
        super().__init__(RowFile(path, StoredRow), path.with_name(f"{path.name}.in_hand.json"))
        description = path.with_name(f"{path.name}.run.json")
        self.changed: list[str] = []
        self.gone: list[str] = []  # pictures
        self._gone = Keys()
        described, since = _described(), run_began(description)
        try:
            if self._rows.empty:
                goes_on = self._begin(description, identity, resume=resume)
            elif not resume:
                raise RowsError(
                    f"{path}: holds rows already", "add --resume to go on with them, or choose another --out"
                )
            else:
                goes_on = self._go_on(description, identity, retry)
            self._take_out(self._read(retry, asked, since))
            if goes_on:
                self.suspects = self._left_in_hand()
                write_run(description, described, identity)
        except RowsError:
            self._rows.close()  # the note on what was in hand stays for whoever may go on
            raise

    def _begin(self, description: Path, identity: dict[str, Any], *, resume: bool) -> bool:
        """Whether the same run died before its first row."""
        same = False
        if resume and description.is_file():
            with suppress(RowsError):  # a run of another kind that died before its first row
                check_run(description, identity)
                same = True
        write_run(description, _described(), identity)
        return same

    def _go_on(self, description: Path, identity: dict[str, Any], retry: Container[str]) -> bool:
        try:
            check_run(description, identity, SET_LATER)
        except OtherRun:
            if not all(_to_retry(row, retry) for row in self._rows):
                raise  # otherwise no row stays that the old settings made
        self._rows.recover()
        return True

    def _read(self, retry: Container[str], asked: Container[str] | None, since: float) -> set[str]:
        """Learns which rows there are; the keys of those that are to be taken out."""
        again = set()
        for row in self._rows:
            key, failed = row_key(row), row["error"] is not None
            if _to_retry(row, retry) or (
                asked is not None and self._is_outdated(row, key, key in asked, since)
            ):
                again.add(key)
            else:
                self._know(key, failed=failed)
        return again

    def _is_outdated(self, row: dict[str, Any], key: str, asked: bool, since: float) -> bool:
        """Whether a row is one of those asked for, and its picture changed. Notes pictures that are gone."""
        is_there = os.path.exists(path_from_text(row["image"]))
        if not asked:
            if not is_there:
                self._gone.add(key)
                self.gone.append(row["image"])
            return False
        changed = (
            picture_changed(row, since) or _written(row["reference"], since) or not (is_there or row["error"])
        )
        if changed:
            self.changed.append(row["image"])
        return changed

    def _take_out(self, again: set[str]) -> None:
        if again:
            self._rows.keep(lambda row: row_key(row) not in again)

    def rows(self) -> Iterator[dict[str, Any]]:
        return (row for row in super().rows() if not self.gone or row_key(row) not in self._gone)

    def append(self, row: Assessment, line: str | None = None) -> None:
        """Writes a row, see `write`. `line`: the one that `stored_row.read_line` made the row of; it is
        written as it is, without another check."""
        text = as_line(row) if line is None else line
        self.write(key_of(row), text, failed=row.error is not None, checked=line is not None)


def _to_retry(row: dict[str, Any], retry: Container[str]) -> bool:
    return bool(row["error"]) and row_key(row) in retry


def _written(file: str | None, since: float) -> bool:
    """Whether a file was written `since` then."""
    try:
        return file is not None and os.stat(path_from_text(file)).st_mtime >= since > 0
    except (OSError, ValueError):
        return False


def _described() -> dict[str, Any]:
    return {
        "command": [one_line(word) for word in sys.argv],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def identity(
    settings: Settings,
    device: str,
    *,
    pipeline: Pipeline,
    max_replan_iterations: int | None,
    query: str | None,
    choices: Sequence[str] | None,
    reference: Path | None,
    relative: bool,
    maps: Any = None,
    shard: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What the rows of a run depend on, by the names that a user is told. `relative`: some paths are, so that
    the working folder counts; `maps`: the limits of the maps that the rows have, where they have any;
    `shard`: which part of which list they are, where they are one (`shards.Share.identity`). Raises
    BundleError for a models folder whose manifest is damaged, CalibrationError for tool maps that cannot be
    read.
    """
    configuration = settings.model_dump(
        mode="json",
        exclude={
            "tools": {"cache"},
            "decisions": {"calibration"},
            "models": {"__all__": {"path"}},
        },
    )
    limit = settings.max_replan_iterations if max_replan_iterations is None else max_replan_iterations
    intervals = Path(settings.decisions.calibration or SHIPPED_INTERVALS)
    folders = {settings.folder(settings.role(role).backend) for role in ROLES[pipeline]}
    return (
        configuration
        | of_settings(settings, device)
        | {
            "schema version": SCHEMA_VERSION,
            "interval calibration": file_hash(intervals) if intervals.is_file() else None,
            "model": {folder.name: folder_hash(folder) for folder in folders if folder.is_dir()},
            "pipeline": pipeline,
            "max_replan_iterations": limit,
            "query": query or DEFAULT_QUERY,
            "choices": choices,
            "reference": reference and path_text(reference.absolute()),
            "working folder": os.getcwd() if relative else None,
        }
        | ({} if maps is None else {"map": maps})
        | ({} if shard is None else {"shard": shard})
    )
