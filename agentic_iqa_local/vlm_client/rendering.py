"""A model folder's processor: one prompt as chat text and token ids, the same for every engine.

An answer is encoded after the prompt, not by itself: many tokenizers begin a text differently from its middle.
"""

import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import torch
import transformers
from PIL import Image
from transformers import AutoConfig, AutoProcessor

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.files import command
from agentic_iqa_local.vlm_client import PixelLimits, SeenImage, VLMError
from agentic_iqa_local.vlm_client.chat import ChatPrompt, chat_messages, in_words
from agentic_iqa_local.vlm_client.model_folder import examine

logger = logging.getLogger(__name__)

NEXT_SET_UP = "llava_onevision_0_5b"  # of configs/: the smallest after the embedded model
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
SEQUENCE_INPUTS = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")


def check_folder(folder: Path, weights: bool = True) -> Any:
    """The configuration of a model folder. Raises VLMError unless it is that of a vision-language model and, with
    `weights`, safetensors are there."""
    examine(folder, weights)
    with loading(folder):
        config = AutoConfig.from_pretrained(folder, **LOCAL)  # nosec B615 # a local folder
    if type(config) not in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        said = f"expected a vision-language model, got {config.model_type}, which reads text only"
        raise VLMError(f"model folder {folder}: {said}", "use a Qwen-VL, LLaVA or similar folder")
    return config


def first_line(error: BaseException) -> str:
    """The first line of an error's message: transformers lists hundreds of names in some."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line if len(line) <= 300 else f"{line[:300]}…"


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """What transformers raises while it reads a folder becomes VLMError. That can be anything: tokenizers
    raises bare Exceptions, and sizes that do not fit together end in errors of every kind."""
    try:
        yield
    except VLMError:
        raise
    except Exception as error:
        why = first_line(error)
        if "ignore_mismatched_sizes" in why:  # which is advice for programmers
            why = "sizes in its config.json are not those of its weights"
        said = f"transformers {transformers.__version__} cannot load it ({why})"
        raise VLMError(f"model folder {folder}: {said}") from error


@dataclass(frozen=True)
class Rendered:
    """A prompt with one placeholder for each image and the answer so far, as text and as the ids of each; `head` and
    `tail` are the prompt's ids before the first image and after the last."""

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
    """An assessment's images after the processor: the ids from the first image to the last with their token
    types, the pixel inputs of the model, and what it sees of each image."""

    ids: list[int]
    types: list[int] | None
    inputs: dict[str, torch.Tensor]
    seen: list[SeenImage]


