"""Examines whether a set-up will work on this machine: what is found, whether it will do, and the remedy
where it will not.

Every check runs in a process apart, where Python's sockets reach nothing: one that hangs, crashes or is
killed for want of memory is a failed check, and the next gets a new process. Models and tools are loaded by
the code that assessments use, so that what passes here is what runs there. `examine` yields the checks;
`scripts/doctor.py` prints them.
"""

import ctypes
import errno
import functools
import importlib.metadata
import json
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import textwrap
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from agentic_iqa_local.config import ConfigError, ModelSettings, Settings
from agentic_iqa_local.devices import DeviceError, choose_device, choose_dtype, describe_device
from agentic_iqa_local.iqa_tools import ToolError, ToolRunner
from agentic_iqa_local.iqa_tools.cache import ScoreCache
from agentic_iqa_local.iqa_tools.calibration import CalibrationError
from agentic_iqa_local.iqa_tools.specs import TOOLS, find_tool
from agentic_iqa_local.iqa_tools.weights import huggingface_cache, torch_hub
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.offline.assembly import RECORD, WEIGHTS, AssemblyError, read_record, weights_are_right
from agentic_iqa_local.offline.store import (
    MANIFEST,
    BundleError,
    models_root,
    problems_of,
    read_manifest,
    unlisted,
)
from agentic_iqa_local.paths import ASSEMBLED, EMBEDDED, EMBEDDED_PARTS, ROOT, about_missing_model, command
from agentic_iqa_local.services import Services
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.model_folder import read_weights
from agentic_iqa_local.worker import Worker, cause_of_death

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from PIL import Image

    from agentic_iqa_local.vlm_client.rendering import Renderer

Status = Literal["pass", "warn", "fail"]
Finding = tuple[Status, str, str]

