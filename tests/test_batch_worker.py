"""A batch in a process of its own: it gives what the batch in this process gives, and a hang or a crash costs
one image."""

import logging
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import broken_worker
import psutil
import pytest
from conftest import ROOT
from scripted import loaded_batch

from agentic_iqa_local.batch import batch_worker
from agentic_iqa_local.batch.batch_worker import BatchWorker
from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.batch.runner import STANDSTILL, Batch, BatchError
from agentic_iqa_local.batch.runs import Results
from agentic_iqa_local.batch.stored_row import as_line
from agentic_iqa_local.batch.work import Assessing, Work
from agentic_iqa_local.batch.worker import Worker
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.nodes.workbench import Observer
from agentic_iqa_local.services import Services
from agentic_iqa_local.studies.datasets import load_dataset
from agentic_iqa_local.studies.run import Plan, Studying, run_study
from agentic_iqa_local.studies.store import read_run
from agentic_iqa_local.vlm_client import VLMError

TIMED = {"execution_time", "timestamp"}


@pytest.fixture(scope="module")
def items(tmp_path_factory, photo) -> list[Item]:
    """Four pictures; the second has the size at which `broken_worker` breaks."""
    folder = tmp_path_factory.mktemp("pictures")
    items = []
    for number, size in enumerate([(256, 256), broken_worker.BROKEN, (192, 224), (256, 192)]):
        path = folder / f"{number}.png"
        photo.crop((0, 0, *size)).save(path)
        items.append(Item(path))
    return items


def working(**options) -> BatchWorker:
    return BatchWorker(Assessing(load_settings(), "letters"), "cpu", **options)


def loaded(**options) -> BatchWorker:
    batch = working(**options)
    batch.load()
    return batch


def untimed(value):
    if isinstance(value, dict):
        return {
            key: untimed(inner)
            for key, inner in value.items()
            if not key.endswith("seconds") and key not in TIMED
        }
    return [untimed(inner) for inner in value] if isinstance(value, list) else value


def by_image(rows) -> dict:
    return {os.path.basename(row.image): row for row in rows}


@pytest.fixture
def begun(monkeypatch):
    """The processes that were begun for batches."""
    begun = []

    class Noted(Worker):
        def __init__(self, *args):
            super().__init__(*args)
            begun.append(self._process)

    monkeypatch.setattr(batch_worker, "Worker", Noted)
    return begun


def test_it_gives_what_a_batch_in_this_process_gives_bit_for_bit(items, begun):
    settings = load_settings()
    apart = by_image(loaded(jobs=2).rows(items))
    here = by_image(loaded_batch(Services(settings, "cpu"), pipeline="letters").rows(items))
    assert apart.keys() == here.keys() == {f"{n}.png" for n in range(4)}
    for name, row in here.items():
        assert row.q is not None, row.error
        assert untimed(apart[name].model_dump(mode="json")) == untimed(row.model_dump(mode="json"))
    assert [process.is_alive() for process in begun] == [False]


def test_an_agents_row_goes_to_another_process_as_its_line_and_is_whole_there(items, tmp_path):
    settings = load_settings()
    work = Assessing(settings)
    row = work.row(items[0], Services(settings, "cpu"), Observer())
    assert row.error is None
    assert row.evidence
    assert row.evidence.tool_logs
    there, line = work.received(items[0], work.sent(row))
    assert there.model_dump() == row.model_dump()  # with the logs that a line leaves out of the evidence
    assert line == as_line(row) == as_line(there)
    results = Results(tmp_path / "rows.jsonl", {})
    results.append(there, line)
    results.close()
    assert (tmp_path / "rows.jsonl").read_text() == line + "\n"


def test_a_row_that_no_file_would_take_is_a_failure_with_its_reason(items):
    work = Assessing(load_settings(), "letters")
    row = work.failure(items[0], "none").model_copy(
        update={"error": None, "q": 3.0, "final_answer": "F", "sha256": "ab"}
    )
    there, line = work.received(items[0], work.sent(row))
    assert line is None
    assert there.q is None
    assert there.image == row.image
    assert there.sha256 == "ab"
    assert "final_answer: expected one of A, B, C, D, E" in there.error


def test_a_picture_that_is_named_twice_has_two_rows(items):
    rows = list(working(jobs=2).rows([items[2], items[2], items[3]]))
    assert sorted(os.path.basename(row.image) for row in rows) == ["2.png", "2.png", "3.png"]


def test_a_tool_that_hangs_costs_its_image_and_a_new_process(items, begun, monkeypatch, caplog):
    monkeypatch.setattr(batch_worker, "_serve", broken_worker.hangs)
    rows = by_image(loaded(jobs=2).rows(items))
    assert rows.keys() == {f"{n}.png" for n in range(4)}
    assert "timed out after 600 s in " in rows.pop("1.png").error
    assert [row.error for row in rows.values()] == [None] * 3
    assert [process.is_alive() for process in begun] == [False] * 2


