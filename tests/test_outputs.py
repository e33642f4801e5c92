"""No command replaces a file whose name is of another kind, and each says so before anything is loaded."""

import shutil
from pathlib import Path

import pytest
from conftest import DATA

from agentic_iqa_local.cli.main import main
from agentic_iqa_local.studies.store import StoreError, open_store

PRECIOUS = b"what somebody would miss"  # without a line end, as pictures are


@pytest.mark.parametrize(
    "words",
    [
        ["assess", "a.png", "--csv", "x.png"],
        ["assess", "a.png", "--gallery", "x.png"],
        ["assess", "a.png", "--map", "x.jpg"],
        ["assess", "a.png", "--out", "x.png"],
        ["chat", "a.png", "--out", "x.png"],
        ["compare", "a.png", "x.png", "--out", "x.png"],
        ["gallery", "rows.jsonl", "--out", "x.png"],
        ["bundle", "--out", "x.png"],
    ],
)
def test_a_file_of_another_kind_is_not_replaced(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "sumac.png", "a.png")
    for name in ("x.png", "x.jpg"):
        Path(name).write_bytes(PRECIOUS)
    assert main(words) == 2
    told, said = capfd.readouterr()
    assert told == ""
    assert said.startswith(f"error: {words[-2]} ")
    assert "expected a name with ." in said
    assert all(Path(name).read_bytes() == PRECIOUS for name in ("x.png", "x.jpg"))


def test_files_of_rows_that_are_another_s_are_not_cut(tmp_path):
    """They have no line end, so that cutting off an incomplete last line would empty them."""
    (tmp_path / "rows.jsonl").write_bytes(PRECIOUS)
    with pytest.raises(StoreError, match=r"without run\.json"), open_store(tmp_path, {}, {}):
        pass
    assert (tmp_path / "rows.jsonl").read_bytes() == PRECIOUS