TIMEOUT = 300.0
GIB = 2**30
ROOM = 256 * 2**20  # bytes that a disk needs to have free
SIDE = 192  # pixels; no tool asks for more
PLAIN = {"float32": 4, "bfloat16": 2, "float16": 2}
QUANTISED = {"8bit": 1.0, "4bit": 0.55}  # bytes of a weight, nf4's scales included
# As transformers_client leaves them unquantised, by a level of the tensor's name.
KEPT = {"visual", "vision_tower", "vision_model", "lm_head", "embed_tokens"}
ENVIRONMENT = (
    f"run it in the project's environment: {command('doctor', made=True)}, or without a network in one made"
    " of a bundle's wheels (docs/air_gapped.md)"
)
OWN_ERRORS = (VLMError, ToolError, CalibrationError, ConfigError, DeviceError, BundleError, AssemblyError)
LOOPBACK = {"127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True)
class Check:
    """One thing that was examined, each text on one line. `remedy` is empty where it passed; `seconds` is how
    long it took."""

    name: str
    status: Status
    found: str
    remedy: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """They name folders, and quote what libraries and processes say."""
        for field in ("name", "found", "remedy"):
            object.__setattr__(self, field, one_line(getattr(self, field)))


@dataclass(frozen=True)
class Setup:
    """What is examined: a configuration and the device that `gpu` and `cpu` ask for, as `choose_device` reads
    them."""

    settings: Settings
    gpu: str | None = None
    cpu: bool = False
    quick: bool = False

    @cached_property
    def device(self) -> str:
        return choose_device(self.gpu, self.cpu)

    @cached_property
    def services(self) -> Services:
        """The models, loaded once and kept."""
        return Services(self.settings, self.device)

    @property
    def backends(self) -> list[str]:
        """The configuration's distinct models, ENGINE.FOLDER."""
        return list(
            dict.fromkeys(self.settings.role(role).backend for role in ("planner", "executor", "summarizer"))
        )

    def uses(self, engine: str) -> bool:
        return any(backend.partition(".")[0] == engine for backend in self.backends)

    @property
    def named_tools(self) -> list[str]:
        """The tools that the configuration names, in the field's spelling where they are known."""
        names = (*self.settings.tools.full_reference, *self.settings.tools.no_reference)
        return list(dict.fromkeys(_spelled(name) for name in names))

    def tools(self) -> ToolRunner:
        """A runner that has built no metric yet."""
        return Services(self.settings, self.device).tools


def _spelled(tool: str) -> str:
    try:
        return find_tool(tool).name
    except ToolError:
        return tool


def check(title: str, remedy: str) -> Callable[[Callable[..., Finding | None]], Callable[..., Check | None]]:
    """Makes of a function that returns a finding one that returns a timed Check, named `title` and what it
    was asked about.

    What it raises is a fail; this project's own errors bring their remedy, others get `remedy`.
    """

    def decorate(find: Callable[..., Finding | None]) -> Callable[..., Check | None]:
        @functools.wraps(find)
        def examined(setup: Setup, *about: str) -> Check | None:
            began = time.perf_counter()
            try:
                finding = find(setup, *about)
            except OWN_ERRORS as error:
                finding = ("fail", error.message, error.remedy.rstrip(".") or remedy)
            except Exception as error:
                finding = ("fail", f"{type(error).__name__}: {_told(error)}", remedy)
            return finding and Check(
                examined.title(*about), *finding, seconds=round(time.perf_counter() - began, 3)
            )

        examined.title = lambda *about: one_line(" ".join((title, *about)))  # as Check.name has it
        return examined

    return decorate


def _told(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or "no message"


def gib(size: float) -> str:
    """Bytes for a reader, in GiB."""
    return f"{size / GIB:.2f} GiB"


# versions


def _project() -> tuple[str, list[str]]:
    """The Python and the packages that this version asks for: those of the checkout, else of the installed
    package."""
    file = ROOT / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return project["requires-python"], project["dependencies"]
    installed = importlib.metadata.distribution("agentic_iqa_local")
    return installed.metadata["Requires-Python"], installed.requires or []


def _unmet(requirements: list[str], only: set[str] | None = None) -> list[str]:
    """One phrase for each requirement (of the packages `only`, where given) that the installed packages do
    not meet."""
    from packaging.requirements import Requirement

    lines = []
    for requirement in map(Requirement, requirements):
        if (only and requirement.name not in only) or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{requirement.name} is not installed")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            lines.append(f"{requirement.name} is {version}, expected {requirement.specifier}")
    return lines


def _versions(*packages: str) -> str:
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)


@check("python", ENVIRONMENT)
def python(setup: Setup) -> Finding:
    """Is this Python new enough?"""
    from packaging.specifiers import SpecifierSet

    needed, version = _project()[0], ".".join(map(str, sys.version_info[:3]))
    good = SpecifierSet(needed).contains(version)
    return (
        ("pass" if good else "fail"),
        f"{version} in {sys.prefix}, needs {needed}",
        "" if good else ENVIRONMENT,
    )


@check("packages", ENVIRONMENT)
def packages(setup: Setup) -> Finding:
    """Is every package there that this version asks for, and new enough?"""
    if unmet := _unmet(_project()[1]):
        return "fail", "; ".join(unmet), ENVIRONMENT
    return "pass", _versions("torch", "transformers", "pyiqa"), ""


def vllm_distribution() -> str | None:
    """The name of the installed distribution that brings the package vllm; None without one."""
    return next(iter(importlib.metadata.packages_distributions().get("vllm", [])), None)


@check("vllm", "install vLLM anew in an environment of its own, or use --engine transformers")
def vllm(setup: Setup) -> Finding | None:
    """Does vLLM fit the device, and does it ask for the torch and transformers that are here? Nothing where
    it is not used."""
    if not setup.uses("vllm"):
        return None
    if (name := vllm_distribution()) is None:
        return (
            "fail",
            "not installed, and the configuration's engine is vllm",
            "install it (docs/engines.md) or use --engine transformers",
        )
    version = importlib.metadata.version(name)
    for_cpu = "cpu" in name or "cpu" in version
    found = f"{name} {version}, built for {'CPUs' if for_cpu else 'GPUs'}"
    if for_cpu == setup.device.startswith("cuda"):
        return (
            "fail",
            f"{found}; the device is {setup.device}",
            "install the other build, or use --engine transformers",
        )
    if unmet := _unmet(importlib.metadata.requires(name) or [], {"torch", "transformers"}):
        return (
            "warn",
            f"{found}; its metadata asks for others: {'; '.join(unmet)}",
            (
                "trust it only where it loads and answers below; else install vLLM with its own torch in an"
                " environment of its own"
            ),
        )
    return "pass", f"{found}; {_versions('torch', 'transformers')} suit it", ""


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the installed NVIDIA driver reaches, as (major, minor); None without a driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


@check("torch", "install torch anew, from a package index or from a bundle's wheels")
def torch_build(setup: Setup) -> Finding:
    """Does torch's build fit the NVIDIA driver, as far as a GPU is meant?"""
    import torch

    build, driver = torch.version.cuda, driver_cuda()
    reach = f"the driver reaches CUDA {driver[0]}.{driver[1]}" if driver else "there is no NVIDIA driver"
    found = f"torch {torch.__version__} is built {f'for CUDA {build}' if build else 'without CUDA'}, {reach}"
    if setup.cpu or (build is None and driver is None and setup.gpu is None):
        return "pass", f"{found}; the CPU is used", ""
    if build is None:
        return "fail" if setup.gpu else "warn", found, "install a torch that is built for CUDA, or pass --cpu"
    if driver is None:
        remedy = "install an NVIDIA driver (in a container: start it with --gpus all), or pass --cpu"
        return ("fail", found, remedy) if setup.gpu else ("warn", f"{found}; the CPU is used", remedy)
    if driver[0] < int(build.partition(".")[0]):
        return (
            "fail",
            found,
            f"install a driver for CUDA {build} or newer, or a torch that is built for CUDA {driver[0]}",
        )
    return "pass", found, ""


@check("device", "pass --cpu, or free the GPU")
def device(setup: Setup) -> Finding:
    """Does the device that was asked for exist and compute?"""
    import torch

    if (total := torch.ones(8, device=setup.device).sum().item()) != 8:
        return "fail", f"{setup.device} adds eight ones to {total}", "do not use this device"
    about = describe_device(setup.device)
    if setup.device == "cpu":
        return "pass", f"cpu ({about['name']}), {torch.get_num_threads()} threads", ""
    return "pass", f"{setup.device} ({about['name']}, {gib(about['memory_total_bytes'])})", ""


# files


@check("models folder", "unpack the bundle again: python -m agentic_iqa_local unpack BUNDLE")
def models_folder(setup: Setup) -> Finding:
    """Is every file of the models folder what its manifest says? `quick` compares sizes instead of reading
    every byte."""
    root = models_root()
    unpack = "python -m agentic_iqa_local unpack BUNDLE"
    if not os.path.isdir(root):
        return (
            "fail",
            f"{root}: no such folder",
            f"say where it is with --models or $AGENTIC_IQA_MODELS, or {unpack}",
        )
    if not os.path.lexists(root / MANIFEST):
        found = f"{root}: no manifest"
        if root == ROOT / "models":
            return "pass", f"{found}; the embedded model is assembled here", ""
        return "warn", f"{found}, so nobody can tell whether its files are whole", unpack
    manifest, sha256 = read_manifest(root)
    if setup.quick:
        sizes = {
            entry.path: (root / entry.path).stat().st_size
            for entry in manifest.files
            if (root / entry.path).is_file()
        }
        problems = [
            f"{root / entry.path}: expected {entry.size} bytes, found {sizes.get(entry.path, 'no file')}"
            for entry in manifest.files
            if sizes.get(entry.path) != entry.size
        ] + list(map(str, unlisted(root, manifest)))
    else:
        problems = [problem.message for problem in problems_of(root)]
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return "fail", f"{problems[0]}{more}", f"{unpack} (what is right is kept)"
    found = (
        f"{root}: {len(manifest.files)} files are as manifest {sha256[:12]}"
        f" says{', by size' if setup.quick else ''}"
    )
    folders = {Path(setup.settings.model(backend).path).resolve() for backend in setup.backends}
    known = {(root / entry.path).parent.resolve() for entry in manifest.files} | {EMBEDDED}
    if foreign := sorted(map(str, folders - known)):
        return (
            "warn",
            f"{found}; it does not list {', '.join(foreign)}",
            "bring that folder in a bundle to have it verified",
        )
    return "pass", found, ""


@check("embedded model", "get the checkout or the installation again")
def embedded_model(setup: Setup) -> Finding | None:
    """Are the assembled weights those that the parts' record names? Nothing where another model is used;
    `quick` reads no weights."""
    if not ASSEMBLED or EMBEDDED not in {
        Path(setup.settings.model(backend).path) for backend in setup.backends
    }:
        return None
    record = read_record(EMBEDDED_PARTS)
    if not os.path.isdir(EMBEDDED):
        return "fail", *about_missing_model(EMBEDDED)
    if not (setup.quick or weights_are_right(EMBEDDED, record)):
        _, remedy = about_missing_model(EMBEDDED)
        return "fail", f"{EMBEDDED / WEIGHTS} is not what {RECORD} names", f"remove {EMBEDDED}; {remedy}"
    return "pass", f"{EMBEDDED}: assembled with {record.gguf.file}{'' if setup.quick else ', and whole'}", ""


# Where libraries write, and the variable of theirs that says so.
CACHES = {
    "temporary files": "TMPDIR",
    "torch": "TORCH_HOME",
    "huggingface": "HF_HUB_CACHE",
    "triton": "TRITON_CACHE_DIR",
    "matplotlib": "MPLCONFIGDIR",
    "vllm": "VLLM_CACHE_ROOT",
}


def cache_folder(name: str) -> Path:
    """The folder of a row of CACHES on this machine."""
    defaults = {
        "temporary files": "/tmp",  # nosec B108 # named, as where libraries put theirs without $TMPDIR
        "torch": torch_hub().parent,
        "huggingface": huggingface_cache(),
        "triton": Path(os.environ.get("TRITON_HOME", "~"), ".triton", "cache"),
        "matplotlib": Path(os.environ.get("XDG_CONFIG_HOME", "~/.config"), "matplotlib"),
        "vllm": Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "vllm"),
    }
    return Path(os.environ.get(CACHES[name]) or defaults[name]).expanduser().absolute()


