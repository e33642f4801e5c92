"""Which pictures to assess: paths, folders, globs and manifests → items. Loads neither a model nor what runs
one."""

import csv
import io
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, field_validator

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, first_mistake, read_bytes, with_each_key_once
from agentic_iqa_local.prompts import DEFAULT_QUERY
from agentic_iqa_local.query import choices_in
from agentic_iqa_local.request import check_choices, check_query
from agentic_iqa_local.text import one_line, path_text

logger = logging.getLogger(__name__)

NAMED_ROWS = NAMED_COLUMNS = 5
LONGEST_NAME = 300  # characters of a file's name in a message
LARGEST = 2**29  # bytes: a million rows with long questions


class ManifestError(UserError, ValueError):
    """A manifest that cannot be used; one sentence that names lines and reasons."""


@dataclass(frozen=True)
class Item:
    """What one row is about. Without `choices` those that the query itself lists are taken."""

    image: Path
    reference: Path | None = None
    query: str = DEFAULT_QUERY
    choices: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.choices is None and (found := choices_in(self.query)):
            object.__setattr__(self, "choices", tuple(found))

    @property
    def key(self) -> str:
        """What tells rows apart; `row_key` finds it in a row."""
        return row_key(
            {
                "image": path_text(self.image),
                "reference": self.reference and path_text(self.reference),
                "query": self.query,
                "choices": self.choices,
            }
        )


def row_key(row: dict[str, Any]) -> str:
    """The key of the item that a row is about. Raises KeyError for a row of something else."""
    return json.dumps([row[name] for name in ("image", "reference", "query", "choices")])


class _Record(BaseModel):
    image: str = Field(min_length=1)
    reference: str | None = None
    query: str | None = None
    choices: list[str] | None = None

    @field_validator("choices", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value.split("|") if isinstance(value, str) else value

    @field_validator("query", "choices")
    @classmethod
    def _makes_sense(cls, value: Any) -> Any:
        if isinstance(value, str):
            check_query(value)
        else:
            check_choices(value)
        return value


def read_manifest(path: Path, query: str | None = None, choices: Sequence[str] | None = None) -> list[Item]:
    """The items of a CSV file (with a header; choices separated by |) or of JSON lines.

    `image` is needed; `reference`, `query` and `choices` may be there, and the arguments stand in for the
    latter two. Relative paths are relative to the manifest. Raises ManifestError, which names the lines, for
    a row that is malformed, names a file that is not there, or repeats another one.
    """
    reader = {".csv": _csv, ".jsonl": _json_lines}.get(path.suffix.lower())
    if reader is None:
        raise ManifestError(f"{path}: expected a manifest named .csv or .jsonl; rename or convert it")
    items: dict[Item, int] = {}
    bad, ignored = [], set()
    try:
        for number, found in reader(read_bytes(path, LARGEST).decode("utf-8-sig")):
            try:
                if isinstance(found, str):
                    raise ValueError(found)
                ignored |= found.keys() - _Record.model_fields.keys()
                item = _item(found, path.parent, query, choices)
                if item in items:
                    raise ValueError(f"the same as line {items[item]}")
                items[item] = number
            except ValueError as error:
                bad.append(f"line {number}: {_reason(error)}")
    except FileError as error:
        raise ManifestError(f"{path}: {error}; name another manifest, or divide it") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: expected a manifest in UTF-8, got {error}; convert it") from error
    except csv.Error as error:
        raise ManifestError(f"{path}: expected CSV, got {error}; correct the manifest") from error
    if bad:
        more = f"; and {len(bad) - NAMED_ROWS} more" if len(bad) > NAMED_ROWS else ""
        raise ManifestError(f"{path}: {'; '.join(bad[:NAMED_ROWS])}{more}; correct the manifest")
    if not items:
        raise ManifestError(f"{path}: expected a row for each image, found none")
    if ignored:
        names = one_line(", ".join(f"{name:.{LONGEST_NAME}}" for name in sorted(ignored)[:NAMED_COLUMNS]))
        names += f" and {len(ignored) - NAMED_COLUMNS} more" if len(ignored) > NAMED_COLUMNS else ""
        logger.warning("%s: not used: %s (known are %s)", path, names, ", ".join(_Record.model_fields))
    return list(items)


def _csv(text: str) -> Iterator[tuple[int, dict[str, str] | str]]:
    """(line, cells by column without the empty ones, or what is wrong with them)."""
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    names = Counter(name for name in reader.fieldnames or () if name)
    if doubled := [name for name, count in names.items() if count > 1]:
        yield 1, f"expected each column once, got {doubled[0]:.{LONGEST_NAME}} twice"
        return
    for row in reader:
        cells = {name: cell for name, cell in row.items() if cell and name != ""}
        yield reader.line_num, "more cells than the header has" if None in cells else cells


def _json_lines(text: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    for number, line in enumerate(io.StringIO(text), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line, object_pairs_hook=with_each_key_once)
            json.dumps(found, ensure_ascii=False).encode()  # lone surrogates are no text
        except (ValueError, RecursionError) as error:
            yield number, f"expected a JSON object: {error!s:.{LONGEST_NAME}}"
            continue
        yield number, found if isinstance(found, dict) else "expected a JSON object"


def _item(found: dict[str, Any], folder: Path, query: str | None, choices: Sequence[str] | None) -> Item:
    """Raises ValueError."""
    record = _Record.model_validate(found)
    image, reference = folder / record.image, record.reference and folder / record.reference
    for name, file in (("image", image), ("reference", reference)):
        try:
            found = not file or file.is_file()
        except OSError as error:  # a name that is too long, a folder that may not be entered
            raise ValueError(f"{name}: {error.strerror}: {file!s:.{LONGEST_NAME}}") from error
        if not found:
            raise ValueError(f"{name}: there is no file {file!s:.{LONGEST_NAME}}")
    choices = record.choices or choices
    return Item(image, reference or None, record.query or query or DEFAULT_QUERY, choices and tuple(choices))


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    message = first_mistake(error)
    name, _, said = message.partition(": ")
    return said if said.startswith(f"{name}: ") else message
