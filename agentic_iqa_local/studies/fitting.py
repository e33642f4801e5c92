"""Fits p_c's temperature and α_c's η, and a calibration of the intervals, on rows that are then not scored.

rps       minimises the ranked probability score of the fused distribution w ∝ α·p against the human levels: for
          scales of absolute categories
srcc      maximises SRCC of q with the human scores: for any scale
keep      fits neither: for the calibration of intervals alone

A fit that runs to a bound is refused, since a larger range would give another.
"""

import itertools
import time
from collections.abc import Sequence
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
from agentic_iqa_local.studies.readings import LEVELS, Readings, Row
from agentic_iqa_local.studies.statistics import ranked_probability_scores, srcc
from agentic_iqa_local.studies.store import dataset_info, fusion_settings, read_run

READ = "all_evidence"  # the product's own
FEWEST = 20
Pair = tuple[float, float]  # temperature and η


class Part(NamedTuple):
    """The rows of a run that a fit uses."""

    run: dict[str, Any]
    rows: list[Row]
    info: DatasetInfo

    @property
    def levels(self) -> np.ndarray:
        """The human scores in 1..5, (rows,); those of some sets go a little beyond the ends of their scale."""
        return np.clip([self.info.to_levels(row["mos"]) for row in self.rows], LEVELS[0], LEVELS[-1])


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
    for folder, part in zip(folders, parts, strict=True):
        same = part.info.kind == "MCQ" or (part.info.key, part.run["fusion"]) == (first.info.key, first.run["fusion"])
        if part.run["identity"]["model"] != first.run["identity"]["model"] or not same:
            expected = f"the data set, model and fusion of {folders[parts.index(first)]}"
            raise FitError(f"{folder}: expected {expected}, got others", "fit them apart")
    settings, rows = fusion_settings(first.run), [row for part in parts for row in part.rows]
    before = after = 0.0
    if objective != "keep":
        mos = np.array([row["mos"] for row in rows], float)
        targets = mos if first.info.higher_is_better else -mos
        if objective == "rps":
            targets = np.concatenate([part.levels for part in parts])
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
    units = [row.get("group") or row["key"] for row in rows]
    if split is None:
        drawn = np.random.default_rng(0).permutation(sorted(set(units)))[: round(share * len(set(units)))]
        used, remedy = [row for row, unit in zip(rows, units, strict=True) if unit in drawn], f"--share is {share:g}"
    else:
        used = [row for row in rows if row["split"] == split]
        remedy = f"the splits are {listed(sorted({row['split'] or 'unknown: use --share' for row in rows}))}"
    if not used or (len(used) == len(rows) and objective != "keep"):
        expected = "expected some rows to fit on and others to judge the fit by"
        raise FitError(f"{folder}: {expected}, it would use {len(used)} of {len(rows)}", remedy)
    return Part(run, used, info)


def _calibration(
    parts: Sequence[Part], run: dict[str, Any], settings: FusionSettings, source: str
) -> IntervalCalibration | None:
    """What calibrates the intervals of answers that are fused by `settings`; None where no row has a place on the
    scale 1..5, or the run does not tell in which numbers its model computed."""
    rng, model = np.random.default_rng(0), run["model"]
    known: dict[Any, list[pd.DataFrame]] = {}
    for part in parts:
        if part.info.scale == "absolute categories" and part.info.low is not None:
            readings = Readings(part.rows, settings.vote)
            for condition, table in cases(readings, part.levels, part.run, settings).items():
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
        dtype=model["dtype"],
        quantization=model["quantization"],
        **settings.model_dump(include={"mode", "temperature", "eta"}),
    )


def fit_letters(
    rows: Sequence[Row], objective: Objective, targets: np.ndarray, settings: FusionSettings
) -> tuple[Pair, float, float]:
    """The temperature and η that an objective is best at, and the objective before and after: the best of a coarse
    grid, refined, for no objective is convex.

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
    letters = lru_cache(maxsize=32)(lambda temperature: readings.p(READ, temperature=temperature)[usable])

    def loss(temperature: float, eta: float | np.ndarray) -> float:
        fused = fused_distribution(letters(temperature), q_bar, eta)
        if objective == "rps":
            return float(ranked_probability_scores(fused, target).mean())
        return float(np.nan_to_num(-srcc(fused @ LEVELS, target), nan=np.inf))

    before = loss(settings.temperature, own)
    if np.isinf(before):
        raise FitError("fit: expected human and fused scores that differ, got some that are all alike", "use others")
    grid, ends = np.geomspace(LOWEST, HIGHEST, 17), (np.log(LOWEST), np.log(HIGHEST))
    start = np.log(min(itertools.product(grid, grid), key=lambda pair: loss(*pair)))
    options = {"xatol": 1e-3, "fatol": 1e-6}
    refined = minimize(lambda x: loss(*np.exp(x)), start, method="Nelder-Mead", bounds=[ends] * 2, options=options)
    temperature, eta = np.exp(refined.x).tolist()
    if not all(LOWEST * 1.01 < fitted < HIGHEST / 1.01 for fitted in (temperature, eta)):
        expected = f"expected an optimum inside {LOWEST} to {HIGHEST}, but {SCALES[objective]} was still getting better"
        got = f"at temperature {temperature:.3g} and η {eta:.3g}"
        raise FitError(f"fit: {expected} {got}", "use more images, or another --objective")
    sign = -1 if objective == "srcc" else 1
    return (temperature, eta), sign * before, sign * float(refined.fun)
