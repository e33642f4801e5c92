"""The file of rows that assess writes and goes on with: which rows hold still, and which are made
again."""

import os
import sys
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.inputs import row_key
from agentic_iqa_local.batch.rows import RowFile, RowsError, StoredRow, check_run, write_run
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import WriteError, path_from_text
from agentic_iqa_local.result import file_sha256


def picture_changed(row: dict[str, Any], since: float) -> bool:
    """Whether a row's picture is no longer the file of its `sha256`, or its reference was written
    `since` then. A picture that nobody touched since is not read; one that is not there has not
    changed."""
    with suppress(OSError, ValueError):
        path = path_from_text(row.get("image") or "")
        original = row.get("reference")
        if (
            row.get("sha256")
            and os.stat(path).st_ctime >= since
            and file_sha256(path) != row["sha256"]
        ):
            return True
        return bool(original) and os.stat(path_from_text(original)).st_mtime >= since
    return False


class Results(RowFile):
    """The rows that assess writes to `path`, one for each item. Beside it PATH.run.json says what
    they depend on.

    Args:
        path, identity: The file, and what its rows depend on; one with rows is taken only with the same.
        resume: Whether a file with rows is taken. Items whose picture or reference changed since lose their row.
        retry: Whether failed items lose theirs too.
        asked: The keys of the items that are asked for; rows of others stay.

    Raises RowsError where the file cannot be used so.
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
        self.changed = 0  # pictures that did since
        description = self.path.with_name(f"{self.path.name}.run.json")
        try:
            if not self.empty:
                if not resume:
                    remedy = "add --resume if it holds rows to go on with, or choose another --out"
                    raise RowsError(f"{self.path}: there is something in it already", remedy)
                since = check_run(description, identity)
                self.recover(
                    row_key,
                    lambda row: row_key(row) in asked and self._is_made_again(row, since, retry),
                )
            about = {
                "command": [one_line(word) for word in sys.argv],
                "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            }
            write_run(description, about, identity)
        except WriteError:
            self.close()
            raise

    def _is_made_again(self, row: dict[str, Any], since: float, retry: bool) -> bool:
        changed = picture_changed(row, since)
        self.changed += changed
        return changed or (retry and row["error"] is not None)
