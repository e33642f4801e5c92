"""What a run of very many pictures rests on: keys as digests, rows that share a sync, a short note of what is in
hand, a tally that forgets what it cannot name."""

import errno
import json
import os
import random
import threading

import pytest
from scripted import NotedLock

from agentic_iqa_local.batch import rows as rows_module
from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.batch.keys import WIDTH, Keys
from agentic_iqa_local.batch.rows import RowFile, WriteError
from agentic_iqa_local.batch.runs import Run
from agentic_iqa_local.output import tally as tally_module
from agentic_iqa_local.output.tally import Tally

LONG = 3600.0  # seconds: no timer ends within a test


# Keys


def test_keys_are_a_set():
    names, rng = [f"/data/{i}.png" for i in range(20_000)], random.Random(0)
    keys, gone = Keys(names), set(rng.sample(names, 5000))
    keys.add(names[0])
    assert len(keys) == 20_000
    for name in gone:
        keys.discard(name)
        keys.discard(name)
    assert [name in keys for name in names] == [name not in gone for name in names]
    assert keys == set(names) - gone
    assert keys != {*names} - gone - {next(name for name in names if name not in gone)}
    assert "\udcff" not in keys


def test_keys_take_so_many_bytes_each():
    keys = Keys(f"/data/{i}.png" for i in range(50_000))
    # a bytearray asks for an eighth more than it holds
    assert sum(map(len, keys._digests.values())) == 50_000 * WIDTH
    assert sum(bucket.__sizeof__() for bucket in keys._digests.values()) < 50_000 * WIDTH * 1.6 + 4096 * 64


# Rows that share a sync


@pytest.fixture
def syncs(monkeypatch):
    """The sizes of the file at each sync, and what the next one fails with."""
    made, real = [], os.fsync
    made_fail: list[OSError] = []

    def fsync(descriptor):
        if os.path.isfile(f"/proc/self/fd/{descriptor}"):
            if made_fail:
                raise made_fail.pop()
            made.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return made, made_fail


def test_rows_that_come_fast_share_a_sync_and_slow_ones_do_not(tmp_path, syncs):
    made, _ = syncs
    rows = RowFile(tmp_path / "rows.jsonl")
    for n in range(5):
        rows.append(json.dumps({"n": n}), within=LONG)
    assert made == [9]  # the first row, '{"n": 0}' and its line end: nothing came before it
    rows.sync()
    assert made == [9, 45]
    rows.sync()
    assert made == [9, 45]  # there was nothing to wait for
    rows.append('{"n": 5}', within=LONG)
    rows.append('{"n": 6}')  # this one waits, and so all before it are there
    assert made == [9, 45, 63]
    rows.append('{"n": 7}', within=LONG)
    rows.close()
    assert made == [9, 45, 63, 72]
    assert [json.loads(line)["n"] for line in (tmp_path / "rows.jsonl").open()] == list(range(8))


def test_a_row_after_which_none_comes_is_synced_in_time(tmp_path, syncs):
    made, _ = syncs
    rows = RowFile(tmp_path / "rows.jsonl")
    rows.append('{"n": 0}', within=LONG)
    rows.append('{"n": 1}', within=LONG)
    assert made == [9]
    timer = rows._timer
    assert isinstance(timer, threading.Timer)
    assert 0 < timer.interval <= LONG
    timer.function()  # what it does when its time has come
    assert made == [9, 18]
    rows.close()


class SlowDisk:
    """A sync that takes until it may end, and then fails if there is an `error`; later ones are quick."""

    def __init__(self, monkeypatch, error: OSError | None = None):
        self.began, self.may_end, self.error, self.syncs = threading.Event(), threading.Event(), error, 0
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor) -> None:
        self.syncs += 1
        self.began.set()
        assert self.may_end.wait(600)
        if error := self.error:
            self.error = None
            raise error


def during_a_sync(path, monkeypatch, error: OSError | None = None):
    """A file of rows 0 and 1, of which 1 is being synced in another thread; the disk; that thread."""
    rows = RowFile(path)
    rows.append('{"n": 0}')
    disk = SlowDisk(monkeypatch, error)
    rows.append('{"n": 1}', within=LONG)
    rows._timer.cancel()
    syncing = threading.Thread(target=rows._timer.function)
    syncing.start()
    assert disk.began.wait(600)
    return rows, disk, syncing


def test_rows_that_come_during_a_sync_wait_for_the_next_with_one_timer(tmp_path, monkeypatch):
    rows, disk, syncing = during_a_sync(tmp_path / "rows.jsonl", monkeypatch)
    timers = []

    class Timer:
        """Counted; its time comes when this test says so."""

        def __init__(self, interval, function):
            self.function = function
            timers.append(self)

        def start(self):
            """Nothing runs yet."""

    monkeypatch.setattr(rows_module.threading, "Timer", Timer)
    rows.append('{"n": 2}', within=1e-9)
    (timer,) = timers
    waiting = threading.Thread(target=timer.function)  # its time has come, during the sync
    waiting.start()
    for n in range(3, 40):
        rows.append(json.dumps({"n": n}), within=1e-9)
    assert timers == [timer]
    disk.may_end.set()
    syncing.join()
    waiting.join()
    rows.close()
    assert disk.syncs == 2
    assert [json.loads(line)["n"] for line in (tmp_path / "rows.jsonl").open()] == list(range(40))


def test_a_row_waits_for_a_sync_that_takes_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "LONG_SYNC", 0.0)
    rows, disk, syncing = during_a_sync(tmp_path / "rows.jsonl", monkeypatch)
    rows._syncing = NotedLock(rows._syncing)
    writing = threading.Thread(target=rows.append, args=('{"n": 2}',), kwargs={"within": 1e-9})
    writing.start()
    assert rows._syncing.asked.acquire(timeout=600)  # the sync has it
    disk.may_end.set()
    writing.join()
    syncing.join()
    assert disk.syncs == 2
    rows.close()


