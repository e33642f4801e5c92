"""A model served by vLLM's OpenAI-compatible server on this machine or this rack: one copy for several users.

The processor's files lie here too (no weights are needed): prompts are rendered locally, what the server made
of them comes back as token ids, and an answer about other tokens is refused. Images travel as PNG, so that no
pixel changes.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.config_sections import ModelSettings
from agentic_iqa_local.nodes.prompts import Prompt
from agentic_iqa_local.vlm_client import (
    LetterRead,
    ManyReads,
    SeenImage,
    TokenUsage,
    VLMError,
    read_each,
)
from agentic_iqa_local.vlm_client.constraints import json_schema, rest_of_answer
from agentic_iqa_local.vlm_client.letters import read_letters
from agentic_iqa_local.vlm_client.rendering import Expanded, Rendered, Renderer
from agentic_iqa_local.vlm_client.server_answers import (
    Completion,
    LetterCompletion,
    ModelList,
    TextCompletion,
    Version,
)
from agentic_iqa_local.vlm_client.server_connection import Connection

# A model folder's own generation settings, a repetition penalty among them, must not change an answer.
PLAIN_SAMPLING = {"repetition_penalty": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}

ACompletion = TypeVar("ACompletion", bound=Completion)


class ServerClient:
    """A connection to one served model. Sessions may be used from many threads."""

    reads_logits = reads_words = True

    def __init__(self, name: str, settings: ModelSettings, device: str):
        self.renderer = Renderer(name, settings, weights=False)
        self.name, self.settings = name, settings
        self.limits, self.notice, self.trust = self.renderer.limits, self.renderer.notice, self.renderer.trust
        for key, only in (("exact", False), ("quantization", "none")):
            if getattr(settings, key) != only:
                raise VLMError(
                    f"backend server: expected {key}: {str(only).lower()}, for that is decided where the"
                    " server starts",
                    "change it",
                )
        assert isinstance(settings.server, str)  # `several_servers` gives each its own client
        self.connection = Connection(settings.server, settings.server_timeout, self.renderer.folder)
        self.url = self.connection.url
        self.served = self._served_model()
        version = self.connection.call("GET", "/version", Version).version
        self.version = self.connection.shown(version, 60)

    def _served_model(self) -> str:
        """The name under which the server has the model. Raises VLMError where it has none, another or
        several."""
        models = [model.id for model in self.connection.call("GET", "/v1/models", ModelList).data]
        if not models:
            raise VLMError(
                f"server {self.url}: expected a model, it serves none",
                f"start vllm serve {self.renderer.folder}",
            )
        wanted = self.settings.served_name or models[0]
        serves = self.connection.shown(", ".join(models))
        if wanted not in models:
            raise VLMError(f"server {self.url}: expected the model {wanted}, it serves {serves}")
        if len(models) > 1 and self.settings.served_name is None:
            raise VLMError(f"server {self.url}: serves {serves}", "name one with served_name")
        return wanted

    def open(self, images: Sequence[Image.Image]) -> "ServerSession":
        """A session on [test image] or [reference, test image]; nothing is sent yet."""
        return ServerSession(self, list(images))

    def read_many(
        self,
        pictures: Sequence[Sequence[Image.Image]],
        prompt: Prompt,
        answer_prefix: str,
        letters: Sequence[str],
    ) -> ManyReads:
        """The engine computes together what several threads ask of it."""
        at_once = min(self.settings.max_in_flight, len(pictures))
        return read_each(self, pictures, prompt, answer_prefix, letters, at_once)

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.renderer.config.model_type,
            "engine": f"vllm server {self.version}",
            "served_as": self.connection.shown(self.served),
            "dtype": "the server's",
            "device": self.url,
            "prompt_layout": self.settings.prompt_layout,
            "notice": self.notice,
        }

    def close(self) -> None:
        self.connection.close()


class ServerSession:
    """One assessment's images, encoded once."""

    constrained = True

    def __init__(self, client: ServerClient, images: list[Image.Image]):
        self.client, self.images = client, images
        self.usage = TokenUsage()
        self.seen: list[SeenImage] = []
        self._expanded: Expanded | None = None
        self._urls: list[str] = []
        self._calls = 0

    def close(self) -> None:
        self._expanded, self._urls, self.images = None, [], []

    def generate(
        self,
        prompt: Prompt,
        schema: type[BaseModel],
        *,
        answer_prefix: str = "",
        temperature: float = 0.0,
        max_tokens: int = 512,
    ) -> str:
        """The answer's JSON text, by default greedy."""
        client = self.client
        rendered = client.renderer.render(prompt, len(self.images), answer_prefix)
        constraint = (
            {"grammar": rest_of_answer(schema, answer_prefix)}
            if answer_prefix
            else {"json": json_schema(schema)}
        )
        room = max_tokens - len(rendered.answer_ids)
        options = {
            "max_tokens": room,
            "temperature": temperature,
            "seed": self._calls,
            "structured_outputs": constraint,
        }
        answer = self._ask(prompt, rendered, answer_prefix, options, TextCompletion)
        self.usage.decoded += answer.usage.completion_tokens
        self.usage.forward_passes += answer.usage.completion_tokens
        if (content := answer.choices[0].message.content) is None:
            raise VLMError(
                f"server {client.url}: expected an answer, got none", "start it without a reasoning parser"
            )
        return answer_prefix + client.connection.without_secrets(content)

    def read_letters(self, prompt: Prompt, answer_prefix: str, letters: Sequence[str]) -> LetterRead:
        """Raw log-probabilities over the full vocabulary at the position after `answer_prefix`."""
        client = self.client
        prompt, words = client.renderer.asked(prompt)
        rendered = client.renderer.render(prompt, len(self.images), answer_prefix)

        def logprobs_of(tokens: list[int]) -> Mapping[int, float]:
            options = {
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": True,
                "logprob_token_ids": tokens,
                "return_tokens_as_token_ids": True,
            }
            answer = self._ask(prompt, rendered, answer_prefix, options, LetterCompletion)
            self.usage.forward_passes += 1
            entries = answer.choices[0].logprobs.content[0].top_logprobs
            by_name = {entry.token: entry.logprob for entry in entries}
            names = {token: f"token_id:{token}" for token in tokens}
            if len(by_name) < len(entries) or not by_name.keys() >= set(names.values()):
                raise VLMError(
                    f"server {client.url}: expected one log-probability of each letter's token, got"
                    f" {client.connection.shown(', '.join(entry.token for entry in entries))}",
                    "it must be a vLLM server that honours logprob_token_ids",
                )
            return {token: by_name[name] for token, name in names.items()}

        return read_letters(
            f"server {client.url}", client.renderer.encode, rendered.text, letters, logprobs_of, words
        )

    def _ask(
        self,
        prompt: Prompt,
        rendered: Rendered,
        answer_prefix: str,
        options: dict[str, Any],
        kind: type[ACompletion],
    ) -> ACompletion:
        """One chat completion. Raises VLMError when the server saw other tokens than the processor here
        makes."""
        client, renderer = self.client, self.client.renderer
        if self._expanded is None:
            self._expanded = renderer.expand(rendered, self.images)
            self.seen = self._expanded.seen
            self._urls = [_png(image) for image in self.images]
        self._calls += 1
        body = {
            "model": client.served,
            "messages": _with_images(renderer.messages(prompt, len(self.images)), self._urls),
            "add_generation_prompt": not answer_prefix,
            "return_token_ids": True,
            **PLAIN_SAMPLING,
            **options,
        }
        if answer_prefix:
            body["messages"].append({"role": "assistant", "content": answer_prefix})
            body["continue_final_message"] = True
        # the server must have been started to allow it
        if renderer.size and (client.settings.min_pixels or client.settings.max_pixels):
            body["mm_processor_kwargs"] = {"size": renderer.size}
        answer = client.connection.call("POST", "/v1/chat/completions", kind, body)
        whole = rendered.prompt_with(self._expanded) + rendered.answer_ids
        if answer.prompt_token_ids != whole:
            raise VLMError(
                f"server {client.url}: expected it to see the {len(whole)} tokens that the processor in"
                f" {renderer.folder} makes, it saw {len(answer.prompt_token_ids or [])} others",
                "serve the same model folder with vLLM",
            )
        if answer.usage.completion_tokens > options["max_tokens"] or answer.cached_tokens > len(whole):
            raise VLMError(
                f"server {client.url}: expected at most {options['max_tokens']} new and {len(whole)} cached"
                " tokens, it counted more",
                "is it vLLM?",
            )
        self.usage.calls += 1
        self.usage.reused += answer.cached_tokens
        self.usage.prefilled += len(whole) - answer.cached_tokens
        return answer


def _png(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _with_images(messages: list[dict[str, Any]], urls: list[str]) -> list[dict[str, Any]]:
    """`messages` with the pictures in their places."""
    left = iter(urls)
    return [
        message
        | {
            "content": [
                {"type": "image_url", "image_url": {"url": next(left)}} if part["type"] == "image" else part
                for part in message["content"]
            ]
        }
        for message in messages
    ]
