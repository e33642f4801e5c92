"""Malformed requests to every route: each gets a status of its own kind and the one form of an error, which quotes
nothing of what was sent but the name of a field."""

import base64
import json
import logging
import re
import shutil

import jsonschema
import pytest
from starlette.testclient import TestClient
from test_service_queue import SET_UP, Hashing

from agentic_iqa_local.batch.runner import BatchError
from agentic_iqa_local.serve.app import Service, make_app
from agentic_iqa_local.serve.bodies import Body
from agentic_iqa_local.serve.queue import Queue

MARK = "mArK7331"
FORM, JSON = "multipart/form-data; boundary=x", "application/json"
DATA_URL = f"data:image/png;base64,{base64.b64encode(b'a picture').decode()}"
SENT = {"type": "image_url", "image_url": {"url": DATA_URL}}
CHAT, ROUTES = "/v1/chat/completions", ("/v1/assess", "/v1/compare", "/v1/batches")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    batches, uploads = tmp_path_factory.mktemp("batches"), tmp_path_factory.mktemp("uploads")
    return Service(SET_UP, Hashing(), batches, uploads)


@pytest.fixture(scope="module")
def client(service):
    app = make_app(service, ["localhost"])
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


def problem(answer):
    """The error of an answer, in the one form."""
    told = answer.json()
    assert set(told) == {"error"}
    assert {"code", "message"} <= set(told["error"]) <= {"code", "message", "remedy"}
    assert all(told["error"].values()), "a field that says nothing"
    assert answer.headers["content-security-policy"]
    assert MARK not in answer.text
    return told["error"]


def said(*parts, **message):
    """A chat's body with one message."""
    return {"messages": [{"role": "user", "content": list(parts)} | message]}


def with_picture(**options):
    return said(SENT) | options


CHATS = [
    *({"messages": messages} for messages in (None, [MARK], [])),
    *(said(part) for part in ("x", None, {}, {"type": MARK}, {"type": "text"})),
    *(said(content=content) for content in (5, {"type": "text"}, None, MARK)),
    *(
        said({"type": "image_url", "image_url": url})
        for url in (
            DATA_URL,
            {"url": None},
            {"url": f"http://{MARK}/a.png"},
            {"url": f"data:,%{MARK}"},
        )
    ),
    *(with_picture(**{name: MARK}) for name in ("stream", "pipeline", "choices")),
]
OPTIONS = {"query": [MARK], "choices": [MARK, 5], "at_least": 9, "error_rate": 1e400}
CONTENTS = [
    *((JSON, content) for content in (b"", b"null", b"[]", b"{", b"NaN", b"\xff\xfe", b"[" * 100_000)),
    (FORM, b"--x\r\nContent-Disposition: form-data\r\n\r\n--x--"),
    ("multipart/form-data", b"--x"),
    (JSON, b'{"image": "AAA"}'),
    (JSON, b'{"images": [{"name": ["x"], "data": {}}]}'),
    ("text/plain", MARK.encode()),
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, *ROUTES])
def test_a_malformed_body_is_told_in_the_one_form(client, caplog, path):
    for kind, content in CONTENTS:
        answer = client.post(path, content=content, headers={"Content-Type": kind})
        allowed = kind.startswith(JSON) or (kind.startswith("multipart") and path != CHAT)
        assert answer.status_code == (400 if allowed else 415), (kind, content[:60], answer.text)
        problem(answer)
    assert caplog.records == []


@pytest.mark.parametrize(("path", "name"), [("/v1/assess", "image"), ("/v1/compare", "images")])
def test_a_picture_that_is_missing_comes_with_how_to_send_it(client, path, name):
    error = problem(client.post(path, json={}))
    assert error["message"] == f"{name}: expected a value, got none"
    assert f"{name}=@" in error["remedy"]


@pytest.mark.parametrize("sent", CHATS)
def test_a_malformed_chat_is_told_in_the_one_form(client, caplog, sent):
    answer = client.post(CHAT, content=json.dumps(sent), headers={"Content-Type": JSON})
    assert answer.status_code == 400
    assert problem(answer)["code"] == "bad_request"
    assert caplog.records == []


