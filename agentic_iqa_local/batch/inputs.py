"""Which pictures to assess: files, folders, globs and manifests become items. Loads neither a model nor what
runs one."""

import csv
import functools
import glob
import io
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, field_validator

from agentic_iqa_local.config import check_choices, check_query
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import FileError, first_mistake, path_text, read_bytes, with_each_key_once
from agentic_iqa_local.images.files import ImageError, local_path
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.query import choices_in
from agentic_iqa_local.state import IMAGE_SUFFIXES

logger = logging.getLogger(__name__)

NAMED_ROWS = NAMED_COLUMNS = 5
LONGEST_NAME = 300  # characters of a file's name in a message
LARGEST = 2**29  # bytes: a million rows with long questions


class ManifestError(UserError, ValueError):
    """A manifest that cannot be used; one sentence that names lines and reasons."""


@dataclass(frozen=True)
class Item:
    """One picture and the question about it, which become one row. Without `choices`, those that the query
    itself lists are taken."""

    image: Path
    reference: Path | None = None
    query: str = DEFAULT_QUERY
    choices: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.choices is None and (listed := _choices_in(self.query)):
            object.__setattr__(self, "choices", listed)

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


@functools.lru_cache(maxsize=1024)  # a million pictures have the same query
def _choices_in(query: str) -> tuple[str, ...]:
    return tuple(choices_in(query) or ())


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
    """The items of a manifest: CSV with a header (choices separated by |), JSON lines, or Parquet.

    `image` is needed; `reference`, `query` and `choices` may be there, and the arguments stand in for the
    latter two. Relative paths are relative to the manifest. Raises ManifestError, which names the lines, for a
    row that is malformed, names a file that is not there, or repeats another one.
    """
    reader = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}.get(path.suffix.lower())
    if reader is None:
        raise ManifestError(
            f"{path}: expected a manifest named .csv, .jsonl or .parquet", "rename or convert it"
        )
    lines: dict[Item, int] = {}
    bad: list[str] = []
    ignored: set[str] = set()
    for number, record in _records(path, reader):
        try:
            if isinstance(record, str):
                raise ValueError(record)
            ignored |= record.keys() - _Record.model_fields.keys()
            item = _item(record, path.parent, query, choices)
            if (earlier := lines.setdefault(item, number)) != number:
                raise ValueError(f"the same as line {earlier}")
        except ValueError as error:
            bad.append(f"line {number}: {_reason(error)}")
    if bad:
        more = f"; and {len(bad) - NAMED_ROWS} more" if len(bad) > NAMED_ROWS else ""
        raise ManifestError(f"{path}: {'; '.join(bad[:NAMED_ROWS])}{more}", "correct the manifest")
    if not lines:
        raise ManifestError(f"{path}: expected a row for each image, found none")
    if ignored:
        names = one_line(", ".join(f"{name:.{LONGEST_NAME}}" for name in sorted(ignored)[:NAMED_COLUMNS]))
        names += f" and {len(ignored) - NAMED_COLUMNS} more" if len(ignored) > NAMED_COLUMNS else ""
        logger.warning("%s: not used: %s (known are %s)", path, names, ", ".join(_Record.model_fields))
    return list(lines)


_Numbered = Iterator[tuple[int, dict[str, Any] | str]]
"""(line number, either the record without empty cells, or a sentence saying what is wrong) of each line."""


def _records(path: Path, reader: Callable[[bytes], _Numbered]) -> _Numbered:
    """Raises ManifestError for a file that is none of its kind."""
    try:
        yield from reader(read_bytes(path, LARGEST))
    except FileError as error:
        raise ManifestError(f"{path}: {error}", "name another manifest, or divide it") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: expected a manifest in UTF-8, got {error}", "convert it") from error
    except (csv.Error, ValueError, OSError) as error:  # pyarrow raises the latter two
        raise ManifestError(
            f"{path}: expected {path.suffix[1:]}, got {error}", "correct the manifest"
        ) from error


