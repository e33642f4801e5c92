"""A model and tools that let one thing go wrong in the first pass."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.iqa_tools import ToolError, ToolReading, ToolRunner
from agentic_iqa_local.vlm_client import VLMClient, VLMSession
from agentic_iqa_local.vlm_client.chat import ChatPrompt


@dataclass
class Plant:
    """What goes wrong in one assessment: `edit` changes the first answer to `schema`, and `tool` reads
    `reading` (1..5), or fails where that is None. `variant` tells the ways apart in which one gap is planted.
    """

    schema: str | None = None
    edit: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    tool: str | None = None
    reading: float | None = None
    variant: str = ""
    edited: bool = field(default=False, init=False)
    misread: bool = field(default=False, init=False)

    @property
    def took(self) -> bool:
        """Whether the assessment met all that was planted."""
        return self.edited == (self.schema is not None) and self.misread == (self.tool is not None)


class PlantedClient:
    """A client whose sessions change the first answer to the plant's schema; all else is the inner
    client's."""

    def __init__(self, inner: VLMClient, plant: Plant) -> None:
        self._inner, self._plant = inner, plant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, images: Sequence[Image.Image]) -> "PlantedSession":
        return PlantedSession(self._inner.open(images), self._plant)


class PlantedSession:
    """A session of `PlantedClient`."""

    def __init__(self, inner: VLMSession, plant: Plant) -> None:
        self._inner, self._plant = inner, plant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def generate(self, prompt: ChatPrompt, schema: type[BaseModel], **options: Any) -> str:
        text = self._inner.generate(prompt, schema, **options)
        edit = self._plant.edit
        if edit is None or self._plant.schema != schema.__name__ or self._plant.edited:
            return text
        try:
            answer = json.loads(text)
        except ValueError:  # broken off; the agent asks again
            return text
        self._plant.edited = True
        return json.dumps(edit(answer))


class PlantedTools:
    """A tool runner whose planted tool misreads or fails. `readings` holds what was measured already, for all
    assessments of a run; `saved` counts the seconds that this one would have taken for what it found there.
    """

    def __init__(self, inner: ToolRunner, plant: Plant, readings: dict[tuple[str, str], ToolReading]) -> None:
        self._inner, self._plant, self._readings = inner, plant, readings
        self.saved = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def score(self, name: str, image: Image.Image, reference: Image.Image | None = None) -> ToolReading:
        planted = name == self._plant.tool
        self._plant.misread |= planted
        if planted and self._plant.reading is None:
            raise ToolError(f"{name}: made to fail by the benchmark")
        key = name, hashlib.sha256(image.tobytes()).hexdigest()
        if key in self._readings:
            self.saved += self._readings[key].seconds
        else:
            self._readings[key] = self._inner.score(name, image, reference)
        reading = self._readings[key]
        return dataclasses.replace(reading, normalized=self._plant.reading) if planted else reading
