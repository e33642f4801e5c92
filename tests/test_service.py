"""The service as a process of its own with the small model: answers, batches, a token, kills, and its end."""

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
from contextlib import contextmanager

import httpx
import numpy as np
import openai
import psutil
import pytest
from conftest import ROOT
from PIL import Image

from agentic_iqa_local.cli.main import main

TOKEN = "a-token-of-many-letters"


@contextmanager
def served(folder, *options, pipeline="letters", token=None, ends_with=signal.SIGTERM):
    """A client of a service that ends as it should."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    environment.pop("AGENTIC_IQA_TOKEN", None)
    if token:
        environment["AGENTIC_IQA_TOKEN"] = token
    line = f"scripts/serve.py --cpu --port 0 --batches {folder / 'spool'} --pipeline {pipeline}"
    words = [sys.executable, *line.split()]
    log = folder / "log"
    with log.open("w+") as stderr:
        process = subprocess.Popen([*words, *options], cwd=ROOT, env=environment, stderr=stderr)
    try:
        until = time.monotonic() + 600
        while not (found := re.search(r"http://\S+:\d+(?=:)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(base_url=found[0], timeout=600, headers=headers) as client:
            client.process, client.temporary, client.log = process, temporary, log
            yield client
    finally:
        process.send_signal(ends_with)
        status = process.wait(300)
    assert status == (0 if ends_with == signal.SIGTERM else -ends_with)


def png(seed, size=(200, 192)):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with served(tmp_path_factory.mktemp("service")) as client:
        yield client


def test_a_picture_is_answered_and_leaves_nothing(service):
    data = png(1)
    answer = service.post("/v1/assess", files={"image": ("../../etc/a b.png", data)})
    row = answer.json()
    assert answer.status_code == 200
    assert (row["image"], row["sha256"]) == ("a b.png", hashlib.sha256(data).hexdigest())
    encoded = base64.b64encode(data).decode()
    for image in (encoded, f"data:image/png;base64,{encoded}", {"name": "b.png", "data": encoded}):
        same = service.post("/v1/assess", json={"image": image, "pipeline": "letters"}).json()
        assert same["q"] == row["q"]
    assert same["image"] == "b.png"
    assert not [file for file in service.temporary.glob("agentic-iqa-*/**/*") if file.is_file()]


def test_progress_comes_as_events(service):
    asked = {"files": {"image": ("a.png", png(2))}, "headers": {"Accept": "text/event-stream"}}
    text = service.post("/v1/assess", data={"pipeline": "agent"}, **asked).text
    names = re.findall(r"^event: (.+)$", text, re.M)
    assert (names[0], names[-1]) == ("queued", "row")
    steps = [json.loads(line) for line in re.findall(r"^event: progress\ndata: (.+)$", text, re.M)]
    roles = [step["role"] for step in steps if step["state"] == "started"]
    assert [role for role in roles if role != "tool"][:3] == ["planner", "executor", "summarizer"]


def test_pictures_are_compared_and_ordered(service):
    files = [("images", (f"{seed}.png", png(seed))) for seed in (3, 4, 5)]
    two = service.post("/v1/compare", files=files[:2], data={"background": "white"}).json()
    assert [two["first"]["image"], two["second"]["image"]] == ["3.png", "4.png"]
    assert 0 <= two["pair"]["probability"] <= 1
    order = service.post("/v1/compare", files=files).json()
    assert len(order["order"]) == 3


def test_clients_of_openai_get_the_account_and_the_row(service):
    client = openai.OpenAI(base_url=f"{service.base_url}/v1", api_key="none")
    address = f"data:image/png;base64,{base64.b64encode(png(1)).decode()}"
    parts = [
        {"type": "text", "text": "Rate it"},
        {"type": "image_url", "image_url": {"url": address}},
    ]
    asked = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": parts}],
    }
    whole = client.chat.completions.create(**asked, extra_body={"pipeline": "letters"})
    assert whole.row["query"] == "Rate it"
    assert f"{whole.row['q']:.2f}" in whole.choices[0].message.content
    (chunk,) = client.chat.completions.create(**asked, stream=True)
    assert chunk.row["q"] == whole.row["q"]
    assert chunk.choices[0].delta.content.startswith("picture: ")


def test_what_cannot_be_asked_is_told(service):
    files = {"image": ("a.png", png(6))}
    wrong = service.post("/v1/assess", files=files, data={"pipelin": "agent"})
    assert (wrong.status_code, wrong.json()["error"]["remedy"]) == (400, "did you mean pipeline?")
    broken = service.post("/v1/assess", files={"image": ("a.png", b"no picture")})
    assert (broken.status_code, broken.json()["row"]["image"]) == (422, "a.png")
    assert "/tmp" not in broken.text
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")  # 400 million pixels in 50 kB
    bomb = service.post("/v1/assess", files={"image": ("bomb.png", file.getvalue())})
    assert bomb.status_code == 422
    assert "pixels" in bomb.json()["error"]["message"]


def test_a_killed_model_process_costs_no_answer(service):
    (process,) = [
        child
        for child in psutil.Process(service.process.pid).children()
        if "spawn_main" in " ".join(child.cmdline())
    ]
    process.kill()
    assert service.post("/v1/assess", files={"image": ("a.png", png(5))}).status_code == 200


def test_a_batch_goes_on_after_a_kill(tmp_path):
    pictures = [png(seed) for seed in range(12)]
    files = [("images", ("same.png", data)) for data in pictures]
    with served(tmp_path, ends_with=signal.SIGKILL) as client:
        answer = client.post("/v1/batches", files=files)
        assert answer.status_code == 202
        name = answer.json()["id"]
        while client.get(f"/v1/batches/{name}").json()["done"] < 3:
            time.sleep(0.05)
    assert len((tmp_path / "spool" / name / "rows.jsonl").read_bytes().splitlines()) >= 3
    host = "::1" if socket.has_dualstack_ipv6() else "127.0.0.1"
    with served(tmp_path, "--host", host, token=TOKEN) as client:
        while (status := client.get(f"/v1/batches/{name}").json())["state"] != "finished":
            time.sleep(0.1)
        assert (status["done"], status["failed"]) == (12, 0)
        rows = [
            json.loads(line) for line in client.get(f"/v1/batches/{name}/rows").text.splitlines()
        ]
        assert sorted(row["sha256"] for row in rows) == sorted(
            hashlib.sha256(data).hexdigest() for data in pictures
        )
        assert len({row["image"] for row in rows}) == 12
        assert len(client.get(f"/v1/batches/{name}/rows?from=10").text.splitlines()) == 2
        page = client.get(f"/v1/batches/{name}/gallery")
        assert page.text.count("UklGR") >= 12  # thumbnails in WebP, in base64
        assert (
            "script-src" not in page.headers["content-security-policy"]
        )  # the page has its own policy
        assert client.delete(f"/v1/batches/{name}").status_code == 204
        assert client.get(f"/v1/batches/{name}").status_code == 404
        assert not (tmp_path / "spool" / name).exists()
        assert_token_asked_for(client)


def assert_token_asked_for(client):
    for header in ("", f"Bearer {TOKEN}x", f"Basic {TOKEN}", b"Bearer \xff\xfe"):
        refused = client.get(f"/v1/batches?token={TOKEN}", headers={"Authorization": header})
        assert refused.status_code == 401
        assert TOKEN not in refused.text
    assert client.get("/v1/batches").json() == []
    assert client.get("/v1/info", headers={"Authorization": ""}).json()["token_required"] is True


@pytest.mark.parametrize("token", ["", "short"])
def test_beyond_the_loopback_a_token_is_needed(token, monkeypatch, capsys):
    monkeypatch.setenv("AGENTIC_IQA_TOKEN", token)
    assert main(["serve", "--cpu", "--host", "0.0.0.0"]) == 2
    assert "TOKEN" in capsys.readouterr().err
