"""Runs the tools: which are available, and their scores of a picture. Knows nothing of models that answer.

What a metric needs is looked for in the models folder before it is built; nothing is ever fetched.
"""

import importlib.util
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from agentic_iqa_local.files import ROOT, models_root
from agentic_iqa_local.iqa_tools.calibration import CalibrationError, read_map_file
from agentic_iqa_local.iqa_tools.crops import Box, crops_of, side_by_side
from agentic_iqa_local.iqa_tools.pyiqa_metrics import create_metric, import_pyiqa, llama_kept
from agentic_iqa_local.iqa_tools.specs import DATA, TOOLS, ToolError, ToolSpec, find_tool
from agentic_iqa_local.iqa_tools.weights import Weights

if TYPE_CHECKING:
    from agentic_iqa_local.iqa_tools.local_nr import Examination

SHIPPED_MAPS = ROOT / "configs" / "tool_maps.yaml"
PATCH_SEED = 0
# Tools whose 0 says that they saw nothing: VIF of a reference without information; MAD of a picture twice as high as
# wide, whose luminance it loses, since pyiqa transposes its contrast sensitivity.
BLIND = ("MAD", "VIF")
MOST_EXAMINATIONS = 8  # kept: a picture and the regions and crops of one assessment


@dataclass(frozen=True)
class ToolInfo:
    """What a user or a prompt may know of a tool: its row in the table, why it is unavailable (None if it is
    not), and the qualities that its map can reach and where the map comes from (None without one)."""

    spec: ToolSpec
    reason: str | None
    reachable: tuple[float, float] | None
    source: str | None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def available(self) -> bool:
        return self.reason is None


@dataclass(frozen=True)
class ToolReading:
    """One measurement: the metric's own number, its quality in 1..5, and the seconds it took: without the
    metric's construction, but for LocalNR with its loading, and near 0 where its reading was there. `crops` are
    the parts that it was measured on, empty where on all pixels."""

    tool: str
    raw: float
    normalized: float
    seconds: float
    crops: tuple[Box, ...] = ()


