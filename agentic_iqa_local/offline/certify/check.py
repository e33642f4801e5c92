"""What a check found: status, verdict in one sentence, figures."""

from dataclasses import dataclass, field
from typing import Any, Literal

from agentic_iqa_local.text import one_line

Status = Literal["pass", "fail", "reported", "not run"]


@dataclass(frozen=True)
class Check:
    """One named check. `verdict` is one sentence; `problems` are the faults found, a sentence each, none
    where it passed; `figures` are rows of a table. "reported" tells what may be compared and is no fault.
    "not run" has its reason as its verdict."""

    name: str
    status: Status
    verdict: str
    problems: tuple[str, ...] = ()
    figures: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0)

    def __post_init__(self) -> None:
        """Makes one line of each text: they quote files, libraries and servers."""
        object.__setattr__(self, "verdict", one_line(self.verdict))
        for name in ("problems", "notes"):
            object.__setattr__(self, name, tuple(map(one_line, getattr(self, name))))


def judged(
    name: str,
    problems: list[str],
    sound: str,
    figures: list[dict[str, Any]] | None = None,
    notes: list[str] | None = None,
) -> Check:
    """A check that passes without problems, with the verdict `sound`; its verdict is else the first
    problem."""
    verdict = sound if not problems else problems[0]
    if len(problems) > 1:
        verdict += f" (and {len(problems) - 1} more)"
    status: Status = "fail" if problems else "pass"
    return Check(name, status, verdict, tuple(problems), tuple(figures or ()), tuple(notes or ()))


def not_run(name: str, reason: str) -> Check:
    return Check(name, "not run", f"not run: {reason}")
