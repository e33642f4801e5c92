"""What OpenAPI says of the routes that take pictures, and the page that shows it without a script."""

import html
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

FILE = {"type": "string", "format": "binary"}
BASE64 = {"type": "string", "format": "byte"}
NO_BATCH: dict[int | str, dict[str, Any]] = {404: {"description": "There is no such batch."}}
FROM = {
    "parameters": [{"name": "from", "in": "query", "schema": {"type": "integer", "minimum": 0, "default": 0}}]
}
REFUSALS = {
    400: "What was asked makes no sense.",
    401: "The token is missing or wrong.",
    403: "The Host or Origin is foreign.",
    408: "The body did not come in time.",
    413: "Too many bytes or pictures.",
    415: "Neither a form nor JSON.",
    422: "There is no assessment or comparison; `row` has the failure as one of that kind.",
    429: "The queue is full, or too many bytes are held: Retry-After says when to come again.",
    503: "The models are loading, failing or stopped: Retry-After says when to come again.",
    504: "There was no answer in time.",
}
ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("code", "message", "remedy")},
        }
    },
}


def described(picture: str, options: Mapping[str, str], answer: str, status: int = 200) -> dict[str, Any]:
    """The body and the answers of a route that takes a picture (`image`) or several (`images`), and options
    by name, each with what it is."""
    many = picture == "images"
    texts: dict[str, Any] = {
        name: {"type": "string", "description": about} for name, about in options.items()
    }
    original = {"description": "the pristine original"}
    named = {"type": "object", "properties": {"name": {"type": "string"}, "data": BASE64}}
    form: dict[str, Any] = {
        picture: {"type": "array", "items": FILE, "description": "pictures"} if many else FILE,
        "reference": FILE | original,
        **texts,
    }
    as_json: dict[str, Any] = {
        picture: {"type": "array", "items": named, "description": "in base64"} if many else BASE64,
        **({} if many else {"image_name": {"type": "string"}}),
        "reference": BASE64 | original,
        "reference_name": {"type": "string"},
        **{name: {"description": about} for name, about in options.items()},
    }
    kinds = {"multipart/form-data": form, "application/json": as_json}
    content = {
        kind: {"schema": {"type": "object", "required": [picture], "properties": properties}}
        for kind, properties in kinds.items()
    }
    given: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if status == 200:
        given["text/event-stream"] = {"schema": {"type": "string"}}
    refused = {
        str(code): {"description": about, "content": {"application/json": {"schema": ERROR}}}
        for code, about in REFUSALS.items()
    }
    return {
        "requestBody": {"required": True, "content": content},
        "responses": {str(status): {"description": answer, "content": given}, **refused},
    }


def docs_page(schema: dict[str, Any]) -> str:
    """The routes of an OpenAPI description as a page."""
    parts = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            text = html.escape(about.get("description") or about.get("summary") or "")
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2><p>{text}</p>")
            body = about.get("requestBody", {}).get("content", {}).get("multipart/form-data", {})
            fields = body.get("schema", {}).get("properties", {})
            parts.append(_list({name: one.get("description", "a picture") for name, one in fields.items()}))
            if fields:
                answers = {
                    f"{code} {HTTPStatus(int(code)).phrase}": one["description"]
                    for code, one in about["responses"].items()
                }
                parts.append(f"<h3>Answers</h3>{_list(answers)}")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>HTTP API</title><link rel="icon" href="assets/icon.svg">'
        '<link rel="stylesheet" href="assets/app.css">'
    )
    raw = '<p><a href="openapi.json">openapi.json</a></p>'
    body = f"<main><h1>HTTP API</h1>{raw}{''.join(parts)}</main>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def _list(about: Mapping[str, str]) -> str:
    rows = (
        f"<dt><code>{html.escape(name)}</code></dt><dd>{html.escape(text)}</dd>"
        for name, text in about.items()
    )
    return f"<dl>{''.join(rows)}</dl>" if about else ""
