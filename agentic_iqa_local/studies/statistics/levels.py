"""Probabilities of the levels 1..K against human scores: their calibration, and what their uncertainty is
good for."""

from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy.optimize import isotonic_regression

from agentic_iqa_local.studies.statistics.agreement import columns


def ranked_probability_score(p: np.ndarray, level: np.ndarray) -> float:
    """The mean of `ranked_probability_scores`; nan without rows."""
    scores = ranked_probability_scores(p, level)
    return float(scores.mean()) if len(scores) else np.nan


def ranked_probability_scores(p: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Scores (n,) of probabilities `p` (n, K) over the levels 1..K (rising quality) against targets `level`
    (n,) in [1, K].

    0 is best, 1 worst: the sum of squared differences of cumulated probabilities over K − 1 (Epstein, J.
    Applied Meteorology 8, 1969; in the form of Constantinou and Fenton, J. Quantitative Analysis in Sports
    8(1), 2012). Between whole levels it is the integral of that square, the continuous score of Matheson and
    Winkler (Management Science 22, 1976). The target is a mean opinion, not one rater's: p as wide as the
    raters' votes does not score best. Raises ValueError for rows that are no probabilities or targets off the
    scale.
    """
    p, level = _probabilities(p, level)
    below = np.cumsum(p, axis=1)[:, :-1]
    # share of each step between levels under the target
    passed = np.clip(level[:, None] - np.arange(1, p.shape[1]), 0, 1)
    return np.mean(passed * below**2 + (1 - passed) * (1 - below) ** 2, axis=1)


def expected_calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> float:
    """Mean distance of confidence from accuracy over equal-width bins, each closed on its right: 0 best, 1
    worst.

    Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, equation 3.
    `confidence` (n,) in [0, 1], `correct` (n,) 0 or 1; ValueError otherwise.
    """
    confidence, correct = columns(confidence, correct)
    if ((confidence < 0) | (confidence > 1)).any() or not np.isin(correct, (0, 1)).all():
        raise ValueError("calibration error: expected confidence in [0, 1] and correct of 0 or 1")
    # |B|·|acc(B) − conf(B)| is |Σ_B (correct − confidence)|.
    which = np.maximum(np.searchsorted(np.linspace(0, 1, bins + 1), confidence) - 1, 0)
    return (
        float(np.abs(np.bincount(which, correct - confidence)).sum() / len(confidence))
        if len(confidence)
        else np.nan
    )


def letters_calibration_error(p: np.ndarray, level: np.ndarray, bins: int = 15) -> float:
    """`expected_calibration_error` of the likeliest level of `p` (n, K) against `level` (n,) in [1, K],
    rounded, halves up.

    Only for absolute category scales brought to 1..K, or through a `monotone_map`. Of levels equally likely,
    the lowest counts as the answer.
    """
    p, level = _probabilities(p, level)
    confidence = np.minimum(p.max(axis=1), 1)
    return expected_calibration_error(confidence, p.argmax(axis=1) + 1 == np.floor(level + 0.5), bins)


@dataclass(frozen=True, eq=False)
class MonotoneMap:
    """A piecewise linear monotone map through (knots, values); beyond the outer knots it stays at their
    values."""

    knots: np.ndarray
    values: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.interp(x, self.knots, self.values)


def monotone_map(x: np.ndarray, y: np.ndarray, *, increasing: bool = True) -> MonotoneMap:
    """Isotonic least-squares fit from `x` to `y`, both (n,), to be used on rows other than these.

    Barlow, Bartholomew, Bremner and Brunk, Statistical Inference under Order Restrictions, 1972. Equal x
    share one value. Raises ValueError without rows or for values that are not finite.
    """
    x, y = columns(x, y)
    if not len(x):
        raise ValueError("monotone map: expected at least one row, got none")
    knots, knot = np.unique(x, return_inverse=True)
    rows = np.bincount(knot)
    return MonotoneMap(
        knots, isotonic_regression(np.bincount(knot, y) / rows, weights=rows, increasing=increasing).x
    )


def entropy(p: np.ndarray) -> np.ndarray:
    """Shannon's entropy in nats, (n,), of probabilities (n, K): 0 for one certain level, log K for all
    alike."""
    return special.entr(_probabilities(p)[0]).sum(axis=1)


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Mean error (`risk`) of the most certain share (`coverage`) of n rows, both (n,), and the mean of that
    curve."""

    coverage: np.ndarray
    risk: np.ndarray
    aurc: float


def risk_coverage(uncertainty: np.ndarray, error: np.ndarray) -> RiskCoverage:
    """Error of the rows kept when the most uncertain are set aside, for every number of rows kept.

    Geifman, Uziel and El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers", ICLR 2019
    (AURC). `uncertainty` and `error` are (n,), in any units; of equally uncertain rows any may go first, and
    the risk is its mean over their orders. ValueError without rows.
    """
    uncertainty, error = columns(uncertainty, error)
    if not len(error):
        raise ValueError("risk and coverage: expected at least one row, got none")
    _, tie, rows = np.unique(uncertainty, return_inverse=True, return_counts=True)
    kept = np.arange(1, len(error) + 1)
    risk = np.cumsum(np.repeat(np.bincount(tie, error) / rows, rows)) / kept
    return RiskCoverage(kept / len(error), risk, float(risk.mean()))


def _probabilities(p: np.ndarray, level: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    p = np.asarray(p, float)
    if p.ndim != 2 or not ((p >= 0).all() and np.allclose(p.sum(axis=1), 1, rtol=0, atol=1e-6)):
        raise ValueError(
            f"probabilities: expected rows of non-negative numbers that sum to 1, got shape {p.shape}"
        )
    level = np.ones(len(p)) if level is None else np.asarray(level, float)
    if level.shape != (len(p),) or not ((level >= 1) & (level <= p.shape[1])).all():
        raise ValueError(f"levels: expected {len(p)} numbers in [1, {p.shape[1]}], got shape {level.shape}")
    return p, level
