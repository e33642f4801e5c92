"""What a query says in so many words: tools, regions, distortions, a place, answers to choose from.

These are rules of text, the same for every model. The words stand in words.yaml.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agentic_iqa_local.errors import nearest
from agentic_iqa_local.files import read_yaml
from agentic_iqa_local.iqa_tools.specs import TOOLS, tool_key

WORDS: dict[str, Any] = read_yaml(Path(__file__).with_name("words.yaml"))


def pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Any of the words, whole and in any case."""
    return re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text)  # full-width letters are letters


# Tools

_BY_REFERENCE = {  # a name of two tools: the one without a reference, the one with one
    "topiq": ("TOPIQ_NR", "TOPIQ_FR"),
    "wadiqam": ("WaDIQaM_NR", "WaDIQaM_FR"),
}
_NAMES = (  # by `tool_key`
    {tool_key(name): name for name in (*WORDS["other_metrics"], *_BY_REFERENCE)}
    | {tool_key(name): spec.name for spec in TOOLS.values() for name in (spec.metric, spec.name)}
    | WORDS["full_names"]
)


def _spelled(key: str) -> str:
    """A name as people write it, with a blank or a sign anywhere ("N.I.Q.E.", "MS SSIM"). A plus
    follows directly: "LPIPS + SSIM" are two."""
    return r"[ \-_.]?".join(map(re.escape, key)).replace(r"[ \-_.]?\+", r"\+")


_SPELLED = "|".join(_spelled(key) for key in sorted(_NAMES, key=len, reverse=True))
_BEGIN = r"(?<![A-Za-z0-9À-ɏ])"
# What makes a name that of another metric ("niqe_matlab", "PSNR-HVS", "NIQE-v2"), unlike
# "niqe_score" and "NIQE-based"
_TAIL = r"(?-i:(?!_(?:score|value|index)\b)(?:_[A-Za-z0-9]+|-[A-Z][A-Z0-9]+|-[a-z]+\d\w*))*"
_END = r"(?![A-Za-z0-9À-ɏ]|[\w-]*\.(?:png|jpe?g|webp|tiff?|csv)\b)"
_NAME = rf"{_BEGIN}(?:{_SPELLED}){_TAIL}{_END}"
_COMMAND = r"\b(?:use|using|run|compute|calculate)\s+"
_METRIC = re.compile(
    rf"(?P<command>{_COMMAND})?{_BEGIN}(?P<written>(?P<name>{_SPELLED}){_TAIL}){_END}"
    r"(?P<score>[\s-]*(?:score|metric|index|value)s?\b)?"
    rf"|{_COMMAND}(?P<unlisted>(?-i:[A-Za-z]*[A-Z]{{3}}\w*)){_END}",
    re.IGNORECASE,
)
# "not X, Y or Z": nothing but fillers parts a negation from the name
_LIST = rf"(?:{_NAME}(?:\s*[,/]\s*(?:(?:or|and|nor)\s+)?|\s+(?:or|and|nor)\s+)?){{1,10}}"
_REFUSED = re.compile(
    rf"(?<!why )(?:\b(?:{WORDS['refusal']})|n['’]t)\s+"
    rf"(?:(?:want|you|to|use|using|run|the|any|a|with|by|on)\s+)*{_LIST}",
    re.IGNORECASE,
)


def named_metrics(query: str, has_reference: bool) -> list[str]:
    """The tools that the query names, in its order, and behind them well-known metrics that are no
    tools here. A name in a negated phrase ("not NIQE") does not count."""
    asked_for = _REFUSED.sub(" ; ", _plain(query))
    found = [_metric(match, has_reference) for match in _METRIC.finditer(asked_for)]
    named = dict.fromkeys(filter(None, found))
    return sorted(named, key=lambda name: name not in TOOLS)


