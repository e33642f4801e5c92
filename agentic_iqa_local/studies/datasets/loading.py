"""Loads a data set: which one a folder or a file is, and what its rows say."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from agentic_iqa_local.files import FileError, open_regular
from agentic_iqa_local.studies.datasets.authors import ANYWHERE, AUTHORS, Layout, Placed
from agentic_iqa_local.studies.datasets.reader import DatasetReader, lines_of
from agentic_iqa_local.studies.datasets.types import MOST, Dataset, DatasetError, DatasetInfo, listed

OWN_FILES = (".csv", ".jsonl", ".json")
COLUMNS = {"NR": ("image", "mos"), "MCQ": ("image", "question", "choices", "answer")}
# A user's own files. How AgenticIQA-Eval is laid out could not be checked: every file of questions counts.
OWN = (
    Layout(DatasetInfo("manifest", "a manifest", "NR"), "manifest.csv|manifest.jsonl"),
    Layout(DatasetInfo("questions", "a file of questions", "MCQ"), "questions.csv|questions.jsonl|questions.json"),
    Layout(DatasetInfo("agenticiqa_eval", "AgenticIQA-Eval", "MCQ")),
)
LAYOUTS = {layout.info.key: layout for layout in (*AUTHORS, *OWN)}
DATASETS = {key: layout.info for key, layout in LAYOUTS.items()}


def load_dataset(
    folder: str | Path,
    key: str | None = None,
    *,
    part_of: str | None = None,
    mos_range: Sequence[float] | None = None,
) -> Dataset:
    """The data set in a folder as its authors ship it, or a manifest or questions of the user's own.

    A manifest has `image` and `mos`, if known `reference`, `group`, `distortion`, `level`, `split` and `subset`.
    Questions have `image`, `question`, `choices` and `answer`, if known `reference`, `task`, `question_type` and
    `split`. Their paths are relative to the file's folder or absolute, and may lead anywhere.

    Args:
        folder: The folder, or the file.
        key: Which set it is, where the layout does not tell.
        part_of: The key of the data set that a manifest lists a part of, and whose scale its scores have.
        mos_range: The lowest and the highest score of a manifest, whose scale is of absolute categories.

    Raises:
        DatasetError: It is not laid out as expected, a score is not a number or not within `mos_range`, or no image
            is there.
    """
    path = Path(folder)
    try:
        if not os.path.isdir(path):  # Path.is_dir raises for a name that is too long
            os.close(open_regular(path))
        layout = _layout(path, key or detect(path))
        reader = DatasetReader(layout.info, path)
        if part_of or mos_range:
            reader.info = _told(reader, part_of, mos_range)
        asked = layout.info.kind == "MCQ"
        within = reader.folders() if asked or layout.within == ANYWHERE else layout.within
        for where, row in _own_rows(reader, layout) if layout in OWN else _rows(reader, layout):
            (reader.add_question if asked else reader.add)(row, where, within)
    except FileError as error:
        raise DatasetError(f"{path!s:.300}: {error}", "name a data set's folder or a manifest") from error
    if layout.info.key == "manifest":
        info, title = reader.info, f"part of {reader.info.title}" if part_of else path.name
        full, grouped = (any(getattr(item, name) for item in reader.items) for name in ("reference", "group"))
        reader.info = replace(
            info,
            title=title,
            kind="FR" if full else "NR",
            higher_is_better=info.higher_is_better is not False,
            groups=info.groups or ("as the manifest gives them" if grouped else None),
        )
    return reader.dataset()


def detect(path: Path) -> str | None:
    """The key of the data set in a folder, or of a single manifest or file of questions; None when unknown."""
    if path.suffix.lower() in OWN_FILES and path.is_file():
        return "questions" if _holds_questions(path) else "manifest"
    reader = DatasetReader(DATASETS["manifest"], path)
    for key, layout in LAYOUTS.items() if path.is_dir() else ():
        scores = next(filter(None, map(reader.find, filter(None, layout.scores.split("|")))), None)
        if not scores or not all(map(reader.find, layout.also)):
            continue
        if not layout.told_by or any(re.search(layout.told_by, line) for line in lines_of(scores)):
            return key
    return None


def _holds_questions(path: Path) -> bool:
    """Whether a table has the columns of questions and no human scores, or a JSON file a question."""
    lines = lines_of(path)
    if path.suffix.lower() != ".csv":
        return any('"question"' in line for line in lines)
    headers = [{name.strip(' "\r').lower() for name in line.split(",")} for line in lines[:20]]
    return any(header.issuperset(COLUMNS["MCQ"]) and "mos" not in header for header in headers)


def _layout(path: Path, key: str | None) -> Layout:
    if key in LAYOUTS:
        return LAYOUTS[key]
    if key is not None:
        raise DatasetError(f"{path}: expected one of {listed(DATASETS)} as the set's name, found {key!r}", "correct it")
    if path.is_file():
        raise DatasetError(f"{path}: expected a manifest named .csv, .jsonl or .json", "rename or convert it")
    files = listed(sorted(p.name for p in path.iterdir() if p.suffix.lower() in OWN_FILES)[:3])
    remedy = f"for a manifest give the file itself (here are {files})" if files else "name the set or its own folder"
    raise DatasetError(f"{path}: expected the layout of one of {listed(DATASETS)}, found none of them", remedy)


def _told(reader: DatasetReader, part_of: str | None, mos_range: Sequence[float] | None) -> DatasetInfo:
    """What a user tells of a manifest's scores. Raises DatasetError where it cannot be meant."""
    option = "--part-of" if part_of else "--mos-range"
    if reader.info.key != "manifest":
        said = f"{reader.path}: expected a manifest for {option}, found {reader.info.title}"
        raise DatasetError(said, "leave it out")
    if part_of:
        known = [layout.info.key for layout in AUTHORS if layout.info.scale]
        if part_of not in known:
            raise reader.error(f"--part-of to name one of {listed(known)}", repr(part_of), "correct it or leave it out")
        if mos_range:
            raise reader.error("--mos-range or --part-of", "both", f"leave --mos-range out: {part_of} has a scale")
        return DATASETS[part_of]
    low, high = mos_range or (0, 0)
    if not -MOST <= low < high <= MOST:
        said = f"--mos-range {low:g} {high:g}: expected two numbers, the lower end of the scale first, such as 1 5"
        raise DatasetError(said, "where lower scores are better, turn them around in the manifest")
    return replace(reader.info, low=low, high=high, scale="absolute categories")


