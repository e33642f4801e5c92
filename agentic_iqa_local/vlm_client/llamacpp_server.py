"""llama.cpp's server in a process of this program, on the loopback with a key of its own."""

import importlib.metadata
import importlib.util
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.vlm_client import ModelLost, VLMError
from agentic_iqa_local.vlm_client.model_folder import GgufFiles
from agentic_iqa_local.vlm_client.rendering import Renderer

PACKAGE = "xllamacpp"
PROGRAM = Path(__file__).with_name("llamacpp_process.py")
CPU_SLOTS = 2  # sessions whose cache is kept on a CPU, where several at once gain no time
EVERY_LAYER = 999
PATIENCE = 10.0  # seconds in which an idle server may end
# A line of its log: time, E for an error, where it happened, and what it says
ERROR_LINE = re.compile(r"^[\d.]+ E (?:\S+\s+)?\S+: (?:error: )?(.+)$", re.MULTILINE)


class LocalServer:
    """A server of one model's files. It is started at once and again by `start`."""

    def __init__(self, files: GgufFiles, renderer: Renderer, settings: ModelSettings, device: str):
        if importlib.util.find_spec(PACKAGE) is None:
            expected = f"backend llamacpp: expected the package {PACKAGE}, it is not installed"
            raise VLMError(expected, f"pip install {PACKAGE}, or use the backend transformers")
        self.version = f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"
        self.files, self.key = files, secrets.token_urlsafe()
        most = settings.max_in_flight if device.startswith("cuda") else CPU_SLOTS
        self.slots = 1 if settings.exact else min(settings.max_in_flight, most)
        self.parameters = self._parameters(renderer, settings, device)
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - the server's
        self.start()

    def _parameters(
        self, renderer: Renderer, settings: ModelSettings, device: str
    ) -> dict[str, Any]:
        on_gpu, slots = device.startswith("cuda"), self.slots
        area, limits = renderer.limits.factor**2, renderer.limits
        threads = torch.get_num_threads()
        parameters: dict[str, Any] = {
            "model.path": str(self.files.text),
            "mmproj.path": str(self.files.vision),
            "hostnames": ["127.0.0.1"],
            "port": 0,  # any that is free
            "api_keys": [self.key],
            "ui": False,
            "use_jinja": False,  # the file's own chat template is not run
            "n_ctx": renderer.context() * slots,
            "n_parallel": slots,
            "fit_params": False,
            "cache_ram_mib": 0,  # of caches of earlier pictures beside those of the slots
            "image_min_tokens": max(1, limits.min_pixels // area),
            "image_max_tokens": max(1, (limits.max_pixels or 0) // area),
            "n_gpu_layers": EVERY_LAYER if on_gpu else 0,
            "mmproj_use_gpu": on_gpu,
            "cpuparams.n_threads": threads,
            "cpuparams_batch.n_threads": threads,
            "verbosity": 1,  # errors alone
        }
        if on_gpu:
            parameters["main_gpu"] = torch.device(device).index or 0
        if settings.exact or not on_gpu:
            # on a CPU it sums in half precision what it finds in the cache (.005 nats)
            parameters["flash_attn_type"] = "LLAMA_FLASH_ATTN_TYPE_DISABLED"
        if settings.exact:
            whole = "GGML_TYPE_F32"
            parameters |= {"cache_type_k": whole, "cache_type_v": whole}
        return parameters

    def start(self) -> None:
        """Starts the process and waits until it has loaded the model. Raises ModelLost with what
        llama.cpp says."""
        self.end()
        self._log.seek(0)
        self._log.truncate()
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert process.stdin
        assert process.stdout
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(self.parameters) + "\n")
            process.stdin.flush()
        self.url = process.stdout.readline().strip()
        if self.url:
            return
        self.end()
        mistake = f"{self.version} cannot load {self.files.text.name} and {self.files.vision.name}"
        folder = self.files.text.parent
        got = f"{mistake} ({self.last_words()})"
        raise ModelLost(f"model folder {folder}: {got}", "make or fetch it again")

    def last_words(self) -> str:
        """What llama.cpp said of its first error, or last of all."""
        self._log.seek(0)
        log = self._log.read()
        said = ERROR_LINE.findall(log) or log.strip().splitlines()[-1:]
        words = said[0] if said else "it ended without a word"
        return words.replace(f"{self.files.text.parent}/", "")[:300]

    def end(self) -> None:
        """Ends the process; nothing is left of it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin
        assert process.stdout
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
