"""Many images: the window of work. One item is worked on in a thread of its own, a bounded number of them at
once, and whatever becomes of it is one row: an answer, or a failure with its reason.

A thread cannot be killed: one that outlasts its time is left behind and stops at its next call of the model
or a tool. `batch_worker` does all of this in a process that can be ended.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic

from PIL import Image

from agentic_iqa_local.batch.work import AnyItem, Row, Work
from agentic_iqa_local.devices import memory_ran_out
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import LARGEST
from agentic_iqa_local.iqa_tools import ToolRunner
from agentic_iqa_local.judgement.assessment import file_sha256
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.workbench import MODEL, Observer
from agentic_iqa_local.services import ALONE, Services
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory

logger = logging.getLogger(__name__)

TIMEOUT = 600.0  # seconds
MOST_HUNG = 3
MOST_DEATHS = 3
HALVINGS = 2  # of the pixels that the model sees at once, when memory runs out even for one image alone
GLANCE = 0.2  # seconds between two looks at the attempts in hand
STANDSTILL = 5.0  # seconds without a look: the process was stopped


class BatchError(UserError, RuntimeError):
    """A batch that cannot go on; one sentence for the user."""


class _LeftBehind(BaseException):
    """Ends the thread of an attempt whose time is over; no handler of errors keeps it going."""


@dataclass(eq=False)
class _Attempt(Observer, Generic[AnyItem]):
    """One item in its thread, and what can be seen of it from outside."""

    item: AnyItem
    turns: "_ToolTurns"
    window: int  # how many were allowed at once when it began
    deadline: float = 0.0
    tries: int = 0  # earlier ones; after one it runs alone, after two the model sees at most `max_pixels`
    max_pixels: int | None = None
    pixels: int = 0  # of the largest picture that the model was given
    busy: list[str] = field(default_factory=list)
    ran_out: set[str] = field(default_factory=set)
    lost: str = ""  # why its model answers no more
    waiting: bool = False
    left_behind: bool = False
    tell: Callable[..., None] | None = None  # takes the item's key and a step

    def step(self, role: str, state: str, round: int = 1, what: str | None = None) -> None:
        if self.tell and not self.left_behind:
            self.tell(self.item.key, {"role": role, "state": state, "round": round, "what": what})

    def shown(self, pictures: Sequence[Image.Image]) -> None:
        self.pixels = max(picture.width * picture.height for picture in pictures)

    @contextmanager
    def measuring(self, tool: str, services: Services) -> Iterator[ToolRunner]:
        with self.turns.turn(self) as tools, self.calling(tool):
            self.step("tool", "started", what=tool)
            yield tools
            self.step("tool", "finished", what=tool)

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        if self.left_behind:
            raise _LeftBehind
        self.busy.append(what)
        try:
            yield
        except Exception as error:
            if _memory_ran_out(error):
                self.ran_out.add(what)
            if isinstance(error, ModelLost):
                self.lost = str(error)
            raise
        finally:
            self.busy.remove(what)

    @property
    def where(self) -> str:
        return f"in {' and '.join(self.busy)}" if self.busy else "outside of the tools and the model"


def _memory_ran_out(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OutOfMemory) or memory_ran_out(error):
            return True
        error = error.__cause__
    return False


class _ToolTurns:
    """The tools make one measurement at a time. When one hangs, the others go on with new tools."""

    def __init__(self, services: Services):
        self._services = services
        self._turn, self._holder = threading.Condition(), None

    @contextmanager
    def turn(self, attempt: "_Attempt") -> Iterator[ToolRunner]:
        with self._turn:
            began, attempt.waiting = time.monotonic(), True
            self._turn.wait_for(lambda: self._holder is None)
            self._holder, tools = attempt, self._services.tools
            attempt.deadline += time.monotonic() - began
            attempt.waiting = False
        try:
            yield tools
        finally:
            self.release(attempt)

    def release(self, attempt: "_Attempt", *, hung: bool = False) -> None:
        with self._turn:
            if self._holder is not attempt:
                return
            if hung:
                self._services.renew_tools()
            self._holder = None
            self._turn.notify()


class Batch(Generic[AnyItem, Row]):
    """Does the work on items with loaded services, at most `jobs` at once, each within `timeout` seconds.

    Where memory runs out, half as many go on at once, and the image is tried again alone; if that is not
    enough, the model sees at most half as many pixels at once, twice if need be; then the row is a failure.
    """

    by_node = ""  # rows of each machine, where there are several
    line: str | None = None  # see `BatchWorker.line`: no row comes from another process

    def __init__(
        self, services: Services, work: Work[AnyItem, Row], *, jobs: int = 1, timeout: float = TIMEOUT
    ):
        self.services, self.work, self.window, self.timeout = services, work, jobs, timeout
        self.stopping = False
        self.description: dict[str, Any] = {}
        self._turns = _ToolTurns(services)
        self._running: list[_Attempt[AnyItem]] = []
        self._hung: list[_Attempt[AnyItem]] = []
        self._finished: queue.SimpleQueue[tuple[_Attempt[AnyItem], Row] | None] = queue.SimpleQueue()
        self._suspects: dict[str, int] = {}
        self.tell: Callable[..., None] | None = None  # takes an item's key and a step of its assessment
        self.row_hung = False  # whether the row that `rows` gave last is of an attempt that was left behind

    def load(self) -> None:
        """Loads models and tools before any thread runs one, and describes them. Raises VLMError for a model
        that cannot be loaded."""
        for role in self.work.roles:
            self.services.client(role)
        self.services.tools.prepare()
        self.description = self.work.describe(self.services)

    @property
    def device(self) -> str:
        return self.services.device

    @property
    def unfinished(self) -> bool:
        """Whether threads are still at work, which would keep the process from ending."""
        return bool(self._running or self._hung)

    @property
    def hung(self) -> bool:
        """Whether a thread does not return."""
        return bool(self._hung)

    def stop(self) -> None:
        """Begins nothing more. `rows` ends with what is in hand, without its failures, which the stop may
        have caused."""
        self.stopping = True

    def wake(self) -> None:
        """Asks for the next item again, where `rows` was told that none was ready."""
        self._finished.put(None)

    def rows(
        self, items: Iterable[AnyItem | None], suspects: Mapping[str, int] | None = None
    ) -> Iterator[Row]:
        """A row for each item, as soon as it is there. An item may be None: none is ready now, ask again.

        `suspects` are keys of items that a process may have died of, each with how often one did: they are
        tried alone, and one that MOST_DEATHS died of is a failure. Raises ModelLost, without a row for what
        was in hand, and BatchError when too many attempts hang, or one that keeps all others from the model.
        """
        again: deque[_Attempt[AnyItem]] = deque()
        items, self._suspects = iter(items), dict(suspects or {})
        self._looked = time.monotonic()
        while True:
            self._begin(items, again)
            if not self._running:
                return
            if (ended := self._next()) is None:
                continue
            attempt, row = ended
            if attempt.lost:
                raise ModelLost(attempt.lost)
            if next_try := self._next_try(attempt):
                again.append(next_try)
            elif self.work.error(row) is None or not self.stopping:
                self.row_hung = attempt.left_behind
                yield self._final(attempt, row)
            if len(self._hung) >= MOST_HUNG or any(
                tool in ALONE for hung in self._hung for tool in hung.busy
            ):
                hung = ", ".join(f"{one_line(str(a.item.image))} {a.where}" for a in self._hung)
                raise BatchError(
                    f"assessments do not return ({hung})", "find out what hangs there, or raise --timeout"
                )

    def _begin(self, items: Iterator[AnyItem | None], again: deque[_Attempt[AnyItem]]) -> None:
        while not self.stopping and not any(attempt.tries for attempt in self._running):
            if again:
                if not self._running:
                    self._start(again.popleft())
                return
            if len(self._running) >= self.window or (item := next(items, None)) is None:
                return
            attempt = self._attempt(item)
            if item.key in self._suspects:
                again.append(replace(attempt, tries=1))
            else:
                self._start(attempt)

    def _attempt(self, item: AnyItem, **options: Any) -> _Attempt[AnyItem]:
        return _Attempt(item, self._turns, self.window, tell=self.tell, **options)

    def _start(self, attempt: _Attempt[AnyItem]) -> None:
        attempt.deadline = time.monotonic() + self.timeout
        self._running.append(attempt)
        threading.Thread(target=self._run, args=(attempt,), daemon=True).start()

    def _run(self, attempt: _Attempt[AnyItem]) -> None:
        item = attempt.item
        try:
            if self._suspects.get(item.key, 0) >= MOST_DEATHS:
                raise RuntimeError(
                    f"{MOST_DEATHS} processes died while they assessed this image alone; assess it without"
                    " --out"
                )
            row = self.work.row(item, self.services, attempt)
        except BaseException as error:  # whatever it is, the other images go on
            if _memory_ran_out(error):
                attempt.ran_out.add(MODEL)
            logger.info("%s", one_line(f"{item.image}: {error}"), exc_info=error)
            # one that was left behind has its row, and reading the file may be what hung
            sha256 = None if attempt.left_behind else file_sha256(item.image)
            row = self.work.failure(item, f"{type(error).__name__}: {error}", sha256)
        self._finished.put((attempt, row))

    def _next(self) -> tuple[_Attempt[AnyItem], Row] | None:
        """The next attempt that has ended or whose time is over; None where an item may have come. While the
        whole process stood still, no time went by for them."""
        while True:
            now = time.monotonic()
            if (since := now - self._looked) > STANDSTILL:
                for attempt in self._running:
                    attempt.deadline += since
            self._looked = now
            for attempt in self._running:
                if not attempt.waiting and now > attempt.deadline:
                    return attempt, self._leave_behind(attempt)
            with suppress(queue.Empty):
                if (ended := self._finished.get(timeout=GLANCE)) is None:
                    return None
                attempt, row = ended
                if attempt in self._running:
                    self._running.remove(attempt)
                    return attempt, row
                self._hung.remove(attempt)

    def _leave_behind(self, attempt: _Attempt[AnyItem]) -> Row:
        where, opened = attempt.where, bool(attempt.busy)
        attempt.left_behind = True
        self._running.remove(attempt)
        self._hung.append(attempt)
        self._turns.release(attempt, hung=True)
        logger.warning(
            "%s: still %s after %g s; going on without it",
            one_line(str(attempt.item.image)),
            where,
            self.timeout,
        )
        # where nothing was computed yet, reading the file may be what hangs
        sha256 = file_sha256(attempt.item.image) if opened else None
        return self.work.overdue(
            attempt.item,
            f"timed out after {self.timeout:g} s {where}; raise --timeout if it was at work",
            sha256,
        )

    def _next_try(self, attempt: _Attempt[AnyItem]) -> _Attempt[AnyItem] | None:
        """The next try of an image for which memory ran out; None where there is none."""
        if not attempt.ran_out or attempt.left_behind:
            return None
        from accelerate.utils.memory import clear_device_cache

        clear_device_cache(garbage_collection=True)
        if attempt.tries == 0:
            if attempt.window == self.window > 1:
                self.window //= 2
                logger.warning(
                    "memory ran out with %d images at once; going on with %d", attempt.window, self.window
                )
            return self._attempt(attempt.item, tries=1)
        limits = self.services.client(ROLE).limits
        half = attempt.pixels // 2
        if (
            MODEL not in attempt.ran_out
            or attempt.tries > HALVINGS
            or half < max(limits.min_pixels, limits.factor**2)
        ):
            return None
        return self._attempt(attempt.item, tries=attempt.tries + 1, max_pixels=half)

    def _final(self, attempt: _Attempt[AnyItem], row: Row) -> Row:
        """The row that is told of an attempt after which there is no other."""
        sha256, error = self.work.sha256(row), self.work.error(row)
        if (size := len(self.work.line(row).encode()) + 1) > LARGEST:
            return self.work.failure(
                attempt.item, f"expected a row of at most {LARGEST} bytes, got {size}", sha256
            )
        if MODEL in attempt.ran_out and not attempt.left_behind:
            reason = error or "memory ran out during the assessment"
            pixels = f", with at most {attempt.max_pixels} pixels at once" if attempt.max_pixels else ""
            return self.work.failure(attempt.item, f"{reason} (tried alone{pixels})", sha256)
        if attempt.max_pixels and error is None:
            line = f"memory ran out: the model saw at most {attempt.max_pixels} pixels at once"
            return self.work.warned(row, line)
        return row
