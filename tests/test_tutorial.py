"""docs/tutorial.md: every command of it runs, as it stands, in a folder that holds what a checkout does."""

import json
import re
import runpy
import shlex
import subprocess

from acting import as_a_command
from conftest import ROOT
from scripted import in_this_process


def run(line: str, monkeypatch) -> int:
    """The exit status of a command; those of Python run in this process."""
    name, *words = shlex.split(line)
    if name == "agentic-iqa":
        return as_a_command(*words)
    if name != "python":
        return subprocess.run(line, shell=True).returncode
    if words[0] == "-c":
        exec(words[1], {})
        return 0
    monkeypatch.setattr("sys.argv", words)
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code or 0
    return 0


def test_what_the_tutorial_says_comes_true(tmp_path, monkeypatch, capfd):
    """Batches run in this process. The damaged copy is worse, the question has one of its choices, and batch, gallery and report are written."""
    for name in ("tests", "models", "configs", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    in_this_process(monkeypatch)
    blocks = re.findall(
        r"```bash\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(encoding="utf-8"), re.DOTALL
    )
    printed = {}
    for line in "".join(blocks).splitlines():
        status = run(line, monkeypatch)
        told = capfd.readouterr()
        assert status == 0, f"{line}\n{told.out}\n{told.err}"
        printed[line] = told.out

    def one(words: str) -> dict:
        return next(json.loads(text) for line, text in printed.items() if words in line)

    assert one("--reference")["q"] < one("assess tests/data/sumac.png")["q"]
    assert one("agentic-iqa compare")["pair"]["probability"] > 0.5
    assert one("--choices")["final_answer"] in ("Yes", "No", "A", "B")
    folder = tmp_path / "tutorial"
    rows = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == len(list((folder / "scans").iterdir()))
    assert "<html" in (folder / "gallery.html").read_text(encoding="utf-8")[:2000]
    assert "SRCC" in (folder / "report" / "report.html").read_text(encoding="utf-8")
