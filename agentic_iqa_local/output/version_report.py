"""Whether a new version is worse, as text for a terminal, Markdown for a merge request, JUnit for a
CI server, and one page that opens from a file."""

import base64
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from markupsafe import escape
from PIL import Image

from agentic_iqa_local.config import ImageSettings
from agentic_iqa_local.errors import counted, one_line, percent
from agentic_iqa_local.files import path_from_text, path_text
from agentic_iqa_local.images.reading import load_image
from agentic_iqa_local.iqa_tools import ToolRunner
from agentic_iqa_local.judgement.changes import change
from agentic_iqa_local.judgement.versions import PairFound, VersionReport
from agentic_iqa_local.judgement.worse import ENOUGH, FEWEST, Decision, Rule
from agentic_iqa_local.output import pages
from agentic_iqa_local.output.comparison_report import rounded
from agentic_iqa_local.output.words import safe_lines, wrapped

NAMED = 10  # of the pictures that lost most, and of the problems
MOST_NEEDED = 10_000  # scenes: beyond it no number is said
JUNIT = re.compile(rb'<testsuites name="agentic-iqa gate"')
MARKDOWN = re.compile(rb"\A<!-- agentic-iqa gate -->")
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")  # what Markdown would not show as it is


class Crops(NamedTuple):
    """A pair, and the old and the new crop as PNG in base64."""

    pair: PairFound
    old: str
    new: str


def crops(
    found: PairFound, reference: Path | None, tools: ToolRunner, limits: ImageSettings
) -> Crops:
    """Both pictures where they differ most; `found.change` says what changed. Raises ImageError,
    ToolError."""
    options = limits.model_dump(exclude={"max_crops"})
    files = [
        path_from_text(found.old),
        path_from_text(found.new),
        *([reference] if reference else []),
    ]
    pictures = [load_image(file, **options).pixels for file in files]
    found.change = change(tools, *pictures)
    old, new = [_png(picture.crop(found.change.box)) for picture in pictures[:2]]
    return Crops(found, old, new)


def _png(picture: Image.Image) -> str:
    content = BytesIO()
    picture.save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode()


# Sentences


def before(rule: Rule, pairs: int) -> str:
    """What such a rule needs, and what there is."""
    needed = counted(rule.needed(), "picture")
    there = counted(pairs, "pair")
    lead = f"{_limit(rule)} at an error rate of {percent(rule.error_rate)} needs"
    if rule.share is None:
        lead += f" about {needed} of different scenes to pass a version that lost nothing"
        if rule.needed() < ENOUGH:
            lead += f", and {ENOUGH} or more to keep to that rate"
        return f"{lead}; {there} to compare"
    return f"{lead} {needed} of different scenes, none of them worse; {there} to compare"


def _limit(rule: Rule) -> str:
    if rule.share is None:
        return f"a margin of {rule.margin:g} levels"
    return f"a share of {percent(rule.share, 1)} of pictures that lose more than {rule.margin:g} levels"


def headline(report: VersionReport) -> str:
    """The verdict and what it rests on, in one sentence."""
    decision = report.decision
    if decision is None:
        return f"no verdict: none of {counted(len(report.problems), 'pair')} could be compared"
    rule = report.rule
    of = _pictures(decision)
    if report.pairs and all(pair.same for pair in report.pairs):
        return f"{decision.verdict}: all {of} have the same pixels as before"
    if rule.share is None:
        what = f"on average q has {_moved(decision.estimate)} levels"
        limit = f"a fall of {rule.margin:g} is allowed"
        if -rule.margin <= decision.estimate < 0:
            limit = f"a rise within the margin of {rule.margin:g} counts as no change"
    else:
        what = f"{percent(decision.estimate, 1)} of the pictures lost more than {rule.margin:g} levels of q"
        limit = f"{percent(rule.share, 1)} are allowed"
    return f"{decision.verdict}: {what}{_bounds(decision, rule)} ({limit}), {of}"


def _pictures(decision: Decision) -> str:
    pictures = counted(decision.pictures, "picture")
    if decision.scenes == decision.pictures:
        return pictures
    return f"{pictures} of {counted(decision.scenes, 'scene')}"


