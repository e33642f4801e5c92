"""A model served by vLLM's OpenAI-compatible server on this machine or this rack: one copy for
several users.

The processor's files lie here too (no weights are needed): prompts are rendered locally, what the
server made of them comes back as token ids, and an answer about other tokens is refused. Images
travel as PNG, so that no pixel changes.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion
from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.vlm_client import VLMClient, VLMError, VLMSession
from agentic_iqa_local.vlm_client.chat import chat_messages
from agentic_iqa_local.vlm_client.connection import Connection, png_text, server_key
from agentic_iqa_local.vlm_client.constraints import json_schema
from agentic_iqa_local.vlm_client.rendering import Rendered, Renderer

# A model folder's own generation settings, a repetition penalty among them, must not change an
# answer.
PLAIN_SAMPLING = {"repetition_penalty": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
DEFAULT_SERVER = "http://127.0.0.1:8000"


class ServerVersion(BaseModel):
    """What a vLLM server says of itself."""

    version: str


class Completion(ChatCompletion):
    """A chat completion of a vLLM server, with the token ids that it saw."""

    prompt_token_ids: list[int]
    usage: CompletionUsage  # pyright: ignore[reportGeneralTypeIssues]  # always there


class ServerClient(VLMClient):
    """A connection to one served model. Sessions may be used from many threads."""

    def __init__(self, name: str, settings: ModelSettings, device: str):
        super().__init__(name, settings, Renderer(name, settings, weights=False))
        self.require("server", exact=False, quantization="none")
        start = f"vllm serve {self.renderer.folder}"
        url = settings.server or DEFAULT_SERVER
        self.server = Connection(url, server_key(), settings.server_timeout, "vLLM", start)
        self.label = self.server.label
        self.served = self.server.served().id
        self.version = self.server.ask(ServerVersion, f"{url}/version").version[:100]

    def open(self, images: Sequence[Image.Image]) -> "ServerSession":
        return ServerSession(self, images)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "engine": f"vllm server {self.version}",
            "served_as": self.served,
            "dtype": "the server's",
            "device": self.server.url,
        }

    def close(self) -> None:
        """Nothing is held: each answer has a connection of its own."""


class ServerSession(VLMSession):
    """One assessment's images, encoded once."""

    client: ServerClient

    @functools.cached_property
    def _parts(self) -> list[dict[str, Any]]:
        """The images as parts of a chat message."""
        urls = [f"data:image/png;base64,{png_text(image)}" for image in self.images]
        return [{"type": "image_url", "image_url": {"url": url}} for url in urls]

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
        completion = client.server.ask(
            Completion, "/chat/completions", body | PLAIN_SAMPLING | options
        )
        if completion.prompt_token_ids != whole:
            makes = f"the {len(whole)} tokens that the processor in {renderer.folder} makes"
            mistake = f"{client.label}: expected it to see {makes}, it saw others"
            raise VLMError(mistake, "serve the same model folder with vLLM")
        details = completion.usage.prompt_tokens_details
        self._count(whole, (details and details.cached_tokens) or 0)
        return completion
