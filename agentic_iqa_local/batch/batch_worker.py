"""A batch in a process of its own: what hangs or crashes there costs one image and a new start of that
process, which loads model and tools again.

The parent hands out as many items as may be in hand, and takes a row for each. An image that was alone in
hand when the process died is tried again, and after MOST_DEATHS deaths it is a failure. Images that were in
hand together are tried again one at a time, after all others.
"""

import logging
import logging.handlers
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Generic

from agentic_iqa_local.batch.runner import (
    GLANCE,
    MOST_DEATHS,
    MOST_HUNG,
    STANDSTILL,
    TIMEOUT,
    Batch,
    BatchError,
)
from agentic_iqa_local.batch.work import AnyItem, Keyed, Row, Work
from agentic_iqa_local.batch.worker import PATIENCE, Worker, cause_of_death
from agentic_iqa_local.nodes.workbench import name_picture
from agentic_iqa_local.services import Services
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import ModelLost, VLMError

logger = logging.getLogger(__name__)

HEARTBEAT = 5.0  # seconds between two signs of life
GRACE = 60.0  # seconds beyond the timeout, without a sign of life, after which a process is ended
STARTS = 3  # of processes that die before they have loaded, one after the other

Message = tuple[Any, ...]  # its kind, and what belongs to it: see `_Child` and `BatchWorker.rows`


