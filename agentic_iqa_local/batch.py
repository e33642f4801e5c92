"""Many images: where their rows go (`Results`), and how they are assessed (`Batch`). `inputs` says which.

One assessment runs in a thread of its own, a bounded number of them at once, and whatever becomes of it is
one row: an answer, or a failure with its reason. A thread cannot be killed: one that outlasts its time is
left behind and stops at its next call of the model or a tool.
"""

import json
import logging
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, NonNegativeInt, ValidationError, model_validator

from agentic_iqa_local.assessment import SCHEMA_VERSION, Assessment, Pipeline, assess, file_sha256, unassessed
from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import memory_ran_out
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import LARGEST, FileError, place_for, read_json
from agentic_iqa_local.inputs import Item, row_key
from agentic_iqa_local.iqa_tools import ToolReading
from agentic_iqa_local.levels import LETTER_TO_LEVEL
from agentic_iqa_local.nodes.summarizer import ROLE
from agentic_iqa_local.prompts import DEFAULT_QUERY, choice_letters
from agentic_iqa_local.provenance import folder_hash, of_settings
from agentic_iqa_local.rows import (
    LARGEST_NOTE,
    OtherRun,
    RowFile,
    RowsError,
    check_run,
    write_run,
    write_whole,
)
from agentic_iqa_local.services import ALONE, Services
from agentic_iqa_local.text import one_line, path_text
from agentic_iqa_local.vlm_client import (
    LetterRead,
    ModelLost,
    OutOfMemory,
    PixelLimits,
    VLMClient,
    VLMSession,
)

logger = logging.getLogger(__name__)

ROLES = {"agent": ("planner", "executor", ROLE), "letters": (ROLE,)}
TIMEOUT = 600.0  # seconds
MOST_HUNG = 3
MOST_DEATHS = 3
SET_LATER = ("images.background",)  # without one transparent pictures fail, so that no row depends on it
HALVINGS = 2  # of the pixels that the model sees at once, when memory runs out even for one image alone
LOOKS = 0.2  # seconds between two looks at the assessments in hand
STANDSTILL = 5.0  # seconds without a look: the process was stopped
MODEL = "the model"


class BatchError(UserError, RuntimeError):
    """A batch that cannot go on; one sentence for the user."""


# Where the rows go


def identity(
    settings: Settings,
    device: str,
    *,
    pipeline: Pipeline,
    max_replan_iterations: int | None,
    query: str | None,
    choices: Sequence[str] | None,
    reference: Path | None,
    relative: bool,
) -> dict[str, Any]:
    """What the rows of a run depend on, by the names that a user is told. `relative`: some paths are, so that
    the working folder counts. Raises BundleError for a models folder whose manifest is damaged,
    CalibrationError for tool maps that cannot be read.
    """
    configuration = settings.model_dump(
        mode="json", exclude={"tools": {"cache"}, "models": {"__all__": {"path"}}}
    )
    limit = settings.max_replan_iterations if max_replan_iterations is None else max_replan_iterations
    folders = {Path(settings.model(settings.role(role).backend).path) for role in ROLES[pipeline]}
    return (
        configuration
        | of_settings(settings, device)
        | {
            "schema version": SCHEMA_VERSION,
            "model": {folder.name: folder_hash(folder) for folder in folders if folder.is_dir()},
            "pipeline": pipeline,
            "max_replan_iterations": limit,
            "query": query or DEFAULT_QUERY,
            "choices": choices,
            "reference": reference and path_text(reference.absolute()),
            "working folder": os.getcwd() if relative else None,
        }
    )