def writable(folder: Path) -> str | None:
    """Why nothing can be written to `folder`, which need not exist yet; None where it can."""
    place = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")
    except OSError as error:
        return f"{place} cannot be written to ({error.strerror})"
    free = shutil.disk_usage(place).free
    return f"only {free // 2**20} MiB are free on the disk of {place}" if free < ROOM else None


@check("cache", "choose another folder")
def cache(setup: Setup, name: str) -> Finding | None:
    """Can a library write to its folder? Nothing for one inside the models folder, which is only read, or of
    an engine that is not used."""
    folder = cache_folder(name)
    if folder.is_relative_to(models_root()) or (name == "vllm" and not setup.uses("vllm")):
        return None
    # Libraries make their own folders; nobody makes $TMPDIR.
    problem = (
        "there is no such folder" if name == "temporary files" and not folder.is_dir() else writable(folder)
    )
    if problem is None:
        return "pass", str(folder), ""
    needed = name == "temporary files" or (
        name in ("triton", "vllm") and setup.uses("vllm") and not setup.cpu
    )
    return (
        "fail" if needed else "warn",
        f"{folder}: {problem}",
        f"make room there, or point ${CACHES[name]} to another folder",
    )


@check("score cache", "set tools.cache to another file, or leave it out")
def score_cache(setup: Setup) -> Finding | None:
    """Can the tools' scores be kept where the configuration says?"""
    if setup.settings.tools.cache is None:
        return None
    file = Path(setup.settings.tools.cache).absolute()
    if problem := writable(file.parent):
        return "fail", f"{file}: {problem}", "set tools.cache to another file, or leave it out"
    if file.exists():
        ScoreCache(file)
    return "pass", str(file), ""


