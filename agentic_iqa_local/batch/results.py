"""The file of rows that assess writes and goes on with: which rows hold still, and which are made again."""

import os
import sys
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.inputs import row_key
from agentic_iqa_local.batch.rows import OtherRun, RowFile, RowsError, check_run, run_began, write_run
from agentic_iqa_local.batch.work import StoredRow
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import FileError, WriteError, path_from_text, place_for
from agentic_iqa_local.judgement.assessment import file_sha256

SET_LATER = ("images.background",)  # no stored row changes: without it transparent pictures failed


def picture_changed(row: dict[str, Any], since: float) -> bool:
    """Whether a row's picture is there and no longer the file of the row's `sha256`, where it has one. A
    picture that nobody touched `since` then, when the rows agreed with their pictures, is not read."""
    path = path_from_text(row["image"])
    try:
        touched = os.stat(path).st_ctime >= since
    except (OSError, ValueError):
        return False
    return touched and row["sha256"] is not None and file_sha256(path) != row["sha256"]


class Results(RowFile):
    """The rows that assess writes to `path`, one for each item. Beside it PATH.run.json says what they depend
    on. Where `path` is a link, the file that it leads to now is meant.

    A file with rows is taken only to `resume` it, with the same `identity`. Of the items that are `asked` for
    (their keys), those whose picture or reference changed since (`changed` names them) lose their row, and
    with `retry` the failed ones: they are assessed again. Rows of other pictures that are `gone` stay in the
    file, but `rows` leaves them out. Raises RowsError.
    """

    def __init__(
        self,
        path: Path,
        identity: dict[str, Any],
        *,
        resume: bool = False,
        retry: bool = False,
        asked: Container[str] = (),
    ):
        try:
            path = place_for(path)
        except FileError as error:
            raise RowsError(f"{path}: {error}", "choose another --out") from error
        super().__init__(path, StoredRow, row_key)
        self.changed: list[str] = []
        self.gone: list[str] = []  # pictures
        self._gone: set[str] = set()
        description = path.with_name(f"{path.name}.run.json")
        try:
            if not self.empty:
                self._go_on(description, identity, resume, retry, asked)
            command = [one_line(word) for word in sys.argv]
            run = {"command": command, "date": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
            write_run(description, run, identity)
        except WriteError:
            self.close()
            raise

    def _go_on(
        self,
        description: Path,
        identity: dict[str, Any],
        resume: bool,
        retry: bool,
        asked: Container[str],
    ) -> None:
        if not resume:
            raise RowsError(
                f"{self.path}: holds rows already", "add --resume to go on with them, or choose another --out"
            )

        def failed(row: dict[str, Any]) -> bool:
            return retry and row["error"] is not None and row_key(row) in asked

        try:
            check_run(description, identity, SET_LATER)
        except OtherRun:
            if not all(map(failed, self)):
                raise  # otherwise no row stays that the old settings made
        since = run_began(description)
        self.recover(lambda row: failed(row) or self._is_outdated(row, row_key(row) in asked, since))

    def _is_outdated(self, row: dict[str, Any], asked: bool, since: float) -> bool:
        """Whether a row is one of those asked for, and its picture changed. Notes pictures that are gone."""
        is_there = os.path.exists(path_from_text(row["image"]))
        if not asked:
            if not is_there:
                self._gone.add(row_key(row))
                self.gone.append(row["image"])
            return False
        changed = picture_changed(row, since) or not (is_there or row["error"])
        if row["reference"] and since:
            with suppress(OSError, ValueError):
                changed |= os.stat(path_from_text(row["reference"])).st_mtime >= since
        if changed:
            self.changed.append(row["image"])
        return changed

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, without those whose pictures are gone."""
        return (row for row in self if row_key(row) not in self._gone)
