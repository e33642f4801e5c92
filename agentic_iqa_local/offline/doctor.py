"""Examines whether a set-up will work on this machine: what is found, whether it will do, and the remedy otherwise.

Every check runs in a process of its own without a network: one that hangs or crashes is a failed check, and the next
gets a new process. Models and tools are loaded by the code that assessments use.
"""

import importlib.metadata
import os
import shutil
import socket
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
from packaging.requirements import Requirement
from pebble import ProcessExpired, ProcessPool
from PIL import Image, ImageFilter

from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import choose_device, choose_dtype, describe_device
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import EMBEDDED, ROOT, command, models_root
from agentic_iqa_local.iqa_tools import ToolError, ToolRunner
from agentic_iqa_local.iqa_tools.weights import MANIFEST
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.replies import answer_reply
from agentic_iqa_local.offline.bundle import verify
from agentic_iqa_local.offline.manifest import read_folder_manifest
from agentic_iqa_local.offline.memory import GIB, WIDTH, cache_bytes, free_memory, weight_bytes
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client.model_folder import read_weights

TIMEOUT = 300.0  # seconds of one check
ROOM = 256 * 2**20  # bytes that a disk needs to have free
WINDOW = (
    128,
    144,
    384,
    368,
)  # of a sample photograph: 256×224, whole tokens of 28 and of 32 pixels, never resized
TEXT_TOKENS = 4096  # of the longest prompt with its answer
ENVIRONMENT = (
    f"run it in the project's environment: {command('doctor', made=True)} (docs/air_gapped.md)"
)
UNPACK = f"{command('unpack')} BUNDLE"

Finding = tuple[Literal["pass", "warn", "fail"], str, str]  # status, what was found, remedy
Find = Callable[["Setup"], Finding | None]  # None: there is nothing to examine


@dataclass(frozen=True)
class Check:
    """One thing that was examined. `remedy` is empty where it passed; `seconds` is how long it took."""

    name: str
    status: str
    found: str
    remedy: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Setup:
    """What is examined: a configuration on a device. `quick` loads nothing and reads no file whole."""

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
    """Windows of two sample photographs, eight of 256×224 pixels: each clean, blurred, noisy and dark."""
    found, rng = [], np.random.default_rng(0)
    for name in ("sumac", "prudential"):
        with Image.open(ROOT / "tests" / "data" / f"{name}.png") as photograph:
            clean = photograph.convert("RGB").crop(WINDOW)
        noisy = np.asarray(clean) + rng.normal(0, 20, (clean.height, clean.width, 3))
        found += [clean, clean.filter(ImageFilter.GaussianBlur(2))]
        found += [
            Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)),
            Image.fromarray(np.asarray(clean) // 3),
        ]
    return found


def unmet(requirements: list[str]) -> list[str]:
    """One phrase for each requirement that the installed packages do not meet."""
    lines = []
    for requirement in map(Requirement, requirements):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
            if not requirement.specifier.contains(version, prereleases=True):
                lines.append(f"{requirement.name} is {version}, expected {requirement.specifier}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{requirement.name} is not installed")
    return lines


def packages(setup: Setup) -> Finding:
    """Is every package there that this version asks for, and new enough?"""
    file, python = ROOT / "pyproject.toml", ".".join(map(str, sys.version_info[:3]))
    if file.is_file():
        needed = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["dependencies"]
    else:
        needed = importlib.metadata.requires("agentic_iqa_local") or []
    lines, names = unmet(needed), ["torch", "transformers", "pyiqa"]
    if setup.uses("vllm"):
        vllm = importlib.metadata.packages_distributions().get("vllm", [])[:1]
        names += vllm
        lines += (
            []
            if vllm
            else [
                "vllm, the engine, is not installed (docs/models.md; or take --engine transformers)"
            ]
        )
    if lines:
        return "fail", f"Python {python}; {'; '.join(lines)}", ENVIRONMENT
    versions = (f"{name} {importlib.metadata.version(name)}" for name in names)
    return "pass", f"Python {python}, {', '.join(versions)}", ""


def device(setup: Setup) -> Finding:
    """Does the device that was asked for exist, and does torch's build fit it?"""
    import torch

    name, build = setup.device, torch.version.cuda
    built = f"for CUDA {build}" if build else "without CUDA"
    found = f"{name} ({describe_device(name)['name']}); torch {torch.__version__} is built {built}"
    if name == "cpu" and not setup.cpu and build and shutil.which("nvidia-smi"):
        return "warn", f"{found}; there is an NVIDIA driver", "update the driver, or pass --cpu"
    return "pass", found, ""


