"""The command chat: questions about one picture, read from stdin, each told of those before it."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from io import TextIOWrapper

from agentic_iqa_local.api import Conversation
from agentic_iqa_local.batch.rows import RowFile
from agentic_iqa_local.batch.work import as_line
from agentic_iqa_local.cli.console import Console, tell
from agentic_iqa_local.cli.options import check_set_up, chosen_settings, device_of
from agentic_iqa_local.cli.outputs import check_outputs
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.images.files import check_file
from agentic_iqa_local.output.report import account, summary
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services


def chat(args: argparse.Namespace) -> int:
    """Answers until the questions end; 1 where some failed. Raises UserError for what cannot be
    used or loaded."""
    settings = chosen_settings(args)
    for file in filter(None, (args.picture, args.reference)):
        check_file(file)
    check_set_up(settings, "agent")
    check_outputs(args, [args.picture, args.reference, args.config])
    with Console() as console, ExitStack() as opened:
        rows = None
        if args.out:
            rows = RowFile(args.out, Assessment)
            opened.callback(rows.close)
            rows.recover()
            args.out = None  # an answer is shown although its row goes to a file too
        conversation = Conversation(
            Services(settings, device_of(args)), args.picture, args.reference
        )
        opened.callback(conversation.close)
        return answer_all(args, conversation, rows, console)


def answer_all(
    args: argparse.Namespace, conversation: Conversation, rows: RowFile | None, console: Console
) -> int:
    typed, failed = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty(), False
    noticed = False  # whether an answer was shown with what the model says of itself
    if typed:
        tell(
            one_line(f"Ask about {conversation.picture}, one question a line; exit or Ctrl-D ends.")
        )
    for query in _questions(args.query, typed):
        if not typed and console.results.isatty():
            tell(one_line(f"> {query}"), console.results)
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
        shown = _shown(row, noticed)
        console.show_answer(
            args, line, lambda row=shown: account(row), summary(shown), row.error is not None
        )
        failed |= row.error is not None
        noticed |= row.error is None
    return int(failed)


def _shown(row: Assessment, noticed: bool) -> Assessment:
    """The row; once it was `noticed`, without what a small model says of itself."""
    if not noticed:
        return row
    return row.model_copy(update={"model": row.model and {**row.model, "notice": None}})


def _questions(first: str | None, typed: bool) -> Iterator[str]:
    """`first`, if there is one, then a line each of stdin until its end, "exit" or "quit"; blank
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