# models


def _renderer(setup: Setup, backend: str) -> "Renderer":
    from agentic_iqa_local.vlm_client.rendering import Renderer

    engine, _, name = backend.partition(".")
    return Renderer(name, setup.settings.model(backend), weights=engine != "server")


@check("folder", "copy the folder again")
def model_folder(setup: Setup, backend: str) -> Finding:
    """Is the folder a vision-language model that this transformers reads, with all its weight files whole?"""
    renderer = _renderer(setup, backend)
    found = f"{renderer.folder}: {renderer.config.model_type}"
    if backend.partition(".")[0] == "server":
        return "pass", f"{found}, its processor (the weights are the server's)", ""
    weights = renderer.weights
    return (
        "pass",
        f"{found}, {weights.numbers / 1e6:.1f} million parameters in {len(weights.files)} file(s)",
        "",
    )


def weight_bytes(folder: Path, quantization: str, width: int) -> int:
    """Bytes of a folder's weights once loaded in a dtype of `width` bytes.

    Quantised are the matrices of the language layers and of what joins the tower to them; tower, embeddings
    and head keep the dtype. A folder that is quantised already is counted as it lies on disk.
    """
    weights = read_weights(folder)
    if "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
        return sum(file.stat().st_size for file in weights.files)
    small = QUANTISED.get(quantization, width)
    return round(
        sum(
            math.prod(shape)
            * (
                small
                if len(shape) == 2 and name.endswith(".weight") and not KEPT & {*name.split(".")}
                else width
            )
            for name, shape in weights.shapes.items()
        )
    )


