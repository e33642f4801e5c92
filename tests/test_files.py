"""The reader of small files: a regular file, of limited size, that is never waited for."""

import os

import pytest

from agentic_iqa_local.files import FileError, open_regular, read_bytes, read_json


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected JSON, got something else"),
        (b"[1]", "expected a JSON object, got list"),
        (b"\xff", "expected JSON, got something else"),
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
