"""A batch on several workers, of this machine or of a cluster: Ray actors, each with a `Runner` of
its own.

A picture that crashes ends its runner's process, never the actor. What a lost node had in hand goes
to the other workers. The command alone takes the rows, each once.
"""

import logging
import os
import secrets
import signal
import socket
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, suppress
from importlib.util import find_spec
from typing import Any, Generic

from agentic_iqa_local.batch.rows import differences
from agentic_iqa_local.batch.runner import TIMEOUT, BatchError, Runner
from agentic_iqa_local.batch.work import AnyItem, Row, Work, of_work
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import PACKAGE, ROOT
from agentic_iqa_local.vlm_client import ModelLost

logger = logging.getLogger(__name__)

MODELS = "AGENTIC_IQA_MODELS"
OBJECT_STORE = 200 * 2**20  # bytes: rows are small
IN_HAND = 2  # items for each of a worker's jobs, so that it need not wait for this process
# workers that an item may lose, and that may be lost in the place of one without a row
MOST_LOST = 3
GLANCE = 0.5  # seconds between two looks at whether to stop
REMEDY = "scores of unlike nodes do not go into one file: install and configure all of them alike"


def check_address(address: str) -> None:
    """Raises BatchError unless it is local or auto, or something answers at HOST:PORT (Ray itself
    would try for more than a minute), and where Ray, an extra, is not installed."""
    if find_spec("ray") is None:
        remedy = 'pip install "agentic_iqa_local[ray]" (in a checkout: pip install -c constraints.txt ".[ray]")'
        raise BatchError("--cluster: expected the extra ray, it is not installed", remedy)
    if address not in ("local", "auto"):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError, ValueError) as error:
            said = f"--cluster {address}: expected local, auto or the HOST:PORT of a cluster that answers, got {error}"
            raise BatchError(
                said, "start one with `ray start --head` on that host (docs/batches.md)"
            ) from error


class RayRunner(Generic[AnyItem, Row]):
    """As `Runner`, but with several workers in the cluster at an address ("local": on this
    machine), each with so many GPUs and `jobs` items at once.

    A worker that is lost, also with its model, is started again where there is room. Its items are
    tried again after the others, one by one; one that lost three workers is a failure.
    """

    def __init__(
        self,
        work: Work[AnyItem, Row],
        address: str,
        workers: int,
        gpus: float = 0.0,
        *,
        jobs: int = 1,
        timeout: float = TIMEOUT,
    ):
        self.work = work
        self.address = address
        self.workers = workers
        self.gpus = gpus
        self.jobs = jobs
        self.timeout = timeout
        self.device = "cuda:0" if gpus else "cpu"  # Ray shows a worker no other GPUs than its own
        self.stopping = False
        self.description: dict[str, Any] = {}
        self._room = Counter[Any]()  # how many more items each loaded worker may have now
        self._nodes: dict[Any, str] = {}  # where each worker is, or was
        self._calls: dict[Any, tuple[Any, AnyItem | None]] = {}  # worker and item; None: it loads
        self._waiting: deque[AnyItem] = deque()
        self._losses = Counter[str]()  # of workers that had an item, by its key
        self._lost = 0  # workers since the last row

    def load(self) -> None:
        """Joins the cluster and waits until one worker has the model; `description` then has what
        the work says of it. Raises BatchError, which names a node that is unlike, and VLMError."""
        if self._calls or self._room:
            return
        try:
            _join(self.address, self.workers)
            import ray

            threads = _threads(self.workers, self.gpus)
            actor = ray.remote(_Worker).options(
                num_cpus=threads,
                num_gpus=self.gpus or None,
                scheduling_strategy="SPREAD",
                max_concurrency=self.jobs * IN_HAND + 1,
                max_restarts=-1,
            )
            expected = of_work(self.work, self.device)
            told = threads, os.getcwd(), os.environ.get(MODELS), expected, self.work, self.device
            for _ in range(self.workers):
                self._load(actor.remote(*told, jobs=self.jobs, timeout=self.timeout))
            while not self._room and not self.stopping:
                self._heed_answer()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Begins nothing more: what workers have in hand becomes rows."""
        self.stopping = True

    def rows(self, items: Iterable[AnyItem]) -> Iterator[Row]:
        """A row for each item, as soon as it is there; then the workers end. Raises what `load` and
        the workers raise, and BatchError where workers are lost again and again."""
        self.load()
        self._waiting.extend(items)
        try:
            while True:
                if not self.stopping:
                    self._hand_out()
                if not self._under_way() and (self.stopping or not self._waiting):
                    return
                yield from self._heed_answer()
        finally:
            self.close()

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        import ray

        ray.shutdown()
        self._room.clear()
        self._calls.clear()

    def _under_way(self) -> bool:
        return any(item for _, item in self._calls.values())

    def _hand_out(self) -> None:
        """Gives waiting items to the workers with the most room, as long as there is any."""
        while self._waiting and self._room:
            worker, room = self._room.most_common(1)[0]
            item = self._waiting[0]
            if not room or (item.key in self._losses and self._under_way()):
                return
            self._room[worker] -= 1
            self._calls[worker.row.remote(self._waiting.popleft())] = worker, item

    def _load(self, worker: Any) -> None:
        """Lets a worker load, once there is room for it; a call that its end interrupts is made
        again."""
        self._calls[worker.load.options(max_task_retries=-1).remote()] = worker, None

    def _heed_answer(self) -> list[Row]:
        """Waits for an answer, a moment at most; the rows that it brings. Raises what a worker
        raised."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        answered = ray.wait(list(self._calls), timeout=GLANCE)[0]  # one at most
        if not answered:
            return []
        worker, item = self._calls.pop(answered[0])
        try:
            answer = ray.get(answered[0])
        except RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from error
            raise BatchError(f"a worker failed: {error.cause!r:.300}") from error
        except RayError as error:
            why = one_line(" ".join(str(error).split())[-300:])
            if item is None:
                raise BatchError(f"a worker cannot start: {why}") from error
            return self._try_again(worker, item, why)
        if item is None:
            self._take_on(worker, *answer)
            return []
        if worker in self._room:
            self._room[worker] += 1
        self._lost = 0
        return [answer]

    def _take_on(self, worker: Any, node: str, description: dict[str, Any]) -> None:
        self.description = self.description or description
        alike = map(_without_hardware, (description, self.description))
        if unlike := differences(*alike):
            raise BatchError(f"{node} has loaded otherwise than the first worker: {unlike}", REMEDY)
        self._room[worker] = self.jobs * IN_HAND
        self._nodes[worker] = node

    def _try_again(self, worker: Any, item: AnyItem, why: str) -> list[Row]:
        """Puts back an item whose worker is lost, or gives its failure; Ray starts the worker
        again."""
        if worker in self._room:  # with the first of its items
            logger.warning("a worker at %s is lost (%s); going on", self._nodes[worker], why)
            del self._room[worker]
            self._lost += 1
            if self._lost >= MOST_LOST * self.workers:
                lost = f"{self._lost} workers were lost without a row between them"
                raise BatchError(f"{lost}, the last: {why}")
            self._load(worker)
        self._losses[item.key] += 1
        if self._losses[item.key] < MOST_LOST:
            self._waiting.append(item)
            return []
        error = f"{MOST_LOST} workers were lost that had this image, the last: {why}"
        return [self.work.failure(item, error)]


