"""The figures of a report, of the product's mode and the baseline. Labels are untrusted text: each is a short line, and
none is taken for mathematics."""

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.intervals import COVERAGE
from agentic_iqa_local.studies.scored_run import ScoredRun
from agentic_iqa_local.studies.statistics import reliability_bins
from agentic_iqa_local.studies.tables import COVERAGES, claims

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#777777"
Tables = Mapping[str, pd.DataFrame]
Plot = Callable[[ScoredRun, Tables], Figure | None]
STYLE: dict[Any, Any] = dict.fromkeys(
    ("text.parse_math", "axes.spines.top", "axes.spines.right"), False
)
STYLE |= {
    "svg.hashsalt": "study",
    "font.size": 8,
    "axes.titlesize": 8,
}  # the salt: one file for one study


def draw(run: ScoredRun, tables: Tables, png: bool = False) -> dict[str, bytes]:
    """Every figure that a run and its tables have data for, as SVG and with `png` as PNG too, by the file's name."""
    files = {}
    with matplotlib.rc_context(STYLE):
        for name, (_, plot) in FIGURES.items():
            if figure := plot(run, tables):
                for kind in ("svg", "png") if png else ("svg",):
                    dated = {"Date": None} if kind == "svg" else {}
                    figure.savefig(file := BytesIO(), format=kind, metadata=dated, dpi=200)
                    files[f"{name}.{kind}"] = file.getvalue()
    return files


def _label(text: str, longest: int) -> str:
    text = one_line(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _panels(
    parts: Mapping[str, Any], plot: Callable[[Axes, Any], None], xlabel: str, ylabel: str
) -> Figure | None:
    """Panels side by side: `plot` draws each part, under its title."""
    if not parts:
        return None
    figure = Figure(figsize=(3 * len(parts), 2.8), layout="constrained")
    for axes, (title, part) in zip(
        figure.subplots(1, len(parts), squeeze=False)[0], parts.items(), strict=True
    ):
        plot(axes, part)
        axes.set(title=_label(title, 40), xlabel=xlabel, ylabel=ylabel)
    return figure


def _scatter(run: ScoredRun, _: Tables) -> Figure | None:
    shown = {name: name for name in (run.product, run.baseline) if run.modes[name].answered.any()}
    upwards = 1 if run.info.higher_is_better else -1

    def plot(axes: Axes, name: str) -> None:
        scores, order = run.modes[name].scores, np.argsort(run.modes[name].scores)
        axes.scatter(scores, run.mos, s=4, color=BLUE, alpha=0.4, linewidths=0, rasterized=True)
        axes.plot(scores[order], upwards * run.mapped[name][order], color=ORANGE, linewidth=1.2)

    return _panels(
        shown, plot, "score", "MOS" if run.info.higher_is_better else "MOS, lower is better"
    )


def _reliability(run: ScoredRun, _: Tables) -> Figure | None:
    shown = {
        names[0]: claim
        for names, claim in claims(run).items()
        if {run.product, run.baseline} & {*names}
    }

    def plot(axes: Axes, claim: pd.DataFrame) -> None:
        bins = reliability_bins(claim.confidence, claim.correct)
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
        axes.scatter(
            bins.confidence, bins.accuracy, 6 + 120 * bins.n / bins.n.sum(), BLUE, clip_on=False
        )
        axes.set(xlim=(0, 1), ylim=(0, 1))

    return _panels(shown, plot, "confidence", "accuracy")


def _risk_coverage(run: ScoredRun, tables: Tables) -> Figure | None:
    lines = [
        line for line in tables["risk_coverage"].to_dict("records") if line["mode"] == run.product
    ]

    def plot(axes: Axes, line: dict[str, Any]) -> None:
        risks = [line[f"risk_{share}"] for share in COVERAGES]
        axes.plot(np.divide(COVERAGES, 100), risks, "o-", color=BLUE, markersize=3)
        axes.axhline(risks[0], color=GREY, linewidth=0.6, linestyle="--")
        axes.set(xlim=(0, 1), ylim=(0, None))

    return _panels(
        {f"kept by {line['signal']}": line for line in lines}, plot, "coverage", "mean rank error"
    )


def _forest(name: str, value: str, *columns: str) -> Plot:
    """What draws a row for each line of the table `name`: its `value` and the interval, named by `columns`. Of modes
    there are the product's and the baseline, of intervals the agent's."""

    def plot(run: ScoredRun, tables: Tables) -> Figure | None:
        table = tables[name]
        if "mode" in table:
            table = table[table["mode"].isin([run.product, run.baseline])].sort_values(columns[0])
        if "pipeline" in table:
            table = table[table.pipeline == "agent"]
        if not len(table):
            return None
        figure = Figure(figsize=(7, 0.8 + 0.22 * len(table)), layout="constrained")
        axes, places = figure.subplots(), np.arange(len(table))
        axes.hlines(places, table[f"{value}_low"], table[f"{value}_high"], BLUE, linewidth=1.2)
        axes.scatter(table[value], places, 16, BLUE)
        axes.axvline(COVERAGE if value == "coverage" else 0, color=GREY, linewidth=0.8)
        axes.set(
            ylim=(len(table) - 0.5, -0.5), xlabel=value.replace("_", " ").replace("srcc", "SRCC")
        )
        axes.set_yticks(
            places, [_label(", ".join(map(str, line)), 80) for line in table[[*columns]].to_numpy()]
        )
        return figure

    return plot


_DIFFERENCES = _forest("differences", "srcc_difference", "first")
_INTERVALS = _forest("intervals", "coverage", "look", "calibration")
FIGURES: dict[str, tuple[str, Plot]] = {  # by file
    "differences": (
        "SRCC of each mode less that of the baseline, with 95 % intervals",
        _DIFFERENCES,
    ),
    "scatter": ("Human scores over the score, with the fitted curve", _scatter),
    "reliability": (
        "Reliability of the letters; a point's size is its share of the images",
        _reliability,
    ),
    "risk_coverage": (
        "Risk over coverage of the product's mode; dashed: nothing set aside",
        _risk_coverage,
    ),
    "intervals": (
        "Coverage of the agent's 90 % intervals, with 95 % intervals; the line: 90 %",
        _INTERVALS,
    ),
    "by_distortion": (
        "SRCC within each distortion type",
        _forest("by_distortion", "srcc", "distortion", "mode"),
    ),
}
