"""CSIQ: 30 scenes, distorted in six ways."""

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import number
from agentic_iqa_local.studies.datasets.types import UNSTATED, DatasetInfo, Layout

FOLDERS = {"noise": "awgn", "jpeg 2000": "jpeg2000"}  # the other types name their folders


def load(reader: DatasetReader) -> None:
    """csiq.DMOS.xlsx (sheet all_by_image, some rows above its header), src_imgs/,
    dst_imgs/TYPE/IMAGE.TYPE.LEVEL.png."""
    columns = "image", "dst_type", "dst_lev", "dmos"
    for row in reader.workbook("csiq.DMOS", *columns, sheet="all_by_image"):
        image = str(row["image"]).strip()
        if isinstance(row["image"], int | float):  # a workbook gives the scene 1600 as a number
            image = f"{number(row['image']):g}"
        kind, level = str(row["dst_type"]).strip().lower(), number(row["dst_lev"])
        kind = FOLDERS.get(kind, kind)
        reader.add(
            row["dmos"],
            f"dst_imgs/{kind}/{image}.{kind}.{level:g}.png",
            f"src_imgs/{image}.png",
            group=image,
            distortion=kind,
            level=level,
            extra={"std": number(row.get("dmos_std"))},
        )


LAYOUT = Layout(
    DatasetInfo(
        "csiq",
        "CSIQ",
        "FR",
        higher_is_better=False,
        low=0,
        high=1,
        scale="difference",
        groups="reference scene",
        licence=UNSTATED,
        url="https://doi.org/10.1117/1.3267105",
    ),
    load,
    (("csiq.DMOS.csv|csiq.DMOS.xlsx", ""), ("dst_imgs", "")),
)
