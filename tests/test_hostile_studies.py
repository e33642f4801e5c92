"""What a stranger may have put where a study reads or writes: score files and manifests, photographs, stored
rows, written reports, planted links. Each ends soon, in one sentence or in what was asked for, and writes
nothing elsewhere."""

import io
import json
import math
import os
import subprocess
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from attacks import ODD_FILES, in_time, is_sentence
from conftest import ROOT
from PIL import Image
from scipy.io import savemat
from scripted import (
    ScriptedClient,
    ScriptedTools,
    loaded_batch,
    scripted_answers,
    scripted_services,
    study_here,
)
from test_study_report import make_rows, make_run

from agentic_iqa_local.batch import work
from agentic_iqa_local.batch.inputs import Item, ManifestError, read_manifest
from agentic_iqa_local.batch.rows import RowFile, RowsError
from agentic_iqa_local.cli import fit_tools, study
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import LARGEST
from agentic_iqa_local.iqa_tools.calibration import CalibrationError, read_map_file
from agentic_iqa_local.studies.datasets import DatasetError, load_dataset
from agentic_iqa_local.studies.plots import Drawing
from agentic_iqa_local.studies.report import write_figures, write_table
from agentic_iqa_local.studies.run import Plan
from agentic_iqa_local.studies.store import Store, StoreError, read_run
from agentic_iqa_local.synthetic.photos import load_tiles

LONGEST = 1000  # characters of a message about what may be millions long
HUGE = 1e308


def refused(kind: type[UserError], what, *arguments, **options) -> str:
    """The one sentence of the refusal."""
    with in_time(), pytest.raises(kind) as caught:
        what(*arguments, **options)
    assert is_sentence(str(caught.value))
    assert len(str(caught.value)) < LONGEST
    return str(caught.value)


def told(main, arguments, capfd) -> tuple[int, str, str]:
    """(status, stdout, stderr) of a command. Both are free of what steers a terminal."""
    with in_time():
        status = main([str(argument) for argument in arguments])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    assert not {"\x1b", "\x07", "\r"} & set(out)
    return status, out, err


def fails(main, arguments, capfd) -> str:
    """The one sentence that a command ends with."""
    status, out, err = told(main, arguments, capfd)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert is_sentence(err.removesuffix("\n"))
    assert len(err) < LONGEST
    return err


def cases(*pairs):
    """Parametrised by (id, value)."""
    return [pytest.param(*values, id=name) for name, *values in pairs]


def draw(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (90, 120, 60)).save(file)


# Score files and manifests


DOORS = {
    "a manifest in CSV": ("manifest.csv", ()),
    "a manifest in JSON lines": ("manifest.jsonl", ()),
    "questions in CSV": ("questions.csv", ()),
    "questions in JSON": ("questions.json", ()),
    "TID2013's scores": ("mos_with_names.txt", ("distorted_images",)),
    "KADID-10k's scores": ("dmos.csv", ("images",)),
    "AGIQA-3K's scores": ("data.csv", ()),
    "Q-Bench's questions": ("llvisionqa_dev.json", ()),
    "LIVE's matrix": ("dmos_realigned.mat", ("refimgs", "fastfading", "refnames_all.mat")),
    "CSIQ's workbook": ("csiq.DMOS.xlsx", ("dst_imgs",)),
}


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.parametrize("door", DOORS)
def test_an_odd_score_file(door, kind, tmp_path):
    name, folders = DOORS[door]
    for folder in folders:
        (tmp_path / folder).mkdir()
    ODD_FILES[kind](tmp_path / name)
    refused(DatasetError, load_dataset, tmp_path)


@pytest.mark.parametrize("key", [None, "manifest", "questions", "live"])
@pytest.mark.parametrize("kind", [kind for kind in ODD_FILES if kind != "folder"])
def test_an_odd_file_instead_of_a_folder(kind, key, tmp_path):
    ODD_FILES[kind](tmp_path / "scores.csv")
    refused(DatasetError, load_dataset, tmp_path / "scores.csv", key)


