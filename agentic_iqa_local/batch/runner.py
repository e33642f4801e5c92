"""One process with models and tools that does the work on items, several at once if asked. What hangs or crashes
there costs one item and a reload of that process.

The process is one call of pebble's `concurrent.process`: its future says how the process ended. Items go and
rows come through a pipe of that process alone, so a kill at any moment leaves no lock behind, and N items can be
under way at once. (pebble's `ProcessPool` runs one task at a time in a process, and its workers share a
lock that a kill leaves taken.)
"""

import atexit
import logging
import logging.handlers
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any, Generic

from pebble import ProcessExpired, concurrent
from PIL import Image

from agentic_iqa_local.batch.work import AnyItem, Row, Work
from agentic_iqa_local.devices import memory_ran_out
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.iqa_tools import ToolRunner
from agentic_iqa_local.judgement.assessment import file_sha256
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.workbench import MODEL, Observer, name_picture
from agentic_iqa_local.services import Services
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory

logger = logging.getLogger(__name__)

TIMEOUT = 600.0  # seconds for one item
MOST_DEATHS = 2  # of processes that had the item alone
MOST_HUNG = 3  # items in a row: then something else is wrong
STARTS = 3  # of processes that die before they are ready, one after the other
HALVINGS = 2  # of the pixels that the model sees at once, when memory runs out even for one item alone
LATER = 16  # items that go before one that is to be tried again alone
AHEAD = 64  # items that wait in the process, so that it need not wait for this one
GLANCE = 0.2  # seconds between two looks at the time
STANDSTILL = 5.0  # seconds: what is longer between two looks is time in which this process was stopped
PATIENCE = 10.0  # seconds in which an idle process may free its models

Step = Mapping[str, Any]


def resumed(items: Sequence[AnyItem], jobs: int) -> list[AnyItem]:
    """What an earlier run left, in the order to go on: the first may be what ended it, so they come last."""
    return [*items[jobs:], *items[:jobs]]


class BatchError(UserError, RuntimeError):
    """A batch that cannot go on; one sentence for the user."""


@dataclass(eq=False)
class _Task(Generic[AnyItem]):
    """An item on its way to a row."""

    item: AnyItem
    told: Callable[[Step], None] | None
    future: Future = field(default_factory=Future)
    deaths: int = 0  # of processes that had it alone
    alone: bool = False
    after: int = 0  # so many items have begun when it is tried again at the latest
    deadline: float | None = None  # None: not begun
    place: str = ""  # the model or the tool that it was last seen in


