"""The tokens of answers where they are read, in Qwen2.5's own vocabulary, and what a letter read refuses.

tests/data/qwen_tokens.json is the part of that vocabulary which these texts need, with the ids and the order of
merges of the whole (151,643 entries, the same in Qwen2 and Qwen3, and so in LLaVA-OneVision and Q-SiT).
"""

import json
import math
from typing import get_args

import pytest
from conftest import DATA
from transformers import Qwen2Tokenizer

from agentic_iqa_local.judgement.quality_map import SEVERITY_PREFIX
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX
from agentic_iqa_local.state import DISTORTION_TYPES, LETTERS, LEVEL_WORDS, Severity
from agentic_iqa_local.vlm_client import LetterRead, VLMError
from agentic_iqa_local.vlm_client.rendering import resolve_letters


@pytest.fixture(scope="module")
def tokenizer():
    extract = json.loads((DATA / "qwen_tokens.json").read_text(encoding="utf-8"))
    return Qwen2Tokenizer(
        vocab=extract["vocabulary"], merges=[tuple(pair) for pair in extract["merges"]]
    )


def test_letters_and_words_of_levels_have_their_known_ids(tokenizer):
    letters = resolve_letters(tokenizer.encode, ANSWER_PREFIX, LETTERS)
    assert letters == {"A": 32, "B": 33, "C": 34, "D": 35, "E": 36}
    words = dict(zip(LETTERS, LEVEL_WORDS.values(), strict=True))
    found = resolve_letters(tokenizer.encode, ANSWER_PREFIX, LETTERS, words)
    assert found == {"A": 49655, "B": 15216, "C": 60795, "D": 84103, "E": 17082}
    assert [tokenizer.decode([token]) for token in found.values()] == list(words.values())


@pytest.mark.parametrize("kind", DISTORTION_TYPES)
def test_severities_begin_with_tokens_of_their_own(tokenizer, kind):
    found = resolve_letters(
        tokenizer.encode, SEVERITY_PREFIX.replace("TYPE", kind), get_args(Severity)
    )
    assert found == {"none": 6697, "slight": 3226, "moderate": 2593, "severe": 325, "extreme": 427}


def test_letters_that_are_no_single_token_are_refused():
    with pytest.raises(VLMError, match="one token"):
        resolve_letters(
            lambda text: [ord(c) for c in text.replace('"A', "\x01")], '{"final_answer": "', "AB"
        )
    with pytest.raises(VLMError, match="of its own"):
        resolve_letters(lambda text: [min(ord(c), 60) for c in text], "x", "AB")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -9999.0, 0.01, None], ids=repr)
def test_what_is_no_log_probability_is_no_read(bad):
    with pytest.raises(VLMError, match=r"a finite log-probability .* for the letter B"):
        LetterRead.of("model", {1: -2.0, 2: bad}, {"A": 1, "B": 2})


def test_probabilities_sum_to_one_at_most():
    ids = {"A": 1, "B": 2}
    read = LetterRead.of("model", {1: math.log(0.5), 2: math.log(0.3)}, ids)
    assert read.off_letter_mass == pytest.approx(0.2)
    with pytest.raises(VLMError, match="sum to at most 1, got"):
        LetterRead.of("model", {1: math.log(0.8), 2: math.log(0.3)}, ids)
