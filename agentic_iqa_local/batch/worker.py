"""A process that may hang or crash without harm to this one: it can be ended, with whatever it started, and
started again.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

PATIENCE = 10.0  # seconds in which a process may end by itself


class Worker:
    """Runs `target(pipe, *args)` in a fresh process, which leads a process group of its own. `pipe` is the
    other end of `send` and `receive`; what goes through it is pickled.
    """

    def __init__(self, target: Callable[..., None], *args: Any):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(target, theirs, *args))
        self._process.start()
        theirs.close()

    def send(self, message: Any) -> None:
        """Raises OSError where the process is gone."""
        self._pipe.send(message)

    def waits(self, seconds: float) -> bool:
        """Whether a message, or the process's end, comes within so many seconds."""
        return self._pipe.poll(seconds)

    def receive(self) -> Any:
        """The next message. Raises EOFError or OSError where the process is gone."""
        return self._pipe.recv()

    def end(self, patience: float = PATIENCE) -> int:
        """Lets the process end by itself for `patience` seconds, then kills it and whatever it started; its
        exit code, −N where signal N ended it."""
        self._pipe.close()
        self._process.join(patience)
        self._process.kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.join(PATIENCE)
        return self._process.exitcode or 0


def _run(target: Callable[..., None], pipe: Any, *args: Any) -> None:
    os.setsid()  # so that what libraries start can be ended together with it, and Ctrl-C is the parent's
    target(pipe, *args)


def cause_of_death(code: int) -> str:
    """How a process ended that was not meant to, by its exit code."""
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with status {code}"
