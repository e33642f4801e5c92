"""Which distortions a query names. Text rules, the same for every model, for English words: where they find none,
the query may still name some, and the model reads it."""

import re
from collections.abc import Iterable

from agentic_iqa_local.nodes.query import asks_where, question_alone


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{words})\b", re.IGNORECASE)


# The first that fits counts: "too sharp" is not about blur.
_KINDS = {
    "Sharpness": r"over[ -]?sharp\w*|(too|overly|unnaturally) (sharp|crisp)\w*|sharpen(ed|ing)|edge glow|halo(s|es|ing)?",
    "Blurs": r"\w*blur\w*|(un)?sharp(er|est|ness)?|crisp\w*|(out of|in|de|mis)?[ -]?focus(ed)?|soft(ness|er)?"
    r"|fuzz\w*|smear\w*|smudg\w*|camera shake|shaky",
    "Noise": r"nois(e|y|iness|ier)|grain(y|iness)?|speckl\w*|hot pixels",
    "Compression": r"\w*compress\w*|(jpe?g|block) (art[ie]facts?|blocks?)|block(s|y|ing|iness)|ringing|banding"
    r"|mosquito|pixel+(y|at(ed|ion))",
    "Color distortions": r"colou?r casts?|colou?rs?|casts?|tint(s|ed)?|white[ -]balance|(over|under|de)?-?saturat\w*"
    r"|hues?|washed[ -]out|faded|dull|chromatic aberration|skin tones?|too (yellow|blue|green|red|pink|warm|cold)",
    "Brightness change": r"too (dark|bright|light)|bright(er|ness)?|dark(er|ness)?|dim|lighting"
    r"|(over|under)?[ -]?expos(ed|ure)|(over|under|(well|badly|poorly) )lit|blown[ -]out|blown highlights",
    "Contrast": r"contrast\w*|flat(ness)?|milky",
}
_NAMED = _pattern("|".join(f"(?P<{kind.replace(' ', '_')}>{words})" for kind, words in _KINDS.items()))
# Words that mean damage and nothing else; the others may describe a thing ("focus group").
_DAMAGE = _pattern(
    r"over[ -]?sharp\w*|too sharp|blur\w*|unsharp|out[ -]of[ -]focus|nois(e|y|iness|ier)|grain(y|iness)"
    r"|(over)?compress(ed|ion)|(jpe?g|compression|visible) art[ie]facts?|blockiness|pixel+at(ed|ion)|colou?r casts?"
    r"|(over|under)[ -]?expos\w+|too (dark|bright)|distort(ed|ions?)"
)
_ANY_DAMAGE = _pattern(r"damag\w*|defects?|flaws?|faults?|art[ie]facts?|grain|compress\w*|degrad\w*")
# Whoever asks for more than what is named wants the model to look for itself.
_OPEN = _pattern(r"(what|anything) else|other (problem|issue|defect|distortion)s?|overall quality|such as|e\.g|etc")
# What is not to be looked at ("apart from the noise and the blur"), requests ("focus on the dog"), common terms
_LEFT_OUT = re.compile(
    r"((?<!don't )(?<!don’t )(?<!not )ignor\w*(?! everything)|regardless of|apart from|other than|aside from|besides"
    r"|(?<!everything )(?<!anything )except( for)?) ((the|any|all|its) )*\w+( (and|or) (the )?\w+)?"
    r"|(^|[.,;:!?] ?|\b(please|and|to) )focus(ing)?( only)? on|in the dark|(long|double) exposures?|noise reduction"
    r"|colou?r(?= (noise|speckl))|(?<=mosquito )noise|what colou?rs?",
    re.IGNORECASE,
)
# "What does the blurry text say?" is about the text
_DAMAGED_THING = _pattern(
    r"(the|an?|this|that|my) (blurr(y|ed)|noisy|grainy) (?!(image|picture|photo|shot|frame|area|part|corner)s?\b)\w+"
)
# The thing that a word of the other sort describes ("focus group"): a word behind it that is none of these
_THING = re.compile(
    r"[ -](?!(of|in|on|at|to|for|from|by|with|and|or|but|nor|than|as|like|is|are|was|were|be|do|does|did|has|have|can"
    r"|could|should|would|will|looks?|seems?|good|bad|fine|ok|correct|right|wrong|off|low|high|strong|visible|natural"
    r"|very|too|so|really|enough|now|here|there|please|when|while|it|they|you|i|we|not|any|a|the|this|that|image|picture"
    r"|photo|quality|levels?|\w+ed|accura\w+|problems?|issues?|art[ie]facts?|distort\w+|loss|dull|gone|since|after"
    r"|before|across|along|around|over|under|into|near|versus|vs)\b)[^\W\d]+",
    re.IGNORECASE,
)


def distortions_in(query: str, regions: Iterable[str] = ()) -> list[str]:
    """The distortions that a question about quality names, in the query's order; none where it lists more
    than three, or asks for others too. Names of its `regions` are no distortions."""
    text = _asked_about(query)
    for region in regions:
        text = re.sub(rf"\b{re.escape(region)}\b", ".", text, flags=re.IGNORECASE)
    kinds = dict.fromkeys(
        (found.lastgroup or "").replace("_", " ")
        for found in _NAMED.finditer(text)
        if _DAMAGE.search(found[0]) or not _THING.match(text, found.end())
    )
    return [] if len(kinds) > 3 or _OPEN.search(text) else [*kinds]


def asks_about_damage(query: str) -> bool:
    """Whether a query names damage by a word that means nothing else, or asks where damage is."""
    text = _asked_about(query)
    named = _DAMAGE.search(text) or (asks_where(query) and _ANY_DAMAGE.search(text))
    return bool(named) and not _DAMAGED_THING.search(text)


def _asked_about(query: str) -> str:
    """The question without what is not to be looked at."""
    return _LEFT_OUT.sub(".", question_alone(query))
