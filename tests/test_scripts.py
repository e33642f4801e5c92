"""scripts/with_env.sh takes an environment that is up to date as it is."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from conftest import ROOT


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
    done = subprocess.run(
        line, cwd=checkout, env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
