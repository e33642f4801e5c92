"""How a command begins and ends: its options, its exit status, and what Ctrl-C does meanwhile."""

import argparse
import difflib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from rich_argparse import RawDescriptionRichHelpFormatter

from agentic_iqa_local.cli.console import safe_streams, start_logging, tell
from agentic_iqa_local.config import ConfigError
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import command

if TYPE_CHECKING:
    from agentic_iqa_local.batch.ray import RayRunner
    from agentic_iqa_local.batch.runner import Runner

MOVED = {"--compare": "compare", "--best-of": "best", "--interactive": "chat", "--list-tools": "tools"}


class UsageError(UserError):
    """A command line that cannot be carried out."""


class Help(RawDescriptionRichHelpFormatter):
    """Help in colours on a terminal, its brackets as they are."""

    help_markup = text_markup = False
    group_name_formatter = str


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence. With `basic`, --help shows these options, and --help-all every one."""

    basic: Sequence[str] = ()
    completes = False

    @classmethod
    def of(cls, name: str, about: str | None, usage: str | None = None) -> "Parser":
        """The parser of the subcommand `name`. In `about`, its module's docstring, "{name}" stands for how a
        user of this installation runs it."""
        line = command(name)
        about = (about or "").replace(f"{{{name}}}", line)
        return cls(prog=line.removeprefix("python "), description=about, usage=usage, formatter_class=Help)

    def print_help(self, file: Any = None) -> None:
        if self.basic and "--help-all" not in sys.argv:
            for action in self._actions:
                action.help = action.help if action.dest in self.basic else argparse.SUPPRESS
        super().print_help(file or getattr(sys.stdout, "terminal", None))

    def parse_known_args(self, args=None, namespace=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        if "_ARGCOMPLETE" in os.environ and not self.completes:  # a shell asks what may stand here
            import argcomplete

            self.completes = True  # it parses what stands there with this parser
            argcomplete.autocomplete(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        if message.startswith("unrecognized arguments: "):
            given = message.removeprefix("unrecognized arguments: ").split()[0]
            near = difflib.get_close_matches(given, self._option_string_actions, n=1)
            near = [os.path.join(".", given)] if os.path.lexists(given) else near
            message = f"unknown option {given}" + (f"; did you mean {near[0]}?" if near else "")
            if given in MOVED:
                message = f"{given}: this is a command of its own, type {command(MOVED[given])}"
        end = "" if message[-1] in ".?" else "."
        self.exit(2, f"error: {one_line(message)}{end} All options: {self.prog} --help\n")


@safe_streams()
def run_command(
    parse: Callable[[list[str] | None], argparse.Namespace],
    action: Callable[[argparse.Namespace], int],
    argv: list[str] | None = None,
    **ending: Any,
) -> int:
    """Reads a command's arguments and does its work; the exit status, for which `ending` is told `exit_status`."""
    args = parse(argv)
    start_logging(getattr(args, "verbose", 0))
    return exit_status(lambda: action(args), **ending)


def exit_status(action: Callable[[], int], *, failed: int = 2, interrupted: str = "interrupted") -> int:
    """The exit status of a command whose work is `action`.

    It is what `action` returns; `failed` after an error that a user can mend, but 2 where the command line or the
    configuration is wrong; 130 after Ctrl-C or a polite kill. The error, or the sentence `interrupted`, goes to
    stderr in one line.
    """
    try:
        with like_ctrl_c(signal.default_int_handler):
            return action()
    except KeyboardInterrupt:
        tell(interrupted)
        return 130
    except BrokenPipeError:  # nobody reads stdout any more, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except UserError as error:
        tell(f"error: {error}")
        return 2 if isinstance(error, (UsageError, ConfigError)) else failed
    except OSError as error:
        tell(one_line(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}"))
        return failed


@contextmanager
def like_ctrl_c(handler: Callable[..., object]) -> Iterator[None]:
    """Gives Ctrl-C, SIGTERM and SIGHUP one handler, but for those that are ignored, as nohup has SIGHUP."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def stopped_by_ctrl_c(batch: "Runner | RayRunner", go_on: str) -> Iterator[None]:
    """Meanwhile the first Ctrl-C lets `batch` finish what is in hand, and the second ends this process; `go_on` says
    how to go on."""

    def interrupted(*_: object) -> None:
        if batch.stopping:
            cursor = "\033[?25h" if os.isatty(2) else ""  # which the line of progress hides
            os.write(2, f"{cursor}\nstopped; {one_line(go_on)}\n".encode())
            os._exit(130)
        batch.stop()
        os.write(2, b"\nstopping when the pictures in hand are finished; Ctrl-C again stops at once\n")

    with like_ctrl_c(interrupted):
        yield
