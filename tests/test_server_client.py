"""The client of a vLLM server, against a scripted one on this machine's loopback: what it says is scored only where it
is about the tokens that were asked for, and every failure is one sentence. tests/vllm_engine has a real server."""

import base64
import gzip
import io
import itertools
import json
import logging
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import openai
import pytest
from attacks import in_time
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

    @property
    def logins(self) -> set[str | None]:
        return {request.headers.get("Authorization") for request in self.asked}


@pytest.fixture
def server(monkeypatch):
    scripted, real = Scripted(), openai.DefaultHttpxClient
    over = httpx2.MockTransport(scripted)
    monkeypatch.setattr(
        "openai.DefaultHttpxClient", lambda **options: real(transport=over, **options)
    )
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)
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


def completion(ids, choice, **changes):
    usage = {"completion_tokens": 1, "prompt_tokens": 1, "total_tokens": 2}
    return {"usage": usage, "prompt_token_ids": ids, "choices": [choice]} | changes


def letters(prompt, values, **changes):
    """A chat completion with these log-probabilities, one a letter."""
    given = zip(LETTERS, values, strict=False)
    top = [{"token": f"token_id:{prompt[1][letter]}", "logprob": value} for letter, value in given]
    return completion(prompt[0], {"logprobs": {"content": [{"top_logprobs": top}]}}, **changes)


def session(at):
    return (connect(at) if isinstance(at, Scripted) else at).open([PICTURE])


def read(at):
    return session(at).read_letters(SCORING, ANSWER_PREFIX, LETTERS)


def write(at):
    return session(at).generate(SCORING, answer_reply(LETTERS), answer_prefix=ANSWER_PREFIX + "B")


def refused(said, ask, *args, kind=VLMError, **options) -> VLMError:
    with pytest.raises(kind, match=said) as caught:
        ask(*args, **options)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    return caught.value


def test_what_is_asked_and_answered(server, prompt, monkeypatch, caplog):
    """The picture goes as PNG, with its every pixel; a proxy of the environment is not asked."""
    caplog.set_level(logging.DEBUG, "agentic_iqa_local")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    client = connect(server)
    server.answers[CHAT] = letters(prompt, SOUND)
    opened = client.open([PICTURE])
    found = opened.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert found.logprobs == dict(zip(LETTERS, SOUND, strict=True))
    assert found.off_letter_mass == pytest.approx(1 - 5 * 0.19)
    assert (opened.usage.calls, opened.usage.prefilled, opened.usage.reused) == (
        1,
        len(prompt[0]),
        0,
    )
    body = json.loads(server.asked[-1].content)
    assert body["logprob_token_ids"] == [*prompt[1].values()]
    assert body["messages"][-1] == {"role": "assistant", "content": ANSWER_PREFIX}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert (body["repetition_penalty"], body["top_p"], body["top_k"]) == (1.0, 1.0, -1)
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    sent = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
    assert sent.tobytes() == PICTURE.tobytes()
    rest = '", "quality_reasoning": "Soft."}'
    usage = {"completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 32}}
    letter = client.renderer.encode(ANSWER_PREFIX + "B")[
        len(client.renderer.encode(ANSWER_PREFIX)) :
    ]
    server.answers[CHAT] = completion(
        prompt[0] + letter, {"message": {"content": rest}}, usage=usage
    )
    answer = opened.generate(SCORING, answer_reply(LETTERS), answer_prefix=ANSWER_PREFIX + "B")
    assert answer == ANSWER_PREFIX + "B" + rest
    assert (opened.usage.reused, opened.usage.decoded) == (32, 9)
    assert "grammar" in json.loads(server.asked[-1].content)["structured_outputs"]
    assert len([m for m in caplog.messages if m.startswith("Prompt of the model, as it is")]) == 2


def test_what_is_not_about_what_was_asked_is_refused(server, prompt):
    """Letters that lack, stand twice or have no probability, and an answer about another prompt."""
    twice = letters(prompt, SOUND)
    top = twice["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    top += [entry | {"logprob": -9.0} for entry in top]
    for answer, said in (
        (
            letters(prompt, [float("nan")] * 5),
            f"server {server.url}: expected a finite log-probability",
        ),
        (letters(prompt, ["-1"] * 5), f"server {server.url}: expected a finite log-probability"),
        (letters(prompt, SOUND[:4]), "expected one log-probability of each letter's token"),
        (twice, "expected one log-probability of each letter's token"),
        (
            letters((prompt[0], dict.fromkeys(LETTERS, 7)), SOUND),
            "it must be a vLLM server that honours",
        ),
        (letters((prompt[0][1:], prompt[1]), SOUND), "expected it to see the"),
        (letters(prompt, SOUND, prompt_token_ids=None), "expected it to see the"),
    ):
        server.answers[CHAT] = answer
        refused(said, read, server)


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{}", b"<html>", b"\xff", DEEP], ids=lambda body: repr(body[:9])
)
@pytest.mark.parametrize("path", [MODELS, VERSION, CHAT])
def test_an_answer_of_another_shape_is_one_sentence(server, prompt, path, body):
    server.answers |= {CHAT: letters(prompt, SOUND), path: body}
    for ask in (read, write):
        refused(f"server {server.url}: ", ask, server)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"usage": {"completion_tokens": "9"}}, "tokens: expected a whole number"),
        ({"usage": {"completion_tokens": -1}}, "tokens: expected 0 or more"),
        ({"choices": [{"message": {"content": ["x"]}}]}, "text: expected a text"),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": 1e999}}}, "infinity"),
    ],
    ids=str,
)
def test_a_part_of_another_kind_is_one_sentence(server, prompt, changes, said):
    usage = {"completion_tokens": 1} | changes.get("usage", {})
    answer = completion(prompt[0], {"message": {"content": "x"}})
    server.answers[CHAT] = json.dumps(answer | changes | {"usage": usage}).encode()
    refused(f"server {server.url}: .*{said}", write, server)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BODIES = {
    "drips": (itertools.chain([HEAD + b"\r\n"], itertools.repeat(b" ")), "expected an answer in 1 s"),
    "headers drip": (itertools.chain([HEAD + b"X: "], itertools.repeat(b"x")), "expected an answer in 1 s"),
    "no end": (itertools.chain([HEAD + b"\r\n"], itertools.repeat(b" " * 2**20)), "expected at most 16777216 bytes"),
    "compressed": ([HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b" " * 2**20)], "got it compressed"),
}  # fmt: skip


