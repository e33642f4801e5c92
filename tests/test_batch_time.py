"""Whose time it is: what counts against an image's deadline, and when a process counts as silent. The clock
stands still except where a test moves it, so that nothing depends on how fast this machine is."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted import ScriptedClient, ScriptedTools, loaded_batch, scripted_answers, scripted_services

from agentic_iqa_local.batch import batch_worker
from agentic_iqa_local.batch import runner as batch_module
from agentic_iqa_local.batch.batch_worker import GRACE, BatchWorker
from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.batch.runner import STANDSTILL, Batch, _Attempt
from agentic_iqa_local.batch.work import Assessing
from agentic_iqa_local.config import Settings
from agentic_iqa_local.images import reading as images
from agentic_iqa_local.judgement import assessment

TIMEOUT = 10.0
STEP = 4.0  # seconds that pass between two looks at the clock, too few for a standstill


class Clock:
    """The clock of a batch that runs in the thread that made it; other threads let time pass."""

    def __init__(self):
        self.now, self.looks, self.ended = 1000.0, 0, False
        self._batch, self._turn = threading.get_ident(), threading.Condition()

    def monotonic(self) -> float:
        with self._turn:
            self.looks += threading.get_ident() == self._batch
            self._turn.notify_all()
            return self.now

    def go_on(self, seconds: float) -> None:
        """Returns when the batch has dealt with the later time: at the second look the first is done with."""
        with self._turn:
            self.now += seconds
            seen = self.looks
            self._turn.wait_for(lambda: self.ended or self.looks >= seen + 2)

    def end(self) -> None:
        """Lets go of threads whose batch looks no more."""
        with self._turn:
            self.ended = True
            self._turn.notify_all()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(batch_module, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(batch_module, "GLANCE", 0.01)
    yield clock
    clock.end()


class SlowTools(ScriptedTools):
    """A measurement by LocalNR takes `seconds`, one look at the clock after each."""

    def __init__(self, clock: Clock, seconds: list[float]):
        super().__init__({"LocalNR": 3.0, "NIQE": 3.0})
        self.clock, self.seconds = clock, seconds

    def score(self, name, image, reference=None):
        if name == "LocalNR":
            for seconds in self.seconds:
                self.clock.go_on(seconds)
        return super().score(name, image, reference)


def batch_on(tools) -> Batch:
    services = scripted_services(ScriptedClient(scripted_answers()), tools)
    return loaded_batch(services, timeout=TIMEOUT, pipeline="letters")


AT_WORK = [STEP, STEP]  # 8 of 10 seconds


@pytest.mark.parametrize(
    ("seconds", "late"),
    [
        (AT_WORK, False),
        ([*AT_WORK, 2.0], False),  # all of the time, and no more
        ([*AT_WORK, 2.5], True),
        ([10_000.0], False),  # the process was stopped
        ([STANDSTILL + 0.5] * 9, False),
        ([STANDSTILL] * 3, True),  # no standstill yet
        ([*AT_WORK, 10_000.0, 2.0], False),  # what was left before it is left after it
        ([*AT_WORK, 10_000.0, 2.5], True),
    ],
)
def test_time_at_work_counts_and_time_in_which_the_process_stood_still_does_not(
    clock, picture, seconds, late
):
    (row,) = batch_on(SlowTools(clock, seconds)).rows([Item(Path(picture))])
    assert (row.error or "").startswith("timed out after 10 s in LocalNR") == late
    assert (row.q is None) == late


def test_time_spent_waiting_for_the_tools_is_not_the_images(clock, picture):
    """The second waits 16 s while the first measures; of the first's time nothing is given back."""
    batch, end, holds = batch_on(ScriptedTools({})), threading.Event(), threading.Event()

    class Slow:
        def score(self, name, *pictures):
            holds.set()
            end.wait()

    batch.services._tools = Slow()
    first, second = (_Attempt(Item(Path(picture)), batch._turns, 1, 1000.0) for _ in range(2))

    def measure(attempt):
        with attempt.measuring("LocalNR", batch.services) as tools:
            tools.score("LocalNR")

    threads = [threading.Thread(target=measure, args=(one,)) for one in (first, second)]
    threads[0].start()
    holds.wait()
    threads[1].start()
    while not second.waiting:
        time.sleep(0.01)
    clock.now += 16
    end.set()
    for thread in threads:
        thread.join()
    assert (first.deadline, second.deadline) == (1000, 1016)


