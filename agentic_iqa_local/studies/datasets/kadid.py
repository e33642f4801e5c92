"""KADID-10k: 81 scenes, distorted in 25 ways."""

from pathlib import PurePosixPath

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.types import DatasetInfo, Layout

TYPES = (
    "gaussian_blur", "lens_blur", "motion_blur", "color_diffusion", "color_shift", "color_quantization",
    "color_saturation_1", "color_saturation_2", "jpeg2000", "jpeg", "white_noise",
    "white_noise_in_color_components", "impulse_noise", "multiplicative_noise", "denoise", "brighten",
    "darken", "mean_shift", "jitter", "non_eccentricity_patch", "pixelate", "quantization", "color_block",
    "high_sharpen", "contrast_change",
)  # fmt: skip


def load(reader: DatasetReader) -> None:
    """dmos.csv, images/IXX_YY_ZZ.png and the references in the same folder. In spite of its name the column
    dmos is higher for better images; its categories are of degradation, from 5 (imperceptible) to 1 (very
    annoying)."""
    for row in reader.table(reader.need("dmos.csv"), "dist_img", "ref_img", "dmos"):
        kind, level = reader.parts(r"I\d+_(0[1-9]|1\d|2[0-5])_0?([1-5])\.png", row["dist_img"])
        reader.add(
            row["dmos"],
            f"images/{row['dist_img']}",
            f"images/{row['ref_img']}",
            group=PurePosixPath(row["ref_img"]).stem,
            distortion=TYPES[int(kind) - 1],
            level=int(level),
        )


LAYOUT = Layout(
    DatasetInfo(
        "kadid10k",
        "KADID-10k",
        "FR",
        higher_is_better=True,
        low=1,
        high=5,
        scale="absolute categories",
        groups="reference scene",
        licence="free to the research community; no formal licence",
        url="https://doi.org/10.1109/QoMEX.2019.8743252",
        seen_as=("kadid",),
    ),
    load,
    (("dmos.csv", "dist_img"), ("images", "")),
)
