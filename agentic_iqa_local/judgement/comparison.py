"""Which of two pictures is better and how probable that is, the order of several, and the best of each group of
near-duplicates."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
from PIL import Image
from pydantic import BaseModel, Field

from agentic_iqa_local.config import Pipeline, Settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.images.pictures import Picture, as_file
from agentic_iqa_local.judgement import ordering, preference
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.fit import calibration_for
from agentic_iqa_local.judgement.intervals import IntervalCalibration
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.workbench import MODEL, Observer, load_pictures
from agentic_iqa_local.result import Assessment, Result
from agentic_iqa_local.services import Services, load_services

SCHEMA_VERSION = 1
Answer = TypeVar("Answer", bound=Result)


class Pair(BaseModel):
    """What is known of one pair of rated pictures."""

    first: int  # which of the rated pictures one is, in the order given, from 0 on
    second: int  # and which is the other
    same_scene: bool  # whether both are near-duplicates: versions or frames of one scene
    scene_distance: float  # share of their hashes' bits that differ, 0..1; up to MOST_DIFFERENT is the same scene
    probability: float  # that the first picture is the better one, 0..1
    independent: float  # the same from independent draws of both pictures' quality, as if of different scenes
    # what the probability rests on
    basis: Literal["same scene, fitted", "intervals", "fused distributions", "same pixels"]
    fitted_on: str | None = None  # set, size and date of the fit, where it rests on one
    pairwise: preference.PairwiseRead | None = None  # what the model says when it is shown both; None where not read
    pairwise_weight: float = 0.0  # weight of the pairwise read's log-odds in the probability


class Comparison(Result):
    """Two pictures: which is better, and how probable that is. Where one of them could not be assessed there is an
    `error` and no answer."""

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

    @property
    def better(self) -> Assessment | None:
        """The picture that is more probably the better one; None where both are equally probable."""
        if self.probability in (None, 0.5):
            return None
        return self.first if self.probability > 0.5 else self.second

    @property
    def warnings(self) -> list[str]:
        return [f"{one_line(row.image)}: {line}" for row in (self.first, self.second) for line in row.warnings]


class Ranked(BaseModel):
    """A picture's place in an order."""

    place: int  # 1 is the best
    index: int  # which of the rated pictures it is, in the order given, from 0 on
    strength: float  # Bradley–Terry strength, in log-odds; those of an order have mean 0
    better_than_next: float | None  # probability that it is better than the next; None for the last
    assessment: Assessment


class Ranking(Result):
    """Pictures, or a group of near-duplicates, from the best to the worst, with the comparisons that say so, at most
    three for each picture, and those that could not be assessed."""

    kind: Literal["ranking", "group"] = "ranking"
    schema_version: int = SCHEMA_VERSION
    number: int | None = None  # of a group: 1 for the first, in the pictures' order
    order: list[Ranked]
    pairs: list[Pair] = Field(default_factory=list)
    pairwise_reads: int = 0  # pairs that the model was shown together
    failed: list[Assessment] = Field(default_factory=list)

    @property
    def best(self) -> Assessment | None:
        return self.order[0].assessment if self.order else None

    def to_dict(self) -> dict[str, Any]:
        """The fields of a JSON line, as plain Python values; a group's names its best picture."""
        return super().to_dict() | ({"best": self.best.image} if self.best and self.kind == "group" else {})


@dataclass
class Candidate:
    """A rated picture on its way to a comparison: `index` counts them, `load` gives its upright RGB pixels, and `draws`
    are equally probable values of its true quality, rising: by its interval's calibration if `calibrated`."""

    index: int
    row: Assessment
    fingerprint: np.ndarray
    load: Callable[[], Image.Image]
    draws: np.ndarray
    calibrated: bool = False


