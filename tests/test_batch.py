"""Batches of the command assess: what kills, Ctrl-C, a full disk and a stdout that nobody reads leave of the
rows, and what is told."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from acting import Acting, as_a_command
from conftest import ROOT
from scripted import in_this_process

from agentic_iqa_local.batch.rows import RowFile, RowsError
from agentic_iqa_local.cli import assess as script
from agentic_iqa_local.cli.assess_run import AssessRun
from agentic_iqa_local.cli.command import parse
from agentic_iqa_local.cli.console import Console
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.vlm_client import ModelLost
from agentic_iqa_local.vlm_client.transformers_client import TransformersSession

SIDE = 224  # NIQE needs 192 pixels


@pytest.fixture(scope="module")
def folder(photo, tmp_path_factory):
    """Six crops of the photograph."""
    folder = tmp_path_factory.mktemp("crops")
    for i in range(6):
        left, top = 4 * i, 3 * i
        photo.crop((left, top, left + SIDE, top + SIDE)).save(folder / f"{i:02d}.png")
    return folder


def lines(path):
    content = path.read_bytes()
    assert content == b"" or content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


@pytest.fixture
def command(services, monkeypatch):
    """`command(*words)`: (status, whatever stdout got) of assess.py in this process, on the loaded model."""
    monkeypatch.setattr("agentic_iqa_local.services.Services", lambda *_: services)
    in_this_process(monkeypatch)

    def run(*words):
        parsed = parse("assess", ["--cpu", "--pipeline", "letters", *map(str, words)])
        console = Console(io.StringIO())
        items = script.items_of(parsed)
        status = AssessRun(parsed, services.settings, items, "cpu", console).finish()
        return status, console.results.getvalue()

    return run


# Kills

# The command with a work that needs no model, a quarter of a second for each picture.
SLOW = """
import sys
from acting import Slow
from agentic_iqa_local.cli import assess_run, main
assess_run.AssessWork = Slow
sys.exit(main.main(sys.argv[1:]))
"""


def begin(*words):
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, "assess", *words],
        env=os.environ | path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def wait_for_more(process, path, size):
    """Until the file of rows has more bytes, which the process says by writing them."""
    while path.stat().st_size <= size if path.exists() else True:
        with suppress(subprocess.TimeoutExpired):
            assert process.wait(0.02) is None, process.stderr.read()


def test_kills_and_ctrl_c_lose_no_row_and_repeat_none(tmp_path, monkeypatch, capfd):
    pictures = [tmp_path / f"{number:02}.png" for number in range(20)]
    for picture in pictures:
        picture.touch()
    monkeypatch.setattr("agentic_iqa_local.cli.assess_run.AssessWork", Acting)
    path, gallery = tmp_path / "rows.jsonl", tmp_path / "gallery.html"
    words = [*pictures, "--cpu", "--pipeline", "letters", "--out", path, "--resume"]
    process = begin(*words)
    wait_for_more(process, path, 0)
    process.send_signal(signal.SIGSTOP)  # so that it does not end meanwhile
    assert as_a_command("assess", *words) == 2
    assert "another process is writing it" in capfd.readouterr().err
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = path.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    words += ["--gallery", gallery]
    process = begin(*words)
    wait_for_more(process, path, len(kept))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert path.read_bytes().startswith(kept)
    before = lines(path)
    assert f"interrupted: {len(before)} of 20 pictures" in said
    assert in_gallery(gallery) == [row["image"] for row in before]
    assert "the same command with --resume goes on" in said
    assert as_a_command("assess", *words) == 1  # Acting's rows are failures
    rows = lines(path)
    assert rows[: len(before)] == before
    assert sorted(row["image"] for row in rows) == list(map(str, pictures))  # each once
    assert all(row["error"].startswith("made by ") for row in rows)
    assert in_gallery(gallery) == [row["image"] for row in rows]


def test_a_polite_kill_ends_like_ctrl_c(command, folder, tmp_path, monkeypatch):
    """What is in hand is finished and written, the exit status is that of an interruption, and --resume takes
    the rest."""
    images, path, real = sorted(folder.iterdir()), tmp_path / "rows.jsonl", RowFile.append

    def killed(rows, line):
        real(rows, line)
        if len(lines(path)) == 1:
            signal.raise_signal(signal.SIGHUP)

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "append", killed)
        assert command(*images, "--out", path) == (130, "")
    assert 1 <= len(lines(path)) < len(images)
    assert command(*images, "--out", path, "--resume") == (0, "")
    assert sorted(row["image"] for row in lines(path)) == list(map(str, images))


def in_gallery(file):
    """The pictures of a gallery, in their order."""
    index = re.search(
        '<script type="application/json" id="index">(.*?)</script>', file.read_text()
    )[1]
    return [row["image"] for row in json.loads(index)["rows"]]


@pytest.mark.parametrize(
    ("name", "started"), [("assess", "assess.items_of"), ("doctor", "look.chosen_settings")]
)
def test_ctrl_c_at_any_time_is_status_130(name, started, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"agentic_iqa_local.cli.{started}", interrupted)
    assert main([name]) == 130
    assert capsys.readouterr().err.startswith("interrupted")


def test_the_service_ends_with_0_when_it_is_ended_while_it_loads(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("agentic_iqa_local.cli.serve._serve", interrupted)
    assert main(["serve"]) == 0


# What goes on


def test_a_full_disk_ends_the_run_and_it_goes_on_later(
    command, folder, tmp_path, monkeypatch, capfd
):
    images, path, real = sorted(folder.iterdir())[:4], tmp_path / "rows.jsonl", RowFile.append

    def append(rows, line):
        if len(lines(path)) == 2:
            raise RowsError("No space left on device")
        real(rows, line)

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "append", append)
        assert command(*images, "--out", path) == (1, "")
    said = capfd.readouterr().err
    assert "No space left on device" in said
    assert "--resume" in said
    assert [row["image"] for row in lines(path)] == list(map(str, images[:2]))
    assert command(*images, "--out", path, "--resume") == (0, "")
    assert sorted(row["image"] for row in lines(path)) == list(map(str, images))
    # nothing is left to do, so nothing is loaded
    monkeypatch.setattr("agentic_iqa_local.batch.runner.Runner", None)
    assert command(*images, "--out", path, "--resume") == (0, "")


def test_an_image_that_loses_its_model_comes_last_on_resume(
    command, folder, tmp_path, monkeypatch, capfd
):
    """Of what there is it makes the summary and the table."""
    images = sorted(folder.iterdir())[:3]
    path, table = tmp_path / "rows.jsonl", tmp_path / "rows.csv"
    real, calls = TransformersSession.read_letters, []

    def lost(session, *args):
        calls.append(session)
        if len(calls) == 2:
            raise ModelLost("the engine is gone")
        return real(session, *args)

    with monkeypatch.context() as patch:
        patch.setattr(TransformersSession, "read_letters", lost)
        assert command(*images, "--out", path, "--csv", table) == (1, "")
    said = capfd.readouterr().err
    assert said.splitlines()[-1].startswith(
        "error: the engine is gone; the same command with --resume"
    )
    assert str(images[0]) in table.read_text("utf-8-sig")
    assert [row["image"] for row in lines(path)] == [str(images[0])]
    assert command(*images, "--out", path, "--resume") == (0, "")
    assert [row["image"] for row in lines(path)] == [str(images[i]) for i in (0, 2, 1)]


def test_a_stdout_that_takes_nothing_ends_the_run_in_a_sentence(photo_path, capfd):
    with open("/dev/full", "w") as full:
        status = as_a_command(
            "assess", photo_path, "--cpu", "--pipeline", "letters", stdout=full.fileno()
        )
    assert (status, capfd.readouterr().err) == (2, "error: [Errno 28] No space left on device\n")
