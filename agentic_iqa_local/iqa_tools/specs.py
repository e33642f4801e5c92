"""The table of tools: what each measures, which way it runs, and which files it needs.

Names are the field's own, as in Table 5 of AgenticIQA (arXiv 2509.26006) where a tool has a row there. Weight
files were read off pyiqa 0.1.16's sources, backbones that a constructor pulls in included; they are written as

    pyiqa/FILE, checkpoints/FILE, clip/FILE     below tools/hub of the models folder
    hf:ORG/REPO                                 a snapshot below tools/huggingface of the models folder
"""

import difflib
import functools
import importlib.util
import math
import re
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import command

DATA = Path(__file__).parent / "data"  # parameter files that ship with the tools


class ToolError(UserError, RuntimeError):
    """A tool that cannot be found, built or trusted; the message is one sentence for the user."""


@dataclass(frozen=True)
class ToolSpec:
    """One tool.

    `metric` is pyiqa's name, or that of a tool of this package's `own`, which pyiqa has no part in; `domain`
    the raw range over which a map must be monotone; `weights` the files it needs (empty: none to fetch);
    `bundled` a parameter file that ships in this package's data folder; `modules` Python modules that its
    code imports beyond pyiqa's own requirements; `min_side` the smallest image side in pixels that it
    accepts; `no_map` why a 1..5 map would mean nothing for it (empty: a map makes sense).

    `seconds` is what a megapixel takes on one CPU core, None where it was not measured. `most_megapixels` is
    the largest picture that is measured whole (None: any); of a larger one crops are.

    `bounds` are the ends that the metric's definition sets to its raw value (infinite: none), and `of_copy` is that
    value of a picture against itself (PSNR's is pyiqa's, which adds 1e-8 to the error; None: only measuring tells).
    """

    name: str
    metric: str
    reference: Literal["FR", "NR"]
    lower_better: bool
    domain: tuple[float, float]
    good_for: tuple[str, ...]
    description: str
    min_side: int
    weights: tuple[str, ...] = ()
    bundled: str = ""
    modules: tuple[str, ...] = ()
    no_map: str = ""
    seconds: float | None = None
    most_megapixels: float | None = None
    own: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)
    of_copy: float | None = None

    @property
    def scale(self) -> str:
        """How a raw score is to be read: its direction, and the range that is mapped to 1..5."""
        low, high = self.domain
        better = "lower" if self.lower_better else "higher"
        return f"{better} is better, from {low:g} to {high:g}"

    def is_score(self, raw: float) -> bool:
        """Whether the tool can mean a raw value: one within its bounds, and not absurdly far from its domain."""
        low, high = self.domain
        lowest, highest = self.bounds
        far = FARTHEST * (high - low)
        return max(lowest - ROUNDING, low - far) <= raw <= min(highest + ROUNDING, high + far)


FARTHEST = 100  # widths of the domain, from its ends
ROUNDING = 1e-4  # of a bound, by which float32 may miss it

BLUR, COLOR, CODEC, NOISE = "Blurs", "Color distortions", "Compression", "Noise"
LIGHT, SHARP, CONTRAST, SPATIAL = (
    "Brightness change",
    "Sharpness",
    "Contrast",
    "Spatial distortions",
)

VGG16 = "checkpoints/vgg16-397923af.pth"
RESNET50 = "checkpoints/resnet50-0676ba61.pth"
TIMM_RESNET50 = "hf:timm/resnet50.a1_in1k"
TIMM_VIT_B8 = "hf:timm/vit_base_patch8_224.augreg2_in21k_ft_in1k"
CLIP_RN50 = "clip/RN50.pt"
CLIP_VIT_B32 = "clip/ViT-B-32.pt"

# Smallest sides: of weight-free tools found by running them; NIQE needs four blocks of 96 pixels.
SMALL, CNN_SIDE = 16, 64
INF = math.inf

