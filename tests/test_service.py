"""The service over HTTP, as a process of its own with the small model: answers, limits, batches, a kill."""

import base64
import hashlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager

import httpx
import numpy as np
import psutil
import pytest
from conftest import ROOT
from PIL import Image

ALLOWED = {200, 202, 204, 400, 401, 403, 404, 405, 408, 411, 413, 415, 422, 429, 503, 504}
TOKEN = "a-token-of-many-letters"


@contextmanager
def served(folder, *options, token=None, kill=False):
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    environment.pop("AGENTIC_IQA_TOKEN", None)
    if token:
        environment["AGENTIC_IQA_TOKEN"] = token
    words = [sys.executable, "scripts/serve.py", "--cpu", "--port", "0", "--batches", str(folder / "spool")]
    log = (folder / "log").open("w+")
    process = subprocess.Popen([*words, *options], cwd=ROOT, env=environment, stderr=log)
    try:
        until = time.monotonic() + 600
        while not (found := re.search(r"http://\S+:\d+(?=:)", (folder / "log").read_text())):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(base_url=found[0], timeout=600, headers=headers) as client:
            while client.get("/healthz").status_code != 200:
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.2)
            client.process, client.temporary, client.log = process, temporary, folder / "log"
            yield client
    finally:
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        process.wait(300)


def png(seed, size=(200, 192)):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with served(tmp_path_factory.mktemp("service"), "--pipeline", "letters", "--queue", "64") as client:
        yield client


def left_over(service):
    """Files of requests that still lie in the service's folder, once the last answers have been seen to."""
    for _ in range(1200):  # it is waited for on a busy machine too
        files = [file for file in service.temporary.glob("agentic-iqa-serve-*/**/*") if file.is_file()]
        if not files:
            return []
        time.sleep(0.1)
    return files


def test_a_picture_is_answered_under_its_own_name(service):
    data = png(1)
    answer = service.post("/v1/assess", files={"image": ("../../etc/a b.png", data)})
    row = answer.json()
    assert answer.status_code == 200
    assert row["image"] == "a b.png"
    assert row["sha256"] == hashlib.sha256(data).hexdigest()
    encoded = base64.b64encode(data).decode()
    same = service.post("/v1/assess", json={"image": encoded, "image_name": "b.png", "pipeline": "letters"})
    assert same.json()["q"] == row["q"]
    file = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("CMYK").save(file, "TIFF")
    service.post("/v1/assess", files={"image": ("print.tif", file.getvalue())}).raise_for_status()
    assert "WARNING print.tif: The CMYK pixels" in service.log.read_text()
    assert left_over(service) == []


def test_progress_comes_as_events(service):
    with service.stream(
        "POST",
        "/v1/assess",
        files={"image": ("a.png", png(2))},
        data={"pipeline": "agent"},
        headers={"Accept": "text/event-stream"},
    ) as answer:
        text = "".join(answer.iter_text())
    names = re.findall(r"^event: (.+)$", text, re.M)
    assert (names[0], names[-1]) == ("queued", "row")
    steps = [json.loads(line) for line in re.findall(r"^event: progress\ndata: (.+)$", text, re.M)]
    roles = [step["role"] for step in steps if step["state"] == "started"]
    assert [role for role in roles if role != "tool"][:3] == ["planner", "executor", "summarizer"]


def test_pictures_are_compared_and_ordered(service):
    files = [("images", (f"{seed}.png", png(seed))) for seed in (3, 4, 5)]
    two = service.post("/v1/compare", files=files[:2]).json()
    assert [two["first"]["image"], two["second"]["image"]] == ["3.png", "4.png"]
    assert 0 <= two["pair"]["probability"] <= 1
    order = service.post("/v1/compare", files=files, data={"pairwise": "false"}).json()
    assert len(order["order"]) == 3
    options = {"pipeline": "agent", "background": "white"}
    planned = service.post("/v1/compare", files=files[:2], data=options).json()
    assert planned["first"]["pipeline"] == "agent"


def test_what_cannot_be_asked_is_told(service):
    files = {"image": ("a.png", png(6))}
    wrong = service.post("/v1/assess", files=files, data={"pipelin": "agent"})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["remedy"] == "did you mean pipeline?"
    broken = service.post("/v1/assess", files={"image": ("a.png", b"no picture")})
    assert broken.status_code == 422
    assert broken.json()["row"]["image"] == "a.png"
    assert "/tmp" not in broken.text
    assert service.get("/", headers={"Host": "evil.example"}).status_code == 403
    foreign = service.post("/v1/assess", files=files, headers={"Origin": "http://evil.example"})
    assert foreign.status_code == 403
    chunks = (b"x" * 2**20 for _ in range(200))
    headers = {"Content-Type": "application/json"}
    assert service.post("/v1/assess", content=chunks, headers=headers).status_code == 413


