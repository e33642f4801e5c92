"""The checks of a set-up, one function each: is what assessments need there and sound, and what is
the remedy if not?

Models and tools are loaded by the code that assessments use.
"""

import importlib.metadata
import math
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from packaging.requirements import Requirement
from PIL import Image, ImageFilter

from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import choose_device, choose_dtype, describe_device
from agentic_iqa_local.errors import counted, percent
from agentic_iqa_local.files import PROGRAM, ROOT, file_hash, models_root
from agentic_iqa_local.iqa_tools import ToolError, ToolRunner
from agentic_iqa_local.iqa_tools.calibration import MIDDLE
from agentic_iqa_local.iqa_tools.weights import SUMS, read_sums
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.replies import answer_reply
from agentic_iqa_local.offline.bundle import verify
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client.model_folder import find_gguf, read_weights

# left, top, right, bottom in a sample photograph: 256×224, whole tokens of 28 and of 32 pixels,
# never resized
WINDOW = (128, 144, 384, 368)
GIB = 2**30
# bytes of a weight once loaded. 4bit is nf4 with double quantisation, 4.127 bits (QLoRA, arXiv
# 2305.14314, section 3)
BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "8bit": 1.0, "4bit": 4.127 / 8}
# what quantisation leaves as it is, beside all that is no matrix (see transformers_client)
WHOLE = ("visual", "vision", "embed", "lm_head")
ENVIRONMENT = "install the versions of constraints.txt (docs/air_gapped.md)"
UNPACK = f"{PROGRAM} unpack BUNDLE"


class Finding(NamedTuple):
    """What a check found; `remedy` is empty if it passed."""

    status: Literal["pass", "warn", "fail"]
    found: str
    remedy: str = ""


@dataclass
class Setup:
    """What is examined: a configuration on a device. `quick` loads nothing and reads no file
    whole."""

    settings: Settings
    gpu: str | None = None
    cpu: bool = False
    quick: bool = False

    @cached_property
    def device(self) -> str:
        return choose_device(self.gpu, self.cpu)

    @cached_property
    def services(self) -> Services:
        """Models and tools, each loaded once."""
        return Services(self.settings, self.device)

    def renderer(self, backend: str) -> Any:
        """A model's processor and templates (a `Renderer`), without its weights."""
        from agentic_iqa_local.vlm_client.rendering import Renderer

        name = backend.partition(".")[2]
        safetensors = self.settings.weights(backend) == "safetensors"
        return Renderer(name, self.settings.model(backend), weights=safetensors)


@cache
def pictures() -> list[Image.Image]:
    """Windows of two sample photographs, six of 256×224 pixels: each clean, blurred and noisy."""
    found = []
    noise = np.random.default_rng(0).normal(0, 20, (224, 256, 3))
    for name in ("sumac", "prudential"):
        with Image.open(ROOT / "tests" / "data" / f"{name}.png") as photograph:
            clean = photograph.convert("RGB").crop(WINDOW)
        noisy = np.clip(np.asarray(clean) + noise, 0, 255).astype(np.uint8)
        found += [clean, clean.filter(ImageFilter.GaussianBlur(2)), Image.fromarray(noisy)]
    return found


def packages(setup: Setup) -> Finding:
    """Is every package there that this version asks for, and new enough?"""
    wrong = []
    for requirement in map(Requirement, importlib.metadata.requires("agentic_iqa_local") or []):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = "0"
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"expected {requirement.name}{requirement.specifier}, got {version}")
    if wrong:
        return Finding("fail", "; ".join(wrong), ENVIRONMENT)
    names = ("torch", "transformers", "pyiqa")
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return Finding("pass", found)


def device(setup: Setup) -> Finding:
    """Does the device that was asked for exist, and does torch's build fit it?"""
    import torch

    name, build = setup.device, torch.version.cuda
    built = f"for CUDA {build}" if build else "without CUDA"
    found = f"{name} ({describe_device(name)['name']}); torch {torch.__version__} is built {built}"
    if name == "cpu" and not setup.cpu and build and shutil.which("nvidia-smi"):
        remedy = "update the driver, or pass --cpu"
        return Finding("warn", f"{found}; there is an NVIDIA driver", remedy)
    return Finding("pass", found)


