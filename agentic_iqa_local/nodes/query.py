"""What a query says in so many words: tools, regions, distortions, a place, answers to choose from. Rules of text, the
same for every model; the words stand in words.yaml."""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from agentic_iqa_local.errors import nearest
from agentic_iqa_local.iqa_tools.specs import TOOLS, pyiqa_names, tool_key

WORDS: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("words.yaml").read_text(encoding="utf-8")
)


def alternatives(words: str | list[str]) -> str:
    """A row of the tables as one expression."""
    return words if isinstance(words, str) else "|".join(words)


def pattern(words: str | list[str]) -> re.Pattern[str]:
    """Any of the words, whole and in any case."""
    return re.compile(rf"\b(?:{alternatives(words)})\b", re.IGNORECASE)


# Tools

_BY_REFERENCE = {
    "topiq": ("TOPIQ_NR", "TOPIQ_FR"),
    "wadiqam": ("WaDIQaM_NR", "WaDIQaM_FR"),
}  # without, with one
_OTHERS = list(itertools.chain(*WORDS["other_metrics"]))  # names that no tool has
_LISTED = {tool_key(name): name for name in pyiqa_names()}
_NAMES = (
    _LISTED
    | {tool_key(name): name for name in (*_OTHERS, *_BY_REFERENCE)}
    | {tool_key(name): spec.name for spec in TOOLS.values() for name in (spec.metric, spec.name)}
    | WORDS["full_names"]
)


def _spelled(key: str) -> str:
    """A name as people write it: with a blank or a sign anywhere, one of pyiqa's list alone where that has one. None
    stands before a plus: "LPIPS + SSIM" are two."""
    name = _NAMES[key]
    parts = re.split("[-_]", name) if _LISTED.get(key) == name else [*key]
    return r"[ \-_.]?".join(map(re.escape, parts)).replace(r"[ \-_.]?\+", r"\+")


_SPELLED = "|".join(map(_spelled, sorted(_NAMES, key=len, reverse=True)))
# What makes a name that of another metric: "niqe_matlab", "PSNR-HVS", "NIQE-v2"; but "niqe_score" and "NIQE-based"
_VARIANT = (
    rf"(?:(?![_-](?:{WORDS['behind_a_name']}|{'|'.join(map(re.escape, TOOLS))})\b)"
    r"(?-i:_[A-Za-z0-9]+|-[A-Z][A-Z0-9]+|-[a-z]+\d\w*)(?:[-_][A-Za-z0-9]+)*)?"
)
_END = r"(?![A-Za-z0-9À-ɏ]|[\w-]*\.(?:png|jpe?g|webp|tiff?|csv)\b)"
_NAME = rf"(?<![A-Za-z0-9À-ɏ])(?:{_SPELLED}){_VARIANT}{_END}"
# Written as no word is: "FancyIQA", "my_metric", "ABCv2"; a colour space and a file of a camera are none. Capitals
# alone may be a word that is stressed.
_STRANGE = r"(?-i:(?!\w*RGB\b)(?:[A-Za-z0-9]+_[A-Za-z]\w*|[A-Z][a-z]+[A-Z]{2,}\w*|[A-Z]{2,}[a-z]+\d\w*|[A-Z]{4,}))"
_COMMAND = r"\b(?:use|using|run|compute|calculate)\s+"
_METRIC = re.compile(
    rf"({_COMMAND})?({_NAME})([\s-]*(?:score|metric|index|value)s?\b)?|{_COMMAND}({_STRANGE}){_END}",
    re.IGNORECASE,
)
# "not X, Y or Z": nothing but fillers parts a negation from the name
_LIST = rf"(?:{_NAME}(?:\s*[,/]\s*(?:(?:or|and|nor)\s+)?|\s+(?:or|and|nor)\s+)?){{1,10}}"  # bounded: linear time
_REFUSED = re.compile(
    r"(?<!why )(?:\b(?:not|never|no|without|except|avoid|skip|ignore|instead of|rather than|other than|anything but)"
    rf"|n['’]t)\s+(?:(?:want|you|to|use|using|run|the|any|a|with|by|on)\s+)*{_LIST}",
    re.IGNORECASE,
)