@dataclass
class Judge:
    """Compares pictures that one set-up assessed. `fit` is what it has for pairs of one scene; `read` shows the model
    two pictures, None where it is not to see them together."""

    settings: Settings
    fit: preference.PairFit | None = None
    read: Callable[[Image.Image, Image.Image], preference.PairwiseRead] | None = None

    @classmethod
    def of(
        cls,
        services: Services,
        pipeline: Pipeline,
        *,
        reference: bool,
        pairwise: bool | None = None,
        observer: Observer | None = None,
    ) -> Self:
        """The judge of a set-up's assessments by a pipeline, with a reference or without. `pairwise`: whether the
        model is shown pairs; by default where that has weight."""

        def read(one: Image.Image, other: Image.Image) -> preference.PairwiseRead:
            with (observer or Observer()).calling(MODEL):
                return preference.read_pair(services.client(ROLE), one, other)

        fit = preference.fit_for(services.settings, pipeline, reference=reference)
        counts = fit is not None and fit.pairwise > 0
        return cls(services.settings, fit, read if pairwise or (pairwise is None and counts) else None)

    def compared(self, rows: Sequence[Assessment], files: Sequence[Path]) -> Comparison:
        """The comparison of two assessed pictures in these files. Raises VLMError."""
        candidates = self.candidates(rows, files)
        error = next((row.error for row in rows if row.error is not None), None)
        pair = self.compare(*candidates) if error is None else None
        return Comparison(first=rows[0], second=rows[1], pair=pair, error=error)

    def ranked(self, rows: Sequence[Assessment], files: Sequence[Path]) -> Ranking:
        """The order of assessed pictures in these files; what failed stands beside it. Raises as `rank`."""
        ranking = self.rank(self.candidates(rows, files))
        ranking.failed = [row for row in rows if row.error is not None]
        return ranking

    def candidates(self, rows: Sequence[Assessment], files: Sequence[Path]) -> list[Candidate]:
        """The rated pictures among those assessed; the `error` of the others says why they are none. Raises
        ImageError where a file cannot be read any more."""
        rated: list[Candidate] = []
        for row, file in zip(rows, files, strict=True):
            if row.error is None and row.q is None:
                expected = "expected a rating, got an answer without q; compare with the default query"
                row.error = f"{row.image}: {expected}"
            if row.error is None:
                load = partial(self._load, file)
                known = calibration_for(self.settings, row.model or {}) if row.interval else None
                calibration = known if isinstance(known, IntervalCalibration) else None
                draws, seen = preference.draws_of(row, calibration), ordering.fingerprint(load())
                rated.append(Candidate(len(rated), row, seen, load, draws, calibration is not None))
        return rated

    def _load(self, file: Path) -> Image.Image:
        return load_pictures(self.settings.images, file)[0].pixels

    def compare(self, one: Candidate, other: Candidate, *, may_read: bool = True) -> Pair:
        """What is known of a pair: of one scene by the fit, where it applies. Raises VLMError."""
        apart = ordering.scene_distance(one.fingerprint, other.fingerprint)
        independent = preference.probability_above(one.draws, other.draws)
        pair = Pair(
            first=one.index,
            second=other.index,
            same_scene=apart <= ordering.MOST_DIFFERENT,
            scene_distance=apart,
            probability=independent,
            independent=independent,
            basis="intervals" if one.calibrated and other.calibrated else "fused distributions",
        )
        if one.row.sha256 is not None and one.row.sha256 == other.row.sha256:
            pair.probability, pair.basis = 0.5, "same pixels"
            return pair
        if self.read and may_read:
            pair.pairwise = self.read(one.load(), other.load())
        fit = self.fit if pair.same_scene else None
        first, second = (fit and fit.strength(candidate.row) for candidate in (one, other))
        if fit is not None and first is not None and second is not None:
            odds = first - second
            if pair.pairwise:
                pair.pairwise_weight = fit.pairwise
                odds += fit.pairwise * preference.logit(pair.pairwise.probability)
            pair.probability, pair.basis, pair.fitted_on = preference.sigmoid(odds), "same scene, fitted", fit.fitted_on
        return pair

    def rank(self, candidates: Sequence[Candidate]) -> Ranking:
        """The order of rated pictures. Raises ValueError beyond MOST_PICTURES, VLMError as `compare`."""
        if len(candidates) > (most := ordering.MOST_PICTURES):
            raise ValueError(f"rank: expected at most {most} pictures, got {len(candidates)}; divide them")

        def compared(i: int, j: int, may_read: bool = False) -> Pair:
            return self.compare(candidates[i], candidates[j], may_read=may_read)

        own = [self.fit and self.fit.strength(candidate.row) for candidate in candidates]
        prior = [c.row.q or 0.0 if s is None else s for c, s in zip(candidates, own, strict=True)]
        chosen = ordering.pairs_to_compare(prior, lambda i, j: compared(i, j).probability)
        pairs = {(i, j): compared(i, j, True) for i, j in chosen}
        ahead = {two: pair.probability for two, pair in pairs.items()}
        strength = ordering.strengths(len(candidates), ahead, prior).tolist()
        ahead |= {(j, i): 1 - p for (i, j), p in ahead.items()}
        order = sorted(range(len(candidates)), key=lambda i: -strength[i])
        # as compared, or from the strengths where the pair was not
        sure = [ahead.get((i, j), preference.sigmoid(strength[i] - strength[j])) for i, j in itertools.pairwise(order)]
        places = []
        for place, (i, p) in enumerate(zip(order, [*sure, None], strict=False), start=1):
            about = {"strength": strength[i], "better_than_next": p, "assessment": candidates[i].row}
            places.append(Ranked(place=place, index=candidates[i].index, **about))
        reads = sum(pair.pairwise is not None for pair in pairs.values())
        return Ranking(order=places, pairs=list(pairs.values()), pairwise_reads=reads)

    def groups(self, candidates: Sequence[Candidate]) -> Iterator[Ranking]:
        """The groups of near-duplicates, in the order of their first pictures. Raises as `rank`."""
        scenes = ordering.scene_groups([candidate.fingerprint for candidate in candidates])
        for number, members in enumerate(scenes, start=1):
            group = self.rank([candidates[i] for i in members])
            group.kind, group.number = "group", number
            yield group


