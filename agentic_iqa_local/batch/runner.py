"""One process with models and tools that does the work on items, several at once if asked. What hangs or crashes
there costs one item and a reload of that process.

Items go and rows come through a pipe of that process alone, so a kill at any moment leaves no lock behind. (pebble's
`ProcessPool` runs one task at a time in a process, and its workers share a lock that a kill leaves taken.)
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
from functools import partial
from itertools import islice
from multiprocessing import connection
from types import SimpleNamespace
from typing import Any, Generic

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
AHEAD = 64  # items and rows that wait in this process
GLANCE = 0.2  # seconds between two looks at the time
PATIENCE = 10.0  # seconds in which an idle process may free its models

SPAWN = multiprocessing.get_context("spawn")
Step = Mapping[str, Any]


def resumed(items: Sequence[AnyItem], jobs: int) -> list[AnyItem]:
    """What an earlier run left, in the order to go on: the first may be what ended it, so they come last."""
    return [*items[jobs:], *items[:jobs]]


class BatchError(UserError, RuntimeError):
    """A batch that cannot go on; one sentence for the user."""


@dataclass(eq=False)
class _Task:
    """An item on its way to a row."""

    item: Any  # None: a request that only waits until models are loaded
    told: Callable[[Step], None] | None
    future: Future = field(default_factory=Future)
    deaths: int = 0  # of processes that had it alone
    alone: bool = False
    deadline: float = 0.0
    place: str = ""  # the model or the tool that it was last seen in


class Runner(Generic[AnyItem, Row]):
    """Does a `Work` on items, `jobs` at once, each within `timeout` seconds.

    `submit` takes one item and gives a future, `rows` takes many. An item that was under way alone when the
    process died is tried once more alone, and then is a failure; those that were under way together are tried
    alone. An item whose time is over ends the process, and is a failure if it was alone. Where memory runs
    out fewer items are worked on at once from then on, and the item is tried again alone; if it was the model
    that needed too much, then with half of the pixels, then with a quarter.

    With `services` the work is done in a thread of this process, which cannot be ended: for one picture.
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
        self.description: dict[str, Any] = {}  # what the work says of the loaded models
        self.stopping = False
        self.unfinished = False  # whether a thread does not return, which would keep this process from ending
        self._services, self._threads = services, jobs
        self._waiting: deque[_Task] = deque()
        self._given: dict[int, _Task] = {}  # to the process, by number
        self._number = self._failed_starts = self._hung = 0
        self._process: Any = None
        self._pipe: Any = None
        self._ready = self._closing = False
        self._turn = threading.Lock()
        self._awaken, self._wake = multiprocessing.Pipe(duplex=False)
        self._thread: threading.Thread | None = None

    def load(self) -> None:
        """Starts the process and waits until it has loaded models and tools. Raises VLMError where it cannot,
        BatchError where it dies."""
        self._submit(_Task(None, None)).result()

    def submit(self, item: AnyItem, told: Callable[[Step], None] | None = None) -> "Future[Row]":
        """The row of an item, in time.

        Args:
            item: What becomes a row.
            told: Gets each step of its work, in a thread of the runner.

        Returns:
            A future, cancelled after a stop. It raises ModelLost, VLMError or BatchError where no row can come; so do
            those of all items that wait, and the next item starts a new process.
        """
        return self._submit(_Task(item, told))

    def _submit(self, task: _Task) -> Future:
        with self._turn:
            if self._closing or self.stopping:
                task.future.cancel()
            self._waiting.append(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
        self._wake.send_bytes(b"!")
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
        with self._turn:
            self._closing = True
        self._wake.send_bytes(b"!")
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()

    # What follows runs in the runner's own thread.

    def _run(self) -> None:
        while not self._closing:
            try:
                self._look()
            except Exception as error:
                self._hung = 0
                self._give_up(self._end_process(), error)
        self._give_up(self._end_process())
        atexit.unregister(self.close)

    def _look(self) -> None:
        """One turn: gives what may begin, takes what has come, ends what took too long."""
        if self.stopping:
            self._give_up([])
        elif self._process is None and self._waiting:
            self._start()
        while self._ready and (task := self._next()):
            if task.item is None:
                _settle(task.future)
                continue
            self._number += 1
            task.deadline = time.monotonic() + self.timeout
            self._given[self._number] = task
            with suppress(OSError):  # where the process is gone, hearing from it says so
                self._pipe.send((self._number, task.item, task.alone))
        left = min((task.deadline - time.monotonic() for task in self._given.values()), default=GLANCE)
        pipes = [self._awaken, self._pipe] if self._process else [self._awaken]
        connection.wait(pipes, max(0, min(left, GLANCE)))
        while self._awaken.poll():
            self._awaken.recv_bytes()
        try:
            while self._process and self._pipe.poll():
                self._heed(*self._pipe.recv())
        except (EOFError, OSError):
            return self._after_death()
        for task in self._given.values():
            if time.monotonic() > task.deadline:
                return self._after_overdue(task)

    def _start(self) -> None:
        self._pipe, theirs = SPAWN.Pipe()
        level = logging.getLogger("agentic_iqa_local").getEffectiveLevel()
        args = theirs, self.work, self.device, self._threads, level, self._services
        self._ready = False
        if self._services:
            self._process = threading.Thread(target=_serve, args=args, daemon=True)
            self._process.start()
        else:
            self._process = SPAWN.Process(target=_serve, args=args)
            self._process.start()
            theirs.close()
            atexit.register(self.close)  # else the end of this process would wait for that one

    def _next(self) -> _Task | None:
        """The next item that the process may have now."""
        alone = any(task.alone for task in (*self._given.values(), *islice(self._waiting, 1)))
        room = len(self._given) < (1 if alone else self.jobs)
        return self._waiting.popleft() if self._waiting and room else None

    def _heed(self, kind: str, *about: Any) -> None:
        match kind, *about:
            case "ready", description:
                self._ready, self.description = True, description
            case "log", record:
                if (named := logging.getLogger(record.name)).isEnabledFor(record.levelno):
                    named.handle(record)
            case "in", number, place:
                self._given[number].place = place
            case "step", number, step:
                if told := self._given[number].told:
                    told(step)
            case "row", number, row:
                self._hung = self._failed_starts = 0
                _settle(self._given.pop(number).future, row)
            case "again", number:
                if self.jobs == self._threads > 1:
                    self.jobs //= 2
                    said = "memory ran out with %d images at once; going on with %d"
                    logger.warning(said, self._threads, self.jobs)
                self._try_alone(self._given.pop(number))
            case "lost", error:
                raise error

    def _try_alone(self, task: _Task) -> None:
        task.alone = True
        self._waiting.appendleft(task)

    def _after_overdue(self, late: _Task) -> None:
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
        _settle(late.future, self.work.overdue(late.item, error, sha256))
        self._hung += 1
        self.unfinished = self._services is not None
        if self._hung >= MOST_HUNG or self.unfinished:
            said = one_line(f"{self._hung} in a row do not return, the last: {late.item.image}: {error}")
            raise BatchError(said, "find out what hangs there")

    def _after_death(self) -> None:
        """Sees to what was under way when the process ended by itself."""
        self._process.join(PATIENCE)
        code = getattr(self._process, "exitcode", 0) or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        suspects = self._end_process()
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
                _settle(task.future, self.work.failure(task.item, why))
            else:
                self._try_alone(task)

    def _end_process(self) -> list[_Task]:
        """Ends the process, if there is one; those that were under way."""
        process, suspects = self._process, list(self._given.values())
        if process is None:
            return []
        if self._ready and not suspects:  # idle: it may free its models
            with suppress(OSError):
                self._pipe.send(None)
            process.join(PATIENCE)
        self._pipe.close()
        if self._services is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # with whatever it started
            except (ProcessLookupError, PermissionError):
                process.kill()
            process.join(PATIENCE)
        self._process, self._ready = None, False
        self._given.clear()
        return suspects

    def _give_up(self, suspects: list[_Task], error: Exception | None = None) -> None:
        """No row comes of these, nor of what waits: an error says why, without one they are cancelled."""
        while suspects or self._waiting:
            future = (suspects or self._waiting).pop().future
            future.cancel() if error is None else _settle(future, error=error)


def _settle(future: Future, result: Any = None, error: Exception | None = None) -> None:
    with suppress(InvalidStateError):  # cancelled: nobody wants it; or settled before
        future.set_exception(error) if error else future.set_result(result)


# What follows runs where the models are.


def _serve(pipe: Any, work: Work, device: str, jobs: int, level: int, services: Services | None) -> None:
    """Takes items from the pipe until it gets None, `jobs` of them at once. A parent that is gone ends this
    process, with all that was started here."""
    apart = services is None
    with pipe, ThreadPoolExecutor(jobs) as threads:
        desk = _Desk(pipe, work)
        if apart:
            os.setsid()  # so that what libraries start can be ended together with it, and Ctrl-C is the parent's
            shown_there = logging.handlers.QueueHandler(SimpleNamespace(put_nowait=partial(desk.say, "log")))  # pyright: ignore
            shown_there.addFilter(name_picture)
            logging.getLogger().handlers = [shown_there]
            logging.captureWarnings(True)
            logging.getLogger("agentic_iqa_local").setLevel(level)
        try:
            desk.services = services or Services(work.settings, device)
            work.load(desk.services)
            desk.say("ready", work.describe(desk.services))
        except Exception as error:
            known = isinstance(error, UserError)
            return desk.say("lost", error if known else BatchError(f"{type(error).__name__}: {error}"))
        try:
            while message := pipe.recv():
                threads.submit(desk.work_on, *message)
        except (EOFError, OSError):
            if apart:
                os.killpg(0, signal.SIGKILL)
        if apart:
            desk.services.close()


class _Desk:
    """Where items become rows, with the models and tools."""

    services: Services

    def __init__(self, pipe: Any, work: Work):
        self.pipe, self.work = pipe, work
        self._turn = threading.Lock()

    def say(self, *message: Any) -> None:
        with self._turn, suppress(OSError):  # a parent that is gone ends this process: see `_serve`
            self.pipe.send(message)

    def work_on(self, number: int, item: Any, alone: bool) -> None:
        """Says what became of an item. Where the model's memory runs out, one that is alone is tried with fewer
        pixels."""
        most_pixels = None
        for halving in range(HALVINGS + 1):
            observer = _Watching(self, number, most_pixels)
            row = self._row(item, observer)
            if observer.lost:
                return self.say("lost", observer.lost)
            if not observer.ran_out:
                break
            from accelerate.utils.memory import clear_device_cache

            clear_device_cache(garbage_collection=True)
            if not alone:
                return self.say("again", number)
            if MODEL not in observer.ran_out:
                break
            limits, half = self.services.client(ROLE).limits, observer.pixels // 2
            if halving == HALVINGS or half < max(limits.min_pixels, limits.factor**2):
                seen = f", with at most {most_pixels} pixels at once" if most_pixels else ""
                error = f"{observer.ran_out[MODEL]} (tried alone{seen})"
                row = self.work.failure(item, error, file_sha256(item.image))
                break
            most_pixels = half
        self.say("row", number, row)

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
