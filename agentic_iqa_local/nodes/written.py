"""What a model wrote, as far as a user can be shown it: without markup, saying something, not again
and again, in the language of the question."""

import re
from collections.abc import Callable

from agentic_iqa_local.nodes.repetition import repeats_itself

_LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*\)")
_MARKUP = re.compile(r"</?[a-z!][^<>]*>|&#?\w+;|\x1b\[[\d;]*m|\*\*|`+(?:json)?|^#+ ", re.I | re.M)
_DEBRIS = re.compile(r"[{}\\|]")  # of JSON or code, which no sentence on a picture needs
_NOTHING = re.compile(r"\W*(?:[a-z]|n/?a|null|undefined)?\W*", re.IGNORECASE)
_ENGLISH = re.compile(
    r"\b(?:the|an?|is|are|was|it|its|in|of|and|with|by|into|at|on|to|no|not|for|from|has|have|that)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]+")
_FEW = 4  # words, of which an English sentence has one that joins the others
_LETTER = re.compile(r"[^\W\d_]")


def sound(text: str, whose: str, warn: Callable[[str], None]) -> str | None:
    """The text without markup; None for one that says nothing, is no plain sentence or repeats
    itself, which `warn` tells. `whose`: what the model wrote there."""
    plain = " ".join(_MARKUP.sub("", _LINK.sub(r"\1", text)).split())
    if _NOTHING.fullmatch(plain):
        warn(f"the model said nothing in {whose}: the evidence is told in its place")
        return None
    if _DEBRIS.search(plain):
        warn(f"the model wrote no plain sentence in {whose}: the evidence is told in its place")
        return None
    if repeats_itself(plain):
        warn(f"the model repeated itself in {whose}: the evidence is told in its place")
        return None
    return plain


def in_english(text: str) -> bool:
    """Whether a text is English as far as its letters and its small words tell: the rules that
    compare it with the evidence know no other language."""
    letters = _LETTER.findall(text)
    if not all(map(str.isascii, letters)):
        return False
    return len(_WORD.findall(text)) < _FEW or bool(_ENGLISH.search(text))
