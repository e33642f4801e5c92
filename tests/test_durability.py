"""What a power cut leaves of rows: a file has what was last synced of it, a folder the names that it had when
it was last synced. Every row that was acknowledged is there."""

import errno
import fcntl
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentic_iqa_local import provenance
from agentic_iqa_local.batch import rows as rows_module
from agentic_iqa_local.batch.rows import RowFile, RowsError, WriteError, write_run
from agentic_iqa_local.config import load_settings


class Disk:
    """Keeps what `folder` would hold after a power cut, now and whenever names or contents changed (`cuts`).
    A name may also reach the disk before anybody asks for it."""

    def __init__(self, folder: Path, monkeypatch):
        self.folder, self.names, self.contents, self.cuts = folder, {}, {}, []
        sync, replace = os.fsync, os.replace

        def fsync(descriptor):
            sync(descriptor)
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                self.names = self._names_now()
            else:
                self.contents[found.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            self._look()

        def replaced(*names):
            replace(*names)
            self._look()

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replaced)

    def _names_now(self) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in self.folder.iterdir()}

    def _look(self) -> None:
        self.cuts += [self.after_a_cut(), self.after_a_cut(self._names_now())]

    def after_a_cut(self, names: dict[str, int] | None = None) -> dict[str, bytes]:
        names = self.names if names is None else names
        return {name: self.contents.get(inode, b"") for name, inode in names.items()}

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


def test_whenever_the_power_fails_there_are_the_rows_of_before_or_of_after(tmp_path, disk):
    rows = RowFile(tmp_path / "rows.jsonl")
    for n in range(4):
        rows.append(json.dumps({"n": n}))
    disk.cuts.clear()
    rows.keep(lambda row: row["n"] % 2)
    found = [cut["rows.jsonl"].splitlines() for cut in disk.cuts]
    assert {tuple(json.loads(line)["n"] for line in lines) for lines in found} == {(0, 1, 2, 3), (1, 3)}
    rows.close()


def test_who_reads_while_rows_are_taken_out_reads_the_old_file_to_its_end(tmp_path):
    """They go into another file that takes its place: nothing changes under a reader, nor where a kill comes."""
    rows = RowFile(tmp_path / "rows.jsonl")
    for n in range(4):
        rows.append(json.dumps({"n": n}))
    with (tmp_path / "rows.jsonl").open() as earlier:
        rows.keep(lambda row: row["n"] % 2)
        assert [json.loads(line)["n"] for line in earlier] == [0, 1, 2, 3]
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
    assert (tmp_path / "rows.jsonl").read_text() == '{"n": 0}\n{"n": 1}\n{"n": 2}\n{"n": 3}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
    rows.close()


def test_what_the_rows_depend_on_survives(tmp_path, disk):
    write_run(tmp_path / "rows.jsonl.run.json", {"date": "today"}, {"model": "a"})
    found = json.loads(disk.after_a_cut()["rows.jsonl.run.json"])
    assert found == {"date": "today", "identity": {"model": "a"}}


def test_a_description_that_is_written_anew_is_the_old_or_the_new_one_at_any_time(tmp_path, disk):
    path = tmp_path / "rows.jsonl.run.json"
    write_run(path, {}, {"model": "old"})
    disk.cuts.clear()
    with path.open() as earlier:
        write_run(path, {}, {"model": "new"})
        assert json.load(earlier)["identity"] == {"model": "old"}
    found = [json.loads(cut[path.name])["identity"]["model"] for cut in disk.cuts]
    assert set(found) == {"old", "new"}
    assert found[-1] == "new"


def test_a_row_that_the_disk_took_in_part_is_taken_back(tmp_path, disk, monkeypatch):
    """Whether its bytes or its sync fail: the next row stands on a line of its own."""
    rows = RowFile(tmp_path / "rows.jsonl")
    rows.append('{"n": 0}')

    def broken(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def broken_off(file, data):
        file.write(data[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for module, name, stand_in in ((os, "fsync", broken), (rows_module, "_write", broken_off)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, stand_in)
            with pytest.raises(WriteError, match="a row could not be written"):
                rows.append('{"n": 1, "lost": true}')
        assert (tmp_path / "rows.jsonl").read_text() == '{"n": 0}\n'
    rows.append('{"n": 2}')
    assert disk.rows() == [0, 2]
    rows.close()


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