def cache_bytes(config: Any, tokens: int, width: int) -> int:
    """Bytes of the keys and values of `tokens` tokens, for a transformers text configuration; an upper bound
    for models whose layers do not all keep every token."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head * width * tokens


def prompt_tokens(renderer: "Renderer") -> int:
    """Tokens of two images of the largest size that the model sees at once, and of a long prompt with its
    answer."""
    from PIL import Image

    from agentic_iqa_local.prompts import DEFAULT_QUERY, summarizer_prompt
    from agentic_iqa_local.vlm_client.vllm_client import TEXT_TOKENS

    limits = renderer.limits
    if limits.factor > 1:
        return 2 * (limits.max_pixels // limits.factor**2) + TEXT_TOKENS
    # processors that resize or tile make of this what they make of any
    side = math.isqrt(limits.max_pixels or 2048 * 2048)
    rendered = renderer.render(summarizer_prompt(DEFAULT_QUERY, None, scoring=True), 1)
    return 2 * renderer.expand(rendered, [Image.new("RGB", (side, side))]).seen[0].tokens + TEXT_TOKENS


@dataclass(frozen=True)
class Need:
    """Bytes that one model takes: its weights, and the key-value cache of `tokens` tokens, in numbers of
    `width` bytes."""

    name: str
    width: int
    weights: int
    cache: int
    tokens: int

    @property
    def size(self) -> int:
        return self.weights + self.cache

    def __str__(self) -> str:
        return f"{self.name}: weights {gib(self.weights)}, cache of {self.tokens} tokens {gib(self.cache)}"


def model_need(renderer: "Renderer", settings: ModelSettings, device: str) -> Need:
    """What the model of `renderer` takes on `device`, without loading it."""
    width = PLAIN[choose_dtype(settings.dtype, device, renderer.holds_in_bfloat16)]
    tokens = prompt_tokens(renderer)
    return Need(
        renderer.name,
        width,
        weight_bytes(renderer.folder, settings.quantization, width),
        cache_bytes(renderer.config.get_text_config(), tokens, width),
        tokens,
    )


def free_memory(device: str, spread: bool = False) -> tuple[int, int]:
    """(free, total) bytes of `device`; of all visible GPUs where a model is `spread` over them; within a
    container's limit."""
    if device.startswith("cuda"):
        import torch

        devices = range(torch.cuda.device_count()) if spread else [device]
        free, total = zip(*(torch.cuda.mem_get_info(each) for each in devices), strict=True)
        return sum(free), sum(total)
    import psutil

    memory = psutil.virtual_memory()
    return min((memory.available, memory.total), container_memory() or (memory.available, memory.total))


def container_memory(folder: Path = Path("/sys/fs/cgroup")) -> tuple[int, int] | None:
    """(free, total) bytes under the limit of this process's control group (version 2); None without a limit.

    Pages of files count as free: the kernel gives them up first.
    """
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        held = {
            key: int(value)
            for key, value in map(str.split, (folder / "memory.stat").read_text().splitlines())
        }
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None
    return max(0, limit - used + held["file"] - held["shmem"]), limit


