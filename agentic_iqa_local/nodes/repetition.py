"""Whether a written text repeats itself, as a small model's does that has lost its thread: one
check, any language."""

import re

# A token is a word or a number, with the mark behind it that makes it an item of a list or a table;
# in scripts that put no blanks between words it is a character.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+,?")
_LIST_MARK = re.compile(r"\s*[,;|\n]+\s*")
# "hahahaha", "aaaaaaaa": a piece of a word four times, or a letter eight times
_STUTTER = re.compile(r"([^\W\d_]{2,}?)\1{3}|([^\W\d_])\2{7}")
# Tokens, each with a blank behind it, that stand directly behind themselves more often than by
# accident
_LOOP = re.compile(
    r"(?<!\S)(?:(?P<long>(?:\S+ ){6,}?)(?P=long)"
    r"|(?P<phrase>(?:\S+ ){2,5}?)(?P=phrase){2}"
    r"|(?P<word>\w\w+ )(?P=word){2}"
    r"|(?P<listed>\S+ )(?P=listed){5}"
    r"|^(?P<everything>(?:\S+ ){2,})(?P=everything)$)"
)
_SENTENCE = re.compile(r"[.!?:\n]+")
_LETTER = re.compile(r"[^\W\d_]")
_VARIED = 0.5  # of the runs of three words of a sound text are different, and mostly all
_FEW = 15  # words, too few to tell


def repeats_itself(text: str) -> bool:
    """Whether words, phrases or sentences of a text stand there again and again. Numbers may."""
    text = text.casefold()
    tokens = _TOKEN.findall(_LIST_MARK.sub(", ", text))
    loops = _LOOP.finditer("".join(f"{token} " for token in tokens))
    if _STUTTER.search(text) or any(_LETTER.search(loop[0]) for loop in loops):
        return True
    if any(map(_echoes, _SENTENCE.split(text))):
        return True
    words = list(filter(_LETTER.search, tokens))
    runs = list(zip(words, words[1:], words[2:], strict=False))
    return len(words) >= _FEW and len(set(runs)) < _VARIED * len(runs)


def _echoes(sentence: str) -> bool:
    """Whether a sentence ends with the two words that it begins with: "The picture is too dark the
    picture"."""
    words = _TOKEN.findall(sentence)
    return len(words) > 4 and words[:2] == words[-2:]
