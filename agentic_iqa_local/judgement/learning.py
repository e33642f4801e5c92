"""Learns an eye from a person's ratings, and says whether it helps: ridge regression on LocalNR's
statistics, judged by nested cross-validation over scenes.

Near-duplicates are one scene and never stand on both sides of a split. What is judged is q as the
person would get it: the fusion of the model's letters with the eye's level, beside q without it.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import rankdata
from sklearn.model_selection import GroupKFold

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.iqa_tools.calibration import HIGHEST, LOWEST, MIDDLE
from agentic_iqa_local.iqa_tools.eye import CurvePoint, Eye, EyeCard, Standard
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.judgement.described import Description
from agentic_iqa_local.judgement.ordering import scene_groups
from agentic_iqa_local.score_fusion import LEVELS, fused_distribution
from agentic_iqa_local.state import EYE

FEWEST_SCENES = 10
OUTER, INNER = 10, 5  # folds
PENALTIES = np.logspace(0, 5, 11)  # of the ridge, on standardised statistics
LIKE = 0.95  # of the rated pictures count as like the others
DRAWS = 1000  # of the bootstrap
CURVE = (20, 50, 100, 200)
CURVE_DRAWS = 5
HELPED = 0.9  # bootstrap probability from which an eye counts as a help
SEED = 20261127


class LearningError(UserError, ValueError):
    """Ratings from which nothing can be learned; one sentence for the user."""


@dataclass(frozen=True)
class Rated:
    """Rated pictures, n of them.

    `statistics` are LocalNR's, (n, d), and `tools` are the levels of the configured tools, (n,)
    each, LocalNR's among them; `p_c` are the letters' probabilities of the levels 1 to 5, (n, 5),
    and `q` the answer without an eye; `levels` are the ratings on the 1..5 scale, and `scenes` are
    numbers that near-duplicates share.
    """

    statistics: np.ndarray
    tools: dict[str, np.ndarray]
    p_c: np.ndarray
    q: np.ndarray
    levels: np.ndarray
    scenes: np.ndarray

    def agreement(self, levels: np.ndarray) -> dict[str, float]:
        """The SRCC with the ratings of an eye that gives these levels, and of each tool."""
        scores = {EYE: levels, **self.tools}
        return {name: srcc(column, self.levels) for name, column in scores.items()}

    def votes(self, levels: np.ndarray, sigma: float) -> "Votes":
        """Who would vote beside an eye that gives these levels with the error `sigma`. The tools
        that are clearly worse on the ratings do not, as in an assessment."""
        known = load_reliability().with_ratings(self.agreement(levels), **{EYE: sigma})
        voters = sorted(known.leading([EYE, *self.tools]))
        error = known.sigma_of_mean([(name, MIDDLE) for name in voters], {})
        return Votes(tuple(voters), error)

    def fused(self, levels: np.ndarray, votes: "Votes") -> np.ndarray:
        """q with an eye that gives these levels, (n,)."""
        columns = {EYE: levels, **self.tools}
        q_bar = np.mean([columns[name] for name in votes.voters], axis=0)
        return fused_distribution(self.p_c, q_bar, 1 / (2 * votes.error**2)) @ LEVELS

    @functools.cached_property
    def columns(self) -> "Columns":
        """What a learner gets of the pictures."""
        standard = Standard.of(self.statistics)
        standardised = standard(self.statistics)
        centre = standardised.mean(0)
        left, sizes, axes = np.linalg.svd(standardised - centre, full_matrices=False)
        values = np.column_stack([self.tools["LocalNR"], left * sizes])
        return Columns(values, axes, centre, standard, standardised)

    def part(self, chosen: np.ndarray) -> "Rated":
        """Some of the pictures, by their numbers."""
        return Rated(
            statistics=self.statistics[chosen],
            tools={name: levels[chosen] for name, levels in self.tools.items()},
            p_c=self.p_c[chosen],
            q=self.q[chosen],
            levels=self.levels[chosen],
            scenes=self.scenes[chosen],
        )


class Columns(NamedTuple):
    """What a learner gets of the rated pictures: LocalNR's level, and the coordinates of their
    `standardised` statistics along `axes`, (n, d), in which a ridge is the same and small."""

    values: np.ndarray
    axes: np.ndarray
    centre: np.ndarray
    standard: Standard
    standardised: np.ndarray


class Votes(NamedTuple):
    """The tools that vote, and the standard error of their mean."""

    voters: tuple[str, ...]
    error: float


def rated_of(pictures: Sequence[Description], levels: np.ndarray, *, relative: bool) -> Rated:
    """Pictures with their ratings, (n,). Those that are `relative`, of mean 0 and deviation 1, get
    the mean and the deviation of q. Tools that could not measure every picture are left out."""
    q = np.array([one.q for one in pictures])
    if relative:
        levels = np.clip(q.mean() + q.std() * levels, LOWEST, HIGHEST)
    scenes = np.empty(len(pictures), int)
    for number, members in enumerate(scene_groups([one.fingerprint for one in pictures])):
        scenes[members] = number
    return Rated(
        statistics=np.array([one.statistics for one in pictures], float),
        tools=tool_columns([one.levels for one in pictures]),
        p_c=np.array([one.p_c for one in pictures]),
        q=q,
        levels=levels,
        scenes=scenes,
    )


def tool_columns(levels: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """The levels by tool, (n,) each, of n pictures' levels; without tools that could not measure
    every picture."""
    everywhere = set.intersection(*map(set, levels))
    return {name: np.array([one[name] for one in levels]) for name in sorted(everywhere)}


class Line(NamedTuple):
    """A learner that was fitted: level = bias + slope · LocalNR's level + weights · coordinates.
    The slope is 0 unless it corrects LocalNR."""

    weights: np.ndarray
    bias: float
    slope: float

    def levels(self, columns: np.ndarray) -> np.ndarray:
        """The levels of pictures, (n,), by their `Columns.values`."""
        levels = self.bias + self.slope * columns[:, 0] + columns[:, 1:] @ self.weights
        return np.clip(levels, LOWEST, HIGHEST)


def _lines(columns: np.ndarray, levels: np.ndarray) -> list[Line]:
    """Ridge regressions with each of PENALTIES: of the levels, and of what a line through LocalNR's
    level leaves of them."""
    local_nr, statistics = columns[:, 0], columns[:, 1:]
    centre = statistics.mean(0)
    left, sizes, axes = np.linalg.svd(statistics - centre, full_matrices=False)
    lines = []
    for slope in (0.0, _slope(local_nr, levels)):
        wanted = levels - slope * local_nr
        shares = left.T @ (wanted - wanted.mean())
        for penalty in PENALTIES:
            weights = axes.T @ (sizes / (sizes**2 + penalty) * shares)
            lines.append(Line(weights, float(wanted.mean() - centre @ weights), slope))
    return lines


def _slope(local_nr: np.ndarray, levels: np.ndarray) -> float:
    """Of least squares; 0 where higher levels have lower ratings."""
    centred = local_nr - local_nr.mean()
    spread = float(centred @ centred)
    return max(0.0, float(centred @ levels) / spread) if spread else 0.0


def _folds(scenes: np.ndarray, count: int) -> GroupKFold:
    return GroupKFold(min(count, len(np.unique(scenes))), shuffle=True, random_state=SEED)


def _chosen(columns: np.ndarray, levels: np.ndarray, scenes: np.ndarray) -> Line:
    """The learner with the least error in inner cross-validation, fitted on all of these."""
    errors = np.zeros(2 * len(PENALTIES))
    for train, test in _folds(scenes, INNER).split(levels, groups=scenes):
        for number, line in enumerate(_lines(columns[train], levels[train])):
            errors[number] += ((line.levels(columns[test]) - levels[test]) ** 2).sum()
    return _lines(columns, levels)[int(errors.argmin())]


class Validated(NamedTuple):
    """The level that an eye gives each picture that was not learned from, (n,), their standard
    error, and the numbers of the pictures in each fold."""

    levels: np.ndarray
    sigma: float
    folds: list[np.ndarray]


def cross_validated(columns: np.ndarray, rated: Rated) -> Validated:
    """Nested cross-validation over scenes."""
    levels = np.empty(len(rated.levels))
    folds = []
    for train, test in _folds(rated.scenes, OUTER).split(rated.levels, groups=rated.scenes):
        learner = _chosen(columns[train], rated.levels[train], rated.scenes[train])
        levels[test] = learner.levels(columns[test])
        folds.append(test)
    return Validated(levels, _error(levels, rated.levels), folds)


def _error(levels: np.ndarray, ratings: np.ndarray) -> float:
    """The standard error of levels."""
    return float(np.sqrt(np.mean((levels - ratings) ** 2)))


def _fused_by_fold(validated: Validated, rated: Rated) -> np.ndarray:
    """q with an eye, (n,). Who votes in a fold is decided on the others, since a vote that was
    chosen by a picture's own rating would flatter it."""
    q = np.empty(len(rated.levels))
    everything = np.arange(len(q))
    for fold in validated.folds:
        others = np.setdiff1d(everything, fold)
        known, levels = rated.part(others), validated.levels[others]
        votes = known.votes(levels, _error(levels, known.levels))
        q[fold] = rated.part(fold).fused(validated.levels[fold], votes)
    return q


