"""The data sets that authors ship: what is known of each, what marks its folder, and how its rows are read.

A loader takes a DatasetReader and adds images or questions. Its docstring names the authors' files.
"""

from functools import partial
from pathlib import PurePosixPath
from typing import Any

from agentic_iqa_local.studies.datasets.choices import add_question
from agentic_iqa_local.studies.datasets.reader import DatasetReader
from agentic_iqa_local.studies.datasets.tables import json_rows, lines, number
from agentic_iqa_local.studies.datasets.types import DatasetInfo, Layout

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
CSIQ_FOLDERS = {"noise": "awgn", "jpeg 2000": "jpeg2000"}  # the other types name their folders
LIVE_IMAGES = {"jp2k": 227, "jpeg": 233, "wn": 174, "gblur": 174, "fastfading": 174}  # in each folder
CLIVE_TRAINING = 7  # the first images
KONIQ_SCORES, KONIQ_SETS = "koniq10k_scores_and_distributions.csv", "koniq10k_distributions_sets.csv"
KONIQ_SPLITS = {"training": "train", "validation": "val", "test": "test"}
KONIQ_SHARES = "c1", "c2", "c3", "c4", "c5"
SPAQ_SCORES = "Annotations/MOS and Image attribute scores"
SPAQ_SCENES = "Annotations/Scene category labels"
SPAQ_ATTRIBUTES = "brightness", "colorfulness", "contrast", "noisiness", "sharpness"
QBENCH_TYPES: dict[float, str] = dict(enumerate(("yes-or-no", "what", "how")))
QBENCH_CONCERNS: dict[float, str] = dict(
    enumerate(("distortion", "other", "in-context distortion", "in-context other"))
)


def tid(reader: DatasetReader) -> None:
    """mos_with_names.txt, distorted_images/iXX_YY_Z.bmp (scene, type, level), reference_images/. The case of
    names varies."""
    for line in lines(reader.need("mos_with_names.txt")):
        mos, _, name = line.partition(" ")
        scene, kind, level = reader.parts(r"(i\d\d)_(0[1-9]|1\d|2[0-4])_([1-5])\.bmp", name.strip())
        scene, kind = scene.upper(), TID_TYPES[int(kind) - 1]
        paths = f"distorted_images/{name.strip()}", f"reference_images/{scene}.BMP"
        reader.add(mos, *paths, group=scene, distortion=kind, level=int(level))


def kadid(reader: DatasetReader) -> None:
    """dmos.csv, images/IXX_YY_ZZ.png and the references in the same folder. In spite of its name the column
    dmos is higher for better images; its categories are of degradation, from 5 (imperceptible) to 1 (very
    annoying)."""
    for row in reader.table(reader.need("dmos.csv"), "dist_img", "ref_img", "dmos"):
        kind, level = reader.parts(r"I\d+_(0[1-9]|1\d|2[0-5])_0?([1-5])\.png", row["dist_img"])
        paths = f"images/{row['dist_img']}", f"images/{row['ref_img']}"
        scene, kind = PurePosixPath(row["ref_img"]).stem, KADID_TYPES[int(kind) - 1]
        reader.add(row["dmos"], *paths, group=scene, distortion=kind, level=int(level))


def live(reader: DatasetReader) -> None:
    """dmos_realigned.mat (dmos_new, orgs), refnames_all.mat, refimgs/ and imgN.bmp in a folder for each type.
    The arrays hold 982 values, folder after folder; orgs marks pristine copies, which are left out. No
    levels: the strengths are continuous."""
    scores, pristine = (reader.matrix("dmos_realigned.mat", name) for name in ("dmos_new", "orgs"))
    references = reader.matrix("refnames_all.mat", "refnames_all")
    names = [(kind, f"{kind}/img{i + 1}.bmp") for kind, count in LIVE_IMAGES.items() for i in range(count)]
    reader.check_lengths(scores, pristine, references, length=len(names))
    for (kind, image), mos, copy, reference in zip(names, scores, pristine, references, strict=True):
        if copy:
            reader.left_out["a pristine copy of a reference"] += 1
        else:
            scene = PurePosixPath(reference).stem
            reader.add(mos, image, f"refimgs/{reference}", group=scene, distortion=kind)


