"""No output option of any command replaces a file that is not of its own kind, and each says so before anything
is loaded."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from conftest import DATA
from test_study_report import make_run

from agentic_iqa_local.cli import assess, bundle, chat, compare, gallery, study
from agentic_iqa_local.files import require_own
from agentic_iqa_local.judgement.fit import Fit
from agentic_iqa_local.offline.manifest import MANIFEST_HASH
from agentic_iqa_local.studies.store import Store, StoreError

PRECIOUS = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR what somebody would miss"  # without a line end, as pictures are


def said_by(command, words, capfd) -> str:
    """The one sentence with which a command refuses its words."""
    try:
        status = command.main(words)
    except SystemExit as ended:
        status = ended.code
    told, said = capfd.readouterr()
    assert status == 2, said
    assert told == ""
    assert said.splitlines()[-1].startswith("error: ")
    return said.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (assess, ["--csv", "x.png", "a.png"]),
        (assess, ["--csv", "x.csv", "a.png"]),
        (assess, ["--gallery", "x.png", "a.png"]),
        (assess, ["--gallery", "x.html", "a.png"]),
        (assess, ["--map", "x.png", "a.png"]),
        (assess, ["--map", "x.png"]),
        (assess, ["--map", "maps", "x.png"]),
        (assess, ["--out", "x.png"]),
        (assess, ["a.png", "--out", "x.jsonl", "--resume"]),
        (assess, ["a.png", "--out", "x.csv"]),
        (chat, ["a.png", "--out", "x.jsonl"]),
        (compare, ["a.png", "x.png", "--out", "x.jsonl"]),
        (compare, ["a.png", "x.png", "--out", "rows.jsonl"]),
        (gallery, ["rows.jsonl", "--out", "x.html"]),
        (study, ["fit", "run", "--out", "x.json"]),
        (study, ["report", "run", "--out", "run"]),
        (study, ["compare", "run", "run", "--out", "run"]),
        (bundle, ["--out", "x.iqabundle.tar"]),
    ],
)
def test_a_file_of_another_kind_is_not_replaced(command, words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for folder in ("maps", "run"):
        Path(folder).mkdir()
    Path("run/run.json").write_text(json.dumps(make_run()))
    Path("run/rows.jsonl").touch()
    shutil.copy(DATA / "sumac.png", "a.png")
    Path("rows.jsonl").write_text('{"schema_version":5,"image":"a.png"}\n')
    for name in ("x.png", "x.csv", "x.html", "x.jsonl", "x.json", "x.iqabundle.tar", "maps/x.map.png"):
        Path(name).write_bytes(PRECIOUS)
    before = {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()}
    said = said_by(command, words, capfd)
    assert "expected" in said
    assert {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()} == before


def test_files_of_rows_that_are_another_s_are_not_cut(tmp_path):
    """They have no line end, so that cutting off an incomplete last line would empty them."""
    (tmp_path / "rows.jsonl").write_bytes(PRECIOUS)
    with pytest.raises(StoreError, match=r"without run\.json"):
        Store(tmp_path, {}, {})
    assert (tmp_path / "rows.jsonl").read_bytes() == PRECIOUS


def test_what_this_program_wrote_is_replaced(tmp_path):
    """Rows, tables, galleries and maps are written over in the tests of their commands."""
    place = tmp_path / "file"
    fit = Fit(temperature=2.0, eta=0.5, objective="srcc", dataset="koniq10k", model="M", keys=("a.jpg",))
    place.write_text(fit.model_dump_json())
    require_own(place, "fit")
    place.write_bytes(tarfile.TarInfo(MANIFEST_HASH).tobuf())
    require_own(place, "bundle")
    place.write_text('{"schema_version": 5, "error": "no picture"}\n{"kind": "group"}\n')
    require_own(place, "file of comparisons")
