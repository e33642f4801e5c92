"""The command gate on folders of small pictures, with the embedded model."""

import html
import json
import os
import shutil
from xml.etree import ElementTree

import pytest
from conftest import DATA
from PIL import Image
from scripted import in_this_process

from agentic_iqa_local.cli.main import main
from agentic_iqa_local.iqa_tools import ToolRunner
from agentic_iqa_local.judgement.changes import change


@pytest.fixture
def folders(photo, tmp_path):
    """Three crops of a photograph in old/ and in originals/; in new/ one as it was in another format, one that
    was compressed hard, and one that is as it was."""
    for name in ("old", "new", "originals"):
        (tmp_path / name).mkdir()
    for number, left in enumerate((0, 160, 320)):
        crop = photo.crop((left, 0, left + 192, 192))
        for name in ("old", "originals"):
            crop.save(tmp_path / name / f"{number}.png")
    shutil.copy(tmp_path / "old" / "0.png", tmp_path / "new" / "0.png")
    Image.open(tmp_path / "old" / "1.png").save(tmp_path / "new" / "1.jpg", quality=5)
    Image.open(tmp_path / "old" / "2.png").save(tmp_path / "new" / "2.webp", lossless=True)
    return tmp_path


def ran(*words) -> int:
    """A command's exit status; afterwards stdout is as it was."""
    stdout = os.dup(1)
    try:
        return main([*map(str, words), "--cpu"])
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def gated(capfd, *words) -> tuple[int, dict, str]:
    status = ran("gate", *words, "--json")
    told = capfd.readouterr()
    return status, json.loads(told.out), told.err


def test_a_damaged_picture_is_found_and_the_same_pixels_are_not_assessed(
    folders, monkeypatch, capfd
):
    in_this_process(monkeypatch)
    files = [folders / name for name in ("rows.jsonl", "page.html", "gate.xml", "gate.md")]
    rows, page, junit, markdown = files
    options = ["--out", rows, "--page", page, "--junit", junit, "--markdown", markdown]
    words = [folders / "old", folders / "new", "--worse-share", "0.02", *options]
    status, report, said = gated(capfd, *words)
    assert status == 3  # of three pictures no share is known that well
    assert "149 pictures" in said  # ln .05 / ln .98
    worst, *others = report["pairs"]
    assert (worst["name"], worst["same"]) == ("1.jpg", False)
    assert worst["loss"] == pytest.approx(worst["old_q"] - worst["new_q"])
    assert worst["loss"] > 0.1
    assert any(words.startswith("compression") for words in worst["change"]["words"])
    assert [(pair["same"], pair["loss"]) for pair in others] == [(True, 0)] * 2
    assert len(rows.read_text().splitlines()) == 2  # of the pair that differs alone
    assert page.read_text().count("data:image/png;base64") == 2
    assert "Crop of 192 × 192 pixels at x 0, y 0, at full size." in page.read_text()
    assert (
        "in the 10 pictures that lost most, if they lost more than 0.1 levels" in page.read_text()
    )
    (suite,) = ElementTree.parse(junit).getroot()
    assert [len(suite), suite.get("failures"), suite.get("errors")] == [4, "1", "0"]
    assert "| 1.jpg |" in markdown.read_text()
    for file in (page, junit, markdown):  # for a reader who did not run it
        told = html.unescape(file.read_text().replace("\\", ""))
        for about in (
            folders / "old",
            folders / "new",
            "model embedded",
            report["model"]["notice"],
        ):
            assert str(about) in told
        assert f"by agentic-iqa {report['version']}" in told
        assert report["timestamp"][:10] in told
    again, same, _ = gated(capfd, *words, "--resume")  # nothing is assessed, and all is replaced
    assert (again, same["pairs"]) == (status, report["pairs"])


def test_a_severity_is_that_of_the_new_picture_alone(tmp_path):
    tools = ToolRunner()
    photo = Image.open(DATA / "prudential.png")
    old = photo.convert("RGB").crop((0, 0, 192, 192))
    old.save(tmp_path / "new.jpg", quality=20)
    new = Image.open(tmp_path / "new.jpg").convert("RGB")
    readings = [tools.examine(new), tools.examine(new, old)]
    alone, between = [reading.severities["Compression"] for reading in readings]
    assert 1.75 < alone < 3.25 < between  # moderate stands at 2.5, slight at 1, severe at 4
    assert "compression: none → moderate" in change(tools, old, new).words


def test_what_cannot_be_compared_is_named_and_decides(folders, monkeypatch, capfd):
    in_this_process(monkeypatch)
    Image.new("RGB", (64, 64)).save(folders / "new" / "2.png")
    (folders / "new" / "2.webp").unlink()
    (folders / "new" / "1.jpg").write_text("no picture")
    shutil.copy(folders / "old" / "0.png", folders / "new" / "extra.png")
    status, report, said = gated(capfd, folders / "old", folders / "new")
    assert status == 1
    for name, why in (("1.jpg", "expected"), ("2.png", "size"), ("extra.png", "no old picture")):
        (problem,) = [line for line in report["problems"] if name in line]
        assert why in problem
        assert name in "".join(said.split())  # lines are folded
    assert report["decision"]["verdict"] == "not worse"


def test_a_stored_run_stands_for_the_old_pictures_of_the_same_set_up_alone(
    folders, monkeypatch, capfd
):
    in_this_process(monkeypatch)
    stored = folders / "old.jsonl"
    assert ran("assess", folders / "old", "--pipeline", "letters", "--out", stored) == 0
    shutil.rmtree(folders / "old")
    (folders / "new" / "2.webp").unlink()
    capfd.readouterr()
    status, report, _ = gated(capfd, folders / "new", "--baseline", stored)
    assert status == 1  # 2.png has no new picture
    worst, other = report["pairs"]
    assert worst["loss"] > 0.1
    assert (other["name"], other["same"]) == ("0.png", True)
    assert ran("gate", folders / "new", "--baseline", stored, "--pipeline", "agent") == 1
    assert 'pipeline is "agent", expected "letters"' in capfd.readouterr().err


def test_originals_and_a_manifest(folders, monkeypatch, capfd):
    in_this_process(monkeypatch)
    manifest = folders / "pairs.csv"
    lines = ["old,new,reference,scene", "old/1.png,new/1.jpg,originals/1.png,a"]
    manifest.write_text("\n".join([*lines, "old/0.png,new/gone.png,originals/0.png,b"]))
    status, report, _ = gated(capfd, "--manifest", manifest)
    assert status == 1
    assert "gone.png" in report["problems"][0]
    assert report["reference"]
    assert report["pairs"][0]["loss"] > 0.1
    manifest.write_text("\n".join([*lines, "old/0.png,new/0.png,,b"]))
    assert ran("gate", "--manifest", manifest) == 2
    assert "a reference in every line or in none" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["old"], "expected 2 folders, got 1"),
        (["old/0.png", "new/0.png"], "expected a folder"),
        (["old", "new", "--worse-share", "2"], "--worse-share"),
        (["old", "new", "--junit", "old/0.png"], "expected a name with .xml"),
    ],
)
def test_a_mistake_is_one_sentence(words, said, folders, monkeypatch, capfd):
    monkeypatch.chdir(folders)
    try:
        status = main(["gate", *words, "--cpu"])
    except SystemExit as ended:
        status = ended.code
    (sentence,) = capfd.readouterr().err.splitlines()
    assert status == 2
    assert said in sentence
