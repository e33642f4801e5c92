"""A study's folder: run.json (what was asked, of which files, with which model) and rows.jsonl, one durable line for
each image; and what run.json says, checked for what a report needs."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from agentic_iqa_local.batch.results import picture_changed
from agentic_iqa_local.batch.rows import LARGEST_NOTE, RowFile, check_run, rows_in, write_run
from agentic_iqa_local.batch.rows import RowsError as StoreError
from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, first_mistake, open_regular, read_json
from agentic_iqa_local.state import LETTERS, ExecutorOutput
from agentic_iqa_local.studies.datasets import DATASETS, MOST
from agentic_iqa_local.studies.datasets.types import DatasetInfo

Letter = Literal["A", "B", "C", "D", "E"]
Letters = Annotated[dict[Letter, float], Field(min_length=len(LETTERS))]
Run = tuple[dict[str, Any], list[dict[str, Any]]]  # run.json and the whole rows
PARTS = {"dataset", "model", "fusion", "tools", "maps", "identity"}  # of run.json


class StudyError(UserError, ValueError):
    """A run that cannot be reported on."""


class _View(BaseModel):
    forward: Letters
    reversed: Letters
    generated: Letter | None = None


_Read = Annotated[dict[Literal["views"], list[_View]], Field(min_length=1)]


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
    cost: dict[str, dict[str, float]] = {}
    choices: list[str] | None = None
    answer: Annotated[int, Field(ge=0)] | None = None


@contextmanager
def open_store(folder: Path, run: dict[str, Any], identity: dict[str, Any]) -> Iterator[RowFile]:
    """The rows of a run by their `key`. Those of pictures that changed since, and those that the model failed on, are
    taken out, so that they are made again.

    `run` is what run.json says of a new run, `identity` what rows depend on: a run goes on only with the same. Raises
    StoreError where the folder is of another run, in use by another process, or cannot be written.
    """
    make_folder(folder)
    description, since = folder / "run.json", 0.0
    with closing(RowFile(folder / "rows.jsonl", _Row)) as rows:
        if description.exists():
            since = check_run(description, identity)
        elif rows.empty:
            write_run(description, run, identity)
        else:
            raise StoreError(f"{folder}: holds rows.jsonl without run.json", "choose another --out")
        rows.recover(
            lambda row: row["key"],
            lambda row: (
                row.get("model_failed") or (row.get("sha256") and picture_changed(row, since))
            ),
        )
        yield rows


def make_folder(folder: Path) -> None:
    """Raises StoreError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        said = f"{folder}: expected a folder that can be written, got {error.strerror}"
        raise StoreError(said, "choose another --out") from error


def read_run(folder: Path) -> Run:
    """A run that may still be going on. Raises StoreError where there is none."""
    file = folder / "run.json"
    try:
        run = read_json(file, LARGEST_NOTE)
        file = folder / "rows.jsonl"
        with os.fdopen(open_regular(file), "rb") as rows:
            return run, [row for _, row in rows_in(rows, file, _Row, going_on=True)]
    except FileError as error:
        raise StoreError(
            f"{folder}: expected a folder that study.py run wrote", f"{file.name}: {error}"
        ) from error


def dataset_info(run: dict[str, Any]) -> DatasetInfo:
    """What run.json says of the data set, over what is known of a set of that key. Raises StudyError for an unknown
    key, and where a part that a report needs is not there or no such part."""
    if lacking := sorted(PARTS - run.keys()):
        expected = f"expected what a study writes, got no {', '.join(lacking)}"
        raise StudyError(f"run.json: {expected}", "report on a run of this version")
    told = run["dataset"]
    if told.get("key") not in DATASETS:
        expected = (
            f"run.json: expected a data set of {', '.join(DATASETS)}, got {told.get('key')!r}"
        )
        raise StudyError(expected, "correct its key")
    known = asdict(DATASETS[told["key"]])
    return _checked(DatasetInfo, {name: told.get(name, value) for name, value in known.items()})


def fusion_settings(run: dict[str, Any]) -> FusionSettings:
    """The fusion that the run was made with. Raises StudyError."""
    return _checked(FusionSettings, run["fusion"])


def _checked(kind: type, told: dict[str, Any]) -> Any:
    try:
        return TypeAdapter(kind).validate_python(told)
    except ValidationError as error:
        said = f"run.json: expected what this version writes, got {first_mistake(error)}"
        raise StudyError(said, "run it anew") from error
