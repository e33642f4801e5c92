"""What a query says in so many words: tools, regions, a place, answers to choose from. Text rules, the same for every
model."""

import itertools
import re
import unicodedata

from agentic_iqa_local.iqa_tools.specs import TOOLS, tool_key

# Well-known metrics that are not in the table: who names one must learn that it cannot run.
_OTHERS = (
    "VMAF", "IW-SSIM", "UQI", "IFC", "BLIINDS", "DIIVINE", "CORNIA", "BIQI", "SSIMULACRA2", "FID", "DeQA",
)  # fmt: skip
_FULL_NAMES = {"peaksignaltonoiseratio": "PSNR", "structuralsimilarity": "SSIM", "clipiqaplus": "CLIPIQA+"}
_BY_REFERENCE = {"topiq": ("TOPIQ_NR", "TOPIQ_FR"), "wadiqam": ("WaDIQaM_NR", "WaDIQaM_FR")}  # without, with one
_NAMES = (
    {tool_key(name): name for name in (*_OTHERS, *_BY_REFERENCE)}
    | {tool_key(name): spec.name for spec in TOOLS.values() for name in (spec.metric, spec.name)}
    | _FULL_NAMES
)
# Names that are words too count as the table spells them, after a command, or before a word such as "score".
_WORDS_TOO = ("MAD", "PI", "UNIQUE", "TReS", "A-FINE", "VIF", "NIMA", "IFC", "FID")
_SPELLED = "|".join(r"[ \-_.]?".join(map(re.escape, key)) for key in sorted(_NAMES, key=len, reverse=True))
_NAME = rf"(?<![A-Za-z0-9À-ɏ])(?:{_SPELLED})(?![A-Za-z0-9À-ɏ]|[\w-]*\.(?:png|jpe?g|webp|tiff?|csv)\b)"
_METRIC = re.compile(
    rf"(\b(?:use|run|compute|calculate)\s+)?({_NAME})([\s-]*(?:score|metric|index|value)s?\b)?", re.IGNORECASE
)
# "not X, Y or Z": nothing but fillers parts a negation from the name; and "X and Y should not"
_AND = r"(?:\s*[,/]\s*(?:(?:or|and|nor)\s+)?|\s+(?:or|and|nor|und|oder)\s+)"
_LIST = rf"{_NAME}(?:{_AND}{_NAME}){{0,9}}"  # bounded: a long query is read in linear time
_REFUSED = re.compile(
    r"(?:(?<!why )(?:\b(?:not|never|no|without|except|avoid|skip|ignore|instead of|rather than|other than|anything but"
    r"|nicht|kein\w*|ohne|sans|sin)|n['’]t)\s+(?:(?:want|you|to|use|using|run|the|any|a|with|by|on)\s+)*"
    r"|(?:不要?用?|别用?)\s*)"
    rf"{_LIST}|{_LIST}\s+should(?:n['’]t| not)\b",
    re.IGNORECASE,
)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def named_metrics(query: str, has_reference: bool) -> list[str]:
    """The tools that the query names, in its order and the table's spelling, and behind them well-known metrics
    that are no tools here. A name in a negated phrase ("not NIQE") does not count."""
    found = map(_metric, _METRIC.finditer(_REFUSED.sub(" ; ", _plain(query))))
    named = dict.fromkeys(_BY_REFERENCE.get(name, (name, name))[has_reference] for name in found if name)
    return sorted(named, key=lambda name: name not in TOOLS)


def _metric(found: re.Match[str]) -> str | None:
    """The metric that is named: by "UNIQUE" and "use unique", but not by "a unique photo"."""
    name, written = _NAMES[tool_key(found[2]).replace(".", "")], found[2]
    asked = found[1] or (found[3] and " " not in written)
    as_spelled = written == name and not found.string.isupper()
    return name if name not in _WORDS_TOO or asked or as_spelled else None


def _without_metrics(query: str) -> str:
    return _METRIC.sub(lambda found: "." if _metric(found) else found[0], _plain(query))


def question_alone(query: str) -> str:
    """The query without a lettered list of answers, and without names of metrics."""
    text = _plain(query)
    return " ".join(_without_metrics(text[: _lettered(text)[0]]).split())


# Words for the whole picture and for its quality, which name no part of it
_NO_REGION = re.compile(
    r"\w|\d+|an|the|this|that|my|your|its?|whole|entire|full|overall|of|in|images?|pictures?|photos?|shot|frame|scene"
    r"|everything|all|global|quality|score|rating|level|value|reference|original|distortions?|degradation|art[ie]facts?"
    r"|defects?|lighting|composition|mood|style|aberration|bild|foto|imagen|图|图片|照片|图像|画像|写真|质量|jpeg|halos?"
    r"|(de|un|over|under)?(blur|nois|grain|sharp|contrast|bright|dark|compress|colou?r|expos|satur|focus|tint|soft)\w*"
)


