"""The reader of small files: a regular file, of limited size and depth, that is never waited for."""

import json
import os

import pytest

from agentic_iqa_local.files import FileError, open_regular, parse_json, read_bytes, read_json


def deep(levels):
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected JSON, got something else"),
        (b"[1]", "expected a JSON object, got a list"),
        (b"null", "expected a JSON object, got null"),
        (b"\xff", "expected JSON, got something else"),
        (deep(65).encode(), "expected JSON nested at most 64 deep"),
        (deep(100_000).encode(), "expected JSON nested at most 64 deep"),
    ],
)
def test_what_is_no_small_json_object_is_refused(content, said):
    with pytest.raises(FileError, match=said):
        parse_json(content)


def test_json_at_the_limits_is_read(tmp_path):
    """64 objects in each other, in a file of exactly as many bytes as are allowed."""
    file = tmp_path / "a.json"
    file.write_text(deep(64))
    assert read_json(file, largest=len(deep(64))) == json.loads(deep(64))
    with pytest.raises(FileError, match="expected at most"):
        read_json(file, largest=len(deep(64)) - 1)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, said in ((tmp_path / "pipe", "a pipe"), ("/dev/zero", "a device"), ("/", "a folder")):
        with pytest.raises(FileError, match=f"expected a regular file, got {said}"):
            open_regular(path)
    with pytest.raises(FileError, match="expected at most 100 bytes, got more"):  # it says that it has none
        read_bytes("/proc/self/maps", largest=100)
