"""The queue before the models: a bounded number of requests waits, and batches get their turn when none does."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

import prometheus_client as prometheus

from agentic_iqa_local.batch.runner import Runner
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.serve.asks import Answer, Ask, Refused, failure_of

GLANCE = 0.05  # seconds between two looks of a batch whether requests wait
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)  # seconds
prometheus.disable_created_metrics()


class Metrics:
    """What /metrics tells Prometheus, since the start."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        here = {"namespace": "agentic_iqa", "registry": self.registry}
        self.requests = prometheus.Counter("requests", "Requests by route and status.", ["route", "status"], **here)
        self.failures = prometheus.Counter("failures", "Asks without an answer.", ["code"], **here)
        about = "Seconds of an answer, from its turn on."
        self.seconds = prometheus.Histogram("answer_seconds", about, ["kind"], buckets=BUCKETS, **here)

    def show(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Adds a gauge, whose value is asked for when somebody looks."""
        prometheus.Gauge(f"agentic_iqa_{name}", about, registry=self.registry).set_function(value)


class Queue:
    """Asks on their way to a runner, `runner.jobs` of them there at once; at most `places` requests wait.

    All is done in one event loop. A caller that is cancelled while it waits gives up its place; what has begun is
    finished, and its answer dropped.
    """

    def __init__(self, runner: Runner[Ask, Answer], places: int):
        self.runner, self.places, self.metrics = runner, places, Metrics()
        self.waiting = self.in_hand = 0
        self.failure = ""  # of the models, as long as they give no answers
        self._turns = asyncio.Semaphore(runner.jobs)
        self.each = 5.0  # seconds of an answer: a guess, then a mean of the last ones
        self.metrics.show("up", "Whether the models answer.", lambda: not self.failure)
        self.metrics.show("queue_length", "Requests that wait.", lambda: self.waiting)
        self.metrics.show("in_hand", "Requests and pictures of batches that are worked on.", lambda: self.in_hand)

    def check_room(self) -> None:
        """Raises Refused (429) where one more request would have to wait and no place is left."""
        if self._turns.locked() and self.waiting >= self.places:
            seconds = min(600, math.ceil(self.each * (self.waiting + 1) / self.runner.jobs))
            raise Refused(429, "queue_full", "the queue is full", f"ask again in {seconds} s", Retry_After=str(seconds))

    async def answer(self, ask: Ask, told: Callable[[Mapping[str, Any]], None] | None = None) -> Answer:
        """The answer to a request. `told` gets each step of the work, in a thread of the runner.

        Raises:
            Refused: No place is left (429), or the models are lost (503).
        """
        self.check_room()
        self.waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self.waiting -= 1
        return await self._run(ask, "compare" if len(ask.pictures) > 1 else "assess", told)

    async def answer_of_batch(self, ask: Ask) -> Answer:
        """The answer to a picture of a batch, which lets every request go first. Raises Refused (503)."""
        while self.waiting:
            await asyncio.sleep(GLANCE)
        await self._turns.acquire()
        return await self._run(ask, "batch")

    async def _run(self, ask: Ask, kind: str, told: Callable[[Mapping[str, Any]], None] | None = None) -> Answer:
        began, self.in_hand = asyncio.get_running_loop().time(), self.in_hand + 1
        future = asyncio.wrap_future(self.runner.submit(ask, told))
        future.add_done_callback(self._give_turn)
        try:
            answer = await asyncio.shield(future)
        except UserError as error:
            self.failure = str(error)
            self.metrics.failures.labels("failing").inc()
            remedy = "the models are loaded anew: ask again"
            raise Refused(503, "failing", self.failure, remedy, Retry_After="10") from error
        self.failure = ""
        seconds = asyncio.get_running_loop().time() - began
        self.each += (seconds - self.each) / 8
        self.metrics.seconds.labels(kind).observe(seconds)
        if failure_of(answer):
            self.metrics.failures.labels("not_assessed").inc()
        return answer

    def _give_turn(self, done: "asyncio.Future[Answer]") -> None:
        self.in_hand -= 1
        self._turns.release()
        if not done.cancelled():
            done.exception()  # its caller may have left
