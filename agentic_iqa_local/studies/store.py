"""A study's folder: run.json (what was asked, of which files, with which model) and rows.jsonl, one durable line for
each image; and what run.json says, checked for what a report needs."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from agentic_iqa_local.batch.results import picture_changed
from agentic_iqa_local.batch.rows import LARGEST_NOTE, RowFile, check_run, rows_in, write_run
from agentic_iqa_local.batch.rows import RowsError as StoreError
from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, first_mistake, open_regular, read_json, write_whole
from agentic_iqa_local.state import LETTERS, ExecutorOutput
from agentic_iqa_local.studies.datasets import DATASETS, MOST
from agentic_iqa_local.studies.datasets.types import DatasetInfo

Letter = Literal["A", "B", "C", "D", "E"]
Letters = Annotated[dict[Letter, float], Field(min_length=len(LETTERS))]
Run = tuple[dict[str, Any], list[dict[str, Any]]]  # run.json and the whole rows
REPORT = "report.txt"  # in the folder of a report, which it marks as ours
PARTS = {"dataset", "model", "fusion", "tools", "maps", "identity"}  # of run.json


class StudyError(UserError, ValueError):
    """A run that cannot be reported on."""


class _View(BaseModel):
    forward: Letters
    reversed: Letters
    generated: Letter | None = None


_Read = Annotated[dict[Literal["views"], list[_View]], Field(min_length=1)]


class _Fusion(BaseModel):
    eta: float | None = None
    sigma: float | None = None


class _Agent(BaseModel):
    fusion: _Fusion | None = None


class _Row(BaseModel):
    """What is checked of a row: of an image with human scores, or of a question. A failed one lacks what was not
    reached."""

    model_config = ConfigDict(strict=True)

    key: str
    image: str | None = None
    reference: str | None = None
    sha256: str | None = None
    split: str | None = None
    level: float | None = None
    subset: str | None = None
    task: str | None = None
    question_type: str | None = None
    error: str | None = None
    agent: _Agent | None = None
    agent_error: str | None = None
    answered: str | None = None
    probabilities: list[float] | None = None
    alone: list[float] | None = None
    mos: Annotated[float, Field(ge=-MOST, le=MOST)] = 0.0
    group: str | None = None
    distortion: str | None = None
    evidence: ExecutorOutput | None = None
    reads: dict[str, _Read] = {}
    tools: dict[str, dict[str, float | str | None]] = {}
    cost: dict[str, dict[str, float]] = {}
    choices: list[str] | None = None
    answer: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """A rated image has its parts of the data set; a question's answer and probabilities are of its choices."""
        lacking = {"group", "split"} - self.model_fields_set
        if "mos" in self.model_fields_set and lacking:
            raise ValueError(f"no {', '.join(sorted(lacking))}")
        if self.answer is None:
            return self
        count = len(self.choices or ())
        if self.answer >= count:
            raise ValueError(f"answer: expected the number of a choice, of {count}")
        if self.answered is not None and len(self.probabilities or ()) != count:
            raise ValueError(f"probabilities: expected one for each choice, {count}")
        return self


class _Model(BaseModel):
    name: str
    notice: str | None = None
    dtype: str | None = None
    quantization: str | None = None


class _Tools(BaseModel):
    full_reference: list[str]
    no_reference: list[str]


class _Reads(BaseModel):
    query: str


class _Identity(BaseModel):
    model: str
    reads: _Reads


class _Dataset(BaseModel):
    key: str
    images: Annotated[int, Field(ge=0)] = 0
    missing: list[str] = []
    left_out: dict[str, int] = {}


class _Run(BaseModel):
    """What a report, a fit or a comparison reads of run.json; the data set and the fusion are checked where they are
    used too."""

    dataset: _Dataset
    model: _Model
    fusion: FusionSettings
    tools: _Tools
    maps: dict[str, str]
    identity: _Identity
    git: str | None = None
    versions: dict[str, str] = {}


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


def check_report_folder(folder: Path) -> None:
    """Raises StoreError unless a report may be written into `folder`: it is new, empty, or holds a report already."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if (folder / "rows.jsonl").exists() or not (folder / REPORT).is_file():
        wrong = f"{folder}: expected a new folder, or that of a report, which has {REPORT}"
        raise StoreError(f"{wrong}: it holds other files", "choose another --out")


def make_report_folder(folder: Path) -> None:
    """Makes the folder of a report, and says in it whose the files are. Raises StoreError, WriteError."""
    check_report_folder(folder)
    make_folder(folder)
    write_whole(folder / REPORT, "agentic_iqa_local wrote this report; the next one replaces it")


def read_run(folder: Path) -> Run:
    """A run that may still be going on. Raises StoreError where there is none."""
    file = folder / "run.json"
    try:
        run = read_json(file, LARGEST_NOTE)
        _Run.model_validate(run)
        file = folder / "rows.jsonl"
        with os.fdopen(open_regular(file), "rb") as rows:
            return run, [row for _, row in rows_in(rows, file, _Row, going_on=True)]
    except (FileError, ValidationError) as error:
        mistake = first_mistake(error) if isinstance(error, ValidationError) else error
        raise StoreError(
            f"{folder}: expected a folder that study.py run wrote", f"{file.name}: {mistake}"
        ) from error


def dataset_info(run: dict[str, Any]) -> DatasetInfo:
    """What run.json says of the data set, over what is known of a set of that key. Raises StudyError for an unknown
    key, and where a part that a report needs is not there or no such part."""
    if lacking := sorted(PARTS - run.keys()):
        expected = f"expected what a study writes, got no {', '.join(lacking)}"
        raise StudyError(f"run.json: {expected}", "report on a run of this version")
    told = run["dataset"]
    if not isinstance(told, dict) or told.get("key") not in [*DATASETS]:
        expected = f"run.json: expected a data set of {', '.join(DATASETS)}, got another"
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
