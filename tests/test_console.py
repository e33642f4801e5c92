"""What a terminal of 80 columns shows, and what a newcomer is told."""

import csv
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import termios
import time

import pyte
import pytest
from conftest import DATA, ROOT
from PIL import Image

SCRIPT = str(ROOT / "scripts" / "assess.py")
CHATTER = ("Loading weights", "linalg", "Warning:", "warnings.warn")


def environment(**variables: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TERM": "xterm"} | variables


def run(*arguments, **options) -> subprocess.CompletedProcess:
    line = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environment(), **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three crops, one file that is no picture in spite of its name, and one that nobody takes for a
    picture."""
    place = tmp_path_factory.mktemp("holiday pictures")
    photo = Image.open(DATA / "sumac.png")
    for i in range(3):
        photo.crop((96 * i, 0, 96 * i + 224, 224)).save(place / f"{i}.png")
    (place / "broken.png").write_text("no picture")
    (place / "notes.txt").write_text("notes")
    return place


def on_a_terminal(*arguments, columns: int = 80) -> tuple[list[str], list[str], int]:
    """(the lines that are left on the screen, every state of it that was shown, the exit status)."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (200, columns))
    process = subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
        env=environment(),
    )
    os.close(theirs)
    screen = pyte.Screen(columns, 200)
    stream, states = pyte.ByteStream(screen), []
    while process.poll() is None or select.select([ours], [], [], 0)[0]:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                stream.feed(os.read(ours, 65536))
            except OSError:  # the other end is closed
                break
            states.append("\n".join(line.rstrip() for line in screen.display).rstrip())
    os.close(ours)
    return states[-1].split("\n"), states, process.wait()


def test_a_batch_on_a_terminal_of_80_columns(folder):
    lines, states, status = on_a_terminal(folder, "--cpu", "--pipeline", "letters")
    assert status == 1
    assert any("picture" in state and "0/4" in state for state in states)  # there was a bar
    assert not any("%|" in line for line in lines)  # and nothing is left of it
    assert not any("%|" in line and ".png" in line for state in states for line in state.split("\n"))
    shown = [line for line in lines if line.startswith(("0.png", "1.png", "2.png"))]
    assert len(shown) == 3
    assert len({line.index("–") for line in shown}) == 1  # aligned
    text = " ".join(line.strip() for line in lines)
    assert "4 pictures: A Excellent" in text
    assert "1 failed" in text
    assert not any(word in text for word in CHATTER)


def test_text_fits_the_terminal(folder):
    """A line that is longer than the screen would go on in the first column of the next: no line but a path
    begins there."""
    lines, _, status = on_a_terminal(folder / "0.png", "--cpu", "--explain")
    assert status == 0
    headings = {"Plan", "Evidence", "Tools", "Score", "How sure", "Why", "Warnings", ""}
    starts = [line for line in lines if not line.startswith(" ") and line not in headings]
    assert all(line.startswith((str(folder)[:20], "Letters", "Detection")) for line in starts), starts


def test_warnings_name_their_picture_and_nothing_else_is_on_stderr(folder, tmp_path):
    small = tmp_path / "small.png"
    Image.open(folder / "0.png").crop((0, 0, 100, 100)).save(small)  # NIQE needs 192 pixels a side
    done = run(small, folder / "1.png", "--cpu", "--query", "Use NIQE")
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert warnings
    assert all("small.png" in line for line in warnings)
    assert not any(word in done.stderr for word in CHATTER)


def test_the_summary_counts_ranks_and_names_failures(folder):
    done = run(folder, "--cpu", "--pipeline", "letters")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["error"] is None for row in rows] == [True, True, True, False]
    best = max((row for row in rows if row["q"]), key=lambda row: row["q"])
    said = done.stderr.splitlines()
    mean = sum(row["q"] for row in rows if row["q"]) / 3
    assert said[said.index(f"by score, mean {mean:.2f}:") + 1].split()[0] == f"{best['q']:.2f}"
    assert "broken.png" in said[said.index("failed:") + 1]


