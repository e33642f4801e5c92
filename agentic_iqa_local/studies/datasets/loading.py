"""Loads a data set: which one a folder or a file is, and what its rows say."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentic_iqa_local.files import FileError, open_regular, read_yaml
from agentic_iqa_local.studies.datasets.reader import Cells, DatasetReader, lines_of
from agentic_iqa_local.studies.datasets.types import (
    MANIFEST,
    MOST,
    Dataset,
    DatasetError,
    DatasetInfo,
    Layout,
    listed,
)

OWN_FILES = (".csv", ".jsonl", ".json")
Rows = Iterator[tuple[str, Cells]]  # where each stands, and its cells


def _declared() -> Iterator[Layout]:
    """The data sets of sets.yaml."""
    file = Path(__file__).with_name("sets.yaml")
    declared: dict[str, Any] = read_yaml(file)
    for key, told in declared.items():
        yield Layout(DatasetInfo(key=key, **told.pop("info")), **told)


LAYOUTS = {layout.info.key: layout for layout in _declared()}
DATASETS = {key: layout.info for key, layout in LAYOUTS.items()}
READ = [key for key, layout in LAYOUTS.items() if layout.scores]  # from their authors' folders


def load_dataset(
    folder: str | Path,
    *,
    part_of: str | None = None,
    mos_range: Sequence[float] | None = None,
) -> Dataset:
    """The data set in a folder as its authors ship it, or a manifest or questions of the user's
    own.

    A manifest has `image` and `mos`, if known `reference`, `group`, `distortion`, `level`, `split`
    and `subset`. Questions have `image`, `question`, `choices` and `answer`, if known `reference`,
    `task`, `question_type` and `split`. Their paths are relative to the file's folder or absolute,
    and may lead anywhere.

    Args:
        folder: The folder, or the user's file.
        part_of: The key of the data set that a manifest lists a part of, and whose scale its scores
            have.
        mos_range: The lowest and the highest score of a manifest, whose scale is of absolute
            categories.

    Raises:
        DatasetError: It is not laid out as expected, a score is no number within `mos_range`, or no
            image is there.
    """
    path = Path(folder)
    try:
        if os.path.isdir(path):  # Path.is_dir raises for a name that is too long
            reader, rows = _authors_set(path)
        else:
            reader, rows = _own(path)
        if part_of or mos_range:
            reader.info = _with_scale(reader, part_of, mos_range)
        for where, cells in rows:
            reader.add(cells, where)
    except FileError as error:
        said = f"{path!s:.300}: {error}"
        raise DatasetError(said, "name a data set's folder or a manifest") from error
    return reader.dataset()


def _authors_set(path: Path) -> tuple[DatasetReader, Rows]:
    """The first data set whose marks are in a folder."""
    reader = DatasetReader(DATASETS[MANIFEST], path)
    for layout in (LAYOUTS[key] for key in READ):
        scores = reader.find(next(iter(layout.scores.values())))
        complete = scores and all(map(reader.find, layout.beside))
        if complete and any(re.search(layout.told_by, line) for line in lines_of(scores)):
            reader.info = layout.info
            return reader, _rows(reader, layout)
    files = [p.name for p in path.iterdir() if p.suffix.lower() in OWN_FILES][:3]
    remedy = f"name the set's own folder, or the file of a manifest ({listed(sorted(files))})"
    raise reader.error(f"the layout of one of {listed(READ)}", "none of them", remedy)


def _own(path: Path) -> tuple[DatasetReader, Rows]:
    """A user's manifest, or questions where the first row has one and no score."""
    os.close(open_regular(path))
    reader = DatasetReader(DATASETS[MANIFEST], path)
    if path.suffix.lower() not in OWN_FILES:
        raise reader.error("a file named .csv, .jsonl or .json", path.name, "rename or convert it")
    rows = reader.rows(path)
    names = rows[0][1].keys()
    if "question" in names and "mos" not in names:
        reader.info = DATASETS["questions"]
    elif not {"image", "mos"} <= names:
        remedy = "name the columns so in its first line"
        raise reader.error("columns image, mos", listed(map(str, names)), remedy)
    else:
        reader.info = reader.info.model_copy(update={"title": path.name})
    return reader, iter(rows)


def _with_scale(
    reader: DatasetReader, part_of: str | None, mos_range: Sequence[float] | None
) -> DatasetInfo:
    """What a user tells of a manifest's scores. Raises DatasetError where it cannot be meant."""
    if reader.info.key != MANIFEST:
        said = f"expected a manifest for --part-of or --mos-range, found {reader.info.title}"
        raise DatasetError(f"{reader.path}: {said}", "leave it out")
    if part_of:
        known = [key for key, info in DATASETS.items() if info.scale]
        if part_of not in known:
            remedy = "correct it or leave it out"
            raise reader.error(f"--part-of to name one of {listed(known)}", repr(part_of), remedy)
        info = DATASETS[part_of]
        return info.model_copy(update={"title": f"part of {info.title}"})
    low, high = mos_range or (0, 0)
    if not -MOST <= low < high <= MOST:
        said = f"--mos-range {low:g} {high:g}: expected the lower end of the scale first"
        raise DatasetError(said, "where lower scores are better, turn them around in the manifest")
    reader.ends = low, high
    return reader.info.model_copy(update={"low": low, "high": high, "scale": "absolute categories"})


def _rows(reader: DatasetReader, layout: Layout) -> Rows:
    """The rows of the authors' files under our names, with the places of their images."""
    for split, name in layout.scores.items():
        for where, row in _authors_rows(reader, layout, name):
            row.setdefault("split", split)
            if layout.name:
                row |= _parts(reader, layout.name, str(row["image"]))
            for field, names in layout.values.items():
                if row.get(field) is not None:
                    value = str(row[field]).strip().lower()
                    row[field] = names.get(value, value)
            if layout.info.kind != "MCQ":
                row["reference"] = layout.reference.format_map(row)
                row["image"] = layout.image.format_map(row)
            yield where, row


def _authors_rows(reader: DatasetReader, layout: Layout, name: str) -> Rows:
    """Place and fields of each row of a file of the authors, as they are."""
    file = reader.find(name)
    if file is None:
        there = listed(sorted(p.name for p in reader.root.iterdir())[:8])
        remedy = "name the folder into which the authors' archives were unpacked"
        raise reader.error(name, there, remedy)
    if layout.line:
        for line in filter(None, map(str.strip, lines_of(file))):
            yield file.name, _parts(reader, layout.line, line)
        return
    for where, row in reader.rows(file):
        yield where, {ours: _cell(row, theirs) for ours, theirs in layout.columns.items()}


def _cell(row: Cells, column: str | list[str]) -> Any:
    """A row's field, or the mean category of observers by the columns of the shares who chose 1, 2,
    ..."""
    if isinstance(column, str):
        return row.get(column)
    return sum(
        category * float(row.get(share) or "nan") for category, share in enumerate(column, 1)
    )


def _parts(reader: DatasetReader, pattern: str, text: str) -> dict[str, str]:
    match = re.fullmatch(pattern, text, re.IGNORECASE)
    if match is None:
        raise reader.error(f"names like {pattern}", repr(text), "restore the authors' file")
    return match.groupdict()
