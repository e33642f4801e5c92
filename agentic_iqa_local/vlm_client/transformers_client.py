"""One model folder served by transformers: any that AutoProcessor and AutoModelForImageTextToText load from
safetensors.

One prompt's life: `_render` makes chat text and token ids; `_advance` finds how much of them the cache
already holds, drops the rest of the cache and runs only the new tokens; `read_letters` stops there and looks
at the logits, `generate` goes on token by token under a grammar. The cache holds exactly one sequence, the
last one: images and preamble are at its front, so every role and retry continues from them, and a reasoning
continues from the letter read before it.
"""

import functools
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import llguidance.hf
import llguidance.numpy
import numpy as np
import torch
import transformers
from PIL import Image
from pydantic import BaseModel
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig, DynamicCache

from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.devices import choose_dtype, describe_device, make_deterministic
from agentic_iqa_local.nodes.prompts import Prompt
from agentic_iqa_local.vlm_client import (
    LetterRead,
    ManyReads,
    SeenImage,
    TokenUsage,
    VLMError,
    transformers_batch,
)
from agentic_iqa_local.vlm_client.constraints import json_schema
from agentic_iqa_local.vlm_client.letters import read_letters
from agentic_iqa_local.vlm_client.rendering import Expanded, Renderer, loading
from agentic_iqa_local.vlm_client.transformers_batch import engine_errors
from agentic_iqa_local.vlm_client.weight_files import Weights

logger = logging.getLogger(__name__)

PACKED = 16  # quantised: at most so many parameters in one number of a weight file, of 2 bits in an int32


def _mend(model: transformers.PreTrainedModel) -> None:
    """SmolVLM puts a picture's tokens where its parent class, Idefics3, does. transformers 5.20.1 and 5.20.2
    do it in runs of `patch_size` tokens and fail where a picture's tokens make no whole number of runs:
    SmolVLM2-2.2B has 81 tokens a tile and patches of 14."""
    inner: Any = getattr(model, "model", None)
    if model.config.model_type == "smolvlm" and hasattr(inner, "inputs_merger"):
        inner.inputs_merger = functools.partial(transformers.Idefics3Model.inputs_merger, inner)


def _quantization(kind: str, dtype: torch.dtype) -> BitsAndBytesConfig | None:
    # The letters come from lm_head and quality from the vision tower: both stay in full precision.
    kept = ["model.visual", "model.vision_tower", "model.vision_model", "lm_head"]
    if kind == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=kept)
    if kind == "4bit":
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
            llm_int8_skip_modules=kept,
        )
    return None


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers would draw one on stderr while it loads, also for callers whose stderr is theirs."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


class TransformersClient:
    """A loaded model, its processor and its grammar tokenizer."""

    reads_logits = reads_words = True

    def __init__(self, name: str, settings: ModelSettings, device: str):
        self.renderer = Renderer(name, settings)
        self.name, self.settings = name, settings
        self.limits, self.notice, self.trust = self.renderer.limits, self.renderer.notice, self.renderer.trust
        self.processor, self.tokenizer = self.renderer.processor, self.renderer.tokenizer
        if settings.exact:
            make_deterministic()
        folder = self.renderer.folder
        self.dtype = getattr(torch, choose_dtype(settings.dtype, device, self.renderer.holds_in_bfloat16))
        options: dict[str, Any] = {
            "dtype": self.dtype,
            "local_files_only": True,
            "trust_remote_code": False,
            "use_safetensors": True,
        }
        if settings.attention != "auto":
            options["attn_implementation"] = settings.attention
        if quantization := _quantization(settings.quantization, self.dtype):
            options |= {"quantization_config": quantization, "device_map": {"": device}}
        elif settings.device_map == "auto":
            options["device_map"] = "auto"
        with loading(folder), _no_progress_bar():
            if weights := self.renderer.weights:
                self._check_size(weights)
            self.model, loaded = AutoModelForImageTextToText.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]  # with output_loading_info it is a pair
                folder, output_loading_info=True, **options
            )  # nosec B615 # a local folder
            self.model.eval()
            _mend(self.model)
            if "device_map" not in options:
                self.model.to(device)
        if absent := sorted({*loaded["missing_keys"], *(str(key) for key in loaded["mismatched_keys"])}):
            raise VLMError(
                f"model folder {folder}: expected every weight of the model, {len(absent)} are missing or of"
                f" another shape ({absent[0]}, ...)",
                "copy the folder again",
            )
        self.device = self.model.device
        # Qwen's models keep positions of the image that ran last: one pass at a time
        self.lock = threading.Lock()
        vocabulary = self.model.get_output_embeddings().weight.shape[0]
        self.grammar_tokenizer = llguidance.hf.from_tokenizer(self.tokenizer, n_vocab=vocabulary)
        self.vocabulary = vocabulary
        eos = self.model.generation_config.eos_token_id
        self.stop_ids = {*(eos if isinstance(eos, list) else [eos]), self.tokenizer.eos_token_id}

    def _check_size(self, weights: Weights) -> None:
        """Raises VLMError for a model of more parameters than the weight files hold: transformers would make
        up the rest, in memory, before it says what is missing. The model is built without memory, to be
        counted."""
        with torch.device("meta"):
            described = AutoModelForImageTextToText.from_config(
                self.renderer.config, trust_remote_code=False
            ).num_parameters()
        held = weights.numbers * (PACKED if hasattr(self.renderer.config, "quantization_config") else 1)
        if described > held * 1.25:  # a head that the embedding's weights serve as may be counted twice
            raise VLMError(
                f"model folder {self.renderer.folder}: expected config.json to describe its weights of {held}"
                f" numbers, got a model of {described}",
                "copy the folder again from its maker",
            )

    def open(self, images: Sequence[Image.Image]) -> "TransformersSession":
        """A session on [test image] or [reference, test image]; nothing is computed yet."""
        return TransformersSession(self, list(images))

    def read_many(
        self,
        pictures: Sequence[Sequence[Image.Image]],
        prompt: Prompt,
        answer_prefix: str,
        letters: Sequence[str],
    ) -> ManyReads:
        return transformers_batch.read_many(self, pictures, prompt, answer_prefix, letters)

    def close(self) -> None:
        """Lets the model go; the client cannot be used any more."""
        del self.model

    @functools.lru_cache(maxsize=1)  # noqa: B019 - counting parameters once a client, not once a row
    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.model.config.model_type,
            "parameters": self.model.num_parameters(),
            "engine": f"transformers {transformers.__version__}",
            "torch": torch.__version__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "quantization": self.settings.quantization,
            "attention": self.model.config._attn_implementation,
            "device": str(self.device),
            "hardware": describe_device(str(self.device)),
            "prompt_layout": self.settings.prompt_layout,
            "notice": self.notice,
        }

    @functools.lru_cache(maxsize=256)  # noqa: B019 - clients live as long as the process
    def grammar(self, schema: str) -> str:
        """A JSON schema (as JSON text) compiled for llguidance. Raises VLMError when it cannot be."""
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
            grammar, self.grammar_tokenizer
        )
        if failed:
            raise VLMError(f"schema cannot constrain generation: {messages[0]}")
        return grammar


