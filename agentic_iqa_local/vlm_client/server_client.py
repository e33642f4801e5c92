"""A model served by vLLM's OpenAI-compatible server on this machine or this rack: one copy for
several users.

The processor's files lie here too (no weights are needed): prompts are rendered locally, what the
server made of them comes back as token ids, and an answer about other tokens is refused. Images
travel as PNG, so that no pixel changes.
"""

import base64
import functools
import io
import os
import re
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion
from PIL import Image
from pydantic import BaseModel, ValidationError

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.files import first_mistake
from agentic_iqa_local.vlm_client import ModelLost, VLMClient, VLMError, VLMSession
from agentic_iqa_local.vlm_client.chat import chat_messages
from agentic_iqa_local.vlm_client.constraints import json_schema
from agentic_iqa_local.vlm_client.rendering import Rendered, Renderer, first_line

# A model folder's own generation settings, a repetition penalty among them, must not change an
# answer.
PLAIN_SAMPLING = {"repetition_penalty": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
NOT_REACHED = (502, 503, 504)  # what stands between gives these statuses when the server is gone


class ServedModel(BaseModel):
    """One model of a server's list."""

    id: str


class ServedModels(BaseModel):
    """A server's list of models."""

    data: list[ServedModel]


class ServerVersion(BaseModel):
    """What a vLLM server says of itself."""

    version: str


class Completion(ChatCompletion):
    """A chat completion of a vLLM server, with the token ids that it saw."""

    prompt_token_ids: list[int]
    usage: CompletionUsage  # pyright: ignore[reportGeneralTypeIssues]  # always there


Answer = TypeVar("Answer", bound=BaseModel)


class ServerClient(VLMClient):
    """A connection to one served model. Sessions may be used from many threads."""

    def __init__(self, name: str, settings: ModelSettings, device: str):
        super().__init__(name, settings, Renderer(name, settings, weights=False))
        self.require("server", exact=False, quantization="none")
        self.url = settings.server
        self.key = os.environ.get("AGENTIC_IQA_SERVER_KEY") or "none"
        if not re.fullmatch("[!-~]+", self.key):
            mistake = "$AGENTIC_IQA_SERVER_KEY: expected printable ASCII without blanks"
            raise VLMError(mistake, "set it anew")
        self.certificates = ssl.create_default_context()
        self.label = f"server {self.url}"
        self.served = self._served_model()
        self.version = self.ask(ServerVersion, f"{self.url}/version").version[:100]

    def ask(self, kind: type[Answer], path: str, body: dict[str, Any] | None = None) -> Answer:
        """What the server has at `path`, or answers to a `body` that is posted there. Raises
        ModelLost for a server or engine that is gone, VLMError for every other failure and for an
        answer of another shape."""
        ends = time.monotonic() + self.settings.server_timeout
        try:
            return kind.model_validate_json(self._text(path, body))
        except openai.APIStatusError as error:
            status, text = error.status_code, " ".join(error.response.text[:300].split())
            lost = status in NOT_REACHED or (status == 500 and not self._is_healthy())
            kind_of_error = ModelLost if lost else VLMError
            raise kind_of_error(f"{self.label}: failed with {status} ({text})") from None
        except openai.APIConnectionError as error:
            if isinstance(error, openai.APITimeoutError) or time.monotonic() >= ends:
                expected = f"expected an answer in {self.settings.server_timeout:g} s, got none"
                raise VLMError(f"{self.label}: {expected}", "raise server_timeout") from None
            got = f"got none ({first_line(error.__cause__ or error)})"
            advice = f"start one with vllm serve {self.renderer.folder} or set server"
            raise ModelLost(f"{self.label}: expected a vLLM server, {got}", advice) from None
        except ValidationError as error:
            got = f"got something else ({first_mistake(error)})"
            mistake = f"{self.label}: expected a vLLM server's answer, {got}"
            raise VLMError(mistake, "is it vLLM?") from None

    def _text(self, path: str, body: dict[str, Any] | None = None) -> str:
        """The server's answer. The time limit is of the whole of it, which ends with its
        connection: the library's own begins anew with each byte."""
        # A proxy of the environment would be asked for this machine's own server, and a redirection
        # would take the pictures elsewhere.
        http = openai.DefaultHttpxClient(
            trust_env=False, follow_redirects=False, verify=self.certificates
        )
        limit, base = self.settings.server_timeout, f"{self.url}/v1"
        connection = openai.OpenAI(
            base_url=base, api_key=self.key, timeout=limit, max_retries=0, http_client=http
        )
        clock = threading.Timer(limit, connection.close)
        clock.daemon = True
        clock.start()
        with connection:
            try:
                if body is None:
                    return connection.get(path, cast_to=str)
                return connection.post(path, body=body, cast_to=str)
            finally:
                clock.cancel()

    def _is_healthy(self) -> bool:
        """Whether the server's engine still runs; vLLM's server may outlive it."""
        try:
            self._text(f"{self.url}/health")
        except openai.OpenAIError:
            return False
        return True

    def _served_model(self) -> str:
        """The name under which the server has its model: the first, before adapters of it."""
        models = self.ask(ServedModels, "/models").data
        if not models:
            advice = f"start vllm serve {self.renderer.folder}"
            raise VLMError(f"{self.label}: expected a model, it serves none", advice)
        return models[0].id

    def open(self, images: Sequence[Image.Image]) -> "ServerSession":
        return ServerSession(self, images)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "engine": f"vllm server {self.version}",
            "served_as": self.served,
            "dtype": "the server's",
            "device": self.url,
        }

    def close(self) -> None:
        """Nothing is held: each answer has a connection of its own."""


