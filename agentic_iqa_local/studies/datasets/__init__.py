"""IQA data sets read from the folders as their authors ship them (sets.yaml), and a user's own
manifests and questions. Nothing here downloads."""

from agentic_iqa_local.studies.datasets.loading import DATASETS, load_dataset
from agentic_iqa_local.studies.datasets.types import (
    MANIFEST,
    MOST,
    Dataset,
    DatasetError,
    DatasetInfo,
    Question,
    RatedImage,
    Sample,
    absences,
    listed,
)

__all__ = [
    "DATASETS",
    "MANIFEST",
    "MOST",
    "Dataset",
    "DatasetError",
    "DatasetInfo",
    "Question",
    "RatedImage",
    "Sample",
    "absences",
    "listed",
    "load_dataset",
]
