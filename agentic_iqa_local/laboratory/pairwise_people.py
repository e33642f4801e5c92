"""Do people prefer the picture that comparisons prefer? Pairs of different photographs with human scores,
from a study's stored rows, as the pipeline letters would have assessed them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentic_iqa_local.assessment import unassessed
from agentic_iqa_local.config import Settings
from agentic_iqa_local.iqa_tools.calibration import read_map_file
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.iqa_tools.runner import SHIPPED_MAPS
from agentic_iqa_local.judgement.fit import calibration_for
from agentic_iqa_local.judgement.gates import Sureness
from agentic_iqa_local.judgement.preference import draws_of, probability_above
from agentic_iqa_local.laboratory.pairwise_figures import share
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LETTERS
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.score_fusion import ScoreFusion, letter_probabilities
from agentic_iqa_local.state import FusionResult

BINS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # of the human scores' difference, as shares of their range
SURE_BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def as_letters_pipeline(row: Mapping[str, Any], settings: Settings, sure: Sureness) -> Assessment:
    """What the pipeline letters says of a picture, from the read and the tools that a study stored."""
    (view,) = row["reads"]["image_alone"]["views"]
    p_c = letter_probabilities(view["forward"], settings.fusion.temperature)
    scores = {name: row["tools"][name]["normalized"] for name in settings.tools.no_reference}
    maps, _ = read_map_file(SHIPPED_MAPS)
    reachable = {name: maps[name].reachable for name in scores}
    sigma = load_reliability().sigma_of_mean(list(scores.items()), reachable)
    fusion = ScoreFusion(1 / (2 * sigma**2))
    values = list(scores.values())
    by_level = {LETTER_TO_LEVEL[letter]: p for letter, p in p_c.items()}
    found = FusionResult(
        mode="logits",
        vlm_letter=max(p_c, key=p_c.__getitem__),
        p_c={letter: p_c[letter] for letter in LETTERS},
        off_letter_mass=None,
        alpha=fusion.compute_perceptual_weights(values),
        q_bar=fusion.mean_score(values),
        q=fusion.fuse_scores(values, by_level),
        eta=fusion.eta,
        sigma=sigma,
        voters=list(scores),
        disagreement=max(values) - min(values),
    )
    interval, _ = sure.interval(found, None)
    blank = unassessed(row["image"], None, DEFAULT_QUERY, None, "letters", settings)
    return blank.model_copy(update={**dict(found), "interval": interval, "final_answer": "C"})


def against_people(
    rows: Sequence[Mapping[str, Any]], settings: Settings, model: dict[str, Any]
) -> dict[str, Any]:
    """All pairs of a study's photographs: how often the one with the higher human score is preferred, by how
    far the scores lie apart, and how that compares with the probability."""
    folder = settings.folder(settings.summarizer.backend)
    calibration, missing = calibration_for(settings, folder, model)
    sure = Sureness(settings.decisions, calibration, missing, "letters", query=DEFAULT_QUERY)
    assessed = [as_letters_pipeline(row, settings, sure) for row in rows]
    draws = [draws_of(row, calibration) for row in assessed]
    mos = np.array([row["mos"] for row in rows])
    pairs = [(i, j) for i, j in itertools.combinations(range(len(rows)), 2) if mos[i] != mos[j]]
    p = np.array([probability_above(draws[i], draws[j]) for i, j in pairs])
    apart = np.array([abs(mos[i] - mos[j]) for i, j in pairs]) / (mos.max() - mos.min())
    better = np.array([mos[i] > mos[j] for i, j in pairs])
    right, certain = (p > 0.5) == better, np.maximum(p, 1 - p)
    return {
        "photographs": len(rows),
        "calibrated": calibration is not None,
        "right": _resampled(right, np.array(pairs), len(rows)),
        "note": "the intervals in bins take pairs as independent, though they share photographs",
        "by_difference": list(_in_bins(apart, right, BINS)),
        "by_probability": list(_in_bins(certain, right, SURE_BINS)),
    }


def _resampled(right: np.ndarray, pairs: np.ndarray, photographs: int, draws: int = 500) -> dict[str, Any]:
    """The share of right pairs, (pairs,), with a 95 % interval by resampling photographs."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(draws):
        count = rng.multinomial(photographs, np.full(photographs, 1 / photographs))
        weight = count[pairs[:, 0]] * count[pairs[:, 1]]
        shares.append((weight @ right) / weight.sum())
    low, high = np.quantile(shares, [0.025, 0.975])
    found = {"share": float(right.mean()), "low": float(low), "high": float(high)}
    return {name: round(value, 4) for name, value in found.items()} | {"n": len(right)}


def _in_bins(value: np.ndarray, right: np.ndarray, bins: Sequence[float]) -> Iterator[dict[str, Any]]:
    for low, high in itertools.pairwise(bins):
        inside = (value >= low) & ((value < high) | (high == bins[-1]))
        if inside.any():
            yield {"from": low, "to": high, "mean": round(float(value[inside].mean()), 4)} | share(
                right[inside].tolist()
            )
