"""Makes all that is said of a run and writes it down: tables as CSV and Parquet, report.json, and report.html, one
page with figures and script inside that asks nothing of the network.

Text of rows (queries, file names, a model's words) is untrusted: it is escaped wherever it goes, and the page's policy
runs no script but the one of this package.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from scipy.stats import rankdata

from agentic_iqa_local.errors import one_line, printable
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.judgement.fit import Fit, FitError
from agentic_iqa_local.output import pages
from agentic_iqa_local.output.gallery.thumbnails import Sizes, thumbnail
from agentic_iqa_local.output.tables import safe_cell
from agentic_iqa_local.state import LETTER_TO_LEVEL, LEVEL_WORDS
from agentic_iqa_local.studies import tables
from agentic_iqa_local.studies.interval_tables import interval_tables
from agentic_iqa_local.studies.plots import Drawing, draw
from agentic_iqa_local.studies.questions import accuracy
from agentic_iqa_local.studies.scored_run import MARGIN, ScoredRun
from agentic_iqa_local.studies.study import dataset_info
from agentic_iqa_local.studies.summary import Sentence, number, summarize

WORST = 10  # images that the page shows
SIZES = Sizes(320, None)  # of the worst images' thumbnails
FIRST = ("differences", "scatter", "reliability", "risk_coverage", "intervals")  # figures that are not folded
TOPICS = {
    "winner": "Which mode won",
    "difference": "By how much",
    "significance": "Is it significant",
    "leaks": "What is leaked",
    "failures": "What failed",
}
TABLES = {  # by name the title, and what a reader must know
    "datasets": ("Over the data sets", "SRCC. What is marked “seen” or “?” stays out of the mean."),
    "modes": ("Agreement with the human scores", "95 % bootstrap intervals; “mapped”: after the monotone logistic."),
    "differences": ("Paired differences between modes", f"After Holm's correction; the verdict's margin: {MARGIN}."),
    "by_distortion": ("Within each distortion type", "Intervals for the product's mode and the baseline."),
    "by_level": ("Within each level of distortion", "The authors' strengths, from 1."),
    "by_subset": ("Within each subset", "“Within subsets” is the mean of their figures by their images."),
    "calibration": ("Calibration of the letters", "ECE: 15 bins. RPS: ranked probability score, 0 best."),
    "risk_coverage": ("Risk and coverage", "Mean error of ranks, over the share that the signal is surest of."),
    "intervals": ("Intervals of q that hold 90 %", "In levels; “ranks”: with the truth that q expects at a rank."),
    "intervals_within": ("Intervals of q within parts", "Small parts differ by chance."),
    "abstaining": ("What abstaining gains", "The pictures with the widest intervals are left out. Error in levels."),
    "gates": ("Verdicts of --at-least, error rate 10 %", "The share that is decided, and how much of it wrongly."),
    "pairwise": ("Which of two pictures is better", "By levels apart, and by the probability of the likelier."),
    "cost": ("Cost of an image", "The image is prefilled once, in the agent's part, and reused."),
    "exposures": ("What may have been seen", "What each mode rests on that was made with this data set."),
    "failures": ("What failed", "Reasons, with the number of images."),
    "accuracy": ("Accuracy on multiple-choice questions", "Of answered questions, with Wilson's 95 % interval."),
    "runs": ("The runs on their common images", "On the images that every run answered."),
    "run_differences": ("Paired differences between the runs", f"On the same draws, with a margin of {MARGIN}."),
}
UPPER = ("srcc", "plcc", "krcc", "rmse", "ece", "rps", "aurc", "mos")
HEADERS = {"n": "images", "holm": "Holm", **{name: name.upper() for name in UPPER}}


@dataclass(frozen=True, eq=False)
class Analysis:
    """A run with its tables by name, its five sentences, what its page tells of the worst images, and what a reader
    must know."""

    run: ScoredRun
    tables: dict[str, pd.DataFrame]
    summary: list[Sentence]
    worst: list[dict[str, Any]]
    notes: list[str]


def analyse(run: dict[str, Any], rows: Sequence[dict[str, Any]], fit: Fit | None = None, **options: Any) -> Analysis:
    """All figures of a run (what `store.read_run` gives). `fit` adds the mode "logits, fitted" and calibrates the
    intervals; rows that it has seen are left out. The other options, and StudyError, are those of `ScoredRun`."""
    if fit and fit.dataset == run["dataset"]["key"]:
        rows = [row for row in rows if not fit.used(row)]
    fitted = {"temperature": fit.temperature, "eta": fit.eta} if fit else None
    scored = ScoredRun(run, rows, fitted=fitted, **options)
    intervals, missing = interval_tables(scored, fit)
    made = {
        "modes": tables.mode_table(scored),
        "differences": tables.differences(scored),
        **{f"by_{label}": tables.within(scored, label) for label in ("distortion", "level", "subset")},
        "calibration": tables.calibration(scored),
        "risk_coverage": tables.risk_coverage(scored),
        **intervals,
        "cost": tables.cost(scored),
        "exposures": tables.exposure_table(scored),
        "failures": tables.failures(rows),
    }
    notes = [one_line(note) for note in (*_notes(scored, fit), *missing)]
    return Analysis(scored, made, summarize(scored, made), _worst(scored), notes)


def _worst(run: ScoredRun) -> list[dict[str, Any]]:
    """The images that the product's mode ranks the furthest from the human scores."""
    scored = run.modes[run.product]
    at = np.flatnonzero(scored.answered)
    table = pd.DataFrame({"score": scored.scores[at], "quality": run.quality[at]}, at)
    table["error"] = tables.rank_errors(scored.scores[at], run.quality[at])
    table["rank"], table["human_rank"] = rankdata(-table.score), rankdata(-table.quality)
    found = []
    for i in at[np.argsort(-table.error.abs(), kind="stable")][:WORST]:
        p = () if scored.p is None else scored.p[i]
        letters = [(f"{x} {LEVEL_WORDS[c]}", float(p[c - 1])) for x, c in LETTER_TO_LEVEL.items() if len(p)]
        found.append(table.loc[i].to_dict() | {"row": run.rows[i], "letters": letters, "of": len(at)})
    return found


