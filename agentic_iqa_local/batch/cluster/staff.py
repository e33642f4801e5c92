"""The workers of a batch: where they are placed, whether they are alike, and which of them are left out.

Before the first row a worker that is unlike the others ends the batch; one that comes later is left out, with
a warning.
"""

import logging
import os
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic

from agentic_iqa_local.batch.batch_worker import STARTS
from agentic_iqa_local.batch.cluster.actor import MODELS
from agentic_iqa_local.batch.cluster.connection import LOCAL, Cluster, ClusterError, Gone, Node, Remote
from agentic_iqa_local.batch.cluster.identity import differences, of_node
from agentic_iqa_local.batch.cluster.sight import Handed
from agentic_iqa_local.batch.runner import GLANCE, BatchError
from agentic_iqa_local.batch.work import AnyItem, Work
from agentic_iqa_local.batch.worker import PATIENCE

logger = logging.getLogger(__name__)

LOOK = 2.0  # seconds between two looks at the cluster's nodes
SLOW = 60.0  # seconds after which it is told who has said nothing
TOO_SLOW = 300.0  # seconds after which the others no longer wait for it
WITHOUT_WORKERS = 600.0  # seconds for which a batch waits for a node, when all are gone

Message = tuple[Any, ...]


@dataclass(frozen=True)
class Place:
    """Where the workers are: the cluster's address ("local": this machine), how many, and how many GPUs each
    has."""

    address: str
    workers: int
    gpus: float = 0.0

    @property
    def device(self) -> str:
        return "cuda:0" if self.gpus else "cpu"  # Ray shows a worker no other GPUs than its own


@dataclass(eq=False)
class Station(Generic[AnyItem]):
    """A worker, and what is at it."""

    node: Node
    remote: Remote
    late: bool  # it came after the others: one that is unlike them is left out
    began: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    unlike: str | None = None  # what it has otherwise than expected; None until it has said what it has
    told_to_go: bool = False
    ready: bool = False
    worn_out: bool = False  # something hangs in it: it gets nothing more
    told_to_stop: bool = False
    stopped: bool = False
    hung: int = 0  # in a row
    in_hand: list[Handed[AnyItem]] = field(default_factory=list)


