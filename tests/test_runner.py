"""The process that has the models: a hang, a crash or too little memory costs one picture, and every picture has
one row."""

import gc
import os
import signal
import subprocess
import sys
from concurrent.futures import CancelledError, wait
from pathlib import Path

import psutil
import pytest
import torch
from acting import Acting, Unloadable, acting, items
from conftest import ROOT
from scripted import loaded_batch

from agentic_iqa_local.api import Conversation, choose_settings
from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.batch.runner import BatchError, Runner
from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.iqa_tools.runner import ToolRunner
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.comparison import compare, rank
from agentic_iqa_local.nodes import pictures
from agentic_iqa_local.nodes.detection import YES_NO
from agentic_iqa_local.nodes.sessions import Models
from agentic_iqa_local.services import Services
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError
from agentic_iqa_local.vlm_client.transformers_client import TransformersSession

TIMED = {"execution_time", "timestamp"}


def untimed(value):
    """A row without what tells when it was made and how long that took."""
    if isinstance(value, dict):
        kept = {
            key: part
            for key, part in value.items()
            if not (key.endswith("seconds") or key in TIMED)
        }
        return {key: untimed(part) for key, part in kept.items()}
    return [untimed(part) for part in value] if isinstance(value, list) else value


def by_name(rows) -> dict:
    """What became of each picture; each has one row."""
    found = [(Path(row.image).stem, row.error) for row in rows]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.fixture
def crops(photo, tmp_path) -> list[Item]:
    """Four pictures that differ in size."""
    places = [tmp_path / f"{number}.png" for number in range(4)]
    for place, size in zip(places, [(256, 256), (224, 192), (192, 224), (256, 192)], strict=True):
        photo.crop((0, 0, *size)).save(place)
    return [Item(place) for place in places]


# A process that may hang or die


def test_what_hangs_costs_one_picture(tmp_path):
    found = by_name(acting(jobs=3, timeout=8).rows(items(tmp_path, "a", "stuck", "b", "c")))
    assert found.pop("stuck") == "timed out after 8 s; raise --timeout if it was at work"
    assert len(found) == 3
    assert all(error.startswith("made by ") for error in found.values())


def test_what_crashes_costs_one_picture(tmp_path):
    names = ["a", "segfault", "once", "raise", "exit", "b"]
    found = by_name(acting().rows(items(tmp_path, *names)))
    assert found.keys() == set(names)
    ended = "the process that assessed it ended"
    assert found["segfault"] == f"{ended} by SIGSEGV"
    assert found["exit"] == f"{ended} with status 7"
    assert found["raise"] == "KeyError: 'no such thing'"
    assert all(found[name].startswith("made by ") for name in ("a", "once", "b"))
    running = [child.cmdline() for child in psutil.Process().children()]
    assert not [line for line in running if "spawn_main" in " ".join(line)]


def in_a_process(program: str, **pipes) -> subprocess.Popen:
    """Another Python that runs a program."""
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    line = [sys.executable, "-c", program]
    return subprocess.Popen(line, env=os.environ | path, text=True, **pipes)


def test_a_command_that_ends_does_not_wait_for_its_process():
    """As Ctrl-C in the meantime ends it."""
    program = "from acting import acting; acting().load(); raise KeyboardInterrupt"
    said = in_a_process(program, stderr=subprocess.PIPE).communicate(timeout=120)[1]
    assert said.endswith("KeyboardInterrupt\n")


def test_processes_that_die_while_they_load_end_the_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Acting, "__reduce__", lambda self: (os._exit, (7,))
    )  # unpickled, it ends the process
    with pytest.raises(BatchError, match="died while it loaded: it ended with status 7"):
        list(acting().rows(items(tmp_path, "a")))


@pytest.mark.parametrize("apart", [True, False], ids=["process", "thread"])
def test_a_model_that_cannot_be_loaded_is_said_in_its_own_words(apart, tmp_path):
    settings = choose_settings(model=str(tmp_path))
    runner = Runner(Unloadable(settings, "letters"), services=None if apart else Services(settings))
    gc.disable()  # that no garbage is collected may not keep it waiting
    try:
        for _ in range(1 if apart else 2):  # the second time anew
            with pytest.raises(VLMError, match=r"config\.json"):
                runner.load()
    finally:
        gc.enable()
    runner.close()


def test_a_model_that_is_lost_ends_the_batch_without_a_row(tmp_path):
    rows = acting().rows(items(tmp_path, "a", "lost", "b"))
    assert Path(next(rows).image).stem == "a"
    with pytest.raises(ModelLost, match="the engine is gone"):
        next(rows)