@pytest.mark.parametrize(
    "name", cases(("5000 characters", "x" * 5000), ("a null byte", "a\0b"), ("half a character", "\ud800"))
)
def test_a_folder_that_no_name_can_have(name):
    refused(DatasetError, load_dataset, name)


def line(**changes) -> str:
    return json.dumps({"image": "a.png", "mos": 3, **changes}) + "\n"


def asked(**changes) -> str:
    return json.dumps(
        [{"image": "a.png", "question": "Is it?", "choices": ["Yes", "No"], "answer": "Yes", **changes}]
    )


CONTENTS = {
    "deep": ("manifest.jsonl", "[" * 200_000),
    "digits": ("manifest.jsonl", '{"image":"a.png","mos":' + "9" * 5000 + "}\n"),
    "a wide row": ("manifest.jsonl", line(image=5, x="A" * 3_000_000)),
    "a wide name": ("manifest.jsonl", line(image="a/" * 300_000)),
    "a wide name and no score": ("manifest.jsonl", line(image="a/" * 300_000, mos=None)),
    "a null byte in a name": ("manifest.jsonl", line(image="a\0b")),
    "an infinite score": ("manifest.jsonl", '{"image":"a.png","mos":1e999}\n'),
    "a huge score": ("manifest.jsonl", line(mos=HUGE)),
    "a huge negative score": ("manifest.csv", f"image,mos\na.png,{-HUGE}\n"),
    "an infinite level": ("manifest.jsonl", '{"image":"a.png","mos":3,"level":1e999}\n'),
    "a huge level": ("manifest.csv", f"image,mos,level\na.png,3,{HUGE}\n"),
    "a group of half a character": ("manifest.jsonl", line(group="\ud800")),
    "a split of half a character": ("manifest.jsonl", line(split="\udcff")),
    "a distortion of half a character": ("manifest.jsonl", line(distortion="\ud800")),
    "a subset of half a character": ("manifest.jsonl", line(subset="\ud800")),
    "a name of half a character": ("manifest.jsonl", line(image="a\ud800b")),
    "a question of half a character": ("questions.json", asked(question="\ud800")),
    "a choice of half a character": ("questions.json", asked(choices=["\ud800", "No"], answer="No")),
    "a task of half a character": ("questions.json", asked(task="\ud800")),
    "a list as a task": ("questions.json", asked(task=["a"])),
    "a list as a split": ("questions.json", asked(split=["a"])),
    "an object as a type": ("questions.json", asked(question_type={"a": 1})),
    "a list as Q-Bench's type": ("llvisionqa_dev.json", asked(type=["a"], image="b.png")),
    "an object as Q-Bench's concern": ("llvisionqa_dev.json", asked(concern={}, image="b.png")),
    "a million choices of Q-Bench": (
        "llvisionqa_dev.json",
        asked(choices=list(range(1_200_000)), image="b.png"),
    ),
    "a number as JSON": ("questions.json", "5"),
    "a short line": ("dmos.csv", "dist_img,ref_img,dmos\nI01_01_01.png\n"),
    "a short line of a prompt": ("data.csv", "name,mos_quality,mos_align,prompt\na.png\n"),
    "a wide cell": ("manifest.csv", "image,mos\n" + "x" * 200_000 + ",1\n"),
    "a wide score": ("manifest.csv", "image,mos\na.png," + "x" * 100_000 + "\n"),
    "a wide answer": ("questions.json", asked(answer="x" * 100_000)),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_a_hostile_score_file(content, tmp_path):
    draw(tmp_path / "a.png")
    (tmp_path / "images").mkdir()
    name, text = CONTENTS[content]
    (tmp_path / name).write_text(text)
    refused(DatasetError, load_dataset, tmp_path)


def packed(**members: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


@cache
def bomb() -> bytes:
    """272 MB of zeros in 300 kB, where a workbook keeps its texts."""
    content = io.BytesIO()
    with (
        zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("xl/sharedStrings.xml", "w") as member,
    ):
        for _ in range(17):
            member.write(bytes(2**24))
    return content.getvalue()


def workbook(sheet: str) -> bytes:
    """A workbook whose sheet all_by_image is `sheet`."""
    openpyxl = pytest.importorskip("openpyxl")
    book, content, out = openpyxl.Workbook(), io.BytesIO(), io.BytesIO()
    book.active.title = "all_by_image"
    book.save(content)
    with zipfile.ZipFile(content) as before, zipfile.ZipFile(out, "w") as after:
        for name in before.namelist():
            after.writestr(name, sheet if name == "xl/worksheets/sheet1.xml" else before.read(name))
    return out.getvalue()


LAUGHS = (
    '<!DOCTYPE a [<!ENTITY a "ha">' + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    + ']><worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData><row r="1">'
    '<c t="inlineStr"><is><t>&i;</t></is></c></row></sheetData></worksheet>'
)  # fmt: skip
NUMBERS = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData><row'
    ' r="1"><c><v>' + "9" * 5000 + "</v></c></row></sheetData></worksheet>"
)
WORKBOOKS = {
    "no archive": lambda: b"PK" + bytes(range(100)),
    "nothing": lambda: b"",
    "an archive of something else": lambda: packed(a="b"),
    "a torn archive": lambda: workbook("<x/>")[:-200],
    "a sheet that is no XML": lambda: workbook("<<<"),
    "a sheet that grows": lambda: workbook(LAUGHS),
    "a number of 5000 digits": lambda: workbook(NUMBERS),
    "no types": lambda: packed(**{"[Content_Types].xml": "<Types/>"}),
    "a bomb": bomb,
}


@pytest.mark.parametrize("key", ["csiq", "bid", "spaq"])
@pytest.mark.parametrize("content", WORKBOOKS)
def test_a_hostile_workbook(content, key, tmp_path):
    names = {
        "csiq": "csiq.DMOS",
        "bid": "DatabaseGrades",
        "spaq": "Annotations/MOS and Image attribute scores",
    }
    place = tmp_path / f"{names[key]}.xlsx"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(WORKBOOKS[content]())
    refused(DatasetError, load_dataset, tmp_path, key)


def matrices(**variables) -> bytes:
    content = io.BytesIO()
    savemat(content, variables)
    return content.getvalue()


def claiming(rows: int) -> bytes:
    """A matrix that says it has `rows` rows: the count follows the name of the dimensions' type and length,
    int32, 8 bytes."""
    content = matrices(dmos_new=np.zeros((7, 1)))
    dimensions = b"\x05\0\0\0\x08\0\0\0\x07\0\0\0\x01\0\0\0"
    assert content.count(dimensions) == 1
    return content.replace(dimensions, dimensions[:8] + rows.to_bytes(4, "little") + dimensions[12:])


MATRICES = {
    "noise": lambda: b"MATLAB 5.0" + np.random.default_rng(0).bytes(1000),
    "nothing": lambda: b"",
    "text": lambda: b"scores\n1\n2\n",
    "torn": lambda: matrices(dmos_new=np.zeros((500, 1)), orgs=np.zeros((500, 1)))[:300],
    "a matrix of two thousand million rows": lambda: claiming(2**31 - 1),
    "a matrix of minus one row": lambda: claiming(2**32 - 1),
    "empty cells": lambda: matrices(dmos_new=np.array([[np.zeros(0)]], dtype=object)),
    "texts": lambda: matrices(dmos_new=np.array(["x"] * 982), orgs=np.zeros(982)),
    "a structure": lambda: matrices(dmos_new={"a": 1}, orgs={"b": 2}),
    "another version": lambda: b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\x02IM" + bytes(600),
}


@pytest.mark.parametrize("content", MATRICES)
def test_a_hostile_matrix(content, tmp_path):
    (tmp_path / "dmos_realigned.mat").write_bytes(MATRICES[content]())
    (tmp_path / "refnames_all.mat").write_bytes(
        matrices(refnames_all=np.array([["ocean.bmp"]] * 982, dtype=object))
    )
    refused(DatasetError, load_dataset, tmp_path, "live")


FACTS = ("group", "distortion", "split", "subset")


@pytest.mark.parametrize(
    ("value", "text"), cases(("a number", 3, "3"), ("a fraction", 0.5, "0.5"), ("true", True, "True"))
)
@pytest.mark.parametrize("name", FACTS)
def test_a_fact_of_an_image_that_is_no_text_is_stored_as_one(name, value, text, tmp_path, scripted):
    draw(tmp_path / "a.png")
    (tmp_path / "manifest.jsonl").write_text(line(**{name: value}))
    assert list(study_here(load_dataset(tmp_path), scripted, Plan(), tmp_path / "run")) == [0, 1]
    (row,) = read_run(tmp_path / "run")[1]
    assert row[name] == text


@pytest.mark.parametrize(
    ("value", "text"), cases(("a number", 3, "3"), ("a fraction", 0.5, "0.5"), ("true", True, "True"))
)
@pytest.mark.parametrize("name", ["task", "question_type", "split"])
def test_a_fact_of_a_question_that_is_no_text_is_stored_as_one(name, value, text, tmp_path, scripted):
    draw(tmp_path / "a.png")
    (tmp_path / "questions.json").write_text(asked(**{name: value}))
    assert list(study_here(load_dataset(tmp_path), scripted, Plan(), tmp_path / "run")) == [0, 1]
    (row,) = read_run(tmp_path / "run")[1]
    assert row[name] == text


@pytest.fixture
def scripted():
    tools = ScriptedTools({"NIQE": 3.0, "LocalNR": 3.0, "VSI": 3.0, "FSIM": 3.0})
    return scripted_services(ScriptedClient(scripted_answers()), tools)


@pytest.mark.parametrize(
    "ends",
    cases(
        ("huge", [-HUGE, HUGE]), ("beyond a thousand million", [0, 2e9]), ("infinite", [0, math.inf]), ("turned", [5, 1]),
        ("not a number", [math.nan, 5]),
    ),
)  # fmt: skip
def test_the_ends_of_a_scale(ends, tmp_path):
    draw(tmp_path / "a.png")
    (tmp_path / "manifest.csv").write_text("image,mos\na.png,3\n")
    refused(DatasetError, load_dataset, tmp_path, mos_range=ends)


@pytest.mark.parametrize(
    "ends",
    cases(
        ("huge", [-HUGE, HUGE]),
        ("the same", [3, 3]),
        ("infinite", [0, math.inf]),
        ("not a number", [math.nan, 5]),
    ),
)
def test_the_ends_of_a_scale_that_maps_are_fitted_on(ends, tmp_path):
    draw(tmp_path / "a.png")
    (tmp_path / "manifest.csv").write_text("image,mos\na.png,3\n")
    refused(DatasetError, lambda: next(fit_tools.scored_samples(load_dataset(tmp_path), None, tuple(ends))))


# Rows


ROWS = {
    "a number as a group": {"group": 3},
    "a list as a split": {"split": ["a"]},
    "half a character": {"distortion": "\ud800"},
    "a key of half a character": {"key": "a\ud800"},
    "not a number": {"mos": math.nan},
    "an infinite level": {"level": math.inf},
    "a huge score": {"mos": HUGE},
    "a huge negative score": {"mos": -HUGE},
    "a huge level": {"level": HUGE},
    "a tool beyond every scale": {"tools": {"VSI": {"raw": 1.0, "normalized": HUGE}}},
    "a tool above 5": {"tools": {"VSI": {"raw": 1.0, "normalized": 5.5}}},
    "a tool below 1": {"tools": {"VSI": {"raw": 1.0, "normalized": -1.0}}},
    "a log-probability above 0": {
        "reads": {
            "all_evidence": {
                "views": [
                    dict.fromkeys(("forward", "reversed"), dict.fromkeys("ABCDE", 5.0)) | {"generated": "A"}
                ]
            }
        }
    },
    "a tool's huge raw score": {"tools": {"VSI": {"raw": HUGE, "normalized": 3.0}}},
    "a huge cost": {"cost": {"agent": {"seconds": HUGE}}},
    "a fused score beyond every scale": {"agent": {"fusion": {"q": HUGE}}},
    "5 MB": {"warnings": ["x" * 5_000_000]},
    "deep": {"plan": json.loads('{"a":' * 90 + "1" + "}" * 90)},
}


@pytest.mark.parametrize("changes", ROWS)
def test_a_row_that_could_not_be_read_again_is_not_written(changes, tmp_path):
    first, second = make_rows(2)
    with Store(tmp_path, make_run(), {}) as store:
        store.append(first)
        before = (tmp_path / "rows.jsonl").read_bytes()
        refused(StoreError, store.append, second | ROWS[changes])
        assert (tmp_path / "rows.jsonl").read_bytes() == before
        store.append(second)


@pytest.mark.parametrize("changes", ROWS)
def test_a_stored_row_that_no_run_writes(changes, tmp_path):
    first, second = make_rows(2)
    (tmp_path / "run.json").write_text(json.dumps(make_run()))
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second | ROWS[changes])}\n")
    assert "rows.jsonl, line 2: " in refused(StoreError, read_run, tmp_path)


