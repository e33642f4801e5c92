"""What are the intervals of q worth on a run: how often they hold the truth, how wide they are, what is
gained by leaving the widest out, and how often a verdict of `--at-least` is wrong?

Each table has a line for every condition (pipeline, reference, look) that the run's rows allow, under the
calibration that is given and under the run's own, cross-fitted by halves.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import binomtest

from agentic_iqa_local.state import Look, lower_edge
from agentic_iqa_local.studies.calibrating import Cases, cases
from agentic_iqa_local.studies.coverage import (
    SPLITS,
    Trial,
    both_halves,
    cross_fitted,
    per_picture,
    rank_matched,
    trial,
)
from agentic_iqa_local.studies.distortions import DISTORTIONS
from agentic_iqa_local.studies.given import Given
from agentic_iqa_local.studies.letters import mean_interval
from agentic_iqa_local.studies.pairwise import pairwise
from agentic_iqa_local.studies.readings import LEVELS, Letters
from agentic_iqa_local.studies.statistics import srcc
from agentic_iqa_local.studies.study import Study, Table, fusion_settings, mean, spread

GATES = ("B", "C", "D")
ERROR_RATE, ERROR_RATE_WIDENED = 0.1, 0.05  # as sureness.Gate has them
FEWEST = 50  # pictures in all: a calibration of half of them can give 90 %
KEPT = (100, 90, 80, 70, 60, 50)  # percent
QUINTILES = 5
ON_LEVELS, ON_RANKS = "levels", "ranks"
HALVES = f"own, {SPLITS} random halves"
_GATE_QUALITY = tuple(lower_edge(letter) for letter in GATES)


@dataclass(frozen=True, eq=False)
class IntervalTables:
    """The tables by name, what could not be made, and the widths of the agent's intervals, (rows,), by the
    look."""

    tables: dict[str, Table]
    notes: list[str]
    widths: dict[Look, np.ndarray]


@dataclass(frozen=True, eq=False)
class _Judged:
    """The cases of one condition under one calibration, by its trials, with the truth on one scale. `whole`
    has each picture once."""

    known: Cases
    calibration: str
    scale: str
    trials: Sequence[Trial]
    whole: Trial

    @property
    def line(self) -> dict[str, Any]:
        """The first columns of every table."""
        condition = self.known.condition
        return {
            "pipeline": condition.pipeline,
            "reference": "with" if condition.reference else "without",
            "look": condition.look,
            "calibration": self.calibration,
            "scale": self.scale,
        }

    def rows(self, study: Study, name: str) -> np.ndarray:
        """The mean of a trial's field for each of the study's rows (rows,), nan where there is none."""
        values = np.full(len(study.rows), np.nan)
        values[self.known.rows] = per_picture(self.trials, name, len(self.known.q))
        return values


def interval_tables(study: Study, letters: Letters, given: Given | None) -> IntervalTables:
    """All of a run, with the fusion's parameters `letters`."""
    notes: list[str] = []
    found = list(_judged(study, letters, given, notes))
    tables = {
        "intervals": [_line(study, judged) for judged in found],
        "intervals_within": [line for judged in found for line in _within(study, judged)],
        "abstaining": [line for judged in found for line in _abstaining(study, judged)],
        "gates": [line for judged in found if judged.scale == ON_LEVELS for line in _gates(judged)],
        "pairwise": [
            judged.line | line for judged in found for line in pairwise(study, judged.known, judged.whole)
        ],
    }
    return IntervalTables(tables, notes, _widths(study, found))


def _widths(study: Study, found: Sequence[_Judged]) -> dict[Look, np.ndarray]:
    widths: dict[Look, np.ndarray] = {}
    for judged in found:  # the run's own come last, and replace those of a calibration from elsewhere
        if judged.known.condition.pipeline == "agent":
            of = widths.setdefault(judged.known.condition.look, np.full(len(study.rows), np.nan))
            of[judged.known.rows] = judged.whole.width
    return widths


