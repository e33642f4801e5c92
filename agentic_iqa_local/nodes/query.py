"""What a query says in so many words: tools, regions, a place, answers to choose from. Pure text rules, the
same for every model.
"""

import re
import unicodedata
from collections.abc import Sequence

from agentic_iqa_local.iqa_tools.specs import TOOLS, tool_key

# Longer names of tools, and names that leave open whether a reference is compared with
_FULL_NAMES = {
    "peaksignaltonoiseratio": "PSNR",
    "structuralsimilarity": "SSIM",
    "structuralsimilarityindex": "SSIM",
    "multiscalessim": "MS-SSIM",
    "multiscalestructuralsimilarity": "MS-SSIM",
    "complexwaveletssim": "CW-SSIM",
    "featuresimilarity": "FSIM",
    "visualsaliencyinducedindex": "VSI",
    "visualsaliencyindex": "VSI",
    "visualinformationfidelity": "VIF",
    "gradientmagnitudesimilaritydeviation": "GMSD",
    "learnedperceptualimagepatchsimilarity": "LPIPS",
    "naturalimagequalityevaluator": "NIQE",
    "blindreferencelessimagespatialqualityevaluator": "BRISQUE",
    "deepimagestructureandtexturesimilarity": "DISTS",
    "clipiqaplus": "CLIPIQA+",
    "onealign": "QAlign",
}
_BY_REFERENCE = {"topiq": ("TOPIQ_NR", "TOPIQ_FR"), "wadiqam": ("WaDIQaM_NR", "WaDIQaM_FR")}
# Well-known metrics that are not in the table: who names one must learn that it cannot run.
_OTHERS = (
    "VMAF", "HDR-VDP", "IW-SSIM", "UQI", "IFC", "BLIINDS", "DIIVINE", "CORNIA", "BIQI", "PSNR-HVS", "SSIMULACRA", "SSIMULACRA2",
    "Butteraugli", "FID", "DeQA", "Compare2Score", "ST-LPIPS", "MSSWD", "RankIQA", "MetaIQA", "CONTRIQUE", "Re-IQA", "HaarPSI", "DOVER",
)  # fmt: skip
_NAMES = (
    {tool_key(name): name for name in (*_OTHERS, *_BY_REFERENCE)}
    | {tool_key(name): spec.name for spec in TOOLS.values() for name in (spec.metric, spec.name)}
    | _FULL_NAMES
)
# Names that are words too count as spelled in the table, after a command, or before a word such as "score".
_WORDS_TOO = ("MAD", "PI", "UNIQUE", "TReS", "A-FINE", "VIF", "NIMA", "IFC", "FID")
_COMMAND = re.compile(r"\b(use|run|compute|calculate|with|via)\s+$", re.IGNORECASE)
_END_OF_COMMAND = re.compile(r"\s*($|[.?!,;:]|(to|on|for|and|as|please)\b)", re.IGNORECASE)
_MEASURE = re.compile(r"[\s-]*(score|metric|index|value|measure|tool)s?\b", re.IGNORECASE)
_SPELLED = "|".join(
    r"[ \-_.]?".join(map(re.escape, key)) for key in sorted(_NAMES, key=len, reverse=True)
)  # the longest first
_METRIC = re.compile(
    rf"(?<![A-Za-z0-9À-ɏ])({_SPELLED})(?![A-Za-z0-9À-ɏ]|[\w-]*\.(?:png|jpe?g|webp|bmp|tiff?|heic|gif|csv|txt|jsonl?)\b)",
    re.IGNORECASE,
)
# A negation that nothing but fillers parts from the name: "don't want to use NIQE", but not "no reference, so
# use NIQE"
_NEGATED = re.compile(
    r"(?<!why )\b(do not|don['’]?t|not|neither|never|no|without|except|avoid\w*|skip|ignore|instead of|(rather|other) than|(any|every)?thing but"
    r"|nicht|kein\w*|ohne|sans|pas|sin|senza|без|не)\s+"
    r"((want|use|using|run|running|apply|need|trust|rely|either|on|the|any|a|for|to|with|by|me|you)\s+)*$|(不要?用?|别用?)\s*$",
    re.IGNORECASE,
)
_NEGATED_BEHIND = re.compile(
    r"(\s+(and|or)\s+[\w-]+)?\s+(should|must|shall|may|can)(n['’]t| not)\b", re.IGNORECASE
)
_CARRIED = re.compile(r"\s*(,|/|,?\s*\b(or|and|nor|und|oder))\s*", re.IGNORECASE)  # "not X, Y or Z"