def _notes(run: ScoredRun, fit: Fit | None) -> Iterator[str]:
    told, (draws, units), krcc = run.run["dataset"], run.draws.counts.shape, tables.KRCC_DRAWS
    yield f"Asked of the model: {run.run['identity']['reads']['query']}"
    if missing := told.get("missing"):
        yield f"{len(missing)} files that the authors' list names are absent, the first is {missing[0]}."
    yield from (f"{count} images are left out: {reason}." for reason, count in told.get("left_out", {}).items())
    if not run.info.higher_is_better:
        yield "In this set a lower score is better: every figure is with the scores turned around."
    if run.info.key == "manifest":
        yield "A manifest counts as a set that nothing was trained on; --part-of says which set its images are from."
    yield f"Intervals: {draws} bootstrap draws of {units} {run.draws.over}; KRCC on at most {krcc} of them."
    yield f"The product's mode is “{run.product}”; every mode is compared with “{run.baseline}”, named beforehand."
    if fit:
        yield f"“logits, fitted”: temperature {fit.temperature:g}, η {fit.eta}, from {fit.source}."
    if any(row.get("subset") is not None for row in run.rows):
        yield "The subset predicts the score in this set: read the figures within subsets before those over all images."


def report_runs(
    runs: Mapping[str, tuple[dict[str, Any], list[dict[str, Any]]]],
    out: Path,
    *,
    fit: Fit | None = None,
    kinds: Sequence[str] = ("svg",),
    pictures: bool = False,
    **options: Any,
) -> str:
    """Reports on runs (by name what `store.read_run` gives) into the folder `out`, each into one of its own where they
    are several, and returns what a terminal shows.

    Runs on questions have a table of their accuracy alone. `kinds` are those of the figures, `pictures` puts the worst
    images' thumbnails into the page, and the other options are those of `analyse`. Raises FitError for a fit of another
    model, and StudyError.
    """
    parts, said = [], []
    folders = {name: out / name if len(runs) > 1 else out for name in runs}
    for name, (run, rows) in runs.items():
        if dataset_info(run).kind == "MCQ":
            table = pd.DataFrame(accuracy(rows))
            write_run(folders[name], run, {"accuracy": table})
            said.append(as_text("accuracy", table))
            continue
        if fit and fit.model != run["identity"]["model"]:
            raise FitError(f"--fit: expected a fit of the model of {name}, it was made with another", "fit it anew")
        study = analyse(run, rows, fit=fit, name=name, **options)
        parts.append((study, draw(study.run, study.tables, kinds)))
        said.append(as_text("modes", study.tables["modes"]))
    for study, drawings in parts:
        write_study(folders[study.run.name], study, drawings)
        said += [f"What {one_line(study.run.name)} shows:", *(f"- {sentence.text}" for sentence in study.summary), ""]
    if parts:
        write_page(parts, out / "report.html", pictures=pictures)
        said.append(one_line(f"Written to {out}: open {out / 'report.html'}"))
    if len(parts) > 1:
        datasets = over_datasets([study for study, _ in parts])
        write_tables(out, {"datasets": datasets})
        said += ["", as_text("datasets", datasets)]
    return "\n".join(said)


