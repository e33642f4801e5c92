"""Writes a study down: tables as CSV and Markdown, figures as PNG and SVG, and report.json.

Text of rows (queries, file names, a model's words) is untrusted: it is escaped wherever it goes.
"""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from agentic_iqa_local.batch.rows import LARGEST_NOTE
from agentic_iqa_local.errors import printable
from agentic_iqa_local.files import FileError, read_bytes, read_json, write_whole
from agentic_iqa_local.output.tables import markdown_cell, write_csv
from agentic_iqa_local.studies.datasets import LONGEST_QUOTE
from agentic_iqa_local.studies.plots import Drawing
from agentic_iqa_local.studies.study import MARGIN, Study, StudyError, Table, number
from agentic_iqa_local.studies.summary import summarize

TABLES = {
    "modes": (
        "Agreement with the human scores",
        (
            "95 % bootstrap intervals; failed images stay out of a figure and are counted beside it. “Mapped”"
            " is after the monotone five-parameter logistic, fitted on these rows once."
        ),
    ),
    "differences": (
        "Paired differences between modes",
        (
            "SRCC of the first mode minus SRCC of the second on the images that both answered, on the same"
            " draws. These intervals and p (adjusted by Holm's method for the comparisons of this table)"
            " decide."
        ),
    ),
    "parts": (
        "The fused score against its parts",
        (
            "SRCC of the fused score minus that of one part of it. “Gains” and “loses” mean that the whole"
            f" interval lies on that side of 0, “loses no more than {MARGIN}” that it lies above −{MARGIN};"
            " otherwise these images do not decide. A part that is the best in hindsight was chosen on these"
            " very rows and is flattered by that."
        ),
    ),
    "by_distortion": (
        "Within each distortion type",
        "Intervals are given for the product's mode and the baseline.",
    ),
    "by_level": (
        "Within each level of distortion",
        "Levels are the authors' strengths, from 1. Intervals for the product's mode and the baseline.",
    ),
    "by_subset": (
        "Within each subset",
        (
            "“Within subsets” is the mean of the subsets' figures by their images. Intervals for the"
            " product's mode and the baseline."
        ),
    ),
    "calibration": (
        "Calibration of the letters",
        (
            "ECE: distance of confidence from accuracy, 15 bins. RPS: ranked probability score, 0 best;"
            " “uniform” is what equal probabilities score, its difference is to the baseline on the same"
            " draws. The target is a mean opinion, not one rater's: letters as spread as the raters' votes do"
            " not score best."
        ),
    ),
    "risk_coverage": (
        "Risk and coverage",
        (
            "Risk is the mean distance between an image's rank by score and by human score, as a share of all"
            " images, over the share of images that the signal is surest of. AURC is the mean of that curve;"
            " “risk 100” is what no signal gives."
        ),
    ),
    "intervals": (
        "Intervals of q that hold 90 %",
        (
            "How often the interval holds the truth, with a 95 % bootstrap interval, and how wide it is, in"
            " levels. “One order” is one letter read, “both orders” two, “crops” those and the crops in both"
            " orders. The run's own calibrations are made on a random half of its scenes and judged on the"
            " other, 20 times; “sd” is over these. A constant interval is as wide for all pictures: around"
            " the same line of q, and around q itself. On the scale “levels” the truth is the human scale,"
            " stretched linearly to 1 to 5. On the scale “ranks” the picture with rank r by human score is"
            " given the r-th of the truths that q lets expect. That judges the order and leaves aside where a"
            " set's raters place a level; it flatters, since the run lends the truth its own spread."
        ),
    ),
    "intervals_within": (
        "Intervals of q within parts",
        "Of the same intervals: which pictures they hold less often. Small parts differ by chance.",
    ),
    "abstaining": (
        "What abstaining gains",
        (
            "The pictures with the widest intervals are left out. The error is the distance between the truth"
            " and what q lets expect, in levels. “Own” calibrations are those of the first of the 20 splits,"
            " each half under that of the other. Where few pictures are clearly good or bad among those that"
            " are kept, SRCC falls for that reason alone."
        ),
    ),
    "gates": (
        "Verdicts of --at-least, error rate 10 %",
        (
            "The share of the pictures that are decided, pass or fail, and how many of these wrongly, with"
            " Wilson's 95 % interval; of the 20 halves the means, the interval for as many pictures as one"
            " half decides."
        ),
    ),
    "pairwise": (
        "Which of two pictures is better",
        (
            "Of pairs of pictures, by how far their human scores lie apart in levels: the share that q ranks"
            " rightly, with a 95 % bootstrap interval (200 draws). By the probability of the likelier, from"
            " independent draws of both predictive distributions: the mean probability beside the share that"
            " is right, of 20,000 pairs at most. Pairs of equal human scores are left out."
        ),
    ),
    "cost": (
        "Cost of an image",
        (
            "Seconds and tokens of the parts of the run that a mode rests on. The image is prefilled once, in"
            " the agent's part, and reused: a mode without the agent would have to pay that itself. A letter"
            " read holds both letter orders and the written letter."
        ),
    ),
    "exposures": (
        "What may have been seen",
        "What each mode rests on, and whether it was made with this data set.",
    ),
    "failures": ("What failed", "Reasons, with the number of images."),
}
UPPER = ("srcc", "plcc", "krcc", "rmse", "ece", "rps", "aurc", "mos")
HEADERS = {"n": "images", "holm": "Holm", **{name: name.upper() for name in UPPER}}

