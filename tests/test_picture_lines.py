"""One line for each of several pictures on a terminal."""

import argparse
import csv
import io
import json
import re
from types import SimpleNamespace

import pyte
import pytest
from conftest import DATA
from test_console import on_a_terminal, run

from agentic_iqa_local.cli.assess_screen import Screen
from agentic_iqa_local.output.picture_lines import (
    cut_in_the_middle,
    in_order,
    layout,
    picture_line,
    short_names,
    text_width,
)
from agentic_iqa_local.result import Assessment

NAMES = [
    "a.png",
    "very_long_name_of_a_picture_from_the_mountains_0003.jpg",
    "夕焼けの写真と海と山と空と雲.png",
    "e\u0301.png",
]


def rated(name: str, q: float, letter: str, **fields) -> Assessment:
    interval = {
        "low": 2.0,
        "high": 4.5,
        "width": 2.5,
        "coverage": 0.9,
        "calibrated_on": "x",
        "difficulty": 1.0,
        "condition": {"pipeline": "agent", "reference": False, "look": "one order"},
        "widened": [],
    }
    row = {
        "image": name,
        "query": "rate",
        "mode": "logits",
        "final_answer": letter,
        "q": q,
        "interval": interval,
    }
    return Assessment.model_validate(row | {"p_c": {letter: 1.0}} | fields)


def failed(name: str) -> Assessment:
    return Assessment(
        image=name,
        query="rate",
        mode="logits",
        error=f"{name}: expected an image, got \x1b[2J none " + "x" * 200,
    )


@pytest.mark.parametrize("columns", [60, 79, 80, 99, 100, 200])
@pytest.mark.parametrize("verdict", [False, True])
def test_lines_fit_and_stand_below_each_other(columns, verdict):
    """A real terminal of that width shows each line in one row, its figures in the same column."""
    at = layout(max(map(text_width, NAMES)), columns, damage=True, verdict=verdict)
    lines = [picture_line(rated(name, 3.0, "C"), name, at) for name in NAMES]
    screen = pyte.Screen(columns, 20)
    pyte.Stream(screen).feed("\r\n".join([*lines, picture_line(failed("b.png"), "b.png", at)]))
    rows = [[screen.buffer[y][x].data for x in range(columns)] for y in range(6)]
    starts = {"".join(cell or "\0" for cell in row).index("3.00") for row in rows[:4]}
    assert len(starts) == 1
    assert "".join(rows[5]).strip() == ""
    assert all(text_width(line) < columns for line in lines)


def test_a_long_name_keeps_both_ends():
    assert cut_in_the_middle("0123456789", 5) == "01…89"
    assert text_width(cut_in_the_middle("日本語の写真", 7)) <= 7
    assert cut_in_the_middle("0123456789", 10) == "0123456789"


@pytest.mark.parametrize(("q", "full"), [(1.0, 0), (2.0, 2), (3.0, 4), (4.0, 6), (5.0, 8)])
def test_the_bar_shows_q_from_1_to_5(q, full):
    line = picture_line(rated("a", q, "C"), "a", layout(1, 80, damage=False, verdict=False))
    assert (line.count("█"), line.count("░")) == (full, 8 - full)


def test_the_order_of_lines():
    rows = [rated("b", 2.0, "D"), failed("0"), rated("c", 4.0, "B"), rated("a", 3.0, "C")]
    assert [row.image for row in in_order(rows, "q")] == ["c", "a", "b", "0"]
    assert [row.image for row in in_order(rows, "worst")] == ["b", "a", "c", "0"]
    assert [row.image for row in in_order(rows, "name")] == ["0", "a", "b", "c"]


def test_names_without_the_folder_that_they_share():
    folder, short = short_names(["x/y/1.png", "x/y/z/2.png"])
    assert (folder, short("x/y/1.png"), short("x/y/z/2.png")) == ("x/y", "1.png", "z/2.png")
    assert short_names(["1.png", "/x/2.png"])[0] == ""
    assert short_names(["/a/1.png", "/b/2.png"])[0] == ""