class ServerSession(VLMSession):
    """One assessment's images, encoded once."""

    client: ServerClient

    @functools.cached_property
    def _parts(self) -> list[dict[str, Any]]:
        """The images as parts of a chat message."""
        parts = []
        for image in self.images:
            buffer = io.BytesIO()
            image.save(buffer, "PNG", compress_level=1)
            url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
            parts.append({"type": "image_url", "image_url": {"url": url}})
        return parts

    def _write(
        self, rendered: Rendered, schema: type[BaseModel], temperature: float, max_tokens: int
    ) -> str:
        completion = self._complete(
            rendered,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=self.usage.calls,
            structured_outputs={"json": json_schema(schema)},
        )
        text = completion.choices[0].message.content
        if text is None:
            mistake = f"{self.client.label}: expected an answer, got none"
            raise VLMError(mistake, "start it without a reasoning parser")
        self.usage.decoded += completion.usage.completion_tokens
        return text

    def _logprobs(self, rendered: Rendered, tokens: list[int]) -> Mapping[int, float]:
        completion = self._complete(
            rendered,
            max_tokens=1,
            temperature=0,
            logprobs=True,
            logprob_token_ids=tokens,
            return_tokens_as_token_ids=True,
        )
        logprobs = completion.choices[0].logprobs
        content = logprobs.content if logprobs else None
        top = content[0].top_logprobs if content else []
        given = {one.token: one.logprob for one in top}
        try:
            return {token: given[f"token_id:{token}"] for token in tokens}
        except KeyError:
            expected = "expected one log-probability of each letter's token"
            advice = "it must be a vLLM server that honours logprob_token_ids"
            got = ", ".join(given)[:300]
            raise VLMError(f"{self.client.label}: {expected}, got {got}", advice) from None

    def _complete(self, rendered: Rendered, **options: Any) -> Completion:
        """One chat completion with `options`, among them vLLM's own. Raises VLMError if the server
        saw other tokens than the processor here makes."""
        client, renderer = self.client, self.client.renderer
        whole = rendered.prompt_with(self._expand(rendered)) + rendered.answer_ids
        messages = chat_messages(rendered.prompt, len(self.images), self._parts)
        body = {"model": client.served, "messages": messages, "return_token_ids": True}
        if rendered.answer_prefix:
            messages.append({"role": "assistant", "content": rendered.answer_prefix})
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        # the server must have been started to allow it
        if renderer.size and client.settings.max_pixels:
            body["mm_processor_kwargs"] = {"size": renderer.size}
        completion = client.ask(Completion, "/chat/completions", body | PLAIN_SAMPLING | options)
        if completion.prompt_token_ids != whole:
            makes = f"the {len(whole)} tokens that the processor in {renderer.folder} makes"
            mistake = f"{client.label}: expected it to see {makes}, it saw others"
            raise VLMError(mistake, "serve the same model folder with vLLM")
        details = completion.usage.prompt_tokens_details
        self._count(whole, (details and details.cached_tokens) or 0)
        return completion