@contextmanager
def serving(pieces) -> Iterator[str]:
    """The address of a server that has a model, and answers chats with these bytes, one after the other, until the
    other side ends the connection."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer = {"data": [{"id": "embedded"}], "version": "0.33"}
            self.wfile.write(HEAD + b"\r\n" + json.dumps(answer).encode())

        def do_POST(self):
            try:
                for piece in pieces:
                    self.wfile.write(piece)
                    if len(piece) == 1 and over.wait(0.01):
                        return
            except OSError:
                over.set()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            over.set()
            listening.shutdown()


@pytest.mark.parametrize(("pieces", "said"), BODIES.values(), ids=BODIES)
def test_an_answer_without_end_is_refused_by_the_whole_time_or_the_whole_size(pieces, said):
    """Each byte comes in time; all of them never do."""
    limit = 1 if "expected an answer" in said else 600
    with serving(pieces) as address, in_time():
        client = ServerClient(
            "embedded",
            ModelSettings(path=str(EMBEDDED), server=address, server_timeout=limit),
            "cpu",
        )
        refused(said, read, client)


def test_a_wrong_or_missing_model_is_named(server):
    server.answers[MODELS] = {"data": [{"id": "one"}, {"id": "two"}]}
    assert connect(server, served_name="two").describe()["served_as"] == "two"
    for served, options, said in (
        ([{"id": "one"}, {"id": "two"}], {}, "serves one, two; name one of them with served_name"),
        ([{"id": "one"}], {"served_name": "other"}, "expected the model other, it serves one"),
        ([], {}, "it serves none; .* start vllm serve"),
        ([], {"exact": True}, "expected exact: false, for the server decides that"),
    ):
        server.answers[MODELS] = {"data": served}
        refused(said, connect, server, **options)


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


def test_a_server_that_is_gone_late_or_none_is_one_sentence(server, monkeypatch):
    client = connect(server, server_timeout=0.2)
    assert set(server.asked[-1].extensions["timeout"].values()) == {0.2}
    server.answers[CHAT] = httpx2.ReadTimeout("late")
    refused(r"expected an answer in 0\.2 s, got none; raise server_timeout", read, client)
    server.answers[CHAT] = httpx2.RemoteProtocolError("illegal status line")
    refused("expected a vLLM server, got none .illegal", read, client, kind=ModelLost)
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nowhere = f"http://127.0.0.1:{listening.getsockname()[1]}"
    said = "expected a vLLM server, got none .*refused.*; start one with vllm serve"
    refused(said, connect, server, server=nowhere, kind=ModelLost)


def test_a_redirection_is_not_followed(server):
    server.answers[CHAT] = b"", 307
    refused("failed with 307", read, server)
    assert {request.url.host for request in server.asked} == {"127.0.0.1"}


def test_key_and_login_are_sent_and_written_nowhere(server, prompt, monkeypatch):
    """The first is base64 of iqa:hunter2/@:#, made by coreutils' base64."""
    server.answers[CHAT] = letters(prompt, SOUND)
    client = connect(
        server, server=server.url.replace("http://", "http://iqa:hunter2%2F%40%3A%23@")
    )
    read(client)
    assert server.logins == {"Basic aXFhOmh1bnRlcjIvQDoj"}
    settings = client.settings
    assert (
        "hunter2"
        not in f"{client.describe()}{settings}{settings.model_dump()}{settings.model_dump_json()}"
    )
    assert client.describe()["device"] == settings.model_dump()["server"] == server.url
    server.asked.clear()
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", "s3cret")
    connect(server)
    assert server.logins == {"Bearer s3cret"}
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", "s3cret\n")
    error = refused(r"\$AGENTIC_IQA_SERVER_KEY: expected printable ASCII", connect, server)
    assert "s3cret" not in str(error)
