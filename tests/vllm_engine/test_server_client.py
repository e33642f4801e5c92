"""A real `vllm serve` of the embedded model on this machine's loopback, and the client that talks to it."""

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from conftest import EMBEDDED

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, planner_prompt, summarizer_prompt
from agentic_iqa_local.nodes.replies import PlannerReply, summary_reply
from agentic_iqa_local.services import Services
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.server_client import ServerClient

SCORING = summarizer_prompt(DEFAULT_QUERY, None, scoring=True)
BOUND = 1e-4


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    port = free_port()
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
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    with log.open("w") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 600
        while True:
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                if httpx.get(address + "/health", trust_env=False).is_success:
                    break
            except httpx.HTTPError:
                time.sleep(1)
        yield address
    finally:
        server.terminate()
        server.wait(600)


@pytest.fixture(scope="module")
def server_client(url):
    client = ServerClient("embedded", ModelSettings(path=str(EMBEDDED), server=url), "cpu")
    yield client
    client.close()


@pytest.mark.parametrize("count", [1, 2], ids=["no-reference", "full-reference"])
def test_letters_equal_those_of_transformers(server_client, client, photo, count):
    images = [photo.crop((0, 0, 256, 224)), photo.crop((128, 64, 384, 288))][:count]
    ours = server_client.open(images).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    theirs = client.open(images).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert ours.token_ids == theirs.token_ids
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=BOUND)


def test_answers_equal_those_of_transformers(server_client, client, photo):
    picture = photo.crop((0, 0, 256, 224))
    plan = planner_prompt(DEFAULT_QUERY, False)
    assert server_client.open([picture]).generate(plan, PlannerReply) == client.open([picture]).generate(
        plan, PlannerReply
    )
    texts = [
        c.open([picture]).generate(SCORING, summary_reply(LETTERS), answer_prefix=ANSWER_PREFIX + "B")
        for c in (server_client, client)
    ]
    assert texts[0] == texts[1]


def test_roles_continue_from_the_servers_cache(server_client, photo):
    session = server_client.open([photo.crop((96, 96, 352, 352)).rotate(90)])
    session.generate(planner_prompt(DEFAULT_QUERY, False), PlannerReply)
    session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert session.usage.reused >= session.seen[0].tokens - 32


def test_four_assessments_at_once_agree_with_transformers(url, services, photo, tmp_path):
    settings = load_settings().with_options(engine="server")
    model = settings.model("server.embedded").model_copy(update={"server": url})
    shared = Services(
        settings.model_copy(update={"models": {"embedded": model}}), "cpu", tools=services.tools
    )
    paths = []
    for i in range(4):
        paths.append(tmp_path / f"{i}.png")
        photo.crop((32 * i, 0, 256 + 32 * i, 224)).save(paths[-1])
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda path: assess(path, services=shared), paths))
    for row, path in zip(rows, paths, strict=True):
        alone = assess(path, services=services)
        assert row.error is None
        assert row.p_c == pytest.approx(alone.p_c, abs=BOUND)
        assert row.q == pytest.approx(alone.q, abs=1e-3)


def test_other_pixel_limits_than_the_folders_are_refused_where_the_server_does(url, photo):
    narrow = ServerClient(
        "embedded", ModelSettings(path=str(EMBEDDED), server=url, max_pixels=128 * 128), "cpu"
    )
    with pytest.raises(VLMError, match="--trust-request-mm-kwargs"):
        narrow.open([photo.crop((0, 0, 256, 256))]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    narrow.close()


def test_what_a_server_decides_itself_is_refused(url):
    with pytest.raises(VLMError, match="expected quantization: none"):
        ServerClient("embedded", ModelSettings(path=str(EMBEDDED), server=url, quantization="4bit"), "cpu")


def test_a_model_that_is_not_served_is_named(url):
    with pytest.raises(VLMError, match="it serves embedded"):
        ServerClient("embedded", ModelSettings(path=str(EMBEDDED), server=url, served_name="other"), "cpu")


def test_no_server_is_one_sentence(tmp_path):
    with pytest.raises(VLMError, match="expected a vLLM server, got none"):
        ServerClient(
            "embedded", ModelSettings(path=str(EMBEDDED), server=f"http://127.0.0.1:{free_port()}"), "cpu"
        )