def srcc(scores: np.ndarray, ratings: np.ndarray) -> float:
    """Spearman's correlation; 0 where one is constant, so that it ranks nothing."""
    one, other = rankdata(scores), rankdata(ratings)
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


class Proof(NamedTuple):
    """Bootstrap probabilities, over scenes: that SRCC is higher with the eye than without, and that
    it is above 0 with it."""

    helped: float
    positive: float

    @property
    def holds(self) -> bool:
        return self.helped >= HELPED and self.positive >= HELPED


def proof(with_eye: np.ndarray, without: np.ndarray, rated: Rated) -> Proof:
    """How sure it is that the eye helps."""
    helped, positive = 0, 0
    for drawn in _draws(rated.scenes):
        ratings = rated.levels[drawn]
        new = srcc(with_eye[drawn], ratings)
        helped += new > srcc(without[drawn], ratings)
        positive += new > 0
    return Proof(helped / DRAWS, positive / DRAWS)


def _draws(scenes: np.ndarray) -> Iterator[np.ndarray]:
    """Pictures of as many scenes, drawn with replacement."""
    members = [np.flatnonzero(scenes == scene) for scene in np.unique(scenes)]
    random = np.random.default_rng(SEED)
    for _ in range(DRAWS):
        drawn = random.integers(0, len(members), len(members))
        yield np.concatenate([members[i] for i in drawn])


