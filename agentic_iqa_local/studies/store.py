"""A study's folder: run.json (what was asked, of which files, with which model) and rows.jsonl, one
durable line for each image; and what run.json says, checked for what a report needs."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from agentic_iqa_local.batch.results import picture_changed
from agentic_iqa_local.batch.rows import LARGEST_NOTE, RowFile, check_run, read_note, rows_in
from agentic_iqa_local.batch.rows import RowsError as StoreError
from agentic_iqa_local.config import FusionSettings, ToolSettings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, open_regular, read_json, reason, write_whole
from agentic_iqa_local.state import ExecutorOutput
from agentic_iqa_local.studies.datasets import DatasetInfo
from agentic_iqa_local.studies.datasets.types import Score

REPORT = "report.txt"  # in the folder of a report, which it marks as ours


class StudyError(UserError, ValueError):
    """A run that cannot be reported on."""


class _Row(BaseModel, strict=True):
    """What is checked of a row. A failed one lacks what was not reached."""

    key: str
    mos: Score = 0.0
    evidence: ExecutorOutput | None = None
    reads: dict[str, dict[str, list[dict[str, Any]]]] = {}
    tools: dict[str, dict[str, Any]] = {}


class _Dataset(DatasetInfo, frozen=True):
    """The data set, and what of it takes no part."""

    images: Annotated[int, Field(ge=0)]
    missing: tuple[str, ...]
    left_out: dict[str, int]


class _Model(BaseModel):
    name: str
    notice: str | None = None
    dtype: str | None = None
    quantization: str | None = None


class _Tools(ToolSettings, extra="ignore"):
    """The configured tools."""


class _Reads(BaseModel):
    query: str


class _Identity(BaseModel, extra="allow"):
    model: str
    reads: _Reads


class Run(BaseModel, extra="allow"):
    """run.json, with what a report, a fit or a comparison reads of it."""

    dataset: _Dataset
    model: _Model
    fusion: FusionSettings
    tools: _Tools
    maps: dict[str, str]
    identity: _Identity
    git: str | None = None


Stored = tuple[Run, list[dict[str, Any]]]  # run.json and the rows


@contextmanager
def open_store(folder: Path, identity: dict[str, Any]) -> Iterator[RowFile]:
    """The rows of a run by their `key`. Those of pictures that changed since, and those that the
    model failed on, are taken out, so that they are made again.

    `identity` is what rows depend on: a run goes on only with the same. Raises StoreError where the
    folder is of another run, in use by another process, or cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    description, since = folder / "run.json", 0.0
    with closing(RowFile(folder / "rows.jsonl", _Row)) as rows:
        if description.exists():
            _check_pictures(description, identity)
            since = check_run(description, identity)
        elif not rows.empty:
            raise StoreError(f"{folder}: holds rows.jsonl without run.json", "choose another --out")

        def is_outdated(row: dict[str, Any]) -> bool:
            return bool(row.get("model_failed")) or picture_changed(row, since)

        rows.recover(lambda row: row["key"], is_outdated)
        yield rows


def _check_pictures(description: Path, identity: dict[str, Any]) -> None:
    """Raises StoreError where the rows are of other pictures, of which hashes would say less."""
    told = read_note(description).identity.get("dataset")
    if told not in (None, identity.get("dataset")):
        said = "the rows are of other pictures or scores (another manifest, --split or --limit)"
        raise StoreError(f"{description.parent}: {said}", "choose another --out")


def check_report_folder(folder: Path) -> None:
    """Raises StoreError unless a report may be written into `folder`: it is new, empty, or holds a
    report already."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if (folder / "rows.jsonl").exists() or not (folder / REPORT).is_file():
        wrong = f"{folder}: expected a new folder, or that of a report, which has {REPORT}"
        raise StoreError(f"{wrong}: it holds other files", "choose another --out")


def make_report_folder(folder: Path) -> None:
    """Makes the folder of a report, and says in it whose the files are. Raises WriteError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / REPORT, "agentic_iqa_local wrote this report; the next one replaces it")


def read_run(folder: Path) -> Stored:
    """A run that may still be going on. Raises StoreError where there is none."""
    file = folder / "run.json"
    try:
        run = Run.model_validate(read_json(file, LARGEST_NOTE))
        file = folder / "rows.jsonl"
        with os.fdopen(open_regular(file), "rb") as lines:
            rows = [row for _, row in rows_in(lines, file, _Row)]
    except (FileError, ValidationError) as error:
        mistake = reason(error)
        said = f"{folder}: expected a folder that study run wrote"
        raise StoreError(said, f"{file.name}: {mistake}") from error
    return run, rows