def _judged(study: Study, letters: Letters, given: Given | None, notes: list[str]) -> Iterator[_Judged]:
    if fusion_settings(study.run).mode != "logits":
        notes.append("No figures of intervals: they are of the mode logits, the run was made with another.")
        return
    truth, on_levels = study.quality, study.info.scale == "absolute categories" and study.info.low is not None
    if on_levels:
        truth = np.clip([study.info.to_levels(m) for m in study.mos], LEVELS[0], LEVELS[-1])
    else:
        notes.append(
            "The human scores are not of absolute categories with known ends: intervals are judged by ranks"
            " alone, and no calibration is fitted on this run."
        )
    if given:
        yield from _under_given(study, letters, given, truth, notes, on_levels=on_levels)
    if on_levels:
        yield from _under_own(study, letters, truth, notes)


def _under_given(
    study: Study,
    letters: Letters,
    given: Given,
    truth: np.ndarray,
    notes: list[str],
    *,
    on_levels: bool,
) -> Iterator[_Judged]:
    calibration = given.calibration
    if calibration is None:
        notes.append(f"No figures of intervals with {given.name}: {given.missing}.")
        return
    if given.seen.all():
        notes.append(f"No figures of intervals with {given.name}: it was made on these scenes.")
        return
    letters = replace(letters, temperature=calibration.temperature, eta=calibration.eta)
    for known in cases(study.rows, np.where(given.seen, np.nan, truth), study.run, letters):
        part = calibration.of(known.condition)
        if part is None:
            notes.append(
                f"No figures of intervals with {given.name} for {_named(known)}: it holds no such picture."
            )
            continue
        everything = np.arange(len(known.q))
        if on_levels:
            found = trial(part, known, everything, thresholds=_GATE_QUALITY)
            yield _Judged(known, given.name, ON_LEVELS, [found], found)
        expected = np.clip(part.expected(known.q), LEVELS[0], LEVELS[-1])
        matched = replace(known, truth=rank_matched(known.truth, expected))
        found = trial(part, matched, everything)
        yield _Judged(matched, given.name, ON_RANKS, [found], found)


def _under_own(study: Study, letters: Letters, truth: np.ndarray, notes: list[str]) -> Iterator[_Judged]:
    looks = set()
    for known in cases(study.rows, truth, study.run, letters):
        looks.add(known.condition.look)
        known = replace(known, scenes=study.draws.unit[known.rows].astype(str))
        units = len(np.unique(known.scenes))
        if len(known.q) < FEWEST or units < 2:
            notes.append(
                f"No calibration of the run's own for {_named(known)}: {len(known.q)} pictures of {units}"
                f" {study.draws.over}, it takes {FEWEST} of 2."
            )
            continue
        yield _Judged(known, HALVES, ON_LEVELS, cross_fitted(known, _GATE_QUALITY), both_halves(known))
    if "crops" not in looks:
        notes.append("No figures of intervals after a look at crops: this run did not read them.")


def _named(known: Cases) -> str:
    condition = known.condition
    reference = "with" if condition.reference else "without"
    return f"the pipeline {condition.pipeline} {reference} a reference, {condition.look}"


def _line(study: Study, judged: _Judged) -> dict[str, Any]:
    known, trials = judged.known, judged.trials
    covered = mean_interval(study, judged.rows(study, "covered"))
    coverages = [float(found.covered.mean()) for found in trials]
    width = mean_interval(study, judged.rows(study, "width"))
    alike = sum((row.get("reference") is not None) == known.condition.reference for row in study.rows)
    return judged.line | {
        "n": len(known.q),
        "share": len(known.q) / alike,
        **spread("coverage", covered),
        "coverage_sd": float(np.std(coverages)) if len(trials) > 1 else math.nan,
        **spread("width", width),
        "constant_width": mean(judged.rows(study, "constant")[known.rows]),
        "constant_width_of_q": mean(judged.rows(study, "constant_of_q")[known.rows]),
        "widened": mean(judged.rows(study, "widened")[known.rows]),
        "srcc": srcc(known.q, known.truth),
    }