def _bounds(decision: Decision, rule: Rule) -> str:
    """The bound that decides, or both, to go on with after the estimate."""
    if decision.low is None or decision.high is None:
        return f"; {FEWEST} scenes or more are needed to say how sure that is"
    if rule.share is None:
        verb = _moved(decision.estimate).partition(" ")[0]
        low = _moved(decision.low, "at least ", "at most ").removeprefix(f"{verb} ")
        high = _moved(decision.high, "at most ", "at least ").removeprefix(f"{verb} ")
    else:
        low = f"at least {percent(decision.low, 1)}"
        high = f"at most {percent(decision.high, 1)}"
    sure = f"with {percent(1 - rule.error_rate)} confidence"
    if decision.verdict == "worse":
        return f", {low} {sure}"
    if decision.verdict == "not worse":
        return f", {high} {sure}"
    return f", {low} and {high}, each {sure}"


def _moved(loss: float, of_fall: str = "", of_rise: str = "") -> str:
    """A mean loss in words, with "at least" or "at most" before its size."""
    if loss > 0:
        return f"fallen by {of_fall}{loss:.3f}"
    return f"risen by {of_rise}{abs(loss):.3f}"


def notes(report: VersionReport) -> list[str]:
    """What belongs beside the headline: how far to trust it, and what would decide."""
    return [note for note in (_few(report), more(report)) if note]


def _few(report: VersionReport) -> str:
    """That the bounds of a mean of few scenes err more often than they say; else nothing."""
    decision = report.decision
    exact = report.worse_share is not None or all(pair.same for pair in report.pairs)
    if exact or decision is None or not FEWEST <= decision.scenes < ENOUGH:
        return ""
    return f"with fewer than {ENOUGH} scenes this may be wrong more often than that confidence says"


def more(report: VersionReport) -> str:
    """How many scenes would decide what is undecided, if they are like these; else nothing."""
    decision = report.decision
    if decision is None or decision.verdict != "undecided":
        return ""
    needed = float(FEWEST)
    if decision.low is not None and decision.high is not None:
        apart = abs(report.rule.limit - decision.estimate)
        half = (decision.high - decision.low) / 2
        needed = decision.scenes * (half / apart) ** 2 if apart else float("inf")
    if needed > MOST_NEEDED:
        return "it is too near to the limit for a number of pictures that would decide"
    if report.worse_share and decision.estimate < report.worse_share:
        needed = max(needed, report.needed)
    at_least = max(needed, decision.scenes + 1)
    return f"about {at_least:.0f} pictures of different scenes like these would decide"


def lost(pair: PairFound) -> str:
    """What a picture lost, what changed and where."""
    better = ""
    if pair.probability is not None:
        better = f"; the old one is better with probability {rounded(pair.probability)}"
    said = f"q {pair.old_q:.2f} → {pair.new_q:.2f}{better}"
    seen = changed(pair)
    return f"{said}; {seen}" if seen else said


def changed(pair: PairFound) -> str:
    """What changed in words, and where; nothing if that was not looked for."""
    if pair.change is None:
        return ""
    words = ", ".join(pair.change.words) or "LocalNR cannot name what changed"
    return f"{words} ({pair.change.place})" if pair.change.place else words


def about(report: VersionReport) -> list[str]:
    """What a reader who did not run the gate needs to know, in sentences."""
    paths = [Path(path_from_text(name)).absolute() for name in (report.old, report.new)]
    old, new = map(path_text, paths)
    compared = f"Pairs: {new}" if old == new else f"Old: {old}. New: {new}"
    made = f"Made {report.timestamp:%Y-%m-%d %H:%M} UTC by agentic-iqa {report.version}"
    sentences = [
        "q runs from 1 (bad) to 5 (excellent). A level is one step of that scale.",
        f"{compared}.{' Both are compared with the originals.' if report.reference else ''}",
        f"{made}, model {report.model['name']}." if report.model else f"{made}.",
    ]
    return [one_line(sentence) for sentence in sentences + _note(report)]


def _note(report: VersionReport) -> list[str]:
    """What the model says of itself, if anything."""
    notice = (report.model or {}).get("notice")
    return [f"Note: {notice}."] if notice else []


