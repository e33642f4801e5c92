"""How a command begins and ends: its parser, its exit status, one sentence for a mistake, and what
Ctrl-C does."""

import argparse
import os
import pkgutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, RootModel
from rich_argparse import RawDescriptionRichHelpFormatter

from agentic_iqa_local.cli.console import start_logging, tell
from agentic_iqa_local.cli.options import UsageError, add, option_names, options_in, read
from agentic_iqa_local.config import ConfigError
from agentic_iqa_local.errors import UserError, did_you_mean, one_line
from agentic_iqa_local.files import PROGRAM, read_record


class Command(BaseModel):
    """A command as commands.yaml declares it."""

    line: str
    about: str
    work: str
    takes: dict[str, str | None] = {}
    usage: str = ""
    options: str
    basic: str = ""
    helps: dict[str, str] = {}
    metavars: dict[str, str] = {}
    required: str = ""
    failed: int = 2


class Commands(RootModel[dict[str, Command]]):
    """commands.yaml."""


COMMANDS = read_record(Path(__file__).with_name("commands.yaml"), Commands).root


class Help(RawDescriptionRichHelpFormatter):
    """Help in colours on a terminal, its brackets as they are."""

    help_markup = text_markup = False
    group_name_formatter = str


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        _, unknown, words = message.partition("unrecognized arguments: ")
        if unknown:
            given = words.partition(" ")[0] or "''"
            message = f"unknown option {given}{did_you_mean(given, self._option_string_actions)}"
        word = "--help-all" if "--help-all" in self._option_string_actions else "--help"
        self.exit(2, f"error: {one_line(message)} (all options: {self.prog} {word})\n")


def parser_of(name: str, every_option: bool) -> Parser:
    """The parser of a command; of its rarer options --help is silent unless `every_option` is to be
    shown."""
    entry = COMMANDS[name]
    typed = f"{PROGRAM} {name}"
    usage = f"%(prog)s {entry.usage} [options]".replace("  ", " ")
    parser = Parser(typed, usage, entry.about.replace("{}", typed), formatter_class=Help)
    for taken, nargs in entry.takes.items():
        kind = str if taken == "pictures" else Path
        about = entry.helps.get(taken)
        parser.add_argument(taken, nargs=nargs, metavar=taken.upper(), type=kind, help=about)
    for option in option_names(entry.options):
        about, shape = entry.helps.get(option), {}
        if entry.basic and option not in entry.basic.split() and not every_option:
            about = argparse.SUPPRESS
        if option in entry.metavars:
            shape["metavar"] = entry.metavars[option]
        if option == entry.required:
            shape["required"] = True
        add(parser, option, about, **shape)
    if entry.basic:
        every = "show every option (docs/command_line.md explains them)"
        parser.add_argument("--help-all", action="help", help=every)
    return parser


def parse(name: str, argv: list[str]) -> argparse.Namespace:
    """The options that a command is given, or one sentence and an exit."""
    parser = parser_of(name, every_option="--help-all" in options_in(argv))
    return read(parser, argv)


def run(name: str, argv: list[str]) -> int:
    """Does a subcommand's work; its exit status."""
    args = parse(name, argv)
    start_logging(getattr(args, "verbose", 0))
    entry = COMMANDS[name]

    def work() -> int | None:
        return pkgutil.resolve_name(f"agentic_iqa_local.cli.{entry.work}")(args)

    return exit_status(work, failed=entry.failed)


def exit_status(action: Callable[[], int | None], *, failed: int = 2) -> int:
    """The exit status of a command whose work is `action`: what that returns; `failed` after an
    error that a user can mend, but 2 where the command line or the configuration is wrong; 130
    after Ctrl-C or a polite kill; 0 where nobody reads stdout any more, as with `| head`. What was
    wrong goes to stderr in one line."""
    try:
        with like_ctrl_c(signal.default_int_handler):
            return action() or 0
    except KeyboardInterrupt:
        tell("interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except ModuleNotFoundError as error:
        install = "pip install 'agentic_iqa_local[serve]' or install it itself"
        tell(f"error: expected the package {error.name}; {install}")
        return 2
    except UserError as error:
        tell(f"error: {error}")
        return 2 if isinstance(error, (UsageError, ConfigError)) else failed
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        tell(f"error: {one_line(said)}")
        return failed


@contextmanager
def like_ctrl_c(handler: Callable[..., object]) -> Iterator[None]:
    """Gives Ctrl-C, SIGTERM and SIGHUP one handler, except those that are ignored, as nohup ignores
    SIGHUP."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def stopped_by_ctrl_c(batch: Any, go_on: str) -> Iterator[None]:
    """Meanwhile the first Ctrl-C lets a runner finish what is in hand, and the second ends this
    process."""

    def interrupted(*_: object) -> None:
        if batch.stopping:
            cursor = "\033[?25h" if os.isatty(2) else ""  # which the line of progress hides
            os.write(2, f"{cursor}\nstopped; {one_line(go_on)}\n".encode())
            os._exit(130)
        batch.stop()
        said = b"\nstopping when the pictures in hand are finished; Ctrl-C again stops at once\n"
        os.write(2, said)

    with like_ctrl_c(interrupted):
        yield
