"""How q would rank a data set if a person had rated some of its pictures and an eye had learned from
them: SRCC on the others, by the number of ratings."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from agentic_iqa_local.judgement.learning import FEWEST_SCENES, Rated, learning_curve, tool_columns
from agentic_iqa_local.nodes.evidence import votes
from agentic_iqa_local.state import EYE, ExecutorOutput
from agentic_iqa_local.studies.scored_run import ScoredRun

COLUMNS = ["ratings", "srcc", "srcc_without", "draws", "worse"]
MOST = 1000  # pictures; of a larger set as many are drawn
SEED = 0


def stored_statistics(statistics: np.ndarray) -> str:
    """LocalNR's statistics as a row holds them: float32, base64."""
    return base64.b64encode(statistics.astype("<f4").tobytes()).decode()


def eye_curve(run: ScoredRun) -> pd.DataFrame:
    """A line for each number of ratings; none where rows lack LocalNR's statistics, as those with a
    reference do, or there are too few."""
    rated = _rated(run)
    points = learning_curve(rated) if rated else []
    return pd.DataFrame([point.model_dump() for point in points], columns=COLUMNS)


def _rated(run: ScoredRun) -> Rated | None:
    """The run's pictures as if a person had given them their human scores."""
    if run.product != "logits" or not run.readings.has("all_evidence"):
        return None
    q = run.modes[run.product].scores
    p = run.readings.p("all_evidence", temperature=run.run.fusion.letters_temperature)
    levels = [_levels(row) for row in run.rows]
    chosen = np.random.default_rng(SEED).permutation(_usable(run, levels, q))[:MOST]
    if len(chosen) < FEWEST_SCENES:
        return None
    quality = run.quality[chosen]
    scenes = run.pictures["group"].fillna(run.pictures["key"]).iloc[chosen]
    return Rated(
        statistics=np.array([_statistics(run.rows[i]) for i in chosen], float),
        tools=tool_columns([levels[i] for i in chosen]),
        p_c=p[chosen],
        q=q[chosen],
        levels=1 + 4 * (quality - quality.min()) / (np.ptp(quality) or 1.0),
        scenes=pd.factorize(scenes)[0],
    )


def _usable(run: ScoredRun, levels: Sequence[dict[str, float]], q: np.ndarray) -> list[int]:
    """The rows that have q, statistics and LocalNR's level."""
    found = []
    for number, row in enumerate(run.rows):
        if "statistics" in row and "LocalNR" in levels[number] and np.isfinite(q[number]):
            found.append(number)
    return found


def _levels(row: Mapping[str, Any]) -> dict[str, float]:
    """What each tool of the agent but an eye said of the whole picture."""
    evidence = row.get("evidence") and ExecutorOutput.model_validate(row["evidence"])
    said: Sequence[tuple[str, float]] = votes(evidence, checking=True)
    return {tool: score for tool, score in said if tool != EYE}


def _statistics(row: Mapping[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(row["statistics"]), "<f4")
