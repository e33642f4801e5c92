"""What is done with each item of a batch, and what becomes of it: one row, be it an answer or a failure with
its reason.

`Work` is what the window (`batch`) and its process (`batch_worker`) know of it. The assessment is here; a
study's inference is in `studies.run`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from agentic_iqa_local.batch.inputs import Item, row_key
from agentic_iqa_local.batch.stored_row import as_line, read_line
from agentic_iqa_local.config import Pipeline, Settings
from agentic_iqa_local.files import FileError
from agentic_iqa_local.judgement.assessment import assess, unassessed
from agentic_iqa_local.judgement.quality_map import MapRequest
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.workbench import Observer
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services
from agentic_iqa_local.text import one_line

# of a pipeline: the roles whose models it needs
ROLES = {"agent": ("planner", "executor", ROLE), "letters": (ROLE,)}


class Keyed(Protocol):
    """An item: an image, and the key that tells its row from others."""

    @property
    def key(self) -> str: ...

    @property
    def image(self) -> Path: ...


AnyItem = TypeVar("AnyItem", bound=Keyed)
Row = TypeVar("Row")


class Work(ABC, Generic[AnyItem, Row]):
    """What is done with each item. It goes to another process, so it can be pickled."""

    settings: Settings
    roles: tuple[str, ...]
    """The roles whose models it needs."""

    tells: bool = False
    """Whether the steps of each item's work are told to the process that waits for its row."""

    @abstractmethod
    def row(self, item: AnyItem, services: Services, observer: Observer) -> Row:
        """The item's row. Whatever is wrong with the item alone is told in the row; what is raised becomes a
        failure too."""

    @abstractmethod
    def failure(self, item: AnyItem, error: str, sha256: str | None = None) -> Row:
        """The row of an item that has no answer."""

    def files(self, item: AnyItem) -> list[Path]:
        """The pictures that an item's work reads."""
        return [item.image]

    def overdue(self, item: AnyItem, error: str, sha256: str | None = None) -> Row:
        """The row of an item whose time was over before there was an answer."""
        return self.failure(item, error, sha256)

    @abstractmethod
    def warned(self, row: Row, line: str) -> Row:
        """The row with one more warning."""

    @abstractmethod
    def key(self, row: Row) -> str:
        """The key of the item that the row is of."""

    @abstractmethod
    def error(self, row: Row) -> str | None:
        """Why the row has no answer; None where it has one."""

    @abstractmethod
    def sha256(self, row: Row) -> str | None:
        """SHA-256 (hex) of the image's file, None where it was not read."""

    @abstractmethod
    def line(self, row: Row) -> str:
        """The row as one line of JSON."""

    def sent(self, row: Row) -> Any:
        """The row as it goes to another process."""
        return row

    def received(self, item: AnyItem, sent: Any) -> tuple[Row, str | None]:
        """An item's row as it came from another process; with its line where that was sent, and checked as a
        file of rows does."""
        return sent, None

    def describe(self, services: Services) -> dict[str, Any]:
        """What a run's description says of loaded services."""
        return {}


@dataclass(frozen=True)
class Assessing(Work[Item, Assessment]):
    """An assessment of each item."""

    settings: Settings
    pipeline: Pipeline = "agent"
    max_replan_iterations: int | None = None
    maps: Mapping[str, MapRequest] = field(default_factory=dict)
    """What is asked of each item's map, by its key."""

    @property
    def roles(self) -> tuple[str, ...]:
        return ROLES[self.pipeline]

    def row(self, item: Item, services: Services, observer: Observer) -> Assessment:
        return assess(
            item.image,
            item.reference,
            item.query,
            item.choices,
            pipeline=self.pipeline,
            max_replan_iterations=self.max_replan_iterations,
            map=self.maps.get(item.key, False),
            services=services,
            observer=observer,
        )

    def failure(self, item: Item, error: str, sha256: str | None = None) -> Assessment:
        row = unassessed(item.image, item.reference, item.query, item.choices, self.pipeline, self.settings)
        row.error, row.sha256 = one_line(error), sha256
        return row

    def files(self, item: Item) -> list[Path]:
        return [path for path in (item.image, item.reference) if path]

    def warned(self, row: Assessment, line: str) -> Assessment:
        row.warnings = [*row.warnings, line]
        return row

    def key(self, row: Assessment) -> str:
        return key_of(row)

    def error(self, row: Assessment) -> str | None:
        return row.error

    def sha256(self, row: Assessment) -> str | None:
        return row.sha256

    def line(self, row: Assessment) -> str:
        return as_line(row)

    def sent(self, row: Assessment) -> str:
        return as_line(row)

    def received(self, item: Item, sent: str) -> tuple[Assessment, str | None]:
        try:
            return read_line(sent), sent
        except FileError as error:
            sha256 = json.loads(sent)["sha256"]
            return self.failure(item, f"the assessment gave no valid row: {error}", sha256), None


def key_of(row: Assessment) -> str:
    """The key of the item that an assessment is of."""
    return row_key(row.model_dump(include={"image", "reference", "query", "choices"}))
