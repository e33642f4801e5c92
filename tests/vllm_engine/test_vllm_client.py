"""The real vLLM engine on the CPU, on the embedded model: the same letters, the same tokens and the same
answers as transformers."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import EMBEDDED
from PIL import Image

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    analysis_prompt,
    detection_prompt,
    planner_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.replies import PlannerReply, analysis_reply, detection_reply, summary_reply
from agentic_iqa_local.services import Services
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError
from agentic_iqa_local.vlm_client.transformers_client import TransformersClient
from agentic_iqa_local.vlm_client.vllm_client import VllmClient, gpu_share

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
REVERSED = summarizer_prompt(DEFAULT_QUERY, None, scoring=True, reversed_letters=True)
PLAN = planner_prompt(DEFAULT_QUERY, False)
# Both engines compute in float32 with sums in another order: differences of 1e-6 in logits that reach about
# 20.
BOUND = 1e-4


@pytest.fixture(scope="module")
def vllm_client():
    client = VllmClient("embedded", ModelSettings(path=str(EMBEDDED)), "cpu")
    yield client
    client.close()


@pytest.fixture(scope="module")
def pictures(photo, noisy_path):
    noisy = Image.open(noisy_path).convert("RGB")
    return [
        photo.crop((0, 0, 256, 224)),
        noisy.crop((0, 0, 192, 320)),
        photo.crop((64, 32, 224, 160)),
        noisy,
        photo,
    ]


def difference(one, other):
    assert one.token_ids == other.token_ids
    return max(abs(one.logprobs[letter] - other.logprobs[letter]) for letter in LETTERS)


@pytest.mark.parametrize("prompt", [SCORING, REVERSED], ids=["forward", "reversed"])
def test_letters_equal_those_of_transformers(vllm_client, client, pictures, prompt):
    for images in [*([p] for p in pictures), [pictures[4], pictures[3]]]:
        ours = vllm_client.open(images).read_letters(prompt, ANSWER_PREFIX, LETTERS)
        theirs = client.open(images).read_letters(prompt, ANSWER_PREFIX, LETTERS)
        assert difference(ours, theirs) < BOUND
        assert ours.off_letter_mass == pytest.approx(theirs.off_letter_mass, abs=BOUND)


def test_letters_in_bfloat16_agree_within_its_rounding(pictures):
    """Logits between 16 and 32 have neighbours 2**(4 - 7) = 0.125 apart in bfloat16: two of them between the
    engines."""
    settings = ModelSettings(path=str(EMBEDDED), dtype="bfloat16")
    ours, theirs = VllmClient("embedded", settings, "cpu"), TransformersClient("embedded", settings, "cpu")
    try:
        for picture in pictures[:3]:
            reads = [
                client.open([picture]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
                for client in (ours, theirs)
            ]
            assert difference(*reads) < 0.25
    finally:
        ours.close()


@pytest.mark.parametrize("change", [{"quantization": "4bit"}, {"attention": "eager"}, {"device_map": "auto"}])
def test_what_vllm_would_ignore_is_refused(change):
    (key,) = change
    with pytest.raises(VLMError, match=f"expected {key}"):
        VllmClient("embedded", ModelSettings(path=str(EMBEDDED), **change), "cpu")


def test_a_closed_client_refuses_and_frees_its_engine(pictures):
    lone = VllmClient("embedded", ModelSettings(path=str(EMBEDDED)), "cpu")
    session = lone.open([pictures[0]])
    session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    lone.close()
    lone.close()
    assert not hasattr(lone.engine, "_engine")
    with pytest.raises(VLMError, match="has stopped"):
        session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)


def test_an_engine_whose_memory_ran_out_is_loaded_again_for_half_as_many(pictures, monkeypatch):
    ours = VllmClient("embedded", ModelSettings(path=str(EMBEDDED), max_in_flight=4), "cpu")
    try:
        expected = ours.open([pictures[0]]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
        first = ours.engine

        def no_memory():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

        monkeypatch.setattr(first._engine, "step", no_memory)
        with pytest.raises(OutOfMemory, match="Tried to allocate"):
            ours.open([pictures[0]]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
        assert (ours.engine is first, ours.engine.config.scheduler_config.max_num_seqs) == (False, 2)
        assert (
            difference(ours.open([pictures[0]]).read_letters(SCORING, ANSWER_PREFIX, LETTERS), expected)
            < BOUND
        )

        def broken():
            raise ValueError("something else")

        monkeypatch.setattr(ours.engine._engine, "step", broken)
        for _ in range(2):  # every later call would fail too
            with pytest.raises(ModelLost, match="something else"):
                ours.open([pictures[0]]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    finally:
        ours.close()


def test_the_engine_takes_of_a_card_what_the_tools_leave(monkeypatch):
    """24 GiB of which 20 are free and 4 stay for the tools: 16 / 24 = 0.6666..., rounded down. With 5 free, 1
    / 24 is too little."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 24 * 2**30))
    assert gpu_share("cuda:0", 4.0) == 0.666
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * 2**30, 24 * 2**30))
    with pytest.raises(VLMError, match="left_for_tools_gib"):
        gpu_share("cuda:0", 4.0)


