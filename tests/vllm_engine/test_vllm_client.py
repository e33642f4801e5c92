"""The real vLLM engine on the CPU: the same letters, the same tokens and the same answers as transformers."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import EMBEDDED
from families import REVERSED, SCORING, apart, build, load
from PIL import Image, ImageOps

from agentic_iqa_local.config import ModelSettings, load_settings
from agentic_iqa_local.judgement.assessment import assess
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
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError
from agentic_iqa_local.vlm_client.vllm_client import VllmClient, gpu_share

PLAN = planner_prompt(DEFAULT_QUERY, False)
# Both engines compute in float32 with sums in another order: differences of 1e-6 in logits that reach about 20.
BOUND = 1e-4


def start(**options) -> VllmClient:
    return VllmClient("embedded", ModelSettings(path=str(EMBEDDED), **options), "cpu")


def read(client, *images, prompt=SCORING):
    return client.open(images).read_letters(prompt, ANSWER_PREFIX, LETTERS)


@pytest.fixture(scope="module")
def pictures(photo, noisy_path):
    noisy = Image.open(noisy_path).convert("RGB")
    return [photo.crop((0, 0, 256, 224)), noisy.crop((0, 0, 192, 320)), photo.crop((64, 32, 224, 160)), noisy, photo]  # fmt: skip


@pytest.fixture(scope="module")
def vllm_client():
    client = start()
    yield client
    client.close()


@pytest.fixture(scope="module")
def vllm_services(vllm_client, services):
    settings = load_settings().with_options(engine="vllm")
    return Services(settings, "cpu", clients={"vllm.embedded": vllm_client}, tools=services.tools)


@pytest.mark.parametrize("prompt", [SCORING, REVERSED], ids=["forward", "reversed"])
def test_letters_pixels_and_tokens_equal_those_of_transformers(vllm_client, client, pictures, photo, prompt):
    odd = [photo.crop((0, 0, *size)) for size in ((500, 333), (130, 512), (64, 40))]
    for images in [*([p] for p in [*pictures, *odd]), [pictures[4], pictures[3]]]:
        sessions = [c.open(images) for c in (vllm_client, client)]
        ours, theirs = (session.read_letters(prompt, ANSWER_PREFIX, LETTERS) for session in sessions)
        assert ours.token_ids == theirs.token_ids
        assert apart(ours, theirs) < BOUND
        assert ours.off_letter_mass == pytest.approx(theirs.off_letter_mass, abs=BOUND)
        assert sessions[0].seen == sessions[1].seen
        assert sessions[0].usage.prefilled + sessions[0].usage.reused == sessions[1].usage.prefilled


@pytest.mark.parametrize(
    "family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_clip", "llava_siglip", "smolvlm", "idefics3"]
)
def test_both_engines_agree_on_every_family(family, photo, tmp_path):
    theirs = load(build(family, tmp_path / family))
    ours = VllmClient(family, theirs.settings, "cpu")
    crops = [photo.crop(box) for box in ((0, 0, 256, 224), (0, 0, 192, 160), (200, 100, 392, 260))]
    prompt, schema = detection_prompt(DEFAULT_QUERY, ["Global"]), detection_reply(["Global"])
    try:
        for images in (crops[:1], crops[1:]):
            sessions = [client.open(images) for client in (ours, theirs)]
            one, other = (session.read_letters(SCORING, ANSWER_PREFIX, LETTERS) for session in sessions)
            assert one.token_ids == other.token_ids
            assert apart(one, other) < BOUND
            assert sessions[0].seen == sessions[1].seen
            assert sessions[0].generate(prompt, schema) == sessions[1].generate(prompt, schema)
    finally:
        ours.close()


def test_greedy_and_begun_answers_equal_those_of_transformers(vllm_client, client, pictures):
    clients = (vllm_client, client)
    for prompt, schema in (
        (PLAN, PlannerReply),
        (detection_prompt(DEFAULT_QUERY, ["Global"]), detection_reply(["Global"])),
        (analysis_prompt(DEFAULT_QUERY, {"Global": ["Noise"]}), analysis_reply({"Global": ["Noise"]})),
    ):
        for picture in pictures[:3]:
            ours, theirs = (c.open([picture]).generate(prompt, schema) for c in clients)
            assert ours == theirs
    reply = summary_reply(LETTERS)
    for letter in LETTERS:
        begun = ANSWER_PREFIX + letter
        ours, theirs = (c.open(pictures[:1]).generate(SCORING, reply, answer_prefix=begun) for c in clients)
        assert ours == theirs
        assert reply.model_validate_json(ours).final_answer == letter
    with pytest.raises(VLMError, match="does not allow"):
        vllm_client.open(pictures[:1]).generate(SCORING, reply, answer_prefix=ANSWER_PREFIX + "X")


def test_roles_continue_from_the_prefix_cache_and_without_sharing_nothing_is_reused(vllm_client, photo):
    unseen = ImageOps.invert(photo.crop((32, 32, 288, 288)))  # by every other test
    session = vllm_client.open([unseen])
    session.generate(PLAN, PlannerReply)
    assert session.usage.reused == 0
    before = session.usage.prefilled
    shared = session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert session.seen[0].tokens == 64
    # whole blocks of 32 tokens: at most one block of the shared part is computed again
    assert session.usage.reused >= session.seen[0].tokens - 32
    assert session.usage.prefilled - before < before
    lone = start(share_prefix=False)
    try:
        session = lone.open([unseen])
        reads = [session.read_letters(SCORING, ANSWER_PREFIX, LETTERS) for _ in range(2)]
    finally:
        lone.close()
    assert session.usage.reused == 0
    assert max(apart(each, shared) for each in reads) < BOUND


def test_the_exact_mode_gives_the_same_bits_whatever_else_runs(pictures):
    """Batching and cached blocks change the order of sums, and so the last bits; the exact mode has neither."""
    exact = start(exact=True)
    try:
        first = [read(exact, p) for p in pictures]
        with ThreadPoolExecutor(len(pictures)) as pool:
            assert list(pool.map(lambda p: read(exact, p), pictures)) == first
    finally:
        exact.close()
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("change", [{"quantization": "4bit"}, {"attention": "eager"}, {"device_map": "auto"}])
def test_what_vllm_would_ignore_is_refused(change):
    with pytest.raises(VLMError, match=f"expected {next(iter(change))}"):
        start(**change)


def test_a_prompt_beyond_the_context_is_an_error_of_its_request_alone(vllm_client, pictures):
    with pytest.raises(VLMError, match="vLLM refused"):
        read(vllm_client, pictures[0], prompt=summarizer_prompt("blur " * 5000, None, scoring=True))
    assert read(vllm_client, pictures[0]).logprobs


def test_an_engine_whose_memory_ran_out_is_loaded_again_for_half_as_many(pictures, monkeypatch):
    ours = start(max_in_flight=4)
    expected, first = read(ours, pictures[0]), ours.engine

    def fail(error):
        def step():
            raise error

        monkeypatch.setattr(ours.engine._engine, "step", step)

    try:
        fail(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
        with pytest.raises(OutOfMemory, match="Tried to allocate"):
            read(ours, pictures[0])
        assert (ours.engine is first, ours.engine.config.scheduler_config.max_num_seqs) == (False, 2)
        assert apart(read(ours, pictures[0]), expected) < BOUND
        fail(ValueError("something else"))
        for _ in range(2):  # every later call would fail too
            with pytest.raises(ModelLost, match="something else"):
                read(ours, pictures[0])
    finally:
        ours.close()
    ours.close()
    assert not hasattr(ours.engine, "_engine")  # its memory is free


def test_the_engine_takes_of_a_card_what_the_tools_leave(monkeypatch):
    """24 GiB of which 20 are free and 4 stay for the tools: 16 / 24 = 0.6666..., rounded down. With 5 free, 1 / 24 is
    too little."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 24 * 2**30))
    assert gpu_share("cuda:0", 4.0) == 0.666
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * 2**30, 24 * 2**30))
    with pytest.raises(VLMError, match="left_for_tools_gib"):
        gpu_share("cuda:0", 4.0)


@pytest.mark.parametrize("reference", [False, True], ids=["no-reference", "full-reference"])
def test_whole_assessments_agree(vllm_services, services, photo_path, noisy_path, reference):
    ours, theirs = (
        assess(noisy_path, photo_path if reference else None, services=each) for each in (vllm_services, services)
    )
    assert (ours.error, theirs.error) == (None, None)
    assert (ours.plan, ours.seen) == (theirs.plan, theirs.seen)
    measured = [[(tool.tool_name, tool.raw_score) for tool in row.tools] for row in (ours, theirs)]
    assert measured[0] == measured[1]
    assert ours.p_c == pytest.approx(theirs.p_c, abs=BOUND)
    assert ours.q == pytest.approx(theirs.q, abs=1e-3)
    ends = [(row.interval.low, row.interval.high) for row in (ours, theirs)]
    assert ends[0] == pytest.approx(ends[1], abs=0.01)
