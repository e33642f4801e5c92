"""The numbers of the page's figures, taken from the same objects as the tables, each with a caption that says
what is to be seen; and report.json, which holds them beside the sentences of the summary."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentic_iqa_local.judgement.intervals import COVERAGE
from agentic_iqa_local.studies.letters import reliability_bins
from agentic_iqa_local.studies.study import Row, Study
from agentic_iqa_local.studies.summary import between, number, signed, summarize, turned
from agentic_iqa_local.text import one_line

MOST_POINTS = 2000  # of a scatter; a page of ten thousand would be slow
CURVE_POINTS = 200


@dataclass(frozen=True)
class Figure:
    """`title` and `caption` are for all readers, `told` for those who do not see the drawing. `data` is what
    is drawn; None where `caption` says why nothing is."""

    name: str
    title: str
    caption: str
    told: str = ""
    data: dict[str, Any] | None = None


def figures(study: Study) -> list[Figure]:
    """Every figure of the page, also those that cannot be drawn."""
    return [make(study) for make in FIGURES]


def report_json(study: Study) -> dict[str, Any]:
    """What the page shows first, for programs; None where a number is not known."""
    return _plain(
        {
            "name": study.name,
            "dataset": study.info.title,
            "model": study.run["model"]["name"],
            "product": study.product,
            "baseline": study.baseline,
            "summary": [sentence.as_json() for sentence in summarize(study)],
            "figures": {
                figure.name: {"title": figure.title, "caption": figure.caption, "data": figure.data}
                for figure in figures(study)
            },
            "notes": study.notes,
        }
    )


def _plain(value: Any) -> Any:
    """As JSON holds it."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _differences(study: Study) -> Figure:
    title = f"SRCC of each mode minus that of “{one_line(study.baseline)}”"
    table = [turned(row) if row["first"] == study.baseline else row for row in study.tables["differences"]]
    table = sorted(
        (row for row in table if not math.isnan(row["srcc_difference"])),
        key=lambda row: -row["srcc_difference"],
    )
    if not table:
        return Figure("differences", title, "There are no two modes whose difference is known.")
    rows = [
        {
            "label": _pair(study, row),
            "value": row["srcc_difference"],
            "low": row["srcc_difference_low"],
            "high": row["srcc_difference_high"],
            "outcome": _outcome(row),
        }
        for row in table
    ]
    counts = {what: sum(row["outcome"] == what for row in rows) for what in ("better", "worse", "undecided")}
    caption = (
        f"Of {len(rows)} differences {counts['better']} are decided for the mode that is named and"
        f" {counts['worse']} against it, after Holm's correction; {counts['undecided']} are undecided. A line"
        " is the 95 % interval."
    )
    told = [
        f"{row['label']} {signed(row['value'])}{between(row['low'], row['high'], signed)}" for row in rows
    ]
    return Figure("differences", title, caption, _sentence(told), {"rows": rows})


def _pair(study: Study, row: Row) -> str:
    name = one_line(row["first"])
    return name if row["second"] == study.baseline else f"{name} − {one_line(row['second'])}"


def _outcome(row: Row) -> str:
    if row["better"] == "undecided":
        return "undecided"
    return "better" if row["better"] == row["first"] else "worse"


def _scatter(study: Study) -> Figure:
    title = "Human scores over the mode's score, with the mapped curve"
    winner = max(
        (row for row in study.tables["modes"] if row["n"] and not math.isnan(row["srcc"])),
        key=lambda row: row["srcc"],
        default=None,
    )
    shown = [study.product] + ([winner["mode"]] if winner and winner["mode"] != study.product else [])
    panels = [_panel(study, mode) for mode in shown if study.modes[mode].answered.any()]
    if not panels:
        return Figure("scatter", title, "No image was answered by the product's mode.")
    parts, curves = [], [panel for panel in panels if panel["curve"]]
    for panel in panels:
        drawn = len(panel["points"])
        some = f" ({drawn} drawn)" if drawn < panel["n"] else ""
        parts.append(f"“{panel['mode']}” on {panel['n']} images{some}: SRCC {number(panel['srcc'])}")
    if len(curves) == len(panels):
        line = "the curve is the monotone logistic that PLCC is taken after"
    else:
        line = "a curve takes ten images whose scores differ"
    axis = "MOS" if study.info.higher_is_better else "MOS, lower is better"
    return Figure(
        "scatter",
        title,
        f"{_sentence(parts)[:-1]}; {line}.",
        _sentence(parts),
        {"panels": panels, "axis": axis},
    )


