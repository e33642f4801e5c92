"""Several pictures on a terminal: one aligned line for each, that fits its width."""

import os
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.output.words import damage, named, nothing_found, raw_with_scale
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.state import LETTER_WORDS

NARROWEST = 60  # columns: below this, lines are as wide as here
COLOURS = {"A": "green", "B": "green", "C": "yellow", "D": "red", "E": "red"}
VERDICTS = {"PASS": "green", "FAIL": "red", "UNSURE": "yellow", "NOT SURE": "yellow"}


class PictureLines:
    """The lines of a batch: name, a bar of q from 1 to 5, level, interval, worst distortion,
    verdict.

    Args:
        pictures: Paths of all pictures; the longest sets the width of the first column.
        columns: The terminal's width.
        damage: Whether there is evidence to show.
        verdict: Whether a gate or a limit of the interval was asked for.
    """

    def __init__(
        self, pictures: Sequence[str], columns: int, *, damage: bool, verdict: bool
    ) -> None:
        folders = {os.path.dirname(path) for path in pictures}
        same_root = len({os.path.isabs(folder) for folder in folders}) == 1
        common = os.path.commonpath(folders) if same_root else ""
        self.folder = common if common.strip(os.sep) else ""  # which all lie in
        self.columns = max(NARROWEST, columns)
        self.bar, self.level, noted = 10, len("A Excellent"), 24
        if self.columns < 100:
            self.bar, noted = 8, 17
        if self.columns < 80:
            self.bar, self.level, noted = 6, 1, 14
        self.damage, self.verdict = noted * damage, len("NOT SURE") * verdict
        cells = [self.bar, len("1.00"), self.level, len("1.0–5.0"), self.damage, self.verdict]
        rest = self.columns - 1  # the last column stays free
        for width in cells:
            rest -= width + 1 if width else 0
        self.name = min(rest, max((cell_len(self._short(path)) for path in pictures), default=8))

    def _short(self, path: str) -> str:
        return one_line(os.path.relpath(path, self.folder) if self.folder else path)

    def head(self, *, rated: bool) -> Text:
        """The names of the columns of ratings, or of answers to a question; the folder is that of
        the pictures."""
        line = _cell(one_line(f"{self.folder}{os.sep}") if self.folder else "picture", self.name)
        names = [("5 is best", self.bar + 5), ("level", self.level), ("90 %", 7)]
        names += [("damage", self.damage), ("verdict", self.verdict)]
        for text, width in names if rated else [("answer", len("answer"))]:
            line.append_text(_cell(text, width))
        line.rstrip()
        return line

    def line(self, row: Assessment) -> Text:
        """The line of a picture: of a rating its figures, of a question its answer, of a failure
        the reason."""
        name = self._short(row.image)
        if cell_len(name) > self.name:  # its end tells frames of a series apart
            while cell_len(name) >= self.name:
                name = name[1:]
            name = f"…{name}"
        line = _cell(name, self.name)
        if row.error:
            expected, _, found = row.reason.partition(", but ")
            line.append("FAILED", "bold red").append(f": {one_line(found or expected)}")
        elif row.q is not None and row.final_answer:
            self._rate(line, row, row.q, row.final_answer)
        else:
            if row.letter and row.p:
                line.append(f"{_bar(row.p[row.letter], self.bar)} ")
            line.append("not sure: " * bool(row.not_sure) + " ".join(one_line(row.answer).split()))
        line.truncate(self.columns - 1, overflow="ellipsis")
        line.rstrip()
        return line

    def _rate(self, line: Text, row: Assessment, q: float, letter: str) -> None:
        verdict = "NOT SURE" if row.not_sure else ""
        if row.gate:
            verdict = row.gate.verdict.upper()
        level = letter if self.level == 1 else f"{letter} {LETTER_WORDS[letter]}"
        between = f"{row.interval.low:.1f}–{row.interval.high:.1f}" if row.interval else ""
        for text, width, colour in (
            (_bar((q - 1) / 4, self.bar), self.bar, COLOURS[letter]),
            (f"{q:.2f}", 4, ""),
            (level, self.level, COLOURS[letter]),
            (between, len("1.0–5.0"), ""),
            (one_line(_named_scores(row) or worst_distortion(row)), self.damage, ""),
            (verdict, self.verdict, VERDICTS.get(verdict, "")),
        ):
            line.append_text(_cell(text, width, colour))


def _cell(text: str, width: int, style: str = "") -> Text:
    """A text in so many columns and a blank behind them; nothing in none."""
    cell = Text(text, style)
    cell.truncate(width, overflow="ellipsis", pad=True)
    return cell.append(" ") if width else Text()


def _bar(share: float, width: int) -> str:
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "░" * (width - full)


def _named_scores(row: Assessment) -> str:
    """The raw scores of the tools that the query names and that ran."""
    runs = {run.tool_name: run for run in row.tools if run.tool_name in named(row)}
    measured = [run for run in runs.values() if run.raw_score is not None]
    if len(measured) == 1:  # the line has no room for the scales of several
        return f"{measured[0].tool_name} {raw_with_scale(measured[0])}"
    return ", ".join(f"{run.tool_name} {run.raw_score:.4g}" for run in measured)


def worst_distortion(row: Assessment) -> str:
    """The most severe distortion, or what was looked for in vain ("no blur seen"); nothing without
    evidence."""
    if not (row.evidence and row.evidence.distortion_analysis):
        return ""
    seen = damage(row)
    return seen[0] if seen else f"{nothing_found(row)} seen"
