"""The figures of a study, each as SVG and PNG. Labels are untrusted text: each is a short line, and none is
taken for mathematics."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.intervals import COVERAGE
from agentic_iqa_local.state import LETTER_TO_LEVEL, LEVEL_WORDS
from agentic_iqa_local.studies.statistics import reliability_bins
from agentic_iqa_local.studies.study import Study

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#777777"
COLORS = (BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", "#e69f00")
LEVEL_COLORS = ["#ca0020", "#f4a582", "#d9d9d9", "#92c5de", "#0571b0"]  # levels 1..5
STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "svg.hashsalt": "study",  # the same file for the same study
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 120,
}
COLUMNS = 4
FIFTHS = 5


Shown = TypeVar("Shown", str, tuple[str, ...])


@dataclass(frozen=True)
class Drawing:
    """A figure as files hold it."""

    name: str
    title: str
    svg: bytes
    png: bytes


def draw(study: Study) -> list[Drawing]:
    """Every figure that the study has data for."""
    drawings = []
    with matplotlib.rc_context(STYLE):
        for name, (title, plot) in PLOTS.items():
            if figure := plot(study):
                files = {kind: BytesIO() for kind in ("svg", "png")}
                for kind, file in files.items():
                    figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
                drawings.append(Drawing(name, title, files["svg"].getvalue(), files["png"].getvalue()))
    return drawings


def _grid(
    titles: Sequence[Shown],
    plot: Callable[[Axes, Shown], None],
    xlabel: str,
    ylabel: str,
    bottom: float = 0.5,
) -> Figure | None:
    """Small multiples, one for each title, with `bottom` inches below; of modes that share their letters the
    first is named."""
    if not titles:
        return None
    columns = min(COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    width, height = 2.5 * columns + 0.6, 2.3 * rows + bottom
    figure = Figure(figsize=(width, height))
    # Margins in inches: matplotlib's automatic layouts take seconds for this many panels.
    figure.subplots_adjust(
        0.55 / width, bottom / height, 1 - 0.1 / width, 1 - 0.3 / height, wspace=0.22, hspace=0.35
    )
    for i, title in enumerate(titles):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.set_title(_label(title if isinstance(title, str) else title[0], 40))
        plot(axes, title)
        if i % columns == 0:
            axes.set_ylabel(ylabel)
        if i + columns >= len(titles):
            axes.set_xlabel(xlabel)
    return figure


def _label(text: str, longest: int = 80) -> str:
    text = one_line(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _scatter(study: Study) -> Figure | None:
    answered = [name for name, reading in study.modes.items() if reading.answered.any()]

    def plot(axes: Axes, name: str) -> None:
        kept = study.modes[name].answered
        scores, mos = study.modes[name].scores[kept], study.mos[kept]
        size = np.clip(100 / np.sqrt(len(scores)), 2, 6)
        axes.plot(
            scores, mos, ".", color=BLUE, markersize=size, alpha=0.4, markeredgewidth=0, rasterized=True
        )
        if np.isfinite(study.fits[name]).all():
            order = np.argsort(scores)
            mapped = study.fits[name][order]
            axes.plot(
                scores[order], mapped if study.info.higher_is_better else -mapped, color=ORANGE, linewidth=1.2
            )

    return _grid(answered, plot, "score", "MOS" if study.info.higher_is_better else "MOS, lower is better")


def _letters(study: Study) -> Figure | None:
    words = [f"{letter} {LEVEL_WORDS[level]}" for letter, level in LETTER_TO_LEVEL.items()]

    def plot(axes: Axes, names: tuple[str, ...]) -> None:
        p = study.letters[names]
        kept = np.isfinite(p).all(axis=1)
        order = np.argsort(study.quality[kept], kind="stable")
        parts = [part for part in np.array_split(p[kept][order], FIFTHS) if len(part)]
        means = np.array([part.mean(axis=0) for part in parts])
        below = np.zeros(len(parts))
        for level in range(5):
            axes.bar(
                range(1, len(parts) + 1), means[:, level], bottom=below, color=LEVEL_COLORS[level], width=0.85
            )
            below += means[:, level]
        axes.set_ylim(0, 1)

    figure = _grid(
        list(study.letters), plot, "fifth of the images by human score", "mean probability", bottom=0.8
    )
    if figure:
        colors = [Patch(color=color) for color in reversed(LEVEL_COLORS)]
        figure.legend(colors, words, loc="lower center", ncols=5, frameon=False)
    return figure


def _reliability(study: Study) -> Figure | None:
    def plot(axes: Axes, names: tuple[str, ...]) -> None:
        confidence, correct = study.reliability[names]
        bins = reliability_bins(confidence, correct)
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
        axes.scatter(
            [found["confidence"] for found in bins],
            [found["accuracy"] for found in bins],
            s=[6 + 120 * found["n"] / len(confidence) for found in bins],
            color=BLUE,
            alpha=0.7,
            linewidths=0,
            clip_on=False,
        )
        axes.set(xlim=(0, 1), ylim=(0, 1))

    return _grid(list(study.reliability), plot, "confidence", "accuracy")


def _bars(study: Study, name: str) -> Figure | None:
    """SRCC of the product's mode and of the baseline within each label."""
    shown = list(dict.fromkeys((study.product, study.baseline)))
    table = {(row["mode"], row[name]): row for row in study.tables[f"by_{name}"] if row["mode"] in shown}
    labels = list(dict.fromkeys(label for _, label in table))
    if not labels:
        return None
    figure = Figure(figsize=(7, 0.8 + 0.32 * len(labels)), layout="constrained")
    axes = figure.subplots()
    for i, (mode, color) in enumerate(zip(shown, (BLUE, ORANGE), strict=False)):
        rows = [table[mode, label] for label in labels]
        places = np.arange(len(labels)) + (0.4 * i - 0.2 if len(shown) > 1 else 0)
        axes.barh(places, [row["srcc"] for row in rows], 0.36, color=color, label=_label(mode))
        for place, row in zip(places, rows, strict=True):
            axes.plot([row["srcc_low"], row["srcc_high"]], [place, place], color="black", linewidth=0.8)
    axes.set(
        yticks=range(len(labels)),
        yticklabels=[f"{label:g}" if isinstance(label, float) else _label(str(label)) for label in labels],
    )
    axes.set(xlabel="SRCC")
    axes.invert_yaxis()
    axes.axvline(0, color=GREY, linewidth=0.8)
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    return figure