@pytest.mark.parametrize(("name", "value"), OPTIONS.items())
def test_an_option_is_named_and_not_quoted(client, name, value):
    content = json.dumps({"images": [DATA_URL], name: value})
    answer = client.post("/v1/batches", content=content, headers={"Content-Type": JSON})
    assert answer.status_code == 400
    error = problem(answer)
    if error["code"] == "bad_request" and "JSON" not in error["message"]:
        assert error["message"].startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("fields", "message", "remedy"),
    [
        ({"choice": "Yes"}, "choice: there is no such field", "did you mean choices?"),
        (
            {"\x1b" + "x" * 50: "1"},
            f"\\u001b{'x' * 39}: there is no such field",
            "there are: query, choices, ",
        ),
        ({"choices": '["Yes","No"]'}, "choices: expected 2 to 10 answers", "-F choices=Yes -F "),
    ],
)
def test_a_forms_error_names_the_field_and_says_what_to_send(client, fields, message, remedy):
    error = problem(client.post("/v1/assess", data=fields, files={"image": b"x"}))
    assert error["message"] == message
    assert remedy in error["remedy"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        *(("GET", f"/v1/batches/none/rows?from={start}", {}, 400) for start in ("-1", MARK)),
        ("GET", "/v1/batches/%00/rows", {}, 404),
        ("GET", f"/v1/batches/{MARK}/gallery", {}, 404),
        ("DELETE", "/v1/batches/%2e%2e", {}, 404),
        *(("GET", path, {}, 404) for path in (f"/{MARK}", "/v1", "/%00", "/%2e%2e/__init__.py")),
        ("GET", "/v1/assess", {}, 405),
        *(("PUT", path, {}, 405) for path in ("/", "/v1/info", "/v1/batches/x")),
        *(("GET", "/v1/info", {"Host": host}, 400) for host in ("evil.example", "")),
        *(("POST", CHAT, {"Origin": origin}, 403) for origin in ("http://evil.example", "null")),
        ("POST", "/v1/assess", {"Content-Length": str(2**28), "Content-Type": JSON}, 413),
    ],
)
def test_what_no_route_takes_is_told_in_the_one_form(client, method, path, headers, status):
    answer = client.request(method, path, headers=headers)
    assert answer.status_code == status
    problem(answer)
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    ("error", "status"), [(KeyError(MARK), 500), (OSError(28, MARK, f"/{MARK}"), 503)]
)
@pytest.mark.parametrize("accept", [JSON, "text/event-stream"])
def test_an_unforeseen_error_is_told_in_a_sentence(
    client, monkeypatch, caplog, error, status, accept
):
    caplog.set_level(logging.CRITICAL, "agentic_iqa_local")

    def fail(*_):
        raise error

    monkeypatch.setattr(Body, "stored", fail)
    answer = client.post("/v1/assess", files={"image": b"x"}, headers={"Accept": accept})
    assert MARK not in answer.text
    if accept == JSON:
        assert answer.status_code == status
        problem(answer)
    else:
        assert answer.text.startswith('event: error\ndata: {"error": {"code": ')


def test_a_chat_may_hold_whatever_openai_has_beside_it(client, monkeypatch):
    monkeypatch.setattr("agentic_iqa_local.serve.bodies.explain", lambda _: "an account")
    turns = [{"role": "system", "content": "Be brief"}, {"role": "assistant", "content": None}]
    sent = with_picture(temperature=0.1, tools=[{"x": [1]}], stream=None, pipeline="letters")
    sent["messages"] = turns + sent["messages"]
    assert client.post(CHAT, json=sent).json()["choices"][0]["message"]["content"] == "an account"


@pytest.fixture
def guarded(tmp_path):
    """A client of a service with a token, and its runner; nobody may wait."""
    runner = Hashing()
    folders = [tmp_path / "batches", tmp_path / "uploads"]
    for folder in folders:
        folder.mkdir()
    app = make_app(Service(SET_UP, runner, *folders, places=0, token=MARK), ["localhost"])
    how = {"base_url": "http://localhost", "headers": {"Authorization": f"Bearer {MARK}"}}
    return TestClient(app, raise_server_exceptions=False, **how), runner


def test_openapi_lists_each_status_with_its_body(guarded, tmp_path, monkeypatch, caplog):
    client, runner = guarded
    caplog.set_level(logging.CRITICAL, "agentic_iqa_local")
    told = client.get("/openapi.json").json()
    components = {"components": told["components"]}

    def ask(status, method, path, **how):
        answer = client.request(method, path, **how)
        assert answer.status_code == status
        route = told["paths"][re.sub("(?<=/batches/)[^/]+", "{name}", path)][method.lower()]
        schema = route["responses"][str(status)]["content"][JSON]["schema"]
        jsonschema.validate(answer.json(), schema | components, jsonschema.Draft202012Validator)
        return answer

    picture = {"files": {"image": b"x"}}
    for path in ("/v1/assess", CHAT):
        ask(400, "POST", path, json={})
        ask(401, "POST", path, headers={"Authorization": ""})
        ask(403, "POST", path, headers={"Origin": "null"})
        ask(413, "POST", path, headers={"Content-Length": str(2**28), "Content-Type": JSON})
        ask(415, "POST", path, content="x", headers={"Content-Type": "text/plain"})
    ask(200, "POST", "/v1/assess", **picture)
    with monkeypatch.context() as patch:
        patch.setattr("agentic_iqa_local.serve.app.failure_of", lambda _: "it failed")
        assert ask(422, "POST", "/v1/assess", **picture).json()["row"]["sha256"]
    with monkeypatch.context() as patch:
        patch.setattr(Queue, "busy", True)
        ask(429, "POST", "/v1/assess", **picture)
    with monkeypatch.context() as patch:
        patch.delattr(Body, "stored")  # what nobody foresaw
        ask(500, "POST", "/v1/assess", **picture)
    runner.lost = [BatchError("the processes died")]
    ask(503, "POST", "/v1/assess", **picture)
    ask(503, "GET", "/healthz")
    batch = f"/v1/batches/{ask(202, 'POST', '/v1/batches', files={'images': b'x'}).json()['id']}"
    ask(404, "GET", f"{batch}/gallery")
    ask(404, "DELETE", "/v1/batches/none")
    (next((tmp_path / "batches").iterdir()) / "rows.jsonl").write_text("no row")
    ask(409, "GET", f"{batch}/rows")
    shutil.rmtree(tmp_path / "batches")
    ask(503, "GET", batch)


def test_openapi_describes_bodies_and_errors(client):
    told = client.get("/openapi.json").json()
    text = json.dumps(told)
    assert "HTTPValidationError" not in text
    assert "#/$defs/" not in text
    for operations in told["paths"].values():
        for operation in operations.values():
            assert {"4XX", "5XX"} <= set(operation["responses"])
    fault = told["components"]["schemas"]["Fault"]
    assert fault["required"] == ["code", "message"]
    assert fault["properties"]["remedy"]["type"] == "string"
