"""Runs the tools: the only module that imports pyiqa, and that only when the first metric of pyiqa's is
built.

Nothing is ever fetched. What a metric needs is looked for in the models folder before it is built, and while
it is built every downloader in its reach raises, and so does loading any file but those. Knows nothing of
VLMs, prompts or graphs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import math
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from agentic_iqa_local.iqa_tools.cache import ScoreCache, score_key
from agentic_iqa_local.iqa_tools.calibration import CalibrationError, read_map_file
from agentic_iqa_local.iqa_tools.specs import TOOLS, ToolError, ToolSpec, find_tool
from agentic_iqa_local.iqa_tools.weights import Weights
from agentic_iqa_local.offline.store import ROOT, environment, file_hash, models_root
from agentic_iqa_local.paths import command
from agentic_iqa_local.views import native_views

DATA = Path(__file__).parent / "data"
SHIPPED_MAPS = ROOT / "configs" / "tool_maps.yaml"
PATCH_SEED = 0
BLOCK = 96  # of NIQE, six of PIQE's: the sides of crops are multiples, so no block lies in two
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels, as for Image.crop


@dataclass(frozen=True)
class ToolInfo:
    """What a user or a prompt may know of a tool. `reason` says why it is unavailable, None if it is not;
    `reachable` and `source` describe its map, None without one; `seconds` and `most_megapixels` are those of
    its ToolSpec.
    """

    name: str
    reference: str
    available: bool
    reason: str | None
    description: str
    good_for: tuple[str, ...]
    lower_better: bool
    reachable: tuple[float, float] | None
    source: str | None
    seconds: float | None = None
    most_megapixels: float | None = None


@dataclass(frozen=True)
class ToolReading:
    """One measurement: the metric's own number, its quality in 1..5, and the seconds it took (construction
    left out; 0 when the number was `cached` on disk). `crops` are the parts that it was measured on, empty
    where on all pixels. Raises ToolError for numbers that are not finite."""

    tool: str
    raw: float
    normalized: float
    seconds: float
    cached: bool = False
    crops: tuple[Box, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.raw) and math.isfinite(self.normalized)):
            raise ToolError(
                f"{self.tool}: expected a finite score, got {self.raw} ({self.normalized} of 5)",
                "use another tool.",
            )


def _keep_offline(root: Path) -> None:
    # Set before anything imports huggingface_hub: without them every missing file costs half a minute of
    # retries.
    os.environ.update(environment(root))
    if "huggingface_hub" in sys.modules:  # too late for the environment: the flag was read at its import
        sys.modules["huggingface_hub"].constants.HF_HUB_OFFLINE = True


def _import_pyiqa(root: Path) -> Any:
    _keep_offline(root)
    # NIQE's, of a picture with less than two blocks that have texture: what comes of it is refused with a
    # reason.
    warnings.filterwarnings("ignore", message=r"cov\(\): degrees of freedom is <= 0")
    with contextlib.redirect_stdout(sys.stderr), _llama_kept():
        import pyiqa
        from pyiqa import archs

        # now rather than with some metric: Q-Align is among them, see _llama_kept
        archs._lazy_import_arch("all of them")
    return pyiqa


# When pyiqa imports its Q-Align (building MS-SSIM is enough), it replaces parts of transformers' Llama, which
# breaks every other Llama in the process, the one inside LLaVA among them. The replacement is undone at once,
# and put back only while Q-Align itself is built or runs.
_LLAMA_PARTS = (
    ("configuration_llama", "LlamaConfig"),
    ("modeling_llama", "LlamaAttention"),
    ("modeling_llama", "LlamaFlashAttention2"),
    ("modeling_llama", "LlamaSdpaAttention"),
    ("modeling_llama", "LlamaDecoderLayer"),
    ("modeling_llama", "LlamaModel.forward"),
    ("modeling_llama", "LlamaForCausalLM.forward"),
)
_QALIGN_LLAMA: dict[tuple[str, str], Any] = {}


def _llama_owner(module: str, path: str) -> tuple[Any, str]:
    owner = importlib.import_module(f"transformers.models.llama.{module}")
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def _llama_attributes() -> dict[tuple[str, str], Any]:
    return {part: vars(owner).get(name) for part in _LLAMA_PARTS for owner, name in [_llama_owner(*part)]}


def _set_attributes(values: dict[tuple[str, str], Any]) -> None:
    for part, value in values.items():
        owner, name = _llama_owner(*part)
        if value is not None:
            setattr(owner, name, value)
        elif name in vars(owner):  # transformers itself has no such part
            delattr(owner, name)


@contextlib.contextmanager
def _llama_kept(spec: ToolSpec | None = None) -> Iterator[None]:
    """While a metric is built or runs: transformers' Llama is afterwards what it was before."""
    before = _llama_attributes()
    if spec is not None and spec.metric == "qalign":
        _set_attributes(_QALIGN_LLAMA)
    try:
        yield
    finally:
        after = _llama_attributes()
        if after != before:
            _QALIGN_LLAMA.update(after)
            _set_attributes(before)


