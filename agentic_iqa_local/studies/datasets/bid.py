"""BID: blurred photographs."""

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import number
from agentic_iqa_local.studies.datasets.types import DatasetInfo, Layout


def load(reader: DatasetReader) -> None:
    """DatabaseGrades.xls and DatabaseImageNNNN.JPG. The authors' page gives the images one by one: whether
    they lie beside the workbook or in a subfolder is not settled, so both are searched."""
    within = reader.folders()
    for row in reader.workbook("DatabaseGrades", "image number", "average subjective grade"):
        image = number(row["image number"])
        if not image.is_integer():
            raise reader.error("whole image numbers", repr(row["image number"]), "restore the authors' file")
        reader.add(row["average subjective grade"], f"DatabaseImage{int(image):04d}.JPG", within=within)


LAYOUT = Layout(
    DatasetInfo(
        "bid",
        "BID",
        "NR",
        higher_is_better=True,
        low=0,
        high=5,
        scale="absolute categories",
        url="https://doi.org/10.1109/TIP.2010.2053549",
        seen_as=("bid2011",),
    ),
    load,
    (("DatabaseGrades.csv|DatabaseGrades.xlsx|DatabaseGrades.xls", ""),),
)
