"""`compare()` and `rank()`: which of two pictures is better and how probable that is, and the order of
several."""

import html
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

from agentic_iqa_local.config import Settings
from agentic_iqa_local.images.pictures import Picture, as_file
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.calibrations import calibration_for
from agentic_iqa_local.judgement.near_duplicates import MOST_DIFFERENT, fingerprint, scene_distance
from agentic_iqa_local.judgement.ordering import MOST_PICTURES, pairs_to_compare, strengths
from agentic_iqa_local.judgement.pairwise_read import PairwiseRead, read_pair
from agentic_iqa_local.judgement.preference import (
    Basis,
    PairFit,
    PairFits,
    draws_of,
    fitted_probability,
    probability_above,
    read_fits,
)
from agentic_iqa_local.nodes.summarizer import ROLE
from agentic_iqa_local.nodes.workbench import load_pictures
from agentic_iqa_local.provenance import folder_hash
from agentic_iqa_local.request import Pipeline
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services, load_services
from agentic_iqa_local.text import one_line

SCHEMA_VERSION = 1
CLOSE = 0.65  # a probability up to which neither picture is called better


class _Result(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    kind: Literal["comparison", "ranking", "group"]
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """The fields of a JSON line, as plain Python values."""
        return self.model_dump(mode="json")


class PairResult(BaseModel):
    """What is known of one pair of rated pictures."""

    same_scene: bool = Field(description="Whether both are near-duplicates: versions or frames of one scene.")
    scene_distance: float = Field(
        description=f"Share of their perceptual hashes' bits that differ, 0..1; up to {MOST_DIFFERENT:.3f} is"
        " the same scene."
    )
    probability: float = Field(description="That the first picture is the better one, 0..1.")
    independent: float = Field(
        description="The same from independent draws of both pictures' quality, as if of different scenes."
    )
    basis: Basis = Field(description="What the probability rests on.")
    fitted_on: str | None = Field(
        default=None, description="Set, size and date of the fit, where it rests on one."
    )
    pairwise: PairwiseRead | None = Field(
        default=None, description="What the model's letters say when it is shown both; None where not read."
    )
    pairwise_weight: float = Field(
        default=0.0, description="Weight of the pairwise read's log-odds in the probability."
    )
    notes: list[str] = []


class Comparison(_Result):
    """Two pictures: which is better, and how probable that is. Where one of them could not be assessed there
    is an `error` and no answer. In a notebook it shows as a table."""

    kind: Literal["comparison"] = "comparison"
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

    def explain(self) -> str:
        """The readable account that `--explain` prints."""
        from agentic_iqa_local.output.comparison_report import comparison_account

        return comparison_account(self)

    def __repr__(self) -> str:
        from agentic_iqa_local.output.comparison_report import comparison_headline

        return f"Comparison({comparison_headline(self):.300})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.explain())}</pre>"


class Ranked(BaseModel):
    """A picture's place in an order."""

    place: int = Field(description="1 is the best.")
    index: int = Field(description="Which of the rated pictures it is, in the order given, from 0 on.")
    strength: float = Field(description="Bradley–Terry strength, in log-odds; those of an order have mean 0.")
    better_than_next: float | None = Field(
        description="Probability that it is better than the picture at the next place; None for the last."
    )
    assessment: Assessment


class ComparedPair(PairResult):
    """A pair that an order rests on."""

    first: int = Field(description="The `index` of one picture, and of the other.")
    second: int


class OrderResult(_Result):
    """Pictures from the best to the worst, and the comparisons that say so."""

    order: list[Ranked]
    pairs: list[ComparedPair] = Field(
        default=[], description="The comparisons made: at most three for each picture."
    )
    pairwise_reads: int = Field(default=0, description="Pairs that the model was shown together.")
    notes: list[str] = []


class Ranking(OrderResult):
    """Pictures from the best to the worst, and those that could not be assessed. In a notebook it shows as
    text."""

    kind: Literal["ranking"] = "ranking"
    failed: list[Assessment] = []

    @property
    def best(self) -> Assessment | None:
        return self.order[0].assessment if self.order else None

    def explain(self) -> str:
        """The readable account that `--explain` prints."""
        from agentic_iqa_local.output.comparison_report import ranking_account

        return ranking_account(self)

    def __repr__(self) -> str:
        names = ", ".join(one_line(ranked.assessment.image) for ranked in self.order)
        return f"Ranking({names:.300})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.explain())}</pre>"


PairReader = Callable[[Image.Image, Image.Image], PairwiseRead]


@dataclass
class Candidate:
    """An assessed picture on its way to a comparison."""

    row: Assessment
    fingerprint: np.ndarray
    load: Callable[[], Image.Image]
    """Its upright RGB pixels."""


@dataclass
class Judge:
    """Compares pictures that one set-up assessed. `read` shows the model two pictures; None reads none.
    `always` reads every pair, also where the read has no weight."""

    settings: Settings
    pipeline: Pipeline
    reference: bool
    read: PairReader | None = None
    always: bool = False
    fits: PairFits = field(default_factory=read_fits)
    reads: int = 0

    @cached_property
    def folder(self) -> Path:
        return self.settings.folder(self.settings.summarizer.backend)

    @cached_property
    def fit(self) -> PairFit | None:
        """That of this set-up's model, pipeline and kind of assessment."""
        model = folder_hash(self.folder) if self.folder.is_dir() else None
        return self.fits.of(model, self.pipeline, reference=self.reference)

    def draws(self, row: Assessment) -> tuple[np.ndarray, bool]:
        """Values of the true quality of a rated picture, and whether an interval's calibration gives
        them."""
        calibration = None
        if row.interval is not None:
            calibration, _ = calibration_for(self.settings, self.folder, row.model or {})
        return draws_of(row, calibration), calibration is not None

    @property
    def reads_pairs(self) -> bool:
        """Whether a pair is shown to the model because that counts, or is asked for."""
        return self.read is not None and (self.always or (self.fit is not None and self.fit.pairwise > 0))

    def compare(self, one: Candidate, other: Candidate, *, may_read: bool = True) -> PairResult:
        """Both must be rated. With `may_read` the model is shown them where that counts, or where no fit
        tells that it does not. Raises VLMError where it cannot read them."""
        apart = scene_distance(one.fingerprint, other.fingerprint)
        (mine, calibrated), (theirs, both) = self.draws(one.row), self.draws(other.row)
        result = PairResult(
            same_scene=apart <= MOST_DIFFERENT,
            scene_distance=apart,
            probability=0.5,
            independent=probability_above(mine, theirs),
            basis="intervals" if calibrated and both else "fused distributions",
        )
        result.probability = result.independent
        if one.row.sha256 is not None and one.row.sha256 == other.row.sha256:
            result.probability, result.basis = 0.5, "same pixels"
            result.notes.append("both are the same file: neither is better")
            return result
        fit = self.fit
        if self.read is not None and may_read and (self.reads_pairs or fit is None):
            result.pairwise = self.read(one.load(), other.load())
            self.reads += 1
        if result.same_scene:
            self._judge_same_scene(result, fit, one.row, other.row)
        if result.pairwise and not result.pairwise_weight:
            result.notes.append("the pairwise read is reported and has no weight in the probability")
        return result

    def _judge_same_scene(
        self, result: PairResult, fit: PairFit | None, one: Assessment, other: Assessment
    ) -> None:
        """The fitted probability in place of the independent one, where there is a fit that applies."""
        if fit is None:
            result.notes.append(
                "both show the same scene, but no fit of comparisons is of this model, pipeline and kind of"
                " assessment: the probability is that of independent pictures, and too near to one half"
            )
            return
        fitted = fitted_probability(fit, one, other, result.pairwise and result.pairwise.probability)
        if fitted is None:
            result.notes.append(
                f"a measurement that the fit weighs ({', '.join(fit.weights)}) is missing: the probability is"
                " that of independent pictures"
            )
            return
        result.probability, result.basis, result.fitted_on = fitted, "same scene, fitted", fit.fitted_on
        result.pairwise_weight = fit.pairwise if result.pairwise else 0.0

    def rank(self, candidates: Sequence[Candidate], failed: Sequence[Assessment] = ()) -> Ranking:
        """The order of rated pictures. Raises ValueError beyond MOST_PICTURES, VLMError as `compare`."""
        if len(candidates) > MOST_PICTURES:
            raise ValueError(
                f"rank: expected at most {MOST_PICTURES} pictures, got {len(candidates)}; divide them"
            )
        before = self.reads
        prior = [self._prior(candidate.row) for candidate in candidates]
        looked: dict[tuple[int, int], PairResult] = {}

        def cheap(i: int, j: int) -> float:
            return self.compare(candidates[i], candidates[j], may_read=False).probability

        for i, j in pairs_to_compare(prior, cheap):
            looked[i, j] = self.compare(candidates[i], candidates[j], may_read=self.reads_pairs)
        values = {pair: result.probability for pair, result in looked.items()}
        found = strengths(len(candidates), values, prior)
        best_first = np.argsort(-found, kind="stable").tolist()
        order = []
        for place, i in enumerate(best_first):
            after = best_first[place + 1] if place + 1 < len(best_first) else None
            order.append(
                Ranked(
                    place=place + 1,
                    index=i,
                    strength=float(found[i]),
                    better_than_next=None if after is None else _between(values, found, i, after),
                    assessment=candidates[i].row,
                )
            )
        pairs = [ComparedPair(first=i, second=j, **dict(result)) for (i, j), result in looked.items()]
        notes = list(dict.fromkeys(line for pair in pairs for line in pair.notes))
        return Ranking(
            order=order, failed=list(failed), pairs=pairs, pairwise_reads=self.reads - before, notes=notes
        )

    def _prior(self, row: Assessment) -> float:
        """Where a picture's strength is looked for, in log-odds."""
        fitted = self.fit and self.fit.strength(row)
        if fitted is not None:
            return fitted
        assert row.q is not None  # of a rated picture
        return row.q


def _between(values: dict[tuple[int, int], float], found: np.ndarray, i: int, j: int) -> float:
    """P(i is better than j): as compared, or from the strengths where the pair was not."""
    if (i, j) in values:
        return values[i, j]
    if (j, i) in values:
        return 1 - values[j, i]
    return float(1 / (1 + np.exp(found[j] - found[i])))


def compare(
    first: Picture,
    second: Picture,
    *,
    reference: Picture | None = None,
    pipeline: Pipeline = "letters",
    max_replan_iterations: int | None = None,
    pairwise: bool | None = None,
    services: Services | None = None,
) -> Comparison:
    """Which of two pictures is better, and with which probability. `compare(a, b)` and `compare(b, a)` give
    probabilities that sum to 1.

    A picture is what `assess` takes; `reference` the pristine original of both. `pairwise` shows the model
    both pictures in both orders: True always, False never, None where the read has weight with this model, or
    no fit says that it has none. What is wrong with a picture is in the result's `error`; raises VLMError,
    ValueError and TypeError as `assess` does.
    """
    with ExitStack() as files:
        judge, candidates, rows = _assessed(
            files, [first, second], reference, pipeline, max_replan_iterations, pairwise, services
        )
        found = Comparison(first=rows[0], second=rows[1])
        found.error = next((row.error or "" for row in rows if unrated(row)), None)
        if found.error is None:
            found.pair = judge.compare(*candidates)
        return found


def rank(
    pictures: Sequence[Picture],
    *,
    reference: Picture | None = None,
    pipeline: Pipeline = "letters",
    max_replan_iterations: int | None = None,
    pairwise: bool | None = None,
    services: Services | None = None,
) -> Ranking:
    """The order of pictures from the best to the worst, from at most three comparisons for each; arguments as
    for `compare`. Pictures that could not be assessed are in `failed`."""
    with ExitStack() as files:
        judge, candidates, rows = _assessed(
            files, list(pictures), reference, pipeline, max_replan_iterations, pairwise, services
        )
        return judge.rank(candidates, [row for row in rows if unrated(row)])


def unrated(row: Assessment) -> bool:
    """Whether a row has no q to compare. Its `error` then says why."""
    if row.error is None and row.q is None:
        row.error = f"{row.image}: expected a rating, got an answer without q; compare with the default query"
    return row.error is not None


def _assessed(
    files: ExitStack,
    pictures: list[Picture],
    reference: Picture | None,
    pipeline: Pipeline,
    max_replan_iterations: int | None,
    pairwise: bool | None,
    services: Services | None,
) -> tuple[Judge, list[Candidate], list[Assessment]]:
    """What compares the pictures, those that are rated, and all of their rows."""
    services = services or load_services()
    original = None if reference is None else files.enter_context(as_file(reference))
    rows, candidates = [], []
    for picture in pictures:
        file = files.enter_context(as_file(picture))
        row = assess(
            file.path,
            original and original.path,
            pipeline=pipeline,
            max_replan_iterations=max_replan_iterations,
            services=services,
        )
        row.image, row.error = str(file.name), row.error and file.hide(row.error)
        rows.append(row)
        if not unrated(row):
            candidates.append(candidate(row, Path(file.path), services.settings))
    client = services.client(ROLE)
    read = None if pairwise is False else lambda one, other: read_pair(client, one, other)
    judge = Judge(services.settings, pipeline, reference is not None, read=read, always=bool(pairwise))
    return judge, candidates, rows


def candidate(row: Assessment, path: Path, settings: Settings) -> Candidate:
    """A rated picture with its fingerprint. Raises ImageError where its file cannot be read any more."""

    def load() -> Image.Image:
        return load_pictures(settings.images, path)[0].pixels

    return Candidate(row, fingerprint(load()), load)
