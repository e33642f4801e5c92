"""How often replans make a gap good, what they do to the error, and what they cost."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from agentic_iqa_local.laboratory.gaps.cases import FORMS, SEED
from agentic_iqa_local.laboratory.gaps.kinds import is_sound
from agentic_iqa_local.laboratory.gaps.runs import Run
from agentic_iqa_local.studies.statistics import Draws, Figure, interval, paired_difference

RECOVERED = {"scripted": 0.95}  # share recovered at the highest limit; other models:
RECOVERED_BY_A_MODEL = 0.50
REPLANNED_SOUND = 0.05  # share of sound first passes that may be replanned


def summary(
    runs: Sequence[Run], limits: Sequence[int], least_recovered: float, draws: int = 1000
) -> dict[str, Any]:
    """What `bench.py gaps` writes of one model: each gap's figures at each limit, and how often a sound first
    pass is replanned."""
    found: dict[str, Any] = {"gaps": {}, "sound": {}}
    for gap in dict.fromkeys(run.gap for run in runs if run.gap):
        found["gaps"][gap] = _gap_summary(
            [run for run in runs if run.gap == gap], limits, least_recovered, draws
        )
    for form in FORMS:
        if sound := [run for run in runs if run.gap is None and run.asked.form == form]:
            found["sound"][form] = _sound_summary(sound, limits, draws)
    return found


def _gap_summary(
    runs: Sequence[Run], limits: Sequence[int], least_recovered: float, draws: int
) -> dict[str, Any]:
    first, last = limits[0], limits[-1]
    sample = _draws(runs, draws)
    shares = {
        limit: interval(sample.of(_mean, np.array([run.recovered[limit] for run in runs], float)))
        for limit in limits
    }
    change = _error_change(runs, sample, first, last)
    parts = {}
    for part in sorted({(run.asked.form, run.variant) for run in runs}):
        of = [run for run in runs if (run.asked.form, run.variant) == part]
        parts[", ".join(filter(None, part))] = {"n": len(of)} | {
            str(x): _share(of, lambda run, x=x: run.recovered[x]) for x in limits
        }
    lost = [run for run in runs if not run.recovered[last]]
    return {
        "n": len(runs),
        "noticed": _share(runs, _noticed),
        "limits": {
            str(limit): {
                "recovered": _figure(shares[limit]),
                "error": _plain(_mean(_errors(runs, limit))),
                "error_change": _figure(_error_change(runs, sample, first, limit)),
                "added_tokens": _mean_change(runs, first, limit, "tokens"),
                "added_seconds": _mean_change(runs, first, limit, "seconds"),
            }
            for limit in limits
        },
        "parts": parts,
        "not_recovered": {
            "not noticed": sum(not _noticed(run) for run in lost),
            "replanned in vain": sum(_noticed(run) for run in lost),
        },
        "bars": {
            "recovered": bool(shares[last].value >= least_recovered),
            "error": bool(not change.low > 0),
        },
    }


def _sound_summary(runs: Sequence[Run], limits: Sequence[int], draws: int) -> dict[str, Any]:
    first, last = limits[0], limits[-1]
    sample = _draws(runs, draws)
    sound = [is_sound(run.outcomes[first].row, run.case, run.asked) for run in runs]
    replanned = interval(
        sample.of(_mean, np.array([_noticed(run) for run in runs], float), among=np.array(sound))
    )
    reasons: dict[str, int] = {}
    for run in compress(runs, sound):
        for entry in run.outcomes[last].row.replan_history[:1]:
            reason = entry.partition("] ")[2].partition(":")[0].split(" of ")[0][:60]
            reasons[reason] = reasons.get(reason, 0) + 1
    return {
        "n": sum(sound),
        "replanned": _figure(replanned),
        "reasons": reasons,
        "all": {"n": len(runs), "replanned": _share(runs, _noticed)},
        "error_change": _figure(_error_change(runs, sample, first, last)),
        "added_tokens": _mean_change(runs, first, last, "tokens"),
        "added_seconds": _mean_change(runs, first, last, "seconds"),
        "bars": {"replanned": not replanned.value > REPLANNED_SOUND},
    }


def _draws(runs: Sequence[Run], count: int) -> Draws:
    kinds = [run.case.crop.sample.parts[0].kind if run.case.crop.sample.parts else "none" for run in runs]
    return Draws.make(len(runs), np.random.default_rng(SEED), [run.case.photo for run in runs], kinds, count)


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _errors(runs: Sequence[Run], limit: int) -> np.ndarray:
    """|q − pseudo-MOS| of the rows that have a q."""
    rows = [(run.outcomes[limit].row.q, run.case.crop.quality) for run in runs]
    return np.array([abs(q - mos) for q, mos in rows if q is not None])


def _error_change(runs: Sequence[Run], sample: Draws, first: int, limit: int) -> Figure:
    """Mean |q − pseudo-MOS| at `limit` less that at `first`, where both have a q."""
    pairs = np.array(
        [
            [run.outcomes[x].row.q if run.outcomes[x].row.q is not None else math.nan for x in (first, limit)]
            for run in runs
        ]
    )
    answered = np.asarray(np.isfinite(pairs).all(1))
    errors = np.abs(np.nan_to_num(pairs) - np.array([[run.case.crop.quality] for run in runs]))
    of = [sample.of(_mean, errors[:, column], answered=answered) for column in (1, 0)]
    return paired_difference(*of)


def _noticed(run: Run) -> bool:
    return max(outcome.replans for outcome in run.outcomes.values()) > 0


def _share(runs: Sequence[Run], holds: Callable[[Run], bool]) -> float:
    return sum(map(holds, runs)) / len(runs)


def _mean_change(runs: Sequence[Run], first: int, limit: int, of: str) -> float:
    return _mean(
        np.array([getattr(run.outcomes[limit], of) - getattr(run.outcomes[first], of) for run in runs])
    )


def _plain(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _figure(figure: Figure) -> Mapping[str, Any]:
    return {
        "value": _plain(figure.value), "low": _plain(figure.low), "high": _plain(figure.high), "n": figure.n,
        "interval_over": figure.interval_over,
    }  # fmt: skip
