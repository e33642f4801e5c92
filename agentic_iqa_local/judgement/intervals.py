"""How far the truth may lie from an answer: an interval around q, and the choices that may be
right, by split conformal prediction.

A calibration holds the errors of pictures of known quality (the truth minus the truth expected from
q) in units of a difficulty, which is learnt. Between their 6.5 % and 96.5 % quantile lies the truth
of at least 90 % of pictures like these, in each range of q. Sources: Vovk et al., COPA 2018
(predictive distributions) and 2005, chapter 4 (ranges); Papadopoulos et al., AIA 2008 (difficulty);
Romano et al., NeurIPS 2020 (sets of answers).
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import Field

from agentic_iqa_local.config import Pipeline
from agentic_iqa_local.files import ROOT
from agentic_iqa_local.iqa_tools.calibration import HIGHEST, LOWEST
from agentic_iqa_local.iqa_tools.eye import EyeCard
from agentic_iqa_local.iqa_tools.specs import FileRecord
from agentic_iqa_local.result import AnswerSet, Condition, Interval, Look
from agentic_iqa_local.score_fusion import LEVELS, fused_distribution
from agentic_iqa_local.state import revised

SHIPPED = ROOT / "configs" / "intervals.json"  # a fit that calibrates the embedded model's answers
COVERAGE = 0.9
WIDENED = 0.95  # taken, for a promise of 90 % still, where a picture is not quite like those of the calibration
BELOW = 0.65  # of what an interval may miss; misses above it gather on clean pictures
LEAST_DIFFICULTY = 0.05  # levels
FEWEST_QUESTIONS = round(1 / (1 - COVERAGE)) - 1  # with fewer no choice is ruled out

MEASURED = (
    "q_bar",
    "eta",
    "sigma",
    "disagreement",
    "order_gap",
    "crop_spread",
)  # of a `state.FusionResult`
FEATURES = (
    "constant", "above_bad", "below_excellent", "spread", "sigma", "disagreement", "gap", "order_gap",
    "crop_spread",
)  # fmt: skip
"""A difficulty is a weighted sum of these: 1, the distances of q from both ends of the scale, the
spread of the fused distribution w ∝ α·p, four of MEASURED, and the distance of the letters from the
tools' mean; in levels."""


def features(p: np.ndarray, measured: Mapping[str, np.ndarray]) -> np.ndarray:
    """FEATURES of many pictures in levels, (pictures, features).

    Args:
        p: The letters' probabilities by level 1..5, (pictures, 5).
        measured: Of each of MEASURED its values, (pictures,); nan where there is none.
    """
    w = fused_distribution(p, measured["q_bar"], measured["eta"])
    mean = w @ LEVELS
    columns = {
        "constant": np.ones(len(p)),
        "above_bad": mean - LOWEST,
        "below_excellent": HIGHEST - mean,
        "spread": np.sqrt(np.maximum(w @ LEVELS**2 - mean**2, 0)),
        "gap": np.abs(p @ LEVELS - measured["q_bar"]),
    }
    columns |= measured
    return np.nan_to_num(np.stack([columns[name] for name in FEATURES], axis=1), nan=0.0)


class Errors(FileRecord):
    """The errors of pictures assessed under one condition, in levels, with the pictures'
    difficulties and the weights by which FEATURES give a difficulty."""

    condition: Condition
    line: tuple[float, float]  # offset and slope of the truth expected from q
    weights: Annotated[tuple[float, ...], Field(min_length=len(FEATURES), max_length=len(FEATURES))]
    errors: Annotated[tuple[float, ...], Field(min_length=1)]
    difficulties: tuple[Annotated[float, Field(gt=0)], ...]
    tools: tuple[tuple[str, ...], ...]  # which tools voted together in these assessments
    edges: tuple[float, ...] = ()  # where the ranges of q end, rising; () for one
    ranges: tuple[
        Annotated[int, Field(ge=0)], ...
    ] = ()  # of each error's picture; () where there is one range

    def range_of(self, q: np.ndarray) -> np.ndarray:
        """The range of each fused score, (pictures,) → (pictures,)."""
        return np.searchsorted(self.edges, q, side="right")

    def difficulty(self, table: np.ndarray) -> np.ndarray:
        """Difficulties in levels from FEATURES, (pictures, features) → (pictures,)."""
        return np.maximum(table @ np.array(self.weights), LEAST_DIFFICULTY)

    def expected(self, q: np.ndarray) -> np.ndarray:
        """The truth expected from fused scores, (pictures,): people may use the scale otherwise
        than q does."""
        return self.line[0] + self.line[1] * q

    @cached_property
    def scaled(self) -> list[np.ndarray]:
        """The errors of each range in units of difficulty, rising."""
        scaled = np.array(self.errors) / np.array(self.difficulties)
        ranges = np.array(self.ranges or [0] * len(scaled))
        return [np.sort(scaled[ranges == one]) for one in range(len(self.edges) + 1)]

    def ends(self, q: np.ndarray, difficulty: np.ndarray, coverage: float) -> np.ndarray:
        """The intervals around fused scores, (pictures,) → (pictures, 2) within 1..5. An end that
        has too few errors beyond it is the scale's."""
        quantiles = np.array([conformal_quantiles(scaled, coverage) for scaled in self.scaled])
        reach = difficulty[:, None] * quantiles[self.range_of(q)]
        return np.clip(self.expected(q)[:, None] + reach, LOWEST, HIGHEST)

    def probability_at_least(
        self, q: np.ndarray, difficulty: np.ndarray, quality: float
    ) -> np.ndarray:
        """The probability that each picture's truth is `quality` or better, (pictures,)."""
        asked = (quality - self.expected(q)) / difficulty
        shares = np.stack(
            [1 - np.searchsorted(scaled, asked) / len(scaled) for scaled in self.scaled]
        )
        return shares[self.range_of(q), np.arange(len(q))]


