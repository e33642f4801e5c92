"""What became worse from an old picture to a new one of the same size, in words, and where: by what
LocalNR reads of their difference and of either alone."""

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.iqa_tools import ToolRunner
from agentic_iqa_local.iqa_tools.detector import WORD_SEVERITIES, expit, load_detector, logit
from agentic_iqa_local.nodes.detection import PRESENT
from agentic_iqa_local.state import Box, plain_words

if TYPE_CHECKING:
    from agentic_iqa_local.iqa_tools.local_nr import Examination

SIDE = 256  # pixels of the crop that is shown


class Change(BaseModel):
    """`words`: each family of damage that the new picture has more of ("compression: none →
    moderate"), the most severe first. `place`: a quarter of the picture, "everywhere", or nothing
    where none stands out. `box`: the crop in which the damage is strongest, in pixels."""

    words: list[str]
    place: str | None
    box: Box


def change(
    tools: ToolRunner, old: Image.Image, new: Image.Image, original: Image.Image | None = None
) -> Change:
    """What LocalNR sees of a change; with an `original` what the old picture lacks against it is
    known too. All are RGB and of one size. Raises ToolError."""
    between = tools.examine(new, old)
    before, after = [
        _severities(tools.examine(one, original), original is not None) for one in (old, new)
    ]
    # where the new picture's own reading has a family, its word is the one that assess gives
    added = _severities(between, reference=True)
    added = {family: after.get(family, severity) for family, severity in added.items()}
    words = []
    for family, severity in sorted(added.items(), key=lambda one: -one[1]):
        was, now = _word(before.get(family, 0.0)), _word(severity)
        worse = f"{was} → {now}"
        if severity <= before.get(family, 0.0) or was == now:
            worse = f"{was} → more"
        words.append(f"{plain_words(family)}: {worse}")
    places = tools.places(new, old).places
    strongest = np.max([places[family] for family in added or places], axis=0)
    return Change(words=words, place=between.damaged_part(), box=_box(strongest, new))


def _severities(examined: "Examination", reference: bool) -> dict[str, float]:
    """The severity, 1..5, of each family that is there, at most three, the likeliest."""
    detector = load_detector()
    prior = logit(detector.of(reference).prior)
    ratios = detector.log_ratios(examined, reference)
    likeliest = sorted(ratios, key=lambda family: -ratios[family])[:3]
    there = [family for family in likeliest if expit(prior + ratios[family]) >= PRESENT]
    return {family: examined.severities[family] for family in there}


def _word(severity: float) -> str:
    """The word that stands nearest to a severity, 0..5."""
    return min(WORD_SEVERITIES, key=lambda word: abs(WORD_SEVERITIES[word] - severity))


def _box(strength: np.ndarray, picture: Image.Image) -> Box:
    """The crop around the strongest cell of a grid that covers the picture, within the picture."""
    row, column = np.unravel_index(int(strength.argmax()), strength.shape)
    rows, columns = strength.shape
    width, height = min(SIDE, picture.width), min(SIDE, picture.height)
    left = round((column + 0.5) / columns * picture.width - width / 2)
    top = round((row + 0.5) / rows * picture.height - height / 2)
    left = min(max(left, 0), picture.width - width)
    top = min(max(top, 0), picture.height - height)
    return left, top, left + width, top + height
