"""TID2013 and TID2008: 25 scenes, distorted in 24 and 17 ways."""

from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import lines
from agentic_iqa_local.studies.datasets.types import DatasetInfo, Layout

TYPES = (
    "additive_gaussian_noise", "noise_in_color_components", "spatially_correlated_noise", "masked_noise",
    "high_frequency_noise", "impulse_noise", "quantization_noise", "gaussian_blur", "image_denoising", "jpeg",
    "jpeg2000", "jpeg_transmission_errors", "jpeg2000_transmission_errors", "non_eccentricity_pattern_noise",
    "local_blockwise_distortions", "mean_shift", "contrast_change", "color_saturation_change",
    "multiplicative_gaussian_noise", "comfort_noise", "lossy_compression_of_noisy_images",
    "color_quantization_with_dither", "chromatic_aberrations", "sparse_sampling_reconstruction",
)  # fmt: skip


def load(reader: DatasetReader) -> None:
    """mos_with_names.txt, distorted_images/iXX_YY_Z.bmp (scene, type, level), reference_images/. The case of
    names varies."""
    for line in lines(reader.need("mos_with_names.txt")):
        mos, _, name = line.partition(" ")
        scene, kind, level = reader.parts(r"(i\d\d)_(0[1-9]|1\d|2[0-4])_([1-5])\.bmp", name.strip())
        reader.add(
            mos,
            f"distorted_images/{name.strip()}",
            f"reference_images/{scene.upper()}.BMP",
            group=scene.upper(),
            distortion=TYPES[int(kind) - 1],
            level=int(level),
        )


TID2013 = Layout(
    DatasetInfo(
        "tid2013",
        "TID2013",
        "FR",
        higher_is_better=True,
        low=0,
        high=9,
        scale="paired comparison",
        groups="reference scene",
        licence="research (TID2008's terms; its own not checked)",
        url="https://doi.org/10.1016/j.image.2014.10.009",
        seen_as=("tid", "tid13"),
    ),
    load,
    # TID2008 has 17 types and 4 levels only.
    (("mos_with_names.txt", r"_(1[89]|2\d)_\d\.|_5\."), ("distorted_images", "")),
)
TID2008 = Layout(
    DatasetInfo(
        "tid2008",
        "TID2008",
        "FR",
        higher_is_better=True,
        low=0,
        high=9,
        scale="paired comparison",
        groups="reference scene",
        licence="education and research only, not to be modified",
        url="http://www.ponomarenko.info/tid2008.htm",
        seen_as=("tid08",),
    ),
    load,
    (("mos_with_names.txt", ""), ("distorted_images", "")),
)
