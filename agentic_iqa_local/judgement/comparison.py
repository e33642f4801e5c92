"""Which of two pictures is better and how probable that is, the order of several, and the best of each group of
near-duplicates."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from pydantic import BaseModel, Field

from agentic_iqa_local.config import Pipeline, Settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import folder_hash
from agentic_iqa_local.images.pictures import Picture, as_file
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.fit import calibration_for
from agentic_iqa_local.judgement.ordering import (
    MOST_DIFFERENT,
    MOST_PICTURES,
    fingerprint,
    pairs_to_compare,
    scene_distance,
    scene_groups,
    strengths,
)
from agentic_iqa_local.judgement.pairwise_read import PairwiseRead, read_pair
from agentic_iqa_local.judgement.preference import (
    Basis,
    PairFit,
    PairFits,
    draws_of,
    probability_above,
    read_fits,
    sigmoid,
)
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.workbench import MODEL, Observer, load_pictures
from agentic_iqa_local.result import Assessment, Result
from agentic_iqa_local.services import Services, load_services

SCHEMA_VERSION = 1


class PairResult(BaseModel):
    """What is known of one pair of rated pictures."""

    same_scene: bool  # whether both are near-duplicates: versions or frames of one scene
    scene_distance: float = Field(
        description=f"Share of their perceptual hashes' bits that differ, 0..1; up to {MOST_DIFFERENT:.3f} is"
        " the same scene."
    )
    probability: float  # that the first picture is the better one, 0..1
    independent: float  # the same from independent draws of both pictures' quality, as if of different scenes
    basis: Basis  # what the probability rests on
    fitted_on: str | None = None  # set, size and date of the fit, where it rests on one
    # what the model's letters say when it is shown both; None where not read
    pairwise: PairwiseRead | None = None
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
        return [
            *(f"{one_line(row.image)}: {line}" for row in (self.first, self.second) for line in row.warnings),
            *(self.pair.notes if self.pair else []),
        ]


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
    """Pictures from the best to the worst, and the comparisons that say so."""

    kind: Literal["ranking", "group"]
    schema_version: int = SCHEMA_VERSION
    order: list[Ranked]
    pairs: list[ComparedPair] = Field(
        default_factory=list
    )  # the comparisons made: at most three for each picture
    pairwise_reads: int = 0  # pairs that the model was shown together
    notes: list[str] = Field(default_factory=list)


class Ranking(OrderResult):
    """Pictures from the best to the worst, and those that could not be assessed."""

    kind: Literal["ranking"] = "ranking"
    failed: list[Assessment] = Field(default_factory=list)  # those that could not be assessed

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
    """A rated picture on its way to a comparison; `load` gives its upright RGB pixels. `draws` are values of its
    true quality, and whether the calibration of an interval gives them."""

    row: Assessment
    fingerprint: np.ndarray
    load: Callable[[], Image.Image]
    draws: tuple[np.ndarray, bool] | None = None


@dataclass
class Judge:
    """Compares pictures that one set-up assessed. `read` shows the model two pictures; None reads none.
    `always` reads every pair, also where the read has no weight. `reads` counts them."""

    settings: Settings
    pipeline: Pipeline
    reference: bool
    read: Callable[[Image.Image, Image.Image], PairwiseRead] | None = None
    always: bool = False
    fits: PairFits = field(default_factory=read_fits)
    reads: int = 0

    @cached_property
    def folder(self) -> Path:
        return self.settings.folder(self.settings.summarizer.backend)

    @cached_property
    def fit(self) -> PairFit | None:
        """The fit of this set-up's model, pipeline and kind of assessment."""
        model = folder_hash(self.folder) if self.folder.is_dir() else None
        return self.fits.of(model, self.pipeline, reference=self.reference)

    @property
    def reads_pairs(self) -> bool:
        """Whether a pair is shown to the model because that counts, or is asked for."""
        return self.read is not None and (self.always or (self.fit is not None and self.fit.pairwise > 0))

    def compared(self, rows: Sequence[Assessment], files: Sequence[Path]) -> Comparison:
        """The comparison of two assessed pictures in these files. Raises VLMError."""
        first, second = rows
        result = Comparison(first=first, second=second)
        result.error = next((row.error or "" for row in rows if unrated(row)), None)
        if result.error is None:
            result.pair = self.compare(*self.candidates(rows, files))
        return result

    def ranked(self, rows: Sequence[Assessment], files: Sequence[Path]) -> Ranking:
        """The order of assessed pictures in these files; what failed stands beside it. Raises ValueError beyond
        MOST_PICTURES, VLMError."""
        ranking = self.rank(self.candidates(rows, files))
        ranking.failed = [row for row in rows if row.error is not None]
        return ranking

    def candidates(self, rows: Sequence[Assessment], files: Sequence[Path]) -> list[Candidate]:
        """The rated pictures among those assessed. Raises ImageError where a file cannot be read any more."""

        def candidate(row: Assessment, file: Path) -> Candidate:
            def load() -> Image.Image:
                return load_pictures(self.settings.images, file)[0].pixels

            return Candidate(row, fingerprint(load()), load)

        return [candidate(*pair) for pair in zip(rows, files, strict=True) if not unrated(pair[0])]

    def _draws(self, candidate: Candidate) -> tuple[np.ndarray, bool]:
        if candidate.draws is None:
            row, calibration = candidate.row, None
            if row.interval is not None:
                calibration, _ = calibration_for(self.settings, self.folder, row.model or {})
            candidate.draws = draws_of(row, calibration), calibration is not None
        return candidate.draws

    def compare(self, one: Candidate, other: Candidate, *, may_read: bool = True) -> PairResult:
        """What is known of a pair. With `may_read` the model is shown both where that counts, or where no fit
        tells that it does not. Raises VLMError where it cannot read them."""
        apart = scene_distance(one.fingerprint, other.fingerprint)
        (mine, calibrated), (theirs, both) = self._draws(one), self._draws(other)
        independent = probability_above(mine, theirs)
        result = PairResult(
            same_scene=apart <= MOST_DIFFERENT,
            scene_distance=apart,
            probability=independent,
            independent=independent,
            basis="intervals" if calibrated and both else "fused distributions",
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
            result.notes.append(
                "both show the same scene, but no fit of comparisons is of this model, pipeline and kind of"
                " assessment: the probability is that of independent pictures, and too near to one half"
            )
            return
        fitted = fit.probability(one, other, result.pairwise and result.pairwise.probability)
        if fitted is None:
            result.notes.append(
                f"a measurement that the fit weighs ({', '.join(fit.weights)}) is missing: the probability is"
                " that of independent pictures"
            )
            return
        result.probability, result.basis, result.fitted_on = fitted, "same scene, fitted", fit.fitted_on
        result.pairwise_weight = fit.pairwise if result.pairwise else 0.0

    def rank(self, candidates: Sequence[Candidate]) -> Ranking:
        """The order of rated pictures. Raises ValueError beyond MOST_PICTURES, VLMError as `compare`."""
        if len(candidates) > MOST_PICTURES:
            raise ValueError(
                f"rank: expected at most {MOST_PICTURES} pictures, got {len(candidates)}; divide them"
            )
        before = self.reads
        prior = [self._prior(candidate.row) for candidate in candidates]

        def compared(i: int, j: int, may_read: bool = False) -> PairResult:
            return self.compare(candidates[i], candidates[j], may_read=may_read)

        chosen = pairs_to_compare(prior, lambda i, j: compared(i, j).probability)
        looked = {pair: compared(*pair, may_read=self.reads_pairs) for pair in chosen}
        found = strengths(
            len(candidates), {pair: result.probability for pair, result in looked.items()}, prior
        )

        def ahead(i: int, j: int) -> float:
            """P(i is better than j): as compared, or from the strengths where the pair was not."""
            if (i, j) in looked:
                return looked[i, j].probability
            return 1 - looked[j, i].probability if (j, i) in looked else sigmoid(found[i] - found[j])

        best_first = np.argsort(-found, kind="stable").tolist()
        order = [
            Ranked(
                place=place,
                index=i,
                strength=float(found[i]),
                better_than_next=None if place == len(best_first) else ahead(i, best_first[place]),
                assessment=candidates[i].row,
            )
            for place, i in enumerate(best_first, start=1)
        ]
        pairs = [ComparedPair(first=i, second=j, **dict(result)) for (i, j), result in looked.items()]
        notes = list(dict.fromkeys(line for pair in pairs for line in pair.notes))
        return Ranking(order=order, pairs=pairs, pairwise_reads=self.reads - before, notes=notes)

    def _prior(self, row: Assessment) -> float:
        """Where a picture's strength is looked for, in log-odds."""
        strength = self.fit and self.fit.strength(row)
        assert row.q is not None  # of a rated picture
        return row.q if strength is None else strength

    def groups(self, candidates: Sequence[Candidate]) -> Iterator[Group]:
        """The groups of near-duplicates, in the order of their first pictures. Raises as `rank`."""
        scenes = scene_groups([candidate.fingerprint for candidate in candidates])
        for number, members in enumerate(scenes, start=1):
            ranking = self.rank([candidates[i] for i in members])
            for ranked in ranking.order:
                ranked.index = members[ranked.index]
            for pair in ranking.pairs:
                pair.first, pair.second = members[pair.first], members[pair.second]
            fields: dict[str, Any] = dict(ranking)
            del fields["kind"], fields["failed"]
            yield Group(number=number, best=ranking.order[0].assessment.image, **fields)


def unrated(row: Assessment) -> bool:
    """Whether a row has no q to compare. Its `error` then says why."""
    if row.error is None and row.q is None:
        row.error = f"{row.image}: expected a rating, got an answer without q; compare with the default query"
    return row.error is not None


def compare(
    first: Picture,
    second: Picture,
    *,
    reference: Picture | None = None,
    pairwise: bool | None = None,
    services: Services | None = None,
    pipeline: Pipeline = "letters",
    max_replan_iterations: int | None = None,
    observer: Observer | None = None,
) -> Comparison:
    """Which of two pictures is better, and with which probability. `compare(a, b)` and `compare(b, a)` give
    probabilities that sum to 1.

    Args:
        first, second: Pictures as `assess` takes them.
        reference: The pristine original of both.
        pairwise: Whether the model is shown both pictures, in both orders: True always, False never, None where the
            read has weight with this model, or no fit says that it has none.
        services: The set-up; by default the one that ships.
        pipeline, max_replan_iterations: How each picture is assessed.
        observer: Sees each call of models and tools.

    Returns:
        The comparison; what is wrong with a picture is in its `error`. Raises what `assess` does.
    """
    how = {"pipeline": pipeline, "max_replan_iterations": max_replan_iterations, "observer": observer}
    with _assessed([first, second], reference, pairwise, services, how) as (judge, rows, files):
        return judge.compared(rows, files)


def rank(
    pictures: Sequence[Picture],
    *,
    reference: Picture | None = None,
    pairwise: bool | None = None,
    services: Services | None = None,
    pipeline: Pipeline = "letters",
    max_replan_iterations: int | None = None,
    observer: Observer | None = None,
) -> Ranking:
    """The order of pictures from the best to the worst, from at most three comparisons for each; arguments as for
    `compare`. Pictures that could not be assessed are in `failed`."""
    how = {"pipeline": pipeline, "max_replan_iterations": max_replan_iterations, "observer": observer}
    with _assessed(pictures, reference, pairwise, services, how) as (judge, rows, files):
        return judge.ranked(rows, files)


@contextmanager
def _assessed(
    pictures: Sequence[Picture],
    reference: Picture | None,
    pairwise: bool | None,
    services: Services | None,
    how: dict[str, Any],
) -> Iterator[tuple[Judge, list[Assessment], list[Path]]]:
    """The judge of the pictures, their rows, and the files that they lie in meanwhile. `how` goes to `assess`."""
    services, observer = services or load_services(), how["observer"] or Observer()
    with ExitStack() as opened:
        original = None if reference is None else opened.enter_context(as_file(reference))
        files = [opened.enter_context(as_file(picture)) for picture in pictures]
        rows = [assess(file, original, services=services, **how) for file in files]

        def read(one: Image.Image, other: Image.Image) -> PairwiseRead:
            with observer.calling(MODEL):
                return read_pair(services.client(ROLE), one, other)

        reader = None if pairwise is False else read
        judge = Judge(services.settings, how["pipeline"], original is not None, reader, always=bool(pairwise))
        yield judge, rows, [Path(file.path) for file in files]
