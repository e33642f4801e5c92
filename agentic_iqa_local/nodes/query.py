"""What a query says in so many words: tools, regions, answers to choose from. Pure text rules, the same for
every model.

Words are compared, never substrings: "lit" is not named by "quality". Scripts without blanks between words
(Chinese, Japanese, Thai) are the exception.
"""

import re
import unicodedata
from collections.abc import Container, Sequence
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
    "blindreferencelessimagespatialqualityevaluator": "BRISQUE",
    "deepimagestructureandtexturesimilarity": "DISTS",
    "gradientmagnitudesimilarity": "GMSD",
    "visualsaliencyindex": "VSI",
    "clipiqaplus": "CLIPIQA+",
    "onealign": "QAlign",
}
_BY_REFERENCE = {"topiq": ("TOPIQ_NR", "TOPIQ_FR"), "wadiqam": ("WaDIQaM_NR", "WaDIQaM_FR")}
_NAMES = {
    tool_key(name): spec.name for spec in TOOLS.values() for name in (spec.metric, spec.name)
} | _FULL_NAMES
# Names that are words too: they count as spelled in the table, or before a word such as "score".
_WORDS_TOO = ("MAD", "PI", "UNIQUE", "TReS", "A-FINE", "VIF", "NIMA", "IFC", "FID")
_MEASURE = re.compile(r"[\s\-]*(score|metric|index|value|measure|tool)s?\b", re.IGNORECASE)
# Well-known metrics that are not in the table: who names one must learn that it cannot run.
_OTHER_METRICS = (
    "VMAF", "HDR-VDP", "IW-SSIM", "UQI", "IFC", "BLIINDS", "DIIVINE", "CORNIA", "BIQI", "PSNR-HVS", "SSIMULACRA", "SSIMULACRA2",
    "Butteraugli", "FID", "DeQA", "Compare2Score", "ST-LPIPS", "MSSWD", "RankIQA", "MetaIQA", "CONTRIQUE", "Re-IQA", "HaarPSI", "DOVER",
)  # fmt: skip
_OTHERS = {tool_key(name): name for name in _OTHER_METRICS}
_MOST_PARTS = 6  # of a tool's name
_LATIN_WORD = re.compile(r"(?<![^\W\d_])[A-Za-z0-9]+\+?(?![a-zA-ZÀ-ɏ])|[A-Za-z0-9]+\+?(?=[^\x00-ɏ])")
_JOINS = re.compile(r"[ \-_.]{0,1}")
# A negation that nothing but such fillers parts from the name: "don't want to use NIQE", but not "no
# reference, so use NIQE".
_FILLERS = (
    r"((want|use|uses|using|run|running|apply|need|trust|rely|dare|either|on|the|any|a|for|to|with|by|me|you|mit|de|del|usar|utilise[rz]?"
    r"|используй\w*)\s+)*"
)
_NEGATED = re.compile(
    r"(?<!why )\b(do not|don['’]?t|not|neither|never|no|without|except|avoid\w*|skip|ignore|instead of|rather"
    r" than|other than"
    r"|(anything|everything|all|any\w*) but|nicht|kein\w*|ohne|sans|pas|sin|sem|senza|без|не)\s+"
    + _FILLERS
    + r"$|(不要?用?|别用?)\s*$",
    re.IGNORECASE,
)
_NEGATED_BEHIND = re.compile(
    r"^(\s+(and|or|und|oder)\s+[\w-]+)?\s+((should|must|shall|may|can)(n['’]t|not|"
    r" not)\b|(bitte\s+)?nicht\b)|^を使わない",
    re.IGNORECASE,
)
_CARRIED = re.compile(r"\s*(,|/|,?\s*\b(or|and|nor|und|oder))\s*", re.IGNORECASE)  # "not X, Y or Z"
_COMMAND = re.compile(
    r"(\b(use|run|compute|calculate|with|via)|\bwhat(['’]?s| is)( the)?)\s+$", re.IGNORECASE
)
_END_OF_COMMAND = re.compile(r"\s*($|[.?!,;:]|(to|on|for|and|as|please)\b)", re.IGNORECASE)
_FILE_NAME = re.compile(r"[\w-]*\.(png|jpe?g|webp|bmp|tiff?|heic|gif|csv|txt|jsonl?)\b", re.IGNORECASE)


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DETERMINERS = _word_set(
    "the a an this that these those my your our its it whole entire full complete overall of in whatever der"
    " die das den dem dieses ganze le la les l cette ce toute el la los las esta este toda il lo questa o a"
    " esta"
)
_WHOLE_PICTURE = _word_set(
    "image images picture pictures photo photos photograph photographs photography pic pics snapshot shot"
    " frame scene global screenshot selfie file scan jpg jpeg png canvas thing content everything all bild"
    " bilder foto fotos aufnahme cliché imagen imágenes fotografía imagem immagine fotografia afbeelding"
    " beeld изображение изображения фото фотография снимок 图 图片 图像 照片 相片 画像 写真 画面 이미지 사진"
    " 张图 这张图 本图 这张照片 这张图片 الصورة"
)
_NO_REGION = _word_set(
    "quality score scores rating rate level levels value result grade number reference original pristine"
    " distortion distortions degradation artifact artifacts artefact artefacts defect defects problem"
    " problems issue issues impairment resolution focus pixelation vignetting aliasing moiré moire"
    " posterization posterisation ghosting haze clarity fidelity composition realism upscaling legibility"
    " exposure lighting saturation tone tones hue hues grading aberration chromatic perceptual technical"
    " visual tool metric iqa qualität qualité calidad qualità qualidade качество 质量 品質"
)
_QUALITY_WORD = re.compile(
    r"(de|un|over|under)?(blur\w*|nois\w*|grain\w*|sharp\w*|contrast\w*|bright\w*|dark\w*|compress\w*|colou?r\w*|expos\w*|satur\w*"
    r"|focus\w*|tint\w*|speckle\w*|soft\w*|fuzz\w*|jpeg|block(ing|iness|y)|ringing|banding|halos?)"
)
_THE = r"(?:the|this|that|these|those|my|his|her|its|their|our|your|each|both)"
_QUALITY_OF = re.compile(
    r"\b(?:quality|degradations?|art[ie]facts?|distortions?|defects?|damage|clarity|fidelity|\w*blur\w*|nois\w+|grain\w*|sharp\w*|contrast"
    r"|bright\w*|compression|colou?rs?|exposure|saturation|focus|halos?|banding|blocking|ringing)"
    rf"\s+(?:\w+\s+)?(?:of|in|on|affecting|around|across|along)\s+(?:{_THE}|of {_THE})\s+",
    re.IGNORECASE,
)
# What follows these may be anything ("rate the composition"), so that only two things that are joined are
# taken for regions.
_RATED = re.compile(
    rf"\b(?:rate|judge|assess|grade|evaluate|inspect|how\s+(?:\w+\s+){{1,2}}(?:is|are|was|were))\s+{_THE}\s+",
    re.IGNORECASE,
)
_AND = re.compile(rf"\s*(?:(?:,?\s*\b(?:and|or)\b|&)\s+(?:{_THE}\s+)?|,\s+{_THE}\s+)", re.IGNORECASE)
_BEFORE = rf"\b{_THE}\s+((?:[\w'’-]+\s+){{0,2}}[\w'’-]+)(?:\s+(?:and|or|&)|,\s+and|,\s+or|,)\s+(?:{_THE}\s+)?"
_LONGEST_REGION = 3  # words
_ENDS_REGION = _word_set(
    "of in on at to for from by with without against than as like after before into onto over under between"
    " near around across along is are was were be been being do does did has have had can could should would will"
    " may might must look looks looked seem seems appear appears show shows suffer suffers lose lost keep"
    " kept come came get gets got go goes and or but nor vs versus compared relative please if when while"
    " because since that which who where how what why there here not too very so really quite enough more"
    " less most least still also just only it they them you i we me us out off up down both worries bothers"
    " any a an severe bad visible strong noticeable noisy blurry slight mild heavy good poor fine ok okay"
    " acceptable worse better best worst now today yet briefly honestly"
)
_PLACES = _word_set("left right upper lower top bottom central middle front back")
_NEVER_HEADS = _word_set(
    "best worst main first last second next same other one rest detail details texture textures edge edges"
    " part parts side area areas region regions place places test copy version upload capture output render"
    " print master source camera phone lens sensor screen magnitude impression appearance look damage loss"
    " effect impact severity strength amount degree answer option way upload capture"
)
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def named_tools(query: str, has_reference: bool) -> list[str]:
    """The tools of the table that the query names, in its order and the table's spelling; capitals, blanks,
    '-', '_' and dots apart. A name in a negated phrase ("not NIQE") does not count."""
    return [name for name in _asked_for(query, has_reference) if name in TOOLS]


