"""IQA data sets read from the folders as their authors ship them, and plain manifests.

`load_dataset(folder)` knows the layout, the direction and range of the scores, what groups the images, the
official split and the licence. A file that the authors' score file names and that is absent is listed in
`Dataset.missing`, and rows that are left out on purpose are counted in `Dataset.left_out`: a set never
shrinks silently. Nothing here downloads. authors.py is the table of the sets that are known.
"""

from agentic_iqa_local.studies.datasets.registry import DATASETS, dataset_key, detect, load_dataset
from agentic_iqa_local.studies.datasets.types import (
    LONGEST_QUOTE,
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
    "DATASETS",
    "LONGEST_QUOTE",
    "MOST",
    "Dataset",
    "DatasetError",
    "DatasetInfo",
    "Question",
    "RatedImage",
    "Scale",
    "dataset_key",
    "detect",
    "listed",
    "load_dataset",
    "quoted",
]