def _own_rows(reader: DatasetReader, layout: Layout) -> Placed:
    """The rows of a user's file, or of every file of a folder of questions."""
    files = [reader.path] if reader.path.is_file() else []
    if not files and layout.scores:
        files = [reader.need(*layout.scores.split("|"))]
    elif not files:
        every = sorted(file for file in reader.root.iterdir() if file.suffix.lower() in OWN_FILES)
        files = [file for file in every if _holds_questions(file)]
    return [placed for file in files for placed in reader.rows(file, COLUMNS[layout.info.kind])]


def _rows(reader: DatasetReader, layout: Layout) -> Placed:
    """The rows of the authors' files, with the places of their images."""
    for where, row in layout.rows(reader) if layout.rows else _table(reader, layout):
        if layout.name:
            row |= _parts(reader, layout.name, str(row["image"]))
        if kind := row.get("distortion"):
            row["distortion"] = layout.kinds.get(kind.strip().lower(), kind.strip().lower())
        if layout.info.kind != "MCQ":
            row |= {"image": layout.image.format_map(row), "reference": layout.reference.format_map(row)}
            row.setdefault("split", layout.split)
        yield where, row


def _table(reader: DatasetReader, layout: Layout) -> Iterator[tuple[str, dict]]:
    """The rows of a table under our names, or of lines that are no table's."""
    scores = reader.need(*layout.scores.split("|"))
    if not layout.line:
        for where, row in reader.rows(scores, list(layout.columns.values()), layout.sheet):
            yield where, {ours: row[theirs] for ours, theirs in layout.columns.items()}
        return
    for file in sorted(scores.glob("*.txt")) if scores.is_dir() else [scores]:
        for line in filter(None, map(str.strip, lines_of(file))):
            yield file.name, _parts(reader, layout.line, line)


def _parts(reader: DatasetReader, pattern: str, text: str) -> dict[str, str]:
    if match := re.fullmatch(pattern, text, re.IGNORECASE):
        return match.groupdict()
    raise reader.error(f"names like {pattern}", repr(text), "restore the authors' file")