def unknown_metrics(query: str) -> list[str]:
    """Well-known metrics that the query names and that are not in the table of tools."""
    return [name for name in _asked_for(query, False) if name not in TOOLS]


def named_metrics(query: str, has_reference: bool) -> list[str]:
    """The tools that the query names, and behind them the metrics that are no tools."""
    return [*named_tools(query, has_reference), *unknown_metrics(query)]


def _asked_for(query: str, has_reference: bool) -> list[str]:
    text = unicodedata.normalize("NFKC", query)
    wanted, before, negated = {}, 0, False
    for name, start, end in _metrics(text, has_reference):
        carried = negated and _CARRIED.fullmatch(text[before:start])
        negated = bool(carried or _NEGATED.search(text[:start]) or _NEGATED_BEHIND.match(text[end:]))
        if not negated:
            wanted[name] = None
        before = end
    return list(wanted)


def _metrics(text: str, has_reference: bool) -> list[tuple[str, int, int]]:
    """(name, start, end) of each metric that the text names; longer names are tried first."""
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


def _without_metrics(text: str) -> str:
    for _, start, end in reversed(_metrics(text, False)):
        text = f"{text[:start]}.{text[end:]}"
    return text


def _metric(text: str, start: int, end: int, has_reference: bool) -> str | None:
    """The metric that text[start:end] names, None if it names none."""
    spelled = text[start:end]
    key = tool_key(spelled).replace(".", "")
    if key in _BY_REFERENCE:
        return _BY_REFERENCE[key][has_reference]
    name = _NAMES.get(key) or _OTHERS.get(key)
    if name is None or _FILE_NAME.match(text, end):
        return None
    if name in _WORDS_TOO:
        shouted = not any(c.islower() for c in text)
        alone = text.strip(" .!?").casefold() in (spelled.casefold(), f"{spelled} please".casefold())
        asked = _COMMAND.search(text[:start]) and _END_OF_COMMAND.match(text, end)
        measure = _MEASURE.match(text, end) and " " not in spelled
        if not (alone or asked or measure or (spelled == name and not shouted)) or text[
            :start
        ].casefold().endswith("raspberry "):
            return None
    return name


