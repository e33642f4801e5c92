"""The figures of a report. Labels are untrusted text: each is a short line, and none is taken for mathematics."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.intervals import COVERAGE
from agentic_iqa_local.studies.analysis import Analysis
from agentic_iqa_local.studies.statistics import reliability_bins
from agentic_iqa_local.studies.tables import claims

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#777777"
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


@dataclass(frozen=True)
class Drawing:
    """A figure as files hold it, by kind ("svg", "png")."""

    name: str
    title: str
    files: dict[str, bytes]


def draw(study: Analysis, kinds: Sequence[str] = ("svg",)) -> list[Drawing]:
    """Every figure that the study has data for, as files of these kinds."""
    drawings = []
    with matplotlib.rc_context(STYLE):
        for name, (title, plot) in FIGURES.items():
            if figure := plot(study):
                files = {kind: BytesIO() for kind in kinds}
                for kind, file in files.items():
                    figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
                drawings.append(Drawing(name, title, {kind: file.getvalue() for kind, file in files.items()}))
    return drawings


def _label(text: Any, longest: int = 80) -> str:
    text = one_line(f"{text:g}" if isinstance(text, float) else str(text))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _grid(titles: Iterable[Any], plot: Callable[[Axes, Any], None], xlabel: str, ylabel: str) -> Figure | None:
    """Small multiples by title; of a tuple the first is named."""
    titles = list(titles)
    if not titles:
        return None
    columns = min(COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    width, height = 2.5 * columns + 0.6, 2.3 * rows + 0.5
    figure = Figure(figsize=(width, height))
    # Margins in inches: matplotlib's automatic layouts take seconds for this many panels.
    margins = 0.55 / width, 0.5 / height, 1 - 0.1 / width, 1 - 0.3 / height
    figure.subplots_adjust(*margins, wspace=0.22, hspace=0.35)
    for i, title in enumerate(titles):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.set_title(_label(title[0] if isinstance(title, tuple) else title, 40))
        plot(axes, title)
    figure.supxlabel(xlabel, size="medium")
    figure.supylabel(ylabel, size="medium", x=0.1 / width)
    return figure


def _scatter(study: Analysis) -> Figure | None:
    run = study.run

    def plot(axes: Axes, name: str) -> None:
        kept = run.modes[name].answered
        scores, mapped = run.modes[name].scores[kept], run.mapped[name][kept]
        axes.scatter(scores, run.mos[kept], s=4, color=BLUE, alpha=0.4, linewidths=0, rasterized=True)
        order = np.argsort(scores)
        curve = mapped if run.info.higher_is_better else -mapped
        axes.plot(scores[order], curve[order], color=ORANGE, linewidth=1.2)

    answered = [name for name, scored in run.modes.items() if scored.answered.any()]
    return _grid(answered, plot, "score", "MOS" if run.info.higher_is_better else "MOS, lower is better")


def _reliability(study: Analysis) -> Figure | None:
    judged = claims(study.run)

    def plot(axes: Axes, names: tuple[str, ...]) -> None:
        bins = reliability_bins(judged[names].confidence, judged[names].correct)
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
        size = 6 + 120 * bins.n / bins.n.sum()
        axes.scatter(bins.confidence, bins.accuracy, size, BLUE, alpha=0.7, linewidths=0, clip_on=False)
        axes.set(xlim=(0, 1), ylim=(0, 1))

    return _grid(judged, plot, "confidence", "accuracy")


def _forest(
    table: pd.DataFrame, name: str, labels: Iterable[Any], colors: Sequence[str], zero: float, xlabel: str
) -> Figure | None:
    """A row for each line of a table, with its figure `name` and the interval, and a line at `zero`."""
    if not len(table):
        return None
    figure = Figure(figsize=(7, 0.8 + 0.22 * len(table)), layout="constrained")
    axes, places = figure.subplots(), np.arange(len(table))
    axes.hlines(places, table[f"{name}_low"], table[f"{name}_high"], colors, linewidth=1.2)
    axes.scatter(table[name], places, 16, colors)
    axes.axvline(zero, color=GREY, linewidth=0.8)
    axes.set(ylim=(len(table) - 0.5, -0.5), xlabel=xlabel)
    axes.set_yticks(places, [_label(label) for label in labels])
    return figure


def _within(study: Analysis, by: str) -> Figure | None:
    """SRCC of the product's mode and of the baseline within each label."""
    colors, table = {study.run.baseline: ORANGE} | {study.run.product: BLUE}, study.tables[f"by_{by}"]
    if len(table):
        table = table[table["mode"].isin(colors)].sort_values(by, kind="stable", key=lambda of: of.astype(str))
    lines = table.to_dict("records")
    labels = (f"{line[by]}, {line['mode']}" for line in lines)
    return _forest(table, "srcc", labels, [colors[line["mode"]] for line in lines], 0, "SRCC")


def _differences(study: Analysis) -> Figure | None:
    table = study.tables["differences"]
    if not len(table):
        return None
    colors = np.select([table.better == table["first"], table.better == table.second], [BLUE, ORANGE], GREY)
    labels = table["first"] + " − " + table.second
    return _forest(table, "srcc_difference", labels, list(colors), 0, "difference of SRCC")


def _coverage(study: Analysis, name: str) -> Figure | None:
    """Coverage of the agent's intervals, or within parts of those after one letter read."""
    table = study.tables[name]
    if not len(table):
        return None
    table = table[table.pipeline == "agent"]
    if name == "intervals_within":
        table = table[(table.look == "one order") & (table.by != "distortion")]
    lines = table.to_dict("records")
    labels = (
        " ".join(str(line[key]) for key in ("by", "value", "look", "calibration", "scale") if key in line)
        for line in lines
    )
    return _forest(table, "coverage", labels, [BLUE] * len(table), COVERAGE, "share of pictures inside")


def _risk_coverage(study: Analysis) -> Figure | None:
    if not study.curves:
        return None
    figure = Figure(figsize=(4.6, 3), layout="constrained")
    axes = figure.subplots()
    for (signal, risk), color in zip(study.curves.items(), (BLUE, ORANGE, GREEN), strict=False):
        coverage = np.arange(1, len(risk) + 1) / len(risk)
        axes.plot(coverage, risk, color=color, linewidth=1.2, label=f"kept by {signal}")
        axes.axhline(risk[-1], color=color, linewidth=0.6, linestyle="--")
    axes.set(xlabel="coverage", ylabel="mean rank error", xlim=(0, 1), ylim=(0, None))
    axes.legend(frameon=False)
    return figure


FIGURES: dict[str, tuple[str, Callable[[Analysis], Figure | None]]] = {
    "scatter": ("Human scores over each mode's score, with the fitted curve", _scatter),
    "differences": (
        "Differences of SRCC with 95 % intervals; blue: the first is better, orange: the second, grey: undecided",
        _differences,
    ),
    "reliability": ("Reliability of the letters; a point's size is its share of the images", _reliability),
    "by_distortion": ("SRCC within each distortion type", partial(_within, by="distortion")),
    "by_level": ("SRCC within each level", partial(_within, by="level")),
    "by_subset": ("SRCC within each subset", partial(_within, by="subset")),
    "intervals": (
        "Coverage of the agent's 90 % intervals, with 95 % intervals; the line: 90 %",
        partial(_coverage, name="intervals"),
    ),
    "intervals_within": (
        "Coverage of the agent's 90 % intervals after one letter read, within parts, with 95 % intervals",
        partial(_coverage, name="intervals_within"),
    ),
    "risk_coverage": ("Risk over coverage of the product's mode; dashed: nothing set aside", _risk_coverage),
}