def region_in(query: str, name: str) -> str | None:
    """The region that a plan calls `name`, without words for the picture or its quality at either end ("photo
    of my dog": dog); None where nothing is left, or the query does not hold it, plurals apart."""
    words = re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", _plain(name))
    kept = [i for i, word in enumerate(words) if not _NO_REGION.fullmatch(word.casefold())]
    if not kept:
        return None
    region, text = " ".join(words[kept[0] : kept[-1] + 1]), _without_metrics(query)
    unspaced = not region.isascii() and region in text  # Chinese and its like
    wanted, found = _stemmed(region), _stemmed(text)
    rows = (found[i : i + len(wanted)] for i in range(len(found) - len(wanted) + 1))
    return region if unspaced or any(all(map(set.intersection, row, wanted)) for row in rows) else None


def _stemmed(text: str) -> list[set[str]]:
    """Of each word but articles: itself, and what it may be the plural of."""
    ends = (("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"), ("ves", "fe"))
    words = [word for word in re.findall(r"[^\W_]+", text.casefold()) if word not in ("the", "a")]
    return [{word} | {word.removesuffix(end) + last for end, last in ends if word.endswith(end)} for word in words]


_WHERE = re.compile(
    r"\b(where(abouts)?|(which|what) (part|corner|side|half|quarter|area|region)s?|wo|où|d[oó]nde)\b|哪里|どこ", re.I
)


def asks_where(query: str) -> bool:
    """Whether a query wants to know in which part of the picture something is."""
    return bool(_WHERE.search(query))


# A., a), (A) or 1., and what ends the clause before it; an initial ("J. A. Smith") ends none
_MARK = re.compile(
    r"((?:^|(?<!\b[A-Z])\.|[?:!,;\n。、])\s*)?(?<!\w)(?:[(\[]([A-Ja-j])[)\]]|([A-Ja-j1-9])[.):、])\s*(?=[^\s.])"
)
# What a person answers is short, and no question or instruction
_NO_ANSWER = re.compile(
    r"$|.{100}|(is|are|do|does|did|how|what|which|why|can|where|who|rate|score|explain|describe|give|list|compare)\b",
    re.IGNORECASE | re.DOTALL,
)
_END_OF_LIST = re.compile(r"(?<!\b[A-Z])(?<!\b[A-Z][a-z])[.?!]\s+(?=[A-Z¿¡])|[。？]|\n")  # "Dr. No" is one answer
_END_OF_ANSWER = re.compile(r"[\s,;.?!(\[]*(\b(or|and|oder|ou)\b)?[\s(\[]*$", re.IGNORECASE)
_PAIR = r"(yes|ja|oui|s[íi]|true|y|是)\s*(?:or|oder|ou|o|/|,|或|还是)\s*(no|nein|non|false|n|否|不是)"
_YES_NO = re.compile(
    rf"^\s*(?:answer\s+(?:with\s+)?)?{_PAIR}\s*[:,?–—-]"
    rf"|(?<!whether)(?<!saying)(?<!if)[\s,;(?!.:–—-]{_PAIR}[\s?.!),。]*(?:(?:please\s+)?(?:explain|why)\b.*)?$",
    re.IGNORECASE,
)


def choices_in(query: str) -> list[str] | None:
    """The answers that the query offers: a lettered list ("A. too dark B. too bright"; after a question
    numbers do too) or "yes or no"; None where it offers none. A list of questions or instructions is none."""
    text = _plain(query)
    pair = _YES_NO.search(text)
    return _lettered(text)[1] or ([word for word in pair.groups() if word] if pair else None)


def _lettered(text: str) -> tuple[int, list[str]]:
    """Where a list of answers begins, and the answers; the text's end and nothing where it has none."""
    marks: list[re.Match[str]] = []
    for mark in _MARK.finditer(text):
        sign, clause = mark[2] or mark[3], mark[1]
        begins = clause is not None and (sign in "Aa" or (sign == "1" and clause[:1] in ("?", ":", "\n")))
        if ord(sign) == ord(marks[-1][2] or marks[-1][3]) + 1 if marks else begins:
            marks.append(mark)
    if len(marks) < 2:
        return len(text), []
    parts = [text[mark.end() : after.start()].strip().split("\n")[0] for mark, after in itertools.pairwise(marks)]
    parts.append(_END_OF_LIST.split(text[marks[-1].end() :].strip())[0])
    answers = [_END_OF_ANSWER.sub("", part) for part in parts]
    different = len({answer.casefold() for answer in answers}) == len(answers)
    return (marks[0].start(), answers) if different and not any(map(_NO_ANSWER.match, answers)) else (len(text), [])
