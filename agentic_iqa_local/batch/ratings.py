"""Ratings that people gave to pictures: a table of ratings, of kept and rejected pictures or of
pairs, or a folder whose pictures or sidecars carry stars."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import choix
import numpy as np
import pandas as pd

from agentic_iqa_local.batch.cells import plain_cell
from agentic_iqa_local.batch.inputs import expand_inputs
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import FileError, path_from_text, read_bytes
from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.reading import own_xmp

LARGEST = 2**28  # bytes of a table
LARGEST_SIDECAR = 2**24
SCALES = ((1, 5), (0, 1), (0, 5), (1, 10), (0, 10), (0, 100))  # the first that holds all ratings
KINDS: dict[str, Callable[[io.BytesIO], pd.DataFrame]] = {
    ".csv": lambda file: pd.read_csv(file, skipinitialspace=True, dtype={"image": str}),
    ".jsonl": lambda file: pd.read_json(file, lines=True),
    ".parquet": pd.read_parquet,
}
RATING = ("rating", "mos", "stars", "score")  # names of the column of ratings
PERSON = ("person", "rater", "user")
VERDICTS = {"keep": 1.0, "kept": 1.0, "pick": 1.0, "reject": 0.0, "rejected": 0.0}
STARS = re.compile(rb"""xmp:Rating\s*(?:=\s*["']|>)\s*(-?\d+(?:\.\d+)?)""")
# those that this program wrote (output/xmp.py) are nobody's ratings
OURS = re.compile(rb"""agenticiqa:was_xmp_Rating\s*(?:=\s*["']|>)\s*(\d)""")
NAMED = 3  # rows that a mistake names
PENALTY = 0.1  # of choix: strengths stay finite where one picture always wins


class RatingsError(UserError, ValueError):
    """Ratings that cannot be read; the message is one sentence for the user."""


@dataclass(frozen=True)
class Ratings:
    """What people said of n pictures.

    `levels` are the means over people on the 1..5 scale, (n,), of the ratings on `scale`, its worst
    end first; of pairs they are strengths of mean 0 and deviation 1, and `scale` is None.
    `disagreement` is the standard deviation of people about the same picture, in levels.
    """

    pictures: tuple[Path, ...]
    levels: np.ndarray
    scale: tuple[float, float] | None
    given: int
    people: int = 1
    disagreement: float | None = None


def read_ratings(
    place: Path, scale: Sequence[float] | None = None, *, lower_is_better: bool = False
) -> Ratings:
    """The ratings in a table or a folder.

    Args:
        place: A table (.csv, .jsonl or .parquet) with the columns image and rating (or mos, stars, score),
            image and verdict (keep or reject), or better and worse, and if several people rated, person; paths
            are relative to it. Or a folder with pictures whose XMP, embedded or in sidecars, has xmp:Rating.
        scale: The worst and the best rating that could be given; by default the usual scale that holds all.
        lower_is_better: Whether the lowest rating is the best.

    Raises:
        RatingsError: Nothing is there, or a row that cannot be meant.
    """
    rows = _starred(place) if place.is_dir() else _table(place)
    if {"better", "worse"} <= {*rows.columns}:
        return _of_pairs(rows, place)
    found = _rated(rows, place)
    if place.is_dir():  # of stars; 0 of them is a rejected picture
        scale = (min(found["rating"].min(), 1), 5)
    low, high = _scale(found["rating"], scale, place)
    ends = (high, low) if lower_is_better else (low, high)
    found["level"] = 1 + 4 * (found["rating"] - ends[0]) / (ends[1] - ends[0])
    by_picture: Any = found.groupby("picture", sort=False)[
        "level"
    ]  # pandas does not say what it is
    levels = by_picture.mean()
    spread = by_picture.var(ddof=1).dropna()
    return Ratings(
        pictures=tuple(levels.index),
        levels=levels.to_numpy(),
        scale=ends,
        given=len(found),
        people=len(set(found["person"])),
        disagreement=float(np.sqrt(spread.mean())) if len(spread) else None,
    )


def _table(file: Path) -> pd.DataFrame:
    """The rows of a table, with names of columns in lower case."""
    kind = file.suffix.lower()
    if kind not in KINDS:
        expected = "expected a table named .csv, .jsonl or .parquet, or a folder of pictures"
        raise RatingsError(f"{file}: {expected}", "convert it")
    try:
        rows = KINDS[kind](io.BytesIO(read_bytes(file, LARGEST)))
    except FileError as error:
        raise RatingsError(f"{file}: {error}", "check the path") from error
    except Exception as error:  # pandas and pyarrow raise of every kind
        said = f"{file}: cannot be read as {kind[1:]}: {one_line(str(error))[:200]}"
        raise RatingsError(said, "correct it") from error
    return rows.rename(columns=lambda name: str(name).strip().lower())


def _starred(folder: Path) -> pd.DataFrame:
    """The pictures of a folder that have stars, or are rejected: no stars at all."""
    rows = [{"image": file, "rating": stars} for file, stars in _stars(folder)]
    if not rows:
        expected = "expected pictures with stars (xmp:Rating), in their sidecars or their own XMP"
        raise RatingsError(f"{folder}: {expected}", "rate some, or name a table")
    return pd.DataFrame(rows)


def _stars(folder: Path) -> Iterator[tuple[Path, float]]:
    for file in expand_inputs([str(folder)]):
        for told in _xmp(file):
            stars = STARS.search(told)
            ours = OURS.search(told)
            if ours and stars and ours[1] == stars[1]:
                continue
            if stars and float(stars[1]) != 0:  # 0 is "not rated"
                yield file, max(float(stars[1]), 0.0)
                break


def _xmp(file: Path) -> Iterator[bytes]:
    """What may tell the stars of a picture: its sidecars, then its own XMP."""
    for sidecar in (file.with_name(f"{file.name}.xmp"), file.with_suffix(".xmp")):
        if sidecar.is_file():
            yield read_bytes(sidecar, LARGEST_SIDECAR)
    with suppress(ImageError):  # a damaged one has no stars; assessing it says what is wrong
        yield own_xmp(file)


def _rated(rows: Any, place: Path) -> Any:
    """One row for each rating: picture, rating, person."""
    name = next((name for name in (*RATING, "verdict") if name in rows.columns), None)
    if "image" not in rows.columns or name is None:
        there = ", ".join(map(str, rows.columns[:8]))
        expected = "expected the columns image and rating, image and verdict, or better and worse"
        raise RatingsError(f"{place}: {expected}, got {there}", "name the columns so")
    ratings = _numbers(rows, name, place)
    person = next((rows[name] for name in PERSON if name in rows.columns), "")
    pictures = [_picture(image, place) for image in rows["image"]]
    return pd.DataFrame({"picture": pictures, "rating": ratings, "person": person})


def _numbers(rows: Any, name: str, place: Path) -> Any:
    """The ratings in a column, verdicts as 1 and 0."""
    given: Any = rows[name]
    wanted = "a number"
    if name == "verdict":
        given = given.astype(str).str.strip().str.lower().map(VERDICTS)
        wanted = "keep or reject"
    ratings: Any = pd.to_numeric(given, errors="coerce")
    bad = np.flatnonzero(rows["image"].isna() | ~np.isfinite(ratings))
    if len(bad):
        lines = ", ".join(str(row + 1) for row in bad[:NAMED])
        raise RatingsError(f"{place}: expected an image and {wanted} in row {lines}", "correct it")
    return ratings


def _picture(image: Any, place: Path) -> Path:
    """Where a picture lies that a table names."""
    file = place.parent / path_from_text(plain_cell(str(image)))
    if not file.is_file():
        raise RatingsError(f"{place}: there is no file {one_line(str(file))}", "correct its path")
    return file


def _scale(ratings: Any, scale: Sequence[float] | None, place: Path) -> tuple[float, float]:
    """The ends of the scale of ratings."""
    lowest, highest = float(ratings.min()), float(ratings.max())
    for low, high in [(scale[0], scale[1])] if scale else SCALES:
        if low <= lowest and highest <= high and low < high:
            return low, high
    given = f"the ratings go from {lowest:g} to {highest:g}"
    wanted = f"from {scale[0]:g} to {scale[1]:g}" if scale else "of a usual scale"
    remedy = "give its ends with --scale LOW HIGH"
    raise RatingsError(f"{place}: expected ratings {wanted}, {given}", remedy)


def _of_pairs(rows: pd.DataFrame, place: Path) -> Ratings:
    """Bradley–Terry strengths of the pictures of pairs, standardised."""
    numbers: dict[Path, int] = {}
    pairs = []
    for one, other in zip(rows["better"], rows["worse"], strict=True):
        files = (_picture(one, place), _picture(other, place))
        pairs.append(tuple(numbers.setdefault(file, len(numbers)) for file in files))
    if any(one == other for one, other in pairs):
        raise RatingsError(f"{place}: expected two pictures in each pair", "correct it")
    strengths = choix.opt_pairwise(len(numbers), pairs, alpha=PENALTY)
    spread = strengths.std()
    if not spread:
        raise RatingsError(f"{place}: the pairs put no picture before another", "compare more")
    levels = (strengths - strengths.mean()) / spread
    return Ratings(tuple(numbers), levels, None, given=len(pairs))