def csiq(reader: DatasetReader) -> None:
    """csiq.DMOS.xlsx (sheet all_by_image, some rows above its header), src_imgs/,
    dst_imgs/TYPE/IMAGE.TYPE.LEVEL.png."""
    columns = "image", "dst_type", "dst_lev", "dmos"
    for row in reader.workbook("csiq.DMOS", *columns, sheet="all_by_image"):
        image = str(row["image"]).strip()
        if isinstance(row["image"], int | float):  # a workbook gives the scene 1600 as a number
            image = f"{number(row['image']):g}"
        kind, level = str(row["dst_type"]).strip().lower(), number(row["dst_lev"])
        kind, extra = CSIQ_FOLDERS.get(kind, kind), {"std": number(row.get("dmos_std"))}
        paths = f"dst_imgs/{kind}/{image}.{kind}.{level:g}.png", f"src_imgs/{image}.png"
        reader.add(row["dmos"], *paths, group=image, distortion=kind, level=level, extra=extra)


def clive(reader: DatasetReader) -> None:
    """Data/AllImages_release.mat, AllMOS_release.mat, AllStdDev_release.mat and Images/. The first seven of
    1,169 trained the observers (Images/trainingImages) and are left out."""
    names, scores, deviations = (
        reader.matrix(f"Data/{name}_release.mat", f"{name}_release") for name in ("AllImages", "AllMOS", "AllStdDev")
    )
    reader.check_lengths(names, scores, deviations)
    reader.left_out["shown to train the observers"] += CLIVE_TRAINING
    for name, mos, std in list(zip(names, scores, deviations, strict=True))[CLIVE_TRAINING:]:
        reader.add(mos, f"Images/{name}", extra={"std": float(std)})


def bid(reader: DatasetReader) -> None:
    """DatabaseGrades.xls and DatabaseImageNNNN.JPG. The authors' page gives the images one by one: whether
    they lie beside the workbook or in a subfolder is not settled, so both are searched."""
    within = reader.folders()
    for row in reader.workbook("DatabaseGrades", "image number", "average subjective grade"):
        image = number(row["image number"])
        if not image.is_integer():
            raise reader.error("whole image numbers", repr(row["image number"]), "restore the authors' file")
        reader.add(row["average subjective grade"], f"DatabaseImage{int(image):04d}.JPG", within=within)


def koniq(reader: DatasetReader, edition: str | None = None) -> None:
    """koniq10k_scores_and_distributions.csv or koniq10k_distributions_sets.csv, and 1024x768/ or 512x384/.

    `edition` names the image folder, by default the larger one that is there; metrics give other values on
    the smaller one. `mos` is on 1..5. The file with the sets has only the 1..100 scores, so there it is the
    mean of the shares c1..c5 of the observers who chose each category.
    """
    reader.edition = reader.present(*([edition] if edition else ("1024x768", "512x384")))[0]
    sets: dict[str, dict[str, Any]] = {}
    if file := reader.find(KONIQ_SETS):
        rows = reader.table(file, "image_name", "mos", "set", *KONIQ_SHARES)
        sets = {row["image_name"]: row for row in rows}
    if (scores := reader.find(KONIQ_SCORES)) or not file:
        rows = reader.table(scores or reader.need(KONIQ_SCORES, KONIQ_SETS), "image_name", "mos", "mos_zscore")
    else:
        rows = [row | {"mos": _mean_category(row), "mos_zscore": row["mos"]} for row in sets.values()]
    for row in rows:
        split = KONIQ_SPLITS.get(sets.get(row["image_name"], {}).get("set", ""))
        extra = {"std": number(row.get("sd")), "mos_zscore": number(row["mos_zscore"])}
        reader.add(row["mos"], f"{reader.edition}/{row['image_name']}", split=split, extra=extra)


def _mean_category(row: dict[str, Any]) -> float:
    return sum(category * number(row[share]) for category, share in enumerate(KONIQ_SHARES, 1))