def test_who_waits_for_the_tools_is_not_left_behind(clock, picture):
    """Its deadline has passed, and is set anew when its turn comes."""
    batch = batch_on(ScriptedTools({}))
    attempt = _Attempt(Item(Path(picture)), batch._turns, 1, clock.now - 1, waiting=True)
    batch._running, batch._looked = [attempt], clock.now
    row = batch.work.failure(attempt.item, "something")
    batch._finished.put((attempt, row))
    assert batch._next() == (attempt, row)
    assert not attempt.left_behind


@pytest.mark.parametrize(
    ("pipeline", "roles"), [("letters", ["summarizer"]), ("agent", ["planner", "executor", "summarizer"])]
)
def test_models_and_tools_are_loaded_before_the_time_of_any_image_begins(pipeline, roles, monkeypatch):
    tools, loaded = ScriptedTools({"NIQE": 3.0}), []
    services = scripted_services(ScriptedClient(scripted_answers()), tools)
    monkeypatch.setattr(services, "client", loaded.append)
    monkeypatch.setattr(tools, "prepare", lambda: loaded.append("tools"))
    batch = Batch(services, Assessing(services.settings, pipeline))
    assert loaded == []
    batch.load()
    assert loaded == [*roles, "tools"]


def test_a_file_whose_reading_hangs_is_read_once(clock, picture, monkeypatch):
    """Neither for its hash nor when the read returns after all."""
    real, reads, end = images.read_file, [], threading.Event()

    def hangs(path):
        reads.append(path)
        clock.go_on(TIMEOUT / 2)
        clock.go_on(TIMEOUT / 2 + 1)
        end.wait()
        return real(path)

    for module in (images, assessment):
        monkeypatch.setattr(module, "read_file", hangs)
    monkeypatch.setattr(batch_module, "STANDSTILL", TIMEOUT)
    batch = batch_on(ScriptedTools({"LocalNR": 3.0, "NIQE": 3.0}))
    (row,) = batch.rows([Item(Path(picture))])
    assert row.error.startswith("timed out after 10 s outside of the tools and the model")
    assert row.sha256 is None
    clock.end()
    end.set()
    attempt, _ = batch._finished.get(timeout=600)
    assert attempt.left_behind
    assert reads == [picture]


# A process of its own


class Silence:
    """A process of which is heard what `script` says: after so many seconds a message, or None for nothing
    by then."""

    def __init__(self, script):
        self.script, self.now, self.message = list(script), 1000.0, None

    def monotonic(self) -> float:
        return self.now

    def waits(self, _) -> bool:
        seconds, self.message = self.script.pop(0)
        self.now += seconds
        return self.message is not None

    def receive(self):
        return self.message


ROW = ("row", "key", None, False)
NOTHING = (STEP, None)
MOST = int((TIMEOUT + GRACE) // STEP)  # looks in 70 s: 17, after which 68 s have passed


@pytest.mark.parametrize(
    ("script", "heard"),
    [
        ([NOTHING] * MOST + [(STEP, ROW)], ROW),
        ([NOTHING] * MOST + [(2.0, None), (1.0, ROW)], ROW),  # 70 s, and no more
        ([NOTHING] * (MOST + 1) + [(1.0, ROW)], None),
        ([NOTHING] * MOST + [(STEP, ("alive",))] + [NOTHING] * MOST + [(STEP, ROW)], ROW),
        ([NOTHING] * MOST + [(STEP, ("alive",))] + [NOTHING] * (MOST + 1) + [(STEP, ROW)], None),
        ([(10_000.0, None), (STEP, ROW)], ROW),  # this process was stopped, and that one with it
        ([NOTHING] * MOST + [(10_000.0, None), (2.0, None), (1.0, ROW)], ROW),
        ([NOTHING] * MOST + [(10_000.0, None), (2.5, None), (1.0, ROW)], None),
        ([(STANDSTILL, None)] * 15 + [(1.0, ROW)], None),  # 75 s, and no standstill
    ],
)
def test_a_process_is_silent_when_it_gives_no_sign_of_life_for_too_long(script, heard, monkeypatch):
    worker = BatchWorker(Assessing(Settings()), timeout=TIMEOUT, device="cpu")
    worker._worker, worker._ready = Silence(script), True
    monkeypatch.setattr(batch_worker, "time", worker._worker)
    assert worker._hear() == heard


def test_a_process_may_take_any_time_to_load(monkeypatch):
    """Its images' time begins when it is ready."""
    worker = BatchWorker(Assessing(Settings()), timeout=TIMEOUT, device="cpu")
    worker._worker = Silence([*[NOTHING] * 1000, (STEP, ("ready", {})), *[NOTHING] * MOST, (STEP, ROW)])
    item = Item(Path("a.png"))
    worker._in_hand = [(item.key, item)]
    monkeypatch.setattr(batch_worker, "time", worker._worker)
    assert worker._hear() == ROW
