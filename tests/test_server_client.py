"""The client of a vLLM server, against a scripted one on this machine's loopback: what it says is scored only where it
is about the tokens that were asked for, and every failure is one sentence. tests/vllm_engine has a real server."""

import base64
import io
import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import EMBEDDED
from families import SCORING
from PIL import Image
from scripted import ScriptedTools

from agentic_iqa_local.config import ModelSettings, load_settings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX
from agentic_iqa_local.nodes.replies import summary_reply
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client import ModelLost, VLMError
from agentic_iqa_local.vlm_client.rendering import Renderer, resolve_letters
from agentic_iqa_local.vlm_client.server_client import ServerClient

PICTURE = Image.effect_noise((224, 224), 60).convert("RGB")
MODELS, VERSION, CHAT, HEALTH = "/v1/models", "/version", "/v1/chat/completions", "/health"
SOUND = [math.log(0.19)] * 5


class Scripted(ThreadingHTTPServer):
    """Answers by path: bytes or data are sent as JSON, a pair with a status, a function is handed the handler. `asked`
    holds the path, the login and the body of each request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = {MODELS: {"data": [{"id": "embedded"}]}, VERSION: {"version": "0.33"}, HEALTH: {}}
        self.asked: list[tuple[str, str | None, dict]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.asked.append((self.path, self.headers["Authorization"], json.loads(body or b"{}")))
        answer = self.server.answers.get(self.path, {})
        if callable(answer):
            answer(self)
        else:
            send(self, *(answer if isinstance(answer, tuple) else (answer,)))

    do_POST = do_GET

    def log_message(self, *_):
        pass


def send(handler, content, status: int = 200, **headers: str) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), "Content-Type": "application/json", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def server():
    with Scripted() as scripted:
        threading.Thread(target=scripted.serve_forever, args=(0.01,), daemon=True).start()
        yield scripted
        scripted.shutdown()


def no_http(handler) -> None:
    handler.wfile.write(b"SSH-2.0-x\r\n")
    handler.close_connection = True


def connect(at, **options) -> ServerClient:
    return ServerClient("embedded", ModelSettings(path=str(EMBEDDED), **{"server": at.url, **options}), "cpu")


@pytest.fixture(scope="module")
def prompt():
    """(ids of the scoring prompt with its answer so far, letter → token id), as the client makes them."""
    renderer = Renderer("embedded", ModelSettings(path=str(EMBEDDED)), weights=False)
    rendered = renderer.render(SCORING, 1, ANSWER_PREFIX)
    ids = rendered.prompt_with(renderer.expand(rendered, [PICTURE])) + rendered.answer_ids
    return ids, resolve_letters(renderer.encode, rendered.text, LETTERS)


def completion(prompt, choice, **changes):
    usage = {"completion_tokens": 1, "prompt_tokens": 1, "total_tokens": 2}
    return {"usage": usage, "prompt_token_ids": prompt[0], "choices": [choice]} | changes


def letters(prompt, values, **changes):
    """A chat completion with these log-probabilities, one a letter."""
    given = zip(LETTERS, values, strict=False)
    top = [{"token": f"token_id:{prompt[1][letter]}", "logprob": value} for letter, value in given]
    return completion(prompt, {"logprobs": {"content": [{"top_logprobs": top}]}}, **changes)


def read(client):
    return client.open([PICTURE]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)


def write(client):
    return client.open([PICTURE]).generate(SCORING, summary_reply(LETTERS), answer_prefix=ANSWER_PREFIX + "B")


def refused(ask, said, kind=VLMError) -> VLMError:
    with pytest.raises(kind, match=said) as caught:
        ask()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    return caught.value


def test_what_is_asked_and_answered(server, prompt, monkeypatch):
    """The picture goes as PNG, with its every pixel; a proxy of the environment is not asked."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    client = connect(server)
    server.answers[CHAT] = letters(prompt, SOUND)
    session = client.open([PICTURE])
    found = session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert found.logprobs == dict(zip(LETTERS, SOUND, strict=True))
    assert found.off_letter_mass == pytest.approx(1 - 5 * 0.19)
    assert (session.usage.calls, session.usage.prefilled, session.usage.reused) == (1, len(prompt[0]), 0)
    body = server.asked[-1][2]
    assert body["logprob_token_ids"] == [*prompt[1].values()]
    assert body["messages"][-1] == {"role": "assistant", "content": ANSWER_PREFIX}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert (body["repetition_penalty"], body["top_p"], body["top_k"]) == (1.0, 1.0, -1)
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    sent = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
    assert sent.tobytes() == PICTURE.tobytes()
    rest = '", "quality_reasoning": "Soft."}'
    usage = {"completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 32}}
    whole = prompt[0] + client.renderer.encode(ANSWER_PREFIX + "B")[len(client.renderer.encode(ANSWER_PREFIX)) :]
    server.answers[CHAT] = completion((whole,), {"message": {"content": rest}}, usage=usage)
    answer = session.generate(SCORING, summary_reply(LETTERS), answer_prefix=ANSWER_PREFIX + "B")
    assert answer == ANSWER_PREFIX + "B" + rest
    assert (session.usage.reused, session.usage.decoded) == (32, 9)
    assert "grammar" in server.asked[-1][2]["structured_outputs"]


@pytest.mark.parametrize(
    "values",
    [[0.0] * 5, [True] * 5, [None] * 5, ["-1"] * 5, [float("nan")] * 5, [-9999.0] * 5, [math.log(0.21)] * 5, SOUND[:4]],
    ids=str,
)  # fmt: skip
def test_impossible_log_probabilities_are_no_read_and_a_row_without_a_score(server, prompt, values, tmp_path):
    server.answers[CHAT] = letters(prompt, values)
    refused(lambda: read(connect(server)), server.url)
    settings = load_settings().with_options(engine="server")
    model = settings.model("server.embedded").model_copy(update={"server": server.url})
    settings = settings.model_copy(update={"models": {"embedded": model}})
    PICTURE.save(tmp_path / "picture.png")
    tools = ScriptedTools({"NIQE": 3.0, "LocalNR": 3.0})
    row = assess(tmp_path / "picture.png", services=Services(settings, "cpu", tools=tools), pipeline="letters")
    assert row.q is None
    assert server.url in row.error


def test_letters_of_other_tokens_or_an_answer_about_another_prompt_are_refused(server, prompt):
    twice = letters(prompt, SOUND)
    top = twice["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    top += [entry | {"logprob": -9.0} for entry in top]
    for answer, said in (
        (twice, "expected one log-probability of each letter's token"),
        (letters((prompt[0], dict.fromkeys(LETTERS, 7)), SOUND), "it must be a vLLM server that honours"),
        (letters((prompt[0][1:], prompt[1]), SOUND), "expected it to see the"),
        (letters(prompt, SOUND, prompt_token_ids=None), "expected it to see the"),
    ):
        server.answers[CHAT] = answer
        refused(lambda: read(connect(server)), said)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"text"', b"{}", b"<html>", b"\xff"], ids=repr)
@pytest.mark.parametrize("path", [MODELS, VERSION, CHAT])
def test_an_answer_of_another_shape_is_one_sentence(server, prompt, path, body):
    server.answers[CHAT] = letters(prompt, SOUND)
    server.answers[path] = body
    for ask in (read, write):
        refused(lambda ask=ask: ask(connect(server)), f"server {server.url}: ")


def test_a_wrong_or_missing_model_is_named(server):
    server.answers[MODELS] = {"data": [{"id": "one"}, {"id": "two"}]}
    refused(lambda: connect(server), "serves one, two; name one of them with served_name")
    refused(lambda: connect(server, served_name="other"), "expected the model other, it serves one, two")
    assert connect(server, served_name="two").describe()["served_as"] == "two"
    server.answers[MODELS] = {"data": []}
    refused(lambda: connect(server), "it serves none; .* start vllm serve")
    refused(lambda: connect(server, exact=True), "expected exact: false, for the server decides that")


@pytest.mark.parametrize(
    ("status", "health", "lost"), [(500, 503, True), (503, 200, True), (500, 200, False), (400, 200, False)]
)
def test_a_server_whose_engine_is_dead_is_a_lost_model(server, monkeypatch, status, health, lost):
    """A request that fails is one image's failure; an engine that is dead fails every one after it."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)
    client = connect(server)
    server.answers |= {CHAT: (b"EngineCore\x1b[2J\nencountered an issue", status), HEALTH: ({}, health)}
    error = refused(lambda: read(client), f"failed with {status} \\(EngineCore.* encountered an issue")
    assert isinstance(error, ModelLost) == lost


def test_a_server_that_is_gone_or_late_is_one_sentence(server):
    client = connect(server, server_timeout=0.2)
    late = threading.Event()
    server.answers[CHAT] = lambda handler: late.wait(60)
    refused(lambda: read(client), r"expected an answer in 0\.2 s, got none; raise server_timeout")
    late.set()
    server.answers[CHAT] = no_http
    refused(lambda: read(client), "expected a vLLM server, got none", ModelLost)
    nowhere = Scripted()
    nowhere.server_close()
    refused(lambda: connect(nowhere), "expected a vLLM server, got none .*; start one with vllm serve", ModelLost)


def test_a_redirection_is_not_followed(server, prompt):
    elsewhere = Scripted()
    server.answers[CHAT] = lambda handler: send(handler, b"", 307, Location=elsewhere.url + CHAT)
    refused(lambda: read(connect(server)), "failed with 307")
    elsewhere.server_close()
    assert elsewhere.asked == []


def test_key_and_login_are_sent_and_written_nowhere(server, prompt, monkeypatch):
    """The last is base64 of iqa:hunter2/@:#, made by coreutils' base64."""
    server.answers[CHAT] = letters(prompt, SOUND)
    with_login = server.url.replace("http://", "http://iqa:hunter2%2F%40%3A%23@")
    client = connect(server, server=with_login)
    read(client)
    assert {sent for _, sent, _ in server.asked} == {"Basic aXFhOmh1bnRlcjIvQDoj"}
    shown = [client.describe(), client.settings, client.settings.model_dump(), client.settings.model_dump_json()]
    assert "hunter2" not in str(shown)
    assert client.describe()["device"] == client.settings.model_dump()["server"] == server.url
    server.asked.clear()
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", "s3cret")
    connect(server)
    assert {sent for _, sent, _ in server.asked} == {"Bearer s3cret"}
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", "s3cret\n")
    assert "s3cret" not in str(refused(lambda: connect(server), r"\$AGENTIC_IQA_SERVER_KEY: expected printable ASCII"))
