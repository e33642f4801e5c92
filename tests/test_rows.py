"""Files of rows and the description of the run they belong to. What a power cut leaves is in test_durability.py."""

import errno
import io
import json
import os

import pytest
from attacks import opened_in
from pydantic import BaseModel

from agentic_iqa_local.batch import rows
from agentic_iqa_local.batch.rows import (
    OtherRun,
    Replaced,
    RowFile,
    RowsError,
    UnreadableRow,
    WriteError,
    check_run,
    rows_in,
    write_run,
    write_whole,
)

ONE, TWO, THREE = '{"a": 1}\n', '{"a": 2}\n', '{"a": 3}\n'


class Numbered(BaseModel):
    a: int


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


@pytest.fixture
def file(path):
    file = RowFile(path, Numbered)
    yield file
    file.close()


def full(path, text: str) -> RowFile:
    path.write_text(text)
    return RowFile(path, Numbered)


# Writing


def test_rows_are_lines_in_the_order_of_their_writing(file, path):
    assert file.empty
    for line in (ONE, TWO):
        file.append(line.strip())
    assert path.read_text() == ONE + TWO
    assert list(file) == [{"a": 1}, {"a": 2}]
    assert not file.empty


def test_a_file_that_is_there_is_gone_on_with(path):
    file = full(path, ONE)
    assert not file.empty
    file.append(TWO.strip())
    file.close()
    assert path.read_text() == ONE + TWO


def test_one_process_writes_and_closing_lets_the_next(file, path):
    with pytest.raises(RowsError, match="another process is writing it"):
        RowFile(path)
    file.close()
    RowFile(path).close()


def test_a_link_and_a_folder_are_no_files_of_rows(path, tmp_path):
    (tmp_path / "real").write_text("")
    path.symlink_to(tmp_path / "real")
    with pytest.raises(RowsError, match="got a link"):
        RowFile(path)
    with pytest.raises(RowsError, match="got a folder"):
        RowFile(tmp_path)
    with pytest.raises(RowsError, match="can be written, got No such file"):
        RowFile(tmp_path / "none" / "rows.jsonl")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": NaN}', "finite"),
        ('{"a": 1, "b": [{"c": Infinity}]}', "finite"),
        ('{"a": 1, "b": [0, -1e999]}', "finite"),
        pytest.param('{"a": 1, "b": 1' + "0" * 400 + "}", "finite", id="larger than every float"),
        ('{"a": "1"}', "a: expected a whole number"),
        ('{"a": true}', "a: expected a whole number"),
        ("[1]", "a list"),
        ('{"a": 1', "expected JSON"),
    ],
)
def test_a_row_that_could_not_be_read_again_is_not_written(file, path, line, reason):
    file.append(ONE.strip())
    with pytest.raises(UnreadableRow, match=reason):
        file.append(line)
    assert path.read_text() == ONE


def test_a_row_is_as_long_as_the_limit_at_most(file, path, monkeypatch):
    monkeypatch.setattr(rows, "LARGEST", len(ONE))
    file.append(ONE.strip())
    with pytest.raises(UnreadableRow, match=f"at most {len(ONE)} bytes"):
        file.append('{"a": 10}')
    assert list(file) == [{"a": 1}]


