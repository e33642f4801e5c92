"""A study's folder: run.json (what was asked, of which files, with which model) and rows.jsonl, one durable
line for each image."""

import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from agentic_iqa_local.batch.results import picture_changed
from agentic_iqa_local.batch.rows import LARGEST_NOTE, RowFile, check_run, rows_in, write_run
from agentic_iqa_local.batch.rows import RowsError as StoreError
from agentic_iqa_local.files import (
    FileError,
    WriteError,
    first_mistake,
    open_regular,
    read_json,
    write_whole,
)
from agentic_iqa_local.nodes.prompts import choice_letters
from agentic_iqa_local.state import LETTERS, ExecutorOutput, Score
from agentic_iqa_local.studies.datasets import MOST, DatasetInfo, Scale
from agentic_iqa_local.vlm_client import LOGPROB_ROUNDING, NO_PROBABILITY

logger = logging.getLogger(__name__)

Letter = Literal["A", "B", "C", "D", "E"]
Logprob = Annotated[float, Field(gt=NO_PROBABILITY, le=LOGPROB_ROUNDING, allow_inf_nan=False)]
HumanScore = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
# squares and sums of such are finite
Number = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]
Fused = Annotated[float, Field(ge=1 - 1e-6, le=5 + 1e-6, allow_inf_nan=False)]  # with what rounding may add


class _Read(BaseModel):
    """What is stored of a letter read: log-probabilities of all letters in both orders, for each view."""

    class View(BaseModel):
        forward: dict[Letter, Logprob]
        reversed: dict[Letter, Logprob]
        generated: Letter | None = None

        @model_validator(mode="after")
        def _has_all_letters(self) -> Self:
            if not len(self.forward) == len(self.reversed) == len(LETTERS):
                raise ValueError("expected every letter once in each order")
            return self

    views: list[View]


class _Tool(BaseModel):
    raw: Number | None = None
    normalized: Score | None = None
    seconds: Number | None = None
    error: str | None = None


class _Agent(BaseModel):
    class Fusion(BaseModel):
        q: Fused | None = None
        eta: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None

    fusion: Fusion | None = None


class _StudyRow(BaseModel):
    """What is read of a row: of an image with human scores, or of a question. A failed one lacks what was not
    reached."""

    key: str
    image: str | None = None
    reference: str | None = None
    sha256: str | None = None
    error: str | None = None
    agent_error: str | None = None
    split: str | None = None
    mos: HumanScore = 0.0
    group: str | None = None
    distortion: str | None = None
    subset: str | None = None
    level: HumanScore | None = None
    evidence: ExecutorOutput | None = None
    agent: _Agent | None = None
    reads: dict[str, _Read] = {}
    tools: dict[str, _Tool] = {}
    cost: dict[str, dict[str, Number]] = {}
    question: str | None = None
    task: str | None = None
    question_type: str | None = None
    choices: list[str] | None = None
    answer: int | None = None
    answered: str | None = None
    probabilities: list[float] | None = None
    alone: list[float] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if "mos" in self.model_fields_set and not {"group", "split"} <= self.model_fields_set:
            raise ValueError("no group or no split beside mos")
        return self

    @model_validator(mode="after")
    def _has_whole_reads(self) -> Self:
        for name, read in self.reads.items():
            context, *position = name.split("/")
            if not context or len(position) > 1:
                raise ValueError("reads: expected CONTEXT or CONTEXT/POSITION")
            if not position and any(view.generated is None for view in read.views):
                raise ValueError("reads: no generated letter")
        return self

    @model_validator(mode="after")
    def _has_a_whole_answer(self) -> Self:
        if self.answered is not None:
            letters = choice_letters(self.choices or [])
            if self.answer is None or not 0 <= self.answer < len(letters):
                raise ValueError("answer: expected the place of one of the choices")
            if self.answered not in letters or len(self.probabilities or ()) != len(letters):
                raise ValueError("expected a letter and a probability of the choices")
        return self


class _StudyRun(BaseModel):
    """What is read of run.json. Which parts a report needs is its own to say."""

    class Data(BaseModel):
        key: str
        title: str = ""
        kind: Literal["FR", "NR", "MCQ"] = "NR"
        higher_is_better: bool | None = None
        low: HumanScore | None = None
        high: HumanScore | None = None
        scale: Scale | None = None
        groups: str | None = None
        licence: str = ""
        url: str = ""
        edition: str | None = None
        images: NonNegativeInt = 0
        missing: list[str] = []
        left_out: dict[str, NonNegativeInt] = {}

        @model_validator(mode="after")
        def _is_a_range(self) -> Self:
            if self.low is not None and self.high is not None and not self.low < self.high:
                raise ValueError("expected low below high")
            return self

    class Model(BaseModel):
        model_config = ConfigDict(protected_namespaces=())

        name: str
        notice: str | None = None

    class Tools(BaseModel):
        full_reference: list[str]
        no_reference: list[str]

    class Reads(BaseModel):
        query: str

    class Identity(BaseModel):
        model: str
        reads: "_StudyRun.Reads"

    dataset: Data | None = None
    model: Model | None = None
    tools: Tools | None = None
    fusion: dict[str, Any] = {}
    maps: dict[str, str] = {}
    identity: dict[str, Any]
    git: str | None = None
    versions: dict[str, str] = {}

    @model_validator(mode="after")
    def _says_what_was_asked(self) -> Self:
        if self.dataset is not None:
            _StudyRun.Identity.model_validate(self.identity, strict=True)
        return self


