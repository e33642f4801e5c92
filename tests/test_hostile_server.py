"""A server that answers with anything, on this machine's loopback: nothing of it is scored, waited for or
printed unchecked."""

import gzip
import json
import logging
import math
import os
import sqlite3
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import EMBEDDED
from PIL import Image
from scripted import ScriptedTools

from agentic_iqa_local.batch.work import Assessing
from agentic_iqa_local.cli.assess import main
from agentic_iqa_local.config import Settings, load_settings
from agentic_iqa_local.config_sections import ConfigError, ModelSettings
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.iqa_tools.cache import ScoreCache
from agentic_iqa_local.iqa_tools.calibration import CalibrationError, read_map_file
from agentic_iqa_local.iqa_tools.runner import SHIPPED_MAPS, ToolReading
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.replies import summary_reply
from agentic_iqa_local.services import Services
from agentic_iqa_local.vlm_client import LetterRead, ModelLost, VLMError
from agentic_iqa_local.vlm_client.letters import resolve_letters
from agentic_iqa_local.vlm_client.rendering import Renderer
from agentic_iqa_local.vlm_client.server_client import ServerClient
from agentic_iqa_local.vlm_client.server_connection import MAX_ANSWER

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
PICTURE = Image.new("RGB", (64, 64), (90, 120, 60))
MODELS, VERSION, CHAT, HEALTH = "/v1/models", "/version", "/v1/chat/completions", "/health"
DEEP = b"[" * 200_000
PARTS = 6000  # of a slow answer, ten a second, before it ends well; a test's own deadline is far below that


class Hostile:
    """Answers by path: bytes or data are sent as JSON, a function is handed the handler. `seen` holds paths
    and headers."""

    def __init__(self):
        self.answers = {MODELS: {"data": [{"id": "embedded"}]}, VERSION: {"version": "0.33"}, HEALTH: {}}
        self.seen: list[tuple[str, str | None]] = []
        self.url = ""
        self.over = threading.Event()


@contextmanager
def serving():
    state = Hostile()

    class Handler(BaseHTTPRequestHandler):
        over = state.over

        def do_GET(self):
            state.seen.append((self.path, self.headers["Authorization"]))
            self.body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            answer = state.answers.get(self.path, {})
            try:
                if callable(answer):
                    answer(self)
                else:
                    send(self, answer if isinstance(answer, bytes) else json.dumps(answer).encode())
            except OSError:
                pass  # the client has gone, as it should

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        state.over.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def server():
    with serving() as state:
        yield state


def send(handler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def connect(at: Hostile, **options) -> ServerClient:
    return ServerClient("embedded", ModelSettings(path=str(EMBEDDED), **{"server": at.url, **options}), "cpu")


@pytest.fixture(scope="module")
def prompt():
    """(ids of the scoring prompt with its answer so far, letter → token id), as the client makes them."""
    renderer = Renderer("embedded", ModelSettings(path=str(EMBEDDED)), weights=False)
    rendered = renderer.render(SCORING, 1, ANSWER_PREFIX)
    expanded = renderer.expand(rendered, [PICTURE])
    ids = [*rendered.head, *expanded.ids, *rendered.tail, *rendered.answer_ids]
    return ids, resolve_letters(renderer.encode, rendered.text, LETTERS)


def completion(prompt, **changes):
    return {"usage": {"completion_tokens": 1}, "prompt_token_ids": prompt[0], "choices": []} | changes


def letters(prompt, values, **changes):
    """A chat completion with these log-probabilities, one a letter."""
    top = [
        {"token": f"token_id:{prompt[1][letter]}", "logprob": value}
        for letter, value in zip("ABCDE", values, strict=False)
    ]
    return completion(prompt, choices=[{"logprobs": {"content": [{"top_logprobs": top}]}}]) | changes


def written(prompt, content, **changes):
    return completion(prompt, choices=[{"message": {"content": content}}]) | changes


def read(client: ServerClient) -> LetterRead:
    return client.open([PICTURE]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)


def write(client: ServerClient) -> str:
    return client.open([PICTURE]).generate(SCORING, summary_reply(LETTERS), answer_prefix=ANSWER_PREFIX)


def one_sentence(error: BaseException) -> bool:
    return str(error).isprintable() and len(str(error)) < 1000


FIFTH = math.log(0.19)
SOUND = [FIFTH] * 5


def test_a_sound_answer_is_taken(server, prompt):
    server.answers[CHAT] = letters(prompt, SOUND)
    client = connect(server)
    found = read(client)
    assert found.logprobs == dict.fromkeys("ABCDE", FIFTH)
    assert found.off_letter_mass == pytest.approx(1 - 5 * 0.19)
    server.answers[CHAT] = written(prompt, 'B", "quality_reasoning": "Soft."}')
    assert write(client) == ANSWER_PREFIX + 'B", "quality_reasoning": "Soft."}'


# log-probabilities


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 5, [5.0] * 5, [True] * 5, [False] * 5, [700.0, *SOUND[1:]], [1e308, *SOUND[1:]], ["-1.6"] * 5, [None] * 5,
        [[-1.6]] * 5, [{}] * 5, [float("nan")] * 5, [float("inf"), *SOUND[1:]], [float("-inf"), *SOUND[1:]], [-9999.0] * 5,
        [-1e308, *SOUND[1:]], [-(10**400), *SOUND[1:]], [0.01, -50, -50, -50, -50], [math.log(0.21)] * 5, SOUND[:4], [],
    ],
    ids=str,
)  # fmt: skip
def test_impossible_log_probabilities_are_no_read(server, prompt, values):
    server.answers[CHAT] = letters(prompt, values)
    with pytest.raises(VLMError, match=server.url) as caught:
        read(connect(server))
    assert one_sentence(caught.value)


