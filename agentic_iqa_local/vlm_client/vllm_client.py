"""One model folder served by vLLM in this process, for many assessments at once.

One prompt's life: the renderer makes its token ids, one place for each image; the engine's thread
hands them with the images to vLLM, steps everything that is in flight together, and gives the
result back to the session that waits for it. vLLM finds the images and the preamble in its prefix
cache, so every role continues from them. Letters are read with `logprob_token_ids`, which gives the
raw log-probabilities of exactly those ids over the full vocabulary.
"""
# pyright: reportMissingImports=false
# vllm is an extra, in an environment of its own; it is imported inside functions, so that a sentence
# can say that it is missing.

import logging
import math
import os
import queue
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine lives in this process
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; vLLM otherwise takes nearly all memory
# the tools' threads must not be tied to the same cores
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import torch
from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.devices import choose_dtype, describe_device, make_deterministic
from agentic_iqa_local.errors import first_line
from agentic_iqa_local.vlm_client import ModelLost, VLMClient, VLMError, VLMSession
from agentic_iqa_local.vlm_client.constraints import json_schema
from agentic_iqa_local.vlm_client.rendering import Rendered, Renderer

# Tokens a block of the cache: vLLM's default of 128 on a CPU would never share a short prefix
CPU_BLOCK = 32


class VllmClient(VLMClient):
    """A loaded model. Sessions may be used from many threads; what they ask is batched."""

    def __init__(self, name: str, settings: ModelSettings, device: str):
        super().__init__(name, settings, Renderer(name, settings))
        self.device = device
        try:
            import vllm
        except ImportError as error:
            expected = "backend vllm: expected the package vllm, it cannot be imported"
            advice = "install it or use the backend transformers"
            raise VLMError(f"{expected} ({first_line(error)})", advice) from error
        self.version = vllm.__version__
        self._check_settings()
        try:
            self.engine = Engine(self._engine_config(), self.device)
        except Exception as error:
            # it reads a stranger's folder, as transformers does: see `loading`
            mistake = f"vLLM {self.version} cannot load it ({first_line(error)})"
            advice = "if its memory ran out, lower left_for_tools_gib, max_in_flight or max_pixels"
            raise ModelLost(f"model folder {self.renderer.folder}: {mistake}", advice) from error
        self.dtype = str(self.engine.config.model_config.dtype).removeprefix("torch.")

    def _check_settings(self) -> None:
        """Raises VLMError for what vLLM would ignore or cannot do, rather than doing something
        else."""
        from vllm.platforms import current_platform

        if current_platform.is_cpu() == self.device.startswith("cuda"):
            mistake = f"backend vllm: this vLLM is not built for the device {self.device}"
            raise VLMError(mistake, "install the other build")
        self.require("vllm", quantization="none", device_map="none")

    def _engine_config(self):
        from vllm import EngineArgs

        settings, on_gpu = self.settings, self.device.startswith("cuda")
        if settings.exact:
            make_deterministic()
        context = self.renderer.context()
        options: dict[str, Any]
        if on_gpu:
            options = {"dtype": settings.dtype, "max_num_batched_tokens": max(context, 8192)}
            options["device_ids"] = [torch.device(self.device).index or 0]
            options["gpu_memory_utilization"] = gpu_share(self.device, settings.left_for_tools_gib)
        else:
            dtype = choose_dtype(settings.dtype, self.device)
            options = {"dtype": dtype, "max_num_batched_tokens": context}
            options |= {"enforce_eager": True, "block_size": CPU_BLOCK}
        if self.renderer.size:
            options["mm_processor_kwargs"] = {"size": self.renderer.size}
        return EngineArgs(
            model=str(self.renderer.folder),
            seed=0,
            max_model_len=context,
            max_num_seqs=1 if settings.exact else settings.max_in_flight,
            limit_mm_per_prompt={"image": 2, "video": 0},
            enable_prefix_caching=not settings.exact,
            load_format="safetensors",
            generation_config="vllm",
            structured_outputs_config={"backend": "guidance", "disable_any_whitespace": True},
            trust_remote_code=False,
            **options,
        ).create_engine_config()

    def open(self, images: Sequence[Image.Image]) -> "VllmSession":
        return VllmSession(self, images)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "engine": f"vllm {self.version}",
            "torch": str(torch.__version__),
            "dtype": self.dtype,
            "quantization": self.settings.quantization,
            "device": self.device,
            "hardware": describe_device(self.device),
        }

    def close(self) -> None:
        self.engine.close()


def gpu_share(device: str, left_gib: float) -> float:
    """vLLM's gpu_memory_utilization: the share of the card that is free now, less `left_gib` for
    the tools, which load later. Raises VLMError when nothing is left for the model."""
    free, total = torch.cuda.mem_get_info(device)
    share = (free - left_gib * 2**30) / total
    if share <= 0.05:
        mistake = f"{device}: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free"
        raise VLMError(
            mistake, f"nothing is left for the model: lower left_for_tools_gib {left_gib}"
        )
    return math.floor(share * 1000) / 1000