def models_folder(setup: Setup) -> Finding:
    """Is every file of the models folder what its manifest says? `quick` reads the manifest alone."""
    root = models_root(setup.settings.models_dir)
    if not root.is_dir():
        return (
            "fail",
            f"{root}: no such folder",
            f"say where it is with --models or $AGENTIC_IQA_MODELS, or {UNPACK}",
        )
    if not os.path.lexists(root / MANIFEST) and root == ROOT / "models":
        return "pass", f"{root}: the embedded model is there; no bundle was unpacked here", ""
    if not os.path.lexists(root / MANIFEST):
        return (
            "warn",
            f"{root}: no manifest, so nobody can tell whether its files are whole",
            UNPACK,
        )
    manifest, sha256 = read_folder_manifest(root)
    if problems := [] if setup.quick else verify(root):
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return "fail", f"{root}: {problems[0].message}{more}", f"{UNPACK} (what is right is kept)"
    found = f"{root}: manifest {sha256[:12]} lists {len(manifest.files)} files{'' if setup.quick else ', all whole'}"
    brought = {(root / name).resolve() for name in manifest.models} | {EMBEDDED.resolve()}
    folders = {setup.settings.folder(backend) for backend in setup.settings.backends}
    if others := sorted(str(folder) for folder in folders if folder.resolve() not in brought):
        return (
            "warn",
            f"{found}; it does not list {', '.join(others)}",
            "bring that in a bundle to have it verified",
        )
    return "pass", found, ""


def disk(setup: Setup) -> Finding:
    """Is there room for the temporary files and caches of libraries?"""
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    found = f"{place}: {free / GIB:.1f} GiB are free"
    return (
        ("pass", found, "")
        if free >= ROOM
        else ("fail", found, "make room there, or set TMPDIR to another folder")
    )


def folder(setup: Setup, backend: str) -> Finding:
    """Is the folder a vision-language model that this transformers reads, with all its weight files whole?"""
    renderer = setup.renderer(backend)
    found = f"{renderer.folder}: {renderer.config.model_type}"
    if backend.startswith("server."):
        return "pass", f"{found}, its processor (the weights are the server's)", ""
    weights = read_weights(renderer.folder)
    size = f"{weights.numbers / 1e6:.1f} million parameters in {len(weights.files)} file(s)"
    return "pass", f"{found}, {size}", ""


