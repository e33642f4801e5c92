"""The graph's state and every model that it holds: plan, evidence, fusion and answer; and the
one table of levels, severities and distortion types. Pure data, and the boxes of native crops,
which models and tools share: no model, no tool, no file is loaded here. Names follow AgenticIQA
(arXiv 2509.26006)."""

import logging
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Self, TypedDict, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    computed_field,
    field_validator,
    model_validator,
)

logger = logging.getLogger(__name__)

LEVEL_WORDS: dict[int, str] = {5: "Excellent", 4: "Good", 3: "Fair", 2: "Poor", 1: "Bad"}
LETTERS: tuple[str, ...] = ("A", "B", "C", "D", "E")
LETTER_WORDS: dict[str, str] = dict(zip(LETTERS, LEVEL_WORDS.values(), strict=True))
LETTER_TO_LEVEL: dict[str, int] = {"A": 5, "B": 4, "C": 3, "D": 2, "E": 1}
LEVEL_TO_LETTER: dict[int, str] = {level: letter for letter, level in LETTER_TO_LEVEL.items()}

Mode = Literal["logits", "classification", "uniform"]
"""Where the letters' probabilities come from: logits, the letter that was written, or nowhere."""

Look = Literal["one order", "both orders", "crops"]
"""How closely the letters were read; each look includes what those before it read."""
LOOKS: tuple[Look, ...] = get_args(Look)

DistortionType = Literal[
    "Blurs",
    "Color distortions",
    "Compression",
    "Noise",
    "Brightness change",
    "Sharpness",
    "Contrast",
]
DISTORTION_TYPES: tuple[str, ...] = get_args(DistortionType)
_SAID = {
    "Blurs": "blur",
    "Color distortions": "colour distortion",
    "Contrast": "contrast distortion",
    "Sharpness": "oversharpening",
}

Severity = Literal["none", "slight", "moderate", "severe", "extreme"]


def lower_edge(level: str) -> float:
    """The quality, 1..5, from which on a picture has this level: a letter A to D, a word Excellent
    to Poor, or a number from 1 to 5. Raises ValueError."""
    name = level.strip().capitalize()
    for number, word in LEVEL_WORDS.items():
        if number > 1 and name in (word, LEVEL_TO_LETTER[number]):
            return number - 0.5
    with suppress(ValueError):
        if 1 <= float(name) <= 5:
            return float(name)
    expected = "Excellent, Good, Fair or Poor (or A to D) or a number from 1 to 5"
    raise ValueError(f"expected {expected}, got {level!r}")


UNCLEAR = "unclear"  # said in place of a severity that cannot be told
# The quarters of a picture, each with its (row, column).
PLACES = {"top left": (0, 0), "top right": (0, 1), "bottom left": (1, 0), "bottom right": (1, 1)}
EVERYWHERE = "everywhere"  # where damage is that no one part of the picture has

# What stands in for a distortion when none was found and a tool still has to judge the object as a
# whole.
OVERALL = "Overall quality"

IMAGE_SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".jp2", ".gif", ".ppm",
    ".avif", ".heic", ".heif", ".jfif", ".jpe",
)  # fmt: skip
RAW_SUFFIXES = (".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf")  # with --raw-previews

Model = TypeVar("Model", bound=BaseModel)
NO_REASON = "No reason provided"
DEFAULT_MAX_REPLAN_ITERATIONS = 2

NonBlank = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Objects = Annotated[list[NonBlank], Field(min_length=1)]
Score = Annotated[float, Field(ge=1, le=5, allow_inf_nan=False)]


class PlanControlFlags(BaseModel):
    """Which of the executor's four subtasks run.

    A query of type Other switches all four off; the rules are in `nodes.planner.derive_flags`.
    """

    model_config = {"frozen": True}  # plans with equal values hash alike

    distortion_detection: bool = Field(
        default=False, description="Look for distortions; on when the query names none."
    )
    distortion_analysis: bool = Field(
        default=False, description="Judge severity and visual impact of each distortion."
    )
    tool_selection: bool = Field(
        default=False, description="Let the model choose an IQA tool for each distortion."
    )
    tool_execution: bool = Field(default=False, description="Run the chosen IQA tools.")