class Runner(Generic[AnyItem, Row]):
    """Does a `Work` on items, `jobs` at once, each within `timeout` seconds.

    `submit` takes one item and gives a future, `rows` takes many. An item that was under way alone when the
    process died is tried once more alone, and then is a failure; those that were under way together are tried
    alone. An item whose time is over ends the process, and is a failure if it was alone. Where memory runs
    out the item is tried again alone, then with half of the pixels, then with a quarter.

    With `services` the work is done in a thread of this process, which cannot be ended: for one picture.
    `told` gets each step of an item's work, in a thread of the runner.
    """

    by_node = ""  # rows of each machine, where there are several

    def __init__(
        self,
        work: Work[AnyItem, Row],
        device: str = "cpu",
        *,
        jobs: int = 1,
        timeout: float = TIMEOUT,
        services: Services | None = None,
    ):
        self.work, self.device, self.jobs, self.timeout = work, device, jobs, timeout
        self.stopping = False
        self.unfinished = False  # whether a thread does not return, which would keep this process from ending
        self._services, self._threads, self._loads = services, jobs, False
        self._waiting: deque[_Task[AnyItem]] = deque()
        self._alone: deque[_Task[AnyItem]] = deque()
        self._given: dict[int, _Task[AnyItem]] = {}  # to the process, by number
        self._number = self._failed_starts = self._hung = self._pid = 0
        self._process: Future | None = None
        self._pipe: Any = None
        self._ready = self._told_to_end = self._closing = self._ended = False
        self._loaded: Future[dict[str, Any]] = Future()
        self._now, self._looked = 0.0, time.monotonic()
        self._awaken, self._wake = multiprocessing.Pipe(duplex=False)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def load(self) -> None:
        """Starts the process and waits until it has loaded models and tools. Raises VLMError where it cannot,
        BatchError where it dies."""
        self._loads = True
        if self._loaded.done() and self._loaded.exception():
            self._loaded = Future()
        loaded = self._loaded
        self._begin()
        loaded.result()

    @property
    def description(self) -> dict[str, Any]:
        """What the work says of the loaded models."""
        known = self._loaded.done() and not self._loaded.exception()
        return self._loaded.result() if known else {}

    def submit(self, item: AnyItem, told: Callable[[Step], None] | None = None) -> "Future[Row]":
        """The row of an item, in time. The future raises ModelLost, VLMError or BatchError where none can come,
        for every item that waits; the next one that is submitted starts a new process."""
        task = _Task(item, told)
        self._waiting.append(task)
        self._begin()
        if self._ended:
            task.future.cancel()
        return task.future

    def rows(self, items: Iterable[AnyItem]) -> Iterator[Row]:
        """A row for each item, as soon as it is there; then the process ends. Raises what `submit` says."""
        items, pending = iter(items), 0
        finished: queue.SimpleQueue[Future[Row]] = queue.SimpleQueue()
        try:
            while True:
                while not self.stopping and pending < self.jobs + AHEAD:
                    if (item := next(items, None)) is None:
                        break
                    self.submit(item).add_done_callback(finished.put)
                    pending += 1
                if not pending:
                    return
                pending, future = pending - 1, finished.get()
                if not future.cancelled():
                    yield future.result()
        finally:
            self.close()

    def stop(self) -> None:
        """Begins nothing more: what is under way becomes a row, other futures are cancelled."""
        self.stopping = True
        self._wake.send_bytes(b"!")

    def close(self) -> None:
        """Ends the process: at once where something is under way."""
        self._closing = True
        if self._thread.ident is not None:
            self._wake.send_bytes(b"!")
            if self._thread is not threading.current_thread():
                self._thread.join()

    def _begin(self) -> None:
        if self._thread.ident is None and not self._closing:
            with suppress(RuntimeError):  # two callers at once
                self._thread.start()
        self._wake.send_bytes(b"!")

    # What follows runs in the runner's own thread.

    def _run(self) -> None:
        while not (self._closing or (self.stopping and self._process is None)):
            try:
                self._look()
            except Exception as error:
                self._fail(error)
        self._end_process()
        self._ended = True
        self._cancel_all()
        atexit.unregister(self.close)

    def _look(self) -> None:
        """One turn: gives what may begin, takes what has come, ends what took too long."""
        wanted = self._waiting or self._alone or (self._loads and not self._loaded.done())
        if self._process is None and wanted:
            self._start()
        self._give()
        pipes = [self._awaken, self._pipe] if self._process else [self._awaken]
        for ready in connection.wait(pipes, GLANCE):
            if ready is self._awaken:
                self._awaken.recv_bytes()
                continue
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                return self._after_end()
            self._heed(*message)
        self._end_what_is_late()

    def _end_what_is_late(self) -> None:
        now = time.monotonic()
        self._now += min(now - self._looked, STANDSTILL)
        self._looked = now
        for task in self._under_way():
            if self._now > (task.deadline or 0):
                return self._after_overdue(task)

    def _under_way(self) -> list[_Task[AnyItem]]:
        return [task for task in self._given.values() if task.deadline is not None]

    def _start(self) -> None:
        self._pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        level = logging.getLogger("agentic_iqa_local").getEffectiveLevel()
        args = theirs, self.work, self.device, self._threads, self._loads, level, self._services
        if self._services:
            self._process = concurrent.thread(_serve)(*args)
        else:
            spawn = multiprocessing.get_context("spawn")
            self._process = concurrent.process(context=spawn, daemon=False)(_serve)(*args)  # pyright: ignore
            theirs.close()
            atexit.register(self.close)  # else the end of this process would wait for that one
        self._ready = self._told_to_end = False
        self._pid = 0

    def _give(self) -> None:
        if not self._ready or self._told_to_end:
            return
        if self.stopping:
            self._told_to_end = True
            return self._send(None)
        while task := self._next():
            self._number += 1
            self._given[self._number] = task
            self._send((self._number, task.item, task.alone))

    def _next(self) -> _Task[AnyItem] | None:
        """The next item that the process may have now; one that is to be alone only when it has no other."""
        if self._alone and (not self._waiting or self._number >= self._alone[0].after):
            return None if self._given else self._alone.popleft()
        room = self.jobs + (AHEAD if self.jobs == self._threads else 0)
        full = len(self._given) >= room or any(task.alone for task in self._given.values())
        return self._waiting.popleft() if self._waiting and not full else None

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # where the process is gone, hearing from it says so
            self._pipe.send(message)

    def _heed(self, kind: str, *about: Any) -> None:
        match kind, *about:
            case "ready", pid, description:
                self._ready, self._pid = True, pid
                if not self._loaded.done():
                    self._loaded.set_result(description)
            case "log", record:
                if (named := logging.getLogger(record.name)).isEnabledFor(record.levelno):
                    named.handle(record)
            case "began", number:
                self._given[number].deadline = self._now + self.timeout
            case "in", number, place:
                self._given[number].place = place
            case "step", number, step:
                if told := self._given[number].told:
                    told(step)
            case "row", number, sent:
                self._hung = self._failed_starts = 0
                task = self._given.pop(number)
                _finish(task, self.work.received(task.item, sent))
            case "again", number:
                self._try_fewer()
                self._try_alone(self._given.pop(number))
            case "lost", error:
                raise error

    def _try_fewer(self) -> None:
        if self.jobs == self._threads > 1:
            self.jobs //= 2
            logger.warning(
                "memory ran out with %d images at once; going on with %d", self._threads, self.jobs
            )

    def _try_alone(self, task: _Task[AnyItem]) -> None:
        task.alone, task.deadline, task.after = True, None, self._number + LATER
        self._alone.append(task)

    def _after_overdue(self, late: _Task[AnyItem]) -> None:
        suspects = self._end_process()
        why = f"timed out after {self.timeout:g} s"
        logger.warning("%s: %s; going on without it", one_line(str(late.item.image)), why)
        if len(suspects) > 1:  # it may wait for one of the others
            for task in suspects:
                self._try_alone(task)
            return
        # where nothing was computed yet, reading the file may be what hangs
        sha256 = file_sha256(late.item.image) if late.place else None
        place = f", last seen in {late.place}" if late.place else ""
        error = f"{why}{place}; raise --timeout if it was at work"
        _finish(late, self.work.overdue(late.item, error, sha256))
        self._hung += 1
        self.unfinished = self._services is not None
        if self._hung >= MOST_HUNG or self.unfinished:
            said = one_line(f"{late.item.image}: {error}")
            raise BatchError(
                f"{self._hung} in a row do not return, the last: {said}", "find out what hangs there"
            )

    def _after_end(self) -> None:
        """Sees to what was under way when the process ended by itself."""
        assert self._process
        error = self._process.exception()
        suspects = self._end_process()
        if error is None:  # it was told to end
            return self._cancel_all()
        if not isinstance(error, ProcessExpired):
            raise error
        code = error.exitcode or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        if not suspects:
            self._failed_starts += 1
            if self._failed_starts >= STARTS:
                self._failed_starts = 0
                raise BatchError(f"{STARTS} processes in a row died while they loaded: the last ended {how}")
            return
        named = ", ".join(one_line(str(task.item.image)) for task in suspects)
        logger.warning("%s: the process ended %s; going on with a new one", named, how)
        for task in suspects:
            task.deaths += len(suspects) == 1
            if task.deaths >= MOST_DEATHS:
                why = f"{task.deaths} processes died while they assessed this image alone, the last {how}"
                _finish(task, self.work.failure(task.item, why))
            else:
                self._try_alone(task)

    def _end_process(self) -> list[_Task[AnyItem]]:
        """Ends the process, if there is one; those that were under way. What was given and had not begun waits
        again."""
        if self._process is None:
            return []
        if self._ready and not self._given:  # idle: it may free its models
            self._send(None)
            with suppress(Exception):
                self._process.exception(PATIENCE)
        self._pipe.close()
        if self._pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)  # with whatever it started
        else:
            self._process.cancel()
        self._process, self._pid, self._ready = None, 0, False
        suspects = self._under_way()
        rest = [task for task in self._given.values() if task.deadline is None]
        self._waiting.extendleft(reversed(rest))
        self._given.clear()
        return suspects

    def _cancel_all(self) -> None:
        for task in self._given.values():
            task.future.cancel()
        self._given.clear()
        for tasks in (self._waiting, self._alone):
            while tasks:
                tasks.popleft().future.cancel()

    def _fail(self, error: Exception) -> None:
        """No row can come of what there is."""
        suspects = self._end_process()
        self._hung = 0
        if not self._loaded.done():
            self._loaded.set_exception(error)
        for tasks in (deque(suspects), self._waiting, self._alone):
            while tasks:
                with suppress(InvalidStateError):  # cancelled
                    tasks.popleft().future.set_exception(error)


