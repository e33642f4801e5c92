"""A text as a cell of CSV in which no spreadsheet finds a formula, and back. Standard library
alone."""

import re
import unicodedata
from collections.abc import Callable
from typing import Any

from agentic_iqa_local.errors import printable

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|inf)")
# Unicode's categories: controls and invisible characters, blanks, marks on no letter
_SKIPPED = ("C", "Z", "M")
_QUOTES = "\"'`´‘’‚“”„«»"
# Behind these a program may begin another cell: semicolons where decimals have a comma, line ends
# where it does not know quotes.
_ENDS_OF_CELLS = re.compile(r"([;\t\n\r])")


def safe_cell(value: Any) -> Any:
    """`value` as a cell of CSV, with an apostrophe before text that a spreadsheet may take for a
    formula.

    That is text whose first visible character, quotes aside, is one of = + - @ or a wide form of
    these, unless it is a plain number. The same holds for what follows a semicolon, a tab or a line
    end. `plain_cell` takes the apostrophes off again; line ends and tabs stay (CSV quotes them),
    and what else may steer a terminal is escaped.
    """
    if not isinstance(value, str):
        return value
    return printable(_by_parts(_guarded, value))


def plain_cell(cell: str) -> str:
    """The text that `safe_cell` made the cell of, but for what it escaped."""
    return _by_parts(_unguarded, cell)


def _by_parts(change: Callable[[str], str], text: str) -> str:
    return "".join(change(part) for part in _ENDS_OF_CELLS.split(text))


def _guarded(part: str) -> str:
    return f"'{part}" if _is_formula(part) else part


def _unguarded(part: str) -> str:
    guarded = part.startswith("'") and _is_formula(part[1:])
    return part[1:] if guarded else part


def _is_formula(text: str) -> bool:
    if _NUMBER.fullmatch(text):
        return False
    for char in text:
        if char not in _QUOTES and unicodedata.category(char)[0] not in _SKIPPED:
            return unicodedata.normalize("NFKC", char) in ("=", "+", "-", "@")
    return False
