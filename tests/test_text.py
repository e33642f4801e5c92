"""Text that comes from elsewhere: it steers no terminal, stays the same JSON, and ends at a sentence."""

import io
import json
import logging
import os
import pickle
import signal
from contextlib import nullcontext

import pytest

from agentic_iqa_local.cli import assess as assess_command
from agentic_iqa_local.cli.console import Formatter
from agentic_iqa_local.config import ConfigError
from agentic_iqa_local.errors import UserError, did_you_mean, one_line, printable
from agentic_iqa_local.files import path_from_text, path_text
from agentic_iqa_local.nodes.replies import whole_sentences

STEERING = "\x1b[2J\x9b2J\x7f\u202e\u2028\U000e0001\r\n\t"


def test_what_steers_a_terminal_is_escaped_and_the_rest_stays():
    assert one_line("a\x1b[2J\x9b\n") == r"a\u001b[2J\u009b\n"
    assert one_line("Fête 東京 🌲 \\x1b") == "Fête 東京 🌲 \\x1b"
    assert one_line(os.fsdecode(b"a\xff.png")) == r"a\xff.png"
    assert printable("a\n\tb\x1b[31m") == "a\n\tb\\u001b[31m"
    stored = json.dumps({STEERING: ["é", STEERING]}, ensure_ascii=False)
    assert one_line(stored).isprintable()
    assert json.loads(one_line(stored)) == json.loads(stored)


@pytest.mark.parametrize("kind", [UserError, ConfigError])
def test_an_error_is_one_line_and_goes_from_one_process_to_another(kind):
    error = kind(f"{STEERING}.png: expected", "bring it")
    assert str(error).isprintable()
    assert str(error).endswith(".png: expected; bring it")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.message, copy.remedy) == (
        kind,
        str(error),
        error.message,
        error.remedy,
    )


def test_no_two_paths_have_the_same_text():
    names = [
        b"a\xff",
        b"a\\xff",
        b"a\\\\xff",
        b"a\\\xff",
        b"a\\\\\xff",
        b"\\x",
        b"\\\\x",
        b"a",
        b"a\\b",
        b"\xfe\xff",
    ]
    texts = [path_text(os.fsdecode(name)) for name in names]
    assert len(set(texts)) == len(names)
    assert [os.fsencode(path_from_text(text)) for text in texts] == names
    assert all(text.encode() for text in texts)  # UTF-8 holds them
    assert path_text("photos/Fête \\ 1.png") == "photos/Fête \\ 1.png"
    assert path_text("a\ud800.png") == r"a\ud800.png"  # a name that no file can have


def test_lines_of_a_log_are_told_from_what_they_quote():
    """A reply and a traceback may hold lines: they are set in, and none of them returns to the line's
    beginning."""
    logger, handler = logging.Logger("one of its own"), logging.StreamHandler(told := io.StringIO())
    handler.setFormatter(Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.debug("reply: %s", "a\nERROR forged\rERROR forged")
    try:
        raise RuntimeError("b\nERROR forged\x1b[2J")
    except RuntimeError as error:
        logger.info("c\nERROR forged", exc_info=error)
    assert "a\n    ERROR forged\\rERROR forged\n" in told.getvalue()
    assert "    ERROR forged\\u001b[2J" in told.getvalue()
    assert not [line for line in told.getvalue().split("\n") if line.startswith("ERROR")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_polite_signal_before_the_first_picture_is_told(number, monkeypatch, capsys):
    monkeypatch.setattr(assess_command, "assess_all", lambda *_: signal.raise_signal(number))
    monkeypatch.setattr(assess_command, "Console", lambda: nullcontext())
    before = signal.getsignal(number)
    assert assess_command.main(["photo.jpg"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        ("  Short  ", 20, "Short"),
        ("Edges are soft. The sky is ba", 29, "Edges are soft."),
        ("Is it sharp? Yes! It is qui", 27, "Is it sharp? Yes!"),
        ('They said "soft." The sky', 25, 'They said "soft."'),
        ("Edges are soft, e.g. JPEG bl", 28, "Edges are soft, e.g. JPEG…"),  # dots inside a sentence
        ("Noise. The score of 3.", 22, "Noise."),  # of 3.25, as likely as not
        ("soft edges, and", 15, "soft edges…"),  # no sentence: whole words
        ("模糊。天空很", 6, "模糊。"),
        ("a" * 20, 20, "a" * 19 + "…"),  # one word
    ],
)
def test_a_text_that_reaches_its_limit_is_cut_at_a_sentence_or_a_word(text, limit, kept):
    assert whole_sentences(text, limit) == kept
    assert len(kept) <= limit


def test_a_name_that_is_nearly_right_is_told():
    assert did_you_mean("logit", ["logits", "uniform"]) == "; did you mean logits?"
    assert did_you_mean("x", ["logits", "uniform"]) == ""
