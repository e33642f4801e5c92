"""Which regions a question is about, and the boxes that the user gave for them."""

from collections.abc import Iterable, Mapping

from agentic_iqa_local.nodes.query import same_words
from agentic_iqa_local.state import Box

MARKED = "marked region"  # what a box without a name is called where the query names no region


def with_boxes(named: Iterable[str], boxes: Mapping[str, Box]) -> dict[str, Box | None]:
    """The regions of a question, those that it has `named` and those of the user's `boxes`, each
    with its box if there is one. A box without a name is that of the first region that has none."""
    others = [name for name in named if not any(same_words(name, own) for own in boxes)]
    unnamed = others[0] if others else MARKED
    regions = {name or unnamed: box for name, box in boxes.items()}
    return regions | {name: None for name in others if name not in regions}