def learning_curve(rated: Rated, draws: int = CURVE_DRAWS) -> list[CurvePoint]:
    """SRCC of q, with an eye of so many ratings and without, on pictures that were not rated: the
    mean over random draws of the rated ones."""
    columns = rated.columns.values
    points = []
    count = len(rated.levels)
    for size in CURVE:
        if size > 0.8 * count:
            break
        found = []
        for seed in range(draws):
            order = np.random.default_rng(seed).permutation(count)
            train, rest = order[:size], order[size:]
            rest = rest[~np.isin(rated.scenes[rest], rated.scenes[train])]
            if len(np.unique(rated.scenes[train])) >= INNER and len(rest) >= FEWEST_SCENES:
                found.append(_held_out(columns, rated, train, rest))
        if found:
            mean, without = np.mean(found, axis=0).tolist()
            worse = int(sum(one < other for one, other in found))
            points.append(
                CurvePoint(
                    ratings=size, srcc=mean, srcc_without=without, draws=len(found), worse=worse
                )
            )
    return points


def _held_out(
    columns: np.ndarray, rated: Rated, train: np.ndarray, rest: np.ndarray
) -> tuple[float, float]:
    """SRCC of q with an eye and without, of the pictures `rest`, if those of `train` were rated."""
    known, others = rated.part(train), rated.part(rest)
    learner = _chosen(columns[train], known.levels, known.scenes)
    validated = cross_validated(columns[train], known)
    votes = known.votes(validated.levels, validated.sigma)
    q = others.fused(learner.levels(columns[rest]), votes)
    return srcc(q, others.levels), srcc(others.q, others.levels)


