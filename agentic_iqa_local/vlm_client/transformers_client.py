"""One model folder served by transformers: any that AutoProcessor and AutoModelForImageTextToText
load from safetensors.

One prompt's life: `_render` makes its token ids; `_advance` finds how much of them the cache
already holds, drops the rest of the cache and runs only the new tokens; `read_letters` stops there
and looks at the logits, `generate` goes on token by token under a grammar. The cache holds exactly
one sequence, the last one: images and preamble are at its front, so every role and retry continues
from them, and a reasoning continues from the letter read before it. `read_many` reads the letters
of many pictures side by side, without a cache.
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import llguidance.hf
import llguidance.numpy
import torch
import transformers
from PIL import Image
from pydantic import BaseModel
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig, DynamicCache

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.devices import (
    card_is_lost,
    choose_dtype,
    describe_device,
    make_deterministic,
    memory_ran_out,
)
from agentic_iqa_local.errors import first_line
from agentic_iqa_local.vlm_client import (
    ONE_PASS,
    OVERFLOW,
    LetterRead,
    ManyReads,
    ModelLost,
    OutOfMemory,
    TokenUsage,
    VLMClient,
    VLMError,
    VLMSession,
)
from agentic_iqa_local.vlm_client.chat import ChatPrompt
from agentic_iqa_local.vlm_client.constraints import json_schema
from agentic_iqa_local.vlm_client.rendering import (
    LOCAL,
    Expanded,
    Rendered,
    Renderer,
    loading,
)

MOST_TOKENS = 4096  # of one pass over many pictures: about what a long assessment has in its cache
MOST_PIXELS = 2**20  # of such a pass, where the model sets no limit
ROOM = "end what takes the rest, set quantization: 4bit, or take a smaller model or another GPU"
# The letters come from lm_head and quality from the vision tower: both stay in full precision.
FULL_PRECISION = ["model.visual", "model.vision_tower", "model.vision_model", "lm_head"]


class Pass(NamedTuple):
    """One forward pass: N×V logits (float32, on the CPU) of the last tokens, the cache, and how far
    Qwen's text positions lag behind token counts after the images."""

    logits: torch.Tensor
    cache: Any
    delta: torch.Tensor | None


