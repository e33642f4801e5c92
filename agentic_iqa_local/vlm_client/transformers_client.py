"""One model folder served by transformers: any that AutoProcessor and AutoModelForImageTextToText load from safetensors.

One prompt's life: `_render` makes chat text and token ids; `_advance` finds how much of them the cache already holds,
drops the rest of the cache and runs only the new tokens; `read_letters` stops there and looks at the logits, `generate`
goes on token by token under a grammar. The cache holds exactly one sequence, the last one: images and preamble are at its
front, so every role and retry continues from them, and a reasoning continues from the letter read before it.
"""

import functools
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import llguidance.hf
import llguidance.numpy
import numpy as np
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from PIL import Image
from pydantic import BaseModel
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, BitsAndBytesConfig, DynamicCache

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.devices import describe_device
from agentic_iqa_local.prompts import Prompt, chat_messages
from agentic_iqa_local.vlm_client import LetterRead, PixelLimits, SeenImage, TokenUsage, VLMError
from agentic_iqa_local.vlm_client.letters import resolve_letters

logger = logging.getLogger(__name__)

# JSON as json.dumps writes it: one spelling for each answer, and no room for a small model to pad with blanks.
JSON_STYLE = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
SEQUENCE_INPUTS = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def check_folder(folder: Path) -> None:
    """Raises VLMError unless `folder` holds a configuration of a vision-language model and safetensors weights."""
    if not folder.is_dir():
        raise VLMError(
            f"model folder {folder}: expected a folder with a model, found none; copy one there or pass --model FOLDER"
        )
    config = folder / "config.json"
    if not config.is_file():
        raise VLMError(f"model folder {folder}: expected config.json, found none; this is no transformers model")
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)
        got = f"only pickles ({', '.join(pickles[:3])}), which can run code when loaded" if pickles else "no weights"
        raise VLMError(f"model folder {folder}: expected weights as *.safetensors, found {got}; get the safetensors edition")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise VLMError(
                f"model folder {folder}: {index.name} cannot be read ({_first_line(error)}); copy the folder again"
            ) from error
        if missing := sorted(s for s in shards if not (folder / s).is_file()):
            raise VLMError(
                f"model folder {folder}: expected {len(shards)} weight files, {missing[0]} is missing; copy the folder again"
            )
    try:
        loaded = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, TypeError, StrictDataclassError) as error:
        raise VLMError(f"model folder {folder}: config.json cannot be used ({_first_line(error)})") from error
    if type(loaded) not in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise VLMError(
            f"model folder {folder}: expected a vision-language model, got {loaded.model_type}, which reads text only; "
            "use a Qwen-VL, LLaVA or similar folder"
        )


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _dtype(name: str, device: str) -> torch.dtype:
    if name != "auto":
        return getattr(torch, name)
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.float32


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


