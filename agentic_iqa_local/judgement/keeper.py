"""The groups of pictures of one scene, and which picture of each group to keep."""

from collections.abc import Iterator, Sequence

import numpy as np

from agentic_iqa_local.judgement import burst, ordering, series
from agentic_iqa_local.judgement.comparison import Candidate, Group, Judge, in_order
from agentic_iqa_local.nodes.pictures import load_pictures

SURE = 0.75  # that the first is better than the second: with less the choice is left to the user


def groups(judge: Judge, candidates: Sequence[Candidate]) -> Iterator[Group]:
    """The groups, in the order of their first pictures. Raises as `Judge.rank`, and ImageError
    where a file cannot be read any more."""
    shots = [series.read_shot(one.file) for one in candidates]
    fingerprints = [one.fingerprint for one in candidates]
    links = series.linked(shots, fingerprints, lambda i: _frame(judge, candidates[i]).luma)
    for number, members in enumerate(ordering.scene_groups(fingerprints, links), start=1):
        group = _group(judge, [candidates[i] for i in members], [shots[i] for i in members])
        group.number = number
        yield group


def _frame(judge: Judge, candidate: Candidate) -> burst.Frame:
    picture, _ = load_pictures(judge.settings.images, candidate.file)
    return burst.Frame.of(picture.pixels)


def _group(
    judge: Judge, members: Sequence[Candidate], shots: Sequence[series.Shot | None]
) -> Group:
    """The verdict on the pictures of one scene."""
    if len(members) == 1:
        return Group(order=in_order(members, np.zeros(1)))
    together = burst.compared([_frame(judge, one) for one in members])
    whole = series.series_of(shots, _same_scene(members), together and together.energies)
    if together is None:
        ranking = judge.rank(members)
        group = Group(order=ranking.order, pairs=ranking.pairs)
    else:
        group = _paired(members, together.measures)
    if whole:
        group.verdict, group.series, group.probability = "kept whole", whole, None
        return group
    return _decided(group)


def _same_scene(members: Sequence[Candidate]) -> bool:
    """Whether neighbours in the order of the files are near-duplicates."""
    hashes = [one.fingerprint for one in members]
    return len(ordering.scene_groups(hashes)) == 1


def _paired(members: Sequence[Candidate], measures: list[dict[str, float]]) -> Group:
    """The order of aligned frames, by what was measured of each and q."""
    weights = burst.load_fit().weights
    for one, measured in zip(members, measures, strict=True):
        measured["q"] = one.row.q or 0.0
    order = in_order(members, burst.strengths(measures, weights))
    by_name = {one.row.image: measured for one, measured in zip(members, measures, strict=True)}
    return Group(order=order, measures=by_name)


def _decided(group: Group) -> Group:
    """The group with its verdict: keep the first if it is sure enough, otherwise leave it open."""
    strength = np.array([ranked.strength for ranked in group.order])
    group.probability = float(burst.chances(strength)[0])
    group.reason = _reason(group)
    ahead = group.order[0].better_than_next
    if ahead is None or ahead >= SURE:
        return group
    group.verdict = "undecided"
    least = strength[0] - np.log(SURE / (1 - SURE))
    group.undecided = [
        ranked.assessment.image for ranked in group.order if ranked.strength >= least
    ]
    return group


def _reason(group: Group) -> str | None:
    """What speaks most for the first picture against each other one, in words."""
    if not group.measures:
        return None
    best, *others = [ranked.assessment.image for ranked in group.order]
    weights = burst.load_fit().weights
    against: dict[str, list[str]] = {}
    for other in others:
        name = burst.why(group.measures[best], group.measures[other], weights)
        if name:
            against.setdefault(name, []).append(other)
    return "; ".join(burst.said(name, images) for name, images in against.items()) or None