def text(report: VersionReport) -> str:
    """What a terminal shows."""
    lines = wrapped(headline(report), indent="")
    for note in notes(report):
        lines += wrapped(note)
    same = sum(pair.same for pair in report.pairs)
    if 0 < same < len(report.pairs):
        lines += wrapped(f"{counted(same, 'pair')} with the same pixels: not assessed, no loss")
    lines += _worst(report) + _problems(report)
    for note in _note(report):
        lines += wrapped(note, indent="")
    return safe_lines(lines)


def _worst(report: VersionReport) -> list[str]:
    worst, lines = report.worst, []
    if worst:
        shown = f", the first {NAMED}" if len(worst) > NAMED else ""
        count = f"{len(worst)} of {counted(len(report.pairs), 'picture')}"
        lines.append(f"{count} lost more than {report.margin:g}{shown}:")
    elif any(not pair.same for pair in report.pairs):
        lines.append(f"no picture lost more than {report.margin:g}")
    for pair in worst[:NAMED]:
        lines += wrapped(f"{pair.loss:.2f}  {pair.name}: {lost(pair)}", hang="        ")
    return lines


def _problems(report: VersionReport) -> list[str]:
    problems, lines = report.problems, []
    if problems:
        lines.append(f"{counted(len(problems), 'pair')} could not be compared:")
    for problem in problems[:NAMED]:
        lines += wrapped(problem, hang="    ")
    if len(problems) > NAMED:
        lines.append(f"  and {len(problems) - NAMED} more (all with --json)")
    return lines


# Files


def markdown(report: VersionReport) -> str:
    """A summary for a merge request."""
    title, _, rest = headline(report).partition(": ")
    lines = ["<!-- agentic-iqa gate -->", f"### Picture quality: {title}", "", _plain(rest)]
    for note in notes(report):
        lines += ["", _plain(note)]
    worst = report.worst[:NAMED]
    if worst:
        lines += ["", "| picture | old q | new q | loss | what changed |", "|---|---|---|---|---|"]
    for pair in worst:
        q = f"{pair.old_q:.2f} | {pair.new_q:.2f} | {pair.loss:.2f}"
        lines.append(f"| {_plain(pair.name)} | {q} | {_plain(changed(pair))} |")
    if report.problems:
        lines += ["", f"{counted(len(report.problems), 'pair')} could not be compared:", ""]
    lines += [f"- {_plain(problem)}" for problem in report.problems]
    for sentence in about(report):
        lines += ["", _plain(sentence)]
    return "\n".join(lines)


def _plain(words: str) -> str:
    """A text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", str(escape(one_line(words))))


def junit(report: VersionReport) -> str:
    """The verdict and each pair as test cases, in the XML that CI servers read."""
    decision = report.decision
    passed = decision is not None and decision.verdict == "not worse"
    page = pages.environment().get_template("gate.xml.jinja")
    return page.render(
        report=report,
        failed=not passed,
        kind=decision.verdict if decision else "no verdict",
        headline=one_line(headline(report)),
        about=notes(report) + about(report),
        pairs=[(one_line(pair.name), _of_pair(pair)) for pair in report.pairs],
        problems=[one_line(problem) for problem in report.problems],
    )


def _of_pair(pair: PairFound) -> str:
    return "the same pixels" if pair.same else one_line(f"loss {pair.loss:.3f}; {lost(pair)}")


def page(report: VersionReport, shown: Sequence[Crops]) -> str:
    """The page: the verdict, the crops of what lost most side by side, every pair, every
    problem."""
    template = pages.environment().get_template("gate.html.jinja")
    cards = [(one, one_line(one.pair.name), one_line(lost(one.pair))) for one in shown]
    verdict, _, rest = headline(report).partition(": ")
    return template.render(
        pages.own_files(("account/account.css", "gate.css"), ()),
        report=report,
        verdict=verdict,
        rest=one_line(rest),
        notes=notes(report),
        title=one_line(report.new),
        about=about(report),
        cards=cards,
        named=NAMED,
        pairs=[(one_line(pair.name), pair, one_line(changed(pair))) for pair in report.pairs],
        problems=[one_line(problem) for problem in report.problems],
    )
