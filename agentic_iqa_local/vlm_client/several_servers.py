"""One model on several vLLM servers: each picture goes to the least loaded one, a server that dies is left
out and tried again, and servers that answer differently are refused.

All pictures of one assessment go to the same server, whose cache then holds them; where it dies the next call
goes to another, which computes them anew.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.config_sections import ModelSettings, split_server
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, Prompt, summarizer_prompt
from agentic_iqa_local.vlm_client import (
    LetterRead,
    ManyReads,
    ModelLost,
    SeenImage,
    TokenUsage,
    VLMError,
    read_each,
)
from agentic_iqa_local.vlm_client.server_client import ServerClient, ServerSession

logger = logging.getLogger(__name__)

AGREEMENT = 0.02
"""How far the probability of a letter may differ between two servers, 0..1, for the same picture. Rounding
alone stays below; other weights, a coarse quantisation or another template do not."""

LEFT_OUT = 10.0
"""Seconds until a server that died is tried again."""

Answer = TypeVar("Answer")


def connect(name: str, settings: ModelSettings, device: str) -> "ServerClient | SeveralServers":
    """The client of the server, or of all servers, that `settings.server` names. Raises VLMError."""
    if isinstance(settings.server, str):
        return ServerClient(name, settings, device)
    return SeveralServers(name, settings, device)


def probe_pictures() -> list[Image.Image]:
    """Two pictures of 224×224 pixels, the same on every machine: a smooth ramp, and that with noise."""
    ramp = np.add.outer(np.arange(224), np.arange(224)) * 255 // 446
    noise = np.random.RandomState(0).randint(0, 120, (224, 224, 3))
    smooth = np.stack([ramp, ramp[::-1], ramp[:, ::-1]], axis=-1)
    return [Image.fromarray(pixels.astype(np.uint8)) for pixels in (smooth, smooth // 2 + noise)]


@dataclass(eq=False)
class _Server:
    """One of the servers, and what is known of it at present."""

    settings: ModelSettings
    url: str
    client: ServerClient | None = None  # none while it is left out
    version: str = ""  # of vLLM, when it joined last, as the next two
    served: str = ""
    letters: np.ndarray = field(default_factory=lambda: np.empty(0))  # of the probes: (2 pictures, 5 letters)
    in_flight: int = 0
    sessions: int = 0
    try_again: float = 0.0  # of `time.monotonic`
    trying: bool = False

    def join(self, name: str, device: str) -> None:
        """Connects, and reads the probes. Raises VLMError."""
        client = ServerClient(name, self.settings, device)
        scoring = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
        try:
            reads = client.read_many([[p] for p in probe_pictures()], scoring, ANSWER_PREFIX, LETTERS).reads
        except VLMError:
            client.close()
            raise
        self.letters = np.exp([[read.logprobs[letter] for letter in LETTERS] for read in reads])
        self.client, self.version, self.served = client, client.version, client.served

    def differs(self, other: "_Server") -> str | None:
        """In what this server is unlike another, when each joined last; None where they agree."""
        for what, here, there in (
            ("vLLM", self.version, other.version),
            ("the model", self.served, other.served),
        ):
            if here != there:
                return f"{other.url} has {what} {there}, {self.url} has {here}"
        apart = np.abs(self.letters - other.letters)
        if (largest := float(apart.max())) <= AGREEMENT:
            return None
        picture, letter = np.unravel_index(apart.argmax(), apart.shape)
        return (
            f"for the same picture {other.url} gives the letter {LETTERS[letter]} the probability"
            f" {other.letters[picture, letter]:.3f}, {self.url} {self.letters[picture, letter]:.3f}: they are"
            f" {largest:.3f} apart, at most {AGREEMENT} is allowed"
        )


class SeveralServers:
    """The same model on the servers of `settings.server`. Sessions may be used from many threads.

    Raises VLMError where two servers differ in vLLM's version, the model's name or the letters' probabilities
    for the probes, and ModelLost where none answers. Those that do not answer now are tried again.
    """

    reads_logits = reads_words = True

    def __init__(self, name: str, settings: ModelSettings, device: str):
        self.name, self.settings, self._device = name, settings, device
        self._servers = [
            _Server(settings.model_copy(update={"server": address}), split_server(address)[0])
            for address in settings.servers
        ]
        self._turn = threading.Lock()
        with ThreadPoolExecutor(len(self._servers)) as threads:
            failures = list(threads.map(self._first_join, self._servers))
        joined = [server for server in self._servers if server.client]
        if not joined:
            raise next(failure for failure in failures if failure)
        self._first = joined[0]
        for server in joined[1:]:
            if difference := server.differs(self._first):
                self.close()
                raise VLMError(
                    f"servers: {difference}", "serve the same folder with the same vLLM and options on each"
                )
        assert self._first.client
        self.limits, self.notice, self.trust = (
            self._first.client.limits,
            self._first.client.notice,
            self._first.client.trust,
        )
        self._described = self._first.client.describe()

    def _first_join(self, server: _Server) -> VLMError | None:
        try:
            server.join(self.name, self._device)
        except ModelLost as error:
            self._leave_out(server, error)
            return error
        return None

    def _leave_out(self, server: _Server, error: VLMError) -> None:
        with self._turn:
            client, server.client = server.client, None
            server.try_again = time.monotonic() + LEFT_OUT
        if client:  # not closed: other threads may still wait for its answers
            logger.warning("%s: left out, tried again in %g s", error.message, LEFT_OUT)
        else:
            logger.info("%s: left out", error.message)

    def choose(self, before: _Server | None) -> tuple[_Server, ServerClient]:
        """The server for the next call: `before`, where it still answers, else the one with the fewest calls
        in flight. Raises ModelLost where none answers."""
        with self._turn:
            now = time.monotonic()
            for server in self._servers:
                if not server.client and not server.trying and now >= server.try_again:
                    server.trying = True
                    threading.Thread(target=self._rejoin, args=(server,), daemon=True).start()
            there = [server for server in self._servers if server.client]
            if not there:
                raise ModelLost(f"none of the {len(self._servers)} servers answers", "see what ended them")
            if before in there:
                chosen = before
            else:
                chosen = min(there, key=lambda server: (server.in_flight, server.sessions))
                chosen.sessions += 1
            assert chosen is not None
            assert chosen.client is not None
            chosen.in_flight += 1
            return chosen, chosen.client

    def _rejoin(self, server: _Server) -> None:
        try:
            fresh = _Server(server.settings, server.url)
            fresh.join(self.name, self._device)
            if difference := fresh.differs(self._first):
                server.try_again = float("inf")
                logger.warning("servers: %s; it stays out", difference)
                return
            with self._turn:
                server.client, server.letters = fresh.client, fresh.letters
            logger.warning("server %s: answers again", server.url)
        except VLMError as error:
            self._leave_out(server, error)
        finally:
            server.trying = False

    def done(self, server: _Server) -> None:
        """A call has ended."""
        with self._turn:
            server.in_flight -= 1

    def lost(self, server: _Server, client: ServerClient, error: VLMError) -> bool:
        """Whether the call failed because its server is gone, which is then left out."""
        if not isinstance(error, ModelLost) and client.connection.healthy():
            return False
        if server.client is client:
            self._leave_out(server, error)
        return True

    def open(self, images: Sequence[Image.Image]) -> "_Session":
        """A session on [test image] or [reference, test image]; nothing is sent yet."""
        return _Session(self, list(images))

    def leave(self, server: _Server) -> None:
        """A session that was on the server has ended, or goes on elsewhere."""
        with self._turn:
            server.sessions -= 1

    def read_many(
        self,
        pictures: Sequence[Sequence[Image.Image]],
        prompt: Prompt,
        answer_prefix: str,
        letters: Sequence[str],
    ) -> ManyReads:
        """Each engine computes together what several threads ask of it."""
        at_once = min(self.settings.max_in_flight * len(self._servers), len(pictures))
        return read_each(self, pictures, prompt, answer_prefix, letters, at_once)

    def describe(self) -> dict[str, Any]:
        return self._described | {"device": ", ".join(server.url for server in self._servers)}

    def close(self) -> None:
        for server in self._servers:
            client, server.client = server.client, None
            if client:
                client.close()


class _Session:
    """One assessment's images, on one server at a time."""

    constrained = True

    def __init__(self, servers: SeveralServers, images: list[Image.Image]):
        self._servers, self._images = servers, images
        self._server: _Server | None = None
        self._session: ServerSession | None = None
        self._before = TokenUsage()  # by servers that are gone

    @property
    def usage(self) -> TokenUsage:
        return self._before + self._session.usage if self._session else self._before

    @property
    def seen(self) -> list[SeenImage]:
        return self._session.seen if self._session else []

    def generate(self, prompt: Prompt, schema: type[BaseModel], **options: Any) -> str:
        """The answer's JSON text, by default greedy; see `VLMSession.generate`."""
        return self._ask(lambda session: session.generate(prompt, schema, **options))

    def read_letters(self, prompt: Prompt, answer_prefix: str, letters: Sequence[str]) -> LetterRead:
        """Raw log-probabilities over the full vocabulary at the position after `answer_prefix`."""
        return self._ask(lambda session: session.read_letters(prompt, answer_prefix, letters))

    def _ask(self, call: Callable[[ServerSession], Answer]) -> Answer:
        """The answer of the server in use, or of the next one where that is gone."""
        while True:
            server, client = self._servers.choose(self._server)
            try:
                if self._session is None or self._session.client is not client:
                    self._move(server, client)
                assert self._session
                return call(self._session)
            except VLMError as error:
                if not self._servers.lost(server, client, error):
                    raise
            finally:
                self._servers.done(server)

    def _move(self, server: _Server, client: ServerClient) -> None:
        self._before = self.usage
        if self._server is not None and self._server is not server:
            self._servers.leave(self._server)
        self._server, self._session = server, client.open(self._images)

    def close(self) -> None:
        if self._server:
            self._servers.leave(self._server)
            self._server = None
        if self._session:
            self._before, self._session = self.usage, None
