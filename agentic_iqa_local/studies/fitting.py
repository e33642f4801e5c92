"""Fits p_c's temperature and α_c's η, and a calibration of the intervals, on rows that are then not scored.

rps       minimises the ranked probability score of the fused distribution w ∝ α·p against the human levels: for
          scales of absolute categories
srcc      maximises SRCC of q with the human scores: for any scale
keep      fits neither: for the calibration of intervals alone

A fit that runs to a bound is refused, since a larger range would give another.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.judgement.fit import HIGHEST, LOWEST, SCALES, Fit, FitError, Objective
from agentic_iqa_local.judgement.intervals import IntervalCalibration
from agentic_iqa_local.score_fusion import fused_distribution
from agentic_iqa_local.studies.calibrating import answers, cases, errors
from agentic_iqa_local.studies.datasets import DatasetInfo, listed
from agentic_iqa_local.studies.readings import LEVELS, Readings, Row, fused
from agentic_iqa_local.studies.statistics import ranked_probability_scores, srcc
from agentic_iqa_local.studies.store import read_run
from agentic_iqa_local.studies.study import dataset_info, fusion_settings

READ = "all_evidence"  # the product's own
FEWEST = 20
Pair = tuple[float, float]  # temperature and η


class Part(NamedTuple):
    """The rows of a run that a fit uses."""

    run: dict[str, Any]
    rows: list[Row]
    info: DatasetInfo


def fit_runs(
    folders: Sequence[Path], objective: Objective, *, split: str | None, share: float, called: str | None = None
) -> Fit:
    """A fit of temperature, η and intervals on a part of runs.

    Args:
        folders: Runs of the same data set, model and fusion; with "keep" runs on questions too, which calibrate sets
            of answers.
        objective: As at the top of this module.
        split: The official split to fit on.
        share: Without `split`, the share of the scenes (of the images, where there are none) drawn with seed 0.
        called: What rows call the set.

    Raises:
        FitError, StoreError, StudyError, DatasetError: Runs that cannot be used, or no fit.
    """
    if not 0 < share <= 1:
        raise FitError(f"--share {share:g}: expected a share of the scenes from 0 to 1, such as 0.3")
    parts = [_part(folder, objective, split, share) for folder in folders]
    first = next((part for part in parts if part.info.kind != "MCQ"), parts[0])
    _check_alike(folders, parts, first)
    settings, rows = fusion_settings(first.run), [row for part in parts for row in part.rows]
    before = after = 0.0
    if objective != "keep":
        targets = _targets(rows, first.info, objective)
        (temperature, eta), before, after = fit_letters(rows, objective, targets, settings)
        settings = settings.model_copy(update={"temperature": temperature, "eta": eta})
    return Fit(
        temperature=settings.temperature,
        eta=settings.eta,
        objective=objective,
        before=before,
        after=after,
        dataset=first.info.key,
        model=first.run["identity"]["model"],
        keys=tuple(dict.fromkeys(row["key"] for row in rows)),
        groups=tuple(sorted({row["group"] for row in rows if row.get("group") is not None})),
        intervals=_calibration(parts, first.run, settings, called or first.info.title),
    )


def _part(folder: Path, objective: Objective, split: str | None, share: float) -> Part:
    """The rows of a run that are fitted on. Raises FitError where there are none, or with an objective no others."""
    run, rows = read_run(folder)
    info = dataset_info(run)
    if info.kind == "MCQ" and objective != "keep":
        remedy = "fit on a scored run; --objective keep calibrates the sets of answers alone"
        raise FitError(f"{folder}: expected a run on images with human scores, got one on questions", remedy)
    if split is None:
        units = sorted({row.get("group") or row["key"] for row in rows})
        drawn = set(np.random.default_rng(0).permutation(units)[: round(share * len(units))])
        used = [row for row in rows if (row.get("group") or row["key"]) in drawn]
        remedy = f"take another share than {share:g}"
    else:
        used = [row for row in rows if row["split"] == split]
        remedy = f"the splits are {listed(sorted({row['split'] or 'unknown: use --share' for row in rows}))}"
    if not used:
        raise FitError(f"{folder}: expected rows to fit on, found none of {len(rows)}", remedy)
    if len(used) == len(rows) and objective != "keep":
        raise FitError(f"{folder}: expected rows that the fit does not use, it would use all {len(rows)}", remedy)
    return Part(run, used, info)


def _check_alike(folders: Sequence[Path], parts: Sequence[Part], first: Part) -> None:
    """Raises FitError where a run has another model than the first, or with scores another data set or fusion."""
    for folder, (run, _, info) in zip(folders, parts, strict=True):
        same = info.kind == "MCQ" or (info.key, run["fusion"]) == (first.info.key, first.run["fusion"])
        if run["identity"]["model"] != first.run["identity"]["model"] or not same:
            expected = f"the data set, model and fusion of {folders[parts.index(first)]}"
            raise FitError(f"{folder}: expected {expected}, got others", "fit them apart")


def _calibration(
    parts: Sequence[Part], run: dict[str, Any], settings: FusionSettings, source: str
) -> IntervalCalibration | None:
    """What calibrates the intervals of answers that are fused by `settings`; None where no row has a place on the
    scale 1..5, or the run does not tell in which numbers its model computed."""
    rng, model = np.random.default_rng(0), run["model"]
    known: dict[Any, list[pd.DataFrame]] = {}
    for part in parts:
        if part.info.scale == "absolute categories" and part.info.low is not None:
            truth = _targets(part.rows, part.info, "rps")
            for condition, table in cases(Readings(part.rows, settings.vote), truth, part.run, settings).items():
                known.setdefault(condition, []).append(table)
    questions = tuple(answers([row for part in parts if part.info.kind == "MCQ" for row in part.rows]))
    if not (known or questions) or not {"dtype", "quantization"} <= model.keys():
        return None
    return IntervalCalibration(
        source=source,
        images=len({row["sha256"] for part in parts for row in part.rows if row.get("sha256")}),
        date=time.strftime("%Y-%m-%d"),
        model=run["identity"]["model"],
        query=run["identity"]["reads"]["query"],
        ratings=tuple(errors(condition, pd.concat(tables), rng) for condition, tables in known.items()),
        questions=questions,
        **{name: model[name] for name in ("dtype", "quantization")},
        **settings.model_dump(include={"mode", "temperature", "eta"}),
    )


def _targets(rows: Sequence[Row], info: DatasetInfo, objective: Objective) -> np.ndarray:
    """The human scores as the objective needs them, (rows,)."""
    mos = np.array([row["mos"] for row in rows], float)
    if objective == "rps":  # some sets go a little beyond the ends of their scale
        return np.clip([info.to_levels(m) for m in mos], LEVELS[0], LEVELS[-1])
    return mos if info.higher_is_better else -mos


def fit_letters(
    rows: Sequence[Row], objective: Objective, targets: np.ndarray, settings: FusionSettings
) -> tuple[Pair, float, float]:
    """The temperature and η that an objective is best at, and the objective before and after.

    `targets` (rows,) are human levels in 1..5 for rps, human scores with higher better for srcc. Rows that failed or
    that no tool scored are left out. Raises FitError for fewer than twenty rows, scores that are all alike, or a fit
    that runs to a bound.
    """
    readings = Readings(rows, settings.vote)
    usable = readings.agent["q_bar"].notna().to_numpy() & np.isfinite(readings.p(READ)[:, 0])
    if usable.sum() < FEWEST:
        expected = f"expected at least {FEWEST} images with letters and tool scores"
        raise FitError(f"fit: {expected}, got {usable.sum()}", "use more images")
    columns = targets, readings.agent["q_bar"].to_numpy(), readings.eta(settings.eta)
    target, q_bar, own = (column[usable] for column in columns)

    @lru_cache(maxsize=32)
    def p(temperature: float) -> np.ndarray:
        return readings.p(READ, temperature=temperature)[usable]

    def value(temperature: float, eta: float | np.ndarray) -> float:
        if objective == "rps":
            return float(ranked_probability_scores(fused_distribution(p(temperature), q_bar, eta), target).mean())
        return srcc(fused(p(temperature), q_bar, eta), target)

    before = value(settings.temperature, own)
    if np.isnan(before):
        raise FitError("fit: expected human and fused scores that differ, got some that are all alike", "use others")
    sign = -1.0 if objective == "srcc" else 1.0
    configured = settings.temperature, float(np.median(own))
    best = least(lambda t, e: float(np.nan_to_num(sign * value(t, e), nan=np.inf)), configured, SCALES[objective])
    return best, before, value(*best)


def least(loss: Callable[[float, float], float], configured: Pair, name: str) -> Pair:
    """The temperature and η of the least loss: the best of a coarse grid, refined, for no objective is convex. Where
    several are as good, the one nearest to the `configured` pair. Raises FitError where the least lies at a bound;
    `name` is what it calls the loss."""
    start: Pair = tuple(np.clip(configured, LOWEST, HIGHEST).tolist())
    grid = np.geomspace(LOWEST, HIGHEST, 17).tolist()
    losses = {pair: loss(*pair) for pair in [start, *itertools.product(grid, grid)]}
    best = min(losses, key=lambda pair: (losses[pair], np.abs(np.log(pair) - np.log(start)).sum()))
    bounds = [(np.log(LOWEST), np.log(HIGHEST))] * 2
    options = {"xatol": 1e-3, "fatol": 1e-6}
    refined = minimize(lambda x: loss(*np.exp(x)), np.log(best), method="Nelder-Mead", bounds=bounds, options=options)
    if refined.fun < losses[best]:
        best = tuple(np.exp(refined.x).tolist())
    for what, fitted in zip(("the temperature", "η"), best, strict=True):
        if not LOWEST * 1.01 < fitted < HIGHEST / 1.01:
            expected = f"expected an optimum inside {LOWEST} to {HIGHEST}"
            got = f"{name} was still getting better where {what} reached {fitted:.3g}"
            raise FitError(f"fit: {expected}, but {got}", "use more images, or another --objective")
    return best
