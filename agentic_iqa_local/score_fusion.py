"""Fusion of the tools' scores with the VLM's letter probabilities (AgenticIQA, arXiv 2509.26006,
section on the Summarizer).

    q̄   = (1/n) Σ q̂_i                                        mean of the tools' scores, 1..5
    (1) α_c = exp(−η(q̄ − c)²) / Σ_j exp(−η(q̄ − j)²)              perceptual weights of the levels
    c        (2) p_c = exp(log p̂_c) / Σ_j exp(log p̂_j)                    the VLM's probabilities
    (3) q   = Σ_c α_c·p_c·c / Σ_c α_c·p_c                         the fused score, 1..5
    (4)

The paper prints (4) without its denominator; without it q cannot reach the paper's own figures (q̄
2.9871 → 2.9542) nor 1..5. `ScoreFusion(normalize=False)` keeps the literal sum for studies. Numpy
and the standard library only.
"""

import bisect
import itertools
import logging
import math
import string
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from agentic_iqa_local.state import LETTER_TO_LEVEL, LEVEL_WORDS, FusionResult, Mode

logger = logging.getLogger(__name__)

K = TypeVar("K", str, int)
LEVELS = np.arange(1.0, 6.0)  # of quality


class ScoreFusion:
    """The paper's fusion. The letter A stands for the best level; the words Excellent to Bad for 5
    to 1.

    Args:
        eta: how sharply α falls around q̄; above 0.
        quality_levels: different levels.
        classification_confidence: the probability of the written letter where no logits are read.
        normalize: False leaves out the denominator of (4).

    Raises ValueError for an η that is not above 0.
    """

    def __init__(
        self,
        eta: float = 1.0,
        quality_levels: Sequence[int] = (1, 2, 3, 4, 5),
        *,
        classification_confidence: float = 0.8,
        normalize: bool = True,
    ):
        if not 0 < eta < math.inf:
            raise ValueError(f"eta: expected a positive number, got {eta}")
        self.eta = eta
        self.quality_levels = list(quality_levels)
        self.normalize = normalize
        self.classification_confidence = classification_confidence
        self._levels = np.array(self.quality_levels, float)
        best_first = sorted(quality_levels, reverse=True)
        self._named = dict(zip(string.ascii_uppercase, best_first, strict=False))
        for level in best_first:
            self._named[str(level)] = level
            if level in LEVEL_WORDS:
                self._named[LEVEL_WORDS[level]] = level

    def mean_score(self, tool_scores: Sequence[float]) -> float | None:
        """q̄ of (1); None without scores. Raises ValueError for a score outside the levels'
        range."""
        low, high = min(self.quality_levels), max(self.quality_levels)
        for score in tool_scores:
            if not low <= score <= high:  # also catches NaN
                raise ValueError(f"tool score: expected {low} to {high}, got {score}")
        return float(np.mean(tool_scores)) if len(tool_scores) else None

    def compute_perceptual_weights(self, tool_scores: Sequence[float]) -> dict[int, float]:
        """α_c of (2); uniform, with a warning, when there are no tool scores."""
        mean = self.mean_score(tool_scores)
        if mean is None:
            logger.warning("No tool gave a score: q is the model's own opinion alone")
            return self._uniform()
        weights = softmax(_log_likelihood(mean, self.eta, self._levels))
        return dict(zip(self.quality_levels, weights.tolist(), strict=True))

    def extract_vlm_probabilities(
        self, vlm_output: Mapping[str | int, float] | str | int | None, mode: Mode = "logits"
    ) -> dict[int, float]:
        """p_c of (3) for each level.

        Args:
            vlm_output: a logit or log-probability for every letter (or level), or the answer that the model wrote
                ("B", "Good", or a level).
            mode: logits takes either (a written answer as classification does); classification takes an answer alone,
                which gets `classification_confidence`, and the others share the rest. Any other mode makes all levels
                alike, with a warning unless it is "uniform".

        Raises:
            ValueError: an output that cannot be read; it is never guessed.
        """
        if mode == "logits" and isinstance(vlm_output, Mapping):
            by_level = {self._level(key): float(value) for key, value in vlm_output.items()}
            if set(by_level) != set(self.quality_levels):
                expected = f"one value for each of the levels {self.quality_levels}"
                raise ValueError(f"logits mode: expected {expected}, got {vlm_output}")
            return letter_probabilities({level: by_level[level] for level in self.quality_levels})
        if mode in ("logits", "classification"):
            confidence = self.classification_confidence
            return written_probabilities(self._level(vlm_output), self.quality_levels, confidence)
        if mode != "uniform":
            expected = "mode: expected logits, classification or uniform"
            logger.warning("%s, got %r: uniform is used", expected, mode)
        return self._uniform()

    def fuse_scores(
        self, tool_scores: Sequence[float], vlm_probabilities: Mapping[int, float]
    ) -> float:
        """q of (4), in log space so that sharp weights cannot underflow to 0/0."""
        if not self.normalize:
            alpha = self.compute_perceptual_weights(tool_scores)
            return float(sum(alpha[c] * vlm_probabilities[c] * c for c in self.quality_levels))
        return float(self._weights(tool_scores, vlm_probabilities) @ self._levels)

    def sensitivity(
        self, tool_scores: Sequence[float], vlm_probabilities: Mapping[int, float]
    ) -> float:
        """dq/dq̄ = 2η·Var_w(c) with w ∝ α·p: how many levels q moves when the tools' mean moves by
        one; 0 without tools.

        From (4): d ln α_c/dq̄ = −2η(q̄ − c) + const, so dq/dq̄ = Cov_w(c, 2ηc).
        """
        if not len(tool_scores):
            return 0.0
        weights = self._weights(tool_scores, vlm_probabilities)
        variance = weights @ self._levels**2 - (weights @ self._levels) ** 2
        return float(2 * self.eta * variance)

    def map_to_level(self, score: float, thresholds: Sequence[float] | None = None) -> str:
        """The letter of the nearest level, A for the best, halves up; or by rising custom
        `thresholds` between the levels.

        A score equal to a threshold takes the better level. The literal sum of `normalize=False`
        may lie below the levels: it takes the worst.
        """
        ordered = sorted(self.quality_levels)
        low = ordered[0] if self.normalize else 0
        if not low <= score <= ordered[-1]:
            raise ValueError(f"score: expected {low} to {ordered[-1]}, got {score}")
        if thresholds is None:
            thresholds = [(a + b) / 2 for a, b in itertools.pairwise(ordered)]
        if len(thresholds) != len(ordered) - 1 or list(thresholds) != sorted(thresholds):
            expected = f"{len(ordered) - 1} rising numbers"
            raise ValueError(f"thresholds: expected {expected}, got {list(thresholds)}")
        worse = len(thresholds) - bisect.bisect_right(thresholds, score)
        return string.ascii_uppercase[worse]

    def _uniform(self) -> dict[int, float]:
        return dict.fromkeys(self.quality_levels, 1 / len(self.quality_levels))

    def _weights(
        self, tool_scores: Sequence[float], vlm_probabilities: Mapping[int, float]
    ) -> np.ndarray:
        p = np.array([vlm_probabilities[c] for c in self.quality_levels], float)
        if (p < 0).any() or not np.isclose(p.sum(), 1, atol=1e-6):
            got = dict(vlm_probabilities)
            raise ValueError(f"vlm_probabilities: expected probabilities that sum to 1, got {got}")
        mean = self.mean_score(tool_scores)
        return fused_distribution(p, np.nan if mean is None else mean, self.eta, self._levels)

    def _level(self, key: Any) -> int:
        """A level, or its letter or its word, as a level. Raises ValueError for anything else."""
        level = self._named.get(str(key).strip().capitalize())
        if level is None:
            expected = "a letter from A on, a level word or a level"
            raise ValueError(f"answer: expected {expected}, got {key!r}")
        return level