class _StoredRow(Assessment):
    """A row as it was written: with all fields, and an answer that is one of those that were asked for."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if missing := sorted(type(self).model_fields.keys() - self.model_fields_set):
            raise ValueError(f"no {', '.join(missing)}")
        letters = None
        if self.q is not None:
            letters = list(LETTER_TO_LEVEL)
        elif self.choices and not self.error:
            letters = choice_letters(self.choices)
        if letters is not None and self.final_answer not in letters:
            raise ValueError(f"final_answer: expected one of {', '.join(letters)}")
        return self


class _Note(BaseModel):
    """What is written while a run goes on: keys of the items in hand, and of those suspected with how often a
    process died."""

    in_hand: list[str]
    suspects: dict[str, NonNegativeInt]


class Results:
    """A file of rows (`path`), one for each item, and beside it PATH.run.json, which says what the rows
    depend on, and while a run goes on PATH.in_hand.json, the items in hand.

    A file with rows is taken only to `resume` it, with the same `identity`; `retry` has the keys of items
    whose failed rows are taken out, to be assessed again. `done` has the keys of its rows, `failed` is how
    many of them are failures. `suspects` are the items that were in hand when a process died, each with how
    often one died of it alone. Where `path` is a link, the file that it leads to now is meant, and all of
    this lies beside that. Raises RowsError.
    """

    def __init__(
        self, path: Path, identity: dict[str, Any], *, resume: bool = False, retry: Collection[str] = ()
    ):
        try:
            path = place_for(path)
        except FileError as error:
            raise RowsError(f"{path}: {error}; choose another --out") from error
        self._rows = RowFile(path, _StoredRow)
        self.done: set[str] = set()
        self.failed = 0
        self.suspects: dict[str, int] = {}
        self._hands, self._in_hand = path.with_name(f"{path.name}.in_hand.json"), set()
        try:
            description = path.with_name(f"{path.name}.run.json")
            described = {
                "command": [one_line(word) for word in sys.argv],
                "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            }
            if self._rows.empty:
                if resume and description.is_file():
                    with suppress(RowsError):  # a run of another kind that died before its first row
                        check_run(description, identity)
                        self.suspects = self._left_in_hand()
                write_run(description, described, identity)
            elif not resume:
                raise RowsError(
                    f"{path}: holds rows already; add --resume to go on with them, or choose another --out"
                )
            else:
                try:
                    if check_run(description, identity, SET_LATER):
                        write_run(description, described, identity)
                except OtherRun:
                    if not all(row["error"] and row_key(row) in retry for row in self._rows):
                        raise
                    write_run(description, described, identity)  # no row stays that the old settings made
                self._rows.recover()
                self.suspects = self._left_in_hand()
            if retry and any(row["error"] and row_key(row) in retry for row in self._rows):
                self._rows.keep(lambda row: not (row["error"] and row_key(row) in retry))
            for row in self._rows:
                self.done.add(row_key(row))
                self.failed += row["error"] is not None
            self.suspects = {key: deaths for key, deaths in self.suspects.items() if key not in self.done}
        except RowsError:
            self.close()
            raise

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows in the file. Raises Replaced when another file has its name by now."""
        return iter(self._rows)

    def begun(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, each of them in hand from the moment that it is taken."""
        for item in items:
            self._note(self._in_hand | {item.key})
            yield item

    def append(self, row: Assessment) -> None:
        """Writes a row and waits until the disk has it. Raises WriteError, and Replaced when another file has
        its name by now."""
        self._rows.append(as_line(row))
        key = key_of(row)
        self.done.add(key)
        self.failed += row.error is not None
        self.suspects.pop(key, None)
        self._note(self._in_hand - {key})

    def _note(self, in_hand: set[str]) -> None:
        self._in_hand = in_hand
        write_whole(
            self._hands, json.dumps({"in_hand": sorted(in_hand), "suspects": self.suspects}, indent=1)
        )

    def _left_in_hand(self) -> dict[str, int]:
        """The suspects, when an earlier process wrote its last; it died of an item where that was alone in
        its hand."""
        try:
            note = _Note.model_validate(read_json(self._hands, LARGEST_NOTE), strict=True)
        except (FileError, ValidationError):  # none, or damaged: nobody is suspected
            return {}
        return {
            key: note.suspects.get(key, 0) + (note.in_hand == [key])
            for key in (*note.suspects, *note.in_hand)
        }

    def settle(self, *, lost: bool = False) -> None:
        """Notes that no process died of what is in hand; where the model was `lost`, it is suspected all the
        same."""
        if lost:
            self.suspects |= {key: self.suspects.get(key, 0) for key in self._in_hand}
        with suppress(RowsError, OSError):  # on a full disk the note of before stays: too much is suspected
            if self.suspects:
                self._note(set())
            else:
                self._hands.unlink(missing_ok=True)

    def close(self, *, lost: bool = False) -> None:
        """Ends an orderly run, or one whose model was `lost`."""
        self.settle(lost=lost)
        self._rows.close()


def key_of(row: Assessment) -> str:
    """The key of the item that the row is of."""
    return row_key(row.model_dump(include={"image", "reference", "query", "choices"}))


def failure(
    item: Item, error: str, settings: Settings, pipeline: Pipeline, sha256: str | None = None
) -> Assessment:
    """The row of an item that has no answer."""
    row = unassessed(item.image, item.reference, item.query, item.choices, pipeline, settings)
    return row.model_copy(update={"error": one_line(error), "sha256": sha256})


def as_line(row: Assessment) -> str:
    """A row as one line of JSON; the tools' runs are told once, in `tools`."""
    return one_line(row.model_dump_json(exclude={"evidence": {"tool_logs"}}))


# How they are assessed


class _LeftBehind(RuntimeError):
    """Ends the thread of an assessment whose time is over."""


@dataclass(eq=False)
class _Attempt:
    """One assessment in its thread, and what can be seen of it from outside."""

    item: Item
    deadline: float
    window: int  # how many were allowed at once when it began
    rung: int = 0  # 0 among others; 1 alone; from 2 on alone with at most `max_pixels` seen at once
    max_pixels: int | None = None
    pixels: int = 0  # of the largest picture that the model was given
    busy: list[str] = field(default_factory=list)
    ran_out: set[str] = field(default_factory=set)
    lost: str = ""  # why its model answers no more
    waiting: bool = False
    left_behind: bool = False

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """A call of a tool (by its name) or of the model."""
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


class _Session:
    def __init__(self, session: VLMSession, attempt: _Attempt):
        self._session, self._attempt = session, attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def generate(self, *args: Any, **options: Any) -> str:
        with self._attempt.during(MODEL):
            return self._session.generate(*args, **options)

    def read_letters(self, *args: Any, **options: Any) -> LetterRead:
        with self._attempt.during(MODEL):
            return self._session.read_letters(*args, **options)


class _Client:
    """A client as one attempt sees it: with that attempt's limit of pixels."""

    def __init__(self, client: VLMClient, attempt: _Attempt):
        self._client, self._attempt = client, attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def limits(self) -> PixelLimits:
        limits, most = self._client.limits, self._attempt.max_pixels
        return replace(limits, max_pixels=min(most, limits.max_pixels or most)) if most else limits

    def open(self, images: Sequence[Any]) -> _Session:
        self._attempt.pixels = max(image.width * image.height for image in images)
        return _Session(self._client.open(images), self._attempt)


class _SharedTools:
    """The tools of all attempts, one measurement at a time; fresh ones when a measurement hangs, so that the
    others go on."""

    def __init__(self, services: Services):
        self._services, self.runner = services, services.tools
        self._turn, self._holder = threading.Condition(), None

    def score(self, attempt: _Attempt, name: str, *pictures: Any) -> ToolReading:
        with self._turn:
            began, attempt.waiting = time.monotonic(), True
            self._turn.wait_for(lambda: self._holder is None)
            self._holder, runner = attempt, self.runner
            attempt.deadline += time.monotonic() - began
            attempt.waiting = False
        try:
            with attempt.during(name):
                return runner.score(name, *pictures)
        finally:
            self.release(attempt)

    def release(self, attempt: _Attempt, *, hung: bool = False) -> None:
        with self._turn:
            if self._holder is not attempt:
                return
            if hung:
                self.runner = Services(self._services.settings, self._services.device).tools
            self._holder = None
            self._turn.notify()


class _Tools:
    def __init__(self, shared: _SharedTools, attempt: _Attempt):
        self._shared, self._attempt = shared, attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared.runner, name)

    def score(self, name: str, *pictures: Any) -> ToolReading:
        return self._shared.score(self._attempt, name, *pictures)


