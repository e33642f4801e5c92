"""Fits p_c's temperature and α_c's η on rows that are then not scored, or without any human score.

rps       minimises the ranked probability score of the fused distribution w ∝ α·p against the human levels:
          for scales of absolute categories
srcc      maximises SRCC of q with the human scores: for any scale
keep      fits neither: for the calibration of intervals alone
spread    needs no human scores: chooses the temperature at which E[level] from p_c alone spreads as far as
          the tools' mean does over the same images, so that neither side of the product is the sharper by its
          units; η stays

A fit that runs to a bound is refused, since a larger range would give another. But SRCC is a step function
and often flat towards a bound, where only the ratio of both sides' sharpness matters. So where the best lies
less than a factor of `INSIDE` from a bound and points further inside lose no more than `NOTHING` against it,
that one of them is taken that is closest to the configuration.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize

from agentic_iqa_local.judgement.fit import HIGHEST, LOWEST, SCALES, Fit, FitError, Objective
from agentic_iqa_local.judgement.intervals import IntervalCalibration
from agentic_iqa_local.score_fusion import fused_distribution
from agentic_iqa_local.studies.calibrating import Cases, answers, calibrate, cases
from agentic_iqa_local.studies.datasets import DatasetInfo, listed
from agentic_iqa_local.studies.readings import (
    LEVELS,
    Letters,
    Row,
    etas,
    fuse,
    probabilities,
    tool_means,
)
from agentic_iqa_local.studies.statistics import ranked_probability_scores, srcc
from agentic_iqa_local.studies.store import read_run
from agentic_iqa_local.studies.study import dataset_info, fusion_settings

READ = "all_evidence"  # the product's own
INSIDE = 2.0
NOTHING = 0.001  # of SRCC or of the ranked probability score: what three digits show
FEWEST = 20


@dataclass(frozen=True)
class _Source:
    """The rows of a run that a fit uses."""

    folder: Path
    run: dict[str, Any]
    rows: list[Row]
    info: DatasetInfo

    @property
    def made_with(self) -> tuple[str, str, dict[str, Any]]:
        """What runs of one fit must share: data set, model and fusion."""
        return self.info.key, self.run["identity"]["model"], self.run["fusion"]


def fit_runs(
    folders: Sequence[Path],
    objective: Objective,
    *,
    split: str | None,
    share: float,
    called: str | None = None,
) -> Fit:
    """A fit on the rows of an official `split`, or on a `share` of the scenes (of the images, where there are
    none) drawn with seed 0, of runs with the same data set, model and fusion. With "keep" runs on questions
    calibrate sets of answers. `called` is what rows call the set. Raises FitError, StoreError, StudyError,
    DatasetError."""
    sources = [_source(folder, objective, split=split, share=share) for folder in folders]
    rated = [source for source in sources if source.info.kind != "MCQ"]
    questions = [source for source in sources if source.info.kind == "MCQ"]
    _check_alike(sources, rated)
    first = (rated or questions)[0]
    letters = Letters.of(fusion_settings(first.run))
    rows = [row for source in rated for row in source.rows]
    fit = Fit(
        letters.temperature,
        "auto" if letters.eta == "auto" else float(letters.eta),
        objective,
        0.0,
        0.0,
        first.info.key,
        first.run["identity"]["model"],
        (),
    )
    if objective != "keep":
        fit = fit_letters(
            rows,
            objective,
            targets=_targets(rows, first.info, objective),
            letters=letters,
            dataset=first.info.key,
            model=fit.model,
        )
    used = [row for source in sources for row in source.rows]
    return replace(
        fit,
        keys=tuple(dict.fromkeys(row["key"] for row in used)),
        groups=tuple(sorted({row["group"] for row in used if row.get("group") is not None})),
        intervals=_intervals(
            rated, questions, replace(letters, temperature=fit.temperature, eta=fit.eta), called
        ),
    )


def _check_alike(sources: Sequence[_Source], rated: Sequence[_Source]) -> None:
    """Raises FitError for runs of other models, and rated ones of another data set or fusion."""
    if other := next((source for source in rated if source.made_with != rated[0].made_with), None):
        raise FitError(
            f"{other.folder}: expected the data set, model and fusion of {rated[0].folder}, got others",
            "fit them apart",
        )
    if len({source.run["identity"]["model"] for source in sources}) > 1:
        raise FitError(f"{sources[-1].folder}: expected a run with the model of the others", "fit them apart")


def _source(folder: Path, objective: Objective, *, split: str | None, share: float) -> _Source:
    run, rows = read_run(folder)
    info = dataset_info(run)
    if info.kind == "MCQ" and objective != "keep":
        raise FitError(
            f"{folder}: expected a run on images with human scores, got one on questions",
            "fit on a scored run; --objective keep calibrates the sets of answers alone",
        )
    used = _of_split(folder, rows, split) if split is not None else _drawn(rows, share)
    if not used:
        raise FitError(
            f"{folder}: expected rows to fit on, --share {share:g} of {len(rows)} rows is none",
            "take a larger share, or let the run go on first",
        )
    if len(used) == len(rows) and objective != "keep":
        raise FitError(
            f"{folder}: expected rows that the fit does not use, it would use all {len(rows)}",
            "choose a split or a share",
        )
    return _Source(folder, run, used, info)


def _intervals(
    rated: Sequence[_Source], questions: Sequence[_Source], letters: Letters, called: str | None
) -> IntervalCalibration | None:
    """What calibrates the intervals of answers that are fused with the parameters `letters`; None where no
    row has a place on the scale 1..5."""
    known: list[Cases] = []
    for source in rated:
        if source.info.scale == "absolute categories" and source.info.low is not None:
            truth = np.clip([source.info.to_levels(row["mos"]) for row in source.rows], LEVELS[0], LEVELS[-1])
            known += cases(source.rows, truth, source.run, letters)
    images = {row["sha256"] for source in (*rated, *questions) for row in source.rows if row.get("sha256")}
    first = (*rated, *questions)[0]
    return calibrate(
        known,
        answers([row for source in questions for row in source.rows]),
        run=first.run,
        letters=letters,
        source=called or first.info.title,
        images=len(images),
    )


def _of_split(folder: Path, rows: Sequence[Row], split: str) -> list[Row]:
    """The rows of an official split. Raises FitError where there are others only."""
    used = [row for row in rows if row["split"] == split]
    if rows and not used:
        known = sorted({row["split"] for row in rows if row["split"]})
        raise FitError(
            f"{folder}: expected rows of the split {split}, found none",
            f"the splits are {listed(known) or 'unknown: use --share'}",
        )
    return used


def _drawn(rows: Sequence[Row], share: float) -> list[Row]:
    """The rows of a share of the scenes, drawn with seed 0. Raises FitError."""
    if not 0 < share <= 1:
        raise FitError(f"--share {share:g}: expected a share of the scenes from 0 to 1, such as 0.3")
    units = sorted({row.get("group") or row["key"] for row in rows})
    drawn = set(np.random.default_rng(0).permutation(units)[: round(share * len(units))])
    return [row for row in rows if (row.get("group") or row["key"]) in drawn]


def _targets(rows: Sequence[Row], info: DatasetInfo, objective: Objective) -> np.ndarray | None:
    """The human scores as the objective needs them, (rows,)."""
    mos = np.array([row["mos"] for row in rows], float)
    if objective == "rps":  # some sets go a little beyond the ends of their scale
        return np.clip([info.to_levels(m) for m in mos], LEVELS[0], LEVELS[-1])
    if objective == "srcc":
        return mos if info.higher_is_better else -mos
    return None


def fit_letters(
    rows: Sequence[Row],
    objective: Objective,
    *,
    targets: np.ndarray | None,
    letters: Letters,
    dataset: str,
    model: str,
) -> Fit:
    """`targets` (rows,): human levels in 1..5 for rps, human scores with higher better for srcc, None for
    spread. Rows that failed or that no tool scored are left out. Raises FitError for fewer than twenty rows,
    scores that are all alike, or a fit that runs to a bound.
    """
    q_bar = tool_means(rows, letters.vote)
    usable = np.isfinite(q_bar) & np.isfinite(probabilities(rows, READ)[:, 0])
    if usable.sum() < FEWEST:
        raise FitError(
            f"fit: expected at least {FEWEST} images with letters and tool scores, got {usable.sum()}",
            "use more images",
        )
    rows, q_bar = [row for row, use in zip(rows, usable, strict=True) if use], q_bar[usable]
    target = np.empty(0) if targets is None else targets[usable]  # "spread" needs none

    @lru_cache(maxsize=32)
    def p(temperature: float) -> np.ndarray:
        return probabilities(rows, READ, temperature=temperature)

    def value(temperature: float, eta: float | np.ndarray) -> float:
        if objective == "rps":
            fused = fused_distribution(p(temperature), q_bar, eta)
            return float(ranked_probability_scores(fused, target).mean())
        if objective == "srcc":
            return srcc(fuse(p(temperature), q_bar, eta), target)
        return abs((p(temperature) @ LEVELS).std() - q_bar.std())

    own = etas(rows, letters.eta)
    if not np.isfinite(own).all():
        raise FitError(
            "fit: expected rows that tell the η they were fused with, got some that do not",
            "run the study anew",
        )
    before = value(letters.temperature, own)
    start = letters.temperature, float(np.median(own))
    if np.isnan(before):
        raise FitError(
            "fit: expected scores that differ, got human scores or fused scores that are all alike",
            "use other images",
        )
    if objective == "spread":
        temperature, eta = _spread(p, q_bar.std()), start[1]
    else:
        sign = -1.0 if objective == "srcc" else 1.0
        temperature, eta = _minimum(
            lambda t, e: float(np.nan_to_num(sign * value(t, e), nan=np.inf)), start, objective
        )
    after = value(temperature, eta)
    return Fit(temperature, eta, objective, before, after, dataset, model, tuple(row["key"] for row in rows))


def _spread(p: Callable[[float], np.ndarray], wanted: float) -> float:
    def gap(log_temperature: float) -> float:
        return (p(float(np.exp(log_temperature))) @ LEVELS).std() - wanted

    ends = np.log(LOWEST), np.log(HIGHEST)
    if gap(ends[0]) * gap(ends[1]) > 0:
        raise FitError(
            f"fit: expected a temperature from {LOWEST} to {HIGHEST} at which E[level] spreads by"
            f" {wanted:.2f} levels as the tools do, there is none",
            "use more varied images or another --objective",
        )
    root: Any = brentq(gap, *ends)  # scipy does not declare what it returns
    return float(np.exp(root))


def _minimum(
    loss: Callable[[float, float], float], configured: tuple[float, float], objective: Objective
) -> tuple[float, float]:
    """(temperature, η) of the least loss: the best of a coarse grid, refined, for neither objective is
    convex; where several are as good, the one nearest to the configured pair. Raises FitError where that is
    at a bound, unless the rule at the top of this module finds a point inside."""
    grid = np.geomspace(LOWEST, HIGHEST, 17).tolist()
    start = _pair(np.clip(configured, LOWEST, HIGHEST))
    losses = {pair: loss(*pair) for pair in [start, *((t, e) for t in grid for e in grid)]}

    def change(pair: tuple[float, float]) -> float:
        return float(np.abs(np.log(pair) - np.log(start)).sum())

    best = min(losses, key=lambda pair: (losses[pair], change(pair)))
    found = minimize(
        lambda x: loss(*np.exp(x)),
        np.log(best),
        method="Nelder-Mead",
        bounds=[(np.log(LOWEST), np.log(HIGHEST))] * 2,
        options={"xatol": 1e-3, "fatol": 1e-6},
    )
    if found.fun < losses[best]:
        best = _pair(np.exp(found.x))
        losses[best] = found.fun
    if not _well_inside(best):
        as_good = [
            pair for pair, lost in losses.items() if _well_inside(pair) and lost <= losses[best] + NOTHING
        ]
        best = min(as_good, key=change, default=best)
    if not (bounds := _at_bounds(best)):
        return best
    raise FitError(
        f"fit: expected an optimum inside {LOWEST} to {HIGHEST}, but {SCALES[objective][0]} was"
        f" still getting better where {' and '.join(bounds)}",
        "use more images, or another --objective",
    )


def _pair(values: np.ndarray) -> tuple[float, float]:
    temperature, eta = values.tolist()
    return temperature, eta


def _well_inside(pair: tuple[float, float]) -> bool:
    return min(pair) >= LOWEST * INSIDE and max(pair) <= HIGHEST / INSIDE


def _at_bounds(pair: tuple[float, float]) -> list[str]:
    """Which of (temperature, η) lie within a percent of which bound."""
    return [
        f"{name} reached {bound:g}"
        for name, value in zip(("the temperature", "η"), pair, strict=True)
        for bound in (LOWEST, HIGHEST)
        if abs(np.log(value / bound)) < 0.01
    ]
