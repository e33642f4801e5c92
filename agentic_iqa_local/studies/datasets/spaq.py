"""SPAQ: photographs of phone cameras, with scores of attributes."""

from typing import Any

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import number
from agentic_iqa_local.studies.datasets.types import DatasetInfo, Layout

SCORES, SCENES = "Annotations/MOS and Image attribute scores", "Annotations/Scene category labels"
ATTRIBUTES = "brightness", "colorfulness", "contrast", "noisiness", "sharpness"


def load(reader: DatasetReader) -> None:
    """Annotations/MOS and Image attribute scores.xlsx, Annotations/Scene category labels.xlsx and
    TestImage/."""
    scenes = {}
    if reader.find(f"{SCENES}.csv") or reader.find(f"{SCENES}.xlsx"):
        for row in reader.workbook(SCENES, "image name"):
            scenes[row.pop("image name")] = [name for name, value in row.items() if number(value) > 0]
    for row in reader.workbook(SCORES, "image name", "mos"):
        extra: dict[str, Any] = {name: number(row.get(name)) for name in ATTRIBUTES}
        if row["image name"] in scenes:
            extra["scenes"] = scenes[row["image name"]]
        reader.add(row["mos"], f"TestImage/{row['image name']}", extra=extra)


LAYOUT = Layout(
    DatasetInfo(
        "spaq",
        "SPAQ",
        "NR",
        higher_is_better=True,
        low=0,
        high=100,
        scale="absolute categories",
        licence="education and research; commercial use by permission only",
        url="https://doi.org/10.1109/CVPR42600.2020.00373",
    ),
    load,
    ((f"{SCORES}.csv|{SCORES}.xlsx", ""), ("TestImage", "")),
)