class BatchWorker(Generic[AnyItem, Row]):
    """`batch.Batch` in a process of its own. `load` starts it with models and tools loaded; `rows` starts it
    too where it is not there.

    One that `stays` keeps its process when `rows` has ended, for the next call. Its items may be None: none
    is ready now, ask again.
    """

    by_node = ""  # rows of each machine, where there are several

    def __init__(
        self,
        work: Work[AnyItem, Row],
        device: str,
        *,
        jobs: int = 1,
        timeout: float = TIMEOUT,
        stays: bool = False,
    ):
        self.work, self.device, self.jobs, self.timeout, self.stays = work, device, jobs, timeout, stays
        self._heard = 0.0  # when, since the first item in hand was given
        self.stopping = False
        self.line: str | None = None  # of the row that `rows` gave last, where it came as a line
        self.description: dict[str, Any] = {}
        self._worker: Worker | None = None
        self._loads = self._ready = self._told_to_stop = self._worn_out = False
        self._failed_starts = 0
        self._in_hand: list[tuple[str, AnyItem]] = []  # each with its key, which takes time to make
        self._held: AnyItem | None = None  # a suspect, until nothing is in hand
        self._again: deque[AnyItem] = deque()  # in hand when a process ended through no fault of theirs
        self._alone: deque[AnyItem] = deque()  # a process may have died of them
        self._deaths: dict[str, int] = {}  # of these, how many did while the item was alone

    def load(self) -> None:
        """Starts the process, waits until it has loaded models and tools, and describes them. Raises VLMError
        where it cannot."""
        self._loads = True
        while not self._ready:
            if self._worker is None:
                self._begin()
            if self._hear() is None:
                for _ in self._after_death():
                    """No row can come: nothing is in hand."""

    @property
    def unfinished(self) -> bool:
        """Whether threads would keep this process from ending: none would, they are in the other."""
        return False

    def stop(self) -> None:
        """Begins nothing more. `rows` ends with what is in hand, without its failures, which the stop may
        have caused."""
        self.stopping = True

    def end(self, *, idle: bool = False) -> None:
        """Ends the process, whatever it is doing; one that is `idle` may free its model itself."""
        if self._worker:
            if idle:
                self._tell("end")
            self._worker.end(patience=PATIENCE if idle else 0)
        self._worker, self._ready = None, False

    def rows(
        self, items: Iterable[AnyItem | None], suspects: Mapping[str, int] | None = None
    ) -> Iterator[Row]:
        """A row for each item, as soon as it is there. `suspects` are keys of items that earlier processes
        may have died of, each with how often one did while it was alone.

        Raises ModelLost, without a row for what was in hand, and BatchError when MOST_HUNG assessments in a
        row hang, or the process does not start.
        """
        items, self._deaths, hung = iter(items), dict(suspects or {}), 0
        keep = False
        try:
            while True:
                while item := self._next(items):
                    if self._deaths.get(item.key, 0) < MOST_DEATHS:
                        self._give(item)
                    else:
                        why = f"{MOST_DEATHS} processes died while they assessed this image alone"
                        yield self.work.failure(item, why)
                if not self._in_hand:
                    keep = self.stays and not self._worn_out
                    if not keep:
                        self.end(idle=not self._worn_out)
                    return
                match self._hear():
                    case None:
                        yield from self._after_death()
                    case ("row", key, sent, row_hung, worn_out):
                        hung = hung + 1 if row_hung else 0
                        self._worn_out |= worn_out
                        row, self.line = self.work.received(self._taken(key), sent)
                        yield row
                        self.line = None
                        if hung >= MOST_HUNG:
                            raise BatchError(
                                f"{hung} assessments in a row do not return, the last:"
                                f" {self.work.error(row)}",
                                "find out what hangs there",
                            )
                    case ("gave up",):  # what hung has its row
                        self._again.extend(item for _, item in self._in_hand)
                        self._in_hand.clear()
                    case ("lost", why):
                        raise ModelLost(why)
                    case ("stopped",):  # of what is still in hand only answers were wanted
                        self._in_hand.clear()
        finally:
            if not keep:
                self.end()

    def _taken(self, key: str) -> AnyItem:
        """An item that is no longer in hand."""
        place = next(place for place, (held, _) in enumerate(self._in_hand) if held == key)
        return self._in_hand.pop(place)[1]

    def told(self, key: str, step: Mapping[str, Any]) -> None:
        """A step of an item's work, where its work tells them."""

    def _next(self, items: Iterator[AnyItem | None]) -> AnyItem | None:
        """The next item that the process may have now."""
        if self._worn_out and not self._in_hand:
            self.end()
            self._worn_out = False
        with_suspect = bool(self._deaths) and any(key in self._deaths for key, _ in self._in_hand)
        if self.stopping or self._worn_out or with_suspect or len(self._in_hand) >= self.jobs:
            return None
        if self._again:
            return self._again.popleft()
        if self.stays and self._alone:  # the others may never end
            return None if self._in_hand else self._alone.popleft()
        if not self._held:
            item = next(items, None)
            if item and item.key not in self._deaths:
                return item
            self._held = item
        if self._in_hand:
            return None
        item, self._held = self._held, None
        return item or (self._alone.popleft() if self._alone else None)

    def _give(self, item: AnyItem) -> None:
        if not self._in_hand:
            self._heard = time.monotonic()
        self._in_hand.append((item.key, item))
        if self._worker is None:
            self._begin()
        self._tell("item", item)

    def _tell(self, *message: Any) -> None:
        with suppress(OSError):  # where the process is gone, hearing from it says so
            if self._worker:
                self._worker.send(message)

    def _begin(self) -> None:
        level = logging.getLogger("agentic_iqa_local").getEffectiveLevel()
        window = {"jobs": self.jobs, "timeout": self.timeout}
        self._worker = Worker(_serve, self.work, self.device, window, self._loads, level)
        self._told_to_stop = False

    def _hear(self) -> Message | None:
        """The next message, or that there is none now where another item may begin; None where the process
        died, or gives no sign of life. Time in which this process itself stood still does not count."""
        assert self._worker
        looked = time.monotonic()
        self._heard = self._heard if self._in_hand else looked
        while True:
            if self.stopping and not self._told_to_stop:
                self._told_to_stop = True
                self._tell("stop")
            try:
                message = self._worker.receive() if self._worker.waits(GLANCE) else None
            except (EOFError, OSError):
                return None
            now = time.monotonic()
            stood_still = now - looked if now - looked > STANDSTILL else 0
            self._heard = now if message else self._heard + stood_still
            looked = now
            if message is None and self._ready and now - self._heard > self.timeout + GRACE:
                return None
            if message and self._is_for_rows(*message):
                return message
            if self.stays and message is None and 0 < len(self._in_hand) < self.jobs:
                return ("none now",)

    def _is_for_rows(self, kind: str, *about: Any) -> bool:
        """Sees to what comes from the process and is neither a row nor an end: a line of its log, a sign of
        life, that it has loaded. Raises VLMError where it cannot load."""
        if kind == "log":
            (record,) = about
            if (told_by := logging.getLogger(record.name)).isEnabledFor(record.levelno):
                told_by.handle(record)
        elif kind == "step":
            self.told(*about)
        elif kind == "refused":
            raise ModelLost(*about) if self._in_hand else VLMError(*about)
        elif kind == "ready":
            self._ready, self._failed_starts, (self.description,) = True, 0, about
            return not self._in_hand
        return kind not in ("alive", "log", "step")

    def _after_death(self) -> Iterator[Row]:
        """Sees to what was in hand when the process died or fell silent. Raises BatchError where processes
        die one after the other before they have loaded."""
        assert self._worker
        silent = not self._worker.waits(0)
        code = self._worker.end(patience=0 if silent else 10)
        why = f"it gave no sign of life for {self.timeout + GRACE:g} s" if silent else cause_of_death(code)
        was_ready, self._worker, self._ready = self._ready, None, False
        items, self._in_hand = [item for _, item in self._in_hand], []
        if not was_ready:
            self._failed_starts += 1
            if self._failed_starts >= STARTS:
                raise BatchError(f"{STARTS} processes in a row died while they loaded: {why}")
            self._again.extend(items)
            return
        named = ", ".join(one_line(str(item.image)) for item in items)
        logger.warning("%s: %s; going on with a new one", named, why)
        if silent and len(items) == 1:
            error = f"timed out: {why}; find out what hangs there, or raise --timeout"
            yield self.work.overdue(items[0], error)
            return
        for item in items:
            self._deaths[item.key] = self._deaths.get(item.key, 0) + (len(items) == 1)
            self._alone.append(item)