_EVERY_PART: dict[str, JsonValue] = dict.fromkeys(PlanControlFlags.model_fields, True)
_EXAMPLE: dict[str, JsonValue] = {
    "query_type": "IQA", "query_scope": "Global", "distortion_source": "Inferred", "distortions": None,
    "reference_mode": "Full-Reference", "required_tool": None, "plan": _EVERY_PART,
}  # fmt: skip
_EXPLICIT: dict[str, JsonValue] = {
    "query_scope": ["vehicle"], "distortion_source": "Explicit", "distortions": {"vehicle": ["Blurs"]},
    "reference_mode": "No-Reference", "plan": {name: name == "distortion_analysis" for name in _EVERY_PART},
}  # fmt: skip


class PlannerOutput(BaseModel):
    """The Planner's plan for one query."""

    model_config = {
        "frozen": True,
        "json_schema_extra": {"examples": [_EXAMPLE | _EXPLICIT, _EXAMPLE]},
    }

    query_type: Literal["IQA", "Other"] = Field(
        description="IQA: quality; Other: content, aesthetics, emotion."
    )
    query_scope: Objects | Literal["Global"] = Field(
        description="What the query is about, else Global."
    )
    distortion_source: Literal["Explicit", "Inferred"] = Field(
        description="Explicit: the query names distortions."
    )
    distortions: dict[str, list[str]] | None = Field(
        default=None, description="By object, those that the query names."
    )
    reference_mode: Literal["Full-Reference", "No-Reference"] = Field(
        description="Whether a reference is given."
    )
    required_tool: str | None = Field(default=None, description="The tool that the query names.")
    plan: PlanControlFlags = Field(description="Which executor subtasks run.")

    @property
    def objects(self) -> list[str]:
        """The scope as a list: `["Global"]` or the objects named."""
        return ["Global"] if self.query_scope == "Global" else list(self.query_scope)


class PlannerInput(BaseModel):
    """What the Planner needs: the query and image files that exist."""

    query: NonBlank = Field(description="The user's question.")
    image_path: str = Field(description="The image to assess.")
    reference_path: str | None = Field(
        default=None, description="A pristine reference of the same size."
    )
    prior_context: dict[str, Any] | None = Field(
        default=None, description="turns, of a conversation; replan_history"
    )

    @field_validator("image_path", "reference_path")
    @classmethod
    def _is_an_image_file(cls, path: str | None) -> str | None:
        if path is None:
            return None
        if not os.path.isfile(path):  # unlike Path.is_file it says no to a name that is too long
            raise ValueError(f"Image file not found: {path}")
        if Path(path).suffix.lower() not in IMAGE_SUFFIXES:
            expected = f"expected one of {', '.join(IMAGE_SUFFIXES)}"
            raise ValueError(f"Invalid image format: {path} ({expected})")
        return path


class PlannerError(BaseModel):
    """One failed attempt of a role at a valid answer (the Planner's, and in the same form the other
    roles')."""

    error_type: str = Field(description="validation_error or api_error.")
    message: str = Field(description="What went wrong, for a human.")
    details: dict[str, Any] | None = Field(
        default=None, description="Exception, attempt from 1 on, role, backend."
    )
    retry_count: int = Field(default=0, ge=0, description="Retries made before this failure.")
    timestamp: datetime = Field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def from_exception(
        cls, exc: Exception, *, attempt: int = 1, backend: str | None = None, **details: Any
    ) -> Self:
        """Keeps the exception's type and message; ValueErrors (pydantic's and JSON's too) are
        validation errors."""
        return cls(
            error_type="validation_error" if isinstance(exc, ValueError) else "api_error",
            message=str(exc) or type(exc).__name__,
            details={
                "exception": type(exc).__name__,
                "attempt": attempt,
                "backend": backend,
                **details,
            },
            retry_count=attempt - 1,
        )


class DistortionAnalysis(BaseModel):
    """One distortion of one object: how severe it is and what it does to the picture."""

    type: NonBlank
    severity: Severity | Literal["unclear"]  # unclear: the model says that it cannot tell
    explanation: NonBlank


