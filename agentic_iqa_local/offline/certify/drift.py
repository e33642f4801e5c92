"""How far two readings of the same pictures are apart, and whether that is within a stated bound."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from agentic_iqa_local.score_fusion import expected_level, letter_probabilities
from agentic_iqa_local.studies.statistics import srcc

Letters = Mapping[str, float]  # log-probability of each letter, over the whole vocabulary
Readings = Mapping[str, Letters]  # by picture


@dataclass(frozen=True)
class Bound:
    """The most by which two readings may differ: `logprob` (nats, of any letter of any picture), `q` (levels,
    of the letters' own mean), and the least `srcc` between the pictures' q."""

    logprob: float
    q: float
    srcc: float


# Of the number format in which the coarser of two readings was computed. The log-probabilities' bounds are
# those of the engines' tests (docs/engines.md): rounding in float32; two or three steps of a half-precision
# format at the size of a logit. float32 on a GPU counts as TF32, to which cuDNN rounds convolutions (a vision
# tower's first layer) unless it is told not to; that bound was not measured on a card.
BOUNDS = {
    "float32": Bound(1e-4, 1e-3, 0.99),
    "TF32": Bound(0.01, 0.01, 0.98),
    "float16": Bound(0.05, 0.03, 0.97),
    "bfloat16": Bound(0.25, 0.1, 0.95),
}
REPEAT = 0.25
"""The share of a format's bound within which the same read must come again: nothing but the process is
another."""


def bound_of(*formats: str) -> Bound:
    """The bound of the coarsest of these formats; one that is not known, a server's or a quantised one,
    counts as bfloat16."""
    return max((BOUNDS.get(one, BOUNDS["bfloat16"]) for one in formats), key=lambda bound: bound.logprob)


def format_of(about: Mapping[str, Any]) -> str:
    """The number format that a model computes in, by what its client says: a dtype, or "8bit", "4bit"."""
    quantization = about.get("quantization", "none")
    return str(about["dtype"] if quantization == "none" else quantization)


def bound_for(*abouts: Mapping[str, Any]) -> Bound:
    """The bound of readings by these models, by what their clients say."""

    def kind(about: Mapping[str, Any]) -> str:
        found, on_gpu = format_of(about), str(about.get("device")).startswith("cuda")
        return "TF32" if found == "float32" and on_gpu else found

    return bound_of(*map(kind, abouts))


def share_of(bound: Bound, share: float) -> Bound:
    """A tighter bound of log-probabilities and q."""
    return Bound(bound.logprob * share, bound.q * share, bound.srcc)


@dataclass(frozen=True)
class Drift:
    """Between two readings of the same `pictures`: largest |Δ| of a letter's log-probability (nats) and of q
    (levels), each with its picture, and Spearman's correlation of q over the pictures (nan for fewer than
    three)."""

    pictures: int
    logprob: float
    q: float
    srcc: float
    worst: str

    def within(self, bound: Bound) -> bool:
        ranked = math.isnan(self.srcc) or self.srcc >= bound.srcc
        return self.logprob <= bound.logprob and self.q <= bound.q and ranked

    def comparable(self, bound: Bound) -> bool:
        """Whether scores may be compared: by q and ranks alone, for letters of no weight may differ more."""
        return self.q <= bound.q and (math.isnan(self.srcc) or self.srcc >= bound.srcc)


def level(letters: Letters) -> float:
    """q of the letters alone, 1..5."""
    return expected_level(letter_probabilities(letters))


def drift(ours: Readings, theirs: Readings) -> Drift:
    """Of the pictures that both have. Raises ValueError where there is none."""
    names = [name for name in ours if name in theirs]
    if not names:
        raise ValueError("drift: expected pictures that both have read, got none")
    by_letter = {name: max(abs(ours[name][x] - theirs[name][x]) for x in ours[name]) for name in names}
    q = np.array([[level(each[name]) for name in names] for each in (ours, theirs)])
    ranks = math.nan if len(names) < 3 else srcc(q[0], q[1])
    worst = max(by_letter, key=by_letter.__getitem__)
    return Drift(len(names), by_letter[worst], float(np.abs(q[0] - q[1]).max()), ranks, worst)


def figures(what: str, found: Drift, bound: Bound) -> dict[str, Any]:
    """A comparison as a row of the report."""
    srcc = None if math.isnan(found.srcc) else found.srcc
    limits = {f"bound_{name}": value for name, value in asdict(bound).items()}
    return {"comparison": what, **asdict(found), "srcc": srcc, **limits, "within": found.within(bound)}


def in_words(found: Drift, bound: Bound) -> str:
    """The figures with their bounds, for a sentence."""
    srcc = "" if math.isnan(found.srcc) else f", SRCC {found.srcc:.4f} (at least {bound.srcc:g})"
    return (
        f"|Δ log-probability| {found.logprob:.2g} (bound {bound.logprob:g}), |Δq| {found.q:.3g} levels (bound"
        f" {bound.q:g}){srcc}"
    )
