"""Text that comes from elsewhere, such as the name of a file, a model's words or a server's answer, made safe
to print and to store. Standard library alone.

It must not steer a terminal, start a new line, or be mistaken for other text. Everything that is printed goes
through `printable`; what is quoted inside a sentence goes through `one_line` first.
"""

import difflib
import json
import os
import re
import unicodedata
from collections.abc import Iterable

# Unicode's categories: controls, invisible formatting such as reversed direction, surrogates (which UTF-8
# cannot encode), separators of lines and paragraphs
_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")
# What ends a sentence: not the dots of "e.g.", nor at the very end one behind a digit, where a number may
# have been cut.
_END_OF_SENTENCE = re.compile(
    r"(?:(?<!\b[^\W\d_])[.!?…]+[\"')\]”’»]*(?=\s+[^\sa-z])|(?<!\b\w)(?<!\d)[.!?…]+[\"')\]”’»]*$|[。"
    r"！？]+[」』”]*)"
)


def one_line(text: str) -> str:
    """`text` with everything escaped that could break its line or steer a terminal: "\\n", "\\u001b", and
    "\\xff" for a byte of a file's name that is not UTF-8. JSON text stays the same JSON."""
    return text if text.isprintable() else text.translate(_escapes(text))


def printable(text: str) -> str:
    """As `one_line`, but line ends and tabs stay: for text that is made of safe lines."""
    return text.translate(_escapes(text, keep="\n\t\r"))


def _escapes(text: str, keep: str = "") -> dict[int, str]:
    unsafe = (char for char in set(text) - set(keep) if unicodedata.category(char) in _UNSAFE)
    return str.maketrans({char: _byte(char) or json.dumps(char)[1:-1] for char in unsafe})


def _byte(char: str) -> str | None:
    """The escape of a character that stands for a byte which is not UTF-8 (see `os.fsdecode`), else None."""
    return f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else None


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text that UTF-8 and JSON can hold, the same for no other path.

    Bytes that are not UTF-8 become "\\xNN". In such a path, and in one that holds "\\x" itself, backslashes
    are doubled, so that no two paths have the same text.
    """
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:  # no file has such a name
        return one_line(os.fspath(path))
    text = name.decode("utf-8", "backslashreplace")
    if "\\x" not in text:
        return text
    return name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def path_from_text(text: str) -> str:
    """The path that `path_text` made the text of."""
    if "\\x" not in text:
        return text
    name = re.sub(
        rb"\\(\\|x[0-9a-f]{2})",
        lambda found: bytes.fromhex(found[1][1:].decode()) if len(found[1]) > 1 else b"\\",
        text.encode(),
    )
    return os.fsdecode(name)


def whole_sentences(text: str, limit: int) -> str:
    """`text` unchanged where it is shorter than `limit` characters. A longer text, which may have been cut at
    the limit, is shortened to its last whole sentence, else to its last whole word with "…"."""
    if len(text) < limit:
        return text.strip()
    text = text[:limit].strip()
    if ends := [match.end() for match in _END_OF_SENTENCE.finditer(text)]:
        return text[: ends[-1]]
    words = text[: limit - 1].rsplit(maxsplit=1)
    return f"{words[0].rstrip(',;:') if len(words) > 1 else text[: limit - 1]}…"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that there is none of: the one of `names` that it is near to."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""
