"""A model served by vLLM's OpenAI-compatible server on this machine or this rack: one copy for several users.

The processor's files lie here too (no weights are needed): prompts are rendered locally, what the server made of them
comes back as token ids, and an answer about other tokens is refused. Images travel as PNG, so that no pixel changes.
"""

import base64
import io
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.config import ModelSettings, server_key
from agentic_iqa_local.prompts import Prompt
from agentic_iqa_local.vlm_client import LetterRead, ModelLost, SeenImage, TokenUsage, VLMError
from agentic_iqa_local.vlm_client.constraints import json_schema, rest_of_answer
from agentic_iqa_local.vlm_client.letters import resolve_letters
from agentic_iqa_local.vlm_client.rendering import Expanded, Rendered, Renderer, first_line

# A model folder's own generation settings, a repetition penalty among them, must not change an answer.
PLAIN_SAMPLING = {"repetition_penalty": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}


class ServerClient:
    """A connection to one served model. Sessions may be used from many threads."""

    reads_logits = True

    def __init__(self, name: str, settings: ModelSettings, device: str):
        self.renderer = Renderer(name, settings, weights=False)
        self.name, self.settings, self.limits, self.notice = name, settings, self.renderer.limits, self.renderer.notice
        for key, only in (("exact", False), ("quantization", "none")):
            if getattr(settings, key) != only:
                raise VLMError(
                    f"backend server: expected {key}: {str(only).lower()}, for that is decided where the server starts; change it"
                )
        self.url = settings.server.rstrip("/")
        key = server_key()
        self._http = httpx.Client(
            timeout=settings.server_timeout, trust_env=False, headers={"Authorization": f"Bearer {key}"} if key else {}
        )
        try:
            models = [entry["id"] for entry in self.call("GET", "/v1/models")["data"]]
        except (KeyError, TypeError) as error:
            raise VLMError(
                f"server {self.url}: expected a list of models at /v1/models, got something else; is it vLLM?"
            ) from error
        if not models:
            raise VLMError(f"server {self.url}: expected a model, it serves none; start vllm serve {self.renderer.folder}")
        self.served = settings.served_name or models[0]
        if self.served not in models:
            raise VLMError(f"server {self.url}: expected the model {self.served}, it serves {', '.join(models)}")
        if len(models) > 1 and settings.served_name is None:
            raise VLMError(f"server {self.url}: serves {', '.join(models)}; name one with served_name")
        self.version = self.call("GET", "/version").get("version", "unknown")

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request. Raises VLMError with what the server said, ModelLost where it or its engine has gone."""
        try:
            answer = self._http.request(method, self.url + path, json=body)
        except httpx.TimeoutException as error:
            raise VLMError(f"server {self.url}: no answer in {self.settings.server_timeout} s; raise server_timeout") from error
        except httpx.HTTPError as error:
            raise ModelLost(
                f"server {self.url}: expected a vLLM server, got none ({first_line(error)}); start one with "
                f"vllm serve {self.renderer.folder} or set server"
            ) from error
        if answer.is_success:
            try:
                return answer.json()
            except ValueError as error:
                raise VLMError(f"server {self.url}: expected JSON from {path}, got something else; is it vLLM?") from error
        said = answer.text.strip().replace("\n", " ")[:300]
        gone = answer.status_code in (502, 503, 504) or (answer.status_code == 500 and not self._healthy())
        raise (ModelLost if gone else VLMError)(f"server {self.url}: {path} failed with {answer.status_code} ({said})")

    def _healthy(self) -> bool:
        """Whether the server's engine still runs; vLLM's server may outlive it."""
        try:
            return self._http.get(f"{self.url}/health").is_success
        except httpx.HTTPError:
            return False

    def open(self, images: Sequence[Image.Image]) -> "ServerSession":
        """A session on [test image] or [reference, test image]; nothing is sent yet."""
        return ServerSession(self, list(images))

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.renderer.config.model_type,
            "engine": f"vllm server {self.version}",
            "served_as": self.served,
            "dtype": "the server's",
            "device": self.url,
            "prompt_layout": self.settings.prompt_layout,
            "notice": self.notice,
        }

    def close(self) -> None:
        self._http.close()


class ServerSession:
    """One assessment's images, encoded once."""

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
        self, prompt: Prompt, schema: type[BaseModel], *, answer_prefix: str = "", temperature: float = 0.0, max_tokens: int = 512
    ) -> str:
        """The answer's JSON text, by default greedy."""
        rendered = self.client.renderer.render(prompt, len(self.images), answer_prefix)
        constraint = {"grammar": rest_of_answer(schema, answer_prefix)} if answer_prefix else {"json": json_schema(schema)}
        answer = self._ask(
            prompt,
            rendered,
            answer_prefix,
            {
                "max_tokens": max_tokens - len(rendered.answer_ids),
                "temperature": temperature,
                "seed": self._calls,
                "structured_outputs": constraint,
            },
        )
        self.usage.decoded += answer["usage"]["completion_tokens"]
        self.usage.forward_passes += answer["usage"]["completion_tokens"]
        if (content := answer["choices"][0]["message"]["content"]) is None:
            raise VLMError(f"server {self.client.url}: expected an answer, got none; start it without a reasoning parser")
        return answer_prefix + content

    def read_letters(self, prompt: Prompt, answer_prefix: str, letters: Sequence[str]) -> LetterRead:
        """Raw log-probabilities over the full vocabulary at the position after `answer_prefix`."""
        rendered = self.client.renderer.render(prompt, len(self.images), answer_prefix)
        token_ids = resolve_letters(self.client.renderer.encode, rendered.text, letters)
        answer = self._ask(
            prompt,
            rendered,
            answer_prefix,
            {
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": True,
                "logprob_token_ids": list(token_ids.values()),
                "return_tokens_as_token_ids": True,
            },
        )
        self.usage.forward_passes += 1
        found = {entry["token"]: entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
        try:
            picked = {letter: float(found[f"token_id:{token}"]) for letter, token in token_ids.items()}
        except KeyError as error:
            raise VLMError(
                f"server {self.client.url}: expected log-probabilities of the letters' tokens, got {sorted(found)}; "
                "it must be a vLLM server that honours logprob_token_ids"
            ) from error
        if not np.isfinite(list(picked.values())).all():
            raise VLMError(f"server {self.client.url}: gave log-probabilities that are not finite; start it with --dtype float32")
        on_letters = float(np.exp(np.logaddexp.reduce(list(picked.values()))))
        return LetterRead(picked, max(0.0, 1.0 - on_letters), token_ids)

    def _ask(self, prompt: Prompt, rendered: Rendered, answer_prefix: str, options: dict[str, Any]) -> dict[str, Any]:
        """One chat completion. Raises VLMError when the server saw other tokens than the processor here makes."""
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
        if renderer.size and (
            client.settings.min_pixels or client.settings.max_pixels
        ):  # the server must have been started to allow it
            body["mm_processor_kwargs"] = {"size": renderer.size}
        answer = client.call("POST", "/v1/chat/completions", body)
        if not answer.get("choices") or "usage" not in answer:
            raise VLMError(f"server {client.url}: expected a chat completion, got {sorted(answer)}; is it vLLM?")
        whole = [*rendered.head, *self._expanded.ids, *rendered.tail, *rendered.answer_ids]
        if answer.get("prompt_token_ids") != whole:
            raise VLMError(
                f"server {client.url}: expected it to see the {len(whole)} tokens that the processor in {renderer.folder} makes, "
                f"it saw {len(answer.get('prompt_token_ids') or [])} others; serve the same model folder with vLLM"
            )
        cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self.usage.calls += 1
        self.usage.reused += cached
        self.usage.prefilled += len(whole) - cached
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
