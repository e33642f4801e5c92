"""How far the truth may lie from an answer: an interval around q, and the choices that may be right, by split
conformal prediction.

A calibration holds pictures of known quality. Of each it keeps the error (the truth minus the truth expected
from q) and a difficulty that is learnt and costs nothing beside the assessment. Errors in units of difficulty
are exchangeable, so that between the 6.5 % and the 96.5 % quantile of n errors lies the truth of at least 90 %
of pictures like these, in each range of q. Of other pictures that is no promise.

Conformal predictive distributions: Vovk, Nouretdinov, Manokhin and Gammerman, COPA 2018. Errors in units of
difficulty: Papadopoulos, Gammerman and Vovk, AIA 2008. Ranges (Mondrian categories): Vovk, Gammerman and Shafer
2005, chapter 4. Sets of answers: Romano, Sesia and Candès, NeurIPS 2020. The library is crepes.
"""

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentic_iqa_local.config import Pipeline
from agentic_iqa_local.files import ROOT
from agentic_iqa_local.result import AnswerSet, Condition, Interval
from agentic_iqa_local.score_fusion import LEVELS, fused_distribution

if TYPE_CHECKING:
    from crepes import ConformalPredictiveSystem

SHIPPED = ROOT / "configs" / "intervals.json"  # a fit that calibrates the embedded model's answers
NO_FIT = "calibrate this set-up with study.py fit, and give the fit with --fit"
COVERAGE = 0.9
WIDENED = 0.95  # taken, for a promise of 90 % still, where a picture is not quite like those of the calibration
# Of the 10 % that an interval may miss, 65 % may lie below it: misses above it gather on clean pictures.
BELOW = 0.65
LOWEST, HIGHEST = float(min(LEVELS)), float(max(LEVELS))
LEAST_DIFFICULTY = 0.05  # levels
FEWEST_QUESTIONS = round(1 / (1 - COVERAGE)) - 1  # with fewer no choice is ruled out

FEATURES = (
    *("constant", "above_bad", "below_excellent", "spread", "sigma", "disagreement", "gap", "order_gap"),
    "crop_spread",
)
"""A difficulty is a weighted sum of these: 1, the distances of q from both ends of the scale, the spread of the
fused distribution w ∝ α·p, the error σ of the tools' mean, the range of the tools' scores, the distance of the
letters from the tools' mean, the distance between both orders of the letters, and the spread of the crops; all
but the first in levels."""


