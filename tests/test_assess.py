"""The command assess in the test's process (tests/test_offline.py runs it as a user does)."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DATA, ROOT
from PIL import Image
from scripted import in_this_process

from agentic_iqa_local.cli.main import main


def run(*arguments) -> int:
    """The exit status of the command."""
    try:
        return main(["assess", *map(str, arguments)])
    except SystemExit as ended:
        return ended.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two crops, one file that is no picture in spite of its name, and one that nobody takes for a picture."""
    place = tmp_path_factory.mktemp("holiday pictures")
    for i in range(2):
        Image.open(DATA / "sumac.png").crop((96 * i, 0, 96 * i + 224, 224)).save(place / f"{i}.png")
    (place / "broken.png").write_text("no picture")
    (place / "notes.txt").write_text("notes")
    return place


def test_vv_logs_the_prompts_and_an_explanation_goes_to_stderr(folder, monkeypatch, capfd, caplog):
    in_this_process(monkeypatch)
    assert run(folder / "0.png", "--cpu", "-vv", "--explain", "--json") == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["error"] is None
    assert "You must select one single answer" in caplog.text
    assert "How sure: " in told.err


def test_a_batch_tells_its_notes_and_equal_warnings_once(folder, monkeypatch, capfd):
    in_this_process(monkeypatch)
    query = ["--query", "Rate it with VMAF."]  # which no picture can be measured with here
    pictures = [folder / "0.png", folder / "1.png"]
    assert run(*pictures, "--cpu", "--pipeline", "letters", "--explain", *query) == 0
    told = capfd.readouterr()
    both = " ".join((told.out + told.err).split())
    assert [both.count(said) for said in ("How sure: ", "Warnings: ", "Note: ")] == [2, 1, 1]


def test_a_batch_has_rows_a_table_and_a_summary_and_goes_on(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    in_this_process(monkeypatch)
    words = [folder, "--cpu", "--pipeline", "letters", "--out", "t.jsonl", "--csv", "t.csv"]
    assert run(*words) == 1
    told = capfd.readouterr()
    assert told.out == ""
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["error"] is None for row in rows] == [True, True, False]
    assert rows[2]["q"] is None
    table = list(csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert [os.path.basename(row["image"]) for row in table] == ["0.png", "1.png", "broken.png"]
    assert [float(row["q"]) for row in table[:2]] == [row["q"] for row in rows[:2]]
    assert f"by score, mean {(rows[0]['q'] + rows[1]['q']) / 2:.2f}:" in told.err
    assert "--retry-failed" in told.err
    assert "\x1b" not in told.err
    assert run(*words, "--resume") == 1
    assert "nothing is left to do" in capfd.readouterr().err
    assert [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()] == rows


@pytest.mark.parametrize(
    ("options", "status", "verdict"), [([], 3, None), (["--at-least", "5"], 4, "fail")]
)
def test_strict_tells_by_its_exit_status_and_the_sample_is_taken(
    monkeypatch, capfd, options, status, verdict
):
    """The sample is surely not 5, and its interval is wider than 0.1."""
    in_this_process(monkeypatch)
    assert (
        run("--cpu", "--pipeline", "letters", "--strict", "--abstain-wider-than", "0.1", *options)
        == status
    )
    told = capfd.readouterr()
    assert told.err.startswith("no picture named: assessing the sample that ships")
    row = json.loads(told.out)
    assert row["error"] is None
    assert (row["gate"] or {}).get("verdict") == verdict


def test_help_is_short_and_the_rest_one_word_away(monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = ((run(word), capfd.readouterr().out)[1] for word in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 60
    basic = {word.split("=")[0] for word in short.split() if word.startswith("--")}
    assert {
        "--reference",
        "--query",
        "--gpu",
        "--config",
        "--out",
        "--resume",
        "--explain",
    } <= basic
    assert "--cluster " in whole.replace(short, "")
    assert "--cluster " not in short


@pytest.mark.parametrize("command", ["best", "compare"])
def test_everyday_options_of_other_commands_are_told_first(command, capsys):
    shown = {}
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main([command, word])
        shown[word] = capsys.readouterr().out
    assert "--timeout " in shown["--help-all"]
    assert "--timeout " not in shown["--help"]
    assert "docs/command_line.md" in shown["--help"]


# A newcomer's mistakes, written down before what is said of them was looked at.
MISTAKES = [
    (
        ["phot.jpg"],
        "phot.jpg: expected an image file, but there is no such file; did you mean photo.jpg?",
    ),
    (["photo.jpg", "--expalin"], "did you mean --explain?"),
    (["empty"], "empty: expected a folder or a pattern with image files"),
    (["photo.jpg", "--query", "  "], "--query: expected a text that is not blank"),
    (["photo.jpg", "--gpu", "0"], "or --cpu"),
    (["photo.jpg", "--config", "qwen2_5_vl"], "did you mean qwen2_5_vl_7b"),
    (["photo.jpg", "--model", "Qwen/Qwen2.5-VL-7B-Instruct"], "agentic-iqa bundle --config"),
    (["photo.jpg", "--out", "results/rows.jsonl"], "mkdir -p"),
    (
        ["photo.jpg", "--out", "photo.png"],
        "--out photo.png: expected a name with .jsonl or .json;",
    ),
    (["photo.jpg", "--strict"], "--strict: expected with --at-least or --abstain-wider-than"),
    (
        ["photo.jpg", "--config", "mine.yaml"],
        "tools.no_reference: there is no tool 'NIQUE' here; did you mean UNIQUE, NIQE, ",
    ),
]


@pytest.mark.parametrize(("arguments", "said"), MISTAKES, ids=lambda value: " ".join(value)[:60])
def test_a_newcomer_is_told_what_to_type(arguments, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("mine.yaml").write_text("tools: {no_reference: [NIQUE]}\n")
    Image.new("RGB", (64, 64)).save("photo.jpg")
    status = run(*arguments)
    told = capfd.readouterr()
    (sentence,) = told.err.splitlines()
    assert (status, told.out) == (2, "")
    assert sentence.startswith("error: ")
    assert said in sentence


def test_a_mistake_is_told_before_anything_is_loaded():
    code = "import sys; from agentic_iqa_local.cli.main import main; main(['assess', 'gone.jpg']); print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stderr.splitlines()[-1] == "False"


DOORS = [
    ["assess", "photo.png"],
    ["assess", "photo.png", "other.png", "--out", "rows.jsonl"],
    ["compare", "photo.png", "other.png"],
    ["chat", "photo.png"],
    ["serve", "--port", "0"],
    ["mcp"],
    ["study", "run", "scores.csv", "--mos-range", "1", "5", "--out", "study"],
]


@pytest.mark.parametrize("door", DOORS, ids=" ".join)
def test_a_tool_without_its_weights_is_a_mistake_at_every_door(door, tmp_path, monkeypatch, capfd):
    """Before anything is loaded, with the file and the folder."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("tools: {no_reference: [MUSIQ, LocalNR]}")
    Path("scores.csv").write_text("image,mos\nphoto.png,3\nother.png,4\n")
    for name in ("photo.png", "other.png"):
        Image.new("RGB", (64, 64)).save(name)
    monkeypatch.setattr("agentic_iqa_local.services.Services.client", None)  # nothing is loaded
    assert main([*door, "--config", "mine.yaml"]) == 2
    (sentence,) = capfd.readouterr().err.splitlines()
    assert "MUSIQ cannot run here: missing weights /" in sentence
    assert "tools/hub/pyiqa/musiq_koniq_ckpt-e95806b9.pth" in sentence
