"""One process with models and tools that does the work on items, several at once if asked. What
hangs or crashes there costs one item and a reload of that process.

Each job has a pipe of that process alone, so a kill at any moment leaves no lock behind. (pebble's
`ProcessPool` runs one task at a time in a process, and its workers share a lock that a kill leaves
taken.)
"""

import atexit
import itertools
import logging
import logging.handlers
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, Generic

from agentic_iqa_local.batch.work import AnyItem, Row, Work
from agentic_iqa_local.devices import card_is_lost, memory_ran_out
from agentic_iqa_local.errors import UserError, first_line, name_picture, one_line
from agentic_iqa_local.result import file_sha256
from agentic_iqa_local.services import MODEL, Observer, Services
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory

logger = logging.getLogger(__name__)

TIMEOUT = 600.0  # seconds for one item
AHEAD = 64  # items and rows that wait in this process
PATIENCE = 10.0  # seconds in which an idle process may free its models

SPAWN = multiprocessing.get_context("spawn")
Told = Callable[[Mapping[str, Any]], None]


class BatchError(UserError, RuntimeError):
    """A batch that cannot go on; one sentence for the user."""


def resumed(items: Sequence[AnyItem], jobs: int) -> list[AnyItem]:
    """What an earlier run left, in the order to go on: the first may be what ended it, so they come
    last."""
    return [*items[jobs:], *items[:jobs]]


