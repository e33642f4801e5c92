"""Odd files, links and names at the doors of a batch and of a study: each ends soon in an answer, in a failure row
or in one sentence, and nothing outside of its place is written."""

import io
import json
import os
import signal
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from scripted import ScriptedClient, ScriptedTools, in_this_process, scripted_answers, scripted_services
from test_study_report import make_rows, make_run

from agentic_iqa_local.batch.inputs import ManifestError, read_manifest
from agentic_iqa_local.batch.results import Results
from agentic_iqa_local.batch.rows import RowsError
from agentic_iqa_local.batch.work import Assessing, as_line
from agentic_iqa_local.cli import assess as assess_command
from agentic_iqa_local.cli.console import SafeStream
from agentic_iqa_local.cli.outputs import UsageError, result_file
from agentic_iqa_local.config import ConfigError, load_settings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import WriteError, path_text, write_whole
from agentic_iqa_local.images.reading import ImageError, load_image
from agentic_iqa_local.iqa_tools.calibration import CalibrationError, read_map_file
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.fit import Fit, FitError, read_fit
from agentic_iqa_local.studies.analysis import analyse
from agentic_iqa_local.studies.store import Store, StoreError, read_run
from agentic_iqa_local.studies.study import dataset_info

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
    "empty": b"",
    "deep": b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "list": b"[]\n",
    "no text": b"\xff\xfe\x00\n",
    "NaN": b'{"identity": NaN}\n',
    "long line": b'{"identity": "' + b"x" * (80 * 2**20) + b'"}\n',
}
KINDS = (*CONTENTS, "pipe", "folder", "endless", "sparse", "dangling link", "link loop")


def put(place: Path, kind: str) -> Path:
    """Something odd in the place of a file."""
    place.unlink(missing_ok=True)
    if kind in CONTENTS:
        place.write_bytes(CONTENTS[kind])
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "sparse":
        with place.open("wb") as file:
            file.truncate(3 * 10**9)
    else:
        place.symlink_to({"endless": "/dev/zero", "link loop": place.name}.get(kind, "nowhere"))
    return place


def begun(folder: Path, known, *lines: str) -> Path:
    """A batch's file of rows, to be gone on with."""
    path = folder / "rows.jsonl"
    Results(path, known).close()
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def a_study(folder: Path, rows=(), run=None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(run or make_run()))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def description(folder, kind, known, line):
    path = begun(folder, known, line)
    put(path.with_name("rows.jsonl.run.json"), kind)
    refused(RowsError, Results, path, known, resume=True)
    assert path.read_text() == f"{line}\n"


def rows_file(folder, kind, known, line):
    path = begun(folder, known)
    if kind == "endless":  # the links of the other kinds lead nowhere
        return
    put(path, kind)
    if kind == "empty":
        return Results(path, known, resume=True).close()
    size = path.lstat().st_size
    refused(RowsError, Results, path, known, resume=True)
    assert path.lstat().st_size == size


def study_description(folder, kind, known, line):
    put(a_study(folder) / "run.json", kind)
    refused(StoreError, read_run, folder)
    refused(StoreError, Store, folder, {}, known)


def study_rows(folder, kind, known, line):
    put(a_study(folder) / "rows.jsonl", kind)
    if kind == "empty":
        assert read_run(folder)[1] == []
    else:
        refused(StoreError, read_run, folder)


def fit(folder, kind, known, line):
    place = put(folder / "fit.json", kind)
    refused(FitError, read_fit, place)
    if kind not in ("empty", "endless"):
        refused(UsageError, result_file, "--out", place, "fit")


def maps(folder, kind, known, line):
    refused(CalibrationError, read_map_file, put(folder / "maps.yaml", kind))


def configuration(folder, kind, known, line):
    refused(ConfigError, load_settings, put(folder / "mine.yaml", kind))


def manifests(folder, kind, known, line):
    for suffix in ("csv", "jsonl", "parquet"):
        refused(ManifestError, read_manifest, put(folder / f"m.{suffix}", kind))


def image(folder, kind, known, line):
    place = put(folder / "a.png", kind)
    refused(ImageError, load_image, place)
    row = assess(place, services=scripted_services(ScriptedClient(scripted_answers()), ScriptedTools({})))
    assert row.error
    assert row.q is None


DOORS = [description, rows_file, study_description, study_rows, fit, maps, configuration, manifests, image]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_odd_files(door, kind, tmp_path, known, line):
    door(tmp_path, kind, known, line)


# Values of another type

