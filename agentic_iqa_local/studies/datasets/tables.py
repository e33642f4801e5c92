"""Readers of the files that hold scores: lines of text, CSV, workbooks and JSON. Files are of strangers:
whatever is wrong with one is a DatasetError."""

import csv
import io
import json
import math
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from agentic_iqa_local.files import FileError, read_bytes
from agentic_iqa_local.studies.datasets.types import LONGEST_QUOTE, DatasetError, listed

LARGEST = 2**28  # bytes of a score file: millions of rows


def first_value(row: dict[str, Any], *names: str) -> Any:
    """The first value in `row` under one of `names` that is neither None nor empty; None when none is."""
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def number(value: Any) -> float:
    """`value` as a number; NaN when it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def text(value: Any) -> str | None:
    """A fact as text: JSON and workbooks hold numbers too."""
    return None if value is None else str(value)


def content(path: Path) -> bytes:
    """The bytes of a file of at most `LARGEST`. Raises DatasetError."""
    try:
        return read_bytes(path, LARGEST)
    except FileError as error:
        raise DatasetError(f"{path}: {error}", "restore the file.") from error


def lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, stripped."""
    return [line.strip() for line in _decoded(path).split("\n") if line.strip()]


def header(cells: Iterable[Any]) -> list[str]:
    """Column names, stripped and in lower case."""
    return [str(cell or "").strip().lower() for cell in cells]


def csv_rows(path: Path) -> list[tuple[int, Sequence[Any]]]:
    """(line, cells) of each row; of a row over several lines, the last."""
    reader = csv.reader(io.StringIO(_decoded(path), newline=""), skipinitialspace=True)
    try:
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise DatasetError(f"{path}: expected CSV, found {error}", "correct the file.") from error


def workbook_rows(path: Path, sheet: str | None) -> list[tuple[int, Sequence[Any]]]:
    """(row number, cells) of `sheet`, by default the first. openpyxl is wanted by CSIQ, BID and SPAQ only:
    the extra xlsx."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise DatasetError(
            f"{path}: expected openpyxl to read it with, found it not installed",
            f"install it, or export the sheet {sheet or 'that comes first'} with its column names"
            f" to {path.with_suffix('.csv').name} beside it.",
        ) from None
    archive_bytes = io.BytesIO(content(path))
    try:
        with zipfile.ZipFile(archive_bytes) as archive:
            if (size := sum(member.file_size for member in archive.infolist())) > LARGEST:
                raise DatasetError(
                    f"{path}: expected at most {LARGEST} bytes when unpacked, found {size}",
                    "restore the file.",
                )
        with closing(load_workbook(archive_bytes, read_only=True, data_only=True)) as book:
            if sheet and sheet not in book.sheetnames:
                names = f"{listed(book.sheetnames):.{LONGEST_QUOTE}}"
                raise DatasetError(f"{path}: expected a sheet {sheet}, found {names}", "restore the authors' file.")
            cells = (book[sheet] if sheet else book.worksheets[0]).iter_rows(values_only=True)
            return list(enumerate(cells, 1))
    except DatasetError:
        raise
    except Exception as error:  # openpyxl raises nearly any type on a damaged file
        raise DatasetError(
            f"{path}: expected a workbook, found {error!r:.{LONGEST_QUOTE}}", "restore the file."
        ) from error


def json_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """(line, object) of a .jsonl file, or (place, object) of a .json file that is a list of them."""
    line = 0
    try:
        if path.suffix.lower() == ".jsonl":
            rows = []
            for line, row_text in enumerate(_decoded(path).split("\n"), 1):
                rows += [(line, _parsed(row_text))] if row_text.strip() else []
        else:
            rows = list(enumerate(_parsed(content(path).decode("utf-8-sig")), 1))
    except DatasetError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        found = f"{error!s:.{LONGEST_QUOTE}} in line {line}" if line else f"{error!s:.{LONGEST_QUOTE}}"
        raise DatasetError(f"{path}: expected JSON, found {found}", "correct the file.") from error
    for line, row in rows:
        if not isinstance(row, dict):
            raise DatasetError(
                f"{path}: expected a list of objects, found {type(row).__name__} in row {line}",
                "correct the file.",
            )
    return rows


def row_place(path: Path, line: int) -> str:
    """Where a row stands, for a message: "line 3 of manifest.csv"."""
    return f"{'object' if path.suffix.lower() == '.json' else 'line'} {line} of {path.name}"


def _decoded(path: Path) -> str:
    # A byte that is not UTF-8 can only spoil the name it stands in, which then shows up as missing.
    return content(path).decode("utf-8-sig", errors="replace")


def _parsed(json_text: str) -> Any:
    """Raises ValueError and RecursionError, also for half a character (a lone surrogate), which no row can
    hold."""
    value = json.loads(json_text)
    json.dumps(value, ensure_ascii=False).encode()
    return value
