"""Examines whether a set-up will work on this machine: what is found, whether it will do, and the remedy otherwise.

Every check runs in a process of its own without a network: one that hangs or crashes is a failed check, and the next
gets a new process. Models and tools are loaded by the code that assessments use.
"""

import errno
import functools
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
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pebble import ProcessExpired, ProcessPool

from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import choose_device, choose_dtype, describe_device
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.files import EMBEDDED, ROOT, command, models_root
from agentic_iqa_local.offline.bundle import read_manifest, verify
from agentic_iqa_local.offline.manifest import MANIFEST
from agentic_iqa_local.offline.memory import cache_bytes, free_memory, weight_bytes
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS

if TYPE_CHECKING:
    from PIL import Image

    from agentic_iqa_local.vlm_client.rendering import Renderer

TIMEOUT = 300.0  # seconds of one check
GIB = 2**30
ROOM = 256 * 2**20  # bytes that a disk needs to have free
ENVIRONMENT = (
    f"run it in the project's environment: {command('doctor', made=True)}, or without a network in one made of a"
    " bundle's wheels (docs/air_gapped.md)"
)
UNPACK = f"{command('unpack')} BUNDLE"
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes
TEXT_TOKENS = 4096  # of the longest prompt with its answer

Status = Literal["pass", "warn", "fail"]
Finding = tuple[Status, str, str]  # status, what was found, remedy
Find = Callable[..., Finding | None]


@dataclass(frozen=True)
class Check:
    """One thing that was examined. `remedy` is empty where it passed; `seconds` is how long it took."""

    name: str
    status: Status
    found: str
    remedy: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Setup:
    """What is examined: a configuration, and the device that `gpu` and `cpu` ask for."""

    settings: Settings
    gpu: str | None = None
    cpu: bool = False
    quick: bool = False

    @property
    def device(self) -> str:
        return choose_device(self.gpu, self.cpu)

    def uses(self, engine: str) -> bool:
        return any(backend.startswith(f"{engine}.") for backend in self.settings.backends)

    @property
    def named_tools(self) -> list[str]:
        """The tools that the configuration names."""
        tools = self.settings.tools
        return list(dict.fromkeys((*tools.full_reference, *tools.no_reference)))


@functools.lru_cache(maxsize=1)
def services_of(settings: str, device: str) -> Services:
    """Models and tools, loaded once in the process of the checks."""
    return Services(Settings.model_validate_json(settings), device)


def _services(setup: Setup) -> Services:
    return services_of(setup.settings.model_dump_json(), setup.device)


def unmet(requirements: list[str], only: set[str] | None = None) -> list[str]:
    """One phrase for each requirement (of the packages `only`, where given) that the installed packages do not meet."""
    from packaging.requirements import Requirement

    lines = []
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if (only and requirement.name not in only) or (marker and not marker.evaluate({"extra": ""})):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{requirement.name} is not installed")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            lines.append(f"{requirement.name} is {version}, expected {requirement.specifier}")
    return lines


def packages(setup: Setup) -> Finding:
    """Is every package there that this version asks for, and new enough?"""
    file = ROOT / "pyproject.toml"
    if file.is_file():
        needed = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["dependencies"]
    else:
        needed = importlib.metadata.requires("agentic_iqa_local") or []
    python = ".".join(map(str, sys.version_info[:3]))
    if lines := unmet(needed):
        return "fail", f"Python {python}; {'; '.join(lines)}", ENVIRONMENT
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "pyiqa"))
    return "pass", f"Python {python}, {', '.join(versions)}", ""


def device(setup: Setup) -> Finding:
    """Does the device that was asked for exist and compute, and does torch's build fit it?"""
    import torch

    name, build = setup.device, torch.version.cuda
    if (ones := torch.ones(8, device=name).sum().item()) != 8:
        return "fail", f"{name} adds eight ones to {ones}", "do not use this device"
    about = describe_device(name)
    torch_build = f"torch {torch.__version__} is built {f'for CUDA {build}' if build else 'without CUDA'}"
    if name == "cpu":
        found = f"cpu ({about['name']}), {torch.get_num_threads()} threads; {torch_build}"
        if not setup.cpu and build and shutil.which("nvidia-smi"):
            return "warn", f"{found}; there is an NVIDIA driver", "update the driver, or pass --cpu"
        return "pass", found, ""
    size = torch.cuda.get_device_properties(name).total_memory
    return "pass", f"{name} ({about['name']}, {size / GIB:.1f} GiB); {torch_build}", ""