def _panel(study: Study, mode: str) -> dict[str, Any]:
    reading = study.modes[mode]
    answered = np.flatnonzero(reading.answered)
    scores, mos, fit = reading.scores[answered], study.mos[answered], study.fits[mode]
    order = np.argsort(scores, kind="stable")
    curve = []
    if fit.converged:
        mapped = fit.mapped if study.info.higher_is_better else -fit.mapped
        curve = [[scores[i], mapped[i]] for i in order[_even(len(order), CURVE_POINTS)]]
    row = next(row for row in study.tables["modes"] if row["mode"] == mode)
    return {
        "mode": one_line(mode),
        "n": row["n"],
        "srcc": row["srcc"],
        "plcc_mapped": row["plcc_mapped"],
        "points": [[scores[i], mos[i]] for i in order[_even(len(order), MOST_POINTS)]],
        "curve": curve,
    }


def _even(count: int, most: int) -> np.ndarray:
    """At most so many of `count` places, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _reliability(study: Study) -> Figure:
    title = "Are the letters' probabilities honest?"
    found = next((pair for pair in study.reliability.items() if study.product in pair[0]), None)
    if found is None:
        return Figure(
            "reliability", title, "The product's mode has no letters whose levels can be judged here."
        )
    names, (confidence, correct) = found
    bins = reliability_bins(confidence, correct)
    row = next(row for row in study.tables["calibration"] if row["letters"] == "; ".join(names))
    mean, right = row["mean_confidence"], row["accuracy"]
    sure = "as sure as it may be"
    if mean != right:
        sure = f"{'surer' if mean > right else 'less sure'} than it may be"
    caption = (
        f"The likeliest letter claims {number(mean)} on average and is right in {number(right)} of"
        f" {len(confidence)} images: it is {sure} (ECE {number(row['ece'])}). On the line, claim and share"
        " agree; a point's size is its share of the images."
    )
    told = [
        f"confidence {number(b['confidence'])}, right {number(b['accuracy'])}, {b['n']} images" for b in bins
    ]
    return Figure("reliability", title, caption, _sentence(told), {"bins": bins, "ece": row["ece"]})


def _coverage(study: Study) -> Figure:
    title = f"Do intervals that state {round(100 * COVERAGE)} % hold the truth?"
    table = [row for row in study.tables["intervals"] if row["pipeline"] == "agent"]
    if not table:
        return Figure("coverage", title, "This run allows no figures of intervals; the notes say why.")
    both = len({row["reference"] for row in table}) > 1

    def reference(row: Row) -> str:
        return f", {row['reference']} reference" if both else ""

    rows = [
        {
            "label": f"{row['look']}{reference(row)}; {row['calibration']}, {row['scale']}",
            "value": row["coverage"],
            "low": row["coverage_low"],
            "high": row["coverage_high"],
            "width": row["width"],
            "outcome": _holds(row),
        }
        for row in table
    ]
    short = sum(row["outcome"] == "worse" for row in rows)
    caption = (
        f"Share of the images whose truth lies in the interval, with its own 95 % interval: {short} of"
        f" {len(rows)} ways to assess and calibrate hold it less often than the {round(100 * COVERAGE)} %"
        " that are stated (the line)."
    )
    told = [f"{row['label']}: {number(row['value'])}{between(row['low'], row['high'])}" for row in rows]
    return Figure("coverage", title, caption, _sentence(told), {"rows": rows, "stated": COVERAGE})


def _holds(row: Row) -> str:
    if row["coverage_high"] < COVERAGE:
        return "worse"
    return "better" if row["coverage_low"] > COVERAGE else "undecided"


def _risk_coverage(study: Study) -> Figure:
    title = "What is gained by setting unsure images aside"
    if not study.curves:
        return Figure("risk_coverage", title, f"“{study.product}” has no signal of how sure it is.")
    lines = []
    for signal, curve in study.curves.items():
        chosen = _even(len(curve.risk), CURVE_POINTS)
        points = [[curve.coverage[i], curve.risk[i]] for i in chosen]
        lines.append({"signal": signal, "aurc": curve.aurc, "all": curve.risk[-1], "points": points})
    best = min(lines, key=lambda line: line["aurc"])
    gains = best["aurc"] < best["all"]
    caption = (
        f"Mean error in rank of the images that are kept when the least sure go first: {best['signal']} tells"
        f" best, {number(best['aurc'])} on average against {number(best['all'])} with all images kept"
        f"{'' if gains else ', so nothing is gained'}."
    )
    told = [
        f"{line['signal']}: {number(line['aurc'])} on average, {number(line['all'])} with all"
        for line in lines
    ]
    return Figure("risk_coverage", title, caption, _sentence(told), {"lines": lines})


def _sentence(parts: Sequence[str]) -> str:
    return f"{'; '.join(parts)}."


FIGURES: tuple[Callable[[Study], Figure], ...] = (
    _differences,
    _scatter,
    _reliability,
    _risk_coverage,
    _coverage,
)
