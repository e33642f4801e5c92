"""A real vLLM server of the embedded model on this machine's loopback, and the client that talks to it."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import EMBEDDED
from families import SCORING, apart
from PIL import ImageOps

from agentic_iqa_local.config import ModelSettings, load_settings
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, planner_prompt
from agentic_iqa_local.nodes.replies import PlannerReply, summary_reply
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.vlm_client.server_client import ServerClient

PLAN = planner_prompt(DEFAULT_QUERY, False)
BOUND = 1e-4


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
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
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 400
    try:
        while True:
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                opener.open(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(1)  # between two looks; the test goes on when the server is there
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def connect(url, **options) -> ServerClient:
    return ServerClient("embedded", ModelSettings(path=str(EMBEDDED), server=url, **options), "cpu")


@pytest.fixture(scope="module")
def served(url):
    client = connect(url)
    yield client
    client.close()


@pytest.mark.parametrize("count", [1, 2], ids=["no-reference", "full-reference"])
def test_letters_and_answers_equal_those_of_transformers(served, client, photo, count):
    images = [photo.crop((0, 0, 256, 224)), photo.crop((128, 64, 384, 288))][:count]
    ours, theirs = (c.open(images).read_letters(SCORING, ANSWER_PREFIX, LETTERS) for c in (served, client))
    assert ours.token_ids == theirs.token_ids
    assert apart(ours, theirs) < BOUND
    many = served.read_many([images] * 2, SCORING, ANSWER_PREFIX, LETTERS)
    assert max(apart(read, theirs) for read in many.reads) < BOUND
    for prompt, schema, begun in ((PLAN, PlannerReply, ""), (SCORING, summary_reply(LETTERS), ANSWER_PREFIX + "B")):
        texts = [c.open(images).generate(prompt, schema, answer_prefix=begun) for c in (served, client)]
        assert texts[0] == texts[1]


def test_roles_continue_from_the_servers_cache(served, photo):
    session = served.open([ImageOps.invert(photo.crop((32, 32, 288, 288)))])  # no other test reads it
    session.generate(PLAN, PlannerReply)
    session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
    assert session.usage.reused >= session.seen[0].tokens - 32


def test_assessments_at_once_agree_with_transformers(url, services, photo, tmp_path):
    settings = load_settings().with_options(engine="server")
    model = settings.model("server.embedded").model_copy(update={"server": url})
    settings = settings.model_copy(update={"models": {"embedded": model}})
    shared = Services(settings, "cpu", tools=services.tools)
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for i, path in enumerate(paths):
        photo.crop((32 * i, 0, 256 + 32 * i, 224)).save(path)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda path: assess(path, services=shared), paths))
    for row, path in zip(rows, paths, strict=True):
        alone = assess(path, services=services)
        assert row.error is None
        assert row.p_c == pytest.approx(alone.p_c, abs=BOUND)
        assert row.q == pytest.approx(alone.q, abs=1e-3)


def test_other_pixel_limits_than_the_folders_are_refused_where_the_server_does(url, photo):
    session = connect(url, max_pixels=128 * 128).open([photo.crop((0, 0, 256, 256))])
    with pytest.raises(VLMError, match="--trust-request-mm-kwargs"):
        session.read_letters(SCORING, ANSWER_PREFIX, LETTERS)
