"""What is done with each item of a batch, and the one row that becomes of it: an answer, or a
failure with its reason. Studies and the service have works of their own."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.config import Pipeline, Settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import models_root
from agentic_iqa_local.iqa_tools.weights import stored_sums
from agentic_iqa_local.judgement.identity import digest, identity
from agentic_iqa_local.result import Assessment, new_row
from agentic_iqa_local.services import Observer, Services

ROLES = {
    "agent": ("planner", "executor", "summarizer"),
    "letters": ("summarizer",),
}  # whose models a pipeline needs

AnyItem = TypeVar("AnyItem", bound=Any)
Row = TypeVar("Row")


class Work(ABC, Generic[AnyItem, Row]):
    """What is done with each item, which has an `image` (a path) and a `key`, with the models of
    `roles`. Works, items and rows go from one process to another, so they can be pickled."""

    settings: Settings
    roles: tuple[str, ...]

    def load(self, services: Services) -> None:
        """Loads models and tools, before the time of any item counts. Raises VLMError,
        ConfigError."""
        _ = services.tools  # what a tool lacks is told before a model is loaded
        for role in self.roles:
            services.client(role)
        services.prepare_tools()

    def describe(self, services: Services) -> dict[str, Any]:
        """What a run's description says of loaded services: on several workers all say the same,
        but for `hardware`."""
        return {role: services.client(role).describe() for role in self.roles}

    @abstractmethod
    def row(self, item: AnyItem, services: Services, observer: Observer) -> Row:
        """The item's row. What is wrong with the item alone is told in the row; what is raised
        becomes a failure too."""

    @abstractmethod
    def failure(self, item: AnyItem, error: str, sha256: str | None = None) -> Row:
        """The row of an item that has no answer; `sha256` (hex) of its picture's file where it was
        read."""


@dataclass(frozen=True)
class AssessWork(Work[Item, Assessment]):
    """An assessment of each item. `maps`: where an item's quality map is drawn to, by its key."""

    settings: Settings
    pipeline: Pipeline = "agent"
    maps: Mapping[str, Path] = field(default_factory=dict)

    @property
    def roles(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ROLES[self.pipeline]

    def row(self, item: Item, services: Services, observer: Observer) -> Assessment:
        from agentic_iqa_local.judgement.assessment import assess

        how: dict[str, Any] = {
            "pipeline": self.pipeline,
            "box": item.box,
        }
        how |= {"map": self.maps.get(item.key, False), "services": services, "observer": observer}
        return assess(item.image, item.reference, item.query, item.choices, **how)

    def failure(self, item: Item, error: str, sha256: str | None = None) -> Assessment:
        asked = item.query, item.choices, self.pipeline, self.settings, item.box
        row = new_row(item.image, item.reference, *asked, error=error)
        row.sha256 = sha256
        return row

    def identity(self, device: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the rows of a run depend on, by the names that a user is told: `asked` and what
        `of_work` gives."""
        apart = {"decisions": {"calibration"}, "models": {"__all__": {"path"}}}
        about = {"pipeline": self.pipeline, **asked}
        configuration = self.settings.model_dump(mode="json", exclude=apart)  # pyright: ignore[reportArgumentType]
        return configuration | of_work(self, device) | about


def of_work(work: Work[Any, Any], device: str) -> dict[str, Any]:
    """What the rows of a work depend on beside its questions: what `identity` lists, and the
    weights of tools in the models folder. Raises BundleError for a models folder whose list is
    damaged."""
    settings = work.settings
    sums = stored_sums(models_root(settings.models_dir))
    weights = sorted(pair for pair in sums.items() if pair[0].startswith("tools/"))
    return identity(settings, work.roles, device) | {"tool weights": digest(weights)}


def as_line(row: Assessment) -> str:
    """An assessment as one line of JSON; the tools' runs are told once, in `tools`."""
    return one_line(row.model_dump_json(exclude={"evidence": {"tool_logs"}}))
