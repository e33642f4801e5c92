"""The report's page: five sentences over planted studies, figures that agree with the tables, and a browser."""

import json
import re

import numpy as np
import pytest
from browser import axe_findings, browser_page, needs_chromium
from test_study_report import MARKUP, analysed, make_row, make_rows, make_run

from agentic_iqa_local.studies.page import write_html
from agentic_iqa_local.studies.plots import draw
from agentic_iqa_local.studies.report import write_summary
from agentic_iqa_local.studies.study import Study, number
from agentic_iqa_local.studies.summary import summarize

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
    run["dataset"]["images"] = options.pop("expected", len(rows))
    found = summarize(analysed(rows, run, **{"draws": 400, "baseline": "PSNR"} | options))
    assert [sentence.topic for sentence in found] == TOPICS
    for sentence in found:
        assert sentence.text.endswith(".")
        assert not re.search(r"\bnan\b|None|\n|[!?.] [A-Z]", sentence.text), sentence.text
    return {sentence.topic: sentence for sentence in found}


def test_a_planted_winner_wins_by_what_the_table_says():
    rows = planted({"PSNR": 0.6, "VSI": 0.01, "SSIM": 0.5})
    study = analysed(rows, draws=400, baseline="PSNR")
    found = {sentence.topic: sentence for sentence in summarize(study)}
    row = next(row for row in study.tables["differences"] if row["first"] == "VSI")
    assert (found["winner"].verdict, found["winner"].numbers["best"]) == ("one", ["VSI"])
    assert found["difference"].verdict == "higher"
    assert found["difference"].numbers == row
    for name in ("srcc_difference", "plcc_difference"):
        assert number(row[name]) in found["difference"].text
    assert found["significance"].verdict == "significant"
    assert found["significance"].numbers["p_holm"] == row["p_holm"] < 0.05


def test_equal_noise_is_not_significant():
    found = summary(planted({"PSNR": 0.3, "VSI": 0.3}))
    assert found["significance"].verdict == "not significant"
    assert found["significance"].numbers["p_holm"] >= 0.05


def test_a_baseline_that_wins_is_compared_with_the_next_best():
    found = summary(planted({"PSNR": 0.01, "VSI": 0.5, "SSIM": 2.0}))
    assert found["winner"].numbers["best"] == ["PSNR"]
    assert (found["difference"].numbers["first"], found["difference"].verdict) == ("PSNR", "higher")
    assert found["difference"].numbers["second"] != "SSIM"


def test_ties_share_the_first_place():
    rows = planted({"PSNR": 0.5, "VSI": 0.01})
    for row in rows:
        row["tools"]["SSIM"] = row["tools"]["VSI"]
    found = summary(rows)["winner"]
    assert (found.verdict, found.numbers["best"]) == ("tie", ["SSIM", "VSI"])


def test_what_cannot_be_known_is_said():
    one = summary(planted({"PSNR": 0.1}))
    assert (one["difference"].verdict, one["significance"].verdict) == ("unknown", "not tested")
    assert summary(planted({"PSNR": 0.1, "VSI": 0.1}, count=1))["winner"].verdict == "none"
    constant = [row | {"mos": 3.0} for row in planted({"PSNR": 0.1, "VSI": 0.1})]
    assert summary(constant)["winner"].verdict == "none"


def test_too_few_draws_leave_it_undecided():
    found = summary(planted({"PSNR": 0.6, "VSI": 0.01, "SSIM": 0.5}), draws=20)
    assert found["significance"].verdict == "too few draws"


def test_a_mode_that_answered_few_images_takes_no_part():
    rows = planted({"PSNR": 0.5, "VSI": 0.5})
    for row in rows[10:]:
        row["tools"]["VSI"] = {"error": "VSI: out of memory"}
    for row in rows[:10]:
        row["tools"]["VSI"]["raw"] = row["mos"]  # SRCC 1 on ten images
    found = summary(rows)
    assert found["winner"].numbers["best"] == ["PSNR"]
    assert "answered too few of them" in found["winner"].text
    assert "out of memory (VSI on 50 images)" in found["failures"].text


def test_planted_leaks_and_copies_are_told():
    rows = planted({"PSNR": 0.5, "TOPIQ_FR": 0.01}, copies=3)  # TOPIQ_FR was trained on KADID-10k
    leaked = summary(rows, "kadid10k")["leaks"]
    assert leaked.verdict == "leaked"
    assert "TOPIQ_FR" in leaked.numbers["seen"]
    assert "tool TOPIQ_FR: trained on it" in leaked.text
    assert "clean is “PSNR”" in leaked.text
    assert "3 images repeat the file of another" in leaked.text
    clean = summary(planted({"PSNR": 0.5, "VSI": 0.01}))["leaks"]
    assert (clean.verdict, clean.numbers["seen"], clean.numbers["copies"]) == ("none known", [], 0)


def test_a_model_of_unknown_training_is_perhaps_leaked():
    run = make_run(name="Qwen2.5-VL-7B-Instruct", notice=None)
    found = summarize(analysed(make_rows(), run))[3]
    assert found.verdict == "unknown"
    assert "logits" in found.numbers["unknown"]


def test_planted_failures_are_counted():
    found = summary(planted({"PSNR": 0.5}, failing=4), expected=70)["failures"]
    assert "4 of 70 images" in found.text
    assert "cannot be decoded (image on 4 images)" in found.text
    assert "10 of 70 images have no row" in found.text
    assert found.numbers == {"rows": 60, "failed": 4, "without_row": 10, "reasons": 1}
    nothing = summary(planted({"PSNR": 0.5}))["failures"]
    assert (nothing.verdict, nothing.numbers["failed"]) == ("none", 0)


@pytest.fixture(scope="module")
def study() -> Study:
    """With hostile names of the run, the data set, distortions and a mode."""
    rng = np.random.default_rng(7)
    rows = [make_row(i, rng, 12, ("VSI", "PSNR")) for i in range(96)]
    for row in rows:
        row["distortion"] += MARKUP
        if reads := row.get("reads"):
            reads[f"image_alone/{MODE}"] = reads["image_alone"]
    run = make_run("koniq10k")
    run["dataset"] |= {"title": f"Set {MARKUP}", "higher_is_better": True}
    return analysed(rows, run, draws=800, name=f"run {MARKUP}")


def test_report_json_holds_the_sentences_and_the_tables(study, tmp_path):
    write_summary(study, tmp_path)
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [line["text"] for line in found["summary"]] == [sentence.text for sentence in summarize(study)]
    assert [row["srcc"] for row in found["tables"]["modes"]] == [row["srcc"] for row in study.tables["modes"]]


@pytest.fixture(scope="module")
def page(study, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_html([(study, draw(study))], file, pictures=False)
    return file


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", ["wide", "phone"])
def test_the_page_is_clean_in_a_browser(page, size, dark):
    with browser_page(size=size, dark=dark) as watched:
        watched.page.goto(page.as_uri())
        assert watched.page.locator("dl.summary dd").count() == 5
        assert watched.page.locator("figure img[src^='data:image/svg']").count() == 5
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
        values = sorted(row["srcc"] for row in study.tables["modes"])
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


@needs_chromium
def test_hostile_names_are_text(page):
    with browser_page() as watched:
        watched.page.goto(page.as_uri())
        assert MARKUP in watched.page.locator("h2").inner_text()
        assert MODE in watched.page.locator("details.table").first.text_content()
        assert watched.page.locator("script").count() == 1
        assert watched.page.locator("img:not([src^='data:'])").count() == 0