def test_a_letter_that_is_given_twice_is_no_read(server, prompt):
    answer = letters(prompt, SOUND)
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    top += [entry | {"logprob": -9.0} for entry in top]
    server.answers[CHAT] = answer
    with pytest.raises(VLMError, match="expected one log-probability of each letter's token"):
        read(connect(server))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -9999.0, 0.01, True, "-1", None], ids=repr)
def test_no_engines_read_holds_what_is_no_log_probability(bad):
    with pytest.raises(VLMError, match="finite log-probability of at most 0 for the letter B"):
        LetterRead({"A": -2.0, "B": bad}, 0.0, {})
    with pytest.raises(VLMError, match="model: expected a finite log-probability"):
        LetterRead.of("model", {1: -2.0, 2: bad}, {"A": 1, "B": 2})


def test_probabilities_sum_to_one_at_most_within_the_rounding_that_is_stated():
    # two letters at ln(p): together 2p, so 1.0008 is within one thousandth of 1 and 1.002 is not
    assert (
        LetterRead.of("model", dict.fromkeys((1, 2), math.log(0.5004)), {"A": 1, "B": 2}).off_letter_mass == 0
    )
    with pytest.raises(VLMError, match=r"A, B that sum to at most 1, got 1\.002"):
        LetterRead.of("model", dict.fromkeys((1, 2), math.log(0.501)), {"A": 1, "B": 2})
    with pytest.raises(VLMError, match="got none of token 2"):
        LetterRead.of("model", {1: -1.0}, {"A": 1, "B": 2})


def test_a_model_that_overflows_is_one_sentence(client, photo, monkeypatch):
    """transformers' own read: a head that gives NaN."""
    session = client.open([photo])
    real = session._advance
    monkeypatch.setattr(session, "_advance", lambda *args, **options: real(*args, **options) * math.nan)
    with pytest.raises(VLMError, match=r"embedded: expected a finite log-probability .* set dtype: float32"):
        session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    session.close()


# shapes

NOT_OBJECTS = [
    b"",
    b"null",
    b"[]",
    b"[[]]",
    b"1",
    b"1e999",
    b"NaN",
    b'"text"',
    b"true",
    b"{}",
    b"{",
    b"<html>",
    b"\xff\xfe\x00",
    DEEP,
]
ODD = [None, [], {}, 1, -1, True, "text", [None], [[]], [{}]]


def wrapped(key: str) -> list[bytes]:
    deep = b'{"%s":' % key.encode() + DEEP
    return [*(json.dumps({key: value}).encode() for value in ODD), deep, b'{"a":' * 100_000]


@pytest.mark.parametrize("body", [*NOT_OBJECTS, *wrapped("data"), b'{"data": [{"id": null}]}', b'{"data": [{"id": 1}]}',
    b'{"data": [["id"]]}', b'{"data": [{"id": "\\ud800"}]}', b'{"data": {"id": "embedded"}}', b'[{"id": "embedded"}]',
    b'{"data": [{"id": ' + b"9" * 100_000 + b"}]}"], ids=lambda body: repr(body[:24]))  # fmt: skip