_RUNNING: set["Engine"] = set()


class Engine:
    """vLLM's engine on a thread of its own: requests of all sessions come in through a queue and
    are stepped together."""

    def __init__(self, config, device: str):
        from vllm.v1.engine.llm_engine import LLMEngine

        # warns of its own thread counts, once an image
        logging.getLogger("vllm.v1.worker.cpu_worker").setLevel(logging.ERROR)
        self.config, self._device = config, device
        self.llm = LLMEngine.from_vllm_config(config)
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._pending: dict[str, Future] = {}
        self._count = 0
        self._closed = False
        self._ended: VLMError = ModelLost("vLLM's engine has stopped", "load the model again")
        self._closing = threading.Lock()  # nothing is queued after the last reader has gone
        _RUNNING.add(self)
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)
        self._thread.start()
        # Python's own exit handlers run after threads were joined: a daemon inside native code
        # would then be torn down.
        close = weakref.WeakMethod(self.close)
        at_exit = threading._register_atexit  # pyright: ignore[reportAttributeAccessIssue]  # there is no public way
        at_exit(lambda: (alive := close()) and alive())

    def ask(self, prompt: dict[str, Any], params) -> Any:
        """The finished output of one request. Raises ModelLost, VLMError."""
        future = Future()
        with self._closing:
            if self._closed:
                raise self._ended
            self._requests.put((prompt, params, future))
        return future.result()

    def close(self) -> None:
        """Ends the engine's thread and frees the model and its cache; what is in flight fails."""
        with self._closing:
            self._closed = True
            self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            if self._device.startswith("cuda"):
                torch.cuda.set_device(self._device)  # a thread of its own begins on the first card
            while self._take():
                for output in self.llm.step():
                    if output.finished:
                        self._pending.pop(output.request_id).set_result(output)
        except Exception as error:
            mistake = f"vLLM's engine failed ({first_line(error)})"
            advice = "if its memory ran out, lower max_in_flight or max_pixels"
            self._ended = ModelLost(mistake, advice)
        finally:
            with self._closing:
                self._closed = True
            for future in self._pending.values():
                future.set_exception(self._ended)
            self._pending.clear()
            while not self._requests.empty():
                if (request := self._requests.get()) is not None:
                    request[2].set_exception(self._ended)
            self._free()

    def _free(self) -> None:
        """Frees model and cache. vLLM's shutdown also ends what all engines of a process share: it
        is left to the last one."""
        _RUNNING.discard(self)
        client = self.llm.engine_core
        if _RUNNING:
            client._finalizer.detach()
            client.engine_core.model_executor.shutdown()
        else:
            client.shutdown()
        del self.llm

    def _take(self) -> bool:
        """Hands all waiting requests to vLLM, waiting for one when nothing is in flight; False when
        the engine is to stop."""
        while not self._pending or not self._requests.empty():
            if (request := self._requests.get()) is None:
                return False
            prompt, params, future = request
            self._count += 1
            key = str(self._count)
            try:
                self.llm.add_request(key, prompt, params)
            except Exception as error:
                future.set_exception(VLMError(f"vLLM refused a request ({first_line(error)})"))
                continue
            self._pending[key] = future
        return True


class VllmSession(VLMSession):
    """One assessment's images. vLLM keeps the cache, shared by content among sessions."""

    client: VllmClient

    def _write(
        self, rendered: Rendered, schema: type[BaseModel], temperature: float, max_tokens: int
    ) -> str:
        # vLLM decodes template text token by token
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=self.usage.calls,
            structured_outputs=StructuredOutputsParams(json=json_schema(schema)),
        )
        output = self._ask(rendered, params)
        self.usage.decoded += len(output.outputs[0].token_ids)
        return output.outputs[0].text

    def _logprobs(self, rendered: Rendered, tokens: list[int]) -> Mapping[int, float]:
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=1, temperature=0, logprob_token_ids=tokens, detokenize=False
        )
        given = self._ask(rendered, params).outputs[0].logprobs[0]
        return {token: given[token].logprob for token in tokens if token in given}

    def _ask(self, rendered: Rendered, params) -> Any:
        """Runs one request and counts its prompt. Raises VLMError when vLLM saw other tokens than
        the processor makes."""
        whole = rendered.prompt_with(self._expand(rendered)) + rendered.answer_ids
        prompt = {
            "prompt_token_ids": rendered.prompt_ids + rendered.answer_ids,
            "multi_modal_data": {"image": self.images},
        }
        output = self.client.engine.ask(prompt, params)
        if output.prompt_token_ids != whole:
            expected = f"expected vLLM to see the {len(whole)} tokens that the processor makes"
            advice = "serve this model with transformers"
            raise VLMError(f"{self.client.name}: {expected}, it saw others", advice)
        self._count(whole, output.num_cached_tokens or 0)
        return output