def check_folder(out: Path) -> None:
    """Raises StoreError unless files can be made in the folder `out`, or it and its parents where they are
    not there yet. Makes nothing: for a look before the work."""
    try:
        there = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise StoreError(
            f"{out}: expected a folder that can be written, got {error.strerror}", "choose another --out"
        ) from error


class Store:
    """Rows by their `key`, appended once each. One process at a time writes.

    `run` describes the run; `identity` is the part of it that rows depend on. Raises StoreError for a folder
    of another run, of another process, that cannot be written, or whose files are links: they are the run's
    own.
    """

    def __init__(self, folder: Path, run: dict[str, Any], identity: dict[str, Any]):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{folder}: expected a folder that can be written, got {error.strerror}",
                "choose another --out",
            ) from error
        self._rows = RowFile(folder / "rows.jsonl", _StudyRow)
        try:
            description, since, changed = folder / "run.json", 0.0, 0
            if os.path.lexists(description):
                _refuse_link(description)
                since = check_run(description, identity)
            elif not self._rows.empty:
                raise StoreError(f"{folder}: holds rows.jsonl without run.json", "choose another --out")
            else:
                write_run(description, run, identity)

            def has_changed(row: dict[str, Any]) -> bool:
                nonlocal changed
                found = {"image", "sha256"} <= row.keys() and picture_changed(row, since)
                changed += found
                return found

            self._rows.recover(lambda row: row["key"], has_changed)
            if changed:
                logger.warning("%d pictures changed since they were read, and are read again", changed)
        except WriteError:
            self._rows.close()
            raise

    @property
    def done(self) -> set[str]:
        """The keys of the rows that are there."""
        return self._rows.done

    def tell_scale(self, info: DatasetInfo) -> None:
        """Notes the ends of the scale of human scores, which no row depends on, in run.json; nothing where
        they are not known. Raises StoreError."""
        if not info.scale:
            return
        description = self.folder / "run.json"
        run = _description(self.folder)
        if not isinstance(run.get("dataset"), dict):
            raise StoreError(
                f"{description}: expected the description of a study, found no data set in it",
                "choose another --out",
            )
        told = run["dataset"] | {"low": info.low, "high": info.high, "scale": info.scale}
        if told != run["dataset"]:
            write_whole(description, json.dumps(run | {"dataset": told}, indent=1), sync=True)

    def append(self, row: dict[str, Any]) -> None:
        """Writes one row, see `RowFile`. Raises ValueError for a key that is there already; StoreError for
        a row that could not be read again, and when the disk does not take it."""
        if row["key"] in self.done:
            raise ValueError(f"{self.folder}: {row['key']} is stored already")
        self._rows.append(json.dumps(row))
        self.done.add(row["key"])

    def sync(self) -> None:
        """Waits until the disk has every row. Raises StoreError."""
        self._rows.sync()

    def close(self) -> None:
        """Raises StoreError where rows are not on disk."""
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_run(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(run.json, whole rows) of a run that may still be going on. Raises StoreError where there is none."""
    run, rows = _description(folder), folder / "rows.jsonl"
    _refuse_link(rows)
    try:
        with open(open_regular(rows), "rb") as file:
            return run, [row for _, row in rows_in(file, rows, _StudyRow, going_on=True)]
    except FileError as error:
        raise StoreError(f"{folder}: expected a folder that study.py run wrote", f"rows.jsonl: {error}") from error


def _description(folder: Path) -> dict[str, Any]:
    """run.json of a run. Raises StoreError."""
    file = folder / "run.json"
    _refuse_link(file)
    try:
        run = read_json(file, LARGEST_NOTE)
        _StudyRun.model_validate(run, strict=True)
    except FileError as error:
        raise StoreError(f"{folder}: expected a folder that study.py run wrote", f"run.json: {error}") from error
    except ValidationError as error:
        raise StoreError(
            f"{file}: expected the description of a study, got {first_mistake(error)}", "run it anew"
        ) from error
    return run


def _refuse_link(file: Path) -> None:
    if file.is_symlink():
        raise StoreError(f"{file}: expected a file of the run's own, got a link", "put the file itself there")
