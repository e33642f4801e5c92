"""What a command prints where: results on stdout; on stderr one live line of progress, logs and all
else."""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from agentic_iqa_local.errors import name_picture, one_line, printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.text import Text

SECONDS_BETWEEN_LINES = 30  # of progress, where stderr is no terminal
# clears the line that the cursor is in: that of progress, which rich draws anew
CLEAR = "\r\x1b[2K"
_live: "list[Bar]" = []  # the line of progress, while there is one


def tell(text: "str | Text", file: Any = None) -> None:
    """Prints to a file (default: stderr), above the live line on that terminal, which nothing in a
    text steers."""
    file = sys.stderr if file is None else file
    if isinstance(text, str):
        said = f"{printable(text)}\n"
    else:
        from rich.console import Console as Terminal

        terminal = Terminal(file=file)
        with terminal.capture() as captured:
            terminal.print(text, soft_wrap=True)
        said = captured.get()
    file.write(CLEAR + said if _live and file.isatty() else said)
    file.flush()


def say(text: str) -> None:
    """Prints to stdout."""
    tell(text, sys.stdout)


def watch(names: Iterable[str]) -> Iterator[str]:
    """Yields the names; a terminal shows how many are done."""
    from rich.console import Console as Terminal
    from rich.progress import track

    every = list(names)
    hidden = not sys.stderr.isatty()
    yield from track(every, "files", console=Terminal(stderr=True), transient=True, disable=hidden)


class Progress(AbstractContextManager):
    """How many of `total` pictures are done, and the time left unless the `batch` is stopping: one
    live line on a terminal, elsewhere a line now and then; nothing for a single picture."""

    def __init__(self, total: int, done: int = 0, batch: Any = None) -> None:
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        is_stopping = self._is_stopping

        class TimeLeft(TimeRemainingColumn):
            def render(self, task: Any) -> Text:
                return Text() if is_stopping() else super().render(task)

        self._batch = batch
        self._total, self._failed, self._told = total, 0, time.monotonic()
        self._said = self._state = ""
        self._bar = Bar(
            BarColumn(20),
            TextColumn("{task.description}"),
            TimeLeft(),
            speed_estimate_period=3600,  # a picture may take minutes
            console=Terminal(stderr=True),
            disable=total == 1 or not sys.stderr.isatty(),
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._bar.add_task(f"{done}/{total} pictures", total=total, completed=done)

    def __enter__(self) -> "Progress":
        self._bar.start()
        if not self._bar.disable:
            _live.append(self._bar)
        return self

    def __exit__(self, *_: object) -> None:
        _live.clear()
        self._bar.stop()
        if self._said not in ("", self._state):
            tell(self._state)

    def _is_stopping(self) -> bool:
        return self._batch is not None and self._batch.stopping

    def count(self, failed: bool = False) -> None:
        """One more is done."""
        self._failed += failed
        (task,) = self._bar.tasks
        self._state = f"{task.completed + 1:.0f}/{self._total} pictures, {self._failed} failed"
        self._bar.update(task.id, advance=1, description=self._state)
        now = time.monotonic()
        if self._bar.disable and self._total > 1 and now - self._told >= SECONDS_BETWEEN_LINES:
            self._told, self._said = now, self._state
            left = ""
            if task.time_remaining and not self._is_stopping():
                left = f", about {timedelta(seconds=task.time_remaining)} left"
            tell(self._state + left)


class Console(AbstractContextManager):
    """The real stdout, or another file, for `results` alone: a pipe gets JSON lines and nothing
    else, since what any library or process of ours prints on stdout goes to stderr."""

    def __init__(self, results: TextIO | None = None) -> None:
        self.opened = results is None
        if results is None:
            encoding = (sys.stdout.encoding or "utf-8") if os.isatty(1) else "utf-8"
            results = os.fdopen(os.dup(1), "w", encoding=encoding, errors="backslashreplace")
            os.dup2(2, 1)
        self.results = results

    def show_answer(
        self,
        args: argparse.Namespace,
        line: str,
        account: Callable[[], str],
        headline: str,
        failed: bool,
        *,
        brief: bool = False,
    ) -> None:
        """An answer where the user looks for it: as a `line` of JSON in a pipe, as `account` with
        --explain, as `headline` on a terminal, there also beside --out if it is `brief`; else with
        --out only what `failed`."""
        terminal = self.results.isatty()
        if args.json or not (args.out or terminal or args.explain):
            tell(line, self.results)
            words = None  # on stderr
        else:
            words = self.results
        if args.explain:
            tell(account(), words)
        elif terminal and words and (brief or not args.out):
            tell(headline, words)
        elif failed:
            tell(headline)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(
            kind, OSError
        ):  # what is left goes nowhere: the reader has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.results.fileno())
        if self.opened:
            self.results.close()


class LogLines(logging.Handler):
    """Logs on stderr. Lines after the first are set in, so that none that a message quotes looks
    like a message."""

    def emit(self, record: logging.LogRecord) -> None:
        tell("\n    ".join(map(one_line, self.format(record).split("\n"))))


def _is_for_users(record: logging.LogRecord) -> bool:
    """Leaves out why the graph makes no further pass: the row says it too."""
    return record.name != "agentic_iqa_local.graph" or record.levelno >= logging.ERROR


def start_logging(verbosity: int) -> None:
    """Warnings on stderr; with verbosity 1 what happens, with 2 prompts and model output too."""
    handler = LogLines()
    handler.addFilter(name_picture)
    if not verbosity:
        handler.addFilter(_is_for_users)
    logging.basicConfig(
        level=logging.WARNING, handlers=[handler], format="%(levelname)s %(picture)s%(message)s"
    )
    logging.captureWarnings(True)
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logging.getLogger("agentic_iqa_local").setLevel(level)