@pytest.mark.parametrize("option", [["--csv", "t.csv"], ["--out", "t.csv"]])
def test_a_table_for_spreadsheets(folder, tmp_path, option):
    done = run(folder / "0.png", folder / "1.png", "--cpu", "--pipeline", "letters", *option, cwd=tmp_path)
    assert done.returncode == 0
    table = list(csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert [os.path.basename(row["image"]) for row in table] == ["0.png", "1.png"]
    assert all(1 <= float(row["q"]) <= 5 for row in table)
    if option[0] == "--out":
        rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
        assert [row["q"] for row in rows] == [float(row["q"]) for row in table]
        assert "t.jsonl" in done.stderr
        (tmp_path / "t.csv").unlink()
        again = run(
            folder / "0.png",
            folder / "1.png",
            "--cpu",
            "--pipeline",
            "letters",
            *option,
            "--resume",
            cwd=tmp_path,
        )
        assert again.returncode == 0
        assert len((tmp_path / "t.csv").read_text().splitlines()) == 3


def test_explain_goes_into_a_file_and_json_only_where_it_is_asked_for(folder):
    done = run(folder / "0.png", "--cpu", "--explain")
    assert done.stdout.startswith(f"{folder}/0.png: ")
    assert "\nEvidence\n" in done.stdout
    both = run(folder / "0.png", "--cpu", "--explain", "--json")
    assert json.loads(both.stdout)["error"] is None
    assert "\nEvidence\n" in both.stderr


@pytest.mark.parametrize("arguments", [[], ["--explain"]])
def test_without_a_picture_the_sample_is_assessed_and_that_is_said(arguments, tmp_path):
    done = run("--cpu", *arguments, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.startswith("no picture named: assessing the sample photograph that ships")
    assert "sumac.png" in done.stdout


def test_the_version_is_told(tmp_path):
    done = run("--version")
    assert done.stdout.split()[0] == "agentic_iqa_local"
    assert done.returncode == 0


def test_a_reader_that_goes_away_ends_a_list_without_a_word():
    line = f"{shlex.join([sys.executable, SCRIPT])} --list-tools | head -n 1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, env=environment())
    assert done.stdout.startswith("PSNR ")
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_polite_kill_ends_like_ctrl_c(folder, tmp_path, number):
    """What is in hand is finished and written, the exit status is that of an interruption, and --resume takes
    the rest."""
    out = tmp_path / "rows.jsonl"
    line = [sys.executable, SCRIPT, *map(str, [folder, "--cpu", "--out", out])]
    process = subprocess.Popen(
        line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment()
    )
    deadline = time.monotonic() + 600
    # the first row is there: the second is in hand
    while not (out.is_file() and out.read_bytes().count(b"\n")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    said = process.communicate(timeout=600)[1]
    rows = out.read_bytes().count(b"\n")
    assert process.returncode == (130 if rows < 4 else 1), said
    done = run(folder, "--cpu", "--out", out, "--resume")
    assert done.returncode == 1  # broken.png
    assert out.read_bytes().count(b"\n") == 4


# A newcomer's mistakes, written down before what is said of them was looked at.
MISTAKES = [
    (["phot.jpg"], "phot.jpg: expected an image file, but there is no such file; did you mean photo.jpg?"),
    (["photo.jpg", "--expalin"], "did you mean --explain?"),
    (["empty"], "empty: expected a folder or a pattern with image files"),
    (["*.gif"], "*.gif: expected a folder or a pattern with image files"),
    (["notes.txt"], "notes.txt: expected a PNG, JPEG"),
    (["https://example.org/photo.jpg"], "download it first"),
    (["photo.jpg", "Is it sharp?"], "--query 'Is it sharp?'"),
    (["photo.jpg", "--query", "Is", "it", "sharp"], "put a query of several words in quotes"),
    (["Is", "it", "sharp"], "--query 'Is it sharp'"),
    (["photo.jpg", "--choices", "Yes"], "--choices: expected 2 to 10 answers"),
    (["photo.jpg", "--gpu", "0"], "use --cpu"),
    (["photo.jpg", "--config", "qwen2_5_vl"], "did you mean qwen2_5_vl_7b"),
    (["photo.jpg", "--config", "qwen2_5_vl_7b"], "scripts/fetch_models.py --config"),
    (["photo.jpg", "--model", "Qwen/Qwen2.5-VL-7B-Instruct"], "scripts/fetch_models.py"),
    (
        ["photo.jpg", "--reference", "original.jpg"],
        "original.jpg: expected an image file, but there is no such file",
    ),
    (["photo.jpg", "--out", "results/rows.jsonl"], "mkdir -p"),
    (["photo.jpg", "--out", "rows.xlsx"], "--csv rows.csv"),
    (["photo.jpg", "--json", "rows.json"], "--out rows.json"),
    (["photo.jpg", "--mode", "logit"], "did you mean logits?"),
    (
        ["photo.jpg", "--config", "mine.yaml"],
        "tools.no_reference: Unknown tool 'NIQUE'; did you mean UNIQUE or NIQE",
    ),
]


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    place = tmp_path_factory.mktemp("newcomer")
    (place / "empty").mkdir()
    (place / "notes.txt").write_text("notes")
    (place / "mine.yaml").write_text("tools: {no_reference: [NIQUE]}\n")
    Image.open(DATA / "sumac.png").convert("RGB").crop((0, 0, 224, 224)).save(place / "photo.jpg")
    return place


@pytest.mark.parametrize(
    ("arguments", "said"), MISTAKES, ids=lambda value: " ".join(value) if isinstance(value, list) else None
)
def test_a_newcomer_is_told_what_to_type(newcomer, arguments, said):
    """One sentence, before a model is loaded: torch and transformers are not even imported (a GPU is asked
    for through torch)."""
    code = f"""
import runpy, sys
sys.argv = {[SCRIPT, *arguments]!r}
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("loaded" if {"torch" if "--gpu" not in arguments else "transformers"!r} in sys.modules else "light", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=newcomer,
        env=environment(),
    )
    sentence, light = done.stderr.splitlines()
    assert done.returncode == (1 if arguments == ["notes.txt"] else 2)
    assert sentence.startswith("error: ")
    assert said in sentence
    assert light == "light" or arguments == ["notes.txt"]