def _finish(task: _Task[Any], row: Any) -> None:
    with suppress(InvalidStateError):  # cancelled: nobody wants it
        task.future.set_result(row)


# What follows runs where the models are.


def _serve(
    pipe: Any, work: Work, device: str, jobs: int, loads: bool, level: int, services: Services | None
) -> None:
    """Takes items from the pipe until it gets None, `jobs` of them at once. A parent that is gone ends this
    process, with all that was started here. The pipe is closed at the end: a parent in another thread waits for it."""
    apart = services is None
    with pipe:
        desk = _Desk(pipe, work, services or Services(work.settings, device))
        if apart:
            os.setsid()  # so that what libraries start can be ended together with it, and Ctrl-C is the parent's
            logging.getLogger().handlers = [_Forward(desk)]
            logging.captureWarnings(True)
            logging.getLogger("agentic_iqa_local").setLevel(level)
        description = desk.load() if loads else {}
        desk.say("ready", os.getpid() if apart else 0, description)
        with ThreadPoolExecutor(jobs) as threads:
            try:
                while message := pipe.recv():
                    threads.submit(desk.work_on, *message)
            except (EOFError, OSError):
                if apart:
                    os.killpg(0, signal.SIGKILL)
            threads.shutdown(cancel_futures=True)
        if apart:
            desk.services.close()


