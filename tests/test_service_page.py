"""The service's page in a real browser, against a service of its own with the small model."""

import json
from pathlib import Path

import pytest
from browser import axe_findings, browser_page, needs_chromium
from test_service import TOKEN, png, served

pytestmark = needs_chromium

HOSTILE = "<img src=x onerror=window.hit=1>.png"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with served(tmp_path_factory.mktemp("page"), pipeline="agent", token=TOKEN) as client:
        yield client


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
    assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert axe_findings(watched.page) == []


@pytest.mark.parametrize(("size", "dark"), [("wide", False), ("phone", True)])
def test_the_page_in_each_of_its_states(service, size, dark):
    with browser_page(size=size, dark=dark) as watched:
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


def test_pictures_are_dropped_and_pasted(service):
    with browser_page() as watched:
        page = opened(watched, service)
        for kind in ("paste", "drop", "reference"):
            page.evaluate(HAND_OVER, kind)
        assert page.locator("#images li span").all_inner_texts() == ["paste.png", "drop.png"]
        assert page.locator("#references li span").all_inner_texts() == ["reference.png"]


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


def test_a_wrong_token_is_told_and_another_asked_for(service):
    with browser_page() as watched:
        page = opened(watched, service, "wrong")
        given(page, "a.png")
        page.click("#go")
        page.wait_for_selector(".failed")
        page.fill("#token", TOKEN)
        assessed(page)
        assert page.locator(".verdict").count() == 1
