"""Examines whether a set-up will work on this machine: what is found, whether it will do, and the
remedy otherwise. Nothing reaches the network meanwhile."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from agentic_iqa_local.errors import UserError, first_line, one_line
from agentic_iqa_local.offline import checks, deep
from agentic_iqa_local.offline.checks import ENVIRONMENT, Finding, Setup

NEEDED = ("device", "files", "model ")  # if one of these checks fails,
LOADING = ("memory", "model ", "probe", "plain")  # these are left out
MEASURING = ("tools", "fusion")  # these need a device, and the fusion needs the tools
CARD = "see nvidia-smi for the driver and for who uses the card, or pass --cpu"
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
        yield f"files of {backend}", partial(checks.folder, backend=backend)
    yield "memory", checks.memory
    for backend in backends:
        yield f"model {backend}", partial(checks.model, backend=backend)
    yield "tools", checks.tools
    yield "fusion", checks.fusion
    if is_deep:
        yield "probe", deep.probe
        yield "plain forward", deep.plain_forward


def _found(find: Find, setup: Setup) -> Finding | None:
    """A check's finding, a failure where it raises."""
    try:
        with _apart(setup):
            return find(setup)
    except UserError as error:
        remedy = error.remedy.rstrip(".") or "see docs/air_gapped.md"
        return Finding("fail", error.message, remedy)
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        return Finding("fail", said, CARD if "CUDA" in said else ENVIRONMENT)


@contextmanager
def _apart(setup: Setup) -> Iterator[None]:
    """Meanwhile no library prints, and unless a server is configured Python's sockets reach no other
    machine."""

    def refuse(*address: Any, **_: Any) -> None:
        raise OSError(f"the doctor lets nothing reach the network, not even {address[-2:]}")

    with ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(redirect_stdout(nowhere))
        stack.enter_context(redirect_stderr(nowhere))
        engines = {backend.partition(".")[0] for backend in setup.settings.backends}
        if not engines & {"server", "llamacpp"}:
            stack.enter_context(patch.object(socket.socket, "connect", refuse))
            stack.enter_context(patch("socket.getaddrinfo", refuse))
        yield


def examine(setup: Setup, *, is_deep: bool = False) -> Iterator[Check]:
    """Yields every check of a set-up as it is done. Without a device or with a damaged model nothing
    is loaded.

    Args:
        setup: What is examined.
        is_deep: Whether letters are also compared with a plain forward pass.
    """
    can_load = can_measure = True
    for name, find in _plan(setup, is_deep):
        if name.startswith(LOADING) and not can_load:
            continue
        if name in MEASURING and not can_measure:
            continue
        began = time.perf_counter()
        finding = _found(find, setup)
        if finding is None:
            continue
        if finding.status == "fail":
            can_load = can_load and not name.startswith(NEEDED)
            can_measure = can_measure and name not in ("device", "tools")
        seconds = round(time.perf_counter() - began, 3)
        status, found, remedy = finding
        yield Check(one_line(name), status, one_line(found), one_line(remedy), seconds)
