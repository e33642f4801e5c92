"""What a command prints where: results on stdout, and on stderr progress, logs and all else, a terminal's
lines never mixed."""

import argparse
import codecs
import difflib
import logging
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO

from agentic_iqa_local.errors import UserError, one_line, printable
from agentic_iqa_local.files import command

if TYPE_CHECKING:
    from tqdm import tqdm

SECONDS_BETWEEN_LINES = 30  # of progress, where stderr is no terminal


class SafeStream:
    """A text stream that nothing steers a terminal through, whoever writes to it: own messages, logs, or a
    library's."""

    def __init__(self, stream: TextIO) -> None:
        self.terminal = stream  # for what may steer it: a progress bar

    def write(self, text: str) -> int:
        self.terminal.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        self.terminal.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)

    def __eq__(self, other: object) -> bool:  # tqdm asks whether a line goes where its bar is
        return self.terminal == getattr(other, "terminal", other)

    def __hash__(self) -> int:
        return hash(self.terminal)


@contextmanager
def safe_streams() -> Iterator[None]:
    """stdout and stderr as `SafeStream`. Every command runs in it, from before its arguments are read."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        stream if isinstance(stream, SafeStream) else SafeStream(stream) for stream in before
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def bar(iterable: Iterable[Any] | None = None, **options: Any) -> "tqdm":
    """A tqdm bar on stderr where that is a terminal, as wide as it. Its own sequences pass: text that it is
    given must be safe."""
    from tqdm import tqdm

    place = {
        "file": getattr(sys.stderr, "terminal", sys.stderr),
        "dynamic_ncols": True,
        "disable": not sys.stderr.isatty(),
    }
    return tqdm(iterable, **place | options)


@contextmanager
def meter() -> Iterator[Callable[[str, int], None]]:
    """Shows on a terminal's stderr how much is done, and of which file."""
    with bar(unit="B", unit_scale=True, leave=False) as shown:

        def show(path: str, size: int) -> None:
            shown.set_postfix_str(one_line(path[-100:]), refresh=False)
            shown.update(size)

        yield show


@contextmanager
def like_ctrl_c(handler: Callable[..., object]) -> Iterator[None]:
    """Gives Ctrl-C, SIGTERM and SIGHUP one handler, but for those that are ignored: nohup has SIGHUP
    ignored."""
    heeded = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def exit_status(
    action: Callable[[], int],
    *,
    failed: int = 2,
    wrong_usage: tuple[type[UserError], ...] = (),
    interrupted: str = "interrupted",
) -> int:
    """The exit status of a command whose work is `action`.

    It is what `action` returns; `failed` after a UserError or OSError, but 2 after one of `wrong_usage`; 130
    after Ctrl-C. The error, or the sentence `interrupted`, goes to stderr in one line.
    """
    try:
        return action()
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, wrong_usage) else failed
    except OSError as error:
        place = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(one_line(f"error: {place}"), file=sys.stderr)
        return failed


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, without the usage of all options before it."""

    @classmethod
    def of(cls, name: str, about: str | None, **options: Any) -> Self:
        """The parser of the subcommand `name`. In `about`, its module's docstring, "{name}" stands for how a
        user of this installation runs it."""
        line = command(name)
        return cls(
            prog=line,
            description=(about or "").replace(f"{{{name}}}", line),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            given = message.removeprefix("unrecognized arguments: ").split()[0]
            near = difflib.get_close_matches(given, self._option_string_actions, n=1)
            if os.path.lexists(given):
                near = [os.path.join(".", given)]
            message = f"unknown option {given}" + (f"; did you mean {near[0]}?" if near else "")
        self.exit(
            2,
            f"error: {one_line(message)}{'' if message[-1] in '.?' else '.'} All options: {self.prog}"
            " --help\n",
        )


class Progress(AbstractContextManager):
    """How many of `total` pictures are done, and the time left: a bar on a terminal, elsewhere a line now and
    then; nothing for a single picture."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self._initial, self._done, self._failed = total, done, done, 0
        self._began = self._last_line = time.monotonic()
        self._lines = total > 1 and not sys.stderr.isatty()
        self.bar = bar(
            total=total,
            initial=done,
            unit="picture",
            leave=False,
            disable=total < 2 or not sys.stderr.isatty(),
        )

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def count(self, failed: bool = False, where: str = "") -> None:
        """One more is done; `where` says how many each place has done."""
        self._done += 1
        self._failed += failed
        postfix = ", ".join(filter(None, (f"{self._failed} failed" if self._failed else "", where)))
        self.bar.set_postfix_str(postfix, refresh=False)
        self.bar.update()
        if self._lines and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            line = self.bar.format_meter(
                self._done,
                self._total,
                self.seconds,
                ncols=0,
                unit="picture",
                postfix=postfix,
                initial=self._initial,
            )
            print(line, file=sys.stderr, flush=True)


