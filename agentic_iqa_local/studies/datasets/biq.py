"""BIQ2021: photographs in three subsets, with an official split."""

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.types import UNSTATED, DatasetInfo, Layout


def load(reader: DatasetReader) -> None:
    """Train (Images and MOS).csv and Test (Images and MOS).csv, or Train.csv and Test.csv, and Images/.

    The first pair runs over 0..1; the second gives slightly other values, a few below 0, and `edition` says
    which was read. The prefix of a name is the subset: by the paper's order ss01 is taken without this use in
    mind, ss02 spoilt on purpose and ss03 from a photo site.
    """
    reader.edition = reader.present("Train (Images and MOS).csv", "Train.csv")[0]
    for split in ("train", "test"):
        name = reader.edition.replace("Train", split.capitalize())
        for row in reader.table(reader.need(name), "image name", "mos"):
            (subset,) = reader.parts(r"(ss\d\d) .+", row["image name"])
            reader.add(row["mos"], f"Images/{row['image name']}", split=split, subset=subset)


LAYOUT = Layout(
    DatasetInfo(
        "biq2021",
        "BIQ2021",
        "NR",
        higher_is_better=True,
        low=0,
        high=1,
        scale="absolute categories",
        licence=UNSTATED,
        url="https://doi.org/10.1117/1.JEI.31.5.053010",
        seen_as=("biq",),
    ),
    load,
    (("Train (Images and MOS).csv|Train.csv", r"ss0\d "), ("Images", "")),
)
