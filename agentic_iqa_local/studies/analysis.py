"""Everything that a report says of a run: its tables, the curves of its figures, its worst images and its notes."""

import math
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
from agentic_iqa_local.studies.readings import LOGITS, PRODUCT
from agentic_iqa_local.studies.scored_run import SIGNIFICANCE, ScoredRun, scored_run

WORST = 10
LOOKED = {"one order": LOGITS.name, "both orders": "logits, both orders"}  # the mode of a look
PRODUCT_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Analysis:
    """A run with its tables by name, the product's curves of risk over coverage by signal, what its page tells of the
    worst images, and what a reader must know."""

    run: ScoredRun
    tables: dict[str, pd.DataFrame]
    curves: dict[str, np.ndarray]
    worst: list[dict[str, Any]]
    notes: list[str]


def analyse(run: dict[str, Any], rows: Sequence[dict[str, Any]], fit: Fit | None = None, **options: Any) -> Analysis:
    """All figures of a run (what `store.read_run` gives). `fit` adds the mode "logits, fitted" and calibrates the
    intervals; rows that it has seen are left out. The other options, and StudyError, are those of `scored_run`."""
    if fit and fit.dataset == run["dataset"]["key"]:
        rows = [row for row in rows if not fit.used(row)]
    fitted = {"temperature": fit.temperature, "eta": fit.eta} if fit else None
    scored = scored_run(run, rows, fitted=fitted, **options)
    intervals, missing, widths = interval_tables(scored, fit)
    risks, curves = tables.risk_coverage(scored, {LOOKED[look]: of for look, of in widths.items() if look in LOOKED})
    made = {
        "modes": tables.mode_table(scored),
        "differences": tables.differences(scored),
        **{f"by_{label}": tables.within(scored, label) for label in ("distortion", "level", "subset")},
        "calibration": tables.calibration(scored),
        "risk_coverage": risks,
        **intervals,
        "cost": tables.cost(scored),
        "exposures": tables.exposure_table(scored),
        "failures": tables.failures(rows),
    }
    notes = [one_line(note) for note in (*_notes(scored, made, fit), *missing)]
    return Analysis(scored, made, curves, _worst(scored), notes)


def _worst(run: ScoredRun) -> list[dict[str, Any]]:
    """The images that the product's mode ranks the furthest from the human scores."""
    scored = run.modes[run.product]
    at = np.flatnonzero(scored.answered)
    scores, quality = scored.scores[at], run.quality[at]
    errors, ranks, human = tables.rank_errors(scores, quality), rankdata(-scores), rankdata(-quality)
    return [
        {
            "row": run.rows[at[i]],
            "error": float(errors[i]),
            "score": float(scores[i]),
            "rank": float(ranks[i]),
            "human_rank": float(human[i]),
            "of": len(at),
            "letters": []
            if scored.p is None
            else [(f"{x} {LEVEL_WORDS[c]}", float(scored.p[at[i], c - 1])) for x, c in LETTER_TO_LEVEL.items()],
        }
        for i in np.argsort(-np.abs(errors), kind="stable")[:WORST]
    ]


def _notes(run: ScoredRun, made: dict[str, pd.DataFrame], fit: Fit | None) -> Iterator[str]:
    told, rows, over = run.run["dataset"], run.rows, run.draws.over
    yield f"Asked of the model: {run.run['identity']['reads']['query']}"
    failed = sum(bool(row.get("error")) for row in rows)
    yield f"{len(rows)} of {told.get('images', len(rows))} images have a row; {failed} of them failed."
    if missing := told.get("missing"):
        yield f"{len(missing)} files that the authors' list names are absent, the first is {missing[0]}."
    for reason, count in told.get("left_out", {}).items():
        yield f"{count} images are left out: {reason}."
    if not run.info.higher_is_better:
        yield "In this set a lower score is better: every figure is with the scores turned around."
    if run.info.key == "manifest":
        yield (
            "The manifest is taken for a data set of its own that nothing was trained on; if its images are part of a"
            " published one, run it with --part-of, and what has seen that set is marked."
        )
    draws, units = run.draws.counts.shape
    yield f"Intervals: {draws} bootstrap draws of {units} {over}; KRCC on {min(draws, tables.KRCC_DRAWS)} of them."
    if "within these scenes" in over:
        yield "There are fewer than ten groups: the intervals hold within these scenes and say nothing of others."
    comparisons = len(made["differences"])
    if 2 * comparisons / (draws + 1) > SIGNIFICANCE:
        fewest = math.ceil(2 * comparisons / SIGNIFICANCE)
        yield f"So few draws cannot decide any of {comparisons} comparisons; ask for at least {fewest}."
    yield f"The product's mode is “{run.product}”; every mode is compared with “{run.baseline}”, named beforehand."
    if run.product == PRODUCT[run.settings.mode]:
        yield _against_agent(run)
    if fit:
        yield f"“logits, fitted”: temperature {fit.temperature:g}, η {fit.eta}, from {fit.source}."
    if len(made["by_subset"]):
        yield "The subset predicts the score in this set: read the figures within subsets before those over all images."


def _against_agent(run: ScoredRun) -> str:
    """Whether the product's mode repeats the agent's own q."""
    fusions = [(row.get("agent") or {}).get("fusion") or {} for row in run.rows]
    own = np.array([fusion.get("q") for fusion in fusions], float)
    read = run.modes[run.product].scores
    both, one = np.isfinite(own) & np.isfinite(read), np.isfinite(own) ^ np.isfinite(read)
    gap = np.abs(own - read)[both].max(initial=0)
    warning = "" if gap <= PRODUCT_TOLERANCE else " They ought to agree: do not trust this mode's figures."
    return (
        f"The mode “{run.product}” is the agent's own q: on {both.sum()} rows the largest difference is {gap:.2g};"
        f" {one.sum()} rows have only one of the two.{warning}"
    )
