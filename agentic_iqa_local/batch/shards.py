"""A list of items cut into shards, so that many processes share it: which items each has, how its file of
rows is named, and the list of its items that lies beside that."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.batch.rows import write_whole
from agentic_iqa_local.errors import UserError

MOST = 65_536


class ShardError(UserError, ValueError):
    """A shard that there cannot be; one sentence for the user."""


@dataclass(frozen=True)
class Shard:
    """Part number `part` (from 1 on) `of` so many."""

    part: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """ "3/64". Raises ValueError."""
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        shard = cls(*map(int, found.groups())) if found else None
        if shard is None or not 1 <= shard.part <= shard.of <= MOST:
            raise ValueError(f"expected PART/OF such as 3/64, of at most {MOST}, got {text!r:.60}")
        return shard

    def __str__(self) -> str:
        return f"{self.part}/{self.of}"

    def places(self, total: int) -> range:
        """The places of its items in a list of `total`. They follow each other, so that the rows of all
        shards one after the other have the list's order. Raises ShardError where it would have none."""
        if total < self.of:
            raise ShardError(
                f"--shard {self}: expected at least {self.of} pictures, got {total}", "name fewer shards"
            )
        return range((self.part - 1) * total // self.of, self.part * total // self.of)

    def file(self, out: Path) -> Path:
        """The file of its rows, where those of all are to be merged into `out`."""
        width = len(str(self.of))
        return out.with_name(f"{out.stem}.{self.part:0{width}}-of-{self.of}{out.suffix}")


@dataclass(frozen=True)
class Share:
    """The items of one shard, and what tells the whole list from others."""

    shard: Shard
    items: list[Item]
    total: int
    digest: str
    """Of all keys, see `ListDigest`."""

    def identity(self) -> dict[str, Any]:
        """What a run's description says of it; but for `part` the same in all shards."""
        shard = self.shard
        return {"part": shard.part, "of": shard.of, "items": self.total, "list": self.digest}

    def write_list(self, rows: Path) -> None:
        """Writes the list of its items. Raises WriteError."""
        write_whole(list_file(rows), "\n".join(item.key for item in self.items), sync=True)


class ListDigest:
    """SHA-256 over the keys of a list, in their order, a line each."""

    def __init__(self) -> None:
        self._digest, self.count = hashlib.sha256(), 0

    def add(self, key: str) -> None:
        self._digest.update(key.encode() + b"\n")
        self.count += 1

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def share_of(items: Sequence[Item], shard: Shard) -> Share:
    """What `shard` has of a list. Raises ShardError."""
    digest = digest_of(item.key for item in items)
    places = shard.places(len(items))
    return Share(shard, list(items[places.start : places.stop]), len(items), digest.hexdigest())


def digest_of(keys: Iterable[str]) -> ListDigest:
    digest = ListDigest()
    for key in keys:
        digest.add(key)
    return digest


def list_file(rows: Path) -> Path:
    """The list of a shard's items: the key of each, in their order, a line each."""
    return rows.with_name(f"{rows.name}.items")
