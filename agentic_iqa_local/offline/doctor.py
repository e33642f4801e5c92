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
from typing import Any

from pebble import ProcessExpired, ProcessPool

from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.offline import checks, deep
from agentic_iqa_local.offline.checks import ENVIRONMENT, Finding, Setup

TIMEOUT = 300.0  # seconds of one check
NEEDED = ("device", "folder", "model ")  # if one of these checks fails,
LOADING = ("memory", "model ", "plain")  # these are left out
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


def _plan(setup: Setup, is_deep: bool) -> Iterator[tuple[str, Find]]:
    """The names of the checks, and the checks, in their order."""
    backends = setup.settings.backends
    yield "packages", checks.packages
    yield "device", checks.device
    yield "models folder", checks.models_folder
    for backend in backends:
        yield f"folder {backend}", partial(checks.folder, backend=backend)
    yield "memory", checks.memory
    for backend in backends:
        yield f"model {backend}", partial(checks.model, backend=backend)
    yield "tools", checks.tools
    if is_deep:
        yield "plain forward", deep.plain_forward


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
    """From now on Python's sockets of this process reach no address but the loopback's, unless a
    server is configured. It cannot be undone."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 # for as long as the process lives
    if any(backend.startswith("server.") for backend in setup.settings.backends):
        return

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        host = None
        if event in ("socket.getaddrinfo", "socket.gethostbyname"):
            host = args[0].decode() if isinstance(args[0], bytes) else args[0]
        elif event in ("socket.connect", "socket.sendto") and args[0].family != socket.AF_UNIX:
            host = args[1][0]
        if host not in (None, "127.0.0.1", "::1", "localhost"):
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
    """Yields every check of a set-up as it is done. Without a device or with a damaged model nothing
    is loaded.

    Args:
        setup: What is examined.
        is_deep: Whether letters are also compared with a plain forward pass.
        timeout: Seconds that one check may take.
    """
    can_load = True
    context: Any = get_context("spawn")
    with ProcessPool(1, context=context, initializer=_block_network, initargs=(setup,)) as pool:
        for name, find in _plan(setup, is_deep):
            if name.startswith(LOADING) and not can_load:
                continue
            began = time.perf_counter()
            finding = _finding(pool, find, setup, timeout)
            if finding is None:
                continue
            if finding.status == "fail" and name.startswith(NEEDED):
                can_load = False
            seconds = round(time.perf_counter() - began, 3)
            status, found, remedy = finding
            yield Check(one_line(name), status, one_line(found), one_line(remedy), seconds)
