"""PIPAL: restored images, ranked by Elo scores."""

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import lines
from agentic_iqa_local.studies.datasets.types import DatasetInfo, Layout


def load(reader: DatasetReader) -> None:
    """Train_Label/*.txt (name,elo), Train_Ref/ and the distorted images AXXXX_TT_NN.bmp in Train_Dist/ or
    Distortion_1..4/.

    `distortion` is the two-digit type of the name; the last number counts images, not strengths. Val_Label/
    is read in the same way where it is there; that the authors ship validation scores in this form could not
    be checked.
    """
    for split in ("train", "val"):
        part = split.capitalize()
        if split == "val" and not reader.find("Val_Label"):
            continue
        shared = ("Dist_Imgs", *(f"Distortion_{n}" for n in range(1, 5)))
        within = reader.present(f"{part}_Dist", f"{part}_Distort", *shared)
        for path in sorted(reader.need(f"{part}_Label").glob("*.txt")):
            for line in lines(path):
                name, _, elo = line.partition(",")
                scene, kind = reader.parts(r"(A\d+)_(\d\d)_\d+\.bmp", name)
                reader.add(
                    elo, name, f"{part}_Ref/{scene}.bmp", within, group=scene, distortion=kind, split=split
                )


LAYOUT = Layout(
    DatasetInfo(
        "pipal",
        "PIPAL",
        "FR",
        higher_is_better=True,
        low=900,
        high=1850,
        scale="elo",
        groups="reference scene",
        url="https://arxiv.org/abs/2007.12142",
    ),
    load,
    (("Train_Label", ""), ("Train_Ref", "")),
)
