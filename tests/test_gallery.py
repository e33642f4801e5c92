"""The gallery of a batch: its data, and the page in a browser."""

import base64
import io
import json

import pytest
from browser import axe_findings, browser_page, needs_chromium
from PIL import Image

from agentic_iqa_local.commands.gallery import main
from agentic_iqa_local.gallery.rows import GalleryError, read_rows
from agentic_iqa_local.gallery.thumbnails import Sizes, thumbnail
from agentic_iqa_local.result import Assessment

HOSTILE = "</script><script>document.title='ran'</script>"


def lines(folder, count=3):
    rows = []
    for i in range(count):
        file = folder / f"{i}.png"
        Image.new("RGB", (64, 48), (40 * i % 255, 90, 120)).save(file)
        level = 1 + i % 5
        letter = "EDCBA"[level - 1]
        p_c = {name: float(name == letter) for name in "ABCDE"}
        row = Assessment(
            image=str(file),
            query=f"=cmd|{HOSTILE}",
            mode="logits",
            q=float(level),
            p_c=p_c,
            final_answer=letter,
        )
        rows.append(row.to_dict())
    rows.append(
        Assessment(image="gone.png", query="Rate", mode="logits", error="gone.png: none; look").to_dict()
    )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


@pytest.mark.parametrize(
    ("line", "said"),
    [("", "found none"), ("{}", "line 1"), ('{"kind": "comparison"}', "--compare"), ("no", "line 1")],
)
def test_other_files_are_refused_in_one_sentence(tmp_path, line, said):
    (tmp_path / "rows.jsonl").write_text(line and f"{line}\n")
    with pytest.raises(GalleryError, match=said):
        read_rows(tmp_path / "rows.jsonl")


def test_thumbnails_stand_upright(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # turned by a quarter
    Image.new("RGB", (80, 40)).save(tmp_path / "a.jpg", exif=exif)
    found = thumbnail(tmp_path / "a.jpg", Sizes(20, None))
    assert found.size == (40, 80)
    assert Image.open(io.BytesIO(base64.b64decode(found.small))).size == (10, 20)


@needs_chromium
def test_the_page_in_a_browser(tmp_path):
    assert main([str(lines(tmp_path, 300)), "--out", str(tmp_path / "gallery.html")]) == 1
    uri = (tmp_path / "gallery.html").as_uri()
    with browser_page() as watched:
        page = watched.page
        page.goto(uri)
        page.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
        page.wait_for_timeout(200)
        assert page.evaluate("!!document.elementFromPoint(700, 500).closest('.card')")
        assert page.locator(".card").count() < 100
        page.evaluate("scrollTo(0, 0)")
        page.locator(".card").first.focus()
        page.keyboard.press("r")
        assert axe_findings(page) == []
        with page.expect_download() as download:
            page.locator("#save").click()
        table = download.value.path().read_text("utf-8-sig")
        assert ",reject,Bad," in table
        assert "'=cmd|" in table
        page.locator(".card").first.click()
        assert HOSTILE in page.locator("#content").inner_text()
        assert page.title() != "ran"
        assert axe_findings(page) == []
        assert watched.strangers(uri) == []
        assert watched.complaints == []