@pytest.mark.parametrize(("low", "high"), cases(("huge", -HUGE, HUGE), ("beyond a thousand million", 0, 2e9)))
def test_the_ends_of_a_scale_in_a_description(low, high, tmp_path):
    run = make_run()
    run["dataset"] |= {"low": low, "high": high}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "rows.jsonl").touch()
    refused(StoreError, read_run, tmp_path)


def test_a_line_longer_than_its_reader_takes_is_not_written(tmp_path):
    file = RowFile(tmp_path / "rows.jsonl")
    file.append('{"a": 1}')
    refused(RowsError, file.append, json.dumps({"a": "x" * LARGEST}))
    file.append('{"a": 2}')
    assert [row["a"] for row in file] == [1, 2]
    file.close()


def test_an_answer_too_long_for_a_row_is_a_failure_row(tmp_path, picture, monkeypatch):
    """The image is known to be too much; the batch goes on with the others, and --resume does not try it
    again."""
    services = scripted_services(
        ScriptedClient(scripted_answers()), ScriptedTools({"NIQE": 3.0, "LocalNR": 3.0})
    )
    real = work.assess

    def verbose(image, *rest, **options):
        row = real(image, *rest, **options)
        return row.model_copy(update={"quality_reasoning": "x" * LARGEST})

    monkeypatch.setattr(work, "assess", verbose)
    with in_time():
        (row,) = loaded_batch(services).rows([Item(Path(picture))])
    assert (row.q, row.final_answer, row.quality_reasoning) == (None, None, None)
    assert f"expected a row of at most {LARGEST} bytes" in row.error
    assert is_sentence(row.error)