ROWS = {
    "image list": {"image": ["a.png"]},
    "query missing": {"query": ...},
    "choices text": {"choices": "Yes|No"},
    "error number": {"error": 1},
    "q text": {"q": "4.5"},
    "q NaN": {"q": float("nan")},
    "answer of no level": {"final_answer": "Z"},
    "letters NaN": {"p_c": {"A": float("nan")}},
    "tools object": {"tools": {"NIQE": 3.0}},
    "evidence text": {"evidence": "none"},
}
STUDY_ROWS = {
    "key list": {"key": ["a"]},
    "group missing": {"group": ...},
    "mos NaN": {"mos": float("nan")},
    "letter missing": {"reads": {"all_evidence": {"views": [{"forward": {"A": -1.0}, "reversed": {}}]}}},
    "tool raw text": {"tools": {"VSI": {"raw": "0.9", "normalized": 3.0, "seconds": 0.1}}},
    "fusion eta zero": {"agent": {"fusion": {"q": 3.2, "eta": 0}}},
    "cost text": {"cost": {"agent": {"seconds": "1"}}},
}
STUDY_RUNS = {
    "dataset list": {"dataset": []},
    "kind unknown": {"dataset": {"key": "tid2013", "kind": "XX"}},
    "model without name": {"model": {}},
    "fusion text": {"fusion": {"eta": "high"}},
    "identity without reads": {"identity": {"model": "m"}},
}
FITS = {
    "temperature NaN": {"temperature": float("nan")},
    "eta missing": {"eta": ...},
    "objective unknown": {"objective": "\x1b[2J"},
    "keys text": {"keys": "abc"},
    "unknown part": {"\x1b[2J": 1},
}
MAP = {
    "tool": "NIQE", "b1": -4.0, "b2": 0.5, "b3": 5.0, "b4": 0.0, "b5": 3.0, "domain": [0.0, 20.0], "lower_better": True,
    "source": "own", "fitted_on": "own",
}  # fmt: skip
MAPS = {
    "entry number": {"maps": [1]},
    "tool list": {"maps": [MAP | {"tool": ["NIQE"]}]},
    "NaN": {"maps": [MAP | {"b1": float("nan")}]},
    "overflow": {"maps": [MAP | {"b1": 1e308, "b2": 1e308, "b4": 1e308}]},
    "unknown part": {"maps": [MAP | {"\x1b[2J": 1}]},
}


def changed(row, changes):
    return {name: value for name, value in (row | changes).items() if value is not ...}