def test_what_holds_the_interpreter_is_ended_from_outside(items, begun, monkeypatch, caplog):
    """Time passes only while the process hangs, as its last line of the log says."""
    now = 0.0

    def monotonic():
        nonlocal now
        if caplog.messages[-1:] == [broken_worker.HANGS_NOW]:
            now += STANDSTILL  # the most that counts between two looks
        return now

    monkeypatch.setattr(batch_worker, "_serve", broken_worker.hangs_with_the_interpreter)
    monkeypatch.setattr(batch_worker, "GLANCE", 0.01)
    monkeypatch.setattr(batch_worker, "time", SimpleNamespace(monotonic=monotonic))
    rows = by_image(loaded().rows(items[:3]))
    assert rows.keys() == {"0.png", "1.png", "2.png"}
    failed = rows.pop("1.png")
    assert failed.error.startswith("timed out: it gave no sign of life for 660 s")
    assert failed.q is None
    assert [row.error for row in rows.values()] == [None] * 2
    assert [process.is_alive() for process in begun] == [False] * 2


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_crash_costs_its_image_after_so_many_tries_alone(items, jobs, monkeypatch, caplog):
    monkeypatch.setattr(batch_worker, "_serve", broken_worker.crashes)
    monkeypatch.setattr(batch_worker, "MOST_DEATHS", 2)
    rows = list(loaded(jobs=jobs).rows(items))
    assert len(rows) == 4
    failed = by_image(rows)["1.png"]
    assert failed.error == "2 processes died while they assessed this image alone"
    assert os.path.basename(rows[-1].image) == "1.png"  # it is tried again after all others
    told = [record.message for record in caplog.records if "SIGSEGV" in record.message]
    assert len(told) == (2 if jobs == 1 else 3)  # with three in hand, the first death is nobody's alone


def test_processes_that_die_while_they_load_end_the_batch(items, monkeypatch):
    monkeypatch.setattr(batch_worker, "_serve", broken_worker.does_not_start)
    with pytest.raises(BatchError, match=r"3 processes in a row died while they loaded: .* status 7"):
        working().load()
    with pytest.raises(BatchError, match="status 7"):
        list(working().rows(items))


def test_a_model_that_cannot_be_loaded_is_said_in_its_own_words(tmp_path):
    settings = load_settings().with_options(model=str(tmp_path))
    batch = BatchWorker(Assessing(settings, "letters"), "cpu")
    with pytest.raises(VLMError, match=r"config\.json"):
        batch.load()


def test_a_stop_ends_with_what_is_in_hand(items):
    batch = working()
    rows = batch.rows(items)
    first = next(rows)
    batch.stop()
    assert os.path.basename(first.image) == "0.png"
    assert len(list(rows)) <= 1  # the second may have begun
    assert batch._worker is None


CODE = """
import sys
from pathlib import Path
from agentic_iqa_local.batch.batch_worker import BatchWorker
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.batch.work import Assessing, Work
from agentic_iqa_local.batch.worker import Worker

if __name__ == "__main__":
    batch = BatchWorker(Assessing(load_settings(), "letters"), "cpu")
    batch.load()
    print(batch._worker._process.pid, flush=True)
    sys.stdin.read()
"""


def test_it_does_not_outlive_its_parent(tmp_path):
    (tmp_path / "parent.py").write_text(CODE)
    line = [sys.executable, tmp_path / "parent.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    gone, _ = psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=600)
    assert gone or not psutil.pid_exists(child)


def test_a_tool_that_hangs_costs_a_study_one_image(items, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(batch_worker, "_serve", broken_worker.hangs)
    lines = [f"{item.image},{number}" for number, item in enumerate(items)]
    (tmp_path / "scores.csv").write_text("\n".join(["image,mos", *lines]) + "\n")
    work = Studying(load_settings(), Plan(contexts=("image_alone",), tools=("NIQE",)))
    batch = BatchWorker(work, "cpu")
    assert list(run_study(load_dataset(tmp_path / "scores.csv"), batch, tmp_path / "run")) == [0, 1, 2, 3, 4]
    run, rows = read_run(tmp_path / "run")
    errors = {os.path.basename(row["image"]): row.get("error") for row in rows}
    assert errors.pop("1.png").startswith("timed out after 600 s in ")
    assert set(errors.values()) == {None}
    assert run["model"]["name"]  # as the process that loaded it says
    assert not (tmp_path / "run" / "in_hand.json").exists()


def test_a_line_of_the_log_is_shown_where_this_process_shows_such_lines(monkeypatch):
    """As `assess --explain` hides the warnings that its account repeats."""
    batch, told = working(), []
    logger = logging.getLogger("agentic_iqa_local.nodes.workbench")
    monkeypatch.setattr(logger, "handle", lambda record: told.append(record.msg))
    for level, expected in ((logging.ERROR, []), (logging.WARNING, ["too dark"])):
        monkeypatch.setattr(logger, "level", level)
        logger.manager._clear_cache()
        record = logging.LogRecord(logger.name, logging.WARNING, "a.py", 1, "too dark", None, None)
        assert not batch._is_for_rows("log", record)
        assert told == expected
    logger.manager._clear_cache()


class Meeting(Work):
    """Two items whose rows need each other's presence."""

    def __init__(self):
        self.both = threading.Barrier(2)

    def row(self, item, services, observer):
        self.both.wait(600)
        return item.key

    def failure(self, item, error, sha256=None):
        return error

    def warned(self, row, line):
        return row

    def key(self, row):
        return row

    line = key

    def error(self, row):
        return None

    sha256 = error


def test_an_item_that_comes_later_begins_beside_the_one_in_hand(tmp_path):
    batch = Batch(None, Meeting(), jobs=2)

    def items():
        yield Item(tmp_path / "1")
        batch.wake()
        yield None
        yield Item(tmp_path / "2")

    assert len(set(batch.rows(items()))) == 2
