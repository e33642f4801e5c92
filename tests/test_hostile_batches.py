"""Odd files, links and names at the doors of a batch: each ends soon in an answer, in a failure row or in one
sentence, and nothing outside of its place is written."""

import io
import json
import os
import signal
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scripted import ScriptedClient, ScriptedTools, in_this_process, scripted_answers, scripted_services

from agentic_iqa_local.batch.inputs import ManifestError, read_manifest
from agentic_iqa_local.batch.results import Results
from agentic_iqa_local.batch.rows import RowsError
from agentic_iqa_local.batch.work import Assessing, as_line
from agentic_iqa_local.cli import assess as assess_command
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.files import WriteError, path_text
from agentic_iqa_local.judgement.assessment import assess

SECONDS = 60  # until a case counts as hung: many times what the slowest takes
LONGEST_SENTENCE = 2500  # characters of a message that quotes names; one of all that a file holds is longer


@pytest.fixture(autouse=True)
def _in_time():
    """A case that hangs fails, in whatever call it waits."""

    def hung(*_):
        pytest.fail(f"still going on after {SECONDS} s", pytrace=False)

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refused(kind, call, *args, **options):
    """What an error of that kind says: one sentence, in which nothing steers a terminal."""
    with pytest.raises(kind) as caught:
        call(*args, **options)
    text = str(caught.value)
    assert 0 < len(text) < LONGEST_SENTENCE
    assert not [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    return text


@pytest.fixture(scope="module")
def scripted():
    tools = ScriptedTools({"NIQE": 3.0, "LocalNR": 3.0, "VSI": 3.0, "FSIM": 3.0})
    return scripted_services(ScriptedClient(scripted_answers()), tools)


@pytest.fixture(scope="module")
def known():
    """What rows depend on."""
    return Assessing(load_settings(), "letters").identity("cpu")


@pytest.fixture(scope="module")
def line(scripted, picture):
    """A row of a batch."""
    return as_line(assess(picture, pipeline="letters", services=scripted))


# Odd files

CONTENTS = {
    "deep": b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "no text": b"\xff\xfe\x00\n",
    "NaN": b'{"identity": NaN}\n',
    "long line": b'{"identity": "' + b"x" * (80 * 2**20) + b'"}\n',
}


def put(place: Path, kind: str) -> Path:
    """Something odd in the place of a file."""
    place.unlink(missing_ok=True)
    if kind in CONTENTS:
        place.write_bytes(CONTENTS[kind])
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to({"endless": "/dev/zero", "link loop": place.name}[kind])
    return place


def begun(folder: Path, known, *lines: str) -> Path:
    """A batch's file of rows, to be gone on with."""
    path = folder / "rows.jsonl"
    Results(path, known).close()
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("kind", [*CONTENTS, "pipe", "folder", "endless", "link loop"])
def test_odd_files(kind, tmp_path, known, line):
    """As the description of a run, as its rows, and as manifests."""
    path = begun(tmp_path, known, line)
    description = put(path.with_name("rows.jsonl.run.json"), kind)
    refused(RowsError, Results, path, known, resume=True)
    assert path.read_text() == f"{line}\n"
    for suffix in ("csv", "jsonl", "parquet"):
        refused(ManifestError, read_manifest, put(tmp_path / f"m.{suffix}", kind))
    if kind != "folder":
        description.unlink()
        path.unlink()
        begun(tmp_path, known)
        put(path, kind)
        size = path.lstat().st_size
        refused(RowsError, Results, path, known, resume=True)
        assert path.lstat().st_size == size


@pytest.mark.parametrize(
    "changes",
    [
        {"image": ["a.png"]},
        {"query": ...},
        {"choices": "Yes|No"},
        {"q": "4.5"},
        {"q": float("nan")},
        {"tools": {"NIQE": 3.0}},
    ],
    ids=str,
)
def test_rows_of_another_form(changes, tmp_path, known, line):
    """Second of two rows: the sentence names its line, and the file stays as it is."""
    row = json.loads(line) | {"image": "b.png"} | changes
    row = {name: value for name, value in row.items() if value is not ...}
    path = begun(tmp_path, known, line, json.dumps(row))
    before = path.read_bytes()
    assert f"{path}, line 2: " in refused(RowsError, Results, path, known, resume=True)
    assert path.read_bytes() == before


# Links, and places that are no files


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_lies_where_rows_are_written_anew_is_not_written_through(kind, tmp_path, known, line):
    failed = json.dumps(json.loads(line) | {"image": "a.png", "error": "no"})
    path, elsewhere = begun(tmp_path, known, line, failed), tmp_path / "own.txt"
    elsewhere.write_text("mine")
    partial = tmp_path / "rows.jsonl.partial"
    if kind == "pipe":
        os.mkfifo(partial)
    elif kind == "folder":
        partial.mkdir()
    else:
        partial.symlink_to(elsewhere)
    asked = {json.dumps(["a.png", None, json.loads(line)["query"], None])}

    def write():
        Results(path, known, resume=True, retry=True, asked=asked).close()

    if kind == "folder":
        refused(WriteError, write)
        assert path.read_text() == f"{line}\n{failed}\n"
    else:
        write()
        assert path.read_text() == f"{line}\n"
    assert elsewhere.read_text() == "mine"


@pytest.fixture
def command(monkeypatch, capsys, scripted):
    """`command(*words)`: what assess.py does with them, in this process, with a scripted model and tools."""

    class Done:
        def __init__(self, words):
            results = io.StringIO()
            console = assess_command.Console
            monkeypatch.setattr(assess_command, "Console", lambda: console(results))
            words = [os.fsdecode(word) for word in words]
            monkeypatch.setattr("sys.argv", ["assess.py", *words])
            monkeypatch.setattr("sys.orig_argv", ["python", "assess.py", *words])
            try:
                self.status = main(["assess", "--cpu", "--pipeline", "letters", *words])
            except SystemExit as error:
                self.status = error.code
            finally:
                monkeypatch.setattr(assess_command, "Console", console)
            captured = capsys.readouterr()
            self.said = captured.err
            self.rows = [json.loads(line) for line in results.getvalue().splitlines()]
            assert "Traceback" not in self.said

    monkeypatch.setattr("agentic_iqa_local.services.Services", lambda *_: scripted)
    in_this_process(monkeypatch)
    return lambda *words: Done(words)


@pytest.mark.parametrize("place", ["pipe", ".", "to-pipe", "to-nowhere", "loop"])
@pytest.mark.parametrize("option", ["--out", "--csv"])
def test_places_that_are_no_files(option, place, command, picture, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for name, target in (("to-pipe", "pipe"), ("to-nowhere", "nowhere"), ("loop", "loop")):
        Path(name).symlink_to(target)
    before = sorted(os.listdir())
    done = command(picture, option, place)
    assert (done.status, done.said[: len(f"error: {option} ")]) == (2, f"error: {option} ")
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    "table", ["rows.jsonl", "rows.jsonl.run.json", "rows.jsonl.lock", "m.csv", "a.png", "link.csv"]
)
def test_a_table_that_would_replace_what_is_used(table, command, tmp_path, monkeypatch, picture):
    monkeypatch.chdir(tmp_path)
    used = {"a.png": Path(picture).read_bytes(), "m.csv": b"image\na.png\n"}
    for name, content in used.items():
        Path(name).write_bytes(content)
    Path("link.csv").symlink_to("a.png")
    done = command("--manifest", "m.csv", "--out", "rows.jsonl", "--csv", table)
    assert done.status == 2
    assert {name: Path(name).read_bytes() for name in used} == used


def test_rows_whose_name_another_file_takes(tmp_path, command, picture, monkeypatch):
    """An editor or a log rotation: the run ends and does not claim that its rows are there."""
    path, append, calls = tmp_path / "rows.jsonl", Results.append, []
    images = [tmp_path / f"{i}.png" for i in range(4)]
    for image in images:
        image.write_bytes(Path(picture).read_bytes())

    def replaced(results, line):
        calls.append(line)
        if len(calls) == 3:
            path.rename(tmp_path / "rows.jsonl.1")
            path.write_text("")
        append(results, line)

    monkeypatch.setattr(Results, "append", replaced)
    done = command(*images, "--out", path)
    assert done.status == 1
    assert f"error: {path}: expected that the file of rows stays in its place" in done.said
    assert len(calls) == 3


# Names

NAMES = {
    "line": b"a\nb",
    "escape": b"\x1b[2Ja",
    "no UTF-8": b"a\xff",
    "dash": b"-a",
    "percent": b"%s%n%(picture)s",
    "star": b"a*b[c]?",
    "formula": b"=1+1",
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_pictures_rows_and_tables(kind, command, picture, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsencode(tmp_path) + b"/" + NAMES[kind]
    place, reference, rows, table = (Path(os.fsdecode(name + end)) for end in (b".png", b"_.png", b".jsonl", b".csv"))
    done = command(place)
    assert (done.status, done.said[:7]) == (2, "error: ")
    place.write_bytes(b"no picture")
    assert command(place).rows[0]["q"] is None
    place.write_bytes(Path(picture).read_bytes())
    Image.fromarray(255 - np.asarray(Image.open(picture))).save(reference)
    for resume in ([], ["--resume"]):
        assert command(place, "--reference", reference, "--out", rows, "--csv", table, *resume).status == 0
    row = json.loads(rows.read_text())
    assert (row["image"], row["reference"]) == (path_text(place), path_text(reference))
    assert 1 <= row["q"] <= 5
    assert table.read_text("utf-8-sig").startswith("image,")
