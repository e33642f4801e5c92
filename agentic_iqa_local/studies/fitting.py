"""Fits p_c's temperature and α_c's η, and a calibration of the intervals, on rows that are then not
scored.

The objective "rps" minimises the ranked probability score of the fused distribution against the
human levels (absolute categories), "srcc" maximises SRCC of q (any scale), "temperature" minimises
the former by the temperature alone, with η as configured (temperature scaling: Guo et al., ICML 2017; here
of the fused distribution, so that letters count by what they add to the tools), "keep" fits neither: for the
calibration of intervals alone.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.optimize import brute, minimize_scalar

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.judgement.fit import (
    LEAST_PARAMETER,
    MOST_PARAMETER,
    MOST_TEMPERATURE,
    SCALES,
    Fit,
    FitError,
    Objective,
)
from agentic_iqa_local.judgement.intervals import IntervalCalibration
from agentic_iqa_local.result import Condition
from agentic_iqa_local.score_fusion import LEVELS, fused_distribution
from agentic_iqa_local.studies.calibrating import answers, cases, errors
from agentic_iqa_local.studies.readings import Readings, StoredRow
from agentic_iqa_local.studies.statistics import ranked_probability_scores, srcc
from agentic_iqa_local.studies.store import Run, Stored, read_run

READ = "all_evidence"  # the product's own
FEWEST = 20


def fit_runs(
    folders: Sequence[Path],
    objective: Objective,
    *,
    split: str | None,
    share: float,
    temperature: float | None = None,
    one_model: bool = True,
) -> Fit:
    """A fit of temperature, η and intervals on a part of runs.

    Args:
        folders: Runs of the same data set, model and fusion; with "keep" runs on questions too,
            which calibrate sets of answers.
        objective: As at the top of this module.
        split: The official split to fit on.
        share: Without `split`, the share of the scenes (of the images, where there are none) drawn
            with seed 0.
        temperature: In place of the one that the runs were made with.
        one_model: Whether runs of different models are an error; with cross-validation they are not.

    Raises:
        FitError, StoreError, DatasetError: Runs that cannot be used, or no fit.
    """
    parts = [_part(folder, objective, split, share) for folder in folders]
    rated = [part for part in parts if part[0].dataset.kind != "MCQ"]
    first, _ = (rated or parts)[0]
    for folder, (run, _) in zip(folders, parts, strict=True):
        _check_alike(folder, run, first, one_model)
    settings, rows = first.fusion, [row for _, used in parts for row in used]
    if temperature is not None:
        settings = settings.model_copy(update={"temperature": temperature})
    seen = pd.DataFrame(rows, columns=["key", "group"])
    before = after = 0.0
    if objective != "keep":
        found, before, after = _fitted(rows, objective, first, settings)
        settings = settings.model_copy(update=found)
    return Fit(
        temperature=settings.letters_temperature,
        eta=settings.eta,
        objective=objective,
        before=before,
        after=after,
        dataset=first.dataset.key,
        model=first.identity.model,
        keys=tuple(seen["key"].unique()),
        groups=tuple(sorted(seen["group"].dropna().unique())),
        intervals=_calibration(parts, first, settings),
    )


def _fitted(
    rows: Sequence[StoredRow], objective: Objective, run: Run, settings: FusionSettings
) -> tuple[dict[str, Any], float, float]:
    """The parameters that an objective is best at, and the objective before and after."""
    mos = np.array([row["mos"] for row in rows], float)
    levels = run.dataset.turned if objective == "srcc" else run.dataset.to_levels
    fit = fit_temperature if objective == "temperature" else fit_letters
    (temperature, eta), before, after = fit(rows, objective, levels(mos), settings)
    return {"temperature": temperature, "eta": eta}, before, after


def _check_alike(folder: Path, run: Run, first: Run, one_model: bool) -> None:
    """Raises FitError for a run that does not make one fit with the first."""
    same_set = run.dataset.kind == "MCQ" or run.dataset.key == first.dataset.key
    same_model = not one_model or run.identity.model == first.identity.model
    if not (same_set and same_model and run.fusion == first.fusion):
        said = f"{folder}: expected the data set, model and fusion of the other runs"
        raise FitError(said, "fit them apart")


def _part(folder: Path, objective: Objective, split: str | None, share: float) -> Stored:
    """A run and the rows that are fitted on. Raises FitError where there are none, or with an
    objective no others."""
    run, rows = read_run(folder)
    if run.dataset.kind == "MCQ" and objective != "keep":
        said = f"{folder}: expected a run on images with human scores, got one on questions"
        raise FitError(said, "--objective keep calibrates the sets of answers alone")
    used = [row for row in rows if row["split"] == split] if split else _drawn(rows, share)
    if not used or (len(used) == len(rows) and objective in ("rps", "srcc")):
        said = f"{folder}: expected some rows to fit on and others to judge the fit by"
        said = f"{said}, it would use {len(used)} of {len(rows)}"
        raise FitError(said, "choose another --share, or a --split that the data set has")
    return run, used


def _drawn(rows: list[dict[str, Any]], share: float) -> list[dict[str, Any]]:
    """The rows of a share of the scenes."""
    scenes = sorted({row.get("group") or row["key"] for row in rows})
    count = round(share * len(scenes))
    drawn = set(np.random.default_rng(0).permutation(scenes)[:count])
    return [row for row in rows if (row.get("group") or row["key"]) in drawn]


def _calibration(
    parts: Sequence[Stored], first: Run, settings: FusionSettings
) -> IntervalCalibration | None:
    """What calibrates the intervals of answers that are fused by `settings`; None where no row has
    a place on the scale 1..5, or the run does not tell in which numbers its model computed."""
    rng, model = np.random.default_rng(0), first.model
    known: dict[Condition, pd.DataFrame] = {}
    questions, pictures = [], set()
    for run, rows in parts:
        pictures |= {row.get("sha256") for row in rows}
        if run.dataset.kind == "MCQ":
            questions += rows
        elif run.dataset.on_levels:
            levels = run.dataset.to_levels(np.array([row["mos"] for row in rows], float))
            tables = cases(Readings(rows, settings.vote), levels, run, settings)
            for condition, table in tables.items():
                known[condition] = pd.concat([known.get(condition), table])
    if not (known or questions) or None in (model.dtype, model.quantization):
        return None
    return IntervalCalibration(
        source=first.dataset.title,
        images=len(pictures - {None}),
        date=time.strftime("%Y-%m-%d"),
        model=first.identity.model,
        query=first.identity.reads.query,
        ratings=tuple(errors(condition, table, rng) for condition, table in known.items()),
        questions=tuple(answers(questions)),
        temperature=settings.letters_temperature,
        **model.model_dump(include={"dtype", "quantization"}),
        **settings.model_dump(include={"mode", "eta"}),
    )


def fit_letters(
    rows: Sequence[StoredRow], objective: Objective, targets: np.ndarray, settings: FusionSettings
) -> tuple[tuple[float, float], float, float]:
    """The temperature and η that an objective is best at, and the objective before and after: the
    best of a coarse grid, refined, for no objective is convex.

    `targets` (rows,) are human levels in 1..5 for rps, human scores with higher better for srcc.
    Raises FitError for fewer than twenty rows with letters and tools, scores that are all alike, or
    a fit that runs to a bound.
    """
    loss, own = _loss(rows, objective, targets, settings)
    before = loss(settings.letters_temperature, own)
    if np.isinf(before):
        said = "fit: expected human and fused scores that differ, got some that are all alike"
        raise FitError(said, "use others")
    low, high = np.log([LEAST_PARAMETER, MOST_PARAMETER])
    best, after, *_ = brute(
        lambda logs: loss(*np.exp(logs)), [(low, high)] * 2, Ns=17, full_output=True
    )
    temperature, eta = np.exp(best).tolist()
    if best.min() < low + 0.01 or best.max() > high - 0.01:
        said = f"fit: expected an optimum inside {LEAST_PARAMETER} to {MOST_PARAMETER}"
        said = f"{said}, but {SCALES[objective]} is better beyond it"
        raise FitError(said, "use more images, or another --objective")
    sign = -1 if objective == "srcc" else 1
    return (temperature, eta), sign * before, sign * float(after)


def fit_temperature(
    rows: Sequence[StoredRow], objective: Objective, targets: np.ndarray, settings: FusionSettings
) -> tuple[tuple[float, float | Literal["auto"]], float, float]:
    """The temperature that the objective is best at, with η as in `settings`, and the objective before
    and after. At MOST_TEMPERATURE letters add nothing to what the tools say. Arguments and errors are those
    of `fit_letters`."""
    loss, own = _loss(rows, objective, targets, settings)
    bounds = np.log([LEAST_PARAMETER, MOST_TEMPERATURE])
    found = minimize_scalar(lambda log: loss(np.exp(log), own), bounds=bounds, method="bounded")
    # the search never reaches a bound itself
    candidates = (LEAST_PARAMETER, MOST_TEMPERATURE, float(np.exp(found.x)))
    temperature = min(candidates, key=lambda temperature: loss(temperature, own))
    return (
        (temperature, settings.eta),
        loss(settings.letters_temperature, own),
        loss(temperature, own),
    )


def _loss(
    rows: Sequence[StoredRow], objective: Objective, targets: np.ndarray, settings: FusionSettings
) -> tuple[Callable[[float, float | np.ndarray], float], np.ndarray]:
    """What an objective minimises, of a temperature and η, and the η (rows,) of `settings`."""
    readings = Readings(rows, settings.vote)
    q_bar, own = readings.agent["q_bar"].to_numpy(), readings.eta(settings.eta)
    usable = np.isfinite(q_bar) & np.isfinite(readings.p(READ)[:, 0])
    if usable.sum() < FEWEST:
        said = f"fit: expected at least {FEWEST} images with letters and tool scores"
        raise FitError(f"{said}, got {usable.sum()}", "use more images")

    def loss(temperature: float, eta: float | np.ndarray) -> float:
        p = readings.p(READ, temperature=temperature)
        fused = fused_distribution(p, q_bar, eta)[usable]
        if objective == "srcc":
            return float(np.nan_to_num(-srcc(fused @ LEVELS, targets[usable]), nan=np.inf))
        return float(ranked_probability_scores(fused, targets[usable]).mean())

    return loss, own
