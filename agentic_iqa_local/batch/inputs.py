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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import from_json

from agentic_iqa_local.batch.cells import plain_cell
from agentic_iqa_local.config import Boxes, Choices, check_query
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import path_text, read_bytes, reason
from agentic_iqa_local.images.files import ImageError, local_path
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.nodes.query import choices_in
from agentic_iqa_local.state import IMAGE_SUFFIXES

logger = logging.getLogger(__name__)

NAMED = 5  # rows, columns or pictures in a message
# Suffixes of what lies beside pictures by nature or was written here
_BESIDE_PICTURES = {
    ".xmp", ".txt", ".json", ".jsonl", ".csv", ".html", ".htm", ".md", ".yaml", ".yml", ".xml",
    ".ini", ".db", ".log", ".parquet", ".aae", ".thm", ".partial", ".lock",
}  # fmt: skip
LARGEST = 2**29  # bytes: a million rows with long questions


class ManifestError(UserError, ValueError):
    """A manifest that cannot be used; one sentence that names lines and reasons."""


@dataclass(frozen=True)
class Item:
    """One picture and the question about it, which become one row. Without `choices`, those that
    the query itself lists are taken."""

    image: Path
    reference: Path | None = None
    query: str = DEFAULT_QUERY
    choices: tuple[str, ...] | None = None
    box: str | None = None

    def __post_init__(self) -> None:
        if self.choices is None:
            object.__setattr__(self, "choices", _choices_in(self.query))

    @property
    def key(self) -> str:
        """What tells rows apart; `row_key` finds it in a row."""
        reference = self.reference and path_text(self.reference)
        return _key(path_text(self.image), reference, self.query, self.choices, self.box)


@functools.lru_cache(maxsize=1024)  # a million pictures have the same query
def _choices_in(query: str) -> tuple[str, ...] | None:
    return tuple(choices_in(query) or ()) or None


def row_key(row: Mapping[str, Any]) -> str:
    """The key of the item that a row is about. Raises KeyError for a row of something else."""
    return _key(row["image"], row["reference"], row["query"], row["choices"], row.get("box"))


def _key(*about: Any) -> str:
    """The key of a picture, its reference, query, choices and box."""
    return json.dumps(about)


# Manifests


def _split(choices: Any) -> Any:
    return choices.split("|") if isinstance(choices, str) else choices


class ManifestLine(BaseModel):
    """The columns of a manifest; those that a line leaves empty are as the command says."""

    image: str = Field(min_length=1)
    reference: str | None = None
    query: Annotated[str, BeforeValidator(check_query)] | None = None
    choices: Annotated[Choices, BeforeValidator(_split)] | None = None
    box: Boxes | None = None

    def item(self, folder: Path, asked: Mapping[str, Any]) -> Item:
        """The item of a line of a manifest in `folder`. Raises ValueError for files that are not
        there."""
        files: dict[str, Any] = {}
        for column in ("image", "reference"):
            name = getattr(self, column)
            if not name:
                continue
            files[column] = folder / name
            if not os.path.isfile(files[column]):
                raise ValueError(f"{column}: there is no file {files[column]}")
        own = self.model_dump(exclude={"image", "reference"}, exclude_none=True)
        about: dict[str, Any] = {"query": DEFAULT_QUERY, **asked, **own}
        if choices := about.pop("choices", None):
            about["choices"] = tuple(choices)
        return Item(**files, **about)


def read_manifest(path: Path, **asked: Any) -> list[Item]:
    """The items of a manifest, each once: CSV with a header (choices separated by |), JSON lines,
    or Parquet.

    Args:
        path: Its columns are those of `ManifestLine`. Paths in it are relative to it.
        asked: `query`, `choices` and `box` of lines that have none.

    Raises:
        ManifestError: Names the lines that are malformed or name a file that is not there.
    """
    reader = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}.get(path.suffix.lower())
    if reader is None:
        raise ManifestError(
            f"{path}: expected a manifest named .csv, .jsonl or .parquet", "rename or convert it"
        )
    asked = {name: value for name, value in asked.items() if value}
    items = dict[Item, None]()
    bad = list[str]()
    ignored = set[str]()
    try:
        for number, record in reader(read_bytes(path, LARGEST)):
            try:
                line = ManifestLine.model_validate(record)
                items[line.item(path.parent, asked)] = None
                ignored |= record.keys() - ManifestLine.model_fields.keys()
            except ValueError as error:
                why = reason(error)
                bad.append(f"line {number}: {why}")
    except (ValueError, csv.Error, OSError) as error:  # the last: of pyarrow
        said = f"{path}: cannot be read as {path.suffix[1:]}: {error}"
        raise ManifestError(said, "correct the manifest") from error
    if bad or not items:
        said = "; ".join(bad[:NAMED]) or "expected a row for each image, found none"
        raise ManifestError(f"{path}: {said}", "correct the manifest")
    if ignored:
        names = one_line(", ".join(sorted(ignored)[:NAMED]))
        known = ", ".join(ManifestLine.model_fields)
        logger.warning("%s: not used: %s (known are %s)", path, names, known)
    return list(items)