def farthest(standardised: np.ndarray, scenes: np.ndarray) -> float:
    """How far the nearest rated picture of another scene is from nearly all rated pictures. What is
    further away than that is unlike them (the nearest neighbour as a detector of other data: Sun et
    al., ICML 2022)."""
    distances = cdist(standardised, standardised)
    distances[scenes[:, None] == scenes] = np.inf
    return float(np.quantile(distances.min(1), LIKE))


@dataclass(frozen=True)
class Trial:
    """How an eye of these ratings would do on pictures that it was not learned from, by nested
    cross-validation: its `levels`, (n,), their standard error `sigma`, who votes beside it, `q`,
    SRCC of q with the eye and without it, and the proof that it helps."""

    levels: np.ndarray
    sigma: float
    votes: Votes
    q: np.ndarray
    srcc: float
    srcc_without: float
    proof: Proof


def check_enough(scenes: int, levels: np.ndarray) -> None:
    """Raises LearningError for too few scenes, or one rating for all."""
    if scenes < FEWEST_SCENES:
        said = f"expected ratings of at least {FEWEST_SCENES} scenes, got {scenes}"
        raise LearningError(said, "rate more pictures; near-duplicates count once")
    if np.ptp(levels) == 0:
        raise LearningError("expected ratings that differ, all are the same", "rate worse ones too")


def tried(rated: Rated) -> Trial:
    """The trial of these ratings. Raises LearningError for too few scenes, or one rating for
    all."""
    check_enough(len(np.unique(rated.scenes)), rated.levels)
    validated = cross_validated(rated.columns.values, rated)
    q = _fused_by_fold(validated, rated)
    return Trial(
        levels=validated.levels,
        sigma=validated.sigma,
        votes=rated.votes(validated.levels, validated.sigma),
        q=q,
        srcc=srcc(q, rated.levels),
        srcc_without=srcc(rated.q, rated.levels),
        proof=proof(q, rated.q, rated),
    )


def learned(rated: Rated, **about: Any) -> tuple[Eye, Proof]:
    """An eye of these ratings, and the proof that it helps.

    Args:
        rated: The rated pictures.
        about: What else the card says: `date`, `ratings`, `pictures`, `people`, `disagreement`, `scale`,
            `local_nr`, `model`.

    Raises:
        LearningError: Too few scenes, or one rating for all.
    """
    trial = tried(rated)
    columns = rated.columns
    learner = _chosen(columns.values, rated.levels, rated.scenes)
    card = EyeCard(
        scenes=len(np.unique(rated.scenes)),
        learner="correction" if learner.slope else "ridge",
        srcc=trial.srcc,
        srcc_without=trial.srcc_without,
        agreement=rated.agreement(trial.levels),
        helped=trial.proof.helped,
        curve=tuple(learning_curve(rated)),
        sigma=trial.sigma,
        errors=tuple((rated.levels - trial.q).tolist()),
        voters=trial.votes.voters,
        farthest=farthest(columns.standardised, rated.scenes),
        **about,
    )
    weights = columns.axes.T @ learner.weights
    bias = learner.bias - float(columns.centre @ weights)
    eye = Eye(card, columns.standard, columns.standardised, weights, bias, learner.slope)
    return eye, trial.proof
