"""Calibrates the intervals of q, and the sets of answers, on the stored rows of runs whose truth is
known.

The truth that q predicts is a line of q, a picture's difficulty a sum of `intervals.FEATURES` with
weights that are not negative. Both are learned on a part of the scenes; errors and difficulties are
those of the others (split conformal prediction). Of fewer than ENOUGH pictures, or a single scene,
nothing is learned: q is the line, all are as difficult.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from agentic_iqa_local.config import FusionSettings, Pipeline
from agentic_iqa_local.iqa_tools.calibration import read_map_file
from agentic_iqa_local.iqa_tools.reliability import Reachable, load_reliability
from agentic_iqa_local.iqa_tools.runner import SHIPPED_MAPS
from agentic_iqa_local.judgement.intervals import (
    FEATURES,
    LEAST_DIFFICULTY,
    Answers,
    Errors,
    features,
    reached,
)
from agentic_iqa_local.nodes.evidence import mark_votes, votes
from agentic_iqa_local.result import Condition
from agentic_iqa_local.score_fusion import LEVELS, fused_distribution
from agentic_iqa_local.state import LOOKS, OVERALL, ExecutorOutput, Look, ToolExecutionLog
from agentic_iqa_local.studies.inference import CROPS
from agentic_iqa_local.studies.readings import (
    MEASURED,
    Readings,
    StoredRow,
    as_measured,
    mean_of_views,
    said_by_tools,
)
from agentic_iqa_local.studies.store import Run

LEARNED_ON = 0.3  # of the scenes
RIDGE = 1.0  # like the share above chosen on synthetic distortions, 150 pictures at a time
ENOUGH = 100  # pictures
IN_RANGE, MOST_RANGES = 56, 4  # pictures in each: twice what an interval needs to have two ends
READS: dict[Pipeline, str] = {"agent": "all_evidence", "letters": "image_alone"}


def cases(
    readings: Readings, truth: np.ndarray, run: Run, settings: FusionSettings
) -> dict[Condition, pd.DataFrame]:
    """The rows as each pipeline and look would have assessed them, with the temperature and η of
    `settings`.

    `truth`, (rows,), is quality in 1..5; rows of nan are left out. By condition there is a line for
    each picture, named by its row: q and truth in levels, `scene`, the tools that voted (`voters`),
    and FEATURES.
    """
    found = {}
    with_reference = pd.Series([row.get("reference") is not None for row in readings.rows])
    scenes = [row.get("group") or row["key"] for row in readings.rows]
    for pipeline, look in itertools.product(READS, LOOKS):
        tools = _tools(readings, pipeline, run, settings.eta)
        p, apart = _look(readings, READS[pipeline], look, settings.letters_temperature)
        told = tools[MEASURED].assign(**apart)
        measured = {name: column.to_numpy() for name, column in told.items()}
        q = fused_distribution(p, measured["q_bar"], measured["eta"]) @ LEVELS
        table = pd.DataFrame(features(p, measured), columns=FEATURES)
        table = table.assign(q=q, truth=truth, scene=scenes, voters=tools["voters"])
        usable = tools.q_bar.notna() & table.q.notna() & table.truth.notna()
        for reference, known in table[usable].groupby(with_reference):
            found[Condition(pipeline=pipeline, reference=reference, look=look)] = known
    return found


def _look(
    readings: Readings, read: str, look: Look, temperature: float
) -> tuple[np.ndarray, dict[str, Any]]:
    """p (rows, 5) of a look, and by feature how far both orders, and the crops, lie apart,
    (rows,)."""
    p = readings.p(read, "forward", temperature)
    apart: dict[str, Any] = {"order_gap": np.nan, "crop_spread": np.nan}
    if look == "one order":
        return p, apart
    opposite = readings.p(read, "reversed", temperature)
    apart["order_gap"] = np.abs((p - opposite) @ LEVELS)
    p = (p + opposite) / 2
    if look == "both orders":
        return p, apart
    orders = [readings.p_of_views(CROPS, order, temperature) for order in ("forward", "reversed")]
    crops = np.mean(orders, axis=0)
    expected = crops @ LEVELS
    apart["crop_spread"] = np.sqrt(
        mean_of_views((expected - mean_of_views(expected)[:, None]) ** 2)
    )
    return (p + mean_of_views(crops)) / 2, apart


def _tools(readings: Readings, pipeline: Pipeline, run: Run, eta: float | str) -> pd.DataFrame:
    """MEASURED by the tools of a pipeline, and which voted; σ is nan where a fixed η does not
    depend on it."""
    table = readings.agent
    if pipeline == "letters":
        reachable = {name: one.reachable for name, one in read_map_file(SHIPPED_MAPS).items()}
        table = as_measured([_configured_tools(row, run, reachable) for row in readings.rows])
    return table if eta == "auto" else table.assign(eta=eta, sigma=np.nan)


def _configured_tools(row: StoredRow, run: Run, reachable: Reachable) -> dict[str, Any]:
    """What is MEASURED by the configured tools, as the pipeline letters runs them; nothing where the
    run did not ask all of them. `reachable`: by tool, the ends of what its map can return."""
    names, measured = run.tools.configured(row.get("reference") is not None), row.get("tools", {})
    known, all_vote = load_reliability(), run.fusion.trailing_tools == "vote"
    if not all_vote:  # a tool without a vote does not run there
        names = known.leading(names)
    if not measured.keys() >= set(names):
        return {}
    evidence = ExecutorOutput()
    for name in names:
        level = measured[name].get("normalized")
        of = {"tool_name": name, "object_name": "Global", "distortion": OVERALL}
        evidence.tool_logs.append(ToolExecutionLog(**of, normalized_score=level))
    mark_votes(evidence, reachable, known, all_vote=all_vote)
    voting = votes(evidence, run.fusion.vote)
    if not voting:
        return {}
    sigma = known.sigma_of_mean(voting, reachable)
    errors = {"eta": 1 / (2 * sigma**2), "sigma": sigma}
    return said_by_tools(evidence, run.fusion.vote) | errors


def errors(condition: Condition, known: pd.DataFrame, rng: np.random.Generator) -> Errors:
    """What calibrates pictures like these, a table of `cases`; `rng` draws the scenes that are
    learned on."""
    (offset, slope), weights = (0.0, 1.0), np.eye(len(FEATURES))[0]
    names, scene = np.unique(known.scene, return_inverse=True)
    if len(known) >= ENOUGH and len(names) > 1:
        to_learn = rng.permutation(len(names))[scene] < LEARNED_ON * len(names)
        (offset, slope), weights = _learned(known.loc[to_learn])
        known = known.loc[~to_learn]
    edges = _edges(known.q.to_numpy())
    error = known.truth - offset - slope * known.q
    difficulty = np.maximum(known[[*FEATURES]].to_numpy() @ weights, LEAST_DIFFICULTY)
    ranges = np.searchsorted(edges, known.q, side="right").tolist() if edges else ()
    return Errors(
        condition=condition,
        line=(offset, slope),
        weights=tuple(weights.tolist()),
        errors=tuple(error.round(5).tolist()),
        difficulties=tuple(difficulty.round(5).tolist()),
        tools=tuple(sorted(set(known.voters))),
        edges=edges,
        ranges=tuple(ranges),
    )


def _edges(q: np.ndarray) -> tuple[float, ...]:
    """Where the ranges of q end: as many alike ranges as have IN_RANGE pictures each, at most
    MOST_RANGES."""
    count = max(min(MOST_RANGES, len(q) // IN_RANGE), 1)
    edges = np.quantile(q, np.arange(1, count) / count).round(3)
    filled = np.bincount(np.searchsorted(edges, q, side="right"), minlength=count).all()
    # scores that are nearly all alike have one range
    return tuple(edges.tolist()) if filled else ()


def _learned(known: pd.DataFrame) -> tuple[tuple[float, float], np.ndarray]:
    """Offset and slope of the truth by q, and weights of FEATURES for its distance from that line:
    least squares that RIDGE draws towards equal difficulty, in units of the features' variances."""
    table = known[[*FEATURES]].to_numpy()
    slope, offset = np.polyfit(known.q, known.truth, 1)
    distance = np.abs(known.truth - offset - slope * known.q).to_numpy()
    equal = np.where(np.array(FEATURES) == "constant", distance.mean(), 0.0)
    pull = np.sqrt(RIDGE * len(distance)) * np.diag(table.std(0))
    weights = nnls(np.vstack([table, pull]), np.concatenate([distance, pull @ equal]))[0]
    return (float(offset), float(slope)), weights


def answers(rows: Sequence[StoredRow]) -> Iterator[Answers]:
    """Questions whose right answer is known, as each pipeline answered them: with a reference and
    without, by the letters alone and with a measurement."""
    known = defaultdict(list)
    for row in rows:
        reference, measured = row.get("reference") is not None, bool(row.get("measured"))
        known["agent", reference, measured].append((row, row.get("probabilities")))
        known["letters", reference, False].append((row, row.get("alone")))
    for (pipeline, reference, measured), asked in known.items():
        choices, right = [], []
        for row, p in asked:
            if p:
                choices.append(len(p))
                right.append(float(reached(np.array(p))[row["answer"]]))
        if choices:
            told = {"pipeline": pipeline, "reference": reference, "measured": measured}
            yield Answers(**told, choices=tuple(choices), right=tuple(right))
