"""Which distortions a query names, by a table of English words. Where it names none, the model reads it."""

import re
from collections.abc import Iterable

from agentic_iqa_local.nodes.query import asks_where, question_alone


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{words})\b", re.IGNORECASE)


# The first that fits counts: "too sharp" is not about blur.
_KINDS = {
    "Sharpness": r"over[ -]?sharp\w*|(too|overly) (sharp|crisp)\w*|sharpen(ed|ing)|halo(s|es|ing)?",
    "Blurs": r"\w*blur\w*|(un)?sharp(er|est|ness)?|crisp\w*|(de|mis)?focus(ed)?|soft(ness|er)?|smear\w*|camera shake",
    "Noise": r"nois(e|y|iness|ier)(?! reduction)|grain(y|iness)?|speckl\w*",
    "Compression": r"\w*compress\w*|jpe?g art[ie]facts?|block(s|y|ing|iness)|ringing|banding"
    r"|mosquito( noise)?|pixelat\w+",
    "Color distortions": r"colou?rs?(?! noise)|casts?|tint(s|ed)?|white[ -]balance|(over|under|de)?-?saturat\w*|hues?"
    r"|washed[ -]out|faded|dull|chromatic aberration|too (yellow|blue|green|red|pink|warm|cold)",
    "Brightness change": r"(too )?(dark|bright)(er|ness)?|too light|dim|lighting|(over|under)?-?expos(ed|ure)"
    r"|blown[ -]out",
    "Contrast": r"contrast\w*|flat(ness)?",
}
_NAMED = _pattern("|".join(f"(?P<{kind.replace(' ', '_')}>{words})" for kind, words in _KINDS.items()))
# Words that mean damage and nothing else
_DAMAGE = _pattern(
    r"over[ -]?sharp\w*|blur\w*|unsharp|out of focus|nois(e|y|iness)|grain(y|iness)|compress(ed|ion)"
    r"|(jpe?g|visible) art[ie]facts?|pixelat(ed|ion)|colou?r casts?|(over|under)[ -]?expos\w+|too (dark|bright|sharp)"
    r"|distort(ed|ions?)"
)
_ANY_DAMAGE = _pattern(r"damag\w*|defects?|flaws?|faults?|grain|compress\w*|degrad\w*")
# Whoever asks for more than what is named wants the model to look for itself.
_OPEN = _pattern(r"(what|anything) else|other (problem|issue|defect|distortion)s?|overall quality|such as|e\.g|etc")
# "apart from the noise and the blur", "focus on the dog", but not "don't ignore the noise"
_LEFT_OUT = _pattern(
    r"(^|please |and )focus on|((?<!n't )(?<!n’t )(?<!not )ignor\w*(?! everything)|regardless of|apart from|other than"
    r"|aside from|besides|(?<!everything )(?<!anything )except( for)?) ((the|any|all|its) )*\w+( (and|or) (the )?\w+)?"
)


def distortions_in(query: str, regions: Iterable[str] = ()) -> list[str]:
    """The distortions that a question about quality names, in the query's order; none where it lists more
    than three, or asks for others too. Names of its `regions` are no distortions."""
    text = _asked_about(query)
    for region in regions:
        text = re.sub(rf"\b{re.escape(region)}\b", ".", text, flags=re.IGNORECASE)
    kinds = dict.fromkeys((found.lastgroup or "").replace("_", " ") for found in _NAMED.finditer(text))
    return [] if len(kinds) > 3 or _OPEN.search(text) else [*kinds]


def asks_about_damage(query: str) -> bool:
    """Whether a query names damage by a word that means nothing else, or asks where damage is."""
    text = _asked_about(query)
    return bool(_DAMAGE.search(text) or (asks_where(query) and _ANY_DAMAGE.search(text)))


def _asked_about(query: str) -> str:
    """The question without what is not to be looked at."""
    return _LEFT_OUT.sub(".", question_alone(query))
