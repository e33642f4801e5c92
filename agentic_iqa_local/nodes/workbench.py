"""One assessment's workbench: its images, opened once, with the model's sessions on them, the tools' scores of them,
and what a user must be warned of. The graph's context is it; a node called by itself opens its own."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.config import ImageSettings, boxes_of
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.images.files import ImageError, within_memory
from agentic_iqa_local.images.frames import moved, without_frames
from agentic_iqa_local.images.reading import LoadedImage, load_image, load_pair
from agentic_iqa_local.images.references import doubts
from agentic_iqa_local.iqa_tools import ToolError, ToolReading
from agentic_iqa_local.iqa_tools.detector import load_detector
from agentic_iqa_local.services import ALONE, MODEL, Observer, Services, load_services
from agentic_iqa_local.state import AgenticIQAState, Box, ExecutorOutput, PlannerError, native_views
from agentic_iqa_local.vlm_client import (
    LetterRead,
    SeenImage,
    TokenUsage,
    VLMClient,
    VLMError,
    VLMSession,
)
from agentic_iqa_local.vlm_client.chat import ChatPrompt

if TYPE_CHECKING:
    from agentic_iqa_local.iqa_tools.local_nr import Examination
    from agentic_iqa_local.judgement.gates import Sureness

logger = logging.getLogger(__name__)


def load_pictures(
    limits: ImageSettings, image_path: str | Path, reference_path: str | Path | None = None
) -> tuple[LoadedImage, LoadedImage | None]:
    """A picture and its reference within a configuration's limits, without their frames. Raises ImageError."""
    options = limits.model_dump(include={"max_pixels", "min_side", "background"})
    with within_memory(image_path):
        if reference_path is None:
            return without_frames(load_image(image_path, **options))
        return without_frames(*load_pair(image_path, reference_path, **options))


class RoleSession:
    """A model's session on a part of the images as one role uses it. `nodes.ask` puts the role's failed tries into
    `failed_tries`, each with what the `evidence` was."""

    def __init__(self, session: VLMSession, role: str, box: Box, images: OpenImages):
        self._session, self.role, self._images = session, role, images
        self._asker = images.asker(role, box)
        self.failed_tries = images.failed_tries

    @property
    def evidence(self) -> ExecutorOutput | None:
        return self._images.evidence

    def generate(self, prompt: ChatPrompt, schema: type[BaseModel], **options: Any) -> str:
        with self._images.calling_model(self.role):
            return self._session.generate(replace(prompt, asker=self._asker), schema, **options)

    def read_letters(
        self, prompt: ChatPrompt, answer_prefix: str, letters: Sequence[str]
    ) -> LetterRead:
        prompt = replace(prompt, asker=self._asker)
        with self._images.calling_model(self.role):
            read = self._session.read_letters(prompt, answer_prefix, letters)
        _log_letters(self._asker, answer_prefix, read)
        return read


def _log_letters(asker: str, answer_prefix: str, read: LetterRead) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        logprobs = ", ".join(f"{letter} {value:.4f}" for letter, value in read.logprobs.items())
        told = "Letters read for the %s after %s: %s; off-letter mass %.3g"
        logger.debug(told, asker, answer_prefix, logprobs, read.off_letter_mass)


