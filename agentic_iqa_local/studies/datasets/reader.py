"""A folder on its way to a Dataset: finds its files whatever their case, collects images and questions, and
notes what is missing or left out."""

import io
import math
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from agentic_iqa_local.studies.datasets.tables import (
    content,
    csv_rows,
    first_value,
    header,
    number,
    text,
    workbook_rows,
)
from agentic_iqa_local.studies.datasets.types import (
    LONGEST_QUOTE,
    MOST,
    WRITTEN_BY_USERS,
    Dataset,
    DatasetError,
    DatasetInfo,
    Question,
    RatedImage,
    listed,
)


class DatasetReader:
    """Reads the folder or the single file at `path`. Names of files are relative to the folder, with forward
    slashes, and match whatever their case."""

    def __init__(self, info: DatasetInfo, path: Path):
        self.info = info
        self.path = path
        folder = path if path.is_dir() else path.parent
        self.root = folder.resolve()  # the same wherever the command is run from
        self.by_user = info.key in WRITTEN_BY_USERS
        self.edition: str | None = None
        self.items: list[RatedImage] = []
        self.questions: list[Question] = []
        self.missing: dict[str, None] = {}  # in the order of the score file, each name once
        self.left_out: Counter[str] = Counter()
        self._listings: dict[Path, dict[str, Path]] = {}

    def dataset(self) -> Dataset:
        """What was read. Raises DatasetError when there is neither an image nor a question."""
        if not (self.items or self.questions):
            first = f" (the first is {next(iter(self.missing))})" if self.missing else ""
            found = f"{len(self.missing)} that are absent{first} and {self.left_out.total()} left out"
            found += "".join(f" ({reason})" for reason in +self.left_out)
            if self.by_user:
                raise self.error("images", found, f"paths are relative to {self.root}: correct them")
            raise self.error("images", found, "unpack the authors' image archives beside the score file")
        parts = tuple(self.items), tuple(self.questions), tuple(self.missing), dict(+self.left_out)
        return Dataset(self.info, self.root, *parts, self.edition)

    def error(self, expected: str, found: str, remedy: str) -> DatasetError:
        return DatasetError(
            f"{self.path}: expected {expected:.{LONGEST_QUOTE}} ({self.info.title}), found"
            f" {found:.{LONGEST_QUOTE}}; {remedy}."
        )

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
        for name in names:
            if path := self.find(name):
                return path
        there = sorted(p.name for p in self.root.iterdir())
        found = listed(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "") or "an empty folder"
        raise self.error(" or ".join(names), found, "name the folder into which the authors' archives were unpacked")

    def present(self, *names: str) -> tuple[str, ...]:
        """Those of `names` that exist. Raises DatasetError when none does."""
        self.need(*names)
        return tuple(name for name in names if self.find(name))

    def folders(self) -> tuple[str, ...]:
        """The folder itself and its direct subfolders, for sets whose authors give no place for the
        images."""
        return (".", *sorted(p.name for p in self.root.iterdir() if p.is_dir()))

    def numbered_table(self, path: Path, *columns: str, sheet: str | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Line numbers and rows of a CSV file or a workbook by lower-case column name, "" where a row ends
        early. The header is the first row that has all `columns`; rows that are blank in all of them are
        skipped."""
        grid = iter(csv_rows(path) if path.suffix.lower() == ".csv" else workbook_rows(path, sheet))
        for _, cells in grid:
            if set(columns) <= set(names := header(cells)):
                rows = (
                    (line, dict.fromkeys(names, "") | dict(zip(names, cells, strict=False))) for line, cells in grid
                )
                return [(line, row) for line, row in rows if first_value(row, *columns) is not None]
        raise self.error(
            f"columns {', '.join(columns)} in {path.name}",
            "no such header",
            "name the columns so in its first line" if self.by_user else "restore the authors' file",
        )

    def table(self, path: Path, *columns: str, sheet: str | None = None) -> list[dict[str, Any]]:
        """The rows of `numbered_table`."""
        return [row for _, row in self.numbered_table(path, *columns, sheet=sheet)]

    def workbook(self, stem: str, *columns: str, sheet: str | None = None) -> list[dict[str, Any]]:
        """Rows of `stem`.csv, an export with the same columns, or else of `stem`.xlsx."""
        names = f"{stem}.csv", f"{stem}.xlsx"
        if self.find(f"{stem}.xls") and not any(map(self.find, names)):
            raise self.error(" or ".join(names), f"{stem}.xls", "save the workbook in one of these formats beside it")
        return self.table(self.need(*names), *columns, sheet=sheet)

    def matrix(self, name: str, variable: str) -> np.ndarray:
        """A variable of a .mat file, flattened; cells of text as text."""
        from scipy.io import loadmat  # few sets need it

        mat_bytes = content(self.need(name))
        try:
            values = loadmat(io.BytesIO(mat_bytes), variable_names=[variable])[variable].ravel()
            return np.array([str(np.ravel(cell)[0]) for cell in values]) if values.dtype == object else values
        except Exception as error:  # scipy raises nearly any type on a damaged file
            raise self.error(f"{variable} in {name}", repr(error), "restore the authors' file") from error

    def check_lengths(self, *arrays: np.ndarray, length: int | None = None) -> None:
        """Raises DatasetError unless the arrays are equally long, and of `length` where given."""
        lengths = [len(array) for array in arrays]
        if set(lengths) != {length or lengths[0]}:
            raise self.error(
                f"{length or lengths[0]} values in each array",
                ", ".join(map(str, lengths)),
                "restore the .mat files",
            )

    def parts(self, pattern: str, name: str) -> tuple[str, ...]:
        """The groups of `pattern` in a file name that must match it."""
        if match := re.fullmatch(pattern, str(name), re.IGNORECASE):
            return match.groups()
        raise self.error(f"file names like {pattern}", repr(name), "restore the authors' score file")

    def locate(self, image: str, reference: str | None, within: Iterable[str]) -> tuple[Path, Path | None] | None:
        """Image, sought in the folders `within`, and reference; None, and a note of it, when either is
        absent."""
        names = [str(PurePosixPath(folder, image)) for folder in within]
        path = next((found for found in map(self.find, names) if found and found.is_file()), None)
        if path is None:
            self.missing[names[0] if len(names) == 1 else image] = None
        if not reference:
            return (path, None) if path else None
        reference_path = self.find(reference)
        if reference_path is None:
            self.missing[reference] = None
            self.left_out["the reference image is missing"] += path is not None
        return (path, reference_path) if path and reference_path else None

    def add(
        self,
        mos: Any,
        image: str,
        reference: str | None = None,
        within: Iterable[str] = (".",),
        *,
        level: float | None = None,
        extra: dict[str, Any] | None = None,
        remedy: str = "restore the authors' score file",
        **facts: Any,
    ) -> None:
        """Adds an image with its score, or notes what is missing. `facts` become texts. Raises DatasetError
        unless `mos`, and `level` where there is one, are numbers of at most `MOST`."""
        for name, value in (("the score", mos), ("the level", 0 if level is None else level)):
            if not abs(size := number(value)) <= MOST:
                wanted = f"a number of at most {MOST:g}" if math.isfinite(size) else "a number"
                raise self.error(f"{wanted} as {name} of {image}", repr(value), remedy)
        if paths := self.locate(image, reference, within):
            texts = {name: text(value) for name, value in facts.items()}
            rated = RatedImage(paths[0], number(mos), paths[1], level=level, extra=extra or {}, **texts)
            self.items.append(rated)
