"""Which distortions a query names. Pure text rules, the same for every model, for English words: where they
find none, the query may still name some, and the model reads it.
"""

import re
from collections.abc import Container, Iterable

from agentic_iqa_local.nodes.query import asks_where, question_alone

# The damage, and what suffers from it ("how sharp is it"). Words of the first kind are taken out before the
# others are looked for: "too sharp" is not about blur.
_WORDS = {
    "Sharpness": (
        r"over[ -]?sharp\w*|sharpen(ed|ing)|unsharp[ -]mask\w*|halo(s|es|ed|ing)?|edge[ -](enhanc\w*|glow|overshoot)"
        r"|(too|overly|artificially|painfully|excessive(ly)?|too much|unnatural(ly)?|over)[ -](sharp|crisp)\w*"
    ),
    "Blurs": (
        r"\w*blur\w*|unsharp|sharp(er|est|ly|ness)?|crisp\w*|(in|out of|de|un|mis)?[ -]?focus(ed|sed)?|soft(ness|er|en\w*)?"
        r"|fuzz\w*|smear\w*|smudg\w*|(camera|shutter) shake|shaky"
    ),
    "Noise": r"nois(e|y|iness|ier)|grain(y|iness|ier)?|speckl\w*|hot pixels",
    "Compression": (
        r"\w*compress\w*|(jpe?g|webp|codec|encoding|coding|block)[ -](art[ie]facts?|blocks?|damage|boundaries)"
        r"|block(s|y|iness|ing)|macroblock\w*|ringing|banding|mosquito|pixel+(at\w*|y)|pixilat\w*"
    ),
    "Color distortions": (
        r"colou?rs?|casts?|tint(s|ed)?|tinged?|white[ -]balanc\w*|(over|under|de)?-?saturat\w*|washed[ -]out|discolou?r\w*|hues?|faded|dull"
        r"|chromatic aberration|purple fring\w*|skin tones?|too (yellow|blue|green|red|orange|magenta|pink|purple|warm|cold|cool)"
    ),
    "Brightness change": (
        r"(over)?bright(er|ness|ening)?|dark(er|ness|ening)?|dim(ness)?|(over|under)?[ -]?expos(ed|ure)|(over|under)lit|(well|badly|poorly) lit"
        r"|too light|lighting|(blown|burnt|burned)[ -]out|(blown|clipped) highlights|highlights (\w+ )?(blown|clipped)|crushed shadows"
    ),
    "Contrast": r"contrast\w*|flat(ness)?|milky",
}
_KINDS = {kind: re.compile(rf"\b({words})\b", re.IGNORECASE) for kind, words in _WORDS.items()}
_MOST = 3  # kinds: a query with more of them lists what there may be