def test_a_later_sync_does_not_hide_that_one_failed(tmp_path, monkeypatch):
    """The system tells of a failure once."""
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    rows, disk, syncing = during_a_sync(tmp_path / "rows.jsonl", monkeypatch, error)
    rows.append('{"n": 2}', within=1e-9)
    timer = rows._timer
    disk.may_end.set()
    syncing.join()
    timer.join()
    with pytest.raises(WriteError, match="Input/output error"):
        rows.append('{"n": 3}', within=LONG)
    assert (tmp_path / "rows.jsonl").read_text() == '{"n": 0}\n'
    rows.close()


@pytest.mark.parametrize("told_by", ["row", "sync", "close"])
def test_rows_whose_sync_failed_are_taken_back_and_said(tmp_path, syncs, told_by):
    made, fails = syncs
    rows = RowFile(tmp_path / "rows.jsonl")
    for n in range(3):
        rows.append(json.dumps({"n": n}), within=LONG)
    fails.append(OSError(errno.EIO, os.strerror(errno.EIO)))
    rows._timer.function()
    with pytest.raises(WriteError, match="Input/output error"):
        {"row": lambda: rows.append('{"n": 3}', within=LONG), "sync": rows.sync, "close": rows.close}[
            told_by
        ]()
    assert (tmp_path / "rows.jsonl").read_text() == '{"n": 0}\n'
    if told_by != "close":
        rows.append('{"n": 4}')
        rows.close()
        assert (tmp_path / "rows.jsonl").read_text() == '{"n": 0}\n{"n": 4}\n'
    assert not made[1:] or told_by != "close"


# What is in hand


def suspects(folder):
    run = Run(RowFile(folder / "rows.jsonl"), folder / "note")
    for row in run.rows():
        run._know(row["key"], failed=False)
    run.suspects = run._left_in_hand()
    run._rows.close()
    return run.suspects


def killed_after(folder, begun: int, written: int, torn: str = "") -> None:
    """What a kill leaves of a run that had begun and written so many of its items, in their order."""
    run = Run(RowFile(folder / "rows.jsonl"), folder / "note")
    items = run.begun(Item(folder / f"{i}.png") for i in range(begun))
    keys = [next(items).key for _ in range(begun)]
    for key in keys[:written]:
        run.write(key, json.dumps({"key": key}), failed=False)
    run._rows.close()
    with (folder / "note").open("a") as note:
        note.write(torn)


def key(folder, i: int) -> str:
    return Item(folder / f"{i}.png").key


def test_what_was_begun_and_has_no_row_was_in_hand(tmp_path):
    killed_after(tmp_path, 5, 3)
    assert suspects(tmp_path) == {key(tmp_path, 3): 0, key(tmp_path, 4): 0}


def test_what_was_alone_in_hand_died_once(tmp_path):
    killed_after(tmp_path, 5, 4)
    assert suspects(tmp_path) == {key(tmp_path, 4): 1}


def test_an_item_whose_note_a_kill_tore_was_not_begun(tmp_path):
    killed_after(tmp_path, 2, 1, torn='"[\\"b.p')
    assert suspects(tmp_path) == {key(tmp_path, 1): 1}


@pytest.mark.parametrize("line", ["{}\n", "[]\n", "1\n", "x\n", "\n", "\xff\n"])
def test_a_damaged_note_suspects_nobody(tmp_path, line):
    killed_after(tmp_path, 2, 1, torn=line)
    assert suspects(tmp_path) == {}


def test_a_note_stays_short_however_many_items_are_begun(tmp_path, monkeypatch):
    monkeypatch.setattr("agentic_iqa_local.batch.runs.LONGEST_NOTE", 2000)
    run = Run(RowFile(tmp_path / "rows.jsonl"), tmp_path / "note")
    longest = 0
    for item in run.begun(Item(tmp_path / f"{i}.png") for i in range(200)):
        longest = max(longest, (tmp_path / "note").stat().st_size)
        run.write(item.key, json.dumps({"key": item.key}), failed=False)
    line = len(json.dumps(key(tmp_path, 100))) + 1
    assert longest <= 2000 + 2 * line
    run.close()
    assert not (tmp_path / "note").exists()


def test_a_disk_without_room_for_the_note_begins_nothing(tmp_path, monkeypatch):
    run = Run(RowFile(tmp_path / "rows.jsonl"), tmp_path / "note")
    items = run.begun(Item(tmp_path / f"{i}.png") for i in range(3))
    next(items)

    class Full:
        def tell(self):
            return 0

        def write(self, line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self):
            pass

    run._begun = Full()
    with pytest.raises(WriteError, match=r"note: could not be written \(No space left"):
        next(items)
    run.close()


# The tally


def test_a_tally_names_the_same_pictures_however_few_it_remembers(monkeypatch):
    rng = random.Random(1)
    rows = [
        {
            "image": f"{i}.png",
            "error": None,
            "q": rng.randrange(100, 500) / 100,
            "final_answer": "C",
            "choices": None,
        }
        for i in range(3000)
    ]

    def text(kept: int) -> str:
        monkeypatch.setattr(tally_module, "MOST_KEPT", kept)
        counted = Tally()
        for row in rows:
            counted.add(row)
        assert len(counted._scored) <= kept + 1
        return counted.text(0, 0)

    assert text(20) == text(10_000)
    mean = sum(row["q"] for row in rows) / len(rows)
    assert f"mean q {mean:.2f} of 3000 pictures" in text(20)