# The cluster


def _join(address: str, workers: int) -> None:
    """Joins a cluster, or starts one, which gets a token that nobody else knows. Ray reads these
    variables when it is imported. Raises BatchError."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    # Ray's is 15: all else on a machine would go first
    os.environ.setdefault("RAY_worker_niceness", "0")
    # else Ray warns of a change to come
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    started: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        cpus = (_asked_threads() or max(1, (os.cpu_count() or 1) // workers)) * workers
        started = {"num_cpus": cpus, "include_dashboard": False}
        started["object_store_memory"] = OBJECT_STORE
    import ray
    import ray._private.worker as driver
    from ray.exceptions import RayError

    driver.listen_error_messages = lambda *_: None  # it tells of lost nodes, as `_try_again` does
    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    try:
        # Ray puts the working folder before all that workers import.
        with _undisturbed(), chdir(ROOT if ROOT != PACKAGE else "/"):
            ray.init(address=address, **started, **quiet)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        why = " ".join(str(error).split())
        remedy = "all nodes need the same Python and Ray; this command runs on one of them (docs/batches.md)"
        raise BatchError(f"--cluster {address}: it cannot be joined: {why:.400}", remedy) from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and parts of it write to stderr whatever they are told."""
    ends = signal.getsignal(signal.SIGTERM)
    stderr = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, ends)


def _asked_threads() -> int:
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(asked) if asked.isdecimal() else 0


def _threads(workers: int, gpus: float) -> int:
    """The threads of each worker: those that OMP_NUM_THREADS says, else as many as each has of the
    smallest node. Raises BatchError where no node has room for a worker."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Resources"].get("CPU")]
    each = -(-workers // max(1, len(nodes)))  # workers of a node
    smallest = min((int(node["CPU"]) for node in nodes), default=1)
    threads = _asked_threads() or max(1, smallest // each)
    if not any(node["CPU"] >= threads and node.get("GPU", 0) >= gpus for node in nodes):
        said = f"--cluster: no node has room for a worker of {threads} threads and {gpus:g} GPUs"
        remedy = "set OMP_NUM_THREADS or --gpus-per-worker lower, or start nodes where Ray sees their GPUs"
        raise BatchError(said, remedy)
    return threads


def _without_hardware(about: Any) -> Any:
    """A description of models without the kinds of cards, which may differ."""
    if not isinstance(about, dict):
        return about
    return {name: _without_hardware(part) for name, part in about.items() if name != "hardware"}


# What follows runs at workers.


class _Worker:
    """An actor: its `Runner` has a process of its own, so that a hang or a crash there does not end
    the actor."""

    def __init__(
        self,
        threads: int,
        folder: str,
        models: str | None,
        expected: dict[str, Any],
        *work: Any,
        **how: Any,
    ):
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if models and MODELS not in os.environ and os.path.isdir(models):
            os.environ[MODELS] = models
        with suppress(OSError):  # where it is not there, no relative path is seen
            os.chdir(folder)
        self._expected = expected
        self._runner = Runner(*work, **how)

    def load(self) -> tuple[str, dict[str, Any]]:
        """The node's name, and what the work says of the models. Raises UserError, with the name,
        also where the node has not what the command has."""
        import ray

        runner = self._runner
        here = ray.get_runtime_context().get_node_id()
        node = next(node for node in ray.nodes() if node["NodeID"] == here)
        name = one_line(f"{node.get('NodeName')} ({node['NodeManagerHostname']})")
        try:
            if unlike := differences(of_work(runner.work, runner.device), self._expected):
                raise BatchError(f"it has not what this command has: {unlike}", REMEDY)
            runner.load()
        except UserError as error:
            raise type(error)(f"{name}: {error.message}", error.remedy) from error
        return name, runner.description

    def row(self, item: Any) -> Any:
        """The row of an item. Raises what a runner's future raises, but a lost model ends this
        worker: Ray starts it again where there is room."""
        try:
            return self._runner.submit(item).result()
        except ModelLost:
            os._exit(1)
