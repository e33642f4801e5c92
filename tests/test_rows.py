"""Files of rows: what a kill, a full disk, a power cut, odd files or another run leaves of them."""

import errno
import io
import json
import os
import resource
from pathlib import Path

import pytest
from attacks import ODD_FILES, in_time, is_sentence
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentic_iqa_local.batch.inputs import Item, ManifestError, read_manifest
from agentic_iqa_local.batch.results import Results
from agentic_iqa_local.batch.rows import (
    RowFile,
    RowsError,
    StoredRow,
    check_run,
    rows_in,
    write_run,
)
from agentic_iqa_local.batch.work import AssessWork, as_line
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.result import file_sha256

ONE, TWO, THREE = '{"n": 1}\n', '{"n": 2}\n', '{"n": 3}\n'


class Numbered(BaseModel):
    n: int


def opened(path: Path, text: str | None = None) -> RowFile:
    if text is not None:
        path.write_text(text)
    return RowFile(path, Numbered)


def number_of(row) -> str:
    return str(row["n"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


@pytest.fixture
def file(path):
    file = opened(path)
    yield file
    file.close()


# Writing


def test_rows_are_lines_in_the_order_of_their_writing(path):
    file = opened(path, ONE)
    file.recover(number_of)
    file.append('{"n": 2, "error": "no"}')
    file.close()
    assert path.read_text() == ONE + '{"n": 2, "error": "no"}\n'
    assert file.done == {"1"}


def test_one_process_writes_and_closing_lets_the_next(file, path):
    with pytest.raises(RowsError, match="another process is writing it"):
        opened(path)
    file.close()
    opened(path).close()


def test_a_full_disk_leaves_whole_rows(file, path):
    """It takes some bytes of a row, and then no more: here by a limit of the process."""
    file.append(ONE.strip())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(ONE) + 4, hard))
    try:
        with pytest.raises(RowsError, match="the rows before it are kept"):
            file.append(TWO.strip())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == ONE
    file.append(THREE.strip())
    assert path.read_text() == ONE + THREE


def test_a_row_is_on_the_disk_or_taken_back(file, path, monkeypatch):
    sync, synced = os.fsync, []

    def noted(descriptor):
        sync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").read_text())

    def failing(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", noted)
    file.append(ONE.strip())
    file.append(TWO.strip())
    assert synced == [ONE, ONE + TWO]
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(RowsError, match="Input/output error"):
        file.append(THREE.strip())
    assert path.read_text() == ONE + TWO


def test_rows_that_are_taken_out_leave_the_others_and_the_lock(path):
    file = opened(path, ONE + TWO + THREE)
    file.recover(number_of, lambda row: row["n"] == 2)
    assert file.done == {"1", "3"}
    with pytest.raises(RowsError, match="another process"):
        opened(path)
    file.append(TWO.strip())
    file.close()
    assert path.read_text() == ONE + THREE + TWO


# Reading


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(), max_size=5), st.integers(0, 200))
def test_what_a_kill_left_of_a_line_is_cut_off(tmp_path_factory, values, cut):
    path = tmp_path_factory.mktemp("killed") / "rows.jsonl"
    whole = "".join(json.dumps({"n": n}) + "\n" for n in values)
    left = whole[:cut]
    file = opened(path, left)
    file.recover(number_of)
    rows = left.count("}")  # a row that lacks its line end alone is kept
    assert path.read_text() == "".join(whole.splitlines(keepends=True)[:rows])
    assert file.done == {str(n) for n in values[:rows]}
    file.close()


@pytest.mark.parametrize(
    "content",
    [
        b'{"mine": 1}',
        b'{"n": 1} too',
        b'{"n": "x"}',
        b'{"n": 1\xff',
        b"notes",
        b'{"n": 1}\n{"number": 2',
    ],
)
def test_an_end_that_begins_no_row_of_ours_stays(content, path):
    path.write_bytes(content)
    file = RowFile(path, Numbered)
    with pytest.raises(RowsError, match="expected rows as this program writes them"):
        file.recover(number_of)
    file.close()
    assert path.read_bytes() == content


def test_a_row_of_assess_may_be_torn_anywhere(path, tmp_path):
    line = as_line(failed(Item(tmp_path / 'ä {"\\.png'))).encode()
    for end in range(1, len(line), 3):
        torn = io.BytesIO(line[:end])
        assert list(rows_in(torn, path, StoredRow)) == []
    ((whole, row),) = rows_in(io.BytesIO(line), path, StoredRow)
    assert whole == line
    assert row["error"] == "no"


# The run that rows belong to


def test_a_run_goes_on_with_the_same_identity_alone(tmp_path):
    file = tmp_path / "run.json"
    same = {"model": "m", "fusion": {"eta": 1.0, "letters": {}}}
    write_run(file, {"date": "1970-01-02T00:00:00+0000"}, same)
    assert check_run(file, same) == 86400
    with pytest.raises(RowsError) as caught:
        check_run(file, {"model": "x" * 70, "fusion": {"eta": 2.0, "letters": {}}, "new": "ü"})
    said = str(caught.value)
    for part in ("fusion.eta is 2.0, expected 1.0", 'expected "m"', 'new is "ü", expected not set'):
        assert part in said
    assert "letters" not in said


# The results of assess

WORK = AssessWork(load_settings(), "letters")


def ask(work: AssessWork = WORK, **asked):
    return work.identity("cpu", asked)


def with_rows(path, identity, *rows, **options) -> Results:
    results = Results(path, identity, **options)
    for row in rows:
        results.append(as_line(row))
    results.close()
    return results


