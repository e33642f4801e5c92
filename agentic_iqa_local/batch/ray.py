"""A batch on several workers, of this machine or of a cluster. Ray Data gives the items to actors, each of which
has a `Runner` of its own; this process alone takes the rows, each once.

Nodes whose weights, versions, dtype or attention kernel differ are refused by name.
"""

import hashlib
import logging
import os
import pickle
import platform
import secrets
import shutil
import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any, Generic

from agentic_iqa_local.batch.runner import TIMEOUT, BatchError, Runner
from agentic_iqa_local.batch.work import AnyItem, Row, Work, of_models, of_settings
from agentic_iqa_local.devices import SCORING, versions
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import PACKAGE, ROOT
from agentic_iqa_local.images.files import ImageError, read_file, sent_files
from agentic_iqa_local.nodes.workbench import Observer
from agentic_iqa_local.services import Services

LOCAL = "local"
MODELS = "AGENTIC_IQA_MODELS"
ANSWERS_WITHIN = 5.0  # seconds
OBJECT_STORE = 200 * 2**20  # bytes: rows and pictures pass through it, none stays
IN_A_TASK = 4  # items for each of a worker's jobs: what may be done twice when a node is lost
# beside those of provenance: they decode, resize, tokenise, constrain and fuse
PACKAGES = (
    *SCORING,
    *("torchvision", "timm", "tokenizers", "accelerate", "bitsandbytes", "llguidance", "langgraph"),
    *("numpy", "scipy", "pillow", "pillow-heif", "pydantic", "crepes"),
)
OF_MODELS = ("engine", "torch", "type", "parameters", "dtype", "quantization", "attention", "prompt_layout")
Facts = tuple[int, int]  # of a file: its bytes, and when it was changed (ns)
NAMED, LONGEST = 5, 60  # differences that a message names, and characters of each value


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
    """Raises ClusterError unless it is local or auto, or something answers at HOST:PORT, for which Ray itself
    would try for more than a minute; and where Ray, an extra, is not installed."""
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


class RayRunner(Generic[AnyItem, Row]):
    """As `Runner`, but with as many workers as `place` says, wherever they are; `jobs` items at once at each of
    them. After `stop` what is under way at workers is left."""

    unfinished = False

    def __init__(self, work: Work[AnyItem, Row], place: Place, *, jobs: int = 1, timeout: float = TIMEOUT):
        self.work, self.place, self.device, self.jobs, self.timeout = work, place, place.device, jobs, timeout
        self.stopping = False
        self._by_node: Counter[str] = Counter()
        self._setting: _Setting | None = None
        self._scratch: str | None = None

    def load(self) -> None:
        """Joins the cluster, and compares what its nodes have. Raises ClusterError, which names those that are
        unlike this command's own set-up."""
        if self._setting:
            return
        self._scratch = _join(self.place)
        try:
            self._compare_nodes()
        except BaseException:
            self.close()
            raise

    def _compare_nodes(self) -> None:
        import ray  # after `_join`: it reads its variables once

        nodes = [node for node in ray.nodes() if node["Alive"]]
        self._setting = _Setting(
            self.work,
            self.place.device,
            {"jobs": self.jobs, "timeout": self.timeout},
            _threads(nodes, self.place),
            of_node(self.work, self.place.device),
            ray.get_runtime_context().get_node_id(),
            models=os.environ.get(MODELS),
        )
        checks = {
            _name(node): _on(node["NodeID"], ray.remote(_unlike)).remote(self._setting)
            for node in nodes
            if node["Resources"].get("CPU")
        }
        found = {name: _told(ray.get(check)) for name, check in checks.items()}
        if unlike := {name: what for name, what in found.items() if what}:
            raise ClusterError(
                f"--cluster {self.place.address}: not all nodes have what this command has: "
                + "; ".join(f"{name}: {what}" for name, what in unlike.items()),
                "scores of unlike nodes do not go into one file: install the same there",
            )

    @cached_property
    def description(self) -> dict[str, Any]:
        """What the work says of the models, as one worker loads them. Raises VLMError."""
        import ray

        self.load()
        assert self._setting
        task = ray.remote(num_cpus=self._setting.threads, num_gpus=self.place.gpus)(_described)
        return _told(ray.get(task.remote(self._setting)))

    @property
    def by_node(self) -> str:
        """Rows of each node."""
        return ", ".join(f"{name} {rows}" for name, rows in self._by_node.items())

    def stop(self) -> None:
        """Takes no more rows."""
        self.stopping = True

    def rows(self, items: Iterable[AnyItem]) -> Iterator[Row]:
        """A row for each item, as soon as it is there; then the workers end. Raises what `load` and the workers
        raise, and BatchError where the cluster is lost."""
        self.load()
        from ray.exceptions import RayError

        waiting = dict(enumerate(items))
        loaded: dict[str, Any] = {}
        try:
            for block in self._dataset(waiting).iter_batches(batch_size=None, prefetch_batches=0):
                for number, packed in zip(block["number"], block["row"], strict=True):
                    node, has, sent = _told(packed)
                    loaded = loaded or has
                    if unlike := differences(has, loaded):
                        raise ClusterError(
                            f"{node} has loaded otherwise than the first worker: {unlike}",
                            "scores of unlike nodes do not go into one file: set dtype and attention in --config",
                        )
                    if (item := waiting.pop(int(number), None)) is not None:
                        self._by_node[node] += 1
                        yield self.work.received(item, sent)
                if self.stopping:
                    return
            if waiting:
                raise BatchError(f"{len(waiting)} pictures came back without a row")
        except RayError as error:
            said = next((line for line in reversed(str(error).split("\n")) if line.strip()), "")
            raise BatchError(one_line(f"the cluster failed: {said:.300}")) from error
        finally:
            self.close()

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        import ray

        ray.shutdown()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._setting = self._scratch = None

    def _dataset(self, items: Mapping[int, AnyItem]) -> Any:
        import ray

        assert self._setting
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.target_max_block_size = 1  # bytes: each row is given as soon as it is there
        size = self.jobs * IN_A_TASK
        packed = [{"number": number, "item": pickle.dumps(item)} for number, item in items.items()]
        workers = self.place.workers
        return ray.data.from_items(packed, override_num_blocks=ceil(len(packed) / size)).map_batches(
            _Worker,
            fn_constructor_args=(self._setting,),
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=self._setting.threads,
            num_gpus=self.place.gpus or None,
        )


