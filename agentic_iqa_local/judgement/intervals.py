"""How sure an answer is: an interval around q, and the choices among which the right one is, by split
conformal prediction.

A calibration holds pictures of known quality. Of each it keeps the error, truth less what q lets expect, and
a difficulty, which costs nothing beside the assessment. The truth of a new picture lies as far from what its
q lets expect as theirs did, in units of difficulty: between the 6.5 % and the 96.5 % quantile of n errors
lies the truth of at least 90 % of pictures like these. Errors are taken of pictures with a q of the same
range, so that it holds in each range of q and not only over all. (Conformal predictive distributions: Vovk,
Nouretdinov, Manokhin and Gammerman, COPA 2018; errors in units of difficulty: Papadopoulos, Gammerman and
Vovk, AIA 2008; ranges: Mondrian conformal prediction, Vovk, Gammerman and Shafer 2005, chapter 4.) Of other
pictures that is no promise.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentic_iqa_local.levels import LEVEL_WORDS, Look
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.request import Pipeline
from agentic_iqa_local.score_fusion import LEVELS, fused_distribution

if TYPE_CHECKING:
    from crepes import ConformalPredictiveSystem

SHIPPED = ROOT / "configs" / "intervals.json"  # a fit that calibrates the embedded model's answers
COVERAGE = 0.9
BELOW = (
    0.65  # of what is left out: errors beyond the upper end gather on clean pictures, so fewer are allowed
)
WIDENED = 0.95  # taken in its place where a picture is not quite like those of the calibration
LOWEST, HIGHEST = float(min(LEVEL_WORDS)), float(max(LEVEL_WORDS))
LEAST_DIFFICULTY = 0.05  # levels

LOOKS: tuple[Look, ...] = ("one order", "both orders", "crops")

FEATURES = (
    "constant",
    "above_bad",
    "below_excellent",
    "spread",
    "sigma",
    "disagreement",
    "gap",
    "order_gap",
    "crop_spread",
)
"""What a difficulty is a weighted sum of: 1, how far q lies from either end of the scale, the spread of the
fused distribution w ∝ α·p, the error σ of the tools' mean, how far the tools lie apart, how far the letters
lie from the tools' mean, how far both orders of the letters lie apart, and the crops' spread; all but the
first in levels."""


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
    """FEATURES of many pictures, (pictures, features). `p` is (pictures, 5), by level 1..5; the others are
    (pictures,), nan where there is none, which counts as 0."""
    w = fused_distribution(p, q_bar, eta)
    mean = w @ np.array(LEVELS)
    spread = np.sqrt(np.maximum(w @ np.array(LEVELS) ** 2 - mean**2, 0))
    gap = np.abs(p @ np.array(LEVELS) - q_bar)
    ends = [mean - LOWEST, HIGHEST - mean]
    columns = [np.ones(len(p)), *ends, spread, sigma, disagreement, gap, order_gap, crop_spread]
    return np.nan_to_num(np.stack(columns, axis=1), nan=0.0)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Condition(_Record):
    """How a picture was assessed: pictures with the same condition have errors of the same kind."""

    pipeline: Pipeline
    reference: bool
    look: Look


class Errors(_Record):
    """The errors of pictures assessed under one condition, truth less `expected(q)`, in levels, with the
    difficulties of their pictures, and the weights by which FEATURES give a difficulty."""

    condition: Condition
    line: tuple[float, float] = Field(description="Offset and slope of the truth that q lets expect.")
    weights: Annotated[tuple[float, ...], Field(min_length=len(FEATURES), max_length=len(FEATURES))]
    errors: Annotated[tuple[float, ...], Field(min_length=1)]
    difficulties: tuple[Annotated[float, Field(gt=0)], ...]
    tools: tuple[tuple[str, ...], ...] = Field(description="Which tools voted together in these assessments.")
    edges: tuple[float, ...] = Field(default=(), description="Where the ranges of q end, rising; () for one.")
    ranges: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="The range of q that each error's picture lies in; () where there is one."
    )

    @model_validator(mode="after")
    def _is_whole(self) -> "Errors":
        if len(self.errors) != len(self.difficulties):
            raise ValueError(
                f"expected as many difficulties as errors, got {len(self.difficulties)} and"
                f" {len(self.errors)}"
            )
        if self.edges and (len(self.ranges), set(self.ranges)) != (len(self.errors), {*self._all_ranges}):
            raise ValueError(
                f"expected a range for each error and errors in each of {len(self._all_ranges)} ranges"
            )
        return self

    @property
    def _all_ranges(self) -> range:
        return range(len(self.edges) + 1)

    def range_of(self, q: np.ndarray) -> np.ndarray:
        """Of fused scores, (pictures,) → (pictures,)."""
        return np.searchsorted(self.edges, q, side="right")

    def _by_range(self, values: tuple[float, ...]) -> list[np.ndarray]:
        """Of the errors, (errors,), in each range."""
        if not self.edges:
            return [np.array(values)]
        return [np.array(values)[np.array(self.ranges) == i] for i in self._all_ranges]

    def difficulty(self, row: np.ndarray) -> np.ndarray:
        """Of pictures by their FEATURES, (pictures, features) → (pictures,), in levels."""
        return np.maximum(row @ np.array(self.weights), LEAST_DIFFICULTY)

    def expected(self, q: np.ndarray) -> np.ndarray:
        """The truth that fused scores let expect, (pictures,): q is not on everybody's scale."""
        offset, slope = self.line
        return offset + slope * q

    @cached_property
    def _systems(self) -> "list[ConformalPredictiveSystem]":
        """One for each range."""
        from crepes import ConformalPredictiveSystem

        of_ranges = zip(self._by_range(self.errors), self._by_range(self.difficulties), strict=True)
        return [ConformalPredictiveSystem().fit(errors, difficulties) for errors, difficulties in of_ranges]

    @property
    def fewest(self) -> int:
        """How many errors an interval of COVERAGE needs; with fewer it is the whole scale."""
        return round(1 / ((1 - COVERAGE) * min(BELOW, 1 - BELOW)))

    def ends(self, q: float, difficulty: float, coverage: float) -> tuple[float, float]:
        """The interval's ends within 1..5, around a fused score."""
        ((low, high),) = self.all_ends(np.array([q]), np.array([difficulty]), coverage)
        return float(low), float(high)

    def all_ends(self, q: np.ndarray, difficulty: np.ndarray, coverage: float) -> np.ndarray:
        """The ends of the intervals around many fused scores, (pictures,) → (pictures, 2), within 1..5; an
        end beyond all errors is the scale's."""
        outside = 100 * (1 - coverage)  # percent
        below, above = round(outside * BELOW, 6), round(outside * (1 - BELOW), 6)
        ends, found = np.tile([LOWEST, HIGHEST], (len(q), 1)), self.range_of(q)
        for i, (system, errors) in enumerate(zip(self._systems, self._scaled, strict=True)):
            if not (here := found == i).any():
                continue
            at, places = (self.expected(q[here]), difficulty[here]), len(errors) + 1
            if places * below >= 100:  # so few percent are at least one error
                ends[here, 0] = system.predict_percentiles(*at, lower_percentiles=[below]).ravel()
            if places * above >= 100:
                ends[here, 1] = system.predict_percentiles(*at, higher_percentiles=[100 - above]).ravel()
        return np.clip(ends, LOWEST, HIGHEST)

    @cached_property
    def _scaled(self) -> list[np.ndarray]:
        """The errors of each range in units of difficulty, rising."""
        of_ranges = zip(self._by_range(self.errors), self._by_range(self.difficulties), strict=True)
        return [np.sort(errors / difficulties) for errors, difficulties in of_ranges]

    def predictive(self, q: float, difficulty: float) -> np.ndarray:
        """Equally probable values of the truth of a picture, rising, (errors of its range,); they may lie
        beyond the scale."""
        (found,), (expected,) = self.range_of(np.array([q])), self.expected(np.array([q]))
        return expected + difficulty * self._scaled[found]

    def probability_at_least(self, q: np.ndarray, difficulty: np.ndarray, quality: float) -> np.ndarray:
        """That the truth of pictures is `quality` or better: the share of the `predictive` values that are,
        (pictures,)."""
        found, asked = self.range_of(q), (quality - self.expected(q)) / difficulty
        probable = np.empty(len(q))
        for i, scaled in enumerate(self._scaled):
            at = found == i
            probable[at] = 1 - np.searchsorted(scaled, asked[at]) / len(scaled)
        return probable

    def quantiles(self, q: np.ndarray, difficulty: np.ndarray, count: int) -> np.ndarray:
        """`count` equally probable values of the truth of pictures, rising, (pictures, count); they may lie
        beyond the scale."""
        spaced = np.stack([np.quantile(scaled, (np.arange(count) + 0.5) / count) for scaled in self._scaled])
        return self.expected(q)[:, None] + difficulty[:, None] * spaced[self.range_of(q)]


