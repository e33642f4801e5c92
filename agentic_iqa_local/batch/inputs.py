"""Which pictures to assess: files, folders, globs and manifests become items."""

import csv
import functools
import glob
import io
import json
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from agentic_iqa_local.batch.cells import plain_cell
from agentic_iqa_local.config import Boxes, Choices, Query
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import path_text, read_bytes, reason
from agentic_iqa_local.images.files import ImageError, local_path
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.query import choices_in
from agentic_iqa_local.state import IMAGE_SUFFIXES, RAW_SUFFIXES

logger = logging.getLogger(__name__)

NAMED = 5  # lines, columns or pictures in a message
# Suffixes of what lies beside pictures by nature or was written here
_BESIDE_PICTURES = {
    ".xmp", ".txt", ".json", ".jsonl", ".csv", ".html", ".htm", ".md", ".yaml", ".yml", ".xml",
    ".ini", ".db", ".log", ".parquet", ".aae", ".thm", ".partial", ".lock",
}  # fmt: skip
LARGEST = 2**29  # bytes: a million rows with long questions
Line = TypeVar("Line", bound=BaseModel)
Entry = TypeVar("Entry")


class ManifestError(UserError, ValueError):
    """A manifest that cannot be used; one sentence that names lines and reasons."""


@dataclass(frozen=True)
class Item:
    """One picture and the question about it, which become one row. Without `choices`, those that
    the query itself lists are taken."""

    image: Path
    reference: Path | None = None
    query: str = DEFAULT_QUERY
    choices: Sequence[str] | None = None
    box: str | None = None

    def __post_init__(self) -> None:
        choices = self.choices or _choices_in(self.query)
        object.__setattr__(self, "choices", tuple(choices) or None)

    @property
    def key(self) -> str:
        """What tells rows apart; `row_key` finds it in a row."""
        reference = self.reference and path_text(self.reference)
        return _key(path_text(self.image), reference, self.query, self.choices, self.box)


@functools.lru_cache(maxsize=1024)  # a million pictures have the same query
def _choices_in(query: str) -> Sequence[str]:
    return choices_in(query) or ()


def row_key(row: Mapping[str, Any]) -> str:
    """The key of the item that a row is about. Raises KeyError for a row of something else."""
    return _key(row["image"], row["reference"], row["query"], row["choices"], row.get("box"))


def _key(*about: Any) -> str:
    """The key of a picture, its reference, query, choices and box."""
    return json.dumps(about)


# Manifests


def _split(choices: Any) -> Any:
    return choices.split("|") if isinstance(choices, str) else choices


class ManifestLine(BaseModel, extra="allow"):
    """The columns of a manifest; those that a line leaves empty are as the command says."""

    image: str = Field(min_length=1)
    reference: str | None = None
    query: Query | None = None
    choices: Annotated[Choices, BeforeValidator(_split)] | None = None
    box: Boxes | None = None

    def item(self, folder: Path, asked: Mapping[str, Any]) -> Item:
        """The item of a line of a manifest in `folder`. Raises ValueError for files that are not
        there."""
        image, reference = folder / self.image, None
        if self.reference:
            reference = folder / self.reference
        for file in (image, reference):
            if file and not os.path.isfile(file):
                raise ValueError(f"there is no file {file}")
        query = self.query or asked.get("query") or DEFAULT_QUERY
        choices = self.choices or asked.get("choices")
        return Item(image, reference, query, choices, self.box or asked.get("box"))


def read_manifest(path: Path, **asked: Any) -> list[Item]:
    """The items of a manifest, each once: CSV with a header (choices separated by |) or JSON lines.

    Args:
        path: Its columns are those of `ManifestLine`. Paths in it are relative to it.
        asked: `query`, `choices` and `box` of lines that have none.

    Raises:
        ManifestError: Names the lines that are malformed or name a file that is not there.
    """
    return manifest_entries(path, ManifestLine, lambda line: line.item(path.parent, asked))


def manifest_entries(path: Path, kind: type[Line], entry: Callable[[Line], Entry]) -> list[Entry]:
    """What `entry` makes of each line of a manifest, each once; a line has the columns of `kind`.
    Raises ManifestError, which names the lines that `kind` does not take, or of which `entry` raises
    ValueError."""
    reader = {".csv": _csv, ".jsonl": _json_lines}.get(path.suffix.lower())
    if reader is None:
        said = f"{path}: expected a manifest named .csv or .jsonl"
        raise ManifestError(said, "rename or convert it")
    entries = dict[Entry, None]()
    bad = list[str]()
    ignored = set[str]()
    try:
        for number, record in reader(read_bytes(path, LARGEST)):
            try:
                line = kind.model_validate_json(record)
                entries[entry(line)] = None
                ignored.update(line.model_extra or ())
            except ValueError as error:
                bad.append(f"line {number}: {reason(error)}")
    except (ValueError, csv.Error) as error:
        said = f"{path}: cannot be read as {path.suffix[1:]}: {error}"
        raise ManifestError(said, "correct the manifest") from error
    if bad or not entries:
        said = "; ".join(bad[:NAMED]) or "expected a row for each image, found none"
        raise ManifestError(f"{path}: {said}", "correct the manifest")
    if ignored:
        names = one_line(", ".join(sorted(ignored)[:NAMED]))
        known = ", ".join(kind.model_fields)
        logger.warning("%s: not used: %s (known are %s)", path, names, known)
    return list(entries)


