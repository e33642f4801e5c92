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
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from agentic_iqa_local.config import check_choices
from agentic_iqa_local.files import read_bytes
from agentic_iqa_local.studies.datasets.types import (
    MOST,
    Dataset,
    DatasetError,
    DatasetInfo,
    Question,
    RatedImage,
    listed,
)

LARGEST = 2**28  # bytes of a file of scores: millions of rows
LONGEST_QUOTE = 300  # characters of a row in a message
Row = dict[str, Any]


class DatasetReader:
    """A folder, or the single file at `path`, on its way to a Dataset. Names of files are relative to the folder and
    match whatever their case."""

    def __init__(self, info: DatasetInfo, path: Path):
        self.info, self.path = info, path
        self.by_user = info.key in ("manifest", "questions")  # who can correct the file
        self.root = (path if path.is_dir() else path.parent).resolve()  # the same wherever the command is run from
        self.edition: str | None = None
        self.items: list[RatedImage] = []
        self.questions: list[Question] = []
        self.missing: dict[str, None] = {}  # in the order of the scores, each name once
        self.left_out: Counter[str] = Counter()
        self._listings: dict[Path, dict[str, Path]] = {}

    def dataset(self) -> Dataset:
        """What was read. Raises DatasetError when there is neither an image nor a question."""
        if not (self.items or self.questions):
            first = f" (the first is {next(iter(self.missing))})" if self.missing else ""
            found = f"{len(self.missing)} that are absent{first} and {self.left_out.total()} left out"
            found += "".join(f" ({reason})" for reason in +self.left_out)
            raise self.error("images", found, f"paths are relative to {self.root}: put the images there")
        parts = tuple(self.items), tuple(self.questions), tuple(self.missing), dict(+self.left_out)
        return Dataset(self.info, self.root, *parts, self.edition)

    def error(self, expected: str, found: str, remedy: str) -> DatasetError:
        wanted = f"{self.path}: expected {expected:.{LONGEST_QUOTE}} ({self.info.title})"
        return DatasetError(f"{wanted}, found {found:.{LONGEST_QUOTE}}", remedy)

    def find(self, name: str) -> Path | None:
        """The file or folder `name`, or None."""
        if os.path.exists(exact := self.root / name):  # Path.exists raises for a name that is too long
            return exact
        path = self.root
        for part in PurePosixPath(name).parts:
            if path not in self._listings:
                self._listings[path] = {p.name.lower(): p for p in path.iterdir()} if path.is_dir() else {}
            if (child := self._listings[path].get(part.lower())) is None:
                return None
            path = child
        return path

    def need(self, *names: str) -> Path:
        """The first of `names` that exists. Raises DatasetError when none does."""
        if path := next(filter(None, map(self.find, names)), None):
            return path
        there = sorted(p.name for p in self.root.iterdir())
        found = listed(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "") or "an empty folder"
        raise self.error(" or ".join(names), found, "name the folder into which the authors' archives were unpacked")

    def folders(self) -> tuple[str, ...]:
        """The folder itself and its subfolders, where nothing says in which of them the images lie."""
        return (".", *sorted(p.name for p in self.root.iterdir() if p.is_dir()))

    def rows(self, path: Path, columns: Sequence[str], sheet: str | None = None) -> list[tuple[str, Row]]:
        """Where each row stands ("line 3 of manifest.csv") and its cells by column name.

        A .json file is a list of objects, a .jsonl file has one a line. In a table, .csv or a workbook, the header is
        the first row with all `columns`, in lower case; rows that are blank in all of them are skipped.

        Raises:
            DatasetError: The file cannot be read, or it has no such header.
        """
        try:
            numbered = numbered_rows(path, sheet)
        except ImportError as error:
            beside = f"export the sheet {sheet or 'that comes first'} to {path.with_suffix('.csv').name} beside it"
            raise DatasetError(f"{path}: {error}", f"install it, or {beside}") from None
        except Exception as error:  # openpyxl raises nearly any type on a damaged file
            raise self.error(f"rows in {path.name}", str(error), "correct it") from error
        found, names = [], []
        for number, cells in numbered:
            if isinstance(cells, list) and not names:
                header = [str(cell).strip().lower() for cell in cells]
                names = header if set(columns) <= set(header) else []
                continue
            row = cells if isinstance(cells, dict) else dict.fromkeys(names, "") | dict(zip(names, cells, strict=False))
            if isinstance(cells, dict) or first_value(row, *columns) is not None:
                found.append((f"line {number} of {path.name}", row))
        if not found:
            wanted = f"columns {', '.join(columns)} in {path.name}"
            raise self.error(wanted, "no such rows", "name the columns so in its first line")
        return found

    def matrix(self, name: str, variable: str) -> np.ndarray:
        """A variable of a .mat file, flattened; cells of text as text."""
        from scipy.io import loadmat  # few sets need it

        content = io.BytesIO(read_bytes(self.need(name), LARGEST))
        try:
            values = loadmat(content, variable_names=[variable])[variable].ravel()
            return np.array([str(np.ravel(cell)[0]) for cell in values]) if values.dtype == object else values
        except Exception as error:  # scipy raises nearly any type on a damaged file
            raise self.error(f"{variable} in {name}", repr(error), "restore the authors' file") from error

    def add(self, row: Row, where: str, within: Iterable[str] = (".",)) -> None:
        """Adds an image with its score, or notes what is missing.

        Args:
            row: The fields of RatedImage; image and reference are names of files. Without a group the images of one
                reference form one.
            where: Where the row stands, for a message.
            within: Folders in which the image is sought.

        Raises:
            DatasetError: No image is named, or score or level is no number of at most `MOST`.
        """
        image, reference, level = (first_value(row, name) for name in ("image", "reference", "level"))
        if not isinstance(image, str) or not isinstance(reference, str | None):
            raise self.error("paths as image and reference in every row", repr(row), f"correct {where}")
        for name, value in (("score", row.get("mos")), ("level", 0 if level is None else level)):
            if not abs(number(value)) <= MOST:
                wanted = f"a number of at most {MOST:g}" if math.isfinite(number(value)) else "a number"
                raise self.error(f"{wanted} as the {name} of {image}", repr(value), f"correct {where}")
        low, high = (self.info.low, self.info.high) if self.info.key == "manifest" else (None, None)
        if low is not None and high is not None and not low <= number(row["mos"]) <= high:
            expected = f"a score from {low:g} to {high:g} (--mos-range) for {image}"
            raise self.error(expected, f"{number(row['mos']):g}", f"correct {where}, or the range")
        if paths := self._locate(image, reference, within):
            facts = {name: text(row.get(name)) for name in ("group", "distortion", "split", "subset")}
            facts["group"] = facts["group"] or (reference if self.by_user else paths[1] and paths[1].stem)
            strength = None if level is None else number(level)
            self.items.append(RatedImage(paths[0], number(row["mos"]), paths[1], level=strength, **facts))

    def add_question(self, row: Row, where: str, within: Iterable[str]) -> None:
        """Adds a question, or notes why not.

        Choices are a list, a mapping from letters, or a text that separates them by |; the answer is an index, a letter
        or the text of a choice. The other arguments are those of `add`. Raises DatasetError for what is no question; a
        file of authors may withhold answers.
        """
        image, question = first_value(row, "image", "image_path", "img_path"), row.get("question")
        choices = first_value(row, "choices", "options", "candidates")
        reference = first_value(row, "reference", "reference_path")
        answer = first_value(row, "answer", "correct_ans", "correct_answer")
        if not (isinstance(image, str) and isinstance(question, str) and question and choices):
            known = listed(name for name, value in row.items() if value not in (None, "")) or "an empty row"
            raise self.error("image, question and choices in every row", known, f"complete {where}")
        if answer is None:
            self.left_out["no answer is published"] += 1
            return
        if isinstance(choices, str):  # of a table, where blanks around a text mean nothing
            choices, answer = [choice.strip() for choice in choices.split("|")], str(answer).strip()
        letters = list(choices) if isinstance(choices, dict) else list(string.ascii_uppercase[: len(choices)])
        texts = [str(choice) for choice in (choices.values() if isinstance(choices, dict) else choices)]
        namings: tuple[list[Any], ...] = (texts, letters, list(range(len(texts))))
        index = next((names.index(answer) for names in namings if answer in names), None)
        if self.by_user:
            try:
                check_choices(texts)
            except ValueError as error:
                raise self.error("answers separated by | in a CSV file", str(error), f"correct {where}") from error
            if index is None:
                raise self.error("as answer one of the choices or its letter", repr(answer), f"correct {where}")
        if index is None:
            self.left_out["the answer is none of the choices"] += 1
        elif paths := self._locate(image, text(reference), within):
            named = (("task", "task_type"), ("question_type", "type"), ("split",))
            facts = [text(first_value(row, *names)) for names in named]
            self.questions.append(Question(paths[0], question, tuple(texts), index, paths[1], *facts))

    def _locate(self, image: str, reference: str | None, within: Iterable[str]) -> tuple[Path, Path | None] | None:
        """The files of both; None, and a note of it, when one is absent."""
        names = [str(PurePosixPath(folder, image)) for folder in within]
        path = next((found for found in map(self.find, names) if found and found.is_file()), None)
        reference_path = self.find(reference) if reference else None
        if path is None:
            self.missing[names[0] if len(names) == 1 else image] = None
        if reference and reference_path is None:
            self.missing[reference] = None
            self.left_out["the reference image is missing"] += path is not None
            return None
        return (path, reference_path) if path else None


