"""The data sets that authors ship: a declaration of each, and a function where its scores are no plain table.

Sources are the authors' files and readmes, and published loaders of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from agentic_iqa_local.studies.datasets.reader import DatasetReader, Row, number
from agentic_iqa_local.studies.datasets.types import DatasetInfo

TID_TYPES = (
    "additive_gaussian_noise", "noise_in_color_components", "spatially_correlated_noise", "masked_noise",
    "high_frequency_noise", "impulse_noise", "quantization_noise", "gaussian_blur", "image_denoising", "jpeg",
    "jpeg2000", "jpeg_transmission_errors", "jpeg2000_transmission_errors", "non_eccentricity_pattern_noise",
    "local_blockwise_distortions", "mean_shift", "contrast_change", "color_saturation_change",
    "multiplicative_gaussian_noise", "comfort_noise", "lossy_compression_of_noisy_images",
    "color_quantization_with_dither", "chromatic_aberrations", "sparse_sampling_reconstruction",
)  # fmt: skip
KADID_TYPES = (
    "gaussian_blur", "lens_blur", "motion_blur", "color_diffusion", "color_shift", "color_quantization",
    "color_saturation_1", "color_saturation_2", "jpeg2000", "jpeg", "white_noise",
    "white_noise_in_color_components", "impulse_noise", "multiplicative_noise", "denoise", "brighten",
    "darken", "mean_shift", "jitter", "non_eccentricity_patch", "pixelate", "quantization", "color_block",
    "high_sharpen", "contrast_change",
)  # fmt: skip
LIVE_IMAGES = {"jp2k": 227, "jpeg": 233, "wn": 174, "gblur": 174, "fastfading": 174}  # in each folder
CLIVE_TRAINING = 7  # the first images
KONIQ_SCORES, KONIQ_SETS = "koniq10k_scores_and_distributions.csv", "koniq10k_distributions_sets.csv"
KONIQ_SPLITS = {"training": "train", "validation": "val", "test": "test"}
QBENCH_TYPES = dict(enumerate(("yes-or-no", "what", "how")))
QBENCH_CONCERNS = dict(enumerate(("distortion", "other", "in-context distortion", "in-context other")))
ANYWHERE = ("*",)  # of the folder itself and its subfolders

Placed = Iterable[tuple[str, Row]]  # where a row stands, and the row


@dataclass(frozen=True)
class Layout:
    """How a data set lies on disk.

    `scores` names the file of scores, alternatives after "|", in whose lines `told_by` must match; it and the folders
    `also` tell the layout. Its `columns` are theirs by our names; `line` is the pattern of a line that is no table's,
    `name` that of an image's name: their groups are further fields, and `kinds` names the distortions. `image` and
    `reference` say where the files of a row lie; the image is sought in the folders `within`. `rows` reads the scores
    where they are no such file; else all are of the `split`.
    """

    info: DatasetInfo
    scores: str = ""
    told_by: str = ""
    also: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    sheet: str | None = None
    line: str = ""
    name: str = ""
    kinds: Mapping[str, str] = field(default_factory=dict)
    image: str = "{image}"
    reference: str = ""
    within: tuple[str, ...] = (".",)
    split: str | None = None
    rows: Callable[[DatasetReader], Placed] | None = None


def live(reader: DatasetReader) -> Placed:
    """dmos_realigned.mat (dmos_new, orgs) and refnames_all.mat hold 982 values, folder after folder; orgs marks
    pristine copies, which are left out. No levels: the strengths are continuous."""
    scores, pristine = (reader.matrix("dmos_realigned.mat", name) for name in ("dmos_new", "orgs"))
    references = reader.matrix("refnames_all.mat", "refnames_all")
    names = [(kind, f"{kind}/img{i + 1}.bmp") for kind, count in LIVE_IMAGES.items() for i in range(count)]
    if (lengths := [len(array) for array in (scores, pristine, references)]) != [len(names)] * 3:
        raise reader.error(f"{len(names)} values in each array", str(lengths), "restore the .mat files")
    reader.left_out["a pristine copy of a reference"] += int(pristine.astype(bool).sum())
    for (kind, image), mos, copy, reference in zip(names, scores, pristine, references, strict=True):
        if not copy:
            yield image, {"mos": mos, "image": image, "reference": reference, "distortion": kind}


def clive(reader: DatasetReader) -> Placed:
    """AllImages_release.mat and AllMOS_release.mat. The first seven of 1,169 trained the observers and are left out."""
    names, scores = (reader.matrix(f"Data/{name}_release.mat", f"{name}_release") for name in ("AllImages", "AllMOS"))
    reader.left_out["shown to train the observers"] += CLIVE_TRAINING
    for name, mos in list(zip(names, scores, strict=True))[CLIVE_TRAINING:]:
        yield name, {"mos": mos, "image": name}


def koniq(reader: DatasetReader) -> Placed:
    """The larger of the image folders 1024x768/ and 512x384/; metrics give other values on the smaller one. The file
    with the sets has scores on 1..100 only: there `mos` is the mean of the observers' categories 1..5, by the shares c1
    to c5 who chose each."""
    reader.edition = reader.need("1024x768", "512x384").name
    shares = [f"c{category}" for category in range(1, 6)]
    file, splits = reader.find(KONIQ_SETS), {}
    rows = reader.rows(file, ["image_name", "set", *shares]) if file else []
    for _, row in rows:
        splits[row["image_name"]] = KONIQ_SPLITS.get(row["set"])
        row["mos"] = sum(category * number(row[share]) for category, share in enumerate(shares, 1))
    if reader.find(KONIQ_SCORES) or not file:
        rows = reader.rows(reader.need(KONIQ_SCORES, KONIQ_SETS), ["image_name", "mos", "mos_zscore"])
    for where, row in rows:
        image = f"{reader.edition}/{row['image_name']}"
        yield where, {"mos": row["mos"], "image": image, "split": splits.get(row["image_name"])}


def biq(reader: DatasetReader) -> Placed:
    """A file for each part of the official split. Those with "(Images and MOS)" run over 0..1; Train.csv and Test.csv
    give slightly other values, a few below 0, and `edition` says which were read."""
    reader.edition = reader.need("Train (Images and MOS).csv", "Train.csv").name
    for split in ("train", "test"):
        file = reader.need(reader.edition.replace("Train", split.capitalize()))
        for where, row in reader.rows(file, ["image name", "mos"]):
            yield where, {"mos": row["mos"], "image": row["image name"], "split": split}


def qbench(reader: DatasetReader) -> Placed:
    """The test answers are withheld. What the numbers of `type` and `concern` stand for is taken from the order of the
    authors' tables."""
    reader.need("llvisionqa_dev.json", "llvisionqa_test.json")
    for split in ("dev", "test"):
        path = reader.find(f"llvisionqa_{split}.json")
        for where, row in reader.rows(path, []) if path else []:
            kind, concern = QBENCH_TYPES.get(row.get("type")), QBENCH_CONCERNS.get(row.get("concern"))
            yield where, row | {"question_type": kind, "type": None, "task": concern, "split": split}