def models_folder(setup: Setup) -> Finding:
    """Is every file of the models folder what its manifest says? `quick` compares sizes alone."""
    root = models_root(setup.settings.models_dir)
    if not os.path.isdir(root):
        remedy = f"say where it is with --models or $AGENTIC_IQA_MODELS, or {UNPACK}"
        return "fail", f"{root}: no such folder", remedy
    if not os.path.lexists(root / MANIFEST):
        if root == ROOT / "models":
            return "pass", f"{root}: no manifest; the embedded model is there", ""
        return "warn", f"{root}: no manifest, so nobody can tell whether its files are whole", UNPACK
    manifest, sha256 = read_manifest(root)
    if setup.quick:
        places = [(root / entry.path, entry.size) for entry in manifest.files]
        problems = [f"{p}: expected {n} bytes" for p, n in places if not p.is_file() or p.stat().st_size != n]
    else:
        problems = [error.message for error in verify(root)]
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return "fail", f"{problems[0]}{more}", f"{UNPACK} (what is right is kept)"
    found = f"{root}: {len(manifest.files)} files are as manifest {sha256[:12]} says"
    folders = {setup.settings.folder(backend).resolve() for backend in setup.settings.backends}
    known = {(root / entry.path).parent.resolve() for entry in manifest.files} | {EMBEDDED}
    if unknown := sorted(map(str, folders - known)):
        remedy = "bring that folder in a bundle to have it verified"
        return "warn", f"{found}; it does not list {', '.join(unknown)}", remedy
    return "pass", found, ""


def disk(setup: Setup) -> Finding:
    """Can the libraries write their temporary files and caches, and the score cache be kept?"""
    folders = {"TMPDIR": tempfile.gettempdir(), "MPLCONFIGDIR": "~/.config/matplotlib"}
    if setup.uses("vllm"):
        folders |= {"TRITON_CACHE_DIR": "~/.triton/cache", "VLLM_CACHE_ROOT": "~/.cache/vllm"}
    places = {f"${name}": Path(os.environ.get(name) or default) for name, default in folders.items()}
    problems = []
    for name, folder in places.items():
        folder = folder.expanduser().absolute()
        place = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(b"\0")
        except OSError as error:
            problems.append(f"{name} {folder} cannot be written to ({error.strerror})")
        else:
            if (free := shutil.disk_usage(place).free) < ROOM:
                problems.append(f"{name} {folder}: only {free // 2**20} MiB are free")
    if problems:
        needed = setup.uses("vllm") or any(line.startswith("$TMPDIR") for line in problems)
        remedy = "make room there, or point that variable to another folder"
        return "fail" if needed else "warn", "; ".join(problems), remedy
    return "pass", ", ".join(map(str, dict.fromkeys(places.values()))), ""


def renderer_of(setup: Setup, backend: str) -> "Renderer":
    """The model's processor and templates, without its weights."""
    from agentic_iqa_local.vlm_client.rendering import Renderer

    engine, _, name = backend.partition(".")
    return Renderer(name, setup.settings.model(backend), weights=engine != "server")


def folder(setup: Setup, backend: str) -> Finding:
    """Is the folder a vision-language model that this transformers reads, with all its weight files whole?"""
    renderer = renderer_of(setup, backend)
    found = f"{renderer.folder}: {renderer.config.model_type}"
    if (weights := renderer.weights) is None:
        return "pass", f"{found}, its processor (the weights are the server's)", ""
    size = f"{weights.numbers / 1e6:.1f} million parameters in {len(weights.files)} file(s)"
    return "pass", f"{found}, {size}", ""


def vllm(setup: Setup) -> Finding | None:
    """Does vLLM fit the device, and does it ask for the torch and transformers that are here?"""
    if not setup.uses("vllm"):
        return None
    name = next(iter(importlib.metadata.packages_distributions().get("vllm", [])), None)
    if name is None:
        return (
            "fail",
            "not installed, and the engine is vllm",
            "install it (docs/models.md) or use --engine transformers",
        )
    version = importlib.metadata.version(name)
    for_cpu = "cpu" in name or "cpu" in version
    found = f"{name} {version}, built for {'CPUs' if for_cpu else 'GPUs'}"
    if for_cpu == setup.device.startswith("cuda"):
        remedy = "install the other build, or use --engine transformers"
        return "fail", f"{found}; the device is {setup.device}", remedy
    if lines := unmet(importlib.metadata.requires(name) or [], {"torch", "transformers"}):
        remedy = "trust it only where it loads and answers below; else give vLLM an environment of its own"
        return "warn", f"{found}; its metadata asks for others: {'; '.join(lines)}", remedy
    return "pass", found, ""


