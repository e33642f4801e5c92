"""A batch on several workers, of this machine or of a cluster: Ray actors, each with a `Runner` of its own.

A picture that crashes ends its runner's process, never the actor. What a lost node had in hand goes to the other
workers. The command alone takes the rows, each once.
"""

import hashlib
import logging
import os
import platform
import secrets
import signal
import socket
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic

from agentic_iqa_local.batch.rows import differences
from agentic_iqa_local.batch.runner import MOST_DEATHS, TIMEOUT, BatchError, Runner
from agentic_iqa_local.batch.work import AnyItem, Row, Work, of_models
from agentic_iqa_local.devices import SCORING, versions
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import PACKAGE, ROOT
from agentic_iqa_local.images.files import ImageError, read_file, sent_files
from agentic_iqa_local.nodes.workbench import Observer
from agentic_iqa_local.provenance import of_settings
from agentic_iqa_local.services import Services
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import ModelLost

logger = logging.getLogger(__name__)

LOCAL = "local"
MODELS = "AGENTIC_IQA_MODELS"
ANSWERS_WITHIN = 5.0  # seconds
OBJECT_STORE = 200 * 2**20  # bytes: rows and pictures pass through it, none stays
IN_HAND = 2  # items for each of a worker's jobs, so that it need not wait for this process
MOST_STARTS = 3  # of each worker, without a row between them
GLANCE = 0.5  # seconds between two looks at whether to stop
# packages that decode, resize, tokenise, constrain, compute and fuse
PACKAGES = (
    *SCORING,
    *("torchvision", "timm", "tokenizers", "accelerate", "bitsandbytes", "llguidance", "langgraph"),
    *("numpy", "scipy", "pillow", "pillow-heif", "pydantic", "crepes"),
)
OF_MODELS = ("engine", "torch", "type", "parameters", "dtype", "quantization", "attention", "prompt_layout")
REMEDY = "scores of unlike nodes do not go into one file: install the same there"


class ClusterError(BatchError):
    """A cluster that cannot be used; one sentence for the user."""


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
            "start a cluster with `ray start --head --port PORT` on that host (docs/cluster.md)",
        ) from error


@dataclass(eq=False)
class _Task(Generic[AnyItem]):
    """An item on its way to a row."""

    item: AnyItem
    files: dict[str, tuple[int, int] | None]  # as this machine sees them
    losses: int = 0  # of workers that had it


@dataclass(eq=False)
class _Member(Generic[AnyItem]):
    """A worker as this process knows it. It has no node until it has loaded the model."""

    actor: Any
    node: str = ""
    tasks: list[_Task[AnyItem]] = field(default_factory=list)

    def has_room(self, task: _Task[AnyItem], most: int) -> bool:
        """A task whose worker was lost is tried again alone."""
        if task.losses or any(other.losses for other in self.tasks):
            return not self.tasks
        return len(self.tasks) < most