def _within(study: Study, judged: _Judged) -> Iterator[dict[str, Any]]:
    covered, width = judged.rows(study, "covered"), judged.rows(study, "width")
    for by, labels in _labels(study, judged.known):
        for value in sorted({label for label in labels if label is not None}):
            chosen = np.array([label == value for label in labels])
            inside = np.where(chosen, covered, np.nan)
            figure = mean_interval(study, inside)
            if not figure.n:
                continue
            yield judged.line | {
                "by": by,
                "value": value,
                "n": figure.n,
                **spread("coverage", figure),
                "width": mean(width[chosen & np.isfinite(width)]),
            }


def _labels(study: Study, known: Cases) -> Iterator[tuple[str, list[Any]]]:
    """(what the rows are told apart by, the label of each of the study's rows)."""
    kinds = [row.get("distortion") for row in study.rows]
    families = [DISTORTIONS[kind].family if kind in DISTORTIONS else None for kind in kinds]
    for by, labels in (
        ("family", families),
        ("distortion", kinds),
        ("level", [row.get("level") for row in study.rows]),
    ):
        if len({label for label in labels if label is not None}) > 1:
            yield by, labels
    fifths: list[Any] = [None] * len(study.rows)
    place = np.argsort(np.argsort(known.q, kind="stable")) * QUINTILES // len(known.q)
    for row, fifth in zip(known.rows, place, strict=True):
        fifths[row] = int(fifth) + 1
    yield "fifth of q", fifths


def _abstaining(study: Study, judged: _Judged) -> Iterator[dict[str, Any]]:
    """Error and SRCC of the pictures that are kept when those with the widest intervals are left out."""
    whole, known = judged.whole, judged.known
    error = np.abs(known.truth - np.clip(whole.expected, LEVELS[0], LEVELS[-1]))
    order = np.argsort(whole.width, kind="stable")
    for share in KEPT:
        kept = np.sort(order[: math.ceil(share * len(order) / 100)])
        values = np.full(len(study.rows), np.nan)
        values[known.rows[kept]] = error[kept]
        yield judged.line | {
            "kept": f"{share} %",
            "n": len(kept),
            "widest": float(whole.width[order[len(kept) - 1]]),
            **spread("mean_error", mean_interval(study, values)),
            "srcc": srcc(known.q[kept], known.truth[kept]),
        }


def _gates(judged: _Judged) -> Iterator[dict[str, Any]]:
    for i, (letter, quality) in enumerate(zip(GATES, _GATE_QUALITY, strict=True)):
        counted = np.array([_verdicts(found, judged.known.truth, i, quality) for found in judged.trials])
        asked, decided, wrong = counted.mean(axis=0)
        rates = counted[:, 2] / np.where(counted[:, 1] > 0, counted[:, 1], np.nan)
        row = judged.line | {"at_least": letter, "n": round(asked), "decided": decided / asked}
        row |= dict.fromkeys(("error", "error_low", "error_high"), math.nan)
        if round(decided):
            ends = binomtest(round(wrong), round(decided)).proportion_ci(method="wilson")
            row |= {"error": wrong / decided, "error_low": ends.low, "error_high": ends.high}
        yield row | {"error_sd": float(np.nanstd(rates)) if len(rates) > 1 else math.nan}


def _verdicts(found: Trial, truth: np.ndarray, gate: int, quality: float) -> tuple[int, int, int]:
    """(pictures, those decided, those decided wrongly) of one gate, as `Sureness.gate` decides."""
    probability, good = found.at_least[:, gate], truth[found.at] >= quality
    sure = 1 - np.where(found.widened, ERROR_RATE_WIDENED, ERROR_RATE)
    passed = probability >= sure
    failed = ~passed & (1 - probability >= sure)
    wrong = (passed & ~good) | (failed & good)
    return len(good), int((passed | failed).sum()), int(wrong.sum())
