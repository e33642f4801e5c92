"""Which of two pictures is better and how probable that is, the order of several, and the best of each group of
near-duplicates."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from PIL import Image
from pydantic import BaseModel, Field

from agentic_iqa_local.config import Pipeline, Settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import folder_hash
from agentic_iqa_local.images.pictures import Picture, as_file
from agentic_iqa_local.judgement import ordering, preference
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.fit import calibration_for
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.workbench import MODEL, Observer, load_pictures
from agentic_iqa_local.result import Assessment, Result
from agentic_iqa_local.services import Services, load_services

SCHEMA_VERSION = 1
INDEPENDENT = "the probability is that of independent pictures, and too near to one half for one scene"


class PairResult(BaseModel):
    """What is known of one pair of rated pictures."""

    same_scene: bool  # whether both are near-duplicates: versions or frames of one scene
    scene_distance: float  # share of their hashes' bits that differ, 0..1; up to MOST_DIFFERENT is the same scene
    probability: float  # that the first picture is the better one, 0..1
    independent: float  # the same from independent draws of both pictures' quality, as if of different scenes
    # what the probability rests on
    basis: Literal["same scene, fitted", "intervals", "fused distributions", "same pixels"]
    fitted_on: str | None = None  # set, size and date of the fit, where it rests on one
    # what the model's letters say when it is shown both; None where not read
    pairwise: preference.PairwiseRead | None = None
    pairwise_weight: float = 0.0  # weight of the pairwise read's log-odds in the probability
    notes: list[str] = []


class Comparison(Result):
    """Two pictures: which is better, and how probable that is. Where one of them could not be assessed there is an
    `error` and no answer."""

    kind: Literal["comparison"] = "comparison"
    schema_version: int = SCHEMA_VERSION
    first: Assessment
    second: Assessment
    pair: PairResult | None = None
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
        if self.pair is None or self.pair.probability == 0.5:
            return None
        return self.first if self.pair.probability > 0.5 else self.second

    @property
    def warnings(self) -> list[str]:
        rows = (self.first, self.second)
        notes = self.pair.notes if self.pair else []
        return [f"{one_line(row.image)}: {line}" for row in rows for line in row.warnings] + notes


class Ranked(BaseModel):
    """A picture's place in an order."""

    place: int  # 1 is the best
    index: int  # which of the rated pictures it is, in the order given, from 0 on
    strength: float  # Bradley–Terry strength, in log-odds; those of an order have mean 0
    # probability that it is better than the picture at the next place; None for the last
    better_than_next: float | None
    assessment: Assessment


class ComparedPair(PairResult):
    """A pair that an order rests on."""

    first: int  # the `index` of one picture, and of the other
    second: int


class OrderResult(Result):
    """Pictures from the best to the worst, and the comparisons that say so: at most three for each picture."""

    kind: Literal["ranking", "group"]
    schema_version: int = SCHEMA_VERSION
    order: list[Ranked]
    pairs: list[ComparedPair] = Field(default_factory=list)
    pairwise_reads: int = 0  # pairs that the model was shown together
    notes: list[str] = Field(default_factory=list)


class Ranking(OrderResult):
    """Pictures from the best to the worst, and those that could not be assessed."""

    kind: Literal["ranking"] = "ranking"
    failed: list[Assessment] = Field(default_factory=list)

    @property
    def best(self) -> Assessment | None:
        return self.order[0].assessment if self.order else None


class Group(OrderResult):
    """Near-duplicates, from the best to the worst; a picture without any is a group of its own."""

    kind: Literal["group"] = "group"
    number: int  # 1 for the first group, in the pictures' order
    best: str  # the best picture


@dataclass
class Candidate:
    """A rated picture on its way to a comparison: `draws` are equally probable values of its true quality, rising,
    `calibrated` whether an interval's calibration gives them, and `load` gives its upright RGB pixels."""

    row: Assessment
    fingerprint: np.ndarray
    load: Callable[[], Image.Image]
    draws: np.ndarray
    calibrated: bool = False