class TransformersClient(VLMClient):
    """A loaded model, its processor and its grammar tokenizer."""

    def __init__(self, name: str, settings: ModelSettings, device: str):
        super().__init__(name, settings, Renderer(name, settings))
        self.tokenizer = self.renderer.tokenizer
        if settings.exact:
            make_deterministic()
        dtype = choose_dtype(settings.dtype, device)
        self.dtype = getattr(torch, dtype)
        self.model = self._load(device)
        self.device = self.model.device
        self.at_once = 1
        self.vocabulary = self.model.get_output_embeddings().weight.shape[0]
        self.grammar_tokenizer = llguidance.hf.from_tokenizer(
            self.tokenizer, n_vocab=self.vocabulary
        )
        eos = self.model.generation_config.eos_token_id
        self.stop_ids = {*(eos if isinstance(eos, list) else [eos]), self.tokenizer.eos_token_id}

    def _load(self, device: str) -> Any:
        """The model on `device`. Raises VLMError for a folder that lacks weights of the model, and
        for a device that has no room or cannot be used."""
        settings, folder = self.settings, self.renderer.folder
        options: dict[str, Any] = {"dtype": self.dtype, "use_safetensors": True, **LOCAL}
        if settings.device_map == "auto":
            options["device_map"] = "auto"
        if settings.quantization != "none":
            options["quantization_config"] = self._quantization()
            options["device_map"] = {"": device}
        transformers.utils.logging.disable_progress_bar()  # stderr may be a caller's own
        with loading(folder), self._filling(device):
            loaded: Any = AutoModelForImageTextToText.from_pretrained(
                folder, output_loading_info=True, **options
            )  # nosec B615 # a local folder
            model, info = loaded
            model.eval()
            if "device_map" not in options:
                model.to(device)
        absent = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
        if absent:
            lacks = f"{len(absent)} weights are missing or of another shape ({absent[0]}, ...)"
            raise VLMError(f"model folder {folder}: {lacks}", "copy the folder again")
        if model.config.model_type == "smolvlm" and hasattr(model.model, "inputs_merger"):
            # transformers 5.20 fails if a picture's tokens are no multiple of the patch size
            # (SmolVLM2-2.2B); Idefics3, its parent class, puts them in the same places.
            merge = transformers.Idefics3Model.inputs_merger
            model.model.inputs_merger = functools.partial(merge, model.model)
        return model

    @contextmanager
    def _filling(self, device: str) -> Iterator[None]:
        """Turns what torch raises while weights go to `device` into VLMError."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            why = first_line(error)
            if memory_ran_out(error):
                mistake = f"{self.name} does not fit into the free memory of {device} ({why})"
                raise VLMError(mistake, f"{ROOM}; the command doctor says what it needs") from error
            if isinstance(error, torch.AcceleratorError):
                advice = "see nvidia-smi, use another GPU, or pass --cpu"
                raise VLMError(f"{device} cannot be used ({why})", advice) from error
            raise

    def _quantization(self) -> BitsAndBytesConfig:
        in_4bit = self.settings.quantization == "4bit"
        return BitsAndBytesConfig(
            load_in_8bit=not in_4bit,
            load_in_4bit=in_4bit,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=self.dtype,
            llm_int8_skip_modules=FULL_PRECISION,
        )

    def open(self, images: Sequence[Image.Image]) -> "TransformersSession":
        return TransformersSession(self, images)

    def close(self) -> None:
        del self.model

    @functools.lru_cache(maxsize=1)  # noqa: B019 - counting parameters once a client, not once a row
    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "parameters": self.model.num_parameters(),
            "engine": f"transformers {transformers.__version__}",
            "torch": str(torch.__version__),
            "dtype": str(self.dtype).removeprefix("torch."),
            "quantization": self.settings.quantization,
            "attention": self.model.config._attn_implementation,
            "device": str(self.device),
            "hardware": describe_device(str(self.device)),
        }

    def read_many(
        self,
        pictures: Sequence[Sequence[Image.Image]],
        prompt: ChatPrompt,
        answer_prefix: str,
        letters: Sequence[str],
    ) -> ManyReads:
        """`VLMClient.read_many`. Pictures that become equally many tokens go through the model side
        by side, as many as MOST_TOKENS and the model's range of pixels allow; others one by one."""
        first = pictures[0]
        rendered, token_ids = self.renderer.letters(prompt, len(first), answer_prefix, letters)
        expanded = [self.renderer.expand(rendered, images) for images in pictures]
        if any(one.form != expanded[0].form for one in expanded):
            return super().read_many(pictures, prompt, answer_prefix, letters)
        length = len(rendered.prompt_with(expanded[0])) + len(rendered.answer_ids)
        pixels = sum(image.width * image.height for image in first)
        most_pixels = self.limits.max_pixels or MOST_PIXELS
        at_once = max(1, min(MOST_TOKENS // length, most_pixels // pixels))
        reads, usage = [], TokenUsage(calls=len(pictures), prefilled=length * len(pictures))
        for start in range(0, len(expanded), at_once):
            batch = self.prompt_inputs(rendered, expanded[start : start + at_once])
            for row in self.run(batch).logits.double().log_softmax(-1):
                logprobs = {token: row[token].item() for token in token_ids.values()}
                reads.append(LetterRead.of(self.label, logprobs, token_ids))
        return ManyReads(reads, usage)

    def prompt_inputs(
        self, rendered: Rendered, pictures: Sequence[Expanded]
    ) -> dict[str, torch.Tensor]:
        """The model's inputs for one prompt with its answer so far about each of `pictures`, which
        became equally many tokens: nothing is padded, so that each row is what it would be
        alone."""
        first, rows = pictures[0], len(pictures)
        ids = rendered.prompt_with(first) + rendered.answer_ids
        inputs = {"input_ids": torch.tensor([ids] * rows)}
        if first.types is not None:
            types = [0] * len(rendered.head) + first.types
            types += [0] * (len(ids) - len(types))
            inputs["mm_token_type_ids"] = torch.tensor([types] * rows)
        for name in first.inputs:
            inputs[name] = torch.cat([one.inputs[name] for one in pictures])
        return inputs

    @torch.inference_mode()
    def run(
        self, inputs: dict[str, Any], cache: DynamicCache | None = None, keep: bool = False
    ) -> Pass:
        """One forward pass after `cache`; with `keep` the pass has its own. Raises VLMError,
        OutOfMemory or ModelLost."""
        with self._errors(f"{inputs['input_ids'].numel()} tokens"), ONE_PASS:
            for name, value in inputs.items():
                dtype = self.dtype if value.is_floating_point() else None
                inputs[name] = value.to(self.device, dtype)
            inner = self.model.model
            if cache is None and hasattr(inner, "rope_deltas"):
                inner.rope_deltas = None
            inputs |= {"past_key_values": cache, "use_cache": keep, "logits_to_keep": 1}
            output = self.model(**inputs)
            delta = getattr(inner, "rope_deltas", None)
            delta = None if delta is None else delta.clone()
            logits = output.logits[:, -1].float().cpu()
        if not torch.isfinite(logits).all():
            mistake = f"{self.name} gave logits that are not finite in {self.dtype}"
            raise VLMError(mistake, OVERFLOW)
        return Pass(logits, output.past_key_values if keep else None, delta)

    @contextmanager
    def _errors(self, on: str) -> Iterator[None]:
        """Turns what torch raises into VLMError, OutOfMemory or ModelLost."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            why = f"on {on} ({first_line(error)})"
            if memory_ran_out(error):
                advice = (
                    "lower max_pixels, quantise, assess fewer images at once, or use another device"
                )
                raise OutOfMemory(f"{self.name}: memory ran out {why}", advice) from error
            failed = f"{self.name} failed {why}"
            if card_is_lost(error, str(self.device)):
                raise ModelLost(failed, "the card has to be opened anew") from error
            raise VLMError(failed) from error


class TransformersSession(VLMSession):
    """One assessment's images on one model, with the KV cache of the last sequence."""

    client: TransformersClient

    def __init__(self, client: TransformersClient, images: Sequence[Image.Image]):
        super().__init__(client, images)
        # each assessment draws the same way, whatever ran before
        self._generator = torch.Generator().manual_seed(0)
        self._cache: DynamicCache | None = None
        self._cached: list[int] = []  # the ids whose keys and values the cache holds
        self._delta: torch.Tensor | None = None  # see Pass

    def close(self) -> None:
        super().close()
        self._drop_cache()

    def _write(
        self, rendered: Rendered, schema: type[BaseModel], temperature: float, max_tokens: int
    ) -> str:
        """Template text that the schema leaves no choice about is not decoded token by token but
        run through in one piece."""
        client = self.client
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(json_schema(schema)))
        matcher = llguidance.LLMatcher(client.grammar_tokenizer, grammar)
        answer: list[int] = []
        new_call = True
        while not matcher.is_stopped() and len(answer) < max_tokens:
            if forced := matcher.compute_ff_tokens():
                matcher.consume_tokens(forced)
                answer += forced
                continue
            logits = self._advance(rendered, answer, new_call=new_call)
            new_call = False
            token = self._choose(logits, matcher, temperature)
            self.usage.decoded += 1
            matcher.consume_token(token)
            if token in client.stop_ids:
                break
            answer.append(token)
        if error := matcher.get_error():
            raise VLMError(f"constrained generation failed: {error}")
        return client.tokenizer.decode(answer, skip_special_tokens=True)

    def _choose(
        self, logits: torch.Tensor, matcher: llguidance.LLMatcher, temperature: float
    ) -> int:
        """The likeliest token that the grammar allows next, or one drawn at a `temperature` above
        0."""
        mask = llguidance.numpy.allocate_token_bitmask(1, self.client.vocabulary)
        llguidance.numpy.fill_next_token_bitmask(matcher, mask)
        llguidance.numpy.apply_token_bitmask_inplace(logits.numpy(), mask)
        if not temperature:
            return int(logits.argmax())
        probabilities = (logits / temperature).softmax(-1)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))

    def _logprobs(self, rendered: Rendered, tokens: list[int]) -> Mapping[int, float]:
        logits = self._advance(rendered, rendered.answer_ids, new_call=True)
        logprobs = logits.double().log_softmax(-1)
        return {token: logprobs[token].item() for token in tokens}

    def _drop_cache(self) -> None:
        self._cache, self._cached, self._delta = None, [], None

    def _advance(self, rendered: Rendered, answer: list[int], *, new_call: bool) -> torch.Tensor:
        """Logits (float32, V) after the prompt and `answer`; only what the cache does not hold
        already goes through the model."""
        expanded = self._expand(rendered)
        ids = rendered.prompt_with(expanded) + answer
        kept = self._cut_cache(ids, len(rendered.head) + len(expanded.ids))
        new = ids[kept:]
        if kept:
            inputs = self._model_inputs(new, kept)
        else:
            inputs = self.client.prompt_inputs(replace(rendered, answer_ids=answer), [expanded])
        try:
            passed = self.client.run(inputs, self._cache, keep=True)
        except VLMError:
            self._drop_cache()
            raise
        self._cache, self._cached = passed.cache, ids
        if not kept:
            self._delta = passed.delta
        if new_call:
            self._count(ids, kept)
        else:
            self.usage.prefilled += len(new) - 1  # the last token was counted when it was chosen
        return passed.logits[0]

    def _cut_cache(self, ids: list[int], image_end: int) -> int:
        """How many leading `ids` the cache holds, after the rest was cut off it; at least the last
        id is always computed, for its logits. 0, and no cache, if it does not hold the images whole
        or cannot be cut (sliding windows, linear attention)."""
        limit = min(len(self._cached), len(ids) - 1)
        kept = next((i for i in range(limit) if ids[i] != self._cached[i]), limit)
        if kept == len(self._cached):
            return kept
        with suppress(RuntimeError, NotImplementedError, ValueError, AttributeError):
            if self._cache is not None and kept >= image_end:
                self._cache.crop(kept - len(self._cached))
                if self._cache.get_seq_length() == kept:
                    return kept
        self._drop_cache()
        return 0

    def _model_inputs(self, new: list[int], kept: int) -> dict[str, torch.Tensor]:
        """Inputs for `new` tokens after `kept` cached ones. Positions are always given: Qwen's
        models otherwise take them from the image that ran last in the process, and the logits are
        silently wrong."""
        positions = torch.arange(kept, kept + len(new))[None]
        if self._delta is not None:
            positions = (positions + self._delta.cpu())[None].expand(3, -1, -1)
        return {"input_ids": torch.tensor([new]), "position_ids": positions}
