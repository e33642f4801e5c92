"""Reads files of scores and questions, finds the images that they name, and notes what is missing
or left out.

The files are of strangers: whatever is wrong with one is a DatasetError.
"""

import csv
import io
import json
import math
import os
import string
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from agentic_iqa_local.batch.cells import plain_cell
from agentic_iqa_local.config import check_choices
from agentic_iqa_local.files import path_text, read_bytes
from agentic_iqa_local.studies.datasets.types import (
    MOST,
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
        self.by_user = path.is_file()  # who can correct it
        root = path.parent if self.by_user else path
        self.root = root.resolve()  # the same wherever the command is run from
        self.items: list[Sample] = []
        self.missing: dict[str, None] = {}  # in the order of the scores, each name once
        self.left_out: Counter[str] = Counter()
        self._listings: dict[Path, dict[str, Path]] = {}

    def dataset(self) -> Dataset:
        """What was read. Raises DatasetError when there is neither an image nor a question."""
        if self.items:
            left_out = dict(self.left_out)
            return Dataset(self.info, self.root, tuple(self.items), tuple(self.missing), left_out)
        found = f"{len(self.missing)} that are absent"
        if self.missing:
            found += f" (the first is {next(iter(self.missing))})"
        for reason, count in self.left_out.items():
            found += f", {count} left out ({reason})"
        remedy = f"paths are relative to {self.root}: put the images there"
        raise self.error("images", found, remedy)

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
            child = self._listing(path).get(part.lower())
            if child is None:
                return None
            path = child
        return path

    def _listing(self, folder: Path) -> dict[str, Path]:
        """What lies in a folder, by its names in lower case."""
        if folder not in self._listings:
            children = folder.iterdir() if folder.is_dir() else ()
            self._listings[folder] = {child.name.lower(): child for child in children}
        return self._listings[folder]

    def rows(self, path: Path, columns: Collection[str] = ()) -> list[tuple[str, Cells]]:
        """Where each row stands ("line 3 of manifest.csv") and its cells by column name.

        A .json file is a list of objects, a .jsonl file has one a line. In a .csv file the header
        is the first row with all `columns`, in lower case; rows that are blank in all of them are
        skipped. Raises DatasetError for a file that cannot be read, or has no rows.
        """
        try:
            found = list(_numbered(path, columns))
            for _, row in found:
                if not isinstance(row, dict):
                    raise ValueError(f"expected objects, got {type(row).__name__}")
        except (ValueError, TypeError, RecursionError, csv.Error) as error:
            raise self.error(f"rows in {path.name}", str(error), "correct it") from error
        if not found:
            wanted = f"rows in {path.name}"
            if columns:
                wanted += f" under columns {', '.join(columns)}"
            raise self.error(wanted, "none", "name the columns so in its first line")
        return [(f"line {number} of {path.name}", row) for number, row in found]

    def add(self, row: Cells, where: str) -> None:
        """Adds an image with its score, or notes what is missing.

        `row` has those fields of RatedImage that are known, image and reference as names of files;
        without a group the images of one reference form one. `where` is for a message. Raises
        DatasetError where no image is named, or score or level is no number of at most `MOST`.
        """
        image, reference = row.get("image"), row.get("reference")
        if not isinstance(image, str) or not isinstance(reference, str | None):
            expected = "paths as image and reference in every row"
            raise self.error(expected, repr(row), f"correct {where}")
        mos = self._number(row.get("mos"), f"score of {image}", where)
        level = None
        if "level" in row:
            level = self._number(row["level"], f"level of {image}", where)
        self._check_range(mos, image, where)
        paths = self._locate(image, reference)
        if paths is None:
            return
        image_path, reference_path = paths
        facts = _texts(row, ("group", "distortion", "split", "subset"))
        if reference_path:
            facts.setdefault("group", reference if self.by_user else reference_path.stem)
        key = self._key(image_path)
        self.items.append(RatedImage(key, image_path, mos, reference_path, level=level, **facts))

    def _number(self, value: Any, what: str, where: str) -> float:
        if abs(number(value)) <= MOST:
            return number(value)
        raise self.error(
            f"a number as the {what} (at most {MOST:g})", repr(value), f"correct {where}"
        )

    def _check_range(self, mos: float, image: str, where: str) -> None:
        """Raises DatasetError for a score outside of the range that a manifest's user gave."""
        low, high = self.info.low, self.info.high
        if self.info.key != "manifest" or low is None or high is None or low <= mos <= high:
            return
        expected = f"a score from {low:g} to {high:g} (--mos-range) for {image}"
        raise self.error(expected, f"{mos:g}", f"correct {where}, or the range")

    def add_question(self, row: Cells, where: str) -> None:
        """Adds a question, or notes why not: a file of authors may withhold answers.

        Choices are a list, or a text that separates them by |; the answer is an index, a letter or
        the text of a choice. Raises DatasetError for what is no question.
        """
        image, question, choices = (row.get(name) for name in ("image", "question", "choices"))
        told = isinstance(image, str) and isinstance(question, str)
        if not (told and isinstance(choices, str | list)):
            found = ", ".join(map(str, row)) or "none"
            expected = "image, question and choices in every row"
            raise self.error(expected, found, f"complete {where}")
        answer = row.get("answer")
        if answer is None:
            self.left_out["no answer is published"] += 1
            return
        if isinstance(choices, str):  # of a table, where blanks around a text mean nothing
            choices, answer = choices.split("|"), str(answer).strip()
            choices = [choice.strip() for choice in choices]
        texts = tuple(map(str, choices))
        index = _index_of(answer, texts)
        if self.by_user:
            self._check_question(texts, answer, index, where)
        if index is None:
            self.left_out["the answer is none of the choices"] += 1
            return
        reference = str(row["reference"]) if "reference" in row else None
        paths = self._locate(image, reference)
        if paths:
            key = f"{self._key(paths[0])}: {question} ({' / '.join(texts)})"
            facts = _texts(row, ("task", "question_type", "split"))
            self.items.append(Question(key, paths[0], question, texts, index, paths[1], **facts))

    def _check_question(
        self, choices: Sequence[str], answer: Any, index: int | None, where: str
    ) -> None:
        try:
            check_choices(choices)
        except ValueError as error:
            expected = "answers separated by | in a CSV file"
            raise self.error(expected, str(error), f"correct {where}") from error
        if index is None:
            expected = "as answer one of the choices or its letter"
            raise self.error(expected, repr(answer), f"correct {where}")

    def _key(self, image: Path) -> str:
        """The path from the set's folder, or the whole path of an image that lies elsewhere: the
        same from whatever folder the command is run."""
        return path_text(image.relative_to(self.root) if image.is_relative_to(self.root) else image)

    def _locate(self, image: str, reference: str | None) -> tuple[Path, Path | None] | None:
        """The files of both; None, and a note of it, when one is absent."""
        path = self._image(image)
        if path is None:
            self.missing[image] = None
        reference_path = self.find(reference) if reference else None
        if reference and reference_path is None:
            self.missing[reference] = None
            if path:
                self.left_out["the reference image is missing"] += 1
            return None
        return (path, reference_path) if path else None

    def _image(self, name: str) -> Path | None:
        """The file of an image. That of an authors' list is sought in all folders."""
        names = [name]
        if not self.by_user:
            names += sorted(f"{p.name}/{name}" for p in self.root.iterdir() if p.is_dir())
        for each in names:
            path = self.find(each)
            if path and path.is_file():
                return path
        return None


def _numbered(path: Path, columns: Collection[str]) -> Iterator[tuple[int, Any]]:
    """The number and the cells of each row of a file, see `DatasetReader.rows`."""
    lines, kind = lines_of(path), path.suffix.lower()
    if kind == ".csv":
        yield from _table(lines, columns)
    elif kind == ".jsonl":
        for at, line in enumerate(lines, 1):
            if line.strip():
                yield at, json.loads(line)
    else:
        yield from enumerate(json.loads("\n".join(lines)), 1)


def _table(lines: Sequence[str], columns: Collection[str]) -> Iterator[tuple[int, Cells]]:
    """The same of a table's rows."""
    reader = csv.reader(io.StringIO("\n".join(lines), newline=""), skipinitialspace=True)
    names: list[str] = []
    for cells in reader:
        names = [cell.strip().lower() for cell in cells]
        if any(names) and set(columns) <= set(names):
            break
    for cells in reader:
        row = dict.fromkeys(names, "") | dict(zip(names, map(plain_cell, cells), strict=False))
        if any(row[name] for name in columns or names):
            yield reader.line_num, row


def _texts(row: Cells, names: Sequence[str]) -> dict[str, Any]:
    return {name: str(row[name]) for name in names if name in row}


def _index_of(answer: Any, choices: Sequence[str]) -> int | None:
    """The number of the choice that an answer names by its text, its letter or its number."""
    count = len(choices)
    for names in (list(choices), list(string.ascii_uppercase[:count]), list(range(count))):
        if answer in names:
            return names.index(answer)
    return None


def number(value: Any) -> float:
    """`value` as a number; NaN when it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def lines_of(path: Path) -> list[str]:
    """The lines of a text file. A byte that is not UTF-8 spoils the name it stands in, which then
    is missing. Raises FileError."""
    return read_bytes(path, LARGEST).decode("utf-8-sig", errors="replace").split("\n")
