"""A vision-language model: its client, its session, and the table of engines.

A client holds one loaded model. A session is opened on an assessment's images and offers two
operations: generation constrained to a pydantic schema, and the letter read. Both render the prompt
here, the same for every engine. Nothing here knows quality levels, plans or tools, and nothing
imports torch.
"""

import importlib
import math
import operator
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

from agentic_iqa_local.config import split_backend
from agentic_iqa_local.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

    from agentic_iqa_local.config import ModelSettings
    from agentic_iqa_local.vlm_client.chat import ChatPrompt
    from agentic_iqa_local.vlm_client.rendering import Expanded, Rendered, Renderer

ENGINES = {
    "transformers": "agentic_iqa_local.vlm_client.transformers_client:TransformersClient",
    "vllm": "agentic_iqa_local.vlm_client.vllm_client:VllmClient",
    "server": "agentic_iqa_local.vlm_client.server_client:ServerClient",
    "llamacpp": "agentic_iqa_local.vlm_client.llamacpp_client:LlamaCppClient",
}


# One pass of transformers at a time in this process: Qwen's models keep positions of the image that
# ran last, and Q-Align puts classes of its own in place of transformers' while it runs.
ONE_PASS = threading.Lock()


class VLMError(UserError, RuntimeError):
    """A model that cannot be loaded or run; the message is one sentence for the user."""


class OutOfMemory(VLMError):
    """A call for which the device or the host had no memory left. With fewer calls at once, or a
    smaller image, it may succeed."""


class ModelLost(VLMError):
    """A model that can no longer answer: its engine, its server or its card has failed, so every
    later call would fail too."""


@dataclass
class TokenUsage:
    """Work of `calls` reads and generations: `prefilled` tokens went through the model as input,
    `reused` ones were found in the cache, and `decoded` ones were chosen one by one."""

    calls: int = 0
    prefilled: int = 0
    reused: int = 0
    decoded: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(*map(operator.sub, astuple(self), astuple(other)))


OVERFLOW = "its weights are damaged, or it overflows: set dtype: float32, or use another model"
LOGPROB_ROUNDING = 1e-3
"""Tolerance: how far a log-probability may lie above 0, and the sum of the letters' probabilities
above 1. A softmax in float32 over 10⁵ tokens is off by less than a tenth of it."""

NO_PROBABILITY = -9999.0
"""What vLLM's server writes for −inf. Letters are read without a mask, and finite logits give every
token a log-probability far above this, so −inf means that the model overflowed."""


@dataclass(frozen=True)
class LetterRead:
    """Raw log-probabilities (natural log, over the full vocabulary) of the answer letters at one
    position, and the probability of all other tokens, 0..1."""

    logprobs: dict[str, float]
    off_letter_mass: float
    token_ids: dict[str, int]

    @classmethod
    def of(cls, engine: str, logprobs: Mapping[int, float], token_ids: dict[str, int]) -> Self:
        """The letters' part of `logprobs`, which are by token id. Raises VLMError, which begins
        with `engine`, unless each is a number above NO_PROBABILITY and at most 0, and the
        probabilities sum to at most 1, both within LOGPROB_ROUNDING."""
        values = {}
        for letter, token in token_ids.items():
            values[letter] = value = logprobs.get(token)
            if value is None or not NO_PROBABILITY < value <= LOGPROB_ROUNDING:
                expected = f"a finite log-probability of at most 0 for the letter {letter}"
                raise VLMError(f"{engine}: expected {expected}, got {value!r:.40}", OVERFLOW)
        total = math.fsum(map(math.exp, values.values()))
        if total > 1 + LOGPROB_ROUNDING:
            expected = f"probabilities of {', '.join(values)} that sum to at most 1"
            raise VLMError(f"{engine}: expected {expected}, got {total:.4g}", "use another model")
        return cls(values, max(0.0, 1.0 - total), token_ids)


@dataclass(frozen=True)
class SeenImage:
    """What the model saw of one image: pixels after the processor (None where it tiles), and the
    tokens they became."""

    width: int | None
    height: int | None
    tokens: int


@dataclass(frozen=True)
class PixelLimits:
    """The model's range: sides are multiples of `factor` pixels; None where the processor sets no
    such limit."""

    factor: int
    min_pixels: int
    max_pixels: int | None