_BUILDING = threading.Lock()  # what is replaced while a metric is built is the whole process's


@contextlib.contextmanager
def _offline(weights: Weights) -> Iterator[None]:
    """While a metric is built: it loads `weights` alone, downloads raise, and what pyiqa prints goes to
    stderr.

    Only the building thread is restricted: another may be loading a model or talking to a local model server
    meanwhile.
    """
    import urllib.request

    import huggingface_hub
    import torch.hub
    from pyiqa.utils import download_util

    builder = threading.get_ident()

    def refuse(url: Any, *args: Any, **kwargs: Any) -> None:
        raise ToolError(
            f"Refused to download {getattr(url, 'full_url', url)}: expected the file below {weights.hub}."
        )

    def for_builder(original: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (instead if threading.get_ident() == builder else original)(
            *args, **kwargs
        )

    with _BUILDING:
        replaced = [
            (torch, "load", for_builder(torch.load, functools.partial(weights.load, torch.load))),
            (
                torch.jit,
                "load",
                for_builder(torch.jit.load, functools.partial(weights.load_script, torch.jit.load)),
            ),
            (
                torch,
                "save",
                for_builder(torch.save, lambda *_, **__: None),
            ),  # LIQE would leave a pickle beside the weights
            (
                download_util,
                "download_url_to_file",
                for_builder(download_util.download_url_to_file, refuse),
            ),  # pyiqa's
            (
                torch.hub,
                "download_url_to_file",
                for_builder(torch.hub.download_url_to_file, refuse),
            ),  # torchvision's too
            (urllib.request, "urlopen", for_builder(urllib.request.urlopen, refuse)),  # CLIP's
            (download_util, "DEFAULT_CACHE_DIR", str(weights.hub / "pyiqa")),
            (torch.hub, "_hub_dir", str(weights.hub)),
            (
                huggingface_hub.constants,
                "HF_HUB_CACHE",
                str(weights.huggingface),
            ),  # read at import, maybe of another folder
        ]
        originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
        try:
            for owner, name, value in replaced:
                setattr(owner, name, value)
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            for owner, name, value in originals:
                setattr(owner, name, value)


class ToolRunner:
    """Measures images with pyiqa's metrics and LocalNR on one device, each built once and kept.

    `maps_path` is a file of maps (default: the shipped configs/tool_maps.yaml); `models` the models folder,
    whose manifest names the weights that may be loaded (default: `store.models_root()`); `cache` an SQLite
    file that keeps raw scores (default: none). Raises CalibrationError for a file of maps that cannot be
    trusted, ToolError for a map of an unknown tool and for a damaged manifest. A lock lets one measurement
    run at a time, so a runner may be shared between threads.
    """

    def __init__(
        self,
        device: str = "cpu",
        maps_path: str | Path | None = None,
        models: str | Path | None = None,
        cache: str | Path | None = None,
    ) -> None:
        self.device = device
        self.maps, self._rejected = read_map_file(maps_path or SHIPPED_MAPS)
        for name, logistic in self.maps.items():
            if name != (spec := find_tool(name)).name or logistic.lower_better != spec.lower_better:
                raise CalibrationError(
                    f"The map of {name} must be named {spec.name} and have lower_better:"
                    f" {str(spec.lower_better).lower()}."
                )
        self.weights = Weights(models_root(models))
        self.constructions: Counter[str] = Counter()
        self._metrics: dict[str, Any] = {}
        self._cache = ScoreCache(cache) if cache else None
        self._lock = threading.Lock()

    def info(self, full_reference: bool | None = None) -> list[ToolInfo]:
        """Every tool, or those that can run with a reference (True: all) or without one (False: NR)."""
        return [
            self._describe(spec)
            for spec in TOOLS.values()
            if full_reference is not False or spec.reference == "NR"
        ]

    def available(self, full_reference: bool) -> list[ToolInfo]:
        """The tools of `info` that can score now."""
        return [info for info in self.info(full_reference) if info.available]

    def score(self, name: str, image: Image.Image, reference: Image.Image | None = None) -> ToolReading:
        """Quality of `image` (RGB) in 1..5 with its raw score; NR tools leave `reference` unused.

        Raises ToolError as `measure` does, and for a tool that has no usable map.
        """
        spec = find_tool(name)
        if (reason := self._unavailable(spec)) is not None:
            raise ToolError(f"{spec.name} is unavailable: {reason}.")
        crops = crops_of(spec, *image.size)
        key = self._key(spec, image, reference, crops) if self._cache else ""
        if self._cache and (raw := self._cache.get(key)) is not None:
            return ToolReading(spec.name, raw, self.maps[spec.name](raw), 0.0, cached=True, crops=crops)
        raw, seconds = self._measure(spec, image, reference, crops)
        if self._cache:
            self._cache.put(key, raw)
        return ToolReading(spec.name, raw, self.maps[spec.name](raw), seconds, crops=crops)

    def prepare(self) -> None:
        """Imports pyiqa, which for a moment changes what models run on: call it before tools and models run
        side by side."""
        with self._lock:
            _import_pyiqa(self.weights.root)

    def measure(self, name: str, image: Image.Image, reference: Image.Image | None = None) -> float:
        """The metric's own number, for which no map is needed; of crops where the picture is too large for
        the tool.

        Raises ToolError for a tool that is unknown, lacks a file or has one that is not the manifest's, a
        missing reference, images of different size or not RGB, an image smaller than the tool accepts, a
        result that is not finite, or a metric that fails.
        """
        spec = self._present(name)
        return self._measure(spec, image, reference, crops_of(spec, *image.size))[0]

    def damaged_part(self, image: Image.Image) -> str | None:
        """Where LocalNR's map of places has the damage: a quarter ("top left"), or "everywhere"; None where
        it sees none. A picture that is too large for the tool is reduced first. Raises ToolError as `measure`
        does."""
        spec = self._present("LocalNR")
        _check_images(spec, image, None)
        if (share := spec.most_megapixels * 1e6 / (image.width * image.height)) < 1:
            smaller = tuple(max(spec.min_side, int(side * share**0.5)) for side in image.size)
            image = image.resize(smaller, Image.Resampling.BOX)
        with self._lock:
            try:
                return self._metric(spec).examine(image).damaged_part()
            except RuntimeError as error:
                raise ToolError(
                    f"{spec.name} failed on an image of {image.width}×{image.height}: {error}"
                ) from error

    def _key(
        self, spec: ToolSpec, image: Image.Image, reference: Image.Image | None, crops: tuple[Box, ...]
    ) -> str:
        versions = [
            f"{package} {importlib.metadata.version(package)}"
            for package in ("pyiqa", "torch", "torchvision", "timm")
        ]
        files = [f"{path} {sha256}" for path, sha256 in sorted(self.weights.check(spec).items())]
        if spec.bundled:
            files.append(f"{spec.bundled} {file_hash(DATA / spec.bundled)}")
        pictures = [x for x in (image, reference if spec.reference == "FR" else None) if x is not None]
        measured = [f"crop {box}" for box in crops]
        return score_key(
            spec.name, *versions, *files, *measured, self.device.partition(":")[0], pictures=pictures
        )

    def _describe(self, spec: ToolSpec) -> ToolInfo:
        reason, logistic = self._unavailable(spec), self.maps.get(spec.name)
        return ToolInfo(
            name=spec.name,
            reference=spec.reference,
            available=reason is None,
            reason=reason,
            description=spec.description,
            good_for=spec.good_for,
            lower_better=spec.lower_better,
            reachable=logistic.reachable if logistic else None,
            source=logistic.source if logistic else None,
            seconds=spec.seconds,
            most_megapixels=spec.most_megapixels,
        )

    def _unavailable(self, spec: ToolSpec) -> str | None:
        if (reason := self._missing(spec)) is not None:
            return reason
        if spec.name in self.maps:
            return None
        if spec.no_map:
            return spec.no_map
        if spec.name in self._rejected:
            return f"no usable map: {self._rejected[spec.name]}; fit one with {command('fit')}"
        return f"no map: fit one with {command('fit')}"

    def _present(self, name: str) -> ToolSpec:
        """The tool `name`, which lacks nothing; else a ToolError."""
        spec = find_tool(name)
        if (reason := self._missing(spec)) is not None:
            raise ToolError(f"{spec.name} is unavailable: {reason}.")
        return spec

    def _missing(self, spec: ToolSpec) -> str | None:
        """Which module or file a tool lacks; None if it lacks nothing."""
        needed = spec.modules if spec.own else ("pyiqa", *spec.modules)
        if absent := [module for module in needed if importlib.util.find_spec(module) is None]:
            # pkg_resources left setuptools with version 81.
            return f"missing Python module {', '.join(absent)}" + (
                " (setuptools<81)" if "pkg_resources" in absent else ""
            )
        return self.weights.missing(spec)

    def _measure(
        self, spec: ToolSpec, image: Image.Image, reference: Image.Image | None, crops: tuple[Box, ...]
    ) -> tuple[float, float]:
        _check_images(spec, image, reference)
        pictures = (image, reference) if spec.reference == "FR" else (image,)
        with self._lock:
            metric = self._metric(spec)
            start = time.perf_counter()
            raw = self._run(
                spec, metric, *(_mounted(picture, crops) if crops else picture for picture in pictures)
            )
            seconds = time.perf_counter() - start
        if spec.name == "MAD" and raw == 0 and image.tobytes() != reference.tobytes():
            # pyiqa transposes its contrast sensitivity, so what is twice as high as wide loses its mean
            # luminance.
            raise ToolError(
                f"MAD found no difference between two images of {image.width}×{image.height} that differ: its"
                " code fails on images much higher than wide",
                "use another tool.",
            )
        if not math.isfinite(raw):
            size = f"{image.width}×{image.height}"
            raise ToolError(
                f"{spec.name} returned {raw} for an image of {size}",
                "expected a finite score, use another tool.",
            )
        return raw, seconds

    def _metric(self, spec: ToolSpec) -> Any:
        if spec.name not in self._metrics:
            self.weights.check(spec)
            try:
                self._metrics[spec.name] = self._own(spec) if spec.own else self._of_pyiqa(spec)
            except Exception as error:
                raise ToolError(f"{spec.name} could not be built on {self.device}: {error}") from error
            self.constructions[spec.name] += 1
        return self._metrics[spec.name]

    def _of_pyiqa(self, spec: ToolSpec) -> Any:
        options = {"pretrained_model_path": str(DATA / spec.bundled)} if spec.bundled else {}
        pyiqa = _import_pyiqa(self.weights.root)
        with _offline(self.weights), _llama_kept(spec):
            return pyiqa.create_metric(spec.metric, device=self.device, **options)

    def _own(self, spec: ToolSpec) -> Any:
        """LocalNR, which is called as pyiqa's metrics are."""
        _keep_offline(self.weights.root)  # timm imports huggingface_hub
        from agentic_iqa_local.iqa_tools.local_nr import LocalNR

        return LocalNR.load(DATA / spec.bundled, self.device)

    def _run(self, spec: ToolSpec, metric: Any, *pictures: Image.Image) -> float:
        import torch

        from agentic_iqa_local.iqa_tools.kernels import CPUKernels

        # MANIQA, TReS and others draw random crops from NumPy's global state: same image, same crops, same
        # score.
        state, (width, height) = np.random.get_state(), pictures[0].size
        np.random.seed(PATCH_SEED)
        try:
            with (
                torch.inference_mode(),
                CPUKernels(),
                contextlib.nullcontext() if spec.own else _llama_kept(spec),
            ):
                return float(metric(*(self._tensor(picture) for picture in pictures)))
        except torch.linalg.LinAlgError as error:  # features of flat blocks are 0 / 0
            raise ToolError(
                f"{spec.name} finds too little texture in an image of {width}×{height}", "use another tool."
            ) from error
        except Exception as error:
            raise ToolError(f"{spec.name} failed on an image of {width}×{height}: {error}") from error
        finally:
            np.random.set_state(state)

    def _tensor(self, image: Image.Image) -> Any:
        """float32 in [0, 1], 1×3×H×W, on the runner's device."""
        import torch

        pixels = torch.from_numpy(np.array(image)).to(self.device)
        return pixels.permute(2, 0, 1)[None].to(torch.float32) / 255


def crops_of(spec: ToolSpec, width: int, height: int) -> tuple[Box, ...]:
    """The parts of a picture of this size that the tool measures, at native resolution, in place of all of
    it; empty where it measures it whole.

    Five of one size at most, at the centre and at the quarters as for a model, with `most_megapixels` in all.
    They do not depend on the model, so the score is the picture's own. This estimates what pools measurements
    of small neighbourhoods, which is what tools with a limit do. The others are measured whole: FSIM, VSI and
    GMSD first scale a picture by its size, PIQE by its brightest pixel, and CW-SSIM weighs places by their
    distance from the centre.

    A third of the pixels against all, in levels, on 14 to 21 mosaics of photographs with noise, blur, JPEG
    and without: NIQE 0.02 apart on average and 0.07 at most, SRCC 0.99 (of 3072×3072); the others 0.03 to
    0.09 and 0.27, SRCC 0.98 (of 1024×1024 or 512×512, so on far smaller crops than those that they get).
    """
    if (
        spec.most_megapixels is None
        or width * height <= spec.most_megapixels * 1e6
        or min(width, height) < BLOCK
    ):
        return ()
    views = native_views(
        width, height, factor=BLOCK, min_pixels=1, max_pixels=int(spec.most_megapixels * 1e6 / 5)
    )
    left, top, right, bottom = views[0].box
    return tuple(view.box for view in views) if min(right - left, bottom - top) >= spec.min_side else ()


def _mounted(picture: Image.Image, boxes: tuple[Box, ...]) -> Image.Image:
    """The crops side by side: a metric pools over all of them, as it would over the whole picture."""
    width, height = boxes[0][2] - boxes[0][0], boxes[0][3] - boxes[0][1]
    montage = Image.new(picture.mode, (width * len(boxes), height))
    for column, box in enumerate(boxes):
        montage.paste(picture.crop(box), (column * width, 0))
    return montage


def _check_images(spec: ToolSpec, image: Image.Image, reference: Image.Image | None) -> None:
    if spec.reference == "FR" and reference is None:
        raise ToolError(
            f"{spec.name} compares with a reference image and got none",
            "pass one or choose a no-reference tool.",
        )
    used = (image, reference) if spec.reference == "FR" else (image,)
    for picture in used:
        if picture.mode != "RGB":
            raise ToolError(
                f"{spec.name} expects RGB images, got mode {picture.mode}", "convert with .convert('RGB')."
            )
    if len({picture.size for picture in used}) > 1:
        raise ToolError(
            f"{spec.name} expects image and reference of one size, got {image.width}×{image.height} and"
            f" {reference.width}×{reference.height}",
            "crop or register them first, scaling would change the score.",
        )
    if min(image.size) < spec.min_side:
        raise ToolError(
            f"{spec.name} needs at least {spec.min_side} pixels a side, got {image.width}×{image.height}",
            "use another tool.",
        )
