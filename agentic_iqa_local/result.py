"""The result of an assessment: what assess prints, field by field."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from agentic_iqa_local.config import FusionSettings, Pipeline, Settings
from agentic_iqa_local.errors import one_line, percent
from agentic_iqa_local.files import path_text
from agentic_iqa_local.images.files import ImageError, read_file
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.state import (
    LETTER_WORDS,
    DamagedBox,
    ExecutorOutput,
    FusionResult,
    Look,
    PlannerError,
    PlannerOutput,
    ToolExecutionLog,
)
from agentic_iqa_local.vlm_client import TokenUsage

# 6: the reading and its fusion are one field. 5: intervals and what follows from them. 4: passes,
# failed tries, turns of conversations. 3: eta and sigma. 2: answers that a query lists are choices
SCHEMA_VERSION = 6


def file_sha256(path: str | Path) -> str | None:
    """What a row has as the `sha256` (hex) of its picture's file; None where there is none that
    could be a picture: missing, no regular file, beyond 1 GiB or beyond the memory that is left."""
    try:
        return hashlib.sha256(read_file(path)).hexdigest()
    except (ImageError, MemoryError):
        return None


class SeenView(BaseModel):
    """One piece of the image as the model saw it."""

    box: tuple[int, int, int, int]  # left, top, right, bottom in pixels of the upright image
    pixels: tuple[int, int] | None  # width and height after the processor; None where it tiles
    tokens: int  # image tokens of the test image (the reference takes as many again)


class Seen(BaseModel):
    """What the model saw of the test image; several views when it was too large for one."""

    pixels: int | None
    tokens: int
    views: list[SeenView]


class Result(BaseModel):
    """What a command answers with: a line of JSON."""

    model_config = ConfigDict(protected_namespaces=())

    def to_dict(self) -> dict[str, Any]:
        """The fields of a JSON line, as plain Python values."""
        return self.model_dump(mode="json")

    def __str__(self) -> str:
        return repr(self)


class Condition(BaseModel):
    """How a picture was assessed: pictures with the same condition have errors of the same kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pipeline: Pipeline
    reference: bool
    look: Look


class NamedEye(BaseModel):
    """The eye that an assessment was made with: its folder's name, the SHA-256 of its numbers, how
    many ratings it was learned from, and whether it was written although nothing showed that it
    helps."""

    name: str
    sha256: str
    ratings: int
    forced: bool = False


class Interval(BaseModel):
    """Where the true quality lies, with how much probability, and how that is known."""

    low: float = Field(ge=1, le=5)
    high: float = Field(ge=1, le=5)
    coverage: float  # how often such an interval holds the truth of pictures like these
    # of this picture, in levels: by this the calibration's errors are scaled
    difficulty: float = Field(gt=0)
    condition: Condition
    calibrated_on: str  # the set, its size and the date of the calibration
    widened: list[str] = []  # why it is wider than the calibration's pictures would make it
    disagreements: list[str] = []  # between what was read and measured, that make it clearly wider

    @property
    def width(self) -> float:
        """In levels, 0..4."""
        return self.high - self.low


class AnswerSet(BaseModel):
    """The fewest of the choices, the likeliest first, that hold the right one, with how much
    probability."""

    letters: list[str]
    coverage: float
    calibrated_on: str
    widened: list[str] = []


class Gate(BaseModel):
    """Whether a picture is good enough: decided only where that is likely enough."""

    at_least: float  # the quality asked for, 1..5
    probability: float  # that the true quality is that or better
    error_rate: float  # how often a verdict may be wrong
    verdict: Literal["pass", "fail", "unsure"]


class MapCost(BaseModel):
    """What a map took."""

    tiles: int  # that were read
    tokens: int  # tokens that went through the model
    seconds: float  # of making the map, without the drawing


class QualityMap(BaseModel):
    """The quality of a picture from place to place.

    Each tile is read by itself at native resolution, with the scoring prompt and without evidence.
    A cell's level by the letters is the mean over the tiles that cover it, weighted by how much of
    it each covers; its level by LocalNR follows from the severity that this tool sees there. q is
    the weighted mean of both.
    """

    tile: int  # side of a tile in pixels: what is read
    stride: int  # the widest step from tile to tile, in pixels
    xs: list[int]  # edges of the cells from left to right, in pixels
    ys: list[int]  # edges of the cells from top to bottom, in pixels
    q: list[list[float]]  # quality of each cell, 1..5, row by row from the top
    letters: list[list[float]]  # level of each cell by the letters alone, 1..5
    tool: list[list[float]]  # level of each cell by LocalNR alone, 1..5
    tool_weight: float  # of the tool's level in q, 0..1
    median: float  # of the cells
    # at most three boxes that do not overlap, the worst first; empty where none stands out
    worst: list[DamagedBox]
    cost: MapCost
    png: str | None = None  # the file that it was drawn to


OTHER_QUERY = "it was learnt for another query"  # why an interval is wide