def compare(first: Picture, second: Picture, **how: Any) -> Comparison:
    """Which of two pictures is better, and with which probability. `compare(a, b)` and `compare(b, a)` give
    probabilities that sum to 1.

    Args:
        first, second: Pictures as `assess` takes them.
        how: By name:
            reference: The pristine original of both.
            pairwise: Whether the model is shown both pictures, in both orders; by default where that has weight.
            services: The set-up; by default the one that ships.
            pipeline, max_replan_iterations: How each picture is assessed, by default with "letters".
            observer: Sees each call of models and tools.

    Returns:
        The comparison; what is wrong with a picture is in its `error`. Raises what `assess` does.
    """
    return _judged(Judge.compared, [first, second], **how)


def rank(pictures: Sequence[Picture], **how: Any) -> Ranking:
    """The order of pictures from the best to the worst, from at most three comparisons for each; arguments as for
    `compare`. Pictures that could not be assessed are in `failed`."""
    return _judged(Judge.ranked, pictures, **how)


def _judged(
    answer: Callable[[Judge, Sequence[Assessment], Sequence[Path]], Answer],
    pictures: Sequence[Picture],
    *,
    reference: Picture | None = None,
    pairwise: bool | None = None,
    services: Services | None = None,
    pipeline: Pipeline = "letters",
    **how: Any,
) -> Answer:
    services, observer = services or load_services(), how.get("observer")
    judge = Judge.of(services, pipeline, reference=reference is not None, pairwise=pairwise, observer=observer)
    with ExitStack() as opened:
        original = None if reference is None else opened.enter_context(as_file(reference))
        files = [opened.enter_context(as_file(picture)) for picture in pictures]
        rows = [assess(file, original, services=services, pipeline=pipeline, **how) for file in files]
        return answer(judge, rows, [Path(file.path) for file in files])
