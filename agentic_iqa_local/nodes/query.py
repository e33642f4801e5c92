"""What a query says in so many words: tools, regions, a place, answers to choose from. Text rules, the same for every
model."""

import itertools
import re
import unicodedata

from agentic_iqa_local.iqa_tools.specs import TOOLS, tool_key

# Well-known metrics that are not in the table: who names one must learn that it cannot run.
_OTHERS = (
    "VMAF", "HDR-VDP", "IW-SSIM", "UQI", "IFC", "BLIINDS", "DIIVINE", "CORNIA", "BIQI", "PSNR-HVS", "SSIMULACRA",
    "SSIMULACRA2", "Butteraugli", "FID", "DeQA", "Compare2Score", "HaarPSI",
)  # fmt: skip
_FULL_NAMES = {
    "peaksignaltonoiseratio": "PSNR", "structuralsimilarity": "SSIM", "structuralsimilarityindex": "SSIM",
    "multiscalessim": "MS-SSIM", "featuresimilarity": "FSIM", "clipiqaplus": "CLIPIQA+", "onealign": "QAlign",
}  # fmt: skip
_BY_REFERENCE = {"topiq": ("TOPIQ_NR", "TOPIQ_FR"), "wadiqam": ("WaDIQaM_NR", "WaDIQaM_FR")}  # without, with one
_NAMES = (
    {tool_key(name): name for name in (*_OTHERS, *_BY_REFERENCE)}
    | {tool_key(name): spec.name for spec in TOOLS.values() for name in (spec.metric, spec.name)}
    | _FULL_NAMES
)
# Names that are words too count as the table spells them, after a command, or before a word such as "score".
_WORDS_TOO = ("MAD", "PI", "UNIQUE", "TReS", "A-FINE", "VIF", "NIMA", "IFC", "FID")
_SPELLED = "|".join(r"[ \-_.]?".join(map(re.escape, key)) for key in sorted(_NAMES, key=len, reverse=True))
_IN_FILE_NAME = r"[\w-]*\.(?:png|jpe?g|webp|bmp|tiff?|heic|gif|csv|txt|jsonl?)\b"
_NAME = rf"(?<![A-Za-z0-9À-ɏ])(?:{_SPELLED})(?![A-Za-z0-9À-ɏ]|{_IN_FILE_NAME})"
_METRIC = re.compile(
    rf"(\b(?:use|run|compute|calculate)\s+)?({_NAME})([\s-]*(?:score|metric|index|value)s?\b)?", re.IGNORECASE
)
# "not X, Y or Z": nothing but fillers parts a negation from the name; and "X and Y should not"
_AND = r"(?:\s*[,/]\s*(?:(?:or|and|nor|und|oder)\s+)?|\s+(?:or|and|nor|und|oder)\s+)"
_LIST = rf"{_NAME}(?:{_AND}{_NAME}){{0,9}}"  # bounded: a long query is read in linear time
_REFUSED = re.compile(
    r"(?:(?<!why )\b(?:do not|don['’]?t|not|neither|never|no|without|except|avoid\w*|skip|ignore|instead of|other than"
    r"|rather than|anything but|nicht|kein\w*|ohne|sans|pas|sin|senza|без|не)\s+"
    r"(?:(?:want|use|using|run|running|apply|trust|either|on|the|any|a|for|to|with|by|me|you)\s+)*|(?:不要?用?|别用?)\s*)"
    rf"{_LIST}|{_LIST}\s+(?:should|must|shall|may|can)(?:n['’]t| not)\b",
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
    r"\w|\d+|an|the|this|that|these|those|my|your|our|its|it|whole|entire|full|overall|of|in|images?|pictures?|photos?"
    r"|photograph|shot|frame|scene|screenshot|everything|all|global|test|quality|score|rating|level|value|result"
    r"|reference|original|distortions?|degradation|artifacts?|defects?|problem|resolution|clarity|realism|composition"
    r"|exposure|lighting|saturation|tones|hue|aberration|mood|style|story|bild|foto|imagen|图|图片|照片|图像|画像|写真|质量"
    r"|(de|un|over|under)?(blur|nois|grain|sharp|contrast|bright|dark|compress|colou?r|expos|satur|focus|tint|soft)\w*"
    r"|jpeg|block(ing|iness|y)|ringing|banding|halos?"
)


def region_in(query: str, name: str) -> str | None:
    """The region that a plan calls `name`, without words for the picture or its quality at either end ("photo
    of my dog": dog); None where nothing is left, or the query does not hold it."""
    words = re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", _plain(name))
    kept = [i for i, word in enumerate(words) if not _NO_REGION.fullmatch(word.casefold())]
    region = words[kept[0] : kept[-1] + 1] if kept else []
    if region == [word for word in words if word.casefold() not in ("the", "a")]:
        region = words
    found, text = " ".join(region), _without_metrics(query)
    unspaced = not found.isascii() and found in text  # Chinese and its like
    return found if region and (unspaced or holds(text, found)) else None


def holds(text: str, phrase: str) -> bool:
    """Whether the text holds the phrase's words in a row; capitals, plurals and articles apart."""
    found, wanted = (re.findall(r"[^\W_]+", _plain(one).casefold()) for one in (text, phrase))
    found, wanted = ([_stems(word) for word in words if word not in ("the", "a")] for words in (found, wanted))
    rows = [found[i : i + len(wanted)] for i in range(len(found) - len(wanted) + 1)]
    return bool(wanted) and any(all(map(set.intersection, row, wanted)) for row in rows)


def _stems(word: str) -> set[str]:
    """The word, and what it may be the plural of."""
    plurals = (("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"), ("ves", "fe"))
    ends = [(end, singular) for end, singular in plurals if word.endswith(end) and len(word) > len(end) + 1]
    return {word} | {word.removesuffix(end) + singular for end, singular in ends if not word.endswith("ss")}


_WHERE = re.compile(
    r"\b(where(abouts)?|(which|what) (part|corner|side|half|quarter|area|region|spot|place)s?"
    r"|in one (corner|part|place)|(across|over|throughout|(cover|fill|affect)\w*) (the|my|this) (whole|entire)"
    r" (picture|image|frame|photo)|wo|où|d[oó]nde|dove (si|sono|è)|dov['’]è)\b|哪里|何处|どこ",
    re.IGNORECASE,
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
    r"$|.{100}|(is|are|was|were|does?|did|how|what|which|why|can|could|where|who|rate|score|explain|tell|describe|give"
    r"|say|list|assess|judge|compare|check|write|count)\b",
    re.IGNORECASE | re.DOTALL,
)
_END_OF_LIST = re.compile(r"(?<!\b[A-Z])(?<!\b[A-Z][a-z])[.?!]\s+(?=[A-Z¿¡])|[。？]|\n")  # "Dr. No" is one answer
_END_OF_ANSWER = re.compile(r"[\s,;.?!(\[]*(\b(or|and|oder|ou)\b)?[\s(\[]*$", re.IGNORECASE)
_PAIR = r"(yes|ja|oui|s[íi]|да|true|y|是)\s*(?:or|oder|ou|o|или|/|,|或|还是)\s*(no|nein|non|не|нет|false|n|否|不是)"
_YES_NO = re.compile(
    rf"^\s*(?:(?:answer|reply|say)\s+(?:with\s+|by\s+)?)?{_PAIR}\s*[:,?–—-]"
    rf"|(?<!whether)(?<!saying)(?<!say)(?<!if)[\s,;(?!.:？–—-]{_PAIR}[\s?.!),？。]*"
    r"(?:(?:please|and)?\s*(?:briefly\s+)?(?:explain|why)\b.*)?$",
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
