"""The queue before the models: a bounded number of requests waits, and batches get their turn when
none does."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

from agentic_iqa_local.batch.runner import Runner
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.serve.asks import Answer, Ask, Refused

AGAIN = {"Retry-After": "10"}  # seconds
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)  # seconds
disable_created_metrics()
REQUESTS = Counter("agentic_iqa_requests", "Requests by route and status.", ["route", "status"])
SECONDS = Histogram(
    "agentic_iqa_answer_seconds", "Seconds of an answer, from its turn on.", buckets=BUCKETS
)
WAITING = Gauge("agentic_iqa_queue_length", "Requests that wait.")
UP = Gauge("agentic_iqa_up", "Whether the models answer.")


class Queue:
    """Asks on their way to a runner, `runner.jobs` of them there at once; at most `places` wait.

    All is done in one event loop. A caller that is cancelled while it waits gives up its place;
    what has begun is finished, and its answer dropped.
    """

    def __init__(self, runner: Runner[Ask, Answer], places: int):
        self.runner, self.places = runner, places
        self.waiting = 0
        self.failure = ""  # of the models, as long as they give no answers
        self._turns = asyncio.Semaphore(runner.jobs)
        WAITING.set_function(lambda: self.waiting)
        UP.set_function(lambda: not self.failure)

    @property
    def busy(self) -> bool:
        """Whether who comes now has to wait."""
        return self._turns.locked()

    def check_room(self) -> None:
        """Raises Refused (429) if one more would have to wait and no place is left."""
        if self.busy and self.waiting >= self.places:
            raise Refused(429, "queue_full", "the queue is full", "ask again later", AGAIN)

    async def answer(
        self, ask: Ask, tell: Callable[[Mapping[str, Any]], None] | None = None
    ) -> Answer:
        """The answer to an ask. `tell` gets each step of the work, in a thread of the runner.
        Raises Refused if no place is left (429), or the models are lost (503)."""
        self.check_room()
        self.waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self.waiting -= 1
        began = time.monotonic()
        future = asyncio.wrap_future(self.runner.submit(ask, tell))
        future.add_done_callback(self._give_turn)
        try:
            answer = await asyncio.shield(future)
        except UserError as error:
            self.failure = str(error)
            remedy = "the models are loaded anew: ask again"
            raise Refused(503, "failing", self.failure, remedy, AGAIN) from error
        self.failure = ""
        SECONDS.observe(time.monotonic() - began)
        return answer

    def _give_turn(self, done: "asyncio.Future[Answer]") -> None:
        self._turns.release()
        if not done.cancelled():
            done.exception()  # its caller may have left
