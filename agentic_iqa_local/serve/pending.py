"""One request on its way: its pictures in a folder of its own, its place in the queue, what it is told."""

import asyncio
import json
import secrets
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentic_iqa_local.serve.asks import Answer, Ask, Named
from agentic_iqa_local.serve.engine import Engine, Full
from agentic_iqa_local.serve.errors import Refused
from agentic_iqa_local.serve.fields import Sent

KEEP_ALIVE = 10.0  # seconds between two comments of an event stream


class Pending:
    """A request that takes a place in the engine's queue. Whatever becomes of it, `leave` deletes its
    pictures, at the latest when the models have let go of them. Raises Refused where no place is left."""

    def __init__(self, engine: Engine, folder: Path, sent: Sent, **ask: Any):
        self.engine, self.key = engine, secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.key}-", dir=folder))
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Queue[tuple[str, Any]]()
        self._turn, self._answered, self._left = threading.Lock(), False, False
        try:
            pictures = tuple(self._stored(str(i), *one) for i, one in enumerate(sent.pictures))
            reference = sent.reference and self._stored("reference", *sent.reference)
            self.ask = Ask(self.key, pictures, reference=reference, **ask)
            self.position = engine.submit(self.ask, self._listen)
        except Full:
            shutil.rmtree(self.folder, ignore_errors=True)
            seconds = engine.retry_after()
            raise Refused(
                429, "queue_full", "the queue is full", f"ask again in {seconds} s", Retry_After=str(seconds)
            ) from None
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _stored(self, file: str, name: str, data: bytes) -> Named:
        path = self.folder / file
        path.write_bytes(data)
        return Named(path, name)

    def _listen(self, kind: str, about: Any) -> None:
        if kind == "answer":
            with self._turn:
                self._answered = True
                if self._left:
                    shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(RuntimeError):  # the service has ended
            self._loop.call_soon_threadsafe(self._told.put_nowait, (kind, about))

    def leave(self) -> None:
        """Nobody waits any more."""
        withdrawn = self.engine.withdraw(self.key)
        with self._turn:
            self._left = True
            if withdrawn or self._answered:
                shutil.rmtree(self.folder, ignore_errors=True)

    async def events(self, seconds: float) -> AsyncIterator[tuple[str, Any] | None]:
        """What the request is told, the answer last, and None where nothing came for KEEP_ALIVE seconds.
        Raises Refused when its time is over."""
        until = self._loop.time() + seconds
        while True:
            left = until - self._loop.time()
            if left <= 0:
                raise out_of_time(seconds)
            try:
                event = await asyncio.wait_for(self._told.get(), min(KEEP_ALIVE, left))
            except TimeoutError:
                yield None
                continue
            yield event
            if event[0] == "answer":
                return


def out_of_time(seconds: float) -> Refused:
    return Refused(504, "out_of_time", f"there was no answer within {seconds:g} s", "raise --timeout")


def failure_code(answer: Answer, state: str) -> str | None:
    """What kind of failure an answer of an engine in `state` is; None for none."""
    if answer.error is None:
        return None
    if state != "ok":
        return state
    return "out_of_time" if answer.timed_out else "not_assessed"


def refused(answer: Answer, seconds: float, state: str) -> Refused:
    """What stands in for an answer with an error, of an engine in `state`."""
    code, error = failure_code(answer, state), answer.error or ""
    if code == "out_of_time":
        return out_of_time(seconds)
    if code == "not_assessed":
        return Refused(422, code, error, extra={"row": json.loads(answer.text)})
    return Refused(503, state, error, "ask again later", Retry_After="10")