@dataclass
class Judge:
    """Compares pictures that one set-up assessed. `read` shows the model two pictures; None reads none.
    `always` reads every pair, also where the read has no weight. `reads` counts them, and `fit` is that of the
    set-up's model, pipeline and kind of assessment."""

    settings: Settings
    pipeline: Pipeline
    reference: bool
    read: Callable[[Image.Image, Image.Image], preference.PairwiseRead] | None = None
    always: bool = False
    reads: int = 0
    fit: preference.PairFit | None = field(init=False)

    def __post_init__(self) -> None:
        folder = self.settings.folder(self.settings.summarizer.backend)
        wanted = folder.is_dir() and folder_hash(folder), self.pipeline, self.reference
        alike = (fit for fit in preference.read_fits().fits if (fit.model, fit.pipeline, fit.reference) == wanted)
        self.fit = next(alike, None)

    def compared(self, rows: Sequence[Assessment], files: Sequence[Path]) -> Comparison:
        """The comparison of two assessed pictures in these files. Raises VLMError."""
        first, second = rows
        rated = self.candidates(rows, files)
        error = next((row.error for row in rows if row.error is not None), None)
        pair = self.compare(*rated) if error is None else None
        return Comparison(first=first, second=second, pair=pair, error=error)

    def ranked(self, rows: Sequence[Assessment], files: Sequence[Path]) -> Ranking:
        """The order of assessed pictures in these files; what failed stands beside it. Raises ValueError beyond
        MOST_PICTURES, VLMError."""
        ranking = self.rank(self.candidates(rows, files))
        ranking.failed = [row for row in rows if row.error is not None]
        return ranking

    def candidates(self, rows: Sequence[Assessment], files: Sequence[Path]) -> list[Candidate]:
        """The rated pictures among those assessed; the `error` of the others says why they are none. Raises
        ImageError where a file cannot be read any more."""
        rated = []
        for row, file in zip(rows, files, strict=True):
            if row.error is None and row.q is None:
                expected = "expected a rating, got an answer without q; compare with the default query"
                row.error = f"{row.image}: {expected}"
            if row.error is None:
                load = partial(self._load, file)
                calibration = row.interval and calibration_for(self.settings, row.model or {})[0]
                draws = preference.draws_of(row, calibration)
                rated.append(Candidate(row, ordering.fingerprint(load()), load, draws, calibration is not None))
        return rated

    def _load(self, file: Path) -> Image.Image:
        return load_pictures(self.settings.images, file)[0].pixels

    @property
    def reads_pairs(self) -> bool:
        """Whether a pair is shown to the model because that counts, or is asked for."""
        return self.read is not None and (self.always or (self.fit is not None and self.fit.pairwise > 0))

    def compare(self, one: Candidate, other: Candidate, *, may_read: bool = True) -> PairResult:
        """What is known of a pair. With `may_read` the model is shown both where that counts, or where no fit
        tells that it does not. Raises VLMError where it cannot read them."""
        apart = ordering.scene_distance(one.fingerprint, other.fingerprint)
        independent = preference.probability_above(one.draws, other.draws)
        result = PairResult(
            same_scene=apart <= ordering.MOST_DIFFERENT,
            scene_distance=apart,
            probability=independent,
            independent=independent,
            basis="intervals" if one.calibrated and other.calibrated else "fused distributions",
        )
        if one.row.sha256 is not None and one.row.sha256 == other.row.sha256:
            result.probability, result.basis = 0.5, "same pixels"
            result.notes.append("both are the same file: neither is better")
            return result
        if self.read is not None and may_read and (self.reads_pairs or self.fit is None):
            result.pairwise = self.read(one.load(), other.load())
            self.reads += 1
        if result.same_scene:
            self._judge_same_scene(result, one.row, other.row)
        if result.pairwise and not result.pairwise_weight:
            result.notes.append("the pairwise read is reported and has no weight in the probability")
        return result

    def _judge_same_scene(self, result: PairResult, one: Assessment, other: Assessment) -> None:
        """Puts the fitted probability in place of the independent one, where a fit applies."""
        fit = self.fit
        if fit is None:
            result.notes.append(f"no fit of comparisons is of this model and pipeline: {INDEPENDENT}")
            return
        first, second = fit.strength(one), fit.strength(other)
        if first is None or second is None:
            weighed = ", ".join(fit.weights)
            result.notes.append(f"a measurement that the fit weighs ({weighed}) is missing: {INDEPENDENT}")
            return
        result.pairwise_weight = fit.pairwise if result.pairwise else 0.0
        read = result.pairwise_weight * preference.logit(result.pairwise.probability) if result.pairwise else 0.0
        result.probability, result.basis = preference.sigmoid(first - second + read), "same scene, fitted"
        result.fitted_on = fit.fitted_on

    def rank(self, candidates: Sequence[Candidate]) -> Ranking:
        """The order of rated pictures. Raises ValueError beyond MOST_PICTURES, VLMError as `compare`."""
        if len(candidates) > ordering.MOST_PICTURES:
            raise ValueError(
                f"rank: expected at most {ordering.MOST_PICTURES} pictures, got {len(candidates)}; divide them"
            )
        before = self.reads

        def compared(i: int, j: int, may_read: bool = False) -> PairResult:
            return self.compare(candidates[i], candidates[j], may_read=may_read)

        own = [self.fit and self.fit.strength(candidate.row) for candidate in candidates]
        prior = [c.row.q or 0.0 if s is None else s for c, s in zip(candidates, own, strict=True)]
        chosen = ordering.pairs_to_compare(prior, lambda i, j: compared(i, j).probability)
        pairs = [ComparedPair(first=i, second=j, **dict(compared(i, j, self.reads_pairs))) for i, j in chosen]
        ahead = {(pair.first, pair.second): pair.probability for pair in pairs}
        fitted = ordering.strengths(len(candidates), ahead, prior)
        ahead |= {(j, i): 1 - p for (i, j), p in ahead.items()}
        order = np.argsort(-fitted, kind="stable").tolist()
        strength, neighbours = fitted.tolist(), itertools.pairwise(order)
        # as compared, or from the strengths where the pair was not
        sure = [ahead.get((i, j), preference.sigmoid(strength[i] - strength[j])) for i, j in neighbours]
        places = [
            Ranked(place=place, index=i, strength=strength[i], better_than_next=p, assessment=candidates[i].row)
            for place, (i, p) in enumerate(zip(order, [*sure, None], strict=False), start=1)
        ]
        notes = list(dict.fromkeys(line for pair in pairs for line in pair.notes))
        return Ranking(order=places, pairs=pairs, pairwise_reads=self.reads - before, notes=notes)

    def groups(self, candidates: Sequence[Candidate]) -> Iterator[Group]:
        """The groups of near-duplicates, in the order of their first pictures. Raises as `rank`."""
        scenes = ordering.scene_groups([candidate.fingerprint for candidate in candidates])
        for number, members in enumerate(scenes, start=1):
            ranking = self.rank([candidates[i] for i in members])
            for ranked in ranking.order:
                ranked.index = members[ranked.index]
            for pair in ranking.pairs:
                pair.first, pair.second = members[pair.first], members[pair.second]
            fields = {name: getattr(ranking, name) for name in ("order", "pairs", "pairwise_reads", "notes")}
            yield Group(number=number, best=ranking.order[0].assessment.image, **fields)


