"""Small files are read that are regular, of limited size, and never waited for; and files are replaced as a whole."""

import os
import stat

import pytest

from agentic_iqa_local.files import (
    FileError,
    WriteError,
    open_regular,
    read_bytes,
    read_json,
    remove_temporaries,
    replacing,
    write_whole,
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected JSON, got something else"),
        (b"[1]", "expected a JSON object, got list"),
        (b'{"a":' * 100_000, "expected JSON, got it nested too deeply"),
        (b'{"a": "' + b"x" * 500 + b'"}', "expected at most 500 bytes, got more"),
    ],
)
def test_what_is_no_small_json_object_is_told_in_one_sentence(tmp_path, content, said):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FileError, match=said):
        read_json(tmp_path / "a.json", largest=10**6 if said.endswith("deeply") else 500)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, said in ((tmp_path / "pipe", "a pipe"), ("/dev/zero", "a device"), ("/", "a folder")):
        with pytest.raises(FileError, match=f"expected a regular file, got {said}"):
            open_regular(path)
    with pytest.raises(
        FileError, match="expected at most 100 bytes, got more"
    ):  # it says that it has none
        read_bytes("/proc/self/maps", largest=100)


# Written


def write_big(path):
    """Writes NEW to `path` in two halves; in the middle yields the folder's names."""
    with replacing(path, sync=True) as file:
        file.write(b"ne")
        yield os.listdir(path.parent)
        file.write(b"w\n")


def test_a_file_is_replaced_whole_and_links_are_not_followed(tmp_path):
    """Neither one in its place nor one that has the name of its temporary file."""
    path, precious = tmp_path / "x.tar", tmp_path / "precious"
    precious.write_text("mine\n")
    path.symlink_to(precious)
    (tmp_path / "x.tar.partial").symlink_to(precious)
    writing = write_big(path)
    (temporary,) = {*next(writing)} - {"x.tar", "precious", "x.tar.partial"}
    assert path.is_symlink()
    assert not (tmp_path / temporary).is_symlink()
    next(writing, None)
    assert not path.is_symlink()
    assert path.read_text() == "new\n"
    assert precious.read_text() == "mine\n"
    assert sorted(os.listdir(tmp_path)) == ["precious", "x.tar", "x.tar.partial"]
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(precious.stat().st_mode)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError(28, "No space left")])
def test_what_was_not_finished_is_removed_and_the_old_file_stays(error, tmp_path):
    path = tmp_path / ("x" * 255)  # no room for a longer name
    path.write_text("old")

    def content():
        yield b"new"
        raise error

    with pytest.raises(WriteError if isinstance(error, OSError) else error):
        write_whole(path, content())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    for _ in write_big(tmp_path / "a.partial"):
        pass
    writing = write_big(tmp_path / "b")
    next(writing)
    remove_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["a.partial"]
    with pytest.raises(WriteError):
        next(writing)
