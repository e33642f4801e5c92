"""docs/tutorial.md: every command of it runs, as it stands, in a folder that holds what a checkout does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Command → what it printed. Runs the tutorial's commands in order."""
    folder = tmp_path_factory.mktemp("tutorial")
    for name in ("tests", "models", "configs", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(encoding="utf-8"), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "agentic-iqa").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m agentic_iqa_local "$@"\n')
    (bin_folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for file in bin_folder.iterdir():
        file.chmod(0o755)
    path = os.pathsep.join([str(bin_folder), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "TUTORIAL": str(folder)}
    printed = {}
    for command in commands:
        done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        printed[command] = done.stdout
    printed["folder"] = str(folder)
    return printed


def test_what_the_tutorial_says_comes_true(said: dict[str, str]) -> None:
    """The damaged copy is worse, the question has one of its choices, and batch, gallery and report are written."""

    def one(words: str) -> dict:
        (output,) = (text for command, text in said.items() if words in command)
        return json.loads(output)

    clean = json.loads(next(text for command, text in said.items() if command.endswith("assess tests/data/sumac.png")))
    assert one("--reference")["q"] < clean["q"]
    assert one("agentic-iqa compare")["pair"]["probability"] > 0.5
    assert one("--choices")["final_answer"] in ("Yes", "No", "A", "B")
    folder = Path(said["folder"]) / "tutorial"
    rows = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == len(list((folder / "scans").iterdir()))
    assert "<html" in (folder / "gallery.html").read_text(encoding="utf-8")[:2000]
    assert "SRCC" in (folder / "report" / "report.html").read_text(encoding="utf-8")
