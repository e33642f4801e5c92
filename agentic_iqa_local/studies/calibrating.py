"""Calibrates the intervals of q, and the sets of answers, on the stored rows of runs whose truth is known.

What q lets expect of the truth is a line, and a picture's difficulty a sum of `intervals.FEATURES` with
weights that are not negative; both are learned on a part of the scenes, and the errors and difficulties that
are kept are those of the others (split conformal prediction). With fewer than ENOUGH pictures, or a single
scene, nothing is learned: the line is q itself, all pictures are alike difficult, and every one is kept.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from agentic_iqa_local.config import Pipeline
from agentic_iqa_local.iqa_tools.calibration import read_map_file
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.iqa_tools.runner import SHIPPED_MAPS
from agentic_iqa_local.judgement.intervals import (
    FEATURES,
    LEAST_DIFFICULTY,
    LEVELS,
    Answers,
    Errors,
    IntervalCalibration,
    features,
    reached,
)
from agentic_iqa_local.nodes.evidence import checks, votes
from agentic_iqa_local.result import Condition
from agentic_iqa_local.score_fusion import fused_distribution
from agentic_iqa_local.state import ExecutorOutput, Look
from agentic_iqa_local.studies.inference import CROPS
from agentic_iqa_local.studies.readings import Letters, Row, etas, letter_logprobs, probabilities
from agentic_iqa_local.studies.study import fusion_settings

LEARNED_ON = 0.3  # of the scenes
RIDGE = 1.0  # like the share above chosen on synthetic distortions, 150 pictures at a time
ENOUGH = 100  # pictures
IN_RANGE, MOST_RANGES = 56, 4  # pictures in each: twice what an interval needs to have two ends
READS: dict[Pipeline, str] = {"agent": "all_evidence", "letters": "image_alone"}
PROBABILITIES: dict[Pipeline, str] = {"agent": "probabilities", "letters": "alone"}  # of a question's choices


@dataclass(frozen=True)
class Cases:
    """Pictures assessed under one condition: fused scores and truth (pictures,), in 1..5, FEATURES
    (pictures, features), the scene of each, the tools that voted, and which of the rows these are."""

    condition: Condition
    q: np.ndarray
    truth: np.ndarray
    features: np.ndarray
    scenes: np.ndarray
    voters: tuple[tuple[str, ...], ...]
    rows: np.ndarray

    def part(self, chosen: np.ndarray) -> "Cases":
        """Those of the pictures that `chosen`, (pictures,) of truth values, names."""
        voters = tuple(v for v, kept in zip(self.voters, chosen, strict=True) if kept)
        arrays = {name: getattr(self, name)[chosen] for name in ("q", "truth", "features", "scenes", "rows")}
        return replace(self, voters=voters, **arrays)


@dataclass(frozen=True)
class _Tools:
    """What the tools say of each row (rows,), nan where nothing: the mean of those that vote, its error σ,
    the sharpness η, how far tools lie apart, and which vote."""

    q_bar: np.ndarray
    sigma: np.ndarray
    eta: np.ndarray
    disagreement: np.ndarray
    voters: list[tuple[str, ...]]


def cases(rows: Sequence[Row], truth: np.ndarray, run: dict[str, Any], letters: Letters) -> list[Cases]:
    """The rows as each pipeline and look would have assessed them, with temperature and η of `letters`;
    `truth` is (rows,), in 1..5."""
    reference = np.array([row.get("reference") is not None for row in rows])
    found = []
    for pipeline, read in READS.items():
        tools = _agent_tools(rows, letters) if pipeline == "agent" else _configured_tools(rows, run, letters)
        for look in ("one order", "both orders", "crops"):
            p, order_gap, crop_spread = _letters(rows, read, look, letters.temperature)
            usable = np.isfinite(p).all(1) & np.isfinite(tools.q_bar) & np.isfinite(truth)
            for given in (False, True):
                at = np.flatnonzero(usable & (reference == given))
                if not len(at):
                    continue
                q = fused_distribution(p[at], tools.q_bar[at], tools.eta[at]) @ np.array(LEVELS)
                found.append(
                    Cases(
                        Condition(pipeline=pipeline, reference=given, look=look),
                        q,
                        truth[at],
                        features(
                            p[at],
                            tools.q_bar[at],
                            tools.eta[at],
                            sigma=tools.sigma[at],
                            disagreement=tools.disagreement[at],
                            order_gap=order_gap[at],
                            crop_spread=crop_spread[at],
                        ),
                        np.array([rows[i]["group"] or rows[i]["key"] for i in at.tolist()]),
                        tuple(tools.voters[i] for i in at),
                        at,
                    )
                )
    return found


def _letters(
    rows: Sequence[Row], read: str, look: Look, temperature: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(p, how far both orders lie apart, the crops' spread) of a look at each row, nan where it was not
    read."""
    nothing, levels = np.full(len(rows), np.nan), np.array(LEVELS)
    usual = probabilities(rows, read, temperature=temperature)
    if look == "one order":
        return usual, nothing, nothing
    opposite = probabilities(rows, read, ("reversed",), temperature)
    whole, order_gap = (usual + opposite) / 2, np.abs((usual - opposite) @ levels)
    if look == "both orders":
        return whole, order_gap, nothing
    crops = probabilities(rows, CROPS, ("forward", "reversed"), temperature)
    return (whole + crops) / 2, order_gap, _crop_spread(rows, temperature)