def expected_level(p_c: Mapping[str, float]) -> float:
    """The mean level, 1..5, of the letters' probabilities: what they say without any tool."""
    return sum(p * LETTER_TO_LEVEL[letter] for letter, p in p_c.items())


def letter_probabilities(logprobs: Mapping[K, float], temperature: float = 1.0) -> dict[K, float]:
    """Log-probabilities of letters → probabilities over these letters alone, (3) with a
    temperature.

    Raises ValueError for NaN, +inf, or nothing but −inf.
    """
    values = np.array(list(logprobs.values()), float)
    if np.isnan(values).any() or (values == np.inf).any() or (values == -np.inf).all():
        raise ValueError(f"logits mode: expected finite log-probabilities, got {values.tolist()}")
    return dict(zip(logprobs, softmax(values / temperature).tolist(), strict=True))


def at_temperature_one(p: Mapping[K, float], temperature: float) -> dict[K, float]:
    """What probabilities that were read at a temperature are without it."""
    logs = np.log(np.maximum([*p.values()], np.finfo(float).tiny))
    return letter_probabilities(dict(zip(p, logs, strict=True)), 1 / temperature)


def model_alone(fusion: FusionResult) -> dict[str, float]:
    """What the model gives each letter, whatever temperature they count at in the fusion."""
    return at_temperature_one(fusion.p_c, fusion.temperature)


def answer_letter(fusion: FusionResult) -> str:
    """The letter of the level nearest to q, or of the likeliest choice."""
    if fusion.q is None:
        return max(fusion.p, key=fusion.p.__getitem__)
    return ScoreFusion().map_to_level(fusion.q)


def written_probabilities(answer: K, answers: Sequence[K], confidence: float) -> dict[K, float]:
    """Probabilities of all `answers` where the model wrote one of them and no logits were read:
    `confidence` for that one, and the others share the rest equally."""
    rest = (1 - confidence) / (len(answers) - 1)
    return dict.fromkeys(answers, rest) | {answer: confidence}


def fused_distribution(
    p: np.ndarray,
    q_bar: float | np.ndarray,
    eta: float | np.ndarray,
    levels: np.ndarray = LEVELS,
) -> np.ndarray:
    """w ∝ α·p of (4), (..., levels), in log space so that sharp weights cannot underflow to 0/0.
    `p` is (..., levels), q̄ and η one or one for each of its rows; where q̄ is nan, α is
    uniform."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return softmax(_log_likelihood(q_bar, eta, levels) + np.log(p))


def softmax(values: np.ndarray) -> np.ndarray:
    """Over the last axis; nan where a value is."""
    weight = np.exp(values - values.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def _log_likelihood(
    q_bar: float | np.ndarray, eta: float | np.ndarray, levels: np.ndarray
) -> np.ndarray:
    mean = np.asarray(q_bar, float)[..., None]
    sharpness = np.asarray(eta, float)[..., None]
    return np.where(np.isnan(mean), 0.0, -sharpness * (mean - levels) ** 2)
