"""The client of a vLLM server, against a scripted one on this machine's loopback: what it says is scored only where it
is about the tokens that were asked for, and every failure is one sentence. tests/vllm_engine has a real server."""

import base64
import contextlib
import io
import json
import math
import socket
import socketserver
import threading
import time

import httpx2
import openai
import pytest
from conftest import EMBEDDED
from families import SCORING
from PIL import Image

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX
from agentic_iqa_local.nodes.replies import answer_reply
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client import ModelLost, VLMError
from agentic_iqa_local.vlm_client.rendering import Renderer, resolve_letters
from agentic_iqa_local.vlm_client.server_client import ServerClient

PICTURE = Image.effect_noise((224, 224), 60).convert("RGB")
MODELS, VERSION, CHAT, HEALTH = "/v1/models", "/version", "/v1/chat/completions", "/health"
SOUND = [math.log(0.19)] * 5


class Scripted:
    """Answers by path: data are sent as JSON, bytes as they are, a pair with a status; an exception is raised. `asked`
    holds each request."""

    url = "http://127.0.0.1:8000"

    def __init__(self):
        self.answers = {
            MODELS: {"data": [{"id": "embedded"}]},
            VERSION: {"version": "0.33"},
            HEALTH: {},
        }
        self.asked: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        answer = self.answers.get(request.url.path, {})
        if isinstance(answer, Exception):
            raise answer
        content, status = answer if isinstance(answer, tuple) else (answer, 200)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        elsewhere = {"Content-Type": "application/json", "Location": "http://127.0.0.2:8000/v1"}
        return httpx2.Response(status, content=body, headers=elsewhere)


@pytest.fixture
def server(monkeypatch):
    scripted, real = Scripted(), openai.DefaultHttpxClient
    over = httpx2.MockTransport(scripted)
    monkeypatch.setattr(
        "openai.DefaultHttpxClient", lambda **options: real(transport=over, **options)
    )
    return scripted


def connect(at, **options) -> ServerClient:
    return ServerClient(
        "embedded", ModelSettings(path=str(EMBEDDED), **{"server": at.url, **options}), "cpu"
    )


@pytest.fixture(scope="module")
def prompt():
    """(ids of the scoring prompt with its answer so far, letter → token id), as the client makes them."""
    renderer = Renderer("embedded", ModelSettings(path=str(EMBEDDED)), weights=False)
    rendered = renderer.render(SCORING, 1, ANSWER_PREFIX)
    ids = rendered.prompt_with(renderer.expand(rendered, [PICTURE])) + rendered.answer_ids
    return ids, resolve_letters(renderer.encode, rendered.text, LETTERS)


def completion(ids, **choice):
    """A chat completion of a server that saw `ids`."""
    message = {"role": "assistant", "content": None}
    choice = {"index": 0, "finish_reason": "stop", "message": message} | choice
    usage = {"completion_tokens": 9, "prompt_tokens": 1, "total_tokens": 10}
    usage["prompt_tokens_details"] = {"cached_tokens": 32}
    about = {"id": "x", "object": "chat.completion", "created": 0, "model": "embedded"}
    return about | {"choices": [choice], "usage": usage, "prompt_token_ids": ids}


def letters(prompt, values):
    """A chat completion with these log-probabilities, one a letter."""
    ids, tokens = prompt
    top = [
        {"token": f"token_id:{tokens[letter]}", "logprob": value}
        for letter, value in zip(LETTERS, values, strict=False)
    ]
    position = {"token": "x", "logprob": -1.0, "top_logprobs": top}
    return completion(ids, logprobs={"content": [position]})


def session(at):
    return (connect(at) if isinstance(at, Scripted) else at).open([PICTURE])


def read(at):
    return session(at).read_letters(SCORING, ANSWER_PREFIX, LETTERS)


def write(at):
    return session(at).generate(SCORING, answer_reply(["B"]))


def refused(said, ask, *args, kind=VLMError, **options) -> VLMError:
    with pytest.raises(kind, match=said) as caught:
        ask(*args, **options)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    return caught.value


