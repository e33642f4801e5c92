"""Text that comes from elsewhere: it steers no terminal, stays the same JSON, and ends at a
sentence."""

import json
import os
import pickle

import pytest
from attacks import is_sentence
from hypothesis import given
from hypothesis import strategies as st

from agentic_iqa_local.config import ConfigError
from agentic_iqa_local.errors import UserError, did_you_mean, one_line, printable
from agentic_iqa_local.files import path_from_text, path_text
from agentic_iqa_local.nodes.replies import whole_sentences
from agentic_iqa_local.output.words import wrapped

STEERING = "\x1b[2J\x9b2J\x7f\u202e\u2028\U000e0001\r\n\t"


def test_what_steers_a_terminal_is_escaped_and_the_rest_stays():
    assert one_line("a\x1b[2J\x9b\n") == r"a\u001b[2J\u009b\n"
    assert one_line("Fête 東京 🌲 \\x1b") == "Fête 東京 🌲 \\x1b"
    assert one_line(os.fsdecode(b"a\xff.png")) == r"a\xff.png"
    assert printable("a\n\tb\x1b[31m") == "a\n\tb\\u001b[31m"


def test_the_mark_of_a_trial_model_stays_on_one_line(monkeypatch):
    """Whatever stands before it: the mark of 38 characters fits 40 columns."""
    monkeypatch.setenv("COLUMNS", "40")
    mark = "[trial model, not for real judgements]"
    for before in range(1, 60):
        lines = wrapped(f"{'a' * before}, q 4.03 of 5 {mark} b")
        assert sum(mark in line for line in lines) == 1
        assert sum("4.03 of 5" in line for line in lines) == 1


@given(st.text(max_size=60))
def test_any_json_is_one_harmless_line_of_the_same_json(text):
    stored = json.dumps({text: ["é", text]}, ensure_ascii=False)
    assert is_sentence(one_line(stored))
    assert json.loads(one_line(stored)) == json.loads(stored)


@pytest.mark.parametrize("kind", [UserError, ConfigError])
def test_an_error_is_one_line_and_goes_to_another_process(kind):
    error = kind(f"{STEERING}.png: expected", "bring it")
    assert str(error).isprintable()
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.message, copy.remedy) == (kind, error.message, error.remedy)


def test_the_text_of_a_path_leads_back_to_it():
    for name in (b"a\xff", b"\xfe\xff", b"a\\b", "Fête \\ 1.png".encode()):
        text = path_text(os.fsdecode(name))
        assert text.encode().isascii() or "Fête" in text
        assert os.fsencode(path_from_text(text)) == name
    assert path_text("a\ud800.png") == r"a\ud800.png"  # a name that no file can have


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Edges are soft. The sky is ba", "Edges are soft."),
        ('They said "soft." The sky', 'They said "soft."'),
        ("Edges are soft, e.g. JPEG bl", "Edges are soft, e.g. JPEG…"),  # dots inside a sentence
        ("Noise. The score of 3.", "Noise."),  # of 3.25, as likely as not
        ("soft edges, and", "soft edges…"),  # no sentence: whole words
        ("模糊。天空很", "模糊。"),
    ],
)
def test_a_text_at_its_limit_ends_with_a_sentence_or_word(text, kept):
    assert whole_sentences(text, len(text)) == kept
    assert whole_sentences(f"{text} ", len(text) + 2) == text


def test_a_name_that_is_nearly_right_is_told():
    assert did_you_mean("logit", ["logits", "uniform"]) == "; did you mean logits?"
    assert did_you_mean("x", ["logits", "uniform"]) == ""
