"""Merges the rows of all shards of a list into one file, in the order of the list.

One shard is in memory at a time: where in its file each row lies. Its rows are read twice, once to check them
and once to copy them.
"""

import fcntl
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from agentic_iqa_local.batch.inputs import LARGEST, LONGEST_NAME, row_key
from agentic_iqa_local.batch.rows import (
    LARGEST_NOTE,
    WriteError,
    differences,
    rows_in,
    run_began,
    told_differences,
    write_run,
)
from agentic_iqa_local.batch.shards import ListDigest, Shard, list_file
from agentic_iqa_local.batch.stored_row import StoredRow
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, create, open_regular, place_for, read_bytes, read_json
from agentic_iqa_local.text import one_line

NAMED = 5  # shards and pictures in a message
TIMES = ("seconds", "timestamp", "execution_time")  # the ends of keys that may differ between equal rows


class MergeError(UserError, ValueError):
    """Shards that cannot be merged; one sentence for the user."""


class Incomplete(MergeError):
    """Shards or rows that are missing."""


class _Part(BaseModel):
    """What the description of a shard's run says of its place."""

    model_config = ConfigDict(extra="forbid", strict=True)

    part: PositiveInt
    of: PositiveInt
    items: PositiveInt
    list: str


@dataclass
class _Source:
    """One file of a shard's rows, and the description of its run."""

    path: Path
    part: _Part
    run: dict[str, Any]  # without the shard in its identity
    keys: "list[str]" = field(default_factory=list)

    @property
    def whole(self) -> dict[str, Any]:
        """What is the same in all shards of a list."""
        return self.run["identity"] | {"shard": self.part.model_dump(exclude={"part"})}


@dataclass
class Merged:
    """What became of a merge: rows, failures among them, rows that were there twice, and what lacks."""

    rows: int = 0
    failed: int = 0
    doubled: int = 0
    missing_shards: list[int] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # pictures, the first NAMED
    lacking: int = 0  # how many of shards that are there

    def lacks(self) -> str:
        """What is missing, in words; empty where nothing is."""
        parts = []
        if shards := self.missing_shards:
            more = f" and {len(shards) - NAMED} more" if len(shards) > NAMED else ""
            parts.append(
                f"no file of shard{'s' * (len(shards) > 1)} {', '.join(map(str, shards[:NAMED]))}{more}"
            )
        if self.lacking:
            more = f" and {self.lacking - NAMED} more" if self.lacking > NAMED else ""
            parts.append(f"no row of {', '.join(self.missing)}{more}")
        return "; ".join(parts)


def merge(
    files: Sequence[Path],
    out: Path,
    *,
    allow_missing: bool = False,
    done: Callable[[int], None] | None = None,
) -> Merged:
    """Writes the rows of shards to `out`, which is there whole or not at all, and the description of their
    run beside it: assess can go on with the result. `done` gets the number of rows after each shard.

    Raises MergeError for files that are no shards of one list and one run, are being written, or hold
    different rows of one picture; Incomplete where something lacks, unless that is allowed; RowsError for a
    line that is no row; WriteError.
    """
    sources = [_source(path) for path in files]
    _check_alike(sources)
    first = sources[0]
    try:
        place = place_for(out)
    except FileError as error:
        raise MergeError(f"{out}: {error}", "choose another --out") from error
    if place.exists() and place.stat().st_size:
        raise MergeError(f"{out}: holds rows already", "choose another --out")
    partial, merged = place.with_name(place.name + ".partial"), Merged()
    by_part: dict[int, list[_Source]] = {}
    for source in sources:
        by_part.setdefault(source.part.part, []).append(source)
    merged.missing_shards = [part for part in range(1, first.part.of + 1) if part not in by_part]
    if merged.missing_shards and not allow_missing:
        raise _incomplete(merged)
    try:
        with open(create(partial), "wb") as to:
            digest = ListDigest()
            for part in sorted(by_part):
                _merge_part(by_part[part], to, merged, digest)
                if done:
                    done(merged.rows)
            if not merged.missing_shards and digest.hexdigest() != first.part.list:
                raise MergeError(
                    f"{list_file(first.path).name} and those of the other shards: expected the list that the"
                    " runs began with, got another",
                    "run the shard again whose list was changed",
                )
            if merged.lacking and not allow_missing:
                raise _incomplete(merged)
            to.flush()
            os.fsync(to.fileno())
        oldest = min(sources, key=lambda source: run_began(_description(source.path)))
        run = {"merged": [path.name for path in files], "date": oldest.run.get("date")}
        write_run(place.with_name(f"{place.name}.run.json"), run, first.run["identity"])
        partial.replace(place)
    except OSError as error:
        raise WriteError(f"{out}: could not be written ({error.strerror})", "choose another --out") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return merged


