"""Two versions of many pictures: what was found of each pair, and what follows for the new
version."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from pydantic import Field

from agentic_iqa_local import __version__
from agentic_iqa_local.judgement import ordering, preference
from agentic_iqa_local.judgement.changes import Change
from agentic_iqa_local.judgement.worse import Decision, Rule
from agentic_iqa_local.result import Assessment, Result

SCHEMA_VERSION = 1


class PairFound(Result):
    """What was found of a pair that could be compared."""

    name: str
    old: str
    new: str
    scene: int
    same: bool = False  # both have the same pixels: nothing was assessed, and nothing was lost
    old_q: float | None = None
    new_q: float | None = None
    loss: float = 0.0  # levels of q: positive where the new picture is worse
    # that the old picture is the better one, as the command compare says it; None where it cannot
    probability: float | None = None
    change: Change | None = None  # of the worst pictures


class VersionReport(Result):
    """Whether a new version is worse. `problems` names what could not be compared, which is in no
    figure."""

    kind: Literal["gate"] = "gate"
    schema_version: int = SCHEMA_VERSION
    old: str
    new: str
    reference: bool
    margin: float
    worse_share: float | None
    error_rate: float
    needed: int  # scenes that such a rule needs, about
    decision: Decision | None  # None where no pair could be compared
    pairs: list[PairFound] = Field(default_factory=list)  # what lost most comes first
    problems: list[str] = Field(default_factory=list)
    model: dict[str, Any] | None = None  # None where nothing was assessed
    version: str = __version__
    timestamp: datetime = Field(default_factory=lambda: datetime.now(UTC))

    @property
    def worst(self) -> list[PairFound]:
        """The pairs that lost more than the margin, what lost most first."""
        return [pair for pair in self.pairs if pair.loss > self.margin]

    @property
    def rule(self) -> Rule:
        return Rule(self.margin, self.worse_share, self.error_rate)


def compared(
    name: str, scene: int, old: Assessment, new: Assessment, fit: preference.PairFit | None
) -> PairFound:
    """What is known of a pair of rows that both have a q."""
    assert old.q is not None
    assert new.q is not None
    return PairFound(
        name=name,
        old=old.image,
        new=new.image,
        scene=scene,
        old_q=old.q,
        new_q=new.q,
        loss=old.q - new.q,
        probability=_probability(fit, old, new),
    )


def _probability(fit: preference.PairFit | None, old: Assessment, new: Assessment) -> float | None:
    if fit is None:
        return None
    was, now = fit.strength(old), fit.strength(new)
    return None if was is None or now is None else preference.sigmoid(was - now)


def in_order(pairs: Sequence[PairFound]) -> list[PairFound]:
    """What lost most first."""
    return sorted(pairs, key=lambda pair: -pair.loss)


def scenes(fingerprints: Sequence[np.ndarray | None], named: Sequence[str | None]) -> list[int]:
    """The number of each picture's scene: those that are named alike, or where nobody names any,
    near-duplicates by their perceptual hashes. A picture without a hash, or among more than
    ordering.MOST_PICTURES, is a scene of its own."""
    if any(named):
        first = {name: number for number, name in reversed([*enumerate(named)])}
        return [first[name] if name else number for number, name in enumerate(named)]
    return _near_duplicates(fingerprints)


def _near_duplicates(fingerprints: Sequence[np.ndarray | None]) -> list[int]:
    numbers = list(range(len(fingerprints)))
    known = {number: one for number, one in enumerate(fingerprints) if one is not None}
    places = list(known)
    if len(places) <= ordering.MOST_PICTURES:
        for group in ordering.scene_groups(list(known.values())):
            for member in group:
                numbers[places[member]] = places[group[0]]
    return numbers


def extent(row: Assessment) -> tuple[int, int] | None:
    """The right and the lower edge of what the model saw; None where it saw nothing."""
    boxes = [view.box for view in row.seen.views] if row.seen else []
    if not boxes:
        return None
    return max(box[2] for box in boxes), max(box[3] for box in boxes)
