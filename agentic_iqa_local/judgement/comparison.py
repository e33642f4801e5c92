"""Which of two pictures is better and how probable that is, the order of several, and the best of
each group of near-duplicates."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from agentic_iqa_local.config import ConfigError, Pipeline, Settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.images.pictures import Picture, as_file
from agentic_iqa_local.judgement import ordering, preference
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.fit import calibration_for
from agentic_iqa_local.judgement.series import Series
from agentic_iqa_local.nodes.pictures import load_pictures
from agentic_iqa_local.result import Assessment, Result
from agentic_iqa_local.services import Services, load_services

SCHEMA_VERSION = 1


class Pair(BaseModel):
    """What is known of one pair of rated pictures."""

    first: int  # which of the rated pictures one is, in the order given, from 0 on
    second: int  # and which is the other
    same_scene: bool  # whether both are near-duplicates: versions or frames of one scene
    scene_distance: float  # share of their hashes' bits that differ, 0..1; up to MOST_DIFFERENT is the same scene
    probability: float  # that the first picture is the better one, 0..1
    # what the probability rests on
    basis: Literal["same scene, fitted", "intervals", "fused distributions"]
    fitted_on: str | None = None  # set, size and date of the fit, where it rests on one


class Comparison(Result):
    """Two pictures: which is better, and how probable that is. Where one of them could not be
    assessed there is an `error` and no answer."""

    kind: Literal["comparison"] = "comparison"
    schema_version: int = SCHEMA_VERSION
    first: Assessment
    second: Assessment
    pair: Pair | None = None
    error: str | None = None

    @property
    def probability(self) -> float | None:
        """That the first picture is the better one, 0..1."""
        return self.pair and self.pair.probability

    @property
    def same_scene(self) -> bool | None:
        return self.pair and self.pair.same_scene

    def __repr__(self) -> str:
        names = f"{self.first.image}, {self.second.image}"
        found = self.error if self.probability is None else f"{self.probability:.3f}"
        return f"Comparison({one_line(f'{names}: {found}'):.300})"

    @property
    def better(self) -> Assessment | None:
        """The picture that is more probably the better one; None where both are equally
        probable."""
        if self.probability in (None, 0.5):
            return None
        return self.first if self.probability > 0.5 else self.second


class Ranked(BaseModel):
    """A picture's place in an order."""

    place: int  # 1 is the best
    index: int  # which of the rated pictures it is, in the order given, from 0 on
    strength: float  # Bradley–Terry strength, in log-odds; those of an order have mean 0
    better_than_next: float | None  # probability that it is better than the next; None for the last
    assessment: Assessment


class Ranking(Result):
    """Pictures from the best to the worst, with the comparisons that say so, at most three for each
    picture, and those that could not be assessed."""

    kind: Literal["ranking", "group"] = "ranking"
    schema_version: int = SCHEMA_VERSION
    order: list[Ranked]
    pairs: list[Pair] = Field(default_factory=list)
    failed: list[Assessment] = Field(default_factory=list)

    @property
    def best(self) -> Assessment | None:
        return self.order[0].assessment if self.order else None

    def __repr__(self) -> str:
        names = " > ".join(ranked.assessment.image for ranked in self.order)
        return f"Ranking({one_line(names):.300})"


class Group(Ranking):
    """Pictures of one scene, from the best to the worst, and which of them to keep."""

    kind: Literal["group"] = "group"
    number: int = 0  # 1 for the first, in the pictures' order
    # of a bracket, a focus stack or a panorama none is chosen
    verdict: Literal["keep", "undecided", "kept whole"] = "keep"
    series: Series | None = None  # what is kept whole
    probability: float | None = None  # that the first is the best of all; None of one alone
    undecided: list[str] = Field(default_factory=list)  # the pictures that may be the best
    reason: str | None = None  # what speaks for the first, in words
    # what was measured of each picture, where they could be laid over each other (burst.WORDS)
    measures: dict[str, dict[str, float]] = Field(default_factory=dict)

    @property
    def best(self) -> Assessment | None:
        return self.order[0].assessment if self.verdict == "keep" else None

    def to_dict(self) -> dict[str, Any]:
        """The fields of a JSON line, as plain Python values; `best` is the picture to keep."""
        return super().to_dict() | {"best": self.best and self.best.image}


@dataclass
class Candidate:
    """A rated picture on its way to a comparison: `index` counts them, and `draws` are equally
    probable values of its true quality, rising."""

    index: int
    row: Assessment
    fingerprint: np.ndarray
    draws: np.ndarray
    file: Path


