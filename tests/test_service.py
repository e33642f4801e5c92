"""The service as a process of its own with the small model: answers, batches, a token, a kill, its page in a real
browser, and its end."""

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
from pathlib import Path

import httpx
import jsonschema
import numpy as np
import openai
import pytest
from browser import browser_page, findings_of_looks, needs_chromium
from conftest import ROOT
from PIL import Image

from agentic_iqa_local.cli.main import main

TOKEN = "a-token-of-many-letters"
LETTERS = {"pipeline": "letters"}
HOSTILE = "<img src=x onerror=window.hit=1>.png"


def begin(folder, *options):
    """The process of a service, and its address."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    own = {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "AGENTIC_IQA_TOKEN": TOKEN}
    line = f"scripts/serve.py --cpu --port 0 --batches {folder / 'spool'} --pipeline agent"
    words = [sys.executable, *line.split(), *options]
    log = folder / "log"
    with log.open("w+") as stderr:
        process = subprocess.Popen(words, cwd=ROOT, env=os.environ | own, stderr=stderr)
    until = time.monotonic() + 600
    while not (found := re.search(r"http://\S+:\d+(?=:)", log.read_text())):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until
        time.sleep(0.1)
    return process, found[0]


def png(seed, size=(200, 192)):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A client of a service that ends as it should."""
    with httpx.Client(timeout=600, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        client.folder = tmp_path_factory.mktemp("service")
        client.process, client.base_url = begin(client.folder)
        yield client
        client.process.terminate()
        assert client.process.wait(300) == 0


def test_a_picture_is_answered_and_leaves_nothing(service):
    data = png(1)
    answer = service.post("/v1/assess", files={"image": ("../../etc/a b.png", data)}, data=LETTERS)
    row = answer.json()
    assert answer.status_code == 200
    assert (row["image"], row["sha256"]) == ("a b.png", hashlib.sha256(data).hexdigest())
    encoded = base64.b64encode(data).decode()
    for image in (encoded, f"data:image/png;base64,{encoded}", {"name": "b.png", "data": encoded}):
        same = service.post("/v1/assess", json={"image": image} | LETTERS).json()
        assert same["q"] == row["q"]
    assert same["image"] == "b.png"
    left = (service.folder / "tmp").glob("agentic-iqa-*/**/*")
    assert not [file for file in left if file.is_file()]


def test_progress_comes_as_events(service):
    asked = {"files": {"image": ("a.png", png(2))}, "headers": {"Accept": "text/event-stream"}}
    text = service.post("/v1/assess", **asked).text
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
    one = service.post("/v1/assess", files={"image": files[0][1]}).json()
    told = service.get("/openapi.json").json()
    for path, answer in (("compare", two), ("compare", order), ("assess", one)):
        response = told["paths"][f"/v1/{path}"]["post"]["responses"]["200"]
        schema = response["content"]["application/json"]["schema"]
        components = {"components": told["components"]}
        jsonschema.validate(answer, schema | components, jsonschema.Draft202012Validator)


def test_clients_of_openai_get_the_account_and_the_row(service):
    client = openai.OpenAI(base_url=f"{service.base_url}/v1", api_key=TOKEN)
    address = f"data:image/png;base64,{base64.b64encode(png(1)).decode()}"
    parts = [
        {"type": "text", "text": "Rate it"},
        {"type": "image_url", "image_url": {"url": address}},
    ]
    asked = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": parts}],
        "extra_body": LETTERS,
    }
    whole = client.chat.completions.create(**asked)
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


def test_a_token_is_asked_for(service):
    for header in ("", f"Bearer {TOKEN}x", f"Basic {TOKEN}", b"Bearer \xff\xfe"):
        refused = service.get(f"/v1/batches?token={TOKEN}", headers={"Authorization": header})
        assert refused.status_code == 401
        assert TOKEN not in refused.text
    assert service.get("/v1/batches").json() == []
    assert service.get("/v1/info", headers={"Authorization": ""}).json()["token_required"] is True


@pytest.mark.parametrize("token", ["", "short"])
def test_beyond_the_loopback_a_token_is_needed(token, monkeypatch, capsys):
    monkeypatch.setenv("AGENTIC_IQA_TOKEN", token)
    assert main(["serve", "--cpu", "--host", "0.0.0.0"]) == 2
    assert "TOKEN" in capsys.readouterr().err