class ToolRunner:
    """Measures images with pyiqa's metrics and LocalNR on one device, each built once and kept.

    Args:
        device: where torch computes.
        maps_path: a file of maps (default: the shipped configs/tool_maps.yaml).
        models: the models folder, whose manifest names the weights that may be loaded.

    Raises:
        CalibrationError: for a file of maps that cannot be trusted.
        ToolError: for a map of an unknown tool, and for a damaged manifest.

    A lock lets one measurement run at a time, so a runner may be shared between threads. Measuring raises
    ToolError for a tool that is unknown, lacks a file or has one that is not the manifest's, a reference that
    is lacking, a picture that is too small, a result that is not finite, and a metric that fails.
    """

    def __init__(
        self,
        device: str = "cpu",
        maps_path: str | Path | None = None,
        models: str | Path | None = None,
    ):
        self.device = device
        self.maps, self._rejected = read_map_file(maps_path or SHIPPED_MAPS)
        for name, logistic in self.maps.items():
            if name != (spec := find_tool(name)).name or logistic.lower_better != spec.lower_better:
                expected = (
                    f"named {spec.name} and have lower_better: {str(spec.lower_better).lower()}"
                )
                raise CalibrationError(f"The map of {name} must be {expected}.")
        self.weights = Weights(models_root(models))
        self._metrics: dict[str, Any] = {}
        self._examinations: dict[Any, Examination] = {}
        self._lock = threading.Lock()

    def info(self, full_reference: bool | None = None) -> list[ToolInfo]:
        """Every tool, or those that can run with a reference (True: all) or without one (False: NR)."""
        specs = [
            spec for spec in TOOLS.values() if full_reference is not False or spec.reference == "NR"
        ]
        found = [(spec, self._unavailable(spec), self.maps.get(spec.name)) for spec in specs]
        return [
            ToolInfo(spec, reason, of and of.reachable, of and of.source)
            for spec, reason, of in found
        ]

    def available(self, full_reference: bool) -> list[ToolInfo]:
        """The tools of `info` that can score now."""
        return [info for info in self.info(full_reference) if info.available]

    def unavailable(self, names: Iterable[str]) -> dict[str, str]:
        """Why those of the tools called `names` that cannot score now cannot. Nothing is loaded."""
        reasons = {name: self._unavailable(find_tool(name)) for name in names}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def prepare(self, names: Iterable[str] = ()) -> None:
        """Imports pyiqa, which for a moment changes what models run on (see `llama_kept`): call it before
        tools and models run side by side. Builds the tools called `names`. Raises ToolError."""
        with self._lock:
            try:
                import_pyiqa()
            except ImportError as error:
                raise ToolError(
                    f"pyiqa cannot be imported: {error}", "install its requirements again."
                ) from error
            for name in names:
                self._metric(find_tool(name))

    def score(
        self, name: str, image: Image.Image, reference: Image.Image | None = None
    ) -> ToolReading:
        """Quality of `image` (RGB) in 1..5 with its raw score; NR tools leave `reference` unused. A copy of its
        reference has the best quality of a tool that compares: that is known, and measured only where its raw score
        is not. Odd pictures make of it what they like: VIF of a checkerboard with itself is below 0."""
        spec = _with_reference(find_tool(name), reference)
        logistic = self.maps[_usable(spec, self._unavailable).name]
        copy = spec.reference == "FR" and image == reference
        if copy and spec.of_copy is not None:
            return ToolReading(spec.name, spec.of_copy, logistic.reachable[1], 0.0)
        raw, seconds, crops = self._measured(spec, image, reference)
        level = logistic.reachable[1] if copy else logistic(raw)
        return ToolReading(spec.name, raw, level, seconds, crops)

    def measure(self, name: str, image: Image.Image, reference: Image.Image | None = None) -> float:
        """The metric's own number, for which no map is needed."""
        spec = _with_reference(find_tool(name), reference)
        return self._measured(_usable(spec, self._missing), image, reference)[0]

    def examine(self, image: Image.Image, reference: Image.Image | None = None) -> "Examination":
        """All that LocalNR reads of an RGB picture, against its `reference` where there is one; of
        native-resolution crops where it is too large for the tool. The latest pictures are not read twice."""
        crops = crops_of(TOOLS["LocalNR"], *image.size)
        return self._examined(*(side_by_side(one, crops) for one in (image, reference) if one))

    def places(self, image: Image.Image, reference: Image.Image | None = None) -> "Examination":
        """As `examine`, but where the picture is too large it is reduced, so that `places` covers all of it."""
        most = (TOOLS["LocalNR"].most_megapixels or math.inf) * 1e6
        pictures = [one for one in (image, reference) if one]
        if (share := most / (image.width * image.height)) < 1:
            size = (max(1, int(image.width * share**0.5)), max(1, int(image.height * share**0.5)))
            pictures = [one.resize(size, Image.Resampling.BOX) for one in pictures]
        return self._examined(*pictures)

    def ssim_map(self, image: Image.Image, reference: Image.Image) -> np.ndarray:
        """SSIM (Wang et al., IEEE TIP 13(4), 2004, equation 13) at each place of two RGB pictures of one size,
        rows×columns float64: 1 where nothing was lost. Their mean is the metric's score."""
        import torch

        _usable(TOOLS["SSIM"], self._missing)
        with self._lock, _failures("SSIM's map", image):
            import_pyiqa()
            from pyiqa.archs.func_util import preprocess_rgb
            from pyiqa.archs.ssim_arch import ssim

            with torch.inference_mode():
                lumas = [
                    preprocess_rgb(self._tensor(one), True, 255).double()
                    for one in (image, reference)
                ]
                values: Any = ssim(*lumas, data_range=255, get_ssim_map=True)
                return values[0, 0].cpu().numpy()

    def _unavailable(self, spec: ToolSpec) -> str | None:
        """Why a tool gives no quality; None if it does."""
        if (reason := self._missing(spec)) is not None or spec.name in self.maps:
            return reason
        if spec.name in self._rejected:
            return f"no usable map: {self._rejected[spec.name]}; fit one with python scripts/fit_tools.py"
        return spec.no_map or "no map: fit one with python scripts/fit_tools.py"

    def _missing(self, spec: ToolSpec) -> str | None:
        """Which module or file a tool lacks; None if it lacks nothing."""
        needed = spec.modules if spec.own else ("pyiqa", *spec.modules)
        if absent := [module for module in needed if importlib.util.find_spec(module) is None]:
            # pkg_resources left setuptools with version 81.
            older = " (setuptools<81)" if "pkg_resources" in absent else ""
            return f"missing Python module {', '.join(absent)}{older}"
        if spec.bundled and (reason := _damaged(DATA / spec.bundled)):
            return reason
        return self.weights.missing(spec)

    def _measured(
        self, spec: ToolSpec, image: Image.Image, reference: Image.Image | None
    ) -> tuple[float, float, tuple[Box, ...]]:
        """(the metric's own number, seconds, the crops that it was measured on). Raises ToolError."""
        _require_size(spec, image)
        crops = crops_of(spec, *image.size)
        used = (image, reference) if spec.reference == "FR" and reference else (image,)
        pictures = [side_by_side(picture, crops) for picture in used]
        if spec.own:
            start = time.perf_counter()
            raw = self._examined(*pictures).quality
            seconds = time.perf_counter() - start
        else:
            with self._lock:
                metric = self._metric(spec)
                start = time.perf_counter()
                raw = self._run(spec, metric, *pictures)
                seconds = time.perf_counter() - start
        blind = spec.name in BLIND and raw == 0 and pictures[0] != pictures[1]
        if blind or not spec.is_score(raw):
            size = f"{image.width}×{image.height}"
            raise ToolError(
                f"{spec.name} returned {raw:g}, which is no score, for {size}", "use another tool."
            )
        return raw, seconds, crops

    def _examined(self, *pictures: Image.Image) -> "Examination":
        spec = _usable(TOOLS["LocalNR"], self._missing)
        _require_size(spec, pictures[0])
        key = tuple((one.size, hash(one.tobytes())) for one in pictures)
        with self._lock:
            if key not in self._examinations:
                metric = self._metric(spec)
                with _failures(spec.name, pictures[0]):
                    read = metric.examine(*pictures)
                    if not read.is_finite:
                        raise ValueError("it read nan or infinity, which says nothing")
                latest = list(self._examinations.items())[1 - MOST_EXAMINATIONS :]
                self._examinations = dict([*latest, (key, read)])
            return self._examinations[key]

    def _metric(self, spec: ToolSpec) -> Any:
        if spec.name not in self._metrics:
            self.weights.check(spec)
            build = self._local_nr if spec.own else create_metric
            try:
                self._metrics[spec.name] = build(spec, self.weights, self.device)
            except Exception as error:
                raise ToolError(
                    f"{spec.name} could not be built on {self.device}: {error}"
                ) from error
        return self._metrics[spec.name]

    @staticmethod
    def _local_nr(spec: ToolSpec, _: Weights, device: str) -> Any:
        from agentic_iqa_local.iqa_tools.local_nr import LocalNR

        return LocalNR.load(DATA / spec.bundled, device)

    def _run(self, spec: ToolSpec, metric: Any, *pictures: Image.Image) -> float:
        import torch

        from agentic_iqa_local.iqa_tools.kernels import CPUKernels

        # MANIQA, TReS and others draw crops from NumPy's global state: same image, same crops, same score.
        state = np.random.get_state()
        np.random.seed(PATCH_SEED)
        llama = llama_kept("qalign") if spec.metric == "qalign" else nullcontext()
        try:
            with torch.inference_mode(), CPUKernels(), llama, _failures(spec.name, pictures[0]):
                return float(metric(*(self._tensor(picture) for picture in pictures)))
        finally:
            np.random.set_state(state)

    def _tensor(self, image: Image.Image) -> Any:
        """float32 in [0, 1], 1×3×H×W, on the runner's device."""
        import torch

        pixels = torch.from_numpy(np.array(image)).to(self.device)
        return pixels.permute(2, 0, 1)[None].to(torch.float32) / 255


