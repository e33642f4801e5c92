"""A run's folder: run.json (what was asked, of which files, with which model) and rows.jsonl, one durable line for each image.

A kill at any moment loses the image in hand at most.
"""

import json
import tempfile
from pathlib import Path
from typing import Any, Self

from agentic_iqa_local.rows import RowFile, check_run, write_run, write_whole
from agentic_iqa_local.rows import RowsError as StoreError


def check_folder(out: Path) -> None:
    """Raises StoreError unless files can be made in the folder `out`, or it and its parents where they are not there yet. Makes
    nothing: for a look before the work."""
    try:
        there = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise StoreError(f"{out}: expected a folder that can be written, got {error.strerror}; choose another --out") from error


def check_file(out: Path) -> None:
    """Raises StoreError unless the file `out` can be written, in a folder that is there. Changes nothing."""
    try:
        if out.is_dir():
            raise StoreError(f"{out}: expected a file, found a folder; add the file's name to --out")
        if not out.parent.is_dir():
            raise StoreError(
                f"{out}: expected a file in a folder that is there, found no {out.parent}; make it or choose another --out"
            )
        if out.exists():
            out.open("ab").close()
        else:
            check_folder(out.parent)
    except OSError as error:
        raise StoreError(f"{out}: expected a file that can be written, got {error.strerror}; choose another --out") from error


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
            raise StoreError(
                f"{folder}: expected a folder that can be written, got {error.strerror}; choose another --out"
            ) from error
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

    def tell_scale(self, low: float, high: float, scale: str) -> None:
        """Notes the ends of the scale of human scores, which no row depends on, in run.json."""
        description = self.folder / "run.json"
        run = json.loads(description.read_text(encoding="utf-8"))
        told = run["dataset"] | {"low": low, "high": high, "scale": scale}
        if told != run["dataset"]:
            write_whole(description, json.dumps(run | {"dataset": told}, indent=1), sync=True)

    def append(self, row: dict[str, Any]) -> None:
        """Writes one row and waits until the disk has it. Raises ValueError for a key that is there already, or a number that
        JSON cannot hold; StoreError when the disk does not take it."""
        if row["key"] in self.done:
            raise ValueError(f"{self.folder}: {row['key']} is stored already")
        self._rows.append(json.dumps(row, allow_nan=False))
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
    except OSError as error:
        raise StoreError(f"{folder}: expected a folder that study.py run wrote, {error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise StoreError(f"{folder}: expected run.json and rows.jsonl of a study, got: {error}") from error
