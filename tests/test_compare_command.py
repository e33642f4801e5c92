"""assess --compare and --best-of, run as a user runs them."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image

from agentic_iqa_local.cli.assess_options import parse
from agentic_iqa_local.studies.distortions import DISTORTIONS

COMMAND = [sys.executable, str(ROOT / "scripts" / "assess.py"), "--cpu"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}


def run(*args) -> subprocess.CompletedProcess:
    done = subprocess.run([*COMMAND, *map(str, args)], capture_output=True, text=True, env=ENVIRONMENT)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def burst(photo, photo_path, tmp_path_factory):
    """A folder with a clean photograph, two worse versions of it, another photograph, and a file that is
    none."""
    folder = tmp_path_factory.mktemp("burst")
    shutil.copy(photo_path, folder / "b.png")
    shutil.copy(ROOT / "tests" / "data" / "prudential.png", folder / "d.png")
    rng = np.random.default_rng(0)
    for name, kind in (("a.png", "jpeg"), ("c.png", "gaussian_blur")):
        Image.fromarray(DISTORTIONS[kind].apply(np.asarray(photo), 4, rng)).save(folder / name)
    (folder / "e.png").write_text("no picture")
    return folder


def test_a_folder_becomes_groups_with_the_best_of_each(burst, tmp_path):
    before = {file.name: file.read_bytes() for file in burst.iterdir()}
    out = tmp_path / "rows.jsonl"
    done = run("--best-of", burst, "--json", "--out", out, "--explain")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    failed, versions, alone = rows
    assert failed["image"] == str(burst / "e.png")
    assert failed["error"]
    assert (versions["kind"], versions["number"], versions["best"]) == ("group", 1, str(burst / "b.png"))
    names = [ranked["assessment"]["image"] for ranked in versions["order"]]
    assert sorted(names) == [str(burst / name) for name in ("a.png", "b.png", "c.png")]
    assert all(pair["basis"] == "same scene, fitted" for pair in versions["pairs"])
    assert (alone["best"], len(alone["order"])) == (str(burst / "d.png"), 1)
    assert "is the best of 3" in done.stderr
    assert "has no near-duplicate" in done.stderr
    assert done.returncode == 1  # one picture failed
    assert {file.name: file.read_bytes() for file in burst.iterdir()} == before


def test_several_pictures_are_ordered_and_a_bad_one_told(burst):
    done = run("--compare", burst / "a.png", burst / "b.png", burst / "e.png", "--explain")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"1. {burst / 'b.png'}")
    assert lines[1].startswith(f"2. {burst / 'a.png'}")
    assert any(line.startswith("FAILED: ") and "e.png" in line for line in lines)
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--compare", "a.png", "--best-of", "b"], "--best-of: expected without --compare"),
        (["--compare", "a.png", "--manifest", "m.csv"], "--manifest: expected without --compare"),
        (["--best-of", "a", "--interactive"], "--interactive: expected without --best-of"),
        (["--best-of", "a", "--choices", "x", "y"], "--choices: expected without --best-of"),
        (["--compare", "a.png", "b.png", "--query", "Is it noisy?"], "--query: expected without --compare"),
        (["--best-of", "a", "--at-least", "Good"], "--at-least: expected without --best-of"),
        (["x.png", "--best-of", "a"], "x.png: expected without --best-of; name it behind --best-of"),
        (["a.png", "--pairwise", "always"], "--pairwise: expected with --compare or --best-of"),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(given, said, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(given, "")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")


def test_comparisons_take_the_pipeline_letters_unless_told_otherwise():
    assert parse(["--compare", "a.png", "b.png"], "").pipeline == "letters"
    assert parse(["--best-of", "a", "--pipeline", "agent"], "").pipeline == "agent"


def test_one_picture_is_nothing_to_compare(burst):
    done = run("--compare", burst / "b.png", burst / "b.png")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "expected two pictures or more, got the same one twice" in line