def test_what_is_asked_and_answered(server, prompt, monkeypatch):
    """The picture goes as PNG, with its every pixel; a proxy of the environment is not asked."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    server.answers[CHAT] = letters(prompt, SOUND)
    opened = session(server)
    found = opened.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert found.logprobs == dict(zip(LETTERS, SOUND, strict=True))
    assert (opened.usage.reused, opened.usage.prefilled) == (32, len(prompt[0]) - 32)
    body = json.loads(server.asked[-1].content)
    assert body["logprob_token_ids"] == [*prompt[1].values()]
    assert body["messages"][-1] == {"role": "assistant", "content": ANSWER_PREFIX}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert (body["repetition_penalty"], body["top_p"], body["top_k"]) == (1.0, 1.0, -1)
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    sent = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
    assert sent.tobytes() == PICTURE.tobytes()


def test_an_answer_is_held_to_its_schema(server, prompt):
    client = connect(server)
    asked = prompt[0][: -len(client.renderer.encode(ANSWER_PREFIX))]
    text = '{"final_answer": "B", "quality_reasoning": "Soft."}'
    message = {"role": "assistant", "content": text}
    server.answers[CHAT] = completion(asked, message=message)
    assert write(client) == text
    schema = json.loads(server.asked[-1].content)["structured_outputs"]["json"]
    assert schema["properties"]["final_answer"]["const"] == "B"


def test_what_is_not_about_what_was_asked_is_refused(server, prompt):
    """Letters that lack or have no probability, and an answer about another prompt."""
    ids, tokens = prompt
    lacks, others = "expected one log-probability of each", "expected it to see the"
    for answer, said in (
        (letters(prompt, [float("nan")] * 5), "expected a finite log-probability"),
        (letters(prompt, SOUND[:4]), lacks),
        (letters((ids, dict.fromkeys(LETTERS, 7)), SOUND), lacks),
        (completion(ids), lacks),
        (letters((ids[1:], tokens), SOUND), others),
    ):
        server.answers[CHAT] = answer
        refused(f"server {server.url}: {said}", read, server)


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"<html>", b"\xff", DEEP], ids=lambda body: repr(body[:9])
)
@pytest.mark.parametrize("path", [MODELS, VERSION, CHAT])
def test_an_answer_of_another_shape_is_one_sentence(server, prompt, path, body):
    server.answers |= {CHAT: letters(prompt, SOUND), path: body}
    refused(f"server {server.url}: expected a vLLM server's answer", read, server)


def test_its_model_has_the_name_that_it_says(server):
    server.answers[MODELS] = {"data": [{"id": "base"}, {"id": "adapter"}]}
    assert connect(server).describe()["served_as"] == "base"
    refused("expected exact: False", connect, server, exact=True)
    server.answers[MODELS] = {"data": []}
    refused("it serves none; start vllm serve", connect, server)


@pytest.mark.parametrize(
    ("status", "health", "lost"),
    [(500, 503, True), (503, 200, True), (500, 200, False), (400, 200, False)],
)
def test_a_server_whose_engine_is_dead_is_a_lost_model(server, status, health, lost):
    """A request that fails is one image's failure; an engine that is dead fails every one after it."""
    client = connect(server)
    server.answers |= {
        CHAT: (b"EngineCore\x1b[2J\nencountered an issue", status),
        HEALTH: ({}, health),
    }
    error = refused(f"failed with {status} \\(EngineCore.* encountered an issue", read, client)
    assert isinstance(error, ModelLost) == lost


def test_a_server_that_is_gone_is_one_sentence(server, monkeypatch):
    client = connect(server)
    server.answers[CHAT] = httpx2.RemoteProtocolError("illegal status line")
    refused("expected a vLLM server, got none .illegal", read, client, kind=ModelLost)
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nowhere = f"http://127.0.0.1:{listening.getsockname()[1]}"
    said = "expected a vLLM server, got none .*refused.*; start one with vllm serve"
    refused(said, connect, server, server=nowhere, kind=ModelLost)


@pytest.mark.parametrize("begins", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_the_time_limit_is_of_the_whole_answer(begins):
    """A header or a body that comes byte by byte and never ends."""

    class Dripping(socketserver.StreamRequestHandler):
        def handle(self):
            self.connection.sendall(begins)
            with contextlib.suppress(OSError):
                while True:
                    self.connection.sendall(b" ")
                    time.sleep(0.01)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Dripping) as dripping:
        threading.Thread(target=dripping.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{dripping.server_address[1]}"
        refused(
            r"expected an answer in 0\.3 s, got none; raise server_timeout",
            connect,
            Scripted(),
            server=url,
            server_timeout=0.3,
        )
        dripping.shutdown()


def test_a_redirection_is_not_followed(server):
    server.answers[CHAT] = b"", 307
    refused("failed with 307", read, server)
    assert {request.url.host for request in server.asked} == {"127.0.0.1"}


def test_the_key_is_sent_and_written_nowhere(server, monkeypatch):
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", "s3cret")
    client = connect(server)
    assert {one.headers.get("Authorization") for one in server.asked} == {"Bearer s3cret"}
    assert "s3cret" not in f"{client.describe()}{client.settings}"
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", "s3cret\n")
    error = refused(r"\$AGENTIC_IQA_SERVER_KEY: expected printable ASCII", connect, server)
    assert "s3cret" not in str(error)