def _forest(lines: Sequence[tuple[str, str, Sequence[float]]], zero: float, xlabel: str) -> Figure | None:
    """A row for each (label, colour, (value, low, high)), and a line at `zero`."""
    if not lines:
        return None
    figure = Figure(figsize=(7, 0.8 + 0.22 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for place, (_, color, (value, low, high)) in enumerate(lines):
        axes.plot([low, high], [place, place], color=color, linewidth=1.2)
        axes.plot(value, place, "o", color=color, markersize=4)
    axes.axvline(zero, color=GREY, linewidth=0.8)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set(yticks=range(len(lines)), yticklabels=[_label(label) for label, _, _ in lines], xlabel=xlabel)
    return figure


def _ends(row: dict[str, Any], name: str) -> tuple[float, float, float]:
    return row[name], row[f"{name}_low"], row[f"{name}_high"]


def _differences(study: Study) -> Figure | None:
    lines = []
    for row in study.tables["differences"]:
        color = GREY if row["better"] == "undecided" else BLUE if row["better"] == row["first"] else ORANGE
        lines.append((f"{row['first']} − {row['second']}", color, _ends(row, "srcc_difference")))
    return _forest(lines, 0, "difference of SRCC")


def _risk_coverage(study: Study) -> Figure | None:
    if not study.curves:
        return None
    figure = Figure(figsize=(4.6, 3), layout="constrained")
    axes = figure.subplots()
    for (signal, curve), color in zip(study.curves.items(), (BLUE, ORANGE, GREEN), strict=False):
        axes.plot(curve.coverage, curve.risk, color=color, linewidth=1.2, label=f"kept by {signal}")
        axes.axhline(curve.risk[-1], color=color, linewidth=0.6, linestyle="--")
    axes.set(xlabel="coverage", ylabel="mean rank error", xlim=(0, 1), ylim=(0, None))
    axes.legend(frameon=False)
    return figure


def _abstaining(study: Study) -> Figure | None:
    """Mean error over the share kept; a panel for each pipeline and calibration, a line for each look."""
    parts: dict[tuple[str, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in study.tables["abstaining"]:
        title = f"{row['pipeline']}, {row['calibration']}, {row['scale']}"
        name = f"{row['look']}, {row['reference']} reference"
        parts.setdefault((title,), {}).setdefault(name, []).append(row)
    colors = dict(zip(dict.fromkeys(n for part in parts.values() for n in part), COLORS, strict=False))

    def plot(axes: Axes, title: tuple[str, ...]) -> None:
        for name, rows in parts[title].items():
            kept = [float(row["kept"].removesuffix(" %")) for row in rows]
            axes.plot(kept, [row["mean_error"] for row in rows], color=colors.get(name, GREY), linewidth=1.2)
        axes.set(ylim=(0, None))

    figure = _grid(list(parts), plot, "pictures kept, %", "mean error, levels", bottom=0.8)
    if figure:
        lines = [Patch(color=color) for color in colors.values()]
        figure.legend(lines, list(colors), loc="lower center", ncols=3, frameon=False)
    return figure


def _coverage(table: Sequence[dict[str, Any]]) -> Figure | None:
    """Coverage of the agent's intervals, with its own interval, in each line of the table."""
    lines = []
    for row in table:
        of = f"{row['by']} {row['value']}, " if "by" in row else ""
        look = f"{row['look']}, {row['reference']} reference, {row['calibration']} ({row['scale']})"
        lines.append((f"{of}{look}", BLUE, _ends(row, "coverage")))
    return _forest(lines, COVERAGE, "share of pictures whose truth is inside")


def _intervals(study: Study) -> Figure | None:
    return _coverage([row for row in study.tables["intervals"] if row["pipeline"] == "agent"])


def _intervals_within(study: Study) -> Figure | None:
    """By family or level, after one letter read."""
    return _coverage(
        [
            row
            for row in study.tables["intervals_within"]
            if (row["pipeline"], row["look"]) == ("agent", "one order") and row["by"] != "distortion"
        ]
    )


PLOTS: dict[str, tuple[str, Callable[[Study], Figure | None]]] = {
    "scatter": ("Human scores over each mode's score, with the fitted curve", _scatter),
    "differences": (
        "Differences of SRCC with 95 % intervals; blue: the first is better, orange: the second, grey:"
        " undecided",
        _differences,
    ),
    "letters": ("Distribution of the letters from the worst to the best fifth of the images", _letters),
    "reliability": ("Reliability of the letters; a point's size is its share of the images", _reliability),
    "by_distortion": ("SRCC within each distortion type", lambda study: _bars(study, "distortion")),
    "by_level": ("SRCC within each level", lambda study: _bars(study, "level")),
    "by_subset": ("SRCC within each subset", lambda study: _bars(study, "subset")),
    "intervals": ("Coverage of the agent's 90 % intervals, with 95 % intervals; the line: 90 %", _intervals),
    "intervals_within": (
        "Coverage of the agent's 90 % intervals after one letter read, within parts, with 95 % intervals",
        _intervals_within,
    ),
    "abstaining": ("Error of the pictures kept when the widest intervals are left out", _abstaining),
    "risk_coverage": ("Risk over coverage of the product's mode; dashed: nothing set aside", _risk_coverage),
}
