"""assess.py PICTURE --interactive as a user runs it: questions piped or typed, one a line, and what is
refused."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from argparse import Namespace

import pytest
from conftest import ROOT

from agentic_iqa_local.batch.rows import RowsError
from agentic_iqa_local.cli.interactive import rows_of

COMMAND = [sys.executable, str(ROOT / "scripts" / "assess.py")]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}


def run(*args, said: str | bytes = b"") -> subprocess.CompletedProcess:
    said = said.encode() if isinstance(said, str) else said
    done = subprocess.run(
        [*COMMAND, *map(str, args), "--interactive", "--cpu"],
        input=said,
        capture_output=True,
        env=ENVIRONMENT,
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in done.stderr
    return done


def test_piped_questions_are_json_lines_and_rows_of_a_file(photo_path, tmp_path):
    out = tmp_path / "rows.jsonl"
    said = (
        b"And the plant?\n\n \t\n" + b"\xff?\n" + b"x" * 5000 + b"\nIs it noisy? yes or no\nQUIT\nRate it\n"
    )
    done = run(photo_path, "--query", "Rate it", "--out", out, said=said)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["query"] for row in rows] == ["Rate it", "And the plant?", "Is it noisy? yes or no"]
    assert [row["turn"] for row in rows] == [1, 2, 3]
    assert [row["error"] for row in rows] == [None] * 3
    assert rows[1]["plan"]["query_scope"] == ["plant"]
    assert [len((row["prior_context"] or {"turns": []})["turns"]) for row in rows] == [0, 1, 2]
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2  # the byte that is no text, and the long line
    assert "UTF-8" in errors[0]
    assert "at most 4000 characters, got 5000" in errors[1]
    assert "> " not in done.stdout + done.stderr  # a prompt is for a terminal
    assert done.returncode == 1  # two lines were no questions
    # another conversation's rows are appended
    again = run(photo_path, "--out", out, "--explain", said="Rate it\n")
    assert [json.loads(line)["turn"] for line in out.read_text().splitlines()] == [1, 2, 3, 1]
    assert "Letters: how probable" in again.stdout
    assert again.returncode == 0


def test_no_question_is_no_failure(photo_path):
    done = run(photo_path, said="\n\n")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_picture_that_cannot_be_opened_is_told_before_a_model_is_loaded(tmp_path):
    (tmp_path / "a.png").write_text("x")
    done = run(tmp_path / "a.png", said="Rate it\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {tmp_path / 'a.png'}: expected a PNG")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["PHOTO", "--choices", "yes", "no"],
            '--choices: expected without --interactive; end a question with its answers: "Is it',
        ),
        (["--manifest", "images.csv"], "--manifest: expected without --interactive; name one picture"),
        (["PHOTO", "--jobs", "2"], "--jobs: expected without --interactive"),
        (["PHOTO", "--timeout", "5"], "--timeout: expected without --interactive; Ctrl-C stops a question"),
        (["PHOTO", "--csv", "a.csv"], "--csv: expected without --interactive"),
        (["PHOTO", "--out", "a.csv"], "--csv: expected without --interactive"),
        (["PHOTO", "--out", "a.jsonl", "--resume"], "--resume: expected without --interactive"),
        (["PHOTO", "--pipeline", "letters"], "--pipeline: expected without --interactive"),
        (["PHOTO", "--list-tools"], "--list-tools: expected without --interactive"),
        (["PHOTO", "PHOTO"], "--interactive: expected one picture, got 2"),
    ],
)
def test_what_makes_no_sense_with_it_is_one_sentence_and_status_2(photo_path, noisy_path, args, said):
    pictures = iter((photo_path, noisy_path))
    done = run(*[next(pictures) if word == "PHOTO" else word for word in args], said="Rate it\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_rows_of_a_batch_are_not_appended_to(tmp_path):
    out = tmp_path / "rows.jsonl"
    out.write_text('{"image": "a.png", "turn": null}\n')
    with pytest.raises(RowsError, match="expected a new file, or rows of earlier conversations"):
        rows_of(Namespace(out=out))
    assert out.read_text() == '{"image": "a.png", "turn": null}\n'


TOLD = """
import sys
from agentic_iqa_local.api import Conversation
from agentic_iqa_local.cli.assess import main

ask = Conversation.ask

def told(self, query):
    print("asked:", query, file=sys.stderr, flush=True)
    return ask(self, query)

Conversation.ask = told
sys.exit(main())
"""


class Terminal:
    """The command at a terminal of its own; it tells when it begins to answer a question."""

    def __init__(self, *args: str):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            words = [sys.executable, "-c", TOLD, *args, "--interactive", "--cpu"]
            os.execve(words[0], words, ENVIRONMENT | {"PYTHONPATH": str(ROOT)})
        self.shown = ""

    def until(self, text: str, after: int = 0) -> int:
        """Reads until the text is shown behind position `after`; where it ends."""
        deadline = time.monotonic() + 600
        while text not in self.shown[after:]:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.file], [], [], 1)[0]:
                try:
                    self.shown += os.read(self.file, 65536).decode(errors="replace")
                except OSError:  # the other side is closed
                    pytest.fail(f"it ended without {text!r}: {self.shown}")
        return self.shown.index(text, after) + len(text)

    def type(self, text: str) -> None:
        os.write(self.file, text.encode())

    def status(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_at_a_terminal_ctrl_c_stops_a_question_and_then_the_session(photo_path):
    terminal = Terminal(photo_path)
    at = terminal.until("> ", terminal.until("one question a line"))
    terminal.type("Rate it\n")
    at = terminal.until("Fused score", at)
    at = terminal.until("> ", at)
    terminal.type("And the plant?\n")
    at = terminal.until("asked: And the plant?", at)
    terminal.type("\x03")
    at = terminal.until("this question was stopped", at)
    at = terminal.until("> ", at)
    terminal.type("Rate it\n")
    at = terminal.until("Fused score", at)  # it goes on
    terminal.until("> ", at)
    terminal.type("\x03\n")  # the key is for a Ctrl-C that comes before Python waits for one
    terminal.until("interrupted", at)
    assert terminal.status() == 130


def test_at_a_terminal_the_end_of_input_ends_it(photo_path):
    terminal = Terminal(photo_path)
    terminal.until("> ", terminal.until("one question a line"))
    terminal.type("\x04")
    assert terminal.status() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_piped_questions_with_what_was_answered_kept(photo_path, tmp_path, number):
    out = tmp_path / "rows.jsonl"
    process = subprocess.Popen(
        [*COMMAND, photo_path, "--interactive", "--cpu", "--out", str(out)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    process.stdin.write("Rate it\n")
    process.stdin.flush()
    shown = process.stdout.readline()
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == 130
    assert told.endswith("interrupted\n")
    assert json.loads(shown) == json.loads(out.read_text())
