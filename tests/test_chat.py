"""The command chat as a user runs it: questions piped or typed, one a line, and what is refused."""

import argparse
import io
import json
import sys
from types import SimpleNamespace

import pytest

from agentic_iqa_local.cli import chat
from agentic_iqa_local.cli.console import Console
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.result import Assessment


def test_piped_questions_are_json_lines_and_rows_of_a_file(photo, tmp_path, monkeypatch, capfd):
    photo.crop((0, 0, 224, 224)).save(photo_path := str(tmp_path / "photo.png"))
    out = tmp_path / "rows.jsonl"
    said = (
        b"And the plant?\n\n \t\n\xff?\n"
        + b"x" * 5000
        + b"\nIs it noisy? yes or no\nQUIT\nRate it\n"
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(said)))
    status = main(["chat", photo_path, "--query", "Rate it", "--out", str(out), "--cpu"])
    told, errors = capfd.readouterr()
    rows = [json.loads(line) for line in told.splitlines()]
    queries = ["Rate it", "And the plant?", "Is it noisy? yes or no"]
    assert [(row["query"], row["turn"], row["error"]) for row in rows] == [
        (q, i, None) for i, q in enumerate(queries, 1)
    ]
    assert [len((row["prior_context"] or {"turns": []})["turns"]) for row in rows] == [0, 1, 2]
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    not_text, too_long = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert "UTF-8" in not_text
    assert "at most 4000 characters" in too_long
    assert "> " not in told + errors  # a prompt is for a terminal
    assert status == 1  # two lines were no questions


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["bad.png"], "bad.png: expected a PNG"),
        (
            ["PHOTO", "--out", "rows.jsonl"],
            "rows.jsonl, line 1: expected rows as this program writes them",
        ),
        (["PHOTO", "PHOTO"], "unknown option"),
        (["PHOTO", "--pipeline", "letters"], "unknown option --pipeline"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(
    photo_path, tmp_path, monkeypatch, capfd, args, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("Rate it\n"))
    (tmp_path / "bad.png").write_text("no picture")
    (tmp_path / "rows.jsonl").write_text('{"schema_version": 6, "turn": null}\n')  # of a batch
    try:
        status = main(
            ["chat", *[photo_path if word == "PHOTO" else word for word in args], "--cpu"]
        )
    except SystemExit as ended:
        status = ended.code
    told = capfd.readouterr()
    assert (status, told.out) == (2, "")
    assert said in told.err
    assert len(told.err.splitlines()) == 1


class Typed(io.StringIO):
    """A terminal, at which somebody types."""

    def isatty(self):
        return True


def test_at_a_terminal_ctrl_c_stops_one_question(monkeypatch):
    asked = []

    class Talk:
        picture = "a.png"

        def ask(self, query):
            asked.append(query)
            if len(asked) == 1:
                raise KeyboardInterrupt
            return Assessment(image="a.png", query=query, final_answer="The plant is sharp.")

    shown = Typed()
    monkeypatch.setattr("sys.stdin", Typed("And the plant?\nAnd now?\nexit\nRate it\n"))
    monkeypatch.setattr("sys.stderr", Typed())
    args = argparse.Namespace(query=None, json=False, explain=False, out=None)
    assert chat.answer_all(args, Talk(), None, Console(shown)) == 0
    assert asked == ["And the plant?", "And now?"]
    assert "this question was stopped" in sys.stderr.getvalue()
    assert "The plant is sharp." in shown.getvalue()


@pytest.mark.parametrize(("explain", "note"), [(False, "[trial model"), (True, "Note: small.")])
def test_a_small_model_tells_what_it_is_once_in_a_session(monkeypatch, explain, note):
    """Its rows say so each time. What failed tells nothing."""
    errors = iter([{"error": "x"}, {}, {}])
    model = {"name": "m", "device": "cpu", "dtype": "float32", "notice": "small"}

    class Talk:
        picture = "a.png"

        def ask(self, query):
            return Assessment(
                image="a.png", query=query, final_answer="Yes.", model=model, **next(errors)
            )

    rows, shown = [], Typed()
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\nTwo?\nThree?\n"))
    args = argparse.Namespace(query=None, json=False, explain=explain, out=None)
    chat.answer_all(args, Talk(), SimpleNamespace(append=rows.append), Console(shown))
    _, *answers = shown.getvalue().split("a.png: ")
    assert [note in answer for answer in answers[-2:]] == [True, False]
    assert [json.loads(row)["model"] for row in rows] == [model] * 3