def spaq(reader: DatasetReader) -> None:
    """Annotations/MOS and Image attribute scores.xlsx, Annotations/Scene category labels.xlsx and
    TestImage/."""
    scenes = {}
    if reader.find(f"{SPAQ_SCENES}.csv") or reader.find(f"{SPAQ_SCENES}.xlsx"):
        for row in reader.workbook(SPAQ_SCENES, "image name"):
            scenes[row.pop("image name")] = [name for name, value in row.items() if number(value) > 0]
    for row in reader.workbook(SPAQ_SCORES, "image name", "mos"):
        extra: dict[str, Any] = {name: number(row.get(name)) for name in SPAQ_ATTRIBUTES}
        if row["image name"] in scenes:
            extra["scenes"] = scenes[row["image name"]]
        reader.add(row["mos"], f"TestImage/{row['image name']}", extra=extra)


def agiqa(reader: DatasetReader) -> None:
    """data.csv (name, prompt, mos_quality, mos_align, ...) and the images; `mos` is the quality. The
    repository holds the table only and the layout of the image archive could not be checked: they are sought
    here and one folder down."""
    within = reader.folders()
    for row in reader.table(reader.need("data.csv"), "name", "prompt", "mos_quality", "mos_align"):
        extra: dict[str, Any] = {"std": number(row.get("std_quality")), "mos_align": number(row["mos_align"])}
        extra["generator"] = row["name"].partition("_")[0]
        group = row["prompt"].strip() or None
        reader.add(row["mos_quality"], row["name"], within=within, group=group, extra=extra)


def biq(reader: DatasetReader) -> None:
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


def pipal(reader: DatasetReader) -> None:
    """Train_Label/*.txt (name,elo), Train_Ref/ and the distorted images AXXXX_TT_NN.bmp in Train_Dist/ or
    Distortion_1..4/.

    `distortion` is the two-digit type of the name; the last number counts images, not strengths. Val_Label/
    is read in the same way where it is there; that the authors ship validation scores in this form could not
    be checked.
    """
    shared = ("Dist_Imgs", *(f"Distortion_{n}" for n in range(1, 5)))
    for split in ("train", "val") if reader.find("Val_Label") else ("train",):
        part = split.capitalize()
        within = reader.present(f"{part}_Dist", f"{part}_Distort", *shared)
        for line in (line for path in sorted(reader.need(f"{part}_Label").glob("*.txt")) for line in lines(path)):
            name, _, elo = line.partition(",")
            scene, kind = reader.parts(r"(A\d+)_(\d\d)_\d+\.bmp", name)
            reference = f"{part}_Ref/{scene}.bmp"
            reader.add(elo, name, reference, within, group=scene, distortion=kind, split=split)


def qbench(reader: DatasetReader) -> None:
    """llvisionqa_dev.json and llvisionqa_test.json, and the images of images_llvisionqa.tar. The test answers
    are withheld. What the numbers of `type` and `concern` stand for is taken from the order of the authors'
    tables."""
    reader.need("llvisionqa_dev.json", "llvisionqa_test.json")
    within = reader.folders()
    for split in ("dev", "test"):
        path = reader.find(f"llvisionqa_{split}.json")
        for _, row in json_rows(path) if path else []:
            kind, concern = (
                names.get(number(row.get(name)))  # what is no number is none of them
                for names, name in ((QBENCH_TYPES, "type"), (QBENCH_CONCERNS, "concern"))
            )
            add_question(reader, row | {"question_type": kind, "task": concern}, within, split)


CATEGORIES = "absolute categories"
_photos = partial(DatasetInfo, kind="NR", higher_is_better=True, scale=CATEGORIES)
_scenes = partial(DatasetInfo, kind="FR", higher_is_better=True, groups="reference scene")
UT_AUSTIN = "free for any purpose with the copyright notice and a citation"
UNSTATED = "none stated; evaluate only"

