"""A vLLM server of the set-up's model on this machine's loopback, for as long as it is compared."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx

from agentic_iqa_local.config_sections import PlacedModel
from agentic_iqa_local.offline.certify.apart import ApartError
from agentic_iqa_local.text import one_line

CONTEXT = 8192  # tokens: two small pictures and a long prompt


@contextmanager
def served(options: PlacedModel, dtype: str, device: str, timeout: float) -> Iterator[str]:
    """The address of a server of the model's folder in `dtype`. Raises ApartError where it does not start in
    time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile(prefix="certify-server-") as log:
        server = subprocess.Popen(
            _command(options, dtype, device, port),
            env=os.environ | _environment(device),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(server, address, timeout, log)
            yield address
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(30)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _command(options: PlacedModel, dtype: str, device: str, port: int) -> list[str]:
    """As docs/engines.md has it."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", options.path]
    command += [
        "--served-model-name",
        "certified",
        "--dtype",
        dtype,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--limit-mm-per-prompt", '{"image": 2, "video": 0}', "--generation-config", "vllm"]
    command += ["--enable-prompt-tokens-details", "--max-num-seqs", str(options.max_in_flight)]
    command += ["--load-format", "safetensors", "--trust-request-mm-kwargs"]
    if device == "cpu":
        command += ["--enforce-eager", "--block-size", "32", "--max-model-len", "4096"]
    else:
        command += ["--max-model-len", str(CONTEXT)]
    return command


def _environment(device: str) -> dict[str, str]:
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    quiet |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    if device == "cpu":
        return quiet | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    index = int(device.partition(":")[2] or 0)
    chosen = visible.split(",")[index] if visible else str(index)
    return quiet | {"CUDA_VISIBLE_DEVICES": chosen}


def _wait(server: subprocess.Popen, address: str, timeout: float, log) -> None:
    deadline = time.monotonic() + timeout
    while True:
        if server.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            lines = [
                line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()
            ]
            said = one_line(lines[-1][:200]) if lines else "nothing"
            why = "it ended" if server.poll() is not None else f"it did not answer within {timeout:g} s"
            raise ApartError(f"vLLM's server did not start: {why}; the last it said: {said}")
        with suppress(httpx.HTTPError):
            if httpx.get(f"{address}/health", trust_env=False, timeout=5).is_success:
                return
        time.sleep(1)
