"""The result of an assessment: what assess prints, field by field."""

import html
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

import agentic_iqa_local
from agentic_iqa_local.config_sections import FusionSettings
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LEVEL_WORDS, Look
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.request import Pipeline
from agentic_iqa_local.state import (
    DamagedBox,
    ExecutorOutput,
    PassRecord,
    PlannerError,
    PlannerOutput,
    ToolExecutionLog,
)
from agentic_iqa_local.text import one_line

# 5: intervals and what follows from them. 4: passes, failed tries, turns of conversations. 3: eta and sigma.
# 2: answers that a query lists are choices, and part of a row's key
SCHEMA_VERSION = 5


class Tokens(BaseModel):
    """Counted over every model call of the assessment."""

    calls: int = Field(description="Letter reads and generations.")
    prefilled: int = Field(description="Tokens that went through the model as input.")
    reused: int = Field(description="Tokens that were found in the cache instead.")
    forced: int = Field(
        description=(
            "Template tokens of the answers that were put in without being decoded, counted in prefilled."
        )
    )
    decoded: int = Field(description="Tokens that the model chose one by one.")
    forward_passes: int = Field(description="Passes of the model.")
    prefill_seconds: float = Field(
        description="Seconds of the passes over prompts (0 where the engine does not tell)."
    )
    decode_seconds: float = Field(description="Seconds of the passes over one chosen token each.")


class SeenView(BaseModel):
    """One piece of the image as the model saw it."""

    box: tuple[int, int, int, int] = Field(
        description="left, top, right, bottom in pixels of the upright image."
    )
    pixels: tuple[int, int] | None = Field(
        description="Width and height after the processor; None where it tiles."
    )
    tokens: int = Field(description="Image tokens of the test image (the reference takes as many again).")


class Seen(BaseModel):
    """What the model saw of the test image; several views when it was too large for one."""

    pixels: int | None
    tokens: int
    views: list[SeenView]


class Result(BaseModel):
    """What a command answers with: a line of JSON, and an account in words that a notebook shows, too."""

    model_config = ConfigDict(protected_namespaces=())

    def to_dict(self) -> dict[str, Any]:
        """The fields of a JSON line, as plain Python values."""
        return self.model_dump(mode="json")

    def explain(self) -> str:
        """The readable account that `--explain` prints."""
        return agentic_iqa_local.explain(self)  # the package finds what lies above this module

    def __repr__(self) -> str:
        return f"{type(self).__name__}({' '.join(self.explain().split()):.300})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.explain())}</pre>"


