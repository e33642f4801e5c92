"""Which distortions a query names. Text rules, the same for every model, for English words: where they find none,
the query may still name some, and the model reads it."""

import re
from collections.abc import Iterable

from agentic_iqa_local.nodes.query import asks_where, question_alone

# Words of each kind: those that mean damage and nothing else, and those that may describe a thing ("focus group").
# A word of one kind is not looked at again for the next: "too sharp" is not about blur.
_WORDS = {
    "Sharpness": (
        r"over[ -]?sharp\w*|(too|overly|artificially|excessively|too much|unnaturally) (sharp|crisp)\w*",
        r"sharpen(ed|ing)|unsharp[ -]mask\w*|halo(s|es|ed|ing)?|edge[ -](enhanc\w*|glow)",
    ),
    "Blurs": (
        r"blur\w*|unsharp|out[ -]of[ -]focus",
        r"\w+blur\w*|sharp(er|est|ly|ness)?|crisp\w*|(in|de|un|mis)?[ -]?focus(ed|sed)?|soft(ness|er|en\w*)?"
        r"|fuzz\w*|smear\w*|smudg\w*|camera shake|shaky",
    ),
    "Noise": (r"nois(e|y|iness|ier)|grainy|graininess", r"grain|speckl\w*|hot pixels"),
    "Compression": (
        r"(over)?compress(ed|ion)|(jpe?g|compression|visible) art[ie]facts?|blockiness|pixel+at(ed|ion)",
        r"\w*compress\w*|(webp|codec|encoding|block) art[ie]facts?|jpe?g (blocks?|damage)|block(s|y|ing)"
        r"|macroblock\w*|ringing|banding|mosquito|pixel+y",
    ),
    "Color distortions": (
        r"colou?r casts?",
        r"colou?rs?|casts?|tint(s|ed)?|tinged?|white[ -]balanc\w*|(over|under|de)?-?saturat\w*|washed[ -]out"
        r"|hues?|faded|discolou?r\w*|dull|chromatic aberration|purple fring\w*|skin tones?"
        r"|too (yellow|blue|green|red|pink|warm|cold)",
    ),
    "Brightness change": (
        r"(over|under)[ -]?expos\w+|too (dark|bright)",
        r"(over)?bright(er|ness|ening)?|dark(er|ness|ening)?|dim(ness)?|expos(ed|ure)"
        r"|(over|under|(well|badly|poorly) )lit|too light|lighting|(blown|burnt|burned)[ -]out|(blown|clipped) highlights"
        r"|crushed shadows",
    ),
    "Contrast": ("", r"contrast\w*|flat(ness)?|milky"),
}


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"\b({words})\b", re.IGNORECASE)


_DAMAGE = _pattern("|".join(sure for sure, _ in _WORDS.values() if sure) + "|distort(ed|ions?)")
_KINDS = {kind: _pattern("|".join(filter(None, words))) for kind, words in _WORDS.items()}
_MOST = 3  # kinds: a query with more of them lists what there may be
_ANY_DAMAGE = _pattern(r"damag\w*|defects?|flaws?|faults?|art[ie]facts?|grain|compress\w*|degrad\w*")
# "What does the blurry text say?" is about the text
_DAMAGED_THING = _pattern(
    r"(the|an?|this|that|my) (blurr(y|ed)|noisy|grainy) (?!(image|picture|photo|shot|frame|area|part|spot|corner)s?\b)"
    r"\w+"
)
# What is not to be looked at ("apart from the noise and the blur"), requests ("focus on the dog"), common terms
_LEFT_OUT = re.compile(
    r"((?<!don't )(?<!don’t )(?<!not )ignor\w*(?! everything)|regardless of|apart from|other than|aside from|besides"
    r"|(?<!everything )(?<!anything )except( for)?) ((the|any|all|its) )*\w+( (and|or) (the )?\w+)?"
    r"|(^|[.,;:!?] ?|\b(please|and|to) )focus(ing)?( only)? on|in the dark|(long|double) exposures?|noise reduction"
    r"|colou?r(?= (noise|speckl))|(?<=mosquito )noise|what colou?rs?",
    re.IGNORECASE,
)
# Whoever asks for more than what is named wants the model to look for itself.
_OPEN = _pattern(
    r"(what|anything) else|other (problem|issue|defect|distortion)s?|overall quality|such as|e\.g|etc|despite"
)
# The thing that a word of the second sort describes ("focus group"); behind it stands none of these
_THING = re.compile(
    r"[ -](?!(of|in|on|at|to|for|from|by|with|and|or|but|nor|than|as|like|is|are|was|were|be|do|does|did|has|have|can"
    r"|could|should|would|will|looks?|seems?|appears?|good|bad|fine|ok|okay|correct|right|wrong|off|low|high|strong|weak"
    r"|visible|natural|very|too|so|really|quite|enough|now|here|there|please|when|while|it|they|you|i|we|not|any|a|the"
    r"|this|that|image|picture|photo|quality|levels?|\w+ed|accura\w+|problems?|issues?|art[ie]facts?|distort\w+|loss|dull|gone"
    r"|since|after|before|across|around|along|over|under|into|near|versus|vs|against)\b)[^\W\d]+",
    re.IGNORECASE,
)


def distortions_in(query: str, regions: Iterable[str] = ()) -> list[str]:
    """The distortions that a question about quality names, in the query's order; none where it lists more
    than three, or asks for others too. Names of its `regions` are no distortions."""
    text = _asked_about(query)
    for region in regions:
        text = re.sub(rf"\b{re.escape(region)}\b", _dots, text, flags=re.IGNORECASE)
    places: dict[str, int] = {}
    for kind, words in _KINDS.items():
        for found in words.finditer(text):
            if _DAMAGE.search(found[0]) or not _THING.match(text, found.end()):
                places.setdefault(kind, found.start())
        text = words.sub(_dots, text)
    return [] if len(places) > _MOST or _OPEN.search(text) else sorted(places, key=places.__getitem__)


def asks_about_damage(query: str) -> bool:
    """Whether a query names damage by a word that means nothing else, or asks where damage is."""
    text = _asked_about(query)
    named = _DAMAGE.search(text) or (asks_where(query) and _ANY_DAMAGE.search(text))
    return bool(named) and not _DAMAGED_THING.search(text)


def _asked_about(query: str) -> str:
    """The question without what is not to be looked at."""
    return _LEFT_OUT.sub(_dots, question_alone(query))


def _dots(found: re.Match[str]) -> str:
    return "." * len(found[0])