def region_in(query: str, name: str) -> str | None:
    """The region that the query names by `name`: the name itself, or the longest run of its words that the
    query holds, plurals apart; None where that is nothing. The whole picture, quality words, tools and single
    letters are no regions.
    """
    query = _without_metrics(unicodedata.normalize("NFKC", query))
    if _UNSPACED.search(name):
        named = "".join(_words(name)) in "".join(_words(query)) and not all(map(_is_no_region, _words(name)))
        return name if named else None
    words = [word for word in _words(name) if word not in _DETERMINERS]
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            run = words[start : start + length]
            if not (_is_no_region(run[0]) or _is_no_region(run[-1])) and holds(query, " ".join(run)):
                return name if length == len(words) else " ".join(run)
    return None


def regions_in(query: str, known: Sequence[str] = ()) -> list[str]:
    """Regions that the query names in so many words, in its order: after "quality of the", "noise in the" and
    the like, two and more after "rate the" or "how sharp are the", and what "and", "or" or a comma joins to
    one of these or of the `known` ones. English only; other ways to name a region are not seen."""
    heads = {_words(name)[-1] for name in known if _words(name)}
    found: dict[str, int] = {}

    def joined(end: int) -> dict[str, int]:
        """The regions that go on from `end`."""
        match = _AND.match(query, end)
        return chain(match.end()) if match else {}

    def chain(start: int) -> dict[str, int]:
        """The region at `start` and those that are joined to it, with their places."""
        phrase = _phrase(query[start:])
        region = region_called(query, phrase, heads)
        return {region.casefold(): start} | joined(start + len(phrase)) if region else {}

    for match in _QUALITY_OF.finditer(query):
        found |= chain(match.end())
    for match in _RATED.finditer(query):
        found |= several if len(several := chain(match.end())) > 1 else {}
    for name in known:
        for match in re.finditer(rf"\b{re.escape(name)}\b", query, re.IGNORECASE):
            found |= joined(match.end())
        for match in re.finditer(_BEFORE + rf"{re.escape(name)}\b", query, re.IGNORECASE):
            region = region_called(query, match[1], heads)
            found |= {region.casefold(): match.start(1)} if region else {}
    return sorted(found, key=found.__getitem__)


