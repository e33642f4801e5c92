"""Whether a written text repeats itself, as a small model's does that has lost its thread: one check, any language."""

import re
from collections.abc import Callable
from itertools import pairwise

# A token is a word or a number; in scripts that put no blanks between words it is a character.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
# "hahahaha", "aaaaaaaa": a piece of a word four times, or a letter eight times
_STUTTER = re.compile(r"([^\W\d_]{2,}?)\1{3}|([^\W\d_])\2{7}")
# So many times in a row a run of tokens does not stand by accident; a word of a list or table and a single character
# may stand there more often
_ONCE_MORE, _LISTED = 3, 6
_LONG_RUN = 6  # tokens, of which two in a row are no accident
_VARIED = 0.5  # of the runs of three tokens of a sound text are different, and mostly all
_FEW = 15  # tokens, too few to tell


def sound(text: str, whose: str, warn: Callable[[str], None]) -> str | None:
    """The text; None for one that repeats itself, of which `warn` tells. `whose`: what the model wrote there."""
    if not repeats_itself(text):
        return text
    warn(f"the model repeated itself in {whose}: the evidence is told in its place")
    return None


def repeats_itself(text: str) -> bool:
    """Whether words, phrases or sentences of a text stand there again and again. Numbers may."""
    if _STUTTER.search(text.casefold()):
        return True
    found = [*_TOKEN.finditer(text.casefold())]
    tokens = [token[0] for token in found]
    apart = [bool(text[one.end() : other.start()].strip()) for one, other in pairwise(found)]
    return _loops(tokens, apart) or _lacks_variety(tokens)


def _loops(tokens: list[str], apart: list[bool]) -> bool:
    """Whether a run of tokens stands directly behind itself too often; `apart`: more than blanks parts two tokens."""
    for size in range(1, len(tokens) // 2 + 1):
        alike = 0  # tokens in a row that are the same as those a run before
        for i in range(size, len(tokens)):
            alike = alike + 1 if tokens[i] == tokens[i - size] else 0
            run = tokens[i - size + 1 : i + 1]
            if alike and alike % size == 0 and not all(map(str.isnumeric, run)):
                copies = alike // size + 1
                listed = size == 1 and (any(apart[i - alike : i]) or len(tokens[i]) == 1)
                says_nothing_else = len(set(run)) > 1 and copies * size == len(tokens)
                if says_nothing_else or copies >= _most(size, listed):
                    return True
    return False


def _most(size: int, listed: bool) -> int:
    if size >= _LONG_RUN:
        return 2
    return _LISTED if listed else _ONCE_MORE


def _lacks_variety(tokens: list[str]) -> bool:
    """Whether few of the runs of three tokens are different ones, as where the same few words come in any order."""
    words = [token for token in tokens if not token.isnumeric()]
    runs = [*zip(words, words[1:], words[2:], strict=False)]
    return len(words) >= _FEW and len(set(runs)) < _VARIED * len(runs)