def test_a_manifest_of_a_hundred_megabytes(tmp_path):
    """As many as 200,000 rows with long questions have, and more than the 64 MiB that were taken before."""
    draw(tmp_path / "a.png")
    with (tmp_path / "m.jsonl").open("w") as file:
        for i in range(1000):
            file.write(
                json.dumps({"image": "a.png", "query": f"Is number {i} sharp?", "note": "x" * 100_000}) + "\n"
            )
    assert (tmp_path / "m.jsonl").stat().st_size > 100e6
    with in_time():
        assert len(read_manifest(tmp_path / "m.jsonl")) == 1000


def test_a_manifest_too_large_is_not_said_to_be_no_UTF_8(tmp_path):
    ODD_FILES["sparse 2 GB"](tmp_path / "m.csv")
    message = refused(ManifestError, read_manifest, tmp_path / "m.csv")
    assert "expected at most" in message
    assert "UTF-8" not in message


# Photographs


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 600 600\n%%EndComments\nshowpage\n%%EOF\n"


def torn() -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 600, 3), np.uint8)).save(content, "PNG")
    return content.getvalue()[:5000]


PHOTOS = {
    "PostScript": lambda place: place.write_bytes(EPS),
    "torn": lambda place: place.write_bytes(torn()),
    "text": lambda place: place.write_text("\x1b[2J"),
    **{
        kind: ODD_FILES[kind]
        for kind in ("pipe", "folder", "empty", "endless device", "dangling link", "loop of links")
    },
}