def _phrase(text: str) -> str:
    """The words at the start of `text` that can name a region; none where a word of quality follows them
    ("the lens blur")."""
    end = 0
    for word in re.finditer(r"\s*([\w'’-]+)", text):
        lower = word[1].lower()
        if word.start() == end and (lower in _NO_REGION or _QUALITY_WORD.fullmatch(lower)):
            return ""
        if word.start() != end or lower in _ENDS_REGION or (end and lower.endswith("ed")):
            break
        end = word.end()
        if len(text[:end].split()) == _LONGEST_REGION:
            break
    return text[:end]


def names_a_thing(text: str) -> bool:
    """Whether a text begins with a word that can name a thing: neither the picture nor its quality."""
    match = re.match(r"[\s-]*([\w'’]+)", text)
    first = match[1].lower() if match and "\n" not in match[0] else ""
    others = first in _ENDS_REGION | _NEVER_HEADS or _is_no_region(first)
    return bool(first) and not others and not first.endswith(("ed", "n't", "n’t"))


def region_called(query: str, phrase: str, heads: Container[str] = ()) -> str | None:
    """The region that a whole phrase of the query names, None where it names none; `heads` are the last words
    of names that are known to be regions."""
    if not phrase or _phrase(phrase) != phrase:
        return None
    *before, head = _words(phrase)
    vague = head in _NEVER_HEADS and head not in heads and not _PLACES.intersection(before)
    return None if vague or head in _WHOLE_PICTURE else region_in(query, phrase)


def holds(text: str, phrase: str) -> bool:
    """Whether the text holds the phrase's words in a row; capitals, plurals and articles apart."""
    found, wanted = (
        [_stems(word) for word in _words(given) if word not in _DETERMINERS] for given in (text, phrase)
    )
    return bool(wanted) and any(
        all(mine & theirs for mine, theirs in zip(found[i:], wanted, strict=False))
        for i in range(len(found) - len(wanted) + 1)
    )


def _is_no_region(word: str) -> bool:
    listed = (
        word in _WHOLE_PICTURE
        or word in _NO_REGION
        or word.isdecimal()
        or (len(word) == 1 and word.isascii())
    )
    return listed or _QUALITY_WORD.fullmatch(word) is not None


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


_MOST_ANSWERS, _LONGEST_ANSWER = 10, 100  # answers, characters
_BOUNDARY = r"(?:^|(?<!\b[A-Z])[.]|[?:!,;\n。、])\s*"  # an initial ("J. A. Smith") ends no clause
_FIRST_MARK = re.compile(
    _BOUNDARY + r"(?:[(\[]([Aa])[)\]]|([Aa])[.):、])\s*(?=[^\s.])|[?:\n]\s*(1)[.)]\s+(?=\S)"
)
_INSTRUCTION = re.compile(
    r"\b(rate|score|explain|look|give|tell|describe|say|list|assess|judge|compare|check|write|count|consider|evaluate|find|how)\b",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"(is|are|was|does|do|did|how|what|which|why|can|could|where|who)\b", re.IGNORECASE)
_CHOOSE = re.compile(r"\b(which|choose|pick|answer|select|option|one|letter)\b", re.IGNORECASE)
_PAIRS = r"yes|ja|oui|s[íi]|sim|да|evet|true|y", r"no|nein|non|não|нет|nee|hayır|false|n"
_EITHER = rf"(?:(?P<a>{_PAIRS[0]})\s*(?:or|/|oder|ou|o|или|veya|,)\s*(?P<b>{_PAIRS[1]})|(?P<c>{_PAIRS[1]})\s*(?:or|/|oder)\s*(?P<d>{_PAIRS[0]}))"
_YES_NO = re.compile(
    rf"(?:^\s*(?:(?:answer|reply|say)\s+(?:with|by|in)?\s*)?{_EITHER}\s*[:,?–—-])"
    r"|(?:(?<!whether)(?<!saying)(?<!say)(?<!says)(?<!if)[\s,;(?!.:–—-]|^)"
    + _EITHER.replace("<a>", "<e>").replace("<b>", "<f>").replace("<c>", "<g>").replace("<d>", "<h>")
    + r"[\s?.!),]*(?:(?:please|briefly|and)?\s*(?:explain|why|say why)\b.*)?$",
    re.IGNORECASE,
)
_YES_NO_CHINESE = re.compile(r"(是)(?:或|还是|/)(否|不是)[\s?？。]*$")