class _Child:
    """What goes on in the process: items come, rows go, and a sign of life every HEARTBEAT seconds."""

    def __init__(self, pipe: Connection):
        self._pipe, self._turn = pipe, threading.Lock()
        self._items: queue.SimpleQueue[Keyed | None] = queue.SimpleQueue()
        self.batch: Batch | None = None
        self.ended = False

    def say(self, *message: Any) -> None:
        with self._turn, suppress(OSError):  # a parent that is gone ends this process: see `listen`
            self._pipe.send(message)

    def beat(self) -> None:
        while True:
            time.sleep(HEARTBEAT)
            self.say("alive")

    def listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                kind, *about = self._pipe.recv()
                if kind == "end":
                    self.ended = True
                    return self._items.put(None)
                if kind == "stop" and self.batch:
                    self.batch.stop()
                self._items.put(about[0] if kind == "item" else None)
                if self.batch:
                    self.batch.wake()
        os.killpg(0, signal.SIGKILL)  # the parent is gone: so goes all that was started here

    def items(self, first: Keyed) -> Iterator[Keyed | None]:
        """The items that are there, and None where there is none at the moment."""
        yield first
        while True:
            try:
                yield self._items.get_nowait()
            except queue.Empty:
                yield None

    def work(self, batch: Batch) -> None:
        while not (batch.stopping or self.ended):
            if first := self._items.get():
                for row in batch.rows(self.items(first)):
                    self.say("row", batch.work.key(row), batch.work.sent(row), batch.row_hung, batch.hung)


class _Forward(logging.handlers.QueueHandler):
    """Sends what is logged to the parent, which shows it."""

    def __init__(self, child: _Child):
        super().__init__(queue.SimpleQueue())
        self._child = child
        self.addFilter(name_picture)

    def enqueue(self, record: logging.LogRecord) -> None:
        self._child.say("log", record)


def _serve(
    pipe: Connection, work: Work, device: str, window: dict[str, Any], loads: bool, level: int
) -> None:
    child = _Child(pipe)
    logging.getLogger().handlers = [_Forward(child)]
    logging.captureWarnings(True)
    logging.getLogger("agentic_iqa_local").setLevel(level)
    for task in (child.listen, child.beat):
        threading.Thread(target=task, daemon=True).start()
    try:
        child.batch = Batch(Services(work.settings, device), work, **window)
        if work.tells:
            child.batch.tell = partial(child.say, "step")
        if loads:
            child.batch.load()
        child.say("ready", child.batch.description)
        child.work(child.batch)
        child.say("stopped")
        child.batch.services.close()
    except ModelLost as error:
        child.say("lost", str(error))
    except VLMError as error:
        child.say("refused", str(error))
    except BatchError:
        child.say("gave up")
