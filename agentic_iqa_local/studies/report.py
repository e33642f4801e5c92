"""Reports on runs: tables as CSV and Parquet, figures, and report.html, one page that asks nothing
of the network.

Text of rows and of run.json (queries, file names, labels) is untrusted: it is escaped wherever it
goes, and the page's policy runs no script but the one of this package.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from agentic_iqa_local.batch.cells import safe_cell
from agentic_iqa_local.errors import one_line, printable
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.judgement.fit import Fit, FitError
from agentic_iqa_local.output import pages
from agentic_iqa_local.studies import tables
from agentic_iqa_local.studies.interval_tables import interval_tables
from agentic_iqa_local.studies.plots import TITLES, draw
from agentic_iqa_local.studies.scored_run import SIGNIFICANCE, ScoredRun
from agentic_iqa_local.studies.store import Run, Stored, check_report_folder, make_report_folder

PRINTED = ("accuracy", "modes", "differences")  # tables that a terminal shows
UPPER = re.compile(r"\b(srcc|plcc|krcc|rmse|ece|rps|mos)\b")
OPPOSITE = -0.4  # SRCC: a manifest's scores below it seem to call the worse pictures higher


class Analysis(NamedTuple):
    """A run with its tables by name, and what a reader must know."""

    run: ScoredRun
    tables: dict[str, pd.DataFrame]
    notes: list[str]


def analyse(
    run: Run, rows: Sequence[dict[str, Any]], fit: Fit | None = None, **options: Any
) -> Analysis:
    """All figures of a run (what `store.read_run` gives). `fit` adds the mode "logits, fitted" and
    calibrates the intervals; rows that it has seen are left out. The other options, and StudyError,
    are those of `ScoredRun`. Raises FitError for a fit of another model."""
    fitted = None
    if fit:
        fitted = {"temperature": fit.temperature, "eta": fit.eta}
        if fit.model != run.identity.model:
            said = "--fit: expected a fit of the run's model, it was made with another"
            raise FitError(said, "fit it anew")
        if fit.dataset == run.dataset.key:
            rows = [row for row in rows if not fit.used(row)]
    scored = ScoredRun(run, rows, fitted=fitted, **options)
    intervals, why_none = interval_tables(scored, fit)
    agreement = tables.agreement(scored.draws, scored.wide, scored.quality)
    agreement.insert(1, "seen", [scored.mark(mode) for mode in scored.wide])
    compared = tables.differences(scored.draws, scored.wide, scored.quality, scored.baseline)
    made = {
        "modes": agreement,
        "differences": tables.decided(compared),
        "within": tables.within(scored),
        "calibration": tables.calibration(scored),
        **intervals,
        "cost": tables.cost(rows),
        "exposures": scored.exposures,
        "failures": tables.failures(rows),
        "scores": scored.scores,
    }
    return Analysis(scored, made, [one_line(note) for note in _notes(scored, made, why_none)])


def _notes(
    run: ScoredRun, made: Mapping[str, pd.DataFrame], why_no_intervals: str
) -> Iterator[str]:
    told, draws, compared = run.run.dataset, len(run.draws.places), len(made["differences"])
    absent = told.images - len(run.rows)
    if absent > 0:
        yield (
            f"{absent} of {told.images} images take no part: they have no row yet, or the fit was"
            " made on them."
        )
    if told.missing:
        yield (
            f"{len(told.missing)} files that the authors' list names are absent, the first is"
            f" {told.missing[0]}."
        )
    for reason, count in told.left_out.items():
        yield f"{count} images are left out: {reason}."
    if not told.higher_is_better:
        yield "In this set a lower score is better: every figure is with the scores turned around."
    if told.key == "manifest" and made["modes"].set_index("mode").srcc[run.product] < OPPOSITE:
        yield (
            "Lower scores seem to be better here, as in DMOS: multiply them by -1 in the manifest,"
            " run it again."
        )
    yield f"Intervals: {draws} bootstrap draws of {run.draws.units} {run.draws.over}."
    if 2 * compared / (draws + 1) >= SIGNIFICANCE:
        yield (
            f"{draws} draws are too few to decide any of {compared} comparisons after Holm's"
            " correction."
        )
    yield f"The product's mode is “{run.product}”; every mode is compared with “{run.baseline}”."
    if why_no_intervals:
        yield f"No figures of intervals: {why_no_intervals}."


def report_runs(
    runs: Mapping[str, Stored],
    out: Path,
    *,
    fit: Fit | None = None,
    png: bool = False,
    **options: Any,
) -> str:
    """Reports on runs, by name, into the folder `out`, each into one of its own where they are
    several, and returns what a terminal shows. The options are those of `analyse`, as is what it
    raises."""
    folders = {name: out / name if len(runs) > 1 else out for name in runs}
    for folder in (out, *folders.values()):
        check_report_folder(folder)
    said, parts = [], []
    for name, (run, rows) in runs.items():
        said.append(one_line(name))
        made, figures = {}, {}
        if run.dataset.kind == "MCQ":
            made["accuracy"] = tables.accuracy(rows)
        else:
            study = analyse(run, rows, fit=fit, name=name, **options)
            made, figures = study.tables, draw(study.run, study.tables, png)
            parts.append((study, figures))
        make_report_folder(out)
        make_report_folder(folders[name])
        write_whole(folders[name] / "run.json", run.model_dump_json(indent=1))
        write_tables(folders[name], made)
        for file, content in figures.items():
            write_whole(folders[name] / file, content)
        said += [as_text(each, made[each]) for each in PRINTED if each in made]
    if parts:
        said += _write_together(parts, out)
    return "\n".join(said)


def _write_together(parts: Sequence[tuple[Analysis, dict[str, bytes]]], out: Path) -> list[str]:
    """Writes the page of all studies and their table over the data sets; what a terminal shows."""
    said, datasets = [], None
    for study, _ in parts:
        said += [f"- {note}" for note in study.notes]
    if len(parts) > 1:
        datasets = over_datasets([study for study, _ in parts])
        write_tables(out, {"datasets": datasets})
        said += ["", as_text("datasets", datasets)]
    write_page(parts, out / "report.html", datasets)
    return [*said, "", one_line(f"Written to {out}: open {out / 'report.html'}")]


def over_datasets(studies: Sequence[Analysis]) -> pd.DataFrame:
    """SRCC of each mode in each run whose data set nothing of the mode has seen, and their mean."""
    table = pd.concat([study.tables["modes"].assign(run=study.run.name) for study in studies])
    clean = table.assign(srcc=table.srcc.where(table.seen == ""))
    found = clean.pivot(index="mode", columns="run", values="srcc")
    return found.assign(mean=found.mean(axis=1)).sort_values("mean", ascending=False).reset_index()


def number(value: Any) -> str:
    """A number for a reader: — where there is none."""
    if pd.isna(value):
        return "—"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3f}"


def shown(table: pd.DataFrame) -> tuple[list[str], list[list[tuple[str, str]]]]:
    """Headers and cells for a reader: what is shown, with an interval beside its value,
    and the number to sort by or nothing."""
    columns = [name for name in table.columns if not name.endswith(("_low", "_high"))]
    headers = [
        UPPER.sub(lambda found: found[0].upper(), name.replace("_", " ")) for name in columns
    ]
    rows = table.to_dict("records")
    return headers, [[_cell(row, name) for name in columns] for row in rows]


def _cell(row: dict[str, Any], name: str) -> tuple[str, str]:
    value, low = row[name], row.get(f"{name}_low", np.nan)
    text = number(value)
    if not isinstance(value, int | float) or np.isnan(value):
        return text, ""
    if not np.isnan(low):
        text += f" ({number(low)} to {number(row[f'{name}_high'])})"
    return text, repr(float(value))


def as_text(name: str, table: pd.DataFrame) -> str:
    """A table for a terminal, under its name."""
    headers, cells = shown(table)
    lines = pd.DataFrame([[one_line(text) for text, _ in line] for line in cells], columns=headers)
    return f"{name.replace('_', ' ')}\n\n{printable(lines.to_string(index=False))}\n"


def write_tables(folder: Path, by_name: Mapping[str, pd.DataFrame]) -> None:
    """Every table that has rows, with each bound in its own column, as CSV with six digits and as
    Parquet."""
    for name, table in by_name.items():
        if table.empty:
            continue
        cells = table.map(safe_cell).rename(columns=safe_cell)
        text = cells.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_whole(folder / f"{name}.csv", text)
        mixed = {column: "string" for column in table.columns if table[column].dtype == object}
        write_whole(folder / f"{name}.parquet", table.astype(mixed).to_parquet(index=False))


def write_page(
    parts: Sequence[tuple[Analysis, Mapping[str, bytes]]],
    file: Path,
    datasets: pd.DataFrame | None = None,
) -> None:
    """One page with a section for each study and its figures, by their files' names."""
    environment = pages.environment(Path(__file__).parent)
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    told = pages.own_files(["account/account.css", "report.css"], ["report.js"])
    told |= {"parts": parts, "shown": shown, "titles": TITLES, "datasets": datasets}
    write_whole(file, printable(environment.get_template("report.html.jinja").render(told)))
