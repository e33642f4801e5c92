"""Several pictures on a terminal: one aligned line for each that was rated, which fits its
width."""

from rich.cells import cell_len
from rich.text import Text

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.output.report import headline, named_tools
from agentic_iqa_local.output.words import forced_eye, unmeasured, whole_scale, worst_distortion
from agentic_iqa_local.result import Assessment, Interval

COLOURS = {"A": "green", "B": "green", "C": "yellow", "D": "red", "E": "red"}


def picture_line(row: Assessment, columns: int) -> Text:
    """The line of a picture: of a rating its name, q, level and interval, and the verdict, a forced
    eye and the worst distortion as far as they fit; of everything else its headline."""
    if row.q is None or row.letter is None:
        return Text(headline(row))
    name, width = one_line(row.image), max(columns // 4, 12)
    while cell_len(name) > width:
        name = f"…{name[2:]}"  # its end tells frames of a series apart
    level = f"{row.letter} {row.level}"
    interval = _interval(row.interval) if row.interval else ""
    verdict = "NOT SURE" if row.not_sure else ""
    if row.gate:
        verdict = row.gate.verdict.upper()
    alone = "the model's opinion alone" if unmeasured(row) else ""
    said = [verdict, *forced_eye(row), alone, *(named_tools(row) or [worst_distortion(row)])]
    line = Text()
    for text, cells in ((name, width), (f"q {row.q:.2f}", 6), (level, 11), (interval, 13)):
        cell = Text(text)
        cell.truncate(cells, pad=True)
        line.append_text(cell).append(" ")
    line.append(one_line("; ".join(filter(None, said))))
    line.highlight_words([level], COLOURS[row.letter])
    line.truncate(columns - 1, overflow="ellipsis")
    line.rstrip()
    return line


def _interval(interval: Interval) -> str:
    if whole_scale(interval):
        return "90 %: unknown"
    return f"90 %: {interval.low:.1f}–{interval.high:.1f}"
