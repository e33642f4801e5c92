"""The rows of a batch as the gallery needs them: what its list shows, and the account of each."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from agentic_iqa_local.batch.rows import RowsError, StoredRow, rows_in
from agentic_iqa_local.errors import printable
from agentic_iqa_local.files import FileError, open_regular
from agentic_iqa_local.nodes.evidence import found_damage
from agentic_iqa_local.output.picture_lines import worst_distortion
from agentic_iqa_local.output.report import decision, map_sentences, sureness
from agentic_iqa_local.output.words import nothing_found, types_seen
from agentic_iqa_local.result import Assessment

Row = dict[str, Any]

# Parts of a row that the account leaves out: they repeat others, or no reader asks for them.
_LEFT_OUT = {
    **dict.fromkeys(("schema_version", "fusion", "fusion_settings"), True),
    **dict.fromkeys(("replan_history", "prior_context", "failed_tries"), True),
    **dict.fromkeys(("answer_set", "evidence"), True),
    "plan": {"plan"},
    "model": {"hardware"},
    "seen": {"views"},
    "tools": {"__all__": {"timestamp"}},
    "interval": {"condition", "difficulty"},
    "map": {"xs", "ys", "q", "letters", "tool", "similarity", "cost", "tile", "stride", "bias"},
}  # fmt: skip


def read_rows(path: Path) -> list[Assessment]:
    """The rows of a file that assess wrote; a last line that is still being written is left out. Raises RowsError,
    which names a line that is no such row."""
    remedy = "give the .jsonl file that assess --out of this version wrote"
    try:
        with open(open_regular(path), "rb") as file:
            rows = [
                Assessment.model_validate(row)
                for _, row in rows_in(file, path, StoredRow, going_on=True)
            ]
    except FileError as error:
        raise RowsError(f"{path}: {error}", remedy) from error
    except RowsError as error:
        raise RowsError(error.message, remedy) from error
    if not rows:
        raise RowsError(f"{path}: expected rows, found none", remedy)
    return rows


def identities(rows: Sequence[Assessment]) -> list[str]:
    """16 hex digits for each row, by which a browser keeps its decision: the picture's name and content and
    what was asked about it. They stay when rows are added, pictures are moved or assessed anew. Equal rows
    are told apart by their order."""
    seen: Counter[str] = Counter()
    found = []
    for row in rows:
        names = [name and PurePath(name).name for name in (row.image, row.reference)]
        asked = json.dumps([*names, row.sha256 or row.image, row.query, row.choices])
        found.append(hashlib.sha256(f"{asked} {seen[asked]}".encode()).hexdigest()[:16])
        seen[asked] += 1
    return found


def entry(row: Assessment, identity: str, picture: int) -> Row:
    """What the list shows, sorts and filters by; `picture` is the place of its thumbnail."""
    answer = None if row.error or row.level else row.answer
    return _safe(
        {
            "id": identity,
            "image": row.image,
            "picture": picture,
            "q": row.q,
            "low": row.interval and row.interval.low,
            "high": row.interval and row.interval.high,
            "letter": row.letter if row.level else None,
            "answer": answer,
            "worst": worst_distortion(row),
            "types": types_seen(row),
            "verdict": row.gate and row.gate.verdict,
            "held": bool(row.not_sure),
            "query": row.query,
            "why": row.quality_reasoning,
            "error": row.error,
            "sha256": row.sha256,
        }
    )


def account(row: Assessment) -> Row:
    """What the full view of a row shows: its fields, and in the words of `--explain` what was found, where, how sure
    the answer is and what it rests on."""
    told = row.model_dump(mode="json", exclude=_LEFT_OUT)  # pyright: ignore[reportArgumentType]
    if row.error:
        return _safe(told)
    return _safe(
        told
        | {
            "probabilities": row.p,
            "found": [
                [finding.with_severity, finding.explanation]
                for finding in found_damage(row.evidence)
            ],
            "nothing": f"{nothing_found(row)} was found"
            if row.evidence and row.evidence.distortion_analysis
            else None,
            "where": [*map_sentences(row)],
            "sure": sureness(row),
            "rests_on": decision(row),
        }
    )


def _safe(fields: Row) -> Row:
    """The fields that say something (a zero does), with `printable` texts and keys."""
    told = {
        key: value for key, value in fields.items() if value or (value == 0 and value is not False)
    }
    return {key: _printable(value) for key, value in told.items()}


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(part) for part in value]
    if isinstance(value, dict):
        return {printable(key): _printable(part) for key, part in value.items()}
    return round(value, 4) if isinstance(value, float) else value