def test_a_row_that_the_disk_takes_in_part_is_taken_back(file, path, monkeypatch):
    file.append(ONE.strip())

    def half(to, data):
        to.write(data[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(rows, "_write", half)
        with pytest.raises(WriteError, match=r"No space left on device\); the rows before it are kept"):
            file.append(TWO.strip())
    assert path.read_text() == ONE
    file.append(THREE.strip())
    assert path.read_text() == ONE + THREE


def test_a_disk_that_takes_some_bytes_at_a_time_gets_them_all():
    class Slow(io.BytesIO):
        def write(self, data):
            return super().write(data[:3])

    slow = Slow()
    assert rows._write(slow, b"0123456789") == 10
    assert slow.getvalue() == b"0123456789"


# What became of the file


def test_a_file_that_was_moved_or_deleted_is_not_written_in_vain(file, path, tmp_path):
    file.check_place()
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(Replaced, match=r"moved to .*elsewhere with its rows; move it back"):
        file.append(ONE.strip())
    path.write_text("")
    with pytest.raises(Replaced, match="moved to"):
        list(file)
    (tmp_path / "elsewhere").unlink()
    with pytest.raises(Replaced, match="deleted or another took its name"):
        file.check_place()


# Reading


@pytest.mark.parametrize(
    ("text", "kept"), [("", ""), (ONE, ONE), (ONE + '{"a', ONE), (ONE + TWO + "x", ONE + TWO), ('{"a"', "")]
)
def test_what_a_kill_left_of_a_line_is_cut_off(path, text, kept):
    file = full(path, text)
    file.recover()
    assert path.read_text() == kept
    assert file.empty == (not kept)
    file.append(THREE.strip())
    file.close()
    assert path.read_text() == kept + THREE


def test_only_as_much_as_a_row_can_be_is_cut_off(path, monkeypatch):
    monkeypatch.setattr(rows, "LARGEST", 10)
    file = full(path, ONE + "x" * 9)  # the last ten bytes hold the end of the first row
    file.recover()
    assert path.read_text() == ONE
    file.close()
    file = full(path, ONE + "x" * 10)
    with pytest.raises(RowsError, match="rows of at most 10 bytes, the last is longer"):
        file.recover()
    assert path.read_text() == ONE + "x" * 10
    file.close()


def test_a_line_that_is_no_row_is_named(path):
    file = full(path, ONE + '{"b": 2}\n' + THREE)
    with pytest.raises(
        RowsError,
        match=r"rows\.jsonl, line 2: expected rows as this program writes them, got a: expected a value",
    ):
        list(file)
    file.close()


def test_the_last_line_of_a_run_that_goes_on_may_be_torn(path):
    torn = (ONE + TWO + '{"a').encode()
    assert list(rows_in(io.BytesIO(torn), path, Numbered, going_on=True)) == [
        (ONE.encode(), {"a": 1}),
        (TWO.encode(), {"a": 2}),
    ]
    with pytest.raises(RowsError, match="line 3"):
        list(rows_in(io.BytesIO(torn), path, Numbered))
    with pytest.raises(RowsError, match="line 1"):  # whole, and none
        list(rows_in(io.BytesIO(b"{}\n"), path, Numbered, going_on=True))


def test_a_file_that_cannot_be_opened_again_is_one_sentence(file, monkeypatch):
    def refuses(_):
        raise rows.FileError("expected a file that can be read, got Permission denied")

    monkeypatch.setattr(rows, "open_regular", refuses)
    with pytest.raises(
        RowsError, match=r"rows\.jsonl: expected a file that can be read, got Permission denied"
    ):
        list(file)


def test_no_descriptor_is_left_open(path):
    file = full(path, ONE + TWO)
    file.keep(lambda row: row["a"] == 1)
    assert list(file) == [{"a": 1}]
    file.close()
    write_whole(path.with_name("note"), "text", sync=True)
    assert opened_in(path.parent) == []


# Taking rows out


def test_rows_that_are_not_wanted_are_taken_out_and_the_file_stays_locked(path):
    file = full(path, ONE + TWO + THREE)
    file.keep(lambda row: row["a"] != 2)
    assert path.read_text() == ONE + THREE
    assert [entry.name for entry in path.parent.iterdir()] == ["rows.jsonl"]
    with pytest.raises(RowsError, match="another process"):
        RowFile(path)
    file.append(TWO.strip())
    assert list(file) == [{"a": 1}, {"a": 3}, {"a": 2}]
    file.close()
    assert file._replaced.closed
    RowFile(path).close()


def test_where_rows_cannot_be_taken_out_nothing_changes(path, monkeypatch):
    file = full(path, ONE + TWO)
    with monkeypatch.context() as patch:
        patch.setattr(rows, "_write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(WriteError, match="full"):
            file.keep(lambda _: True)
    assert path.read_text() == ONE + TWO
    assert not path.with_name("rows.jsonl.partial").exists()
    path.write_text(ONE + "{}\n")  # the same file
    with pytest.raises(RowsError, match="line 2"):
        file.keep(lambda _: True)
    assert not path.with_name("rows.jsonl.partial").exists()
    file.close()


# Whole files


def test_a_text_ends_with_one_line_end_and_bytes_stay_as_they_are(tmp_path):
    file = tmp_path / "note"
    for text in ("a", "a\n", "a\n\n"):
        write_whole(file, text)
        assert file.read_bytes() == b"a\n"
    write_whole(file, b"b", sync=True)
    assert file.read_bytes() == b"b"
    write_whole(file, "ä", encoding="latin-1")
    assert file.read_bytes() == b"\xe4\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["note"]


def test_a_link_is_replaced_and_not_written_through(tmp_path):
    (tmp_path / "other").write_text("other")
    (tmp_path / "note").symlink_to(tmp_path / "other")
    write_whole(tmp_path / "note", "new")
    assert ((tmp_path / "other").read_text(), (tmp_path / "note").is_symlink()) == ("other", False)


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "note"
    file.write_text("old")

    def fails(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(WriteError, match=r"could not be written \(Input/output error\)"):
        write_whole(file, "new", sync=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["note"]
    assert file.read_text() == "old"
    write_whole(file, "new")  # without waiting for the disk
    assert file.read_text() == "new\n"


# The description of a run


@pytest.fixture
def described(tmp_path):
    file = tmp_path / "run.json"
    write_run(
        file, {"command": "assess"}, {"model": "m", "fusion": {"eta": 1.0, "letters": {}}, "later": None}
    )
    return file


def test_a_run_goes_on_with_the_same_identity_alone(described):
    same = {"model": "m", "fusion": {"eta": 1.0, "letters": {}}, "later": None}
    assert json.loads(described.read_text()) == {"command": "assess", "identity": same}
    assert '\n "identity": {\n  "model": "m",\n' in described.read_text()  # people read it too
    assert check_run(described, same) is False
    assert check_run(described, same | {"later": ()}, ["later"]) is True
    assert check_run(described, same | {"later": None}, ["later"]) is False
    for key, may_be_set in [("later", ["model"]), ("model", ["model"])]:  # not among them; set before
        with pytest.raises(OtherRun, match=key):
            check_run(described, same | {key: "other"}, may_be_set)


def test_what_differs_is_named_with_both_values(described):
    with pytest.raises(OtherRun) as caught:
        check_run(described, {"model": "x" * 70, "fusion": {"eta": 2.0, "letters": {}}, "new": "ü"})
    said = str(caught.value)
    assert "fusion.eta was 1.0, is now 2.0; " in said
    assert f'model was "m", is now "{"x" * 58}…; ' in said  # 60 characters with its quotation mark
    assert 'new was not set, is now "ü"' in said
    assert "fusion.letters" not in said
    assert "more" not in said


@pytest.mark.parametrize(("changes", "more"), [(5, ""), (6, "; and 1 more"), (8, "; and 3 more")])
def test_five_differences_are_named_and_the_others_counted(tmp_path, changes, more):
    file = tmp_path / "run.json"
    write_run(file, {}, {f"s{i}": 0 for i in range(changes)})
    with pytest.raises(OtherRun) as caught:
        check_run(file, {f"s{i}": 1 for i in range(changes)})
    said = str(caught.value)
    assert said.count(" was 0, is now 1") == 5
    assert f"s4 was 0, is now 1{more}" in said
    assert ("more" in said) == bool(more)


def test_a_value_of_sixty_characters_is_shown_whole(tmp_path):
    file = tmp_path / "run.json"
    write_run(file, {}, {"a": "x" * 58})  # and two quotation marks
    with pytest.raises(OtherRun, match=f'a was "{"x" * 58}", is'):
        check_run(file, {"a": 1})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"identity": 3}', '{"identity": null}'])
def test_what_describes_no_run_is_refused(tmp_path, text):
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(RowsError, match="no description of the run"):
        check_run(file, {})
    with pytest.raises(RowsError, match="no description of the run"):
        check_run(tmp_path / "none.json", {})
