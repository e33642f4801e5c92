"""LIVE in the Wild: photographs of phone cameras."""

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.types import UT_AUSTIN, DatasetInfo, Layout

TRAINING_IMAGES = 7  # the first ones


def load(reader: DatasetReader) -> None:
    """Data/AllImages_release.mat, AllMOS_release.mat, AllStdDev_release.mat and Images/. The first seven of
    1,169 trained the observers (Images/trainingImages) and are left out."""
    names, scores, deviations = (
        reader.matrix(f"Data/{name}_release.mat", f"{name}_release")
        for name in ("AllImages", "AllMOS", "AllStdDev")
    )
    reader.check_lengths(names, scores, deviations)
    reader.left_out["shown to train the observers"] += TRAINING_IMAGES
    for name, mos, std in list(zip(names, scores, deviations, strict=True))[TRAINING_IMAGES:]:
        reader.add(mos, f"Images/{name}", extra={"std": float(std)})


LAYOUT = Layout(
    DatasetInfo(
        "clive",
        "LIVE in the Wild",
        "NR",
        higher_is_better=True,
        low=0,
        high=100,
        scale="absolute categories",
        licence=UT_AUSTIN,
        url="https://doi.org/10.1109/TIP.2015.2500021",
        seen_as=("livec", "livechallenge", "liveitw", "liveinthewild"),
    ),
    load,
    (("Data/AllMOS_release.mat", ""), ("Images", "")),
)