def named_tools(query: str, has_reference: bool) -> list[str]:
    """The tools of the table that the query names, in its order and the table's spelling; capitals, blanks,
    '-', '_' and dots apart. A name in a negated phrase ("not NIQE") does not count."""
    return [name for name in _asked_for(query, has_reference) if name in TOOLS]


def named_metrics(query: str, has_reference: bool) -> list[str]:
    """The tools that the query names, and behind them well-known metrics that are no tools here."""
    return sorted(_asked_for(query, has_reference), key=lambda name: name not in TOOLS)


def _asked_for(query: str, has_reference: bool) -> list[str]:
    text = unicodedata.normalize("NFKC", query)
    wanted, before, negated = [], 0, False
    for found in _metrics(text):
        start, end = found.span()
        carried = negated and _CARRIED.fullmatch(text[before:start])
        negated = bool(carried or _NEGATED.search(text[:start]) or _NEGATED_BEHIND.match(text[end:]))
        name = _NAMES[_key(found)]
        if not negated:
            wanted.append(_BY_REFERENCE[name][has_reference] if name in _BY_REFERENCE else name)
        before = end
    return list(dict.fromkeys(wanted))


def _key(found: re.Match[str]) -> str:
    return tool_key(found[0]).replace(".", "")


def _metrics(text: str) -> list[re.Match[str]]:
    return [found for found in _METRIC.finditer(text) if _is_a_name(found)]


def _is_a_name(found: re.Match[str]) -> bool:
    """Whether words that spell a metric's name are meant as one: "UNIQUE", "use unique", but not "a unique
    photo"."""
    name, text, (start, end) = _NAMES[_key(found)], found.string, found.span()
    commanded = _COMMAND.search(text[:start]) and _END_OF_COMMAND.match(text, end)
    asked = commanded or (_MEASURE.match(text, end) and " " not in found[0])
    return name not in _WORDS_TOO or bool(asked) or (found[0] == name and not text.isupper())


def question_alone(query: str) -> str:
    """The query without a lettered list of answers, and without names of metrics."""
    query = unicodedata.normalize("NFKC", query)
    if _lettered(query) and (first := _FIRST_MARK.search(query)):
        query = query[: first.start()]
    return " ".join(_without_metrics(query).split())


def _without_metrics(text: str) -> str:
    for found in reversed(_metrics(text)):
        text = f"{text[: found.start()]}.{text[found.end() :]}"
    return text


_NO_REGION = frozenset(
    re.findall(
        r"\S+",
        "a an the this that these those my your our its it whole entire full overall of in image images picture pictures photo photos"
        " photograph shot frame scene screenshot everything all global test quality score rating level value result reference original"
        " distortion distortions degradation artifact artifacts defect defects problem resolution clarity realism composition exposure"
        " lighting saturation tones hue aberration bild foto imagen 图 图片 照片 图像 画像 写真 质量 品質",
    )
)
_QUALITY_WORD = re.compile(
    r"(de|un|over|under)?(blur\w*|nois\w*|grain\w*|sharp\w*|contrast\w*|bright\w*|dark\w*|compress\w*|colou?r\w*|expos\w*|satur\w*"
    r"|focus\w*|tint\w*|soft\w*|jpeg|block(ing|iness|y)|ringing|banding|halos?)"
)
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def region_in(query: str, name: str) -> str | None:
    """The region that a plan calls `name`, without words for the picture or its quality at either end ("photo
    of my dog": dog); None where nothing is left, or the query does not hold it."""
    query, words = _without_metrics(unicodedata.normalize("NFKC", query)), _words(name)
    while words and _is_no_region(words[0]):
        words = words[1:]
    while words and _is_no_region(words[-1]):
        words = words[:-1]
    region = " ".join(words)
    if not words or not (
        region.replace(" ", "") in query if _UNSPACED.search(name) else holds(query, region)
    ):
        return None
    return name if len(words) == len([word for word in _words(name) if word not in ("the", "a")]) else region


def _is_no_region(word: str) -> bool:
    return word in _NO_REGION or len(word) == 1 or word.isdecimal() or bool(_QUALITY_WORD.fullmatch(word))


def holds(text: str, phrase: str) -> bool:
    """Whether the text holds the phrase's words in a row; capitals, plurals and articles apart."""
    found, wanted = (
        [_stems(word) for word in _words(one) if word not in ("the", "a")] for one in (text, phrase)
    )
    return bool(wanted) and any(
        all(mine & theirs for mine, theirs in zip(found[i:], wanted, strict=False))
        for i in range(len(found) - len(wanted) + 1)
    )


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())