def test_a_stop_finishes_what_is_under_way_and_begins_nothing(tmp_path):
    runner = acting()
    rows = runner.rows(items(tmp_path, *map(str, range(1000))))
    made = [next(rows)]
    runner.stop()
    made += rows
    assert len(by_name(made)) < 1000
    with pytest.raises((CancelledError, RuntimeError)):
        runner.submit(items(tmp_path, "late")[0]).result()


def test_one_item_is_a_future_and_its_steps_are_told(tmp_path):
    """As the service uses it: one process for all, each item when it comes."""
    runner, told = acting(timeout=8), []
    step, other = items(tmp_path, "step", "other")
    first = runner.submit(step, told.append).result().error
    runner.submit(other).cancel()
    assert runner.submit(other).result().error == first  # made by the same process
    assert [(about["role"], about["state"]) for about in told] == [("planner", "started")]
    waiting = [runner.submit(item) for item in items(tmp_path, "stuck", "a")]
    wait(waiting)
    assert waiting[0].result().error.startswith("timed out")
    assert waiting[1].result().error.startswith("made by ")
    runner.close()


def test_a_process_does_not_outlive_its_parent(tmp_path):
    program = (
        "from pathlib import Path\nfrom acting import acting, items\n"
        "(row,) = [acting().submit(item).result() for item in items(Path(), 'a')]\n"
        "print(row.error.split()[-1], flush=True)\ninput()\n"
    )
    parent = in_a_process(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    gone, _ = psutil.wait_procs([child], timeout=60)
    assert gone


# Rows


def test_several_at_once_give_what_one_assessment_gives(crops, services):
    runner = loaded_batch(services, "letters", jobs=3)
    found = {row.image: row for row in runner.rows([*crops, crops[2]])}
    for item in crops:
        alone = assess(item.image, pipeline="letters", services=services)
        assert alone.q is not None
        assert untimed(found[str(item.image)].to_dict()) == untimed(alone.to_dict())


# Memory


def test_what_fits_alone_is_tried_alone_and_fewer_follow(tmp_path):
    names = [f"crowded-{number}" for number in range(8)]
    runner = acting(jobs=4)
    found = by_name(runner.rows(items(tmp_path, *names)))
    assert found.keys() == set(names)
    assert all(error.startswith("made by ") for error in found.values())
    assert runner.jobs == 2


def test_an_agent_that_ran_out_of_memory_half_way_gives_no_score(crops, services, monkeypatch):
    """The graph makes an executor's failure a gap in the evidence and goes on; a batch must not take that for
    an answer."""
    real, failed = TransformersSession.read_letters, []

    def read_letters(self, prompt, answer_prefix, letters):
        if tuple(letters) == YES_NO:
            failed.append(self)
            raise OutOfMemory("memory ran out")
        return real(self, prompt, answer_prefix, letters)

    monkeypatch.setattr(TransformersSession, "read_letters", read_letters)
    (row,) = loaded_batch(services).rows(crops[:1])
    assert "memory ran out (tried alone)" in row.error
    assert len(set(map(id, failed))) == 2  # sessions: among others and alone
    assert row.q is None
    assert len(row.sha256) == 64


def test_every_answer_says_that_memory_ran_out(crops, services, monkeypatch):
    def exhausted(*_, **__):
        raise MemoryError

    monkeypatch.setattr(pictures, "load_image", exhausted)
    path = crops[0].image
    said = f"{path}: memory ran out while the picture was opened"
    assert said in assess(path, services=services).error
    assert said in compare(path, path, services=services).error
    assert said in rank([path] * 3, services=services).failed[0].error
    with pytest.raises(ImageError, match="memory ran out while the picture was opened"):
        Conversation(services, path)
    monkeypatch.undo()
    monkeypatch.setattr(Models, "views", exhausted)  # later than that
    assert "memory ran out; free some, or crop the picture" in assess(path, services=services).error


def test_a_tool_that_ran_out_of_memory_is_asked_again(crops, services, monkeypatch):
    real, failed = ToolRunner.score, []

    def exhausted_once(tools, name, *rest):
        if not failed:
            failed.append(name)
            raise ToolError(f"{name} failed") from torch.OutOfMemoryError("CUDA out of memory")
        return real(tools, name, *rest)

    monkeypatch.setattr(ToolRunner, "score", exhausted_once)
    (row,) = loaded_batch(services).rows(crops[:1])
    assert failed
    assert row.error is None
    assert [log.tool_name for log in row.tools if log.error] == []