class Renderer:
    """The processor and tokenizer of a model folder. Raises VLMError for a folder that cannot serve prompts
    with images."""

    def __init__(self, name: str, settings: ModelSettings, weights: bool = True):
        self.name, self.settings, self.folder = name, settings, Path(settings.path or name)
        self._lock = threading.RLock()  # tokenizers refuse to be used from two threads at once
        self.config = check_folder(self.folder, weights)
        with loading(self.folder):
            self.processor = AutoProcessor.from_pretrained(self.folder, **LOCAL)  # nosec B615 # a local folder
            if not (self.processor.chat_template or self.processor.tokenizer.chat_template):
                expected = "expected a chat template, found none"
                raise VLMError(
                    f"model folder {self.folder}: {expected}", "copy chat_template.jinja too"
                )
            self.tokenizer = self.processor.tokenizer
            self.placeholder = self.tokenizer.convert_tokens_to_ids(self.processor.image_token)
            added = [token.content for token in self.tokenizer.added_tokens_decoder.values()]
            special = {
                token for token in (*added, *self.tokenizer.all_special_tokens) if len(token) > 1
            }
            self.special_tokens = sorted(special, key=len, reverse=True)
            self.limits = self._set_limits()
        self.notice = getattr(self.config, "agentic_iqa_notice", None)
        self.trust = float(getattr(self.config, "agentic_iqa_trust", 1.0))
        if self.notice:  # the embedded model's
            self.notice += (
                f"; {command('bundle')} --config {NEXT_SET_UP} fetches the next larger one"
            )
        self.holds_in_bfloat16 = getattr(self.config, "agentic_iqa_bfloat16", False) is True

    def _set_limits(self) -> PixelLimits:
        """The processor's pixel range, narrowed by the configuration. Processors that force a size get no
        range of their own."""
        settings, images = self.settings, self.processor.image_processor
        self.size: dict[str, int] | None = None  # the range, as the image processor takes it
        size = {
            key: value
            for key, value in dict(getattr(images, "size", {})).items()
            if value is not None
        }
        patch = getattr(images, "patch_size", None)
        by_pixels = size.keys() >= {"shortest_edge", "longest_edge"} and hasattr(
            images, "merge_size"
        )
        if not patch or not by_pixels:
            return PixelLimits(
                factor=1, min_pixels=settings.min_pixels or 1, max_pixels=settings.max_pixels
            )
        factor = patch * images.merge_size
        low, high = (
            settings.min_pixels or size["shortest_edge"],
            settings.max_pixels or size["longest_edge"],
        )
        if not max(low, factor * factor) <= high:
            least = f"at least {factor * factor} max_pixels (one token of {factor}×{factor})"
            said = f"model {self.name}: expected min_pixels ≤ max_pixels and {least}, got {low} and {high}"
            raise VLMError(said, "correct the configuration")
        self.size = images.size = {"shortest_edge": low, "longest_edge": high}
        return PixelLimits(factor=factor, min_pixels=low, max_pixels=high)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens around it."""
        with self._lock:
            return self.tokenizer.encode(text, add_special_tokens=False)

    def defuse(self, text: str) -> str:
        """`text` with this tokenizer's special tokens broken up, so that a query cannot end its turn or pose
        as an image."""
        for token in self.special_tokens:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def letters(
        self, prompt: ChatPrompt, images: int, answer_prefix: str, letters: Sequence[str]
    ) -> tuple[Rendered, dict[str, int]]:
        """`prompt` as it is asked where `letters`, or the words that stand for them, are read, and the token id of
        each. Raises VLMError where one is not a single token."""
        asked, words = in_words(prompt) if self.settings.answers == "words" else (prompt, {})
        rendered = self.render(asked, images, answer_prefix)
        return rendered, resolve_letters(self.encode, rendered.text, letters, words)

    def render(self, prompt: ChatPrompt, images: int, answer_prefix: str = "") -> Rendered:
        """`prompt` about `images` pictures, and the answer so far. Raises VLMError for a template or
        tokenizer that breaks what the letter read and the shared prefix rest on."""
        prompt = replace(prompt, case=self.defuse(prompt.case))
        messages = chat_messages(prompt, images, self.settings.prompt_layout)
        try:
            text = self.processor.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except (
            Exception
        ) as error:  # a template is a program of the folder's maker: it can raise anything
            said = f"chat template of {self.name} failed ({first_line(error)})"
            raise VLMError(said, "get the folder from its maker") from error
        short, whole = self.encode(text), self.encode(text + answer_prefix)
        if whole[: len(short)] != short:
            said = "expected the answer to begin with a token of its own, it merges with the prompt"
            raise VLMError(f"tokenizer of {self.name}: {said}")
        places = [i for i, token in enumerate(short) if token == self.placeholder]
        if len(places) != images:
            raise VLMError(
                f"chat template of {self.name}: expected {images} image places, got {len(places)}"
            )
        answer, head, tail = whole[len(short) :], short[: places[0]], short[places[-1] + 1 :]
        return Rendered(prompt, answer_prefix, text + answer_prefix, short, answer, head, tail)

    def log(self, rendered: Rendered, images: Sequence[Image.Image], above: str = "") -> str:
        """Logs, for debugging, the text that the model gets, with the images' sizes in their places, and returns it.
        Whole lines that it begins with as the prompt `above` did are counted only."""
        if not logger.isEnabledFor(logging.DEBUG):
            return ""
        before, *after = rendered.text.split(self.processor.image_token)
        sizes = [f"<image {image.width}×{image.height}>" for image in images]
        text = before + "".join(map("".join, zip(sizes, after, strict=True)))
        pairs = zip(above.splitlines(True), text.splitlines(True), strict=False)
        shared = sum(
            len(line) for _, line in itertools.takewhile(lambda two: two[0] == two[1], pairs)
        )
        begun = f"[the first {shared} characters are those of the prompt above]\n" if shared else ""
        told = "Prompt of the %s, as it is sent:\n%s%s"
        logger.debug(told, rendered.prompt.asker or "model", begun, text[shared:])
        return text

    def expand(self, rendered: Rendered, images: Sequence[Image.Image]) -> Expanded:
        """Runs the image processor. The images of one assessment are expanded once, with whichever prompt
        comes first."""
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
            said = "expected to expand images only, but it changes the text around them too"
            raise VLMError(f"processor of {self.name}: {said}")
        block = ids[len(head) : end]
        types = batch.get("mm_token_type_ids")
        return Expanded(
            ids=block,
            types=None if types is None else types[0, len(head) : end].tolist(),
            inputs={name: value for name, value in batch.items() if name not in SEQUENCE_INPUTS},
            seen=self._seen(batch, block.count(self.placeholder) // len(images), len(images)),
        )

    def _seen(self, batch: Mapping[str, Any], tokens: int, count: int) -> list[SeenImage]:
        """What the model sees of each of `count` images; `tokens` for each where their grid does not say."""
        if "image_grid_thw" in batch:
            processor = self.processor.image_processor
            patch, merge = processor.patch_size, processor.merge_size
            return [
                SeenImage(int(w) * patch, int(h) * patch, int(h) * int(w) // merge**2)
                for _, h, w in batch["image_grid_thw"].tolist()
            ]
        if batch["pixel_values"].ndim == 4 and len(batch["pixel_values"]) == count:
            height, width = batch["pixel_values"].shape[-2:]
            return [SeenImage(width, height, tokens)] * count
        # tiles of a resized picture, and often a thumbnail: no one size says what was seen
        return [SeenImage(None, None, tokens)] * count


def resolve_letters(
    encode: Callable[[str], list[int]],
    tail: str,
    letters: Sequence[str],
    words: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Letter, or word → token id after `tail`. `A`, ` A` and `"A` are different tokens with different distributions, so
    an id is what the tokenizer makes of a letter right after the prompt's own end: encode(tail + letter) must be
    encode(tail) plus exactly one id. A word (an entry of several characters, or what `words` has in place of a letter)
    stands for its first token there, which no other word may begin with. Raises VLMError where one merges with the
    tail, a letter splits, or two share an id."""
    base = encode(tail)
    ids: dict[str, int] = {}
    for letter in letters:
        said = (words or {}).get(letter, letter)
        longer = encode(tail + said)
        tokens = longer[len(base) :]
        if longer[: len(base)] != base or not tokens or (len(said) == 1 and len(tokens) > 1):
            expected = f"expected the answer letter {said!r} to be one token after {tail[-24:]!r}"
            got = f"got {longer[len(base) - 1 :]} after {base[-2:]}"
            raise VLMError(
                f"tokenizer: {expected}, {got}", "this model's letters cannot be read here"
            )
        ids[letter] = tokens[0]
    if len(set(ids.values())) != len(ids):
        said = (
            f"expected a token of its own for each of the letters {', '.join(letters)}, got {ids}"
        )
        raise VLMError(f"tokenizer: {said}")
    return ids