class VLMSession:
    """A model opened on one assessment's images (the reference first, if there is one): `usage`
    says what was computed so far, `seen` what the model saw of each image. An engine adds `_write`
    and `_logprobs`."""

    def __init__(self, client: Any, images: "Sequence[Image.Image]"):
        self.client, self.images = client, list(images)
        self.usage = TokenUsage()
        self.seen: list[SeenImage] = []
        self._expanded: Expanded | None = None

    def generate(
        self,
        prompt: "ChatPrompt",
        schema: type[BaseModel],
        *,
        temperature: float = 0.0,
        max_tokens: int = 512,
    ) -> str:
        """The answer, by default greedy, as JSON text; it is cut at `max_tokens`. Raises
        VLMError."""
        rendered = self.client.renderer.render(prompt, len(self.images))
        return self._write(rendered, schema, temperature, max_tokens)

    def read_letters(
        self, prompt: "ChatPrompt", answer_prefix: str, letters: Sequence[str]
    ) -> LetterRead:
        """Log-probabilities of `letters` as the token right after `answer_prefix`. Raises VLMError
        if one is not a single token. Of words the first token is read."""
        rendered, token_ids = self.client.renderer.letters(
            prompt, len(self.images), answer_prefix, letters
        )
        logprobs = self._logprobs(rendered, list(token_ids.values()))
        return LetterRead.of(self.client.label, logprobs, token_ids)

    def close(self) -> None:
        """Frees the cache."""
        self._expanded, self.images = None, []

    def _write(
        self, rendered: "Rendered", schema: type[BaseModel], temperature: float, max_tokens: int
    ) -> str:
        """What `generate` returns. Raises VLMError."""
        raise NotImplementedError

    def _logprobs(self, rendered: "Rendered", tokens: list[int]) -> Mapping[int, float]:
        """The log-probability of each of `tokens` right after `rendered`, by token id. Raises
        VLMError."""
        raise NotImplementedError

    def _expand(self, rendered: "Rendered") -> "Expanded":
        """The images after the processor, computed with whichever prompt comes first."""
        expanded = self._expanded or self.client.renderer.expand(rendered, self.images)
        self._expanded, self.seen = expanded, expanded.seen
        return expanded

    def _count(self, prompt: list[int], reused: int) -> None:
        """Counts a call whose prompt, with the answer so far, was found in the cache up to `reused`
        tokens."""
        self.usage += TokenUsage(calls=1, reused=reused, prefilled=len(prompt) - reused)


@dataclass(frozen=True)
class ManyReads:
    """The letters of many pictures, in their order, and what was computed for them."""

    reads: list[LetterRead]
    usage: TokenUsage


class VLMClient:
    """One loaded model: a folder's processor (`renderer`), and what an engine does with it.

    `label` is what messages call the model, `limits` its range of pixels. `trust` is how far its
    own Yes and No about distortions and its severities count, 0..1, as its folder says; 1 for a
    model that was not measured. `letters_temperature` is by what the folder says that the letters of
    a rating are divided where tools vote, 1 for a model without a fit.
    """

    reads_logits = True

    def __init__(self, name: str, settings: "ModelSettings", renderer: "Renderer"):
        self.name = self.label = name
        self.settings, self.renderer = settings, renderer
        self.at_once = settings.max_in_flight
        self.limits, self.trust = renderer.limits, renderer.trust
        self.letters_temperature = renderer.letters_temperature

    def require(self, engine: str, **only: Any) -> None:
        """Raises VLMError for a setting that the engine would ignore: one with another value than
        its `only` one."""
        for key, value in only.items():
            got = getattr(self.settings, key)
            if got != value:
                mistake = f"backend {engine}: expected {key}: {value}, got {got}"
                raise VLMError(mistake, "change it or use another engine")

    def open(self, images: "Sequence[Image.Image]") -> VLMSession:
        """A session on one image, or on [reference, test image]."""
        raise NotImplementedError

    def read_many(
        self,
        pictures: "Sequence[Sequence[Image.Image]]",
        prompt: "ChatPrompt",
        answer_prefix: str,
        letters: Sequence[str],
    ) -> ManyReads:
        """What a session's `read_letters` would give of each of `pictures` (one or more, each the
        images of a session), to rounding, at the cost of one batch: by a session for each,
        `at_once` of them at a time, for an engine that batches what several threads ask of it.
        Raises VLMError."""

        def read(images: "Sequence[Image.Image]") -> tuple[LetterRead, TokenUsage]:
            with closing(self.open(images)) as session:
                return session.read_letters(prompt, answer_prefix, letters), session.usage

        with ThreadPoolExecutor(self.at_once) as threads:
            reads, usages = zip(*threads.map(read, pictures), strict=True)
        return ManyReads(list(reads), sum(usages, TokenUsage()))

    def describe(self) -> dict[str, Any]:
        """What a result records of the model: its name, dtype, device, versions and more."""
        return {
            "name": self.name,
            "type": self.renderer.config.model_type,
            "notice": self.renderer.notice,
        }

    def close(self) -> None:
        """Frees the model, or ends the connection; nothing can be asked afterwards."""
        raise NotImplementedError


def create_vlm_client(backend: str, settings: "ModelSettings", device: str = "cpu") -> VLMClient:
    """Loads the model that `backend` ("transformers.<folder>") names. Raises VLMError for an
    unknown backend or bad folder."""
    try:
        engine, name = split_backend(backend)
    except ValueError as error:
        raise VLMError(f"backend: {error}") from None
    module, _, cls = ENGINES[engine].partition(":")
    return getattr(importlib.import_module(module), cls)(name, settings, device)
