"""What each role may answer, as pydantic models that constrain generation.

Every text and list is bounded, or a small model would write on to its token limit. Where the prompt
fixes the keys (objects, distortions, tools), the model is made for that prompt, so that an answer
covers what was asked.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, create_model

from agentic_iqa_local.state import DISTORTION_TYPES, DistortionType, PlanControlFlags, Severity

STRICT = ConfigDict(extra="forbid")
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40)]
# a JSON key without escapes: the grammar bounds keys by pattern alone
Key = Annotated[str, StringConstraints(pattern=r'^[^"\\\x00-\x1f]{1,40}$')]
_once = AfterValidator(lambda names: list(dict.fromkeys(names)))  # objects named twice count once
Kinds = Annotated[list[DistortionType], Field(min_length=1, max_length=3)]
_Closed = Field(max_length=4, json_schema_extra={"additionalProperties": False})


def _text(limit: int) -> Any:
    """A text of at most `limit` characters; one that a grammar cut at the limit ends with its last
    whole sentence."""
    bounds = StringConstraints(strip_whitespace=True, min_length=1)
    cut = AfterValidator(lambda text: whole_sentences(text, limit))
    return Annotated[str, bounds, cut, Field(json_schema_extra={"maxLength": limit})]


def _keyed(name: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    """A model with exactly these JSON keys, in this order, each with its type; keys may be any
    text."""
    aliased: Any = {
        f"key_{i}": (kind, Field(alias=key)) for i, (key, kind) in enumerate(fields.items())
    }
    return create_model(name, __config__=STRICT, **aliased)


class PlannerReply(BaseModel):
    """`PlannerOutput` with every field required and every length bounded."""

    model_config = STRICT
    query_type: Literal["IQA", "Other"]
    query_scope: Annotated[list[Name], Field(min_length=1, max_length=4), _once] | Literal["Global"]
    distortion_source: Literal["Explicit", "Inferred"]
    distortions: Annotated[dict[Key, Kinds], _Closed] | None
    reference_mode: Literal["Full-Reference", "No-Reference"]
    required_tool: Name | None
    plan: _keyed("FlagsReply", dict.fromkeys(PlanControlFlags.model_fields, bool))  # pyright: ignore[reportInvalidTypeForm]


def detection_reply(objects: Sequence[str]) -> type[BaseModel]:
    """{object: [distortion types]}, up to three each, none for a clean object."""
    return _keyed(
        "DetectionReply",
        dict.fromkeys(objects, Annotated[list[DistortionType], Field(max_length=3)]),
    )


def boxes_reply(objects: Sequence[str]) -> type[BaseModel]:
    """{object: [left, top, right, bottom]}, null for one that is not to be seen."""
    side = Annotated[int, Field(ge=0, le=99_999)]
    box: Any = Annotated[list[side], Field(min_length=4, max_length=4)]
    return _keyed("BoxesReply", dict.fromkeys(objects, box | None))


def analysis_reply(distortions: Mapping[str, Sequence[str]]) -> type[BaseModel]:
    """{object: [{type, severity, explanation}]} with one item for each distortion asked about."""
    judged = {"severity": Severity | Literal["unclear"], "explanation": _text(160)}
    items = {
        kind: _keyed("Analysis", {"type": Literal[kind], **judged}) for kind in DISTORTION_TYPES
    }
    asked = {
        name: tuple[tuple(map(items.__getitem__, kinds))]
        for name, kinds in distortions.items()
        if kinds
    }
    return _keyed("AnalysisReply", asked)


def selection_reply(
    distortions: Mapping[str, Sequence[str]], tools: Sequence[str]
) -> type[BaseModel]:
    """{object: {distortion: tool}}, the tool one of those that can run here."""
    asked = {
        name: dict.fromkeys(kinds, Literal[tuple(tools)]) for name, kinds in distortions.items()
    }
    return _keyed(
        "SelectionReply", {name: _keyed("Selection", chosen) for name, chosen in asked.items()}
    )


def answer_reply(letters: Sequence[str] | None, *, reasoned: bool = True) -> type[Any]:
    """{final_answer, quality_reasoning}, or the answer alone; it is one of `letters`, or free text
    without them."""
    fields: Any = {"final_answer": (Literal[tuple(letters)] if letters else _text(120), ...)}
    fields |= {"quality_reasoning": (_text(300), ...)} if reasoned else {}
    return create_model("SummaryReply" if reasoned else "LetterReply", __config__=STRICT, **fields)


# Not the dots of "e.g.", nor one behind a digit, where a number may have been cut
_END_OF_SENTENCE = re.compile(
    r"(?<!\b\w)(?<!\d)[.!?…]+[\"')\]”’»]*(?=\s+[^\sa-z]|$)|[。！？]+[」』”]*"
)


def whole_sentences(text: str, limit: int) -> str:
    """`text`; one of `limit` characters or more up to its last whole sentence, else its last whole
    word and "…"."""
    if len(text) < limit:
        return text.strip()
    text = text[:limit].strip()
    ends = [match.end() for match in _END_OF_SENTENCE.finditer(text)]
    return text[: ends[-1]] if ends else re.sub(r"[,;:\s]*\s\S*$", "", text[: limit - 1]) + "…"
