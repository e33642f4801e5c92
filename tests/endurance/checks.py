"""What a check of a damaged input may find, and how long it may take."""

import faulthandler
from collections.abc import Callable
from pathlib import Path

from agentic_iqa_local.text import one_line

STUCK = 60  # seconds after which one step counts as a hang
# seconds for one damaged file, and for an assessment beyond a normal one, or three where answers are damaged
ALLOWED = 5.0


class Wrong(Exception):
    """The product did what it promises not to do."""


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise Wrong(problem)


def is_one_line(text: str) -> bool:
    return one_line(text) == text


def peak_memory() -> int:
    """Bytes (Linux)."""
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def guarded(check: Callable[[], str], what: str, wrong: list[str]) -> str:
    """What `check` gives, or "wrong" and a line about the error. A hang ends the process with its stack."""
    faulthandler.dump_traceback_later(STUCK, exit=True)
    try:
        return check()
    except Exception as error:  # a crash is what these runs look for
        wrong.append(f"{what}: {error!r}"[:500])
        return "wrong"
    finally:
        faulthandler.cancel_dump_traceback_later()