# The number that a query gives for the tool before it; no range ("1 to 5"), share, size, count or number of a list
_QUOTED = re.compile(
    rf"(?:\s*\b(?:{WORDS['before_a_score']})\b|\s*[=:≈~<>≤≥(]|\s+[-–—](?=\s)){{0,4}}\s*"
    r"(?<![\w.,])([-−]?(?:\d+(?:[.,]\d+)?|\.\d+))(?![\d%])(?:\s?dB)?"
    r"(?!\w|[.,]\d|[.)]?\s*(?:[-–—/×]\s*\d|%|(?:to|of|out of)\b)"
    rf"|\s+(?:{WORDS['counted']})\b|[.)]\s*{_NAME})",
    re.IGNORECASE,
)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def named_metrics(query: str, has_reference: bool) -> list[str]:
    """The tools that the query names, in its order, and behind them well-known metrics that are no tools here. A name
    in a negated phrase ("not NIQE") does not count."""
    found = map(_metric, _METRIC.finditer(_asked_for(query)))
    named = dict.fromkeys(_by_reference(name, has_reference) for name in found if name)
    return sorted(named, key=lambda name: name not in TOOLS)


def quoted_scores(query: str, has_reference: bool) -> list[tuple[str, float]]:
    """The tools that the query gives a number for, with the number: of "Is NIQE 5.1 good?" NIQE and 5.1."""
    text = _asked_for(query)
    quoted: dict[str, float] = {}
    for found in _METRIC.finditer(text):
        name = _by_reference(_metric(found) or "", has_reference)
        number = _QUOTED.match(text, found.end())
        if name in TOOLS and number:
            quoted.setdefault(
                name, float(number[1].replace("\N{MINUS SIGN}", "-").replace(",", "."))
            )
    return list(quoted.items())


def _asked_for(query: str) -> str:
    """The query without names of metrics in negated phrases."""
    return _REFUSED.sub(" ; ", _plain(query))


def _by_reference(name: str, has_reference: bool) -> str:
    return _BY_REFERENCE.get(name, (name, name))[has_reference]


def _metric(found: re.Match[str]) -> str | None:
    """The metric that is named: by "UNIQUE" and "use unique", but not by "a unique photo". A variant of a name and a
    name that nobody knows are as the query has them; capitals alone are one where a name is near ("LPIPSS")."""
    if found[4]:
        stressed = found[4].isalpha() and found[4].isupper()
        return found[4] if not stressed or nearest(tool_key(found[4]), _NAMES) else None
    key = tool_key(found[2]).replace(".", "")
    name, asked_for = _NAMES.get(key, found[2]), found[1] or found[3]
    of_word = any(key.startswith(tool_key(word)) for word in WORDS["words_too"])
    is_word = name in WORDS["words_too"] or (of_word and key not in _NAMES)
    exact = found[2] == name and key in _NAMES
    return name if asked_for or exact or not is_word else None


def _without_metrics(query: str) -> str:
    return _METRIC.sub(lambda found: "." if _metric(found) else found[0], _plain(query))


# Regions and places

_NO_REGION, _WHERE = re.compile(alternatives(WORDS["no_region"])), pattern(WORDS["where"])


def region_in(query: str, name: str) -> str | None:
    """The region that a plan calls `name`, without words for the picture at either end ("photo of my dog": dog); None
    where nothing is left, or the query does not hold it, a plural's s apart."""
    words = re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", _plain(name))
    kept = [i for i, word in enumerate(words) if not _NO_REGION.fullmatch(word.casefold())]
    if not kept:
        return None
    region, text = " ".join(words[kept[0] : kept[-1] + 1]), _without_metrics(query)
    unspaced = not region.isascii() and region in text  # Chinese and its like
    return region if unspaced or f" {_stemmed(region)} " in f" {_stemmed(text)} " else None


def _stemmed(text: str) -> str:
    """The words but articles, without the s or es of a plural."""
    words = re.findall(r"[^\W_]+", text.casefold())
    return " ".join(
        re.sub(r"(?<=\w\w)e?s?$", "", word) for word in words if word not in ("the", "a")
    )


def same_words(one: str, other: str) -> bool:
    """Whether two names have the same words, but for articles and plurals."""
    return _stemmed(one) == _stemmed(other)


