"""What a query says in so many words: tools, regions, a place, answers to choose from. Text rules, the same for
every model."""

import re
import unicodedata
from collections.abc import Iterator

from agentic_iqa_local.iqa_tools.specs import TOOLS, tool_key

_FULL_NAMES = {
    "peaksignaltonoiseratio": "PSNR", "structuralsimilarity": "SSIM", "structuralsimilarityindex": "SSIM",
    "multiscalessim": "MS-SSIM", "multiscalestructuralsimilarity": "MS-SSIM", "complexwaveletssim": "CW-SSIM",
    "featuresimilarity": "FSIM", "visualsaliencyindex": "VSI", "visualsaliencyinducedindex": "VSI",
    "visualinformationfidelity": "VIF", "gradientmagnitudesimilaritydeviation": "GMSD",
    "learnedperceptualimagepatchsimilarity": "LPIPS", "deepimagestructureandtexturesimilarity": "DISTS",
    "naturalimagequalityevaluator": "NIQE", "blindreferencelessimagespatialqualityevaluator": "BRISQUE",
    "clipiqaplus": "CLIPIQA+", "onealign": "QAlign",
}  # fmt: skip
_BY_REFERENCE = {"topiq": ("TOPIQ_NR", "TOPIQ_FR"), "wadiqam": ("WaDIQaM_NR", "WaDIQaM_FR")}  # without, with one
# Well-known metrics that are not in the table: who names one must learn that it cannot run.
_OTHERS = (
    "VMAF", "HDR-VDP", "IW-SSIM", "UQI", "IFC", "BLIINDS", "DIIVINE", "CORNIA", "BIQI", "PSNR-HVS", "SSIMULACRA",
    "SSIMULACRA2", "Butteraugli", "FID", "DeQA", "Compare2Score", "ST-LPIPS", "MSSWD", "RankIQA", "MetaIQA",
    "CONTRIQUE", "Re-IQA", "HaarPSI", "DOVER",
)  # fmt: skip
_NAMES = (
    {tool_key(name): name for name in (*_OTHERS, *_BY_REFERENCE)}
    | {tool_key(name): spec.name for spec in TOOLS.values() for name in (spec.metric, spec.name)}
    | _FULL_NAMES
)
_SPELLED = [r"[ \-_.]?".join(map(re.escape, key)) for key in sorted(_NAMES, key=len, reverse=True)]
_METRIC = re.compile(
    rf"(?<![A-Za-z0-9À-ɏ])({'|'.join(_SPELLED)})"
    r"(?![A-Za-z0-9À-ɏ]|[\w-]*\.(?:png|jpe?g|webp|bmp|tiff?|heic|gif|csv|txt|jsonl?)\b)",
    re.IGNORECASE,
)
# Names that are words too count as the table spells them, after a command, or before a word such as "score".
_WORDS_TOO = ("MAD", "PI", "UNIQUE", "TReS", "A-FINE", "VIF", "NIMA", "IFC", "FID")
_COMMAND = re.compile(r"\b(use|run|compute|calculate)\s+$", re.IGNORECASE)
_MEASURE = re.compile(r"[\s-]*(score|metric|index|value)s?\b", re.IGNORECASE)
# Nothing but fillers parts a negation from the name: not "no reference, so use NIQE".
_NEGATED = re.compile(
    r"(?<!why )\b(do not|don['’]?t|not|neither|never|no|without|except|avoid\w*|skip|ignore|instead of|other than"
    r"|rather than|anything but|nicht|kein\w*|ohne|sans|pas|sin|senza|без|не)\s+"
    r"((want|use|using|run|running|apply|trust|either|on|the|any|a|for|to|with|by|me|you)\s+)*$|(不要?用?|别用?)\s*$",
    re.IGNORECASE,
)
_NEGATED_BEHIND = re.compile(r"(\s+(and|or)\s+[\w-]+)?\s+(should|must|shall|may|can)(n['’]t| not)\b", re.IGNORECASE)
_SO_IS_THE_NEXT = re.compile(r"\s*(,|/|,?\s*\b(or|and|nor|und|oder))\s*", re.IGNORECASE)  # "not X, Y or Z"


def named_metrics(query: str, has_reference: bool) -> list[str]:
    """The tools that the query names, in its order and the table's spelling, and behind them well-known metrics
    that are no tools here. A name in a negated phrase ("not NIQE") does not count."""
    text = unicodedata.normalize("NFKC", query)
    wanted, before, negated = [], 0, False
    for name, start, end in _metrics(text):
        so_too = negated and _SO_IS_THE_NEXT.fullmatch(text[before:start])
        negated = bool(so_too or _NEGATED.search(text[:start]) or _NEGATED_BEHIND.match(text[end:]))
        before = end
        if not negated:
            wanted.append(_BY_REFERENCE.get(name, (name, name))[has_reference])
    return sorted(dict.fromkeys(wanted), key=lambda name: name not in TOOLS)


