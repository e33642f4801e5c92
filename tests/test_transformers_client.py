"""The transformers client on the embedded model: letters are the logits of a plain pass, and neither the shared
prefix nor a batch changes them."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from conftest import EMBEDDED
from families import SCORING, apart, load, plain_logprobs
from PIL import Image
from transformers import DynamicCache

from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    objects_prompt,
    planner_prompt,
)
from agentic_iqa_local.nodes.replies import PlannerReply, analysis_reply, answer_reply
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client import OutOfMemory, VLMError, transformers_client

# float32 rounds at 2^-24 = 6e-8 of a value; sums over a few hundred terms in another order differ by some 1e-6, and
# logits reach about 20.
BOUND = 1e-4
PLAN, OTHER = planner_prompt(DEFAULT_QUERY, False), replace(SCORING, case="Other")


@pytest.fixture(scope="module")
def pictures(photo, noisy_path):
    return [
        photo.crop((0, 0, 256, 224)),
        Image.open(noisy_path).convert("RGB").crop((0, 0, 192, 320)),
    ]


def read(session, prompt=SCORING):
    return session.read_letters(prompt, ANSWER_PREFIX, LETTERS)


def read_many(client, pictures):
    return client.read_many(pictures, SCORING, ANSWER_PREFIX, LETTERS)


def test_letters_equal_a_plain_pass_behind_other_roles(client, pictures):
    """Qwen's models keep the last image's positions in the module: a session must not pick up a stranger's."""
    session, stranger = client.open(pictures), client.open([pictures[1]])
    session.generate(PLAN, PlannerReply)
    assert apart(read(stranger), plain_logprobs(client, [pictures[1]])) < BOUND
    before = session.usage.prefilled
    assert apart(read(session), plain_logprobs(client, pictures)) < BOUND
    # 256×224 pixels in 32-pixel tokens, 192×320; they and the preamble come from the cache, which role text follows
    assert [seen.tokens for seen in session.seen] == [8 * 7, 6 * 10]
    assert session.usage.reused >= sum(seen.tokens for seen in session.seen)
    assert session.usage.prefilled - before < before


def test_a_reasoning_continues_the_sequence_of_the_letter_read(client, pictures):
    session = client.open([pictures[0]])
    read(session)
    before = session.usage.prefilled
    text = session.generate(SCORING, answer_reply(["D"]))
    assert answer_reply(LETTERS).model_validate_json(text).final_answer == "D"
    # new as input: the letter, and the forced text up to the reasoning's first word
    assert session.usage.prefilled - before <= 2 * len(
        client.renderer.encode('D", "quality_reasoning": "')
    )


def test_a_cache_that_cannot_be_cut_is_computed_again(client, pictures, monkeypatch):
    """Sliding-window and linear-attention caches refuse to be cropped."""
    monkeypatch.setattr(DynamicCache, "crop", Mock(side_effect=RuntimeError("cannot crop")))
    session, fresh = client.open([pictures[0]]), client.open([pictures[0]])
    read(session)
    assert apart(read(session, OTHER), read(fresh, OTHER)) < BOUND
    assert session.usage.reused == 0


# Letters' logits lie between 16 and 32 in size, where neighbours are 2**(4 - 7) = 0.125 apart in bfloat16 and
# 2**(4 - 10) = 0.016 in float16. Two roundings and the sums before them: two and three neighbours.
@pytest.mark.parametrize(("dtype", "bound"), [("float16", 0.05), ("bfloat16", 0.25)])
def test_the_shared_prefix_moves_letters_by_less_than_the_dtype(pictures, dtype, bound):
    half = load(EMBEDDED, dtype=dtype)
    session = half.open([pictures[0]])
    session.generate(PLAN, PlannerReply)
    assert apart(read(session), plain_logprobs(half, [pictures[0]])) < bound
    assert session.usage.reused > 0


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an NVIDIA GPU: pytest -m gpu on one"
)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-2), ("bfloat16", 0.3)])
def test_gpu_letters_agree_with_cpu_letters(client, pictures, dtype, bound):
    on_gpu = load(EMBEDDED, "cuda:0", dtype=dtype)
    assert apart(*(read(c.open([pictures[0]])) for c in (client, on_gpu))) < bound