def _metric(match: re.Match[str], has_reference: bool = False) -> str | None:
    """The metric that is named. A name that is a word too counts as it is spelled, after a command
    or before "score": "UNIQUE" and "use unique", but not "a unique photo". A variant of a name is a
    metric of its own; a name that nobody lists counts if it is near to one, or ends as metrics
    do."""
    unlisted = match["unlisted"]
    if unlisted:
        alike = unlisted.endswith("IQA") or nearest(tool_key(unlisted), _NAMES)
        return unlisted if alike else None
    name, written = (tool_key(match[part]).replace(".", "") for part in ("name", "written"))
    clear = match["command"] or match["score"] or match["name"] == _NAMES[name]
    if _NAMES[name] in WORDS["words_too"] and not clear:
        return None
    metric = _NAMES.get(written, match["written"])
    return _BY_REFERENCE.get(metric, (metric, metric))[has_reference]


def _without_metrics(query: str) -> str:
    return _METRIC.sub(lambda match: "." if _metric(match) else match[0], _plain(query))


# Distortions

_FAMILIES = {kind: "|".join(words) for kind, words in WORDS["distortions"].items()}
_NAMED = pattern([f"(?P<{kind.replace(' ', '_')}>{words})" for kind, words in _FAMILIES.items()])
(
    _DAMAGE, _ANY, _WORSE, _VIRTUE, _ABSENCE, _OPEN, _LEFT_OUT, _ADVICE, _REASON, _RATING, _REFERENCE,
) = (
    pattern(WORDS[name])
    for name in (
        "damage", "any_distortion", "worse", "virtue", "absence", "open_question", "left_out",
        "advice", "reason", "rating", "reference",
    )
)  # fmt: skip


def distortions_in(query: str) -> list[str]:
    """The distortions that a question about quality names, in its order; none where it asks for
    others too."""
    text = asked_about(query)
    if _OPEN.search(text):
        return []
    groups = [str(match.lastgroup) for match in _NAMED.finditer(text)]
    return [kind.replace("_", " ") for kind in dict.fromkeys(groups)]


def asks_about_damage(query: str) -> bool:
    """Whether a query names damage by a word that means nothing else, asks where damage is, or what
    to do about it."""
    text = asked_about(query)
    any_damage = _ANY.search(text) or _WORSE.search(text)
    named = _DAMAGE.search(text) or (asks_where(query) and any_damage)
    return bool(named) or asks_for_advice(query)


def asks_for_advice(query: str) -> bool:
    """Whether a query wants to know what to do about a picture."""
    return bool(_ADVICE.search(asked_about(query)))


def asks_for_rating(query: str) -> bool:
    """Whether a query wants a score to be given."""
    return bool(_RATING.search(asked_about(query)))


def speaks_of_reference(query: str) -> bool:
    """Whether a query speaks of an original to compare with."""
    return bool(_REFERENCE.search(asked_about(query)))


def asks_why(query: str) -> bool:
    """Whether a query wants to know why the quality is what it is."""
    return bool(_REASON.search(asked_about(query)))


def says_present(query: str, kinds: Sequence[str]) -> bool | None:
    """Whether Yes says that the distortions named are there ("Is it noisy?": True) or that they are
    not ("Is it sharp?": False); None where the question names none."""
    if not kinds and not _ANY.search(query):
        return None
    denied = bool(_ABSENCE.search(query))
    praised = bool(kinds and _VIRTUE.search(query) and not _DAMAGE.search(query))
    return denied == praised


def asked_about(query: str) -> str:
    """The question without the answers that it offers, names of metrics, and what is not to be
    looked at."""
    question, _ = _split(_YES_NO.sub(" ", _plain(query)))
    return _LEFT_OUT.sub(".", " ".join(_without_metrics(question).split()))


# Regions and places

_NO_REGION = "|".join([*WORDS["no_region"], *_FAMILIES.values()])
_ENDS = re.compile(rf"^(?:\W|\b(?:{_NO_REGION})\b)+|(?:\W|\b(?:{_NO_REGION})\b)+$", re.IGNORECASE)
_WHERE = pattern(WORDS["where"])
_SIDE = pattern(word for words in WORDS["sides"].values() for word in words)