DATASETS_TABLE = (
    "Over the data sets",
    (
        "SRCC. Cells marked “seen” or “?” (a part of the mode was made with that set, or may have been) stay"
        " out of the mean."
    ),
)


def tables_of(study: Study) -> list[tuple[str, str, str, Table]]:
    """(name, title, note, table) of every table that has rows."""
    return [(name, *TABLES[name], study.tables[name]) for name in TABLES if study.tables[name]]


def over_datasets(studies: Sequence[Study]) -> Table:
    """SRCC of each mode on each data set, and the mean over the data sets that nothing of the mode has
    seen."""
    models = [study.run["model"]["name"] for study in studies]
    datasets = [
        " ".join(filter(None, (study.info.title, study.run["dataset"].get("edition")))) for study in studies
    ]
    repeated = {pair for pair, count in Counter(zip(models, datasets, strict=True)).items() if count > 1}
    cells: dict[tuple[str, str], dict[str, tuple[float, str, bool]]] = {}
    for study, model, dataset in zip(studies, models, datasets, strict=True):
        series = f"{model} ({study.name})" if (model, dataset) in repeated else model
        for row in study.tables["modes"]:
            cell = row["srcc"], row["seen"], study.is_clean(row["mode"])
            cells.setdefault((series, row["mode"]), {})[dataset] = cell
    return [
        {"model": model, "mode": mode} | _over(found, list(dict.fromkeys(datasets)))
        for (model, mode), found in cells.items()
    ]


def _over(found: dict[str, tuple[float, str, bool]], datasets: Sequence[str]) -> dict[str, Any]:
    """The cells of one mode, (SRCC, mark, whether it counts) by data set, and their mean."""
    row: dict[str, Any] = {}
    for dataset in datasets:
        row[dataset], row[f"{dataset}_mark"], _ = found.get(dataset, (math.nan, "", False))
    clean = [value for value, _, usable in found.values() if usable and not math.isnan(value)]
    mean = sum(clean) / len(clean) if clean else math.nan
    return row | {"mean_of_clean": mean, "clean_data_sets": len(clean)}


# Tables as text


def columns_of(table: Table) -> list[str]:
    """The columns that a reader is shown."""
    return [key for key in table[0] if not key.endswith(("_low", "_high", "_mark"))]


def shown(table: Table) -> tuple[list[str], list[list[str]]]:
    """Headers and cells for a reader: an interval or a mark stands in the cell of its value."""
    columns = columns_of(table)
    headers = [" ".join(HEADERS.get(word, word) for word in key.split("_")) for key in columns]
    return headers, [[_cell(row, key) for key in columns] for row in table]


def _cell(row: dict[str, Any], key: str) -> str:
    text = number(row.get(key))
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    if low is not None and not math.isnan(low):
        text += f" ({number(low)} to {number(high)})"
    return f"{text} {mark}" if (mark := row.get(f"{key}_mark")) else text


def _exact(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.6g}"


def markdown(title: str, note: str, table: Table) -> str:
    headers, cells = shown(table)
    return "\n".join(
        [f"## {title}", "", note, "", _line(headers), "|---" * len(headers) + "|", *map(_line, cells), ""]
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown_cell, cells))} |"


def write_table(folder: Path, name: str, title: str, note: str, table: Table) -> None:
    """`name`.csv, with six digits and every bound in its own column, and `name`.md for a reader."""
    folder.mkdir(parents=True, exist_ok=True)
    text = StringIO()
    columns = list(dict.fromkeys(key for row in table for key in row))
    write_csv(
        text,
        columns,
        ({key: _exact(value) for key, value in row.items()} for row in table),
        lineterminator="\n",
    )
    write_whole(folder / f"{name}.csv", text.getvalue())
    write_whole(folder / f"{name}.md", markdown(title, note, table))


