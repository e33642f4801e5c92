"""scripts/test.sh runs every check, whatever the first one says; scripts/with_env.sh takes an environment that is up to date as it is."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

STAND_IN = """
echo "$@" >> ran
case "$1" in bash) exit LINT ;; --vllm-cpu) exit ENGINE ;; *) exit PROJECT ;; esac
"""


@pytest.mark.parametrize(
    ("lint", "project", "engine", "status"), [(0, 0, 0, 0), (0, 0, 1, 1), (0, 3, 2, 3), (1, 3, 2, 1)]
)
def test_all_checks_run_and_all_are_reported(tmp_path: Path, lint: int, project: int, engine: int, status: int) -> None:
    checkout = tmp_path / "a check out"
    (checkout / "scripts").mkdir(parents=True)
    shutil.copyfile(ROOT / "scripts" / "test.sh", checkout / "scripts" / "test.sh")
    stand_in = STAND_IN.replace("LINT", str(lint)).replace("ENGINE", str(engine)).replace("PROJECT", str(project))
    (checkout / "scripts" / "with_env.sh").write_text(stand_in)
    line = ["bash", checkout / "scripts" / "test.sh", "-x"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (checkout / "ran").read_text().splitlines() == [
        "bash scripts/lint.sh",
        "pytest -n 2 --dist loadfile --ignore tests/vllm_engine -x",
        "--vllm-cpu python -m pytest tests/vllm_engine -x",
    ]
    assert done.returncode == status
    last = done.stdout.splitlines()[-1]
    assert last.count("passed") == [lint, project, engine].count(0)


def test_an_environment_that_is_up_to_date_is_taken_as_it_is(tmp_path: Path) -> None:
    checkout = tmp_path / "a check out"
    for folder in ("scripts", ".venv/bin"):
        (checkout / folder).mkdir(parents=True)
    for file in ("scripts/with_env.sh", "pyproject.toml", "constraints.txt"):
        shutil.copyfile(ROOT / file, checkout / file)
    made_from = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    (checkout / ".venv" / ".made_from").write_text(f"{hashlib.sha256(made_from).hexdigest()}  -\n")
    line = ["bash", "scripts/with_env.sh", "echo", "done"]
    variables = os.environ | {"PYTHON": "/bin/false"}  # which must not be asked to make another one
    done = subprocess.run(line, cwd=checkout, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
