"""A model served by vLLM's OpenAI-compatible server on this machine or this rack: one copy for several users.

The processor's files lie here too (no weights are needed): prompts are rendered locally, what the server made
of them comes back as token ids, and an answer about other tokens is refused. Images travel as PNG, so that no
pixel changes.

A server is trusted with the pictures and with the model's answers, and with nothing else: what it sends has a
schema, a limit of bytes and one deadline, is printed in one short line, and never with the key or the
password that it was sent.
"""

import base64
import io
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Annotated, Any, Self, TypeVar

import httpx
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentic_iqa_local.config import ConfigError, ModelSettings, server_key, split_server
from agentic_iqa_local.prompts import Prompt
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import LetterRead, ModelLost, SeenImage, TokenUsage, VLMError
from agentic_iqa_local.vlm_client.constraints import json_schema, rest_of_answer
from agentic_iqa_local.vlm_client.letters import resolve_letters
from agentic_iqa_local.vlm_client.rendering import Expanded, Rendered, Renderer

for library in ("httpx", "httpcore"):  # they log status texts and headers as a server sends them
    logging.getLogger(library).setLevel(logging.WARNING)

# A model folder's own generation settings, a repetition penalty among them, must not change an answer.
PLAIN_SAMPLING = {"repetition_penalty": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}

MAX_ANSWER = 8 * 2**20
"""Bytes of one answer. The ids of a prompt of 262144 tokens, the largest part of any, take two MiB."""

START_TIMEOUT = 15.0
"""Seconds for what a server knows without its model: which models it serves, its version and its health."""

MIN_SECRET = 8
"""Characters from which on a key or a password inside an answer's text is no ordinary word."""