def conformal_quantiles(scaled: np.ndarray, coverage: float) -> tuple[float, float]:
    """Between which two of n errors, rising, an error like them lies with a probability of at least
    `coverage`: its place among them is any of n + 1, each equally probable. -inf or inf where they
    are too few."""
    outside = 100 * (1 - coverage)  # percent
    lower, higher = round(outside * BELOW, 6), 100 - round(outside * (1 - BELOW), 6)
    places = len(scaled) + 1
    bounds = [-math.inf, *scaled, math.inf]
    return bounds[int(lower / 100 * places)], bounds[math.ceil(higher / 100 * places)]


def reached(probabilities: np.ndarray) -> np.ndarray:
    """Of each choice the probability of all choices that are at least as likely, (choices,) →
    (choices,), to six digits: how much of the probability a set must hold to include it."""
    return np.minimum(
        [probabilities[probabilities >= p].sum().round(6) for p in probabilities], 1.0
    )


class Answers(FileRecord):
    """Questions with known answers: of each the number of choices, and what is `reached` with the
    right one. Answers by the letters alone and by their product with a measurement err differently,
    and are known apart."""

    pipeline: Pipeline
    reference: bool
    measured: bool | None = None  # None: a fit that does not tell them apart says nothing of either
    calibrated_on: str | None = None  # the questions in words, where they are of another set
    choices: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    right: tuple[Annotated[float, Field(ge=0, le=1)], ...]

    def like(self, choices: int) -> np.ndarray:
        """What is reached with the right answer of the questions with about as many choices (two,
        up to four, or more), (questions,); of all questions where these are too few."""
        size = np.digitize([choices, *self.choices], [3, 5])
        alike = np.array(self.right)[size[1:] == size[0]]
        return alike if len(alike) >= FEWEST_QUESTIONS else np.array(self.right)


def _by_the_eye(card: EyeCard, condition: Condition) -> Errors:
    """The errors of q with an eye, all equally difficult."""
    constant = (1.0, *[0.0] * (len(FEATURES) - 1))
    return Errors(
        condition=condition,
        line=(0.0, 1.0),
        weights=constant,
        errors=card.errors,
        difficulties=(1.0,) * len(card.errors),
        tools=(card.voters,),
    )


class IntervalCalibration(FileRecord):
    """Pictures and questions of known truth as one model answered them. `model` is the hash of its
    folder (`files.folder_hash`); `dtype` and `quantization` are as its client describes them."""

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

    @classmethod
    def of_eye(cls, card: EyeCard, like: "IntervalCalibration") -> "IntervalCalibration":
        """The calibration of answers in which an eye voted: the person's own ratings of pictures
        that it was not learned from (cross-conformal: Vovk, Annals of Mathematics and Artificial
        Intelligence 74, 2015). What it does not say is as in another one."""
        conditions = [
            Condition(pipeline=pipeline, reference=False, look=look)
            for pipeline in get_args(Pipeline)
            for look in get_args(Look)
        ]
        return revised(
            like,
            source="your ratings",
            images=len(card.errors),
            date=card.date,
            ratings=tuple(_by_the_eye(card, condition) for condition in conditions),
            questions=(),
        )

    @property
    def calibrated_on(self) -> str:
        return f"{self.source}, {self.images} pictures, {self.date}"

    def of(self, condition: Condition) -> Errors | None:
        """The errors under a condition; None where no picture was assessed so."""
        return next((part for part in self.ratings if part.condition == condition), None)

    def interval(
        self, part: Errors, q: float, difficulty: float, widened: Sequence[str] = ()
    ) -> Interval:
        """The interval around a fused score, by one of `ratings`: at WIDENED in place of COVERAGE
        where `widened` has reasons. With too few errors it reaches to an end of the scale."""
        coverage = WIDENED if widened else COVERAGE
        low, high = part.ends(np.array([q]), np.array([difficulty]), coverage)[0].tolist()
        about = {
            "condition": part.condition,
            "calibrated_on": self.calibrated_on,
            "widened": list(widened),
        }
        return Interval(low=low, high=high, coverage=COVERAGE, difficulty=difficulty, **about)

    def predictive(self, interval: Interval, q: float) -> np.ndarray:
        """Equally probable values of the true quality, rising, within 1..5, of a picture with this
        fused score and interval, which this calibration gave."""
        part = next(part for part in self.ratings if part.condition == interval.condition)
        errors = part.scaled[part.range_of(np.array(q))]
        return np.clip(part.expected(np.array(q)) + interval.difficulty * errors, LOWEST, HIGHEST)

    def answer_set(
        self, part: Answers, probabilities: dict[str, float], widened: Sequence[str] = ()
    ) -> AnswerSet:
        """The choices that one of `questions` does not rule out; at least the likeliest, and all
        where there are too few."""
        known, coverage = part.like(len(probabilities)), WIDENED if widened else COVERAGE
        scores = reached(np.array(list(probabilities.values())))
        as_far = np.count_nonzero(known[:, None] >= scores, axis=0)
        included = (as_far + 1) / (len(known) + 1) >= 1 - coverage
        possible = dict(zip(probabilities, included, strict=True))
        possible[max(probabilities, key=probabilities.__getitem__)] = True
        letters = [letter for letter in probabilities if possible[letter]]
        return AnswerSet(
            letters=letters,
            coverage=COVERAGE,
            calibrated_on=part.calibrated_on or self.calibrated_on,
            widened=list(widened),
        )
