"""Reports on runs: tables as CSV, figures, and report.html, one page that asks nothing of the
network.

Text of rows and of run.json (queries, file names, labels) is untrusted: it is escaped wherever it
goes, and the page's policy runs no script but the one of this package.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from agentic_iqa_local.batch.cells import safe_cell
from agentic_iqa_local.errors import one_line, printable
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.judgement.fit import Fit, FitError
from agentic_iqa_local.output import pages
from agentic_iqa_local.studies import tables
from agentic_iqa_local.studies.datasets import MANIFEST, absences, listed
from agentic_iqa_local.studies.eye_curve import eye_curve
from agentic_iqa_local.studies.interval_tables import interval_tables
from agentic_iqa_local.studies.plots import TITLES, draw
from agentic_iqa_local.studies.scored_run import ScoredRun
from agentic_iqa_local.studies.store import Run, Stored, check_report_folder, make_report_folder

PRINTED = ("accuracy", "modes", "differences")  # tables that a terminal shows


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
    if fit:
        if fit.model != run.identity.model:
            said = "--fit: expected a fit of the run's model, it was made with another"
            raise FitError(said, "fit it anew")
        if fit.dataset in (run.dataset.key, MANIFEST):  # it may have been told its set since
            rows = [row for row in rows if not fit.used(row)]
    scored = ScoredRun(run, rows, fit=fit, **options)
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
        "eye": eye_curve(scored),
        "cost": tables.cost(rows),
        "exposures": scored.exposures,
        "failures": tables.failures(rows),
        "scores": scored.scores,
    }
    notes = [*_notes(scored)]
    if why_none:
        notes.append(f"No figures of intervals: {why_none}.")
    return Analysis(scored, made, [one_line(note) for note in notes])


def _notes(run: ScoredRun) -> Iterator[str]:
    told = run.run.dataset
    absent = told.images - len(run.rows)
    if absent > 0:
        reasons = "they have no row yet, or the fit was made on them"
        yield f"{absent} of {told.images} images take no part: {reasons}."
    yield from absences(told.missing, told.left_out)
    if told.key == MANIFEST and (sets := run.learned_from()):
        yield (
            "It was not said which data set a manifest is a part of, so nothing is marked as seen. If the"
            " pictures are from a set that parts of a run learned from, its figures flatter it: repeat the"
            " command of study run with --part-of NAME (rows are kept), and report again. For photographs"
            " of your own there is nothing to do."
        )
        yield f"Parts of {run.name} learned from data sets or were fitted to them: {listed(sets)}."
    if not told.higher_is_better:
        yield "In this set a lower score is better: every figure is with the scores turned around."
    yield run.intervals
    own = f"The agent's own mode is “{run.product}” (fusion.mode)"
    yield f"{own}; every mode is compared with the baseline “{run.baseline}”."


def report_runs(
    runs: Mapping[str, Stored], out: Path, *, fit: Fit | None = None, **options: Any
) -> str:
    """Reports on runs, by name, into the folder `out`, each into one of its own where they are
    several, and returns what a terminal shows. The options are those of `analyse`, as is what it
    raises."""
    folders = {name: out / name if len(runs) > 1 else out for name in runs}
    for folder in (out, *folders.values()):
        check_report_folder(folder)
    said, studies = [], {}
    for name, (run, rows) in runs.items():
        if run.dataset.kind == "MCQ":
            made = {"accuracy": tables.accuracy(rows)}
        else:
            studies[name] = analyse(run, rows, fit=fit, name=name, **options)
            made = studies[name].tables
        make_report_folder(out)
        make_report_folder(folders[name])
        write_whole(folders[name] / "run.json", run.model_dump_json(indent=1))
        write_tables(folders[name], made)
        printed = [as_text(each, made[each]) for each in PRINTED if each in made]
        said += [one_line(name), *printed]
    if studies:
        said += _write_together(studies, folders, out)
    return "\n".join(said)


def _write_together(
    studies: Mapping[str, Analysis], folders: Mapping[str, Path], out: Path
) -> list[str]:
    """Writes the figures and the page of all studies, and their table over the data sets; what a
    terminal shows."""
    said, parts, page = [], [], out / "report.html"
    datasets = pd.DataFrame()
    if len(studies) > 1:
        datasets = over_datasets([*studies.values()])
        write_tables(out, {"datasets": datasets})
        said.append(as_text("datasets", datasets))
    for name, study in studies.items():
        said += [line for note in study.notes if (line := f"- {note}") not in said]
        figures = draw(study.run, study.tables)
        for title, content in figures.items():
            write_whole(folders[name] / f"{title}.svg", content)
        parts.append((study, figures))
    write_page(parts, page, datasets)
    return [*said, "", one_line(f"Written to {out}: open {page}")]


def over_datasets(studies: Sequence[Analysis]) -> pd.DataFrame:
    """SRCC of each mode in each run whose data set nothing of the mode has seen, and their mean."""
    table = pd.concat([study.tables["modes"].assign(run=study.run.name) for study in studies])
    clean = table.assign(srcc=table.srcc.where(table.seen == ""))
    found = clean.pivot(index="mode", columns="run", values="srcc")
    return found.assign(mean=found.mean(axis=1)).sort_values("mean", ascending=False).reset_index()


def number(value: Any) -> str:
    """A cell's text for a reader: — where there is no number."""
    if pd.isna(value):
        return "—"
    if not isinstance(value, float):
        return one_line(str(value))
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3f}"


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The texts of a table for a reader, with an interval beside its value."""
    texts = table.map(number)
    for name in table.columns:
        if f"{name}_low" in table:
            low, high = texts.pop(f"{name}_low"), texts.pop(f"{name}_high")
            bounds = " (" + low + " to " + high + ")"
            texts[name] += bounds.where(low != "—", "")
    return texts.rename(columns=lambda name: one_line(name.replace("_", " ")))


def as_text(name: str, table: pd.DataFrame) -> str:
    """A table for a terminal, under its name."""
    return f"{name.replace('_', ' ')}\n\n{printable(shown(table).to_string(index=False))}\n"


def write_tables(folder: Path, by_name: Mapping[str, pd.DataFrame]) -> None:
    """Every table that has rows as CSV, with each bound in its own column and six digits."""
    for name, table in by_name.items():
        if not table.empty:
            cells = table.map(safe_cell).rename(columns=safe_cell)
            text = cells.to_csv(index=False, float_format="%.6g", lineterminator="\n")
            write_whole(folder / f"{name}.csv", text)


def write_page(
    parts: Sequence[tuple[Analysis, Mapping[str, bytes]]], file: Path, datasets: pd.DataFrame
) -> None:
    """One page with a section for each study and its figures by name, and a table over the data
    sets where there are several."""
    environment = pages.environment(Path(__file__).parent)
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    told = pages.own_files(["account/account.css", "report.css"], ["report.js"])
    told |= {"parts": parts, "shown": shown, "titles": TITLES, "datasets": datasets}
    write_whole(file, printable(environment.get_template("report.html.jinja").render(told)))