@pytest.fixture
def no_ghostscript(monkeypatch):
    """A list of the programs that were started."""
    started = []
    monkeypatch.setattr(
        "PIL.EpsImagePlugin.Ghostscript",
        lambda *rest, **options: started.append("gs") or Image.new("RGB", (600, 600)),
    )
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append(command))
    return started


def maps_photos(folder):
    return list(fit_tools.photo_samples(folder, 1, 1, 64, np.random.default_rng(0)))


def tiles(folder):
    return load_tiles([folder / "a\x1b.png"])


@pytest.mark.parametrize("opened", [maps_photos, tiles], ids=["fit_tools maps", "synthetic"])
@pytest.mark.parametrize("kind", PHOTOS)
def test_a_photograph_that_is_none(kind, opened, tmp_path, no_ghostscript):
    PHOTOS[kind](tmp_path / "a\x1b.png")
    refused(UserError, opened, tmp_path)
    assert no_ghostscript == []


# What is written


def run_folder(folder: Path, rows: list[dict]) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(make_run()))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [run_folder(root / name, make_rows(30)) for name in "ab"]


def report_and_compare(runs, out) -> None:
    assert study.main(["report", str(runs[0]), "--out", str(out), "--draws", "2"]) == 0
    compared = out.with_name(f"{out.name}_compared")
    assert study.main(["compare", *map(str, runs), "--out", str(compared), "--draws", "2"]) == 0