# The page


def opened(watched, service, token=TOKEN):
    address = str(service.base_url)
    watched.page.goto(address)
    watched.page.wait_for_selector("#presets button")
    watched.page.fill("#token", token)
    return watched.page


def given(page, *names, to="#image"):
    files = [
        {"name": name, "mimeType": "image/png", "buffer": png(seed)}
        for seed, name in enumerate(names, 40)
    ]
    page.set_input_files(to, files)


def assessed(page):
    page.click("#go")
    page.wait_for_selector("article.answer", timeout=600000)


def clean(watched, service):
    assert watched.strangers(str(service.base_url)) == []
    assert watched.complaints == []
    assert "undefined" not in watched.page.inner_text("body")
    assert findings_of_looks(watched.page) == []


@needs_chromium
def test_the_page_in_each_of_its_states(service):
    with browser_page() as watched:
        page = opened(watched, service)
        page.click("#options summary")
        clean(watched, service)
        given(page, HOSTILE)
        given(page, "original.png", to="#reference")
        page.check("#map")
        assessed(page)
        clean(watched, service)
        assert page.evaluate("window.hit") is None
        assert HOSTILE in page.inner_text("#history")
        with page.expect_download() as saved:
            page.click("text=Download the row")
        row = json.loads(Path(saved.value.path()).read_text())
        assert row["image"] == HOSTILE
        assert f"q {row['q']:.2f}" in page.inner_text(".verdict")
        assert f"{row['q']:.2f} of 5" in page.inner_text("#status")
        rows = page.locator("section.part:has(h2:text-is('Scores')) tbody tr")
        assert rows.count() == len(row["tools"]) + 2  # the model alone, and both together
        page.click("text=Side by side")
        assert page.locator(".frame.beside").count() == 1
        clean(watched, service)
        given(
            page, "a.png", "b.png", "c.png"
        )  # after an answer the next pictures are another question
        assert page.inner_text("#go") == "Compare 3 pictures"
        page.click("#references button")
        assessed(page)
        assert page.locator(".order > li").count() == 3
        assert page.locator(".order img").evaluate_all(
            "all => all.every(one => one.naturalWidth > 0)"
        )
        page.locator(".order summary").first.click()
        page.wait_for_selector(".order [open] .bars li")
        assert page.locator(".order [open] .bars li").count() == 5
        clean(watched, service)
        page.locator("#history button").last.click()
        assert f"q {row['q']:.2f}" in page.inner_text(".verdict")


@needs_chromium
def test_pictures_are_assessed_one_by_one_with_a_gallery(service):
    with browser_page() as watched:
        page = opened(watched, service)
        given(page, HOSTILE, "b.png")
        page.check("#each")
        assert page.inner_text("#go") == "Assess 2 pictures"
        assessed(page)
        assert page.locator(".order > li").count() == 2
        assert page.locator(".order img").evaluate_all(
            "all => all.every(one => one.naturalWidth > 0)"
        )
        with page.expect_download() as saved:
            page.click("text=Download the gallery")
        assert (
            Path(saved.value.path()).read_text().count("UklGR") >= 2
        )  # thumbnails in WebP, in base64
        clean(watched, service)
        assert service.get("/v1/batches").json() == []


HAND_OVER = """(kind) => {
  const files = new DataTransfer();
  files.items.add(new File([new Uint8Array([1])], `${kind}.png`, { type: "image/png" }));
  const event = kind === "paste" ? new ClipboardEvent("paste", { clipboardData: files, bubbles: true })
    : new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true });
  document.querySelector(kind === "reference" ? "#drop-reference" : "body").dispatchEvent(event);
}"""


@needs_chromium
def test_pictures_are_dropped_and_pasted(service):
    with browser_page() as watched:
        page = opened(watched, service)
        for kind in ("paste", "drop", "reference"):
            page.evaluate(HAND_OVER, kind)
        assert page.locator("#images li span").all_inner_texts() == ["paste.png", "drop.png"]
        assert page.locator("#references li span").all_inner_texts() == ["reference.png"]


