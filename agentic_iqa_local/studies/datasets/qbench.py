"""Q-Bench LLVisionQA: multiple-choice questions on the quality of images."""

from collections.abc import Sequence
from typing import Any

from agentic_iqa_local.studies.datasets.choices import add_question
from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import json_rows
from agentic_iqa_local.studies.datasets.types import DatasetInfo, Layout

TYPES = "yes-or-no", "what", "how"
CONCERNS = "distortion", "other", "in-context distortion", "in-context other"


def load(reader: DatasetReader) -> None:
    """llvisionqa_dev.json and llvisionqa_test.json, and the images of images_llvisionqa.tar. The test answers
    are withheld. What the numbers of `type` and `concern` stand for is taken from the order of the authors'
    tables."""
    reader.need("llvisionqa_dev.json", "llvisionqa_test.json")
    within = reader.folders()
    for split in ("dev", "test"):
        path = reader.find(f"llvisionqa_{split}.json")
        for _, row in json_rows(path) if path else []:
            named = {
                "question_type": _at(TYPES, row.get("type")),
                "task": _at(CONCERNS, row.get("concern")),
            }
            add_question(reader, row | named, within, split)


def _at(names: Sequence[str], place: Any) -> str | None:
    """The name at `place`, which may be anything."""
    return next((name for number, name in enumerate(names) if number == place), None)


LAYOUT = Layout(
    DatasetInfo(
        "qbench",
        "Q-Bench LLVisionQA",
        "MCQ",
        licence="CC BY-NC-SA 4.0",
        url="https://arxiv.org/abs/2309.14181",
        seen_as=("llvisionqa",),
    ),
    load,
    (("llvisionqa_dev.json|llvisionqa_test.json", ""),),
)
