"""Rows as columns of numbers: a Parquet file that pandas, Hugging Face datasets and FiftyOne
read."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from agentic_iqa_local.files import replacing
from agentic_iqa_local.nodes.evidence import findings
from agentic_iqa_local.output.tables import PARQUET_KEY, row_cells
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.state import DISTORTION_TYPES, UNCLEAR, Severity

ROWS_AT_ONCE = 1000
TEXTS = ("image", "reference", "query", "answer", "level")
NUMBERS = ("q", "low", "high")
REST = ("not_sure", "gate", "reasoning", "warnings", "error", "model", "sha256")
FAMILIES = {kind: kind.lower().replace(" ", "_") for kind in DISTORTION_TYPES}
SEVERITIES = {word: float(number) for number, word in enumerate(get_args(Severity))}
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in TEXTS),
        *((name, pa.float64()) for name in (*NUMBERS, *FAMILIES.values(), "seconds")),
        *((name, pa.string()) for name in REST),
    ],
    metadata={PARQUET_KEY: "1"},
)
"""A column each: q, low and high are 1..5, a family of distortions 0 (none) to 4 (extreme)."""


def write_parquet(file: Path, rows: Iterable[Assessment]) -> None:
    """Replaces `file` by a table with a line for each row, null where a row lacks a column. Memory
    holds ROWS_AT_ONCE of them. Raises WriteError."""
    with replacing(file) as opened, pq.ParquetWriter(opened, SCHEMA) as writer:
        columns = map(_columns, rows)
        while some := list(islice(columns, ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(some, SCHEMA))


def _columns(row: Assessment) -> dict[str, Any]:
    cells = row_cells(row)
    cells |= {"low": cells.pop("q_low"), "high": cells.pop("q_high")}
    return cells | _severities(row)


def _severities(row: Assessment) -> dict[str, float]:
    """How severe each family is in the whole picture or the worst of its regions, as far as it was
    looked for."""
    whole = ((row.evidence and row.evidence.detection) or {}).get("Global")
    found: dict[str, float] = {}
    if whole and not whole.error:
        found = {FAMILIES[kind]: 0.0 for kind in whole.families if kind in FAMILIES}
    for finding in findings(row.evidence):
        family = FAMILIES.get(finding.type)
        if family and finding.severity != UNCLEAR:
            severity = SEVERITIES[finding.severity]
            found[family] = max(severity, found.get(family, 0.0))
    return found
