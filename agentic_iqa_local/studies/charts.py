"""Figures as inline SVG that takes its colours from the page and the width that it is given, while its text
keeps its size: places are in percent of the drawing, sizes in pixels."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape
from matplotlib.ticker import MaxNLocator

from agentic_iqa_local.studies.figures import Figure
from agentic_iqa_local.studies.summary import number, signed

ROW = 40  # pixels: a label, and below it a line
HEIGHT = 260
SHOWN = 44  # characters of a label
TICKS = 5


def charts(figure: Figure, key: str) -> list[tuple[str, Markup]]:
    """(heading, drawing) of each panel; none where there is no data. `key` makes the page's ids unique."""
    data = figure.data
    if data is None:
        return []
    if figure.name in ("differences", "coverage"):
        inner, height = _forest(data["rows"], data.get("stated", 0.0), figure.name == "differences")
        return [("", _svg(figure, key, inner, height))]
    if figure.name == "scatter":
        panels = [(panel["mode"], _scatter(panel, data["axis"])) for panel in data["panels"]]
    elif figure.name == "reliability":
        panels = [("", _reliability(data["bins"]))]
    else:
        panels = [("", _lines(data["lines"]))]
    return [
        (heading, _svg(figure, f"{key}-{i}", inner, HEIGHT + 70)) for i, (heading, inner) in enumerate(panels)
    ]


def _svg(figure: Figure, key: str, inner: Markup, height: int) -> Markup:
    name = f"{figure.name}-{key}"
    return Markup(
        '<svg class="chart" role="img" aria-labelledby="{0}-title {0}-told" width="100%" height="{1}">'
        '<title id="{0}-title">{2}</title><desc id="{0}-told">{3}</desc>{4}</svg>'
    ).format(name, height, figure.title, figure.told, inner)


def _forest(rows: Sequence[dict[str, Any]], line: float, plus: bool) -> tuple[Markup, int]:
    """A row for each value with its interval, and a vertical line at `line`; and the height in pixels."""
    ends = [row[end] for row in rows for end in ("value", "low", "high")] + [line]
    ticks, at = _axis(ends)
    height = ROW * len(rows)
    show = signed if plus else number
    parts = [_mark("line", "grid", x1=at(tick), x2=at(tick), y1=0, y2=height) for tick in ticks]
    parts.append(_mark("line", "zero", x1=at(line), x2=at(line), y1=0, y2=height))
    for i, row in enumerate(rows):
        y = ROW * i + 30
        parts.append(_text(_short(row["label"]), "label", x=0, y=y - 13))
        parts.append(_text(show(row["value"]), "value", x="100%", y=y - 13))
        if row["low"] == row["low"]:  # there is an interval
            parts.append(_mark("line", row["outcome"], x1=at(row["low"]), x2=at(row["high"]), y1=y, y2=y))
        parts.append(_mark("circle", row["outcome"], cx=at(row["value"]), cy=y, r=4.5))
    parts += [_text(_tick(tick), "tick middle", x=at(tick), y=height + 20) for tick in ticks]
    return Markup("").join(parts), height + 30


def _scatter(panel: dict[str, Any], axis: str) -> Markup:
    every = [*panel["points"], *panel["curve"]]
    (xticks, x), (yticks, y) = (_axis([point[i] for point in every]) for i in (0, 1))
    dots = [_mark("circle", "dot", cx=x(a), cy=y(b, up=True), r=3) for a, b in panel["points"]]
    line = [_curve(panel["curve"], x, y, "curve")] if panel["curve"] else []
    return _frame((xticks, x, "score"), (yticks, y, axis), [*dots, *line])


def _reliability(bins: Sequence[dict[str, Any]]) -> Markup:
    ticks, at = _axis([0.0, 1.0])
    total = sum(found["n"] for found in bins)
    dots = [
        _mark(
            "circle",
            "dot large",
            cx=at(found["confidence"]),
            cy=at(found["accuracy"], up=True),
            r=round(3 + 14 * (found["n"] / total) ** 0.5, 1),
        )
        for found in bins
    ]
    line = _mark("line", "zero", x1=at(0), y1=at(0, up=True), x2=at(1), y2=at(1, up=True))
    return _frame(
        (ticks, at, "probability that is claimed"), (ticks, at, "share that is right"), [line, *dots]
    )


def _lines(lines: Sequence[dict[str, Any]]) -> Markup:
    xticks, x = _axis([0.0, 1.0])
    yticks, y = _axis([0.0, *(risk for line in lines for _, risk in line["points"])])
    drawn = [_curve(line["points"], x, y, f"curve series{i}") for i, line in enumerate(lines)]
    return _frame((xticks, x, "share of the images kept"), (yticks, y, "mean error in rank"), drawn)


class _Axis:
    """Where a value lies, in percent, along the axis or up it."""

    def __init__(self, low: float, high: float):
        self.low, self.span = low, high - low

    def share(self, value: float) -> float:
        return 100 * (value - self.low) / self.span

    def __call__(self, value: float, *, up: bool = False) -> str:
        share = self.share(value)
        return f"{100 - share if up else share:.2f}%"


def _axis(values: Sequence[float]) -> tuple[list[float], _Axis]:
    """Round ticks from below the least value to above the greatest; those that are not known count for
    nothing."""
    known = [float(value) for value in values if value == value]
    ticks = [float(tick) for tick in MaxNLocator(TICKS).tick_values(min(known), max(known))]
    return ticks, _Axis(ticks[0], ticks[-1])


def _frame(
    across: tuple[list[float], _Axis, str], up: tuple[list[float], _Axis, str], inner: Sequence[Markup]
) -> Markup:
    """Axes around a drawing. The names of the axes stand level, where they are read without a turned head."""
    (xticks, x, xname), (yticks, y, yname) = across, up
    parts = [_mark("line", "grid", x1=0, x2="100%", y1=y(t, up=True), y2=y(t, up=True)) for t in yticks]
    parts += [_mark("line", "grid", x1=x(t), x2=x(t), y1=0, y2="100%") for t in xticks]
    parts += [_text(_tick(t), "tick end", x=-8, y=y(t, up=True), dy=4) for t in yticks]
    parts += [_text(_tick(t), "tick middle", x=x(t), y="100%", dy=18) for t in xticks]
    parts.append(_text(xname, "axis middle", x="50%", y="100%", dy=36))
    return Markup('{}<svg class="plot" x="44" y="28" width="85%" height="{}">{}</svg>').format(
        _text(yname, "axis", x=0, y=13), HEIGHT, Markup("").join([*parts, *inner])
    )


def _curve(points: Sequence[Sequence[float]], x: _Axis, y: _Axis, css: str) -> Markup:
    """A line in a drawing of its own, stretched, since a path's places cannot be in percent."""
    path = " ".join(f"{x.share(a):.2f},{100 - y.share(b):.2f}" for a, b in points)
    return Markup(
        '<svg class="stretched" width="100%" height="100%" viewBox="0 0 100 100" preserveAspectRatio="none">'
        '<polyline class="{}" points="{}"/></svg>'
    ).format(css, path)


def _mark(tag: str, css: str, **places: Any) -> Markup:
    said = Markup(" ").join(Markup('{}="{}"').format(name, value) for name, value in places.items())
    return Markup('<{} class="{}" {}/>').format(Markup(tag), css, said)


def _text(text: str, css: str, **places: Any) -> Markup:
    return _mark("text", css, **places)[:-2] + Markup(">{}</text>").format(escape(text))


def _tick(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def _short(label: str) -> str:
    return label if len(label) <= SHOWN else f"{label[: SHOWN - 1]}…"
