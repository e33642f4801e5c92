"""How a command begins and ends: its options, its exit status, one sentence for a mistake, and what Ctrl-C does."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from rich_argparse import RawDescriptionRichHelpFormatter

from agentic_iqa_local.cli.console import safe_streams, start_logging, tell
from agentic_iqa_local.config import ConfigError
from agentic_iqa_local.errors import UserError, did_you_mean, one_line
from agentic_iqa_local.files import command

if TYPE_CHECKING:
    from agentic_iqa_local.batch.ray import RayRunner
    from agentic_iqa_local.batch.runner import Runner


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
            near = f"; did you mean {os.path.join('.', given)}?" if os.path.lexists(given) else ""
            message = f"unknown option {given}{near or did_you_mean(given, self._option_string_actions)}"
        end = "" if message[-1] in ".?" else "."
        self.exit(2, f"error: {one_line(message)}{end} All options: {self.prog} --help\n")


@dataclass
class Command:
    """A subcommand; called with its arguments (default: the command line's) it does its work and returns the exit
    status.

    Args:
        name: After which it is called.
        about: Its module's docstring, the help, in which "{NAME}" stands for how a user of this installation runs the
            subcommand NAME.
        add: Adds its options to a parser.
        action: Its work with the options, which returns the exit status and raises UserError.
        read: Parses the words that a parser with those options is given, where that takes more than its `parse_args`.
        usage: Its first line of help, where argparse's own is too long.
        failed: The exit status of an error that a user can mend.
        interrupted: What is said after Ctrl-C.
    """

    name: str
    about: str | None
    add: Callable[[Parser], None]
    action: Callable[[argparse.Namespace], int]
    read: Callable[[Parser, list[str] | None], argparse.Namespace] = Parser.parse_args
    usage: str | None = None
    failed: int = 2
    interrupted: str = "interrupted"

    def parse(self, argv: list[str] | None = None) -> argparse.Namespace:
        """The options in `argv`, or one sentence and an exit."""
        about = self.about or ""
        for name in ("verify", "unpack", "compare", "best", self.name):
            about = about.replace(f"{{{name}}}", command(name))
        parser = Parser(command(self.name), self.usage, about, formatter_class=Help)
        self.add(parser)
        return self.read(parser, argv)

    @safe_streams()
    def __call__(self, argv: list[str] | None = None) -> int:
        args = self.parse(argv)
        start_logging(getattr(args, "verbose", 0))
        return exit_status(lambda: self.action(args), failed=self.failed, interrupted=self.interrupted)


def exit_status(action: Callable[[], int], *, failed: int = 2, interrupted: str = "interrupted") -> int:
    """The exit status of a command whose work is `action`.

    It is what `action` returns; `failed` after an error that a user can mend, but 2 where the command line or the
    configuration is wrong; 130 after Ctrl-C or a polite kill; 0 where nobody reads stdout any more, as with `| head`.
    The error, or the sentence `interrupted`, goes to stderr in one line.
    """
    try:
        with like_ctrl_c(signal.default_int_handler):
            return action()
    except KeyboardInterrupt:
        tell(interrupted)
        return 130
    except BrokenPipeError:
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
