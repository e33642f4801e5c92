"""The service in hard times: no room, models that are not there, processes that die, a proxy, a stop."""

import asyncio
import base64
import http.client
import json
import re
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
from attacks import opened_in
from test_service import TOKEN, png, served

from agentic_iqa_local.cli.command import UsageError
from agentic_iqa_local.cli.serve import kept_in
from agentic_iqa_local.cli.serve import main as serve
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.serve import batches as batches_module
from agentic_iqa_local.serve import connections, guard
from agentic_iqa_local.serve.asks import Answer, Ask, Named, Serving
from agentic_iqa_local.serve.batches import Batches
from agentic_iqa_local.serve.connections import Connection
from agentic_iqa_local.serve.engine import Engine
from agentic_iqa_local.serve.errors import Refused
from agentic_iqa_local.serve.fields import Defaults, Sent, arguments, from_json
from agentic_iqa_local.serve.guard import Guard, Held
from agentic_iqa_local.serve.metrics import Metrics
from agentic_iqa_local.serve.pending import failure_code
from agentic_iqa_local.serve.running import listening

BOTH = Defaults("letters", ("agent", "letters"))


@contextmanager
def guarded(app, **options):
    """What stands before the routes, before another application: its port."""
    most = options.get("most", 2**20)
    held = Held(options.get("held", most), lambda: 7)
    checked = Guard(app, options.get("token"), None, most, held)
    quiet = {"log_config": None, "lifespan": "off", "ws": "none"}
    config = uvicorn.Config(checked, http=Connection, timeout_keep_alive=1, **quiet)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


async def reads_all(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def until_closed(port, content):
    """All that comes back to the beginning of a request whose rest never comes."""
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=600) as one, suppress(ConnectionError):
        one.sendall(content)
        while part := one.recv(65536):
            said += part
    return said


def test_slow_senders_are_cut_off(monkeypatch):
    """What is to come in time has minutes for it."""
    monkeypatch.setattr(connections, "PATIENCE", 0.3)
    with guarded(reads_all) as port:
        assert until_closed(port, b"") == b""
        assert until_closed(port, b"GET / HTTP/1.1\r\nHost: local") == b""
    monkeypatch.setattr(connections, "PATIENCE", 600)
    monkeypatch.setattr(guard, "PATIENCE", 0.3)
    post = b"POST /v1/assess HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    with guarded(reads_all) as port:
        assert b" 408 " in until_closed(port, post + b"123")
        again = until_closed(port, post + b"123456789GET / HT")
        assert again.startswith(b"HTTP/1.1 204")
        assert again.count(b"HTTP/1.1") == 1
    with guarded(reads_all, token=TOKEN) as port:
        assert b" 401 " in until_closed(port, post + b"123")