class _Answer(BaseModel):
    """What is used of an answer; the rest is left out."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class _Model(_Answer):
    id: str


class ModelList(_Answer):
    """Of /v1/models."""

    data: Annotated[list[_Model], Field(fail_fast=True)]


class Version(_Answer):
    """Of /version."""

    version: str


class _PromptDetails(_Answer):
    cached_tokens: Annotated[int, Field(ge=0)] | None = None


class _Usage(_Answer):
    completion_tokens: int = Field(ge=0)
    prompt_tokens_details: _PromptDetails | None = None


class _Completion(_Answer):
    """What both completions of /v1/chat/completions tell of the prompt."""

    usage: _Usage
    prompt_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.usage.prompt_tokens_details
        return (details and details.cached_tokens) or 0


class _Message(_Answer):
    content: str | None


class _TextChoice(_Answer):
    message: _Message


class TextCompletion(_Completion):
    """A written answer."""

    choices: Annotated[list[_TextChoice], Field(min_length=1, max_length=1)]


class _TokenLogprob(_Answer):
    token: str
    logprob: float


class _Position(_Answer):
    top_logprobs: Annotated[list[_TokenLogprob], Field(fail_fast=True)]


class _Logprobs(_Answer):
    content: Annotated[list[_Position], Field(min_length=1, max_length=1)]


class _LetterChoice(_Answer):
    logprobs: _Logprobs


class LetterCompletion(_Completion):
    """The log-probabilities of one token."""

    choices: Annotated[list[_LetterChoice], Field(min_length=1, max_length=1)]


SHUT_RDWR = 2  # socket's own; a module that imports socket would be one more way out of this machine
A = TypeVar("A", bound=_Answer)
C = TypeVar("C", bound=_Completion)


class _Deadline:
    """Ends a request that is not over in time, however slowly it goes on: httpx limits each wait for a few
    bytes by itself.

    The connection must be the request's own, and its `trace` extension this object's `trace`.
    """

    def __init__(self, seconds: float):
        self.passed = False
        self._socket: Any = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._socket = None  # it is closed, and its number may soon be another's

    def trace(self, event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
            if self.passed:
                self._end()

    def _end(self) -> None:
        with self._lock:
            self.passed = True
            if self._socket is not None:
                # the plain socket's: that of TLS takes the encryption from a thread that reads
                with suppress(OSError):
                    super(type(self._socket), self._socket).shutdown(SHUT_RDWR)


class ServerClient:
    """A connection to one served model. Sessions may be used from many threads."""

    reads_logits = reads_words = True

    def __init__(self, name: str, settings: ModelSettings, device: str):
        self.renderer = Renderer(name, settings, weights=False)
        self.name, self.settings, self.limits, self.notice = (
            name,
            settings,
            self.renderer.limits,
            self.renderer.notice,
        )
        for key, only in (("exact", False), ("quantization", "none")):
            if getattr(settings, key) != only:
                raise VLMError(
                    f"backend server: expected {key}: {str(only).lower()}, for that is decided where the"
                    " server starts",
                    "change it",
                )
        try:
            (self.url, login), key = split_server(settings.server), server_key()
        except ConfigError as error:
            raise VLMError(error.message, error.remedy) from None
        self._secrets = [key] if key else []
        if login:
            user, password = login
            self._secrets += [base64.b64encode(f"{user}:{password}".encode()).decode(), password or user]
        self._http = httpx.Client(
            trust_env=False,
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            auth=login,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            limits=httpx.Limits(max_keepalive_connections=0),  # a _Deadline ends its own connection
        )
        models = [model.id for model in self.call("GET", "/v1/models", ModelList).data]
        if not models:
            raise VLMError(
                f"server {self.url}: expected a model, it serves none",
                f"start vllm serve {self.renderer.folder}",
            )
        self.served = settings.served_name or models[0]
        serves = self.shown(", ".join(models))
        if self.served not in models:
            raise VLMError(f"server {self.url}: expected the model {self.served}, it serves {serves}")
        if len(models) > 1 and settings.served_name is None:
            raise VLMError(f"server {self.url}: serves {serves}", "name one with served_name")
        self.version = self.shown(self.call("GET", "/version", Version).version, 60)

    def call(self, method: str, path: str, kind: type[A], body: dict[str, Any] | None = None) -> A:
        """One request's answer. Raises VLMError for one that is late, too long, of another kind or that says
        what failed, ModelLost where the server or its engine has gone."""
        response, said = self._exchange(method, path, body)
        if response.is_redirect:
            raise VLMError(
                f"server {self.url}: {path} sends on to another address, which is not followed",
                "set server to where vLLM listens",
            )
        if not response.is_success:
            gone = response.status_code in (502, 503, 504) or (
                response.status_code == 500 and not self._healthy()
            )
            told = self.shown(said.decode(errors="replace"))
            raise (ModelLost if gone else VLMError)(
                f"server {self.url}: {path} failed with {response.status_code} ({told})"
            )
        if len(said) > MAX_ANSWER:
            raise VLMError(
                f"server {self.url}: expected at most {MAX_ANSWER} bytes from {path}, got more", "is it vLLM?"
            )
        try:
            return kind.model_validate_json(said)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise VLMError(
                f"server {self.url}: expected a {kind.__name__} from {path}, got something else "
                f"({self.shown(f'{where}: ' * bool(where) + first['msg'])})",
                "is it vLLM?",
            ) from None

    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[httpx.Response, bytes]:
        """An answer and its bytes, which are cut off when they are more than MAX_ANSWER. Raises VLMError,
        ModelLost."""
        most = self.settings.server_timeout
        seconds = most if body else min(START_TIMEOUT, most)
        said = bytearray()
        with _Deadline(seconds) as deadline:
            try:
                options = {"json": body, "timeout": seconds, "extensions": {"trace": deadline.trace}}
                with self._http.stream(method, self.url + path, **options) as response:
                    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                        raise VLMError(
                            f"server {self.url}: expected {path} as it is, got it compressed, though that was"
                            " not asked for",
                            "turn off compression in front of vLLM",
                        )
                    for part in response.iter_bytes():
                        said += part
                        if len(said) > MAX_ANSWER:
                            break
            except httpx.TimeoutException:
                deadline.passed = True
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
                if not deadline.passed:
                    raise ModelLost(
                        f"server {self.url}: expected a vLLM server, got none ({self.shown(str(error))})",
                        f"start one with vllm serve {self.renderer.folder} or set server",
                    ) from None
        if deadline.passed:  # a body without a length only seems to end where its connection was ended
            raise VLMError(
                f"server {self.url}: expected the whole answer of {path} in {seconds:g} s, got none"
                + ("; raise server_timeout" if seconds == most else "; see what keeps the server busy")
            )
        return response, bytes(said)

    def _healthy(self) -> bool:
        """Whether the server's engine still runs; vLLM's server may outlive it."""
        try:
            return self._exchange("GET", "/health")[0].is_success
        except VLMError:
            return False

    def shown(self, text: str, most: int = 300) -> str:
        """A server's `text` for a message or a row: one short line without escapes, key and password."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return one_line(" ".join(text[: 4 * most].split())[:most])

    def without_secrets(self, text: str) -> str:
        """A model's answer as it is. Raises VLMError for one that quotes the key or the password: it would
        stand in the rows."""
        if any(secret in text for secret in self._secrets if len(secret) >= MIN_SECRET):
            raise VLMError(
                f"server {self.url}: expected a model's answer, got one that quotes the key or password",
                "is it vLLM?",
            )
        return text

    def open(self, images: Sequence[Image.Image]) -> "ServerSession":
        """A session on [test image] or [reference, test image]; nothing is sent yet."""
        return ServerSession(self, list(images))

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.renderer.config.model_type,
            "engine": f"vllm server {self.version}",
            "served_as": self.shown(self.served),
            "dtype": "the server's",
            "device": self.url,
            "prompt_layout": self.settings.prompt_layout,
            "notice": self.notice,
        }

    def close(self) -> None:
        self._http.close()


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
        return answer_prefix + client.without_secrets(content)

    def read_letters(self, prompt: Prompt, answer_prefix: str, letters: Sequence[str]) -> LetterRead:
        """Raw log-probabilities over the full vocabulary at the position after `answer_prefix`."""
        rendered = self.client.renderer.render(prompt, len(self.images), answer_prefix)
        token_ids = resolve_letters(self.client.renderer.encode, rendered.text, letters)
        options = {
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": True,
            "logprob_token_ids": list(token_ids.values()),
            "return_tokens_as_token_ids": True,
        }
        answer = self._ask(prompt, rendered, answer_prefix, options, LetterCompletion)
        self.usage.forward_passes += 1
        given = [(entry.token, entry.logprob) for entry in answer.choices[0].logprobs.content[0].top_logprobs]
        found = dict(given)
        if len(found) < len(given) or not found.keys() >= {
            f"token_id:{token}" for token in token_ids.values()
        }:
            raise VLMError(
                f"server {self.client.url}: expected one log-probability of each letter's token, got"
                f" {self.client.shown(', '.join(token for token, _ in given))}",
                "it must be a vLLM server that honours logprob_token_ids",
            )
        by_id = {token: found[f"token_id:{token}"] for token in token_ids.values()}
        return LetterRead.of(f"server {self.client.url}", by_id, token_ids)

    def _ask(
        self, prompt: Prompt, rendered: Rendered, answer_prefix: str, options: dict[str, Any], kind: type[C]
    ) -> C:
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
        answer = client.call("POST", "/v1/chat/completions", kind, body)
        whole = [*rendered.head, *self._expanded.ids, *rendered.tail, *rendered.answer_ids]
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
