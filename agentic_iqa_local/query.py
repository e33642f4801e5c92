"""What a query says in so many words: tools, regions, answers to choose from. Pure text rules, the same for every model.

Words are compared, never substrings: "lit" is not named by "quality". Scripts without blanks between words (Chinese, Japanese,
Thai) are the exception.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from agentic_iqa_local.iqa_tools.specs import TOOLS, tool_key

# Longer names of tools, and names that leave open whether a reference is compared with.
_FULL_NAMES = {
    "peaksignaltonoiseratio": "PSNR",
    "structuralsimilarity": "SSIM",
    "structuralsimilarityindex": "SSIM",
    "multiscalessim": "MS-SSIM",
    "multiscalestructuralsimilarity": "MS-SSIM",
    "complexwaveletssim": "CW-SSIM",
    "featuresimilarity": "FSIM",
    "visualsaliencyinducedindex": "VSI",
    "visualinformationfidelity": "VIF",
    "gradientmagnitudesimilaritydeviation": "GMSD",
    "learnedperceptualimagepatchsimilarity": "LPIPS",
    "naturalimagequalityevaluator": "NIQE",
    "onealign": "QAlign",
}
_BY_REFERENCE = {"topiq": ("TOPIQ_NR", "TOPIQ_FR"), "wadiqam": ("WaDIQaM_NR", "WaDIQaM_FR")}
_NAMES = {tool_key(name): spec.name for spec in TOOLS.values() for name in (spec.metric, spec.name)} | _FULL_NAMES
# Names that are words too: they count as spelled in the table, or before a word such as "score".
_WORDS_TOO = ("MAD", "PI", "UNIQUE", "TReS", "A-FINE")
_MEASURE = re.compile(r"[\s\-]*(score|metric|index|value|measure|tool)s?\b", re.IGNORECASE)
# Well-known metrics that are not in the table: a query that names one must be told so.
_OTHER_METRICS = (
    "VMAF", "HDR-VDP", "IW-SSIM", "UQI", "IFC", "BLIINDS", "DIIVINE", "CORNIA", "BIQI", "PSNR-HVS", "SSIMULACRA", "SSIMULACRA2",
    "Butteraugli", "FID", "DeQA", "Compare2Score", "ST-LPIPS", "MSSWD", "RankIQA", "MetaIQA", "CONTRIQUE", "Re-IQA", "SROCC",
)  # fmt: skip
_OTHERS = {tool_key(name): name for name in _OTHER_METRICS}
_MOST_PARTS = 6  # of a tool's name
_LATIN_WORD = re.compile(r"(?<![^\W\d_])[A-Za-z0-9]+\+?(?![a-zA-ZÀ-ɏ])|[A-Za-z0-9]+\+?(?=[^\x00-ɏ])")
_JOINS = re.compile(r"[ \-_.]{0,1}")
# A negation that nothing but such fillers parts from the name: "don't want to use NIQE", but not "no reference, so use NIQE".
_NEGATED = re.compile(
    r"(?<!why )\b(do not|don['’]?t|not|never|no|without|except|avoid\w*|skip|ignore|instead of|rather than|other than"
    r"|nicht|kein\w*|ohne|sans|pas|sin|sem|senza|без|не)\s+"
    r"((want|use|using|run|running|apply|need|trust|rely|on|the|any|a|to|with|by|me|you|mit|de|del|usar|utilise[rz]?)\s+)*$"
    r"|(不要?用?|别用?)\s*$",
    re.IGNORECASE,
)
_COMMAND = re.compile(r"\b(use|run|compute|calculate|with|via)\s+$", re.IGNORECASE)


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DETERMINERS = _word_set(
    "the a an this that these those my your our its it whole entire full complete overall of in whatever "
    "der die das den dem dieses ganze le la les l cette ce toute el la los las esta este toda il lo questa o a esta"
)
_WHOLE_PICTURE = _word_set(
    "image images picture pictures photo photos photograph photographs photography pic pics snapshot shot frame scene global "
    "everything all bild bilder foto fotos aufnahme cliché imagen imágenes fotografía imagem immagine fotografia afbeelding "
    "beeld изображение изображения фото фотография снимок 图 图片 图像 照片 相片 画像 写真 画面 이미지 사진"
)
_NO_REGION = _word_set(
    "quality score scores rating rate level levels value result grade number reference original pristine distortion distortions "
    "degradation artifact artifacts artefact artefacts defect defects problem problems issue issues impairment resolution focus "
    "exposure lighting saturation tone tones hue hues grading aberration chromatic perceptual technical visual tool metric iqa "
    "qualität qualité calidad qualità qualidade качество 质量 品質"
)
_QUALITY_WORD = re.compile(
    r"(de|un|over|under)?(blur\w*|nois\w*|grain\w*|sharp\w*|contrast\w*|bright\w*|dark\w*|compress\w*|colou?r\w*|expos\w*|satur\w*"
    r"|focus\w*|tint\w*|speckle\w*|soft\w*|fuzz\w*|jpeg|block(ing|iness|y)|ringing|banding|halos?)"
)
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def named_tools(query: str, has_reference: bool) -> list[str]:
    """The tools of the table that the query names, in its order and the table's spelling; capitals, blanks, '-', '_' and dots
    apart. A name in a negated phrase ("not NIQE") does not count."""
    return [name for name in _asked_for(query, has_reference) if name in TOOLS]


def unknown_metrics(query: str) -> list[str]:
    """Well-known metrics that the query names and that are not in the table of tools."""
    return [name for name in _asked_for(query, False) if name not in TOOLS]


def _asked_for(query: str, has_reference: bool) -> list[str]:
    text = unicodedata.normalize("NFKC", query)
    found = _metrics(text, has_reference)
    return list(dict.fromkeys(name for name, start, _ in found if not _NEGATED.search(text[:start])))


def _metrics(text: str, has_reference: bool) -> list[tuple[str, int, int]]:
    """(name, start, end) of each metric that the text names, the longest names first tried."""
    words = list(_LATIN_WORD.finditer(text))
    found, at = [], 0
    while at < len(words):
        for parts in range(min(_MOST_PARTS, len(words) - at), 0, -1):
            run = words[at : at + parts]
            start, end = run[0].start(), run[-1].end()
            joined = all(_JOINS.fullmatch(text[a.end() : b.start()]) for a, b in pairwise(run))
            if joined and (name := _metric(text, start, end, has_reference)):
                found.append((name, start, end))
                at += parts - 1
                break
        at += 1
    return found


def _metric(text: str, start: int, end: int, has_reference: bool) -> str | None:
    """The metric that text[start:end] names, None if it names none."""
    spelled = text[start:end]
    key = tool_key(spelled).replace(".", "")
    if key in _BY_REFERENCE:
        return _BY_REFERENCE[key][has_reference]
    name = _NAMES.get(key) or _OTHERS.get(key)
    if name in _WORDS_TOO:
        shouted = not any(c.islower() for c in text) and text.strip(" .!?") != name
        as_spelled = spelled == name and (not shouted or _COMMAND.search(text[:start]))
        if not as_spelled and not _MEASURE.match(text, end):
            return None
    return name


def region_in(query: str, name: str) -> str | None:
    """The region that the query names by `name`: the name itself, or the longest run of its words that the query holds, plurals
    apart; None where that is nothing. The whole picture, quality words, tools and single letters are no regions."""
    query = unicodedata.normalize("NFKC", query)
    for _, start, end in reversed(_metrics(query, False)):
        query = f"{query[:start]}.{query[end:]}"
    if _UNSPACED.search(name):
        found = "".join(_words(name)) in "".join(_words(query)) and not all(map(_is_no_region, _words(name)))
        return name if found else None
    words = [word for word in _words(name) if word not in _DETERMINERS]
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            run = words[start : start + length]
            if not all(map(_is_no_region, run)) and holds(query, " ".join(run)):
                return name if length == len(words) else " ".join(run)
    return None


def holds(text: str, phrase: str) -> bool:
    """Whether the text holds the phrase's words in a row; capitals, plurals and articles apart."""
    found, wanted = ([_singular(word) for word in _words(given) if word not in _DETERMINERS] for given in (text, phrase))
    return bool(wanted) and any(found[i : i + len(wanted)] == wanted for i in range(len(found)))