class Condition(BaseModel):
    """How a picture was assessed: pictures with the same condition have errors of the same kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pipeline: Pipeline
    reference: bool
    look: Look


class Interval(BaseModel):
    """Where the true quality lies, with how much probability, and how that is known."""

    low: float = Field(ge=1, le=5)
    high: float = Field(ge=1, le=5)
    coverage: float = Field(description="How often such an interval holds the truth of pictures like these.")
    difficulty: float = Field(
        gt=0, description="Of this picture, in levels: by this the calibration's errors are scaled."
    )
    condition: Condition
    calibrated_on: str = Field(description="The set, its size and the date of the calibration.")
    widened: list[str] = Field(
        default=[], description="Why it is wider than the calibration's pictures would make it."
    )

    @property
    def width(self) -> float:
        """In levels, 0..4."""
        return self.high - self.low


class AnswerSet(BaseModel):
    """The fewest of the choices, the likeliest first, that hold the right one, with how much probability."""

    letters: list[str]
    coverage: float
    calibrated_on: str
    widened: list[str] = []


class Gate(BaseModel):
    """Whether a picture is good enough: decided only where that is likely enough."""

    at_least: float = Field(description="The quality asked for, 1..5.")
    probability: float = Field(description="That the true quality is that or better.")
    error_rate: float = Field(description="How often a verdict may be wrong.")
    verdict: Literal["pass", "fail", "unsure"]


class TileBias(BaseModel):
    """What cropping does to the letters: the mean over clean photographs of the tiles' expected level less
    that of the whole photograph."""

    levels: float = Field(description="In levels; subtracted from each tile's level.")
    low: float = Field(description="Lower end of its 95 % interval over photographs.")
    high: float = Field(description="Upper end.")
    tile: int = Field(description="Side in pixels of the tiles that it was measured on.")
    photographs: int = Field(description="How many it is the mean over.")
    source: str = Field(description="Which photographs, and when.")


class MapCost(BaseModel):
    """What a map took, and what limited it."""

    tiles: int = Field(description="Tiles of the map.")
    read: int = Field(description="How many of them were read; cells that none of these covers are null.")
    max_tiles: int = Field(description="How many were allowed.")
    max_seconds: float = Field(description="Seconds after which no more were to be begun.")
    tokens: int = Field(description="Tokens that went through the model.")
    seconds: float = Field(description="Of making the map, without the drawing.")
    stopped: str | None = Field(default=None, description="Why not all tiles were read.")


class QualityMap(BaseModel):
    """The quality of a picture from place to place.

    Each tile is read by itself at native resolution, with the scoring prompt and without evidence. A cell's
    level by the letters is the mean over the tiles that cover it, weighted by how much of it each covers; its
    level by LocalNR follows from the severity that this tool sees there. q is the weighted mean of both.
    """

    tile: int = Field(description="Side of a tile in pixels: what is read.")
    stride: int = Field(description="The widest step from tile to tile, in pixels.")
    xs: list[int] = Field(description="Edges of the cells from left to right, in pixels.")
    ys: list[int] = Field(description="Edges of the cells from top to bottom, in pixels.")
    q: list[list[float | None]] = Field(
        description="Quality of each cell, 1..5, row by row from the top; null where no tile was read."
    )
    letters: list[list[float | None]] = Field(description="Level of each cell by the letters alone, 1..5.")
    tool: list[list[float]] | None = Field(
        description="Level of each cell by LocalNR alone, 1..5; None where the tool could not run."
    )
    tool_weight: float = Field(description="Of the tool's level in q, 0..1.")
    median: float = Field(description="Of the cells.")
    worst: list[DamagedBox] = Field(
        description="At most three boxes that do not overlap, the worst first; empty where none stands out."
    )
    bias: TileBias | None = Field(
        default=None, description="What was corrected of the tiles' levels; None where nothing was."
    )
    similarity: dict[str, list[list[float]]] = Field(
        default={},
        description=(
            "With a reference: the mean in each cell of SSIM's, GMSD's and FSIM's own map; 1 where nothing"
            " was lost."
        ),
    )
    cost: MapCost
    notes: list[str] = Field(default=[], description="What a reader of the map must know.")
    png: str | None = Field(default=None, description="The file that it was drawn to.")
    not_drawn: str | None = Field(default=None, description="Why it was not drawn where it should have been.")


class Assessment(Result):
    """One assessed image. A failed one has `error` and no answer: a score that could not be had is never
    filled in.

    In a notebook it shows as a table.
    """

    schema_version: int = SCHEMA_VERSION
    image: str
    sha256: str | None = Field(default=None, description="Of the image file's bytes.")
    reference: str | None = None
    query: str
    choices: list[str] | None = None
    mode: str = Field(description="logits, classification or uniform: where p_c came from.")
    pipeline: Pipeline = "agent"
    final_answer: str | None = Field(
        default=None, description="The fused level's letter, the chosen letter, or free text."
    )
    vlm_letter: str | None = None
    p_c: dict[str, float] | None = Field(default=None, description="Probability of each letter; sums to 1.")
    off_letter_mass: float | None = None
    measured: dict[str, float] | None = Field(
        default=None,
        description="Of a question about quality: probability of each choice by the evidence; sums to 1.",
    )
    product: dict[str, float] | None = Field(
        default=None, description="p_c times measured, summing to 1; the answer is its likeliest letter."
    )
    measurement: str | None = Field(
        default=None, description="What measured rests on, or why the letters of a question stand alone."
    )
    alpha: dict[int, float] | None = Field(
        default=None, description="Weight of each level 1..5 from the tools; sums to 1."
    )
    q_bar: float | None = Field(default=None, description="Mean of the tools' normalised scores, 1..5.")
    q: float | None = Field(default=None, description="Fused quality, 1 (bad) to 5 (excellent).")
    dq_dqbar: float | None = Field(default=None, description="How far q moves when q_bar moves by one.")
    eta: float | None = Field(default=None, description="The sharpness η of the tools' weights alpha.")
    sigma: float | None = Field(
        default=None,
        description=(
            "The error of q_bar in levels from which η = 1/(2σ²) follows; None where the settings give η"
            " itself."
        ),
    )
    fusion: FusionSettings | None = Field(
        default=None, description="The settings that made q; their eta may be auto."
    )
    interval: Interval | None = Field(
        default=None, description="Where the true quality lies with 90 % probability, 1..5."
    )
    answer_set: AnswerSet | None = Field(
        default=None, description="Of a question: the choices among which the right one is, with 90 %."
    )
    no_interval: str | None = Field(
        default=None, description="Why a rating has no interval, or a question no set of answers."
    )
    not_sure: str | None = Field(
        default=None,
        description="Why the answer is held back: its interval is wider than abstain_wider_than allows.",
    )
    unlike_photograph: float | None = Field(
        default=None,
        description="The probability that this is a screenshot, drawing, chart or code; None for a photograph.",
    )
    gate: Gate | None = Field(default=None, description="Whether the picture passes at_least.")
    map: QualityMap | None = Field(
        default=None, description="The quality from place to place, where it was asked for."
    )
    no_map: str | None = Field(default=None, description="Why there is no map where one was asked for.")
    tools: list[ToolExecutionLog] = []
    plan: PlannerOutput | None = None
    plan_corrections: list[str] = []
    evidence: ExecutorOutput | None = Field(
        default=None, description="The executor's evidence; its tool runs are in `tools`."
    )
    quality_reasoning: str | None = None
    reasoning_corrections: list[str] = Field(
        default=[],
        description=(
            "What the model's own reasoning got wrong, so that sentences made of the evidence stand in"
            " for it."
        ),
    )
    need_replan: bool = False
    replan_history: list[str] = []
    iteration_count: int = 0
    passes: list[PassRecord] = Field(
        default=[], description="Each round of plan, evidence and answer; the latest ten."
    )
    both_orders: bool = Field(
        default=False,
        description="True where the letters were also read with A for Bad, and p_c is the mean of both.",
    )
    order_gap: float | None = Field(
        default=None, description="How many levels the two orders' expected levels lie apart."
    )
    crops: int = Field(
        default=0, description="Crops whose letters make up half of p_c; 0 where none were read."
    )
    crop_spread: float | None = Field(
        default=None, description="Standard deviation of the crops' expected levels."
    )
    voters: list[str] = Field(default=[], description="The tools that q_bar is the mean of.")
    disagreement: float | None = Field(
        default=None,
        description="From the lowest to the highest score of the tools that vote or check, in levels.",
    )
    tokens: Tokens | None = None
    seen: Seen | None = None
    model: dict[str, Any] | None = None
    seconds: float = 0.0
    warnings: list[str] = []
    failed_tries: list[PlannerError] = Field(
        default=[],
        description=(
            "The tries at an answer that failed, with the role and the model's whole output, also where a"
            " later one succeeded."
        ),
    )
    turn: int | None = Field(
        default=None,
        description="Which question of a conversation it answers, from 1 on; None outside of one.",
    )
    prior_context: dict[str, Any] | None = Field(
        default=None,
        description=(
            "The earlier turns that the model was told of: the answer and its numbers depend on them."
        ),
    )
    error: str | None = None

    @property
    def p(self) -> dict[str, float] | None:
        """The probability of each answer: the product with what was measured, else the letters' own."""
        return self.product or self.p_c

    @property
    def letter(self) -> str | None:
        """The letter that was answered: of the level (A Excellent to E Bad) or of a choice; None for free
        text and failures."""
        return self.final_answer if self.p_c and not self.error else None

    @property
    def level(self) -> str | None:
        """The level in a word, Excellent to Bad; None where nothing was rated."""
        return LEVEL_WORDS[LETTER_TO_LEVEL[self.letter]] if self.q is not None and self.letter else None

    def to_dict(self) -> dict[str, Any]:
        """The fields of a JSON line, as plain Python values."""
        return self.model_dump(mode="json", exclude={"evidence": {"tool_logs"}})

    @property
    def answer(self) -> str:
        """The answer in short: "C Fair, q 3.12", "B. No, p 0.62" or free text; why there is none where it
        failed."""
        if self.error:
            return f"failed: {self.error.removeprefix(f'{one_line(self.image)}: ')}"
        if self.level:
            rated = f"{self.letter} {self.level}, q {self.q:.2f}"
            return f"not sure: {rated}" if self.not_sure else rated
        if self.letter and self.choices and self.p:
            return f"{self.letter}. {chosen_answer(self.choices, self.letter)}, p {self.p[self.letter]:.2f}"
        return self.final_answer or "no answer"

    def __repr__(self) -> str:
        return f"Assessment({one_line(f'{self.image}: {self.answer}'):.200})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        words = self.choices or [
            LEVEL_WORDS[LETTER_TO_LEVEL[letter]] for letter in self.p_c or () if letter in LETTER_TO_LEVEL
        ]
        rows = [
            ("image", self.image),
            ("reference", self.reference),
            ("query", self.query),
            ("answer", self.answer),
            ("90 % interval", self.interval and f"{self.interval.low:.2f} to {self.interval.high:.2f}"),
        ]
        rows += [
            (f"{letter} {word}", f"{p:.3f}")
            for (letter, p), word in zip((self.p or {}).items(), words, strict=False)
        ]
        rows += [
            (run.tool_name, f"{run.normalized_score:.2f} of 5")
            for run in self.tools
            if run.normalized_score is not None
        ]
        rows += [("why", self.quality_reasoning), *(("warning", line) for line in self.warnings)]
        cells = (f"<tr><th>{_html(name)}</th><td>{_html(text)}</td></tr>" for name, text in rows if text)
        return f"<table>{''.join(cells)}</table>"


def _html(text: str) -> str:
    return html.escape(one_line(text))