class TransformersSession:
    """One assessment's images on one model, with the KV cache of the last sequence."""

    constrained = True

    def __init__(self, client: TransformersClient, images: list[Image.Image]):
        self.client, self.images = client, images
        self.usage = TokenUsage()
        self.seen: list[SeenImage] = []
        # each assessment draws the same way, whatever ran before
        self._generator = torch.Generator().manual_seed(0)
        self._cache: DynamicCache | None = None
        self._cached: list[int] = []  # the ids whose keys and values the cache holds
        # Qwen: how far text positions lag behind token counts after the images
        self._delta: torch.Tensor | None = None
        self._expanded: Expanded | None = None
        self._types: list[int] | None = None  # of the images' tokens, for models that are told
        self._inputs: dict[str, torch.Tensor] = {}  # pixel values and grids on the model's device
        self._image_end = 0

    def close(self) -> None:
        self._drop_cache()
        self._expanded, self._inputs = None, {}

    def generate(
        self,
        prompt: Prompt,
        schema: type[BaseModel],
        *,
        answer_prefix: str = "",
        temperature: float = 0.0,
        max_tokens: int = 512,
    ) -> str:
        """The answer's JSON text, by default greedy. Template text that the schema leaves no choice about is
        not decoded token by token but run through in one piece."""
        client = self.client
        grammar = client.grammar(json.dumps(json_schema(schema)))
        matcher = llguidance.LLMatcher(client.grammar_tokenizer, grammar)
        ids, answer, _ = self._render(prompt, answer_prefix)
        if not matcher.consume_tokens(answer):
            raise VLMError(
                f"schema {schema.__name__} does not allow an answer that begins with {answer_prefix!r}"
            )
        mask = llguidance.numpy.allocate_token_bitmask(1, client.vocabulary)
        new_call = True
        while not matcher.is_stopped() and len(answer) < max_tokens:
            if client.settings.skip_template and (forced := matcher.compute_ff_tokens()):
                matcher.consume_tokens(forced)
                answer += forced
                self.usage.forced += len(forced)
                continue
            logits = self._advance(ids + answer, new_call=new_call)
            new_call = False
            llguidance.numpy.fill_next_token_bitmask(matcher, mask)
            allowed = np.unpackbits(mask[0].view(np.uint8), bitorder="little")[: client.vocabulary].astype(
                bool
            )
            token = _choose(
                logits.masked_fill(~torch.from_numpy(allowed), float("-inf")), temperature, self._generator
            )
            self.usage.decoded += 1
            matcher.consume_token(token)
            if token in client.stop_ids:
                break
            answer.append(token)
        if error := matcher.get_error():
            raise VLMError(f"constrained generation failed: {error}")
        return client.tokenizer.decode(answer, skip_special_tokens=True)

    def read_letters(self, prompt: Prompt, answer_prefix: str, letters: Sequence[str]) -> LetterRead:
        """Raw log-probabilities over the full vocabulary at the position after `answer_prefix`, in
        float64."""
        prompt, words = self.client.renderer.asked(prompt)
        ids, answer, text = self._render(prompt, answer_prefix)

        def logprobs_of(tokens: list[int]) -> Mapping[int, float]:
            logprobs = self._advance(ids + answer, new_call=True).double().log_softmax(-1)
            return {token: logprobs[token].item() for token in tokens}

        return read_letters(self.client.name, self.client.renderer.encode, text, letters, logprobs_of, words)

    def _render(self, prompt: Prompt, answer_prefix: str = "") -> tuple[list[int], list[int], str]:
        """(token ids of the prompt with the images expanded, ids of the answer so far, the text of both)."""
        client = self.client
        if not client.settings.share_prefix:
            self._drop_cache()
        rendered = client.renderer.render(prompt, len(self.images), answer_prefix)
        if self._expanded is None:
            expanded = client.renderer.expand(rendered, self.images)
            with self._engine_errors("the images"):
                self._inputs = {
                    name: value.to(client.device, client.dtype if value.is_floating_point() else None)
                    for name, value in expanded.inputs.items()
                }
            self._expanded, self._types, self.seen = expanded, expanded.types, expanded.seen
        self._image_end = rendered.first_image + len(self._expanded.ids)
        return rendered.prompt_with(self._expanded), rendered.answer_ids, rendered.text

    def _drop_cache(self) -> None:
        self._cache, self._cached, self._delta = None, [], None

    @torch.inference_mode()
    def _advance(self, ids: list[int], *, new_call: bool) -> torch.Tensor:
        """Logits (float32, V) after `ids`; only what the cache does not hold already goes through the
        model."""
        kept = self._common(ids)
        if self._cache is not None and kept < len(self._cached):
            kept = kept if kept >= self._image_end and self._crop(self._cache, kept) else 0
            if kept == 0:
                self._drop_cache()
        new = ids[kept:]
        if new_call:
            self.usage.calls += 1
            self.usage.reused += kept
            self.usage.prefilled += len(new)
        else:  # the last decoded token comes back as input: it was counted when it was chosen
            self.usage.prefilled += len(new) - 1
        self.usage.forward_passes += 1
        with self._engine_errors(f"{len(ids)} tokens"), self.client.lock:
            began = time.perf_counter()
            output = self.client.model(**self._model_inputs(new, kept), use_cache=True, logits_to_keep=1)
            if kept == 0:
                delta = getattr(self.client.model.model, "rope_deltas", None)
                self._delta = None if delta is None else delta.clone()
            logits = output.logits[0, -1].float().cpu()
            seconds = time.perf_counter() - began
        self._cache, self._cached = output.past_key_values, ids
        if new_call or len(new) > 1:
            self.usage.prefill_seconds += seconds
        else:
            self.usage.decode_seconds += seconds
        if not torch.isfinite(logits).all():
            self._drop_cache()
            raise VLMError(
                f"{self.client.name} gave logits that are not finite in {self.client.dtype}",
                "set dtype: float32",
            )
        return logits

    @contextmanager
    def _engine_errors(self, on: str) -> Iterator[None]:
        """As `engine_errors`, and drops the cache."""
        try:
            with engine_errors(self.client.name, on):
                yield
        except VLMError:
            self._drop_cache()
            raise

    def _crop(self, cache: DynamicCache, kept: int) -> bool:
        """Cuts the cache to its first `kept` tokens; False where it cannot be cut (sliding windows, linear
        attention)."""
        try:
            cache.crop(kept - len(self._cached))
        except (RuntimeError, NotImplementedError, ValueError, AttributeError):
            return False
        return cache.get_seq_length() == kept

    def _common(self, ids: list[int]) -> int:
        """How many leading ids the cache holds; at least the last one is always computed, for its logits."""
        limit = min(len(self._cached), len(ids) - 1)
        if ids[:limit] == self._cached[:limit]:
            return limit
        return next(i for i in range(limit) if ids[i] != self._cached[i])

    def _model_inputs(self, new: list[int], kept: int) -> dict[str, Any]:
        """Inputs for `new` tokens after `kept` cached ones.

        Positions are always given after the images: Qwen's models otherwise take them from the image that ran
        last in the process, and the logits are silently wrong.
        """
        client = self.client
        inputs: dict[str, Any] = {"input_ids": torch.tensor([new], device=client.device)}
        if kept == 0:
            if hasattr(client.model.model, "rope_deltas"):
                client.model.model.rope_deltas = None
            if self._types is not None:
                before = self._image_end - len(self._types)
                types = [0] * before + self._types + [0] * (len(new) - self._image_end)
                inputs["mm_token_type_ids"] = torch.tensor([types], device=client.device)
            return inputs | self._inputs
        positions = torch.arange(kept, kept + len(new), device=client.device)[None]
        if self._delta is not None:
            positions = (positions + self._delta)[None].expand(3, -1, -1)
        return inputs | {"position_ids": positions, "past_key_values": self._cache}


def _choose(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    """The most probable token, or a draw at `temperature`."""
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))
