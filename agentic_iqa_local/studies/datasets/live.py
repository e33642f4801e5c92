"""LIVE release 2: 29 scenes, distorted in five ways."""

from pathlib import PurePosixPath

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.types import UT_AUSTIN, DatasetInfo, Layout

IMAGES_IN_FOLDER = {"jp2k": 227, "jpeg": 233, "wn": 174, "gblur": 174, "fastfading": 174}


def load(reader: DatasetReader) -> None:
    """dmos_realigned.mat (dmos_new, orgs), refnames_all.mat, refimgs/ and imgN.bmp in a folder for each type.
    The arrays hold 982 values, folder after folder; orgs marks pristine copies, which are left out. No
    levels: the strengths are continuous.
    """
    scores = reader.matrix("dmos_realigned.mat", "dmos_new")
    pristine = reader.matrix("dmos_realigned.mat", "orgs")
    references = reader.matrix("refnames_all.mat", "refnames_all")
    names = [
        (folder, f"{folder}/img{i + 1}.bmp")
        for folder, count in IMAGES_IN_FOLDER.items()
        for i in range(count)
    ]
    reader.check_lengths(scores, pristine, references, length=len(names))
    for (folder, image), mos, copy, reference in zip(names, scores, pristine, references, strict=True):
        if copy:
            reader.left_out["a pristine copy of a reference"] += 1
        else:
            group = PurePosixPath(reference).stem
            reader.add(mos, image, f"refimgs/{reference}", group=group, distortion=folder)


LAYOUT = Layout(
    DatasetInfo(
        "live",
        "LIVE release 2",
        "FR",
        higher_is_better=False,
        low=0,
        high=112,
        scale="difference",
        groups="reference scene",
        licence=UT_AUSTIN,
        url="https://doi.org/10.1109/TIP.2006.881959",
        seen_as=("liveiqa", "liver2", "liverelease2"),
    ),
    load,
    (("refnames_all.mat", ""), ("refimgs", ""), ("fastfading", "")),
)
