"""Reads files of scores and questions, finds the images that they name, and notes what is missing or left out.

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

from agentic_iqa_local.cells import plain_cell
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
Row = dict[str, Any]


class DatasetReader:
    """A folder, or the single file at `path`, on its way to a Dataset. Names of files are relative to the folder and
    match whatever their case."""

    def __init__(self, info: DatasetInfo, path: Path):
        self.info, self.path = info, path
        self.by_user = path.is_file()  # who can correct it
        self.root = (
            path.parent if self.by_user else path
        ).resolve()  # the same wherever the command is run from
        self.items: list[Sample] = []
        self.missing: dict[str, None] = {}  # in the order of the scores, each name once
        self.left_out: Counter[str] = Counter()
        self._listings: dict[Path, dict[str, Path]] = {}

    def dataset(self) -> Dataset:
        """What was read. Raises DatasetError when there is neither an image nor a question."""
        if not self.items:
            first = f" (the first is {next(iter(self.missing))})" if self.missing else ""
            found = f"{len(self.missing)} that are absent{first}"
            found += "".join(
                f", {count} left out ({reason})" for reason, count in (+self.left_out).items()
            )
            raise self.error(
                "images", found, f"paths are relative to {self.root}: put the images there"
            )
        return Dataset(
            self.info, self.root, tuple(self.items), tuple(self.missing), dict(+self.left_out)
        )

    def error(self, expected: str, found: str, remedy: str) -> DatasetError:
        return DatasetError(
            f"{self.path}: expected {expected:.300} ({self.info.title}), found {found:.300}", remedy
        )

    def find(self, name: str) -> Path | None:
        """The file or folder `name`, or None."""
        if os.path.exists(
            exact := self.root / name
        ):  # Path.exists raises for a name that is too long
            return exact
        path = self.root
        for part in PurePosixPath(name).parts:
            if path not in self._listings:
                self._listings[path] = (
                    {p.name.lower(): p for p in path.iterdir()} if path.is_dir() else {}
                )
            if (child := self._listings[path].get(part.lower())) is None:
                return None
            path = child
        return path

    def rows(self, path: Path, columns: Collection[str] = ()) -> list[tuple[str, Row]]:
        """Where each row stands ("line 3 of manifest.csv") and its cells by column name.

        A .json file is a list of objects, a .jsonl file has one a line. In a .csv file the header is the first row with
        all `columns`, in lower case; rows that are blank in all of them are skipped. Raises DatasetError for a file
        that cannot be read, or has no rows.
        """
        lines = lines_of(path)
        try:
            if path.suffix.lower() == ".csv":
                found = list(_table(lines, columns))
            elif path.suffix.lower() == ".jsonl":
                found = [(i, json.loads(line)) for i, line in enumerate(lines, 1) if line.strip()]
            else:
                found = list(enumerate(json.loads("\n".join(lines)), 1))
            if strangers := [type(row).__name__ for _, row in found if not isinstance(row, dict)]:
                raise ValueError(f"expected objects, got {strangers[0]}")
        except (ValueError, TypeError, RecursionError, csv.Error) as error:
            raise self.error(f"rows in {path.name}", str(error), "correct it") from error
        if not found:
            wanted = f"rows in {path.name}" + f" under columns {', '.join(columns)}" * bool(columns)
            raise self.error(wanted, "none", "name the columns so in its first line")
        return [(f"line {number} of {path.name}", row) for number, row in found]

    def add(self, row: Row, where: str) -> None:
        """Adds an image with its score, or notes what is missing.

        `row` has those fields of RatedImage that are known, image and reference as names of files; without a group the
        images of one reference form one. `where` is for a message. Raises DatasetError where no image is named, or
        score or level is no number of at most `MOST`.
        """
        image, reference, mos = row.get("image"), row.get("reference"), row.get("mos")
        if not isinstance(image, str) or not isinstance(reference, str | None):
            raise self.error(
                "paths as image and reference in every row", repr(row), f"correct {where}"
            )
        for name, value in (("score", mos), ("level", row.get("level", 0))):
            if not abs(number(value)) <= MOST:
                wanted = f"a number as the {name} of {image} (at most {MOST:g})"
                raise self.error(wanted, repr(value), f"correct {where}")
        low, high = (self.info.low, self.info.high) if self.info.key == "manifest" else (None, None)
        if low is not None and high is not None and not low <= number(mos) <= high:
            expected = f"a score from {low:g} to {high:g} (--mos-range) for {image}"
            raise self.error(expected, f"{number(mos):g}", f"correct {where}, or the range")
        if paths := self._locate(image, reference):
            facts: dict[str, Any] = {
                "group": reference if self.by_user else paths[1] and paths[1].stem
            }
            facts |= {
                name: str(row[name])
                for name in ("group", "distortion", "split", "subset")
                if name in row
            }
            facts["level"] = number(row["level"]) if "level" in row else None
            self.items.append(
                RatedImage(self._key(paths[0]), paths[0], number(mos), paths[1], **facts)
            )

    def add_question(self, row: Row, where: str) -> None:
        """Adds a question, or notes why not: a file of authors may withhold answers.

        Choices are a list, or a text that separates them by |; the answer is an index, a letter or the text of a
        choice. Raises DatasetError for what is no question.
        """
        image, question, choices, answer = (
            row.get(name) for name in ("image", "question", "choices", "answer")
        )
        if not (
            isinstance(image, str) and isinstance(question, str) and isinstance(choices, str | list)
        ):
            expected, found = (
                "image, question and choices in every row",
                ", ".join(map(str, row)) or "none",
            )
            raise self.error(expected, found, f"complete {where}")
        if answer is None:
            self.left_out["no answer is published"] += 1
            return
        if isinstance(choices, str):  # of a table, where blanks around a text mean nothing
            choices, answer = [choice.strip() for choice in choices.split("|")], str(answer).strip()
        texts = [str(choice) for choice in choices]
        namings: list[list[Any]] = [
            texts,
            list(string.ascii_uppercase[: len(texts)]),
            list(range(len(texts))),
        ]
        index = next((names.index(answer) for names in namings if answer in names), None)
        if self.by_user:
            try:
                check_choices(texts)
            except ValueError as error:
                raise self.error(
                    "answers separated by | in a CSV file", str(error), f"correct {where}"
                ) from error
            if index is None:
                raise self.error(
                    "as answer one of the choices or its letter", repr(answer), f"correct {where}"
                )
        if index is None:
            self.left_out["the answer is none of the choices"] += 1
        elif paths := self._locate(image, str(row["reference"]) if "reference" in row else None):
            facts = {
                name: str(row[name]) for name in ("task", "question_type", "split") if name in row
            }
            key = f"{self._key(paths[0])}: {question} ({' / '.join(texts)})"
            self.items.append(
                Question(key, paths[0], question, tuple(texts), index, paths[1], **facts)
            )

    def _key(self, image: Path) -> str:
        """The path from the set's folder, or the whole path of an image that lies elsewhere: the same from whatever
        folder the command is run."""
        return path_text(image.relative_to(self.root) if image.is_relative_to(self.root) else image)

    def _locate(self, image: str, reference: str | None) -> tuple[Path, Path | None] | None:
        """The files of both; None, and a note of it, when one is absent. An image of an authors' list is sought in all
        folders."""
        folders = [] if self.by_user else sorted(p.name for p in self.root.iterdir() if p.is_dir())
        found = map(self.find, (image, *(f"{folder}/{image}" for folder in folders)))
        path = next((place for place in found if place and place.is_file()), None)
        reference_path = self.find(reference) if reference else None
        if path is None:
            self.missing[image] = None
        if reference and reference_path is None:
            self.missing[reference] = None
            self.left_out["the reference image is missing"] += path is not None
            return None
        return (path, reference_path) if path else None


def _table(lines: Sequence[str], columns: Collection[str]) -> Iterator[tuple[int, Row]]:
    """Number and cells of a table's rows, see `DatasetReader.rows`."""
    names: list[str] = []
    for cells in (
        reader := csv.reader(io.StringIO("\n".join(lines), newline=""), skipinitialspace=True)
    ):
        if names:
            row = dict.fromkeys(names, "") | dict(zip(names, map(plain_cell, cells), strict=False))
            if any(row[name] for name in columns or names):
                yield reader.line_num, row
        elif any(header := [cell.strip().lower() for cell in cells]) and set(columns) <= set(
            header
        ):
            names = header


def number(value: Any) -> float:
    """`value` as a number; NaN when it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def lines_of(path: Path) -> list[str]:
    """The lines of a text file. A byte that is not UTF-8 spoils the name it stands in, which then is missing. Raises
    FileError."""
    return read_bytes(path, LARGEST).decode("utf-8-sig", errors="replace").split("\n")
