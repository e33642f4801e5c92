"""A run's folder: run.json (what was asked, of which files, with which model) and rows.jsonl, one durable line for each image.

A kill at any moment loses the image in hand at most.
"""

import json
from pathlib import Path
from typing import Any, Self

from agentic_iqa_local.rows import RowFile, check_run, write_run
from agentic_iqa_local.rows import RowsError as StoreError


class Store:
    """Rows by their `key`, appended once each. One process at a time writes.

    `run` describes the run; `identity` is the part of it that rows depend on. Raises StoreError for a folder of another run, of
    another process, or that cannot be written.
    """

    def __init__(self, folder: Path, run: dict[str, Any], identity: dict[str, Any]):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}: expected a folder that can be written, got {error.strerror}") from error
        self._rows = RowFile(folder / "rows.jsonl")
        try:
            description = folder / "run.json"
            if description.exists():
                check_run(description, identity)
            else:
                write_run(description, run, identity)
            self._rows.recover()
            self.done = {row["key"] for row in self._rows}
        except StoreError:
            self.close()
            raise

    def append(self, row: dict[str, Any]) -> None:
        """Writes one row and waits until the disk has it. Raises ValueError for a key that is there already, or a number that
        JSON cannot hold; StoreError when the disk does not take it."""
        if row["key"] in self.done:
            raise ValueError(f"{self.folder}: {row['key']} is stored already")
        self._rows.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
        self.done.add(row["key"])

    def close(self) -> None:
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_run(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(run.json, whole rows) of a run that may still be going on. Raises StoreError where there is none."""
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        content = (folder / "rows.jsonl").read_bytes()
        return run, [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder}: expected run.json and rows.jsonl of a study, got: {error}") from error
