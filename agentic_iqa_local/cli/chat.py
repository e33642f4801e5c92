"""Answers questions about one picture, read from stdin one a line ("Rate it", then "Is the sky noisy?"), until its end,
"exit" or "quit". The picture stays open, and each question is told of those before it.

examples:
  {chat} photo.jpg
  {chat} photo.jpg --reference original.png --out talk.jsonl

Ctrl-C stops a question, or between two the session. Exit status: 0 answered, 1 some question failed, 2 wrong usage,
a picture that cannot be opened or a model that cannot run, 130 interrupted.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

from pydantic import BaseModel

from agentic_iqa_local.cli import options as shared
from agentic_iqa_local.cli.command import Command, Parser
from agentic_iqa_local.cli.console import Console, tell
from agentic_iqa_local.errors import one_line

if TYPE_CHECKING:
    from agentic_iqa_local.api import Conversation
    from agentic_iqa_local.batch.rows import RowFile

OPTIONS = """
picture PATH      the picture
--reference PATH  its pristine original, of the same size
--out FILE        append the rows to FILE, as JSON lines
"""


class TurnRow(BaseModel):
    """A row of a conversation, among which another's can be appended."""

    turn: int


def options(parser: Parser) -> None:
    shared.add(parser, OPTIONS)
    shared.add_options(parser, "query", "background", *shared.SET_UP, "mode", "fit", "max_replan_iterations")
    shared.add_options(parser, *shared.HOW_SURE)
    shared.add(parser, shared.ANSWER)


def chat(args: argparse.Namespace) -> int:
    """Answers until the questions end. Raises UserError for what cannot be used or loaded."""
    from agentic_iqa_local.api import Conversation
    from agentic_iqa_local.batch.rows import RowFile
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.images.files import check_file
    from agentic_iqa_local.services import Services

    settings = shared.chosen_settings(args)
    for file in filter(None, (args.picture, args.reference)):
        check_file(file)
    shared.check_models(settings, "agent")
    with Console() as console, ExitStack() as opened:
        rows = None
        shared.check_outputs(args)
        if args.out:
            rows = RowFile(args.out, TurnRow)
            opened.callback(rows.close)
            rows.recover()
            args.out = None  # an answer is shown although its row goes to a file too
        services, limit = Services(settings, choose_device(args.gpu, args.cpu)), args.max_replan_iterations
        conversation = Conversation(services, args.picture, args.reference, max_replan_iterations=limit)
        opened.callback(conversation.close)
        return _answer_all(args, conversation, rows, console)


def _answer_all(
    args: argparse.Namespace, conversation: "Conversation", rows: "RowFile | None", console: Console
) -> int:
    """1 where some question failed."""
    from agentic_iqa_local.batch.work import as_line
    from agentic_iqa_local.output.report import account, summary

    typed, failed = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty(), False
    if typed:
        tell(one_line(f"Ask about {conversation.picture}, one question a line; exit or Ctrl-D ends."))
    for query in _questions(args.query, typed):
        try:
            row = conversation.ask(query)
        except ValueError as error:
            tell(f"error: {one_line(str(error))}")
            failed = True
            continue
        except KeyboardInterrupt:
            if not typed:
                raise
            tell("\nthis question was stopped; ask another, or end with Ctrl-C or Ctrl-D")
            continue
        line = as_line(row)
        if rows:
            rows.append(line)
        console.show_answer(args, line, lambda row=row: account(row), summary(row), row.error is not None)
        failed |= row.error is not None
    return int(failed)


def _questions(first: str | None, typed: bool) -> Iterator[str]:
    """The questions: `first`, if there is one, then a line each of stdin until its end, "exit" or "quit"; blank
    lines apart."""
    if first is not None:
        yield first
    if isinstance(sys.stdin, TextIOWrapper):  # a question that is not UTF-8 is named as such
        sys.stdin.reconfigure(errors="surrogateescape")
    with suppress(EOFError):
        if typed:
            import readline  # noqa: F401 - arrow keys and history while `input` waits
        while (line := input("> " if typed else "").strip()).casefold() not in ("exit", "quit"):
            if line:
                yield line


main = Command("chat", __doc__, options, chat, shared.read, "%(prog)s PICTURE [options]")