@dataclass
class Judge:
    """Compares pictures that one set-up assessed. `fit` is what it has for pairs of one scene."""

    settings: Settings
    fit: preference.PairFit | None

    @classmethod
    def of(cls, settings: Settings, pipeline: Pipeline, *, reference: bool) -> "Judge":
        """The judge of pictures that were assessed so."""
        return cls(settings, preference.fit_for(settings, pipeline, reference=reference))

    def candidates(self, rows: Sequence[Assessment], files: Sequence[Path]) -> list[Candidate]:
        """The rated pictures among those assessed; the `error` of the others says why they are
        none. Raises ImageError where a file cannot be read any more."""
        rated: list[Candidate] = []
        for row, file in zip(rows, files, strict=True):
            if row.error is None and row.q is None:
                expected = "expected a rating, got an answer without q"
                row.error = f"{row.image}: {expected}; compare with the default query"
            if row.error is None:
                picture, _ = load_pictures(self.settings.images, file)
                seen = ordering.fingerprint(picture.pixels)
                calibration = calibration_for(self.settings, row.model or {})
                draws = preference.draws_of(row, calibration)
                rated.append(Candidate(len(rated), row, seen, draws, file))
        return rated

    def compared(self, rows: Sequence[Assessment], candidates: Sequence[Candidate]) -> Comparison:
        """The comparison of two assessed pictures, of which the rated ones are `candidates`."""
        first, second = rows
        errors = [f"{row.image}: {row.reason}" for row in rows if row.error]
        if errors:
            return Comparison(first=first, second=second, error="; ".join(errors))
        return Comparison(first=first, second=second, pair=self.compare(*candidates))

    def compare(self, one: Candidate, other: Candidate) -> Pair:
        """What is known of a pair: of one scene by the fit, where it applies."""
        apart = ordering.scene_distance(one.fingerprint, other.fingerprint)
        calibrated = one.row.interval is not None and other.row.interval is not None
        pair = Pair(
            first=one.index,
            second=other.index,
            same_scene=apart <= ordering.MOST_DIFFERENT,
            scene_distance=apart,
            probability=preference.probability_above(one.draws, other.draws),
            basis="intervals" if calibrated else "fused distributions",
        )
        if self.fit is None or not pair.same_scene:
            return pair
        first, second = self.fit.strength(one.row), self.fit.strength(other.row)
        if first is not None and second is not None:
            pair.probability = preference.sigmoid(first - second)
            pair.basis = "same scene, fitted"
            pair.fitted_on = self.fit.fitted_on
        return pair

    def rank(self, candidates: Sequence[Candidate], failed: Sequence[Assessment] = ()) -> Ranking:
        """The order of rated pictures; those that `failed` stand beside it. Raises ConfigError
        beyond MOST_PICTURES."""
        count = len(candidates)
        if count > ordering.MOST_PICTURES:
            expected = f"expected at most {ordering.MOST_PICTURES} pictures"
            raise ConfigError(f"{expected}, got {count}", "divide them")
        prior = [self._prior(candidate.row) for candidate in candidates]
        pairs, ahead = [], {}
        for i, j in ordering.pairs_to_compare(prior):
            pair = self.compare(candidates[i], candidates[j])
            pairs.append(pair)
            ahead[i, j] = pair.probability
            ahead[j, i] = 1 - pair.probability
        strength = ordering.strengths(ahead, prior)
        order = in_order(candidates, strength, ahead)
        return Ranking(order=order, pairs=pairs, failed=list(failed))

    def _prior(self, row: Assessment) -> float:
        strength = self.fit and self.fit.strength(row)
        return row.q or 0.0 if strength is None else strength


def in_order(
    candidates: Sequence[Candidate],
    strength: np.ndarray,
    ahead: Mapping[tuple[int, int], float] | None = None,
) -> list[Ranked]:
    """The pictures from the best to the worst by their strengths; `ahead` has the probabilities of
    pairs that were compared, the strengths those of the others."""
    known, count = ahead or {}, len(candidates)
    order = np.argsort(-strength, kind="stable").tolist()
    places = []
    for place, i in enumerate(order, start=1):
        surer = None  # than the next
        if place < count:
            j = order[place]
            surer = known.get((i, j), preference.sigmoid(float(strength[i] - strength[j])))
        places.append(
            Ranked(
                place=place,
                index=candidates[i].index,
                strength=float(strength[i]),
                better_than_next=surer,
                assessment=candidates[i].row,
            )
        )
    return places


def compare(first: Picture, second: Picture, **how: Any) -> Comparison:
    """Which of two pictures is better, and with which probability. `compare(a, b)` and `compare(b,
    a)` give probabilities that sum to 1.

    Args:
        first, second: Pictures as `assess` takes them.
        how: By name: `reference`, the pristine original of both; `services`, the set-up, by default the one that ships;
            `pipeline` (by default "letters") and `max_replan_iterations`, how each picture is assessed; `observer`.

    Returns:
        The comparison; what is wrong with a picture is in its `error`. Raises what `assess` does.
    """
    judge, rows, candidates = _assessed([first, second], **how)
    return judge.compared(rows, candidates)


def rank(pictures: Sequence[Picture], **how: Any) -> Ranking:
    """The order of pictures from the best to the worst, from at most three comparisons for each;
    arguments as for `compare`. Pictures that could not be assessed are in `failed`."""
    judge, rows, candidates = _assessed(pictures, **how)
    return judge.rank(candidates, [row for row in rows if row.error])


def _assessed(
    pictures: Sequence[Picture],
    *,
    reference: Picture | None = None,
    services: Services | None = None,
    pipeline: Pipeline = "letters",
    **how: Any,
) -> tuple[Judge, list[Assessment], list[Candidate]]:
    """Who compares pictures, the rows of all, and those that can be compared."""
    services = services or load_services()
    judge = Judge.of(services.settings, pipeline, reference=reference is not None)
    with ExitStack() as opened:
        original = None if reference is None else opened.enter_context(as_file(reference))
        files = [opened.enter_context(as_file(picture)) for picture in pictures]
        how |= {"services": services, "pipeline": pipeline}
        rows = [assess(file, original, **how) for file in files]
        return judge, rows, judge.candidates(rows, [Path(file.path) for file in files])
