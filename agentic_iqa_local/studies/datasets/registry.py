"""The known layouts, which of them a folder has, and its data set."""

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from agentic_iqa_local.files import FileError, open_regular
from agentic_iqa_local.studies.datasets import authors, choices, manifest
from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import lines
from agentic_iqa_local.studies.datasets.types import LONGEST_QUOTE, Dataset, DatasetError, Layout, listed

_MANIFEST = Layout(
    manifest.INFO,
    partial(manifest.load, {layout.info.key: layout.info for layout in authors.LAYOUTS}),
    manifest.MARKS,
)
_LAYOUTS = (*authors.LAYOUTS, _MANIFEST, authors.QBENCH, choices.AGENTICIQA_EVAL, choices.QUESTIONS)
DATASETS = {layout.info.key: layout for layout in _LAYOUTS}  # the first whose marks are there counts


def detect(folder: str | Path) -> str | None:
    """The key of the data set in `folder`, or of a single manifest or file of questions, by layout; None when
    unknown."""
    path = Path(folder)
    if path.is_file():
        if path.suffix.lower() not in (".csv", ".jsonl", ".json"):
            return None
        return "questions" if choices.holds_questions(path) else "manifest"
    reader = DatasetReader(_MANIFEST.info, path)

    def has(names: str, pattern: str) -> bool:
        found = next(filter(None, map(reader.find, names.split("|"))), None)
        return found is not None and (not pattern or any(re.search(pattern, line) for line in lines(found)))

    marked = (layout for layout in _LAYOUTS if layout.marks)
    return next((each.info.key for each in marked if all(has(*mark) for mark in each.marks)), None)


def dataset_key(name: str) -> str | None:
    """The key of the data set that a metric's documentation calls `name`, such as "KADID-10k"; None when
    unknown."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((key for key, it in DATASETS.items() if plain in (re.sub(r"\W|_", "", key), *it.info.seen_as)), None)


def load_dataset(folder: str | Path, key: str | None = None, **options: Any) -> Dataset:
    """The data set in `folder`, or in a single file; `key` tells which one where the layout does not.

    Options: `edition` for KonIQ-10k ("1024x768", "512x384"); for a manifest `part_of`, `mos_range`, and
    fields of DatasetInfo such as `higher_is_better`, `low`, `high` and `scale`. Raises DatasetError when the
    folder is not laid out as expected, a score is not a number or not within `mos_range`, or no image is
    there.
    """
    path = Path(folder)
    _check_readable(path)
    if (key := key or detect(path)) is None:
        raise _unknown_layout(path)
    if key not in DATASETS:
        raise DatasetError(
            f"{path}: expected one of {listed(DATASETS)} as the set's name, found {key!r}", "correct it."
        )
    layout = DATASETS[key]
    for option in ("part_of", "mos_range"):
        if options.get(option) and key != "manifest":
            name = "--" + option.replace("_", "-")
            raise DatasetError(
                f"{path}: expected a manifest for {name}, found {layout.info.title}", f"leave {name} out."
            )
    reader = DatasetReader(layout.info, path)
    layout.load(reader, **options)
    return reader.dataset()


def _check_readable(path: Path) -> None:
    """Raises DatasetError unless `path` is a folder or a regular file."""
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        raise DatasetError(f"{path!s:.{LONGEST_QUOTE}}: expected a data set's folder, found nothing", "check the path.")
    if not path.is_dir():
        try:
            os.close(open_regular(path))
        except FileError as error:
            raise DatasetError(f"{path}: {error}", "name a data set's folder or a manifest.") from error


def _unknown_layout(path: Path) -> DatasetError:
    if path.is_file():
        return DatasetError(f"{path}: expected a manifest named .csv, .jsonl or .json; rename or convert it.")
    files = listed(sorted(p.name for p in path.iterdir() if p.suffix.lower() in (".csv", ".jsonl"))[:3])
    remedy = "name the set or its own folder"
    if files:
        remedy = f"for a manifest give the file itself (here are {files})"
    return DatasetError(f"{path}: expected the layout of one of {listed(DATASETS)}, found none of them; {remedy}.")