class Runner(Generic[AnyItem, Row]):
    """Does a `Work` on items, `jobs` at once, each within `timeout` seconds.

    `submit` takes one item and gives a future, `rows` takes many. Items that were under way when
    the process died, or was ended for one whose time was over, are tried again alone; what ends it
    then too is a failure. Where memory runs out fewer items are worked on at once from then on, and
    the item is tried again alone.

    With `services` the work is done in threads of this process, which cannot be ended: for one
    picture.
    """

    def __init__(
        self,
        work: Work[AnyItem, Row],
        device: str = "cpu",
        *,
        jobs: int = 1,
        timeout: float = TIMEOUT,
        services: Services | None = None,
    ):
        self.work = work
        self.device = device
        self.jobs = jobs
        self.timeout = timeout
        self.description: dict[str, Any] = {}  # what the work says of the loaded models
        self.stopping = False
        self._services = services
        self._most = jobs
        self._process: _Process | None = None
        self._threads = ThreadPoolExecutor(jobs)
        self._loading = threading.Lock()
        self._turn = threading.Condition()
        self._running = self._alone = 0  # items that are worked on; those that are to be alone
        self._closing = False

    def load(self) -> None:
        """Starts the process and waits until it has loaded models and tools. Raises VLMError where
        it cannot, BatchError where it dies."""
        self._threads.submit(self._loaded).result()

    def submit(self, item: AnyItem, told: Told | None = None) -> "Future[Row]":
        """The row of an item, in time; `told` gets each step of its work, in a thread of the
        runner. The future raises CancelledError after a stop, and ModelLost, VLMError or BatchError
        where no row can come; the next item starts a new process."""
        return self._threads.submit(self._row, item, told)

    def rows(self, items: Iterable[AnyItem]) -> Iterator[Row]:
        """A row for each item, as soon as it is there; then the process ends. Raises what `submit`
        says."""
        items = iter(items)
        finished = SimpleQueue[Future[Row]]()
        pending = 0
        try:
            while True:
                room = 0 if self.stopping else self.jobs + AHEAD - pending
                for item in itertools.islice(items, room):
                    self.submit(item).add_done_callback(finished.put)
                    pending += 1
                if not pending:
                    return
                pending -= 1
                with suppress(CancelledError):
                    yield finished.get().result()
        finally:
            self.close()

    def stop(self) -> None:
        """Begins nothing more: what is under way becomes a row."""
        self.stopping = True

    def close(self) -> None:
        """Ends the process: at once where something is under way."""
        self._closing = True
        if self._process:
            self._process.end()
        self._threads.shutdown(cancel_futures=True)
        atexit.unregister(self.close)

    # What follows runs in threads, one for each job.

    def _row(self, item: AnyItem, told: Told | None) -> Row:
        why = ""
        for alone in (False, True):
            by_itself = alone or self.jobs == 1
            with self._room(alone):
                if self._closing or (self.stopping and not alone):
                    raise CancelledError
                kind, about = self._ask(self._loaded(), item, alone, told)
            if kind == "row":
                return about
            if kind == "again":
                self._use_less_memory()
                continue
            if self._closing:
                raise CancelledError
            why = about
            logger.warning("%s: %s; going on with a new process", one_line(str(item.image)), why)
            if kind == "late" and by_itself:
                break
        return self.work.failure(item, why)

    def _use_less_memory(self) -> None:
        """From now on fewer items are worked on at once; of several that ran out together the first
        halves them."""
        if self.jobs == self._most > 1:
            self.jobs //= 2
            said = "memory ran out with %d images at once; going on with %d"
            logger.warning(said, self._most, self.jobs)

    @contextmanager
    def _room(self, alone: bool) -> Iterator[None]:
        """Waits until an item may begin; one that is to be alone goes before all that are not."""
        with self._turn:
            self._alone += alone
            self._turn.wait_for(partial(self._may_begin, alone))
            self._running += 1
        try:
            yield
        finally:
            with self._turn:
                self._running -= 1
                self._alone -= alone
                self._turn.notify_all()

    def _may_begin(self, alone: bool) -> bool:
        if alone:
            return not self._running
        return self._running < self.jobs and not self._alone

    def _loaded(self) -> "_Process":
        """The process that has the models, which is started where there is none."""
        with self._loading:
            if self._process and not self._process.ended:
                return self._process
            self._process = process = _Process(self.work, self.device, self._most, self._services)
            # Else the end of this process would wait for that one. What is registered last is called
            # first, and to start a process is what makes multiprocessing register its own waiting.
            atexit.register(self.close)
            if self._closing:
                process.end()
            with suppress(EOFError, OSError), process.pipe() as pipe:  # it died
                kind, about = pipe.recv()
                if kind == "ready":
                    self.description = about
                    return process
                process.end()
                raise about
            process.end(died=True)
            raise BatchError(f"the process died while it loaded: it ended {process.ended}")

    def _ask(
        self, process: "_Process", item: AnyItem, alone: bool, told: Told | None
    ) -> tuple[str, Any]:
        """What became of an item: "row" with it, "again" where memory ran out, "died" or "late" with
        the reason. Raises ModelLost."""
        until = time.monotonic() + self.timeout
        with suppress(EOFError, OSError), process.pipe() as pipe:  # it died
            pipe.send((item, alone))
            while pipe.poll(max(0.0, until - time.monotonic())):
                kind, about = pipe.recv()
                if kind == "lost":
                    process.end()
                    raise about
                if kind != "step":
                    return kind, about
                if told:
                    told(about)
            process.end()
            late = f"timed out after {self.timeout:g} s; raise --timeout if it was at work"
            return "late", late
        process.end(died=True)
        return "died", f"the process that assessed it ended {process.ended}"


class _Process:
    """The process that has the models; with `services` threads of this one."""

    def __init__(self, work: Work, device: str, jobs: int, services: Services | None):
        self._apart = services is None
        self._turn = threading.Lock()
        self._jobs = jobs
        self.ended = ""  # how
        ends = [SPAWN.Pipe() for _ in range(jobs + 1)]
        log, *self._free = [ours for ours, _ in ends]
        level = logging.getLogger("agentic_iqa_local").getEffectiveLevel()
        kind: Any = SPAWN.Process if self._apart else partial(threading.Thread, daemon=True)
        self._process = kind(
            target=_serve, args=([theirs for _, theirs in ends], work, device, level, services)
        )
        self._process.start()
        if self._apart:
            threading.Thread(target=_show_log, args=(log,), daemon=True).start()
            for _, theirs in ends:
                theirs.close()

    @contextmanager
    def pipe(self) -> Iterator[Any]:
        """One that no other item has."""
        pipe = self._free.pop(0)
        try:
            yield pipe
        finally:
            self._free.insert(0, pipe)

    def end(self, *, died: bool = False) -> None:
        """Ends it with whatever it started: at once where something is under way, else it may free
        its models."""
        with self._turn:
            if self.ended:
                return
            idle = len(self._free) == self._jobs and not died
            for pipe in self._free if idle else ():
                with suppress(OSError):
                    pipe.send(None)
            if idle or died:
                self._process.join(PATIENCE)
            if self._apart:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.kill()
                self._process.join(PATIENCE)
            code = getattr(self._process, "exitcode", 0) or 0
            self.ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"


