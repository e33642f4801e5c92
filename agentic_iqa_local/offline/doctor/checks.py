"""What a check is: a finding about a set-up with its status, its remedy and how long it took."""

import functools
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import choose_device
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.iqa_tools import ToolRunner
from agentic_iqa_local.paths import command
from agentic_iqa_local.services import Services
from agentic_iqa_local.text import one_line

Status = Literal["pass", "warn", "fail"]
Finding = tuple[Status, str, str]  # status, what was found, remedy

GIB = 2**30
ENVIRONMENT = (
    f"run it in the project's environment: {command('doctor', made=True)}, or without a network in one made"
    " of a bundle's wheels (docs/air_gapped.md)"
)


@dataclass(frozen=True)
class Check:
    """One thing that was examined, each text on one line. `remedy` is empty where it passed; `seconds` is how
    long it took."""

    name: str
    status: Status
    found: str
    remedy: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Makes one line of each text: they name folders, and quote what libraries and processes say."""
        for field in ("name", "found", "remedy"):
            object.__setattr__(self, field, one_line(getattr(self, field)))


@dataclass(frozen=True)
class Setup:
    """What is examined: a configuration and the device that `gpu` and `cpu` ask for, as `choose_device` reads
    them."""

    settings: Settings
    gpu: str | None = None
    cpu: bool = False
    quick: bool = False

    @cached_property
    def device(self) -> str:
        return choose_device(self.gpu, self.cpu)

    @cached_property
    def services(self) -> Services:
        """The models, loaded once and kept."""
        return Services(self.settings, self.device)

    def folder(self, backend: str) -> Path:
        """Where a backend's model lies."""
        return Path(self.settings.model(backend).path or backend)

    @property
    def backends(self) -> list[str]:
        """The configuration's distinct models, ENGINE.FOLDER."""
        return list(
            dict.fromkeys(self.settings.role(role).backend for role in ("planner", "executor", "summarizer"))
        )

    def uses(self, engine: str) -> bool:
        return any(backend.partition(".")[0] == engine for backend in self.backends)

    @property
    def named_tools(self) -> list[str]:
        """The tools that the configuration names."""
        names = (*self.settings.tools.full_reference, *self.settings.tools.no_reference)
        return list(dict.fromkeys(names))

    def tools(self) -> ToolRunner:
        """A runner that has built no metric yet."""
        return Services(self.settings, self.device).tools


class Examination:
    """A function that finds something out about a set-up, and makes a timed `Check` of it.

    A `UserError` that it raises is a fail with the error's own remedy; any other exception is one with the
    remedy of the examination. It is pickled by its name, as a function is.
    """

    def __init__(self, find: Callable[..., Finding | None], title: str, remedy: str) -> None:
        functools.update_wrapper(self, find)
        self._find, self._title, self._remedy = find, title, remedy

    def __reduce__(self) -> str:
        return self._find.__qualname__

    def name(self, *about: str) -> str:
        """What `Check.name` is for an examination of `about`."""
        return one_line(" ".join((self._title, *about)))

    def __call__(self, setup: Setup, *about: str) -> Check | None:
        """None where there is nothing to examine."""
        began = time.perf_counter()
        try:
            finding = self._find(setup, *about)
        except UserError as error:
            finding = ("fail", error.message, error.remedy.rstrip(".") or self._remedy)
        except Exception as error:
            said = " ".join(str(error).split())[:300] or "no message"
            finding = ("fail", f"{type(error).__name__}: {said}", self._remedy)
        return finding and Check(self.name(*about), *finding, seconds=round(time.perf_counter() - began, 3))


def check(title: str, remedy: str) -> Callable[[Callable[..., Finding | None]], Examination]:
    """Makes an `Examination` of the function that it decorates."""
    return lambda find: Examination(find, title, remedy)


def gib(size: float) -> str:
    """Bytes for a reader, in GiB."""
    return f"{size / GIB:.2f} GiB"


def as_text(found: Check, width: int = 118) -> str:
    """A check as aligned lines: status, seconds, name, what was found; and the remedy below."""
    head = f"{found.status}  {found.seconds:6.1f} s  {found.name:<30}"
    column = len(f"pass  {0:6.1f} s  {'':<30} ")
    lines = _column(found.found, column, width)
    if len(head) < column:
        lines[0] = head + lines[0][len(head) :]
    else:
        lines = [head, *lines]
    return "\n".join(lines + (_column(f"remedy: {found.remedy}", column, width) if found.remedy else []))


def _column(text: str, indent: int, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