def _csv(content: bytes) -> Iterator[tuple[int, str]]:
    """(line, JSON of its cells that are not empty) of each row."""
    text = io.StringIO(content.decode("utf-8-sig"), newline="")
    reader = csv.DictReader(text, skipinitialspace=True)
    for row in reader:
        if None in row:
            raise ValueError(f"line {reader.line_num}: more cells than the header has")
        filled = {name: plain_cell(cell) for name, cell in row.items() if cell and name}
        yield reader.line_num, json.dumps(filled)


def _json_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            yield number, line


# Files, folders and globs


def expand_inputs(items: Sequence[str], *, raw_previews: bool = False) -> list[Path]:
    """Files, folders and globs as a list of files in the order given, each real file once, under
    the first of its names; hard links are files of their own.

    A folder stands for the image files directly in it, a glob (`**` for any depth, without links to
    folders) for those it matches, both by suffix, sorted as people count (2 before 10) and without
    what is hidden; a warning counts what else is there. A plain path is kept even if nothing is
    there: that row will be a failure. RAW files are images with `raw_previews`. Raises
    ImageError for a folder or glob without images, and for an address on a network.
    """
    files: dict[str, Path] = {}
    skipped = set[Path]()
    suffixes = (*IMAGE_SUFFIXES, *RAW_SUFFIXES) if raw_previews else IMAGE_SUFFIXES
    for item in map(local_path, items):
        several = os.path.isdir(item) or (glob.has_magic(item) and not os.path.exists(item))
        for file in _image_files(item, skipped, suffixes) if several else [Path(item)]:
            files.setdefault(os.path.realpath(file), file)
    if skipped:
        logger.warning(
            "skipped, for only files named as pictures of known formats are read: %s",
            _counts(skipped),
        )
    return list(files.values())


def _image_files(
    item: str, skipped: set[Path], suffixes: Sequence[str] = IMAGE_SUFFIXES
) -> list[Path]:
    """The image files of a folder or a glob, sorted; see `expand_inputs`. What else is there is put
    into `skipped`."""
    folder = os.path.isdir(item)
    images = list[Path]()
    others = set[Path]()
    for path in Path(item).iterdir() if folder else _matching(item):
        suffix = path.suffix.lower()
        if path.name.startswith(".") or (path.is_dir() and not folder):
            continue
        if suffix in suffixes and not path.is_dir():
            images.append(path)
        elif suffix not in _BESIDE_PICTURES:
            others.add(path.resolve())
    if not images:
        known = " ".join(sorted(suffixes))
        said = f"expected a folder or a pattern with image files ({known}), but found none"
        beside = f" beside {_counts(others)}" if others else ""
        raise ImageError(f"{item}: {said}{beside}", "check the path")
    skipped |= others
    return sorted(images, key=_natural_order)


def _counts(skipped: Iterable[Path]) -> str:
    """How many there are of each suffix, and of folders."""
    kinds = Counter[str]()
    for path in skipped:
        kind = path.suffix.lower() or "without suffix"
        if path.is_dir():
            kind = "subfolder(s) (searched by 'FOLDER/**/*')"
        kinds[kind] += 1
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    raw = kinds.keys() & set(RAW_SUFFIXES)
    return f"{said} (--raw-previews judges the previews in RAW files)" if raw else said


def _matching(pattern: str) -> Iterator[Path]:
    """The paths that a glob matches, but for what is hidden."""
    parts = Path(pattern).parts
    fixed = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    tail = os.path.join(*parts[fixed:])
    if tail.endswith("**"):  # which are folders to pathlib
        tail = os.path.join(tail, "*")
    tail = re.sub(r"(?<=[^/])\*\*|\*\*(?=[^/])", "*", tail)  # within a name ** is *
    for path in Path(*parts[:fixed]).glob(tail):
        if not any(part.startswith(".") for part in path.parts[fixed:]):
            yield path


def references_in(folder: Path, images: Iterable[Path]) -> list[Path]:
    """The reference of each image: the file of its name in `folder`, else the one image file that
    differs in its suffix alone. Raises `ImageError`, which names images that have none, or
    several."""
    found = list[Path]()
    lacking = list[str]()
    by_stem = defaultdict[str, list[Path]](list)
    for file in _image_files(str(folder), set()):
        by_stem[file.stem].append(file)
    for image in images:
        named = by_stem[image.stem]
        exact = [file for file in named if file.name == image.name] or named
        found += exact
        if len(exact) != 1:
            lacking.append(f"{image} (found {len(exact)})")
    if lacking:
        expected = "expected one reference for each picture, under its name with any suffix"
        said = f"{folder}: {expected}, but not for {', '.join(lacking[:NAMED])}"
        raise ImageError(said, "add or rename them, or pair them in a --manifest.")
    return found


def _natural_order(path: Path) -> tuple[list[str | int], str]:
    """A key that sorts numbers in names by value."""
    parts = re.split(r"(\d+)", str(path).casefold())
    return [int(part) if part.isdecimal() else part for part in parts], str(path)
