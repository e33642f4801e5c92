"""A manifest: a table of images and scores that a user writes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import first_value, json_rows, number, row_place
from agentic_iqa_local.studies.datasets.types import MOST, DatasetError, DatasetInfo, listed

COLUMNS = "image", "mos", "reference", "group", "distortion", "split", "subset"  # and level
INFO = DatasetInfo("manifest", "a manifest", "NR")
MARKS = (("manifest.csv|manifest.jsonl", ""),)


def load(
    scored_sets: Mapping[str, DatasetInfo],
    reader: DatasetReader,
    part_of: str | None = None,
    mos_range: Sequence[float] | None = None,
    **stated: Any,
) -> None:
    """manifest.csv or manifest.jsonl, or a file of any name: `image` and `mos`, if known `reference`,
    `group`, `distortion`, `level`, `split`, `subset`; every other column goes to `extra`. Paths are relative
    to the file's folder or absolute, and may lead anywhere: a manifest is trusted like a command line.
    Without a `group`, images of one reference form one.

    `part_of` is the key in `scored_sets` of the data set that the manifest lists a part of and gives what is
    known of that set. `mos_range` are the lowest and the highest score of a scale of absolute categories
    whose higher scores are better. `stated` are fields of DatasetInfo that are known otherwise. With none of
    them, higher is better and the range is unknown.
    """
    if part_of and part_of not in scored_sets:
        raise reader.error(
            f"the manifest to be part of one of {listed(scored_sets)}",
            repr(part_of),
            "correct the name or leave it out",
        )
    if mos_range and part_of:
        raise reader.error("--mos-range or --part-of", "both", f"leave --mos-range out: the scale is that of {part_of}")
    if mos_range:
        stated |= dict(zip(("low", "high"), _ordered(mos_range), strict=True), scale="absolute categories")
    path = reader.path if reader.path.is_file() else reader.need("manifest.csv", "manifest.jsonl")
    is_csv = path.suffix.lower() == ".csv"
    for line, row in reader.numbered_table(path, "image", "mos") if is_csv else json_rows(path):
        _add(reader, row, mos_range, remedy=f"correct {row_place(path, line)}")
    base = scored_sets[part_of] if part_of else replace(reader.info, higher_is_better=True)
    title = f"part of {base.title}" if part_of else path.name
    reader.info = replace(base, **{"title": title} | _derived(reader, base) | stated)


def _derived(reader: DatasetReader, base: DatasetInfo) -> dict[str, Any]:
    """Fields of DatasetInfo that the images show."""
    grouped = any(item.group for item in reader.items)
    return {
        "kind": "FR" if any(item.reference for item in reader.items) else "NR",
        "groups": base.groups or ("as the manifest gives them" if grouped else None),
    }


def _add(reader: DatasetReader, row: dict[str, Any], mos_range: Sequence[float] | None, remedy: str) -> None:
    """Adds the image of a row. Raises DatasetError."""
    known = {name: first_value(row, name) for name in COLUMNS}
    extra = {name: value for name, value in row.items() if name and name not in known and name != "level"}
    level = _level(reader, row, remedy)
    paths = known["image"], known["reference"] or ""
    if not all(isinstance(name, str) for name in paths) or any(
        isinstance(value, list | dict) for value in known.values()
    ):
        raise reader.error("paths as image and reference, and no lists, in every row", repr(row), remedy)
    score = number(known["mos"])
    if mos_range and math.isfinite(score) and not mos_range[0] <= score <= mos_range[1]:
        ends = "{:g} to {:g}".format(*mos_range)
        raise reader.error(f"a score from {ends} (--mos-range) for {paths[0]}", f"{score:g}", f"{remedy}, or the range")
    known["group"] = known["group"] or known["reference"]
    reader.add(**known, level=level, extra=extra, remedy=remedy)


def _level(reader: DatasetReader, row: dict[str, Any], remedy: str) -> float | None:
    """The level of a row, None without one. Raises DatasetError when it is no number or there is no image."""
    level = first_value(row, "level")
    strength = None if level is None else number(level)
    if first_value(row, "image") is None or (strength is not None and math.isnan(strength)):
        raise reader.error("an image and, if any, a number as level in every row", repr(row), remedy)
    return strength


def _ordered(ends: Sequence[float]) -> tuple[float, float]:
    """The ends of a scale, the lower one first. Raises DatasetError."""
    low, high = ends
    if not -MOST <= low < high <= MOST:
        raise DatasetError(
            f"--mos-range {low:g} {high:g}: expected two numbers, the lower end of the scale"
            f" first, of at most {MOST:g}, such as --mos-range 1 5",
            "where lower scores are better, turn them around in the manifest.",
        )
    return low, high
