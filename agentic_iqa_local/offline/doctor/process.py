"""The process apart in which checks run, without a network. It may hang or crash: the next check gets a new
one."""

import errno
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from agentic_iqa_local.batch.worker import Worker, cause_of_death
from agentic_iqa_local.config import Settings
from agentic_iqa_local.offline.doctor.checks import Check, Examination, Setup

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def _addresses(host: str) -> set[str]:
    """A host's name and its addresses, as far as they are known."""
    with suppress(OSError):
        return {host} | {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    return {host}


def block_network(settings: Settings, attempts: list[str]) -> None:
    """From now on Python's sockets of this process reach no address but that of a configured server, and this
    machine itself where vLLM's engine talks to itself. What else is tried fails as without a network, and is
    added to `attempts`.

    It cannot be undone.
    """
    allowed: set[str] = set()
    for backend in Setup(settings).backends:
        if backend.startswith("vllm."):
            allowed |= LOOPBACK
        elif backend.startswith("server."):
            allowed |= _addresses(urlsplit(settings.model(backend).server).hostname or "")

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            if args[0].family not in (socket.AF_INET, socket.AF_INET6) or not args[1]:
                return
            host = args[1][0]
        elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr") and args[0]:
            host = args[0]
        else:
            return
        if (name := host.decode() if isinstance(host, bytes) else str(host)) not in allowed:
            attempts.append(name)
            raise OSError(errno.ENETUNREACH, f"the doctor lets nothing reach the network, not even {name}")

    sys.addaudithook(refuse)


def _work(pipe: "Connection", setup: Setup, log: str) -> None:
    """What the process apart does: one check after another, until there is nothing to read any more."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    attempts: list[str] = []
    block_network(setup.settings, attempts)
    with suppress(EOFError):
        while True:
            examination, about = pipe.recv()
            result: Check | None = examination(setup, *about)
            if result and attempts:
                result = _with_attempts(result, attempts)
                attempts.clear()
            pipe.send(result)


def _with_attempts(result: Check, hosts: list[str]) -> Check:
    """The result of a check that tried to reach `hosts`: a warning, or the failure that it was."""
    return replace(
        result,
        status="fail" if result.status == "fail" else "warn",
        found=f"{result.found}; it tried to reach {', '.join(sorted(set(hosts)))}",
        remedy=result.remedy
        or "find out what wants the network; where packets vanish it waits for an answer",
    )


class Apart:
    """A process in which checks run; it is started for the first, and anew after one that hung or killed
    it."""

    def __init__(self, setup: Setup, timeout: float):
        self.setup, self.timeout = setup, timeout
        self._log = os.devnull  # what the process prints, for its last words
        with suppress(OSError):  # that nothing can be written is for a check to say
            handle, self._log = tempfile.mkstemp(prefix="doctor-", suffix=".log")
            os.close(handle)
        self._worker: Worker | None = None
        self._code = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop(patience=0 if kind else 10)
        if self._log != os.devnull:
            os.unlink(self._log)

    def ask(self, examination: Examination, *about: str) -> Check | None:
        """The check's result; a failed one when it takes longer than the timeout, or when the process
        dies."""
        began = time.perf_counter()
        try:
            if self._worker is None:
                self._worker = Worker(_work, self.setup, self._log)
            self._worker.send((examination, about))
            if self._worker.waits(self.timeout):
                return self._worker.receive()
            found = f"no answer within {self.timeout:g} s"
            remedy = (
                "raise --timeout if the disk or the device is merely slow; else find out what it waits for"
            )
            self._stop(patience=0)
        except (EOFError, OSError):
            self._stop(patience=10)
            found, remedy = self._cause()
        return Check(examination.name(*about), "fail", found, remedy, round(time.perf_counter() - began, 3))

    def _stop(self, patience: float) -> None:
        if self._worker:
            self._code, self._worker = self._worker.end(patience), None

    def _cause(self) -> tuple[str, str]:
        """Why the process died, and what to do."""
        lines = Path(self._log).read_text(errors="replace").split("\n")
        last = next(
            (f"; the last it said: {line.strip()[:200]}" for line in reversed(lines) if line.strip()), ""
        )
        found = f"{cause_of_death(self._code)}{last}"
        if self._code >= 0:
            return found, "see what it said, and repair the environment"
        remedy = {
            "SIGKILL": "most likely memory ran out: see the memory check",
            "SIGILL": "a library is built for another processor: install a build for this one",
        }.get(
            signal.Signals(-self._code).name,
            "a library is broken or does not fit another one: make the environment anew",
        )
        return found, remedy
