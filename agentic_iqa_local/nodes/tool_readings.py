"""What the tools read of one assessment's pictures: each runs once on each region."""

import functools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentic_iqa_local.iqa_tools import ToolError, ToolReading
from agentic_iqa_local.iqa_tools.detector import load_detector
from agentic_iqa_local.iqa_tools.reliability import Reachable, Reliability
from agentic_iqa_local.nodes.pictures import Pictures
from agentic_iqa_local.services import Observer, Services
from agentic_iqa_local.state import Box
from agentic_iqa_local.vlm_client import ONE_PASS

if TYPE_CHECKING:
    from agentic_iqa_local.iqa_tools.local_nr import Examination


@dataclass
class ToolReadings:
    """Readings of the pictures, or of regions of them, kept for the next question."""

    services: Services
    pictures: Pictures
    observer: Observer
    warn: Callable[[str], None]
    _readings: dict[tuple[str, Box | None], ToolReading] = field(default_factory=dict)

    def available(self) -> list[str]:
        """The tools that can run on these pictures."""
        return [tool.name for tool in self.services.tools.available(self.pictures.has_reference)]

    def configured(self) -> list[str]:
        """Those of them that the configuration names for such pictures."""
        named = self.services.settings.tools.configured(self.pictures.has_reference)
        able = self.available()
        return [tool for tool in named if tool in able]

    def leading(self, beside: Iterable[str] = ()) -> list[str]:
        """Those of the configured tools that run unasked: none that would have no vote, since
        another of them, or a tool `beside` them, is clearly more reliable."""
        return self.services.leading(self.configured(), beside)

    def reachable(self) -> Reachable:
        """By tool, the ends of what its map can return."""
        return {name: fitted.reachable for name, fitted in self.services.tools.maps.items()}

    def reliability(self) -> Reliability:
        """How far each tool can be trusted, the user's eye among them."""
        return self.services.tools.reliability

    def score(self, tool: str, box: Box | None = None) -> ToolReading:
        """A tool's score of the picture or a region, computed once. Raises ToolError."""
        if (tool, box) not in self._readings:
            alone = ONE_PASS if tool == "QAlign" else nullcontext()
            with alone, self.observer.measuring(tool, self.services) as tools:
                self._readings[tool, box] = tools.score(tool, *self.pictures.parts(box))
        reading = self._readings[tool, box]
        if reading.crops:
            crops = f"{len(reading.crops)} native-resolution crops"
            self.warn(f"{tool} measured {crops}, since all pixels would take long")
        return reading

    def examine(self, box: Box | None = None) -> "Examination":
        """What LocalNR reads of the picture or a region, with its reference if there is one. Raises
        ToolError."""
        with self.observer.measuring("LocalNR", self.services) as tools:
            return tools.examine(*self.pictures.parts(box))

    @functools.cached_property
    def unlike_photograph(self) -> float | None:
        """LocalNR's probability that the picture is a screenshot, a drawing, a chart or a code, of
        which it and NIQE know nothing; None where it counts as a photograph, has a reference, or
        cannot be read."""
        if self.pictures.has_reference:
            return None
        try:
            graphic = self.examine().graphic
        except ToolError:
            return None
        return graphic if graphic >= load_detector().graphic else None
