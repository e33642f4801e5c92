"""The rows of a batch as the gallery needs them: what its list shows, and the account of each."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from agentic_iqa_local.batch.rows import AnyRow, RowsError, rows_in
from agentic_iqa_local.errors import UserError, printable
from agentic_iqa_local.files import FileError, first_mistake, open_regular
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.output.picture_lines import worst_distortion
from agentic_iqa_local.output.words import types_seen
from agentic_iqa_local.result import SCHEMA_VERSION, Assessment

Row = dict[str, Any]

# Parts of a row that the account leaves out: they repeat others, or no reader asks for them.
_LEFT_OUT = {
    "schema_version": True,
    "alpha": True,
    "fusion": True,
    "eta": True,
    "sigma": True,
    "dq_dqbar": True,
    "off_letter_mass": True,
    "replan_history": True,
    "prior_context": True,
    "failed_tries": True,
    "plan": {"plan"},
    "model": {"hardware"},
    "seen": {"views"},
    "tools": {"__all__": {"timestamp"}},
    "interval": {"condition", "difficulty"},
    "evidence": {"tool_logs", "distortion_set", "severity_probabilities", "selected_tools", "quality_scores"},
    "map": {"xs", "ys", "q", "letters", "tool", "similarity", "cost", "tile", "stride", "bias"},
}  # fmt: skip


class GalleryError(UserError, ValueError):
    """Rows of which no gallery can be made; one sentence for the user."""


def read_rows(path: Path) -> list[Row]:
    """The rows (JSON objects) of a file that assess wrote; a last line that is still being written is left
    out. Raises GalleryError, which names a line that is no such row."""
    remedy = "give the .jsonl file that assess --out wrote"
    rows = []
    try:
        with open(open_regular(path), "rb") as file:
            for line, row in rows_in(file, path, AnyRow, going_on=True):
                if mistake := _mistake(line, row):
                    raise GalleryError(f"{path}, line {len(rows) + 1}: {mistake}", remedy)
                rows.append(row)
    except FileError as error:
        raise GalleryError(f"{path}: {error}", remedy) from error
    except RowsError as error:
        raise GalleryError(error.message, remedy) from error
    if not rows:
        raise GalleryError(f"{path}: expected rows, found none", remedy)
    return rows


def _mistake(line: bytes, row: Row) -> str | None:
    """What is wrong with a row of a gallery, if anything is."""
    if "kind" in row:
        return "expected a row of assess, got one of compare or best, which have no gallery"
    if row.get("schema_version") != SCHEMA_VERSION:
        return f"expected schema_version {SCHEMA_VERSION}, got {row.get('schema_version')}; assess it anew"
    missing = sorted(Assessment.model_fields.keys() - row.keys())
    try:
        Assessment.model_validate_json(line, strict=True)
    except ValidationError as error:
        return f"expected rows as this program writes them, got {first_mistake(error)}"
    return f"expected rows as this program writes them, got one without {', '.join(missing)}" if missing else None


def identities(rows: Sequence[Row]) -> list[str]:
    """16 hex digits for each row, by which a browser keeps its decision: the picture's name and content and
    what was asked about it. They stay when rows are added, pictures are moved or assessed anew. Equal rows
    are told apart by their order."""
    seen: Counter[str] = Counter()
    found = []
    for row in rows:
        names = [row[key] and PurePath(row[key]).name for key in ("image", "reference")]
        asked = json.dumps([*names, row["sha256"] or row["image"], row["query"], row["choices"]])
        found.append(hashlib.sha256(f"{asked} {seen[asked]}".encode()).hexdigest()[:16])
        seen[asked] += 1
    return found


def entry(row: Row, identity: str, picture: int) -> Row:
    """What the list shows, sorts and filters by; `picture` is the place of its thumbnail."""
    found = Assessment.model_validate(row)
    answer = None if found.error or found.level else found.final_answer
    return _safe(
        {
            "id": identity,
            "image": found.image,
            "picture": picture,
            "q": found.q,
            "low": found.interval and found.interval.low,
            "high": found.interval and found.interval.high,
            "letter": found.letter if found.level else None,
            "answer": f"{answer}. {chosen_answer(found.choices, answer)}" if answer and found.choices else answer,
            "worst": worst_distortion(found),
            "types": types_seen(found),
            "verdict": found.gate and found.gate.verdict,
            "held": bool(found.not_sure),
            "query": found.query,
            "why": found.quality_reasoning,
            "error": found.error,
            "sha256": found.sha256,
        }
    )


def account(row: Row) -> Row:
    """What the full view of a row shows."""
    return _safe(Assessment.model_validate(row).model_dump(mode="json", exclude=_LEFT_OUT))  # pyright: ignore[reportArgumentType]


def _safe(fields: Row) -> Row:
    """The fields that say something (a zero does), with `printable` texts and keys."""
    told = {key: value for key, value in fields.items() if value or (value == 0 and value is not False)}
    return {key: _printable(value) for key, value in told.items()}


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(part) for part in value]
    if isinstance(value, dict):
        return {printable(key): _printable(part) for key, part in value.items()}
    return round(value, 4) if isinstance(value, float) else value