def _metrics(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, start, end) of each metric: of "UNIQUE" and "use unique", but not of "a unique photo"."""
    for found in _METRIC.finditer(text):
        name, (start, end) = _NAMES[tool_key(found[0]).replace(".", "")], found.span()
        asked = _COMMAND.search(text[:start]) or (_MEASURE.match(text, end) and " " not in found[0])
        if name not in _WORDS_TOO or asked or (found[0] == name and not text.isupper()):
            yield name, start, end


def question_alone(query: str) -> str:
    """The query without a lettered list of answers, and without names of metrics."""
    query = unicodedata.normalize("NFKC", query)
    if _lettered(query) and (first := _FIRST_MARK.search(query)):
        query = query[: first.start()]
    return " ".join(_without_metrics(query).split())


def _without_metrics(text: str) -> str:
    for _, start, end in reversed([*_metrics(text)]):
        text = f"{text[:start]}.{text[end:]}"
    return text


_NO_REGION = re.compile(
    r"\w|\d+|an|the|this|that|these|those|my|your|our|its|it|whole|entire|full|overall|of|in|images?|pictures?|photos?"
    r"|photograph|shot|frame|scene|screenshot|everything|all|global|test|quality|score|rating|level|value|result"
    r"|reference|original|distortions?|degradation|artifacts?|defects?|problem|resolution|clarity|realism|composition"
    r"|exposure|lighting|saturation|tones|hue|aberration|bild|foto|imagen|图|图片|照片|图像|画像|写真|质量|品質"
    r"|(de|un|over|under)?(blur|nois|grain|sharp|contrast|bright|dark|compress|colou?r|expos|satur|focus|tint|soft)\w*"
    r"|jpeg|block(ing|iness|y)|ringing|banding|halos?"
)
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def region_in(query: str, name: str) -> str | None:
    """The region that a plan calls `name`, without words for the picture or its quality at either end ("photo
    of my dog": dog); None where nothing is left, or the query does not hold it."""
    query, words = _without_metrics(unicodedata.normalize("NFKC", query)), _words(name)
    kept = [i for i, word in enumerate(words) if not _NO_REGION.fullmatch(word)]
    if not kept:
        return None
    region = " ".join(words[kept[0] : kept[-1] + 1])
    there = region.replace(" ", "") in query if _UNSPACED.search(name) else holds(query, region)
    whole = region.split() == [word for word in words if word not in ("the", "a")]
    return (name if whole else region) if there else None


def holds(text: str, phrase: str) -> bool:
    """Whether the text holds the phrase's words in a row; capitals, plurals and articles apart."""
    found, wanted = ([_stems(word) for word in _words(one) if word not in ("the", "a")] for one in (text, phrase))
    rows = [found[i : i + len(wanted)] for i in range(len(found) - len(wanted) + 1)]
    return bool(wanted) and any(all(map(set.intersection, row, wanted)) for row in rows)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())


def _stems(word: str) -> set[str]:
    """The word, and what it may be the plural of."""
    plurals = [] if word.endswith("ss") else [("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"), ("ves", "fe")]
    return {word} | {
        word.removesuffix(ending) + singular
        for ending, singular in plurals
        if word.endswith(ending) and len(word) > len(ending) + 1
    }


_WHERE = re.compile(
    r"\b(where(abouts)?|(which|what) (part|corner|side|half|quarter|area|region|spot|place)s?"
    r"|in one (corner|part|place)|(across|over|throughout|(cover|fill|affect)\w*) (the|my|this) (whole|entire)"
    r" (picture|image|frame|photo)|wo|où|d[oó]nde|dove (si|sono|è)|dov['’]è)\b|哪里|何处|どこ",
    re.IGNORECASE,
)


def asks_where(query: str) -> bool:
    """Whether a query wants to know in which part of the picture something is."""
    return bool(_WHERE.search(query))


_MOST_ANSWERS, _LONGEST_ANSWER = 10, 100  # answers, characters
# A., a) or (A) where a clause begins; an initial ("J. A. Smith") begins none. Numbers count after a question alone.
_FIRST_MARK = re.compile(
    r"(?:^|(?<!\b[A-Z])[.]|[?:!,;\n。、])\s*(?:[(\[]([Aa])[)\]]|([Aa])[.):、])\s*(?=[^\s.])|[?:\n]\s*(1)[.)]\s+(?=\S)"
)
_QUESTION = re.compile(
    r"(is|are|was|were|does?|did|how|what|which|why|can|could|where|who|rate|score|explain|tell|describe|give|say|list"
    r"|assess|judge|compare|check|write|count)\b",
    re.IGNORECASE,
)
_END_OF_LIST = re.compile(r"(?<!\b[A-Z])(?<!\b[A-Z][a-z])[.?!]\s+(?=[A-Z¿¡])|[。？]|\n")  # "Dr. No" is one answer
_PAIR = r"(yes|ja|oui|s[íi]|да|true|y|是)\s*(?:or|oder|ou|o|или|/|,|或|还是)\s*(no|nein|non|не|нет|false|n|否|不是)"
_YES_NO = re.compile(
    rf"^\s*(?:(?:answer|reply|say)\s+(?:with\s+|by\s+)?)?{_PAIR}\s*[:,?–—-]"
    rf"|(?<!whether)(?<!saying)(?<!say)(?<!if)[\s,;(?!.:？–—-]{_PAIR}[\s?.!),？。]*"
    r"((please|and)?\s*(briefly\s+)?(explain|why)\b.*)?$",
    re.IGNORECASE,
)


def choices_in(query: str) -> list[str] | None:
    """The answers that the query offers: a lettered list ("A. too dark B. too bright"; after a question
    numbers do too) or "yes or no"; None where it offers none. A list of questions or instructions is none."""
    text = unicodedata.normalize("NFKC", query)
    found = _YES_NO.search(text)
    return _lettered(text) or ([word for word in found.groups()[:4] if word] if found else None)


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
    texts = [text.split("\n")[0] for text in texts[:-1]] + [_END_OF_LIST.split(texts[-1], maxsplit=1)[0]]
    answers = [re.sub(r"[\s,;.?!(\[]*(\b(or|and|oder|ou)\b)?[\s(\[]*$", "", text, flags=re.I) for text in texts]
    different = len({answer.casefold() for answer in answers}) == len(answers) > 1
    return answers if different and all(map(_is_an_answer, answers)) else None


def _is_an_answer(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_ANSWER and not _QUESTION.match(text)
