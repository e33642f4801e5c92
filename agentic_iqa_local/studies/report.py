"""Writes a study down: tables as CSV and Markdown, figures as PNG and SVG, and report.json.

Text of rows (queries, file names, a model's words) is untrusted: it is escaped wherever it goes.
"""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, ValidationError

from agentic_iqa_local.batch.rows import LARGEST_NOTE
from agentic_iqa_local.files import FileError, first_mistake, read_bytes, read_json, write_whole
from agentic_iqa_local.output.tables import markdown_cell, write_csv
from agentic_iqa_local.studies.figures import report_json
from agentic_iqa_local.studies.plots import Drawing
from agentic_iqa_local.studies.study import MARGIN, Study, StudyError, Table
from agentic_iqa_local.text import printable

Read = TypeVar("Read")
Line = TypeVar("Line", bound=BaseModel)

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
            " decide. Meng's test stands beside them: it assumes independent images and normal scores, which"
            " images of one scene are not, and it is an approximation for ranks."
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
HEADERS = {"n": "images", "holm": "Holm", "meng": "Meng", **{name: name.upper() for name in UPPER}}

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
    table = []
    for (model, mode), found in cells.items():
        clean = [value for value, _, usable in found.values() if usable and not math.isnan(value)]
        row: dict[str, Any] = {"model": model, "mode": mode}
        for dataset in dict.fromkeys(datasets):
            row[dataset], row[f"{dataset}_mark"], _ = found.get(dataset, (math.nan, "", False))
        table.append(
            row
            | {
                "mean_of_clean": sum(clean) / len(clean) if clean else math.nan,
                "clean_data_sets": len(clean),
            }
        )
    return table


# Tables as text


def cell_number(value: Any) -> str:
    """For a reader: — where there is no value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "—"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3f}"


def columns_of(table: Table) -> list[str]:
    """The columns that a reader is shown."""
    return [key for key in table[0] if not key.endswith(("_low", "_high", "_mark"))]


def shown(table: Table) -> tuple[list[str], list[list[str]]]:
    """Headers and cells for a reader: an interval or a mark stands in the cell of its value."""
    columns = columns_of(table)
    headers = [" ".join(HEADERS.get(word, word) for word in key.split("_")) for key in columns]
    return headers, [[_cell(row, key) for key in columns] for row in table]


def _cell(row: dict[str, Any], key: str) -> str:
    text = cell_number(row.get(key))
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    if low is not None and not math.isnan(low):
        text += f" ({cell_number(low)} to {cell_number(high)})"
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


def write_summary(study: Study, folder: Path) -> None:
    """report.json: the sentences of the summary and the numbers of the page's figures."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report_json(study), indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(folder / "report.json", printable(text))


def write_run(run: dict[str, Any], folder: Path) -> None:
    """run.json as it was written when the run began: command, configuration, versions, hardware, hashes."""
    write_whole(folder / "run.json", json.dumps(run, indent=1))


class _Run(BaseModel):
    """What a table shows of run.json."""

    model_config = ConfigDict(protected_namespaces=())

    class Data(BaseModel):
        title: str

    class Model(BaseModel):
        name: str

    dataset: Data
    model: Model


Finite = Annotated[float, Field(allow_inf_nan=False)]
Cell = Annotated[Finite | None, BeforeValidator(lambda cell: cell or None)]  # None where the cell is empty


class _Mode(BaseModel):
    """What a table shows of a line of modes.csv."""

    mode: str
    n: str
    failed: str
    interval_over: str
    seen: str
    srcc: Cell
    srcc_low: Cell
    srcc_high: Cell
    plcc_mapped: Cell


class _Difference(BaseModel):
    """What a table shows of a line of differences.csv."""

    first: str
    second: str
    srcc_difference: Cell
    srcc_difference_low: Cell
    srcc_difference_high: Cell
    p_holm: Cell


class _AtLeastOne(RootModel[Annotated[list[Line], Field(min_length=1)]], Generic[Line]):
    """The lines of a table."""


def digest(folder: Path) -> str:
    """Markdown of a written report for a README: SRCC, PLCC and the paired difference of every mode. Raises
    StudyError."""
    run = _read(
        folder / "run.json", lambda file: _Run.model_validate(read_json(file, LARGEST_NOTE), strict=True)
    )
    modes = _read(folder / "modes.csv", lambda file: _lines(file, _Mode))
    differences = _read(folder / "differences.csv", lambda file: _lines(file, _Difference))
    against = {frozenset((row.first, row.second)): row for row in differences}
    common = frozenset.intersection(*against)
    baseline = next((name for name in (differences[0].second, differences[0].first) if name in common), None)
    if baseline is None:
        raise StudyError(
            f"{folder / 'differences.csv'}: expected differences to one mode, found others",
            "make the report anew",
        )
    place = folder.as_posix() if re.fullmatch(r"[\w./ -]+", folder.as_posix()) else None
    first = {name: markdown_cell(getattr(modes[0], name)) for name in ("n", "failed", "interval_over")}
    lines = [
        (
            f"**{markdown_cell(run.dataset.title)}**, {first['n']} images and {first['failed']} failures,"
            f" model {markdown_cell(run.model.name)}; intervals over {first['interval_over']}"
            f" ({f'`{place}`' if place else markdown_cell(folder.as_posix())})"
        ),
        "",
        _line(["mode", "SRCC", "PLCC, mapped", f"SRCC − that of {baseline}", "p (Holm)"]),
        "|---|---|---|---|---|",
    ]
    for row in sorted(modes, key=lambda row: math.inf if row.srcc is None else -row.srcc):
        cells = [
            f"{row.mode}{' (seen)' if row.seen == 'seen' else ''}",
            _with_interval(row.srcc, row.srcc_low, row.srcc_high),
            _two(row.plcc_mapped),
        ]
        if found := against.get(frozenset((row.mode, baseline))):
            ends = found.srcc_difference, found.srcc_difference_low, found.srcc_difference_high
            if found.first != row.mode:
                ends = tuple(None if end is None else -end for end in (ends[0], ends[2], ends[1]))
            cells += [_with_interval(*ends), _two(found.p_holm)]
        lines.append(_line(cells + [""] * (5 - len(cells))))
    return "\n".join([*lines, ""])


def _read(file: Path, read: Callable[[Path], Read]) -> Read:
    """Raises StudyError."""
    try:
        return read(file)
    except FileError as error:
        raise StudyError(f"{file}: {error}", "name a folder that study.py report wrote") from error
    except (ValidationError, UnicodeDecodeError, csv.Error) as error:
        said = first_mistake(error) if isinstance(error, ValidationError) else error
        raise StudyError(
            f"{file}: expected what study.py report writes, got another: {said}", "make the report anew"
        ) from error


def _lines(file: Path, schema: type[Line]) -> list[Line]:
    """One at least."""
    rows = csv.DictReader(StringIO(read_bytes(file).decode("utf-8"), newline=""), restkey="more")
    return _AtLeastOne[schema].model_validate(list(rows)).root


def _two(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}".replace("-", "−")


def _with_interval(value: float | None, low: float | None, high: float | None) -> str:
    return "—" if value is None else f"{_two(value)} ({_two(low)} to {_two(high)})"