def test_any_list_of_models_ends_in_one_sentence(server, body):
    server.answers[MODELS] = body
    with pytest.raises(
        VLMError, match=f"server {server.url}: expected a (ModelList from /v1/models|model, it serves none)"
    ) as caught:
        connect(server)
    assert one_sentence(caught.value)


@pytest.mark.parametrize(
    "body", [*NOT_OBJECTS, *(b for b in wrapped("version") if b'"text"' not in b)], ids=lambda b: repr(b[:24])
)
def test_any_version_ends_in_one_sentence(server, body):
    server.answers[VERSION] = body
    with pytest.raises(VLMError, match=f"server {server.url}: expected a Version from /version") as caught:
        connect(server)
    assert one_sentence(caught.value)


ODD_PARTS = [
    *({"choices": odd} for odd in ODD),
    *({"usage": odd} for odd in ODD),
    *({"prompt_token_ids": odd} for odd in [*ODD, [1, 2], [True], [1.5], ["1"], [10**30], {"0": 1}]),
    *({"usage": {"completion_tokens": odd}} for odd in (None, [], -1, 1.5, True, "1", 10**9, 10**400)),
    *({"usage": {"completion_tokens": 1, "prompt_tokens_details": odd}} for odd in ([], 1, "text", {"cached_tokens": -1},
       {"cached_tokens": 10**9}, {"cached_tokens": True}, {"cached_tokens": "1"})),
    *({"choices": [{"message": odd, "logprobs": odd}]} for odd in ODD),
    *({"choices": [{"message": {"content": odd}, "logprobs": {"content": odd}}]} for odd in ODD if odd != "text"),
    *({"choices": [{"logprobs": {"content": [{"top_logprobs": odd}]}}]} for odd in ODD),
]  # fmt: skip


@pytest.mark.parametrize("part", ODD_PARTS, ids=lambda part: repr(part)[:60])
@pytest.mark.parametrize(
    ("ask", "sound"),
    [(read, lambda p: letters(p, SOUND)), (write, lambda p: written(p, "B"))],
    ids=["read", "write"],
)
def test_any_completion_ends_in_one_sentence(server, prompt, ask, sound, part):
    server.answers[CHAT] = sound(prompt) | part
    with pytest.raises(VLMError, match=f"server {server.url}: expected ") as caught:
        ask(connect(server))
    assert one_sentence(caught.value)


@pytest.mark.parametrize(
    "body", [*NOT_OBJECTS, b'{"choices":' + DEEP, b'{"usage":' + DEEP], ids=lambda body: repr(body[:24])
)
@pytest.mark.parametrize("ask", [read, write])
def test_any_body_of_a_completion_ends_in_one_sentence(server, ask, body):
    server.answers[CHAT] = body
    with pytest.raises(
        VLMError, match=f"server {server.url}: expected a (Letter|Text)Completion from /v1/chat/completions"
    ) as caught:
        ask(connect(server))
    assert one_sentence(caught.value)


# bytes and time


def endless(status: int = 200, head: str = "", part: bytes = b'[[[["' * 4096):
    def answer(handler):
        handler.wfile.write(f"HTTP/1.1 {status} OK\r\n{head}\r\n".encode())
        for _ in range(2**31 // len(part)):
            handler.wfile.write(part)

    return answer


def bomb(encoding: str, body: bytes):
    return lambda handler: send(handler, body, Content_Encoding=encoding)


def zeros_in_gzip() -> bytes:
    """A GiB of zeros: members of 64 MiB one after another, which gzip's format allows."""
    return gzip.compress(bytes(2**26)) * 16


@pytest.mark.parametrize("path", [MODELS, VERSION, CHAT])
@pytest.mark.parametrize(
    "answer",
    [
        endless(),
        endless(500),
        endless(head=f"Content-Length: {2**31}\r\n"),
        endless(head="Transfer-Encoding: chunked\r\n", part=b"10000\r\n" + b"[" * 65536 + b"\r\n"),
    ],
    ids=["no end", "no end of an error", "two GiB", "chunks"],
)
def test_an_answer_without_end_is_left_at_the_limit(server, path, answer):
    server.answers[path] = answer
    with pytest.raises(
        VLMError, match=f"at most {MAX_ANSWER} bytes from {path}|{path} failed with 500"
    ) as caught:
        read(connect(server))
    assert one_sentence(caught.value)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "\xff"])