def failed(item: Item):
    return WORK.failure(item, "no")


def test_results_go_on_only_with_resume_and_equal_settings(path, tmp_path, monkeypatch):
    item = Item(tmp_path / "a.png")
    with_rows(path, ask(), failed(item))
    with pytest.raises(RowsError, match="add --resume"):
        Results(path, ask())
    settings = WORK.settings
    fusion = settings.fusion.model_copy(update={"mode": "uniform"})
    uniform = settings.model_copy(update={"fusion": fusion})
    others = {
        "fusion.mode": ask(AssessWork(uniform, "letters")),
        "query": ask(query="Is it sharp?"),
        "versions.torch": ask() | {"versions": ask()["versions"] | {"torch": "1.0"}},
    }
    for name, other in others.items():
        with pytest.raises(RowsError, match=f"other settings: .*{name} is .*, expected"):
            Results(path, other, resume=True)
    assert with_rows(path, ask(), resume=True).done == {item.key}


def test_retry_takes_out_failed_rows_of_this_run_alone(path, tmp_path):
    items = [Item(tmp_path / name) for name in ("a.png", "b.png")]
    with_rows(path, ask(), *map(failed, items))
    results = with_rows(path, ask(), resume=True, retry=True, asked={items[0].key})
    assert results.done == {items[1].key}
    assert [json.loads(line)["image"] for line in path.open()] == [str(items[1].image)]


def test_rows_of_changed_pictures_go_and_of_missing_ones_stay(path, tmp_path):
    items = [Item(tmp_path / f"{n}.png", tmp_path / f"{n}.ref") for n in range(4)]
    for item in items:
        item.image.write_bytes(b"a picture")
        item.reference.write_bytes(b"its original")
        os.utime(item.reference, (0, 0))
    rows = [failed(item).model_copy(update={"sha256": file_sha256(item.image)}) for item in items]
    with_rows(path, ask(), *rows)
    items[0].image.write_bytes(b"another picture")
    os.utime(items[1].reference)
    items[2].image.unlink()  # the disk may only be away
    description = path.with_name("rows.jsonl.run.json")
    run = json.loads(description.read_text())
    description.write_text(json.dumps(run | {"date": "1999-01-01T00:00:00+0000"}))
    results = with_rows(path, ask(), resume=True, asked={item.key for item in items})
    assert results.changed == 2
    assert [row["image"] for row in results] == [str(item.image) for item in items[2:]]


# Odd files and places

CONTENTS = {
    "deep": b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "no text": b"\xff\xfe\x00\n",
    "no end of line": b"notes",
    "NaN": b'{"identity": NaN}\n',
    "long line": b'{"identity": "' + b"x" * (80 * 2**20) + b'"}\n',
}


def refused(kind, call, *args, **options) -> str:
    """What an error of that kind says, in time: one sentence, which does not quote a whole file."""
    with in_time(), pytest.raises(kind) as caught:
        call(*args, **options)
    said = str(caught.value)
    assert is_sentence(said)
    assert len(said) < 2500
    return said


def put(place: Path, kind: str) -> Path:
    """Something odd in the place of a file."""
    place.unlink(missing_ok=True)
    if kind in CONTENTS:
        place.write_bytes(CONTENTS[kind])
    else:
        ODD_FILES[kind](place)
    return place


@pytest.mark.parametrize("kind", [*CONTENTS, "pipe", "folder", "loop of links"])
def test_odd_files_in_the_place_of_ours_are_refused_and_stay(kind, path, tmp_path):
    with_rows(path, ask(), failed(Item(tmp_path / "a.png")))
    before, description = path.read_bytes(), path.with_name("rows.jsonl.run.json")
    described = description.read_bytes()
    put(description, kind)
    refused(RowsError, Results, path, ask(), resume=True)
    assert path.read_bytes() == before
    for suffix in ("csv", "jsonl"):
        refused(ManifestError, read_manifest, put(tmp_path / f"m.{suffix}", kind))
    if kind != "folder":
        description.unlink()
        description.write_bytes(described)
    size = put(path, kind).lstat().st_size
    refused(RowsError, Results, path, ask(), resume=True)
    assert path.lstat().st_size == size


@pytest.mark.parametrize(
    "changes", [{"image": ["a.png"]}, {"query": ...}, {"seconds": float("nan")}], ids=str
)
def test_a_row_of_another_form_is_named_by_its_line_and_stays(changes, path, tmp_path):
    with_rows(path, ask(), failed(Item(tmp_path / "a.png")))
    row = json.loads(path.read_text()) | changes
    with path.open("a") as file:
        kept = {name: value for name, value in row.items() if value is not ...}
        file.write(json.dumps(kept) + "\n")
    before = path.read_bytes()
    assert f"{path}, line 2: " in refused(RowsError, Results, path, ask(), resume=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("option", "place"),
    [("--csv", "a.png"), *(("--out", place) for place in ("pipe", "dangling link", "m.csv", "to m.csv"))],
)  # fmt: skip
def test_places_that_answers_may_not_take_are_told_first(
    option, place, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    used = {"a.png": b"a picture", "m.csv": b"image\na.png\n"}
    for name, content in used.items():
        Path(name).write_bytes(content)
    if place in ODD_FILES:
        put(Path(place), place)
    elif place not in used:
        Path(place).symlink_to("m.csv")
    assert main(["assess", "--manifest", "m.csv", option, place]) == 2
    assert capfd.readouterr().err.startswith(f"error: {option} ")
    assert {name: Path(name).read_bytes() for name in used} == used