def test_thirty_two_clients_get_their_own_answers(service):
    pictures = [png(seed) for seed in range(200)]

    def ask(data):
        while True:
            answer = service.post("/v1/assess", files={"image": ("a.png", data)})
            if answer.status_code != 429:
                return answer
            time.sleep(0.5)

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, pictures))
    for data, answer in zip(pictures, answers, strict=True):
        assert answer.status_code == 200
        assert answer.json()["sha256"] == hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """One place in the queue, and everything is kept."""
    folder = tmp_path_factory.mktemp("narrow")
    options = ("--pipeline", "letters", "--queue", "1", "--keep", str(folder / "kept"))
    with served(folder, *options) as client:
        client.kept = folder / "kept"
        yield client


def test_what_is_kept_has_comparisons_batches_and_failures_too(narrow):
    one, two, three = png(1), png(2), png(3)
    assert narrow.post("/v1/assess", files={"image": ("1.png", one)}).status_code == 200
    assert narrow.post("/v1/assess", files={"image": ("x.png", b"no picture")}).status_code == 422
    files = [("images", ("1.png", one)), ("images", ("2.png", two))]
    narrow.post("/v1/compare", files=files).raise_for_status()
    batch = narrow.post("/v1/batches", files={"images": ("3.png", three)}).json()
    while narrow.get(f"/v1/batches/{batch['id']}").json()["state"] != "finished":
        time.sleep(0.05)
    there = {file.stem for file in narrow.kept.glob("*.picture")}
    assert there == {hashlib.sha256(data).hexdigest() for data in (one, two, three, b"no picture")}
    rows = [json.loads(line) for line in (narrow.kept / "rows.jsonl").read_text().splitlines()]
    assert [row["image"] for row in rows] == ["1.png", "x.png", "3.png"]
    (compared,) = (narrow.kept / "comparisons.jsonl").read_text().splitlines()
    assert json.loads(compared)["second"]["image"] == "2.png"
    told = narrow.get("/metrics").text
    for line in (
        'failures_total{code="not_assessed"} 1',
        'answer_seconds_count{kind="assess"} 2',
        'answer_seconds_bucket{kind="compare",le="+Inf"} 1',
        'answer_seconds_count{kind="batch"} 1',
        "held_bytes 0",
    ):
        assert f"agentic_iqa_{line}\n" in told
    levels = re.findall(r'pictures_total\{level="(\w+)"\} (\d+)', told)
    assert sum(int(count) for _, count in levels) == 4  # the comparison has two


def model_process(client):
    (process,) = [
        child
        for child in psutil.Process(client.process.pid).children()
        if "spawn_main" in " ".join(child.cmdline())
    ]
    return process


def test_a_full_queue_says_when_to_come_again(narrow):
    """The model stands still until the first is refused."""
    process = model_process(narrow)
    process.suspend()
    with ThreadPoolExecutor(12) as pool:
        ask = lambda seed: narrow.post("/v1/assess", files={"image": ("a.png", png(seed))})  # noqa: E731
        asked = [pool.submit(ask, seed) for seed in range(12)]
        wait(asked, return_when=FIRST_COMPLETED)
        process.resume()
        answers = [one.result() for one in asked]
    assert {answer.status_code for answer in answers} == {200, 429}
    for refused in (answer for answer in answers if answer.status_code == 429):
        assert int(refused.headers["retry-after"]) >= 1


def test_a_killed_model_process_costs_no_answer(narrow):
    process = model_process(narrow)
    process.suspend()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(narrow.post, "/v1/assess", files={"image": ("a.png", png(5))})
        while "agentic_iqa_in_hand 1\n" not in narrow.get("/metrics").text:
            time.sleep(0.05)
        process.kill()
        assert answer.result().status_code == 200


