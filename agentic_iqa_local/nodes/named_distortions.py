"""Which distortions a query names. Pure text rules, the same for every model, for English words: where they
find none, the query may still name some, and the model reads it.
"""

import re
from collections.abc import Container, Iterable

from agentic_iqa_local.nodes.query import names_a_thing, question_alone

# The damage, and what suffers from it ("how sharp is it"). Words of the first kind are taken out before the
# others are looked for: "too sharp" is not about blur.
_WORDS = {
    "Sharpness": (
        r"over[ -]?sharp\w*|sharpen(ed|ing)|unsharp[ -]mask\w*|halo(s|es|ed|ing)?|edge[ -](enhanc\w*|glow|overshoot)|(dark|bright|white) edge \w+"
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

_A_KIND = (
    r"(\w*blur\w*|nois\w+|grain\w*|focus|sharp\w*|(jpe?g )?compress\w+|(jpe?g )?art[ie]facts?|exposure|brightness|contrast|colou?rs?|saturation"
    r"|banding|blocking|halos?)"
)
_THE = r"((the|any|all|its|my|their|that|slight|film|motion|jpe?g|background) )*"
# What is not to be looked at; but of "ignore everything except blur" and "don't ignore the noise" it is the
# opposite.
_LEFT_OUT = (
    r"(ignor\w*|regardless of|apart from|other than|except( for)?|never mind|aside from|not about|besides|disregard|forget|skip|exclud\w+"
    r"|leav\w* (out|aside)|without considering|not worried about|(do not|don['’]?t) (care about|mind|look at|check|consider))"
    rf" {_THE}{_A_KIND}(,? (and|or) {_THE}{_A_KIND})?"
)
_NOTHING_BUT = re.compile(
    r"\b(ignor\w*|check|rate|assess|judge|look at)? ?(everything|nothing|anything) (except( for)?|but|other than)\b"
    r"|\b(do not|don['’]?t|never) (ignore|leave out|forget)\b",
    re.IGNORECASE,
)
# Words for damage and virtues that name a thing, a term of the trade, or a request ("focus on the dog"), where
# no thing behind them tells (`_describes`).
_THINGS = (
    r"in the dark|when it was dark|(in|on|of|are) (the |a )?(very )?(dark|bright)(er|est)? (areas?|parts?|spots?|rooms?|backgrounds?)"
    r"|(wood|leather|sand|wheat) grains?|blocks? of (flats|houses)|(building|toy) blocks|plaster casts?"
    r"|noise[ -](reduction|barriers?|cancel\w*|meters?)|(mak|hear)\w* (the |a |any |that )?noise"
    r"|compress(ed|ion) (air|gas|hay|socks?|stockings?|bandages?)|compressors?"
    r"|(long|double|multiple) exposures?|phase[ -]contrast|contrast[ -]enhanced|what colou?rs?|colou?r(?= (noise|speckl))|(?<=mosquito )noise"
    r"|((with|and|then|let['’]?s|main|particular|special|a|please|only|just|must|should|can you|could you) )+focus(ing)?( \w+ly)?( only| just| is)? on"
    r"|(?<!manage )(?<!managed )(?<!fail )(?<!failed )(?<!able )\bto focus on|^focus( \w+ly)? (only |just )?on|[.,;:!?] ?focus( \w+ly)? (only |just )?on"
)
_NONE = re.compile(rf"(?<!\w)({_LEFT_OUT}|{_THINGS})(?!\w)", re.IGNORECASE)
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
# A question about what the picture shows, in which they describe it ("What does the blurry text say?").
_CONTENT = re.compile(
    r"^\W*(((please|can you|could you) )?(read|translate|transcribe|caption|guess|identify|write|count)\b|(who|whose|how (many|old))\b"
    r"|what (breed|colou?r|does|animal)\b|which (animal|person|movie|game|machine)\b)|\bwhat(['’]s| is) (happening|written|going on)\b",
    re.IGNORECASE,
)
_DESCRIBING = re.compile(
    r"\b(the|an?|this|that|these|those|my|his|her) (blurr(y|ed)|noisy|grainy|pixelated|out[ -]of[ -]focus)"
    r" (?!(image|picture|photo|shot|frame|area|part|spot|edge|region|corner)s?\b)\w+",
    re.IGNORECASE,
)


# "Is the contrast natural?" is about contrast, "Is the contrast agent visible?" is not.
_SUBJECT, _PREDICATE = (
    re.compile(r"\b(is|are|was|were|do|does|did) (the |its? |th[eo]se |this |that |my )?$", re.IGNORECASE),
    re.compile(r" \w+ ?([?.!,;]|$)"),
)


def distortions_in(query: str, regions: Iterable[str] = (), planned: Container[str] = ()) -> list[str]:
    """The distortions that a question about quality names, in the query's order; none where they are answers
    to choose from, or the query asks for others too. Names of its `regions` are no distortions. A word that
    need not mean damage may describe a thing where one follows ("focus group"): there it counts only for the
    `planned` distortions."""
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
    """Whether a query names damage by a word that means nothing else, so that it is about quality."""
    text = _DESCRIBING.sub(_dots, _without_things(query))
    return bool(_DAMAGE.search(text)) and not _CONTENT.search(text)


def _describes(found: re.Match[str], text: str) -> bool:
    before = text[: found.end() - len(found[0].lstrip(" -"))]
    predicate = _SUBJECT.search(before) and _PREDICATE.match(text, found.end())
    return not (predicate or _DAMAGE.search(found[0])) and names_a_thing(text[found.end() :])


def _without_things(query: str) -> str:
    return _NONE.sub(_dots, _NOTHING_BUT.sub(_dots, question_alone(query)))


def _dots(found: re.Match[str]) -> str:
    return "." * len(found[0])