def _numbered(types: Iterable[str]) -> dict[str, str]:
    return {f"{i:02}": name for i, name in enumerate(types, 1)}


CATEGORIES = "absolute categories"
_photos = partial(DatasetInfo, kind="NR", higher_is_better=True, scale=CATEGORIES)
_scenes = partial(DatasetInfo, kind="FR", higher_is_better=True, groups="reference scene")
_tid = partial(
    Layout, scores="mos_with_names.txt", also=("distorted_images",),
    line=r"(?P<mos>\S+)\s+(?P<image>.+)", name=r"(?P<scene>i\d\d)_(?P<distortion>\d\d)_(?P<level>[1-5])\.bmp",
    kinds=_numbered(TID_TYPES), image="distorted_images/{image}", reference="reference_images/{scene}.BMP",
)  # fmt: skip
UT_AUSTIN = "free for any purpose with the copyright notice and a citation"
UNSTATED = "none stated; evaluate only"

# The first whose marks are there counts.
# fmt: off
AUTHORS = (
    _tid(_scenes("tid2013", "TID2013", low=0, high=9, scale="paired comparison", seen_as=("tid", "tid13"),
                 licence="research (TID2008's terms; its own not checked)"),
         told_by=r"_(1[89]|2\d)_\d\.|_5\."),  # TID2008 has 17 types and 4 levels only
    _tid(_scenes("tid2008", "TID2008", low=0, high=9, scale="paired comparison", seen_as=("tid08",),
                 licence="education and research only, not to be modified")),
    # In spite of its name the column dmos is higher for better images; its categories are of degradation.
    Layout(_scenes("kadid10k", "KADID-10k", low=1, high=5, scale=CATEGORIES, seen_as=("kadid",),
                   licence="free to the research community; no formal licence"),
           "dmos.csv", "dist_img", ("images",), {"image": "dist_img", "scene": "ref_img", "mos": "dmos"},
           name=r"I\d+_(?P<distortion>\d\d)_0?(?P<level>[1-5])\.png", kinds=_numbered(KADID_TYPES),
           image="images/{image}", reference="images/{scene}"),
    Layout(_scenes("live", "LIVE release 2", higher_is_better=False, low=0, high=112, scale="difference",
                   seen_as=("liveiqa", "liver2", "liverelease2"),
                   licence=UT_AUSTIN),
           "refnames_all.mat", also=("refimgs", "fastfading"), reference="refimgs/{reference}", rows=live),
    # Some rows stand above the header of its sheet.
    Layout(_scenes("csiq", "CSIQ", higher_is_better=False, low=0, high=1, scale="difference",
                   licence=UNSTATED),
           "csiq.DMOS.csv|csiq.DMOS.xlsx", also=("dst_imgs",), sheet="all_by_image",
           columns={"scene": "image", "distortion": "dst_type", "level": "dst_lev", "mos": "dmos"},
           kinds={"noise": "awgn", "jpeg 2000": "jpeg2000"},
           image="dst_imgs/{distortion}/{scene}.{distortion}.{level}.png", reference="src_imgs/{scene}.png"),
    Layout(_photos("clive", "LIVE in the Wild", low=0, high=100,
                   seen_as=("livec", "livechallenge", "liveitw", "liveinthewild"),
                   licence=UT_AUSTIN),
           "Data/AllMOS_release.mat", also=("Images",), image="Images/{image}", rows=clive),
    Layout(_photos("bid", "BID", low=0, high=5, seen_as=("bid2011",)),
           "DatabaseGrades.csv|DatabaseGrades.xlsx|DatabaseGrades.xls", within=ANYWHERE,
           columns={"image": "image number", "mos": "average subjective grade"}, image="DatabaseImage{image:0>4}.JPG"),
    Layout(_photos("koniq10k", "KonIQ-10k", low=1, high=5, seen_as=("koniq",)),
           f"{KONIQ_SCORES}|{KONIQ_SETS}", rows=koniq),
    Layout(_photos("spaq", "SPAQ", low=0, high=100,
                   licence="education and research; commercial use by permission only"),
           "|".join(f"Annotations/MOS and Image attribute scores.{end}" for end in ("csv", "xlsx")),
           also=("TestImage",), columns={"image": "image name", "mos": "mos"}, image="TestImage/{image}"),
    Layout(_photos("agiqa3k", "AGIQA-3K", low=0, high=5, groups="prompt", seen_as=("agiqa",), licence="MIT"),
           "data.csv", "mos_quality", (), {"image": "name", "mos": "mos_quality", "group": "prompt"}, within=ANYWHERE),
    # By the paper's order of the subsets ss01 is taken without this use in mind, ss02 spoilt, ss03 of a photo site.
    Layout(_photos("biq2021", "BIQ2021", low=0, high=1, seen_as=("biq",), licence=UNSTATED),
           "Train (Images and MOS).csv|Train.csv", r"ss0\d ", ("Images",), name=r"(?P<subset>ss\d\d) .+",
           image="Images/{image}", rows=biq),
    # A file for each scene. The last number of a name counts images, not strengths.
    Layout(_scenes("pipal", "PIPAL", low=900, high=1850, scale="elo"),
           "Train_Label", also=("Train_Ref",), line=r"(?P<image>[^,]+),(?P<mos>.+)",
           name=r"(?P<scene>A\d+)_(?P<distortion>\d\d)_\d+\.bmp", reference="Train_Ref/{scene}.bmp", split="train",
           within=("Train_Dist", "Train_Distort", "Dist_Imgs", *(f"Distortion_{n}" for n in range(1, 5)))),
    Layout(DatasetInfo("qbench", "Q-Bench LLVisionQA", "MCQ", licence="CC BY-NC-SA 4.0", seen_as=("llvisionqa",)),
           "llvisionqa_dev.json|llvisionqa_test.json", rows=qbench),
)
# fmt: on