class TransformersClient:
    """A loaded model, its processor and its grammar tokenizer."""

    reads_logits = True

    def __init__(self, name: str, settings: ModelSettings, device: str):
        folder = Path(settings.path)
        check_folder(folder)
        self.name, self.settings = name, settings
        self.dtype = _dtype(settings.dtype, device)
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
        try:
            self.processor = AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            self.model, loading = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True, **options)
            self.model.eval()
            if "device_map" not in options:
                self.model.to(device)
        except (ValueError, OSError, ImportError, KeyError, AttributeError, RuntimeError, SafetensorError) as error:
            raise VLMError(
                f"model folder {folder}: transformers {transformers.__version__} cannot load it ({_first_line(error)})"
            ) from error
        if absent := sorted({*loading["missing_keys"], *(str(key) for key in loading["mismatched_keys"])}):
            raise VLMError(
                f"model folder {folder}: expected every weight of the model, {len(absent)} are missing or of another shape "
                f"({absent[0]}, ...); copy the folder again"
            )
        self._check_processor(folder)
        self.device = self.model.device
        self.tokenizer = self.processor.tokenizer
        self.limits = self._set_limits(settings)
        self.notice = getattr(self.model.config, "agentic_iqa_notice", None)
        vocabulary = self.model.get_output_embeddings().weight.shape[0]
        self.grammar_tokenizer = llguidance.hf.from_tokenizer(self.tokenizer, n_vocab=vocabulary)
        self.vocabulary = vocabulary
        eos = self.model.generation_config.eos_token_id
        self.stop_ids = {*(eos if isinstance(eos, list) else [eos]), self.tokenizer.eos_token_id}

    def _check_processor(self, folder: Path) -> None:
        """Raises VLMError for a processor without images, chat template or a token that stands for an image."""
        processor = self.processor
        if getattr(processor, "image_processor", None) is None:
            raise VLMError(
                f"model folder {folder}: expected a processor with an image processor, found none; copy preprocessor_config.json too"
            )
        if not (processor.chat_template or processor.tokenizer.chat_template):
            raise VLMError(f"model folder {folder}: expected a chat template, found none; copy chat_template.jinja too")
        token = getattr(processor, "image_token", None)
        if token is None or len(processor.tokenizer.encode(token, add_special_tokens=False)) != 1:
            raise VLMError(
                f"model folder {folder}: expected the image place {token!r} to be one token, it is none; copy the tokenizer's files too"
            )

    def _set_limits(self, settings: ModelSettings) -> PixelLimits:
        """The processor's pixel range, narrowed by the configuration. Processors that force a size get no range of their own."""
        images = self.processor.image_processor
        size = dict(getattr(images, "size", None) or {})
        patch = getattr(images, "patch_size", None)
        by_pixels = patch is not None and hasattr(images, "merge_size") and size.get("shortest_edge") and size.get("longest_edge")
        if not by_pixels:
            return PixelLimits(factor=1, min_pixels=settings.min_pixels or 1, max_pixels=settings.max_pixels)
        factor = patch * images.merge_size
        low, high = settings.min_pixels or size["shortest_edge"], settings.max_pixels or size["longest_edge"]
        if not factor * factor <= high or low > high:
            raise VLMError(
                f"model {self.name}: expected min_pixels ≤ max_pixels and at least {factor * factor} max_pixels "
                f"(one token of {factor}×{factor}), got {low} and {high}; correct the configuration"
            )
        images.size = {"shortest_edge": low, "longest_edge": high}
        return PixelLimits(factor=factor, min_pixels=low, max_pixels=high)

    def open(self, images: Sequence[Image.Image]) -> "TransformersSession":
        """A session on [test image] or [reference, test image]; nothing is computed yet."""
        return TransformersSession(self, list(images))

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
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.loads(schema) | JSON_STYLE)
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, self.grammar_tokenizer)
        if failed:
            raise VLMError(f"schema cannot constrain generation: {messages[0]}")
        return grammar

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def defuse(self, text: str) -> str:
        """`text` with this tokenizer's special tokens broken up, so that a query cannot end its turn or pose as an image."""
        for token in self._special_tokens():
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    @functools.lru_cache(maxsize=1)  # noqa: B019
    def _special_tokens(self) -> list[str]:
        added = [t.content for t in self.tokenizer.added_tokens_decoder.values()]
        return sorted({t for t in [*added, *self.tokenizer.all_special_tokens] if len(t) > 1}, key=len, reverse=True)


