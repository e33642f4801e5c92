"""What a message to the user is made of: the one root of what a user can mend, and text from
elsewhere (the name of a file, a model's words, a server's answer) made safe to print and to store.

Such text must not steer a terminal, start a new line, or be mistaken for other text. Everything
that is printed goes through `printable`; what is quoted inside a sentence goes through `one_line`
first. Standard library alone.
"""

import difflib
import json
import logging
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Unicode's categories: controls, invisible formatting such as reversed direction, surrogates (which
# UTF-8 cannot encode), separators of lines and paragraphs
_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")


class UserError(Exception):
    """Something that the user can mend: `message` says what was expected and what came, `remedy`
    what to do.

    Both may quote what comes from elsewhere: whatever would break their line or steer a terminal is
    escaped. An error survives pickling, since it may go from one process to another.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message, self.remedy = one_line(message), one_line(remedy)
        super().__init__(self.message, self.remedy)  # what pickle makes it anew of

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


def one_line(text: str) -> str:
    """`text` with everything escaped that could break its line or steer a terminal: "\\n",
    "\\u001b", and "\\xff" for a byte of a file's name that is not UTF-8. JSON text stays the same
    JSON."""
    return text if text.isprintable() else text.translate(_escapes(text))


def first_line(error: BaseException) -> str:
    """The first line of an error's message: torch and transformers add paragraphs to some."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


def printable(text: str) -> str:
    """As `one_line`, but line ends and tabs stay: for text that is made of safe lines."""
    return text.translate(_escapes(text, keep="\n\t\r"))


def _escapes(text: str, keep: str = "") -> dict[int, str]:
    unsafe = (char for char in set(text) - set(keep) if unicodedata.category(char) in _UNSAFE)
    return str.maketrans({char: _byte(char) or json.dumps(char)[1:-1] for char in unsafe})


def _byte(char: str) -> str | None:
    """The escape of a character that stands for a byte which is not UTF-8 (see `os.fsdecode`), else
    None."""
    return f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else None


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 file", "2 files"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(share: float, digits: int = 0) -> str:
    """A share of 1 as a user reads it: "90 %"."""
    return f"{100 * share:.{digits}f} %"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that a name which there is none of is near to."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.75)), None)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that there is none of."""
    near = nearest(name, names)
    return f"; did you mean {near}?" if near else ""


PICTURE: ContextVar[str | None] = ContextVar("PICTURE", default=None)
"""The picture that is being assessed, for the log, by the name that the caller has for it."""


@contextmanager
def assessing(picture: str) -> Iterator[None]:
    """Has the log name a picture, unless a caller has a name for it already."""
    logged = PICTURE.set(PICTURE.get() or picture)
    try:
        yield
    finally:
        PICTURE.reset(logged)


def name_picture(record: logging.LogRecord) -> bool:
    """A filter of handlers: gives a line of the log the picture that it is about, unless it names
    it already."""
    if not hasattr(record, "picture"):
        picture = PICTURE.get()
        record.picture = f"{picture}: " if picture and picture not in record.getMessage() else ""
    return True
