"""What one assessment works with: its pictures, the models and tools on them, and what a user must
be warned of. The graph's context is it; a node called by itself makes its own."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.config import boxes_of
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.pictures import Pictures
from agentic_iqa_local.nodes.sessions import Models
from agentic_iqa_local.nodes.tool_readings import ToolReadings
from agentic_iqa_local.services import Observer, Services, load_services
from agentic_iqa_local.state import AgenticIQAState, FusionResult, PlannerOutput

if TYPE_CHECKING:  # they take a second to import, and most of the program does without them
    from langchain_core.runnables import RunnableConfig
    from langgraph.runtime import Runtime

logger = logging.getLogger(__name__)

# Whether so many letter reads in all may be made, since the answer to a plan is not sure enough yet
WantsMore = Callable[[FusionResult, PlannerOutput | None, int], bool]


class Workbench:
    """The parts of one assessment. The caller may set `wants_more`. Raises ImageError."""

    def __init__(
        self,
        services: Services,
        image_path: str,
        reference_path: str | None = None,
        observer: Observer | None = None,
    ):
        self.services, self.observer = services, observer or Observer()
        self.settings = services.settings
        self.wants_more: WantsMore | None = None
        self.warnings: list[str] = []
        with self.observer.calling("the picture"):
            self.pictures = Pictures(self.settings.images, image_path, reference_path)
        self.models = Models(services, self.pictures, self.observer, self.warn)
        self.tools = ToolReadings(services, self.pictures, self.observer, self.warn)
        for line in self.pictures.warnings():
            self.warn(line)
        self._of_pictures = list(self.warnings)  # every question has them

    def begin_turn(self) -> None:
        """Another question about the same pictures begins: it has its own costs, warnings and
        failures."""
        self.warnings = list(self._of_pictures)
        self.models.begin_turn()

    def warn(self, line: str, *, log: bool = True) -> None:
        """Adds a warning once to the result, and to the `log` unless that has it already."""
        line = one_line(line)
        if line in self.warnings:
            return
        self.warnings.append(line)
        if log:
            logger.warning("%s", line)

    def close(self) -> None:
        self.models.close()
        self.pictures.close()


@contextmanager
def opened(
    state: AgenticIQAState, config: "RunnableConfig | None", runtime: "Runtime[Any] | None"
) -> Iterator[Workbench]:
    """The workbench that the graph runs on, else one for this block on the state's pictures, with
    the services in `config["configurable"]` or the default ones."""
    with ExitStack() as stack:
        bench = runtime.context if runtime else None
        if bench is None:
            services = (config or {}).get("configurable", {}).get("services") or load_services()
            paths = state["image_path"], state.get("reference_path")
            bench = stack.enter_context(closing(Workbench(services, *paths)))
        bench.pictures.locate(boxes_of(state.get("box")))
        yield bench