@pytest.mark.parametrize("path", [MODELS, VERSION, CHAT])
def test_a_compressed_answer_is_refused_unopened(server, path, encoding):
    body = zeros_in_gzip()
    server.answers[path] = bomb(encoding, body)
    with pytest.raises(VLMError, match="compressed, though that was not asked for"):
        read(connect(server))


def drip(before: bytes, part: bytes, after: bytes = b""):
    """Sends `part` PARTS times, slowly but never too slowly for one wait, and then `after`."""

    def answer(handler):
        handler.wfile.write(before)
        for _ in range(PARTS):
            handler.wfile.write(part)
            if handler.over.wait(0.1):
                return
        handler.wfile.write(after)

    return answer


SLOW = {
    "nothing": drip(b"", b""),
    "a header": drip(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "the status": drip(b"HTTP/1.1 200 ", b"O"),
    "headers without end": drip(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "early hints": drip(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "a body": drip(b"HTTP/1.1 200 OK\r\n\r\n", b" "),
    "a body with its length": drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b" "),
    "chunks": drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "an error": drip(b"HTTP/1.1 500 No\r\n\r\n", b"x"),
}


@pytest.mark.parametrize("path", [MODELS, VERSION, CHAT])
@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW)
def test_a_slow_answer_is_left_at_the_deadline(server, path, answer):
    server.answers[path] = answer
    with pytest.raises(
        # on a busy machine an earlier request may be the late one
        VLMError,
        match=r"expected the whole answer of \S+ in 0\.5 s, got none; raise server_timeout",
    ):
        read(connect(server, server_timeout=0.5))


def test_a_server_that_does_not_read_is_left_at_the_deadline(server, monkeypatch):
    """A large picture fills the socket's buffers, and every wait for room in them is short."""
    server.answers[CHAT] = SLOW["nothing"]
    noise = Image.frombytes("RGB", (1024, 1024), os.urandom(3 * 2**20))
    with pytest.raises(VLMError, match=r"in 0\.5 s, got none; raise server_timeout"):
        connect(server, server_timeout=0.5).open([noise]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)


def test_health_that_never_comes_is_none(server, monkeypatch):
    client = connect(server)
    monkeypatch.setattr("agentic_iqa_local.vlm_client.server_connection.START_TIMEOUT", 0.5)
    server.answers[CHAT], server.answers[HEALTH] = lambda handler: send(handler, b"dead", 500), SLOW["a body"]
    with pytest.raises(ModelLost, match="failed with 500"):
        read(client)


@pytest.mark.parametrize("raw", [b"", b"\x00" * 64, b"SSH-2.0-x\r\n", b"HTTP/9 x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 10**9\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    b"HTTP/1.1 200 OK\r\nX: \x1b]0;owned\x07" + b"x" * 200_000], ids=lambda raw: repr(raw[:24]))  # fmt: skip
@pytest.mark.parametrize("path", [MODELS, CHAT])
def test_what_is_no_http_is_one_sentence(server, path, raw):
    server.answers[path] = lambda handler: handler.wfile.write(raw)
    with pytest.raises(ModelLost, match="expected a vLLM server, got none") as caught:
        read(connect(server))
    assert one_sentence(caught.value)


# elsewhere


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("path", [MODELS, VERSION, CHAT])
def test_no_redirection_is_followed(server, path, status, monkeypatch):
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", "s3cret-of-the-rack")
    with serving() as elsewhere:
        server.answers[path] = lambda handler: send(handler, b"", status, Location=elsewhere.url + path)
        with pytest.raises(VLMError, match=f"{path} sends on to another address, which is not followed"):
            read(connect(server))
        assert elsewhere.seen == []


def test_no_cookie_is_kept(server):
    server.answers[MODELS] = lambda handler: send(
        handler, b'{"data": [{"id": "embedded"}]}', Set_Cookie="a=" + "b" * 4000
    )
    assert len(connect(server).connection._http.cookies) == 0


# what is printed

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b2J\u202e\u2028\r\n\x00"


@pytest.mark.parametrize("status", [400, 401, 404, 418, 500, 502])
@pytest.mark.parametrize("path", [MODELS, VERSION, CHAT])
def test_an_errors_body_is_shortened_and_printable(server, path, status):
    body = ESCAPES.encode() + b"\xff\x1b[31m" * 400_000
    server.answers[path] = lambda handler: send(handler, body, status, Content_Type="text/html; charset=idna")
    with pytest.raises(VLMError, match=f"{path} failed with {status}") as caught:
        read(connect(server))
    assert one_sentence(caught.value)


@pytest.mark.parametrize("names", [[ESCAPES], ["x" * 10**6], [ESCAPES * 10**4, "b"], [str(i) for i in range(10**5)]], ids=["escapes",
    "a megabyte", "two", "many"])  # fmt: skip
def test_names_of_models_are_shortened_and_printable(server, names):
    server.answers[MODELS] = {"data": [{"id": name} for name in names]}
    with pytest.raises(VLMError, match="it serves") as caught:
        connect(server, served_name="embedded-not-there")
    assert one_sentence(caught.value)


def test_a_status_text_reaches_no_log(server, prompt, caplog):
    caplog.set_level(logging.DEBUG)
    sound = json.dumps(letters(prompt, SOUND)).encode()
    server.answers[CHAT] = lambda handler: handler.wfile.write(
        b"HTTP/1.1 200 \x1b[2J\x1b]0;owned\x07\r\nX: \x9b\r\n\r\n" + sound
    )
    assert read(connect(server)).logprobs["A"] == FIFTH
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_name_and_version_are_printable_in_every_row(server, prompt):
    name = "m" + ESCAPES * 1000
    server.answers |= {
        MODELS: {"data": [{"id": name}]},
        VERSION: {"version": ESCAPES * 1000},
        CHAT: letters(prompt, SOUND),
    }
    client = connect(server)
    assert client.served == name  # asked for by its own name, however it is shown
    assert all(one_sentence(value) for value in client.describe().values() if isinstance(value, str))


def test_names_of_tokens_are_shortened_and_printable(server, prompt):
    top = [{"token": ESCAPES * 1000, "logprob": -1.0}] * 10
    server.answers[CHAT] = completion(prompt, choices=[{"logprobs": {"content": [{"top_logprobs": top}]}}])
    with pytest.raises(VLMError, match="honours logprob_token_ids") as caught:
        read(connect(server))
    assert one_sentence(caught.value)


# secrets

KEY, PASSWORD = "s3cret-of-the-rack", "hunter2/@:#"
# the last: base64 of iqa:hunter2/@:#, made by coreutils' base64
HIDDEN = (
    KEY,
    "hunter2",
    "aXFhOmh1bnRlcjIvQDoj",
)


def with_login(url: str) -> str:
    return url.replace("http://", "http://iqa:hunter2%2F%40%3A%23@")


def shows_nothing(*texts: object) -> bool:
    return not any(secret in str(text) for text in texts for secret in HIDDEN)


@pytest.mark.parametrize("key", [KEY + "\n", KEY + "\r\nX: y", " " + KEY, KEY + " x", KEY + "\t", KEY + "ü", KEY + "\x7f",
    KEY + "\u2028", "\udcff" + KEY], ids=ascii)  # fmt: skip
def test_a_key_that_is_none_is_not_quoted(server, key, monkeypatch):
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", key)
    with pytest.raises(VLMError, match=r"\$AGENTIC_IQA_SERVER_KEY: expected printable ASCII") as caught:
        connect(server)
    assert shows_nothing(caught.value, repr(caught.value), caught.value.__cause__)
    assert server.seen == []


@pytest.mark.parametrize("address", ["", "127.0.0.1:8000", "ftp://iqa:hunter2@host", "http://", "http://iqa:hunter2@", "http://iqa:hunter2@host:port",
    "http://iqa:hunter2/x@host", "http://iqa:hunter2#x@host", "http://iqa:hunter2?x@host", "http://iqa:hun ter2@host", "http://iqa:hunter2@host:99999",
    "http://iqa:hunter2@host\n", "http://iqa:hunter2@[::1", "http://host/?key=hunter2", "http://iqa:hunter2@host\\x", "hunter2"])  # fmt: skip
def test_an_address_that_is_none_is_not_quoted(address, tmp_path):
    with pytest.raises(ValueError, match="server: expected http://HOST:PORT") as raised:
        ModelSettings(server=address)
    with pytest.raises(VLMError, match="server: expected http://HOST:PORT") as caught:
        ServerClient(
            "embedded", ModelSettings(path=str(EMBEDDED)).model_copy(update={"server": address}), "cpu"
        )
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"models": {"embedded": {"server": address}}}))
    with pytest.raises(ConfigError, match="server") as configured:
        load_settings(file)
    assert shows_nothing(raised.value, caught.value, configured.value)


