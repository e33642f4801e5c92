"""The report's page in a browser, and the notes that warn of a run."""

import re

import pandas as pd
import pytest
from browser import browser_page, findings_of_looks, needs_chromium
from test_study_report import MARKUP, analysed, make_rows, make_run

from agentic_iqa_local.studies.plots import draw
from agentic_iqa_local.studies.report import Analysis, write_page


def test_notes_warn_of_what_a_run_lacks():
    run = make_run("csiq")
    run["dataset"] |= {"images": 82, "missing": ["a.png", "b.png"], "left_out": {"no score": 3}}
    notes = "\n".join(analysed(make_rows(72), run, draws=20).notes)
    for said in (
        "10 of 82 images take no part",
        "2 files missing of those that the scores name; the first: a.png",
        "3 rows left out: no score",
        "a lower score is better",
        "20 bootstrap draws of 12 groups",
    ):
        assert said in notes


@pytest.fixture(scope="module")
def study() -> Analysis:
    """With hostile names of the run, the data set and distortions."""
    rows = make_rows()
    for row in rows:
        row["distortion"] += MARKUP
    run = make_run("koniq10k")
    run["dataset"]["title"] = f"Set {MARKUP}"
    return analysed(rows, run, draws=60, name=f"run {MARKUP}")


@pytest.fixture(scope="module")
def page(study, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_page([(study, draw(study.run, study.tables))], file, pd.DataFrame())
    return file


def test_untrusted_text_is_escaped_and_nothing_is_fetched(page):
    text = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text  # of the run's name and the query
    assert text.count("<script") == 1  # the page's own
    sources = re.findall(r"<[^>]*\s(?:src|href|srcset|data|action|poster)=[\"']?([^\"'\s>]*)", text)
    assert {source.partition(":")[0] for source in sources} == {"data"}
    assert not re.search(r"url\(|@import|<[^>]*\son\w+=|unsafe", text)
    assert "default-src &#39;none&#39;" in text


@needs_chromium
def test_the_page_is_clean_in_a_browser(page):
    with browser_page() as watched:
        watched.page.goto(page.as_uri())
        assert watched.page.locator("figure img[src^='data:image/svg']").count() == 3
        assert MARKUP in watched.page.locator("h2").inner_text()
        assert (
            MARKUP
            in watched.page.locator(
                "details.table", has_text="Within distortion types"
            ).text_content()
        )
        assert watched.page.locator("script").count() == 1
        watched.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert findings_of_looks(watched.page) == []
        assert watched.strangers(page.as_uri()) == []
        assert watched.complaints == []


@needs_chromium
def test_tables_sort_by_keyboard_and_unfold_in_print(page, study):
    with browser_page() as watched:
        watched.page.goto(page.as_uri())
        tables = watched.page.locator("details.table")
        first = tables.first
        column = first.locator("th", has_text="SRCC").first
        cells = f"td:nth-child({1 + column.evaluate('th => th.cellIndex')})"
        values = sorted(round(srcc, 3) for srcc in study.tables["modes"].srcc)
        for order, expected in (("ascending", values), ("descending", values[::-1])):
            column.locator("button").press("Enter")
            assert column.get_attribute("aria-sort") == order
            texts = first.locator(cells).all_inner_texts()
            assert [float(text.split()[0]) for text in texts] == expected
        assert not tables.nth(1).locator("table").is_visible()
        watched.page.emulate_media(media="print")
        watched.page.locator("details.table:not([open])").first.wait_for(state="detached")
        assert tables.nth(1).locator("table").is_visible()
        assert watched.complaints == []
