"""The one table of quality levels, severities, distortion types and ways to read the letters. Knows nothing
of models or tools."""

from typing import Literal, get_args

LEVEL_WORDS: dict[int, str] = {5: "Excellent", 4: "Good", 3: "Fair", 2: "Poor", 1: "Bad"}
LETTERS: tuple[str, ...] = ("A", "B", "C", "D", "E")
LETTER_TO_LEVEL: dict[str, int] = {"A": 5, "B": 4, "C": 3, "D": 2, "E": 1}
LEVEL_TO_LETTER: dict[int, str] = {level: letter for letter, level in LETTER_TO_LEVEL.items()}

Mode = Literal["logits", "classification", "uniform"]
"""Where the letters' probabilities come from: logits, the letter that was written, or nowhere."""

Look = Literal["one order", "both orders", "crops"]
"""How closely the letters were read; each look includes what those before it read."""
LOOKS: tuple[Look, ...] = get_args(Look)

PromptLayout = Literal["images_first", "system_first"]
"""Where a role's instructions stand in the chat: behind the images, whose cache then serves every role, or
before them, which is the paper's order."""

DistortionType = Literal[
    "Blurs", "Color distortions", "Compression", "Noise", "Brightness change", "Sharpness", "Contrast"
]
DISTORTION_TYPES: tuple[str, ...] = get_args(DistortionType)

Severity = Literal["none", "slight", "moderate", "severe", "extreme"]


def lower_edge(level: str) -> float:
    """The quality, 1..5, from which on a picture has this level: a letter A to D, a word Excellent to Poor,
    or a number from 1 to 5. Raises ValueError."""
    name = level.strip().lower()
    by_name = {word.lower(): value for value, word in LEVEL_WORDS.items()}
    by_name |= {letter.lower(): value for letter, value in LETTER_TO_LEVEL.items()}
    try:
        quality = by_name[name] - 0.5 if name in by_name else float(name)
    except ValueError:
        quality = 0.0
    if not 1 <= quality <= 5:
        raise ValueError(
            f"expected a level from D (Poor) to A (Excellent) or a number from 1 to 5, got {level!r}"
        )
    return quality


UNCLEAR = "unclear"  # said in place of a severity that cannot be told
# The quarters of a picture, each with its (row, column).
PLACES = {"top left": (0, 0), "top right": (0, 1), "bottom left": (1, 0), "bottom right": (1, 1)}
EVERYWHERE = "everywhere"  # where damage is that no one part of the picture has

# What stands in for a distortion when none was found and a tool still has to judge the object as a whole.
OVERALL = "Overall quality"