class Interval(BaseModel):
    """Where the true quality lies, with how much probability, and how that is known."""

    low: float = Field(ge=1, le=5)
    high: float = Field(ge=1, le=5)
    coverage: float = Field(description="How often such an interval holds the truth of pictures like these.")
    difficulty: float = Field(
        gt=0, description="Of this picture, in levels: by this the calibration's errors are scaled."
    )
    condition: Condition
    calibrated_on: str = Field(description="The set, its size and the date of the calibration.")
    widened: list[str] = Field(
        default=[], description="Why it is wider than the calibration's pictures would make it."
    )

    @property
    def width(self) -> float:
        """In levels, 0..4."""
        return self.high - self.low


class AnswerSet(BaseModel):
    """The fewest of the choices, the likeliest first, that hold the right one, with how much probability."""

    letters: list[str]
    coverage: float
    calibrated_on: str
    widened: list[str] = []


def reached(probabilities: np.ndarray) -> np.ndarray:
    """For each choice the probability of all that are at least as likely, (choices,) → (choices,), to six
    digits: how much of the probability a set must hold to hold it (adaptive prediction sets: Romano, Sesia
    and Candès, NeurIPS 2020)."""
    return np.minimum([probabilities[probabilities >= p].sum().round(6) for p in probabilities], 1.0)