@pytest.fixture(scope="module")
def names(tmp_path_factory, runs) -> list[str]:
    """What a report and a comparison write."""
    folder = tmp_path_factory.mktemp("clean")
    report_and_compare(runs, folder)
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_report_and_a_comparison_are_not_written_through_what_is_planted(kind, names, tmp_path, runs):
    assert {"modes.csv", "modes.md", "run.json", "report.html"} <= set(names)
    assert {Path(name).suffix for name in names} == {".csv", ".md", ".json", ".html", ".png", ".svg"}
    out, victims = tmp_path / "out", tmp_path / "precious"
    out.mkdir()
    victims.mkdir()
    for name in [*names, *(f"{name}.partial" for name in names)]:
        (victims / name).write_text("precious")
        if kind == "link":
            (out / name).symlink_to(victims / name)
        else:
            os.mkfifo(out / name)
    with in_time():
        report_and_compare(runs, out)
    assert [victim.name for victim in victims.iterdir() if victim.read_text() != "precious"] == []
    assert [name for name in names if (out / name).is_symlink() or not (out / name).stat().st_size] == []
    assert sorted(path.name for path in out.iterdir()) == names


PAGE = "before\n<!-- studies -->\nold\n<!-- end of studies -->\nafter\n"
MODES = "mode,n,failed,interval_over,srcc,srcc_low,srcc_high,seen,plcc_mapped\n"
LINES = "logits,30,2,12 scenes,0.7,0.6,0.8,,0.71\nclassification,30,2,12 scenes,0.5,0.4,0.6,,0.51\n"
DIFFERENCES = "first,second,srcc_difference,srcc_difference_low,srcc_difference_high,p_holm\nlogits,classification,0.2,0.1,0.3,0.01\n"


def a_report(
    folder: Path, run=None, modes: str | bytes = MODES + LINES, differences: str = DIFFERENCES
) -> Path:
    """A folder as study.py report writes it, as far as study.py table reads it."""
    folder.mkdir()
    run = run or {"dataset": {"title": "Mine"}, "model": {"name": "embedded"}}
    (folder / "run.json").write_text(run if isinstance(run, str) else json.dumps(run))
    (folder / "modes.csv").write_bytes(modes if isinstance(modes, bytes) else modes.encode())
    (folder / "differences.csv").write_text(differences)
    return folder


