"""What each role may answer, as pydantic models that constrain generation.

Every string and list is bounded, or a small model would run on to its token limit. Where the prompt fixes the
keys (objects, distortions, tools), the model is built for that prompt, so that an answer covers exactly what
was asked.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    create_model,
)

from agentic_iqa_local.state import OVERALL, DistortionType, PlanControlFlags, PlannerOutput, Severity


def _text(limit: int) -> Any:
    """A text that a grammar ended at its limit goes back to its last whole sentence; a longer one, which no
    grammar ended, does so where the validation's context says {"cut": True}, and is refused elsewhere."""

    def cut(text: Any, info: ValidationInfo) -> Any:
        if not isinstance(text, str):
            return text
        cuts = len(text) == limit or (len(text) > limit and (info.context or {}).get("cut"))
        return whole_sentences(text, limit) if cuts else text

    bounds = StringConstraints(strip_whitespace=True, min_length=1, max_length=limit)
    return Annotated[str, bounds, BeforeValidator(cut)]


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40)]
# A JSON key without escapes: the grammar bounds keys by pattern alone.
Key = Annotated[str, StringConstraints(pattern=r'^[^"\\\x00-\x1f]{1,40}$')]
Explanation: Any = _text(160)
Reasoning: Any = _text(300)
FreeAnswer: Any = _text(120)
Coordinate = Annotated[int, Field(ge=0, le=20000)]

STRICT = ConfigDict(extra="forbid", populate_by_name=True)


class FlagsReply(BaseModel):
    """The four flags, each required."""

    model_config = STRICT
    distortion_detection: bool
    distortion_analysis: bool
    tool_selection: bool
    tool_execution: bool


class PlannerReply(BaseModel):
    """`PlannerOutput` with every field required and every length bounded."""

    model_config = STRICT
    query_type: Literal["IQA", "Other"]
    query_scope: Annotated[list[Name], Field(min_length=1, max_length=4)] | Literal["Global"]
    distortion_source: Literal["Explicit", "Inferred"]
    distortions: (
        Annotated[
            dict[Key, Annotated[list[DistortionType], Field(min_length=1, max_length=3)]],
            Field(max_length=4, json_schema_extra={"additionalProperties": False}),
        ]
        | None
    )
    reference_mode: Literal["Full-Reference", "No-Reference"]
    required_tool: Name | None
    plan: FlagsReply

    def to_plan(self) -> PlannerOutput:
        """The plan as the model gave it; objects named twice count once."""
        scope = self.query_scope if self.query_scope == "Global" else list(dict.fromkeys(self.query_scope))
        fields = {"query_scope": scope, "plan": PlanControlFlags(**self.plan.model_dump())}
        return PlannerOutput.model_validate(self.model_dump() | fields)


class LetterReply(BaseModel):
    """The letter as the model generates it."""

    model_config = STRICT
    final_answer: str


class SummaryReply(LetterReply):
    """The answer, a letter or free text, and why."""

    quality_reasoning: Reasoning  # pyright: ignore[reportInvalidTypeForm]


def _keyed(name: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    """A model with exactly these JSON keys, in this order, each with its type; keys may be any text."""
    aliased: dict[str, Any] = {
        f"key_{i}": (kind, Field(alias=key)) for i, (key, kind) in enumerate(fields.items())
    }
    return create_model(name, __config__=STRICT, **aliased)


def _one_of(values: Sequence[str]) -> Any:
    """The type of what is one of `values`."""
    return Literal[tuple(values)]


def detection_reply(objects: Sequence[str]) -> type[BaseModel]:
    """{object: [distortion types]}, up to three each, none for a clean object."""
    listed = Annotated[list[DistortionType], Field(max_length=3)]
    return _keyed("DetectionReply", dict.fromkeys(objects, listed))


def analysis_reply(distortions: Mapping[str, Sequence[str]]) -> type[BaseModel]:
    """{object: [{type, severity, explanation}]} with one item for each distortion asked about."""

    def item(distortion: str) -> type[BaseModel]:
        return create_model(
            "Analysis",
            __config__=STRICT,
            type=(_one_of([distortion]), ...),
            severity=(Severity | Literal["unclear"], ...),
            explanation=(Explanation, ...),
        )

    asked = {name: tuple[tuple(map(item, types))] for name, types in distortions.items() if types}
    return _keyed("AnalysisReply", asked)


def selection_reply(distortions: Mapping[str, Sequence[str]], tools: Sequence[str]) -> type[BaseModel]:
    """{object: {distortion: tool}}, the tool one of those that can run here."""
    choice = _one_of(tools)
    of_objects = {
        name: _keyed("Selection", dict.fromkeys(types or [OVERALL], choice))
        for name, types in distortions.items()
    }
    return _keyed("SelectionReply", of_objects)


def location_reply(objects: Sequence[str]) -> type[BaseModel]:
    """{object: [left, top, right, bottom] or null}."""
    box = tuple[Coordinate, Coordinate, Coordinate, Coordinate]
    return _keyed("LocationReply", dict.fromkeys(objects, box | None))


def summary_reply(letters: Sequence[str] | None) -> type[SummaryReply]:
    """{final_answer, quality_reasoning}; the answer is one of `letters`, or free text when there are none."""
    answer: Any = _one_of(letters) if letters else FreeAnswer
    return create_model("SummaryReply", __base__=SummaryReply, final_answer=(answer, ...))


def letter_reply(letters: Sequence[str]) -> type[LetterReply]:
    """{final_answer} alone: one of `letters`."""
    return create_model("LetterReply", __base__=LetterReply, final_answer=(_one_of(letters), ...))


# What ends a sentence: not the dots of "e.g.", nor at the very end one behind a digit, where a number may
# have been cut.
_END_OF_SENTENCE = re.compile(
    r"(?:(?<!\b[^\W\d_])[.!?…]+[\"')\]”’»]*(?=\s+[^\sa-z])|(?<!\b\w)(?<!\d)[.!?…]+[\"')\]”’»]*$|[。"
    r"！？]+[」』”]*)"
)


def whole_sentences(text: str, limit: int) -> str:
    """`text` unchanged where it is shorter than `limit` characters. A longer text, which may have been cut at
    the limit, is shortened to its last whole sentence, else to its last whole word with "…"."""
    if len(text) < limit:
        return text.strip()
    text = text[:limit].strip()
    if ends := [match.end() for match in _END_OF_SENTENCE.finditer(text)]:
        return text[: ends[-1]]
    words = text[: limit - 1].rsplit(maxsplit=1)
    return f"{words[0].rstrip(',;:') if len(words) > 1 else text[: limit - 1]}…"
