"""A model served by vLLM's OpenAI-compatible server on this machine or this rack: one copy for
several users.

The processor's files lie here too (no weights are needed): prompts are rendered locally, what the
server made of them comes back as token ids, and an answer about other tokens is refused. Images
travel as PNG, so that no pixel changes.
"""

import base64
import functools
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion
from PIL import Image
from pydantic import BaseModel, ValidationError

from agentic_iqa_local.config import ConfigError, ModelSettings, server_key
from agentic_iqa_local.files import first_mistake
from agentic_iqa_local.vlm_client import ModelLost, VLMClient, VLMError, VLMSession
from agentic_iqa_local.vlm_client.chat import chat_messages
from agentic_iqa_local.vlm_client.constraints import json_schema
from agentic_iqa_local.vlm_client.rendering import Rendered, Renderer, first_line

# A model folder's own generation settings, a repetition penalty among them, must not change an
# answer.
PLAIN_SAMPLING = {"repetition_penalty": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
LARGEST_ANSWER = 2**24  # bytes; the token ids of a long prompt take some hundred thousand
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
        try:
            key = server_key()
        except ConfigError as error:
            raise VLMError(error.message, error.remedy) from None
        self.label = f"server {self.url}"
        # A proxy of the environment would be asked for this machine's own server, and a redirection
        # would take the pictures elsewhere.
        http = openai.DefaultHttpxClient(
            trust_env=False, follow_redirects=False, event_hooks={"response": [self._limit]}
        )
        self.openai = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=key or "none",
            timeout=settings.server_timeout,
            max_retries=0,
            default_headers={"Connection": "close"},  # one that was idle may be closed by now
            http_client=http,
        )
        self.served = self._served_model()
        self.version = self.ask(ServerVersion, f"{self.url}/version").version[:100]

    def ask(self, kind: type[Answer], path: str, body: dict[str, Any] | None = None) -> Answer:
        """What the server has at `path`, or answers to a `body` that is posted there. Raises
        ModelLost for a server or engine that is gone, VLMError for every other failure and for an
        answer of another shape."""
        try:
            if body is None:
                text = self.openai.get(path, cast_to=str)
            else:
                text = self.openai.post(path, body=body, cast_to=str)
            return kind.model_validate_json(text)
        except openai.APITimeoutError:
            expected = f"expected an answer in {self.settings.server_timeout:g} s, got none"
            raise VLMError(f"{self.label}: {expected}", "raise server_timeout") from None
        except openai.APIStatusError as error:
            status, text = error.status_code, " ".join(error.response.text[:300].split())
            lost = status in NOT_REACHED or (status == 500 and not self._is_healthy())
            kind_of_error = ModelLost if lost else VLMError
            raise kind_of_error(f"{self.label}: failed with {status} ({text})") from None
        except openai.APIConnectionError as error:
            got = f"got none ({first_line(error.__cause__ or error)})"
            advice = f"start one with vllm serve {self.renderer.folder} or set server"
            raise ModelLost(f"{self.label}: expected a vLLM server, {got}", advice) from None
        except ValidationError as error:
            got = f"got something else ({first_mistake(error)})"
            mistake = f"{self.label}: expected a vLLM server's answer, {got}"
            raise VLMError(mistake, "is it vLLM?") from None

    def _limit(self, response: Any) -> None:
        """Ends an answer that does not come in time or is endless: the library's own time limit
        begins anew with each byte."""
        chunks = response.iter_raw
        end = time.monotonic() + self.settings.server_timeout

        def limited(size: int | None = None) -> Iterator[bytes]:
            received = 0
            for chunk in chunks(size):
                received += len(chunk)
                if received > LARGEST_ANSWER:
                    said = f"more than {LARGEST_ANSWER} bytes"
                    raise openai.APIConnectionError(message=said, request=response.request)
                if time.monotonic() > end:
                    raise openai.APITimeoutError(response.request)
                yield chunk

        response.iter_raw = limited

    def _is_healthy(self) -> bool:
        """Whether the server's engine still runs; vLLM's server may outlive it."""
        try:
            self.openai.get(f"{self.url}/health", cast_to=str)
        except openai.OpenAIError:
            return False
        return True

    def _served_model(self) -> str:
        """The name under which the server has the model. Raises VLMError unless it serves it, or
        one model only."""
        models = [model.id for model in self.ask(ServedModels, "/models").data]
        wanted = self.settings.served_name
        if wanted in models:
            return wanted
        if wanted is None and len(models) == 1:
            return models[0]
        expected = f"expected the model {wanted}" if wanted else "expected one model"
        serves = ", ".join(models)[:300] or "none"
        advice = f"name one of them with served_name, or start vllm serve {self.renderer.folder}"
        raise VLMError(f"{self.label}: {expected}, it serves {serves}", advice)

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
        self.openai.close()


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
        layout = client.settings.prompt_layout
        messages = chat_messages(rendered.prompt, len(self.images), layout, self._parts)
        body = {"model": client.served, "messages": messages, "return_token_ids": True}
        if rendered.answer_prefix:
            messages.append({"role": "assistant", "content": rendered.answer_prefix})
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        # the server must have been started to allow it
        if renderer.size and (client.settings.min_pixels or client.settings.max_pixels):
            body["mm_processor_kwargs"] = {"size": renderer.size}
        completion = client.ask(Completion, "/chat/completions", body | PLAIN_SAMPLING | options)
        if completion.prompt_token_ids != whole:
            makes = f"the {len(whole)} tokens that the processor in {renderer.folder} makes"
            mistake = f"{client.label}: expected it to see {makes}, it saw others"
            raise VLMError(mistake, "serve the same model folder with vLLM")
        details = completion.usage.prompt_tokens_details
        self._count(whole, (details and details.cached_tokens) or 0)
        return completion