class Console(AbstractContextManager):
    """The real stdout, or another file (`results`), for results alone: whatever else prints on stdout, from
    any library, goes to stderr."""

    def __init__(self, results: TextIO | None = None) -> None:
        self.results: TextIO | SafeStream = _take_stdout() if results is None else results
        self._progress: Progress | None = None
        self._open = ExitStack()

    def show(self, text: str, file: TextIO | None = None) -> None:
        """Prints to `file` (default: the results), with the progress bar out of the way."""
        with self._without_bar():
            print(text, file=file or self.results, flush=True)

    def show_coloured(self, text: str) -> None:
        """As `show`, to the results, with the escape sequences of a line of `picture_lines`, whose other text
        is safe."""
        with self._without_bar():
            print(text, file=getattr(self.results, "terminal", self.results), flush=True)

    @property
    def coloured(self) -> bool:
        """Whether results go to a terminal that shows colours, and nobody has set NO_COLOR."""
        dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return self.results.isatty() and not dumb

    def say(self, text: str) -> None:
        """Prints to stderr, with the progress bar out of the way; on a terminal in lines that fit."""
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns
            wrap = textwrap.TextWrapper(width, subsequent_indent="  ", break_on_hyphens=False)
            text = "\n".join(line if len(line) <= width else wrap.fill(line) for line in text.split("\n"))
        self.show(text, sys.stderr)

    def _without_bar(self) -> AbstractContextManager:
        if self._progress is None:
            return ExitStack()
        return self._progress.bar.external_write_mode(file=sys.stderr)

    def begin(self, total: int, done: int) -> None:
        """Shows from now on how many of `total` pictures are done; see `Progress`."""
        from tqdm.contrib.logging import logging_redirect_tqdm

        self._progress = Progress(total, done)
        self._open.callback(self._progress.bar.close)
        self._open.enter_context(logging_redirect_tqdm([logging.getLogger()]))

    def count(self, failed: bool, where: str = "") -> None:
        """One more picture is done; `where` says how many each place has done."""
        if self._progress:
            self._progress.count(failed, where)

    @property
    def seconds(self) -> float:
        """Since `begin`."""
        return self._progress.seconds if self._progress else 0.0

    def end(self) -> None:
        """Takes the bar away."""
        self._open.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.end()
        # the reader of our stdout, as with `| head`
        gone = kind is not None and issubclass(kind, BrokenPipeError)
        if gone:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.results.fileno())
        self.results.flush()
        return gone


PLAIN = {"█": "#", "░": ".", "–": "-", "−": "-", "…": "~", "×": "x", "↑": "^", "↓": "v"}


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """What stands in, column for column, for drawing that an encoding lacks; an escape for other text."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    if (drawn := PLAIN.get(error.object[error.start])) is None:
        return codecs.backslashreplace_errors(
            UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
        )[0], error.start + 1
    return drawn, error.start + 1


def _take_stdout() -> SafeStream:
    """The real stdout, which from now on is stderr for everybody else: UTF-8, but on a terminal what that can
    show, with ASCII in place of blocks and dashes."""
    codecs.register_error("plain", _plain)
    encoding = (sys.stdout.encoding or "utf-8") if os.isatty(1) else "utf-8"
    results = os.fdopen(os.dup(1), "w", encoding=encoding, errors="plain", buffering=1)
    os.dup2(2, 1)
    return SafeStream(results)


def start_logging(verbosity: int) -> None:
    """Warnings on stderr; with verbosity 1 what happens, with 2 prompts and model output too."""
    from agentic_iqa_local.nodes.workbench import name_picture

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.captureWarnings(True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(name_picture)
        handler.setFormatter(Formatter("%(levelname)s %(picture)s%(message)s"))
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logging.getLogger("agentic_iqa_local").setLevel(level)


class Formatter(logging.Formatter):
    """Each message on one line. Prompts, replies and tracebacks keep theirs, set in, so that none looks like
    a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # the library's name
        text = super().formatMessage(record)
        return _indented(text) if record.levelno <= logging.DEBUG else one_line(text)

    def formatException(self, info: Any) -> str:
        return f"    {_indented(super().formatException(info))}"


def _indented(text: str) -> str:
    return "\n    ".join(map(one_line, text.split("\n")))


def show_answer(
    args: argparse.Namespace,
    console: "Console",
    line: Callable[[], str],
    account: Callable[[], str],
    headline: Callable[[], str],
    failure: str | None,
) -> None:
    """An answer where the user looks for it: as `line` of JSON in a pipe, as `account` with --explain, as `headline` on
    a terminal; with --out alone only a `failure` is said."""
    terminal = console.results.isatty()
    json_on_stdout = bool(args.json) or not (args.out or terminal or args.explain)
    if json_on_stdout:
        console.show(line())
    if args.explain:
        console.show(account(), sys.stderr if json_on_stdout else None)
    elif terminal and not json_on_stdout and not args.out:
        console.show(headline())
    elif failure:
        console.say(failure)
