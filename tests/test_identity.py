"""What decides a row is listed whole: in a copy of this package a change of any such file is another run."""

import json
import os
import shutil
import subprocess
import sys

from conftest import ROOT

from agentic_iqa_local import __version__
from agentic_iqa_local.config import CONFIGS, load_settings
from agentic_iqa_local.files import EMBEDDED, PACKAGE
from agentic_iqa_local.iqa_tools.runner import SHIPPED_MAPS
from agentic_iqa_local.judgement.identity import SHIPPED, named_in_row
from agentic_iqa_local.judgement.intervals import SHIPPED as SHIPPED_INTERVALS

# Files beside the deciding ones that decide nothing, but the set-ups: those are settings, which count as such.
NOT_DECIDING = {PACKAGE / "iqa_tools" / "data" / "NOTICE.md"}
SET_UPS = {file for file in CONFIGS.glob("*.yaml") if "summarizer:" in file.read_text()}
MODEL = {file for file in EMBEDDED.iterdir() if file.suffix in (".safetensors", ".json", ".jinja")}
DECIDING = {*SHIPPED, SHIPPED_MAPS, SHIPPED_INTERVALS}

CHANGING = """
import json, os, sys
from pathlib import Path
from agentic_iqa_local.batch.rows import differences
from agentic_iqa_local.batch.work import AssessWork
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.iqa_tools.calibration import CalibrationError

def told():
    settings = load_settings()
    return AssessWork(settings, "agent").identity("cpu", {})

before, said = told(), {}
for name in sys.argv[1:]:
    place = Path(name)
    content = place.read_bytes()
    place.write_bytes(content + b" ")
    said[name] = differences(told(), before)
    place.write_bytes(content)
print(json.dumps(said))
"""


def test_a_changed_byte_in_any_deciding_file_is_another_run(tmp_path):
    names = sorted(str(file.relative_to(ROOT)) for file in DECIDING | MODEL)
    for part in ("agentic_iqa_local", "configs", "models/embedded"):
        left_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=left_out)
    own = {name: value for name, value in os.environ.items() if name != "AGENTIC_IQA_MODELS"}
    done = subprocess.run(
        [sys.executable, "-c", CHANGING, *names],
        cwd=tmp_path,
        env=own | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [name for name in names if " is " not in said[name]] == []
    assert "nodes/templates/scoring.txt is" in said["agentic_iqa_local/nodes/templates/scoring.txt"]


def test_no_file_that_ships_beside_the_deciding_ones_is_forgotten():
    nodes = PACKAGE / "nodes"
    folders = (CONFIGS, nodes / "templates", PACKAGE / "iqa_tools" / "data")
    there = {file for folder in folders for file in folder.rglob("*") if file.is_file()}
    there |= {file for file in nodes.glob("*") if file.suffix not in ("", ".py")}
    assert there == DECIDING | SET_UPS | NOT_DECIDING


def test_a_row_names_its_model_its_prompts_and_the_versions():
    settings = load_settings()
    named = named_in_row(settings, "cpu")
    assert named["versions"].keys() >= {"torch", "transformers", "pyiqa", "pillow", "numpy"}
    assert named["versions"]["agentic_iqa_local"] == __version__
    fusion = settings.fusion.model_copy(update={"mode": "uniform"})
    other = named_in_row(settings.model_copy(update={"fusion": fusion}), "cpu")
    assert {name for name in named if named[name] != other[name]} == {"decided_by"}
