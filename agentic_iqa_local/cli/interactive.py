"""`assess.py PICTURE --interactive`: questions about one picture, one a line, each told of those before
it."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

from pydantic import BaseModel

from agentic_iqa_local.cli.console import Console, like_ctrl_c
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.result import Assessment

if TYPE_CHECKING:
    from agentic_iqa_local.batch.inputs import Item
    from agentic_iqa_local.batch.rows import RowFile
    from agentic_iqa_local.config import Settings

PROMPT = "> "
ENDS = ("exit", "quit")
LONGEST_LINE = 2**20  # characters that are read of one; a question is far shorter


class _TurnRow(BaseModel):
    """A row of a conversation, among which another's can be appended."""

    turn: int


class _Ended(KeyboardInterrupt):
    """SIGTERM or SIGHUP: it ends the session whatever is going on, where Ctrl-C may end a question alone."""


def converse(
    args: argparse.Namespace,
    settings: "Settings",
    item: "Item",
    device: str,
    console: Console,
    show: Callable[[argparse.Namespace, Assessment, Console], None],
) -> int:
    """Answers until the questions end; the exit status. Raises UserError for what cannot be used or
    loaded."""
    from agentic_iqa_local.api import Conversation
    from agentic_iqa_local.batch.work import ROLES
    from agentic_iqa_local.images.reading import ImageError
    from agentic_iqa_local.services import Services

    with ExitStack() as open_, like_ctrl_c(_interrupt):
        rows = rows_of(args)
        if rows:
            open_.callback(rows.close)
        services = Services(settings, device)
        open_.callback(services.close)
        try:
            conversation = Conversation(
                services, item.image, item.reference, max_replan_iterations=args.max_replan_iterations
            )
        except ImageError as error:
            console.say(f"error: {error}")
            return 1
        open_.callback(conversation.close)
        try:
            for role in ROLES["agent"]:
                services.client(role)
            services.tools.prepare()
            return _answer_all(args, conversation, rows, console, show)
        except KeyboardInterrupt:
            console.say("\ninterrupted" if _is_terminal() else "interrupted")
            return 130


def rows_of(args: argparse.Namespace) -> "RowFile | None":
    """The file that the rows are appended to, None without --out. Raises RowsError for one that holds other
    rows."""
    from agentic_iqa_local.batch.rows import RowFile, RowsError

    if args.out is None:
        return None
    rows = RowFile(args.out, _TurnRow)
    try:
        for _ in rows:
            pass
    except RowsError as error:
        rows.close()
        raise RowsError(
            f"--out {args.out}: expected a new file, or rows of earlier conversations, got others ({error})"
        ) from error
    return rows


def _answer_all(args, conversation, rows, console, show) -> int:
    from agentic_iqa_local.batch.rows import WriteError
    from agentic_iqa_local.batch.work import as_line

    terminal, failed = _is_terminal(), False
    # an answer is shown although its row goes to a file too
    always = argparse.Namespace(**vars(args) | {"out": None})
    if terminal:
        console.say(one_line(f"Ask about {conversation.picture}, one question a line; exit or Ctrl-D ends."))
    for query in questions(args.query, terminal):
        try:
            row = conversation.ask(query)
        except ValueError as error:
            console.say(f"error: {one_line(str(error))}")
            failed = True
            continue
        except KeyboardInterrupt as interruption:
            if not terminal or isinstance(interruption, _Ended):
                raise
            console.say("\nthis question was stopped; ask another, or end with Ctrl-C or Ctrl-D")
            continue
        try:
            if rows:
                rows.append(as_line(row))
        except WriteError as error:
            show(always, row, console)
            console.say(f"error: {error}")
            return 1
        show(always, row, console)
        failed |= row.error is not None
    return int(failed)


def questions(first: str | None, terminal: bool) -> Iterator[str]:
    """The questions: `first`, if there is one, then a line each of stdin until its end, "exit" or "quit";
    blank lines apart."""
    if first is not None:
        yield first
    if sys.stdin is None:  # closed, as by <&-
        return
    if isinstance(sys.stdin, TextIOWrapper):  # a question that is not UTF-8 is named as such
        sys.stdin.reconfigure(errors="surrogateescape")
    while (line := _line(terminal)) is not None:
        if line.strip().casefold() in ENDS:
            return
        if line.strip():
            yield line.strip()


def _line(terminal: bool) -> str | None:
    """The next line, None at the end; of an endless one the beginning, and the rest is passed over."""
    if terminal:
        try:
            return input(PROMPT)
        except EOFError:
            print(file=sys.stderr)  # the shell's prompt begins a line
            return None
    line = part = sys.stdin.readline(LONGEST_LINE)
    while part and not part.endswith("\n") and len(part) == LONGEST_LINE:
        part = sys.stdin.readline(LONGEST_LINE)
    return line or None


def _is_terminal() -> bool:
    """Whether a human types the questions."""
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    with suppress(ImportError):
        import readline  # noqa: F401 - arrow keys and history while `input` waits
    return True


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else _Ended