@check("memory", "free some memory")
def memory(setup: Setup) -> Finding:
    """Do the models and the tools fit into what is free?

    What the tools need is declared (`left_for_tools_gib`). A model's activations are not counted: models and
    tools take turns, so what is kept free for the tools serves them too.
    """
    local = {
        backend: setup.settings.model(backend)
        for backend in setup.backends
        if not backend.startswith("server.")
    }
    renderers = {backend: _renderer(setup, backend) for backend in local}
    needs = {backend: model_need(renderers[backend], local[backend], setup.device) for backend in local}
    model = sum(need.size for need in needs.values())
    tools = max(setup.settings.model(backend).left_for_tools_gib for backend in setup.backends) * GIB
    free, total = free_memory(setup.device, any(settings.device_map == "auto" for settings in local.values()))
    split = "; ".join([*map(str, needs.values()), f"tools {gib(tools)}"])
    found = f"{split}; {gib(model + tools)} in all, {gib(free)} of {gib(total)} are free on {setup.device}"
    if (missing := model + tools - free) <= 0:
        return "pass", found, ""
    if setup.quick and model + tools <= total:
        return "warn", found, "nothing, if it is this set-up that runs already; else end what takes the rest"
    advice = ["end what takes the rest"] if model + tools <= total else []
    if needs:
        backend = max(needs, key=lambda backend: needs[backend].size)
        advice += smaller(needs[backend], renderers[backend], local[backend], missing)
    reserved = setup.device.startswith("cuda") and setup.uses("vllm")
    status = "fail" if model > free or reserved else "warn"
    return (
        status,
        found,
        "; or ".join([*advice, "lower left_for_tools_gib" if model <= free else "take a smaller model"]),
    )


def smaller(need: Need, renderer: "Renderer", settings: ModelSettings, missing: float) -> list[str]:
    """What in a model's configuration saves `missing` bytes, or saves most."""
    advice = []
    limits, token = renderer.limits, need.cache / need.tokens
    if limits.factor > 1:
        fewer = limits.max_pixels - math.ceil(missing / (2 * token)) * limits.factor**2
        if fewer >= limits.min_pixels:
            advice.append(f"set max_pixels of {need.name} to {fewer} (now {limits.max_pixels})")
    if settings.quantization == "none":
        size = weight_bytes(renderer.folder, "4bit", need.width)
        advice.append(f"set quantization: 4bit (its weights are then {gib(size)})")
    return advice


def pictures() -> tuple["Image.Image", "Image.Image"]:
    """A noisy picture and its original: RGB, SIDE×SIDE pixels, the same every time."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    shades = Image.fromarray(rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8))
    original = shades.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    noisy = np.asarray(original, np.float32) + rng.normal(0, 10, (SIDE, SIDE, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)), original


@check("model", f"try it by itself: {command('assess')} PHOTO -vv, with the same options")
def model(setup: Setup, backend: str) -> Finding:
    """Does the model load, and answer about a picture under a schema?"""
    from agentic_iqa_local.nodes.replies import letter_reply
    from agentic_iqa_local.prompts import DEFAULT_QUERY, summarizer_prompt

    client = setup.services.pool.get(backend, setup.settings.model(backend))
    session = client.open([pictures()[0]])
    reply = letter_reply(LETTERS)
    answer = session.generate(summarizer_prompt(DEFAULT_QUERY, None, scoring=True), reply, max_tokens=64)
    session.close()
    about = client.describe()
    return (
        "pass",
        (
            f"{about['engine']} answers {reply.model_validate_json(answer).final_answer} on {about['device']}"
            f" in {about['dtype']}"
        ),
        "",
    )


@check("letters", "use another model")
def letters(setup: Setup, backend: str) -> Finding:
    """Are the letters A–E tokens of this model with finite log-probabilities, and does it mean to answer with
    them?"""
    from agentic_iqa_local.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt

    client = setup.services.pool.get(backend, setup.settings.model(backend))
    session = client.open([pictures()[0]])
    read = session.read_letters(summarizer_prompt(DEFAULT_QUERY, None, scoring=True), ANSWER_PREFIX, LETTERS)
    session.close()
    found = ", ".join(
        f"{letter} {read.logprobs[letter]:.2f} (token {read.token_ids[letter]})" for letter in LETTERS
    )
    found = f"{found}; {read.off_letter_mass:.2%} of the probability lies off them"
    if read.off_letter_mass > setup.settings.fusion.off_letter_warning:
        return (
            "warn",
            found,
            "this model hardly takes the answer format: use a model that follows instructions",
        )
    return "pass", found, ""


# tools


@check("tools", "correct tools: in the configuration")
def tools(setup: Setup) -> Finding:
    """Can the tools' maps be read, and how many tools are there?"""
    known = setup.tools().info()
    there = [info.name for info in known if info.available]
    return "pass", f"{len(there)} of {len(known)} are available: {', '.join(there)}", ""


