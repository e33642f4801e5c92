"""Tables of the letters' probabilities: how they are calibrated, and what their uncertainty is good for."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import rankdata

from agentic_iqa_local.studies.readings import LEVELS, Reading, tool_means
from agentic_iqa_local.studies.statistics import (
    Figure,
    entropy,
    expected_calibration_error,
    monotone_map,
    ranked_probability_scores,
    risk_coverage,
)
from agentic_iqa_local.studies.study import Study, Table, mean, spread

COVERAGES = (100, 90, 75, 50, 25)  # percent


def distinct_letters(modes: dict[str, Reading]) -> dict[tuple[str, ...], np.ndarray]:
    """Each p_c that tells levels apart, by the names of the modes that rest on it."""
    names: dict[Any, list[str]] = {}
    distinct: dict[Any, np.ndarray] = {}
    for name, reading in modes.items():
        p, letters = reading.p, reading.mode.letters
        if p is not None and reading.answered.any() and np.nanmax(np.ptp(p, axis=1)) > 0:
            names.setdefault(letters, []).append(name)
            distinct[letters] = p
    return {tuple(names[letters]): p for letters, p in distinct.items()}


def calibration(study: Study, rng: np.random.Generator) -> Table:
    """Against the human scores as levels: linearly on an absolute category scale, else through a map fitted
    on other rows."""
    table = []
    losses: dict[tuple[str, ...], np.ndarray] = {}
    human, usable, source = _human_levels(study, rng)
    outside, human = (human < 1) | (human > 5), np.clip(human, 1, 5)
    for names, p in study.letters.items():
        answered = np.isfinite(p).all(axis=1)
        judged = answered & usable
        if not judged.any():
            continue
        losses[names] = np.full(len(judged), np.nan)
        losses[names][judged] = ranked_probability_scores(p[judged], human[judged])
        p, level = p[judged], human[judged]
        confidence, correct = p.max(axis=1), p.argmax(axis=1) + 1 == np.floor(level + 0.5)
        study.reliability[names] = confidence, correct
        table.append(
            {
                "letters": "; ".join(names),
                "n": len(p),
                "failed": int((~answered).sum()),
                "ece": expected_calibration_error(confidence, correct),
                "accuracy": mean(correct),
                "mean_confidence": mean(confidence),
                **spread("rps", mean_interval(study, losses[names])),
                "rps_uniform": mean(ranked_probability_scores(np.full_like(p, 0.2), level)),
                "levels_from": source,
                "off_the_scale": int(outside[judged].sum()),
            }
        )
    baseline = next((loss for names, loss in losses.items() if study.baseline in names), None)
    if baseline is not None:
        for row, loss in zip(table, losses.values(), strict=True):
            row |= spread("rps_difference", mean_interval(study, loss - baseline))
    return table


def _human_levels(study: Study, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, str]:
    """The human scores as levels, the rows to judge the letters on, both (rows,), and where the levels come
    from. No row is to be judged on where no map can be fitted."""
    info = study.info
    if info.scale == "absolute categories" and info.low is not None and info.high is not None:
        levels = np.array([info.to_levels(mos) for mos in study.mos])
        return levels, np.full(len(levels), True), "the scale, linearly"
    held, fitted_on = _fitting_rows(study, rng)
    source = f"monotone map fitted on {fitted_on}"
    # One target for all: the map from human scores goes to what the letters of all modes expect together.
    together = np.mean([p @ LEVELS for p in study.letters.values()] or [np.full(len(held), np.nan)], axis=0)
    fit = np.isfinite(together) & held
    if not fit.any():
        return np.full(len(held), np.nan), np.full(len(held), False), source
    return monotone_map(study.quality[fit], together[fit])(study.quality), ~held, source


def mean_interval(study: Study, values: np.ndarray) -> Figure:
    """The mean of one number a row (nan where there is none), with its interval on the study's draws."""
    kept = np.isfinite(values)
    weights = study.draws.weights[:, kept]
    total = weights.sum(axis=1)
    on_draws = (weights @ values[kept])[total > 0] / total[total > 0]
    low, high = np.quantile(on_draws, [0.025, 0.975]) if len(on_draws) else (math.nan, math.nan)
    return Figure(
        mean(values[kept]), float(low), float(high), int(kept.sum()), int((~kept).sum()), study.draws.over
    )


def _fitting_rows(study: Study, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Rows to fit a map on: the training split, or half of the units that are resampled."""
    train = np.array([row.get("split") == "train" for row in study.rows])
    if train.any() and not train.all():
        return train, "the training split, judged on the others"
    units = rng.permutation(study.draws.counts.shape[1])
    chosen = np.isin(study.draws.unit, units[: len(units) // 2])
    return chosen, f"half of the {study.draws.over.partition(',')[0]}, judged on the others"


def rank_errors(scores: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """How much higher a score ranks than the human score, as a share of all rows."""
    return (rankdata(scores) - rankdata(quality)) / len(scores)


def risk_coverage_table(study: Study, vote: str, widths: Mapping[str, np.ndarray]) -> Table:
    """By what the letters and the tools are unsure of, and by the width of the interval of q, (rows,), where
    `widths` has one for a mode."""
    q_bar = tool_means(study.rows, vote)
    table = []
    for name, reading in study.modes.items():
        answered = reading.answered
        if reading.p is None or not answered.any() or np.ptp(reading.p[answered], axis=1).max() == 0:
            continue
        error = np.full(len(answered), np.nan)
        error[answered] = np.abs(rank_errors(reading.scores[answered], study.quality[answered]))
        uncertain = np.full(len(answered), np.nan)
        uncertain[answered] = entropy(reading.p[answered])
        for signal, values in (
            ("entropy", uncertain),
            ("VLM–tool disagreement", np.abs(reading.p @ LEVELS - q_bar)),
            ("width of the interval", widths.get(name, np.full(len(answered), np.nan))),
        ):
            usable = answered & np.isfinite(values)
            if not usable.any():
                continue
            curve = risk_coverage(values[usable], error[usable])
            if name == study.product:
                study.curves[signal] = curve
            n = len(curve.risk)
            row = {"mode": name, "signal": signal, "n": n, "failed": len(usable) - n, "aurc": curve.aurc}
            table.append(
                row
                | {f"risk_{share}": float(curve.risk[math.ceil(share * n / 100) - 1]) for share in COVERAGES}
            )
    return table
