"""Which pictures to assess: paths, folders, globs and manifests → items. Loads neither a model nor what runs
one."""

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

from agentic_iqa_local.batch.keys import Keys
from agentic_iqa_local.config import check_choices, check_query
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, first_mistake, read_bytes, with_each_key_once
from agentic_iqa_local.images.files import ImageError, local_path
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.query import choices_in
from agentic_iqa_local.state import IMAGE_SUFFIXES
from agentic_iqa_local.text import one_line, path_text

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


class _Listing:
    """What a manifest's records come to: the items that are wanted, and what is wrong with lines."""

    def __init__(self, path: Path, query: str | None, choices: Sequence[str] | None):
        self._path, self._query, self._choices = path, query, choices
        self.items: dict[Item, int] = {}
        self._others = Keys()
        self.bad: list[str] = []
        self.ignored: set[str] = set()

    def take(self, number: int, record: dict[str, Any] | str, *, wanted: bool) -> Item | None:
        """The item of a line; None where there is something wrong."""
        try:
            if isinstance(record, str):
                raise ValueError(record)
            self.ignored |= record.keys() - _Record.model_fields.keys()
            item = _item(record, self._path.parent, self._query, self._choices, existing=wanted)
            if item in self.items:
                raise ValueError(f"the same as line {self.items[item]}")
            if len(self._others) and item.key in self._others:
                raise ValueError("the same as an earlier line")
        except ValueError as error:
            self.bad.append(f"line {number}: {_reason(error)}")
            return None
        if wanted:
            self.items[item] = number
        else:
            self._others.add(item.key)
        return item

    def close(self) -> list[Item]:
        """The items. Raises ManifestError where a line was bad or there is none."""
        if self.bad:
            more = f"; and {len(self.bad) - NAMED_ROWS} more" if len(self.bad) > NAMED_ROWS else ""
            raise ManifestError(
                f"{self._path}: {'; '.join(self.bad[:NAMED_ROWS])}{more}", "correct the manifest"
            )
        if not self.items:
            raise ManifestError(f"{self._path}: expected a row for each image, found none")
        if self.ignored:
            _warn_of_unused(self._path, self.ignored)
        return list(self.items)


def read_manifest(
    path: Path,
    query: str | None = None,
    choices: Sequence[str] | None = None,
    *,
    places: Callable[[int], range] | None = None,
    told: Callable[[str], None] | None = None,
) -> list[Item]:
    """The items of a CSV file (with a header; choices separated by |) or of JSON lines.

    `image` is needed; `reference`, `query` and `choices` may be there, and the arguments stand in for the
    latter two. Relative paths are relative to the manifest. With `places` only the items in those places of
    the list are given, and only their files looked for; it is called with the number of all. `told` gets the
    key of each item, in order. Raises ManifestError, which names the lines, for a row that is malformed,
    names a file that is not there, or repeats another one.
    """
    reader = {".csv": _csv, ".jsonl": _json_lines}.get(path.suffix.lower())
    if reader is None:
        raise ManifestError(f"{path}: expected a manifest named .csv or .jsonl", "rename or convert it")
    listing = _Listing(path, query, choices)
    try:
        text = read_bytes(path, LARGEST).decode("utf-8-sig")
        wanted = places(sum(1 for _ in reader(text))) if places else None
        for place, (number, record) in enumerate(reader(text)):
            item = listing.take(number, record, wanted=wanted is None or place in wanted)
            if told and item:
                told(item.key)
    except FileError as error:
        raise ManifestError(f"{path}: {error}", "name another manifest, or divide it") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: expected a manifest in UTF-8, got {error}", "convert it") from error
    except csv.Error as error:
        raise ManifestError(f"{path}: expected CSV, got {error}", "correct the manifest") from error
    return listing.close()


def _warn_of_unused(path: Path, columns: set[str]) -> None:
    names = one_line(", ".join(f"{name:.{LONGEST_NAME}}" for name in sorted(columns)[:NAMED_COLUMNS]))
    names += f" and {len(columns) - NAMED_COLUMNS} more" if len(columns) > NAMED_COLUMNS else ""
    logger.warning("%s: not used: %s (known are %s)", path, names, ", ".join(_Record.model_fields))


def _csv(text: str) -> Iterator[tuple[int, dict[str, str] | str]]:
    """(line number, either the row's cells by column without the empty ones or a sentence saying what is
    wrong)."""
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    names = Counter(name for name in reader.fieldnames or () if name)
    if doubled := [name for name, count in names.items() if count > 1]:
        yield 1, f"expected each column once, got {doubled[0]:.{LONGEST_NAME}} twice"
        return
    for row in reader:
        cells = {name: cell for name, cell in row.items() if cell and name != ""}
        yield reader.line_num, "more cells than the header has" if None in cells else cells


def _json_lines(text: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """(line number, either the object or a sentence saying what is wrong)."""
    for number, line in enumerate(io.StringIO(text), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=with_each_key_once)
            json.dumps(value, ensure_ascii=False).encode()  # lone surrogates are no text
        except (ValueError, RecursionError) as error:
            yield number, f"expected a JSON object: {error!s:.{LONGEST_NAME}}"
            continue
        yield number, value if isinstance(value, dict) else "expected a JSON object"


def _item(
    row: dict[str, Any], folder: Path, query: str | None, choices: Sequence[str] | None, *, existing: bool
) -> Item:
    """The item of a row, whose files are there where it is to be an `existing` one. Raises ValueError."""
    record = _Record.model_validate(row)
    choices = record.choices or choices
    image, reference = folder / record.image, folder / record.reference if record.reference else None
    for column, file in (("image", image), ("reference", reference)):
        if existing and file:
            _check_existing(column, file)
    return Item(
        image=image,
        reference=reference,
        query=record.query or query or DEFAULT_QUERY,
        choices=tuple(choices) if choices else None,
    )


def _check_existing(column: str, file: Path) -> None:
    """Raises ValueError for a file that is not there."""
    try:
        is_there = file.is_file()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise ValueError(f"{column}: {error.strerror}: {file!s:.{LONGEST_NAME}}") from error
    if not is_there:
        raise ValueError(f"{column}: there is no file {file!s:.{LONGEST_NAME}}")


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
        if file.is_file() or (
            file.is_symlink() and not file.exists()
        ):  # a link that leads nowhere fails its row
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