def _csv(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, record without its empty cells) of each row."""
    reader = csv.DictReader(
        io.StringIO(content.decode("utf-8-sig"), newline=""), skipinitialspace=True
    )
    for row in reader:
        if None in row:
            raise ValueError(f"line {reader.line_num}: more cells than the header has")
        filled = {name: plain_cell(cell) for name, cell in row.items() if cell and name}
        yield reader.line_num, filled


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


@dataclass
class Skipped:
    """What lies in folders beside the pictures that are read."""

    files: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by suffix
    subfolders: Counter[str] = field(default_factory=Counter)  # how many, by folder

    def add(self, file: Path) -> None:
        suffix = file.suffix.lower()
        if suffix not in _BESIDE_PICTURES:
            self.files[suffix or "without suffix"].add(os.path.realpath(file))

    def __str__(self) -> str:
        counts = Counter({suffix: len(files) for suffix, files in self.files.items()})
        parts = [f"{count} {suffix}" for suffix, count in counts.most_common()]
        for folder, count in self.subfolders.items():
            pattern = Path(glob.escape(folder), "**", "*")
            parts.append(f"{count} subfolder{'s' * (count > 1)} (searched by '{pattern}')")
        return ", ".join(parts)


def expand_inputs(items: Sequence[str]) -> list[Path]:
    """Files, folders and globs as a list of files in the order given, each real file once.

    A folder stands for the image files directly in it, a glob (`**` for any depth) for those it
    matches, both by suffix, sorted as people count (2 before 10) and without hidden files; a
    warning counts what else is there. A plain path is kept even if nothing is there: that row will
    be a failure. Of several links to a file the first that is named counts, in a folder or a glob
    the file itself, else the shortest path; hard links are files of their own. Raises ImageError
    for a folder or glob without images, and for an address on a network.
    """
    files: dict[str, Path] = {}
    skipped = Skipped()
    for item in map(local_path, items):
        several = os.path.isdir(item) or (glob.has_magic(item) and not os.path.exists(item))
        for file in _each_once(_image_files(item, skipped)) if several else [Path(item)]:
            files.setdefault(_place(file), file)
    if said := str(skipped):
        logger.warning(
            "skipped, for only files named as pictures of known formats are read: %s", said
        )
    return list(files.values())


def _place(file: Path) -> str:
    """Where a file really lies; of a link that leads nowhere, where the link does."""
    if file.exists():
        return os.path.realpath(file)
    return os.path.join(os.path.realpath(file.parent), file.name)


def _image_files(item: str, skipped: Skipped | None = None) -> list[Path]:
    """The image files of a folder or a glob, sorted; see `expand_inputs`. A link that leads nowhere
    fails its row."""
    skipped = Skipped() if skipped is None else skipped
    folder = os.path.isdir(item)
    images: list[Path] = []
    for path in map(Path, os.scandir(item) if folder else _matching(item)):
        if path.name.startswith(".") or (not folder and path.is_dir()):
            continue
        if path.is_dir():
            skipped.subfolders[item] += 1
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            images.append(path)
        else:
            skipped.add(path)
    if not images:
        raise _no_images(item, folder, skipped)
    return sorted(images, key=_natural_order)


def _each_once(images: Iterable[Path]) -> list[Path]:
    """Each real file among images of one folder or glob, sorted."""
    own: dict[str, Path] = {}
    for image in sorted(images, key=_by_directness):
        own.setdefault(_place(image), image)
    return sorted(own.values(), key=_natural_order)


def _by_directness(path: Path) -> Any:
    """A key that sorts files before links to them, and short paths first."""
    return os.path.abspath(path) != _place(path), len(path.parts), _natural_order(path)


def _no_images(item: str, folder: bool, skipped: Skipped) -> ImageError:
    said = f"expected a folder or a pattern with image files ({' '.join(sorted(IMAGE_SUFFIXES))}), but found none"
    beside = f" beside {skipped}" if skipped.files else ""
    pattern = Path(glob.escape(item), "**", "*")
    remedy = f"; subfolders are searched by '{pattern}'" if folder else ""
    return ImageError(f"{item}: {said}{beside}", f"check the path{remedy}")


def _matching(pattern: str) -> Iterator[str]:
    """The paths that a glob matches. Below `**` each folder is looked into once, wherever links
    lead."""
    head, *tail = re.split(r"(?:^|(?<=/))\*\*(?:/+|$)", pattern, maxsplit=1)
    if not tail:
        yield from glob.iglob(pattern)
        return
    for top in glob.iglob(head) if head else [os.curdir]:
        for folder in _folders(top):
            yield from _matching(os.path.join(glob.escape(folder), tail[0] or "*"))


def _folders(top: str) -> Iterator[str]:
    """A folder and those below it, each once, and under its own path where it has one: links are
    followed last."""
    waiting = [top]
    links = list[str]()
    seen = set[str]()
    while waiting or links:
        folder = waiting.pop(0) if waiting else links.pop(0)
        place = os.path.realpath(folder)
        if place in seen:
            continue
        seen.add(place)
        yield folder
        with suppress(OSError):  # one that may not be read
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                if entry.is_dir() and not entry.name.startswith("."):
                    (links if entry.is_symlink() else waiting).append(entry.path)


def references_in(folder: Path, images: Iterable[Path]) -> list[Path]:
    """The reference of each image: the file of its name in `folder`, else the one image file that
    differs in its suffix alone. Raises `ImageError`, which names images that have none, or
    several."""
    found = list[Path]()
    lacking = list[str]()
    by_stem = defaultdict[str, list[Path]](list)
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