def memory(setup: Setup) -> Finding:
    """Do weights, the cache of the largest prompt and the tools (`left_for_tools_gib`) fit into what is free?

    Models and tools take turns, so what is kept free for the tools serves a model's activations too.
    """
    needs: dict[str, int] = {}
    largest = max(setup.settings.model(backend).left_for_tools_gib for backend in setup.settings.backends)
    spread = False
    for backend in setup.settings.backends:
        if backend.startswith("server."):
            continue
        settings, renderer = setup.settings.model(backend), renderer_of(setup, backend)
        width = WIDTH[choose_dtype(settings.dtype, setup.device, renderer.holds_in_bfloat16)]
        limits = renderer.limits
        tokens = 2 * ((limits.max_pixels or 2048 * 2048) // max(limits.factor, 14) ** 2) + TEXT_TOKENS
        weights = weight_bytes(renderer.folder, settings.quantization, width)
        needs[f"{renderer.name}: weights {weights / GIB:.2f} GiB, cache of {tokens} tokens"] = weights
        needs[f"{renderer.name}'s cache"] = cache_bytes(renderer.config.get_text_config(), tokens, width)
        spread |= settings.device_map == "auto"
    models, tools = sum(needs.values()), largest * GIB
    free, total = free_memory(setup.device, spread)
    words = "; ".join(name for name in needs if ":" in name) or "the model is the server's"
    found = (
        f"{words}; {(models + tools) / GIB:.2f} GiB in all with {largest:g} GiB for tools, {free / GIB:.2f} of"
        f" {total / GIB:.2f} GiB are free on {setup.device}"
    )
    if models + tools <= free:
        return "pass", found, ""
    if setup.quick and models + tools <= total:
        return "warn", found, "nothing, if it is this set-up that runs already; else end what takes the rest"
    remedy = "end what takes the rest; or set quantization: 4bit, a lower max_pixels or left_for_tools_gib; or take a"
    reserved = setup.device.startswith("cuda") and setup.uses("vllm")
    return "fail" if models > free or reserved else "warn", found, f"{remedy} smaller model"


def sample() -> tuple["Image.Image", "Image.Image"]:
    """A noisy picture and its original: RGB, 192×192 pixels, the same every time."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    shades = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8))
    original = shades.resize((192, 192), Image.Resampling.BICUBIC)
    noisy = np.asarray(original, np.float32) + rng.normal(0, 10, (192, 192, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)), original


def model(setup: Setup, backend: str) -> Finding | None:
    """Does the model load, answer about a picture under a schema, and mean to answer with the letters A–E?"""
    if setup.quick:
        return None
    from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
    from agentic_iqa_local.nodes.replies import letter_reply

    client = _services(setup).pool.get(backend, setup.settings.model(backend))
    session, reply = client.open([sample()[0]]), letter_reply(LETTERS)
    prompt = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
    answer = session.generate(prompt, reply, max_tokens=64)
    read = session.read_letters(prompt, ANSWER_PREFIX, LETTERS)
    session.close()
    letter, about = reply.model_validate_json(answer).model_dump()["final_answer"], client.describe()
    logprobs = ", ".join(f"{name} {value:.2f}" for name, value in read.logprobs.items())
    found = f"{about['engine']} answers {letter} on {about['device']} in {about['dtype']}; letters {logprobs}"
    if read.off_letter_mass > setup.settings.fusion.off_letter_warning:
        found += f"; {read.off_letter_mass:.0%} of the probability lies off them"
        return "warn", found, "this model hardly takes the answer format: use one that follows instructions"
    return "pass", found, ""


def tools(setup: Setup) -> Finding:
    """Are the tools there that the configuration names, and does each one that is there measure?"""
    from agentic_iqa_local.iqa_tools import ToolError

    runner, problems, measured = _services(setup).tools, [], []
    for info in runner.info():
        if not info.available:
            if info.name in setup.named_tools:
                problems.append(f"{info.name} is named by the configuration: {info.reason}")
            continue
        try:
            raw = None if setup.quick else runner.measure(info.name, *sample())
            measured.append(info.name if raw is None else f"{info.name} {runner.maps[info.name](raw):.2f}")
        except ToolError as error:
            problems.append(error.message)
    found = f"{len(measured)} are available{'' if setup.quick else ' and measure'}: {', '.join(measured)}"
    if problems:
        remedy = f"bring the weights in a bundle ({command('bundle')} --tools NAME), or name other tools"
        return "fail", f"{'; '.join(problems)}; {found}", remedy
    return "pass", found, ""


def _run(find: Find, setup: Setup, about: tuple[str, ...]) -> tuple[Finding | None, list[str]]:
    """In the process of the checks: a check's finding, and the hosts that it tried to reach."""
    _attempts.clear()
    try:
        found = find(setup, *about)
    except UserError as error:
        found = ("fail", error.message, error.remedy.rstrip(".") or "see docs/air_gapped.md")
    except Exception as error:
        said = " ".join(str(error).split())[:300] or "no message"
        found = ("fail", f"{type(error).__name__}: {said}", ENVIRONMENT)
    return found, sorted(set(_attempts))


_attempts: list[str] = []


def _block_network(setup: Setup) -> None:
    """From now on Python's sockets of this process reach no address but that of a configured server, and the loopback
    where vLLM's engine talks to itself. It cannot be undone."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 # for as long as the process lives
    allowed = {"127.0.0.1", "::1", "localhost"} if setup.uses("vllm") else set()
    for backend in setup.settings.backends:
        if backend.startswith("server."):
            host = urlsplit(setup.settings.model(backend).server).hostname or ""
            allowed |= {host, *(str(entry[4][0]) for entry in socket.getaddrinfo(host, None))}

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            inet = args[0].family in (socket.AF_INET, socket.AF_INET6) and args[1]
            host = args[1][0] if inet else None
        else:
            host = args[0] if event in ("socket.getaddrinfo", "socket.gethostbyname") else None
        if host and (name := host.decode() if isinstance(host, bytes) else str(host)) not in allowed:
            _attempts.append(name)
            raise OSError(errno.ENETUNREACH, f"the doctor lets nothing reach the network, not even {name}")

    sys.addaudithook(refuse)


def examine(setup: Setup, *, deep: bool = False, timeout: float = TIMEOUT) -> Iterator[Check]:
    """Yields every check of a set-up as it is done; what rests on a failed one is left out.

    Args:
        setup: its `quick` loads no model and no tool and reads no file whole: for a health check.
        deep: also compares letters with a plain forward pass, see `deep`.
        timeout: seconds that one check may take.
    """
    failed: set[str] = set()
    context: Any = get_context("spawn")
    with ProcessPool(1, context=context, initializer=_block_network, initargs=(setup,)) as pool:
        for name, find, about, rests_on in _plan(setup, deep):
            if any(one.startswith(rests_on) for one in failed):
                continue
            began = time.perf_counter()
            finding, hosts = _finding(pool, find, setup, about, timeout)
            if finding is None:
                continue
            status, found, remedy = finding
            if hosts:
                status = "fail" if status == "fail" else "warn"
                found += f"; it tried to reach {', '.join(hosts)}"
                remedy = remedy or "find out what wants the network"
            if status == "fail":
                failed.add(name)
            seconds = round(time.perf_counter() - began, 3)
            yield Check(one_line(name), status, one_line(found), one_line(remedy), seconds)


def _plan(setup: Setup, deep: bool) -> Iterator[tuple[str, Find, tuple[str, ...], tuple[str, ...]]]:
    """The checks in their order: name, function, further arguments, and how the checks that it rests on begin."""
    from agentic_iqa_local.offline.deep import CHECKS

    backends, loaded = setup.settings.backends, ("device", "folder", "model ")
    yield "packages", packages, (), ()
    yield "device", device, (), ()
    yield "models folder", models_folder, (), ()
    yield "disk", disk, (), ()
    yield from ((f"folder {backend}", folder, (backend,), ()) for backend in backends)
    yield "vllm", vllm, (), ("device",)
    yield "memory", memory, (), loaded
    yield from ((f"model {backend}", model, (backend,), loaded) for backend in backends)
    yield "tools", tools, (), ("device",)
    if deep:
        yield from ((name, check, (), loaded) for name, check in CHECKS.items())


def _finding(
    pool: ProcessPool, find: Find, setup: Setup, about: tuple[str, ...], timeout: float
) -> tuple[Finding | None, list[str]]:
    """A check's finding, and the hosts that it tried to reach; a hang or a crash is a failure."""
    try:
        return pool.schedule(_run, (find, setup, about), timeout=timeout).result()
    except TimeoutError:
        remedy = "raise --timeout if the disk or the device is merely slow; else find out what it waits for"
        return ("fail", f"no answer within {timeout:g} s", remedy), []
    except ProcessExpired as error:
        killed = error.exitcode == -9
        remedy = "see the memory check" if killed else f"a library does not fit: {ENVIRONMENT}"
        return ("fail", f"its process died with status {error.exitcode}", remedy), []
