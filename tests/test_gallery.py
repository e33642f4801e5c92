"""The gallery of a batch: its data, and the page in a browser."""

import base64
import io
import json

import pytest
from browser import browser_page, findings_of_looks, needs_chromium
from one_row import RATING, row_of
from PIL import Image

from agentic_iqa_local.batch.rows import RowsError
from agentic_iqa_local.cli.look import make_gallery
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.output.gallery.page import thumbnail
from agentic_iqa_local.output.gallery.rows import identities, read_rows
from agentic_iqa_local.result import Assessment

HOSTILE = "</script><script>document.title='ran'</script>"

# scrolls to a share of the page → (points of the list's visible part that no card or picture fills, cards there are)
SHOWN = """
(share) => new Promise((done) => {
  scrollTo({ top: share * document.documentElement.scrollHeight, behavior: "instant" });
  const filled = (x, y) => {
    const card = document.elementFromPoint(x, y)?.closest("#list .card");
    return card && (card.querySelector("img")?.complete ?? true);
  };
  requestAnimationFrame(() => requestAnimationFrame(() => {
    const list = document.getElementById("roll").getBoundingClientRect();
    const top = Math.max(list.top, document.querySelector("header").getBoundingClientRect().bottom, 0);
    const step = (Math.min(list.bottom, innerHeight) - top - 20) / 8;
    const missing = [...Array(48).keys()].filter((i) => {
      const [x, y] = [list.left + ((i % 6) + 0.5) * list.width / 6, top + (Math.floor(i / 6) + 0.5) * step];
      return step > 0 && ![[0, 0], [0, 18], [18, 0], [18, 18]].some(([right, down]) => filled(x + right, y + down));
    });
    done([missing.length, document.querySelectorAll("#list .card").length]);
  }));
})
"""


def lines(folder, count=3):
    rows = []
    for i in range(count):
        file = folder / f"{i}.png"
        Image.new("RGB", (64, 48), (40 * i % 255, 90, 120)).save(file)
        level = 1 + i % 5
        verdict = ("pass", "unsure", "fail")[i % 3]
        about = {"low": max(1, level - 0.5), "high": min(5, level + 0.5)}
        row = row_of(
            str(file),
            query=f"=cmd|{HOSTILE}",
            final_answer="EDCBA"[level - 1],
            fusion=RATING["fusion"] | {"q": level},
            interval=RATING["interval"] | about,
            gate=RATING["gate"] | {"verdict": verdict},
        )
        rows.append(row.to_dict())
    rows.append(Assessment(image="gone.png", query="Rate", error="gone.png: none; look").to_dict())
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "found none"),
        ("{}", "line 1"),
        ('{"kind": "comparison"}', "give .* that assess --out"),
        ("no", "line 1"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path, line, said):
    (tmp_path / "rows.jsonl").write_text(line and f"{line}\n")
    with pytest.raises(RowsError, match=said):
        read_rows(tmp_path / "rows.jsonl")


