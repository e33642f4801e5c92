"""Damaged pictures, damaged answers and injected words: what tests put in, and what may come of it."""

from endurance.checks import is_one_line
from endurance.damaged_answers import (
    HOSTILE_JSON,
    TEXT_STEPS,
    OneAnswer,
    examine_answer,
    rewritten,
    valid_answers,
)
from endurance.damaged_assessments import examine_row
from endurance.damaged_pictures import (
    NUMBERS,
    PNG,
    STEPS,
    damaged,
    examine_picture,
    small_photo,
    valid_pictures,
)
from endurance.injections import attempts, effect, painted, photographs

__all__ = [
    "HOSTILE_JSON",
    "NUMBERS",
    "PNG",
    "STEPS",
    "TEXT_STEPS",
    "OneAnswer",
    "attempts",
    "damaged",
    "effect",
    "examine_answer",
    "examine_picture",
    "examine_row",
    "is_one_line",
    "painted",
    "photographs",
    "rewritten",
    "small_photo",
    "valid_answers",
    "valid_pictures",
]
