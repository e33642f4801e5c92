"""One queue before the models: what is asked goes to a process that has them, each answer to whoever asked.

The process may hang or die: `batch.runner` tries what was under way again alone, and starts another. What waits
here is bounded; asks of batches are taken only when nobody waits for an answer.
"""

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from agentic_iqa_local.batch.runner import BatchError, Runner
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.serve.asks import Answer, Ask, Serving
from agentic_iqa_local.vlm_client import ModelLost, VLMError

logger = logging.getLogger(__name__)

GLANCE = 0.1  # seconds between two looks at an empty queue
AGAIN = 10.0  # seconds before a model that was lost is loaded again
RECENT = 32  # answers whose seconds tell the rate

Listener = Callable[[str, Any], None]
"""Told ("progress", a step) any number of times, then ("answer", an `Answer`) once. Called by the engine's
thread; must not block."""
Witness = Callable[[Ask, Answer, float, bool], None]
"""Told of every answer before whoever asked, while the pictures are still there: the ask, the answer, the
seconds since it took its place, and whether it is of a batch. Called by the engine's thread; must not
raise."""


class Full(Exception):
    """No place is left in the queue."""


class Background(Protocol):
    """Work for when nobody waits."""

    def next_ask(self) -> Ask | None: ...

    def answered(self, answer: Answer) -> None: ...


@dataclass
class _Place:
    """An ask that waits or is in hand. One of a batch has no listener."""

    ask: Ask
    listener: Listener | None
    since: float = field(default_factory=time.monotonic)


class Engine:
    """Answers asks, `jobs` at once, each within `timeout` seconds; at most `places` wait.

    `state` is "loading", "ok", "failing" (with the reason in `why`) or "stopped".
    """

    def __init__(
        self, work: Serving, device: str, *, jobs: int = 1, timeout: float = 600.0, places: int = 64
    ):
        self.work, self.device, self.jobs, self.timeout, self.places = work, device, jobs, timeout, places
        self.state, self.why = "loading", ""
        self.background: Background | None = None
        self.witness: Witness | None = None
        self.started = threading.Event()  # loaded, or failed to
        self._turn = threading.Condition()
        self._queue: deque[_Place] = deque()
        self._in_hand: dict[str, _Place] = {}
        self._put_back: deque[Ask] = deque()  # of batches, in hand when the process was lost
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._stopping, self._ending = False, threading.Lock()
        self._worker: Runner[Ask, Answer] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def in_hand(self) -> int:
        return len(self._in_hand)

    def retry_after(self) -> int:
        """Seconds until what waits now is answered, from the rate of late."""
        each = sum(self._seconds) / len(self._seconds) if self._seconds else 5.0
        return max(1, min(600, math.ceil(each * (self.waiting + 1))))

    def submit(self, ask: Ask, listener: Listener) -> int:
        """Takes a place in the queue; the position, 0 where nothing is before it. Raises Full."""
        with self._turn:
            if len(self._queue) >= self.places:
                raise Full
            self._queue.append(_Place(ask, listener))
            self._turn.notify()
            return len(self._queue) - 1 + sum(place.listener is not None for place in self._in_hand.values())

    def withdraw(self, key: str) -> bool:
        """Frees the place of an ask that nobody waits for any more; False where it is in hand already."""
        with self._turn:
            for place in self._queue:
                if place.ask.key == key:
                    self._queue.remove(place)
                    return True
        return False

    def stop(self, patience: float = 3.0) -> None:
        """Ends the process of the models; what is not answered by then fails. May be called again, and waits
        until that is done."""
        with self._ending:
            with self._turn:
                self._stopping, self.state = True, "stopped"
                self._turn.notify()
            if self._worker:
                self._worker.stop()
            self._thread.join(patience)
            if self._worker:
                self._worker.close()
            self._fail_all("the service is stopping")

    def _take(self) -> Ask | None:
        with self._turn:
            if self._stopping:
                return None
            if self._queue:
                place = self._queue.popleft()
                self._in_hand[place.ask.key] = place
                return place.ask
        ask = self._put_back.popleft() if self._put_back else None
        if ask is None and self.background:
            ask = self.background.next_ask()
        if ask:
            with self._turn:
                self._in_hand[ask.key] = _Place(ask, None)
        return ask

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._worker = Runner(self.work, self.device, jobs=self.jobs, timeout=self.timeout)
                self._worker.load()
                self.state, self.why = "ok", ""
                self.started.set()
                self._serve(self._worker)
            except Exception as error:  # the queue must not lose its thread
                if self._stopping:
                    return
                known = isinstance(error, (BatchError, ModelLost, VLMError, OSError))
                self.state, self.why = "failing", str(error)
                logger.error("%s", one_line(str(error)), exc_info=None if known else error)
                self._fail_all("the models are lost, and loaded again")
                if self._worker:
                    self._worker.close()
                if not self.started.is_set():
                    return self.started.set()
                with self._turn:
                    self._turn.wait_for(lambda: self._stopping, AGAIN)

    def _serve(self, worker: Runner[Ask, Answer]) -> None:
        finished: queue.SimpleQueue[Future[Answer]] = queue.SimpleQueue()

        def answered(future: Future[Answer]) -> None:
            finished.put(future)
            with self._turn:
                self._turn.notify()

        began = time.monotonic()
        while not self._stopping:
            while len(self._in_hand) < self.jobs and (ask := self._take()):
                if len(self._in_hand) == 1:
                    began = time.monotonic()
                worker.submit(ask, partial(self._told, ask.key)).add_done_callback(answered)
            with self._turn:
                self._turn.wait_for(lambda: self._has_turn() or not finished.empty(), GLANCE)
            while not finished.empty():
                if (future := finished.get()).cancelled():
                    continue
                answer = future.result()
                self._seconds.append(time.monotonic() - began)
                began = time.monotonic()
                self._answered(answer)

    def _has_turn(self) -> bool:
        return self._stopping or bool(self._queue and len(self._in_hand) < self.jobs)

    def _answered(self, answer: Answer) -> None:
        with self._turn:
            place = self._in_hand.pop(answer.key, None)
        if place:
            self._tell(place, answer)

    def _tell(self, place: _Place, answer: Answer) -> None:
        if self.witness:
            self.witness(place.ask, answer, time.monotonic() - place.since, place.listener is None)
        if place.listener:
            place.listener("answer", answer)
        elif self.background:
            self.background.answered(answer)

    def _told(self, key: str, step: Mapping[str, Any]) -> None:
        place = self._in_hand.get(key)
        if place and place.listener:
            place.listener("progress", step)

    def _fail_all(self, why: str) -> None:
        """Fails whatever is in hand or waits; asks of batches stay for the next start."""
        with self._turn:
            places = [*self._in_hand.values(), *self._queue]
            self._in_hand.clear()
            self._queue.clear()
            self._put_back.extend(place.ask for place in places if place.listener is None)
        for place in places:
            if place.listener:
                self._tell(place, self.work.failure(place.ask, why))
