"""What an answer may be: a pydantic schema as llguidance takes it."""

from typing import Any

from pydantic import BaseModel

# JSON as json.dumps writes it: one spelling for each answer, and no blanks for a small model to pad
# with.
JSON_STYLE = {
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
}


def json_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of an answer, with the style it is written in."""
    return schema.model_json_schema(by_alias=True) | JSON_STYLE