class ToolExecutionLog(BaseModel):
    """One run of an IQA tool, or the failure to run it."""

    tool_name: str
    object_name: str
    distortion: str
    raw_score: float | None = None  # on the tool's own scale; None: it failed
    # how a raw score is read: "lower is better, from 0 to 50"; None: no such tool
    scale: str | None = None
    normalized_score: Score | None = None  # 1 (bad) to 5; None: it failed
    execution_time: float = Field(default=0.0, ge=0)  # seconds
    # what it measured: the region that `object_name` names, or the whole picture, which stands for
    # a region whose place is not known
    measured: Literal["whole picture", "region"] = "whole picture"
    # of a region: left, top, right, bottom in pixels of the upright image
    box: tuple[int, int, int, int] | None = None
    # native-resolution crops measured in place of all pixels; 0: all pixels
    crops: int = Field(default=0, ge=0)
    # no vote in q̄: it differs from every other tool by more than their errors explain
    outvoted: bool = False
    # no vote in q̄: it only checks a clearly better tool that measured the same object
    trailing: bool = False
    error: str | None = None
    timestamp: datetime = Field(default_factory=lambda: datetime.now(UTC))


class FamilyDetection(BaseModel):
    """Whether one family of distortions is there: odds of `model` times odds of `measured` are
    those of `probability`, but for `fusion.model_trust`."""

    model: float | None = None  # the model's probability of Yes; None: not asked
    # what LocalNR's reading is worth by its record of errors, as a probability at even odds; None:
    # it could not read it
    measured: float | None = None
    probability: float = Field(default=0.0, ge=0, le=1)  # the product; from 0.5 on it is evidence
    severity: float | None = None  # how severe LocalNR reads it if it is there, 1..5
    # what the pixels show of it: "38% of the pixels are clipped"; None where LocalNR alone reads it
    shown: str | None = None


class Detection(BaseModel):
    """What LocalNR and the model say of the distortions of one object."""

    families: dict[str, FamilyDetection] = {}
    # the exponent with which the model's own odds count beside the prior's
    model_trust: float = 1.0
    # probabilities of "too dark" and of "too bright": by the pixels, with a reference LocalNR's
    exposure: dict[str, float] | None = None
    # what the pixels say of enlarged pixels (a mosaic, NEAREST), as a probability at even odds
    pixelation: float | None = None
    # LocalNR reads blur, but the sharpest part is sharp: the background is out of focus
    shallow_focus: bool = False
    in_part: bool = False  # one part alone stands out by damage that is found
    blurred_part: str | None = None  # the ninth of the picture that alone is blurred
    # the probability that the content is unlike a photograph; None with a reference
    graphic: float | None = None
    error: str | None = None  # why LocalNR could not read it

    @property
    def unread(self) -> bool:
        """Whether nobody looked: LocalNR could not, and the model's own word does not count."""
        return self.error is not None and self.model_trust == 0


class DamagedBox(BaseModel):
    """A part of the picture that is clearly worse than the rest."""

    box: tuple[int, int, int, int]  # left, top, right, bottom in pixels of the upright image
    place: str  # which ninth of the picture its centre lies in: "top left", "middle" ...
    q: float  # mean of the map's cells in it, 1..5
    below: float  # how many levels that lies below the median of the map
    distortion: str | None = None  # its likeliest distortion; None where it cannot be told
    probability: float | None = None  # of that distortion among the seven types, 0..1
    distortions: dict[str, float] = {}  # probability of each type of distortion; sums to 1
    # the likeliest severity of that distortion; None where it was not read
    severity: Severity | None = None
    severities: dict[str, float] = {}  # probability of each severity; sums to 1


