"""A batch whose work is done by workers of a cluster. This process alone hands out items and takes their
rows, as `batch_worker` does with its one process, and by the same rules: an image that was alone at a worker
when that died is tried again, and after MOST_DEATHS deaths it is a failure; images that were there together
are tried one at a time, after all others. What was at a node that is gone goes elsewhere, and is not
suspected.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeAlias

from agentic_iqa_local.batch.batch_worker import GRACE, _serve
from agentic_iqa_local.batch.cluster.connection import ClusterError, Gone
from agentic_iqa_local.batch.cluster.sight import Handed, Unseen, handed, with_what_is_missing
from agentic_iqa_local.batch.cluster.staff import Place, Staff, Station
from agentic_iqa_local.batch.runner import MOST_DEATHS, MOST_HUNG, STANDSTILL, TIMEOUT, BatchError
from agentic_iqa_local.batch.work import AnyItem, Row, Work
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import ModelLost

logger = logging.getLogger(__name__)

Told: TypeAlias = tuple[Row, str | None]  # a row, and its line where it came as one

MOST_NAMED = 4  # nodes in a line of progress


class ClusterBatch(Generic[AnyItem, Row]):
    """As `batch_worker.BatchWorker`, but with as many workers as `place` says, wherever they are; `jobs`
    items at once at each of them."""

    unfinished = False

    def __init__(
        self,
        work: Work[AnyItem, Row],
        place: Place,
        *,
        jobs: int = 1,
        timeout: float = TIMEOUT,
        target: Callable[..., None] = _serve,
    ):
        self.work, self.device, self.jobs, self.timeout = work, place.device, jobs, timeout
        self.stopping = False
        self.line: str | None = None  # as `BatchWorker.line`
        self._staff: Staff[AnyItem] = Staff(work, place, {"jobs": jobs, "timeout": timeout}, target)
        self._alone: deque[AnyItem] = deque()  # a worker may have died of them
        self._held: AnyItem | None = None  # the next one, for which no worker is free
        self._deaths: dict[str, int] = {}
        self._blind: set[tuple[str, str]] = set()  # (node, folder) whose files it does not see
        self._made: dict[str, int] = {}  # rows by node
        self._since: dict[str, float] = {}  # when it got its first item
        self._listened = 0.0

    def load(self) -> None:
        """Starts the workers, and returns when all of them have loaded and are alike. Raises ClusterError
        where they are not, or cannot be started, and what one met while it loaded; both name the node."""
        if self._staff.there:
            return
        try:
            self._staff.begin()
            while self._staff.gathering:
                list(self._listen())
        except BaseException:
            self._staff.end()
            raise

    @property
    def description(self) -> dict[str, Any]:
        return self._staff.description

    @property
    def threads(self) -> int:
        """Of each worker, on a CPU."""
        return self._staff.threads

    @property
    def by_node(self) -> str:
        """Rows of each node, and how many a second it makes; of many nodes the slowest and the fastest."""
        now = time.monotonic()
        rates = {name: rows / max(now - self._since[name], 1e-3) for name, rows in self._made.items()}
        if len(rates) <= MOST_NAMED:
            return ", ".join(f"{name} {self._made[name]} ({rate:.2f}/s)" for name, rate in rates.items())
        ends = (
            f"{name} {rates[name]:.2f}/s"
            for name in (min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__))
        )
        return f"{len(rates)} nodes {sum(rates.values()):.2f}/s, from {' to '.join(ends)}"

    def stop(self) -> None:
        """Begins nothing more. `rows` ends with what is in hand, without its failures, which the stop may
        have caused."""
        self.stopping = True

    def rows(
        self, items: Iterable[AnyItem | None], suspects: Mapping[str, int] | None = None
    ) -> Iterator[Row]:
        """A row for each item, as soon as it is there. `suspects` are keys of items that earlier processes
        may have died of, each with how often one did while it was alone.

        Raises BatchError and ModelLost where no worker is left that could go on, and what `load` raises.
        """
        items, self._deaths, idle, staff = iter(items), dict(suspects or {}), False, self._staff
        try:
            self.load()
            self._listened = time.monotonic()
            while True:
                yield from self._told(self._hand_out(items))
                at_workers = any(station.in_hand for station in staff.stations)
                if not at_workers and (self.stopping or not (staff.again or self._alone or self._held)):
                    idle = True
                    return
                rows = list(self._listen())
                # before the rows are written: no worker waits for that
                yield from self._told(self._hand_out(items))
                yield from self._told(rows)
                if staff.fatal:
                    raise staff.fatal
        finally:
            staff.end(idle=idle)

    def _told(self, rows: Iterable[Told[Row]]) -> Iterator[Row]:
        for row, self.line in rows:
            yield row

    def _hand_out(self, items: Iterator[AnyItem | None]) -> Iterator[Told[Row]]:
        """Gives each worker as much as it may have; a row for each item that is not tried any more."""
        while not self.stopping:
            free = sorted(
                filter(self._may_have_more, self._staff.stations), key=lambda station: len(station.in_hand)
            )
            found = ((station, item) for station in free if (item := self._next(items, station)))
            station, item = next(found, (None, None))
            if station is None or item is None:
                return
            if self._deaths.get(item.key, 0) < MOST_DEATHS:
                self._give(station, item)
            else:
                why = f"{MOST_DEATHS} processes died while they assessed this image alone"
                yield self.work.failure(item, why), None

    def _may_have_more(self, station: Station[AnyItem]) -> bool:
        with_suspect = any(given.key in self._deaths for given in station.in_hand)
        return station.ready and not (station.worn_out or with_suspect) and len(station.in_hand) < self.jobs

    def _next(self, items: Iterator[AnyItem | None], station: Station[AnyItem]) -> AnyItem | None:
        """The next item for that worker; a suspect only where nothing is at it."""
        if self._held is None:
            self._held = self._staff.again.popleft() if self._staff.again else next(items, None)
        if self._held is None and self._alone and not station.in_hand:
            return self._alone.popleft()
        if self._held is None or (self._held.key in self._deaths and station.in_hand):
            return None
        item, self._held = self._held, None
        return item

    def _give(self, station: Station[AnyItem], item: AnyItem) -> None:
        if not station.in_hand:
            station.heard = time.monotonic()
        self._since.setdefault(station.node.name, time.monotonic())
        paths = self.work.files(item)
        blind = any((station.node.id, str(path.parent)) in self._blind for path in paths)
        self._send(station, handed(item, paths, send=blind))

    def _send(self, station: Station[AnyItem], given: Handed[AnyItem]) -> None:
        station.in_hand.append(given)
        station.remote.send("item", given)

    def _listen(self) -> Iterator[Told[Row]]:
        """What comes from the workers within a glance, and what follows from a worker's silence or end. Time
        in which this process itself stood still does not count."""
        stations, now = self._staff.stations, time.monotonic()
        if self._listened and now - self._listened > STANDSTILL:
            for station in stations:
                station.heard += now - self._listened
        for station in stations if self.stopping else ():
            if not station.told_to_stop:
                station.told_to_stop = True
                station.remote.send("stop")
        for station, message in self._staff.listen():
            if isinstance(message, Gone) and message.unreachable:
                self._staff.lose(station, f"{station.node.name}: a worker cannot be reached")
            elif isinstance(message, Gone):
                yield from self._after_death(station, message.why)
            else:
                yield from self._heed(station, *message)
        self._listened = now = time.monotonic()
        for station in list(stations):
            if station.ready and station.in_hand and now - station.heard > self.timeout + GRACE:
                yield from self._after_silence(station)

    def _heed(self, station: Station[AnyItem], kind: str, *about: Any) -> Iterator[Told[Row]]:
        match kind:
            case "row":
                yield from self._take(station, *about)
            case "log":
                _tell(*about)
            case "identity":
                self._staff.said_what_it_has(station, *about)
            case "ready":
                self._staff.has_loaded(station, *about)
            case "refused":
                self._staff.leave_out(station, ClusterError(f"{station.node.name}: {about[0]}"))
            case "crashed":
                yield from self._after_death(station, *about)
            case "lost":
                yield from self._after_death(station, about[0], ModelLost(about[0]))
            case "gave up":  # what hung has its row
                self._staff.lose(station)
            case "stopped":  # of what is still in hand only answers were wanted
                station.stopped = True
                station.in_hand.clear()

    def _take(
        self, station: Station[AnyItem], key: str, sent: Any, hung: bool, worn_out: bool
    ) -> Iterator[Told[Row]]:
        """What became of an item at a worker."""
        given = next(given for given in station.in_hand if given.key == key)
        station.in_hand.remove(given)
        if isinstance(sent, Unseen):
            missing = [path for path, sha256 in sent.found.items() if sha256 is None]
            self._blind |= {(station.node.id, os.path.dirname(path) or ".") for path in missing}
            return self._send(station, with_what_is_missing(given, sent))
        station.hung = station.hung + 1 if hung else 0
        station.worn_out |= worn_out
        self._staff.made_a_row(station)
        name = station.node.name
        self._made[name] = self._made.get(name, 0) + 1
        row, line = self.work.received(given.item, sent)
        yield row, line
        if station.hung >= MOST_HUNG:
            why = (
                f"{MOST_HUNG} assessments in a row do not return at {name}, the last: {self.work.error(row)}"
            )
            self._staff.leave_out(station, BatchError(why, "find out what hangs there"))
        elif station.worn_out and not station.in_hand:
            self._staff.retire(station)

    def _after_silence(self, station: Station[AnyItem]) -> Iterator[Told[Row]]:
        silent = f"it gave no sign of life for {self.timeout + GRACE:g} s"
        given = list(station.in_hand)
        if not self._staff.died(station, silent):
            return
        if len(given) == 1:
            error = f"timed out: {silent}; find out what hangs there, or raise --timeout"
            yield self.work.overdue(given[0].item, error), None
            self._staff.retire(station)
        else:
            self._suspect(station, silent)

    def _after_death(
        self, station: Station[AnyItem], why: str, error: Exception | None = None
    ) -> Iterator[Told[Row]]:
        """Sees to what was at a worker that died."""
        yield from ()
        if self._staff.died(station, why, error):
            self._suspect(station, why)

    def _suspect(self, station: Station[AnyItem], why: str) -> None:
        items = [given.item for given in station.in_hand]
        named = ", ".join(one_line(str(item.image)) for item in items) or "no picture"
        logger.warning("%s: %s (%s); going on with a new worker", named, one_line(why), station.node.name)
        for item in items:
            self._deaths[item.key] = self._deaths.get(item.key, 0) + (len(items) == 1)
            self._alone.append(item)
        self._staff.retire(station)


def _tell(record: logging.LogRecord) -> None:
    """A line of a worker's log, where this process shows such lines."""
    if (told_by := logging.getLogger(record.name)).isEnabledFor(record.levelno):
        told_by.handle(record)
