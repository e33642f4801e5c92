"""Ray, and nothing else of this package imports it: a cluster that is joined or started, its nodes, and a
worker as an actor on one of them. Ray is an extra."""

import importlib.util
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic_iqa_local.batch.cluster.actor import Message, Servant
from agentic_iqa_local.batch.runner import BatchError
from agentic_iqa_local.files import PACKAGE, ROOT
from agentic_iqa_local.text import one_line

LOCAL = "local"
ANSWERS_WITHIN = 5.0  # seconds
OBJECT_STORE = 200 * 2**20  # bytes: rows and pictures pass through it, none stays
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
# HTTP/2's greeting with empty settings (RFC 9113, 3.4); gRPC answers with a frame of the type SETTINGS
GREETING, SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4" + b"\0" * 5, 4


class ClusterError(BatchError):
    """A cluster that cannot be used; one sentence for the user."""


def check_installed() -> None:
    """Raises ClusterError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ClusterError(
            "--cluster: expected the extra ray, it is not installed",
            'pip install "agentic_iqa_local[ray]" (in a checkout: pip install -c constraints.txt ".[ray]")',
        )


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, with the cores and GPUs that Ray may give."""

    id: str
    name: str
    cpus: float
    gpus: float

    def room(self, threads: int, gpus: float) -> int:
        """How many workers fit."""
        by_cpu = int(self.cpus // threads)
        return min(by_cpu, int(self.gpus / gpus + 1e-6)) if gpus else by_cpu


@dataclass(frozen=True)
class Gone:
    """In place of messages: a worker that is no more; `unreachable`: for all that is known its node is what
    failed."""

    why: str
    unreachable: bool = False


class Cluster:
    """The cluster at `address` (HOST:PORT or "auto"), or with "local" one of this machine alone, with `cpus`
    places for threads, that ends with this. Raises ClusterError."""

    def __init__(self, address: str, cpus: int):
        check_installed()
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's is 15: all else on a machine would go first
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change to come
        self._scratch = tempfile.mkdtemp(prefix="iqa-ray-", dir="/tmp") if address == LOCAL else None  # nosec B108
        check_address(address)
        _set_token(address)
        import ray

        self._ray = ray
        try:
            # Ray puts the working folder before everything that workers import: a folder of pictures is no
            # place for that.
            with _signals_kept(), chdir(ROOT if ROOT != PACKAGE else "/"):
                self._join(address, cpus)
        except BaseException:
            self.close()
            raise
        self._names: dict[str, str] = {}

    def _join(self, address: str, cpus: int) -> None:
        started: dict[str, Any] = {}
        if self._scratch:
            started = {
                "num_cpus": cpus,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE,
                "_temp_dir": self._scratch,
            }
        ray: Any = self._ray  # it does not declare what is used of it here
        quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
        try:
            ray.init(address=address, **started, **quiet)
            # Ray would print a page whenever a worker dies, which is told in a sentence here; its own switch
            ray._private.worker._worker_logs_enabled = False
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            why = " ".join(one_line(line) for line in str(error).split("\n") if line.strip())
            raise ClusterError(
                f"--cluster {address}: it cannot be joined: {why:.400}",
                "all nodes need the same Python and Ray; this command runs on one of them (docs/cluster.md)",
            ) from error

    def nodes(self) -> list[Node]:
        """The nodes that are alive, under names that tell them apart."""
        return [
            Node(
                about["NodeID"],
                self._name(about),
                about["Resources"].get("CPU", 0.0),
                about["Resources"].get("GPU", 0.0),
            )
            for about in self._ray.nodes()
            if about["Alive"]
        ]

    def _name(self, about: dict[str, Any]) -> str:
        address, node = about["NodeManagerAddress"], about["NodeID"]
        if node not in self._names:
            name = about.get("NodeName") or ""
            name = one_line(
                name if name not in ("", address) else f"{about['NodeManagerHostname']} ({address})"
            )
            twin = name in self._names.values()
            self._names[node] = f"{name} #{len(self._names) + 1}" if twin else name
        return self._names[node]

    def start(self, node: Node, threads: int, gpus: float, *arguments: Any) -> "Remote":
        """A worker on that node, and nowhere else; `arguments` are those of `Servant`."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {
            "num_cpus": threads,
            "num_gpus": gpus,
            "max_concurrency": 4,  # `hear` waits while `take` brings more
            "max_restarts": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
        }
        return Remote(self._ray, self._ray.remote(Servant).options(**options).remote(*arguments, threads))

    def wait(
        self, remotes: Sequence["Remote"], seconds: float
    ) -> list[tuple["Remote", list[Message] | Gone]]:
        """What came from workers within so many seconds."""
        waiting = {remote.heard: remote for remote in remotes}
        if not waiting:
            threading.Event().wait(seconds)
            return []
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=seconds)
        if ready:  # what else is there already
            ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        return [(waiting[heard], waiting[heard].hear()) for heard in ready]

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        with suppress(AttributeError):
            self._ray.shutdown()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)


class Remote:
    """A worker, wherever it runs."""

    def __init__(self, ray: Any, actor: Any):
        self._ray, self._actor = ray, actor
        self.heard = actor.hear.remote()

    def send(self, *message: Any) -> None:
        """Where the worker is gone, hearing from it says so."""
        self._actor.take.remote(*message)

    def hear(self) -> list[Message] | Gone:
        """What has come; asks for more."""
        try:
            messages = self._ray.get(self.heard)
        except self._ray.exceptions.RayError as error:
            return Gone(_cause(error), isinstance(error, self._ray.exceptions.ActorUnavailableError))
        self.heard = self._actor.hear.remote()
        return messages

    def end(self) -> None:
        """Kills the worker's process, whatever it is doing."""
        with suppress(self._ray.exceptions.RayError, RuntimeError):
            self._ray.kill(self._actor)


def _cause(error: Exception) -> str:
    """What Ray says of an actor's end, without its advice."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()] or [type(error).__name__]
    detail = re.search(r"exit detail: (.*?)(?: Some common causes|$)", lines[-1])
    return one_line(detail[1] if detail else lines[-1])[:300]


def check_address(address: str) -> None:
    """Raises ClusterError unless it is local or auto, or Ray's port answers at HOST:PORT. Ray itself would
    try for more than a minute."""
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise ClusterError(
            f"--cluster {address}: expected local, auto or HOST:PORT",
            "`ray start --head` prints the address of a cluster",
        )
    try:
        with socket.create_connection((host, int(port)), ANSWERS_WITHIN) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "1":  # Ray itself checks the certificates
                return
            connection.sendall(GREETING)
            if connection.recv(9)[3:4] != bytes([SETTINGS]):
                raise OSError("another program answers there")
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"--cluster {address}: no Ray cluster answers there ({error.args[-1]})",
            "start one with `ray start --head --port PORT` on that host (docs/cluster.md)",
        ) from error


def _set_token(address: str) -> None:
    """A cluster of this process alone gets a token that nobody else knows, whatever Ray's default is. One
    that is joined is shown the token that this user has. Ray reads all of this when it is imported."""
    if address == LOCAL:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    elif any(map(os.environ.get, TOKENS)) or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it starts; it is the command's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
