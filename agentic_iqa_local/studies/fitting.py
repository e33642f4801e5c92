"""Fits p_c's temperature and α_c's η, and a calibration of the intervals, on rows that are then not scored.

The objective "rps" minimises the ranked probability score of the fused distribution against the human levels (absolute
categories), "srcc" maximises SRCC of q (any scale), "keep" fits neither: for the calibration of intervals alone.
"""

import itertools
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.judgement.fit import HIGHEST, LOWEST, SCALES, Fit, FitError, Objective
from agentic_iqa_local.judgement.intervals import IntervalCalibration
from agentic_iqa_local.score_fusion import fused_distribution
from agentic_iqa_local.studies.calibrating import answers, cases, errors
from agentic_iqa_local.studies.datasets import listed
from agentic_iqa_local.studies.readings import LEVELS, Readings, Row
from agentic_iqa_local.studies.statistics import ranked_probability_scores, srcc
from agentic_iqa_local.studies.store import Run, dataset_info, fusion_settings, read_run

READ = "all_evidence"  # the product's own
FEWEST = 20


def fit_runs(
    folders: Sequence[Path],
    objective: Objective,
    *,
    split: str | None,
    share: float,
    called: str | None = None,
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
        raise FitError(
            f"--share {share:g}: expected a share of the scenes from 0 to 1, such as 0.3"
        )
    parts = [_part(folder, objective, split, share) for folder in folders]
    first, _ = next(((run, rows) for run, rows in parts if not _asks(run)), parts[0])
    info, model = dataset_info(first), first["identity"]["model"]
    for folder, (run, _) in zip(folders, parts, strict=True):
        same = _asks(run) or (run["dataset"]["key"], run["fusion"]) == (info.key, first["fusion"])
        if run["identity"]["model"] != model or not same:
            raise FitError(
                f"{folder}: expected the data set, model and fusion of the other runs",
                "fit them apart",
            )
    settings, rows = fusion_settings(first), [row for _, used in parts for row in used]
    before = after = 0.0
    if objective != "keep":
        targets = np.array(
            [row["mos"] if info.higher_is_better else -row["mos"] for row in rows], float
        )
        if objective == "rps":
            targets = np.concatenate([_levels(run, used) for run, used in parts])
        (temperature, eta), before, after = fit_letters(rows, objective, targets, settings)
        settings = settings.model_copy(update={"temperature": temperature, "eta": eta})
    return Fit(
        temperature=settings.temperature,
        eta=settings.eta,
        objective=objective,
        before=before,
        after=after,
        dataset=info.key,
        model=model,
        keys=tuple(dict.fromkeys(row["key"] for row in rows)),
        groups=tuple(sorted({row["group"] for row in rows if row.get("group") is not None})),
        intervals=_calibration(parts, first, settings, called or info.title),
    )


def _asks(run: dict[str, Any]) -> bool:
    """Whether a run is of questions."""
    return dataset_info(run).kind == "MCQ"


def _levels(run: dict[str, Any], rows: Sequence[Row]) -> np.ndarray:
    """The human scores in 1..5, (rows,)."""
    return dataset_info(run).to_levels(np.array([row["mos"] for row in rows]))


def _part(folder: Path, objective: Objective, split: str | None, share: float) -> Run:
    """A run and the rows that are fitted on. Raises FitError where there are none, or with an objective no others."""
    run, rows = read_run(folder)
    if _asks(run) and objective != "keep":
        remedy = "fit on a scored run; --objective keep calibrates the sets of answers alone"
        raise FitError(
            f"{folder}: expected a run on images with human scores, got one on questions", remedy
        )
    units = [row.get("group") or row["key"] for row in rows]
    if split is None:
        drawn = np.random.default_rng(0).permutation(sorted(set(units)))[
            : round(share * len(set(units)))
        ]
        used, remedy = (
            [row for row, unit in zip(rows, units, strict=True) if unit in drawn],
            f"--share is {share:g}",
        )
    else:
        used = [row for row in rows if row["split"] == split]
        remedy = f"the splits are {listed(sorted({row['split'] or 'unknown: use --share' for row in rows}))}"
    if not used or (len(used) == len(rows) and objective != "keep"):
        expected = "expected some rows to fit on and others to judge the fit by"
        raise FitError(f"{folder}: {expected}, it would use {len(used)} of {len(rows)}", remedy)
    return run, used


def _calibration(
    parts: Sequence[Run], run: dict[str, Any], settings: FusionSettings, source: str
) -> IntervalCalibration | None:
    """What calibrates the intervals of answers that are fused by `settings`; None where no row has a place on the
    scale 1..5, or the run does not tell in which numbers its model computed."""
    rng, model = np.random.default_rng(0), run["model"]
    known: dict[Any, list[pd.DataFrame]] = {}
    for told, rows in parts:
        if dataset_info(told).on_levels:
            for condition, table in cases(
                Readings(rows, settings.vote), _levels(told, rows), told, settings
            ).items():
                known.setdefault(condition, []).append(table)
    questions = tuple(answers([row for told, rows in parts if _asks(told) for row in rows]))
    if not (known or questions) or not {"dtype", "quantization"} <= model.keys():
        return None
    return IntervalCalibration(
        source=source,
        images=len({row["sha256"] for _, rows in parts for row in rows if row.get("sha256")}),
        date=time.strftime("%Y-%m-%d"),
        model=run["identity"]["model"],
        query=run["identity"]["reads"]["query"],
        ratings=tuple(
            errors(condition, pd.concat(tables), rng) for condition, tables in known.items()
        ),
        questions=questions,
        dtype=model["dtype"],
        quantization=model["quantization"],
        **settings.model_dump(include={"mode", "temperature", "eta"}),
    )


def fit_letters(
    rows: Sequence[Row], objective: Objective, targets: np.ndarray, settings: FusionSettings
) -> tuple[tuple[float, float], float, float]:
    """The temperature and η that an objective is best at, and the objective before and after: the best of a coarse
    grid, refined, for no objective is convex.

    `targets` (rows,) are human levels in 1..5 for rps, human scores with higher better for srcc. Raises FitError for
    fewer than twenty rows with letters and tools, scores that are all alike, or a fit that runs to a bound.
    """
    readings = Readings(rows, settings.vote)
    usable = readings.agent["q_bar"].notna().to_numpy() & np.isfinite(readings.p(READ)[:, 0])
    if usable.sum() < FEWEST:
        expected = (
            f"expected at least {FEWEST} images with letters and tool scores, got {usable.sum()}"
        )
        raise FitError(f"fit: {expected}", "use more images")
    columns = targets, readings.agent["q_bar"].to_numpy(), readings.eta(settings.eta)
    target, q_bar, own = (column[usable] for column in columns)
    letters = lru_cache(maxsize=32)(
        lambda temperature: readings.p(READ, temperature=temperature)[usable]
    )

    def loss(temperature: float, eta: float | np.ndarray) -> float:
        fused = fused_distribution(letters(temperature), q_bar, eta)
        if objective == "rps":
            return float(ranked_probability_scores(fused, target).mean())
        return float(np.nan_to_num(-srcc(fused @ LEVELS, target), nan=np.inf))

    before = loss(settings.temperature, own)
    if np.isinf(before):
        raise FitError(
            "fit: expected human and fused scores that differ, got some that are all alike",
            "use others",
        )
    grid, ends = np.geomspace(LOWEST, HIGHEST, 17), (np.log(LOWEST), np.log(HIGHEST))
    start = np.log(min(itertools.product(grid, grid), key=lambda pair: loss(*pair)))
    options = {"xatol": 1e-3, "fatol": 1e-6}
    refined = minimize(
        lambda x: loss(*np.exp(x)), start, method="Nelder-Mead", bounds=[ends] * 2, options=options
    )
    temperature, eta = np.exp(refined.x).tolist()
    if not all(LOWEST * 1.01 < fitted < HIGHEST / 1.01 for fitted in (temperature, eta)):
        expected = f"expected an optimum inside {LOWEST} to {HIGHEST}, but {SCALES[objective]} was still getting better"
        got = f"at temperature {temperature:.3g} and η {eta:.3g}"
        raise FitError(f"fit: {expected} {got}", "use more images, or another --objective")
    sign = -1 if objective == "srcc" else 1
    return (temperature, eta), sign * before, sign * float(refined.fun)
