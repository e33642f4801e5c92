"""What are the intervals of q worth on a run: how often they hold the truth, how wide they are, what is gained by
leaving the widest out, and how often a verdict of `--at-least` is wrong?

Each table has a line for every condition (pipeline, reference, look) that the run's rows allow, under a calibration
from elsewhere and under the run's own, cross-fitted by halves.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.judgement.fit import Fit, read_fit
from agentic_iqa_local.judgement.intervals import SHIPPED
from agentic_iqa_local.result import Condition
from agentic_iqa_local.studies.calibrating import cases
from agentic_iqa_local.studies.coverage import GATES, SPLITS, both_halves, cross_fitted, rank_matched, trial
from agentic_iqa_local.studies.distortions import DISTORTIONS
from agentic_iqa_local.studies.pairwise import pairwise
from agentic_iqa_local.studies.readings import LEVELS
from agentic_iqa_local.studies.scored_run import ScoredRun
from agentic_iqa_local.studies.statistics import mean, srcc

ERROR_RATE, ERROR_RATE_WIDENED = 0.1, 0.05  # as gates.Sureness has them
FEWEST = 50  # pictures in all: a calibration of half of them can give 90 %
KEPT = (100, 90, 80, 70, 60, 50)  # percent
QUINTILES = 5
OWN = f"own, {SPLITS} random halves"
Line = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Judged:
    """The pictures of one condition (a table of `cases`) under one calibration: its trials, and `whole` with each
    picture once. `line` are the first columns of every table."""

    line: Line
    known: pd.DataFrame
    trials: list[pd.DataFrame]
    whole: pd.DataFrame

    def mean(self, name: str, count: int) -> np.ndarray:
        """The mean of a trial's column for each of a run's rows, (count,); nan where there is none."""
        return pd.concat(self.trials)[name].groupby(level=0).mean().reindex(range(count)).to_numpy()


def interval_tables(
    run: ScoredRun, fit: Fit | None
) -> tuple[dict[str, pd.DataFrame], list[str], dict[str, np.ndarray]]:
    """The tables by name, what could not be made, and by look the widths of the agent's intervals, (rows,). `fit`
    calibrates them in the place of the calibration that ships."""
    notes: list[str] = []
    found = list(_judged(run, fit, notes))
    tables = {
        name: pd.DataFrame([judged.line | line for judged in found for line in make(run, judged)])
        for name, make in TABLES.items()
    }
    widths: dict[str, np.ndarray] = {}
    for judged in found:  # the run's own come last, and replace those of a calibration from elsewhere
        if judged.line["pipeline"] == "agent":
            of = widths.setdefault(judged.line["look"], np.full(len(run.rows), np.nan))
            of[judged.whole.index] = judged.whole.width
    return tables, notes, widths


def _judged(run: ScoredRun, fit: Fit | None, notes: list[str]) -> Iterator[Judged]:
    if run.settings.mode != "logits":
        notes.append("No figures of intervals: they are of the mode logits, the run was made with another.")
        return
    yield from _under_given(run, fit, notes)
    if run.on_levels:
        yield from _under_own(run, notes)
        return
    notes.append(
        "The human scores are not of absolute categories with known ends: intervals are judged by ranks alone, and no"
        " calibration is fitted on this run."
    )


def _truth(run: ScoredRun) -> np.ndarray:
    return np.clip(run.levels[0], LEVELS[0], LEVELS[-1]) if run.on_levels else run.quality


def given_calibration(run: dict[str, Any], settings: FusionSettings, fit: Fit | None) -> tuple[Fit | None, str]:
    """The calibration from elsewhere that a run's pictures get, that of `fit` or else the shipped one where it is of
    the run's model, numbers, query and fusion; or None and the reason."""
    given = fit or (read_fit(SHIPPED) if SHIPPED.is_file() else None)
    if given is None or given.intervals is None:
        return None, "it calibrates no intervals"
    if fit is None:
        ours = {name: run["model"].get(name) for name in ("dtype", "quantization")}
        ours |= {"model": run["identity"]["model"], "query": run["identity"]["reads"]["query"]}
        ours |= {name: getattr(settings, name) for name in ("mode", "temperature", "eta")}
        if other := [name for name, value in ours.items() if getattr(given.intervals, name) != value]:
            return None, f"it was made with another {' and another '.join(other)}"
    return given, ""


def _under_given(run: ScoredRun, fit: Fit | None, notes: list[str]) -> Iterator[Judged]:
    name = "the fit" if fit else "shipped"
    given, missing = given_calibration(run.run, run.settings, fit)
    seen = np.full(len(run.rows), False)
    if given and given.dataset == run.info.key:
        seen = np.array([given.used(row) for row in run.rows])
    if given is None or given.intervals is None or seen.all():
        notes.append(f"No figures of intervals with {name}: {missing or 'it was made on these scenes'}.")
        return
    fitted = {"temperature": given.intervals.temperature, "eta": given.intervals.eta}
    truth, settings = np.where(seen, np.nan, _truth(run)), run.settings.model_copy(update=fitted)
    for condition, known in cases(run.readings, truth, run.run, settings).items():
        part = given.intervals.of(condition)
        if part is None:
            notes.append(f"No figures of intervals with {name} for {_named(condition)}: it holds no such picture.")
            continue
        expected = np.clip(part.expected(known.q.to_numpy()), LEVELS[0], LEVELS[-1])
        scales = {"levels": known} if run.on_levels else {}
        scales["ranks"] = known.assign(truth=rank_matched(known.truth.to_numpy(), expected))
        for scale, judged in scales.items():
            whole = trial(part, judged)
            yield Judged(_first(condition, name, scale), judged, [whole], whole)