class ExecutorOutput(BaseModel):
    """The evidence. Every part but the logs is None when the plan did not ask for it. The scores
    are those of the logs; `nodes.evidence.findings` has the distortions in one list."""

    distortion_set: dict[str, list[str]] | None = None
    # by object, what the distortions that count as found rest on
    detection: dict[str, Detection] | None = None
    distortion_analysis: dict[str, list[DistortionAnalysis]] | None = None
    # {object: {distortion: {severity: probability}}}, each summing to 1: the model's times what
    # LocalNR reads
    severity_probabilities: dict[str, dict[str, dict[str, float]]] | None = None
    selected_tools: dict[str, dict[str, str]] | None = None
    tool_logs: list[ToolExecutionLog] = Field(default_factory=list)
    # where the damage lies, by LocalNR's map or as a blurred part: a quarter ("top left"), a half
    # ("left half"), a ninth ("middle") or "everywhere".
    # None where the query does not ask for a place and no part alone is damaged, the tool sees no
    # damage, or it could not run.
    damaged_part: str | None = None
    disagreement: str | None = None  # which tools lie further apart than their errors explain
    # what a subtask could not tell, or the model's own probabilities left open
    uncertainty: str | None = None
    error: str | None = None  # why the executor failed, when it did

    @model_validator(mode="before")
    @classmethod
    def _logs_of_scores(cls, given: Any) -> Any:
        """Scores that come without their logs, as the specification has them and rows on disk,
        count as runs."""
        if not isinstance(given, dict) or given.get("tool_logs"):
            return given
        logs = []
        for name, scores in (given.get("quality_scores") or {}).items():
            for distortion, (tool, score) in scores.items():
                log = {"object_name": name, "distortion": distortion, "tool_name": tool}
                logs.append(log | {"normalized_score": score})
        return given | {"tool_logs": logs}

    @computed_field
    @property
    def quality_scores(self) -> dict[str, dict[str, tuple[str, float]]] | None:
        """{object: {distortion: (tool, score)}} of the runs that measured."""
        scores: dict[str, dict[str, tuple[str, float]]] = {}
        for log in self.tool_logs:
            if log.normalized_score is not None:
                measured = scores.setdefault(log.object_name, {})
                measured[log.distortion] = (log.tool_name, log.normalized_score)
        return scores or None

    @property
    def is_empty(self) -> bool:
        """True when there is nothing that a summary could rest on."""
        return not (self.distortion_set or self.distortion_analysis or self.quality_scores)


