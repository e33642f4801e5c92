"""The answers' tokens in Qwen2.5's own vocabulary, in the places where they are read. tests/data/qwen_tokens.json
is the part of that vocabulary which these texts need, with the ids and the order of merges of the whole (151,643
entries, the same in Qwen2 and Qwen3, and so in LLaVA-OneVision and Q-SiT)."""

import json
from typing import get_args

import pytest
from conftest import DATA
from transformers import Qwen2Tokenizer

from agentic_iqa_local.judgement.quality_map import SEVERITY_PREFIX
from agentic_iqa_local.levels import DISTORTION_TYPES, LETTERS, LEVEL_WORDS, Severity
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX
from agentic_iqa_local.vlm_client.letters import resolve_letters

SEVERITY_PLACES = [SEVERITY_PREFIX.replace("TYPE", kind) for kind in DISTORTION_TYPES]
SEVERITIES = get_args(Severity)


@pytest.fixture(scope="module")
def tokenizer():
    extract = json.loads((DATA / "qwen_tokens.json").read_text(encoding="utf-8"))
    return Qwen2Tokenizer(vocab=extract["vocabulary"], merges=[tuple(pair) for pair in extract["merges"]])


def pieces(tokenizer, text):
    return [tokenizer.decode([token]) for token in tokenizer.encode(text)]


def test_the_letters_are_single_tokens_with_the_ids_of_the_whole_vocabulary(tokenizer):
    found = resolve_letters(tokenizer.encode, ANSWER_PREFIX, LETTERS)
    assert found == {"A": 32, "B": 33, "C": 34, "D": 35, "E": 36}


def test_the_answer_before_the_letter_is_cut_as_with_the_letter(tokenizer):
    assert pieces(tokenizer, ANSWER_PREFIX) == ['{"', "final", "_answer", '":', ' "']
    assert pieces(tokenizer, f'{ANSWER_PREFIX}A", "') == [
        '{"',
        "final",
        "_answer",
        '":',
        ' "',
        "A",
        '",',
        ' "',
    ]


@pytest.mark.parametrize("place", SEVERITY_PLACES, ids=DISTORTION_TYPES)
def test_severities_begin_with_tokens_of_their_own(tokenizer, place):
    cut = [pieces(tokenizer, place + word)[len(pieces(tokenizer, place)) :] for word in SEVERITIES]
    assert cut == [["none"], ["sl", "ight"], ["mod", "erate"], ["se", "vere"], ["ext", "reme"]]
    assert resolve_letters(tokenizer.encode, place, SEVERITIES) == {
        "none": 6697,
        "slight": 3226,
        "moderate": 2593,
        "severe": 325,
        "extreme": 427,
    }


def test_the_words_of_the_levels_are_single_tokens(tokenizer):
    """Where a model's section says `answers: words`."""
    words = dict(zip(LETTERS, LEVEL_WORDS.values(), strict=True))
    found = resolve_letters(tokenizer.encode, ANSWER_PREFIX, LETTERS, words)
    assert found == {"A": 49655, "B": 15216, "C": 60795, "D": 84103, "E": 17082}
    assert [tokenizer.decode([token]) for token in found.values()] == list(words.values())
