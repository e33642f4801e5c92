"""The commands compare and best, and the door to all commands."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from distortions import DISTORTIONS
from PIL import Image
from scripted import in_this_process

from agentic_iqa_local.cli.main import COMMANDS, main

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}


@pytest.fixture(scope="module")
def burst(photo, photo_path, tmp_path_factory):
    """A folder with a clean photograph, two worse versions of it, another photograph, and a file that is none."""
    folder = tmp_path_factory.mktemp("burst")
    shutil.copy(photo_path, folder / "b.png")
    shutil.copy(ROOT / "tests" / "data" / "prudential.png", folder / "=d.png")
    rng = np.random.default_rng(0)
    for name, kind in (("a.png", "jpeg"), ("c.png", "gaussian_blur")):
        Image.fromarray(DISTORTIONS[kind].apply(np.asarray(photo), 4, rng)).save(folder / name)
    (folder / "e.png").write_text("no picture")
    return folder


def test_a_folder_becomes_groups_with_the_best_of_each(burst, tmp_path, monkeypatch, capfd):
    in_this_process(monkeypatch)
    out = tmp_path / "rows.jsonl"
    words = [burst, "--json", "--out", out, "--explain", "--cpu"]
    assert main(["best", *map(str, words)]) == 1  # one picture failed
    told = capfd.readouterr()
    assert told.out == out.read_text()
    failed, *groups = [json.loads(line) for line in told.out.splitlines()]
    assert failed["image"] == str(burst / "e.png")
    assert failed["error"]
    versions, alone = sorted(groups, key=lambda row: -len(row["order"]))
    assert versions["best"] == str(burst / "b.png")
    names = {ranked["assessment"]["image"] for ranked in versions["order"]}
    assert names == {str(burst / name) for name in ("a.png", "b.png", "c.png")}
    assert (alone["best"], len(alone["order"])) == (str(burst / "=d.png"), 1)
    assert f"keep {burst / 'b.png'}, the best of 3 with probability" in " ".join(told.err.split())


def test_several_pictures_are_ordered_and_a_bad_one_told(burst, monkeypatch, capfd):
    in_this_process(monkeypatch)
    assert (
        main(["compare", *(str(burst / f"{name}.png") for name in "abe"), "--explain", "--cpu"])
        == 1
    )
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith(f"1. {burst / 'b.png'}")
    assert lines[1].startswith(f"2. {burst / 'a.png'}")
    assert any(line.startswith("FAILED: ") and "e.png" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "b.png", "b.png"], "expected 2 to"),
        (
            ["compare", "b.png", "gone.png"],
            "gone.png: expected an image file, but there is no such file",
        ),
        (["best", "b.png", "--query", "Sharp?"], "unknown option --query"),
        (
            ["asess", "b.png"],
            "unknown command asess; did you mean agentic-iqa assess b.png?",
        ),
        (["verify", "b.png", "a.png"], "unknown option a.png"),
        (["tools", ""], "unknown option ''"),
        (["doctor", "--quick", "--deep"], "--deep"),
        (["b.png"], "did you mean agentic-iqa assess b.png?"),
    ],
)
def test_a_mistake_is_one_sentence(words, said, burst, monkeypatch, capfd):
    monkeypatch.chdir(burst)
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    (sentence,) = capfd.readouterr().err.splitlines()
    assert status == 2
    assert said in sentence


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_named_and_has_its_help(name, capsys):
    assert main(["--help"]) == 0
    assert f"\n  {name} " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    assert len(capsys.readouterr().out.splitlines()) <= 60


def test_the_help_of_study_lists_its_commands_alone(capsys):
    assert main(["study", "--help"]) == 0
    listed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert listed
    assert all(line.startswith("  study ") for line in listed)


def test_an_eye_is_not_learned_with_an_eye_and_help_says_what_is_typed(capsys):
    for command in ("learn", "rate"):
        with pytest.raises(SystemExit):
            main([command, "x", "--out", "y", "--eye", "z"])
        assert "unknown option --eye" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["learn", "--help"])
    told = capsys.readouterr().out
    assert "--scale LOW HIGH" in told
    assert "--out DIR" in told


def test_a_reader_that_goes_away_ends_a_list_without_a_word():
    line = f"{shlex.quote(sys.executable)} -m agentic_iqa_local tools --cpu | head -n 1"
    env = ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, env=env)
    assert done.stdout.startswith("FR needs a reference")
    assert done.stderr == ""
