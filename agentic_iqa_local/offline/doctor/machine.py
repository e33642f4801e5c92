"""What is examined of the machine and its environment: Python, packages, vLLM's and torch's builds, the
device."""

import ctypes
import importlib.metadata
import sys
import tomllib

from agentic_iqa_local.devices import describe_device
from agentic_iqa_local.offline.doctor.checks import ENVIRONMENT, Finding, Setup, check, gib
from agentic_iqa_local.paths import ROOT


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

    if (ones := torch.ones(8, device=setup.device).sum().item()) != 8:
        return "fail", f"{setup.device} adds eight ones to {ones}", "do not use this device"
    about = describe_device(setup.device)
    if setup.device == "cpu":
        return "pass", f"cpu ({about['name']}), {torch.get_num_threads()} threads", ""
    total_bytes = torch.cuda.get_device_properties(setup.device).total_memory
    return "pass", f"{setup.device} ({about['name']}, {gib(total_bytes)})", ""