def write_tables(study: Study, folder: Path) -> None:
    """Every table that has rows, as CSV and Markdown."""
    for name, title, note, table in tables_of(study):
        write_table(folder, name, title, note, table)


def write_figures(drawings: Sequence[Drawing], folder: Path) -> None:
    """PNG and SVG of every figure."""
    folder.mkdir(parents=True, exist_ok=True)
    for drawing in drawings:
        write_whole(folder / f"{drawing.name}.svg", drawing.svg)
        write_whole(folder / f"{drawing.name}.png", drawing.png)


def report_json(study: Study) -> dict[str, Any]:
    """What the page shows, for programs: the summary, every table and the notes; None where a number is not
    known."""
    return {
        "name": study.name,
        "dataset": study.info.title,
        "model": study.run["model"]["name"],
        "product": study.product,
        "baseline": study.baseline,
        "summary": [sentence._asdict() for sentence in summarize(study)],
        "tables": study.tables,
        "notes": study.notes,
    }


def _plain(value: Any) -> Any:
    """As JSON holds it."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_summary(study: Study, folder: Path) -> None:
    """report.json."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(report_json(study)), indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(folder / "report.json", printable(text))


def write_run(run: dict[str, Any], folder: Path) -> None:
    """run.json as it was written when the run began: command, configuration, versions, hardware, hashes."""
    write_whole(folder / "run.json", json.dumps(run, indent=1))


def digest(folder: Path) -> str:
    """Markdown of a written report for a README: SRCC, PLCC and the paired difference of every mode. Raises
    StudyError."""
    try:
        run = read_json(folder / "run.json", LARGEST_NOTE)
        modes, differences = (_lines(folder / f"{name}.csv") for name in ("modes", "differences"))
        return _digest(folder, run["dataset"]["title"], run["model"]["name"], modes, differences)
    except FileError as error:
        raise StudyError(f"{folder}: {error}", "name a folder that study.py report wrote") from error
    except (AttributeError, LookupError, TypeError, ValueError, csv.Error) as error:
        raise StudyError(
            f"{folder}: expected what study.py report writes, got another: {error!r:.{LONGEST_QUOTE}}",
            "make the report anew",
        ) from error


def _lines(file: Path) -> list[dict[str, str]]:
    try:
        content = read_bytes(file)
    except FileError as error:
        raise FileError(f"{file.name}: {error}") from error
    return list(csv.DictReader(StringIO(content.decode("utf-8"), newline="")))


def _digest(folder: Path, title: str, model: str, modes: Table, differences: Table) -> str:
    pairs = [{row["first"], row["second"]} for row in differences]
    common = set.intersection(*pairs)
    first = differences[0]
    baseline = first["second"] if first["second"] in common else first["first"]
    if baseline not in common:
        raise ValueError("differences to several modes")
    against = {next(iter(pair - {baseline})): row for pair, row in zip(pairs, differences, strict=True)}
    place = folder.as_posix()
    place = f"`{place}`" if re.fullmatch(r"[\w./ -]+", place) else markdown_cell(place)
    n, failed, over = (markdown_cell(modes[0][name]) for name in ("n", "failed", "interval_over"))
    lines = [
        f"**{markdown_cell(title)}**, {n} images and {failed} failures, model {markdown_cell(model)};"
        f" intervals over {over} ({place})",
        "",
        _line(["mode", "SRCC", "PLCC, mapped", f"SRCC − that of {baseline}", "p (Holm)"]),
        "|---|---|---|---|---|",
    ]
    for row in sorted(modes, key=lambda row: -float(row["srcc"] or "-inf")):
        seen = " (seen)" if row["seen"] == "seen" else ""
        cells = [f"{row['mode']}{seen}", _with_interval(row, "srcc"), _two(row["plcc_mapped"])]
        if found := against.get(row["mode"]):
            sign = 1 if found["first"] == row["mode"] else -1
            cells += [_with_interval(found, "srcc_difference", sign), _two(found["p_holm"])]
        lines.append(_line(cells + [""] * (5 - len(cells))))
    return "\n".join([*lines, ""])


def _two(cell: str, sign: int = 1) -> str:
    return f"{sign * float(cell):.2f}".replace("-", "−") if cell else "—"


def _with_interval(row: dict[str, str], name: str, sign: int = 1) -> str:
    ends = [_two(row[f"{name}{end}"], sign) for end in ("_low", "_high")[::sign]]
    return f"{_two(row[name], sign)} ({ends[0]} to {ends[1]})" if row[name] else "—"
