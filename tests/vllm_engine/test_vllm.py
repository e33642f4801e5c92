"""The real vLLM engine on the CPU, in this process and behind its own server on the loopback: the same letters, the
same tokens and the same answers as transformers, with the embedded model (of the family qwen2_5_vl)."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch
from conftest import EMBEDDED
from families import REVERSED, SCORING, apart
from PIL import Image, ImageOps

from agentic_iqa_local.api import choose_settings
from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    objects_prompt,
    planner_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.replies import (
    PlannerReply,
    analysis_reply,
    answer_reply,
    detection_reply,
)
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client import ModelLost, VLMError
from agentic_iqa_local.vlm_client.server_client import ServerClient
from agentic_iqa_local.vlm_client.vllm_client import VllmClient, gpu_share

PLAN, DETECTION = (
    planner_prompt(DEFAULT_QUERY, False),
    objects_prompt("detection", DEFAULT_QUERY, ["Global"]),
)
# Both engines compute in float32 with sums in another order: differences of 1e-6 in logits that reach about 20.
BOUND = 1e-4


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory):
    """The server's process, its port and its log; it starts while the tests of the engine in this process run."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    log = tmp_path_factory.mktemp("server") / "log.txt"
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(EMBEDDED), "--served-model-name", "embedded",
        "--dtype", "float32", "--max-model-len", "4096", "--enforce-eager", "--block-size", "32", "--max-num-seqs", "8",
        "--limit-mm-per-prompt", '{"image": 2, "video": 0}', "--generation-config", "vllm", "--enable-prompt-tokens-details",
        "--structured-outputs-config", '{"backend": "guidance", "disable_any_whitespace": true}',
        "--host", "127.0.0.1", "--port", port,
    ]  # fmt: skip
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    yield process, port, log
    process.terminate()
    process.wait(60)


@pytest.fixture(scope="module")
def url(server):
    process, port, log = server
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 400
    while True:
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        try:
            opener.open(f"http://127.0.0.1:{port}/health", timeout=5)
            return f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(1)  # between two looks; the test goes on when the server is there


def start(**options) -> VllmClient:
    return VllmClient("embedded", ModelSettings(path=str(EMBEDDED), **options), "cpu")


def connect(url, **options) -> ServerClient:
    return ServerClient("embedded", ModelSettings(path=str(EMBEDDED), server=url, **options), "cpu")


def read(client, *images, prompt=SCORING):
    return client.open(images).read_letters(prompt, ANSWER_PREFIX, LETTERS)


@pytest.fixture(scope="module", params=["vllm", "server"])
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def ours(engine, request):
    client = start() if engine == "vllm" else connect(request.getfixturevalue("url"))
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


def test_letters_pixels_and_tokens_equal_those_of_transformers(ours, client, pictures, photo):
    odd = [photo.crop((0, 0, *size)) for size in ((500, 333), (130, 512), (64, 40))]
    asked = [(SCORING, [picture]) for picture in (*pictures, *odd)]
    asked += [(SCORING, [pictures[4], pictures[3]]), (REVERSED, pictures[:1])]
    for prompt, images in asked:
        sessions = [c.open(images) for c in (ours, client)]
        one, other = (session.read_letters(prompt, ANSWER_PREFIX, LETTERS) for session in sessions)
        assert one.token_ids == other.token_ids
        assert apart(one, other) < BOUND
        assert one.off_letter_mass == pytest.approx(other.off_letter_mass, abs=BOUND)
        assert sessions[0].seen == sessions[1].seen
        assert sessions[0].usage.prefilled + sessions[0].usage.reused == sessions[1].usage.prefilled
    many = ours.read_many([pictures[:1]] * 2, SCORING, ANSWER_PREFIX, LETTERS)
    assert max(apart(one, read(client, pictures[0])) for one in many.reads) < BOUND


