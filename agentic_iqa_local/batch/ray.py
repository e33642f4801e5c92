"""A batch on several workers, of this machine or of a cluster: Ray actors, each with a `Runner` of its own.

A picture that crashes ends its runner's process, never the actor. What a lost node had in hand goes to the other
workers. The command alone takes the rows, each once.
"""

import hashlib
import logging
import os
import secrets
import signal
import socket
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic

from agentic_iqa_local.batch.rows import differences
from agentic_iqa_local.batch.runner import TIMEOUT, BatchError, Runner
from agentic_iqa_local.batch.work import AnyItem, Row, Work, of_models, of_settings
from agentic_iqa_local.devices import SCORING, versions
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import PACKAGE, ROOT
from agentic_iqa_local.vlm_client import ModelLost

logger = logging.getLogger(__name__)

LOCAL = "local"
MODELS = "AGENTIC_IQA_MODELS"
ANSWERS_WITHIN = 5.0  # seconds
OBJECT_STORE = 200 * 2**20  # bytes: rows are small
IN_HAND = 2  # items for each of a worker's jobs, so that it need not wait for this process
MOST_LOST = 3  # workers that an item may lose, and that may be lost in the place of one without a row
GLANCE = 0.5  # seconds between two looks at whether to stop
# packages that decode, resize, tokenise, constrain, compute and fuse
PACKAGES = (
    *SCORING,
    *("torchvision", "timm", "tokenizers", "accelerate", "bitsandbytes", "llguidance", "langgraph"),
    *("numpy", "scipy", "pillow", "pillow-heif", "pydantic", "crepes"),
)
REMEDY = "scores of unlike nodes do not go into one file: install and configure all of them alike"


class ClusterError(BatchError):
    """A cluster that cannot be used; one sentence for the user."""


class _WorkerLost(Exception):
    """A worker's process or its node ended."""


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


def check_address(address: str) -> None:
    """Raises ClusterError unless it is local or auto, or something answers at HOST:PORT (Ray itself would try for
    more than a minute), and where Ray, an extra, is not installed."""
    if find_spec("ray") is None:
        raise ClusterError(
            "--cluster: expected the extra ray, it is not installed",
            'pip install "agentic_iqa_local[ray]" (in a checkout: pip install -c constraints.txt ".[ray]")',
        )
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise ClusterError(
            f"--cluster {address}: expected local, auto or HOST:PORT",
            "`ray start --head` prints the address of a cluster",
        )
    try:
        socket.create_connection((host, int(port)), ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"--cluster {address}: nothing answers there ({error.args[-1]})",
            "start a cluster with `ray start --head --port PORT` on that host (docs/batches.md)",
        ) from error


@dataclass(eq=False)
class _Task(Generic[AnyItem]):
    """An item on its way to a row."""

    item: AnyItem
    losses: int = 0  # of workers that had it