def over_datasets(studies: Sequence[Analysis]) -> pd.DataFrame:
    """SRCC of each mode on each data set, and the mean over the sets that nothing of the mode has seen."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    models = [study.run.run["model"]["name"] for study in studies]
    sets = [f"{study.run.info.title} {study.run.run['dataset'].get('edition') or ''}".strip() for study in studies]
    runs = list(zip(models, sets, strict=True))
    for study, (model, dataset) in zip(studies, runs, strict=True):
        named = f"{model} ({study.run.name})" if runs.count((model, dataset)) > 1 else model
        for mode, srcc, seen in study.tables["modes"][["mode", "srcc", "seen"]].itertuples(index=False):
            line = lines.setdefault((named, mode), {"model": named, "mode": mode})
            line |= {dataset: srcc, f"{dataset}_mark": seen}
    table, titles = pd.DataFrame([*lines.values()]), list(dict.fromkeys(sets))
    clean = table[titles].where((table[[f"{title}_mark" for title in titles]] == "").to_numpy())
    return table.assign(mean_of_clean=clean.mean(axis=1), clean_data_sets=clean.count(axis=1))


def shown(table: pd.DataFrame) -> tuple[list[str], list[list[tuple[str, str]]]]:
    """Headers and cells for a reader: what is shown, with an interval or a mark beside its value, and the number to
    sort by or nothing."""
    columns = [name for name in table.columns if not str(name).endswith(("_low", "_high", "_mark"))]
    headers = [" ".join(HEADERS.get(word, word) for word in name.split("_")) for name in columns]
    return headers, [[_cell(row, name) for name in columns] for row in table.to_dict("records")]


def _cell(row: dict[str, Any], name: str) -> tuple[str, str]:
    value, low, mark = row[name], row.get(f"{name}_low", np.nan), row.get(f"{name}_mark", "")
    text = number(value)
    if low == low:
        text += f" ({number(low)} to {number(row[f'{name}_high'])})"
    known = isinstance(value, int | float) and value == value
    return f"{text} {mark}" if known and mark else text, repr(float(value)) if known else ""


def as_text(name: str, table: pd.DataFrame) -> str:
    """A table for a terminal, under its title."""
    headers, cells = shown(table)
    lines = pd.DataFrame([[one_line(text) for text, _ in line] for line in cells], columns=headers)
    return f"{TABLES[name][0]}\n\n{printable(lines.to_string(index=False))}\n"


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Every table that has rows, with each bound in its own column, as CSV with six digits and as Parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if len(table):
            cells = table.map(safe_cell).set_axis([safe_cell(column) for column in table.columns], axis=1)
            write_whole(folder / f"{name}.csv", cells.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
            mixed = {column: "string" for column in table.columns if table[column].dtype == object}
            write_whole(folder / f"{name}.parquet", table.astype(mixed).to_parquet(index=False))


def write_run(folder: Path, run: dict[str, Any], tables: Mapping[str, pd.DataFrame]) -> None:
    """A run's tables, and run.json as it was when the run began: command, configuration, versions, hashes."""
    write_tables(folder, tables)
    write_whole(folder / "run.json", json.dumps(run, indent=1))


def write_study(folder: Path, study: Analysis, drawings: Sequence[Drawing]) -> None:
    """A study's tables and figures, run.json, and report.json: what the page shows, for programs, with null where a
    number is not known."""
    write_run(folder, study.run.run, study.tables)
    for drawing in drawings:
        for kind, content in drawing.files.items():
            write_whole(folder / f"{drawing.name}.{kind}", content)
    tables = {name: table.to_json(orient="records", double_precision=15) for name, table in study.tables.items()}
    told = {
        "name": study.run.name,
        "dataset": study.run.info.title,
        "model": study.run.run["model"]["name"],
        "product": study.run.product,
        "baseline": study.run.baseline,
        "summary": [sentence._asdict() for sentence in study.summary],
        "tables": {name: json.loads(table) for name, table in tables.items()},
        "notes": study.notes,
    }
    write_whole(folder / "report.json", printable(json.dumps(told, indent=1, ensure_ascii=False)))


def write_page(parts: Sequence[tuple[Analysis, Sequence[Drawing]]], file: Path, *, pictures: bool) -> None:
    """One page with a section for each study and its figures; `pictures` puts the worst images' thumbnails into it."""
    environment = pages.environment(Path(__file__).parent)
    environment.filters |= {"number": number, "base64": lambda content: base64.b64encode(content).decode()}
    style, script = pages.source("report.css"), pages.source("report.js")
    page = environment.get_template("report.html.jinja").render(
        parts=parts,
        style=Markup(style),
        script=Markup(script),
        policy=pages.policy(style, script),
        topics=TOPICS,
        texts=TABLES,
        shown=shown,
        first=FIRST,
        datasets=over_datasets([study for study, _ in parts]) if parts[1:] else None,
        thumbnail=(lambda row: thumbnail(Path(row["image"]), SIZES).small) if pictures else None,
    )
    write_whole(file, printable(page))
