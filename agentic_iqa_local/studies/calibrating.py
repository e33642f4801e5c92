"""Calibrates the intervals of q, and the sets of answers, on the stored rows of runs whose truth is known.

The truth that q predicts is a line of q, a picture's difficulty a sum of `intervals.FEATURES` with weights that are not
negative. Both are learned on a part of the scenes; errors and difficulties are those of the others (split conformal
prediction). Of fewer than ENOUGH pictures, or a single scene, nothing is learned: q is the line, all are as difficult.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from agentic_iqa_local.config import FusionSettings, Pipeline
from agentic_iqa_local.iqa_tools.calibration import read_map_file
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.iqa_tools.runner import SHIPPED_MAPS
from agentic_iqa_local.judgement.intervals import (
    FEATURES,
    LEAST_DIFFICULTY,
    Answers,
    Errors,
    features,
    reached,
)
from agentic_iqa_local.result import Condition
from agentic_iqa_local.score_fusion import fused_distribution
from agentic_iqa_local.state import Look
from agentic_iqa_local.studies.inference import CROPS
from agentic_iqa_local.studies.readings import BOTH, LEVELS, Readings, Row

LEARNED_ON = 0.3  # of the scenes
RIDGE = 1.0  # like the share above chosen on synthetic distortions, 150 pictures at a time
ENOUGH = 100  # pictures
IN_RANGE, MOST_RANGES = 56, 4  # pictures in each: twice what an interval needs to have two ends
READS: dict[Pipeline, str] = {"agent": "all_evidence", "letters": "image_alone"}
PROBABILITIES: dict[Pipeline, str] = {
    "agent": "probabilities",
    "letters": "alone",
}  # of a question's choices
LOOKS: tuple[Look, ...] = ("one order", "both orders", "crops")
SAID = ["q_bar", "eta", "sigma", "disagreement"]  # by tools


def cases(
    readings: Readings, truth: np.ndarray, run: dict[str, Any], settings: FusionSettings
) -> dict[Condition, pd.DataFrame]:
    """The rows as each pipeline and look would have assessed them, with the temperature and η of `settings`.

    `truth`, (rows,), is quality in 1..5; rows of nan are left out. By condition there is a line for each picture,
    named by its row: q and truth in levels, `scene`, the tools that voted (`voters`), and FEATURES.
    """
    rows, found = readings.rows, {}
    with_reference = np.array([row.get("reference") is not None for row in rows])
    scenes = np.array([row.get("group") or row["key"] for row in rows])
    for pipeline, look in itertools.product(READS, LOOKS):
        tools = readings.agent.assign(eta=readings.eta(settings.eta))
        if pipeline == "letters":
            tools = _configured_tools(readings, run, settings.eta)
        if settings.eta != "auto":
            tools["sigma"] = np.nan  # no part of a fixed η
        p, apart = _look(readings, READS[pipeline], look, settings.temperature)
        usable = np.isfinite(p).all(1) & tools.q_bar.notna().to_numpy() & np.isfinite(truth)
        for reference in (False, True):
            at = np.flatnonzero(usable & (with_reference == reference))
            if not len(at):
                continue
            measured = {name: tools[name].to_numpy()[at] for name in SAID} | {
                k: v[at] for k, v in apart.items()
            }
            table = pd.DataFrame(features(p[at], measured), at, FEATURES)
            q = fused_distribution(p[at], measured["q_bar"], measured["eta"]) @ LEVELS
            table = table.assign(
                q=q, truth=truth[at], scene=scenes[at], voters=tools.voters.to_numpy()[at]
            )
            found[Condition(pipeline=pipeline, reference=reference, look=look)] = table
    return found


def _look(
    readings: Readings, read: str, look: Look, temperature: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """p (rows, 5) of a look, and by feature how far both orders, and the crops, lie apart, (rows,)."""
    p, apart = (
        readings.p(read, temperature=temperature),
        dict.fromkeys(("order_gap", "crop_spread"), np.nan),
    )
    if look != "one order":
        opposite = readings.p(read, ["reversed"], temperature)
        p, apart["order_gap"] = (p + opposite) / 2, np.abs((p - opposite) @ LEVELS)
    if look == "crops":
        spread = (
            (readings.p_of_views(CROPS, BOTH, temperature) @ LEVELS).groupby("image").std(ddof=0)
        )
        apart["crop_spread"] = spread.reindex(range(len(p))).to_numpy()
        p = (p + readings.p(CROPS, BOTH, temperature)) / 2
    return p, {name: np.broadcast_to(values, len(p)) for name, values in apart.items()}


def _configured_tools(readings: Readings, run: dict[str, Any], eta: float | str) -> pd.DataFrame:
    """What `Readings.agent` says, of the pipeline letters: it measures with the configured tools, and all vote."""
    reachable = {name: found.reachable for name, found in read_map_file(SHIPPED_MAPS)[0].items()}
    lines = []
    for row in readings.rows:
        names = run["tools"][
            "full_reference" if row.get("reference") is not None else "no_reference"
        ]
        scores = [(name, row.get("tools", {}).get(name, {}).get("normalized")) for name in names]
        values = [score for _, score in scores]
        line: dict[str, Any] = {}
        if values and None not in values:
            sigma = load_reliability().sigma_of_mean(scores, reachable)
            line = {
                "q_bar": np.mean(values),
                "eta": 1 / (2 * sigma**2) if eta == "auto" else eta,
                "sigma": sigma,
            }
            line |= {"disagreement": max(values) - min(values), "voters": tuple(sorted(names))}
        lines.append(line)
    return pd.DataFrame(lines, columns=[*SAID, "voters"]).astype(dict.fromkeys(SAID, float))


def errors(condition: Condition, known: pd.DataFrame, rng: np.random.Generator) -> Errors:
    """What calibrates pictures like these, a table of `cases`; `rng` draws the scenes that are learned on."""
    (offset, slope), weights = (0.0, 1.0), np.eye(len(FEATURES))[0]
    names, scene = np.unique(known.scene, return_inverse=True)
    if len(known) >= ENOUGH and len(names) > 1:
        to_learn = rng.permutation(len(names))[scene] < LEARNED_ON * len(names)
        (offset, slope), weights = _learned(known.loc[to_learn])
        known = known.loc[~to_learn]
    edges = _edges(known.q.to_numpy())
    error = known.truth - offset - slope * known.q
    difficulty = np.maximum(known[[*FEATURES]].to_numpy() @ weights, LEAST_DIFFICULTY)
    return Errors(
        condition=condition,
        line=(offset, slope),
        weights=tuple(weights.tolist()),
        errors=tuple(error.round(5).tolist()),
        difficulties=tuple(difficulty.round(5).tolist()),
        tools=tuple(sorted(set(known.voters))),
        edges=edges,
        ranges=tuple(np.searchsorted(edges, known.q, side="right").tolist()) if edges else (),
    )


def _edges(q: np.ndarray) -> tuple[float, ...]:
    """Where the ranges of q end: as many alike ranges as have IN_RANGE pictures each, at most MOST_RANGES."""
    count = max(min(MOST_RANGES, len(q) // IN_RANGE), 1)
    edges = np.quantile(q, np.arange(1, count) / count).round(3)
    filled = np.bincount(np.searchsorted(edges, q, side="right"), minlength=count).all()
    return (
        tuple(edges.tolist()) if filled else ()
    )  # scores that are nearly all alike have one range


def _learned(known: pd.DataFrame) -> tuple[tuple[float, float], np.ndarray]:
    """Offset and slope of the truth by q, and weights of FEATURES for its distance from that line: least squares that
    RIDGE draws towards equal difficulty, in units of the features' variances."""
    table = known[[*FEATURES]].to_numpy()
    slope, offset = np.polyfit(known.q, known.truth, 1)
    distance = np.abs(known.truth - offset - slope * known.q).to_numpy()
    equal = np.where(np.array(FEATURES) == "constant", distance.mean(), 0.0)
    pull = np.sqrt(RIDGE * len(distance)) * np.diag(table.std(0))
    weights = nnls(np.vstack([table, pull]), np.concatenate([distance, pull @ equal]))[0]
    return (float(offset), float(slope)), weights


def answers(rows: Sequence[Row]) -> Iterator[Answers]:
    """Questions whose right answer is known, as each pipeline answered them: with a reference and without, by the
    letters alone and with a measurement."""
    for pipeline, stored in PROBABILITIES.items():
        found: dict[tuple[bool, bool | None], list[Row]] = {}
        for row in rows:
            if not row.get(stored) or len(row[stored]) != len(row["choices"]):
                continue
            measured = row.get("measured") if pipeline == "agent" else False
            found.setdefault((row.get("reference") is not None, measured), []).append(row)
        for (reference, measured), asked in found.items():
            yield Answers(
                pipeline=pipeline,
                reference=reference,
                measured=measured,
                choices=tuple(len(row["choices"]) for row in asked),
                right=tuple(float(reached(np.array(row[stored]))[row["answer"]]) for row in asked),
            )
