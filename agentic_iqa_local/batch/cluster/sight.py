"""Does a worker see the same file as the driver? Where it does, the file stays where it is; where not, its
bytes travel with the item.

The driver tells size and time of change of each file. A worker that finds others, or nothing, says what is
there by its SHA-256, and is given the item once more: with the bytes where those differ.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from agentic_iqa_local.batch.cluster.identity import of_loaded
from agentic_iqa_local.batch.work import AnyItem, Work
from agentic_iqa_local.images.files import ImageError, read_file, sent_files
from agentic_iqa_local.judgement.assessment import file_sha256
from agentic_iqa_local.nodes.workbench import Observer
from agentic_iqa_local.services import Services

Facts = tuple[int, int]  # of a file: its bytes, and when it was changed (ns)


@dataclass(frozen=True)
class Handed(Generic[AnyItem]):
    """An item on its way to a worker: what its files are like, by path, and the bytes of those that are
    sent."""

    item: AnyItem
    facts: Mapping[str, Facts] = field(default_factory=dict)
    data: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.item.key

    @property
    def image(self) -> Path:
        return self.item.image


@dataclass(frozen=True)
class Unseen:
    """In place of a row: files that a worker does not see as the driver does, with the SHA-256 (hex) of what
    it sees there, None for nothing."""

    key: str
    found: Mapping[str, str | None]


def handed(item: AnyItem, paths: list[Path], *, send: bool = False) -> Handed[AnyItem]:
    """An item for a worker, with the bytes of its files where it is known not to see them (`send`). A file
    that the driver cannot read either is the worker's to tell of."""
    found = {str(path): facts for path in paths if (facts := _facts(path))}
    data = {path: content for path in found if (content := _content(path)) is not None} if send else {}
    return Handed(item, {path: facts for path, facts in found.items() if path not in data}, data)


def with_what_is_missing(given: Handed[AnyItem], unseen: Unseen) -> Handed[AnyItem]:
    """The item once more, for the worker that said what it does not see."""
    data = dict(given.data)
    for path, sha256 in unseen.found.items():
        content = _content(path)
        if content is not None and hashlib.sha256(content).hexdigest() != sha256:
            data[path] = content
    return Handed(given.item, {}, data)


def _facts(path: str | Path) -> Facts | None:
    try:
        state = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return None
    return state.st_size, state.st_mtime_ns


def _content(path: str) -> bytes | None:
    try:
        return read_file(path)
    except ImageError:
        return None


@dataclass(frozen=True)
class Afar(Work[Handed[Any], Any]):
    """Another work, done on items that were handed over by a driver on another machine."""

    work: Work[Any, Any]

    @property
    def settings(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.work.settings

    @property
    def roles(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.work.roles

    def row(self, item: Handed[Any], services: Services, observer: Observer) -> Any:
        unlike = [path for path, facts in item.facts.items() if _facts(path) != facts]
        if unlike:
            return Unseen(item.key, {path: file_sha256(path) for path in unlike})
        with sent_files(item.data):
            return self.work.row(item.item, services, observer)

    def failure(self, item: Handed[Any], error: str, sha256: str | None = None) -> Any:
        if data := item.data.get(str(item.image)):  # another file may lie there
            sha256 = hashlib.sha256(data).hexdigest()
        return self.work.failure(item.item, error, sha256)

    def files(self, item: Handed[Any]) -> list[Path]:
        return self.work.files(item.item)

    def warned(self, row: Any, line: str) -> Any:
        return self.work.warned(row, line)

    def key(self, row: Any) -> str:
        return row.key if isinstance(row, Unseen) else self.work.key(row)

    def error(self, row: Any) -> str | None:
        return None if isinstance(row, Unseen) else self.work.error(row)

    def sha256(self, row: Any) -> str | None:
        return None if isinstance(row, Unseen) else self.work.sha256(row)

    def line(self, row: Any) -> str:
        return "" if isinstance(row, Unseen) else self.work.line(row)

    def sent(self, row: Any) -> Any:
        return row if isinstance(row, Unseen) else self.work.sent(row)

    def describe(self, services: Services) -> dict[str, Any]:
        """`loaded`, what every worker must have alike, beside what the work itself says."""
        return {"loaded": of_loaded(services, self.roles), "work": self.work.describe(services)}