class Assessment(Result):
    """One assessed image. A failed one has `error` and no answer: a score that could not be had is
    never filled in."""

    schema_version: int = SCHEMA_VERSION
    image: str
    sha256: str | None = None  # of the image file's bytes
    # of a camera's RAW file, whose preview was judged: the size of the RAW data, width×height
    raw_preview: str | None = None
    reference: str | None = None
    query: str
    choices: list[str] | None = None
    # where regions lie, as the caller said: "NAME=LEFT,TOP,RIGHT,BOTTOM; ..."
    box: str | None = None
    pipeline: Pipeline = "agent"
    final_answer: str | None = None  # the fused level's letter, the chosen letter, or free text
    fusion: FusionResult | None = None  # the letters that were read, and q; None for free text
    fusion_settings: FusionSettings | None = None  # what q was made with; their eta may be auto
    interval: Interval | None = None  # where the true quality lies with 90 % probability, 1..5
    # of a question: the choices among which the right one is, with 90 %
    answer_set: AnswerSet | None = None
    no_interval: str | None = None  # why a rating has no interval, or a question no set of answers
    # why the answer is held back: its interval is wider than abstain_wider_than allows
    not_sure: str | None = None
    # the probability that this is a screenshot, drawing, chart or code; None for a photograph
    unlike_photograph: float | None = None
    gate: Gate | None = None  # whether the picture passes at_least
    map: QualityMap | None = None  # the quality from place to place, where it was asked for
    no_map: str | None = None  # why there is no map where one was asked for
    tools: list[ToolExecutionLog] = []
    plan: PlannerOutput | None = None
    plan_corrections: list[str] = []
    evidence: ExecutorOutput | None = None  # the executor's evidence; its tool runs are in `tools`
    quality_reasoning: str | None = None
    need_replan: bool = False
    replan_history: list[str] = []
    iteration_count: int = 0
    tokens: TokenUsage | None = None  # of every model call of the assessment
    seen: Seen | None = None
    model: dict[str, Any] | None = None
    eye: NamedEye | None = None  # of a person, if one was chosen
    seconds: float = 0.0
    warnings: list[str] = []
    # the tries at an answer that failed, with the role and the model's whole output, also where a
    # later one succeeded
    failed_tries: list[PlannerError] = []
    # which question of a conversation it answers, from 1 on; None outside of one
    turn: int | None = None
    # the earlier turns that the model was told of: the answer and its numbers depend on them
    prior_context: dict[str, Any] | None = None
    error: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _nests_the_reading(cls, row: Any) -> Any:
        """Up to schema 5 a row had the fields of the reading beside the others, and its settings as
        `fusion`."""
        if not isinstance(row, dict) or row.get("schema_version", SCHEMA_VERSION) not in range(6):
            return row
        reading = {name: row[name] for name in FusionResult.model_fields if name in row}
        return row | {
            "schema_version": SCHEMA_VERSION,
            "fusion": reading if row.get("p_c") else None,
            "fusion_settings": row.get("fusion"),
        }

    @computed_field
    @property
    def q(self) -> float | None:
        """The fused quality score, 1..5; None where nothing was rated."""
        return self.fusion and self.fusion.q

    @property
    def p(self) -> dict[str, float] | None:
        """The probability of each answer: the product with what was measured, else the letters'
        own."""
        return self.fusion and self.fusion.p

    @property
    def letter(self) -> str | None:
        """The letter that was answered: of the level (A Excellent to E Bad) or of a choice; None
        for free text and failures."""
        return self.final_answer if self.fusion and not self.error else None

    @property
    def level(self) -> str | None:
        """The level in a word, Excellent to Bad; None where nothing was rated."""
        if self.q is None or self.letter is None:
            return None
        return LETTER_WORDS[self.letter]

    def to_dict(self) -> dict[str, Any]:
        """The fields of a JSON line, as plain Python values."""
        return self.model_dump(mode="json", exclude={"evidence": {"tool_logs"}})

    @property
    def reason(self) -> str:
        """Why the picture failed, without its name; empty where it did not."""
        return (self.error or "").removeprefix(f"{one_line(self.image)}: ")

    @property
    def answer(self) -> str:
        """The answer in short: "C Fair, q 3.12", "“No” (probability 62 %)" or free text; why there
        is none where it failed."""
        if self.error:
            return f"failed: {self.reason}"
        if self.level:
            rated = f"{self.letter} {self.level}, q {self.q:.2f}"
            return f"not sure: {rated}" if self.not_sure else rated
        if self.letter and self.choices and self.p:
            chosen = chosen_answer(self.choices, self.letter)
            return f"“{chosen}” (probability {percent(self.p[self.letter])})"
        written = self.final_answer or ""
        return written if len(written) > 1 else f"the model wrote “{written}” alone"

    def __repr__(self) -> str:
        return f"Assessment({one_line(f'{self.image}: {self.answer}'):.200})"


def new_row(
    image: str | os.PathLike[str],
    reference: str | os.PathLike[str] | None,
    query: str,
    choices: Sequence[str] | None,
    pipeline: Pipeline,
    settings: Settings,
    box: str | None = None,
    error: str | None = None,
) -> Assessment:
    """What is known of an assessment before it begins, or where it failed with an `error`."""
    return Assessment(
        image=path_text(image),
        reference=None if reference is None else path_text(reference),
        query=query,
        choices=list(choices) if choices else None,
        box=box,
        fusion_settings=settings.fusion,
        pipeline=pipeline,
        error=error and one_line(error),
    )