class TransformersSession:
    """One assessment's images on one model, with the KV cache of the last sequence."""

    def __init__(self, client: TransformersClient, images: list[Image.Image]):
        self.client, self.images = client, images
        self.usage = TokenUsage()
        self.seen: list[SeenImage] = []
        self._generator = torch.Generator().manual_seed(0)  # each assessment draws the same way, whatever ran before
        self._cache: DynamicCache | None = None
        self._cached: list[int] = []  # the ids whose keys and values the cache holds
        self._delta: torch.Tensor | None = None  # Qwen: how far text positions lag behind token counts after the images
        self._inputs: dict[str, torch.Tensor] = {}  # pixel values and grids
        self._block: list[int] = []  # the expanded images, placeholders and the markers around and between them
        self._block_types: list[int] | None = None
        self._image_end = 0

    def close(self) -> None:
        self._drop_cache()
        self._inputs, self._block = {}, []

    def generate(
        self, prompt: Prompt, schema: type[BaseModel], *, answer_prefix: str = "", temperature: float = 0.0, max_tokens: int = 512
    ) -> str:
        """The answer's JSON text, by default greedy. Template text that the schema leaves no choice about is not decoded
        token by token but run through in one piece."""
        client = self.client
        grammar = client.grammar(json.dumps(schema.model_json_schema(by_alias=True)))
        matcher = llguidance.LLMatcher(client.grammar_tokenizer, grammar)
        ids, answer, _ = self._render(prompt, answer_prefix)
        if not matcher.consume_tokens(answer):
            raise VLMError(f"schema {schema.__name__} does not allow an answer that begins with {answer_prefix!r}")
        mask = llguidance.numpy.allocate_token_bitmask(1, client.vocabulary)
        new_call = True
        while not matcher.is_stopped() and len(answer) < max_tokens:
            if forced := matcher.compute_ff_tokens():
                matcher.consume_tokens(forced)
                answer += forced
                continue
            logits = self._advance(ids + answer, new_call=new_call)
            new_call = False
            llguidance.numpy.fill_next_token_bitmask(matcher, mask)
            allowed = np.unpackbits(mask[0].view(np.uint8), bitorder="little")[: client.vocabulary].astype(bool)
            token = _choose(logits.masked_fill(~torch.from_numpy(allowed), float("-inf")), temperature, self._generator)
            self.usage.decoded += 1
            matcher.consume_token(token)
            if token in client.stop_ids:
                break
            answer.append(token)
        if error := matcher.get_error():
            raise VLMError(f"constrained generation failed: {error}")
        return client.tokenizer.decode(answer, skip_special_tokens=True)

    def read_letters(self, prompt: Prompt, answer_prefix: str, letters: Sequence[str]) -> LetterRead:
        """Raw log-probabilities over the full vocabulary at the position after `answer_prefix`, in float64."""
        ids, answer, text = self._render(prompt, answer_prefix)
        token_ids = resolve_letters(self.client.encode, text, letters)
        logprobs = self._advance(ids + answer, new_call=True).double().log_softmax(-1)
        picked = {letter: logprobs[token].item() for letter, token in token_ids.items()}
        on_letters = float(np.exp(np.logaddexp.reduce(list(picked.values()))))
        return LetterRead(picked, max(0.0, 1.0 - on_letters), token_ids)

    def _render(self, prompt: Prompt, answer_prefix: str = "") -> tuple[list[int], list[int], str]:
        """(token ids of the prompt with image placeholders expanded, ids of the answer so far, the text of both).

        The answer is encoded after the prompt, not by itself: many tokenizers begin a text differently from its middle.
        The images are processed on the first call only.
        """
        client = self.client
        if not client.settings.share_prefix:
            self._drop_cache()
        defused = Prompt(prompt.instructions, client.defuse(prompt.case))
        messages = chat_messages(defused, len(self.images), client.settings.prompt_layout)
        text = client.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        short, whole = client.encode(text), client.encode(text + answer_prefix)
        if whole[: len(short)] != short:
            raise VLMError(
                f"tokenizer of {client.name}: expected the answer to begin with a token of its own, it merges with the prompt"
            )
        placeholder = client.tokenizer.convert_tokens_to_ids(client.processor.image_token)
        places = [i for i, token in enumerate(short) if token == placeholder]
        if len(places) != len(self.images):
            raise VLMError(f"chat template of {client.name}: expected {len(self.images)} image places, got {len(places)}")
        first, last = places[0], places[-1]
        if not self._block:
            self._process_images(text, short[:first], short[last + 1 :], placeholder)
        ids = short[:first] + self._block + short[last + 1 :]
        self._image_end = first + len(self._block)
        return ids, whole[len(short) :], text + answer_prefix

    def _process_images(self, text: str, head: list[int], tail: list[int], placeholder: int) -> None:
        """Runs the processor and keeps its pixel inputs, the expanded image block and what the model saw."""
        client = self.client
        batch = client.processor(text=[text], images=self.images, return_tensors="pt", add_special_tokens=False)
        ids = batch["input_ids"][0].tolist()
        end = len(ids) - len(tail)
        if ids[: len(head)] != head or ids[end:] != tail:
            raise VLMError(f"processor of {client.name}: expected to expand images only, but it changes the text around them too")
        self._block = ids[len(head) : end]
        self._inputs = {
            k: v.to(client.device, client.dtype) if v.is_floating_point() else v.to(client.device)
            for k, v in batch.items()
            if k not in SEQUENCE_INPUTS
        }
        types = batch.get("mm_token_type_ids")
        self._block_types = None if types is None else types[0, len(head) : end].tolist()
        tokens = self._block.count(placeholder) // len(self.images)
        if "image_grid_thw" in batch:
            patch = client.processor.image_processor.patch_size
            self.seen = [SeenImage(int(w) * patch, int(h) * patch, tokens) for _, h, w in batch["image_grid_thw"].tolist()]
        elif batch["pixel_values"].ndim == 4:
            height, width = batch["pixel_values"].shape[-2:]
            self.seen = [SeenImage(width, height, tokens)] * len(self.images)
        else:  # tiles of a resized picture, and often a thumbnail: no one size says what was seen
            self.seen = [SeenImage(None, None, tokens)] * len(self.images)

    def _drop_cache(self) -> None:
        self._cache, self._cached, self._delta = None, [], None

    @torch.inference_mode()
    def _advance(self, ids: list[int], *, new_call: bool) -> torch.Tensor:
        """Logits (float32, V) after `ids`; only what the cache does not hold already goes through the model."""
        kept = self._common(ids)
        if self._cache is not None and kept < len(self._cached):
            kept = kept if kept >= self._image_end and self._crop(kept) else 0
            if kept == 0:
                self._drop_cache()
        new = ids[kept:]
        if new_call:
            self.usage.reused += kept
            self.usage.prefilled += len(new)
        else:  # the last decoded token comes back as input: it was counted when it was chosen
            self.usage.prefilled += len(new) - 1
        self.usage.forward_passes += 1
        try:
            output = self.client.model(**self._model_inputs(new, kept), use_cache=True, logits_to_keep=1)
        except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
            self._drop_cache()
            raise VLMError(
                f"{self.client.name} failed on {len(ids)} tokens ({_first_line(error)}); "
                "if memory ran out, lower max_pixels, quantise, or use another device"
            ) from error
        if kept == 0:
            delta = getattr(self.client.model.model, "rope_deltas", None)
            self._delta = None if delta is None else delta.clone()
        self._cache, self._cached = output.past_key_values, ids
        logits = output.logits[0, -1].float().cpu()
        if not torch.isfinite(logits).all():
            self._drop_cache()
            raise VLMError(f"{self.client.name} gave logits that are not finite in {self.client.dtype}; set dtype: float32")
        return logits

    def _crop(self, kept: int) -> bool:
        """Cuts the cache to its first `kept` tokens; False where it cannot be cut (sliding windows, linear attention)."""
        try:
            self._cache.crop(kept - len(self._cached))
        except (RuntimeError, NotImplementedError, ValueError, AttributeError):
            return False
        return self._cache.get_seq_length() == kept

    def _common(self, ids: list[int]) -> int:
        """How many leading ids the cache holds; at least the last one is always computed, for its logits."""
        limit = min(len(self._cached), len(ids) - 1)
        if ids[:limit] == self._cached[:limit]:
            return limit
        return next(i for i in range(limit) if ids[i] != self._cached[i])

    def _model_inputs(self, new: list[int], kept: int) -> dict[str, Any]:
        """Inputs for `new` tokens after `kept` cached ones.

        Positions are always given after the images: Qwen's models otherwise take them from the image that ran last in
        the process, and the logits are silently wrong.
        """
        client = self.client
        inputs: dict[str, Any] = {"input_ids": torch.tensor([new], device=client.device)}
        if kept == 0:
            if hasattr(client.model.model, "rope_deltas"):
                client.model.model.rope_deltas = None
            if self._block_types is not None:
                before = self._image_end - len(self._block)
                types = [0] * before + self._block_types + [0] * (len(new) - self._image_end)
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
