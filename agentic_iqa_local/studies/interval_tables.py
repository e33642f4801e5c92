"""What the intervals of q are worth on a run: how often they hold the truth, how wide they are,
what is gained by leaving the widest out, and how often a verdict of `--at-least` is wrong.

One tidy frame has a line for each picture and condition (pipeline, reference, look) that the run's
rows and the calibration allow; each table is a groupby of it. No picture is judged by a calibration
that has seen its scene.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from agentic_iqa_local.judgement.fit import Fit, read_fit
from agentic_iqa_local.judgement.intervals import (
    COVERAGE,
    FEATURES,
    HIGHEST,
    LOWEST,
    SHIPPED,
    WIDENED,
    Errors,
    IntervalCalibration,
)
from agentic_iqa_local.state import lower_edge
from agentic_iqa_local.studies.calibrating import cases
from agentic_iqa_local.studies.scored_run import PARTS, ScoredRun
from agentic_iqa_local.studies.statistics import share, srcc

GATES = {letter: lower_edge(letter) for letter in ("B", "C", "D")}  # what --at-least asks for
ERROR_RATE, ERROR_RATE_WIDENED = 0.1, 0.05  # as gates.Sureness has them
KEPT = (100, 90, 80, 70, 60, 50)  # percent
CONDITION = ["pipeline", "reference", "look"]


def interval_tables(run: ScoredRun, fit: Fit | None) -> tuple[dict[str, pd.DataFrame], str]:
    """The tables by name, and if there are none, why. `fit` calibrates in the place of the
    calibration that ships."""
    calibration = (fit or read_fit(SHIPPED)).intervals
    why_none = _why_not(run, calibration, fit)
    judged = pd.DataFrame(columns=CONDITION)
    if calibration and not why_none:
        judged = judge(run, calibration)
        if judged.empty:
            why_none = "the calibration holds no such pictures"
    tables = {"judged": judged.join(run.pictures[["key", *PARTS]])}
    for name, make in TABLES.items():
        lines = []
        for values, known in judged.groupby(CONDITION, sort=False):
            told = dict(zip(CONDITION, values, strict=True))
            lines += [told | line for line in make(run, known)]
        tables[name] = pd.DataFrame(lines)
    return tables, why_none


def _why_not(run: ScoredRun, calibration: IntervalCalibration | None, fit: Fit | None) -> str:
    """Why a calibration does not say anything of a run's intervals; "" where it does."""
    if calibration is None:
        return "the fit calibrates none"
    if not run.run.dataset.on_levels:
        return "the human scores are not of categories with known ends"
    if run.run.fusion.mode != "logits":
        return "they are of the mode logits"
    fusion, model, identity = run.run.fusion, run.run.model, run.run.identity
    ours = fusion.letters_temperature, fusion.eta, model.dtype, model.quantization, identity.model
    theirs = calibration.temperature, calibration.eta, calibration.dtype, calibration.quantization
    alike = ours == (*theirs, calibration.model) and identity.reads.query == calibration.query
    return "" if fit or alike else "the shipped calibration is of another model, query or fusion"


def judge(run: ScoredRun, calibration: IntervalCalibration) -> pd.DataFrame:
    """The tidy frame: what `judged_by` says of each picture (the index is its row) under each
    CONDITION."""
    fitted = {"temperature": calibration.temperature, "eta": calibration.eta}
    settings = run.run.fusion.model_copy(update=fitted)
    parts = [pd.DataFrame(columns=CONDITION)]
    for condition, known in cases(run.readings, run.levels, run.run, settings).items():
        part = calibration.of(condition)
        if part:
            parts.append(judged_by(part, known).assign(**condition.model_dump()))
            parts[-1]["reference"] = "with" if condition.reference else "without"
    return pd.concat(parts)


def judged_by(part: Errors, known: pd.DataFrame) -> pd.DataFrame:
    """One calibration's word on pictures, a table of `calibrating.cases`: a line for each, in
    levels.

    Columns are q, the truth and what q lets expect of it, the interval's `width`, whether it holds
    the truth (`covered`) and is `widened`, and under each letter of GATES the probability of that
    truth or a better.
    """
    q, truth = known.q.to_numpy(), known.truth.to_numpy()
    expected, difficulty = part.expected(q), part.difficulty(known[[*FEATURES]].to_numpy())
    widened = np.array([voters not in part.tools for voters in known.voters])
    usual, wide = (part.ends(q, difficulty, coverage) for coverage in (COVERAGE, WIDENED))
    low, high = np.where(widened[:, None], wide, usual).T
    covered = (low <= truth) & (truth <= high)
    table = pd.DataFrame({"q": q, "truth": truth, "expected": expected}, known.index)
    table = table.assign(width=high - low, covered=covered.astype(float), widened=widened)
    for letter, quality in GATES.items():
        table[letter] = part.probability_at_least(q, difficulty, quality)
    return table


def _mean(run: ScoredRun, name: str, values: pd.Series) -> dict[str, float]:
    """The mean of a column of some pictures, with its interval."""
    return run.draws.figure(name, np.mean, values.reindex(range(len(run.rows))))


def _intervals(run: ScoredRun, known: pd.DataFrame) -> list[dict[str, Any]]:
    line = {"n": len(known)}
    line |= _mean(run, "coverage", known.covered)
    line |= _mean(run, "width", known.width)
    return [line | {"srcc": srcc(known.q.to_numpy(), known.truth.to_numpy())}]


def _abstaining(run: ScoredRun, known: pd.DataFrame) -> list[dict[str, Any]]:
    """Error and SRCC of the pictures that are kept when those with the widest intervals are left
    out."""
    lines = []
    narrowest = known.sort_values("width", kind="stable")
    for percent in KEPT:
        kept = narrowest[: math.ceil(percent * len(known) / 100)]
        error = (kept.truth - kept.expected.clip(LOWEST, HIGHEST)).abs()
        line = {"kept": f"{percent} %", "n": len(kept), "widest": kept.width.iloc[-1]}
        line |= _mean(run, "mean_error", error)
        lines.append(line | {"srcc": srcc(kept.q.to_numpy(), kept.truth.to_numpy())})
    return lines


def _gates(_: ScoredRun, known: pd.DataFrame) -> list[dict[str, Any]]:
    """How many pictures a gate decides, as `gates.Sureness` does, and how many of them wrongly."""
    lines = []
    sure = 1 - np.where(known.widened, ERROR_RATE_WIDENED, ERROR_RATE)
    for letter, quality in GATES.items():
        passed, failed = known[letter] >= sure, 1 - known[letter] >= sure
        decided = passed | failed
        wrong = decided & (passed != (known.truth >= quality))
        line = {"at_least": letter, "n": len(known), "decided": decided.mean()}
        lines.append(line | share("error", wrong.sum(), decided.sum()))
    return lines


TABLES = {
    "intervals": _intervals,
    "abstaining": _abstaining,
    "gates": _gates,
}
