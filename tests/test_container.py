"""Dockerfile.cuda, as far as it can be judged without building it: hadolint and what this project promises.
scripts/build_container.sh builds and runs the image."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FILE = ROOT / "Dockerfile.cuda"
LOCK = ROOT / "constraints-gpu.txt"


def of(name: str) -> list[str]:
    """The arguments of each instruction of this name, comments left out and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return re.findall(rf"^{name} +(.*\S)", text.replace("\\\n", " "), flags=re.MULTILINE)


def locked(lock: Path) -> dict[str, str]:
    """Package → its version in a lock, which pins every one."""
    lines = [
        line for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    ]
    pins = dict(re.fullmatch(r"([\w.-]+)==(\S+)(?: ;.*)?", line).groups() for line in lines)
    return {canonicalize_name(name): version for name, version in pins.items()}


def test_hadolint_finds_nothing():
    hadolint = shutil.which("hadolint", path=sysconfig.get_path("scripts"))
    if hadolint is None:
        pytest.skip("no hadolint here; the extra `test` brings it")
    done = subprocess.run([hadolint, str(FILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_base_is_the_locks_cuda_and_the_user_is_not_root():
    (base,) = of("ARG")
    tag = re.fullmatch(r"BASE=nvidia/cuda:(\d+\.\d+)\.\d+-runtime-ubuntu\d\d\.04", base)
    assert tag, base
    assert of("FROM") == ["${BASE}"]
    assert locked(LOCK)["cuda-toolkit"].startswith(f"{tag[1]}.")
    assert re.fullmatch(
        r"[1-9]\d{3,}:[1-9]\d{3,}", of("USER")[-1]
    )  # Kubernetes' runAsNonRoot cannot check a name


def test_the_gpu_lock_pins_what_the_project_needs():
    """All extras but the tests' own tools, llamacpp, whose wheel computes on a CPU alone, and heic, whose wheel
    holds x265 (GPL): whoever wants it adds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock, extras = locked(LOCK), project["optional-dependencies"]
    assert {"vllm", "serve"} <= extras.keys()
    wanted = [
        line
        for name, lines in extras.items()
        if name not in ("test", "heic", "llamacpp")
        for line in lines
    ]
    for requirement in map(Requirement, (*project["dependencies"], *wanted)):
        assert requirement.specifier.contains(lock[canonicalize_name(requirement.name)]), (
            requirement
        )


def test_it_writes_below_tmp_alone_and_asks_no_network():
    pairs = [pair for argument in of("ENV") for pair in shlex.split(argument)]
    values = dict(pair.split("=", 1) for pair in pairs)
    for name, value in values.items():
        if name.endswith(("HOME", "CACHE", "_DIR")) and name != "PIP_NO_CACHE_DIR":
            assert value.startswith("/tmp/"), name
    expected = {"PYTHONDONTWRITEBYTECODE": "1", "AGENTIC_IQA_MODELS": "/models"}
    expected |= dict.fromkeys(
        ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS"), "1"
    )
    assert expected.items() <= values.items()
    # Docker mounts a tmpfs noexec unless told otherwise, and Triton loads from there what it compiled.
    for part in ("--network none", "--read-only", "--tmpfs /tmp:exec", ":/models:ro"):
        assert part in FILE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ENTRYPOINT", "HEALTHCHECK"])
def test_what_it_runs_is_there_and_takes_its_options(name):
    (argument,) = of(name)
    python, script, *options = json.loads(argument[argument.index("[") :])
    line = [sys.executable, ROOT / script, "--help"]
    help_text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert python == "python"
    assert all(option in help_text for option in options)
