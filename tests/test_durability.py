"""What a power cut leaves of rows: a file has what was last synced of it, a folder the names that it had when
it was last synced. Every row that was acknowledged is there."""

import fcntl
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentic_iqa_local import provenance
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.rows import RowFile, RowsError, write_run


class Disk:
    """Keeps what `folder` would hold after a power cut."""

    def __init__(self, folder: Path, monkeypatch):
        self.folder, self.names, self.contents = folder, {}, {}
        real = os.fsync

        def fsync(descriptor):
            real(descriptor)
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                self.names = {path.name: path.stat().st_ino for path in folder.iterdir()}
            else:
                self.contents[found.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

        monkeypatch.setattr(os, "fsync", fsync)

    def after_a_cut(self) -> dict[str, bytes]:
        return {name: self.contents.get(inode, b"") for name, inode in self.names.items()}

    def rows(self, name: str = "rows.jsonl") -> list[int]:
        return [json.loads(line)["n"] for line in self.after_a_cut()[name].splitlines()]


@pytest.fixture
def disk(tmp_path, monkeypatch):
    return Disk(tmp_path, monkeypatch)


def test_every_row_that_was_acknowledged_survives(tmp_path, disk):
    rows = RowFile(tmp_path / "rows.jsonl")
    assert "rows.jsonl" in disk.after_a_cut()
    for n in range(3):
        rows.append(json.dumps({"n": n}))
        assert disk.rows() == list(range(n + 1))
    rows.close()


def test_rows_that_were_taken_out_stay_out_and_the_others_survive(tmp_path, disk):
    rows = RowFile(tmp_path / "rows.jsonl")
    for n in range(4):
        rows.append(json.dumps({"n": n}))
    rows.keep(lambda row: row["n"] % 2)
    assert disk.rows() == [1, 3]
    rows.append('{"n": 9}')
    assert disk.rows() == [1, 3, 9]
    rows.close()


def test_while_rows_are_taken_out_the_old_file_is_whole(tmp_path, disk):
    """A cut, or an error, in the middle of it finds all rows of before."""
    rows = RowFile(tmp_path / "rows.jsonl")
    for n in range(4):
        rows.append(json.dumps({"n": n}))
    seen = []

    def wanted(row):
        seen.append(disk.rows())
        if row["n"] == 2:
            raise RowsError("stopped")
        return False

    with pytest.raises(RowsError, match="stopped"):
        rows.keep(wanted)
    assert seen == [[0, 1, 2, 3]] * 3
    assert [json.loads(line)["n"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [
        0,
        1,
        2,
        3,
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
    rows.close()


def test_what_the_rows_depend_on_survives(tmp_path, disk):
    write_run(tmp_path / "rows.jsonl.run.json", {"date": "today"}, {"model": "a"})
    found = json.loads(disk.after_a_cut()["rows.jsonl.run.json"])
    assert found == {"date": "today", "identity": {"model": "a"}}


def test_a_torn_end_is_cut_off_before_the_next_row(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"n": 0}\n{"n": 1}\n{"n": 2, "te')
    rows = RowFile(tmp_path / "rows.jsonl")
    rows.recover()
    assert (tmp_path / "rows.jsonl").read_text() == '{"n": 0}\n{"n": 1}\n'
    rows.append('{"n": 3}')
    assert [row["n"] for row in rows] == [0, 1, 3]
    rows.close()


def test_one_at_a_time_may_write_also_after_rows_were_taken_out(tmp_path):
    rows = RowFile(tmp_path / "rows.jsonl")
    with pytest.raises(RowsError, match="another process is writing it"):
        RowFile(tmp_path / "rows.jsonl")
    rows.append('{"n": 0}')
    rows.keep(lambda row: True)
    with pytest.raises(RowsError, match="another process is writing it"):
        RowFile(tmp_path / "rows.jsonl")
    rows.close()
    RowFile(tmp_path / "rows.jsonl").close()


def test_who_opened_the_file_before_rows_were_taken_out_is_refused_too(tmp_path):
    """Otherwise it would write rows into a file that has no name any more."""
    rows = RowFile(tmp_path / "rows.jsonl")
    rows.append('{"n": 0}')
    with (tmp_path / "rows.jsonl").open("ab") as earlier:
        rows.keep(lambda row: True)
        with pytest.raises(BlockingIOError):
            fcntl.flock(earlier, fcntl.LOCK_EX | fcntl.LOCK_NB)
    rows.close()


# What rows depend on


@pytest.mark.parametrize(("device", "kind"), [("cpu", "cpu"), ("cuda:0", "cuda"), ("cuda:3", "cuda")])
def test_rows_depend_on_the_kind_of_device(device, kind):
    assert provenance.of_settings(load_settings(), device)["device"] == kind


def test_rows_depend_on_the_tools_weights_and_on_no_other_file_of_a_bundle(monkeypatch):
    def weights(**files):
        stored = [SimpleNamespace(path=path, sha256=sha256) for path, sha256 in files.items()]
        monkeypatch.setattr(
            provenance, "store_manifest", lambda _: SimpleNamespace(files=stored) if stored else None
        )
        return provenance.of_settings(load_settings(), "cpu")["tool weights"]

    tool, other, model = ({"tools/hub/a.pth": "1"}, {"tools/hub/a.pth": "2"}, {"vlm/a.safetensors": "3"})
    found = [weights(**files) for files in ({}, tool, other, tool | model)]
    assert len(set(found)) == 3
    assert found[3] == found[1]
