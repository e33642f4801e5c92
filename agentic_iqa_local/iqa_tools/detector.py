"""How far LocalNR's readings can be trusted: from what it reads of a picture, and from measures of
its pixels, to how much more likely that is with a distortion than without it.

The figures are measured on held-out photographs (configs/detector.yaml says how). LocalNR never
says more than its own record of hits and false alarms allows, so a model that is sure of what it
sees wins against a reading that is wrong.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from agentic_iqa_local.files import ROOT, read_json, read_record
from agentic_iqa_local.iqa_tools.specs import FileRecord

if TYPE_CHECKING:
    from agentic_iqa_local.iqa_tools.local_nr import Examination

SHIPPED = ROOT / "configs" / "detector.yaml"
MEASURES = ROOT / "configs" / "detector_measures.json"
FARTHEST = 4.0  # standard deviations; what lies beyond says no more
WORD_SEVERITIES = {"none": 0.0, "slight": 1.0, "moderate": 2.5, "severe": 4.0, "extreme": 5.0}
"""The severity, 0..5, that each word stands for."""

MOST_WORTH = 17.0  # to one, of a reading: photographs are not all like those measured, and a sure model shall win
COMBINED = {"alone": lambda network, measured: measured, "more": max, "less": min}
NOT_PIXELATED = ("Blurs", "Noise", "Sharpness")  # what the network sees in enlarged pixels

Probability = Field(gt=0, lt=1)


class FamilyError(FileRecord):
    """LocalNR's record with one family: what makes a probability of its reading (slopes of the
    log-odds that it reads of the whole picture and of the likeliest quarter, and the intercept, at
    the `base` rate of the pictures it was measured on), how often damage of it is read as such,
    that of a kind that its training left out, and how often it is read where it is not. A reading
    is never worth more than `most` to one."""

    slope: float = Field(ge=0)
    slope_in_part: float = Field(ge=0)
    intercept: float
    base: float = Probability
    hit: float = Probability
    hit_left_out: float = Probability
    false_alarm: float = Probability
    most: float = Field(gt=1)

    def log_ratio(self, presence: float, in_part: float, left_out: float) -> float:
        """ln of how many times likelier LocalNR's `presence` is with the family than without;
        `left_out` is the share of damage that it never learned."""
        hit = (1 - left_out) * self.hit + left_out * self.hit_left_out
        whole, part = self.slope * logit(presence), self.slope_in_part * logit(in_part)
        reading = whole + part + self.intercept - logit(self.base)
        least = math.log((1 - hit) / (1 - self.false_alarm))
        return min(math.log(self.most), max(least, reading))


class DetectorError(FileRecord):
    """The records of all families, how probable each is before anything is read, and the standard
    deviation of a severity that is read, of 1..5."""

    families: dict[str, FamilyError]
    prior: float = Probability
    severity_sigma: float = Field(gt=0)


class Claim(FileRecord):
    """Damage of a family that measures of pixels tell. Its log-odds against a sound picture are
    the `weights` times 1, the standardised measures and, as far as there are weights, the products
    of any two (row by row of the upper triangle)."""

    family: str
    weights: tuple[float, ...]


class ClaimedFamily(FileRecord):
    """The record of all claims of a family: its share of the pictures that they were fitted on, and
    how often it was found where it was, and in clean photographs."""

    base: float = Probability
    hit: float = Probability
    false_alarm: float = Probability

    def log_ratio(self, probability: float) -> float:
        """ln of how many times likelier the measures are with the family than without it, within
        what its record allows."""
        least = math.log((1 - self.hit) / (1 - self.false_alarm))
        most = math.log(min(MOST_WORTH, self.hit / self.false_alarm))
        return min(most, max(least, logit(probability) - logit(self.base)))


class Measurement(FileRecord):
    """Claims that exclude each other, the measures that they are made of with the training's mean
    and deviation, and how the claims count beside what the network reads: "alone" in its place, or
    as the greater or the lesser of both."""

    counts: Literal["alone", "more", "less"]
    measures: tuple[str, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    claims: dict[str, Claim]
    families: dict[str, ClaimedFamily]

    def probabilities(self, measures: Mapping[str, float]) -> dict[str, float]:
        """Of each claim; what they leave is the probability of a sound picture (multinomial
        logistic regression)."""
        terms = terms_of([measures[name] for name in self.measures], self.centre, self.scale)
        odds = [terms[: len(claim.weights)] @ claim.weights for claim in self.claims.values()]
        weights = np.exp(np.array([0.0, *odds]) - max(0.0, *odds))
        return dict(zip(self.claims, (weights[1:] / weights.sum()).tolist(), strict=True))

    def log_ratios(self, measures: Mapping[str, float]) -> dict[str, float]:
        """By family, ln of the likelihood ratio of the measures."""
        shares = dict.fromkeys(self.families, 0.0)
        for name, p in self.probabilities(measures).items():
            shares[self.claims[name].family] += p
        return {kind: record.log_ratio(shares[kind]) for kind, record in self.families.items()}


class MeasuresRecord(FileRecord):
    """What configs/detector_measures.json holds."""

    source: str
    measurements: dict[str, Measurement]

    def with_measures(
        self, ratios: Mapping[str, float], measures: Mapping[str, float], least: float
    ) -> dict[str, float]:
        """By family, the log-ratios of what LocalNR read of a picture without a reference, with what
        its pixels say. Where pixels are enlarged the network's other readings count no more than
        nothing, for it learned none such. How sharp the sharpest part is says nothing where noise or
        blocks are found: they make edges. From the log-ratio `least` on something is found."""
        combined = dict(ratios)
        for name, measurement in self.measurements.items():
            if name == "focus" and max(combined["Noise"], combined["Compression"]) > least:
                continue
            for kind, ratio in measurement.log_ratios(measures).items():
                combine = COMBINED[measurement.counts]
                combined[kind] = combine(combined[kind], ratio)
        if self.measurements["grid"].log_ratios(measures)["Compression"] > least:
            for kind in NOT_PIXELATED:
                combined[kind] = min(0.0, combined[kind])
        return combined


class DetectorRecord(FileRecord):
    """What configs/detector.yaml holds. `left_out`: the assumed share of damage of kinds that
    LocalNR never learned; `graphic`: from which probability on content counts as unlike a
    photograph."""

    source: str
    left_out: float = Field(ge=0, lt=1)
    graphic: float = Probability
    no_reference: DetectorError
    full_reference: DetectorError

    def of(self, reference: bool) -> DetectorError:
        """The errors of readings with a reference, or without one."""
        return self.full_reference if reference else self.no_reference

    def log_ratios(self, examined: "Examination", reference: bool) -> dict[str, float]:
        """By family, ln of the likelihood ratio of what LocalNR read of it."""
        errors = self.of(reference).families
        ratios = {}
        for family, presence in examined.presence.items():
            in_part = examined.presence_in_part[family]
            ratios[family] = errors[family].log_ratio(presence, in_part, self.left_out)
        return ratios

    def severity_likelihood(self, severity: float, reference: bool) -> dict[str, float]:
        """Of each severity word but none, the Gaussian likelihood of a `severity` (1..5) that
        LocalNR reads."""
        sigma = self.of(reference).severity_sigma
        likelihood = {}
        for word, value in WORD_SEVERITIES.items():
            if word != "none":
                likelihood[word] = math.exp(-0.5 * ((severity - value) / sigma) ** 2)
        return likelihood


def terms_of(
    measures: Sequence[float], centre: Sequence[float], scale: Sequence[float]
) -> np.ndarray:
    """What the weights of a claim are multiplied with: 1, the standardised measures, within
    ±FARTHEST, and the products of any two."""
    standard = (np.asarray(measures) - centre) / scale
    standard = standard.clip(-FARTHEST, FARTHEST)
    products = np.outer(standard, standard)[np.triu_indices(len(standard))]
    return np.concatenate([[1.0], standard, products])


def logit(probability: float) -> float:
    """ln(p / (1 − p)), finite for 0 and 1."""
    p = min(1 - 1e-9, max(1e-9, probability))
    return math.log(p / (1 - p))


def expit(value: float) -> float:
    """1 / (1 + e^−x), the inverse of `logit`."""
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


@functools.cache
def load_detector(path: Path = SHIPPED) -> DetectorRecord:
    """The record that ships. Raises FileError for a file that is damaged."""
    return read_record(path, DetectorRecord)


@functools.cache
def load_measures(path: Path = MEASURES) -> MeasuresRecord:
    """What measures of pixels are worth, as it ships. Raises FileError for a file that is
    damaged."""
    return read_record(path, MeasuresRecord, read_json)