class _Forward(logging.handlers.QueueHandler):
    """Sends what is logged to the parent, which shows it."""

    def __init__(self, desk: "_Desk"):
        super().__init__(queue.SimpleQueue())
        self._desk = desk
        self.addFilter(name_picture)

    def enqueue(self, record: logging.LogRecord) -> None:
        self._desk.say("log", record)


class _Desk:
    """Where items become rows, with the models and tools."""

    def __init__(self, pipe: Any, work: Work, services: Services):
        self.pipe, self.work, self.services = pipe, work, services
        self._turn = threading.Lock()

    def say(self, *message: Any) -> None:
        with self._turn, suppress(OSError):  # a parent that is gone ends this process: see `_serve`
            self.pipe.send(message)

    def load(self) -> dict[str, Any]:
        """Loads models and tools before any time counts, and describes them. Raises VLMError."""
        for role in self.work.roles:
            self.services.client(role)
        self.services.tools.prepare()
        return self.work.describe(self.services)

    def work_on(self, number: int, item: Any, alone: bool) -> None:
        self.say("began", number)
        self.say(*self._outcome(number, item, alone))

    def _outcome(self, number: int, item: Any, alone: bool) -> tuple[Any, ...]:
        """What became of an item, as a message. Where the model's memory runs out, one that is alone is tried
        with fewer pixels."""
        most_pixels, halvings = None, HALVINGS
        while True:
            observer = _Watching(self, number, most_pixels)
            row = self._row(item, observer)
            if observer.lost:
                return "lost", observer.lost
            if not observer.ran_out:
                return "row", number, self.work.sent(row)
            from accelerate.utils.memory import clear_device_cache

            clear_device_cache(garbage_collection=True)
            if not alone:
                return "again", number
            if (reason := observer.ran_out.get(MODEL)) is None:
                return "row", number, self.work.sent(row)
            limits = self.services.client(ROLE).limits
            half = observer.pixels // 2
            if not halvings or half < max(limits.min_pixels, limits.factor**2):
                seen = f", with at most {most_pixels} pixels at once" if most_pixels else ""
                error = f"{reason} (tried alone{seen})"
                failure = self.work.failure(item, error, file_sha256(item.image))
                return "row", number, self.work.sent(failure)
            most_pixels, halvings = half, halvings - 1

    def _row(self, item: Any, observer: "_Watching") -> Any:
        try:
            return self.work.row(item, self.services, observer)
        except BaseException as error:  # whatever it is, the other items go on
            observer.look_at(error, MODEL)
            logger.info("%s", one_line(f"{item.image}: {error}"), exc_info=error)
            return self.work.failure(item, f"{type(error).__name__}: {error}", file_sha256(item.image))


class _Watching(Observer):
    """Tells the parent what an item's work calls, and sees whether memory ran out or a model is lost."""

    def __init__(self, desk: _Desk, number: int, max_pixels: int | None):
        self._desk, self._number, self.max_pixels = desk, number, max_pixels
        self.pixels = 0  # of the largest picture that the model was given
        self.ran_out: dict[str, str] = {}  # in what, and what was said
        self.lost: ModelLost | None = None

    def step(self, role: str, state: str, round: int = 1, what: str | None = None) -> None:
        about = {"role": role, "state": state, "round": round, "what": what}
        self._desk.say("step", self._number, about)

    def shown(self, pictures: Sequence[Image.Image]) -> None:
        self.pixels = max(picture.width * picture.height for picture in pictures)

    @contextmanager
    def measuring(self, tool: str, services: Services) -> Iterator[ToolRunner]:
        self.step("tool", "started", what=tool)
        with self.calling(tool):
            yield services.tools
        self.step("tool", "finished", what=tool)

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        self._desk.say("in", self._number, what)
        try:
            yield
        except Exception as error:
            self.look_at(error, what)
            raise

    def look_at(self, error: BaseException, what: str) -> None:
        if isinstance(error, ModelLost):
            self.lost = error
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OutOfMemory) or memory_ran_out(cause):
                self.ran_out[what] = str(error)
            cause = cause.__cause__
