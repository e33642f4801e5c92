"""Which pictures to assess: files, folders, globs and manifests become items."""

import csv
import functools
import glob
import io
import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import from_json

from agentic_iqa_local.config import Choices, check_query
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import first_mistake, path_text, read_bytes
from agentic_iqa_local.images.files import ImageError, local_path
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.query import choices_in
from agentic_iqa_local.state import IMAGE_SUFFIXES

logger = logging.getLogger(__name__)

NAMED = 5  # rows, columns or pictures in a message
LARGEST = 2**29  # bytes: a million rows with long questions


class ManifestError(UserError, ValueError):
    """A manifest that cannot be used; one sentence that names lines and reasons."""


@dataclass(frozen=True)
class Item:
    """One picture and the question about it, which become one row. Without `choices`, those that the query itself
    lists are taken."""

    image: Path
    reference: Path | None = None
    query: str = DEFAULT_QUERY
    choices: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.choices is None:
            object.__setattr__(self, "choices", _choices_in(self.query))

    @property
    def key(self) -> str:
        """What tells rows apart; `row_key` finds it in a row."""
        reference = self.reference and path_text(self.reference)
        return json.dumps([path_text(self.image), reference, self.query, self.choices])


@functools.lru_cache(maxsize=1024)  # a million pictures have the same query
def _choices_in(query: str) -> tuple[str, ...] | None:
    return tuple(choices_in(query) or ()) or None


def row_key(row: Mapping[str, Any]) -> str:
    """The key of the item that a row is about. Raises KeyError for a row of something else."""
    return json.dumps([row[name] for name in ("image", "reference", "query", "choices")])


# Manifests


class _Record(BaseModel):
    image: str = Field(min_length=1)
    reference: str | None = None
    query: Annotated[str, BeforeValidator(check_query)] | None = None
    choices: (
        Annotated[Choices, BeforeValidator(lambda x: x.split("|") if isinstance(x, str) else x)]
        | None
    ) = None

    def item(self, folder: Path, query: str | None, choices: Sequence[str] | None) -> Item:
        """The item of a record. Raises ValueError for files that are not there."""
        image, reference = folder / self.image, folder / self.reference if self.reference else None
        for column, file in (("image", image), ("reference", reference)):
            if file and not os.path.isfile(file):
                raise ValueError(f"{column}: there is no file {file}")
        choices = self.choices or choices
        return Item(
            image,
            reference,
            self.query or query or DEFAULT_QUERY,
            tuple(choices) if choices else None,
        )


def read_manifest(
    path: Path, query: str | None = None, choices: Sequence[str] | None = None
) -> list[Item]:
    """The items of a manifest, each once: CSV with a header (choices separated by |), JSON lines, or Parquet.

    Its columns are `image` and, where wanted, `reference`, `query` and `choices`; `query` and `choices` stand in for
    empty ones. Paths are relative to the manifest. Raises ManifestError, which names lines that are malformed or name
    a file that is not there.
    """
    reader = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}.get(path.suffix.lower())
    if reader is None:
        raise ManifestError(
            f"{path}: expected a manifest named .csv, .jsonl or .parquet", "rename or convert it"
        )
    items, bad, ignored = dict[Item, None](), list[str](), set[str]()
    try:
        for number, record in reader(read_bytes(path, LARGEST)):
            try:
                items[_Record.model_validate(record).item(path.parent, query, choices)] = None
                ignored |= record.keys() - _Record.model_fields.keys()
            except ValueError as error:
                why = first_mistake(error) if isinstance(error, ValidationError) else error
                bad.append(f"line {number}: {why}")
    except (ValueError, csv.Error, OSError) as error:  # the last: of pyarrow
        raise ManifestError(
            f"{path}: cannot be read as {path.suffix[1:]}: {error}", "correct the manifest"
        ) from error
    if bad or not items:
        said = "; ".join(bad[:NAMED]) or "expected a row for each image, found none"
        raise ManifestError(f"{path}: {said}", "correct the manifest")
    if ignored:
        names = one_line(", ".join(sorted(ignored)[:NAMED]))
        logger.warning(
            "%s: not used: %s (known are %s)", path, names, ", ".join(_Record.model_fields)
        )
    return list(items)


def _csv(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, record without its empty cells) of each row."""
    reader = csv.DictReader(
        io.StringIO(content.decode("utf-8-sig"), newline=""), skipinitialspace=True
    )
    for row in reader:
        if None in row:
            raise ValueError(f"line {reader.line_num}: more cells than the header has")
        yield reader.line_num, {name: cell for name, cell in row.items() if cell and name}


def _json_lines(content: bytes) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            try:
                yield number, from_json(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error


def _parquet(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    from pyarrow import BufferReader
    from pyarrow.parquet import read_table

    return enumerate(read_table(BufferReader(content)).to_pylist(), 1)


# Files, folders and globs


def expand_inputs(items: Sequence[str]) -> list[Path]:
    """Files, folders and globs as a list of files in the order given, without duplicates.

    A folder stands for the image files directly in it, a glob (`**` for any depth) for those it matches, both by
    suffix, sorted as people count (2 before 10) and without hidden files. A plain path is kept even if nothing is
    there: that row will be a failure. Raises ImageError for a folder or glob without images, and for an address on a
    network.
    """
    files: dict[str, Path] = {}
    for item in map(local_path, items):
        several = os.path.isdir(item) or (glob.has_magic(item) and not os.path.exists(item))
        for file in _image_files(item) if several else [Path(item)]:
            files.setdefault(os.path.abspath(file), file)
    return list(files.values())


def _image_files(item: str) -> list[Path]:
    """The image files of a folder or a glob, sorted; see `expand_inputs`. A link that leads nowhere fails its row."""
    every = (
        Path(item).glob("*") if os.path.isdir(item) else map(Path, glob.iglob(item, recursive=True))
    )
    visible = [path for path in every if not path.name.startswith(".")]
    images = [
        path for path in visible if path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir()
    ]
    if images:
        return sorted(images, key=_natural_order)
    said = f"expected a folder or a pattern with image files ({' '.join(sorted(IMAGE_SUFFIXES))}), but found none"
    remedy = (
        f"; subfolders are searched by '{Path(glob.escape(item), '**', '*')}'"
        if os.path.isdir(item)
        else ""
    )
    raise ImageError(f"{item}: {said}", f"check the path{remedy}")


def references_in(folder: Path, images: Iterable[Path]) -> list[Path]:
    """The reference of each image: the file of its name in `folder`, else the one image file that differs in its
    suffix alone. Raises `ImageError`, which names images that have none, or several."""
    found, lacking, by_stem = [], [], defaultdict[str, list[Path]](list)
    for file in _image_files(str(folder)):
        by_stem[file.stem].append(file)
    for image in images:
        named = by_stem[image.stem]
        exact = [file for file in named if file.name == image.name] or named
        found += exact[:1]
        if len(exact) != 1:
            lacking.append(f"{image} ({' or '.join(file.name for file in exact) or 'none'})")
    if lacking:
        said = f"{folder}: expected one reference for each picture, under its name with any suffix, but not for"
        raise ImageError(
            f"{said} {', '.join(lacking[:NAMED])}",
            "add or rename them, or pair them in a --manifest.",
        )
    return found


def _natural_order(path: Path) -> tuple[list[str | int], str]:
    """A key that sorts numbers in names by value."""
    parts = re.split(r"(\d+)", str(path).casefold())
    return [int(part) if part.isdecimal() else part for part in parts], str(path)
