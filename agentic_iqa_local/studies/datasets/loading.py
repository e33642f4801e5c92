"""Loads a data set: which one a folder or a file is, and what its rows say."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agentic_iqa_local.files import FileError, open_regular
from agentic_iqa_local.studies.datasets.reader import Cells, DatasetReader, lines_of, number
from agentic_iqa_local.studies.datasets.types import (
    MOST,
    Dataset,
    DatasetError,
    DatasetInfo,
    Layout,
    listed,
)

OWN_FILES = (".csv", ".jsonl", ".json")


def _declared() -> Iterator[Layout]:
    """The data sets of sets.yaml."""
    declared: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("sets.yaml").read_text(encoding="utf-8")
    )
    for key, told in declared.items():
        info, scores = told.pop("info"), told.pop("scores", {})
        scores = {None: scores} if isinstance(scores, str) else scores
        yield Layout(DatasetInfo(key=key, **info), scores, **told)


LAYOUTS = {layout.info.key: layout for layout in _declared()}
DATASETS = {key: layout.info for key, layout in LAYOUTS.items()}
READ = [key for key, layout in LAYOUTS.items() if layout.scores]  # from their authors' folders


def load_dataset(
    folder: str | Path,
    key: str | None = None,
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
        key: Which set a folder is, where the layout does not tell.
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
            layout = LAYOUTS[_key(path, key)]
            reader = DatasetReader(layout.info, path)
            rows: Iterable[tuple[str, Cells]] = _rows(reader, layout)
        else:
            os.close(open_regular(path))
            reader, rows = _own(path)
        if part_of or mos_range:
            reader.info = _told(reader, part_of, mos_range)
        for where, cells in rows:
            row = {name: value for name, value in cells.items() if value not in (None, "")}
            (reader.add_question if reader.info.kind == "MCQ" else reader.add)(row, where)
    except FileError as error:
        raise DatasetError(
            f"{path!s:.300}: {error}", "name a data set's folder or a manifest"
        ) from error
    if reader.by_user and reader.info.kind != "MCQ":
        title = f"part of {reader.info.title}" if part_of else path.name
        kind = "FR" if any(item.reference for item in reader.items) else "NR"
        reader.info = reader.info.model_copy(update={"title": title, "kind": kind})
    return reader.dataset()


def _key(path: Path, key: str | None) -> str:
    """The key of the data set in a folder: the one that is named, or the first whose marks are
    there."""
    if key in READ:
        return key
    if key is not None:
        raise DatasetError(
            f"{path}: expected one of {listed(READ)} as the set's name, found {key!r}", "correct it"
        )
    reader = DatasetReader(DATASETS["manifest"], path)
    for name in READ:
        layout = LAYOUTS[name]
        scores = reader.find(next(iter(layout.scores.values())))
        complete = scores and all(map(reader.find, layout.beside))
        if complete and any(re.search(layout.told_by, line) for line in lines_of(scores)):
            return name
    files = listed(sorted(p.name for p in path.iterdir() if p.suffix.lower() in OWN_FILES)[:3])
    remedy = (
        f"for a manifest give the file itself (here are {files})"
        if files
        else "name the set or its own folder"
    )
    raise DatasetError(
        f"{path}: expected the layout of one of {listed(READ)}, found none of them", remedy
    )


def _own(path: Path) -> tuple[DatasetReader, list[tuple[str, Cells]]]:
    """A user's manifest, or questions where the first row has one and no score."""
    if path.suffix.lower() not in OWN_FILES:
        raise DatasetError(
            f"{path}: expected a manifest named .csv, .jsonl or .json", "rename or convert it"
        )
    reader = DatasetReader(DATASETS["manifest"], path)
    rows = reader.rows(path)
    if "question" in rows[0][1] and "mos" not in rows[0][1]:
        reader.info = DATASETS["questions"]
    elif not {"image", "mos"} <= rows[0][1].keys():
        raise reader.error(
            "columns image, mos",
            listed(map(str, rows[0][1])),
            "name the columns so in its first line",
        )
    return reader, rows


def _told(
    reader: DatasetReader, part_of: str | None, mos_range: Sequence[float] | None
) -> DatasetInfo:
    """What a user tells of a manifest's scores. Raises DatasetError where it cannot be meant."""
    if reader.info.key != "manifest":
        said = f"expected a manifest for {'--part-of' if part_of else '--mos-range'}, found {reader.info.title}"
        raise DatasetError(f"{reader.path}: {said}", "leave it out")
    if part_of:
        known = [key for key, info in DATASETS.items() if info.scale]
        if part_of not in known:
            raise reader.error(
                f"--part-of to name one of {listed(known)}",
                repr(part_of),
                "correct it or leave it out",
            )
        if mos_range:
            raise reader.error(
                "--mos-range or --part-of", "both", f"leave --mos-range out: {part_of} has a scale"
            )
        return DATASETS[part_of]
    low, high = mos_range or (0, 0)
    if not -MOST <= low < high <= MOST:
        said = f"--mos-range {low:g} {high:g}: expected two numbers, the lower end of the scale first, such as 1 5"
        raise DatasetError(said, "where lower scores are better, turn them around in the manifest")
    told = {"low": float(low), "high": float(high), "scale": "absolute categories"}
    return reader.info.model_copy(update=told)


def _rows(reader: DatasetReader, layout: Layout) -> Iterator[tuple[str, Cells]]:
    """The rows of the authors' files under our names, with the places of their images."""
    for split, where, row in _authors_rows(reader, layout):
        if layout.name:
            row |= _parts(reader, layout.name, str(row["image"]))
        for name in layout.values.keys() & {
            name for name, value in row.items() if value is not None
        }:
            value = str(row[name]).strip().lower()
            row[name] = layout.values[name].get(value, value)
        if layout.info.kind != "MCQ":
            row |= {
                "image": layout.image.format_map(row),
                "reference": layout.reference.format_map(row),
            }
        yield where, {"split": split} | row


def _authors_rows(reader: DatasetReader, layout: Layout) -> Iterator[tuple[str | None, str, Cells]]:
    """Split, place and fields of each row of the authors' files, as they are."""
    for split, name in layout.scores.items():
        if (file := reader.find(name)) is None:
            there = listed(sorted(p.name for p in reader.root.iterdir())[:8]) or "an empty folder"
            raise reader.error(
                name, there, "name the folder into which the authors' archives were unpacked"
            )
        if layout.line:
            for line in filter(None, map(str.strip, lines_of(file))):
                yield split, file.name, _parts(reader, layout.line, line)
            continue
        for where, row in reader.rows(file, np.hstack([*layout.columns.values()]).tolist()):
            yield (
                split,
                where,
                {ours: _cell(row, theirs) for ours, theirs in layout.columns.items()},
            )


def _cell(row: Cells, column: str | list[str]) -> Any:
    """A row's field, or the mean category of observers by the columns of the shares who chose 1, 2,
    ..."""
    if isinstance(column, str):
        return row.get(column)
    return sum(category * number(row[share]) for category, share in enumerate(column, 1))


def _parts(reader: DatasetReader, pattern: str, text: str) -> dict[str, str]:
    if match := re.fullmatch(pattern, text, re.IGNORECASE):
        return match.groupdict()
    raise reader.error(f"names like {pattern}", repr(text), "restore the authors' file")