def _show_log(pipe: Any) -> None:
    with suppress(EOFError, OSError):
        while record := pipe.recv():
            named = logging.getLogger(record.name)
            if named.isEnabledFor(record.levelno):
                named.handle(record)


# What follows runs where the models are.


def _serve(
    pipes: list[Any], work: Work, device: str, level: int, services: Services | None
) -> None:
    """Loads, says so, and takes items from each pipe but the first, which gets the log."""
    log, *pipes = pipes
    apart = services is None
    if apart:
        os.setsid()  # so that what libraries start can be ended together with it, and Ctrl-C is the parent's
        told_there = logging.handlers.QueueHandler(SimpleNamespace(put_nowait=log.send))  # pyright: ignore
        told_there.addFilter(name_picture)
        logging.getLogger().handlers = [told_there]
        logging.captureWarnings(True)
        logging.getLogger("agentic_iqa_local").setLevel(level)
    try:
        services = services or Services(work.settings, device)
        work.load(services)
        pipes[0].send(("ready", work.describe(services)))
    except Exception as error:
        if not isinstance(error, UserError):
            error = BatchError(f"{type(error).__name__}: {error}")
        return pipes[0].send(("lost", error))
    threads = [
        threading.Thread(target=_take, args=(pipe, work, services, apart), daemon=True)
        for pipe in pipes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if apart:
        services.close()


def _take(pipe: Any, work: Work, services: Services, apart: bool) -> None:
    """Works on the items of a pipe until it gives None. A parent that is gone ends this process,
    with all that was started here."""
    try:
        while given := pipe.recv():
            pipe.send(_worked_on(pipe, work, services, *given))
    except (EOFError, OSError):
        if apart:
            os.killpg(0, signal.SIGKILL)


def _worked_on(
    pipe: Any, work: Work, services: Services, item: Any, alone: bool
) -> tuple[str, Any]:
    """What became of an item: "row", "again" (alone, since memory ran out) or "lost" (the
    model)."""
    observer = _Watching(pipe, services.device)
    try:
        row = work.row(item, services, observer)
    except BaseException as error:  # whatever it is, the other items go on
        observer.look_at(error, MODEL)
        logger.info("%s", one_line(f"{item.image}: {error}"), exc_info=error)
        row = work.failure(item, f"{type(error).__name__}: {error}", file_sha256(item.image))
    if observer.lost:
        return "lost", observer.lost
    if observer.ran_out:
        from accelerate.utils.memory import clear_device_cache

        clear_device_cache(garbage_collection=True)
        if not alone:
            return "again", None
        if MODEL in observer.ran_out:
            row = work.failure(
                item, f"{observer.ran_out[MODEL]} (tried alone)", file_sha256(item.image)
            )
    return "row", row


class _Watching(Observer):
    """Tells the parent the steps of an item's work, and sees whether memory ran out or a model is
    lost."""

    def __init__(self, pipe: Any, device: str):
        self._pipe, self._device = pipe, device
        self._turn = threading.Lock()  # tools measure while the model writes
        self.ran_out: dict[str, str] = {}  # in what, and what was said
        self.lost: ModelLost | None = None

    def step(self, role: str, state: str, round: int = 1, what: str | None = None) -> None:
        with self._turn:
            told = {"role": role, "state": state, "round": round, "what": what}
            self._pipe.send(("step", told))

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
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
                self.ran_out[what] = str(error) or "memory ran out"  # a MemoryError says nothing
            elif card_is_lost(cause, self._device):  # in a tool, after which nothing would answer
                failed = f"{what} failed on {self._device} ({first_line(cause)})"
                self.lost = self.lost or ModelLost(failed, "the card has to be opened anew")
            cause = cause.__cause__
