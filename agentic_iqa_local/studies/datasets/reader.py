"""Reads files of scores and questions, finds the images that they name, and notes what is missing
or left out.

The files are of strangers: whatever is wrong with one is a DatasetError.
"""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from agentic_iqa_local.batch.cells import plain_cell
from agentic_iqa_local.files import path_text, read_bytes, reason
from agentic_iqa_local.studies.datasets.types import (
    Dataset,
    DatasetError,
    DatasetInfo,
    Question,
    RatedImage,
    Sample,
)

LARGEST = 2**28  # bytes of a file of scores: millions of rows
Cells = dict[str, Any]  # of a line, by our names or the authors'


class DatasetReader:
    """A folder, or the single file at `path`, on its way to a Dataset. Names of files are relative
    to the folder and match whatever their case."""

    def __init__(self, info: DatasetInfo, path: Path):
        self.info, self.path = info, path
        self.ends: tuple[float, float] | None = None  # of the scale, where a user told them
        self.by_user = path.is_file()  # who can correct it
        root = path.parent if self.by_user else path
        self.root = root.resolve()  # the same wherever the command is run from
        self.items: list[Sample] = []
        self.missing: dict[str, None] = {}  # in the order of the scores, each name once
        self.left_out: Counter[str] = Counter()
        self._listings: dict[Path, dict[str, Path]] = {}

    def dataset(self) -> Dataset:
        """What was read. Raises DatasetError when there is neither an image nor a question."""
        if not self.items:
            names = list(self.missing) or ["none is named"]
            found = f"{len(self.missing)} that are absent (the first is {names[0]})"
            remedy = f"paths are relative to {self.root}: put the images there"
            raise self.error("images", found, remedy)
        left_out = dict(self.left_out)
        return Dataset(self.info, self.root, tuple(self.items), tuple(self.missing), left_out)

    def error(self, expected: str, found: str, remedy: str) -> DatasetError:
        told = f"expected {expected:.300} ({self.info.title}), found {found:.300}"
        return DatasetError(f"{self.path}: {told}", remedy)

    def find(self, name: str) -> Path | None:
        """The file or folder `name`, or None."""
        exact = self.root / name
        if os.path.exists(exact):  # Path.exists raises for a name that is too long
            return exact
        path = self.root
        for part in PurePosixPath(name).parts:
            if path not in self._listings:
                children = path.iterdir() if path.is_dir() else ()
                self._listings[path] = {child.name.lower(): child for child in children}
            if part.lower() not in self._listings[path]:
                return None
            path = self._listings[path][part.lower()]
        return path

    def rows(self, path: Path) -> list[tuple[str, Cells]]:
        """Where each row stands ("line 3 of manifest.csv") and its cells by column name.

        A .json file is a list of objects, a .jsonl file has one a line. A .csv file begins with its
        header, which is read in lower case. Raises DatasetError for a file that cannot be read, or
        has no rows.
        """
        try:
            found = [(f"line {at} of {path.name}", dict(row)) for at, row in _rows(path)]
        except (ValueError, TypeError, RecursionError, csv.Error) as error:
            raise self.error(f"rows in {path.name}", str(error), "correct it") from error
        if not found:
            raise self.error(f"rows in {path.name}", "none", "name the columns in its first line")
        return found

    def add(self, cells: Cells, where: str) -> None:
        """Adds an image with its score or a question, whose known fields are `cells` (image and
        reference as names of files), or notes what is missing; without a group the images of one
        reference form one. What is wrong with a row of an authors' list is counted: answers may be
        withheld. Raises DatasetError for a row of a user's, which `where` names."""
        try:
            item = self._validated(cells)
        except ValueError as error:
            said = reason(error)
            if self.by_user:
                raise DatasetError(f"{self.path}: {said}", f"correct {where}") from error
            self.left_out[said] += 1
            return
        image = self._image(str(item.image))
        reference = item.reference and self.find(str(item.reference))
        if image is None:
            self.missing[str(item.image)] = None
        elif item.reference and reference is None:
            self.missing[str(item.reference)] = None
            self.left_out["the reference image is missing"] += 1
        else:
            self.items.append(self._located(item, image, reference))

    def _located(self, item: Sample, image: Path, reference: Path | None) -> Sample:
        told: dict[str, Any] = {"image": image, "reference": reference, "key": self._key(image)}
        if isinstance(item, Question):
            told["key"] += f": {item.question} ({' / '.join(item.choices)})"
        elif item.reference and item.group is None:
            told["group"] = str(item.reference) if self.by_user else item.reference.stem
        return item.model_copy(update=told)

    def _validated(self, cells: Cells) -> Sample:
        """The item that a row tells of. Raises ValueError."""
        row = {name: value for name, value in cells.items() if value not in (None, "")}
        if self.info.kind == "MCQ":
            return Question.model_validate(row)
        return RatedImage.model_validate(row, context=self.ends)

    def _key(self, image: Path) -> str:
        """The path from the set's folder, or the whole path of an image that lies elsewhere: the
        same from whatever folder the command is run."""
        return path_text(image.relative_to(self.root) if image.is_relative_to(self.root) else image)

    def _image(self, name: str) -> Path | None:
        """The file of an image. That of an authors' list is sought in all folders."""
        names = [name]
        if not self.by_user:
            names += sorted(f"{p.name}/{name}" for p in self.root.iterdir() if p.is_dir())
        paths = map(self.find, names)
        return next((path for path in paths if path and path.is_file()), None)


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """The number and the cells of each row of a file, see `DatasetReader.rows`."""
    lines, kind = lines_of(path), path.suffix.lower()
    if kind == ".csv":
        yield from _table("\n".join(lines))
    elif kind == ".json":
        yield from enumerate(json.loads("\n".join(lines)), 1)
    else:
        for at, line in enumerate(lines, 1):
            if line.strip():
                yield at, json.loads(line)


def _table(text: str) -> Iterator[tuple[int, Cells]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="", skipinitialspace=True)
    names = [name.strip().lower() for name in reader.fieldnames or ()]
    reader.fieldnames = names
    for row in reader:
        cells = {name: plain_cell(row[name]) for name in names}
        if any(cells.values()):
            yield reader.line_num, cells


def lines_of(path: Path) -> list[str]:
    """The lines of a text file. A byte that is not UTF-8 spoils the name it stands in, which then
    is missing. Raises FileError."""
    return read_bytes(path, LARGEST).decode("utf-8-sig", errors="replace").split("\n")