def test_answers_are_valid_when_hot_and_repeat_when_greedy(client, pictures):
    """At temperature 2 the model babbles; the grammar still admits nothing but valid answers."""
    found = {'a "quoted" car': ["Noise", "Blurs"], "sky": []}
    session = client.open([pictures[0]])
    for prompt, schema in (
        (PLAN, PlannerReply),
        (objects_prompt("analysis", DEFAULT_QUERY, found), analysis_reply(found)),
    ):
        text = session.generate(prompt, schema, temperature=2.0, max_tokens=1024)
        schema.model_validate_json(text)
    assert session.generate(PLAN, PlannerReply) == session.generate(PLAN, PlannerReply)


def test_a_pass_without_memory_leaves_a_clean_session(pictures, monkeypatch):
    lone = load(EMBEDDED)
    session = lone.open([pictures[0]])
    session.generate(PLAN, PlannerReply)

    exhausted = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    with monkeypatch.context() as patch:
        patch.setattr(lone.model, "forward", exhausted)
        with pytest.raises(OutOfMemory, match="lower max_pixels"):
            read(session)
    assert apart(read(session), plain_logprobs(lone, [pictures[0]])) < BOUND


def test_logits_that_are_not_finite_are_refused_with_what_helps(pictures, monkeypatch):
    lone = load(EMBEDDED)
    weight = lone.model.get_output_embeddings().weight
    monkeypatch.setattr(weight, "data", weight.data * float("inf"))
    for ask in (lambda one: read(lone.open(one)), lambda one: read_many(lone, [one])):
        with pytest.raises(VLMError, match=r"not finite in torch\.float32; .*set dtype: float32"):
            ask([pictures[0]])


def test_the_exact_mode_gives_the_same_bits(pictures):
    try:
        reads = [read(load(EMBEDDED, exact=True).open([pictures[0]])) for _ in range(2)]
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert reads[0] == reads[1]


@pytest.mark.parametrize(("kind", "layer"), [("8bit", "Linear8bitLt"), ("4bit", "Linear4bit")])
def test_quantisation_leaves_the_tower_and_the_head(kind, layer):
    small = load(EMBEDDED, quantization=kind, dtype="float32")
    layers = small.model.named_modules()
    kinds = {name: type(part).__name__ for name, part in layers if hasattr(part, "in_features")}
    assert {kind for name, kind in kinds.items() if "language_model" in name} == {layer}
    assert {kind for name, kind in kinds.items() if "language_model" not in name} == {"Linear"}
    assert small.describe()["quantization"] == kind


# Many pictures in few passes


def tiles(photo, count, side=128):
    return [[photo.crop((32 * i, 16 * i, 32 * i + side, 16 * i + side))] for i in range(count)]


def test_a_batch_gives_the_letters_of_each_picture_alone(client, photo, monkeypatch):
    pictures = tiles(photo, 7)
    alone = [read(client.open(images)) for images in pictures]
    session = client.open(pictures[0])
    read(session)
    many = read_many(client, pictures)
    assert max(map(apart, many.reads, alone)) < BOUND
    assert apart(alone[0], alone[6]) > 0.01  # they are told apart
    assert (many.usage.calls, many.usage.prefilled) == (7, 7 * session.usage.prefilled)
    monkeypatch.setattr(transformers_client, "MOST_TOKENS", 3 * session.usage.prefilled + 1)
    passes = Mock(wraps=client.run)
    monkeypatch.setattr(client, "run", passes)
    fewer = read_many(client, pictures)
    assert passes.call_count == 3  # of three, three and one
    assert max(map(apart, fewer.reads, alone)) < BOUND
    # a session goes on from its own cache and positions
    assert apart(read(session, OTHER), read(client.open(pictures[0]), OTHER)) < BOUND
    assert session.usage.reused > 0


@pytest.mark.parametrize("kind", ["pairs", "sizes"])
def test_pairs_and_pictures_of_different_sizes_are_read_too(client, photo, kind):
    corner = photo.crop((0, 0, 128, 128))
    pictures = [[corner, *images] for images in tiles(photo, 3)]
    if kind == "sizes":
        pictures = [[corner], [photo.crop((0, 0, 160, 128))]]
    for found, images in zip(read_many(client, pictures).reads, pictures, strict=True):
        assert apart(found, read(client.open(images))) < BOUND
