"""No command replaces a file of another kind, one of its inputs, or one that it did not write, and each says so before
anything is loaded."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import DATA

from agentic_iqa_local.cli.main import main
from agentic_iqa_local.cli.options import UsageError
from agentic_iqa_local.cli.outputs import COMPARISONS, check_apart, output_file
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.judgement.comparison import Ranking
from agentic_iqa_local.output import tables
from agentic_iqa_local.output.tables import csv_text
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.studies.store import StoreError, open_store

PRECIOUS = b"what somebody would miss"  # without a line end, as pictures are


@pytest.mark.parametrize(
    "words",
    [
        ["assess", "a.png", "--out", "photo.png"],
        ["assess", "a.png", "--csv", "photo.csv"],
        ["assess", "photo.html", "--gallery", "photo.html"],
        ["assess", "a.png", "--map", "photo.png"],
        ["chat", "a.png", "--out", "photo.png"],
        ["compare", "a.png", "photo.png", "--out", "photo.json"],
        ["gallery", "photo.html"],
        ["gallery", "photo.html", "--out", "photo.html"],
        ["bundle", "--out", "photo.json"],
        ["study", "fit", "run", "--out", "photo.json"],
        ["study", "report", "run", "--out", "run"],
        ["study", "compare", "run", "other", "--out", "run"],
    ],
    ids=" ".join,
)
def test_a_file_of_somebody_else_is_not_replaced(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "other"):
        Path(folder).mkdir()
        for name in ("rows.jsonl", "run.json", "modes.csv", "report.html"):
            Path(folder, name).write_text('{"mine": 1}\n')
    for name in ("a.png", "photo.png", "photo.csv", "photo.html", "photo.json"):
        shutil.copy(DATA / "sumac.png", name)
    before = {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()}
    assert main(words) == 2
    told, said = capfd.readouterr()
    assert told == ""
    assert said.startswith("error: ")
    assert {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("name", ["m.csv", "link.csv", "hard.csv", "sub/../m.csv"])
def test_an_output_is_no_input_whatever_it_is_called(name, tmp_path, monkeypatch, capfd):
    """Although the input is a table that this program wrote and would replace."""
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    shutil.copy(DATA / "sumac.png", "a.png")
    manifest = Path("m.csv")
    write_whole(
        manifest, csv_text([Assessment(image="a.png", query="Is it sharp?")]), encoding="utf-8-sig"
    )
    Path("link.csv").symlink_to(manifest)
    os.link(manifest, "hard.csv")
    before = manifest.read_bytes()
    assert main(["assess", "--manifest", "m.csv", "--csv", name]) == 2
    assert "expected another file than the input m.csv" in capfd.readouterr().err
    assert manifest.read_bytes() == before


def test_outputs_are_apart_from_each_other():
    outputs = [("--out", Path("x.json")), ("--map", Path("sub/../x.json"))]
    with pytest.raises(UsageError, match=r"--map .*expected another file than that of --out"):
        check_apart(outputs, [])
    check_apart(outputs[:1], ["a.png", None])


def test_own_files_are_replaced_but_not_a_table_with_more_columns(tmp_path):
    row = Assessment(image="a.png", query="Is it sharp?", error="no")
    ranking = Ranking(order=[], failed=[row])
    table, comparisons = tmp_path / "r.csv", tmp_path / "c.json"
    write_whole(table, csv_text([row]), encoding="utf-8-sig")
    write_whole(comparisons, json.dumps(ranking.to_dict()))
    assert output_file("--csv", table, ".csv", mark=tables.CSV) == table
    assert output_file("--out", comparisons, ".json", mark=COMPARISONS) == comparisons
    table.write_bytes(table.read_bytes().replace(b",sha256\r\n", b",sha256,mos\r\n"))
    with pytest.raises(UsageError, match=r"r\.csv: expected a new name"):
        output_file("--csv", table, ".csv", mark=tables.CSV)


def test_files_of_rows_that_are_another_s_are_not_cut(tmp_path):
    """They have no line end, so that cutting off an incomplete last line would empty them."""
    (tmp_path / "rows.jsonl").write_bytes(PRECIOUS)
    with pytest.raises(StoreError, match=r"without run\.json"), open_store(tmp_path, {}):
        pass
    assert (tmp_path / "rows.jsonl").read_bytes() == PRECIOUS
