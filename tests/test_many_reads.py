"""Many pictures read in one batch give the letters that each gives alone."""

import pytest
from families import build
from PIL import Image

from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.vlm_client import TokenUsage, VLMError, read_each, transformers_batch
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)


def alone(client, images):
    session = client.open(images)
    return session.read_letters(SCORING, ANSWER_PREFIX, LETTERS), session.usage


def tiles(photo, count, side=128):
    return [[photo.crop((32 * i, 16 * i, 32 * i + side, 16 * i + side))] for i in range(count)]


def test_a_batch_equals_single_reads(client, photo):
    pictures = tiles(photo, 5)
    many = client.read_many(pictures, SCORING, ANSWER_PREFIX, LETTERS)
    singles = [alone(client, images) for images in pictures]
    for read, (single, _) in zip(many.reads, singles, strict=True):
        assert read.logprobs == pytest.approx(single.logprobs, abs=1e-4)
        assert read.off_letter_mass == pytest.approx(single.off_letter_mass, abs=1e-5)
    usage = sum((usage for _, usage in singles), TokenUsage())
    assert (many.usage.calls, many.usage.prefilled) == (usage.calls, usage.prefilled) == (5, usage.prefilled)
    assert many.usage.forward_passes == 1  # 5 tiles of 16 image tokens fit into one pass
    assert (many.seen.width, many.seen.height, many.seen.tokens) == (128, 128, 16)


def test_a_session_goes_on_rightly_after_a_batch(client, photo):
    session = client.open([photo.crop((0, 0, 256, 224))])
    before = session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    client.read_many(tiles(photo, 3), SCORING, ANSWER_PREFIX, LETTERS)
    # the cache still holds the images; Qwen's positions must not be those of the tiles
    again = session.read_letters(summarizer_prompt("Rate it.", None, scoring=True), ANSWER_PREFIX, LETTERS)
    fresh = client.open([photo.crop((0, 0, 256, 224))]).read_letters(
        summarizer_prompt("Rate it.", None, scoring=True), ANSWER_PREFIX, LETTERS
    )
    assert session.usage.reused > 0
    assert again.logprobs == pytest.approx(fresh.logprobs, abs=1e-4)
    assert again.logprobs != before.logprobs


def test_one_pass_holds_so_many_tokens_and_no_more(client, photo, monkeypatch):
    pictures = tiles(photo, 7)
    length = alone(client, pictures[0])[1].prefilled
    monkeypatch.setattr(transformers_batch, "MOST_TOKENS", 3 * length + 1)
    whole = client.read_many(pictures, SCORING, ANSWER_PREFIX, LETTERS)
    assert whole.usage.forward_passes == 3  # of three, three and one
    assert whole.reads[6].logprobs == pytest.approx(alone(client, pictures[6])[0].logprobs, abs=1e-4)


def test_pictures_of_different_sizes_are_read_one_by_one(client, photo):
    pictures = [[photo.crop((0, 0, 128, 128))], [photo.crop((0, 0, 160, 128))]]
    many = client.read_many(pictures, SCORING, ANSWER_PREFIX, LETTERS)
    assert many.usage.forward_passes == 2
    for read, images in zip(many.reads, pictures, strict=True):
        assert read.logprobs == pytest.approx(alone(client, images)[0].logprobs, abs=1e-4)


def test_pairs_may_be_read_too(client, photo):
    pictures = [[photo.crop((0, 0, 128, 128)), images[0]] for images in tiles(photo, 3)]
    many = client.read_many(pictures, SCORING, ANSWER_PREFIX, LETTERS)
    for read, images in zip(many.reads, pictures, strict=True):
        assert read.logprobs == pytest.approx(alone(client, images)[0].logprobs, abs=1e-4)


@pytest.mark.parametrize(
    "family", ["qwen2_vl", "qwen3_vl", "llava_clip", "llava_onevision", "smolvlm", "internvl"]
)
def test_families_agree_with_themselves(family, photo, tmp_path):
    build(family, tmp_path)
    client = TransformersClient(family, ModelSettings(path=str(tmp_path)), "cpu")
    pictures = tiles(photo, 4)
    many = client.read_many(pictures, SCORING, ANSWER_PREFIX, LETTERS)
    singles = [alone(client, images)[0] for images in pictures]
    for read, single in zip(many.reads, singles, strict=True):
        assert read.logprobs == pytest.approx(single.logprobs, abs=1e-3)
    assert singles[0].logprobs != pytest.approx(singles[3].logprobs, abs=1e-3)  # the tiles are told apart


def test_threads_give_each_picture_its_own_read(client, photo):
    pictures = tiles(photo, 4)
    many = read_each(client, pictures, SCORING, ANSWER_PREFIX, LETTERS, at_once=3)
    for read, images in zip(many.reads, pictures, strict=True):
        assert read.logprobs == pytest.approx(alone(client, images)[0].logprobs, abs=1e-4)
    assert many.usage.calls == 4


def test_a_model_that_overflows_is_refused(client, photo, monkeypatch):
    forward = type(client.model).forward

    def overflowing(self, *args, **options):
        output = forward(self, *args, **options)
        output.logits = output.logits * float("inf")
        return output

    monkeypatch.setattr(type(client.model), "forward", overflowing)
    with pytest.raises(VLMError, match="logits that are not finite"):
        client.read_many([[Image.new("RGB", (128, 128))]], SCORING, ANSWER_PREFIX, LETTERS)
