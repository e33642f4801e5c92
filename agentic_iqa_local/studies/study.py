"""One run as a report reads it: its rows, modes and draws, and what run.json says of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.studies.datasets import DATASETS, DatasetInfo
from agentic_iqa_local.studies.leakage import Exposure, is_clean
from agentic_iqa_local.studies.readings import Reading
from agentic_iqa_local.studies.statistics import (
    Draws,
    Figure,
    Resampled,
    RiskCoverage,
    Statistic,
)

MARGIN = 0.02  # of SRCC: what may be lost without mattering
SIGNIFICANCE = 0.05

Row = dict[str, Any]
Table = list[dict[str, Any]]


class StudyError(UserError, ValueError):
    """A run that cannot be reported on; one sentence for the user."""


@dataclass(frozen=True, eq=False)
class Study:
    """What a report says of one run. Arrays have an entry for each row.

    `quality` is the human score with higher for better. `letters` holds the distinct p_c by the modes that
    rest on them, `reliability` their confidence and correctness where levels are known, `curves` the
    product's mode by signal.
    """

    name: str
    run: dict[str, Any]
    rows: Sequence[Row]
    info: DatasetInfo
    modes: dict[str, Reading]
    quality: np.ndarray
    draws: Draws
    exposures: dict[str, list[Exposure]]
    product: str
    baseline: str
    comparator: str | None = None
    tables: dict[str, Table] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fits: dict[str, np.ndarray] = field(default_factory=dict)
    letters: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict)
    reliability: dict[tuple[str, ...], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    curves: dict[str, RiskCoverage] = field(default_factory=dict)
    worst: list[dict[str, Any]] = field(default_factory=list)
    _known: dict[tuple, Resampled] = field(default_factory=dict)

    @property
    def mos(self) -> np.ndarray:
        """The human scores as the authors give them."""
        return self.quality if self.info.higher_is_better else -self.quality

    def sampled(
        self, statistic: Statistic, mode: str, answered: np.ndarray | None = None, **options: Any
    ) -> Resampled:
        """`statistic` of a mode with the human scores on the draws, computed once for the same rows."""
        reading = self.modes[mode]
        answered = reading.answered if answered is None else answered
        among = options.get("among")
        key = (
            statistic,
            mode,
            answered.tobytes(),
            None if among is None else among.tobytes(),
            options.get("first"),
        )
        if key not in self._known:
            self._known[key] = self.draws.of(
                statistic, reading.scores, self.quality, answered=answered, **options
            )
        return self._known[key]

    def is_clean(self, mode: str) -> bool:
        """Whether the mode's rank correlation here may enter an average over data sets."""
        reading = self.modes[mode]
        return is_clean(self.exposures[mode], ranks_of_one=not reading.model and len(reading.tools) == 1)

    def mark(self, mode: str) -> str:
        """What stands beside the mode's figures: "seen" by a part of it, "?" where that is unknown, nothing
        where clean."""
        if self.is_clean(mode):
            return ""
        return (
            "?"
            if all(exposure.how == "training data unknown" for exposure in self.exposures[mode])
            else "seen"
        )


def dataset_info(run: dict[str, Any]) -> DatasetInfo:
    """What run.json says of the data set, over what is known of a set of that key.

    Raises StudyError for an unknown key, and where run.json lacks a part that a report needs.
    """
    if lacking := [
        part for part in ("dataset", "model", "fusion", "tools", "maps", "identity") if part not in run
    ]:
        raise StudyError(
            f"run.json: expected what a study writes, got no {', '.join(lacking)}",
            "report on a run of this version",
        )
    told = run["dataset"]
    if told["key"] not in DATASETS:
        raise StudyError(
            f"run.json: expected a data set of {', '.join(DATASETS)}, got {told['key']!r}", "correct its key"
        )
    known = {item.name for item in fields(DatasetInfo)} - {"key", "seen_as"}
    return replace(
        DATASETS[told["key"]].info, **{name: value for name, value in told.items() if name in known}
    )


def check_scores(name: str, rows: Sequence[Row], info: DatasetInfo) -> None:
    """Raises StudyError where a run has nothing to agree with."""
    if not rows or any("mos" not in row for row in rows):
        raise StudyError(
            f"{name}: expected rows with a human score, got {'questions' if rows else 'none'}",
            "use a scored run",
        )
    if info.higher_is_better is None:
        raise StudyError(
            f"{name}: expected run.json to say whether higher scores are better (dataset.higher_is_better)"
        )


def fusion_settings(run: dict[str, Any]) -> FusionSettings:
    """The fusion that the run was made with. Raises StudyError."""
    try:
        return FusionSettings.model_validate(run["fusion"])
    except ValidationError as error:
        first = error.errors()[0]
        raise StudyError(
            f"run.json: expected the fusion of this version, got {first['loc'][0]}: {first['msg']}",
            "run it anew",
        ) from error


def labels_of(rows: Sequence[Row], name: str, absent: str) -> list[str] | None:
    """The rows' labels, `absent` where a row has none; None when no row has one."""
    if all(row.get(name) is None for row in rows):
        return None
    return [absent.format(i) if row.get(name) is None else str(row[name]) for i, row in enumerate(rows)]


def spread(name: str, figure: Figure) -> dict[str, float]:
    """The columns of a figure and of the ends of its interval."""
    return {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}


def counts(figure: Figure) -> dict[str, Any]:
    """The columns of how many rows a figure is over, and of how many failed beside them."""
    return {"n": figure.n, "failed": figure.failed}


def mean(values: np.ndarray) -> float:
    """The mean; nan without values."""
    return float(values.mean()) if len(values) else math.nan


def number(value: Any) -> str:
    """For a reader: — where there is no value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "—"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3f}"
