"""A model folder's processor: one prompt as chat text and token ids, the same for every engine.

An answer is encoded after the prompt, not by itself: many tokenizers begin a text differently from
its middle.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import torch
import transformers
from PIL import Image
from torchvision.transforms.v2 import functional
from transformers import AutoConfig, AutoProcessor

from agentic_iqa_local.config import TEMPERATURE, ModelSettings
from agentic_iqa_local.errors import first_line
from agentic_iqa_local.files import PROGRAM
from agentic_iqa_local.vlm_client import PixelLimits, SeenImage, VLMError
from agentic_iqa_local.vlm_client.chat import ChatPrompt, asking_for_words, chat_messages
from agentic_iqa_local.vlm_client.model_folder import check_files

logger = logging.getLogger(__name__)

TEXT_TOKENS = 4096  # room for instructions, evidence and answer beside the images
NEXT_SET_UP = "llava_onevision_0_5b"  # of configs/: the smallest after the embedded model
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
SEQUENCE_INPUTS = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")


def check_folder(folder: Path, weights: bool = True) -> Any:
    """The configuration of a model folder. Raises VLMError unless it is that of a vision-language
    model and, with `weights`, safetensors are there."""
    check_files(folder, weights)
    with loading(folder):
        config = AutoConfig.from_pretrained(folder, **LOCAL)  # nosec B615 # a local folder
    if type(config) not in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        got = f"expected a vision-language model, got {config.model_type}, which reads text only"
        raise VLMError(f"model folder {folder}: {got}", "use a Qwen-VL, LLaVA or similar folder")
    return config


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """What transformers raises while it reads a folder becomes VLMError. That can be anything:
    tokenizers raises bare Exceptions, and sizes that do not fit together end in errors of every
    kind."""
    try:
        yield
    except VLMError:
        raise
    except Exception as error:
        why = first_line(error)
        if "ignore_mismatched_sizes" in why:  # which is advice for programmers
            why = "sizes in its config.json are not those of its weights"
        mistake = f"transformers {transformers.__version__} cannot load it ({why})"
        raise VLMError(f"model folder {folder}: {mistake}") from error


@dataclass(frozen=True)
class Rendered:
    """A prompt with one placeholder for each image and the answer so far, as text and as the ids of
    each; `head` and `tail` are the prompt's ids before the first image and after the last."""

    prompt: ChatPrompt
    answer_prefix: str
    text: str
    prompt_ids: list[int]
    answer_ids: list[int]
    head: list[int]
    tail: list[int]

    def prompt_with(self, images: "Expanded") -> list[int]:
        """The prompt's ids with those of the images in their places."""
        return [*self.head, *images.ids, *self.tail]


@dataclass(frozen=True)
class Expanded:
    """An assessment's images after the processor: the ids from the first image to the last with
    their token types, the pixel inputs of the model, and what it sees of each image."""

    ids: list[int]
    types: list[int] | None
    inputs: dict[str, torch.Tensor]
    seen: list[SeenImage]

    @property
    def form(self) -> tuple[Any, ...]:
        """What images must have in common to be stacked in one batch: tokens, their types and the
        inputs' shapes."""
        return self.ids, self.types, {name: value.shape for name, value in self.inputs.items()}