class Staff(Generic[AnyItem]):
    """The workers of `place`. `again` gets the items of those that are lost through no fault of the items;
    `fatal` is why no row can come any more."""

    def __init__(
        self, work: Work[AnyItem, Any], place: Place, window: Mapping[str, Any], target: Callable[..., None]
    ):
        self.work, self.place, self._window, self._target = work, place, window, target
        self.stations: list[Station[AnyItem]] = []
        self.again: deque[AnyItem] = deque()
        self.fatal: Exception | None = None
        self.description: dict[str, Any] = {}
        self.threads = 0  # of each worker
        self._cluster: Cluster | None = None
        self._expected: dict[str, Any] = {}
        self._loaded: dict[str, Any] | None = None  # by the first that has
        self._complete = False  # all that were there at the beginning have loaded
        self._failed_starts: Counter[str] = Counter()  # by node, in a row
        self._left_out: set[str] = set()  # nodes
        self._looked = self._had_some = 0.0
        self._told_of_slow = False

    @property
    def there(self) -> bool:
        return self._cluster is not None

    def begin(self) -> None:
        """Starts the workers, and returns when all have loaded and are alike. Raises ClusterError where they
        are not or cannot be started, and what one of them met while it loaded; each names the node."""
        self._expected = of_node(self.work, self.place.device)
        asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        self.threads = int(asked) if asked.isdecimal() else 0
        at_home = self.threads or max(1, (os.cpu_count() or 1) // self.place.workers)
        self._cluster = Cluster(self.place.address, at_home * self.place.workers)
        nodes = self._cluster.nodes()
        self.threads = self.threads or _threads(nodes, self.place)
        self._check_room(nodes)
        self.fill()

    @property
    def gathering(self) -> bool:
        """Whether some that were there at the beginning have not loaded yet. Raises what makes the batch
        end."""
        if self.fatal:
            raise self.fatal
        firsts = [station for station in self.stations if not station.late]
        if not self._complete:
            self._leave_slow_behind(firsts)
            known = [station for station in firsts if station.unlike is not None]
            if len(known) == len(firsts):
                self._refuse(known)
                for station in firsts:
                    self._let_go(station)
        self._complete |= self._loaded is not None and all(station.ready for station in firsts)
        return not self._complete

    def _leave_slow_behind(self, firsts: list[Station[AnyItem]]) -> None:
        """Raises ClusterError where no worker starts."""
        now = time.monotonic()
        slow = [station for station in firsts if station.unlike is None and now - station.began > SLOW]
        names = ", ".join(sorted({station.node.name for station in slow}))
        if slow and not self._told_of_slow:
            self._told_of_slow = True
            logger.warning("waiting for workers to start at %s; other work may fill the nodes", names)
        slow = [station for station in slow if now - station.began > TOO_SLOW]
        if slow and len(slow) == len(self.stations):
            raise ClusterError(
                f"--cluster {self.place.address}: no worker has started within {TOO_SLOW:g} s ({names})",
                "other work may fill the nodes, see `ray status`",
            )
        for station in slow:
            station.late = True
            firsts.remove(station)
            logger.warning("%s: a worker has not started yet; going on without it", station.node.name)

    def _refuse(self, known: list[Station[AnyItem]]) -> None:
        """Raises ClusterError, which names every node that is unlike this command's own set-up."""
        if unlike := {station.node.name: station.unlike for station in known if station.unlike}:
            raise ClusterError(
                f"--cluster {self.place.address}: not all nodes have what this command has: "
                + "; ".join(f"{name}: {what}" for name, what in unlike.items()),
                "scores of unlike nodes do not go into one file: install the same there",
            )

    def _let_go(self, station: Station[AnyItem]) -> None:
        if not station.told_to_go:
            station.told_to_go = True
            station.remote.send("go")

    def _check_room(self, nodes: list[Node]) -> None:
        """Raises ClusterError where no worker has room."""
        place = self.place
        if place.gpus and not any(node.gpus for node in nodes):
            where = "this machine" if place.address == LOCAL else f"the cluster at {place.address}"
            raise ClusterError(
                f"--gpus-per-worker {place.gpus:g}: expected a GPU, {where} has none",
                "leave it out to compute on CPUs, or start the nodes where Ray sees their GPUs",
            )
        room = sum(node.room(self.threads, place.gpus) for node in nodes)
        if not room:
            having = ", ".join(f"{node.name}: {node.cpus:g} cores, {node.gpus:g} GPUs" for node in nodes)
            raise ClusterError(
                f"--cluster {place.address}: no worker of {self.threads} threads and {place.gpus:g} GPUs has"
                f" room ({having})",
                "set OMP_NUM_THREADS or --gpus-per-worker lower, or let more nodes join",
            )
        if room < place.workers:
            logger.warning(
                "room for %d of %d workers; the others wait for nodes that join", room, place.workers
            )
        if not place.gpus and (unused := sum(node.gpus for node in nodes)):
            logger.warning("%g GPUs of the cluster are not used; --gpus-per-worker 1 uses them", unused)

    def fill(self) -> None:
        """Starts workers where there is room until there are as many as wanted, on the emptiest node first;
        and takes leave of those whose node is gone."""
        assert self._cluster
        self._looked = time.monotonic()
        nodes = [node for node in self._cluster.nodes() if node.id not in self._left_out]
        alive = {node.id for node in nodes}
        for station in [station for station in self.stations if station.node.id not in alive]:
            self.lose(station, f"the node {station.node.name} is gone")
        taken = Counter(station.node.id for station in self.stations)

        def free(node: Node) -> int:
            return node.room(self.threads, self.place.gpus) - taken[node.id]

        while len(self.stations) < self.place.workers and nodes:
            node = max(nodes, key=free)
            if free(node) < 1:
                return
            taken[node.id] += 1
            level = logging.getLogger("agentic_iqa_local").getEffectiveLevel()
            errand = (self._target, self.work, self.place.device, dict(self._window), True, level)
            here = os.getcwd(), os.environ.get(MODELS)
            remote = self._cluster.start(node, self.threads, self.place.gpus, pickle.dumps(errand), *here)
            self.stations.append(Station(node, remote, late=self._complete))

    def listen(self) -> Iterator[tuple[Station[AnyItem], Message | Gone]]:
        """What comes from the workers within a glance. Now and then it looks whether nodes are gone or have
        come."""
        assert self._cluster
        by_remote = {station.remote: station for station in self.stations}
        for remote, answer in self._cluster.wait(list(by_remote), GLANCE):
            station = by_remote[remote]
            station.heard = time.monotonic()
            for message in [answer] if isinstance(answer, Gone) else answer:
                if station in self.stations:  # what came before may have ended it
                    yield station, message
        if time.monotonic() - self._looked > LOOK:
            self.fill()
            self._check_that_some_are_left()

    def said_what_it_has(self, station: Station[AnyItem], found: dict[str, Any]) -> None:
        """A worker is there, and has loaded nothing yet."""
        station.unlike = differences(found, self._expected)
        if station.late and station.unlike:
            self.leave_out(
                station, ClusterError(f"{station.node.name} has not what the others have: {station.unlike}")
            )
        elif station.late:
            self._let_go(station)

    def has_loaded(self, station: Station[AnyItem], description: dict[str, Any]) -> None:
        """A worker is ready."""
        loaded = description["loaded"]
        if self._loaded is None:
            self._loaded, self.description = loaded, description["work"]
        first: dict[str, Any] = self._loaded or {}
        if unlike := differences(loaded, first):
            self.leave_out(
                station,
                ClusterError(
                    f"{station.node.name} has loaded otherwise than the first worker: {unlike}",
                    "scores of unlike nodes do not go into one file: set dtype and attention in --config",
                ),
            )
            return
        station.ready = True
        if station.late:
            logger.info("%s: a worker has joined", station.node.name)

    def leave_out(self, station: Station[AnyItem], error: Exception) -> None:
        """A worker that is not used, nor another on its node. The batch does not begin without one of the
        first, and ends where it was the last."""
        self._left_out.add(station.node.id)
        for other in [other for other in self.stations if other.node.id == station.node.id]:
            self.lose(other)
        if not self.stations or not (self._complete or station.late):
            self.fatal = self.fatal or error
        else:
            logger.warning("%s; going on without that node", error)

    def lose(self, station: Station[AnyItem], why: str = "") -> None:
        """A worker is no more, through no fault of what was at it: that goes elsewhere."""
        items = [given.item for given in station.in_hand]
        if why:
            logger.warning("%s%s", why, f"; its {len(items)} pictures go elsewhere" if items else "")
        self.again.extend(items)
        self.retire(station)

    def retire(self, station: Station[AnyItem]) -> None:
        """Ends a worker; another takes its place."""
        station.in_hand.clear()
        station.remote.end()
        with suppress(ValueError):
            self.stations.remove(station)
        self._looked = 0.0

    def died(self, station: Station[AnyItem], why: str, error: Exception | None = None) -> bool:
        """Whether what was at a worker that died may be the cause: not where its node is gone, nor where
        workers die there one after the other, without a row between them."""
        assert self._cluster
        node = station.node
        if all(other.id != node.id for other in self._cluster.nodes()):
            self.lose(station, f"the node {node.name} is gone")
            return False
        self._failed_starts[node.id] += not station.ready or error is not None
        if self._failed_starts[node.id] < STARTS:
            return True
        about = f"{STARTS} workers in a row died while they loaded at {node.name}: {why}"
        self.leave_out(station, error or BatchError(about, "find out why, and start again"))
        return False

    def made_a_row(self, station: Station[AnyItem]) -> None:
        self._failed_starts[station.node.id] = 0

    def _check_that_some_are_left(self) -> None:
        now = time.monotonic()
        if self.stations or not self._had_some:
            self._had_some = now
        elif now - self._had_some > WITHOUT_WORKERS:
            self.fatal = BatchError(
                f"--cluster {self.place.address}: no worker is left, and no node has come for"
                f" {WITHOUT_WORKERS:g} s",
                "start nodes anew",
            )

    def end(self, *, idle: bool = False) -> None:
        """Ends the workers, whatever they are doing; those that are `idle` may free their models
        themselves."""
        if self._cluster is None:
            return
        leaving = [s for s in self.stations if idle and s.ready and not (s.worn_out or s.stopped)]
        for station in leaving:
            if not station.told_to_stop:
                station.remote.send("end")
        until = time.monotonic() + PATIENCE
        while leaving and time.monotonic() < until:
            for remote, answer in self._cluster.wait([station.remote for station in leaving], GLANCE):
                if isinstance(answer, Gone) or ("stopped",) in answer:
                    leaving = [station for station in leaving if station.remote is not remote]
        for station in self.stations:
            station.remote.end()
        self.stations.clear()
        self._cluster.close()
        self._cluster = None


def _threads(nodes: list[Node], place: Place) -> int:
    """The most threads that each of so many workers can have."""
    for threads in range(int(max((node.cpus for node in nodes), default=1)), 1, -1):
        if sum(node.room(threads, place.gpus) for node in nodes) >= place.workers:
            return threads
    return 1