# Each is told by its files; the first whose marks are there counts.
# fmt: off
LAYOUTS = (
    Layout(_scenes("tid2013", "TID2013", low=0, high=9, scale="paired comparison", seen_as=("tid", "tid13"),
                   licence="research (TID2008's terms; its own not checked)",
                   url="https://doi.org/10.1016/j.image.2014.10.009"),
           tid,  # TID2008 has 17 types and 4 levels only
           (("mos_with_names.txt", r"_(1[89]|2\d)_\d\.|_5\."), ("distorted_images", ""))),
    Layout(_scenes("tid2008", "TID2008", low=0, high=9, scale="paired comparison", seen_as=("tid08",),
                   licence="education and research only, not to be modified",
                   url="http://www.ponomarenko.info/tid2008.htm"),
           tid, (("mos_with_names.txt", ""), ("distorted_images", ""))),
    Layout(_scenes("kadid10k", "KADID-10k", low=1, high=5, scale=CATEGORIES, seen_as=("kadid",),
                   licence="free to the research community; no formal licence",
                   url="https://doi.org/10.1109/QoMEX.2019.8743252"),
           kadid, (("dmos.csv", "dist_img"), ("images", ""))),
    Layout(_scenes("live", "LIVE release 2", higher_is_better=False, low=0, high=112, scale="difference",
                   seen_as=("liveiqa", "liver2", "liverelease2"),
                   licence=UT_AUSTIN, url="https://doi.org/10.1109/TIP.2006.881959"),
           live, (("refnames_all.mat", ""), ("refimgs", ""), ("fastfading", ""))),
    Layout(_scenes("csiq", "CSIQ", higher_is_better=False, low=0, high=1, scale="difference",
                   licence=UNSTATED, url="https://doi.org/10.1117/1.3267105"),
           csiq, (("csiq.DMOS.csv|csiq.DMOS.xlsx", ""), ("dst_imgs", ""))),
    Layout(_photos("clive", "LIVE in the Wild", low=0, high=100,
                   seen_as=("livec", "livechallenge", "liveitw", "liveinthewild"),
                   licence=UT_AUSTIN, url="https://doi.org/10.1109/TIP.2015.2500021"),
           clive, (("Data/AllMOS_release.mat", ""), ("Images", ""))),
    Layout(_photos("bid", "BID", low=0, high=5, seen_as=("bid2011",),
                   url="https://doi.org/10.1109/TIP.2010.2053549"),
           bid, (("DatabaseGrades.csv|DatabaseGrades.xlsx|DatabaseGrades.xls", ""),)),
    Layout(_photos("koniq10k", "KonIQ-10k", low=1, high=5, seen_as=("koniq",),
                   url="https://arxiv.org/abs/1910.06180"),
           koniq, ((f"{KONIQ_SCORES}|{KONIQ_SETS}", ""),)),
    Layout(_photos("spaq", "SPAQ", low=0, high=100,
                   licence="education and research; commercial use by permission only",
                   url="https://doi.org/10.1109/CVPR42600.2020.00373"),
           spaq, ((f"{SPAQ_SCORES}.csv|{SPAQ_SCORES}.xlsx", ""), ("TestImage", ""))),
    Layout(_photos("agiqa3k", "AGIQA-3K", low=0, high=5, groups="prompt", seen_as=("agiqa",), licence="MIT",
                   url="https://arxiv.org/abs/2306.04717"),
           agiqa, (("data.csv", "mos_quality"),)),
    Layout(_photos("biq2021", "BIQ2021", low=0, high=1, seen_as=("biq",), licence=UNSTATED,
                   url="https://doi.org/10.1117/1.JEI.31.5.053010"),
           biq, (("Train (Images and MOS).csv|Train.csv", r"ss0\d "), ("Images", ""))),
    Layout(_scenes("pipal", "PIPAL", low=900, high=1850, scale="elo", url="https://arxiv.org/abs/2007.12142"),
           pipal, (("Train_Label", ""), ("Train_Ref", ""))),
)
QBENCH = Layout(DatasetInfo("qbench", "Q-Bench LLVisionQA", "MCQ", licence="CC BY-NC-SA 4.0",
                            url="https://arxiv.org/abs/2309.14181", seen_as=("llvisionqa",)),
                qbench, (("llvisionqa_dev.json|llvisionqa_test.json", ""),))
# fmt: on
