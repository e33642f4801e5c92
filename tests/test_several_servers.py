"""One model on several servers: sharing of work, a server that dies, comes back, or serves something else.

The servers are scripted, so that they can die and lie on time; a real `vllm serve` twice over is in
tests/vllm_engine/test_server_client.py.
"""

import base64
import io
import json
import threading
import time
from contextlib import ExitStack

import pytest
from conftest import EMBEDDED
from PIL import Image
from test_hostile_server import (
    CHAT,
    HEALTH,
    MODELS,
    PICTURE,
    SCORING,
    VERSION,
    letters,
    prompt,
    send,
    serving,
)

from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX
from agentic_iqa_local.vlm_client import ModelLost, VLMError, several_servers
from agentic_iqa_local.vlm_client.rendering import Renderer
from agentic_iqa_local.vlm_client.server_connection import _Deadline
from agentic_iqa_local.vlm_client.several_servers import AGREEMENT, SeveralServers, connect, probe_pictures

SOUND = [-1.0, -1.5, -2.0, -2.5, -3.0]
assert prompt  # a fixture


@pytest.fixture
def two():
    with ExitStack() as stack:
        yield [stack.enter_context(serving()) for _ in range(2)]


@pytest.fixture(scope="module")
def answers():
    """The answers to the probes and to PICTURE, by the number of tokens of their prompts."""
    renderer = Renderer("embedded", ModelSettings(path=str(EMBEDDED)), weights=False)
    rendered = renderer.render(SCORING, 1, ANSWER_PREFIX)
    ids = {}
    for picture in (PICTURE, *probe_pictures()):
        expanded = renderer.expand(rendered, [picture])
        ids[picture.size] = [*rendered.head, *expanded.ids, *rendered.tail, *rendered.answer_ids]
    assert len({len(each) for each in ids.values()}) == len(ids) == 2
    return ids


def completions(prompt, answers, values=SOUND, of_picture=None):
    """Answers a chat completion for whichever picture it holds."""

    def answer(handler):
        body = json.loads(handler.body)
        parts = [
            part
            for message in body["messages"]
            if isinstance(message["content"], list)
            for part in message["content"]
        ]
        (url,) = (part["image_url"]["url"] for part in parts if part["type"] == "image_url")
        size = Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).size
        if of_picture and size == PICTURE.size and (done := of_picture(handler)):
            return done
        found = letters(prompt, values) | {"prompt_token_ids": answers[size]}
        return send(handler, json.dumps(found).encode())

    return answer


def pool(*states, **options) -> SeveralServers:
    settings = ModelSettings(path=str(EMBEDDED), **{"server": [state.url for state in states], **options})
    client = connect("embedded", settings, "cpu")
    assert isinstance(client, SeveralServers)
    return client


def read(client):
    session = client.open([PICTURE])
    try:
        return session.read_letters(SCORING, ANSWER_PREFIX, LETTERS), session.usage
    finally:
        session.close()


def chats(state) -> int:
    return sum(path == CHAT for path, _ in state.seen)


def die(handler):
    """Ends the connection without an answer."""
    handler.close_connection = True
    handler.connection.close()
    return True


def test_work_is_shared_by_load(two, prompt, answers):
    all_at_once = threading.Barrier(8)  # no request is answered before all are there
    for state in two:
        state.answers[CHAT] = completions(
            prompt, answers, of_picture=lambda _: all_at_once.wait(600) and None
        )
    client = pool(*two)
    before = [chats(state) for state in two]
    many = client.read_many([[PICTURE]] * 8, SCORING, ANSWER_PREFIX, LETTERS)
    assert len(many.reads) == 8
    # eight at once, each to the server with the fewest in flight: four each
    assert [chats(state) - start for state, start in zip(two, before, strict=True)] == [4, 4]
    assert client.describe()["device"] == ", ".join(state.url for state in two)


def test_a_picture_stays_on_its_server(two, prompt, answers):
    for state in two:
        state.answers[CHAT] = completions(prompt, answers)
    client = pool(*two)
    before = [chats(state) for state in two]
    session = client.open([PICTURE])
    for _ in range(3):
        session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert sorted(chats(state) - start for state, start in zip(two, before, strict=True)) == [0, 3]
    assert session.usage.calls == 3


def test_a_server_that_dies_is_left_out_and_its_pictures_go_elsewhere(two, prompt, answers, caplog):
    first, second = two
    first.answers[CHAT] = completions(prompt, answers, of_picture=die)
    second.answers[CHAT] = completions(prompt, answers)
    client = pool(*two)
    reads = [read(client) for _ in range(4)]
    assert [found.logprobs for found, _ in reads] == [dict(zip("ABCDE", SOUND, strict=True))] * 4
    assert sum(usage.calls for _, usage in reads) == 4  # what a dead server counted is not counted twice
    assert f"{first.url}: expected" in caplog.text
    assert "left out" in caplog.text


