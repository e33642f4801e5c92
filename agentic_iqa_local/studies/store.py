"""A study's folder: run.json (what was asked, of which files, with which model) and rows.jsonl, one durable line for
each image."""

import json
import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from agentic_iqa_local.batch.results import picture_changed
from agentic_iqa_local.batch.rows import LARGEST_NOTE, RowFile, check_run, rows_in, write_run
from agentic_iqa_local.batch.rows import RowsError as StoreError
from agentic_iqa_local.files import FileError, WriteError, open_regular, read_json, write_whole
from agentic_iqa_local.state import LETTERS, ExecutorOutput
from agentic_iqa_local.studies.datasets import MOST, DatasetInfo

Letter = Literal["A", "B", "C", "D", "E"]
Letters = Annotated[dict[Letter, float], Field(min_length=len(LETTERS))]


class _View(BaseModel):
    forward: Letters
    reversed: Letters
    generated: Letter | None = None


class _Read(BaseModel):
    views: list[_View]


class _Row(BaseModel):
    """What is checked of a row: of an image with human scores, or of a question. A failed one lacks what was not
    reached."""

    key: str
    mos: Annotated[float, Field(ge=-MOST, le=MOST)] = 0.0
    group: str | None = None
    distortion: str | None = None
    evidence: ExecutorOutput | None = None
    reads: dict[str, _Read] = {}
    tools: dict[str, dict[str, float | str | None]] = {}
    choices: list[str] | None = None
    answer: Annotated[int, Field(ge=0)] | None = None


class Store(RowFile, AbstractContextManager):
    """The rows of a run by their `key`. Those of pictures that changed since are taken out.

    Args:
        folder: The run's; it is made where it is not there.
        run: The description of a new run, for run.json.
        identity: The part of it that rows depend on; a run goes on only with the same.

    Raises:
        StoreError: The folder is of another run or in use by another process, or it cannot be written.
    """

    def __init__(self, folder: Path, run: dict[str, Any], identity: dict[str, Any]):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            said = f"{folder}: expected a folder that can be written, got {error.strerror}"
            raise StoreError(said, "choose another --out") from error
        super().__init__(folder / "rows.jsonl", _Row)
        description, since = folder / "run.json", 0.0
        try:
            if description.exists():
                since = check_run(description, identity)
            elif self.empty:
                write_run(description, run, identity)
            else:
                raise StoreError(f"{folder}: holds rows.jsonl without run.json", "choose another --out")
            self.recover(
                lambda row: row["key"],
                lambda row: row.get("sha256") is not None and picture_changed(row, since),
            )
        except WriteError:
            self.close()
            raise

    def add(self, row: dict[str, Any]) -> None:
        """Writes one row, see `RowFile.append`."""
        self.append(json.dumps(row))
        self.done.add(row["key"])

    def __exit__(self, *_: object) -> None:
        self.close()


def check_folder(out: Path) -> None:
    """Raises StoreError unless files can be made in the folder `out`, or in its parents where it is not there yet.
    Makes nothing: for a look before the work."""
    try:
        there = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        said = f"{out}: expected a folder that can be written, got {error.strerror}"
        raise StoreError(said, "choose another --out") from error


def read_run(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(run.json, whole rows) of a run that may still be going on. Raises StoreError where there is none."""
    file = folder / "run.json"
    try:
        run = read_json(file, LARGEST_NOTE)
        file = folder / "rows.jsonl"
        with os.fdopen(open_regular(file), "rb") as rows:
            return run, [row for _, row in rows_in(rows, file, _Row, going_on=True)]
    except FileError as error:
        said = f"{folder}: expected a folder that study.py run wrote"
        raise StoreError(said, f"{file.name}: {error}") from error


def tell_scale(folder: Path, info: DatasetInfo) -> None:
    """Notes the ends of the scale of human scores, which no row depends on, in run.json. Raises StoreError."""
    run = read_run(folder)[0]
    run["dataset"] |= {"low": info.low, "high": info.high, "scale": info.scale}
    write_whole(folder / "run.json", json.dumps(run, indent=1), sync=True)
