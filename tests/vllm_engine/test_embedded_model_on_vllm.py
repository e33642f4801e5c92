"""The embedded model that users meet gives the same letters on both engines."""

import pytest
from conftest import EMBEDDED
from PIL import Image

from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient
from agentic_iqa_local.vlm_client.vllm_client import VllmClient

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.25)])
def test_letters_equal_those_of_transformers(photo, noisy_path, dtype, bound):
    settings = ModelSettings(path=str(EMBEDDED), dtype=dtype)
    ours, theirs = VllmClient("embedded", settings, "cpu"), TransformersClient("embedded", settings, "cpu")
    try:
        for picture in (
            photo.crop((0, 0, 256, 224)),
            Image.open(noisy_path).convert("RGB").crop((0, 0, 192, 320)),
        ):
            one, other = (
                client.open([picture]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
                for client in (ours, theirs)
            )
            assert one.token_ids == other.token_ids
            assert max(abs(one.logprobs[letter] - other.logprobs[letter]) for letter in LETTERS) < bound
    finally:
        ours.close()


def test_many_reads_equal_single_ones(photo):
    client = VllmClient("embedded", ModelSettings(path=str(EMBEDDED), dtype="float32"), "cpu")
    try:
        tiles = [[photo.crop((32 * i, 16 * i, 32 * i + 128, 16 * i + 128))] for i in range(5)]
        many = client.read_many(tiles, SCORING, ANSWER_PREFIX, LETTERS)
        assert many.usage.calls == 5
        for read, images in zip(many.reads, tiles, strict=True):
            single = client.open(images).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
            assert max(abs(read.logprobs[letter] - single.logprobs[letter]) for letter in LETTERS) < 1e-4
    finally:
        client.close()