def _stems(word: str) -> set[str]:
    """The word, and what it may be the plural of."""
    plurals = (("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"), ("ves", "fe"))
    return {word} | {
        word.removesuffix(ending) + singular
        for ending, singular in plurals
        if word.endswith(ending) and not word.endswith("ss") and len(word) > len(ending) + 1
    }


_WHERE = re.compile(
    r"\b(where(abouts)?|(which|what) (part|corner|side|half|quarter|area|region|spot|place)s?|in one (corner|part|place)"
    r"|(across|over|throughout|(cover|fill|affect)\w*) (the|my|this) (whole|entire) (picture|image|frame|photo)"
    r"|wo|où|d[oó]nde|dove (si|sono|è)|dov['’]è)\b|哪里|何处|どこ",
    re.IGNORECASE,
)


def asks_where(query: str) -> bool:
    """Whether a query wants to know in which part of the picture something is."""
    return bool(_WHERE.search(query))


_MOST_ANSWERS, _LONGEST_ANSWER = 10, 100  # answers, characters
# A., a) or (A) where a clause begins; an initial ("J. A. Smith") begins none. Numbers count after a question
# alone.
_FIRST_MARK = re.compile(
    r"(?:^|(?<!\b[A-Z])[.]|[?:!,;\n。、])\s*(?:[(\[]([Aa])[)\]]|([Aa])[.):、])\s*(?=[^\s.])|[?:\n]\s*(1)[.)]\s+(?=\S)"
)
_NO_ANSWER = re.compile(
    r"(is|are|was|does?|did|how|what|which|why|can|could|where|who|rate|score|explain|tell|describe|give|say|list|assess|judge|compare"
    r"|check|write|count)\b",
    re.IGNORECASE,
)
_END_OF_LIST = re.compile(
    r"(?<!\b[A-Z])(?<!\b[A-Z][a-z])[.?!]\s+(?=[A-Z¿¡])|[。？]|\n"
)  # "Dr. No" is one answer
_PAIR = r"(yes|ja|oui|s[íi]|да|true|y|是)\s*(?:or|oder|ou|o|или|/|,|或|还是)\s*(no|nein|non|не|нет|false|n|否|不是)"
_YES_NO = (
    re.compile(rf"^\s*(?:(?:answer|reply|say)\s+(?:with\s+|by\s+)?)?{_PAIR}\s*[:,?–—-]", re.IGNORECASE),
    re.compile(
        rf"(?<!whether)(?<!saying)(?<!say)(?<!if)[\s,;(?!.:？–—-]{_PAIR}[\s?.!),？。]*((please|and)?\s*(briefly\s+)?(explain|why)\b.*)?$",
        re.IGNORECASE,
    ),
)


def choices_in(query: str) -> list[str] | None:
    """The answers that the query offers: a lettered list ("A. too dark B. too bright"; after a question
    numbers do too) or "yes or no"; None where it offers none. A list of questions or instructions is none."""
    text = unicodedata.normalize("NFKC", query)
    if lettered := _lettered(text):
        return lettered
    found = next(filter(None, (pattern.search(text) for pattern in _YES_NO)), None)
    return [found[1], found[2]] if found else None


def _lettered(query: str) -> list[str] | None:
    if (first := _FIRST_MARK.search(query)) is None:
        return None
    letter, marks = next(filter(None, first.groups())), [first]
    while len(marks) < _MOST_ANSWERS:
        letter = chr(ord(letter) + 1)
        mark = re.compile(rf"(?<=[\s,;])(?:[(\[]{letter}[)\]]|{letter}[.):、])\s*(?=[^\s.])")
        if (found := mark.search(query, marks[-1].end())) is None:
            break
        marks.append(found)
    ends = [mark.start() for mark in marks[1:]] + [len(query)]
    texts = [query[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
    answers = [_trimmed(text.split("\n")[0]) for text in texts[:-1]]
    answers.append(_trimmed(_END_OF_LIST.split(texts[-1], maxsplit=1)[0]))
    return answers if _can_be_chosen(answers) else None


def _trimmed(answer: str) -> str:
    return re.sub(r"[\s,;.?!(\[]*(\b(or|and|oder|ou)\b)?[\s(\[]*$", "", answer, flags=re.IGNORECASE)


def _can_be_chosen(answers: Sequence[str]) -> bool:
    different = len({answer.casefold() for answer in answers}) == len(answers) > 1
    return different and all(
        answer and len(answer) <= _LONGEST_ANSWER and not _NO_ANSWER.match(answer) for answer in answers
    )