def test_a_table_is_written_through_the_users_own_link_once(tmp_path, capfd):
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "README.md").symlink_to("page.md")
    assert (
        told(study.main, ["table", a_report(tmp_path / "r"), "--write", tmp_path / "README.md"], capfd)[0]
        == 0
    )
    assert (tmp_path / "README.md").is_symlink()
    assert (
        "| logits | 0.70 (0.60 to 0.80) | 0.71 | 0.20 (0.10 to 0.30) | 0.01 |"
        in (tmp_path / "page.md").read_text()
    )


@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_page(kind, tmp_path, capfd):
    ODD_FILES[kind](tmp_path / "README.md")
    fails(study.main, ["table", a_report(tmp_path / "r"), "--write", tmp_path / "README.md"], capfd)


@pytest.mark.parametrize(
    "content",
    cases(
        ("no UTF-8", b"\xff" + PAGE.encode()), ("no marks", b"\x1b[2J"), ("one mark", b"<!-- studies -->\n")
    ),
)
def test_a_page_that_cannot_hold_a_table(content, tmp_path, capfd):
    (tmp_path / "page.md").write_bytes(content)
    fails(study.main, ["table", a_report(tmp_path / "r"), "--write", tmp_path / "page.md"], capfd)
    assert (tmp_path / "page.md").read_bytes() == content


def test_a_page_is_not_written_through_a_link_beside_it(tmp_path, capfd):
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "page.md.partial").symlink_to("precious")
    assert (
        told(study.main, ["table", a_report(tmp_path / "r"), "--write", tmp_path / "page.md"], capfd)[0] == 0
    )
    assert (tmp_path / "precious").read_text() == "precious"
    assert "logits" in (tmp_path / "page.md").read_text()


NAMED = {"dataset": {"title": "Mine"}, "model": {"name": "embedded"}}
REPORTS = {
    "a number as a title": {"run": NAMED | {"dataset": {"title": 5}}},
    "a list as a model's name": {"run": NAMED | {"model": {"name": ["x"]}}},
    "a text as a model": {"run": NAMED | {"model": "x"}},
    "a list as a data set": {"run": NAMED | {"dataset": []}},
    "a list": {"run": "[]"},
    "null": {"run": "null"},
    "deep": {"run": '{"dataset":' * 100_000},
    "no modes": {"modes": MODES},
    "nothing": {"modes": ""},
    "a short line": {"modes": MODES + LINES + "x\n"},
    "a line of one cell": {"modes": MODES + "x\n"},
    "a binary file": {"modes": np.random.default_rng(0).bytes(3000)},
    "an infinite figure": {"modes": MODES + "a,1,1,b,inf,0.4,0.6,,0.5\n"},
    "a text as a figure": {"modes": MODES + "a,1,1,b,\x1b[2J,0.4,0.6,,0.5\n"},
    "a wide cell": {"modes": MODES + "x" * 200_000 + ",1,1,b,0.5,0.4,0.6,,0.5\n"},
    "other columns": {"modes": "a,b\n1,2\n"},
    "no differences": {"differences": DIFFERENCES.splitlines()[0] + "\n"},
    "a short difference": {"differences": DIFFERENCES + "a\n"},
    "differences of nothing in common": {"differences": DIFFERENCES + "a,b,0.1,0.1,0.1,0.1\n"},
    "an infinite difference": {"differences": DIFFERENCES.replace("0.3", "inf")},
}


@pytest.mark.parametrize("changes", REPORTS)
def test_a_hostile_report_as_a_table(changes, tmp_path, capfd):
    fails(study.main, ["table", a_report(tmp_path / "r", **REPORTS[changes])], capfd)


@pytest.mark.parametrize("name", ["run.json", "modes.csv", "differences.csv"])
@pytest.mark.parametrize("kind", [kind for kind in ODD_FILES if kind != "page map"])
def test_an_odd_file_of_a_report(kind, name, tmp_path, capfd):
    folder = a_report(tmp_path / "r")
    (folder / name).unlink()
    ODD_FILES[kind](folder / name)
    fails(study.main, ["table", folder], capfd)


