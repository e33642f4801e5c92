"""Several pictures on a terminal: one aligned line for each, that fits its width."""

import os
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.nodes.query import named_metrics
from agentic_iqa_local.output.report import level_word
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.state import UNCLEAR, Severity

NARROWEST = 60  # columns: below this, lines are as wide as here
_VERDICT = len("NOT SURE")
_COLOURS = {"A": "32", "B": "32", "C": "33", "D": "31", "E": "31"}  # green, yellow, red
_VERDICTS = {"PASS": "32", "FAIL": "31", "UNSURE": "33", "NOT SURE": "33"}


def text_width(text: str) -> int:
    """Columns that `text`, which holds no controls, takes on a terminal."""
    return sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int) -> str:
    """`text` in at most `width` columns, with "…" at its end where it was longer."""
    return text if text_width(text) <= width else _begin(text, width - 1) + "…"


def cut_in_the_middle(text: str, width: int) -> str:
    """`text` in at most `width` columns, with "…" in its middle where it was longer."""
    if text_width(text) <= width:
        return text
    end = _begin(text[::-1], width // 2)[::-1]
    return _begin(text, width - 1 - text_width(end)) + "…" + end


def _begin(text: str, width: int) -> str:
    for i, char in enumerate(text):
        width -= _char_width(char)
        if width < 0:
            return text[:i]
    return text


def _filled(text: str, width: int) -> str:
    return text + " " * (width - text_width(text))


@dataclass(frozen=True)
class Layout:
    """The widths of a batch's columns, in a terminal's columns."""

    name: int
    bar: int
    level: int  # 1: the letter alone
    damage: int  # 0: no such column
    verdict: int
    gap: str
    whole: int


def layout(longest: int, columns: int, *, damage: bool, verdict: bool) -> Layout:
    """What fits `columns` (at least 60) for pictures whose `longest` name is so wide; `damage` is whether
    there is evidence to show, `verdict` whether a gate or a limit of the interval was asked for."""
    columns = max(NARROWEST, columns)
    bar, level, gap, noted = (
        (6, 1, " ", 14) if columns < 80 else (8, 11, " ", 17) if columns < 100 else (10, 11, "  ", 24)
    )
    parts = [bar, len("1.00"), level, len("1.0–5.0"), noted * damage, _VERDICT * verdict]
    rest = columns - 1 - sum(width + len(gap) for width in parts if width)  # the last column stays free
    return Layout(
        min(rest, max(longest, 8)), bar, level, noted * damage, _VERDICT * verdict, gap, columns - 1
    )


def picture_line(row: Assessment, name: str, at: Layout, colour: bool = False) -> str:
    """The line of a picture: its name, a bar of q from 1 to 5, level, interval, worst distortion and the
    gate's verdict; of a question its answer; of a failure the reason. With `colour` it holds escape
    sequences; nothing else in it steers a terminal."""
    begin = _filled(cut_in_the_middle(one_line(name), at.name), at.name) + at.gap
    room = at.whole - text_width(begin)
    if row.error:
        reason = one_line(row.error).removeprefix(f"{one_line(row.image)}: ")
        return begin + _coloured("FAILED", "1;31", colour) + cut(f": {reason}", room - len("FAILED"))
    answer = row.final_answer
    if row.q is not None and answer:
        return (begin + at.gap.join(_rated(row, row.q, answer, at, colour))).rstrip()
    words = one_line(answer or "no answer")
    if answer and row.choices and row.p:
        p, words = row.p[answer], one_line(f"{answer}. {chosen_answer(row.choices, answer)}")
        drawn = f"{_bar(p, at.bar)}{at.gap}{p:.2f}{at.gap}"
        begin, room = begin + drawn, room - len(drawn)
    held = f"not sure: {words}" if row.not_sure else words
    return begin + cut(" ".join(held.split()), room)


def _rated(row: Assessment, q: float, letter: str, at: Layout, colour: bool) -> list[str]:
    shade = _COLOURS.get(letter, "0")
    level = letter if at.level == 1 else f"{letter} {level_word(letter)}"
    cells = [
        _coloured(_bar((q - 1) / 4, at.bar), shade, colour),
        f"{q:.2f}",
        _coloured(_filled(level, at.level), shade, colour),
        f"{row.interval.low:.1f}–{row.interval.high:.1f}" if row.interval else " " * len("1.0–5.0"),
    ]
    if at.damage:
        cells.append(_filled(cut(one_line(named_scores(row) or worst_distortion(row)), at.damage), at.damage))
    if at.verdict:
        verdict = "NOT SURE" if row.not_sure else ""
        if row.gate:
            verdict = row.gate.verdict.upper()
        cells.append(_coloured(verdict, _VERDICTS.get(verdict, "0"), colour))
    return cells


def _bar(share: float, width: int) -> str:
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "░" * (width - full)


def _coloured(text: str, code: str, colour: bool) -> str:
    return f"\033[{code}m{text}\033[0m" if colour and text else text


def named_scores(row: Assessment) -> str:
    """The raw scores of the tools that the query names; nothing where it names none that ran."""
    named = named_metrics(row.query, row.reference is not None)
    scores = {run.tool_name: run.raw_score for run in row.tools if run.tool_name in named}
    return ", ".join(f"{name} {score:.4g}" for name, score in scores.items() if score is not None)


def worst_distortion(row: Assessment) -> str:
    """The most severe distortion that the evidence holds, as "severe blur" or "severe blur (sky)"; "none
    seen" where it looked for some and found none, and nothing without evidence."""
    analysis = row.evidence and row.evidence.distortion_analysis
    if not analysis:
        return ""
    severities = get_args(Severity)  # from the mildest on
    found = [
        (severities.index(item.severity), item, name)
        for name, items in analysis.items()
        for item in items
        if item.severity not in ("none", UNCLEAR)
    ]
    if not found:
        return "none seen"
    _, item, name = max(found, key=lambda entry: entry[0])
    return f"{item.severity} {item.type}" + ("" if name == "Global" else f" ({name})")


def short_names(paths: Sequence[str]) -> tuple[str, Callable[[str], str]]:
    """The folder that all of the paths lie in ("" where there is none to speak of), and what makes a path
    relative to it."""
    folders = {os.path.dirname(path) for path in paths}
    try:
        common = os.path.commonpath(folders) if folders else ""
    except ValueError:  # absolute paths beside relative ones
        common = ""
    if not common.strip(os.sep):
        return "", str
    return common, lambda path: os.path.relpath(path, common)


def in_order(rows: Iterable[Assessment], by: str) -> list[Assessment]:
    """The rows sorted by "q" from the best on, "worst" from the worst on, "width" of the interval from the
    widest on, or "name"; what lacks the figure comes last, in order of names."""
    figures: dict[str, Callable[[Assessment], float | None]] = {
        "q": lambda row: None if row.q is None else -row.q,
        "worst": lambda row: row.q,
        "width": lambda row: -row.interval.width if row.interval else None,
        "name": lambda row: 0.0,
    }

    def key(row: Assessment) -> tuple[bool, float, str]:
        figure = None if row.error and by != "name" else figures[by](row)
        return figure is None, figure or 0.0, row.image

    return sorted(rows, key=key)
