"""The queue before the models: a bounded number of requests waits; batches get their turn when none does."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

from agentic_iqa_local.batch.runner import Runner
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.serve.asks import Answer, Ask, Refused

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

    All is done in one event loop. A caller that is cancelled while it waits gives up its place; what has begun is
    finished, and its answer dropped.
    """

    def __init__(self, runner: Runner[Ask, Answer], places: int):
        self.runner, self.places = runner, places
        self.waiting = 0
        self.failure = ""  # of the models, as long as they give no answers
        self.each = 5.0  # seconds of an answer: a guess, then a mean of the last ones
        self._turns = asyncio.Semaphore(runner.jobs)
        WAITING.set_function(lambda: self.waiting)
        UP.set_function(lambda: not self.failure)

    @property
    def busy(self) -> bool:
        """Whether who comes now has to wait."""
        return self._turns.locked()

    def check_room(self) -> None:
        """Raises Refused (429) where one more would have to wait and no place is left."""
        if self.busy and self.waiting >= self.places:
            seconds = min(600, math.ceil(self.each * (self.waiting + 1) / self.runner.jobs))
            raise Refused(
                429,
                "queue_full",
                "the queue is full",
                f"ask again in {seconds} s",
                {"Retry-After": str(seconds)},
            )

    async def answer(
        self, ask: Ask, told: Callable[[Mapping[str, Any]], None] | None = None
    ) -> Answer:
        """The answer to an ask. `told` gets each step of the work, in a thread of the runner. Raises Refused where no
        place is left (429), or the models are lost (503)."""
        self.check_room()
        self.waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self.waiting -= 1
        began = asyncio.get_running_loop().time()
        future = asyncio.wrap_future(self.runner.submit(ask, told))
        future.add_done_callback(self._give_turn)
        try:
            answer = await asyncio.shield(future)
        except UserError as error:
            self.failure = str(error)
            remedy = "the models are loaded anew: ask again"
            headers = {"Retry-After": "10"}
            raise Refused(503, "failing", self.failure, remedy, headers) from error
        self.failure = ""
        seconds = asyncio.get_running_loop().time() - began
        self.each += (seconds - self.each) / 8
        SECONDS.observe(seconds)
        return answer

    def _give_turn(self, done: "asyncio.Future[Answer]") -> None:
        self._turns.release()
        if not done.cancelled():
            done.exception()  # its caller may have left