def models_folder(setup: Setup) -> Finding:
    """Is every file of the models folder what its list says? `quick` reads the list alone."""
    root = models_root(setup.settings.models_dir)
    if not root.is_dir():
        remedy = f"say where it is with --models or $AGENTIC_IQA_MODELS, or {UNPACK}"
        return Finding("fail", f"{root}: no such folder", remedy)
    if not os.path.lexists(root / SUMS):
        if root == ROOT / "models":
            found = f"{root}: the embedded model is there; no bundle was unpacked here"
            return Finding("pass", found)
        found = f"{root}: no {SUMS}, so nobody can tell whether its files are whole"
        return Finding("warn", found, UNPACK)
    sums = read_sums(root)
    if not setup.quick:
        for problem in verify(root):
            return Finding("fail", problem.message, f"{UNPACK} (what is right is kept)")
    listed = f"{root}: list {file_hash(root / SUMS)[:12]} names {counted(len(sums), 'file')}"
    return Finding("pass", listed if setup.quick else f"{listed}, all whole")


def folder(setup: Setup, backend: str) -> Finding:
    """Is the folder a vision-language model that this transformers reads, with all its weight files
    whole?"""
    renderer = setup.renderer(backend)
    found = f"{renderer.folder}: {renderer.config.model_type}"
    kind = setup.settings.weights(backend)
    if kind is None:
        return Finding("pass", f"{found}, its processor (the weights are the server's)")
    if kind == "GGUF":
        files = find_gguf(renderer.folder)
        size = weight_bytes(setup, backend) / 1e9
        return Finding("pass", f"{found}, {files.text.name}, {files.vision.name} ({size:.2f} GB)")
    weights = read_weights(renderer.folder)
    files = counted(len(weights.files), "file")
    return Finding("pass", f"{found}, {weights.numbers / 1e6:.1f} million parameters in {files}")


def memory(setup: Setup) -> Finding:
    """Do weights and the tools (`left_for_tools_gib`) fit into what is free?

    Models and tools take turns, so what is kept free for the tools serves a model's activations and
    its cache too.
    """
    words, models, tools, spread = [], 0.0, 0.0, False
    for backend in setup.settings.backends:
        settings = setup.settings.model(backend)
        tools = max(tools, settings.left_for_tools_gib)
        if setup.settings.weights(backend) is None:
            continue
        weights = weight_bytes(setup, backend)
        models += weights
        words.append(f"{backend}: weights {weights / GIB:.2f} GiB")
        spread |= settings.device_map == "auto"
    needed = models + tools * GIB
    free, total = memory_of(setup.device, spread)
    found = (
        f"{'; '.join(words) or 'the weights are the server’s'}; {needed / GIB:.2f} GiB needed in all"
        f" with {tools:g} GiB for tools; {free / GIB:.2f} of {total / GIB:.2f} GiB are free on"
        f" {setup.device}"
    )
    room = total if setup.quick else free  # a health check looks while the models are loaded
    if needed <= room:
        return Finding("pass", found)
    remedy = "end what takes the rest; or set quantization: 4bit; or take a smaller model"
    remedy = roomier_gpu(setup, needed) + remedy
    return Finding("fail" if models > room else "warn", found, remedy)


def weight_bytes(setup: Setup, backend: str) -> float:
    """Bytes of a model's weights once loaded. A folder that is quantised already, and GGUF files,
    are counted as they lie on disk."""
    settings, renderer = setup.settings.model(backend), setup.renderer(backend)
    if setup.settings.weights(backend) == "GGUF":
        return sum(file.stat().st_size for file in renderer.folder.glob("*.gguf"))
    weights = read_weights(renderer.folder)
    if hasattr(renderer.config, "quantization_config"):
        return sum(file.stat().st_size for file in weights.files)
    width = BYTES[choose_dtype(settings.dtype, setup.device)]
    if settings.quantization == "none":
        return weights.numbers * width
    matrices = 0
    for name, shape in weights.shapes.items():
        if len(shape) == 2 and not any(part in name for part in WHOLE):
            matrices += math.prod(shape)
    return matrices * BYTES[settings.quantization] + (weights.numbers - matrices) * width