def region_in(query: str, name: str) -> str | None:
    """The region that a plan calls `name`, without words for the picture or its quality at either
    end ("photo of my dog": dog); None where nothing is left, where the query does not hold it, or
    where it is a side that a query asks about ("worse at the top?")."""
    region, text = _ENDS.sub("", _plain(name)), _without_metrics(query)
    unspaced = not region.isascii() and region in text  # Chinese and its like
    named = f" {_stemmed(region)} " in f" {_stemmed(text)} "
    if not (unspaced or named) or (asks_where(query) and _SIDE.fullmatch(region)):
        return None
    return region or None


def _stemmed(text: str) -> str:
    """The words without articles and without the s or es of a plural."""
    words = re.findall(r"(?!(?:the|a)\b)\b[^\W_]+", text.casefold())
    return " ".join(re.sub(r"(?<=\w\w)e?s?$", "", word) for word in words)


def same_words(one: str, other: str) -> bool:
    """Whether two names have the same words, apart from articles and plurals."""
    return _stemmed(one) == _stemmed(other)


def asks_where(query: str) -> bool:
    """Whether a query wants to know in which part of the picture something is."""
    return bool(_WHERE.search(query))


# Answers to choose from

# The mark of an answer: A., a), (A) or 1.; the first one begins a clause. An initial ("J. A.
# Smith") begins none.
_MARK = r"(?<!\w)[(\[]?([A-Ja-j1-9])[)\].:、]\s*(?=[^\s.])"
_NEXT_MARK = re.compile(_MARK)
_FIRST_MARK = re.compile(
    rf"(?:(?:^|(?<!\b[A-Z])\.|[?:!,;\n。、])\s*(?=[(\[]?[Aa])|[?:\n]\s*(?=[(\[]?1)){_MARK}"
)
# What a person answers is short, and no question or instruction
_NO_ANSWER = re.compile(rf"$|.{{100}}|({WORDS['question_or_order']})\b", re.IGNORECASE | re.DOTALL)
_END_OF_LIST = re.compile(r"[.?!]\s+(?=[A-Z])|[。？]|\n")
_END_OF_ANSWER = re.compile(r"[\s,;.?!(\[]*(\b(or|and)\b)?[\s(\[]*$", re.IGNORECASE)
_PAIR = r"(yes|true|y)\s*(?:or|/|,)\s*(no|false|n)"
_YES_NO = re.compile(
    rf"^\s*(?:answer\s+(?:with\s+)?)?{_PAIR}\s*[:,?–—-]"
    rf"|(?<!whether)(?<!saying)(?<!if)[\s,;(?!.:–—-]{_PAIR}[\s?.!),。]*"
    r"(?:(?:please\s+)?(?:explain|why)\b.*)?$",
    re.IGNORECASE,
)


def choices_in(query: str) -> list[str] | None:
    """The answers that the query offers: a lettered or numbered list ("A. too dark B. too bright")
    or "yes or no"; None where it offers none. A list of questions or instructions is none."""
    text = _plain(query)
    _, answers = _split(text)
    pair = _YES_NO.search(text)
    if pair and not answers:
        answers = [word for word in pair.groups() if word]
    return answers or None


def _split(text: str) -> tuple[str, list[str]]:
    """The text before a list of answers, and the answers; the whole text and nothing where it has
    no list."""
    first = _FIRST_MARK.search(text)
    if first is None:
        return text, []
    marks = [first]
    for mark in _NEXT_MARK.finditer(text, first.end()):
        if ord(mark[1]) == ord(marks[-1][1]) + 1:
            marks.append(mark)
    answers: dict[str, str] = {}  # by what makes them differ
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    for mark, end in zip(marks, ends, strict=True):
        part = text[mark.end() : end].strip()
        answer = _END_OF_ANSWER.sub("", _END_OF_LIST.split(part)[0])
        if _NO_ANSWER.match(answer):
            return text, []
        answers[answer.casefold()] = answer
    if len(answers) < max(2, len(marks)):
        return text, []
    return text[: first.start()], list(answers.values())
