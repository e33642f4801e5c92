"""IQA data sets read from the folders as their authors ship them, and a user's own manifests and questions.

A file that the scores name and that is absent is listed in `Dataset.missing`, and rows that are left out on purpose are
counted in `Dataset.left_out`: a set never shrinks silently. Nothing here downloads. authors.py is the table of sets.
"""

from agentic_iqa_local.studies.datasets.loading import DATASETS, detect, load_dataset
from agentic_iqa_local.studies.datasets.types import (
    MOST,
    Dataset,
    DatasetError,
    DatasetInfo,
    Question,
    RatedImage,
    Scale,
    listed,
    quoted,
)

__all__ = [
    "DATASETS", "MOST", "Dataset", "DatasetError", "DatasetInfo", "Question", "RatedImage", "Scale", "detect",
    "listed", "load_dataset", "quoted",
]  # fmt: skip