def _usable(spec: ToolSpec, why_not: Callable[[ToolSpec], str | None]) -> ToolSpec:
    if (reason := why_not(spec)) is not None:
        raise ToolError(f"{spec.name} is unavailable: {reason}.")
    return spec


def _damaged(file: Path) -> str | None:
    """What is wrong with a parameter file that ships here, as far as its head tells; None if nothing is."""
    again = "(install the package again)"
    if not file.is_file():
        return f"missing weights {file.name}, expected in {file.parent} {again}"
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, "np"):
                return None
        except (SafetensorError, OSError) as error:
            return f"{file} is damaged: {error} {again}"
    return None if file.stat().st_size else f"{file} is empty {again}"


def _with_reference(spec: ToolSpec, reference: Image.Image | None) -> ToolSpec:
    if spec.reference == "FR" and reference is None:
        lacks = "compares with a reference image and got none"
        raise ToolError(f"{spec.name} {lacks}", "pass one or choose a no-reference tool.")
    return spec


def _require_size(spec: ToolSpec, image: Image.Image) -> None:
    if min(image.size) < spec.min_side:
        got = f"got {image.width}×{image.height}"
        raise ToolError(
            f"{spec.name} needs at least {spec.min_side} pixels a side, {got}", "use another tool."
        )


@contextmanager
def _failures(name: str, image: Image.Image) -> Iterator[None]:
    """Whatever is raised becomes a ToolError."""
    try:
        yield
    except Exception as error:
        size = f"an image of {image.width}×{image.height}"
        if type(error).__name__.endswith("LinAlgError"):  # the features of flat blocks are 0 / 0
            raise ToolError(
                f"{name} finds too little texture in {size}", "use another tool."
            ) from error
        raise ToolError(f"{name} failed on {size}: {error}") from error