class Batch:
    """Assesses items on loaded services, at most `jobs` at once, each within `timeout` seconds.

    Where memory runs out, half as many go on at once, and the image is assessed again alone; if that is not
    enough, the model sees at most half as many pixels at once, twice if need be; then the row is a failure.
    Raises VLMError for a model that cannot be loaded.
    """

    def __init__(
        self,
        services: Services,
        *,
        jobs: int = 1,
        timeout: float = TIMEOUT,
        pipeline: Pipeline = "agent",
        max_replan_iterations: int | None = None,
        load: bool = True,
    ):
        if load:
            for role in ROLES[pipeline]:
                services.client(role)
            services.tools.prepare()  # before any thread runs a model
        self.services, self.window, self.timeout = services, jobs, timeout
        self.pipeline, self.max_replan_iterations = pipeline, max_replan_iterations
        self.stopping = False
        self._tools = _SharedTools(services)
        self._running: list[_Attempt] = []
        self._hung: list[_Attempt] = []
        self._finished: queue.SimpleQueue[tuple[_Attempt, Assessment]] = queue.SimpleQueue()

    @property
    def unfinished(self) -> bool:
        """Whether threads are still at work, which would keep the process from ending."""
        return bool(self._running or self._hung)

    @property
    def hung(self) -> bool:
        """Whether a thread does not return."""
        return bool(self._hung)

    def stop(self) -> None:
        """Begins nothing more. `rows` ends with what is in hand; of that, only answers: what fails now may
        fail because of the stop."""
        self.stopping = True

    def rows(self, items: Iterable[Item], suspects: Mapping[str, int] | None = None) -> Iterator[Assessment]:
        """A row for each item, as soon as it is there.

        `suspects` are keys of items that a process may have died of, each with how often one did: they are
        assessed alone, and one that MOST_DEATHS died of is a failure. Raises ModelLost, without a row for
        what was in hand, and BatchError when too many assessments hang, or one that keeps all others from the
        model.
        """
        items, again, self._suspects = iter(items), deque(), dict(suspects or {})
        self._looked = time.monotonic()
        while True:
            self._begin(items, again)
            if not self._running:
                return
            attempt, row = self._next()
            if attempt.lost:
                raise ModelLost(attempt.lost)
            if later := self._another(attempt):
                again.append(later)
            elif row.error is None or not self.stopping:
                yield self._final(attempt, row)
            if len(self._hung) >= MOST_HUNG or any(
                tool in ALONE for hung in self._hung for tool in hung.busy
            ):
                hung = ", ".join(f"{one_line(str(a.item.image))} {a.where}" for a in self._hung)
                raise BatchError(
                    f"assessments do not return ({hung}); find out what hangs there, or raise --timeout"
                )

    def _begin(self, items: Iterator[Item], again: deque[_Attempt]) -> None:
        while not self.stopping and not any(attempt.rung for attempt in self._running):
            if again:
                if not self._running:
                    self._start(again.popleft())
                return
            if len(self._running) >= self.window or (item := next(items, None)) is None:
                return
            attempt = _Attempt(item, 0.0, self.window)
            if item.key in self._suspects:
                again.append(replace(attempt, rung=1))
            else:
                self._start(attempt)

    def _start(self, attempt: _Attempt) -> None:
        attempt.deadline = time.monotonic() + self.timeout
        self._running.append(attempt)
        threading.Thread(target=self._work, args=(attempt,), daemon=True).start()

    def _work(self, attempt: _Attempt) -> None:
        item = attempt.item
        clients = {name: _Client(client, attempt) for name, client in self.services.pool.clients.items()}
        services = Services(
            self.services.settings, self.services.device, clients, _Tools(self._tools, attempt)
        )
        try:
            if self._suspects.get(item.key, 0) >= MOST_DEATHS:
                raise RuntimeError(
                    f"{MOST_DEATHS} processes died while they assessed this image alone; assess it without"
                    " --out"
                )
            row = assess(
                item.image,
                item.reference,
                item.query,
                item.choices,
                pipeline=self.pipeline,
                max_replan_iterations=self.max_replan_iterations,
                services=services,
            )
        except BaseException as error:  # whatever it is, the other images go on
            if _memory_ran_out(error):
                attempt.ran_out.add(MODEL)
            logger.info("%s", one_line(f"{item.image}: {error}"), exc_info=error)
            # one that was left behind has its row, and reading the file may be what hung
            sha256 = None if attempt.left_behind else file_sha256(item.image)
            row = self._failure(item, f"{type(error).__name__}: {error}", sha256)
        self._finished.put((attempt, row))

    def _next(self) -> tuple[_Attempt, Assessment]:
        """The next attempt that has ended or whose time is over. Time in which the whole process stood still
        is nobody's."""
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
                attempt, row = self._finished.get(timeout=LOOKS)
                if attempt in self._running:
                    self._running.remove(attempt)
                    return attempt, row
                self._hung.remove(attempt)

    def _leave_behind(self, attempt: _Attempt) -> Assessment:
        where, opened = attempt.where, bool(attempt.busy)
        attempt.left_behind = True
        self._running.remove(attempt)
        self._hung.append(attempt)
        self._tools.release(attempt, hung=True)
        logger.warning(
            "%s: still %s after %g s; going on without it",
            one_line(str(attempt.item.image)),
            where,
            self.timeout,
        )
        # where nothing was computed yet, reading the file may be what hangs
        sha256 = file_sha256(attempt.item.image) if opened else None
        return self._failure(
            attempt.item,
            f"timed out after {self.timeout:g} s {where}; raise --timeout if it was at work",
            sha256,
        )

    def _another(self, attempt: _Attempt) -> _Attempt | None:
        """The next try of an image for which memory ran out; None where there is none."""
        if not attempt.ran_out or attempt.left_behind:
            return None
        from accelerate.utils.memory import clear_device_cache

        clear_device_cache(garbage_collection=True)
        if attempt.rung == 0:
            if attempt.window == self.window > 1:
                self.window //= 2
                logger.warning(
                    "memory ran out with %d images at once; going on with %d", attempt.window, self.window
                )
            return _Attempt(attempt.item, 0.0, self.window, rung=1)
        limits = self.services.client(ROLE).limits
        half = attempt.pixels // 2
        if (
            MODEL not in attempt.ran_out
            or attempt.rung > HALVINGS
            or half < max(limits.min_pixels, limits.factor**2)
        ):
            return None
        return _Attempt(attempt.item, 0.0, self.window, rung=attempt.rung + 1, max_pixels=half)

    def _final(self, attempt: _Attempt, row: Assessment) -> Assessment:
        if (size := len(as_line(row).encode()) + 1) > LARGEST:
            return self._failure(
                attempt.item, f"expected a row of at most {LARGEST} bytes, got {size}", row.sha256
            )
        if MODEL in attempt.ran_out and not attempt.left_behind:
            reason = row.error or "memory ran out during the assessment"
            pixels = f", with at most {attempt.max_pixels} pixels at once" if attempt.max_pixels else ""
            return self._failure(attempt.item, f"{reason} (tried alone{pixels})", row.sha256)
        if attempt.max_pixels and row.error is None:
            line = f"memory ran out: the model saw at most {attempt.max_pixels} pixels at once"
            return row.model_copy(update={"warnings": [*row.warnings, line]})
        return row

    def _failure(self, item: Item, error: str, sha256: str | None) -> Assessment:
        return failure(item, error, self.services.settings, self.pipeline, sha256)
