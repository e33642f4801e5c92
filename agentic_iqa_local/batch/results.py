"""The file of rows that assess writes and goes on with: which rows hold still, and which are made again."""

import os
import sys
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.inputs import row_key
from agentic_iqa_local.batch.rows import OtherRun, RowFile, RowsError, check_run, write_run
from agentic_iqa_local.batch.work import StoredRow
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import WriteError, path_from_text
from agentic_iqa_local.judgement.assessment import file_sha256

SET_LATER = ("images.background",)  # no stored row changes: without it transparent pictures failed


def picture_changed(row: dict[str, Any], since: float) -> bool:
    """Whether a row's picture is there and no longer the file of the row's `sha256`, where it has one. A picture
    that nobody touched `since` then, when the rows agreed with their pictures, is not read."""
    path = path_from_text(row["image"])
    return _touched(path, since) and row["sha256"] is not None and file_sha256(path) != row["sha256"]


def _touched(path: str, since: float, time: str = "st_ctime") -> bool:
    with suppress(OSError, ValueError):
        return getattr(os.stat(path), time) >= since
    return False


class Results(RowFile):
    """The rows that assess writes to `path`, one for each item. Beside it PATH.run.json says what they depend on.

    Args:
        path: The file. Where it is a link, the file that it leads to.
        identity: What the rows depend on; a file with rows is taken only with the same.
        resume: Whether a file with rows is taken. Items whose picture or reference changed since lose their row.
        retry: Whether failed items lose theirs too.
        asked: The keys of the items that are asked for; rows of others stay.

    Raises:
        RowsError: The file cannot be used so.
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
        super().__init__(path, StoredRow)
        self.changed: list[str] = []
        """Pictures that changed since."""
        self.gone: dict[str, str] = {}
        """Pictures that are not asked for and no longer there, by the key of their row."""
        self._retry, self._asked = retry, asked
        description = self.path.with_name(f"{self.path.name}.run.json")
        try:
            if not self.empty:
                if not resume:
                    remedy = "add --resume to go on with them, or choose another --out"
                    raise RowsError(f"{self.path}: holds rows already", remedy)
                self._go_on(description, identity)
            command = [one_line(word) for word in sys.argv]
            write_run(description, {"command": command, "date": time.strftime("%Y-%m-%dT%H:%M:%S%z")}, identity)
        except WriteError:
            self.close()
            raise

    def _go_on(self, description: Path, identity: dict[str, Any]) -> None:
        since = 0.0
        try:
            since = check_run(description, identity, SET_LATER)
        except OtherRun:
            if not all(map(self._is_retried, self)):
                raise  # otherwise no row stays that the old settings made
        self.recover(row_key, lambda row: self._is_retried(row) or self._is_outdated(row, since))

    def _is_retried(self, row: dict[str, Any]) -> bool:
        return self._retry and row["error"] is not None and row_key(row) in self._asked

    def _is_outdated(self, row: dict[str, Any], since: float) -> bool:
        is_there = os.path.exists(path_from_text(row["image"]))
        if row_key(row) not in self._asked:
            if not is_there:
                self.gone[row_key(row)] = row["image"]
            return False
        changed = picture_changed(row, since) or not (is_there or row["error"])
        if row["reference"] and since:
            changed |= _touched(path_from_text(row["reference"]), since, "st_mtime")
        if changed:
            self.changed.append(row["image"])
        return changed

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, without those whose pictures are gone."""
        return (row for row in self if row_key(row) not in self.gone)