def test_a_description_as_long_as_a_report_takes_it(tmp_path, capfd):
    """60,000 missing files: more than the 4 MiB of other small files."""
    run = NAMED | {
        "dataset": {
            "title": "Mine",
            "missing": [f"images/{'photograph' * 10}_{i:07}.png" for i in range(60_000)],
        }
    }
    assert told(study.main, ["table", a_report(tmp_path / "r", run)], capfd)[0] == 0
    assert (tmp_path / "r" / "run.json").stat().st_size > LARGEST


MAPS = (ROOT / "configs" / "tool_maps.yaml").read_text()


def fitted(name: str = "NIQE"):
    return [read_map_file(ROOT / "configs" / "tool_maps.yaml")[0][name]]


def test_a_file_of_maps_is_written_through_the_users_own_link_once(tmp_path):
    (tmp_path / "maps.yaml").write_text(MAPS)
    (tmp_path / "link.yaml").symlink_to("maps.yaml")
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "maps.yaml.partial").symlink_to("precious")
    fit_tools.write_maps(tmp_path / "link.yaml", fitted())
    assert (tmp_path / "link.yaml").is_symlink()
    assert read_map_file(tmp_path / "maps.yaml")[0] == read_map_file(ROOT / "configs" / "tool_maps.yaml")[0]
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("kind", [kind for kind in ODD_FILES if kind != "page map"])
def test_an_odd_file_of_maps_to_write(kind, tmp_path):
    ODD_FILES[kind](tmp_path / "maps.yaml")
    refused(UserError, fit_tools.write_maps, tmp_path / "maps.yaml", fitted())


@pytest.mark.parametrize(
    "content",
    cases(
        ("deep", "maps: " + "[" * 3000), ("a list", "- a"), ("nothing named maps", "a: 1"), ("a list of texts", "maps: [a, b]"),
        ("no tool", "maps: [{a: 1}]"), ("merge keys", "maps: [{<<: {tool: NIQE}}]"), ("Python", "maps: !!python/object:os.system {}"),
        ("no UTF-8", "maps: \udcff"), ("an alias of itself", "maps: &a [*a]"),
        ("laughs", "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(8))),
    ),
)  # fmt: skip
def test_a_hostile_file_of_maps_to_write(content, tmp_path):
    (tmp_path / "maps.yaml").write_bytes(os.fsencode(content))
    refused(CalibrationError, fit_tools.write_maps, tmp_path / "maps.yaml", fitted())
    assert (tmp_path / "maps.yaml").read_bytes() == os.fsencode(content)


def test_a_new_file_of_maps(tmp_path):
    fit_tools.write_maps(tmp_path / "maps.yaml", fitted())
    assert read_map_file(tmp_path / "maps.yaml")[0] == {"NIQE": fitted()[0]}
    assert [entry["tool"] for entry in yaml.safe_load((tmp_path / "maps.yaml").read_text())["maps"]] == [
        "NIQE"
    ]


def test_no_plot_replaces_a_link(tmp_path):
    (logistic,) = fitted()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "NIQE.png").symlink_to(tmp_path / "precious")
    raw = np.linspace(*logistic.domain, 20)
    mapped = np.array([logistic(x) for x in raw])
    with pytest.raises(UserError, match="not replaced"):
        fit_tools.plot(tmp_path / "plots", logistic, raw, mapped, raw > raw.mean(), "well")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["t.csv", "t.md"])
def test_a_table_where_a_folder_is(name, tmp_path):
    (tmp_path / name).mkdir()
    refused(UserError, write_table, tmp_path, "t", "Title", "Note", [{"a": 1.0}])


def test_a_figure_where_a_folder_is(tmp_path):
    (tmp_path / "f.svg").mkdir()
    refused(UserError, write_figures, [Drawing("f", "Figure", b"<svg/>", b"png")], tmp_path)
