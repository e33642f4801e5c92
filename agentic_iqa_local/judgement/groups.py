"""Which pictures of a folder are near-duplicates, and which is the best of each group?"""

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from agentic_iqa_local.judgement.comparison import Candidate, Judge, OrderResult
from agentic_iqa_local.judgement.near_duplicates import scene_groups


class Group(OrderResult):
    """Near-duplicates, from the best to the worst; a picture without any is a group of its own."""

    kind: Literal["group"] = "group"
    number: int = Field(description="1 for the first group, in the pictures' order.")
    best: str = Field(description="The best picture.")


def best_of_groups(judge: Judge, candidates: Sequence[Candidate]) -> Iterator[Group]:
    """The groups of rated pictures in the order of their first pictures. Raises ValueError for a group beyond
    ordering.MOST_PICTURES, VLMError where the model cannot read a pair."""
    found = scene_groups([candidate.fingerprint for candidate in candidates])
    for number, members in enumerate(found, start=1):
        ranking = judge.rank([candidates[i] for i in members])
        order = [ranked.model_copy(update={"index": members[ranked.index]}) for ranked in ranking.order]
        pairs = [
            pair.model_copy(update={"first": members[pair.first], "second": members[pair.second]})
            for pair in ranking.pairs
        ]
        yield Group(
            number=number,
            best=order[0].assessment.image,
            order=order,
            pairs=pairs,
            pairwise_reads=ranking.pairwise_reads,
            notes=ranking.notes,
        )