def test_requests_together_hold_so_many_bytes_and_no_more():
    """Two bodies of 600 bytes are more than 1,000."""
    there, go_on = threading.Event(), threading.Event()

    async def waits(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        there.set()
        await asyncio.to_thread(go_on.wait, 600)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with guarded(waits, held=1000) as port, ThreadPoolExecutor(1) as pool:
        place, body = f"http://127.0.0.1:{port}/v1/assess", b"x" * 600
        first = pool.submit(httpx.post, place, content=body, timeout=600)
        assert there.wait(600)
        in_parts = (part for part in (body[:300], body[300:]))
        for content in (body, in_parts):
            refused = httpx.post(place, content=content, timeout=600)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
        go_on.set()
        assert first.result().status_code == 204
        assert httpx.post(place, content=body, timeout=600).status_code == 204


def test_a_refusal_is_heard_on_a_connection_that_is_closed():
    """A client that reads nothing before it has sent everything, more than sockets hold."""
    with guarded(reads_all, token=TOKEN, most=2**25) as port:
        for _ in range(5):
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            client.request("POST", "/v1/assess", body=b"x" * 2**24, headers={"Connection": "close"})
            assert client.getresponse().status == 401
            client.close()


async def refuses_unread(scope, receive, send):
    await receive()
    raise Refused(415, "media_type", "expected another")


@pytest.mark.parametrize(
    ("app", "options", "status"), [(refuses_unread, {}, 415), (reads_all, {"most": 2**22}, 413)]
)
def test_a_refusal_in_the_middle_of_a_body_is_heard_on_a_connection_that_is_closed(app, options, status):
    """6 MiB in chunks, more than sockets hold: the bound of 4 MiB is passed in the middle."""
    with guarded(app, **{"most": 2**25, **options}) as port:
        for version in (11, 10):
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            client._http_vsn, client._http_vsn_str = version, f"HTTP/1.{version - 10}"
            headers = {"Connection": "close"} if version == 11 else {"Content-Length": str(6 * 2**20)}
            body = (b"x" * 2**20 for _ in range(6))
            client.request("POST", "/v1/assess", body=body, headers=headers, encode_chunked=version == 11)
            assert client.getresponse().status == (413 if version == 10 and status == 413 else status)
            client.close()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_ask_that_fails_is_answered_in_its_own_kind(tmp_path, count):
    settings = load_settings()
    names = tuple(Named(tmp_path / str(i), f"timed out {i}.png") for i in range(count))
    work, ask = Serving(settings), Ask("1", names, settings)
    answer = work.failure(ask, f"{tmp_path / '0'}: broken")
    found = json.loads(answer.text)
    assert answer.error == "timed out 0.png: broken"
    assert found.get("kind") == (None, "comparison", "ranking")[count - 1]
    rows = ([found], [found.get("first"), found.get("second")], found.get("failed"))[count - 1]
    assert [row["image"] for row in rows] == [one.name for one in names]
    assert {row["error"] for row in rows} == {answer.error}
    assert failure_code(answer, "ok") == "not_assessed"
    assert failure_code(work.overdue(ask, "timed out after 1 s"), "ok") == "out_of_time"


def test_a_port_in_use_and_a_foreign_address_end_with_a_sentence(tmp_path, capsys, monkeypatch):
    words = ["--cpu", "--batches", str(tmp_path / "spool")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve([*words, "--port", str(port)]) == 2
    assert f"--port {port}: another program listens there already" in capsys.readouterr().err
    foreign = ("203.0.113.1", 0)  # of TEST-NET-3, which no machine has
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", foreign)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **options: found)
    with pytest.raises(
        UserError, match="expected an address of this machine to listen on, got Cannot assign"
    ):
        listening(*foreign)


def batches_in(folder, defaults=BOTH):
    return Batches(folder, load_settings(), defaults, 2**30)


def pictures(number):
    return Sent(pictures=[(f"{i}.png", png(i)) for i in range(number)])


def test_a_pipeline_without_its_models_is_refused_by_name():
    with pytest.raises(Refused, match="the models of agent are not here") as refusal:
        arguments({"pipeline": "agent"}, Defaults("letters", ("letters",)))
    assert refusal.value.status == 400
    assert arguments({"pipeline": "letters"}, Defaults("letters", ("letters",)))["pipeline"] == "letters"


def test_the_services_own_limit_of_replans_holds_where_a_request_has_none():
    defaults = Defaults("agent", ("agent",), max_replan_iterations=1)
    assert arguments({}, defaults)["max_replan_iterations"] == 1
    assert arguments({"max_replan_iterations": "3"}, defaults)["max_replan_iterations"] == 3


def test_a_batch_whose_rows_cannot_be_written_is_stopped_with_a_reason_and_goes_on_later(tmp_path):
    batches = batches_in(tmp_path / "spool")
    name = batches.submit(pictures(2))["id"]
    rows = tmp_path / "spool" / name / "rows.jsonl"
    rows.rename(tmp_path / "away")
    ask = batches.next_ask()
    batches.answered(Answer(ask.key, "{}"))
    status = batches.status(name)
    assert (status["state"], status["done"]) == ("stopped", 0)
    assert status["error"]["message"].startswith("a row could not be written")
    assert str(tmp_path) not in json.dumps(status)
    assert batches.next_ask() is None
    batches.close()
    (tmp_path / "away").rename(rows)
    again = batches_in(tmp_path / "spool")
    assert again.status(name)["state"] == "queued"
    assert again.next_ask().key.startswith(name)
    again.close()


def test_a_batch_of_a_pipeline_that_is_gone_is_stopped(tmp_path):
    batches = batches_in(tmp_path / "spool")
    sent = pictures(1)
    sent.options["pipeline"] = "agent"
    name = batches.submit(sent)["id"]
    batches.close()
    fewer = batches_in(tmp_path / "spool", Defaults("letters", ("letters",)))
    assert fewer.next_ask() is None
    assert fewer.status(name)["state"] == "stopped"
    assert "the models of agent" in fewer.status(name)["error"]["message"]
    fewer.close()


def test_a_batch_that_cannot_be_read_is_left_alone(tmp_path):
    broken = tmp_path / "spool" / "20260101T000000-00"
    broken.mkdir(parents=True)
    (broken / "batch.json").write_text("{")
    batches = batches_in(tmp_path / "spool")
    assert batches.all() == []
    assert (broken / "batch.json").is_file()
    batches.close()


def test_a_batch_that_cannot_be_stored_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    batches = batches_in(tmp_path / "spool")

    def full(*_):
        raise OSError(28, "No space left on device", "/secret/place")

    monkeypatch.setattr("agentic_iqa_local.serve.batches.os.rename", full)
    with pytest.raises(Refused, match="No space left on device") as refusal:
        batches.submit(pictures(1))
    assert refusal.value.status == 503
    assert "/secret" not in str(refusal.value.body())
    assert [file.name for file in (tmp_path / "spool").iterdir()] == ["lock"]
    batches.close()


def test_batches_that_are_finished_hold_no_file_open(tmp_path):
    batches = batches_in(tmp_path / "spool")
    before = opened_in(tmp_path)
    names = [batches.submit(pictures(1))["id"] for _ in range(3)]
    assert len(opened_in(tmp_path)) == len(before) + 2 * 3  # the rows and their lock
    while ask := batches.next_ask():
        batches.answered(Answer(ask.key, "{}"))
    assert opened_in(tmp_path) == before
    assert [list(batches.rows(name, 0)) for name in names] == [["{}\n"]] * 3
    batches.close()
    again = batches_in(tmp_path / "spool")
    assert opened_in(tmp_path) == before
    again.delete(names[0])
    assert len(again.all()) == 2
    again.close()


def test_submissions_at_once_keep_to_the_bound_together(tmp_path):
    """Each has 1,000 bytes, half of them its reference's: one is within 1,500, two are not."""
    batches = Batches(tmp_path / "spool", load_settings(), BOTH, 1_500)

    def submit(number):
        sent = Sent(pictures=[("a.png", b"x" * 500)], reference=("b.png", b"x" * 500))
        try:
            return batches.submit(sent)["total"]
        except Refused as error:
            return error.code

    with ThreadPoolExecutor(10) as pool:
        assert sorted(map(str, pool.map(submit, range(10)))) == ["1"] + ["no_room"] * 9
    batches.close()


def test_a_folder_of_batches_vanishes_while_its_bytes_are_counted(tmp_path, monkeypatch):
    batches = batches_in(tmp_path / "spool")
    first = batches.submit(pictures(1))["id"]
    scandir = batches_module.os.scandir

    def scans(folder):
        if str(folder).endswith(first):
            batches.delete(first)
        return scandir(folder)

    monkeypatch.setattr(batches_module.os, "scandir", scans)
    assert batches.submit(pictures(1))["total"] == 1
    assert len(batches.all()) == 1
    batches.close()


def test_two_services_do_not_share_a_folder_of_batches(tmp_path):
    batches = batches_in(tmp_path / "spool")
    with pytest.raises(UserError, match="another service keeps its batches there; choose another --batches"):
        batches_in(tmp_path / "spool")
    batches.close()
    batches_in(tmp_path / "spool").close()


def test_retry_after_follows_the_queue_and_the_rate_of_late():
    engine = Engine(Serving(load_settings()), "cpu", places=8)
    assert engine.retry_after() == 5
    engine._seconds.extend([2.0, 4.0])
    for _ in range(4):
        engine.submit(object(), lambda *_: None)
    assert engine.retry_after() == 15


def test_no_answer_names_a_folder_of_the_server():
    work = Serving(load_settings(), folders=(Path("/srv/models"), Path("/tmp/x-1")))
    line = "could not read /srv/models/embedded/a.bin: (/tmp/x-1/abc/0) but /etc/other"

    class NoPictures:
        pictures, reference = (), None

    assert work._hidden(line, NoPictures()) == "could not read a.bin: (0) but /etc/other"


def test_below_a_proxys_path_the_token_is_asked_for_all_the_same(tmp_path):
    with served(tmp_path, "--root-path", "/iqa", token=TOKEN) as client:
        for path in ("/v1/batches", "//v1/batches", "/v1/batches/", "/iqa/v1/batches"):
            assert client.get(path, headers={"Authorization": ""}).status_code == 401
        assert client.get("/v1/batches").json() == []
        assert client.get("/v1/info", headers={"Authorization": ""}).status_code == 200
        sent = client.post("/v1/batches", files=[("images", ("a.png", png(1)))])
        assert sent.json()["links"]["self"] == f"/iqa/v1/batches/{sent.json()['id']}"
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/iqa"}]


def test_json_takes_pictures_as_programs_and_browsers_write_them():
    text = base64.b64encode(b"bytes").decode()
    images = [text, f"data:image/png;base64,{text}", {"name": "a/b.png", "data": text}]
    sent = from_json(json.dumps({"images": images}).encode(), many=True)
    assert sent.pictures == [("picture 1", b"bytes"), ("picture 2", b"bytes"), ("b.png", b"bytes")]
    with pytest.raises(Refused, match="expected a picture in base64") as refusal:
        from_json(b'{"image": "/etc/passwd.png"}', many=False)
    assert "no path or address is read" in refusal.value.remedy


def test_metrics_are_what_prometheus_reads():
    """0.3 s lies above 0.25 and up to 0.5; 1,000 s above every bound."""
    metrics, ask = Metrics(), SimpleNamespace(pictures=("one",))
    answer = Answer("1", "{}", levels=("Good",), tokens=Counter(prefilled=7))
    metrics.answered(ask, answer, 0.3, False, None)
    metrics.answered(ask, Answer("2", "{}", "why"), 1000.0, False, "not_assessed")
    lines = metrics.text({"up": (1.0, "Whether.")}).splitlines()
    buckets = [line.split()[1] for line in lines if "_bucket" in line and 'kind="assess"' in line]
    assert buckets == ["0", "0", *["1"] * 10, "2"]
    for line in (
        'answer_seconds_sum{kind="assess"} 1000.3',
        'answer_seconds_count{kind="assess"} 2',
        'pictures_total{level="Good"} 1',
        'failures_total{code="not_assessed"} 1',
        'tokens_total{kind="prefilled"} 7',
    ):
        assert f"agentic_iqa_{line}" in lines
    told = {line.split()[2] for line in lines if line.startswith("# HELP")}
    assert told == {line.split()[2] for line in lines if line.startswith("# TYPE")}
    samples = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in samples} <= told


def test_one_service_keeps_in_a_folder_and_an_answer_that_cannot_be_kept_goes_out(tmp_path, caplog):
    gone = SimpleNamespace(path=tmp_path / "gone")
    with kept_in(tmp_path) as kept:
        with pytest.raises(UsageError, match="another process is writing it"), kept_in(tmp_path):
            pass
        kept.keep(SimpleNamespace(pictures=(gone,), reference=None), Answer("1", "{}"))
    assert "could not be kept" in caplog.text
    assert (tmp_path / "rows.jsonl").read_text() == ""


def test_a_lost_model_costs_a_waiting_request_and_no_picture_of_a_batch(tmp_path):
    settings, told = load_settings(), []
    batches, engine = batches_in(tmp_path / "spool"), Engine(Serving(settings), "cpu")
    engine.background = batches
    name = batches.submit(pictures(3))["id"]
    assert engine._take().key == f"{name}/0"
    waiting = Ask("one", (Named(tmp_path / "a.png", "a.png"),), settings)
    engine.submit(waiting, lambda kind, about: told.append((kind, about.error)))
    engine._fail_all("the models are lost")
    assert told == [("answer", "the models are lost")]
    done = []
    while ask := engine._take():
        done.append(ask.key)
        engine._answered(Answer(ask.key, "{}"))
    assert done == [f"{name}/{number}" for number in range(3)]
    assert (batches.status(name)["state"], len(list(batches.rows(name, 0)))) == ("finished", 3)
    batches.close()
