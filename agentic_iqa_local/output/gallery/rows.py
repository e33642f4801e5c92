"""The rows of a batch as the gallery needs them: what its list shows, and the account of each."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from agentic_iqa_local.batch.rows import RowsError, StoredRow, rows_in
from agentic_iqa_local.files import FileError, open_regular
from agentic_iqa_local.output.account import parts_of
from agentic_iqa_local.output.words import types_seen, worst_distortion
from agentic_iqa_local.result import Assessment


def read_rows(path: Path) -> list[Assessment]:
    """The rows of a file that assess wrote; a last line that is still being written is left out.
    Raises RowsError, which names a line that is no such row."""
    remedy = "give the .jsonl file that assess --out of this version wrote"
    try:
        with open(open_regular(path), "rb") as file:
            rows = [Assessment.model_validate(row) for _, row in rows_in(file, path, StoredRow)]
    except FileError as error:
        raise RowsError(f"{path}: {error}", remedy) from error
    except RowsError as error:
        raise RowsError(error.message, remedy) from error
    if not rows:
        raise RowsError(f"{path}: expected rows, found none", remedy)
    return rows


def identities(rows: Sequence[Assessment]) -> list[str]:
    """16 hex digits for each row, by which a browser keeps its decision: the picture's name and
    content and what was asked about it. They stay when rows are added, pictures are moved or
    assessed anew. Equal rows are told apart by their order."""
    seen: Counter[str] = Counter()
    found = []
    for row in rows:
        names = [name and PurePath(name).name for name in (row.image, row.reference)]
        asked = json.dumps([*names, row.sha256 or row.image, row.query, row.choices])
        found.append(hashlib.sha256(f"{asked} {seen[asked]}".encode()).hexdigest()[:16])
        seen[asked] += 1
    return found


def entry(row: Assessment, identity: str, picture: int) -> dict[str, Any]:
    """What the list shows, sorts and filters by; `picture` is the place of its thumbnail."""
    fields = {
        "id": identity,
        "image": row.image,
        "picture": picture,
        "q": row.q,
        "worst": worst_distortion(row),
        "types": types_seen(row),
        "held": bool(row.not_sure),
        "query": row.query,
        "why": row.quality_reasoning,
        "error": row.error,
        "sha256": row.sha256,
    }
    if row.level:
        fields["letter"] = row.letter
    elif not row.error:
        fields["answer"] = row.answer
    if row.interval:
        fields |= {"low": row.interval.low, "high": row.interval.high}
    if row.gate:
        fields["verdict"] = row.gate.verdict
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


def account(row: Assessment) -> dict[str, Any]:
    """What the full view of a row shows: its account, and where the map finds the worst places."""
    boxes = [box.box for box in row.map.worst] if row.map else []
    return {"parts": parts_of(row), "boxes": boxes}
