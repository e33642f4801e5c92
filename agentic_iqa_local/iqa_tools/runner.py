"""Runs the tools: which are available, and their scores of a picture. Knows nothing of models that
answer.

What a metric needs is looked for in the models folder before it is built; nothing is ever fetched.
"""

import functools
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

from agentic_iqa_local.errors import first_line
from agentic_iqa_local.files import ROOT, models_root
from agentic_iqa_local.iqa_tools.calibration import CalibrationError, read_map_file
from agentic_iqa_local.iqa_tools.crops import crops_of, side_by_side
from agentic_iqa_local.iqa_tools.eye import read_eye
from agentic_iqa_local.iqa_tools.pyiqa_metrics import create_metric, llama_kept
from agentic_iqa_local.iqa_tools.reliability import Reliability, load_reliability
from agentic_iqa_local.iqa_tools.specs import TOOLS, ToolError, ToolSpec, find_tool
from agentic_iqa_local.iqa_tools.weights import ListedFiles
from agentic_iqa_local.state import EYE, Box

if TYPE_CHECKING:
    from agentic_iqa_local.iqa_tools.local_nr import Examination

SHIPPED_MAPS = ROOT / "configs" / "tool_maps.yaml"
FIT_ONE = "fit one with python scripts/fit_tools.py"
PATCH_SEED = 0
# Tools whose 0 says that they saw nothing: VIF of a reference without information; MAD of a picture
# twice as high as wide, whose luminance it loses, since pyiqa transposes its contrast sensitivity.
BLIND = ("MAD", "VIF")
MOST_EXAMINATIONS = 8  # kept: a picture and the regions and crops of one assessment


@dataclass(frozen=True)
class ToolInfo:
    """What a user or a prompt may know of a tool: its row in the table, why it is unavailable
    (None: it is available), and the qualities that its map can reach (None: it has no map)."""

    spec: ToolSpec
    reason: str | None
    reachable: tuple[float, float] | None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def available(self) -> bool:
        return self.reason is None


