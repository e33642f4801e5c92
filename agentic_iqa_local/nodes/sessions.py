"""The models of one assessment: on which views of its pictures each is opened, and every call of
one."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.images.frames import moved
from agentic_iqa_local.nodes.pictures import Pictures
from agentic_iqa_local.services import MODEL, Observer, Services
from agentic_iqa_local.state import Box, ExecutorOutput, PlannerError, native_views
from agentic_iqa_local.vlm_client import (
    LetterRead,
    SeenImage,
    TokenUsage,
    VLMClient,
    VLMError,
    VLMSession,
)
from agentic_iqa_local.vlm_client.chat import ChatPrompt

logger = logging.getLogger(__name__)

MOST_LOGGED = 2000  # characters of an output in the log


def shortened(text: str | None, most: int) -> str | None:
    if text is None or len(text) <= most:
        return text
    return f"{text[:most]}… (truncated)"


@dataclass
class RoleSession:
    """A model's session on a part of the pictures as one role uses it. `written` is what the last
    call wrote."""

    models: "Models"
    role: str
    session: VLMSession
    written: str | None = None

    def generate(self, prompt: ChatPrompt, schema: type[BaseModel], **options: Any) -> str:
        self.written = None
        with self.models.calling(self.role):
            text = self.session.generate(prompt, schema, **options)
        # half a surrogate pair cannot be stored
        self.written = text.encode(errors="backslashreplace").decode()
        logger.debug("VLM response: %s", shortened(self.written, MOST_LOGGED))
        return self.written

    def read_letters(
        self, prompt: ChatPrompt, answer_prefix: str, letters: Sequence[str]
    ) -> LetterRead:
        with self.models.calling(self.role):
            read = self.session.read_letters(prompt, answer_prefix, letters)
        _log_letters(self.role, answer_prefix, read)
        return read


def _log_letters(role: str, answer_prefix: str, read: LetterRead) -> None:
    logprobs = ", ".join(f"{letter} {value:.4f}" for letter, value in read.logprobs.items())
    told = "Letters read for the %s after %s: %s; off-letter mass %.3g"
    logger.debug(told, role, answer_prefix, logprobs, read.off_letter_mass)


@dataclass
class Models:
    """Sessions of the models on the pictures. Each model stays open on its first view, whichever
    roles use it, and is opened on other views for each read. `failed_tries` collects what the
    models said in vain."""

    services: Services
    pictures: Pictures
    observer: Observer
    warn: Callable[[str], None]
    evidence: ExecutorOutput | None = None  # what is known when a model is asked, for the log
    failed_tries: list[PlannerError] = field(default_factory=list)
    _standing: dict[int, VLMSession] = field(default_factory=dict)  # by client
    # by client and box, those that are closed too
    _opened: list[tuple[int, Box, VLMSession]] = field(default_factory=list)
    # of batches, less that of earlier turns
    _other_usage: TokenUsage = field(default_factory=TokenUsage)

    def begin_turn(self) -> None:
        """Another question about the same pictures begins: its costs and failures are counted
        anew."""
        self.failed_tries = []
        self._other_usage -= self.usage

    # Views

    def views(self, role: str) -> list[Box]:
        """The whole picture, or native-resolution crops of one beyond the range of the role's
        model."""
        views, image = self._within_range(role, self.pictures.whole), self.pictures.image
        if len(views) > 1:
            self.warn(
                f"{image.width}×{image.height} pixels are more than the model sees at once: its words are about"
                f" the centre alone; for the score it looks at up to {len(views)} parts, and tools at the whole"
            )
        return views

    def looks(self, role: str, objects: Sequence[str]) -> list[Box]:
        """What the letters of a question about `objects` are read on: the regions, where each one's
        box is known, else the views of the whole picture."""
        boxes = [self.pictures.boxes.get(name) for name in objects]
        if not boxes or None in boxes:
            return self.views(role)
        return [view for box in boxes if box for view in self._within_range(role, box)]

    def crops(self, role: str) -> list[Box]:
        """Up to five crops of a quarter of the pixels each, for a closer look; none where the
        picture is read in several views anyhow, or a crop would be below the model's range."""
        limits, image = self.services.client(role).limits, self.pictures.image
        quarter = image.width * image.height // 4
        if len(self.views(role)) > 1 or quarter < max(limits.min_pixels, limits.factor**2):
            return []
        crops = self._within_range(role, self.pictures.whole, quarter)
        return crops if len(crops) > 1 else []

    def _within_range(self, role: str, part: Box, max_pixels: int | None = None) -> list[Box]:
        """A part of the picture as the role's model can see it without resizing, in views of at
        most `max_pixels`."""
        limits = self.services.client(role).limits
        left, top, right, bottom = part
        width, height = right - left, bottom - top
        views = native_views(
            width,
            height,
            factor=limits.factor,
            min_pixels=limits.min_pixels,
            max_pixels=max_pixels or limits.max_pixels or width * height,
            max_views=self.pictures.limits.max_crops,
        )
        return [moved(view, (left, top)) for view in views]

    # Sessions

    def session(self, role: str) -> RoleSession:
        """The role's model opened on the first view; opened on first use."""
        client = id(self.services.client(role))
        if client not in self._standing:
            self._standing[client] = self._open_on(role, self.views(role)[0])
        return RoleSession(self, role, self._standing[client])

    def sessions(self, role: str, boxes: Sequence[Box]) -> Iterator[RoleSession]:
        """The role's model opened on each box in turn; the first view stays open, as its cache is
        reused."""
        for box in boxes:
            if box == self.views(role)[0]:
                yield self.session(role)
                continue
            with closing(self._open_on(role, box)) as session:
                yield RoleSession(self, role, session)

    def _open_on(self, role: str, box: Box) -> VLMSession:
        with self.calling(role) as client:
            session = client.open(self.pictures.parts(box)[::-1])  # the reference comes first
        self._opened.append((id(client), box, session))
        return session

    def read_parts(
        self,
        role: str,
        boxes: Sequence[Box],
        prompt: ChatPrompt,
        answer_prefix: str,
        letters: Sequence[str],
    ) -> list[LetterRead]:
        """The letters of parts of the picture, each alone and without the reference, in one batch.
        Raises VLMError."""
        images = [[self.pictures.image.pixels.crop(box)] for box in boxes]
        with self.calling(role) as client:
            batch = client.read_many(images, prompt, answer_prefix, letters)
        self._other_usage += batch.usage
        for read in batch.reads:
            _log_letters(role, answer_prefix, read)
        return batch.reads

    @contextmanager
    def calling(self, role: str) -> Iterator[VLMClient]:
        """A call of the role's model. Whatever it raises becomes a VLMError."""
        client = self.services.client(role)
        try:
            with self.observer.calling(MODEL):
                yield client
        except VLMError:
            raise
        except Exception as error:
            raise VLMError(one_line(f"{client.name}: {type(error).__name__}: {error}")) from error

    def close(self) -> None:
        """Frees every cache; the next question opens the sessions anew."""
        while self._standing:
            self._standing.popitem()[1].close()

    # What they took

    def seen_views(self, role: str) -> list[tuple[Box, SeenImage]]:
        """What the role's model saw of the picture: each view's box in the original, and what it
        became."""
        client = id(self.services.client(role))
        seen = {box: one.seen[-1] for of, box, one in self._opened if of == client and one.seen}
        offset = self.pictures.image.offset
        return [(moved(box, offset), seen[box]) for box in self.views(role) if box in seen]

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all sessions since the turn began."""
        return sum((session.usage for _, _, session in self._opened), self._other_usage)