def test_nothing_in_a_name_or_a_reason_steers_a_terminal():
    at = layout(4, 80, damage=True, verdict=True)
    for row in (rated("\x1b[2J\n", 3.0, "C"), failed("\x1b]0;x\x07")):
        line = picture_line(row, row.image, at)
        assert not re.search(r"[\x00-\x1f\x7f]", line)
        coloured = picture_line(row, row.image, at, colour=True)
        assert re.sub(r"\x1b\[[0-9;]+m", "", coloured) == line


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    from PIL import Image

    place = tmp_path_factory.mktemp("pictures")
    photo = Image.open(DATA / "sumac.png")
    for i in range(3):
        photo.crop((96 * i, 0, 96 * i + 224, 224)).resize((224 // (i + 1),) * 2).resize((224, 224)).save(
            place / f"{i}.png"
        )
    (place / "=1+1.png").write_text("no picture")
    return place


def test_sorted_lines_come_at_the_end_and_rows_stay_in_their_order(pictures, tmp_path):
    out = tmp_path / "rows.jsonl"
    lines, _, status = on_a_terminal(pictures, "--cpu", "--pipeline", "letters", "--sort", "q", "--out", out)
    assert status == 1
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["image"].rpartition("/")[2] for row in rows] == ["0.png", "1.png", "2.png", "=1+1.png"]
    shown = [line.split()[0] for line in lines if re.match(r"[=012][^ ]*\.png ", line)]
    best = sorted((row for row in rows if row["q"]), key=lambda row: -row["q"])
    assert shown == [*(row["image"].rpartition("/")[2] for row in best), "=1+1.png"]


def test_a_pipe_gets_the_same_rows_with_and_without_sort(pictures):
    both = [run(pictures, "--cpu", "--pipeline", "letters", *sort) for sort in ([], ["--sort", "q"])]
    images = [[json.loads(line)["image"] for line in done.stdout.splitlines()] for done in both]
    assert images[0] == images[1]
    assert len(images[0]) == 4
    assert "--sort" in both[1].stderr
    assert "\x1b" not in both[0].stdout + both[0].stderr


def test_sort_has_nothing_to_sort_beside_accounts(pictures):
    done = run(pictures, "--sort", "q", "--explain")
    assert done.returncode == 2
    assert "--sort: expected without --explain" in done.stderr


@pytest.mark.parametrize("option", ["--compare", "--best-of"])
def test_comparisons_have_a_table_too(pictures, tmp_path, option):
    openpyxl = pytest.importorskip("openpyxl")
    table = tmp_path / "order.csv"
    done = run(option, *sorted(pictures.iterdir()), "--cpu", "--csv", table)
    assert done.returncode == 1, done.stderr
    data = table.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")  # by which a spreadsheet knows UTF-8
    rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"))))
    result = [json.loads(line) for line in done.stdout.splitlines()]
    places = [ranked for item in result for ranked in item.get("order", ())]
    assert [row["image"] for row in rows if row["place"]] == [
        ranked["assessment"]["image"] for ranked in places
    ]
    assert [float(row["q"]) for row in rows if row["place"]] == [
        ranked["assessment"]["q"] for ranked in places
    ]
    assert sum(bool(row["error"]) for row in rows) == 1
    sheet = openpyxl.Workbook().active
    for row in csv.reader(io.StringIO(data.decode("utf-8-sig"))):
        sheet.append(row)
    assert not [cell for line in sheet for cell in line if cell.data_type == "f"]


def test_the_table_of_two_pictures(pictures, tmp_path):
    table = tmp_path / "two.csv"
    done = run("--compare", pictures / "0.png", pictures / "2.png", "--cpu", "--csv", table)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8-sig"))))
    found = json.loads(done.stdout)["pair"]["probability"]
    assert [row["place"] for row in rows] == ["1", "2"]
    assert float(rows[0]["better_than_next"]) == pytest.approx(max(found, 1 - found))


def test_each_name_is_measured_once_however_many_rows_are_shown(monkeypatch):
    pictures = [f"/photos/{i}.png" for i in range(50)]
    args = argparse.Namespace(
        json=False,
        explain=False,
        out=None,
        sort=None,
        pipeline="letters",
        at_least=None,
        abstain_wider_than=None,
    )
    shown: list[str] = []
    console = SimpleNamespace(
        results=SimpleNamespace(isatty=lambda: True, encoding="utf-8"),
        coloured=False,
        show=shown.append,
        show_coloured=shown.append,
    )
    screen = Screen(args, pictures, console)
    named: list[str] = []
    monkeypatch.setattr(screen, "_shown", lambda name: named.append(name) or name)
    for picture in pictures:
        screen.show(rated(picture, 3.0, "C"))
    assert shown[0] == "/photos/"
    assert len(shown) == 51
    assert len(named) == 100  # once for the layout, once for its line
