"""What the three engines do alike: render a prompt, expand the images once, and read the letters."""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.vlm_client import LetterRead, ManyReads, SeenImage, TokenUsage, read_each
from agentic_iqa_local.vlm_client.chat import ChatPrompt
from agentic_iqa_local.vlm_client.letters import resolve_letters
from agentic_iqa_local.vlm_client.rendering import Expanded, Rendered, Renderer


class EngineClient:
    """One model folder's processor, and what a result records of the model."""

    reads_logits = reads_words = True

    def __init__(self, name: str, settings: ModelSettings, weights: bool = True):
        self.renderer = Renderer(name, settings, weights)
        self.name, self.settings = name, settings
        self.label = name  # how messages call the model
        self.limits, self.notice, self.trust = self.renderer.limits, self.renderer.notice, self.renderer.trust

    def open(self, images: Sequence[Image.Image]) -> Any:
        raise NotImplementedError

    def read_many(
        self,
        pictures: Sequence[Sequence[Image.Image]],
        prompt: ChatPrompt,
        answer_prefix: str,
        letters: Sequence[str],
    ) -> ManyReads:
        """`VLMClient.read_many` for an engine that computes together what several threads ask of it."""
        at_once = min(self.settings.max_in_flight, len(pictures))
        return read_each(self, pictures, prompt, answer_prefix, letters, at_once)

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.renderer.config.model_type,
            "prompt_layout": self.settings.prompt_layout,
            "notice": self.notice,
        }

    def close(self) -> None:
        raise NotImplementedError


class EngineSession:
    """One assessment's images."""

    def __init__(self, client: Any, images: Sequence[Image.Image]):
        self.client, self.images = client, list(images)
        self.usage = TokenUsage()
        self.seen: list[SeenImage] = []
        self._expanded: Expanded | None = None

    def close(self) -> None:
        self._expanded, self.images = None, []

    def read_letters(self, prompt: ChatPrompt, answer_prefix: str, letters: Sequence[str]) -> LetterRead:
        """Raw log-probabilities over the full vocabulary at the position after `answer_prefix`."""
        renderer = self.client.renderer
        prompt, words = renderer.asked(prompt)
        rendered = renderer.render(prompt, len(self.images), answer_prefix)
        token_ids = resolve_letters(renderer.encode, rendered.text, letters, words)
        logprobs = self._logprobs(rendered, list(token_ids.values()))
        return LetterRead.of(self.client.label, logprobs, token_ids)

    def generate(
        self,
        prompt: ChatPrompt,
        schema: type[BaseModel],
        *,
        answer_prefix: str = "",
        temperature: float = 0.0,
        max_tokens: int = 512,
    ) -> str:
        """The answer's JSON text, by default greedy."""
        rendered = self.client.renderer.render(prompt, len(self.images), answer_prefix)
        return self._write(rendered, schema, temperature, max_tokens)

    def _write(self, rendered: Rendered, schema: type[BaseModel], temperature: float, max_tokens: int) -> str:
        """What `generate` returns: the answer that begins as `rendered` does. Raises VLMError."""
        raise NotImplementedError

    def _count(self, prompt: list[int], reused: int) -> None:
        """Counts a call whose prompt, with the answer so far, was found in the cache up to `reused` tokens."""
        self.usage.calls += 1
        self.usage.reused += reused
        self.usage.prefilled += len(prompt) - reused

    def _logprobs(self, rendered: Rendered, tokens: list[int]) -> Mapping[int, float]:
        """The log-probability of each of `tokens` right after `rendered`, by token id. Raises VLMError."""
        raise NotImplementedError

    def _expand(self, rendered: Rendered) -> Expanded:
        """The images after the processor, computed with whichever prompt comes first."""
        expanded = self._expanded or self.client.renderer.expand(rendered, self.images)
        self._expanded, self.seen = expanded, expanded.seen
        return expanded