# What is not to be looked at ("apart from the noise and the blur"), requests ("focus on the dog"), and the
# commonest terms
_LEFT_OUT = re.compile(
    r"((?<!don't )(?<!don’t )(?<!not )(?<!never )ignor\w*(?! everything)|regardless of|apart from|other than|aside from|besides|disregard"
    r"|(?<!everything )(?<!anything )except( for)?|without considering) ((the|any|all|its|film) )*\w+( (and|or) (the )?\w+)?"
    r"|(^|[.,;:!?] ?|\b(with a|please|and|to) )(?<!manage to )(?<!able to )focus(ing)?( \w+ly)?( only| just)? on"
    r"|in the dark|(long|double) exposures?|noise[ -](reduction|barriers?)|colou?r(?= (noise|speckl))|(?<=mosquito )noise|what colou?rs?",
    re.IGNORECASE,
)
# Whoever asks for more than what is named wants the model to look for itself.
_OPEN = re.compile(
    r"\b((what|anything) else|other (problem|issue|defect|distortion|flaw)s?|overall quality|such as|e\.g|etc|for (example|instance)|despite)\b",
    re.IGNORECASE,
)
# Words that mean damage and nothing else: "How many colours has the flag?" is not about quality.
_DAMAGE = re.compile(
    r"\b(blur\w*|nois(e|y|ier|iness)|grainy|graininess|unsharp|out[ -]of[ -]focus|pixel+ated|pixel+ation|blockiness|(over|under)[ -]?expos\w+"
    r"|over[ -]?sharpened|overcompressed|compression|(jpe?g|compression|visible) art[ie]facts?|distort(ed|ions?)|too (dark|bright)|colou?r casts?)\b",
    re.IGNORECASE,
)
_DAMAGE_SOMEWHERE = re.compile(
    r"\b(damag\w*|defects?|flaws?|faults?|art[ie]facts?|grain|compress\w*|degrad\w*)\b", re.IGNORECASE
)
# Questions about what the picture shows ("What does the blurry text say?", "a noisy neighbourhood")
_CONTENT = re.compile(
    r"^\W*(((please|can you|could you) )?(read|translate|transcribe|caption|guess|identify|write|count)\b|(who|whose|how (many|old))\b"
    r"|what (breed|colou?r|does|animal)\b|which (animal|person|movie|game|machine)\b)"
    r"|\b(the|an?|this|that|my) (blurr(y|ed)|noisy|grainy) (?!(image|picture|photo|shot|frame|area|part|spot|edge|region|corner)s?\b)\w+",
    re.IGNORECASE,
)
# A word that need not mean damage describes the thing behind it ("focus group"), but for "Is the contrast
# natural?".
_THING = re.compile(
    r"[ -](?!(of|in|on|at|to|for|from|by|with|and|or|but|nor|than|as|like|is|are|was|were|be|do|does|did|has|have|can|could|should|would|will"
    r"|looks?|seems?|appears?|good|bad|fine|ok|okay|visible|natural|accura\w+|very|too|so|really|quite|enough|now|here|there|please|when|while|it"
    r"|they|you|i|we|not|any|a|the|this|that|image|picture|photo|quality|levels?|\w+ed|problems?|issues?|art[ie]facts?|distort\w+|loss|dull|gone"
    r"|since|after|before|across|around|along|over|under|into|near|versus|vs|against|isn)\b)[^\W\d]+",
    re.IGNORECASE,
)
_SUBJECT = re.compile(r"\b(is|are|was|were|do|does|did) (the |its? |this |that |my )?$", re.IGNORECASE)
_PREDICATE = re.compile(r" \w+ ?([?.!,;]|$)")


def distortions_in(query: str, regions: Iterable[str] = (), planned: Container[str] = ()) -> list[str]:
    """The distortions that a question about quality names, in the query's order; none where it lists more
    than three, or asks for others too. Names of its `regions` are no distortions. A word that need not mean
    damage may describe a thing where one follows ("focus group"): there it counts only for the `planned`
    distortions."""
    text = _without_things(query)
    for region in regions:
        text = re.sub(rf"\b{re.escape(region)}\b", _dots, text, flags=re.IGNORECASE)
    places: dict[str, int] = {}
    for kind, words in _KINDS.items():
        for found in words.finditer(text):
            if kind in planned or not _describes(found, text):
                places.setdefault(kind, found.start())
        text = words.sub(_dots, text) if kind == "Sharpness" else text
    return [] if len(places) > _MOST or _OPEN.search(text) else sorted(places, key=places.__getitem__)


def asks_about_damage(query: str) -> bool:
    """Whether a query names damage by a word that means nothing else, or asks where damage is: it is about
    quality."""
    text = _without_things(query)
    named = _DAMAGE.search(text) or (asks_where(query) and _DAMAGE_SOMEWHERE.search(text))
    return bool(named) and not _CONTENT.search(text)


def _describes(found: re.Match[str], text: str) -> bool:
    predicate = _SUBJECT.search(text[: found.start()]) and _PREDICATE.match(text, found.end())
    return not (predicate or _DAMAGE.search(found[0])) and bool(_THING.match(text, found.end()))


def _without_things(query: str) -> str:
    return _LEFT_OUT.sub(_dots, question_alone(query))


def _dots(found: re.Match[str]) -> str:
    return "." * len(found[0])