def test_greedy_answers_equal_those_of_transformers(ours, client, pictures):
    noise = {"Global": ["Noise"]}
    asked = [
        (PLAN, PlannerReply),
        (DETECTION, detection_reply(["Global"])),
        (objects_prompt("analysis", DEFAULT_QUERY, noise), analysis_reply(noise)),
        *((SCORING, answer_reply([letter])) for letter in LETTERS),
    ]
    for turn, (prompt, schema) in enumerate(asked):
        picture = pictures[turn % 3]
        texts = [c.open([picture]).generate(prompt, schema) for c in (ours, client)]
        assert texts[0] == texts[1]
        assert schema.model_validate_json(texts[0]).model_dump_json()


def test_roles_continue_from_the_prefix_cache(ours, photo):
    session = ours.open([ImageOps.invert(photo.crop((32, 32, 288, 288)))])  # no other test reads it
    session.generate(PLAN, PlannerReply)
    assert (session.usage.reused, session.seen[0].tokens) == (0, 64)
    session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    # whole blocks of 32 tokens: at most one block of the shared part is computed again
    assert session.usage.reused >= session.seen[0].tokens - 32


def test_whole_assessments_at_once_agree(
    engine, ours, services, photo, photo_path, noisy_path, tmp_path
):
    settings = choose_settings(engine=engine)
    shared = Services(settings, "cpu", {f"{engine}.embedded": ours}, services.tools)
    photo.crop((32, 0, 288, 224)).save(tmp_path / "part.png")
    asked = [(noisy_path, photo_path), (tmp_path / "part.png", None)]
    with ThreadPoolExecutor(len(asked)) as pool:
        rows = list(pool.map(lambda pair: assess(*pair, services=shared), asked))
    for row, pair in zip(rows, asked, strict=True):
        alone = assess(*pair, services=services)
        assert (row.error, row.plan, row.seen) == (None, alone.plan, alone.seen)
        assert row.fusion.p_c == pytest.approx(alone.fusion.p_c, abs=BOUND)
        assert row.q == pytest.approx(alone.q, abs=1e-3)


def test_other_pixel_limits_need_a_server_that_allows_them(url, photo):
    with pytest.raises(VLMError, match="--trust-request-mm-kwargs"):
        read(connect(url, max_pixels=128 * 128), photo.crop((0, 0, 256, 256)))


def test_the_exact_mode_gives_the_same_bits_and_a_failed_engine_is_lost(pictures, monkeypatch):
    """Batching and cached blocks change the order of sums, and so the last bits; the exact mode has neither. Then its
    engine fails: every later call would fail too, and the memory is free."""
    exact = start(exact=True)
    try:
        first = [read(exact, p) for p in pictures]
        with ThreadPoolExecutor(len(pictures)) as pool:
            assert list(pool.map(lambda p: read(exact, p), pictures)) == first
        session = exact.open(pictures[:1])
        session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
        assert session.usage.reused == 0
        with pytest.raises(VLMError, match="vLLM refused"):  # a prompt beyond the context
            read(exact, pictures[0], prompt=summarizer_prompt("blur " * 5000, None, scoring=True))
        assert read(exact, pictures[0]).logprobs
        exhausted = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        monkeypatch.setattr(exact.engine.llm, "step", Mock(side_effect=exhausted))
        for _ in range(2):
            with pytest.raises(ModelLost, match=r"Tried to allocate .*; .*lower max_in_flight"):
                read(exact, pictures[0])
    finally:
        exact.close()
        torch.use_deterministic_algorithms(False)
    assert not hasattr(exact.engine, "llm")


@pytest.mark.parametrize("change", [{"quantization": "4bit"}, {"device_map": "auto"}])
def test_what_vllm_would_ignore_is_refused(change):
    with pytest.raises(VLMError, match=f"expected {next(iter(change))}"):
        start(**change)


def test_the_engine_takes_of_a_card_what_the_tools_leave(monkeypatch):
    """24 GiB of which 20 are free and 4 stay for the tools: 16 / 24 = 0.6666..., rounded down. With 5 free, 1 / 24 is
    too little."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 24 * 2**30))
    assert gpu_share("cuda:0", 4.0) == 0.666
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * 2**30, 24 * 2**30))
    with pytest.raises(VLMError, match="left_for_tools_gib"):
        gpu_share("cuda:0", 4.0)