def _is_no_region(word: str) -> bool:
    listed = word in _WHOLE_PICTURE or word in _NO_REGION or word.isdecimal() or (len(word) == 1 and word.isascii())
    return listed or _QUALITY_WORD.fullmatch(word) is not None


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())


def _singular(word: str) -> str:
    for ending, instead in (("ies", "y"), ("ves", "f"), ("ses", "s"), ("xes", "x"), ("ches", "ch"), ("shes", "sh")):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            return word.removesuffix(ending) + instead
    return word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word


_FIRST_MARK = re.compile(r"(?:^|[?:.!,;\n])\s*[(\[]?([Aa])[.):]\)?\s+(?=\S)")
_MOST_ANSWERS, _LONGEST_ANSWER = 10, 100  # answers, characters
_YES_NO = r"(?P<yes>yes|ja|oui|s[íi]|sim|да|evet)\s*(?:or|/|oder|ou|o|или|veya|,)\s*(?P<no>no|nein|non|não|нет|nee|hayır)"
_YES_NO_AT_END = re.compile(rf"(?:^|[\s,;(?!.:–—-]){_YES_NO}[\s?.!)]*$", re.IGNORECASE)
_YES_NO_AT_START = re.compile(rf"^\s*{_YES_NO}\s*[:,–—-]", re.IGNORECASE)


def choices_in(query: str) -> list[str] | None:
    """The answers that the query offers: a lettered list ("A. too dark B. too bright") or "yes or no"; None where it offers
    none. A list of questions is none."""
    if lettered := _lettered(query):
        return lettered
    if found := _YES_NO_AT_END.search(query) or _YES_NO_AT_START.search(query):
        return [found["yes"], found["no"]]
    return None


def _lettered(query: str) -> list[str] | None:
    first = _FIRST_MARK.search(query)
    if first is None:
        return None
    letter, marks = first[1], [(first.start(1), first.end())]
    while len(marks) < _MOST_ANSWERS:
        letter = chr(ord(letter) + 1)
        mark = re.compile(rf"(?:(?<=\s)|(?<=[(\[])|(?<=[,;])){letter}[.):]\)?\s+(?=\S)").search(query, marks[-1][1])
        if mark is None:
            break
        marks.append((mark.start(), mark.end()))
    ends = [start for start, _ in marks[1:]] + [len(query)]
    answers = [_answer(query[begin:end]) for (_, begin), end in zip(marks, ends, strict=True)]
    return answers if _can_be_chosen(answers) else None


def _answer(text: str) -> str:
    text = re.split(r"[.?!]\s|\n", text.strip(), maxsplit=1)[0]
    return re.sub(r"[\s,;.?!(\[]*(\b(or|and|oder|ou)\b)?[\s(\[]*$", "", text, flags=re.IGNORECASE)


def _can_be_chosen(answers: Sequence[str]) -> bool:
    question = re.compile(r"(is|are|was|does|do|did|how|what|which|why|can|could|where|who)\b", re.IGNORECASE)
    return (
        2 <= len(answers) <= _MOST_ANSWERS
        and len({answer.casefold() for answer in answers}) == len(answers)
        and all(answer and len(answer) <= _LONGEST_ANSWER and not question.match(answer) for answer in answers)
    )