class OpenImages:
    """One assessment's images. Each model stays open on its first view, whichever roles use it, and is opened on other
    views for each read; each tool runs once on each region. `warnings` collects what a user must know, `failed_tries`
    what the model said in vain. The caller may set `sureness`, a node the `evidence` that it works with. Raises
    ImageError."""

    def __init__(
        self,
        services: Services,
        image_path: str,
        reference_path: str | None = None,
        observer: Observer | None = None,
    ):
        self.services, self.observer = services, observer or Observer()
        self.sureness: Sureness | None = None
        self.evidence: ExecutorOutput | None = None
        with self.observer.opening():
            self.image, self.reference = load_pictures(
                services.settings.images, image_path, reference_path
            )
        self.identical = self.reference is not None and self.image.pixels == self.reference.pixels
        self.warnings: list[str] = []
        self.failed_tries: list[PlannerError] = []
        self._open: dict[int, VLMSession] = {}  # by client, on its first view
        self._opened: list[
            tuple[int, Box, VLMSession]
        ] = []  # by client and box, those that are closed too
        self._other_usage = TokenUsage()  # of batches, less that of earlier turns
        self._readings: dict[tuple[str, Box | None], ToolReading] = {}
        self.boxes: dict[
            str, Box
        ] = {}  # of regions, in pixels of `image`; "" is one without a name
        lines = [*self.image.warnings]
        if reference := self.reference:
            lines += [f"the reference {reference.path}: {line}" for line in reference.warnings]
            lines += [
                "the picture has the same pixels as its reference: nothing was lost against it, so tools that compare"
                " have their best score without measuring"
            ] * self.identical
            lines += doubts(self.image.pixels, reference.pixels)
        for line in lines:
            self.warn(line)
        self._of_pictures = [*self.warnings]  # every turn of a conversation has them

    def begin_turn(self) -> None:
        """Another assessment of the same images begins: it counts its own costs, warnings and failures."""
        self.warnings, self.failed_tries = [*self._of_pictures], []
        self._other_usage -= self.usage
        self._readings = {
            key: replace(reading, seconds=0.0) for key, reading in self._readings.items()
        }

    def warn(self, line: str, *, log: bool = True) -> None:
        """Adds a warning once to the result, and to the `log` unless that has it already."""
        if (line := one_line(line)) not in self.warnings:
            self.warnings.append(line)
            if log:
                logger.warning("%s", line)

    def views(self, role: str) -> list[Box]:
        """The whole image, or native-resolution crops of one beyond the range of the role's model."""
        limits, (width, height) = self.services.client(role).limits, self.image.pixels.size
        most, ends = (
            limits.max_pixels or width * height,
            {"factor": limits.factor, "min_pixels": limits.min_pixels},
        )
        views = native_views(
            width,
            height,
            **ends,
            max_pixels=most,
            max_views=self.services.settings.images.max_crops,
        )
        seen = views[0][2] - views[0][0], views[0][3] - views[0][1]
        if len(views) > 1:
            how = f"scored on {len(views)} native-resolution crops and averaged, described from the central one"
            self.warn(
                f"{width}×{height} pixels are beyond what the model sees at once ({seen[0]}×{seen[1]}); {how}"
            )
        elif seen[0] * seen[1] < limits.min_pixels or any(side % limits.factor for side in seen):
            self.warn(
                f"{width}×{height} pixels are below the model's range; the processor enlarged it"
            )
        return views

    def locate(self, boxes: Mapping[str, Box]) -> None:
        """Takes up where regions lie, by their names in pixels of the upright picture. Raises ImageError for a box
        that is not in the picture, its frame apart, or too small to be judged."""
        self.boxes = {}
        left, top = self.image.offset
        right, bottom = left + self.image.width, top + self.image.height
        least = self.services.settings.images.min_side
        for name, box in boxes.items():
            inside = left <= box[0] and top <= box[1] and box[2] <= right and box[3] <= bottom
            if not inside or min(box[2] - box[0], box[3] - box[1]) < least:
                place = f"within {left},{top},{right},{bottom} with sides of {least} pixels or more"
                got = ",".join(map(str, box))
                named = f"box {name}" if name else "box"
                raise ImageError(f"{self.image.path}: {named}: expected {place}, got {got}")
            self.boxes[name] = moved(box, (-left, -top))

    def box_of(self, name: str) -> Box | None:
        """Where a region lies in the upright picture, if that is known."""
        box = self.boxes.get(name)
        return moved(box, self.image.offset) if box else None

    def box_in_view(self, role: str, written: Sequence[int], *, thousandths: bool) -> Box | None:
        """A box that the role's model wrote of its first view, in what it saw or in thousandths of that, as one in
        pixels of the upright picture; None for one that is no part of the view, or too small."""
        view, seen = self.seen_views(role)[0]
        wide, high = (1000, 1000) if thousandths else (seen.width, seen.height)
        left, top, right, bottom = written
        if not wide or not high or not (left < right <= wide and top < bottom <= high):
            return None
        x, y = (view[2] - view[0]) / wide, (view[3] - view[1]) / high
        box = round(left * x), round(top * y), round(right * x), round(bottom * y)
        least = self.services.settings.images.min_side
        return moved(box, view[:2]) if min(box[2] - box[0], box[3] - box[1]) >= least else None

    def looks(self, role: str, objects: Sequence[str]) -> list[Box]:
        """What the letters of a question about `objects` are read on: the regions, where each one's box is known, else
        the views of the whole picture."""
        boxes = [self.boxes[name] for name in objects if name in self.boxes]
        if not boxes or len(boxes) < len(objects):
            return self.views(role)
        limits = self.services.client(role).limits
        views: list[Box] = []
        for left, top, right, bottom in boxes:
            width, height = right - left, bottom - top
            parts = native_views(
                width,
                height,
                factor=limits.factor,
                min_pixels=limits.min_pixels,
                max_pixels=limits.max_pixels or width * height,
                max_views=self.services.settings.images.max_crops,
            )
            views += [moved(part, (left, top)) for part in parts]
        return views

    def crops(self, role: str) -> list[Box]:
        """Up to five crops of a quarter of the pixels each, for a closer look; none where the picture is read in
        several views anyhow, or a crop would be below the model's range."""
        limits, (width, height) = self.services.client(role).limits, self.image.pixels.size
        quarter, least = width * height // 4, limits.min_pixels
        if len(self.views(role)) > 1 or quarter < max(least, limits.factor**2):
            return []
        crops = native_views(
            width, height, factor=limits.factor, min_pixels=least, max_pixels=quarter
        )
        return crops if len(crops) > 1 else []

    @contextmanager
    def calling_model(self, role: str) -> Iterator[VLMClient]:
        """A call of the role's model. Whatever it raises becomes a VLMError."""
        client = self.services.client(role)
        try:
            with self.observer.calling(MODEL):
                yield client
        except VLMError:
            raise
        except Exception as error:
            raise VLMError(one_line(f"{client.name}: {type(error).__name__}: {error}")) from error

    def _open_on(self, role: str, box: Box) -> VLMSession:
        with self.calling_model(role) as client:
            session = client.open(
                [loaded.pixels.crop(box) for loaded in (self.reference, self.image) if loaded]
            )
        self._opened.append((id(client), box, session))
        return session

    def session(self, role: str) -> RoleSession:
        """The role's model opened on the first view; opened on first use."""
        key, box = id(self.services.client(role)), self.views(role)[0]
        if key not in self._open:
            self._open[key] = self._open_on(role, box)
        return RoleSession(self._open[key], role, box, self)

    @contextmanager
    def session_on(self, role: str, box: Box) -> Iterator[RoleSession]:
        """The role's model opened on a part of the images for this block alone."""
        with closing(self._open_on(role, box)) as session:
            yield RoleSession(session, role, box, self)

    def sessions(self, role: str, boxes: Sequence[Box] | None = None) -> Iterator[RoleSession]:
        """The role's model opened on each box in turn, by default on each view; the first view stays open, as its cache
        is reused."""
        for box in self.views(role) if boxes is None else boxes:
            if box == self.views(role)[0]:
                yield self.session(role)
                continue
            with self.session_on(role, box) as session:
                yield session

    def read_parts(
        self,
        role: str,
        boxes: Sequence[Box],
        prompt: ChatPrompt,
        answer_prefix: str,
        letters: Sequence[str],
    ) -> list[LetterRead]:
        """The letters of parts of the picture, each alone and without the reference, in one batch. Raises VLMError."""
        asked = replace(prompt, asker=f"{role} about parts of the picture")
        with self.calling_model(role) as client:
            batch = client.read_many(
                [[self.image.pixels.crop(box)] for box in boxes], asked, answer_prefix, letters
            )
        self._other_usage += batch.usage
        for box, read in zip(boxes, batch.reads, strict=True):
            _log_letters(self.asker(role, box), answer_prefix, read)
        return batch.reads

    def asker(self, role: str, box: Box) -> str:
        """Who asks about which part of the picture, for the log; a part in pixels of the upright picture."""
        whole = box == (0, 0, *self.image.pixels.size)
        return f"{role} about {'the picture' if whole else f'its part {moved(box, self.image.offset)}'}"

    def close(self) -> None:
        """Frees every cache; the next question opens the sessions anew."""
        while self._open:
            self._open.popitem()[1].close()

    def seen_views(self, role: str) -> list[tuple[Box, SeenImage]]:
        """What the role's model saw of the picture: each view's box in the original, and what it became."""
        model, views = id(self.services.client(role)), self.views(role)
        seen = {
            box: session.seen[-1]
            for of, box, session in self._opened
            if of == model and session.seen
        }
        return [(moved(box, self.image.offset), seen[box]) for box in views if box in seen]

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all sessions since the turn began."""
        return sum((session.usage for _, _, session in self._opened), self._other_usage)

    def reachable(self) -> dict[str, tuple[float, float]]:
        """By tool, the ends of what its map can return."""
        return {name: fitted.reachable for name, fitted in self.services.tools.maps.items()}

    def _parts(self, box: Box | None) -> list[Image.Image]:
        """The picture and its reference if there is one, or a region of them."""
        loaded = [one.pixels for one in (self.image, self.reference) if one]
        return [pixels.crop(box) for pixels in loaded] if box else loaded

    def score(self, tool: str, box: Box | None = None) -> ToolReading:
        """A tool's score of the image or a region, computed once. Raises ToolError."""
        if (tool, box) not in self._readings:
            waiting = self.services.models_waiting() if tool in ALONE else nullcontext()
            with waiting, self.observer.measuring(tool, self.services) as tools:
                self._readings[tool, box] = tools.score(tool, *self._parts(box))
        reading = self._readings[tool, box]
        if crops := reading.crops:
            (left, top, right, bottom), all_pixels = (
                crops[0],
                f"{self.image.width}×{self.image.height} pixels",
            )
            measured = (
                f"it measured {len(crops)} native-resolution crops of {right - left}×{bottom - top}"
            )
            self.warn(f"{reading.tool} would take long on all {all_pixels}; {measured}")
        return reading

    def examine(self, box: Box | None = None) -> Examination:
        """What LocalNR reads of the image or a region, with its reference if there is one. Raises ToolError."""
        with self.observer.measuring("LocalNR", self.services) as tools:
            return tools.examine(*self._parts(box))

    @functools.cached_property
    def unlike_photograph(self) -> float | None:
        """LocalNR's probability that the picture is a screenshot, a drawing, a chart or a code, of which it and NIQE
        know nothing; None where it counts as a photograph, has a reference, or cannot be read."""
        try:
            graphic = 0.0 if self.reference else self.examine().graphic
        except ToolError:
            return None
        return graphic if graphic >= load_detector().graphic else None


@contextmanager
def opened(
    state: AgenticIQAState, config: RunnableConfig | None, runtime: Runtime[Any] | None
) -> Iterator[OpenImages]:
    """The images that the graph runs on, else those of the state, opened for this block with the services in
    `config["configurable"]` or the default ones."""
    if runtime is not None and runtime.context is not None:
        runtime.context.locate(boxes_of(state.get("box")))
        yield runtime.context
        return
    services = (config or {}).get("configurable", {}).get("services") or load_services()
    with closing(OpenImages(services, state["image_path"], state.get("reference_path"))) as images:
        images.locate(boxes_of(state.get("box")))
        yield images