def features(
    p: np.ndarray,
    q_bar: np.ndarray,
    eta: np.ndarray,
    *,
    sigma: np.ndarray,
    disagreement: np.ndarray,
    order_gap: np.ndarray,
    crop_spread: np.ndarray,
) -> np.ndarray:
    """FEATURES of many pictures.

    Args:
        p: The letters' probabilities by level 1..5, (pictures, 5).
        q_bar: The tools' mean, like all that follow (pictures,), nan where there is none.
        eta: The sharpness η of the tools' weights.
        sigma, disagreement, order_gap, crop_spread: As in FEATURES; nan counts as 0.

    Returns:
        (pictures, features), in levels.
    """
    levels = np.array(LEVELS)
    w = fused_distribution(p, q_bar, eta)
    mean = w @ levels
    spread = np.sqrt(np.maximum(w @ levels**2 - mean**2, 0))
    gap = np.abs(p @ levels - q_bar)
    ends = [mean - LOWEST, HIGHEST - mean]
    columns = [np.ones(len(p)), *ends, spread, sigma, disagreement, gap, order_gap, crop_spread]
    return np.nan_to_num(np.stack(columns, axis=1), nan=0.0)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Errors(_Record):
    """The errors of pictures assessed under one condition, in levels, with the pictures' difficulties and the
    weights by which FEATURES give a difficulty."""

    condition: Condition
    line: tuple[float, float]  # offset and slope of the truth expected from q
    weights: Annotated[tuple[float, ...], Field(min_length=len(FEATURES), max_length=len(FEATURES))]
    errors: Annotated[tuple[float, ...], Field(min_length=1)]
    difficulties: tuple[Annotated[float, Field(gt=0)], ...]
    tools: tuple[tuple[str, ...], ...]  # which tools voted together in these assessments
    edges: tuple[float, ...] = ()  # where the ranges of q end, rising; () for one
    # the range of q of each error's picture; () where there is one range
    ranges: tuple[Annotated[int, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        ranges = self.ranges if self.edges else (0,) * len(self.errors)
        if not len(self.errors) == len(self.difficulties) == len(ranges):
            raise ValueError(f"expected a difficulty and a range of q for each of {len(self.errors)} errors")
        if set(ranges) != set(range(len(self.edges) + 1)):
            raise ValueError(f"expected errors in each of {len(self.edges) + 1} ranges")
        return self

    def range_of(self, q: np.ndarray) -> np.ndarray:
        """The range of each fused score, (pictures,) → (pictures,)."""
        return np.searchsorted(self.edges, q, side="right")

    def difficulty(self, table: np.ndarray) -> np.ndarray:
        """Difficulties in levels from FEATURES, (pictures, features) → (pictures,)."""
        return np.maximum(table @ np.array(self.weights), LEAST_DIFFICULTY)

    def expected(self, q: np.ndarray) -> np.ndarray:
        """The truth expected from fused scores, (pictures,): people may use the scale otherwise than q does."""
        offset, slope = self.line
        return offset + slope * q

    @cached_property
    def _system(self) -> "ConformalPredictiveSystem":
        from crepes import ConformalPredictiveSystem

        ranges = np.array(self.ranges if self.edges else [0] * len(self.errors))
        return ConformalPredictiveSystem().fit(np.array(self.errors), np.array(self.difficulties), ranges)

    @property
    def scaled(self) -> list[np.ndarray]:
        """The errors of each range in units of difficulty, rising."""
        return self._system.binned_alphas[1]

    def ends(self, q: np.ndarray, difficulty: np.ndarray, coverage: float) -> np.ndarray:
        """The intervals around fused scores, (pictures,) → (pictures, 2) within 1..5. An end that has too few
        errors beyond it is the scale's."""
        outside = 100 * (1 - coverage)  # percent
        system = self._system  # its import sets filters of its own
        with warnings.catch_warnings(action="ignore"):  # of too few errors: an end is then infinite
            ends = system.predict_percentiles(
                self.expected(q),
                difficulty,
                self.range_of(q),
                lower_percentiles=[round(outside * BELOW, 6)],
                higher_percentiles=[100 - round(outside * (1 - BELOW), 6)],
            )
        return np.clip(ends, LOWEST, HIGHEST)

    def quantiles(self, q: np.ndarray, difficulty: np.ndarray, count: int) -> np.ndarray:
        """`count` equally probable values of each picture's truth, rising, (pictures, count)."""
        shares = (np.arange(count) + 0.5) / count
        spaced = np.stack([np.quantile(scaled, shares) for scaled in self.scaled])
        return self.expected(q)[:, None] + difficulty[:, None] * spaced[self.range_of(q)]

    def probability_at_least(self, q: np.ndarray, difficulty: np.ndarray, quality: float) -> np.ndarray:
        """The probability that each picture's truth is `quality` or better, (pictures,): the share of the
        errors of its range with which it would be."""
        asked = (quality - self.expected(q)) / difficulty
        shares = np.stack([1 - np.searchsorted(scaled, asked) / len(scaled) for scaled in self.scaled])
        return shares[self.range_of(q), np.arange(len(q))]


def reached(probabilities: np.ndarray) -> np.ndarray:
    """Of each choice the probability of all choices that are at least as likely, (choices,) → (choices,), to six
    digits: how much of the probability a set must hold to include it."""
    return np.minimum([probabilities[probabilities >= p].sum().round(6) for p in probabilities], 1.0)


class Answers(_Record):
    """Questions with known answers: of each the number of choices, and what is `reached` with the right one."""

    pipeline: Pipeline
    reference: bool
    choices: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    right: tuple[Annotated[float, Field(ge=0, le=1)], ...]

    def like(self, choices: int) -> np.ndarray:
        """What is reached with the right answer of the questions with about as many choices (two, up to four, or
        more), (questions,); of all questions where these are too few."""
        size = np.digitize([choices, *self.choices], [3, 5])
        alike = np.array(self.right)[size[1:] == size[0]]
        return alike if len(alike) >= FEWEST_QUESTIONS else np.array(self.right)


class IntervalCalibration(_Record):
    """Pictures and questions of known truth as one model answered them. `model` is the hash of its folder
    (`files.folder_hash`); `dtype` and `quantization` are as its client describes them."""

    source: str  # the set that the truth comes from, in words
    images: int = Field(ge=1)
    date: str
    model: str
    dtype: str
    quantization: str
    query: str
    mode: str
    temperature: float
    eta: float | Literal["auto"]
    ratings: tuple[Errors, ...] = ()
    questions: tuple[Answers, ...] = ()

    @property
    def calibrated_on(self) -> str:
        return f"{self.source}, {self.images} pictures, {self.date}"

    def of(self, condition: Condition) -> Errors | None:
        """The errors under a condition; None where no picture was assessed so."""
        return next((part for part in self.ratings if part.condition == condition), None)

    def answers(self, pipeline: Pipeline, *, reference: bool) -> Answers | None:
        """The questions that were asked so; None where there are none."""
        alike = (part for part in self.questions if (part.pipeline, part.reference) == (pipeline, reference))
        return next(alike, None)

    def predictive(self, interval: Interval, q: float) -> np.ndarray:
        """Equally probable values of the true quality of a picture with this interval and fused score, rising,
        within 1..5. Raises ValueError for the interval of another calibration."""
        part = self.of(interval.condition)
        if part is None:
            raise ValueError(f"interval: expected one of this calibration, got one of {interval.condition}")
        errors = part.scaled[part.range_of(np.array(q))]
        return np.clip(part.expected(np.array(q)) + interval.difficulty * errors, LOWEST, HIGHEST)

    def interval(self, part: Errors, q: float, difficulty: float, widened: Sequence[str] = ()) -> Interval:
        """The interval around a fused score: at WIDENED in place of COVERAGE where `widened` has reasons. With too
        few errors it reaches to an end of the scale."""
        coverage = WIDENED if widened else COVERAGE
        low, high = part.ends(np.array([q]), np.array([difficulty]), coverage)[0].tolist()
        about = {"condition": part.condition, "calibrated_on": self.calibrated_on, "widened": list(widened)}
        return Interval(low=low, high=high, coverage=COVERAGE, difficulty=difficulty, **about)

    def answer_set(self, part: Answers, probabilities: dict[str, float], widened: Sequence[str] = ()) -> AnswerSet:
        """The choices that the calibration does not rule out; at least the likeliest, and all where there are too
        few questions."""
        from crepes import ConformalClassifier

        known, coverage = part.like(len(probabilities)), WIDENED if widened else COVERAGE
        scores = reached(np.array(list(probabilities.values())))[None]
        included = ConformalClassifier().fit(known).predict_set(scores, confidence=coverage, smoothing=False)
        possible = dict(zip(probabilities, np.ravel(included), strict=True))
        possible[max(probabilities, key=probabilities.__getitem__)] = True
        letters = [letter for letter in probabilities if possible[letter]]
        about = {"calibrated_on": self.calibrated_on, "widened": list(widened)}
        return AnswerSet(letters=letters, coverage=COVERAGE, **about)