class RayRunner(Generic[AnyItem, Row]):
    """As `Runner`, but with as many workers as `place` says, wherever they are; `jobs` items at once at each.

    A worker that is lost is replaced, and its items are tried again after the others; one that lost three workers is
    a failure.
    """

    unfinished = False

    def __init__(self, work: Work[AnyItem, Row], place: Place, *, jobs: int = 1, timeout: float = TIMEOUT):
        self.work, self.place, self.device, self.jobs, self.timeout = work, place, place.device, jobs, timeout
        self.stopping = False
        self.description: dict[str, Any] = {}
        self._rows = Counter[str]()  # by node
        self._setting: _Setting | None = None
        self._scratch: TemporaryDirectory[str] | None = None
        self._nodes: dict[Any, str] = {}  # of each worker that has the model
        self._free: deque[Any] = deque()  # workers, once for each item that they may have now
        self._calls: dict[Any, tuple[Any, _Task[AnyItem] | None]] = {}  # worker and item; None: it loads
        self._waiting: deque[_Task[AnyItem]] = deque()
        self._lost = 0  # workers since the last row

    def load(self) -> None:
        """Joins the cluster, compares its nodes with this command's own set-up, and waits until one worker has the
        model; `description` then has what the work says of it. Raises ClusterError, which names nodes that are
        unlike, and VLMError."""
        if self._setting:
            return
        self._scratch = _join(self.place)
        try:
            nodes = _nodes()
            window = {"jobs": self.jobs, "timeout": self.timeout}
            expected = of_node(self.work, self.device)
            self._setting = _Setting(self.work, self.device, window, _threads(nodes, self.place), expected)
            self._compare(nodes, self._setting)
            for _ in range(self.place.workers):
                self._start_worker()
            while not self._nodes and not self.stopping:
                self._heed_answers()
        except BaseException:
            self.close()
            raise

    def _compare(self, nodes: list[dict[str, Any]], setting: "_Setting") -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

        checks = {
            _name(node): ray.remote(_unlike)
            .options(num_cpus=0, scheduling_strategy=OnNode(node["NodeID"], soft=False))
            .remote(setting)
            for node in nodes
            if node["Resources"].get("CPU")
        }
        if unlike := [f"{name}: {what}" for name, check in checks.items() if (what := _answer_of(check))]:
            said = f"--cluster {self.place.address}: not all nodes have what this command has: "
            raise ClusterError(said + "; ".join(unlike), REMEDY)

    @property
    def by_node(self) -> str:
        """How many rows each node made."""
        return ", ".join(f"{name} {rows}" for name, rows in self._rows.items())

    def stop(self) -> None:
        """Begins nothing more: what workers have in hand becomes rows."""
        self.stopping = True

    def rows(self, items: Iterable[AnyItem]) -> Iterator[Row]:
        """A row for each item, as soon as it is there; then the workers end. Raises what `load` and the workers
        raise, and BatchError where workers are lost again and again."""
        self.load()
        self._waiting.extend(map(_Task, items))
        try:
            while True:
                while self._waiting and self._free and not self.stopping:
                    worker, task = self._free.popleft(), self._waiting.popleft()
                    self._calls[worker.row.remote(task.item)] = worker, task
                if not any(task for _, task in self._calls.values()) and (self.stopping or not self._waiting):
                    return
                yield from self._heed_answers()
        finally:
            self.close()

    def _start_worker(self) -> None:
        import ray

        assert self._setting
        options = {"num_cpus": self._setting.threads, "num_gpus": self.place.gpus or None}
        options |= {"max_concurrency": self.jobs * IN_HAND + 1, "scheduling_strategy": "SPREAD"}
        worker = ray.remote(_Worker).options(**options).remote(self._setting)
        self._calls[worker.load.remote()] = worker, None

    def _heed_answers(self) -> list[Row]:
        """Waits for an answer, a moment at most; the rows that it brings. Raises what a worker raised."""
        import ray

        for ref in ray.wait(list(self._calls), timeout=GLANCE)[0]:  # one at most
            worker, task = self._calls.pop(ref)
            try:
                answer = _answer_of(ref)
            except (_WorkerLost, ModelLost) as error:
                return self._replace(worker, task, one_line(str(error)[:300]))
            if task:
                self._free.append(worker)
                self._rows[self._nodes[worker]] += 1
                self._lost = 0
                return [answer]
            self._take_on(worker, *answer)
        return []

    def _take_on(self, worker: Any, node: str, description: dict[str, Any]) -> None:
        self.description = self.description or description
        if unlike := differences(_without_hardware(description), _without_hardware(self.description)):
            raise ClusterError(f"{node} has loaded otherwise than the first worker: {unlike}", REMEDY)
        self._nodes[worker] = node
        self._free.extend([worker] * self.jobs * IN_HAND)

    def _replace(self, worker: Any, task: _Task[AnyItem] | None, why: str) -> list[Row]:
        """Starts another worker in the place of one that is lost; the failures of items that lost too many."""
        import ray

        node = self._nodes.pop(worker, "")
        logger.warning("a worker%s is lost (%s); going on", f" at {node}" if node else "", why)
        with suppress(Exception):
            ray.kill(worker)
        lost = [task, *(other for owner, other in self._calls.values() if owner is worker)]
        self._calls = {ref: call for ref, call in self._calls.items() if call[0] is not worker}
        self._free = deque(free for free in self._free if free is not worker)
        failures = []
        for task in filter(None, lost):
            task.losses += 1
            if task.losses < MOST_LOST:
                self._waiting.append(task)
            else:
                said = f"{task.losses} workers were lost that had this image, the last: {why}"
                failures.append(self.work.failure(task.item, said))
        self._lost += 1
        if self._lost >= MOST_LOST * self.place.workers:
            raise BatchError(f"{self._lost} workers were lost without a row between them, the last: {why}")
        self._start_worker()
        return failures

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        import ray

        ray.shutdown()
        if self._scratch:
            self._scratch.cleanup()
        self._setting = self._scratch = None
        for kept in (self._nodes, self._free, self._calls):
            kept.clear()