def asks_where(query: str) -> bool:
    """Whether a query wants to know in which part of the picture something is."""
    return bool(_WHERE.search(query))


# Distortions

_NAMED = pattern(
    [
        f"(?P<{kind.replace(' ', '_')}>{alternatives(ws)})"
        for kind, ws in WORDS["distortions"].items()
    ]
)
_DAMAGE, _DAMAGE_SOMEWHERE = pattern(WORDS["damage"]), pattern(WORDS["damage_somewhere"])
_ANY, _VIRTUE, _VICE, _ABSENCE = (
    pattern(WORDS[name]) for name in ("any_distortion", "virtue", "vice", "absence")
)
_OPEN, _LEFT_OUT = pattern(WORDS["open_question"]), pattern(WORDS["left_out"])


def distortions_in(query: str, regions: Iterable[str] = ()) -> list[str]:
    """The distortions that a question about quality names outside the names of its `regions`, in its order; none where
    it lists more than three, or asks for others too."""
    text = asked_about(query)
    for region in regions:
        text = re.sub(rf"\b{re.escape(region)}\b", ".", text, flags=re.IGNORECASE)
    kinds = dict.fromkeys(
        (found.lastgroup or "").replace("_", " ") for found in _NAMED.finditer(text)
    )
    return [] if len(kinds) > 3 or _OPEN.search(text) else [*kinds]


def asks_about_damage(query: str) -> bool:
    """Whether a query names damage by a word that means nothing else, or asks where damage is."""
    text = asked_about(query)
    return bool(_DAMAGE.search(text) or (asks_where(query) and _DAMAGE_SOMEWHERE.search(text)))


def says_present(query: str, kinds: Sequence[str]) -> bool | None:
    """Whether Yes says that the distortions named are there (True) or that they are not (False); None where the
    question names none, or both a virtue and a damage."""
    damaged = bool((_VICE if kinds else _ANY).search(query))
    if damaged == bool(kinds and _VIRTUE.search(query)):
        return None
    return damaged != bool(_ABSENCE.search(query))


def asked_about(query: str) -> str:
    """The question without the answers that it offers, names of metrics, and what is not to be looked at."""
    text = _YES_NO.sub(" ", _plain(query))
    return _LEFT_OUT.sub(".", " ".join(_without_metrics(text[: _lettered(text)[0]]).split()))


# Answers to choose from

# A., a), (A) or 1., and what ends the clause before it; an initial ("J. A. Smith") ends none
_MARK = re.compile(
    r"((?:^|(?<!\b[A-Z])\.|[?:!,;\n。、])\s*)?(?<!\w)(?:[(\[]([A-Ja-j])[)\]]|([A-Ja-j1-9])[.):、])\s*(?=[^\s.])"
)
# What a person answers is short, and no question or instruction
_NO_ANSWER = re.compile(
    r"$|.{100}|(is|are|do|does|did|how|what|which|why|can|where|who|rate|score|explain|describe|give|list|compare)\b",
    re.IGNORECASE | re.DOTALL,
)
_END_OF_LIST = re.compile(r"[.?!]\s+(?=[A-Z])|[。？]|\n")
_END_OF_ANSWER = re.compile(r"[\s,;.?!(\[]*(\b(or|and)\b)?[\s(\[]*$", re.IGNORECASE)
_PAIR = r"(yes|true|y)\s*(?:or|/|,)\s*(no|false|n)"
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
        begins = clause is not None and (
            sign in "Aa" or (sign == "1" and clause[:1] in ("?", ":", "\n"))
        )
        if ord(sign) == ord(marks[-1][2] or marks[-1][3]) + 1 if marks else begins:
            marks.append(mark)
    if len(marks) < 2:
        return len(text), []
    parts = [
        text[mark.end() : after.start()].strip().split("\n")[0]
        for mark, after in itertools.pairwise(marks)
    ]
    parts.append(_END_OF_LIST.split(text[marks[-1].end() :].strip())[0])
    answers = [_END_OF_ANSWER.sub("", part) for part in parts]
    different = len({answer.casefold() for answer in answers}) == len(answers)
    return (
        (marks[0].start(), answers)
        if different and not any(map(_NO_ANSWER.match, answers))
        else (len(text), [])
    )