def _crop_spread(rows: Sequence[Row], temperature: float) -> np.ndarray:
    spread = np.full(len(rows), np.nan)
    orders = (letter_logprobs(rows, CROPS, order) for order in ("forward", "reversed"))
    for i, (usual, opposite) in enumerate(zip(*orders, strict=True)):
        if len(usual) and len(opposite):
            p = [np.exp(x / temperature) for x in (usual, opposite)]
            p = sum(x / x.sum(1, keepdims=True) for x in p) / 2
            spread[i] = (p @ np.array(LEVELS)).std()
    return spread


def _agent_tools(rows: Sequence[Row], letters: Letters) -> _Tools:
    q_bar, sigma, disagreement = (np.full(len(rows), np.nan) for _ in range(3))
    voters: list[tuple[str, ...]] = [()] * len(rows)
    for i, row in enumerate(rows):
        if not row.get("evidence"):
            continue
        evidence = ExecutorOutput.model_validate(row["evidence"])
        voting = votes(evidence, letters.vote)
        if not voting:
            continue
        scores = [score for _, score in (*voting, *checks(evidence))]
        q_bar[i], disagreement[i] = np.mean([s for _, s in voting]), max(scores) - min(scores)
        voters[i] = tuple(sorted({tool for tool, _ in voting}))
        stored = ((row.get("agent") or {}).get("fusion") or {}).get("sigma")
        sigma[i] = np.nan if stored is None or letters.eta != "auto" else stored
    return _Tools(q_bar, sigma, etas(rows, letters.eta), disagreement, voters)


def _configured_tools(rows: Sequence[Row], run: dict[str, Any], letters: Letters) -> _Tools:
    """The pipeline letters measures with the configured tools, which all vote."""
    q_bar, sigma, eta, disagreement = (np.full(len(rows), np.nan) for _ in range(4))
    voters: list[tuple[str, ...]] = [()] * len(rows)
    maps, _ = read_map_file(SHIPPED_MAPS)
    reachable = {name: found.reachable for name, found in maps.items()}
    for i, row in enumerate(rows):
        names = run["tools"]["full_reference" if row.get("reference") is not None else "no_reference"]
        scores = [(name, row.get("tools", {}).get(name, {}).get("normalized")) for name in names]
        if not scores or any(score is None for _, score in scores):
            continue
        values = [score for _, score in scores]
        q_bar[i], disagreement[i] = np.mean(values), max(values) - min(values)
        error = load_reliability().sigma_of_mean(scores, reachable)
        if letters.eta == "auto":
            sigma[i], eta[i] = error, 1 / (2 * error**2)
        else:
            eta[i] = float(letters.eta)
        voters[i] = tuple(sorted(names))
    return _Tools(q_bar, sigma, eta, disagreement, voters)


def _by_condition(found: Sequence[Cases]) -> list[Cases]:
    """The pictures of several runs, those of one condition together."""
    together: dict[Condition, Cases] = {}
    for known in found:
        if before := together.get(known.condition):
            arrays = {
                name: np.concatenate([getattr(before, name), getattr(known, name)])
                for name in ("q", "truth", "features", "scenes", "rows")
            }
            known = replace(known, voters=before.voters + known.voters, **arrays)
        together[known.condition] = known
    return list(together.values())