def _answer_of(ref: Any) -> Any:
    """What a remote call returned. Raises the UserError that it raised, BatchError for any other, and _WorkerLost
    where its process or its node ended."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(ref)
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from error
        raise BatchError(f"a worker failed: {error.cause!r:.300}") from error
    except RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise _WorkerLost(lines[-1] if lines else type(error).__name__) from error


def _without_hardware(description: Any) -> Any:
    """A description of models without the kinds of cards, which may differ."""
    if not isinstance(description, dict):
        return description
    return {name: _without_hardware(part) for name, part in description.items() if name != "hardware"}


# The cluster


def _join(place: Place) -> "TemporaryDirectory[str] | None":
    """Joins or starts a cluster; the folder of one that was started, which gets a token that nobody else knows.
    Ray reads these variables when it is imported. Raises ClusterError."""
    started, scratch = {}, None
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}  # nothing is reported
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's is 15: all else on a machine would go first
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change to come
    if place.address == LOCAL:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        cpus = (_asked_threads() or max(1, (os.cpu_count() or 1) // place.workers)) * place.workers
        scratch = TemporaryDirectory(prefix="iqa-ray-", dir="/tmp", ignore_cleanup_errors=True)  # nosec B108
        started = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        started["_temp_dir"] = scratch.name  # a short name: sockets lie below it
    elif os.environ.get("RAY_AUTH_TOKEN") or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray
    from ray.exceptions import RayError

    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    before, stderr, nowhere = signal.getsignal(signal.SIGTERM), os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)  # parts of Ray write there whatever they are told
        # Ray puts the working folder before all that workers import, and takes SIGTERM for itself.
        with chdir(ROOT if ROOT != PACKAGE else "/"):
            ray.init(address=place.address, **started, **quiet)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        why = " ".join(str(error).split())
        raise ClusterError(
            f"--cluster {place.address}: it cannot be joined: {why:.400}",
            "all nodes need the same Python and Ray; this command runs on one of them (docs/batches.md)",
        ) from error
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, before)
    return scratch


def _nodes() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _name(node: dict[str, Any]) -> str:
    address, named = node["NodeManagerAddress"], node.get("NodeName")
    return one_line(named if named not in ("", None, address) else f"{node['NodeManagerHostname']} ({address})")


def _asked_threads() -> int:
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(asked) if asked.isdecimal() else 0


def _threads(nodes: list[dict[str, Any]], place: Place) -> int:
    """The threads of each worker: those that OMP_NUM_THREADS says, else the most with which all workers have
    room. Raises ClusterError where none has."""
    has = [(int(node["Resources"].get("CPU", 0)), node["Resources"].get("GPU", 0)) for node in nodes]
    most = max((cpus for cpus, _ in has), default=1)
    fitting = (n for n in range(most, 1, -1) if sum(cpus // n for cpus, _ in has) >= place.workers)
    threads = _asked_threads() or next(fitting, 1)
    if not any(cpus >= threads and gpus >= place.gpus for cpus, gpus in has):
        raise ClusterError(
            f"--cluster {place.address}: no node has room for a worker of {threads} threads and {place.gpus:g} GPUs",
            "set OMP_NUM_THREADS or --gpus-per-worker lower, or start nodes where Ray sees their GPUs",
        )
    return threads


# What follows runs at workers.


@dataclass(frozen=True)
class _Setting:
    """What every worker is told."""

    work: Work[Any, Any]
    device: str
    window: Mapping[str, Any]
    threads: int
    expected: dict[str, Any]  # what a node has to have, see `of_node`
    folder: str = field(default_factory=os.getcwd)
    models: str | None = field(default_factory=lambda: os.environ.get(MODELS))


def _unlike(setting: _Setting) -> str:
    """Takes up threads, models folder and working folder of the command; what this node has otherwise than
    expected, in words. Raises UserError."""
    os.environ["OMP_NUM_THREADS"] = str(setting.threads)
    if setting.models and MODELS not in os.environ and os.path.isdir(setting.models):
        os.environ[MODELS] = setting.models
    with suppress(OSError):  # where it is not there, no relative path is seen
        os.chdir(setting.folder)
    return differences(of_node(setting.work, setting.device), setting.expected)


class _Worker:
    """An actor: its `Runner` has a process of its own, so that a hang or a crash there does not end the actor."""

    def __init__(self, setting: _Setting):
        self._setting = setting

    def load(self) -> tuple[str, dict[str, Any]]:
        """The node's name, and what the work says of the models. Raises UserError, with the name."""
        import ray

        here, setting = ray.get_runtime_context().get_node_id(), self._setting
        name = next(_name(node) for node in ray.nodes() if node["NodeID"] == here)
        try:
            if unlike := _unlike(setting):  # it may have joined later
                raise ClusterError(f"it has not what this command has: {unlike}", REMEDY)
            self._runner = Runner(setting.work, setting.device, **setting.window)
            self._runner.load()
        except UserError as error:
            raise type(error)(f"{name}: {error.message}", error.remedy) from error
        return name, self._runner.description

    def row(self, item: Any) -> Any:
        """The row of an item. Raises what a runner's future raises."""
        return self._runner.submit(item).result()


def of_node(work: Work[Any, Any], device: str) -> dict[str, Any]:
    """What scores depend on at a node before a model is loaded, by the names that messages use. Raises
    BundleError for a models folder whose manifest is damaged, CalibrationError for tool maps that cannot be
    read."""
    about = {"versions": versions(PACKAGES), "agentic_iqa_local": package_hash()}
    return of_settings(work.settings, device) | of_models(work) | about


def package_hash(folder: Path = PACKAGE) -> str:
    """SHA-256 over the package's code and data; models, which a wheel has inside, are hashed apart."""
    digest, kinds = hashlib.sha256(), (".py", ".jinja", ".json", ".mat", ".safetensors")
    for file in sorted(folder.rglob("*")):
        if file.suffix in kinds and file.relative_to(folder).parts[0] != "models":
            digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