class Answers(_Record):
    """Questions with choices whose answer is known: of each how many choices it has, and how much of the
    probability is `reached` with the right one."""

    pipeline: Pipeline
    reference: bool
    choices: tuple[Annotated[int, Field(ge=2)], ...]
    right: tuple[Annotated[float, Field(ge=0, le=1)], ...]

    @model_validator(mode="after")
    def _is_whole(self) -> "Answers":
        if not self.choices or len(self.choices) != len(self.right):
            raise ValueError("expected as many numbers of choices as questions, and at least one")
        return self

    @property
    def fewest(self) -> int:
        return round(1 / (1 - COVERAGE)) - 1

    def like(self, choices: int) -> np.ndarray:
        """What is reached with the right answer of the questions with about as many choices, (questions,); of
        all where these are too few."""
        scores = np.array(self.right)
        of_size = scores[[_size(n) == _size(choices) for n in self.choices]]
        return of_size if len(of_size) >= self.fewest else scores


def _size(choices: int) -> str:
    return "two" if choices == 2 else "a few" if choices <= 4 else "many"


class IntervalCalibration(_Record):
    """Pictures and questions of known truth, as one model answered them. `model` is the hash of its folder
    (`provenance.folder_hash`), `dtype` and `quantization` as its client tells them."""

    source: str = Field(description="The set that the truth comes from, in words.")
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
        """Questions that were asked so; None where there are none."""
        alike = (part for part in self.questions if (part.pipeline, part.reference) == (pipeline, reference))
        return next(alike, None)

    def predictive(self, interval: Interval, q: float) -> np.ndarray:
        """Equally probable values of the true quality of a picture with this interval and fused score,
        rising, (errors of its range,); beyond 1..5 they are cut off. Raises ValueError for another
        calibration's."""
        part = self.of(interval.condition)
        if part is None:
            raise ValueError(f"interval: expected one of this calibration, got one of {interval.condition}")
        return np.clip(part.predictive(q, interval.difficulty), LOWEST, HIGHEST)

    def interval(self, part: Errors, q: float, difficulty: float, widened: Sequence[str] = ()) -> Interval:
        """Around a fused score: at WIDENED in place of COVERAGE where `widened` has reasons."""
        reasons = list(widened)
        if len(part.errors) < part.fewest:
            low, high = LOWEST, HIGHEST
            reasons.append(
                f"{len(part.errors)} pictures of known quality are fewer than the {part.fewest} that"
                f" {COVERAGE:.0%} need: it is the whole scale"
            )
        else:
            low, high = part.ends(q, difficulty, WIDENED if widened else COVERAGE)
        return Interval(
            low=low,
            high=high,
            coverage=COVERAGE,
            difficulty=difficulty,
            condition=part.condition,
            calibrated_on=self.calibrated_on,
            widened=reasons,
        )

    def answer_set(
        self, part: Answers, probabilities: dict[str, float], widened: Sequence[str] = ()
    ) -> AnswerSet:
        """The choices that the calibration does not rule out; at least the likeliest."""
        from crepes import ConformalClassifier

        known, reasons = part.like(len(probabilities)), list(widened)
        coverage = WIDENED if widened else COVERAGE
        if len(known) < part.fewest:
            reasons.append(
                f"{len(known)} questions of known answer are fewer than the {part.fewest} that"
                f" {COVERAGE:.0%} need: it holds all answers"
            )
        classifier = ConformalClassifier().fit(known)
        alphas = reached(np.array(list(probabilities.values())))[None]
        held = np.ravel(classifier.predict_set(alphas, confidence=coverage, smoothing=False))
        likeliest = max(probabilities, key=probabilities.__getitem__)
        letters = [
            letter for letter, holds in zip(probabilities, held, strict=True) if holds or letter == likeliest
        ]
        return AnswerSet(
            letters=letters, coverage=COVERAGE, calibrated_on=self.calibrated_on, widened=reasons
        )