def _incomplete(merged: Merged) -> Incomplete:
    return Incomplete(
        f"the list is not whole: {merged.lacks()}",
        "run those shards to their end (--resume), or merge what there is with --allow-missing",
    )


def _description(rows: Path) -> Path:
    return rows.with_name(f"{rows.name}.run.json")


def _source(path: Path) -> _Source:
    """Raises MergeError."""
    try:
        run = read_json(_description(path), LARGEST_NOTE)
        identity = run.get("identity")
        if not isinstance(identity, dict) or not isinstance(identity.get("shard"), dict):
            raise FileError("expected the description of a shard, found none")
        part = _Part.model_validate(identity.pop("shard"))
        Shard.parse(f"{part.part}/{part.of}")
        os.close(open_regular(path))
    except (FileError, ValidationError, ValueError) as error:
        said = error if isinstance(error, FileError) else "it has no place among the shards"
        raise MergeError(
            f"{path}: expected rows of assess --shard, with their FILE.run.json: {said}",
            "name the files that it wrote",
        ) from error
    return _Source(path, part, run)


def _check_alike(sources: Sequence[_Source]) -> None:
    """Raises MergeError for shards of different lists or runs."""
    first = sources[0]
    for source in sources[1:]:
        if differ := differences(first.whole, source.whole):
            raise MergeError(
                f"{source.path} is of another run than {first.path}:"
                f" {told_differences(differ, '{} is {} there and {} here')}",
                "merge the shards of one run",
            )


def _merge_part(sources: Sequence[_Source], to: BinaryIO, merged: Merged, digest: ListDigest) -> None:
    """Writes the rows of one shard, which several files may hold, in the order of its list."""
    keys = _keys(sources[0])
    for key in keys:
        digest.add(key)
    places = {key: place for place, key in enumerate(keys)}
    found: list[tuple[BinaryIO, int, int] | None] = [None] * len(keys)
    with ExitStack() as stack:
        for source in sources:
            file = stack.enter_context(_opened(source.path))
            at = 0
            for line, row in rows_in(file, source.path, StoredRow, going_on=True):
                place = places.get(row_key(row))
                if place is None:
                    raise MergeError(
                        one_line(
                            f"{source.path}: expected pictures of its list, got a row of {row['image']}"
                        ),
                        "run the shard again with another --out",
                    )
                if (earlier := found[place]) is None:
                    found[place] = (file, at, len(line))
                    merged.failed += row["error"] is not None
                else:
                    _check_same(_line(earlier), line, source.path, row["image"])
                    merged.doubled += 1
                at += len(line)
        for place, lies in enumerate(found):
            if lies is not None:
                to.write(_line(lies))
                merged.rows += 1
            else:
                merged.lacking += 1
                if len(merged.missing) < NAMED:
                    merged.missing.append(_picture(keys[place]))


def _keys(source: _Source) -> list[str]:
    """The keys of a shard's items. Raises MergeError."""
    path, part = list_file(source.path), source.part
    try:
        keys = read_bytes(path, LARGEST).decode().splitlines()
        if len(keys) != len(Shard(part.part, part.of).places(part.items)):
            raise FileError(f"expected another number of items than {len(keys)}")
    except (FileError, UserError, ValueError) as error:
        raise MergeError(
            f"{path}: expected the list of the shard's items: {error}", "run the shard again"
        ) from error
    return keys


def _picture(key: str) -> str:
    """The picture that a key is of, for a message."""
    with suppress(ValueError, LookupError, TypeError):  # somebody wrote the list
        key = str(json.loads(key)[0])
    return one_line(f"{key:.{LONGEST_NAME}}")


def _opened(path: Path) -> BinaryIO:
    """A file of rows that nobody writes meanwhile. Raises MergeError."""
    try:
        file = open(open_regular(path), "rb")  # noqa: SIM115 # whoever called closes it
    except FileError as error:
        raise MergeError(f"{path}: {error}", "name the files that assess --shard wrote") from error
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise MergeError(f"{path}: a process is writing it", "merge when it has ended") from error
    return file


def _line(lies: tuple[BinaryIO, int, int]) -> bytes:
    file, at, length = lies
    return os.pread(file.fileno(), length, at)


def _check_same(earlier: bytes, line: bytes, path: Path, image: str) -> None:
    """Raises MergeError for two rows of one picture that differ in more than times."""
    if earlier != line and _timeless(json.loads(earlier)) != _timeless(json.loads(line)):
        raise MergeError(
            one_line(f"{path}: expected one row of {image}, got two that differ"),
            "keep the file that you trust, and name it alone",
        )


def _timeless(value: Any) -> Any:
    """`value` without what tells when it was made and how long that took."""
    if isinstance(value, dict):
        return {key: _timeless(part) for key, part in value.items() if not key.endswith(TIMES)}
    return [_timeless(part) for part in value] if isinstance(value, list) else value
