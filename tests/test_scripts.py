"""scripts/test.sh runs both suites whatever the first one says."""

import subprocess

import pytest
from conftest import ROOT

STAND_IN = """
echo "$@" >> ran
case "$1" in --vllm-cpu) exit ENGINE ;; *) exit PROJECT ;; esac
"""


@pytest.mark.parametrize(("project", "engine", "status"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (3, 2, 3)])
def test_both_suites_run_and_both_are_reported(tmp_path, project, engine, status):
    checkout = tmp_path / "a check out"
    (checkout / "scripts").mkdir(parents=True)
    (checkout / "scripts" / "test.sh").write_bytes((ROOT / "scripts" / "test.sh").read_bytes())
    stand_in = STAND_IN.replace("ENGINE", str(engine)).replace("PROJECT", str(project))
    (checkout / "scripts" / "with_env.sh").write_text(stand_in)
    done = subprocess.run(["bash", checkout / "scripts" / "test.sh", "-x"], capture_output=True, text=True, check=False)
    assert (checkout / "ran").read_text().splitlines() == [
        "pytest -n 2 --dist loadfile -x",
        "--vllm-cpu python -m pytest tests/vllm_engine -x",
    ]
    assert done.returncode == status
    last = done.stdout.splitlines()[-1]
    assert last.count("passed") == (project == 0) + (engine == 0)
    assert last.count("FAILED") == (project != 0) + (engine != 0)
