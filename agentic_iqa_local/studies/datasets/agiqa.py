"""AGIQA-3K: generated images, scored for quality and for how they fit their prompt."""

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import number
from agentic_iqa_local.studies.datasets.types import DatasetInfo, Layout


def load(reader: DatasetReader) -> None:
    """data.csv (name, prompt, mos_quality, mos_align, ...) and the images; `mos` is the quality. The
    repository holds the table only and the layout of the image archive could not be checked: they are sought
    here and one folder down.
    """
    within = reader.folders()
    for row in reader.table(reader.need("data.csv"), "name", "prompt", "mos_quality", "mos_align"):
        extra = {
            "std": number(row.get("std_quality")),
            "mos_align": number(row["mos_align"]),
            "generator": row["name"].partition("_")[0],
        }
        group = row["prompt"].strip() or None
        reader.add(row["mos_quality"], row["name"], within=within, group=group, extra=extra)


LAYOUT = Layout(
    DatasetInfo(
        "agiqa3k",
        "AGIQA-3K",
        "NR",
        higher_is_better=True,
        low=0,
        high=5,
        scale="absolute categories",
        groups="prompt",
        licence="MIT",
        url="https://arxiv.org/abs/2306.04717",
        seen_as=("agiqa",),
    ),
    load,
    (("data.csv", "mos_quality"),),
)