def _csv(content: bytes) -> _Numbered:
    text = content.decode("utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    names = Counter(name for name in reader.fieldnames or () if name)
    if doubled := [name for name, count in names.items() if count > 1]:
        yield 1, f"expected each column once, got {doubled[0]:.{LONGEST_NAME}} twice"
        return
    for row in reader:
        cells = {name: cell for name, cell in row.items() if cell and name != ""}
        yield reader.line_num, "more cells than the header has" if None in cells else cells


def _json_lines(content: bytes) -> _Numbered:
    for number, line in enumerate(io.StringIO(content.decode("utf-8-sig")), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=with_each_key_once)
            json.dumps(value, ensure_ascii=False).encode()  # lone surrogates are no text
        except (ValueError, RecursionError) as error:
            yield number, f"expected a JSON object: {error!s:.{LONGEST_NAME}}"
            continue
        yield number, value if isinstance(value, dict) else "expected a JSON object"


def _parquet(content: bytes) -> _Numbered:
    from pyarrow import BufferReader
    from pyarrow.parquet import ParquetFile

    number = 0
    for batch in ParquetFile(BufferReader(content)).iter_batches():
        for record in batch.to_pylist():
            number += 1
            yield number, {name: cell for name, cell in record.items() if cell is not None}


def _item(row: dict[str, Any], folder: Path, query: str | None, choices: Sequence[str] | None) -> Item:
    """The item of a row. Raises ValueError."""
    record = _Record.model_validate(row)
    choices = record.choices or choices
    image, reference = folder / record.image, folder / record.reference if record.reference else None
    for column, file in (("image", image), ("reference", reference)):
        try:
            is_there = file is None or file.is_file()
        except OSError as error:  # a name that is too long, a folder that may not be entered
            raise ValueError(f"{column}: {error.strerror}: {file!s:.{LONGEST_NAME}}") from error
        if not is_there:
            raise ValueError(f"{column}: there is no file {file!s:.{LONGEST_NAME}}")
    return Item(image, reference, record.query or query or DEFAULT_QUERY, tuple(choices) if choices else None)


def _reason(error: ValueError) -> str:
    """What is wrong with a row; our own messages name the column already, pydantic's get it before them."""
    if not isinstance(error, ValidationError):
        return str(error)
    message = first_mistake(error)
    name, _, said = message.partition(": ")
    return said if said.startswith(f"{name}: ") else message


def expand_inputs(items: Sequence[str], tell: Callable[[str], None] | None = None) -> list[Path]:
    """Files, folders and globs as a list of files in the order given, without duplicates.

    A folder stands for the image files directly in it, a glob (`**` for any depth) for those it matches, both
    by suffix, sorted as people count (2 before 10) and without hidden files; `tell` gets a line for each that
    held other files or folders. Raises `ImageError` for a folder or glob without images, and for an address
    on a network (file:// is a path). A plain path is kept even if nothing is there: `images.load_image`
    reports it as that row's failure, `image_files.check_file` before.
    """
    files: list[Path] = []
    for item in map(local_path, items):
        if os.path.isdir(item) or (glob.has_magic(item) and not os.path.exists(item)):
            files += _image_files(item, tell)
        else:
            files.append(Path(item))
    unique: dict[str, Path] = {}
    for file in files:
        unique.setdefault(os.path.abspath(file), file)
    return list(unique.values())


def _image_files(item: str, tell: Callable[[str], None] | None) -> list[Path]:
    """The image files of a folder or a glob, sorted; see `expand_inputs`."""
    is_folder = os.path.isdir(item)
    visible = _visible(Path(item).glob("*") if is_folder else map(Path, glob.iglob(item, recursive=True)))
    images, others = [], []
    for file in visible:
        if file.is_file() or os.path.islink(file) > file.exists():  # a link that leads nowhere fails its row
            (images if file.suffix.lower() in IMAGE_SUFFIXES else others).append(file)
    left_out = _left_out(item, others, sum(map(Path.is_dir, visible)) if is_folder else 0)
    if not images:
        raise ImageError(
            f"{item}: expected a folder or a pattern with image files"
            f" ({' '.join(sorted(IMAGE_SUFFIXES))}), but found none",
            f"check the path{f' ({left_out})' if left_out else ''}.",
        )
    if left_out and tell:
        place = os.path.join(item, "") if is_folder else item
        tell(one_line(f"{place}: {len(images)} image{'s' * (len(images) > 1)}; {left_out}"))
    return sorted(images, key=_natural_order)


def _visible(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if not path.name.startswith(".")]


def _left_out(item: str, others: list[Path], folders: int) -> str:
    """What a folder or glob holds beside images, in words; empty when nothing."""
    parts = []
    if others:
        kinds = Counter(file.suffix.lower() or "without a suffix" for file in others)
        listed = ", ".join(
            f"{kinds[kind]} {kind}" for kind in sorted(kinds, key=lambda kind: (-kinds[kind], kind))
        )
        parts.append(f"skipped {len(others)} file{'s' * (len(others) > 1)}: {listed}")
    if folders:
        parts.append(
            f"subfolders are not searched ({folders}): use '{os.path.join(glob.escape(item), '**', '*')}'"
        )
    return "; ".join(parts)


def references_in(folder: Path, images: Iterable[Path]) -> list[Path]:
    """The reference of each image: the file of its name in `folder`, else the one image file that differs in
    its suffix alone. Raises `ImageError`, which names images that have none, or several."""
    by_stem: dict[str, list[Path]] = {}
    for file in _image_files(str(folder), None):
        by_stem.setdefault(file.stem, []).append(file)
    found, lacking = [], []
    for image in images:
        named = by_stem.get(image.stem, [])
        exact = [file for file in named if file.name == image.name] or named
        found += exact[:1]
        if len(exact) != 1:
            lacking.append(f"{image} ({' or '.join(file.name for file in exact) or 'none'})")
    if lacking:
        more = f" and {len(lacking) - NAMED_ROWS} more" if len(lacking) > NAMED_ROWS else ""
        raise ImageError(
            f"{folder}: expected one reference for each picture, under its name with any suffix, but not for"
            f" {', '.join(lacking[:NAMED_ROWS])}{more}",
            "add or rename them, or pair them in a --manifest.",
        )
    return found


def _natural_order(path: Path) -> tuple[list[str | int], str]:
    """A key that sorts numbers in names by value."""
    parts = re.split(r"(\d+)", str(path).casefold())
    return [int(part) if part.isdecimal() else part for part in parts], str(path)