def loopback():
    """The loopback's address, of version 6 where there is one."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return "::1"
    except OSError:
        return "127.0.0.1"


def test_the_token_is_asked_for(tmp_path):
    wrong = ("", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN)
    with served(tmp_path, "--host", loopback(), token=TOKEN) as client:
        for header in (*wrong, b"Bearer \xff\xfe", "Bearer " + "x" * 30_000):
            for method, path in (("GET", f"/v1/batches?token={TOKEN}"), ("POST", "/v1/assess")):
                refused = client.request(method, path, headers={"Authorization": header})
                assert refused.status_code == 401
                assert TOKEN not in refused.text
        assert client.get("/v1/batches").json() == []
        assert client.get("/v1/info", headers={"Authorization": ""}).json()["token_required"] is True


def test_beyond_the_loopback_a_token_is_needed(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("AGENTIC_IQA_TOKEN", None)
    for token in (None, "short"):
        more = {"AGENTIC_IQA_TOKEN": token} if token else {}
        words = [sys.executable, "scripts/serve.py", "--cpu", "--host", "0.0.0.0"]
        run = subprocess.run(words, cwd=ROOT, env=environment | more, capture_output=True, text=True)
        assert run.returncode == 2
        assert "TOKEN" in run.stderr


def test_a_batch_goes_on_after_a_kill(tmp_path):
    pictures = [png(seed) for seed in range(24)]
    files = [("images", (f"{i}.png", data)) for i, data in enumerate(pictures)]
    with served(tmp_path, "--pipeline", "letters", kill=True) as client:
        answer = client.post("/v1/batches", files=files)
        assert answer.status_code == 202
        name = answer.json()["id"]
        while client.get(f"/v1/batches/{name}").json()["done"] < 3:
            time.sleep(0.05)
    assert len((tmp_path / "spool" / name / "rows.jsonl").read_bytes().splitlines()) >= 3
    with served(tmp_path, "--pipeline", "letters") as client:
        while (status := client.get(f"/v1/batches/{name}").json())["state"] != "finished":
            time.sleep(0.1)
        assert (status["done"], status["failed"]) == (24, 0)
        rows = [json.loads(line) for line in client.get(f"/v1/batches/{name}/rows").text.splitlines()]
        hashes = sorted(row["sha256"] for row in rows)
        assert hashes == sorted(hashlib.sha256(data).hexdigest() for data in pictures)
        assert len(client.get(f"/v1/batches/{name}/rows?from=20").text.splitlines()) == 4
        assert not list((tmp_path / "spool" / name).glob("*.picture"))
        assert client.delete(f"/v1/batches/{name}").status_code == 204
        assert client.get(f"/v1/batches/{name}").status_code == 404
        assert not (tmp_path / "spool" / name).exists()


def raw(service, content):
    """What the service says to bytes; b"" where it hangs up."""
    with socket.create_connection((service.base_url.host, service.base_url.port), timeout=600) as one:
        one.sendall(content)
        one.shutdown(socket.SHUT_WR)
        said = b""
        while part := one.recv(65536):
            said += part
        return said


def hostile(number):
    """Headers and a body that nobody means well with."""
    name = ["../../../etc/passwd", "a\0b.png", "<script>alert(1)</script>.png", "C:\\x\\..\\y", "é" * 3000][
        number % 5
    ]
    form = f'--x\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n\r\n'.encode()
    huge = png(0, (8, 8)).replace((8).to_bytes(4, "big") * 2, (60000).to_bytes(4, "big") * 2, 1)
    multipart, plain = "multipart/form-data; boundary=x", "application/json"
    return [
        (multipart, form + huge + b"\r\n--x--\r\n"),
        (multipart, form + bytes([number % 256]) * 50),
        (multipart, b"--x\r\nContent-Disposition: form-data\r\n\r\n--x--"),
        ("multipart/form-data", form),
        (plain, b"[" * 100_000),
        (plain, b'{"image": "' + b"A" * number + b'"}'),
        (plain, b'{"image": 5, "query": "\\u0000"}'),
        (plain, b"\xff\xfe" + bytes([number % 256])),
        (plain, json.dumps({"image": "AAAA", "choices": [name] * number}).encode()),
        ("text/" + "x" * (number % 50), b"PK\x03\x04" * 10),
    ][number % 10]


def test_bombs_and_scripts_are_told_in_words(service):
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")  # 400 million pixels in 50 kB
    bomb = service.post("/v1/assess", files={"image": ("bomb.png", file.getvalue())})
    assert bomb.status_code == 422
    assert "pixels" in bomb.json()["error"]["message"]
    script = '<img src=x onerror=alert(1)>"\n\nevent: row\ndata: {}'
    answer = service.post(
        "/v1/assess",
        files={"image": (f"{script}.png", png(1))},
        data={"query": script},
        headers={"Accept": "text/event-stream"},
    )
    assert len(re.findall("^event: row$", answer.text, re.M)) == 1
    for said in (bomb, answer, service.get("/v1/batches/%3Cscript%3E")):
        assert said.headers["content-type"].partition(";")[0] in ("application/json", "text/event-stream")
        assert said.headers["x-content-type-options"] == "nosniff"
        assert said.headers["content-security-policy"].startswith("default-src 'none'")


def test_two_thousand_malformed_requests_do_no_harm(service):
    before = service.process.pid
    for number in range(1900):
        kind, body = hostile(number)
        path = ["/v1/assess", "/v1/compare", "/v1/batches"][number % 3]
        answer = service.post(path, content=body, headers={"Content-Type": kind})
        assert answer.status_code in ALLOWED - {200, 202}, (number, answer.status_code, answer.text[:200])
        assert "Traceback" not in answer.text
    for number in range(100):
        said = raw(
            service,
            b"GET /assets/../../../etc/passwd%s HTTP/1.1\r\nHost: %b\r\n\r\n"
            % (b"\x00" * (number % 3), [b"localhost", b"[", b"evil"][number % 3]),
        )
        assert b"Traceback" not in said
        assert b"root:" not in said
    assert service.get("/healthz").status_code == 200
    assert service.process.pid == before
    assert service.process.poll() is None
    assert left_over(service) == []
    assert "Traceback" not in service.log.read_text()