class RayRunner(Generic[AnyItem, Row]):
    """As `Runner`, but with as many workers as `place` says, wherever they are; `jobs` items at once at each.

    A worker that is lost is replaced, and its items are tried again, alone; one that lost three workers is a
    failure.
    """

    unfinished = False

    def __init__(self, work: Work[AnyItem, Row], place: Place, *, jobs: int = 1, timeout: float = TIMEOUT):
        self.work, self.place, self.device, self.jobs, self.timeout = work, place, place.device, jobs, timeout
        self.stopping = False
        self._rows = Counter[str]()  # by node
        self._setting: _Setting | None = None
        self._scratch: TemporaryDirectory[str] | None = None
        self._workers: list[_Member[AnyItem]] = []
        self._calls: dict[Any, tuple[_Member[AnyItem], _Task[AnyItem] | None]] = {}  # None: it loads
        self._waiting: deque[_Task[AnyItem]] = deque()
        self._finished: deque[Row] = deque()
        self._loaded: dict[str, Any] | None = None
        self._starts = 0  # since the last row

    def load(self) -> None:
        """Joins the cluster, compares its nodes with this command's own set-up, and waits until one worker has the
        model. Raises ClusterError, which names nodes that are unlike, and VLMError."""
        if self._setting:
            return
        self._scratch = _join(self.place)
        try:
            nodes = _nodes()
            self._setting = _Setting(
                self.work,
                self.place,
                {"jobs": self.jobs, "timeout": self.timeout},
                _threads(nodes, self.place),
                of_node(self.work, self.device),
            )
            self._compare(nodes)
            for _ in range(self.place.workers):
                self._start_worker()
            while self._loaded is None and not self.stopping:
                for ref in self._answered():
                    self._take(ref)
        except BaseException:
            self.close()
            raise

    def _compare(self, nodes: list[dict[str, Any]]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

        checks = {
            _name(node): ray.remote(_unlike)
            .options(num_cpus=0, scheduling_strategy=OnNode(node["NodeID"], soft=False))
            .remote(self._setting)
            for node in nodes
            if node["Resources"].get("CPU")
        }
        unlike = [f"{name}: {what}" for name, check in checks.items() if (what := _answer_of(check))]
        if unlike:
            said = f"--cluster {self.place.address}: not all nodes have what this command has: "
            raise ClusterError(said + "; ".join(unlike), REMEDY)

    @property
    def description(self) -> dict[str, Any]:
        """What the work says of the models, as the first worker loaded them. Raises what `load` raises."""
        self.load()
        return (self._loaded or {}).get("described", {})

    @property
    def by_node(self) -> str:
        """How many rows each node made."""
        return ", ".join(f"{name} {rows}" for name, rows in self._rows.items())

    def stop(self) -> None:
        """Begins nothing more: what workers have in hand becomes rows."""
        self.stopping = True

    def rows(self, items: Iterable[AnyItem]) -> Iterator[Row]:
        """A row for each item, as soon as it is there; then the workers end. Raises what `load` and the workers
        raise, and BatchError where no worker is left."""
        self.load()
        self._waiting.extend(_Task(item, {}) for item in items)
        try:
            while True:
                self._hand_out()
                if not any(worker.tasks for worker in self._workers) and (self.stopping or not self._waiting):
                    return
                for ref in self._answered():
                    self._take(ref)
                while self._finished:
                    yield self._finished.popleft()
        finally:
            self.close()

    def _start_worker(self) -> None:
        import ray

        assert self._setting
        options = {"num_cpus": self._setting.threads, "num_gpus": self.place.gpus or None}
        made = ray.remote(_Worker).options(
            **options, max_concurrency=self.jobs * IN_HAND + 1, scheduling_strategy="SPREAD"
        )
        worker = _Member[AnyItem](made.remote(self._setting))
        self._workers.append(worker)
        self._calls[worker.actor.load.remote()] = worker, None

    def _hand_out(self) -> None:
        waiting = self._waiting
        for worker in self._workers:
            while waiting and not self.stopping and worker.node:
                if not worker.has_room(waiting[0], self.jobs * IN_HAND):
                    break
                task = waiting.popleft()
                task.files = {str(path): _facts(path) for path in self.work.files(task.item)}
                worker.tasks.append(task)
                self._call(worker, task, {})

    def _call(self, worker: _Member[AnyItem], task: _Task[AnyItem], data: dict[str, bytes]) -> None:
        self._calls[worker.actor.row.remote(task.item, task.files, data)] = worker, task

    def _answered(self) -> list[Any]:
        import ray

        return ray.wait(list(self._calls), timeout=GLANCE)[0]

    def _take(self, ref: Any) -> None:
        """Heeds an answer. Raises what a worker raised."""
        if ref not in self._calls:  # of a worker that was just lost
            return
        worker, task = self._calls.pop(ref)
        try:
            answer = _answer_of(ref)
        except (_WorkerLost, ModelLost) as error:
            return self._replace(worker, error)
        if task is None:
            self._ready(worker, *answer)
        elif isinstance(answer, list):  # files that its node does not see as this machine does
            self._call(worker, task, _contents(answer))
        else:
            worker.tasks.remove(task)
            self._rows[worker.node] += 1
            self._starts = 0
            self._finished.append(self.work.received(task.item, *answer))

    def _ready(self, worker: _Member[AnyItem], node: str, loaded: dict[str, Any]) -> None:
        worker.node = node
        self._loaded = self._loaded or loaded
        if unlike := differences(loaded["facts"], self._loaded["facts"]):
            raise ClusterError(
                f"{node} has loaded otherwise than the first worker: {unlike}",
                "scores of unlike nodes do not go into one file: set dtype and attention in --config",
            )

    def _replace(self, worker: _Member[AnyItem], error: Exception) -> None:
        """Starts another worker in the place of one that is lost; the failures of items that lost too many."""
        import ray

        self._workers.remove(worker)
        self._calls = {ref: call for ref, call in self._calls.items() if call[0] is not worker}
        with suppress(Exception):
            ray.kill(worker.actor)
        why = one_line(str(error)[:300])
        logger.warning("a worker%s is lost (%s); going on", f" at {worker.node}" if worker.node else "", why)
        for task in worker.tasks:
            task.losses += 1
            if task.losses > MOST_DEATHS:
                said = f"{task.losses} workers were lost that had it, the last: {why}"
                self._finished.append(self.work.failure(task.item, said))
            else:
                self._waiting.append(task)
        self._starts += 1
        if self._starts >= MOST_STARTS * self.place.workers:
            raise BatchError(f"{self._starts} workers in a row were lost, the last: {why}") from error
        _check_room(_nodes(), self.place, self._setting.threads if self._setting else 1)
        self._start_worker()

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        import ray

        ray.shutdown()
        if self._scratch:
            self._scratch.cleanup()
        self._setting = self._scratch = self._loaded = None
        self._workers, self._calls = [], {}


class _WorkerLost(Exception):
    """A worker's process or its node ended."""


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
        raise BatchError(one_line(f"a worker failed: {error.cause!r:.300}")) from error
    except RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise _WorkerLost(lines[-1] if lines else type(error).__name__) from error


def _contents(paths: list[str]) -> dict[str, bytes]:
    """The bytes of those files that can be read here."""
    found = dict.fromkeys(paths, b"")
    for path in paths:
        with suppress(ImageError):
            found[path] = read_file(path)
    return found


def _facts(path: str | Path) -> tuple[int, int] | None:
    """A file's bytes, and when it was changed (ns); None where there is none."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return None
    return state.st_size, state.st_mtime_ns


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
        threads = _asked_threads() or max(1, (os.cpu_count() or 1) // place.workers)
        scratch = TemporaryDirectory(prefix="iqa-ray-", dir="/tmp", ignore_cleanup_errors=True)  # nosec B108 # short
        started = {"num_cpus": threads * place.workers, "include_dashboard": False, "_temp_dir": scratch.name}
        started["object_store_memory"] = OBJECT_STORE
    elif os.environ.get("RAY_AUTH_TOKEN") or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray
    from ray.exceptions import RayError

    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    before = signal.getsignal(signal.SIGTERM)
    try:
        # Ray puts the working folder before all that workers import, and takes SIGTERM for itself.
        with _silenced(), chdir(ROOT if ROOT != PACKAGE else "/"):
            ray.init(address=place.address, **started, **quiet)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        why = " ".join(str(error).split())
        raise ClusterError(
            f"--cluster {place.address}: it cannot be joined: {why:.400}",
            "all nodes need the same Python and Ray; this command runs on one of them (docs/cluster.md)",
        ) from error
    finally:
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, before)
    return scratch


@contextmanager
def _silenced() -> Iterator[None]:
    """Nothing is written to stderr, by whatever part of Ray."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


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
    room. Raises ClusterError where no worker has."""
    cpus = [int(node["Resources"].get("CPU", 0)) for node in nodes]
    fitting = (n for n in range(max(cpus, default=1), 1, -1) if sum(has // n for has in cpus) >= place.workers)
    threads = _asked_threads() or next(fitting, 1)
    _check_room(nodes, place, threads)
    return threads


def _check_room(nodes: list[dict[str, Any]], place: Place, threads: int) -> None:
    has = [node["Resources"] for node in nodes]
    if not any(one.get("CPU", 0) >= threads and one.get("GPU", 0) >= place.gpus for one in has):
        raise ClusterError(
            f"--cluster {place.address}: no node has room for a worker of {threads} threads and {place.gpus:g} GPUs",
            "set OMP_NUM_THREADS or --gpus-per-worker lower, or start nodes where Ray sees their GPUs",
        )


# What follows runs at workers.


@dataclass(frozen=True)
class _Setting:
    """What every worker is told."""

    work: Work[Any, Any]
    place: Place
    window: Mapping[str, Any]
    threads: int
    expected: Mapping[str, Any]  # what a node has to have, see `of_node`
    folder: str = field(default_factory=os.getcwd)
    models: str | None = field(default_factory=lambda: os.environ.get(MODELS))

    def take_up(self) -> None:
        """Threads, models folder and working folder as the command has them."""
        os.environ["OMP_NUM_THREADS"] = str(self.threads)
        if self.models and MODELS not in os.environ and os.path.isdir(self.models):
            os.environ[MODELS] = self.models
        with suppress(OSError):  # where it is not there, no relative path is seen
            os.chdir(self.folder)


def _unlike(setting: _Setting) -> str:
    """What this node has otherwise than expected, in words. Raises UserError."""
    setting.take_up()
    return differences(of_node(setting.work, setting.place.device), setting.expected)


class _Worker:
    """An actor: its `Runner` has a process of its own, so that a hang or a crash there does not end the actor."""

    def __init__(self, setting: _Setting):
        self._setting = setting

    def load(self) -> tuple[str, dict[str, Any]]:
        """The node's name, and what the work and loading say of the models. Raises UserError, with the name."""
        import ray

        here, setting = ray.get_runtime_context().get_node_id(), self._setting
        name = next(_name(node) for node in ray.nodes() if node["NodeID"] == here)
        try:
            if unlike := _unlike(setting):  # it may have joined later
                raise ClusterError(f"it has not what this command has: {unlike}", REMEDY)
            self._runner = Runner(_Remote(setting.work), setting.place.device, **setting.window)
            self._runner.load()
        except UserError as error:
            raise type(error)(f"{name}: {error.message}", error.remedy) from error
        return name, self._runner.description

    def row(
        self, item: Any, files: Mapping[str, tuple[int, int] | None], data: dict[str, bytes]
    ) -> list[str] | tuple[Any]:
        """The row of an item, as it is sent; or which of its files this node does not see as the command's machine
        does, and `data` lacks. Raises what a runner's future raises."""
        absent = [path for path, facts in files.items() if facts and path not in data and _facts(path) != facts]
        return absent or (self._runner.submit(_Sent(item, data)).result(),)


@dataclass(frozen=True)
class _Sent(Generic[AnyItem]):
    """An item, with the bytes of those of its files that are not there."""

    item: AnyItem
    data: Mapping[str, bytes]

    @property
    def key(self) -> str:
        return self.item.key

    @property
    def image(self) -> Path:
        return self.item.image


class _Remote(Work[_Sent[Any], Any]):
    """Another work, done on items that were sent. Its rows stay as they are sent."""

    def __init__(self, work: Work[Any, Any]):
        self.work, self.settings, self.roles = work, work.settings, work.roles

    def row(self, item: _Sent[Any], services: Services, observer: Observer) -> Any:
        with sent_files(item.data):
            return self.work.sent(self.work.row(item.item, services, observer))

    def failure(self, item: _Sent[Any], error: str, sha256: str | None = None) -> Any:
        if data := item.data.get(str(item.image)):  # another file may lie there
            sha256 = hashlib.sha256(data).hexdigest()
        return self.work.sent(self.work.failure(item.item, error, sha256))

    def describe(self, services: Services) -> dict[str, Any]:
        """What the work says of the models, and as `facts` what loading decided on which last bits depend: dtype,
        attention kernel, quantisation and more, and a CPU's threads."""
        import torch

        facts: dict[str, Any] = {"threads": torch.get_num_threads()} if services.device == "cpu" else {}
        for role in self.roles:
            about = services.client(role).describe()
            facts |= {f"{about['name']}: {name}": about[name] for name in OF_MODELS if name in about}
        return {"facts": facts, "described": self.work.describe(services)}


def of_node(work: Work[Any, Any], device: str) -> dict[str, Any]:
    """What scores depend on at a node before a model is loaded, by the names that messages use. Raises
    BundleError for a models folder whose manifest is damaged, CalibrationError for tool maps that cannot be
    read."""
    python = ".".join(platform.python_version_tuple()[:2])
    about = {"versions": versions(PACKAGES), "python": python, "agentic_iqa_local": package_hash()}
    return of_settings(work.settings, device) | of_models(work) | about


def package_hash(folder: Path = PACKAGE) -> str:
    """SHA-256 over names and contents of the package's code and data."""
    kinds = {".py", ".jinja", ".json", ".yaml", ".npz", ".safetensors"}
    apart = {"configs", "models", "tests"}  # of a wheel; their files are told apart by names of their own
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.suffix in kinds and file.relative_to(folder).parts[0] not in apart:
            digest.update(file.relative_to(folder).as_posix().encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