# fmt: off
_ROWS = (
    # --- full reference, no weights
    ToolSpec("PSNR", "psnr", "FR", False, (5, 60), (NOISE,), "peak signal-to-noise ratio over RGB, in dB", SMALL, seconds=0.06, bounds=(0, INF), of_copy=80),
    ToolSpec("PSNRY", "psnry", "FR", False, (5, 60), (NOISE, LIGHT), "peak signal-to-noise ratio of luma, in dB", SMALL, seconds=0.08, bounds=(0, INF), of_copy=80),
    ToolSpec("SSIM", "ssim", "FR", False, (0, 1), (BLUR, NOISE, CODEC), "structural similarity of luma", SMALL, seconds=0.3, most_megapixels=16, bounds=(-1, 1), of_copy=1),
    ToolSpec("SSIMC", "ssimc", "FR", False, (0, 1), (BLUR, NOISE, COLOR), "structural similarity over RGB channels", SMALL, seconds=0.9, most_megapixels=5, bounds=(-1, 1), of_copy=1),
    ToolSpec("MS-SSIM", "ms_ssim", "FR", False, (0, 1), (BLUR, CODEC, CONTRAST), "structural similarity over five scales", 161, seconds=0.4, most_megapixels=16, bounds=(-1, 1), of_copy=1),
    ToolSpec("CW-SSIM", "cw_ssim", "FR", False, (0, 1), (SPATIAL, BLUR), "wavelet similarity, tolerant of small shifts", 64, seconds=3, bounds=(0, 1), of_copy=1),
    ToolSpec("FSIM", "fsim", "FR", False, (0, 1), (BLUR, CODEC, NOISE, COLOR), "phase congruency, gradient and chroma similarity; a strong all-round choice", SMALL, seconds=0.1, bounds=(0, 1), of_copy=1),
    ToolSpec("VSI", "vsi", "FR", False, (0, 1), (COLOR, NOISE, CODEC, BLUR, SPATIAL), "saliency, gradient and chroma similarity; the strongest weight-free choice", SMALL, seconds=0.2, bounds=(0, 1), of_copy=1),
    ToolSpec("VIF", "vif", "FR", False, (0, 1), (BLUR, NOISE, CONTRAST), "visual information that survives the distortion", 33, seconds=2, most_megapixels=2, bounds=(0, INF), of_copy=1),
    ToolSpec("GMSD", "gmsd", "FR", True, (0, 0.5), (BLUR, SHARP, CODEC), "spread of gradient similarity; edges", SMALL, seconds=0.1, bounds=(0, 1), of_copy=0),
    ToolSpec("MAD", "mad", "FR", True, (0, 400), (NOISE, CODEC, BLUR), "most apparent distortion; slow", SMALL, seconds=20, most_megapixels=0.5, bounds=(0, INF), of_copy=0),
    ToolSpec("NLPD", "nlpd", "FR", True, (0, 2), (CONTRAST, LIGHT, BLUR), "distance of normalised Laplacian pyramids", SMALL, seconds=0.3, bounds=(0, INF), of_copy=0),
    # --- no reference, no weights to fetch
    ToolSpec("PIQE", "piqe", "NR", True, (0, 100), (CODEC, NOISE, BLUR), "share and depth of distorted blocks", SMALL, seconds=0.2, bounds=(0, 100)),
    ToolSpec("NIQE", "niqe", "NR", True, (0, 50), (NOISE, BLUR, SHARP), "distance from the statistics of natural images", 192, bundled="niqe_modelparameters.mat", seconds=0.3, most_megapixels=4, bounds=(0, INF)),
    ToolSpec("LocalNR", "local_nr", "NR", False, (1, 5), (BLUR, NOISE, CODEC, SHARP, CONTRAST, LIGHT, COLOR), "pretrained features, taught by synthetic distortions; no human score", CNN_SIDE, bundled="local_nr.safetensors", modules=("timm",), seconds=0.8, most_megapixels=4, own=True, bounds=(1, 5)),
    ToolSpec("Entropy", "entropy", "NR", False, (0, 8), (), "entropy of the grey levels, in bits", SMALL, no_map="not a measure of quality: noise raises it as detail does, so no map to 1..5 can mean anything", bounds=(0, 8)),
    # --- full reference, weights
    ToolSpec("TOPIQ_FR", "topiq_fr", "FR", False, (0, 1), (BLUR, NOISE, CODEC, COLOR), "top-down semantic and distortion features", CNN_SIDE, ("pyiqa/cfanet_fr_kadid_res50-2c4cc61d.pth", TIMM_RESNET50)),
    ToolSpec("AHIQ", "ahiq", "FR", False, (0, 1), (CODEC, SPATIAL, BLUR), "hybrid transformer and convolution, patch-based", CNN_SIDE, ("pyiqa/AHIQ_vit_p8_epoch33-da3ea303.pth", TIMM_RESNET50, TIMM_VIT_B8)),
    ToolSpec("LPIPS", "lpips", "FR", True, (0, 1), (SPATIAL, BLUR, NOISE), "learned perceptual distance", CNN_SIDE, ("pyiqa/LPIPS_v0.1_alex-df73285e.pth", "checkpoints/alexnet-owt-7be5be79.pth"), bounds=(0, INF), of_copy=0),
    ToolSpec("DISTS", "dists", "FR", True, (0, 1), (SPATIAL, BLUR, CODEC), "deep structure and texture similarity", CNN_SIDE, ("pyiqa/DISTS_weights-f5e65c96.pth", VGG16), bounds=(0, INF), of_copy=0),
    ToolSpec("WaDIQaM_FR", "wadiqam_fr", "FR", False, (-1, 0.1), (NOISE, CODEC, BLUR), "weighted patch-wise deep features", CNN_SIDE, ("pyiqa/WaDIQaM-kadid-f7541ea5.pth",)),
    ToolSpec("CKDN", "ckdn", "FR", False, (0, 1), (BLUR, CODEC), "knowledge distilled for degraded references", CNN_SIDE, ("pyiqa/CKDN_model_best-38b27dc6.pth", "checkpoints/resnet50-19c8e357.pth")),
    ToolSpec("PieAPP", "pieapp", "FR", True, (0, 5), (BLUR, NOISE, CODEC), "learned from pairwise preferences", CNN_SIDE, ("pyiqa/PieAPPv0.1-0937b014.pth",)),
    ToolSpec("DeepDC", "deepdc", "FR", True, (0, 1), (SPATIAL, BLUR), "distance correlation of deep features", CNN_SIDE, ("checkpoints/vgg19-dcbb9e9d.pth",), bounds=(0, 1), of_copy=0),
    ToolSpec("A-FINE", "afine_all_scale", "FR", True, (0, 100), (SPATIAL, BLUR, NOISE), "fidelity weighed against naturalness", CNN_SIDE, ("pyiqa/afine.pth", CLIP_VIT_B32), modules=("pkg_resources",), bounds=(0, 100)),
    # --- no reference, weights
    ToolSpec("QAlign", "qalign", "NR", False, (1, 5), (BLUR, NOISE, CODEC, COLOR, LIGHT), "7B model taught rating words", CNN_SIDE, ("hf:q-future/one-align",), modules=("icecream",), bounds=(1, 5)),
    ToolSpec("Q-ReAlign", "qrealign", "NR", False, (0, 1), (BLUR, NOISE, CODEC, COLOR, LIGHT), "0.8B model taught rating words", CNN_SIDE, ("hf:q-future/Q-ReAlign-Mini-0.8B",), bounds=(0, 1)),
    ToolSpec("TOPIQ_NR", "topiq_nr", "NR", False, (0, 1), (BLUR, NOISE, CODEC), "top-down semantic and distortion features", CNN_SIDE, ("pyiqa/cfanet_nr_koniq_res50-9a73138b.pth", TIMM_RESNET50)),
    ToolSpec("CLIPIQA", "clipiqa", "NR", False, (0, 1), (LIGHT, COLOR, NOISE), "CLIP's choice between good and bad wordings", CNN_SIDE, (CLIP_RN50,), modules=("pkg_resources",), bounds=(0, 1)),
    ToolSpec("CLIPIQA+", "clipiqa+", "NR", False, (0, 1), (LIGHT, COLOR, NOISE), "CLIP-IQA with learned wordings", CNN_SIDE, ("pyiqa/CLIP-IQA+_learned_prompts-603f3273.pth", CLIP_RN50), modules=("pkg_resources",), bounds=(0, 1)),
    ToolSpec("QualiCLIP", "qualiclip", "NR", False, (0, 1), (BLUR, NOISE, CODEC), "CLIP taught to rank degradations", CNN_SIDE, ("pyiqa/QualiCLIP.pth", CLIP_RN50), modules=("pkg_resources",), bounds=(0, 1)),
    ToolSpec("LIQE", "liqe", "NR", False, (1, 5), (BLUR, NOISE, CODEC, CONTRAST), "CLIP over scene, distortion and quality at once", CNN_SIDE, ("pyiqa/liqe_koniq.pt", CLIP_VIT_B32), modules=("pkg_resources",), bounds=(1, 5)),
    ToolSpec("ARNIQA", "arniqa", "NR", False, (0, 1), (BLUR, NOISE, CODEC), "learned manifold of image distortions", CNN_SIDE, ("checkpoints/ARNIQA.pth", "pyiqa/regressor_koniq10k.pth", RESNET50)),
    ToolSpec("MUSIQ", "musiq", "NR", False, (0, 100), (BLUR, NOISE, CODEC), "multi-scale transformer at native resolution", CNN_SIDE, ("pyiqa/musiq_koniq_ckpt-e95806b9.pth",)),
    ToolSpec("MANIQA", "maniqa", "NR", False, (0, 1), (BLUR, NOISE, SPATIAL), "multi-dimension attention over patches", CNN_SIDE, ("pyiqa/ckpt_koniq10k.pt", TIMM_VIT_B8)),
    ToolSpec("HyperIQA", "hyperiqa", "NR", False, (0, 1), (BLUR, NOISE, CODEC), "content-aware hyper network", CNN_SIDE, ("pyiqa/HyperIQA-resnet50-koniq10k-c96c41b1.pth", TIMM_RESNET50)),
    ToolSpec("TReS", "tres", "NR", False, (0, 100), (BLUR, NOISE), "transformer with relative ranking", CNN_SIDE, ("pyiqa/tres_koniq-f0502926.pth", RESNET50)),
    ToolSpec("DBCNN", "dbcnn", "NR", False, (0, 1), (BLUR, NOISE, CODEC), "two convolutional streams, bilinearly pooled", CNN_SIDE, ("pyiqa/DBCNN_KonIQ10k-2de81c0a.pth", "pyiqa/DBCNN_scnn-7ea73d75.pth", VGG16)),
    ToolSpec("UNIQUE", "unique", "NR", False, (-3, 3), (BLUR, NOISE, CODEC), "uncertainty-aware ranking across data sets", CNN_SIDE, ("pyiqa/UNIQUE.pt", "checkpoints/resnet34-b627a593.pth")),
    ToolSpec("WaDIQaM_NR", "wadiqam_nr", "NR", False, (-1, 0.1), (NOISE, CODEC), "weighted patch-wise deep features", CNN_SIDE, ("pyiqa/WaDIQaM-NR-koniq-aaffea29.pth",)),
    ToolSpec("NIMA", "nima", "NR", False, (0, 10), (LIGHT, COLOR, CONTRAST), "distribution of ratings, photographic appeal", CNN_SIDE, ("pyiqa/NIMA_InceptionV2_ava-b0c77c00.pth", "hf:timm/inception_resnet_v2.tf_in1k"), bounds=(1, 10)),
    ToolSpec("CNNIQA", "cnniqa", "NR", False, (0, 1), (NOISE, BLUR), "small patch-wise convolutional network", CNN_SIDE, ("pyiqa/CNNIQA_koniq10k-e6f14c91.pth",)),
    ToolSpec("PaQ-2-PiQ", "paq2piq", "NR", False, (0, 100), (BLUR, LIGHT), "from patch to picture quality", CNN_SIDE, ("pyiqa/P2P_RoIPoolModel-fit.10.bs.120-ca69882e.pth", "checkpoints/resnet18-f37072fd.pth")),
    ToolSpec("BRISQUE", "brisque", "NR", True, (0, 100), (NOISE, BLUR, CODEC), "natural scene statistics, support vectors", CNN_SIDE, ("pyiqa/brisque_svm_weights.pth",)),
    ToolSpec("ILNIQE", "ilniqe", "NR", True, (0, 150), (NOISE, BLUR, COLOR), "NIQE with colour, gradient and Gabor statistics", CNN_SIDE, ("pyiqa/ILNIQE_templateModel.mat",), bounds=(0, INF)),
    ToolSpec("NRQM", "nrqm", "NR", False, (0, 10), (BLUR, SHARP), "statistics of super-resolved images", CNN_SIDE, ("pyiqa/NRQM_model.mat",)),
    ToolSpec("PI", "pi", "NR", True, (0, 15), (BLUR, SHARP), "NIQE and NRQM averaged", 192, ("pyiqa/NRQM_model.mat", "pyiqa/niqe_modelparameters.mat")),
)
# fmt: on