def test_a_server_that_comes_back_is_used_again(two, prompt, answers, monkeypatch):
    monkeypatch.setattr(several_servers, "LEFT_OUT", 0.0)
    dead = threading.Event()
    dead.set()
    for state in two:
        state.answers[CHAT] = completions(
            prompt, answers, of_picture=lambda handler: dead.is_set() and die(handler)
        )
    two[1].answers[CHAT] = completions(prompt, answers)
    client = pool(*two)
    read(client)
    dead.clear()
    deadline = time.monotonic() + 600
    start = chats(two[0])
    while chats(two[0]) < start + 3:  # two probes and a picture
        read(client)
        assert time.monotonic() < deadline


def test_one_that_comes_back_as_another_stays_out(two, prompt, answers, monkeypatch, caplog):
    monkeypatch.setattr(several_servers, "LEFT_OUT", 0.0)
    two[0].answers[CHAT] = completions(prompt, answers, of_picture=die)
    two[1].answers[CHAT] = completions(prompt, answers)
    client = pool(*two)
    models, two[0].answers[MODELS] = two[0].answers[MODELS], die
    read(client)
    two[0].answers[CHAT] = completions(prompt, answers, [-2.0, -1.0, *SOUND[2:]])
    two[0].answers[MODELS] = models
    deadline = time.monotonic() + 600
    while "stays out" not in caplog.text:
        read(client)
        assert time.monotonic() < deadline
    asked = chats(two[0])
    for _ in range(5):
        read(client)
    assert chats(two[0]) == asked


def test_servers_of_other_weights_are_refused_by_name(two, prompt, answers):
    two[0].answers[CHAT] = completions(prompt, answers)
    two[1].answers[CHAT] = completions(prompt, answers, [-1.2, *SOUND[1:]])
    # exp(-1.0) - exp(-1.2) = 0.3679 - 0.3012 = 0.0667, above the bound
    assert AGREEMENT < 0.0667
    with pytest.raises(VLMError, match=r"letter A the probability 0\.368") as refused:
        pool(*two)
    assert all(text in str(refused.value) for text in (two[0].url, two[1].url, "0.301"))


def test_servers_within_the_bound_are_taken(two, prompt, answers):
    two[0].answers[CHAT] = completions(prompt, answers)
    two[1].answers[CHAT] = completions(prompt, answers, [-1.04, *SOUND[1:]])  # 0.0144 apart
    read(pool(*two))


@pytest.mark.parametrize(
    ("path", "answer", "named"),
    [(VERSION, {"version": "0.34"}, "0.34"), (MODELS, {"data": [{"id": "other"}]}, "other")],
)
def test_servers_of_another_version_or_model_are_refused(two, prompt, answers, path, answer, named):
    for state in two:
        state.answers[CHAT] = completions(prompt, answers)
    two[1].answers[path] = answer
    with pytest.raises(VLMError, match=named) as refused:
        pool(*two)
    assert all(state.url in str(refused.value) for state in two)


def test_a_server_that_is_not_there_at_the_start_is_left_out(two, prompt, answers):
    two[0].answers[CHAT] = completions(prompt, answers)
    settings = ModelSettings(path=str(EMBEDDED), server=[two[0].url, "http://127.0.0.1:9"])
    read(connect("embedded", settings, "cpu"))


def test_where_none_is_left_the_model_is_lost(two, prompt, answers):
    for state in two:
        state.answers[CHAT] = completions(prompt, answers, of_picture=die)
    client = pool(*two)
    with pytest.raises(ModelLost, match="none of the 2 servers"):
        read(client)
    with pytest.raises(ModelLost):
        pool(*two, server=["http://127.0.0.1:9", "http://127.0.0.1:10"])


def test_a_late_answer_of_a_healthy_server_is_a_failure_of_that_picture(two, prompt, answers, monkeypatch):
    """Its time is over as soon as the server has the request; no other request's ends."""
    deadlines, end = [], threading.Event()
    monkeypatch.setattr(_Deadline, "__enter__", lambda self: deadlines.append(self) or self)

    def never(_):
        deadlines[-1]._end()
        end.wait()

    late = completions(prompt, answers, of_picture=never)
    two[0].answers[CHAT], two[1].answers[CHAT] = late, late
    client = pool(*two)
    with pytest.raises(VLMError, match="expected the whole answer"):
        read(client)
    two[0].answers[HEALTH] = two[1].answers[HEALTH] = die
    with pytest.raises(ModelLost):
        read(client)
    end.set()


@pytest.mark.parametrize(
    "servers", [[], ["http://a:1", "http://a:1"], ["http://me:secret@a:1", "http://a:1"]]
)
def test_a_list_names_different_servers(servers):
    with pytest.raises(ValueError, match="different ones"):
        ModelSettings(server=servers)


def test_no_password_of_a_list_is_written():
    settings = ModelSettings(server=["http://me:secret@a:1", "http://b:1"])
    assert settings.model_dump()["server"] == ["http://a:1", "http://b:1"]