_WHERE = re.compile(
    r"\b(where(abouts)?|(which|what)"
    r" (part|parts|corner|corners|side|sides|half|quarter|quarters|area|areas|region|regions|spot|place)"
    r"|in one (corner|part|place)|(across|over|throughout|(cover|fill|affect)\w*) (the|my|this) (whole|entire) (picture|image|frame|photo)"
    r"|wo\b|welche[rnms]?"
    r" (ecke|seite|teil|bereich|stelle)"
    r"|où|d[oó]nde|en qué (parte|zona|esquina)|quelle (partie|zone)|dove (si|sono|è)|dov['’]è)\b|哪里|何处|どこ",
    re.IGNORECASE,
)


_DAMAGE = re.compile(
    r"\b(damag\w*|defect\w*|flaw\w*|fault\w*|distort\w*|degrad\w*|art[ie]facts?|blur\w*|nois\w*|grain\w*|unsharp|out"
    r" of focus|compress\w*"
    r"|block(s|y|ing|iness)|unscharf|rausch\w*|fehler|flou\w*|bruit|borros\w*|ruido|sfocat\w*|rumore)\b",
    re.IGNORECASE,
)


_QUALITY = re.compile(
    r"\b(rate|score|grade)\b|\bqualit|\bcalidad\b|\bqualidade\b|качеств|质量|品質", re.IGNORECASE
)


def asks_for_quality(query: str) -> bool:
    """Whether a query has the word quality in it, or asks for a rating."""
    return bool(_QUALITY.search(query))


def asks_where_damage_is(query: str) -> bool:
    """Whether a query wants to know in which part of the picture damage is, which is a question about its
    quality."""
    return asks_where(query) and bool(_DAMAGE.search(query))


def asks_where(query: str) -> bool:
    """Whether a query wants to know in which part of the picture something is."""
    return bool(_WHERE.search(query))


def choices_in(query: str) -> list[str] | None:
    """The answers that the query offers: a lettered list ("A. too dark B. too bright"; after a question
    numbers do too) or "yes or no"; None where it offers none. A list of questions or instructions is none."""
    text = unicodedata.normalize("NFKC", query)
    if lettered := _lettered(text):
        return lettered
    if found := _YES_NO.search(text) or _YES_NO_CHINESE.search(text):
        return [answer for answer in found.groups() if answer]
    return None


def _lettered(query: str) -> list[str] | None:
    first = _FIRST_MARK.search(query)
    if first is None:
        return None
    letter = next(filter(None, first.groups()))
    marks = [(first.start(), first.end())]
    while len(marks) < _MOST_ANSWERS:
        letter = chr(ord(letter) + 1)
        mark = re.compile(rf"(?<=[\s,;])(?:[(\[]{letter}[)\]]|{letter}[.):、])\s*(?=[^\s.])").search(
            query, marks[-1][1]
        )
        if mark is None:
            break
        marks.append((mark.start(), mark.end()))
    ends = [start for start, _ in marks[1:]] + [len(query)]
    texts = [query[begin:end] for (_, begin), end in zip(marks, ends, strict=True)]
    answers = [_trimmed(text.split("\n")[0]) for text in map(str.strip, texts[:-1])] + [_answer(texts[-1])]
    rest = texts[-1].strip()[len(answers[-1]) :].strip(" .,;?!")
    instructs = _INSTRUCTION.search(rest) and not _CHOOSE.search(rest)
    return answers if not instructs and _can_be_chosen(answers) else None


def _answer(text: str) -> str:
    """The last answer of a list, without a sentence behind it; a title ("Dr. No") ends none."""
    ends = r"(?<!\b[A-Z])(?<!\bDr)(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bSt)[.?!]\s+(?=[A-Z¿¡])|[。？]|\n"
    return _trimmed(re.split(ends, text.strip(), maxsplit=1)[0])


def _trimmed(text: str) -> str:
    return re.sub(r"[\s,;.?!(\[]*(\b(or|and|oder|ou)\b)?[\s(\[]*$", "", text, flags=re.IGNORECASE)


def _can_be_chosen(answers: Sequence[str]) -> bool:
    return (
        2 <= len(answers) <= _MOST_ANSWERS
        and len({answer.casefold() for answer in answers}) == len(answers)
        and all(
            answer and len(answer) <= _LONGEST_ANSWER and not _QUESTION.match(answer) for answer in answers
        )
        and not any(
            _INSTRUCTION.match(answer) or re.search(r"\b(and|then) (give|rate|explain|tell|say)\b", answer)
            for answer in answers
        )
    )


def question_alone(query: str) -> str:
    """The query without a lettered list of answers, and without names of metrics."""
    query = unicodedata.normalize("NFKC", query)
    if _lettered(query) and (first := _FIRST_MARK.search(query)):
        query = query[: first.start()]
    return " ".join(_without_metrics(query).split())