@check("tool", f"bring its weights anew ({command('bundle')} --tools NAME), or list it in tools.not_offered")
def tool(setup: Setup, name: str) -> Finding | None:
    """Is a tool there and does it measure? Nothing for one that is absent and that the configuration does not
    name."""
    spec, named = find_tool(name), name in setup.named_tools
    runner = setup.tools()
    info = next(info for info in runner.info() if info.name == spec.name)
    if not info.available:
        if not named:
            return None
        if spec.weights and info.reason.startswith("missing weights"):
            remedy = (
                f"fetch them on a connected machine: {command('bundle')} --tools {spec.name}; or name another"
                " tool"
            )
        elif info.reason.startswith("missing Python module"):
            remedy = ENVIRONMENT
        else:
            remedy = "name another tool in tools.full_reference or tools.no_reference"
        return "fail", f"the configuration names it; {info.reason}", remedy
    if setup.quick:
        return "pass", "available", ""
    noisy, original = pictures()
    raw = runner.measure(spec.name, noisy, original)
    return "pass", f"{raw:.4g} raw, {runner.maps[spec.name](raw):.2f} of 5", ""


# the process apart


def block_network(settings: Settings, attempts: list[str]) -> None:
    """From now on Python's sockets of this process reach no address but that of a configured server, and this
    machine itself where vLLM's engine talks to itself. What else is tried fails as without a network, and is
    added to `attempts`.

    It cannot be undone.
    """
    allowed: set[str] = set()
    for backend in Setup(settings).backends:
        if backend.startswith("vllm."):
            allowed |= LOOPBACK
        elif backend.startswith("server.") and (host := urlsplit(settings.model(backend).server).hostname):
            allowed.add(host)
            with suppress(OSError):
                allowed |= {entry[4][0] for entry in socket.getaddrinfo(host, None)}

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            if args[0].family not in (socket.AF_INET, socket.AF_INET6) or not args[1]:
                return
            host = args[1][0]
        elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr") and args[0]:
            host = args[0]
        else:
            return
        if (name := host.decode() if isinstance(host, bytes) else str(host)) not in allowed:
            attempts.append(name)
            raise OSError(errno.ENETUNREACH, f"the doctor lets nothing reach the network, not even {name}")

    sys.addaudithook(refuse)