def _join(place: Place) -> str | None:
    """Joins or starts a cluster; the folder of one that was started, which gets a token that nobody else knows.
    Ray reads these variables when it is imported. Raises ClusterError."""
    address, started, scratch = place.address, {}, None
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's is 15: all else on a machine would go first
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change to come
    os.environ |= {"RAY_DATA_LOG_LEVEL": "ERROR", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    if address == LOCAL:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        threads = _asked_threads() or max(1, (os.cpu_count() or 1) // place.workers)
        scratch = tempfile.mkdtemp(prefix="iqa-ray-", dir="/tmp")  # nosec B108 # short: sockets lie below it
        started = {
            "num_cpus": threads * place.workers,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE,
            "_temp_dir": scratch,
        }
    elif os.environ.get("RAY_AUTH_TOKEN") or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray
    from ray.exceptions import RayError

    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    before = signal.getsignal(signal.SIGTERM)
    try:
        # Ray puts the working folder before all that workers import, and takes SIGTERM for itself.
        with _silenced(), chdir(ROOT if ROOT != PACKAGE else "/"):
            ray.init(address=address, **started, **quiet)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        why = " ".join(str(error).split())
        raise ClusterError(
            f"--cluster {address}: it cannot be joined: {why:.400}",
            "all nodes need the same Python and Ray; this command runs on one of them (docs/cluster.md)",
        ) from error
    finally:
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, before)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
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


def _asked_threads() -> int:
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(asked) if asked.isdecimal() else 0


def _threads(nodes: list[dict[str, Any]], place: Place) -> int:
    """The threads of each worker: those that OMP_NUM_THREADS says, else the most with which all workers have
    room. Raises ClusterError where no worker has."""

    def room(threads: int) -> int:
        fits = 0
        for node in nodes:
            cpus, gpus = (node["Resources"].get(kind, 0.0) for kind in ("CPU", "GPU"))
            by_cpu = int(cpus // threads)
            fits += min(by_cpu, int(gpus / place.gpus + 1e-6)) if place.gpus else by_cpu
        return fits

    most = int(max((node["Resources"].get("CPU", 0.0) for node in nodes), default=1))
    threads = _asked_threads() or next((n for n in range(most, 1, -1) if room(n) >= place.workers), 1)
    if not room(threads):
        raise ClusterError(
            f"--cluster {place.address}: no worker of {threads} threads and {place.gpus:g} GPUs has room",
            "set OMP_NUM_THREADS or --gpus-per-worker lower, or start nodes where Ray sees their GPUs",
        )
    return threads


def _name(node: dict[str, Any]) -> str:
    address = node["NodeManagerAddress"]
    named = node.get("NodeName") or ""
    return one_line(named if named not in ("", address) else f"{node['NodeManagerHostname']} ({address})")


def _on(node: str, function: Any) -> Any:
    """A remote function that runs on that node and nowhere else, whatever else runs there."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return function.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))


# What follows runs at workers.


@dataclass(frozen=True)
class _Setting:
    """What every worker is told."""

    work: Work[Any, Any]
    device: str
    window: Mapping[str, Any]
    threads: int
    expected: Mapping[str, Any]
    """What a node has to have, see `of_node`."""
    driver: str
    """The id of the node where the command runs."""
    folder: str = field(default_factory=os.getcwd)
    models: str | None = None

    def take_up(self) -> None:
        """Threads, models folder and working folder as the command has them."""
        os.environ["OMP_NUM_THREADS"] = str(self.threads)
        if self.models and MODELS not in os.environ and os.path.isdir(self.models):
            os.environ[MODELS] = self.models
        with suppress(OSError):  # where it is not there, no relative path is seen
            os.chdir(self.folder)


def _told(packed: bytes) -> Any:
    """What `_pack` packed. Raises the UserError that it may be."""
    found = pickle.loads(packed)  # nosec B301 # of our own workers
    if isinstance(found, UserError):
        raise found
    return found


def _unlike(setting: _Setting) -> bytes:
    """What this node has otherwise than expected, in words, or a UserError."""
    setting.take_up()
    try:
        return pickle.dumps(differences(of_node(setting.work, setting.device), setting.expected))
    except UserError as error:
        return pickle.dumps(error)


def _described(setting: _Setting) -> bytes:
    setting.take_up()
    try:
        services = Services(setting.work.settings, setting.device)
        for role in setting.work.roles:
            services.client(role)
        return pickle.dumps(setting.work.describe(services))
    except UserError as error:
        return pickle.dumps(error)


class _Worker:
    """An actor: its `Runner` has a process of its own, so that a hang or a crash there does not end the actor.
    What it cannot do it says in place of rows."""

    def __init__(self, setting: _Setting):
        import ray

        self._setting, self._error = setting, None
        here = ray.get_runtime_context().get_node_id()
        self._node = next(_name(node) for node in ray.nodes() if node["NodeID"] == here)
        ask = _on(setting.driver, ray.remote(_files))
        self._ask: Any = None
        if here != setting.driver:
            self._ask = lambda seen: ray.get(ask.remote(setting.folder, seen))
        try:
            if unlike := _told(_unlike(setting)):
                raise ClusterError(
                    f"{self._node} has not what this command has: {unlike}", "install the same there"
                )
            self._runner = Runner(_Remote(setting.work), setting.device, **setting.window)
            self._runner.load()
        except UserError as error:
            self._error = type(error)(f"{self._node}: {error.message}", error.remedy)

    def __call__(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        futures = []
        for number, packed in zip(block["number"], block["item"], strict=True):
            if self._error:
                yield {"number": [number], "row": [pickle.dumps(self._error)]}
                return
            item = pickle.loads(packed)  # nosec B301 # of the driver
            futures.append((number, self._runner.submit(_Sent(item, self._missing(item)))))
        for number, future in futures:
            try:
                answer: Any = self._node, self._runner.description, future.result()
            except UserError as error:
                answer = error
            yield {"number": [number], "row": [pickle.dumps(answer)]}

    def _missing(self, item: Any) -> dict[str, bytes]:
        """The bytes of the item's files that this node does not see as the command does."""
        seen = {str(path): _facts(path) for path in self._setting.work.files(item)}
        return self._ask(seen) if self._ask else {}


def _files(folder: str, seen: Mapping[str, Facts | None]) -> dict[str, bytes]:
    """Runs at the command's node: the bytes of the files that are not as a worker sees them."""
    with suppress(OSError):
        os.chdir(folder)
    found = {}
    for path, facts in seen.items():
        with suppress(ImageError):
            if _facts(path) != facts:
                found[path] = read_file(path)
    return found


def _facts(path: str | Path) -> Facts | None:
    try:
        state = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return None
    return state.st_size, state.st_mtime_ns


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
        """What loading decided: the models' dtype, attention kernel, quantisation and more, and the threads that
        a CPU computes with, on which the last bits depend."""
        import torch

        found: dict[str, Any] = {"threads": torch.get_num_threads()} if services.device == "cpu" else {}
        for role in self.roles:
            about = services.client(role).describe()
            found |= {f"{about['name']}: {name}": about[name] for name in OF_MODELS if name in about}
        return found


def of_node(work: Work[Any, Any], device: str) -> dict[str, Any]:
    """What scores depend on at a node before a model is loaded, by the names that messages use. Raises
    BundleError for a models folder whose manifest is damaged, CalibrationError for tool maps that cannot be
    read."""
    models = of_models(work)
    return {
        **of_settings(work.settings, device),
        **{f"model {name}": sha256 for name, sha256 in models.pop("model").items()},
        **models,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "versions": None,
        **versions(PACKAGES),
        "agentic_iqa_local": package_hash(),
    }


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


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """What a worker has otherwise than expected, in words with both values; empty where it has all alike."""
    told = [
        f"{name} is {_short(found.get(name))}, expected {_short(expected.get(name))}"
        for name in {**expected, **found}
        if found.get(name) != expected.get(name)
    ]
    return "; ".join(told[:NAMED]) + (f"; and {len(told) - NAMED} more" if len(told) > NAMED else "")


def _short(value: Any) -> str:
    text = "not there" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[:12]}…"