def first_value(row: Row, *names: str) -> Any:
    """The first value in `row` under one of `names` that is neither None nor empty; None when none is."""
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def number(value: Any) -> float:
    """`value` as a number; NaN when it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def text(value: Any) -> str | None:
    """A fact as text, None where there is none: JSON and workbooks hold numbers too."""
    return None if value in (None, "") else str(value)


def lines_of(path: Path) -> list[str]:
    """The lines of a text file. A byte that is not UTF-8 spoils the name it stands in, which then is missing. Raises
    FileError."""
    return read_bytes(path, LARGEST).decode("utf-8-sig", errors="replace").split("\n")


def numbered_rows(path: Path, sheet: str | None) -> list[tuple[int, Any]]:
    """Each row's number from 1 on, and its cells or object. Raises nearly anything for what is no such file."""
    match path.suffix.lower():
        case ".jsonl":
            rows = [(i, json.loads(line)) for i, line in enumerate(lines_of(path), 1) if line.strip()]
        case ".json":
            rows = list(enumerate(json.loads("\n".join(lines_of(path))), 1))
        case ".xls" | ".xlsx":
            book = io.BytesIO(read_bytes(path, LARGEST))
            frame = pd.read_excel(book, sheet_name=sheet or 0, header=None, na_filter=False)
            return list(enumerate(frame.astype(object).to_numpy().tolist(), 1))
        case _:
            reader = csv.reader(io.StringIO("\n".join(lines_of(path)), newline=""), skipinitialspace=True)
            return [(reader.line_num, cells) for cells in reader]
    if stranger := next((row for _, row in rows if not isinstance(row, dict)), None):
        raise ValueError(f"expected objects, got {type(stranger).__name__}")
    return rows
