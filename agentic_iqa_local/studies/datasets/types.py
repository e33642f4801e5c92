"""What a data set is: what is known of it, how it lies on disk, its images with human scores or its
questions."""

import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from agentic_iqa_local.config import Choices
from agentic_iqa_local.errors import UserError, counted, one_line

MANIFEST = "manifest"  # the key of a user's own pictures with scores
MOST = 1e9  # the largest score or level, either side of 0; beyond it figures lose their digits
Score = Annotated[float, Field(ge=-MOST, le=MOST)]


class DatasetError(UserError, ValueError):
    """A folder or a file that cannot be read as a data set."""


class DatasetInfo(BaseModel, frozen=True):
    """What is known of a data set.

    `low` and `high` are the ends of the scale, or the range of the scores where the scale has none
    (difference, elo); None when unknown, as `scale` is. `seen_as` holds further names under which
    metrics state that they were trained on the set, in lower-case letters and digits only.
    """

    key: str
    title: str
    kind: Literal["FR", "NR", "MCQ"]
    higher_is_better: bool = True
    low: float | None = None
    high: float | None = None
    scale: Literal["absolute categories", "paired comparison", "difference", "elo"] | None = None
    licence: str = "none established; see the authors' page"
    seen_as: tuple[str, ...] = ()

    def turned(self, mos: np.ndarray) -> np.ndarray:
        """Scores (n,) with higher for better."""
        return mos if self.higher_is_better else -mos

    @property
    def on_levels(self) -> bool:
        """Whether the scale is of absolute categories with known ends."""
        return self.scale == "absolute categories" and None not in (self.low, self.high)

    def to_levels(self, mos: np.ndarray) -> np.ndarray:
        """Scores (n,) on 1..5, linearly and with 5 best; those of some sets go a little beyond the
        ends of their scale and are cut there. Raises DatasetError unless the scale is
        `on_levels`."""
        if not self.on_levels or self.low is None or self.high is None:
            said = f"{self.title}: expected an absolute category scale with both ends known"
            remedy = "fit --objective srcc needs ranks only"
            if self.key == MANIFEST:
                remedy = "repeat the run's command with --mos-range LOW HIGH: stored rows are kept"
            raise DatasetError(f"{said}, got {self.scale or 'an unknown scale'}", remedy)
        worst, best = (self.low, self.high) if self.higher_is_better else (self.high, self.low)
        return np.clip(1 + 4 * (mos - worst) / (best - worst), 1, 5)


@dataclass(frozen=True)
class Layout:
    """How the scores of a data set lie in its folder.

    `scores` names the file of each split, or of None; the first has a line that matches `told_by`,
    and the folders `beside` it tell the layout too. `columns` are the table's by our names, where a
    list holds the shares of observers who chose the categories 1, 2, ...; `line` is the pattern of
    a line of what is no table, `name` that of an image's name: their groups are further fields.
    `values` are the authors' by ours of a field. `image` and `reference` are the names of a row's
    files.
    """

    info: DatasetInfo
    scores: Mapping[str | None, str] = field(default_factory=dict)
    told_by: str = ""
    beside: Iterable[str] = ()
    columns: Mapping[str, str | list[str]] = field(default_factory=dict)
    line: str = ""
    name: str = ""
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    image: str = "{image}"
    reference: str = ""


class _Item(BaseModel, frozen=True, coerce_numbers_to_str=True):
    image: Path
    key: str = ""  # names it in rows
    reference: Path | None = None
    split: str | None = None  # the official train, val or test


class RatedImage(_Item, frozen=True):
    """One image with its human score.

    `mos` is as the authors give it; `group` is the reference scene or the prompt; `level` counts
    the authors' strengths of a distortion from 1; `subset` is set where the part of the data set
    predicts the score: figures are to be given within it.
    """

    mos: Score
    group: str | None = None
    distortion: str | None = None
    level: Score | None = None
    subset: str | None = None

    @field_validator("mos")
    @classmethod
    def _on_the_scale(cls, mos: float, told: ValidationInfo) -> float:
        low, high = told.context or (-MOST, MOST)
        if not low <= mos <= high:
            raise ValueError(f"expected {low:g} to {high:g} (--mos-range), got {mos:g}")
        return mos


class Question(_Item, frozen=True):
    """One multiple-choice question; `answer` is the index of the right one of `choices`.

    In a table the choices are one text that separates them by |. The answer may be told by its
    index, its letter or its text.
    """

    question: str
    choices: Choices
    answer: int
    task: str | None = None
    question_type: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _split(cls, row: dict[str, Any]) -> dict[str, Any]:
        choices, answer = row.get("choices"), row.get("answer")
        if isinstance(choices, str):  # of a table, where blanks around a text mean nothing
            choices, answer = [choice.strip() for choice in choices.split("|")], str(answer).strip()
        if answer is None or not isinstance(choices, list):
            return row
        letters = list(string.ascii_uppercase[: len(choices)])
        for names in (choices, letters, list(range(len(choices)))):
            if answer in names:
                return row | {"choices": choices, "answer": names.index(answer)}
        said = "answer: expected one of the choices (separated by | in a table) or its letter"
        raise ValueError(f"{said}, got {answer!r:.80}")


Sample = RatedImage | Question


def absences(missing: Sequence[Any], left_out: Mapping[str, int]) -> Iterator[str]:
    """A sentence on each part of a data set that takes no part in a run."""
    if missing:
        files = counted(len(missing), "file")
        yield f"{files} missing of those that the scores name; the first: {missing[0]}."
    for reason, number in left_out.items():
        yield f"{counted(number, 'row')} left out: {reason}."


@dataclass(frozen=True)
class Dataset:
    """A data set as it is on disk: `items` are of RatedImage, or of Question for multiple choice.

    `missing` names the files that the scores list and that are absent, `left_out` counts by reason
    the rows that are not used: a set never shrinks silently.
    """

    info: DatasetInfo
    root: Path
    items: tuple[Any, ...]
    missing: tuple[str, ...]
    left_out: dict[str, int]


def listed(names: Iterable[str]) -> str:
    """The names with commas between them, in quotes where one holds a comma or a blank."""
    return ", ".join(
        f'"{one_line(name)}"' if re.search(r"[\s,]", name) else one_line(name) for name in names
    )