class Renderer:
    """The processor and tokenizer of a model folder. Raises VLMError for a folder that cannot serve
    prompts with images."""

    def __init__(self, name: str, settings: ModelSettings, weights: bool = True):
        self.name, self.settings, self.folder = name, settings, Path(settings.path or name)
        self._lock = threading.RLock()  # tokenizers refuse to be used from two threads at once
        self.config = check_folder(self.folder, weights)
        with loading(self.folder):
            self.processor = AutoProcessor.from_pretrained(self.folder, **LOCAL)  # nosec B615 # a local folder
            self.tokenizer = self.processor.tokenizer
            self.placeholder = self.tokenizer.convert_tokens_to_ids(self.processor.image_token)
            added = [token.content for token in self.tokenizer.added_tokens_decoder.values()]
            special = {*added, *self.tokenizer.all_special_tokens}
            self.special_tokens = sorted(special, key=len, reverse=True)
            self.limits = self._set_limits()
        if not (self.processor.chat_template or self.tokenizer.chat_template):
            mistake = f"model folder {self.folder}: expected a chat template, found none"
            raise VLMError(mistake, "copy chat_template.jinja too")
        self.notice = getattr(self.config, "agentic_iqa_notice", None)
        if self.notice:  # the embedded model's
            self.notice += f"; {PROGRAM} bundle --config {NEXT_SET_UP} fetches the next larger one"
        self.trust = float(getattr(self.config, "agentic_iqa_trust", 1.0))
        self.letters_temperature = getattr(self.config, TEMPERATURE, 1.0)

    def _set_limits(self) -> PixelLimits:
        """The processor's pixel range, narrowed by the configuration. Processors that force a size
        get no range of their own."""
        images, high = self.processor.image_processor, self.settings.max_pixels
        self.size: dict[str, int] | None = None  # the range, as the image processor takes it
        size = dict(getattr(images, "size", {}))
        low, own_high = size.get("shortest_edge"), size.get("longest_edge")
        patch, merge = getattr(images, "patch_size", None), getattr(images, "merge_size", None)
        if not (patch and merge and low and own_high):
            return PixelLimits(1, 1, high)
        factor, high = patch * merge, high or own_high
        least = max(low, factor**2)  # one token at least
        if least > high:
            mistake = f"model {self.name}: expected max_pixels of at least {least}, got {high}"
            raise VLMError(mistake, "correct the configuration")
        self.size = images.size = {"shortest_edge": low, "longest_edge": high}
        return PixelLimits(factor, low, high)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens around it."""
        with self._lock:
            return self.tokenizer.encode(text, add_special_tokens=False)

    def defuse(self, text: str) -> str:
        """`text` with this tokenizer's special tokens broken up, so that a query cannot end its
        turn or pose as an image."""
        for token in self.special_tokens:
            if len(token) > 1:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def letters(
        self, prompt: ChatPrompt, images: int, answer_prefix: str, letters: Sequence[str]
    ) -> tuple[Rendered, dict[str, int]]:
        """`prompt` as it is asked to read `letters`, or the words that stand for them, and the
        token id of each. Raises VLMError for one that is not a single token."""
        words: dict[str, str] = {}
        if self.settings.answers == "words":
            prompt, words = asking_for_words(prompt)
        rendered = self.render(prompt, images, answer_prefix)
        return rendered, resolve_letters(self.encode, rendered.text, letters, words)

    def render(self, prompt: ChatPrompt, images: int, answer_prefix: str = "") -> Rendered:
        """`prompt` about `images` pictures, and the answer so far; it is logged for debugging.
        Raises VLMError for a template or tokenizer that breaks what the letter read and the shared
        prefix rest on."""
        prompt = replace(prompt, case=self.defuse(prompt.case))
        messages = chat_messages(prompt, images)
        template = f"chat template of {self.name}"
        try:
            text = self.processor.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:
            # it is a program of the folder's maker, which can raise anything
            mistake = f"{template} failed ({first_line(error)})"
            raise VLMError(mistake, "get the folder from its maker") from error
        whole_text = text + answer_prefix
        logger.debug("Prompt, as it is sent:\n%s", whole_text)
        short, whole = self.encode(text), self.encode(whole_text)
        if whole[: len(short)] != short:
            expected = (
                "expected the answer to begin with a token of its own, it merges with the prompt"
            )
            raise VLMError(f"tokenizer of {self.name}: {expected}")
        places = [i for i, token in enumerate(short) if token == self.placeholder]
        if len(places) != images:
            raise VLMError(f"{template}: expected {images} image places, got {len(places)}")
        head, tail = short[: places[0]], short[places[-1] + 1 :]
        answer = whole[len(short) :]
        return Rendered(prompt, answer_prefix, whole_text, short, answer, head, tail)

    def expand(self, rendered: Rendered, images: Sequence[Image.Image]) -> Expanded:
        """Runs the image processor. The images of one assessment are expanded once, with whichever
        prompt comes first."""
        with self._lock:
            batch = self.processor(
                text=[rendered.text],
                images=list(images),
                return_tensors="pt",
                add_special_tokens=False,
            )
        ids = batch["input_ids"][0].tolist()
        head, tail = rendered.head, [*rendered.tail, *rendered.answer_ids]
        end = len(ids) - len(tail)
        if ids[: len(head)] != head or ids[end:] != tail:
            expected = "expected to expand images only, but it changes the text around them too"
            raise VLMError(f"processor of {self.name}: {expected}")
        block = ids[len(head) : end]
        types = batch.get("mm_token_type_ids")
        return Expanded(
            ids=block,
            types=None if types is None else types[0, len(head) : end].tolist(),
            inputs={name: value for name, value in batch.items() if name not in SEQUENCE_INPUTS},
            seen=self._seen(batch, block.count(self.placeholder) // len(images), len(images)),
        )

    def resized(self, image: Image.Image, seen: SeenImage) -> Image.Image:
        """The pixels that the image processor makes of `image` before it normalises them."""
        if image.size == (seen.width, seen.height):
            return image
        pixels = functional.resize(
            functional.pil_to_tensor(image),
            [seen.height, seen.width],  # pyright: ignore[reportArgumentType]  # it does not tile
            interpolation=self.processor.image_processor.resample,
            antialias=True,
        )
        return functional.to_pil_image(pixels)

    def context(self) -> int:
        """Tokens of two images of the largest size and of a long prompt, as far as the model
        reaches."""
        text_config = self.config.get_text_config()
        reach = getattr(text_config, "max_position_embeddings", None) or 32768
        factor, most = self.limits.factor, self.limits.max_pixels
        if most is None or factor == 1:
            return min(reach, 2 * TEXT_TOKENS + 8192)
        return min(reach, 2 * most // factor**2 + TEXT_TOKENS)

    def _seen(self, batch: Mapping[str, Any], tokens: int, count: int) -> list[SeenImage]:
        """What the model sees of each of `count` images, each of which became `tokens` unless their
        grid says other."""
        if "image_grid_thw" in batch:
            images = self.processor.image_processor
            patch, share = images.patch_size, images.merge_size**2
            grids = batch["image_grid_thw"].tolist()
            return [SeenImage(w * patch, h * patch, w * h // share) for _, h, w in grids]
        shape = batch["pixel_values"].shape
        if len(shape) == 4 and shape[0] == count:
            return [SeenImage(shape[3], shape[2], tokens)] * count
        # tiles of a resized picture, and often a thumbnail: no one size says what was seen
        return [SeenImage(None, None, tokens)] * count


def resolve_letters(
    encode: Callable[[str], list[int]],
    tail: str,
    letters: Sequence[str],
    words: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, int]:
    """The token id of each letter, or word, right after `tail`, the prompt's own end.

    `A`, ` A` and `"A` are different tokens with different distributions, so encode(tail + letter)
    must be encode(tail) plus exactly one id. A word (an entry of several characters, or what
    `words` has in place of a letter) stands for its first token there, which no other word may
    begin with. Raises VLMError for one that merges with the tail, a letter that splits, and two
    that share an id.
    """
    base, ids = encode(tail), {}
    for letter in letters:
        answer = words.get(letter, letter)
        longer = encode(tail + answer)
        tokens = longer[len(base) :]
        splits = len(answer) == 1 and len(tokens) > 1
        if splits or not tokens or longer[: len(base)] != base:
            expected = f"expected the answer letter {answer!r} to be one token after {tail[-24:]!r}"
            raise VLMError(f"tokenizer: {expected}", "this model's letters cannot be read here")
        ids[letter] = tokens[0]
    if len(set(ids.values())) != len(ids):
        raise VLMError(f"tokenizer: expected a token of its own for each letter, got {ids}")
    return ids
