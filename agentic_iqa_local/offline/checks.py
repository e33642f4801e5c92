"""The checks of a set-up, one function each: is what assessments need there and sound, and what is
the remedy if not?

Models and tools are loaded by the code that assessments use.
"""

import importlib.metadata
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from packaging.requirements import Requirement
from PIL import Image, ImageFilter

from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import choose_device, choose_dtype, describe_device
from agentic_iqa_local.errors import counted
from agentic_iqa_local.files import EMBEDDED, ROOT, command, file_hash, models_root
from agentic_iqa_local.iqa_tools import ToolError, ToolRunner
from agentic_iqa_local.iqa_tools.weights import SUMS, read_sums
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.replies import answer_reply
from agentic_iqa_local.offline.bundle import model_folders, verify
from agentic_iqa_local.offline.memory import GIB, WIDTH, cache_bytes, free_memory, weight_bytes
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client.model_folder import read_weights

# left, top, right, bottom in a sample photograph: 256×224, whole tokens of 28 and of 32 pixels,
# never resized
WINDOW = (128, 144, 384, 368)
TEXT_TOKENS = 4096  # of the longest prompt with its answer
ENVIRONMENT = (
    f"run it in the project's environment: {command('doctor', made=True)} (docs/air_gapped.md)"
)
UNPACK = f"{command('unpack')} BUNDLE"


class Finding(NamedTuple):
    """What a check found; `remedy` is empty if it passed."""

    status: Literal["pass", "warn", "fail"]
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Setup:
    """What is examined: a configuration on a device. `quick` loads nothing and reads no file
    whole."""

    settings: Settings
    gpu: str | None = None
    cpu: bool = False
    quick: bool = False

    @property
    def device(self) -> str:
        return choose_device(self.gpu, self.cpu)

    @property
    def services(self) -> Services:
        """Models and tools, loaded once in the process of the checks."""
        return _services(self.settings.model_dump_json(), self.device)

    def uses(self, engine: str) -> bool:
        return any(backend.startswith(f"{engine}.") for backend in self.settings.backends)

    def renderer(self, backend: str) -> Any:
        """A model's processor and templates (a `Renderer`), without its weights."""
        from agentic_iqa_local.vlm_client.rendering import Renderer

        engine, _, name = backend.partition(".")
        return Renderer(name, self.settings.model(backend), weights=engine != "server")


@cache
def _services(settings: str, device: str) -> Services:
    return Services(Settings.model_validate_json(settings), device)


@cache
def pictures() -> list[Image.Image]:
    """Windows of two sample photographs, eight of 256×224 pixels: each clean, blurred, noisy and
    dark."""
    found, rng = [], np.random.default_rng(0)
    for name in ("sumac", "prudential"):
        with Image.open(ROOT / "tests" / "data" / f"{name}.png") as photograph:
            clean = photograph.convert("RGB").crop(WINDOW)
        noisy = np.asarray(clean) + rng.normal(0, 20, (clean.height, clean.width, 3))
        found.append(clean)
        found.append(clean.filter(ImageFilter.GaussianBlur(2)))
        found.append(Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)))
        found.append(Image.fromarray(np.asarray(clean) // 3))
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
    names = ("torch", "transformers", "pyiqa")
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    if wrong:
        return Finding("fail", f"{found}; {'; '.join(wrong)}", ENVIRONMENT)
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
    problems = [] if setup.quick else verify(root)
    if problems:
        found = f"{root}: {problems[0].message}"
        if len(problems) > 1:
            found += f" and {len(problems) - 1} more"
        return Finding("fail", found, f"{UNPACK} (what is right is kept)")
    found = f"{root}: list {file_hash(root / SUMS)[:12]} names {counted(len(sums), 'file')}"
    if not setup.quick:
        found += ", all whole"
    unlisted = _unlisted_models(setup.settings, root, model_folders(sums))
    if unlisted:
        found += f"; it does not name {', '.join(unlisted)}"
        return Finding("warn", found, "bring that in a bundle to have it verified")
    return Finding("pass", found)


def _unlisted_models(settings: Settings, root: Path, brought: set[str]) -> list[str]:
    """The folders of a configuration's models that no bundle brought."""
    verified = {(root / name).resolve() for name in brought} | {EMBEDDED.resolve()}
    folders = {settings.folder(backend) for backend in settings.backends}
    return sorted(str(folder) for folder in folders if folder.resolve() not in verified)


def folder(setup: Setup, backend: str) -> Finding:
    """Is the folder a vision-language model that this transformers reads, with all its weight files
    whole?"""
    renderer = setup.renderer(backend)
    found = f"{renderer.folder}: {renderer.config.model_type}"
    if backend.startswith("server."):
        return Finding("pass", f"{found}, its processor (the weights are the server's)")
    weights = read_weights(renderer.folder)
    files = counted(len(weights.files), "file")
    return Finding("pass", f"{found}, {weights.numbers / 1e6:.1f} million parameters in {files}")


def memory(setup: Setup) -> Finding:
    """Do weights, the cache of the largest prompt and the tools (`left_for_tools_gib`) fit into
    what is free?

    Models and tools take turns, so what is kept free for the tools serves a model's activations
    too.
    """
    words, models, tools, spread = [], 0, 0.0, False
    for backend in setup.settings.backends:
        settings = setup.settings.model(backend)
        tools = max(tools, settings.left_for_tools_gib)
        if backend.startswith("server."):
            continue
        needed, said = _model_memory(setup, backend)
        models += needed
        words.append(said)
        spread |= settings.device_map == "auto"
    needed = models + tools * GIB
    free, total = free_memory(setup.device, spread)
    found = (
        f"{'; '.join(words) or 'the weights are the server’s'}; {needed / GIB:.2f} GiB needed in all"
        f" with {tools:g} GiB for tools; {free / GIB:.2f} of {total / GIB:.2f} GiB are free on"
        f" {setup.device}"
    )
    room = total if setup.quick else free  # a health check looks while the models are loaded
    if needed <= room:
        return Finding("pass", found)
    reserved = setup.device.startswith("cuda") and setup.uses("vllm")
    status = "fail" if models > room or reserved else "warn"
    remedy = (
        "end what takes the rest; or set quantization: 4bit, a lower max_pixels or"
        " left_for_tools_gib; or take a smaller model"
    )
    return Finding(status, found, remedy)


def _model_memory(setup: Setup, backend: str) -> tuple[int, str]:
    """Bytes of a model's weights and of the cache of its largest prompt, and the same in words."""
    settings, renderer = setup.settings.model(backend), setup.renderer(backend)
    width = WIDTH[choose_dtype(settings.dtype, setup.device)]
    pixels = renderer.limits.max_pixels or 2048 * 2048
    tokens = 2 * (pixels // max(renderer.limits.factor, 14) ** 2) + TEXT_TOKENS
    weights = weight_bytes(renderer.folder, settings.quantization, width)
    cache = cache_bytes(renderer.config.get_text_config(), tokens, width)
    said = f"{renderer.name}: weights {weights / GIB:.2f} GiB, cache of {tokens} tokens"
    return weights + cache, said


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
        found += f"; {read.off_letter_mass:.0%} of the probability lies off them"
        remedy = "this model hardly takes the answer format: use one that follows instructions"
        return Finding("warn", found, remedy)
    if about["notice"]:
        return Finding("warn", found, about["notice"])
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
        bundled = f"bring the weights in a bundle ({command('bundle')} --tools NAME)"
        return Finding("fail", f"{'; '.join(problems)}; {found}", f"{bundled}, or name other tools")
    return Finding("pass", found)