def errors(known: Cases, rng: np.random.Generator) -> Errors:
    """What calibrates pictures like these; `rng` draws the scenes that line and weights are learned on."""
    line, weights = (0.0, 1.0), np.eye(len(FEATURES))[0]
    names, scene = np.unique(known.scenes, return_inverse=True)
    if len(known.q) >= ENOUGH and len(names) > 1:
        to_learn = rng.permutation(len(names))[scene] < LEARNED_ON * len(names)
        line, weights = _learned(known.part(to_learn))
        known = known.part(~to_learn)
    edges = _edges(known.q)
    error = known.truth - line[0] - line[1] * known.q
    difficulty = np.maximum(known.features @ weights, LEAST_DIFFICULTY)
    return Errors(
        condition=known.condition,
        line=line,
        weights=tuple(map(float, weights)),
        errors=tuple(error.round(5).tolist()),
        difficulties=tuple(difficulty.round(5).tolist()),
        tools=tuple(sorted(set(known.voters))),
        edges=edges,
        ranges=tuple(np.searchsorted(edges, known.q, side="right").tolist()) if edges else (),
    )


def _edges(q: np.ndarray) -> tuple[float, ...]:
    """Where the ranges of fused scores end: as many alike ranges as have IN_RANGE pictures each, at most
    MOST_RANGES."""
    count = min(MOST_RANGES, len(q) // IN_RANGE)
    edges = np.quantile(q, np.arange(1, count) / max(count, 1)).round(3)
    filled = np.bincount(np.searchsorted(edges, q, side="right"), minlength=max(count, 1)).all()
    return tuple(edges.tolist()) if filled else ()  # scores that are nearly all alike have one range


def _learned(known: Cases) -> tuple[tuple[float, float], np.ndarray]:
    """(offset and slope of the truth by q, weights of FEATURES for its distance from that line).

    The weights are least squares that are drawn towards equal difficulty by RIDGE, in units of the features'
    variances: few pictures say little of what makes one difficult.
    """
    slope, offset = np.polyfit(known.q, known.truth, 1)
    distance = np.abs(known.truth - offset - slope * known.q)
    equal = np.where(np.array(FEATURES) == "constant", distance.mean(), 0.0)
    pull = np.sqrt(RIDGE * len(distance)) * np.diag(known.features.std(0))
    table = np.vstack([known.features, pull])
    return (float(offset), float(slope)), nnls(table, np.concatenate([distance, pull @ equal]))[0]


def answers(rows: Sequence[Row]) -> list[Answers]:
    """Questions whose right answer is known, as each pipeline answered them, with a reference and without."""
    found = []
    for (pipeline, stored), given in itertools.product(PROBABILITIES.items(), (False, True)):
        asked = [
            (len(row["choices"]), reached(np.array(p))[row["answer"]])
            for row in rows
            if (p := row.get(stored)) and (row.get("reference") is not None) == given
            if len(p) == len(row["choices"])
        ]
        if asked:
            sizes, scores = zip(*asked, strict=True)
            found.append(
                Answers(
                    pipeline=pipeline,
                    reference=given,
                    choices=sizes,
                    right=tuple(map(float, scores)),
                )
            )
    return found


def calibrate(
    rated: Sequence[Cases],
    questions: Sequence[Answers],
    *,
    run: dict[str, Any],
    letters: Letters,
    source: str,
    images: int,
    seed: int = 0,
) -> IntervalCalibration | None:
    """The calibration that these pictures and questions make; None where there are none, or the run does not
    tell in which numbers its model computed."""
    rng, model = np.random.default_rng(seed), run["model"]
    if not (rated or questions) or not {"dtype", "quantization"} <= model.keys():
        return None
    return IntervalCalibration(
        source=source,
        images=images,
        date=time.strftime("%Y-%m-%d"),
        model=run["identity"]["model"],
        dtype=model["dtype"],
        quantization=model["quantization"],
        query=run["identity"]["reads"]["query"],
        mode=fusion_settings(run).mode,
        temperature=letters.temperature,
        eta="auto" if letters.eta == "auto" else float(letters.eta),
        ratings=tuple(errors(known, rng) for known in _by_condition(rated)),
        questions=tuple(questions),
    )
