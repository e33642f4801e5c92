"""What a terminal shows of a batch: a live line, then one aligned line for each picture."""

import pty
import re
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pyte
import pytest
from acting import as_a_command
from conftest import DATA
from hypothesis import given, settings
from hypothesis import strategies as st
from one_row import RATING, row_of
from PIL import Image
from rich.cells import cell_len
from scripted import in_this_process

from agentic_iqa_local.cli import console
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.output.picture_lines import picture_line
from agentic_iqa_local.result import Assessment


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three crops, ever worse, and one file that is no picture in spite of its name."""
    place = tmp_path_factory.mktemp("holiday pictures")
    photo = Image.open(DATA / "sumac.png")
    for i in range(3):
        crop = photo.crop((96 * i, 0, 96 * i + 224, 224))
        crop.resize((224 // (i + 1),) * 2).resize((224, 224)).save(place / f"{i}.png")
    (place / "=1+1.png").write_text("no picture")
    return place


def sent_to(terminal: int) -> bytes:
    """All that is written to a terminal until its other end is closed."""
    sent = b""
    with suppress(OSError), open(terminal, "rb", buffering=0) as file:
        while part := file.read(65536):
            sent += part
    return sent


@pytest.fixture
def on_a_terminal(monkeypatch):
    """`command(*words)`: (the lines that are left on a screen of 80 columns, the exit status, all that was sent)."""
    in_this_process(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words):
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (200, 80))
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(sent_to, ours)
            with monkeypatch.context() as patch, open(theirs, "w") as screen:
                patch.setattr("sys.stderr", screen)
                status = as_a_command(*words, stdout=screen.fileno())
            sent = sent.result()
        screen = pyte.Screen(80, 200)
        pyte.ByteStream(screen).feed(sent)
        return [line.rstrip() for line in screen.display], status, sent.decode()

    return run


def test_a_batch_on_a_terminal_of_80_columns(folder, on_a_terminal):
    lines, status, sent = on_a_terminal("assess", folder, "--cpu", "--pipeline", "letters")
    assert status == 1
    assert "0/4 pictures" in sent  # there was a live line
    assert not any("/4 pictures" in line for line in lines)  # and nothing is left of it
    shown = [line for line in lines if re.search(r"[012]\.png q ", line)]
    assert len(shown) == 3
    assert len({line.index("–") for line in shown}) == 1  # aligned
    text = " ".join(line.strip() for line in lines)
    assert re.search(r"4 pictures: .*, 1 failed", text)
    assert re.search(r"\x1b\[3\dm", sent)  # coloured
    assert sent.rindex("\x1b[?25h") > sent.rindex("\x1b[?25l")  # the cursor is shown again


def test_progress_is_told_in_lines_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0)
    with console.Progress(2) as progress:
        progress.count()
        progress.count(failed=True)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("1/2 pictures, 0 failed")
    assert second.startswith("2/2 pictures, 1 failed")


def test_the_last_line_of_progress_says_how_many_are_done(monkeypatch, capsys):
    with console.Progress(3) as progress:
        monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0)
        progress.count()
        monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 3600)
        progress.count()
        progress.count()
    assert capsys.readouterr().err.splitlines()[1:] == ["3/3 pictures, 0 failed"]


@pytest.mark.parametrize("stopping", [False, True])
def test_a_batch_that_is_stopping_has_no_time_left(stopping, monkeypatch, capsys):
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0)
    with console.Progress(4, batch=SimpleNamespace(stopping=stopping)) as progress:
        progress.count()
        progress.count()
        progress.count()
    assert (" left" in capsys.readouterr().err) is not stopping


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_lines_fit_and_stand_below_each_other(columns):
    names = ["a.png", f"{'long' * 20}_0003.jpg", "夕焼けの写真と海と山.png", "e\u0301.png"]
    shown = [picture_line(row_of(name, **RATING), columns).plain for name in names]
    assert all(cell_len(line) < columns for line in shown)
    assert len({cell_len(line.partition("1.6–3.1")[0]) for line in shown}) == 1
    assert "_0003.jpg " in shown[1]  # the end tells frames of a series apart


@settings(max_examples=40)
@given(st.text(min_size=1, max_size=30))
def test_no_line_of_a_picture_steers_a_terminal(name):
    failed = Assessment(image=name, query="rate", error=f"{name}: expected \x1b[2J none")
    for row in (row_of(name, **RATING), failed):
        line = picture_line(row, 80).plain
        assert one_line(line) == line