def _work(pipe: "Connection", setup: Setup, log: str) -> None:
    """What the process apart does: one check after another, until there is nothing to read any more."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    attempts: list[str] = []
    block_network(setup.settings, attempts)
    with suppress(EOFError):
        while True:
            examine_one, about = pipe.recv()
            found: Check | None = examine_one(setup, *about)
            if found and attempts:
                where = ", ".join(sorted(set(attempts)))
                found = replace(
                    found,
                    status="fail" if found.status == "fail" else "warn",
                    found=f"{found.found}; it tried to reach {where}",
                    remedy=found.remedy
                    or "find out what wants the network; where packets vanish it waits for an answer",
                )
                attempts.clear()
            pipe.send(found)


class Apart:
    """A process in which checks run; it is started for the first, and anew after one that hung or killed
    it."""

    def __init__(self, setup: Setup, timeout: float):
        self.setup, self.timeout = setup, timeout
        self._log = os.devnull  # what the process prints, for its last words
        with suppress(OSError):  # that nothing can be written is for a check to say
            handle, self._log = tempfile.mkstemp(prefix="doctor-", suffix=".log")
            os.close(handle)
        self._worker: Worker | None = None
        self._code = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop(patience=0 if kind else 10)
        if self._log != os.devnull:
            os.unlink(self._log)

    def ask(self, examine_one: Callable[..., Check | None], *about: str) -> Check | None:
        """The check's result; a failed one when it takes longer than the timeout, or when the process
        dies."""
        began = time.perf_counter()
        try:
            if self._worker is None:
                self._worker = Worker(_work, self.setup, self._log)
            self._worker.send((examine_one, about))
            if self._worker.waits(self.timeout):
                return self._worker.receive()
            found = f"no answer within {self.timeout:g} s"
            remedy = (
                "raise --timeout if the disk or the device is merely slow; else find out what it waits for"
            )
            self._stop(patience=0)
        except (EOFError, OSError):
            self._stop(patience=10)
            found, remedy = self._cause()
        return Check(examine_one.title(*about), "fail", found, remedy, round(time.perf_counter() - began, 3))

    def _stop(self, patience: float) -> None:
        if self._worker:
            self._code, self._worker = self._worker.end(patience), None

    def _cause(self) -> tuple[str, str]:
        """Why the process died, and what to do."""
        said = Path(self._log).read_text(errors="replace").split("\n")
        last = next(
            (f"; the last it said: {line.strip()[:200]}" for line in reversed(said) if line.strip()), ""
        )
        found = f"{cause_of_death(self._code)}{last}"
        if self._code >= 0:
            return found, "see what it said, and repair the environment"
        remedy = {
            "SIGKILL": "most likely memory ran out: see the memory check",
            "SIGILL": "a library is built for another processor: install a build for this one",
        }.get(
            signal.Signals(-self._code).name,
            "a library is broken or does not fit another one: make the environment anew",
        )
        return found, remedy


def examine(
    settings: Settings,
    *,
    gpu: str | None = None,
    cpu: bool = False,
    quick: bool = False,
    timeout: float = TIMEOUT,
) -> Iterator[Check]:
    """Yields every check of a configuration on a device as it is done; what rests on a failed one is left
    out.

    `gpu` and `cpu` as in `choose_device`. `quick` loads no model and no tool and reads no file whole: for a
    health check. A check may take `timeout` seconds.
    """
    setup = Setup(settings, gpu, cpu, quick)
    with Apart(setup, timeout) as apart:
        yield from _examine(setup, apart)


def _examine(setup: Setup, apart: Apart) -> Iterator[Check]:
    failed: set[str] = set()

    def ask(examine_one: Callable[..., Check | None], *about: str) -> Iterator[Check]:
        if found := apart.ask(examine_one, *about):
            if found.status == "fail":
                failed.add(found.name)
            yield found

    for examine_one in (python, packages, torch_build, device):
        yield from ask(examine_one)
    yield from ask(models_folder)
    yield from ask(embedded_model)
    for name in CACHES:
        yield from ask(cache, name)
    yield from ask(score_cache)
    for backend in setup.backends:
        yield from ask(model_folder, backend)
    if "device" in failed:
        return
    yield from ask(vllm)
    whole = [backend for backend in setup.backends if model_folder.title(backend) not in failed]
    if whole == setup.backends:
        yield from ask(memory)
    if not setup.quick:
        for backend in whole:
            yield from ask(model, backend)
            if model.title(backend) not in failed:
                yield from ask(letters, backend)
    yield from ask(tools)
    if "tools" not in failed:
        for name in dict.fromkeys(setup.named_tools if setup.quick else (*setup.named_tools, *TOOLS)):
            yield from ask(tool, name)


def as_text(found: Check, width: int = 118) -> str:
    """A check as aligned lines: status, seconds, name, what was found; and the remedy below."""
    head = f"{found.status}  {found.seconds:6.1f} s  {found.name:<30}"
    column = len(f"{'pass'}  {0:6.1f} s  {'':<30} ")
    lines = _column(found.found, column, width)
    if len(head) < column:
        lines[0] = head + lines[0][len(head) :]
    else:
        lines = [head, *lines]
    return "\n".join(lines + (_column(f"remedy: {found.remedy}", column, width) if found.remedy else []))


def _column(text: str, indent: int, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
