"""The report's page: five sentences over planted studies, figures that agree with the tables, and a browser."""

import re

import numpy as np
import pytest
from browser import axe_findings, browser_page, needs_chromium
from test_study_report import MARKUP, analysed, make_rows, make_run, one

from agentic_iqa_local.studies.plots import draw
from agentic_iqa_local.studies.report import Analysis, write_page
from agentic_iqa_local.studies.summary import number

MODE = "<script>alert(1)<b>"
TOPICS = ["winner", "difference", "significance", "leaks", "failures"]


def planted(noise: dict[str, float], count: int = 60, failing: int = 0, copies: int = 0) -> list[dict]:
    """Rows that hold tools' scores alone: the human score plus noise of the size given for each tool. The
    last `failing` rows failed, the first `copies` repeat the file of the row behind them."""
    rng = np.random.default_rng(3)
    rows = []
    for i in range(count):
        mos = 8 * i / count + 0.5
        tools = {
            tool: {"raw": mos / 10 + rng.normal(0, spread), "normalized": 3.0, "seconds": 0.1}
            for tool, spread in noise.items()
        }
        row = {"key": f"{i}.png", "image": f"{i}.png", "mos": mos, "sha256": f"{max(i, copies):064x}"}
        row |= {"reads": {}, "tools": tools}
        rows.append(row if i < count - failing else row | {"error": "cannot be decoded", "tools": {}})
    return rows


def summary(rows: list[dict], key: str = "tid2013", **options) -> dict:
    run = make_run(key)
    run["dataset"] |= {"images": options.pop("expected", len(rows)), "higher_is_better": True}
    found = analysed(rows, run, **{"draws": 400, "baseline": "PSNR"} | options).summary
    assert [sentence.topic for sentence in found] == TOPICS
    for sentence in found:
        assert sentence.text.endswith(".")
        assert not re.search(r"\bnan\b|None|\n|[!?.] [A-Z]", sentence.text), sentence.text
    return {sentence.topic: sentence for sentence in found}


def test_a_planted_winner_wins_by_what_the_table_says():
    study = analysed(planted({"PSNR": 0.6, "VSI": 0.01, "SSIM": 0.5}), draws=400, baseline="PSNR")
    winner, difference, significance = study.summary[:3]
    row = one(study.tables["differences"], first="VSI")
    assert "“VSI” ranks best" in winner.text
    assert (difference.verdict, significance.verdict) == ("higher", "significant")
    assert number(row["srcc_difference"]) in difference.text
    assert row["p_holm"] < 0.05


@pytest.mark.parametrize(
    ("noise", "options", "verdicts"),
    [
        ({"PSNR": 0.3, "VSI": 0.3}, {}, {"significance": "not significant"}),
        ({"PSNR": 0.01, "VSI": 0.5, "SSIM": 2.0}, {}, {"difference": "lower", "significance": "significant"}),
        ({"PSNR": 0.6, "VSI": 0.01, "SSIM": 0.5}, {"draws": 20}, {"significance": "too few draws"}),
        ({"PSNR": 0.1}, {}, {"difference": "unknown", "significance": "not tested"}),
    ],
)
def test_what_is_known_of_a_difference(noise, options, verdicts):
    found = summary(planted(noise), **options)
    assert {topic: found[topic].verdict for topic in verdicts} == verdicts


def test_nobody_wins_a_constant_and_scores_that_look_like_dmos_are_remarked_on():
    rows = planted({"PSNR": 0.01})
    assert summary([row | {"mos": 3.0} for row in rows])["winner"].verdict == "none"
    turned = [row | {"mos": -row["mos"]} for row in rows]
    said = [summary(of, "manifest")["winner"].text for of in (rows, turned)]
    assert ["lower scores seem to be better" in text for text in said] == [False, True]


def test_a_mode_that_answered_few_images_takes_no_part():
    rows = planted({"PSNR": 0.5, "VSI": 0.0})  # SRCC 1 on ten images
    for row in rows[10:]:
        row["tools"]["VSI"] = {"error": "VSI: out of memory"}
    found = summary(rows)
    assert "“PSNR” ranks best" in found["winner"].text
    assert "answered too few of them" in found["winner"].text
    assert "out of memory (VSI on 50 images)" in found["failures"].text


def test_planted_leaks_copies_and_failures_are_told():
    rows = planted({"PSNR": 0.5, "TOPIQ_FR": 0.01}, copies=3, failing=4)  # TOPIQ_FR was trained on KADID-10k
    found = summary(rows, "kadid10k", expected=70)
    assert found["leaks"].verdict == "leaked"
    for said in ("tool TOPIQ_FR: trained on it", "clean is “PSNR”", "3 images repeat the file of another"):
        assert said in found["leaks"].text
    for said in ("4 of 70 images", "cannot be decoded (image on 4 images)", "10 of 70 images have no row"):
        assert said in found["failures"].text
    clean = summary(planted({"PSNR": 0.5, "VSI": 0.01}))
    assert (clean["leaks"].verdict, clean["failures"].verdict) == ("none known", "none")


@pytest.fixture(scope="module")
def study() -> Analysis:
    """With hostile names of the run, the data set, distortions and a mode."""
    rows = make_rows()
    for row in rows:
        row["distortion"] += MARKUP
        if reads := row.get("reads"):
            reads[f"image_alone/{MODE}"] = reads["image_alone"]
    run = make_run("koniq10k")
    run["dataset"] |= {"title": f"Set {MARKUP}", "higher_is_better": True}
    return analysed(rows, run, draws=200, name=f"run {MARKUP}")


@pytest.fixture(scope="module")
def page(study, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_page([(study, draw(study.run, study.tables))], file, pictures=False)
    return file


@needs_chromium
@pytest.mark.parametrize(("size", "dark"), [("wide", False), ("phone", True)])
def test_the_page_is_clean_in_a_browser_and_hostile_names_are_text(page, size, dark):
    with browser_page(size=size, dark=dark) as watched:
        watched.page.goto(page.as_uri())
        assert watched.page.locator("dl.summary dd").count() == 5
        assert watched.page.locator("figure img[src^='data:image/svg']").count() == 5
        assert MARKUP in watched.page.locator("h2").inner_text()
        assert MODE in watched.page.locator("details.table").first.text_content()
        assert watched.page.locator("script").count() == 1
        watched.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert axe_findings(watched.page) == []
        assert watched.strangers(page.as_uri()) == []
        assert watched.complaints == []


@needs_chromium
def test_tables_sort_by_keyboard_and_unfold_in_print(page, study):
    with browser_page() as watched:
        watched.page.goto(page.as_uri())
        tables = watched.page.locator("details.table")
        first = tables.first
        first.locator("summary").press("Enter")
        column = first.locator("th", has_text="SRCC").first
        cells = f"td:nth-child({1 + column.evaluate('th => th.cellIndex')})"
        values = sorted(study.tables["modes"].srcc)
        for order, expected in (("ascending", values), ("descending", values[::-1])):
            column.locator("button").press("Enter")
            assert column.get_attribute("aria-sort") == order
            shown = first.locator(cells).evaluate_all("cells => cells.map(cell => Number(cell.dataset.n))")
            assert shown == expected
        assert not tables.nth(1).locator("table").is_visible()
        watched.page.emulate_media(media="print")
        watched.page.locator("details.table:not([open])").first.wait_for(state="detached")
        assert tables.nth(1).locator("table").is_visible()
        assert watched.complaints == []