def ninth(box: "Box", width: int, height: int) -> str:
    """Which ninth of a picture the centre of a part lies in, in words."""
    left, top, right, bottom = box
    column = ("left", "", "right")[min(2, 3 * (left + right) // (2 * width))]
    row = ("top", "", "bottom")[min(2, 3 * (top + bottom) // (2 * height))]
    return f"{row} {column}".strip() or "middle"


# from which probability on compression is called pixelation: strong JPEG seldom reaches it
PIXELATED = 0.8


def plain_words(kind: str) -> str:
    """A distortion as a person says it."""
    return _SAID.get(kind, kind.lower())


def in_words(evidence: ExecutorOutput | None, name: str, kind: str) -> str:
    """A distortion of an object as a person says it: a change of brightness is under- or
    overexposure, where the object clearly is too dark or too bright, compression is pixelation
    where its pixels are enlarged, and a distortion of colours is a cast where the pixels show one."""
    detection = evidence and (evidence.detection or {}).get(name)
    side = _seen_as(kind, detection) if detection else None
    return side or plain_words(kind)


def _seen_as(kind: str, detection: Detection) -> str | None:
    """The narrower name of a distortion that the pixels show."""
    if kind == "Brightness change":
        return _side_of(detection.exposure)
    if kind == "Compression":
        return "pixelation" if (detection.pixelation or 0.0) > PIXELATED else None
    family = detection.families.get(kind)
    return "colour cast" if kind == "Color distortions" and family and family.shown else None


def _side_of(exposure: Mapping[str, float] | None) -> str | None:
    """The side of a right exposure that is clearly likelier; None where neither is."""
    if not exposure:
        return None
    dark, bright = exposure.values()
    if dark > 2 * bright:
        return "underexposure"
    return "overexposure" if bright > 2 * dark else None


class FusionResult(BaseModel):
    """The letter read and its fusion with the tools' scores (AgenticIQA, eq. for α_c, p_c and q).

    For the user's own choices only the letters are filled: a choice has no quality level, so there
    is no q.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    mode: Mode
    # the model's own most probable letter, before the tools count; None in uniform mode
    vlm_letter: str | None
    # probability of each letter, over the letters alone; sums to 1
    p_c: dict[str, Annotated[float, Field(ge=0, le=1)]]
    temperature: float = Field(default=1.0, gt=0)  # divided the letters' log-probabilities
    off_letter_mass: float | None  # probability outside the letters; None where no logits were read
    # of a question about quality: probability of each choice by what was measured, summing to 1
    measured: dict[str, float] | None = None
    # p_c, to the power of the model's trust where distortions are asked about, times `measured`,
    # summing to 1: the answer is its likeliest letter
    product: dict[str, float] | None = None
    # what `measured` rests on, or why the letters of a question stand alone
    measurement: str | None = None
    # weight of each level 1..5 from the tools' mean; sums to 1
    alpha: dict[int, float] | None = None
    q_bar: float | None = None  # mean of the tools' normalised scores, 1..5; None without tools
    q: float | None = None  # the fused quality score, 1..5
    dq_dqbar: float | None = None  # how far q moves with q_bar: 2·η·Var_w(c), w ∝ α·p
    eta: float | None = None  # the η that made alpha
    # the error of q_bar in levels, from which η = 1/(2σ²); None: η was set
    sigma: float | None = None
    both_orders: bool = False  # whether p_c is the mean of this reading and one with A for Bad
    order_gap: float | None = None  # levels between the means of both orders
    crops: int = 0  # crops whose letters make up half of p_c
    crop_spread: float | None = None  # standard deviation of the crops' levels
    voters: list[str] = []  # the tools that q_bar is the mean of
    disagreement: float | None = None  # levels from the lowest tool to the highest

    @property
    def p(self) -> dict[str, float]:
        """The probability of each answer: the product with what was measured, else the letters'
        own."""
        return self.product or self.p_c


GapKind = Literal["executor", "analysis", "scores", "contradiction", "tools", "severity"]


class Gap(BaseModel):
    """What the evidence of a pass lacks."""

    model_config = {"frozen": True}

    kind: GapKind
    reason: NonBlank


_ANSWERS: list[JsonValue] = [
    {
        "final_answer": "B",
        "quality_reasoning": "The image shows moderate blur affecting sharpness, consistent with tool score of 2.6.",
        "need_replan": False,
    },
    {
        "final_answer": "Unable to determine",
        "quality_reasoning": "Insufficient evidence for vehicle region.",
        "need_replan": True,
        "replan_reason": "Missing tool scores for vehicle region",
    },
]


class SummarizerOutput(BaseModel):
    """The Summarizer's answer."""

    model_config = {"validate_assignment": True, "json_schema_extra": {"examples": _ANSWERS}}

    final_answer: NonBlank = Field(description="A letter, a quality level or free text.")
    quality_reasoning: NonBlank = Field(description="Evidence-based explanation.")
    need_replan: bool = Field(default=False, description="Whether replanning is needed.")
    replan_reason: str | None = Field(default=None, description="Why another pass is needed.")
    used_evidence: dict[str, Any] | None = Field(
        default=None, description="The evidence that the answer rests on."
    )
    fusion: FusionResult | None = None  # the letter read and its fusion; None for free-text answers
    gaps: list[Gap] = []  # what the evidence lacks; another pass closes it if need_replan is true
    error: str | None = None  # set when no answer could be had; final_answer is then no score

    @model_validator(mode="after")
    def _replan_has_a_reason(self) -> Self:
        if self.need_replan and not (self.replan_reason or "").strip():
            logger.warning("need_replan is true without a replan_reason")
            self.replan_reason = NO_REASON
        return self


def revised(model: Model, /, **changes: Any) -> Model:
    """`model` with `changes`, validated, which `model_copy` does not do. Raises ValidationError."""
    return type(model).model_validate(dict(model) | changes)


EYE = "YourEye"  # the tool that a person's own ratings taught


def replace(_old: Any, new: Any) -> Any:
    """Reducer: the latest value wins. Plans, evidence, results and errors are never merged with
    earlier ones."""
    return new


class AgenticIQAState(TypedDict):
    """What the graph carries from node to node.

    It starts with the query and the image, and where the user says so with the regions' boxes
    (`config.boxes_of` reads that text); the Planner adds `plan` and names the boxes' regions,
    the Executor `executor_evidence`, the Summarizer `summarizer_result` and, when it asks for
    another round, a higher `iteration_count` and one more `replan_history` entry ("[Iteration 1]
    reason", at most ten, oldest dropped). A replan starts from the plan and evidence before it and
    overwrites them. The Summarizer's result holds what the next round should close (`gaps`).
    A state without evidence or result is valid: the graph may end earlier.
    """

    query: str
    image_path: str
    reference_path: NotRequired[str]
    choices: NotRequired[list[str]]
    box: NotRequired[str]
    plan: NotRequired[Annotated[PlannerOutput, replace]]
    plan_corrections: NotRequired[list[str]]
    executor_evidence: NotRequired[ExecutorOutput | None]
    summarizer_result: NotRequired[SummarizerOutput]
    iteration_count: NotRequired[int]
    max_replan_iterations: NotRequired[int]
    replan_history: NotRequired[list[str]]
    prior_context: NotRequired[dict[str, Any]]
    error: NotRequired[Annotated[str | None, replace]]


# Which parts of an image a model or a tool gets at native resolution; their limits are passed in

_JPEG_BLOCK = 8
_MAX_ASPECT = 100  # Qwen's processors refuse sides beyond 200:1, and rounding may stretch them
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels, as for Image.crop


def native_views(
    width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int, max_views: int = 5
) -> list[Box]:
    """The views of an image that reach the model without being shrunk or resampled.

    A processor rounds each side to a multiple of `factor` (patch × merge, e.g. 28 or 32) and scales
    anything beyond `max_pixels` (at least factor²) down, which erases the blur, noise or blocking
    to be judged.

    - An image that fits: its crop about the centre to multiples of `factor`.
    - A larger one: up to `max_views` (1 to 5) crops of one size, with about its aspect but at most 100:1, at
      its centre and at those of its top left, bottom right, top right and bottom left quarter, moved inside.
    - One with fewer than `min_pixels`, or a side below `factor`: a view of all of it, which the
    processor enlarges.

    Offsets are multiples of 8: a JPEG's blocks keep their place in the model's patches.
    """
    whole = width - width % factor, height - height % factor
    if math.prod(whole) < min_pixels or 0 in whole:
        # a side stays as it is where rounding it to a multiple of `factor` enlarges it
        sides = ((side, side % factor) for side in (width, height))
        whole = size = tuple(
            side if side < factor or 2 * rest > factor else side - rest for side, rest in sides
        )
    else:
        size = _view_size(*whole, factor, max_pixels)
    quarters = [(2, 2)] if size == whole else [(2, 2), (1, 1), (3, 3), (3, 1), (1, 3)]
    corners = [(_offset(width, size[0], x), _offset(height, size[1], y)) for x, y in quarters]
    boxes = [(left, top, left + size[0], top + size[1]) for left, top in corners]
    return list(dict.fromkeys(boxes))[:max_views]


def _view_size(width: int, height: int, factor: int, max_pixels: int) -> tuple[int, int]:
    """The sides of a view, multiples of `factor`, of an image of width × height, which are too."""
    if width * height <= max_pixels and max(width, height) <= _MAX_ASPECT * min(width, height):
        return width, height
    sizes = []
    for tall in range(factor, min(height, max_pixels // factor) + 1, factor):
        wide = min(width, max_pixels // tall, _MAX_ASPECT * tall) // factor * factor
        if tall <= _MAX_ASPECT * wide:
            sizes.append((wide, tall))
    return min(sizes, key=lambda size: abs(math.log(size[0] * height / (size[1] * width))))


def _offset(side: int, view_side: int, quarter: int) -> int:
    """Where a view starts whose centre is at `quarter`/4 of the side, moved inside the image."""
    start = min(max(side * quarter // 4 - view_side // 2, 0), side - view_side)
    return start // _JPEG_BLOCK * _JPEG_BLOCK
