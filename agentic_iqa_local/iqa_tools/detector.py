"""How far LocalNR's readings can be trusted: from what it reads of a picture to how much more
likely that is with a distortion than without it.

The figures are measured on held-out photographs (configs/detector.yaml says how). LocalNR never
says more than its own record of hits and false alarms allows, so a model that is sure of what it
sees wins against a reading that is wrong.
"""

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from agentic_iqa_local.files import ROOT, read_record
from agentic_iqa_local.iqa_tools.specs import FileRecord

if TYPE_CHECKING:
    from agentic_iqa_local.iqa_tools.local_nr import Examination

SHIPPED = ROOT / "configs" / "detector.yaml"
WORD_SEVERITIES = {"none": 0.0, "slight": 1.0, "moderate": 2.5, "severe": 4.0, "extreme": 5.0}
"""The severity, 0..5, that each word stands for."""

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
