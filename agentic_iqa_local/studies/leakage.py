"""What each tool, tool map and model was trained or fitted on, and which data sets it has therefore seen.

Only data with human judgements of quality count: pre-training on ImageNet or on captions, and self-supervised
training on distortions, show a tool no score. Constants in the formulas of handcrafted tools do not count
either, though some authors chose theirs with rated images at hand. A data set counts as seen as a whole, also
where its test split was kept out of the training. Nothing here reads files or imports torch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentic_iqa_local.iqa_tools.specs import find_tool
from agentic_iqa_local.studies.datasets import dataset_key

UNKNOWN = "?"

# Sets with human judgements on which tools were trained and for which datasets/ has no loader. flive is
# PaQ-2-PiQ's, also called LIVE-FB; lsvq holds videos; ma2017 the super-resolved images of Ma et al., CVIU
# 2017.
OTHER_SETS = frozenset({"ava", "bapps", "diffiqa", "flive", "lsvq", "ma2017", "pieapp"})

# By data set: others that hold some of its images, with human scores of their own. TID2013 repeats TID2008's
# 17 types at four levels on the same references; Q-Bench drew images from the sets named (arXiv 2309.14181).
# Equal contents alone are no leak: many references of LIVE and nearly all of TID are Kodak's photographs,
# each distorted and rated anew.
SHARING_IMAGES = {
    "tid2008": ("tid2013",),
    "tid2013": ("tid2008",),
    "qbench": ("agiqa3k", "clive", "flive", "kadid10k", "koniq10k", "spaq"),
}

LONGEST_NAME = 4  # in words: "LIVE in the Wild"


@dataclass(frozen=True)
class Training:
    """`datasets` are those with human scores, by key of DATASETS or name in OTHER_SETS, and UNKNOWN where
    not all of them are known. `scaled_on` are those that only set the scale of targets which no human gave.
    `source` says what tells.
    """

    datasets: tuple[str, ...]
    source: str
    scaled_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exposure:
    """How a part of the pipeline met a data set. `what` is "tool NAME", "map of NAME" or "model".

    What touches `ranks` spoils every figure. What touches the `scale` alone spoils levels and errors, and all
    figures of fused or averaged scores, but not the rank correlation of one raw score: a monotone map does
    not reorder it.
    """

    what: str
    how: Literal["trained on it", "map fitted on it", "training data unknown"]
    touches: Literal["ranks", "scale"]


_HANDCRAFTED_TOOLS = (
    "PSNR", "PSNRY", "SSIM", "SSIMC", "MS-SSIM", "CW-SSIM", "FSIM", "VSI", "VIF", "GMSD", "MAD", "Entropy",
)  # fmt: skip
_KONIQ, _KADID = ("koniq10k",), ("kadid10k",)
# Of the very weight files that iqa_tools/specs.py names. "pyiqa options" are the training files of these
# weights below options/train of chaofengc/IQA-PyTorch.
TRAINED_ON: dict[str, Training] = dict.fromkeys(_HANDCRAFTED_TOOLS, Training((), "none: handcrafted")) | {
    "NLPD": Training((), "none: filters fitted to undistorted images (Laparra et al., HVEI 2016)"),
    "PIQE": Training((), "none: handcrafted, without training data (Venkatanath et al., NCC 2015)"),
    "NIQE": Training((), "none: statistics of pristine images (Mittal et al., IEEE SPL 2013)"),
    "LocalNR": Training(
        (),
        "none: synthetic distortions of clean photographs (CID22, gb82, lomiri-wallpapers); targets from"
        " FSIM, VSI, GMSD and NLPD, of which it is therefore no independent witness, through maps fitted on"
        " KADID-10k (docs/tools.md, studies/synthetic.py)",
        scaled_on=_KADID,
    ),
    "TOPIQ_FR": Training(_KADID, "the file's name; IQA-PyTorch issue 211; arXiv 2308.03060"),
    "AHIQ": Training(("pipal",), "key in IQA-PyTorch's ahiq_arch.py; IIGROUP/AHIQ download.sh; arXiv 2204.10485"),
    "LPIPS": Training(("bapps",), "richzhang/PerceptualSimilarity README; arXiv 1801.03924"),
    "DISTS": Training(_KADID, "arXiv 2004.07728; beside it textures of DTD, without scores"),
    "WaDIQaM_FR": Training(_KADID, "pyiqa options WaDIQaM/train_WaDIQaM_FR_kadid.yml"),
    "CKDN": Training(("pipal",), "researchmm/CKDN README; arXiv 2108.07948"),
    "PieAPP": Training(
        ("pieapp",),
        "its own preferences, on Waterloo references: prashnani/PerceptualImageError dataset_README.md",
    ),
    "DeepDC": Training((), "none: features of an ImageNet classifier (h4nwei/DeepDC README)"),
    "A-FINE": Training(
        ("diffiqa", "kadid10k", "pipal", "tid2013"), "ChrisDud0257/AFINE TrainAFINE/README.md, stages 1 to 3"
    ),
    "QAlign": Training(
        ("koniq10k", "spaq", "kadid10k", "ava", "lsvq"), "Q-Future/Q-Align model_zoo/README.md, OneAlign"
    ),
    "Q-ReAlign": Training(
        ("koniq10k", "spaq", "kadid10k", "ava", "lsvq", UNKNOWN),
        "the ONE-ALIGN setting of its model card, as in Q-Future/Q-ReAlign configs/onealign.yaml; the card"
        " lists no sets, and the data of its Qwen3.5 backbone are not published",
    ),
    "TOPIQ_NR": Training(_KONIQ, "pyiqa options TOPIQ/train_TOPIQ_res50_koniq.yml, official split"),
    "CLIPIQA": Training((), "none: CLIP as it is (arXiv 2207.12396)"),
    "CLIPIQA+": Training(
        _KONIQ,
        "the authors' prompts (IQA-PyTorch issue 137), learned on KonIQ-10k (IceClear/CLIP-IQA issue 8)",
    ),
    "QualiCLIP": Training((), "none: self-supervised on synthetic degradations (miccunifi/QualiCLIP README)"),
    "LIQE": Training(_KONIQ, "IQA-PyTorch pull request 127: official split of KonIQ-10k, scores only"),
    "ARNIQA": Training(
        _KONIQ,
        "regressor on all of KonIQ-10k (miccunifi/ARNIQA issue 22); encoder self-supervised on KADIS-700k",
    ),
    "MUSIQ": Training(_KONIQ, "koniq_ckpt.npz in google-research musiq/README.md"),
    "MANIQA": Training(
        _KONIQ, "the authors' KonIQ-10k checkpoint: IQA-PyTorch docs/ModelCard.md, IIGROUP/MANIQA issue 42"
    ),
    "HyperIQA": Training(_KONIQ, "pyiqa options HyperNet/train_HyperNet.yml, official split"),
    "TReS": Training(_KONIQ, "the file's name; IQA-PyTorch docs/ModelCard.md"),
    "DBCNN": Training(
        _KONIQ,
        "pyiqa options DBCNN/train_DBCNN_koniq10k.yml; S-CNN on distortion types alone (arXiv 1907.02665)",
    ),
    "UNIQUE": Training(
        ("live", "csiq", "kadid10k", "bid", "clive", "koniq10k"),
        "zwx8981/UNIQUE IQA_database/combine_train.m; arXiv 2005.13983",
    ),
    "WaDIQaM_NR": Training(
        ("koniq10k", "kadid10k"),
        "pyiqa options WaDIQaM/train_WaDIQaM_NR_koniq.yml: starts from WaDIQaM_FR's features",
    ),
    "NIMA": Training(("ava",), "pyiqa options NIMA/train_NIMA_inception_ava.yml"),
    "CNNIQA": Training(_KONIQ, "pyiqa options CNNIQA/train_CNNIQA.yml, official split"),
    "PaQ-2-PiQ": Training(("flive",), "baidut/paq2piq README"),
    "BRISQUE": Training(("live",), "readme.txt of the authors' release, whose support vectors piq and pyiqa copied"),
    "ILNIQE": Training((), "none: statistics of pristine images (Zhang et al., IEEE TIP 2015)"),
    "NRQM": Training(("ma2017",), "chaoma99/sr-metric train_RF_regression.m: super-resolved images, all scores"),
    "PI": Training(("ma2017",), "through NRQM; its NIQE saw no scores"),
}

_EMBEDDED = Training(
    (),
    "none: synthetic distortions of clean photographs (CID22, gb82); targets from metrics through maps fitted"
    " on KADID-10k (models/embedded/README.md, studies/synthetic.py)",
    scaled_on=_KADID,
)
_UNPUBLISHED = Training(
    (UNKNOWN,),
    "not published in full; some mixtures hold rated images, as MMPR-v1.1 of InternVL does KonIQ-10k",
)
_NAMED_MODELS = {
    "qrealign": TRAINED_ON["Q-ReAlign"],
    "qalign": TRAINED_ON["QAlign"],
    "onealign": TRAINED_ON["QAlign"],
}


def training_of_model(name_or_type: str, folder_config: Mapping[str, Any]) -> Training:
    """Training of a vision-language model, from the name of its folder or its model type and its config.json.

    The project's own embedded model is known by its notice, those of the Q-Align family by name; any of the
    latter counts as the one trained on most. For all others the name does not tell which data were used, and
    they are unknown.
    """
    if folder_config.get("agentic_iqa_notice"):
        return _EMBEDDED
    plain = re.sub(r"[^a-z0-9]", "", f"{name_or_type} {folder_config.get('_name_or_path', '')}".lower())
    return next((training for name, training in _NAMED_MODELS.items() if name in plain), _UNPUBLISHED)


def datasets_in(text: str) -> tuple[str, ...]:
    """Keys of the data sets that `text` names, such as a map's `fitted_on`; the longest name at a place
    counts."""
    words, keys, start = re.findall(r"[\w-]+", text), [], 0
    while start < len(words):
        lengths = range(LONGEST_NAME, 0, -1)
        found = ((dataset_key("".join(words[start : start + length])), length) for length in lengths)
        key, length = next((pair for pair in found if pair[0]), (None, 1))
        keys += [key] if key else []
        start += length
    return tuple(dict.fromkeys(keys))


def exposures(
    dataset: str, tools: Sequence[str], maps: Mapping[str, str], model: Training | None = None
) -> list[Exposure]:
    """How `tools`, their maps (`maps` says by tool what each was fitted on) and the model have met the data
    set of key `dataset`; empty when none has.

    `model` is None where no model takes part; pass no maps where raw scores are used. A manifest counts as a
    set of its own: pass the key of the set that it is a part of. Raises ToolError for an unknown tool.
    """
    seen = {dataset, *SHARING_IMAGES.get(dataset, ())}
    names = [find_tool(tool).name for tool in tools]
    parts = [(f"tool {name}", TRAINED_ON[name]) for name in names] + ([("model", model)] if model else [])
    found = []
    for what, training in parts:
        if seen.intersection(training.datasets):
            found.append(Exposure(what, "trained on it", "ranks"))
        elif UNKNOWN in training.datasets:
            found.append(Exposure(what, "training data unknown", "ranks"))
        if seen.intersection(training.scaled_on):
            found.append(Exposure(what, "map fitted on it", "scale"))
    for name in names:
        if name in maps and seen.intersection(datasets_in(maps[name])):
            found.append(Exposure(f"map of {name}", "map fitted on it", "scale"))
    return found


def is_clean(found: Iterable[Exposure], *, ranks_of_one: bool = False) -> bool:
    """Whether a cell with these exposures may enter an average. With `ranks_of_one` the cell is the rank
    correlation of a single score, and exposures that touch its scale alone do not count."""
    return not any(exposure.touches == "ranks" or not ranks_of_one for exposure in found)