@pytest.mark.parametrize("changes", ROWS.values(), ids=ROWS)
def test_rows_of_a_batch(changes, tmp_path, known, line):
    """Second of two rows: the sentence names its line, and the file stays as it is."""
    path = begun(tmp_path, known, line, json.dumps(changed(json.loads(line) | {"image": "b.png"}, changes)))
    before = path.read_bytes()
    assert f"{path}, line 2: " in refused(RowsError, Results, path, known, resume=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("changes", STUDY_ROWS.values(), ids=STUDY_ROWS)
def test_rows_of_a_study(changes, tmp_path):
    first, second = make_rows(2)
    folder = a_study(tmp_path, [first, changed(second, changes)])
    assert f"{folder / 'rows.jsonl'}, line 2: " in refused(StoreError, read_run, folder)


@pytest.mark.parametrize("changes", STUDY_RUNS.values(), ids=STUDY_RUNS)
def test_descriptions_of_a_study(changes, tmp_path):
    folder = a_study(tmp_path, make_rows(60), changed(make_run(), changes))

    def report():
        run, rows = read_run(folder)
        analyse(run, rows, dataset_info(run), draws=10)

    refused(UserError, report)


@pytest.mark.parametrize("changes", FITS.values(), ids=FITS)
def test_fits(changes, tmp_path):
    place = tmp_path / "fit.json"
    known = Fit(2.0, 0.5, "srcc", 0.71, 0.73, "koniq10k", "M", ("a.jpg",)).to_json()
    place.write_text(json.dumps(changed(json.loads(known), changes)))
    refused(FitError, read_fit, place)


@pytest.mark.parametrize("content", MAPS.values(), ids=MAPS)
def test_maps(content, tmp_path):
    (tmp_path / "maps.yaml").write_text(yaml.dump(content))
    refused(CalibrationError, read_map_file, tmp_path / "maps.yaml")


# Links, and places that are no files


@pytest.fixture
def elsewhere(tmp_path):
    """A file outside of a batch's folder that nothing may write."""
    place = tmp_path / "elsewhere" / "own.txt"
    place.parent.mkdir()
    place.write_text("mine")
    yield place
    assert place.read_text() == "mine"
    assert [file.name for file in place.parent.iterdir()] == ["own.txt"]


@pytest.mark.parametrize("kind", ["link", "hard link", "dangling link", "pipe", "folder"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.run.json", "table.csv", "run.json"])
def test_what_lies_where_a_file_is_written_anew_is_not_written_through(
    name, kind, tmp_path, known, line, elsewhere
):
    folder = tmp_path / "batch"
    folder.mkdir()
    failed = json.dumps(json.loads(line) | {"image": "a.png", "error": "no"})
    path = begun(folder, known, line, failed) if name == "rows.jsonl" else folder / "rows.jsonl"
    partial = folder / f"{name}.partial"
    if kind == "pipe":
        os.mkfifo(partial)
    elif kind == "folder":
        partial.mkdir()
    elif kind == "hard link":
        partial.hardlink_to(elsewhere)
    else:
        partial.symlink_to(elsewhere if kind == "link" else elsewhere.parent / "new.txt")

    def write():
        if name == "table.csv":
            write_whole(folder / name, "a,b")
        elif name == "run.json":
            Store(folder, {}, known).close()
        else:
            asked = {json.dumps(["a.png", None, json.loads(line)["query"], None])}
            Results(path, known, resume=True, retry=True, asked=asked).close()

    if kind == "folder":
        refused(WriteError, write)
        assert name != "rows.jsonl" or path.read_text() == f"{line}\n{failed}\n"
    else:
        write()
        assert name != "rows.jsonl" or path.read_text() == f"{line}\n"


@pytest.fixture
def command(monkeypatch, capsys, scripted):
    """`command(*words)`: what assess.py does with them, in this process, with a scripted model and tools."""

    class Done:
        def __init__(self, words):
            results = SafeStream(io.StringIO())
            console = assess_command.Console
            monkeypatch.setattr(assess_command, "Console", lambda: console(results))
            words = [os.fsdecode(word) for word in words]
            monkeypatch.setattr("sys.argv", ["assess.py", *words])
            monkeypatch.setattr("sys.orig_argv", ["python", "assess.py", *words])
            try:
                self.status = assess_command.main(["--cpu", "--pipeline", "letters", *words])
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


@pytest.mark.parametrize("place", ["/dev/tty", "/proc/self/fd", "pipe", ".", "to-pipe", "to-nowhere", "loop"])
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


@pytest.mark.parametrize("how", ["moved", "deleted", "another", "link"])
def test_rows_whose_name_another_file_takes(how, tmp_path, command, picture, monkeypatch, elsewhere):
    """An editor or a log rotation: the run ends and does not claim that its rows are there."""
    path, append, calls = tmp_path / "rows.jsonl", Results.append, []
    images = [tmp_path / f"{i}.png" for i in range(4)]
    for image in images:
        image.write_bytes(Path(picture).read_bytes())

    def replaced(results, line):
        calls.append(line)
        if len(calls) == 3:
            path.rename(tmp_path / "rows.jsonl.1") if how != "deleted" else path.unlink()
            if how == "another":
                path.write_text("")
            elif how == "link":
                path.symlink_to(elsewhere)
        append(results, line)

    monkeypatch.setattr(Results, "append", replaced)
    done = command(*images, "--out", path)
    assert done.status == 1
    assert f"error: {path}: expected that the file of rows stays in its place" in done.said
    assert len(calls) == 3


def test_a_studys_files_are_its_own(tmp_path, known):
    for name in ("rows.jsonl", "run.json"):
        folder = a_study(tmp_path / name.partition(".")[0])
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
        before = (tmp_path / name).read_bytes()
        assert "link" in refused(StoreError, Store, folder, {}, known)
        assert "link" in refused(StoreError, read_run, folder)
        assert (tmp_path / name).read_bytes() == before


# Names

NAMES = {
    "line": b"a\nb",
    "escape": b"\x1b[2Ja",
    "bidi": "a\u202egnp".encode(),
    "no UTF-8": b"a\xff",
    "dash": b"-a",
    "quotes": b"'\"`$(id)",
    "percent": b"%s%n%(picture)s",
    "star": b"a*b[c]?",
    "formula": b"=1+1",
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_pictures_rows_and_tables(kind, command, picture, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsencode(tmp_path) + b"/" + NAMES[kind]
    place, reference, rows, table = (
        Path(os.fsdecode(name + end)) for end in (b".png", b"_.png", b".jsonl", b".csv")
    )
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


def test_two_files_whose_names_print_alike_have_two_rows(tmp_path, command, picture):
    for name in (b"a\xff.png", rb"a\xff.png", rb"a\\xff.png"):
        (tmp_path / os.fsdecode(name)).write_bytes(Path(picture).read_bytes())
    path = tmp_path / "rows.jsonl"
    assert command(tmp_path, "--out", path).status == 0
    assert len({json.loads(line)["image"] for line in path.read_text().splitlines()}) == 3
    assert command(tmp_path, "--out", path, "--resume").status == 0
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize(("length", "status"), [(238, 0), (239, 2), (5000, 2)])
def test_a_result_of_a_long_name(length, status, command, tmp_path, monkeypatch, picture):
    """What lies beside the rows has 17 characters more."""
    monkeypatch.chdir(tmp_path)
    assert command(picture, "--out", "x" * length).status == status


@pytest.mark.parametrize(
    ("name", "value"),
    [("AGENTIC_IQA_MODELS", "a\nb\x1b[2J"), ("HOME", "/nowhere"), ("TMPDIR", "/nowhere"), ("LC_ALL", "POSIX"), ("COLUMNS", "0")],
)  # fmt: skip
def test_variables_of_the_environment(name, value, command, picture, monkeypatch, tmp_path):
    monkeypatch.setenv(name, value)
    done = command(picture, "--out", tmp_path / "rows.jsonl", "--csv", tmp_path / "table.csv")
    assert done.status == 0 or (done.status, done.said[:7]) == (2, "error: ")
