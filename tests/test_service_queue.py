"""Many clients of the service at once, and batches, with a runner that only hashes what it is given."""

import asyncio
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from agentic_iqa_local.batch.runner import BatchError
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.result import new_row
from agentic_iqa_local.serve import batches as batches_module
from agentic_iqa_local.serve.app import Service, make_app
from agentic_iqa_local.serve.asks import Refused, SetUp
from agentic_iqa_local.serve.batches import Batches
from agentic_iqa_local.serve.bodies import Body, OnePicture, Upload
from agentic_iqa_local.serve.guard import listening
from agentic_iqa_local.serve.queue import Queue

SET_UP = SetUp(load_settings(), "letters")


class Hashing:
    """A runner whose row is the picture's hash, once it is let `go`; `lost` is raised in place of the next."""

    jobs, device, timeout = 1, "cpu", 600.0

    def __init__(self):
        self.go, self.lost, self.order = threading.Event(), [], []
        self._thread = ThreadPoolExecutor(1)
        self.go.set()

    def submit(self, ask, told=None) -> Future:
        return self._thread.submit(self._row, ask)

    def _row(self, ask):
        self.go.wait(600)
        if self.lost:
            raise self.lost.pop()
        self.order.append(ask.pictures[0].name)
        row = new_row(ask.pictures[0].name, None, "Rate it", None, "letters", ask.settings)
        row.sha256 = hashlib.sha256(ask.image.read_bytes()).hexdigest()
        return row


@contextmanager
def serving(tmp_path, runner, places=64):
    """The address of a service around a runner."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "uploads").mkdir()
    service = Service(SET_UP, runner, tmp_path / "spool", tmp_path / "uploads", places=places)
    server = uvicorn.Server(uvicorn.Config(make_app(service, ["*"]), log_config=None))
    with listening("127.0.0.1", 0) as address:
        thread = threading.Thread(target=server.run, args=([address],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{address.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def post(place, content):
    return httpx.post(f"{place}/v1/assess", files={"image": ("a.png", content)}, timeout=600)


def test_clients_get_their_own_answers_or_429_beyond_the_queue(tmp_path):
    """Of 128 at once, one is worked on and 32 wait, until all the others have been refused."""
    runner, refused = Hashing(), []
    runner.go.clear()
    contents = [f"picture {i}".encode() for i in range(128)]
    with serving(tmp_path, runner, places=32) as place, ThreadPoolExecutor(128) as pool:

        def ask(content):
            answer = post(place, content)
            if answer.status_code == 429:
                refused.append(answer)
                if len(refused) == 95:
                    runner.go.set()
            else:
                assert answer.json()["sha256"] == hashlib.sha256(content).hexdigest()
            return answer.status_code

        assert sorted(pool.map(ask, contents)) == [200] * 33 + [429] * 95
        metrics = httpx.get(f"{place}/metrics").text
    assert 'agentic_iqa_requests_total{route="/v1/assess",status="200"}' in metrics
    assert refused[0].headers["retry-after"]
    assert list((tmp_path / "uploads").iterdir()) == []


def test_lost_models_are_told_and_asked_again(tmp_path):
    runner = Hashing()
    runner.lost = [BatchError("the processes died")]
    with serving(tmp_path, runner) as place:
        lost = post(place, b"a picture")
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "failing")
        assert httpx.get(f"{place}/healthz").status_code == 503
        assert post(place, b"a picture").status_code == 200
        assert httpx.get(f"{place}/healthz").status_code == 200


def body(*names):
    return Body(images=[Upload(name=name, data=name.encode()) for name in names])


async def worked_off(batches, *names):
    """The status of the last of these batches when none of them goes on."""
    work = asyncio.create_task(batches.work())
    for name in names:
        while (status := batches.status(name))["state"] not in ("finished", "stopped"):
            await asyncio.sleep(0.01)
    work.cancel()
    await asyncio.wait([work])
    return status


def test_requests_go_before_the_pictures_of_a_batch(tmp_path):
    async def main():
        runner = Hashing()
        queue = Queue(runner, 8)
        batches = Batches(tmp_path, queue, SET_UP)
        name = (await batches.submit(body("a", "b", "c")))["id"]
        runner.go.clear()
        work = asyncio.create_task(worked_off(batches, name))
        while not queue.busy:
            await asyncio.sleep(0.01)
        one = OnePicture(image=Upload(name="one", data=b"one"))
        with one.stored(one.ask(SET_UP), tmp_path) as ask:
            answer = asyncio.create_task(queue.answer(ask))
            await asyncio.sleep(0)
            runner.go.set()
            await answer
        assert (await work)["done"] == 3
        assert runner.order == ["a", "one", "b", "c"]

    asyncio.run(main())


def test_a_lost_model_costs_no_picture_of_a_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(batches_module, "AGAIN", 0.01)

    async def main():
        runner = Hashing()
        runner.lost = [BatchError("lost"), BatchError("lost")]
        batches = Batches(tmp_path, Queue(runner, 8), SET_UP)
        status = await worked_off(batches, (await batches.submit(body("a", "b")))["id"])
        assert (status["state"], status["done"], runner.order) == ("finished", 2, ["a", "b"])

    asyncio.run(main())


def test_a_batch_goes_on_with_the_same_settings_alone(tmp_path):
    other = dataclasses.replace(SET_UP, pipeline="agent")

    async def main():
        runner = Hashing()
        begun = Batches(tmp_path, Queue(runner, 8), SET_UP)
        name = (await begun.submit(body("a", "b")))["id"]
        await worked_off(begun, name)
        rows = tmp_path / name / "rows.jsonl"
        first, second = rows.read_bytes().splitlines(keepends=True)
        rows.write_bytes(first + second[:50])  # as a kill leaves it
        again = Batches(tmp_path, Queue(runner, 8), other)
        status = await worked_off(again, name)
        assert (status["state"], status["done"]) == ("stopped", 1)
        assert 'pipeline is "agent", expected "letters"' in status["error"]["message"]
        assert again.lines(name) == first
        assert (await worked_off(begun, name))["done"] == 2
        assert runner.order == ["a", "b", "b"]

    asyncio.run(main())


ROW = new_row("a", None, "Rate it", None, "letters", SET_UP.settings)
GOOD = ROW.model_dump_json()
ROWS = {  # what lies in rows.jsonl
    "another object": '{"evil": 1}\n',
    "no UTF-8": b"\xff\xfe\n",
    "NaN": GOOD.replace('"seconds":0.0', '"seconds":NaN') + "\n",
    "a row of a later version": GOOD.replace('"schema_version":6', '"schema_version":7') + "\n",
}


def spoil(folder, part, how):
    """Makes a stored batch's part of `folder` something else: a text, no text (None), or a kind of file."""
    place = folder / part
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    if how == "folder":
        place.mkdir()
    elif how == "pipe":
        os.mkfifo(place)
    elif how is not None:
        place.write_bytes(how if isinstance(how, bytes) else how.encode())


