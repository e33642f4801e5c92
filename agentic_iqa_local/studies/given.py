"""Which calibration of the intervals, made elsewhere, do a run's pictures get: that of a fit, or the one that
ships?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentic_iqa_local.judgement.fit import Fit, read_fit
from agentic_iqa_local.judgement.intervals import SHIPPED, IntervalCalibration
from agentic_iqa_local.studies.readings import Letters, Row
from agentic_iqa_local.studies.study import fusion_settings


@dataclass(frozen=True, eq=False)
class Given:
    """A calibration, what it is called, and which rows, (rows,), are of scenes that it was made on. Without
    one, `missing` says why."""

    name: str
    calibration: IntervalCalibration | None
    seen: np.ndarray
    missing: str = ""


def given_calibration(
    run: dict[str, Any], rows: Sequence[Row], fit: Fit | None, *, shipped: Path = SHIPPED
) -> Given:
    """That of `fit`, else the shipped one where it is of the run's model, dtype, quantization, query and
    fusion. Raises FitError for a shipped file that is no fit."""
    name = "the fit" if fit else "shipped"
    nothing = np.full(len(rows), False)
    if fit is None:
        if not shipped.is_file():
            return Given(name, None, nothing, "no calibration ships")
        fit = read_fit(shipped)
        if fit.intervals and (reason := _another(fit.intervals, run)):
            return Given(name, None, nothing, f"it was made with {reason}")
    if fit.intervals is None:
        return Given(name, None, nothing, "it calibrates no intervals")
    if fit.dataset == run["dataset"]["key"]:
        nothing = np.array([fit.used(row) for row in rows])
    return Given(name, fit.intervals, nothing)


def _another(calibration: IntervalCalibration, run: dict[str, Any]) -> str | None:
    """What is another in the run than it was in the calibration."""
    settings, model = fusion_settings(run), run["model"]
    letters = Letters.of(settings)
    for what, theirs, ours in (
        ("model", calibration.model, run["identity"]["model"]),
        ("dtype", calibration.dtype, model.get("dtype")),
        ("quantization", calibration.quantization, model.get("quantization")),
        ("query", calibration.query, run["identity"]["reads"]["query"]),
        ("mode", calibration.mode, settings.mode),
        ("temperature", calibration.temperature, letters.temperature),
        ("η", calibration.eta, letters.eta),
    ):
        if theirs != ours:
            return f"another {what}"
    return None
