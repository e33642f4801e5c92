"""Planted gaps: one thing goes wrong in the first pass of an assessment, and the replans are to make it good.

The pictures are synthetic (photographs with the training's distortions, and their pseudo-MOS), so that what a
sound first pass would have found is known. A gap is planted at the seams of the agent, in the services that
it is given: the first answer to one schema is changed, or one tool gives another reading or fails. A tool
that misjudges or fails does so in every pass, as a real one would; everything else goes wrong once. Each gap
is planted only where it makes a difference: on pictures and questions that its `plant` accepts, which
compares them with the unplanted assessment of the same picture.
"""

from agentic_iqa_local.laboratory.gaps.cases import (
    NO_REFERENCE,
    REFERENCE,
    TWO_REGIONS,
    Case,
    Question,
    make_cases,
    question,
)
from agentic_iqa_local.laboratory.gaps.figures import RECOVERED, RECOVERED_BY_A_MODEL, summary
from agentic_iqa_local.laboratory.gaps.kinds import GAPS, Gap, MissedObject, WrongTool, is_sound
from agentic_iqa_local.laboratory.gaps.planting import Plant, PlantedClient, PlantedTools
from agentic_iqa_local.laboratory.gaps.runs import LIMITS, Bench, Outcome, Run, run_cases

__all__ = [
    "GAPS",
    "LIMITS",
    "NO_REFERENCE",
    "RECOVERED",
    "RECOVERED_BY_A_MODEL",
    "REFERENCE",
    "TWO_REGIONS",
    "Bench",
    "Case",
    "Gap",
    "MissedObject",
    "Outcome",
    "Plant",
    "PlantedClient",
    "PlantedTools",
    "Question",
    "Run",
    "WrongTool",
    "is_sound",
    "make_cases",
    "question",
    "run_cases",
    "summary",
]