def roomier_gpu(setup: Setup, needed: float) -> str:
    """The advice to use another visible GPU that has the room; empty where there is none."""
    import torch

    count = torch.cuda.device_count() if setup.device.startswith("cuda") else 0
    for index in range(count):
        free = torch.cuda.mem_get_info(index)[0]
        if free >= needed:
            return f"pass --gpu {index}, where {free / GIB:.2f} GiB are free; or "
    return ""


def memory_of(device: str, spread: bool) -> tuple[int, int]:
    """(free, total) bytes of a device; of all visible GPUs where a model is `spread` over them; on
    a CPU within a container's limit (control groups, version 2)."""
    if device.startswith("cuda"):
        import torch

        devices = range(torch.cuda.device_count()) if spread else [device]
        free, total = zip(*map(torch.cuda.mem_get_info, devices), strict=True)
        return sum(free), sum(total)
    import psutil

    memory, limit = psutil.virtual_memory(), Path("/sys/fs/cgroup/memory.max")
    most = memory.total
    with suppress(OSError, ValueError):  # no such group, or "max": no limit
        most = min(most, int(limit.read_text()))
    return min(memory.available, most), most


def model(setup: Setup, backend: str) -> Finding | None:
    """Does the model load, answer about a picture under a schema, and mean to answer with the
    letters A–E?"""
    if setup.quick:
        return None
    client = setup.services.client_of(backend)
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    reply = answer_reply(LETTERS, reasoned=False)
    session = client.open([pictures()[2]])
    answer = session.generate(prompt, reply, max_tokens=64)
    read = session.read_letters(prompt, ANSWER_PREFIX, LETTERS)
    session.close()
    letter = reply.model_validate_json(answer).model_dump()["final_answer"]
    about = client.describe()
    logprobs = ", ".join(f"{name} {value:.2f}" for name, value in read.logprobs.items())
    where = f"on {about['device']} in {about['dtype']}"
    found = f"{about['engine']} answers {letter} {where}; log-probabilities {logprobs}"
    if read.off_letter_mass > setup.settings.fusion.off_letter_warning:
        off = percent(read.off_letter_mass)
        found += f"; with a probability of {off} it would have written something else"
        remedy = "this model hardly keeps to the letters: use one that follows instructions"
        return Finding("warn", found, remedy)
    if about["notice"]:
        small, _, remedy = about["notice"].partition("; ")
        return Finding("warn", f"{found}; {small}", remedy)
    return Finding("pass", found)


def fusion(setup: Setup) -> Finding:
    """What makes q: how far the letters count, which tools vote, and how sharply."""
    services = setup.services
    settings, known = services.settings.fusion, services.tools.reliability
    found = f"mode {settings.mode}, the letters count at a temperature of {settings.letters_temperature:g}"
    for has_reference, given in ((False, "without a reference"), (True, "with one")):
        tools = setup.settings.tools.configured(has_reference)
        voters = services.leading(tools)
        eta = settings.eta
        if eta == "auto":
            eta = 1 / (2 * known.sigma_of_mean([(name, MIDDLE) for name in voters], {}) ** 2)
        found += f"; {given} the vote of {' and '.join(voters)} counts with η {eta:.2f}"
        checking = [name for name in tools if name not in voters]
        if checking:
            found += (
                f", {' and '.join(checking)} only {'checks' if len(checking) == 1 else 'check'}"
            )
    return Finding("pass", found)


def tools(setup: Setup) -> Finding:
    """Are the tools there that the configuration names, and does each one that is there measure?"""
    problems, measured, named = [], [], setup.settings.tools.all_configured
    runner = ToolRunner(setup.device, setup.settings.tools.maps, setup.settings.models_dir)
    clean, _, noisy, *_ = pictures()
    for info in runner.info():
        if not info.available:
            if info.name in named:
                problems.append(f"{info.name} is named by the configuration: {info.reason}")
            continue
        if setup.quick:
            measured.append(info.name)
            continue
        try:
            level = runner.score(info.name, noisy, clean).normalized
            measured.append(f"{info.name} {level:.2f}")
        except ToolError as error:
            problems.append(error.message)
    done = "are available" if setup.quick else "are available and score a noisy test picture"
    found = f"{len(measured)} {done}: {', '.join(measured)}"
    if problems:
        bundled = f"bring the weights in a bundle ({PROGRAM} bundle --tools NAME)"
        return Finding("fail", f"{'; '.join(problems)}; {found}", f"{bundled}, or name other tools")
    return Finding("pass", found)
