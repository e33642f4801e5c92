"""Everything that a report says of a run: its tables, five sentences, its worst images and its notes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.fit import Fit
from agentic_iqa_local.state import LETTER_TO_LEVEL, LEVEL_WORDS
from agentic_iqa_local.studies import tables
from agentic_iqa_local.studies.interval_tables import interval_tables
from agentic_iqa_local.studies.scored_run import ScoredRun, scored_run
from agentic_iqa_local.studies.summary import Sentence, summarize

WORST = 10


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
    intervals; rows that it has seen are left out. The other options, and StudyError, are those of `scored_run`."""
    if fit and fit.dataset == run["dataset"]["key"]:
        rows = [row for row in rows if not fit.used(row)]
    fitted = {"temperature": fit.temperature, "eta": fit.eta} if fit else None
    scored = scored_run(run, rows, fitted=fitted, **options)
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