SPOILT = [
    *(pytest.param("rows.jsonl", how, id=f"rows {name}") for name, how in ROWS.items()),
    *(("options.json", how) for how in ("{", '{"nope": 1}', "pipe")),
    *(("pictures", how) for how in (None, "folder")),
    ("pictures/pipe", "pipe"),
    ("reference", None),
]


@pytest.mark.parametrize(("part", "how"), SPOILT)
def test_a_spoilt_batch_stops_itself_alone(tmp_path, caplog, part, how):
    caplog.set_level(logging.CRITICAL)

    async def main():
        first = Batches(tmp_path, Queue(Hashing(), 8), SET_UP)
        spoilt, sound = [(await first.submit(body("a")))["id"] for _ in range(2)]
        names = [tmp_path / spoilt, tmp_path / "0 \udcff<b>#?"]  # it is the first
        names[0].rename(names[1])
        spoilt = "0 \\xff<b>#?"
        spoil(names[1], part, how)
        batches = Batches(tmp_path, Queue(Hashing(), 8), SET_UP)
        assert (await worked_off(batches, sound, spoilt))["state"] == "stopped"
        assert batches.status(sound)["state"] == "finished"
        assert batches.status(spoilt)["error"]["message"]
        assert str(tmp_path) not in json.dumps(batches.listed())
        with pytest.raises(Refused, match=r"rows|expected|read"):
            batches.gallery(spoilt)
        batches.delete(spoilt)
        assert spoilt not in [told["id"] for told in batches.listed()]
        assert not os.path.lexists(names[1])

    asyncio.run(main())


def test_a_batch_that_cannot_be_stored_leaves_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(batches_module, "sync_folder", full)
    batches = Batches(tmp_path, Queue(Hashing(), 8), SET_UP)
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(batches.submit(body("a")))
    assert list(tmp_path.iterdir()) == []


@given(st.text())
def test_a_senders_name_is_that_of_a_file_in_one_folder(name):
    made = Upload(name=name, data=b"x").name
    assert made == Path(made).name
    assert made not in (".", "..")
    assert 0 < len(made.encode()) <= 255
    assert one_line(made) == made


def test_a_port_in_use_ends_with_a_sentence():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserError, match="free address"),
    ):
        listening("127.0.0.1", taken.getsockname()[1])