@dataclass(frozen=True)
class ToolReading:
    """One measurement: the metric's own number, its quality in 1..5, and the seconds it took:
    without the metric's construction, but for LocalNR with its loading, and near 0 for a picture
    that LocalNR has read before. `crops` are the parts that it was measured on, empty for all
    pixels."""

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
        eye: the folder of an eye, with which the tool YourEye can run.

    Raises:
        CalibrationError: for a file of maps that cannot be trusted.
        ToolError: for a map of an unknown tool, a damaged manifest, and what is no eye.

    A lock lets one measurement run at a time, so a runner may be shared between threads. Measuring
    raises ToolError for a tool that is unknown, lacks a file or has one that is not the manifest's,
    a missing reference, a picture that is too small, a result that is no score, and a metric that
    fails.
    """

    def __init__(
        self,
        device: str = "cpu",
        maps_path: str | Path | None = None,
        models: str | Path | None = None,
        eye: str | Path | None = None,
    ):
        self.device = device
        self.eye = read_eye(Path(eye)) if eye else None
        self.maps = read_map_file(maps_path or SHIPPED_MAPS)
        for name, logistic in self.maps.items():
            spec = find_tool(name)
            if name != spec.name or logistic.lower_better != spec.lower_better:
                direction = f"lower_better: {str(spec.lower_better).lower()}"
                raise CalibrationError(
                    f"The map of {name} must be named {spec.name} and have {direction}."
                )
        self.files = ListedFiles(models_root(models))
        self._metrics: dict[str, Any] = {}
        self._examinations: dict[Any, Examination] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def reliability(self) -> Reliability:
        """How far each tool can be trusted; with an eye also by the ratings that it learned
        from."""
        if self.eye is None:
            return load_reliability()
        card = self.eye.card
        return load_reliability().with_ratings(card.agreement, **{EYE: card.sigma})

    def info(self, full_reference: bool | None = None) -> list[ToolInfo]:
        """Every tool, or those that can run with a reference (True: all) or without one (False:
        NR)."""
        infos = []
        for spec in TOOLS.values():
            if spec.reference == "FR" and full_reference is False:
                continue
            logistic = self.maps.get(spec.name)
            reachable = logistic.reachable if logistic else None
            infos.append(ToolInfo(spec, self._unavailable(spec), reachable))
        return infos

    def available(self, full_reference: bool) -> list[ToolInfo]:
        """The tools of `info` that can score now."""
        return [info for info in self.info(full_reference) if info.available]

    def unavailable(self, names: Iterable[str]) -> dict[str, str]:
        """Why tools among those called `names` cannot score now. Nothing is loaded."""
        reasons = {}
        for name in names:
            reason = self._unavailable(find_tool(name))
            if reason is not None:
                reasons[name] = reason
        return reasons

    def prepare(self, names: Iterable[str]) -> None:
        """Builds the tools called `names`. Raises ToolError."""
        with self._lock:
            for name in names:
                self._metric(
                    find_tool("LocalNR" if name == EYE else name)
                )  # whose statistics it reads

    def score(
        self, name: str, image: Image.Image, reference: Image.Image | None = None
    ) -> ToolReading:
        """Quality of `image` (RGB) in 1..5 with its raw score; NR tools leave `reference` unused. A
        copy of its reference has the best quality of a tool that compares, which is measured only
        for its raw score if that is unknown. Odd pictures make of it what they like: VIF of a
        checkerboard with itself is below 0."""
        spec = _able(name, reference, self._unavailable)
        if spec.name == EYE:
            return self._seen_by_eye(image)
        logistic = self.maps[spec.name]
        copy = spec.reference == "FR" and image == reference
        if copy and spec.of_copy is not None:
            return ToolReading(spec.name, spec.of_copy, logistic.reachable[1], 0.0)
        raw, seconds, crops = self._measured(spec, image, reference)
        quality = logistic.reachable[1] if copy else logistic(raw)
        return ToolReading(spec.name, raw, quality, seconds, crops)

    def _seen_by_eye(self, image: Image.Image) -> ToolReading:
        assert self.eye is not None
        start = time.perf_counter()
        examined = self.examine(image)
        read = self.eye.read(examined.statistics, self.maps["LocalNR"](examined.quality))
        if read.unlike:
            raise ToolError(
                f"the picture is unlike those that {EYE} was learned from", "rate some like it."
            )
        return ToolReading(EYE, read.level, read.level, time.perf_counter() - start)

    def measure(self, name: str, image: Image.Image, reference: Image.Image | None = None) -> float:
        """The metric's own number, for which no map is needed."""
        spec = _able(name, reference, self._missing)
        return self._measured(spec, image, reference)[0]

    def examine(self, image: Image.Image, reference: Image.Image | None = None) -> "Examination":
        """All that LocalNR reads of an RGB picture, or of how it differs from its `reference`; of
        native-resolution crops if it is too large for the tool. The latest pictures are not read
        twice."""
        crops = crops_of(TOOLS["LocalNR"], *image.size)
        return self._examined([side_by_side(one, crops) for one in (image, reference) if one])

    def places(self, image: Image.Image, reference: Image.Image | None = None) -> "Examination":
        """As `examine`, but a picture that is too large is reduced, so that `places` covers all of
        it."""
        pictures = [one for one in (image, reference) if one]
        most = TOOLS["LocalNR"].most_megapixels or math.inf
        share = most * 1e6 / (image.width * image.height)
        if share < 1:
            width, height = (max(1, int(side * share**0.5)) for side in image.size)
            pictures = [one.resize((width, height), Image.Resampling.BOX) for one in pictures]
        return self._examined(pictures)

    def _unavailable(self, spec: ToolSpec) -> str | None:
        """Why a tool gives no quality; None if it does."""
        if spec.name == EYE:
            return None if self.eye else "no eye was chosen, see --eye"
        reason = self._missing(spec)
        if reason is not None or spec.name in self.maps:
            return reason
        return f"no map: {spec.no_map or FIT_ONE}"

    def _missing(self, spec: ToolSpec) -> str | None:
        """Which module or file a tool lacks; None if it lacks nothing."""
        needed = spec.modules if spec.own else ("pyiqa", *spec.modules)
        for module in needed:
            if importlib.util.find_spec(module) is None:
                return f"missing Python module {module}"
        return self.files.missing(spec)

    def _measured(
        self, spec: ToolSpec, image: Image.Image, reference: Image.Image | None
    ) -> tuple[float, float, tuple[Box, ...]]:
        """(the metric's own number, seconds, the crops that it was measured on). Raises
        ToolError."""
        _require_size(spec, image)
        crops = crops_of(spec, *image.size)
        pictures = [side_by_side(image, crops)]
        if spec.reference == "FR" and reference:
            pictures.append(side_by_side(reference, crops))
        if spec.own:
            start = time.perf_counter()
            raw = self._examined(pictures).quality
            seconds = time.perf_counter() - start
        else:
            with self._lock:
                metric = self._metric(spec)
                start = time.perf_counter()
                raw = self._run(spec, metric, pictures)
                seconds = time.perf_counter() - start
        blind = spec.name in BLIND and raw == 0 and pictures[0] != pictures[1]
        if blind or not spec.is_score(raw):
            got = f"{spec.name} returned {raw:g}, which is no score, for {_size(image)}"
            raise ToolError(got, "use another tool.")
        return raw, seconds, crops

    def _examined(self, pictures: list[Image.Image]) -> "Examination":
        spec = _able("LocalNR", None, self._missing)
        _require_size(spec, pictures[0])
        key = tuple((picture.size, hash(picture.tobytes())) for picture in pictures)
        with self._lock:
            if key not in self._examinations:
                metric = self._metric(spec)
                with _failures(spec.name, pictures[0]):
                    read = metric.examine(*pictures)
                    if not math.isfinite(read.quality):
                        raise ValueError("it read no number, which says nothing")
                    self._examinations[key] = read
                if len(self._examinations) > MOST_EXAMINATIONS:
                    del self._examinations[next(iter(self._examinations))]
            return self._examinations[key]

    def _metric(self, spec: ToolSpec) -> Any:
        """The tool, built when it is first asked for."""
        if spec.name not in self._metrics:
            self.files.check(spec)
            try:
                if spec.own:
                    from agentic_iqa_local.iqa_tools.local_nr import LocalNR

                    self._metrics[spec.name] = LocalNR.load(device=self.device)
                else:
                    self._metrics[spec.name] = create_metric(spec, self.files, self.device)
            except Exception as error:
                mistake = f"{spec.name} could not be built on {self.device}: {first_line(error)}"
                raise ToolError(mistake) from error
        return self._metrics[spec.name]

    def _run(self, spec: ToolSpec, metric: Any, pictures: list[Image.Image]) -> float:
        import torch

        from agentic_iqa_local.iqa_tools.kernels import CPUKernels, as_tensor

        # MANIQA, TReS and others draw crops from NumPy's global state: same image, same crops, same
        # score.
        state = np.random.get_state()
        np.random.seed(PATCH_SEED)
        llama = llama_kept("qalign") if spec.metric == "qalign" else nullcontext()
        try:
            with torch.inference_mode(), CPUKernels(), llama, _failures(spec.name, pictures[0]):
                return float(metric(*[as_tensor(one, self.device) for one in pictures]))
        finally:
            np.random.set_state(state)


def _able(
    name: str, reference: Image.Image | None, why_not: Callable[[ToolSpec], str | None]
) -> ToolSpec:
    """The tool called `name`. Raises ToolError for one that lacks its reference or something else."""
    spec = find_tool(name)
    if spec.reference == "FR" and reference is None:
        mistake = f"{spec.name} compares with a reference image and got none"
        raise ToolError(mistake, "pass one or choose a no-reference tool.")
    reason = why_not(spec)
    if reason is not None:
        raise ToolError(f"{spec.name} is unavailable: {reason}.")
    return spec


def _require_size(spec: ToolSpec, image: Image.Image) -> None:
    if min(image.size) < spec.min_side:
        needs = f"{spec.name} needs at least {spec.min_side} pixels a side, got {_size(image)}"
        raise ToolError(needs, "use another tool.")


def _size(image: Image.Image) -> str:
    return f"{image.width}×{image.height}"


@contextmanager
def _failures(name: str, image: Image.Image) -> Iterator[None]:
    """Whatever is raised becomes a ToolError."""
    try:
        yield
    except Exception as error:
        mistake = f"{name} failed on an image of {_size(image)}: {first_line(error)}"
        raise ToolError(mistake, "use another tool.") from error
