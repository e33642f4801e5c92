"""Reports on runs: tables as CSV and Parquet, figures, and report.html, one page that asks nothing of the network.

Text of rows and of run.json (queries, file names, labels) is untrusted: it is escaped wherever it goes, and the page's
policy runs no script but the one of this package.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from agentic_iqa_local.cells import safe_cell
from agentic_iqa_local.errors import one_line, printable
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.judgement.fit import Fit, FitError
from agentic_iqa_local.output import pages
from agentic_iqa_local.studies import tables
from agentic_iqa_local.studies.interval_tables import interval_tables
from agentic_iqa_local.studies.plots import FIGURES, draw
from agentic_iqa_local.studies.scored_run import SIGNIFICANCE, ScoredRun
from agentic_iqa_local.studies.store import (
    Run,
    check_report_folder,
    dataset_info,
    make_folder,
    make_report_folder,
)

TOLD = ("accuracy", "modes", "differences")  # tables that a terminal shows
UPPER = {"srcc", "plcc", "krcc", "rmse", "ece", "rps", "aurc", "mos"}
OPPOSITE = -0.4  # SRCC: a manifest's scores below it seem to call the worse pictures higher


class Analysis(NamedTuple):
    """A run with its tables by name, and what a reader must know."""

    run: ScoredRun
    tables: dict[str, pd.DataFrame]
    notes: list[str]


def analyse(
    run: dict[str, Any], rows: Sequence[dict[str, Any]], fit: Fit | None = None, **options: Any
) -> Analysis:
    """All figures of a run (what `store.read_run` gives). `fit` adds the mode "logits, fitted" and calibrates the
    intervals; rows that it has seen are left out. The other options, and StudyError, are those of `ScoredRun`."""
    if fit and fit.dataset == run["dataset"]["key"]:
        rows = [row for row in rows if not fit.used(row)]
    fitted = {"temperature": fit.temperature, "eta": fit.eta} if fit else None
    scored = ScoredRun(run, rows, fitted=fitted, **options)
    intervals, missing = interval_tables(scored, fit)
    made = {
        "modes": tables.modes(scored),
        "differences": tables.differences(scored),
        **tables.within(scored),
        "calibration": tables.calibration(scored),
        "risk_coverage": tables.risk_coverage(scored),
        **intervals,
        "cost": tables.cost(scored),
        "exposures": scored.exposures,
        "failures": tables.failures(rows),
        "worst": tables.worst(scored),
    }
    return Analysis(
        scored, made, [one_line(note) for note in (*_notes(scored, made, fit), *missing)]
    )


def _notes(run: ScoredRun, made: dict[str, pd.DataFrame], fit: Fit | None) -> Iterator[str]:
    told, (draws, units), compared = (
        run.run["dataset"],
        run.draws.counts.shape,
        len(made["differences"]),
    )
    yield f"Asked of the model: {run.run['identity']['reads']['query']}"
    if (absent := told.get("images", 0) - len(run.rows)) > 0:
        yield f"{absent} of {told['images']} images take no part: they have no row yet, or the fit was made on them."
    if missing := told.get("missing"):
        yield f"{len(missing)} files that the authors' list names are absent, the first is {missing[0]}."
    yield from (
        f"{count} images are left out: {reason}."
        for reason, count in told.get("left_out", {}).items()
    )
    if not run.info.higher_is_better:
        yield "In this set a lower score is better: every figure is with the scores turned around."
    if run.info.key == "manifest":
        yield "A manifest counts as a set that nothing was trained on; --part-of says which set its images are from."
        if run.sampled(tables.srcc, run.product)[0] < OPPOSITE:
            yield "Lower scores seem to be better here, as in DMOS: multiply them by -1 in the manifest, run it again."
    yield f"Intervals: {draws} bootstrap draws of {units} {run.draws.over}; KRCC on at most {tables.KRCC_DRAWS}."
    if 2 * compared / (draws + 1) >= SIGNIFICANCE:
        yield f"{draws} draws are too few to decide any of {compared} comparisons after Holm's correction."
    yield f"The product's mode is “{run.product}”; every mode is compared with “{run.baseline}”, named beforehand."
    if fit:
        yield f"“logits, fitted”: temperature {fit.temperature:g}, η {fit.eta}, from {fit.source}."


def report_runs(
    runs: Mapping[str, Run], out: Path, *, fit: Fit | None = None, png: bool = False, **options: Any
) -> str:
    """Reports on runs, by name, into the folder `out`, each into one of its own where they are several, and returns
    what a terminal shows. The options are those of `analyse`. Raises FitError for a fit of another model, StudyError.
    """
    folders = {name: out / name if len(runs) > 1 else out for name in runs}
    for folder in (out, *folders.values()):
        check_report_folder(folder)
    made: dict[str, dict[str, pd.DataFrame]] = {}
    studies: dict[str, Analysis] = {}
    for name, (run, rows) in runs.items():
        if dataset_info(run).kind == "MCQ":
            made[name] = {"accuracy": tables.accuracy(rows)}
            continue
        if fit and fit.model != run["identity"]["model"]:
            raise FitError(
                f"--fit: expected a fit of the model of {name}, it was made with another",
                "fit it anew",
            )
        studies[name] = analyse(run, rows, fit=fit, name=name, **options)
        made[name] = studies[name].tables
    figures, said = (
        {name: draw(study.run, study.tables, png) for name, study in studies.items()},
        [],
    )
    make_report_folder(out)
    for name, by_name in made.items():
        folder = folders[name]
        make_report_folder(folder)
        write_tables(folder, by_name)
        write_whole(folder / "run.json", json.dumps(runs[name][0], indent=1))
        for file, content in figures.get(name, {}).items():
            write_whole(folder / file, content)
        said += [
            one_line(name),
            *(as_text(each, by_name[each]) for each in TOLD if each in by_name),
        ]
        said += [f"- {note}" for note in (studies[name].notes if name in studies else ())]
    datasets = over_datasets([*studies.values()]) if len(studies) > 1 else None
    if datasets is not None:
        write_tables(out, {"datasets": datasets})
        said += ["", as_text("datasets", datasets)]
    if studies:
        write_page(
            [(study, figures[name]) for name, study in studies.items()],
            out / "report.html",
            datasets,
        )
        said += ["", one_line(f"Written to {out}: open {out / 'report.html'}")]
    return "\n".join(said)


def over_datasets(studies: Sequence[Analysis]) -> pd.DataFrame:
    """SRCC of each mode on each data set, and the mean over the sets that nothing of the mode has seen."""
    parts = []
    for study in studies:
        run, told = (
            study.run,
            {"model": study.run.run["model"]["name"], "dataset": study.run.info.title},
        )
        parts.append(study.tables["modes"].assign(**told, run=run.name))
    table = pd.concat(parts)
    twice = table.duplicated(["model", "mode", "dataset"], keep=False)
    table["model"] = table.model.mask(twice, table.model + " (" + table.run + ")")
    table["clean"] = table.srcc.where(table.seen == "")
    wide = table.pivot(index=["model", "mode"], columns="dataset", values=["srcc", "seen", "clean"])
    clean = wide["clean"].astype(float)
    found = pd.concat([wide["srcc"].astype(float), wide["seen"].add_suffix("_mark")], axis=1)
    found = found.assign(mean_of_clean=clean.mean(axis=1), clean_data_sets=clean.count(axis=1))
    return found.sort_values("mean_of_clean", ascending=False).reset_index()


def number(value: Any) -> str:
    """A number for a reader: — where there is none."""
    if value is None or value != value:
        return "—"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3f}"


def shown(table: pd.DataFrame) -> tuple[list[str], list[list[tuple[str, str]]]]:
    """Headers and cells for a reader: what is shown, with an interval or a mark beside its value, and the number to
    sort by or nothing."""
    columns = [name for name in table.columns if not str(name).endswith(("_low", "_high", "_mark"))]
    headers = [
        " ".join(word.upper() if word in UPPER else word for word in name.split("_"))
        for name in columns
    ]
    return headers, [[_cell(row, name) for name in columns] for row in table.to_dict("records")]


def _cell(row: dict[str, Any], name: str) -> tuple[str, str]:
    value, low, mark = row[name], row.get(f"{name}_low", np.nan), row.get(f"{name}_mark", "")
    text = f"{value:g}" if name == "level" and isinstance(value, float) else number(value)
    if low == low:
        text += f" ({number(low)} to {number(row[f'{name}_high'])})"
    known = isinstance(value, int | float) and value == value
    return f"{text} {mark}" if known and mark else text, repr(float(value)) if known else ""


def as_text(name: str, table: pd.DataFrame) -> str:
    """A table for a terminal, under its name."""
    headers, cells = shown(table)
    lines = pd.DataFrame([[one_line(text) for text, _ in line] for line in cells], columns=headers)
    return f"{name.replace('_', ' ')}\n\n{printable(lines.to_string(index=False))}\n"


def write_tables(folder: Path, by_name: Mapping[str, pd.DataFrame]) -> None:
    """Every table that has rows, with each bound in its own column, as CSV with six digits and as Parquet."""
    make_folder(folder)
    for name, table in by_name.items():
        if len(table):
            cells = table.map(safe_cell).set_axis(
                [safe_cell(column) for column in table.columns], axis=1
            )
            write_whole(
                folder / f"{name}.csv",
                cells.to_csv(index=False, float_format="%.6g", lineterminator="\n"),
            )
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
    style, script = pages.source("report.css"), pages.source("report.js")
    told = {"style": Markup(style), "script": Markup(script), "policy": pages.policy(style, script)}
    told |= {"parts": parts, "shown": shown, "titles": FIGURES, "datasets": datasets}
    write_whole(file, printable(environment.get_template("report.html.jinja").render(told)))