def _under_own(run: ScoredRun, notes: list[str]) -> Iterator[Judged]:
    found = cases(run.readings, _truth(run), run.run, run.settings)
    for condition, known in found.items():
        known = known.assign(scene=run.draws.unit[known.index].astype(str))
        units = known.scene.nunique()
        if len(known) < FEWEST or units < 2:
            notes.append(
                f"No calibration of the run's own for {_named(condition)}: {len(known)} pictures of {units}"
                f" {run.draws.over}, it takes {FEWEST} of 2."
            )
            continue
        trials, whole = cross_fitted(condition, known), both_halves(condition, known)
        yield Judged(_first(condition, OWN, "levels"), known, trials, whole)
    if not any(condition.look == "crops" for condition in found):
        notes.append("No figures of intervals after a look at crops: this run did not read them.")


def _first(condition: Condition, calibration: str, scale: str) -> Line:
    reference = "with" if condition.reference else "without"
    line = {"pipeline": condition.pipeline, "reference": reference, "look": condition.look}
    return line | {"calibration": calibration, "scale": scale}


def _named(condition: Condition) -> str:
    reference = "with" if condition.reference else "without"
    return f"the pipeline {condition.pipeline} {reference} a reference, {condition.look}"


def _intervals(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    known, count = judged.known, len(run.rows)
    with_reference = judged.line["reference"] == "with"
    alike = sum((row.get("reference") is not None) == with_reference for row in run.rows)
    coverages = [trial.covered.mean() for trial in judged.trials]
    yield {
        "n": len(known),
        "share": len(known) / alike,
        **run.draws.mean("coverage", judged.mean("covered", count)),
        "coverage_sd": np.std(coverages) if len(coverages) > 1 else math.nan,
        **run.draws.mean("width", judged.mean("width", count)),
        "constant_width": mean(judged.mean("constant", count)[known.index]),
        "constant_width_of_q": mean(judged.mean("constant_of_q", count)[known.index]),
        "widened": mean(judged.mean("widened", count)[known.index]),
        "srcc": srcc(known.q.to_numpy(), known.truth.to_numpy()),
    }


def _within(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    """Coverage and width within distortion families, kinds, levels and fifths of q."""
    covered, width = (judged.mean(name, len(run.rows)) for name in ("covered", "width"))
    kinds = [row.get("distortion") for row in run.rows]
    families = [DISTORTIONS[kind].family if kind in DISTORTIONS else None for kind in kinds]
    labels = {"family": families, "distortion": kinds, "level": [row.get("level") for row in run.rows]}
    series = {by: pd.Series(of, dtype=object) for by, of in labels.items() if len({*of} - {None}) > 1}
    q = judged.known.q
    fifths = pd.Series(np.argsort(np.argsort(q, kind="stable")) * QUINTILES // len(q) + 1, q.index)
    series["fifth of q"] = fifths.reindex(range(len(run.rows)))
    for by, of in series.items():
        for value in sorted(of.dropna().unique()):
            chosen = (of == value).to_numpy() & np.isfinite(covered)
            if chosen.any():
                shown = f"{value:g}" if isinstance(value, float) else value
                line = {"by": by, "value": shown, "n": chosen.sum(), "width": mean(width[chosen])}
                yield line | run.draws.mean("coverage", np.where(chosen, covered, np.nan))


def _abstaining(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    """Error and SRCC of the pictures that are kept when those with the widest intervals are left out."""
    whole = judged.whole.sort_values("width", kind="stable")
    error = (whole.truth - whole.expected.clip(LEVELS[0], LEVELS[-1])).abs()
    for share in KEPT:
        kept = whole[: math.ceil(share * len(whole) / 100)]
        of = error[kept.index].reindex(range(len(run.rows))).to_numpy()
        line = {"kept": f"{share} %", "n": len(kept), "widest": kept.width.iloc[-1]}
        line |= run.draws.mean("mean_error", of)
        yield line | {"srcc": srcc(kept.q.to_numpy(), kept.truth.to_numpy())}


def _gates(run: ScoredRun, judged: Judged) -> Iterator[Line]:
    for letter, quality in GATES.items() if judged.line["scale"] == "levels" else ():
        counted = np.array([_verdicts(trial, letter, quality) for trial in judged.trials])
        asked, decided, wrong = counted.mean(axis=0)
        rates = [wrong / decided for _, decided, wrong in counted if decided]
        line = {"at_least": letter, "n": round(asked), "decided": decided / asked}
        line |= dict.fromkeys(("error", "error_low", "error_high"), math.nan)
        if round(decided):
            ends = binomtest(round(wrong), round(decided)).proportion_ci(method="wilson")
            line |= {"error": wrong / decided, "error_low": ends.low, "error_high": ends.high}
        yield line | {"error_sd": np.std(rates) if len(rates) > 1 else math.nan}


def _verdicts(trial: pd.DataFrame, letter: str, quality: float) -> tuple[int, int, int]:
    """How many pictures there are, how many a gate decides, and how many of them wrongly, as `gates.Sureness` does."""
    sure = 1 - np.where(trial.widened, ERROR_RATE_WIDENED, ERROR_RATE)
    passed, good = trial[letter] >= sure, trial.truth >= quality
    failed = ~passed & (1 - trial[letter] >= sure)
    return len(trial), int((passed | failed).sum()), int(((passed & ~good) | (failed & good)).sum())


TABLES: dict[str, Callable[[ScoredRun, Judged], Iterator[Line]]] = {
    "intervals": _intervals,
    "intervals_within": _within,
    "abstaining": _abstaining,
    "gates": _gates,
    "pairwise": lambda run, judged: pairwise(run, judged.known, np.stack([*judged.whole["values"]])),
}