def test_a_configuration_that_is_no_yaml_shows_no_password(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("models: {embedded: {server: http://iqa:hunter2@host: }}}}\n")
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        load_settings(file)
    assert shows_nothing(caught.value, caught.value.__cause__)


def test_a_login_is_sent_and_shown_nowhere(server, prompt, caplog):
    caplog.set_level(logging.DEBUG)
    server.answers[CHAT] = letters(prompt, SOUND)
    client = connect(server, server=with_login(server.url))
    read(client)
    assert {sent for _, sent in server.seen} == {"Basic " + HIDDEN[2]}
    assert (client.url, client.describe()["device"]) == (server.url, server.url)
    assert shows_nothing(
        client.describe(), client.settings, client.settings.model_dump(), client.settings.model_dump_json()
    )
    assert shows_nothing(*(record.getMessage() for record in caplog.records), caplog.text)
    settings = load_settings().with_options(engine="server")
    settings = settings.model_copy(update={"models": {"embedded": client.settings}})
    depends_on = Assessing(settings, "letters").identity("cpu")
    assert depends_on["models"]["embedded"]["server"] == server.url
    assert shows_nothing(settings, depends_on)


def test_a_key_is_sent_to_its_server_alone_and_logged_nowhere(server, prompt, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", KEY)
    server.answers[CHAT] = letters(prompt, SOUND)
    client = connect(server)
    read(client)
    assert {sent for _, sent in server.seen} == {f"Bearer {KEY}"}
    with serving() as elsewhere:
        server.answers[CHAT] = lambda handler: send(handler, b"", 307, Location=elsewhere.url + CHAT)
        with pytest.raises(VLMError, match="not followed") as caught:
            read(client)
        assert elsewhere.seen == []
    records = [(record.getMessage(), vars(record)) for record in caplog.records]
    assert shows_nothing(caught.value, client.describe(), caplog.text, records)


def echo(handler, status: int = 400) -> None:
    """Says back what it was sent, and more that it could know."""
    sent = handler.headers["Authorization"]
    send(handler, json.dumps({"error": [sent, KEY, PASSWORD, HIDDEN[2]]}).encode(), status)


@pytest.mark.parametrize("path", [MODELS, VERSION, CHAT])
@pytest.mark.parametrize("by", ["key", "login"])
def test_a_server_that_echoes_its_key_is_not_quoted(server, path, by, monkeypatch):
    if by == "key":
        monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", KEY)
    server.answers[path] = lambda handler: send(
        handler, f"no: {handler.headers['Authorization']} {PASSWORD * (by == 'login')}".encode(), 400
    )
    with pytest.raises(VLMError, match=r"failed with 400 \(no: .*\*\*\*") as caught:
        read(connect(server, server=with_login(server.url) if by == "login" else server.url))
    assert shows_nothing(caught.value)


def test_names_and_answers_that_echo_the_key_stand_in_no_row(server, prompt, monkeypatch):
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", KEY)
    server.answers |= {
        MODELS: {"data": [{"id": KEY}]},
        VERSION: {"version": KEY},
        CHAT: written(prompt, f'B", "{KEY}'),
    }
    client = connect(server)
    assert shows_nothing(client.describe())
    with pytest.raises(VLMError, match="quotes the key") as caught:
        write(client)
    assert shows_nothing(caught.value)


@pytest.mark.parametrize("path", [MODELS, CHAT])
def test_a_whole_batch_shows_no_secret(server, path, picture, tmp_path, monkeypatch, capsys, caplog):
    """Command line, rows, run.json and log records of a batch whose server echoes what it was sent."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AGENTIC_IQA_SERVER_KEY", KEY)
    server.answers[path] = echo
    (tmp_path / "config.yaml").write_text(
        json.dumps({"summarizer": {"backend": "server.embedded"}, "planner": {"backend": "server.embedded"},
                    "executor": {"backend": "server.embedded"}, "models": {"embedded": {"path": str(EMBEDDED), "server": with_login(server.url)}}})
    )  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    status = main(
        [
            picture,
            "--config",
            str(tmp_path / "config.yaml"),
            "--cpu",
            "--pipeline",
            "letters",
            "--out",
            str(out / "rows.jsonl"),
        ]
    )
    said = capsys.readouterr()
    assert status != 0
    assert server.seen
    assert shows_nothing(said.out, said.err, *(record.getMessage() for record in caplog.records))
    files = [file for file in out.rglob("*") if file.is_file()]
    assert files
    assert shows_nothing(*(file.read_text() for file in files))


@pytest.mark.parametrize("values", [[0.0] * 5, [5.0] * 5, [True] * 5])
def test_an_assessment_of_impossible_letters_has_no_score(server, prompt, picture, values):
    ids = dict(zip("ABCDE", values, strict=True))

    def answer(handler):
        send(handler, json.dumps(letters(prompt, list(ids.values()), prompt_token_ids=whole)).encode())

    settings = load_settings().with_options(engine="server")
    model = settings.model("server.embedded").model_copy(update={"server": server.url})
    services = Services(
        settings.model_copy(update={"models": {"embedded": model}}),
        "cpu",
        tools=ScriptedTools({"NIQE": 3.0, "LocalNR": 3.0}),
    )
    renderer = Renderer("embedded", model, weights=False)
    rendered = renderer.render(SCORING, 1, ANSWER_PREFIX)
    whole = [
        *rendered.head,
        *renderer.expand(rendered, [Image.open(picture)]).ids,
        *rendered.tail,
        *rendered.answer_ids,
    ]
    server.answers[CHAT] = answer
    row = assess(picture, services=services, pipeline="letters")
    assert row.q is None
    assert server.url in row.error


# scores


@pytest.mark.parametrize(
    "raw", [9e999, -9e999, "text", "inf", b"\x00", "\ud800".encode(errors="surrogatepass")], ids=repr
)
def test_a_cached_score_that_is_no_number_is_none(tmp_path, raw):
    cache = ScoreCache(tmp_path / "scores.sqlite")
    cache._database.execute(
        (
            "INSERT INTO scores VALUES ('a', CAST(? AS TEXT))"
            if isinstance(raw, bytes)
            else "INSERT INTO scores VALUES ('a', ?)"
        ),
        (raw,),
    )
    cache.put("b", 2.5)
    assert (cache.get("a"), cache.get("b")) == (None, 2.5)
    cache.put("a", 3)  # an integer is a score too
    assert cache.get("a") == 3.0


@pytest.mark.parametrize(
    "schema",
    [
        (
            "CREATE VIEW scores AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'a'"
            " AS key, i AS raw FROM n"
        ),
        "CREATE TABLE scores (key TEXT PRIMARY KEY, raw TEXT)",
        "CREATE TABLE scores (key TEXT, raw REAL GENERATED ALWAYS AS (9e999))",
        "CREATE TRIGGER more AFTER INSERT ON scores BEGIN INSERT INTO scores VALUES (NEW.key || 'x', 1); END",
    ],
    ids=["view", "text", "computed", "trigger"],
)
def test_a_cache_that_is_another_database_is_refused(tmp_path, schema):
    file = tmp_path / "scores.sqlite"
    if "TRIGGER" in schema:
        ScoreCache(file)
    database = sqlite3.connect(file)
    database.execute(schema)
    database.commit()
    database.close()
    with pytest.raises(ToolError, match="expected a file with nothing but a table of scores"):
        ScoreCache(file)


@pytest.mark.parametrize("raw", [math.inf, -math.inf, math.nan])
def test_a_raw_score_that_is_not_finite_is_no_reading(raw):
    with pytest.raises(ToolError, match="NIQE: expected a finite score"):
        ToolReading("NIQE", raw, 3.0, 0.0)
    with pytest.raises(ToolError, match="NIQE: expected a finite score"):
        ToolReading("NIQE", 3.0, raw, 0.0)
    with pytest.raises(CalibrationError, match="NIQE: expected a finite raw score"):
        read_map_file(SHIPPED_MAPS)[0]["NIQE"](raw)


def test_settings_are_those_of_before_but_for_what_is_hidden():
    assert Settings().model_dump()["models"] == {}
    assert (
        ModelSettings(server="https://iqa:hunter2@[::1]:8443/llm/").model_dump()["server"]
        == "https://[::1]:8443/llm"
    )
