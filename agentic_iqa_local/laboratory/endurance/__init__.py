"""Long runs against what goes wrong: kills, many images, damaged images, damaged answers, injections."""

from agentic_iqa_local.laboratory.endurance.checks import is_one_line
from agentic_iqa_local.laboratory.endurance.command import as_json, main
from agentic_iqa_local.laboratory.endurance.damaged_answers import (
    HOSTILE_JSON,
    TEXT_STEPS,
    OneAnswer,
    examine_answer,
    rewritten,
    valid_answers,
)
from agentic_iqa_local.laboratory.endurance.damaged_assessments import examine_row
from agentic_iqa_local.laboratory.endurance.damaged_pictures import (
    NUMBERS,
    PNG,
    STEPS,
    damaged,
    examine_picture,
    small_photo,
    valid_pictures,
)
from agentic_iqa_local.laboratory.endurance.injections import attempts, effect, painted, photographs

__all__ = [
    "HOSTILE_JSON",
    "NUMBERS",
    "PNG",
    "STEPS",
    "TEXT_STEPS",
    "OneAnswer",
    "as_json",
    "attempts",
    "damaged",
    "effect",
    "examine_answer",
    "examine_picture",
    "examine_row",
    "is_one_line",
    "main",
    "painted",
    "photographs",
    "rewritten",
    "small_photo",
    "valid_answers",
    "valid_pictures",
]
