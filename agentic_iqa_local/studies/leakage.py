"""Which data sets each tool, tool map and model has seen, by what it was trained or fitted on.

Only data with human judgements of quality count: pre-training on ImageNet or on captions, and self-supervised training
on distortions, show a tool no score; nor do the constants of handcrafted formulas count. A data set counts as seen as a
whole, also where its test split was kept out of the training.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentic_iqa_local.iqa_tools.specs import find_tool
from agentic_iqa_local.studies.datasets import DATASETS

UNKNOWN = "?"

# Sets with human judgements for which datasets/ has no loader. flive is PaQ-2-PiQ's, also called LIVE-FB; lsvq holds
# videos; ma2017 the super-resolved images of Ma et al., CVIU 2017.
OTHER_SETS = frozenset({"ava", "bapps", "diffiqa", "flive", "lsvq", "ma2017", "pieapp"})

# By data set: others that hold some of its images, with human scores of their own. TID2013 repeats TID2008's 17 types
# at four levels on the same references; Q-Bench drew images from the sets named (arXiv 2309.14181). References that are
# distorted and rated anew, as Kodak's in LIVE and TID, are no leak.
SHARING_IMAGES = {
    "tid2008": ("tid2013",),
    "tid2013": ("tid2008",),
    "qbench": ("agiqa3k", "clive", "flive", "kadid10k", "koniq10k", "spaq"),
}

LONGEST_NAME = 4  # in words: "LIVE in the Wild"

_UNSEEN = (
    "PSNR", "PSNRY", "SSIM", "SSIMC", "MS-SSIM", "CW-SSIM", "FSIM", "VSI", "VIF", "GMSD", "MAD", "Entropy",
    "NLPD",  # filters fitted to undistorted images (Laparra et al., HVEI 2016)
    "PIQE",  # handcrafted (Venkatanath et al., NCC 2015)
    "NIQE", "ILNIQE",  # statistics of pristine images
    "LocalNR",  # synthetic distortions, targets from metrics (docs/tools.md): no independent witness of those
    "DeepDC",  # features of an ImageNet classifier (h4nwei/DeepDC README)
    "CLIPIQA",  # CLIP as it is (arXiv 2207.12396)
    "QualiCLIP",  # self-supervised on synthetic degradations (miccunifi/QualiCLIP README)
)  # fmt: skip
# "options" are the training files of these weights below options/train of chaofengc/IQA-PyTorch.
_ON_KONIQ = (
    "TOPIQ_NR", "HyperIQA", "DBCNN", "CNNIQA",  # options TOPIQ, HyperNet, DBCNN, CNNIQA
    "TReS", "MANIQA", "LIQE",  # IQA-PyTorch docs/ModelCard.md, pull request 127; IIGROUP/MANIQA issue 42
    "CLIPIQA+", "ARNIQA", "MUSIQ",  # IceClear/CLIP-IQA issue 8; miccunifi/ARNIQA issue 22; google-research musiq
)  # fmt: skip
_KONIQ, _KADID = ("koniq10k",), ("kadid10k",)
_ONE_ALIGN = ("koniq10k", "spaq", "kadid10k", "ava", "lsvq")
# By tool, the sets of the very weight files that iqa_tools/specs.py names; UNKNOWN where not all are known.
TRAINED_ON: dict[str, tuple[str, ...]] = dict.fromkeys(_UNSEEN, ()) | dict.fromkeys(_ON_KONIQ, _KONIQ) | {
    "TOPIQ_FR": _KADID,  # the file's name; IQA-PyTorch issue 211; arXiv 2308.03060
    "AHIQ": ("pipal",),  # key in IQA-PyTorch's ahiq_arch.py; arXiv 2204.10485
    "LPIPS": ("bapps",),  # richzhang/PerceptualSimilarity README
    "DISTS": _KADID,  # arXiv 2004.07728
    "WaDIQaM_FR": _KADID,  # options WaDIQaM/train_WaDIQaM_FR_kadid.yml
    "CKDN": ("pipal",),  # researchmm/CKDN README
    "PieAPP": ("pieapp",),  # prashnani/PerceptualImageError dataset_README.md
    "A-FINE": ("diffiqa", "kadid10k", "pipal", "tid2013"),  # ChrisDud0257/AFINE TrainAFINE/README.md, stages 1 to 3
    "QAlign": _ONE_ALIGN,  # Q-Future/Q-Align model_zoo/README.md
    "Q-ReAlign": (*_ONE_ALIGN, UNKNOWN),  # its model card; the data of its Qwen3.5 backbone are not published
    "UNIQUE": ("live", "csiq", "kadid10k", "bid", "clive", "koniq10k"),  # zwx8981/UNIQUE; arXiv 2005.13983
    "WaDIQaM_NR": ("koniq10k", "kadid10k"),  # options WaDIQaM/train_WaDIQaM_NR_koniq.yml: starts from WaDIQaM_FR
    "NIMA": ("ava",),  # options NIMA/train_NIMA_inception_ava.yml
    "PaQ-2-PiQ": ("flive",),  # baidut/paq2piq README
    "BRISQUE": ("live",),  # readme.txt of the authors' release
    "NRQM": ("ma2017",),  # chaoma99/sr-metric train_RF_regression.m
    "PI": ("ma2017",),  # through NRQM; its NIQE saw no scores
}  # fmt: skip
# Parts whose targets no human gave, but went through maps that were fitted on these sets.
EMBEDDED = "embedded"
SCALED_ON = {"LocalNR": _KADID, EMBEDDED: _KADID}
_MODELS = {"qrealign": "Q-ReAlign", "qalign": "QAlign", "onealign": "QAlign"}


@dataclass(frozen=True)
class Exposure:
    """How a part of the pipeline met a data set. `what` is "tool NAME", "map of NAME" or "model".

    What touches `ranks` spoils every figure. What touches the `scale` alone spoils levels, errors and all figures of
    fused or averaged scores, but not the rank correlation of one raw score: a monotone map does not reorder it.
    """

    what: str
    how: Literal["trained on it", "map fitted on it", "training data unknown"]
    touches: Literal["ranks", "scale"]


def exposures(
    dataset: str, tools: Sequence[str], maps: Mapping[str, str], model: str | None = None, notice: str | None = None
) -> list[Exposure]:
    """How tools, their maps and the model have met a data set; empty when none has.

    Args:
        dataset: Its key. A manifest counts as a set of its own: give the key of the set that it is a part of.
        tools: Their names.
        maps: What the map of each tool was fitted on; none where raw scores are used.
        model: The name of the model that takes part, if one does. Those of the Q-Align family are known by it, of
            others the training is unknown.
        notice: What the model says of itself; only the project's own embedded model does.

    Raises:
        ToolError: A tool is unknown.
    """
    seen = {dataset, *SHARING_IMAGES.get(dataset, ())}
    names = [find_tool(tool).name for tool in tools]
    parts = [(f"tool {name}", TRAINED_ON[name], SCALED_ON.get(name, ())) for name in names]
    if model is not None and notice:
        parts.append(("model", (), SCALED_ON[EMBEDDED]))
    elif model is not None:
        plain = re.sub(r"[^a-z0-9]", "", model.lower())
        kin = next((tool for name, tool in _MODELS.items() if name in plain), None)
        parts.append(("model", TRAINED_ON[kin] if kin else (UNKNOWN,), ()))
    found = []
    for what, trained, scaled in parts:
        if seen.intersection(trained):
            found.append(Exposure(what, "trained on it", "ranks"))
        elif UNKNOWN in trained:
            found.append(Exposure(what, "training data unknown", "ranks"))
        if seen.intersection(scaled):
            found.append(Exposure(what, "map fitted on it", "scale"))
    for name in names:
        if seen.intersection(datasets_in(maps.get(name, ""))):
            found.append(Exposure(f"map of {name}", "map fitted on it", "scale"))
    return found


def is_clean(found: Iterable[Exposure], *, ranks_of_one: bool = False) -> bool:
    """Whether a figure with these exposures may enter an average. With `ranks_of_one` it is the rank correlation of a
    single score, for which exposures that touch its scale alone do not count."""
    return not any(exposure.touches == "ranks" or not ranks_of_one for exposure in found)


def datasets_in(text: str) -> tuple[str, ...]:
    """Keys of the data sets that `text` names, such as what a map was fitted on; the longest name at a place counts."""
    known = {alias: key for key, info in DATASETS.items() for alias in (key.replace("_", ""), *info.seen_as)}
    words, keys = re.findall(r"[\w-]+", text.lower()), []
    while words:
        names = {n: re.sub(r"[\W_]", "", "".join(words[:n])) for n in range(LONGEST_NAME, 0, -1)}
        length = next((n for n, name in names.items() if name in known), None)
        keys += [known[names[length]]] if length else []
        words = words[length or 1 :]
    return tuple(dict.fromkeys(keys))