def test_thumbnails_stand_upright(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # turned by a quarter
    Image.new("RGB", (80, 40)).save(tmp_path / "a.jpg", exif=exif)
    found = thumbnail(tmp_path / "a.jpg", 20)
    assert found.about["size"] == (40, 80)
    assert Image.open(io.BytesIO(base64.b64decode(found.copy))).size == (10, 20)


def test_a_row_keeps_its_decision_when_its_picture_is_moved():
    row = Assessment(image="/old/a.png", sha256="0" * 64, query="Rate")
    moved = row.model_copy(update={"image": "/new/a.png", "seconds": 1.5})
    other = row.model_copy(update={"query": "Is it sharp?"})
    first, again, asked = identities([row, row, other])
    assert len({first, again, asked}) == 3
    assert identities([moved]) == [first]


def test_failures_and_pictures_that_cannot_be_opened_are_counted_apart(picture, tmp_path):
    """One row of a picture that is there failed, one failed since there is none, one is sound."""
    failed = {"error": "expected a picture", "evidence": None, "tools": []}
    rows = [row_of(picture), row_of(picture, **failed), row_of("/no/such.png", **failed)]
    said, missing = make_gallery(rows, tmp_path / "gallery.html", "rows.jsonl")
    assert missing == 1
    assert ": 3 rows, 2 failures, 1 picture that cannot be opened (the page says why);" in said


def made(folder, count, name="gallery.html"):
    """A gallery's address, made by its command."""
    assert main(["gallery", str(lines(folder, count)), "--out", str(folder / name)]) == 1
    return (folder / name).as_uri()


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    return made(
        tmp_path_factory.mktemp("gallery"), 299
    )  # and a failure: lines of 2 or 4 cards are full


def clean(watched, uri):
    assert findings_of_looks(watched.page) == []
    assert watched.strangers(uri) == []
    assert watched.complaints == []


@needs_chromium
def test_the_page_in_each_of_its_states(gallery):
    with browser_page() as watched:
        page = watched.page
        page.goto(gallery)
        page.locator(".card").first.focus()
        for key in "rku":
            page.keyboard.press(key)
        clean(watched, gallery)
        page.evaluate("document.getElementById('panel').open = true")
        page.locator(".chip:has-text('Keep')").first.click()
        assert page.inner_text("#count") == "1 of 300 rows"
        page.locator("#clear").click()
        page.locator(".chip:has-text('up to 0.5')").click()
        # at levels 1 (60 of 299 rows) and 5 (59) an interval is cut in half
        assert page.inner_text("#count") == "119 of 300 rows"
        page.locator("#clear").click()
        page.select_option("#sort", "verdict")
        verdicts = page.evaluate("[...new Set(shown.map((row) => row.verdict ?? 'none'))]")
        assert verdicts == ["pass", "unsure", "fail", "none"]
        page.select_option("#sort", "worst")
        page.locator(".chip:has-text('Keep')").first.click()
        clean(watched, gallery)
        page.locator("#clear").click()
        page.locator(".card").first.click()
        assert HOSTILE in page.locator("#content").inner_text()
        assert page.title() != "ran"
        clean(watched, gallery)
        page.keyboard.press("Escape")
        page.locator("#search").fill("nothing has this")
        assert page.locator("#none").is_visible()
        clean(watched, gallery)
        page.locator("#search").fill("gone")
        page.locator(".card").click()
        assert "Failed." in page.locator("#content").inner_text()
        clean(watched, gallery)
        page.keyboard.press("Escape")
        with page.expect_download() as download:
            page.locator("#save").click()
        table = download.value.path().read_text("utf-8-sig")
        assert ",reject,Bad," in table
        assert "'=cmd|" in table


@needs_chromium
@pytest.mark.parametrize("size", ["wide", "phone"])
def test_a_long_list_is_filled_wherever_it_is_scrolled_to(gallery, size):
    with browser_page(size=size) as watched:
        page = watched.page
        page.goto(gallery)
        found = [page.evaluate(SHOWN, share) for share in (0, 0.1, 0.45, 0.7, 1, 0.2)]
        assert [missing for missing, _ in found] == [0] * len(found)
        assert max(cards for _, cards in found) < 299  # those far from the window are no elements


@needs_chromium
def test_decisions_outlast_a_gallery_with_more_rows(tmp_path):
    with browser_page() as watched:
        page = watched.page
        page.goto(made(tmp_path, 6))
        page.locator(".card").first.focus()
        page.keyboard.press("k")
        page.keyboard.press("r")
        page.goto(made(tmp_path, 9, "more.html"))
        stamps = page.locator(".card:has(.stamp)")
        shown = stamps.evaluate_all(
            "all => all.map((one) => [one.querySelector('.name').textContent, one.querySelector('.stamp').textContent])"
        )
        # worst first: of the rows 0 to 5 with q 1, 2, 3, 4, 5, 1 these were the first two
        assert shown == [["0.png", "keep"], ["5.png", "reject"]]
        page.locator("#over").click()
        assert stamps.count() == 0
        page.locator("#undo").click()
        assert stamps.count() == 2