class How(TypedDict, total=False):
    """How pictures are compared; `compare` says what each means."""

    reference: Picture | None
    pairwise: bool | None
    services: Services | None
    pipeline: Pipeline
    max_replan_iterations: int | None
    observer: Observer | None


def compare(first: Picture, second: Picture, **how: Unpack[How]) -> Comparison:
    """Which of two pictures is better, and with which probability. `compare(a, b)` and `compare(b, a)` give
    probabilities that sum to 1.

    Args:
        first, second: Pictures as `assess` takes them.
        how: By name:
            reference: The pristine original of both.
            pairwise: Whether the model is shown both pictures, in both orders: True always, False never, None where
                the read has weight with this model, or no fit says that it has none.
            services: The set-up; by default the one that ships.
            pipeline, max_replan_iterations: How each picture is assessed, by default with "letters".
            observer: Sees each call of models and tools.

    Returns:
        The comparison; what is wrong with a picture is in its `error`. Raises what `assess` does.
    """
    with _assessed([first, second], **how) as (judge, rows, files):
        return judge.compared(rows, files)


def rank(pictures: Sequence[Picture], **how: Unpack[How]) -> Ranking:
    """The order of pictures from the best to the worst, from at most three comparisons for each; arguments as for
    `compare`. Pictures that could not be assessed are in `failed`."""
    with _assessed(pictures, **how) as (judge, rows, files):
        return judge.ranked(rows, files)


@contextmanager
def _assessed(
    pictures: Sequence[Picture],
    reference: Picture | None = None,
    pairwise: bool | None = None,
    services: Services | None = None,
    pipeline: Pipeline = "letters",
    **how: Any,
) -> Iterator[tuple[Judge, list[Assessment], list[Path]]]:
    """The judge of the pictures, their rows, and the files that they lie in meanwhile."""
    loaded, observer = services or load_services(), how.get("observer") or Observer()

    def read(one: Image.Image, other: Image.Image) -> preference.PairwiseRead:
        with observer.calling(MODEL):
            return preference.read_pair(loaded.client(ROLE), one, other)

    with ExitStack() as opened:
        original = None if reference is None else opened.enter_context(as_file(reference))
        files = [opened.enter_context(as_file(picture)) for picture in pictures]
        rows = [assess(file, original, services=loaded, pipeline=pipeline, **how) for file in files]
        reader = None if pairwise is False else read
        judge = Judge(loaded.settings, pipeline, original is not None, reader, always=bool(pairwise))
        yield judge, rows, [Path(file.path) for file in files]
