"""Draws the documents' pictures of the pages, and sees to it that nothing complains meanwhile:

    SCREENSHOTS=docs/images python -m pytest tests/screenshots.py

Not among the tests: it takes minutes. What the pages show is assessed anew by the model that ships.
"""

import json

import numpy as np
import pytest
from browser import CHROMIUM, SCREENSHOTS, axe_findings, browser_page, screenshot
from conftest import DATA, ROOT
from distortions import DISTORTIONS
from PIL import Image
from test_service import served
from test_study_report import analysed, make_rows, make_run

from agentic_iqa_local.cli.gallery import main as gallery
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.quality_map import MapRequest
from agentic_iqa_local.services import Services
from agentic_iqa_local.studies.plots import draw as figures
from agentic_iqa_local.studies.report import write_page

DAMAGED = ROOT / "docs" / "images" / "sumac_damaged.webp"
DISTORTED = [
    ("sumac", "gaussian_blur", 4), ("sumac", "white_noise", 3), ("sumac", "jpeg", 4), ("sumac", "darken", 3),
    ("sumac", "colour_cast", 3), ("prudential", "motion_blur", 3), ("prudential", "chroma_noise", 4),
    ("prudential", "contrast_decrease", 3), ("prudential", "webp", 5), ("prudential", "oversharpen", 3),
]  # fmt: skip

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and SCREENSHOTS), reason="NOT RUN: wants Chromium, and SCREENSHOTS=FOLDER"
)


def draw(watched, name, dark=False):
    screenshot(watched.page, f"{name}_1280_{'dark' if dark else 'light'}.{'webp' if name == 'gallery' else 'png'}")
    assert axe_findings(watched.page) == []
    assert watched.complaints == []


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with served(tmp_path_factory.mktemp("service")) as client:
        yield client


def test_the_answer(service):
    with browser_page() as watched:
        page = watched.page
        page.goto(str(service.base_url))
        page.wait_for_selector("#presets button")
        page.set_input_files("#image", str(DAMAGED))
        page.set_input_files("#reference", str(DATA / "sumac.png"))
        page.check("#map")
        page.click("#go")
        page.wait_for_selector("article.answer", timeout=600000)
        page.locator("label:has-text('Reference from the left') input").fill("20")
        draw(watched, "serve_answer")


def test_a_comparison(service):
    with browser_page(dark=True) as watched:
        watched.page.goto(str(service.base_url))
        watched.page.wait_for_selector("#presets button")
        files = [DAMAGED, DATA / "sumac.png", DATA / "prudential.png"]
        watched.page.set_input_files("#image", list(map(str, files)))
        watched.page.click("#go")
        watched.page.wait_for_selector(".order", timeout=600000)
        draw(watched, "serve_compare", dark=True)


def test_the_gallery(tmp_path):
    """A gallery of distorted copies of the photographs in tests/data."""
    rng = np.random.default_rng(0)
    services = Services(load_settings().with_options(at_least=2.5), "cpu")
    files = [DATA / "sumac.png", DATA / "prudential.png", DAMAGED]
    for name, kind, severity in DISTORTED:
        files.append(tmp_path / f"{name}_{kind}.png")
        pixels = DISTORTIONS[kind].apply(np.asarray(Image.open(DATA / f"{name}.png").convert("RGB")), severity, rng)
        Image.fromarray(pixels).save(files[-1])
    rows = [assess(file, services=services, map=MapRequest()).to_dict() for file in files]
    (tmp_path / "spring.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert gallery([str(tmp_path / "spring.jsonl"), "--out", str(tmp_path / "gallery.html")]) == 0
    with browser_page() as watched:
        watched.page.goto((tmp_path / "gallery.html").as_uri())
        watched.page.locator(".card").first.focus()
        for key in "rruk":
            watched.page.keyboard.press(key)
        watched.page.evaluate("scrollTo(0, 0)")
        draw(watched, "gallery")


def test_the_report(tmp_path):
    run = make_run(notice=None)
    shown = analysed(make_rows(), run, draws=800, name="Sharpness and noise, spring set")
    write_page([(shown, figures(shown.run, shown.tables))], tmp_path / "report.html", pictures=False)
    with browser_page() as watched:
        watched.page.goto((tmp_path / "report.html").as_uri())
        draw(watched, "report")