@needs_chromium
def test_the_reference_is_swiped_by_pointer_and_by_key(service):
    with browser_page() as watched:
        page = opened(watched, service)
        given(page, "a.png")
        given(page, "original.png", to="#reference")
        assessed(page)
        area = page.locator(".swiped").bounding_box()
        page.mouse.move(area["x"] + area["width"] / 4, area["y"] + area["height"] / 2)
        page.mouse.down()
        page.mouse.up()
        slider = page.locator("label:has-text('Reference from the left') input")
        shown = "node => node.style.clipPath"
        reference = page.locator(".reference")
        assert slider.input_value() == "25"
        assert reference.evaluate(shown) == "inset(0px 75% 0px 0px)"
        slider.press("ArrowRight")
        assert reference.evaluate(shown) == "inset(0px 74% 0px 0px)"


@needs_chromium
def test_the_keyboard_alone_asks_a_question(service):
    with browser_page() as watched:
        page = opened(watched, service)
        given(page, "a.png")
        page.focus("#presets button:nth-child(3)")
        page.keyboard.press("Enter")
        assert page.input_value("#choices").split() == ["Yes", "No"]
        assert page.locator("#presets button[aria-pressed=true]").count() == 1
        page.focus("#go")
        page.keyboard.press("Enter")
        page.wait_for_selector("article.answer", timeout=600000)
        assert page.inner_text(".verdict").split(" (p")[0] in ("Yes", "No")


@needs_chromium
def test_a_comparison_that_fails_says_so(service):
    with browser_page() as watched:
        page = opened(watched, service)
        broken = {"name": "b.png", "mimeType": "image/png", "buffer": b"no picture"}
        page.set_input_files("#image", [{**broken, "name": "a.png", "buffer": png(1)}, broken])
        assessed(page)
        assert "b.png" in page.inner_text("article .failed")
        assert page.inner_text("#status") == "The pictures could not be compared."
        assert "failed" in page.inner_text("#history")
        clean(watched, service)


@needs_chromium
def test_a_wrong_token_is_told_and_another_asked_for(service):
    with browser_page() as watched:
        page = opened(watched, service, "wrong")
        given(page, "a.png")
        page.click("#go")
        page.wait_for_selector(".failed")
        page.fill("#token", TOKEN)
        assessed(page)
        assert page.locator(".verdict").count() == 1


# A kill


def test_a_batch_goes_on_after_a_kill(service):
    """The service of the other tests is killed and started again, on another address."""
    pictures = [png(seed) for seed in range(12)]
    files = [("images", ("same.png", data)) for data in pictures]
    answer = service.post("/v1/batches", files=files, data=LETTERS)
    assert answer.status_code == 202
    name = answer.json()["id"]
    while service.get(f"/v1/batches/{name}").json()["done"] < 3:
        time.sleep(0.05)
    service.process.kill()
    assert service.process.wait() == -signal.SIGKILL
    assert len((service.folder / "spool" / name / "rows.jsonl").read_bytes().splitlines()) >= 3
    host = "::1" if socket.has_dualstack_ipv6() else "127.0.0.1"
    service.process, service.base_url = begin(service.folder, "--host", host)
    while (status := service.get(f"/v1/batches/{name}").json())["state"] != "finished":
        time.sleep(0.1)
    assert (status["done"], status["failed"]) == (12, 0)
    rows = [json.loads(line) for line in service.get(f"/v1/batches/{name}/rows").text.splitlines()]
    assert sorted(row["sha256"] for row in rows) == sorted(
        hashlib.sha256(data).hexdigest() for data in pictures
    )
    assert len({row["image"] for row in rows}) == 12
    assert len(service.get(f"/v1/batches/{name}/rows?from=10").text.splitlines()) == 2
    page = service.get(f"/v1/batches/{name}/gallery")
    assert page.text.count("UklGR") >= 12  # thumbnails in WebP, in base64
    assert (
        "script-src" not in page.headers["content-security-policy"]
    )  # the page has its own policy
    assert service.delete(f"/v1/batches/{name}").status_code == 204
    assert service.get(f"/v1/batches/{name}").status_code == 404
    assert not (service.folder / "spool" / name).exists()
