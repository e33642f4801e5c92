"""What an answer may be: a pydantic schema as llguidance takes it, whole or from where a begun
answer stops."""

import json
from typing import Any

from pydantic import BaseModel

from agentic_iqa_local.vlm_client import VLMError

# JSON as json.dumps writes it: one spelling for each answer, and no blanks for a small model to pad
# with.
JSON_STYLE = {
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
}


def json_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of an answer, with the style it is written in."""
    return schema.model_json_schema(by_alias=True) | JSON_STYLE


def constraint(schema: type[BaseModel], begun: str) -> dict[str, Any]:
    """What holds an answer that has `begun`, or not yet, to the schema, as vLLM names it."""
    return {"grammar": rest_of_answer(schema, begun)} if begun else {"json": json_schema(schema)}


def rest_of_answer(schema: type[BaseModel], begun: str) -> str:
    """A Lark grammar (llguidance's dialect) of what may follow `begun`, which ends within the first
    field's value.

    That field must be a choice among given values. Of an answer that has begun as
    `{"final_answer": "B` the first rest is `"`, and each further field is a rule of its own:

        start: first ", \\"quality_reasoning\\": " field_0 "}"
        first: "\\""
        field_0: %json {"type": "string"}

    Raises VLMError where the schema allows no answer that begins so.
    """
    whole = json_schema(schema)
    (first, values), *others = whole["properties"].items()
    choices = values.get("enum") or [values.get("const")]
    answers = [f"{{{json.dumps(first)}: {json.dumps(choice)}" for choice in choices]
    rests = [json.dumps(answer[len(begun) :]) for answer in answers if answer.startswith(begun)]
    if not rests:
        begins = f"an answer that begins with {begun!r}"
        raise VLMError(f"schema {schema.__name__} does not allow {begins}")
    shared = JSON_STYLE | {"$defs": whole.get("$defs", {})}
    start, rules = "start: first", [f"first: {' | '.join(rests)}"]
    for i, (name, value) in enumerate(others):
        key = json.dumps(f", {json.dumps(name)}: ")
        start += f" {key} field_{i}"
        rules.append(f"field_{i}: %json {json.dumps(shared | value)}")
    return "\n".join([f'{start} "}}"', *rules])