def memory(setup: Setup) -> Finding:
    """Do weights, the cache of the largest prompt and the tools (`left_for_tools_gib`) fit into what is free?

    Models and tools take turns, so what is kept free for the tools serves a model's activations too.
    """
    words, models, tools, spread = [], 0, 0.0, False
    for backend in setup.settings.backends:
        settings = setup.settings.model(backend)
        tools = max(tools, settings.left_for_tools_gib)
        if backend.startswith("server."):
            continue
        renderer = setup.renderer(backend)
        width = WIDTH[choose_dtype(settings.dtype, setup.device, renderer.holds_in_bfloat16)]
        limits = renderer.limits
        tokens = (
            2 * ((limits.max_pixels or 2048 * 2048) // max(limits.factor, 14) ** 2) + TEXT_TOKENS
        )
        weights = weight_bytes(renderer.folder, settings.quantization, width)
        models += weights + cache_bytes(renderer.config.get_text_config(), tokens, width)
        words.append(f"{renderer.name}: weights {weights / GIB:.2f} GiB, cache of {tokens} tokens")
        spread |= settings.device_map == "auto"
    needed, (free, total) = models + tools * GIB, free_memory(setup.device, spread)
    found = (
        f"{'; '.join(words) or 'the weights are the server’s'}; {needed / GIB:.2f} GiB needed in all with {tools:g} GiB"
        f" for tools; {free / GIB:.2f} of {total / GIB:.2f} GiB are free on {setup.device}"
    )
    room = total if setup.quick else free  # a health check looks while the models are loaded
    if needed <= room:
        return "pass", found, ""
    remedy = "end what takes the rest; or set quantization: 4bit, a lower max_pixels or left_for_tools_gib; or take a"
    reserved = setup.device.startswith("cuda") and setup.uses("vllm")
    return "fail" if models > room or reserved else "warn", found, f"{remedy} smaller model"


def model(setup: Setup, backend: str) -> Finding | None:
    """Does the model load, answer about a picture under a schema, and mean to answer with the letters A–E?"""
    if setup.quick:
        return None
    client = setup.services.pool.get(backend, setup.settings.model(backend))
    session, reply = client.open([pictures()[2]]), answer_reply(LETTERS, reasoned=False)
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    answer = session.generate(prompt, reply, max_tokens=64)
    read = session.read_letters(prompt, ANSWER_PREFIX, LETTERS)
    session.close()
    letter, about = (
        reply.model_validate_json(answer).model_dump()["final_answer"],
        client.describe(),
    )
    logprobs = ", ".join(f"{name} {value:.2f}" for name, value in read.logprobs.items())
    found = f"{about['engine']} answers {letter} on {about['device']} in {about['dtype']}; log-probabilities {logprobs}"
    if read.off_letter_mass > setup.settings.fusion.off_letter_warning:
        found += f"; {read.off_letter_mass:.0%} of the probability lies off them"
        return (
            "warn",
            found,
            "this model hardly takes the answer format: use one that follows instructions",
        )
    return ("warn", found, about["notice"]) if about["notice"] else ("pass", found, "")


def tools(setup: Setup) -> Finding:
    """Are the tools there that the configuration names, and does each one that is there measure?"""
    problems, measured, named = [], [], setup.settings.tools.all_configured
    runner = ToolRunner(setup.device, setup.settings.tools.maps, setup.settings.models_dir)
    clean, _, noisy, *_ = pictures()
    for info in runner.info():
        try:
            if info.available:
                value = (
                    ""
                    if setup.quick
                    else f" {runner.score(info.name, noisy, clean).normalized:.2f}"
                )
                measured.append(f"{info.name}{value}")
            elif info.name in named:
                problems.append(f"{info.name} is named by the configuration: {info.reason}")
        except ToolError as error:
            problems.append(error.message)
    of_what = "" if setup.quick else " and score a noisy test picture"
    found = f"{len(measured)} are available{of_what}: {', '.join(measured)}"
    if problems:
        remedy = (
            f"bring the weights in a bundle ({command('bundle')} --tools NAME), or name other tools"
        )
        return "fail", f"{'; '.join(problems)}; {found}", remedy
    return "pass", found, ""


def _plan(setup: Setup, deep: bool) -> list[tuple[str, Find, tuple[str, ...]]]:
    """The checks in their order: name, function, and how the names of the checks begin that it rests on."""
    backends, loaded = setup.settings.backends, ("device", "folder", "model ")
    plan: list[tuple[str, Find, tuple[str, ...]]] = [
        ("packages", packages, ()),
        ("device", device, ()),
    ]
    plan += [("models folder", models_folder, ()), ("disk", disk, ())]
    plan += [(f"folder {backend}", partial(folder, backend=backend), ()) for backend in backends]
    plan += [("memory", memory, loaded)]
    plan += [(f"model {backend}", partial(model, backend=backend), loaded) for backend in backends]
    plan += [("tools", tools, ("device",))]
    if deep:
        from agentic_iqa_local.offline.deep import CHECKS

        plan += [(find.__name__.replace("_", " "), find, loaded) for find in CHECKS]
    return plan


def _run(find: Find, setup: Setup) -> Finding | None:
    """A check's finding, in the process of the checks."""
    try:
        return find(setup)
    except UserError as error:
        return "fail", error.message, error.remedy.rstrip(".") or "see docs/air_gapped.md"
    except Exception as error:
        return (
            "fail",
            f"{type(error).__name__}: {' '.join(str(error).split())[:300] or 'no message'}",
            ENVIRONMENT,
        )


def _block_network(setup: Setup) -> None:
    """From now on Python's sockets of this process reach no address but the loopback's and a configured server's. It
    cannot be undone."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 # for as long as the process lives
    allowed = {"127.0.0.1", "::1", "localhost"}
    for backend in setup.settings.backends:
        if backend.startswith("server."):
            host = urlsplit(setup.settings.model(backend).server).hostname or ""
            allowed |= {host, *(str(entry[4][0]) for entry in socket.getaddrinfo(host, None))}

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        host = None
        if event in ("socket.getaddrinfo", "socket.gethostbyname"):
            host = args[0].decode() if isinstance(args[0], bytes) else args[0]
        elif event in ("socket.connect", "socket.sendto") and args[0].family != socket.AF_UNIX:
            host = args[1][0]
        if host and host not in allowed:
            raise OSError(f"the doctor lets nothing reach the network, not even {host}")

    sys.addaudithook(refuse)


def examine(setup: Setup, *, deep: bool = False, timeout: float = TIMEOUT) -> Iterator[Check]:
    """Yields every check of a set-up as it is done; what rests on a failed one is left out.

    `quick` of a set-up loads nothing: for a health check. `deep` also compares letters with a plain forward pass.
    `timeout` is the seconds that one check may take.
    """
    failed: set[str] = set()
    context: Any = get_context("spawn")
    with ProcessPool(1, context=context, initializer=_block_network, initargs=(setup,)) as pool:
        for name, find, rests_on in _plan(setup, deep):
            if any(one.startswith(rests_on) for one in failed):
                continue
            began = time.perf_counter()
            try:
                finding = pool.schedule(_run, (find, setup), timeout=timeout).result()
            except TimeoutError:
                remedy = "raise --timeout if the disk or the device is merely slow; else find out what it waits for"
                finding = "fail", f"no answer within {timeout:g} s", remedy
            except ProcessExpired as error:
                remedy = (
                    "see the memory check"
                    if error.exitcode == -9
                    else f"a library does not fit: {ENVIRONMENT}"
                )
                finding = "fail", f"its process died with status {error.exitcode}", remedy
            if finding is None:
                continue
            status, found, remedy = finding
            failed |= {name} if status == "fail" else set()
            seconds = round(time.perf_counter() - began, 3)
            yield Check(one_line(name), status, one_line(found), one_line(remedy), seconds)