TOOLS: dict[str, ToolSpec] = {spec.name: spec for spec in _ROWS}


def tool_key(name: str) -> str:
    """A tool's name without what spelling varies: case, '-', '_' and blanks."""
    return re.sub(r"[-_ ]", "", name).casefold()


_BY_KEY = {tool_key(label): spec for spec in _ROWS for label in (spec.metric, spec.name)}


def nearest_tools(name: str) -> list[str]:
    """At most three tools that a name, which there is none of, is a variant of or near to."""
    key = tool_key(name)
    variant_of = [known for known in _BY_KEY if len(known) > 2 and key.startswith(known)]
    near = difflib.get_close_matches(key, _BY_KEY, n=3, cutoff=0.6)
    return list(dict.fromkeys(_BY_KEY[known].name for known in (*variant_of, *near)))[:3]


@functools.cache
def pyiqa_names() -> tuple[str, ...]:
    """The metrics of the installed pyiqa by its own names, read off its list without importing torch; none where it
    is not installed."""
    found = importlib.util.find_spec("pyiqa")
    if found is None or found.origin is None:
        return ()
    listed = Path(found.origin).with_name("default_model_configs.py")
    return tuple(runpy.run_path(str(listed))["DEFAULT_CONFIGS"])


def is_tool(name: str) -> bool:
    """Whether there is a tool of this name, in any spelling that `find_tool` takes."""
    return tool_key(name) in _BY_KEY


def find_tool(name: str) -> ToolSpec:
    """The tool called `name`, in the field's spelling or pyiqa's; case, '-', '_' and spaces do not matter.
    Raises ToolError, with the nearest names, when there is none."""
    if is_tool(name):
        return _BY_KEY[tool_key(name)]
    near = nearest_tools(name)
    *first, last = near or [""]
    named = f"{', '.join(first)} or {last}" if first else last
    advice = f"did you mean {named}?" if near else f"{command('tools')} lists all."
    raise ToolError(f"there is no tool {name!r} here", advice)
