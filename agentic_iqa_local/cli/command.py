"""How a command begins and ends: its parser, its exit status, one sentence for a mistake, and what Ctrl-C does."""

import argparse
import os
import pkgutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from rich_argparse import RawDescriptionRichHelpFormatter

from agentic_iqa_local.cli.console import start_logging, tell
from agentic_iqa_local.cli.options import GROUPS, UsageError, add, options_in, read
from agentic_iqa_local.config import ConfigError
from agentic_iqa_local.errors import UserError, did_you_mean, one_line
from agentic_iqa_local.files import command, read_yaml

COMMANDS: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_name("commands.yaml"))


class Help(RawDescriptionRichHelpFormatter):
    """Help in colours on a terminal, its brackets as they are."""

    help_markup = text_markup = False
    group_name_formatter = str


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ").replace(
            "the following arguments are required:", "expected also"
        )
        if message.startswith("unrecognized arguments: "):
            given = (message.removeprefix("unrecognized arguments: ").split() or ["''"])[0]
            message = f"unknown option {given}{did_you_mean(given, self._option_string_actions)}"
        end = "" if message[-1] in ".?" else "."
        self.exit(2, f"error: {one_line(message)}{end} All options: {self.prog} --help\n")


def parse(name: str, argv: list[str]) -> argparse.Namespace:
    """The options that a subcommand is given, or one sentence and an exit."""
    entry, (first, *second) = COMMANDS[name], name.split()
    typed = " ".join([command(first), *second])
    takes, several = entry.get("takes", "").rstrip("+*?"), entry.get("takes", "")[-1:]
    usage = f"%(prog)s {f'[{takes}]' if several in ('*', '?') else takes}{' ...' * (several in ('+', '*'))} [options]"
    parser = Parser(
        typed, usage.replace("  ", " "), entry["about"].replace("{}", typed), formatter_class=Help
    )
    if takes:
        dest, kind = (
            takes.lower() + "s" * (several in ("+", "*")),
            str if takes == "PICTURE" and several else Path,
        )
        about = "pictures, folders or globs" if kind is str else None
        nargs = several if several in ("+", "*", "?") else None
        parser.add_argument(dest, nargs=nargs, metavar=takes, type=kind, help=about)
    names = [one for word in entry["options"].split() for one in GROUPS.get(word, (word,))]
    helps = entry.get("helps", {})
    add(parser, *(one for one in names if one not in helps), **helps)
    for action in parser._actions:
        action.required |= action.dest == entry.get("required")
    if basic := entry.get("basic", "").split():
        parser.add_argument("--help-all", action="help", help="show every option")
        for action in parser._actions if "--help-all" not in options_in(argv) else ():
            action.help = (
                action.help if action.dest in ("help", "help_all", *basic) else argparse.SUPPRESS
            )
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may stand here
        import argcomplete

        argcomplete.autocomplete(parser)
    return read(parser, argv, names)


def run(name: str, argv: list[str]) -> int:
    """Does a subcommand's work; its exit status."""
    args = parse(name, argv)
    start_logging(getattr(args, "verbose", 0))
    work = f"agentic_iqa_local.cli.{COMMANDS[name]['work']}"
    return exit_status(
        lambda: pkgutil.resolve_name(work)(args), failed=COMMANDS[name].get("failed", 2)
    )


def exit_status(action: Callable[[], int | None], *, failed: int = 2) -> int:
    """The exit status of a command whose work is `action`: what that returns; `failed` after an error that a user can
    mend, but 2 where the command line or the configuration is wrong; 130 after Ctrl-C or a polite kill; 0 where nobody
    reads stdout any more, as with `| head`. What was wrong goes to stderr in one line."""
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
        tell(
            f"error: expected the package {error.name}; pip install 'agentic_iqa_local[serve]' or install it itself"
        )
        return 2
    except UserError as error:
        tell(f"error: {error}")
        return 2 if isinstance(error, (UsageError, ConfigError)) else failed
    except OSError as error:
        tell(
            one_line(
                f"error: {error.filename}: {error.strerror}"
                if error.filename
                else f"error: {error}"
            )
        )
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
def stopped_by_ctrl_c(batch: Any, go_on: str) -> Iterator[None]:
    """Meanwhile the first Ctrl-C lets a runner finish what is in hand, and the second ends this process."""

    def interrupted(*_: object) -> None:
        if batch.stopping:
            cursor = "\033[?25h" if os.isatty(2) else ""  # which the line of progress hides
            os.write(2, f"{cursor}\nstopped; {one_line(go_on)}\n".encode())
            os._exit(130)
        batch.stop()
        os.write(
            2, b"\nstopping when the pictures in hand are finished; Ctrl-C again stops at once\n"
        )

    with like_ctrl_c(interrupted):
        yield