def test_a_batch_of_many_reads_equals_one_read_after_the_other(vllm_client, pictures):
    crops = [p.crop((0, 0, 128 + 32 * i, 160)) for p in pictures for i in range(3)]
    alone = [vllm_client.open([c]).read_letters(SCORING, ANSWER_PREFIX, LETTERS) for c in crops]
    with ThreadPoolExecutor(len(crops)) as pool:
        together = list(
            pool.map(lambda c: vllm_client.open([c]).read_letters(SCORING, ANSWER_PREFIX, LETTERS), crops)
        )
    assert max(map(difference, alone, together)) < BOUND


def test_letters_stay_right_beside_requests_that_generate(vllm_client, pictures):
    alone = vllm_client.open([pictures[0]]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    with ThreadPoolExecutor(4) as pool:
        plans = [pool.submit(vllm_client.open([p]).generate, PLAN, PlannerReply) for p in pictures[1:4]]
        read = pool.submit(
            vllm_client.open([pictures[0]]).read_letters, SCORING, ANSWER_PREFIX, LETTERS
        ).result()
        for plan in plans:
            PlannerReply.model_validate_json(plan.result())
    assert difference(read, alone) < BOUND


def test_roles_continue_from_the_prefix_cache(vllm_client, pictures):
    session = vllm_client.open([Image.fromarray(255 - np.asarray(pictures[4]))])  # seen by no other test
    session.generate(PLAN, PlannerReply)
    assert session.usage.reused == 0
    before = session.usage.prefilled
    session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    tokens = session.seen[0].tokens
    assert tokens == 256
    # vLLM's cache holds whole blocks of 32 tokens: at most one block of the shared part is computed again.
    assert session.usage.reused >= tokens - 32
    assert session.usage.prefilled - before < before


def test_without_prefix_sharing_nothing_is_reused_and_the_letters_are_equal(vllm_client, pictures):
    lone = VllmClient("embedded", ModelSettings(path=str(EMBEDDED), share_prefix=False), "cpu")
    try:
        session = lone.open([pictures[0]])
        reads = [session.read_letters(SCORING, ANSWER_PREFIX, LETTERS) for _ in range(2)]
    finally:
        lone.close()
    assert session.usage.reused == 0
    cached = vllm_client.open([pictures[0]]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert max(difference(read, cached) for read in reads) < BOUND


def test_the_exact_mode_gives_the_same_bits_whatever_else_runs(pictures):
    """Batching and cached blocks change the order of sums, and so the last bits; the exact mode has
    neither."""
    exact = VllmClient("embedded", ModelSettings(path=str(EMBEDDED), exact=True), "cpu")
    try:
        first = [exact.open([p]).read_letters(SCORING, ANSWER_PREFIX, LETTERS) for p in pictures]
        with ThreadPoolExecutor(len(pictures)) as pool:
            together = list(
                pool.map(lambda p: exact.open([p]).read_letters(SCORING, ANSWER_PREFIX, LETTERS), pictures)
            )
    finally:
        exact.close()
        torch.use_deterministic_algorithms(False)
    assert together == first


def test_both_engines_see_the_same_pixels_and_tokens(vllm_client, client, photo):
    for size in ((96, 96), (500, 333), (130, 512), (64, 40)):
        picture = photo.crop((0, 0, *size))
        ours, theirs = vllm_client.open([picture]), client.open([picture])
        for session in (ours, theirs):
            session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
        assert ours.seen == theirs.seen
        assert ours.usage.prefilled + ours.usage.reused == theirs.usage.prefilled


@pytest.mark.parametrize(
    ("prompt", "schema"),
    [
        (PLAN, PlannerReply),
        (detection_prompt(DEFAULT_QUERY, ["Global"]), detection_reply(["Global"])),
        (analysis_prompt(DEFAULT_QUERY, {"Global": ["Noise"]}), analysis_reply({"Global": ["Noise"]})),
    ],
    ids=["plan", "detection", "analysis"],
)
def test_greedy_answers_equal_those_of_transformers(vllm_client, client, pictures, prompt, schema):
    for picture in pictures[:3]:
        assert vllm_client.open([picture]).generate(prompt, schema) == client.open([picture]).generate(
            prompt, schema
        )


def test_a_begun_answer_is_continued(vllm_client, client, pictures):
    for letter in LETTERS:
        texts = [
            c.open([pictures[0]]).generate(
                SCORING, summary_reply(LETTERS), answer_prefix=ANSWER_PREFIX + letter
            )
            for c in (vllm_client, client)
        ]
        assert summary_reply(LETTERS).model_validate_json(texts[0]).final_answer == letter
        assert texts[0] == texts[1]


def test_an_answer_that_cannot_begin_so_is_refused(vllm_client, pictures):
    with pytest.raises(VLMError, match="does not allow"):
        vllm_client.open([pictures[0]]).generate(
            SCORING, summary_reply(LETTERS), answer_prefix=ANSWER_PREFIX + "X"
        )


def test_a_prompt_beyond_the_context_is_an_error_of_its_request_alone(vllm_client, pictures):
    session = vllm_client.open([pictures[0]])
    with pytest.raises(VLMError, match="vLLM refused"):
        session.read_letters(summarizer_prompt("blur " * 5000, None, scoring=True), ANSWER_PREFIX, LETTERS)
    assert session.read_letters(SCORING, ANSWER_PREFIX, LETTERS).logprobs


@pytest.fixture(scope="module")
def vllm_services(vllm_client, services):
    settings = load_settings().with_options(engine="vllm")
    return Services(settings, "cpu", clients={"vllm.embedded": vllm_client}, tools=services.tools)


@pytest.mark.parametrize("reference", [False, True], ids=["no-reference", "full-reference"])
def test_whole_assessments_agree(vllm_services, services, photo_path, noisy_path, reference):
    rows = [
        assess(noisy_path, photo_path if reference else None, services=each)
        for each in (vllm_services, services)
    ]
    assert [row.error for row in rows] == [None, None]
    ours, theirs = rows
    assert ours.plan == theirs.plan
    assert [(t.tool_name, t.raw_score) for t in ours.tools] == [
        (t.tool_name, t.raw_score) for t in theirs.tools
    ]
    assert ours.p_c == pytest.approx(theirs.p_c, abs=BOUND)
    assert ours.q == pytest.approx(theirs.q, abs=1e-3)
    assert ours.interval is not None
    assert theirs.interval is not None
    assert (ours.interval.low, ours.interval.high) == pytest.approx(
        (theirs.interval.low, theirs.interval.high), abs=0.01
    )
    assert ours.seen == theirs.seen


def test_every_look_agrees(vllm_services, services, noisy_path):
    """No interval is as narrow as asked for, so that both orders and the crops are read."""
    ours, theirs = (
        assess(
            noisy_path,
            pipeline="letters",
            services=Services(
                each.settings.with_options(target_width=0.01), "cpu", each.pool.clients, each.tools
            ),
        )
        for each in (vllm_services, services)
    )
    assert ours.error is None
    assert ours.crops == theirs.crops == 5
    assert ours.order_gap == pytest.approx(theirs.order_gap, abs=0.01)
    assert ours.crop_spread == pytest.approx(theirs.crop_spread, abs=0.01)
    assert ours.p_c == pytest.approx(theirs.p_c, abs=BOUND)


def test_eight_assessments_at_once_equal_themselves_alone(vllm_services, photo, tmp_path):
    paths = []
    for i in range(8):
        paths.append(tmp_path / f"{i}.png")
        photo.crop((32 * i, 0, 256 + 32 * i, 224)).save(paths[-1])
    alone = [assess(path, services=vllm_services) for path in paths]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda path: assess(path, services=vllm_services), paths))
    assert [row.error for row in together] == [None] * 8
    for one, other in zip(alone, together, strict=True):
        assert one.p_c == pytest.approx(other.p_c, abs=BOUND)
        assert one.q == pytest.approx(other.q, abs=1e-3)
