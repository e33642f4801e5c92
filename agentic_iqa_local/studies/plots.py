"""The figures of a report, of the product's mode and the baseline. Labels are untrusted text: each
is a short line, and none is taken for mathematics."""

from collections.abc import Mapping
from io import BytesIO

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.intervals import COVERAGE
from agentic_iqa_local.studies.scored_run import ScoredRun
from agentic_iqa_local.studies.statistics import vqeg_logistic

LONGEST = 50  # characters of a label
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#777777"
TITLES = {  # by file
    "eye": "How q would rank the other pictures if some were rated",
    "differences": "SRCC of each mode less that of the baseline, with 95 % intervals",
    "scatter": "Human scores over the score, with the fitted curve",
    "intervals": "Coverage of the agent's 90 % intervals, with 95 % intervals; the line: 90 %",
    "by_distortion": "SRCC within each distortion type",
}
STYLE = {
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "study",  # one file for one study
    "font.size": 8,
    "axes.titlesize": 8,
}


def draw(run: ScoredRun, tables: Mapping[str, pd.DataFrame]) -> dict[str, bytes]:
    """Every figure that a run and its tables have data for, as SVG, by name."""
    files = {}
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(run, tables).items():
            file = BytesIO()
            figure.savefig(file, format="svg", metadata={"Date": None}, dpi=200)
            files[name] = file.getvalue()
    return files


def _figures(run: ScoredRun, tables: Mapping[str, pd.DataFrame]) -> dict[str, Figure]:
    intervals, within = tables["intervals"], tables["within"]
    if len(intervals):
        intervals = intervals[intervals["pipeline"] == "agent"]
    if len(within):
        within = within[within["by"] == "distortion"].dropna(subset="srcc_low")
    figures = {"scatter": _scatter(run)}
    if len(tables["differences"]):
        figures["differences"] = _forest(tables["differences"], "srcc_difference", ["first"])
    if len(intervals):
        figures["intervals"] = _forest(intervals, "coverage", ["look", "reference"], COVERAGE)
    if len(tables["eye"]) > 1:  # a point is no curve
        figures["eye"] = _curve(tables["eye"])
    if len(within):
        figures["by_distortion"] = _forest(within, "srcc", ["value", "mode"])
    return figures


def _scatter(run: ScoredRun) -> Figure:
    """Panels side by side, one for the product's mode and one for the baseline."""
    modes = list(dict.fromkeys([run.product, run.baseline]))
    figure = Figure(figsize=(3 * len(modes), 2.8), layout="constrained")
    panels = figure.subplots(1, len(modes), squeeze=False)[0]
    mos = run.pictures["mos"].to_numpy()
    for axes, mode in zip(panels, modes, strict=True):
        score = run.modes[mode].scores
        order, mapped = np.argsort(score), vqeg_logistic(score, mos)
        axes.scatter(score, mos, 4, BLUE, alpha=0.4, linewidths=0, rasterized=True)
        axes.plot(score[order], mapped[order], color=ORANGE, linewidth=1.2)
        axes.set(title=one_line(mode)[:LONGEST], xlabel="score", ylabel="human score")
    return figure


def _curve(table: pd.DataFrame) -> Figure:
    """SRCC with an eye and without it, over the number of ratings."""
    figure = Figure(figsize=(4, 2.8), layout="constrained")
    axes = figure.subplots()
    axes.plot(table["ratings"], table["srcc"], "o-", color=BLUE, label="with the eye")
    axes.plot(table["ratings"], table["srcc_without"], "--", color=GREY, label="without")
    axes.set(xlabel="ratings", ylabel="SRCC of q on the others")
    axes.legend(frameon=False)
    return figure


def _forest(table: pd.DataFrame, value: str, names: list[str], line: float = 0.0) -> Figure:
    """A row for each line of a table: its `value` and the interval, named by the columns
    `names`."""
    figure = Figure(figsize=(7, 0.8 + 0.22 * len(table)), layout="constrained")
    axes, places = figure.subplots(), np.arange(len(table))
    axes.hlines(places, table[f"{value}_low"], table[f"{value}_high"], BLUE, linewidth=1.2)
    axes.scatter(table[value], places, 16, BLUE)
    axes.axvline(line, color=GREY, linewidth=0.8)
    axes.set(ylim=(len(table) - 0.5, -0.5), xlabel=value.replace("_", " "))
    labels = table[names].astype(str).agg(", ".join, axis=1)
    axes.set_yticks(places, [one_line(label)[:LONGEST] for label in labels])
    return figure
