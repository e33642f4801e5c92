"""Correlation with human scores, intervals by resampling whole scenes, paired comparisons and calibration of
the letters.

A statistic here is a function of columns (one entry a row, a row being one image) that returns a float.
`Draws.of` gives it on all rows and on every bootstrap draw; `interval` and `paired_difference` read that, so
that each scoring mode is resampled once and any two modes are compared on the same draws. Failed images stay
rows: they are named in `answered`, left out of the statistic, and counted in its `Figure`. Knows nothing of
data sets, models or files.
"""

from agentic_iqa_local.studies.statistics.agreement import LogisticFit, krcc, plcc, rmse, srcc, vqeg_logistic
from agentic_iqa_local.studies.statistics.bootstrap import (
    Draws,
    Figure,
    Resampled,
    Statistic,
    interval,
    resampling_unit,
)
from agentic_iqa_local.studies.statistics.comparisons import (
    UNDECIDED,
    Difference,
    holm,
    meng,
    paired_difference,
    verdict,
)
from agentic_iqa_local.studies.statistics.levels import (
    RiskCoverage,
    entropy,
    expected_calibration_error,
    letters_calibration_error,
    monotone_map,
    ranked_probability_score,
    ranked_probability_scores,
    risk_coverage,
)

__all__ = [
    "UNDECIDED",
    "Difference",
    "Draws",
    "Figure",
    "LogisticFit",
    "Resampled",
    "RiskCoverage",
    "Statistic",
    "entropy",
    "expected_calibration_error",
    "holm",
    "interval",
    "krcc",
    "letters_calibration_error",
    "meng",
    "monotone_map",
    "paired_difference",
    "plcc",
    "ranked_probability_score",
    "ranked_probability_scores",
    "resampling_unit",
    "risk_coverage",
    "rmse",
    "srcc",
    "verdict",
    "vqeg_logistic",
]
