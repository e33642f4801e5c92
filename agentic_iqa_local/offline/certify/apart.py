"""One task in a fresh process, with a time limit: it may crash, hang or fill a card's memory, and leaves
nothing behind."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.batch.worker import Worker, cause_of_death
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.text import one_line

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class ApartError(UserError, RuntimeError):
    """A task that ended without a result."""


def in_fresh_process(task: Callable[..., Any], *args: Any, timeout: float) -> Any:
    """What `task(*args)` returns, run in a process of its own. Raises what the task raises of UserError, and
    ApartError for any other end."""
    handle, log = tempfile.mkstemp(prefix="certify-", suffix=".log")
    os.close(handle)
    worker, patience = Worker(_work, log, task, args), 0.0
    try:
        if not worker.waits(timeout):
            raise ApartError(f"no answer within {timeout:g} s", "raise --timeout if the device is slow")
        kind, result = worker.receive()
        patience = 20.0
    except (EOFError, OSError):
        code, patience = worker.end(10), 0.0
        raise ApartError(f"{cause_of_death(code)}{_last_words(log)}", "see what it said") from None
    finally:
        worker.end(patience)
        os.unlink(log)
    if kind == "error":
        raise result
    return result


def _work(pipe: "Connection", log: str, task: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        answer = ("result", task(*args))
    except UserError as error:
        answer = ("error", error)
    except Exception as error:  # of any library: it is a finding, not a crash of the command
        said = one_line(" ".join(str(error).split())[:300])
        answer = ("error", ApartError(f"{type(error).__name__}: {said or 'no message'}"))
    pipe.send(answer)


def _last_words(log: str) -> str:
    lines = [line.strip() for line in Path(log).read_text(errors="replace").split("\n") if line.strip()]
    return f"; the last it said: {one_line(lines[-1][:200])}" if lines else ""
