"""A work without a model, for what happens around it: a picture's name says what its work does. And the command in
the test's own process."""

import ctypes
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.batch.runner import Runner
from agentic_iqa_local.batch.work import AssessWork
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import MODEL
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError

CROWD = threading.BoundedSemaphore(1)


@dataclass(frozen=True)
class Acting(AssessWork):
    """Its rows are failures that name the process that made them."""

    roles = ()

    def load(self, services):
        pass

    def failure(self, item, error, sha256=None):
        return Assessment(image=str(item.image), query=item.query, error=error)

    def row(self, item, services, observer):
        match item.image.stem.partition("-")[0]:
            case "segfault":
                ctypes.string_at(0)
            case "exit":
                os._exit(7)
            case "kill":  # the actor of Ray around the process, too
                os.kill(os.getppid(), signal.SIGKILL)
                os._exit(7)
            case "once":  # dies the first time
                if not item.image.exists():
                    item.image.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            case "stuck":  # holds the interpreter: nothing in the process can end it
                ctypes.PyDLL(None).sleep(10_000)
            case "raise":
                raise KeyError("no such thing")
            case "card":  # is gone the first time
                if not item.image.exists():
                    item.image.touch()
                    raise ModelLost("the card is gone")
            case "lost":
                with observer.calling(MODEL):
                    raise ModelLost("the engine is gone")
            case "crowded":  # runs out of memory beside another
                with observer.calling(MODEL):
                    if not CROWD.acquire(blocking=False):
                        raise OutOfMemory("memory ran out")
                    time.sleep(0.05)
                    CROWD.release()
            case "step":
                observer.step("planner", "started")
            case "dark":
                logging.getLogger("agentic_iqa_local.nodes.workbench").warning("too dark")
        return self.failure(item, f"made by {os.getpid()}")


@dataclass(frozen=True)
class Slow(Acting):
    """Takes so long that a signal finds it at work."""

    def row(self, item, services, observer):
        time.sleep(0.25)
        return super().row(item, services, observer)


@dataclass(frozen=True)
class Unloadable(Acting):
    def load(self, services):
        services.client("summarizer")

    def row(self, item, services, observer):
        raise VLMError("never reached")


def as_a_command(*words: object, stdout: int = 1) -> int:
    """The exit status of `agentic-iqa` in this process, whose file descriptor 1 is then what it was."""
    before = os.dup(1)
    os.dup2(stdout, 1)
    try:
        return main([*map(str, words)])
    finally:
        os.dup2(before, 1)
        os.close(before)


def acting(**options) -> Runner:
    return Runner(Acting(load_settings(), "letters"), **options)


def items(folder: Path, *names: str) -> list[Item]:
    return [Item(folder / f"{name}.png") for name in names]
