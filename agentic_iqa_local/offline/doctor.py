"""Examines whether a set-up will work on this machine: what is found, whether it will do, and the
remedy otherwise.

Every check runs in a process of its own without a network: one that hangs or crashes is a failed
check, and the next gets a new process.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pebble import ProcessExpired, ProcessPool

from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.offline import checks, deep
from agentic_iqa_local.offline.checks import ENVIRONMENT, Finding, Setup

TIMEOUT = 300.0  # seconds of one check
LOADED = ("device", "folder", "model ")  # what a check rests on that loads a model
Find = Callable[[Setup], Finding | None]  # None: there is nothing to examine


@dataclass(frozen=True)
class Check:
    """One thing that was examined. `remedy` is empty if it passed; `seconds` is how long it
    took."""

    name: str
    status: str
    found: str
    remedy: str
    seconds: float


class Step(NamedTuple):
    """A check to be done; `rests_on`: how the names of the checks begin that it rests on."""

    name: str
    find: Find
    rests_on: tuple[str, ...] = ()


def _plan(setup: Setup, is_deep: bool) -> list[Step]:
    """The checks in their order."""
    backends = setup.settings.backends
    steps = [
        Step("packages", checks.packages),
        Step("device", checks.device),
        Step("models folder", checks.models_folder),
    ]
    for backend in backends:
        steps.append(Step(f"folder {backend}", partial(checks.folder, backend=backend)))
    steps.append(Step("memory", checks.memory, LOADED))
    for backend in backends:
        steps.append(Step(f"model {backend}", partial(checks.model, backend=backend), LOADED))
    steps.append(Step("tools", checks.tools, ("device",)))
    if is_deep:
        steps.append(Step("plain forward", deep.plain_forward, LOADED))
    return steps


def _run(find: Find, setup: Setup) -> Finding | None:
    """A check's finding, in the process of the checks."""
    try:
        return find(setup)
    except UserError as error:
        remedy = error.remedy.rstrip(".") or "see docs/air_gapped.md"
        return Finding("fail", error.message, remedy)
    except Exception as error:
        said = " ".join(str(error).split())[:300] or "no message"
        return Finding("fail", f"{type(error).__name__}: {said}", ENVIRONMENT)


def _block_network(setup: Setup) -> None:
    """From now on Python's sockets of this process reach no address but the loopback's and a
    configured server's. It cannot be undone."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 # for as long as the process lives
    allowed = {"127.0.0.1", "::1", "localhost"}
    for backend in setup.settings.backends:
        if backend.startswith("server."):
            host = urlsplit(setup.settings.model(backend).server).hostname or ""
            allowed.add(host)
            allowed.update(str(entry[4][0]) for entry in socket.getaddrinfo(host, None))

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        host = None
        if event in ("socket.getaddrinfo", "socket.gethostbyname"):
            host = args[0].decode() if isinstance(args[0], bytes) else args[0]
        elif event in ("socket.connect", "socket.sendto") and args[0].family != socket.AF_UNIX:
            host = args[1][0]
        if host and host not in allowed:
            raise OSError(f"the doctor lets nothing reach the network, not even {host}")

    sys.addaudithook(refuse)


def _finding(pool: ProcessPool, find: Find, setup: Setup, timeout: float) -> Finding | None:
    """A check's finding, also if its process hangs or dies."""
    try:
        return pool.schedule(_run, (find, setup), timeout=timeout).result()
    except TimeoutError:
        remedy = "find out what it waits for: the disk or the device may merely be slow"
        return Finding("fail", f"no answer within {timeout:g} s", remedy)
    except ProcessExpired as error:
        killed = error.exitcode == -9  # as the kernel does where memory runs out
        remedy = "see the memory check" if killed else f"a library does not fit: {ENVIRONMENT}"
        return Finding("fail", f"its process died with status {error.exitcode}", remedy)


def examine(setup: Setup, *, is_deep: bool = False, timeout: float = TIMEOUT) -> Iterator[Check]:
    """Yields every check of a set-up as it is done; what rests on a failed one is left out.

    Args:
        setup: What is examined.
        is_deep: Whether letters are also compared with a plain forward pass.
        timeout: Seconds that one check may take.
    """
    failed: list[str] = []
    context: Any = get_context("spawn")
    with ProcessPool(1, context=context, initializer=_block_network, initargs=(setup,)) as pool:
        for step in _plan(setup, is_deep):
            if any(name.startswith(step.rests_on) for name in failed):
                continue
            began = time.perf_counter()
            finding = _finding(pool, step.find, setup, timeout)
            if finding is None:
                continue
            if finding.status == "fail":
                failed.append(step.name)
            seconds = round(time.perf_counter() - began, 3)
            status, found, remedy = finding
            yield Check(one_line(step.name), status, one_line(found), one_line(remedy), seconds)
