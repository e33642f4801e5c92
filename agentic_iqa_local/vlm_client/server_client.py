"""A model served by vLLM's OpenAI-compatible server on this machine or this rack: one copy for several users.

The processor's files lie here too (no weights are needed): prompts are rendered locally, what the server made of them
comes back as token ids, and an answer about other tokens is refused. Images travel as PNG, so that no pixel changes.
"""

import base64
import functools
import io
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Self, TypeVar

import openai
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentic_iqa_local.config import ConfigError, ModelSettings, server_key, split_server
from agentic_iqa_local.files import first_mistake
from agentic_iqa_local.vlm_client import ModelLost, VLMClient, VLMError, VLMSession
from agentic_iqa_local.vlm_client.chat import chat_messages
from agentic_iqa_local.vlm_client.constraints import constraint
from agentic_iqa_local.vlm_client.rendering import Rendered, Renderer, first_line

# A model folder's own generation settings, a repetition penalty among them, must not change an answer.
PLAIN_SAMPLING = {"repetition_penalty": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}

# What an answer of another shape raises where it is read: nested too deeply, a number without end, no such part
_OTHER_SHAPES = (
    *(openai.APIError, AttributeError, LookupError, TypeError, ValueError),
    *(ArithmeticError, RecursionError),
)
LARGEST_ANSWER = 2**24  # bytes; the token ids of a long prompt take some hundred thousand

Answer = TypeVar("Answer")


class _Deadline:
    """The time limit of one question to a server, from the first connection to the last byte of the answer. The
    library's own limit begins anew with each byte, which may come one at a time for ever."""

    def __init__(self, seconds: float):
        self.passed = False
        self._stream: Any = None  # the connection, once there is one
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> "_Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def heed(self, event: str, about: Mapping[str, Any]) -> None:
        """Takes note of a connection; the library tells of every step of a request."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._stream = about["return_value"]
            if self.passed:
                self._end()

    def _end(self) -> None:
        self.passed = True
        if self._stream is not None:
            with suppress(OSError):  # it is closed already
                self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def _checked(response: Any) -> None:
    """Refuses an answer that is compressed, and one that does not end; both could fill the memory."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ValueError("expected it plain, got it compressed")
    response.headers.pop("Retry-After", None)  # the time limit is ours
    whole = response.iter_raw

    def limited(size: int | None = None) -> Iterator[bytes]:
        received = 0
        for chunk in whole(size):
            received += len(chunk)
            if received > LARGEST_ANSWER:
                raise ValueError(f"expected at most {LARGEST_ANSWER} bytes, got more")
            yield chunk

    response.iter_raw = limited


class ServerClient(VLMClient):
    """A connection to one served model. Sessions may be used from many threads."""

    def __init__(self, name: str, settings: ModelSettings, device: str):
        super().__init__(name, settings, Renderer(name, settings, weights=False))
        for key, only in (("exact", False), ("quantization", "none")):
            if getattr(settings, key) != only:
                expected = f"expected {key}: {str(only).lower()}, for the server decides that when it starts"
                raise VLMError(f"backend server: {expected}", "change it")
        try:
            (self.url, login), key = split_server(settings.server), server_key()
        except ConfigError as error:
            raise VLMError(error.message, error.remedy) from None
        self.label = f"server {self.url}"
        self._asking = threading.local()  # the deadline of each thread's question
        self.openai = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=key or "none",
            timeout=settings.server_timeout,
            max_retries=1,
            # A proxy of the environment would be asked for this machine's own server, and a redirection would
            # take the pictures elsewhere.
            http_client=openai.DefaultHttpxClient(
                trust_env=False,
                auth=login,
                follow_redirects=False,
                event_hooks={"request": [self._watch], "response": [_checked]},
            ),
        )
        self.served = self._served_model()
        about: Any = self.ask(lambda: self.openai.get(f"{self.url}/version", cast_to=object))
        self.version = self.ask(lambda: str(about["version"])[:100])

    def ask(self, call: Callable[[], Answer]) -> Answer:
        """What `call` gets from the server within `server_timeout`. Raises ModelLost where the server or its engine is
        gone, VLMError for every other failure and for an answer of another shape."""
        limit = self.settings.server_timeout
        late = VLMError(
            f"{self.label}: expected an answer in {limit:g} s, got none", "raise server_timeout"
        )
        with _Deadline(limit) as deadline:
            self._asking.deadline = deadline
            try:
                return self._answer(call)
            except openai.APITimeoutError:
                raise late from None
            except VLMError as error:
                if deadline.passed:
                    raise late from error
                raise

    def _watch(self, request: Any) -> None:
        """Lets the deadline of this thread's question end a request, which gets a connection of its own."""
        deadline: _Deadline = self._asking.deadline
        if deadline.passed:  # this would be the second try
            raise openai.APITimeoutError(request)
        request.headers.update({"Accept-Encoding": "identity", "Connection": "close"})
        request.extensions = {**request.extensions, "trace": deadline.heed}

    def _answer(self, call: Callable[[], Answer]) -> Answer:
        """As `ask`; a time limit that passed is APITimeoutError."""
        try:
            return call()
        except openai.APITimeoutError:
            raise
        except openai.APIStatusError as error:
            status = error.status_code
            lost = status in (502, 503, 504) or (status == 500 and not self._is_healthy())
            said = f"{self.label}: failed with {status} ({' '.join(error.response.text[:300].split())})"
            raise (ModelLost if lost else VLMError)(said) from None
        except openai.APIConnectionError as error:
            said = f"{self.label}: expected a vLLM server, got none ({first_line(error.__cause__ or error)})"
            advice = f"start one with vllm serve {self.renderer.folder} or set server"
            raise ModelLost(said, advice) from None
        except _OTHER_SHAPES as error:
            why = first_mistake(error) if isinstance(error, ValidationError) else first_line(error)
            said = f"{self.label}: expected a vLLM server's answer, got something else ({why})"
            raise VLMError(said, "is it vLLM?") from None

    def _is_healthy(self) -> bool:
        """Whether the server's engine still runs; vLLM's server may outlive it."""
        try:
            self.openai.get(f"{self.url}/health", cast_to=str)
        except openai.OpenAIError:
            return False
        return True

    def _served_model(self) -> str:
        """The name under which the server has the model. Raises VLMError where it has none, another or several."""
        models = self.ask(lambda: [str(model.id) for model in self.openai.models.list().data])
        serves, wanted = ", ".join(models)[:300] or "none", self.settings.served_name
        if wanted in models or (wanted is None and len(models) == 1):
            return wanted or models[0]
        expected = f"expected the model {wanted}" if wanted else "expected one model"
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


class _Written(BaseModel):
    """What a server wrote."""

    model_config = ConfigDict(strict=True)

    text: str | None
    tokens: Annotated[int, Field(ge=0, le=2**20)]

    @classmethod
    def of(cls, message: Any, usage: Any) -> Self:
        return cls(text=message.content, tokens=usage.completion_tokens)


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
        written = self._ask(
            rendered,
            lambda answer: _Written.of(answer.choices[0].message, answer.usage),
            max_tokens=max_tokens - len(rendered.answer_ids),
            temperature=temperature,
            seed=self.usage.calls,
            extra={"structured_outputs": constraint(schema, rendered.answer_prefix)},
        )
        if written.text is None:
            said = f"{self.client.label}: expected an answer, got none"
            raise VLMError(said, "start it without a reasoning parser")
        self.usage.decoded += written.tokens
        self.usage.forward_passes += written.tokens
        return rendered.answer_prefix + written.text

    def _logprobs(self, rendered: Rendered, tokens: list[int]) -> Mapping[int, float]:
        entries = self._ask(
            rendered,
            lambda answer: [
                (str(one.token), one.logprob)
                for one in answer.choices[0].logprobs.content[0].top_logprobs
            ],
            max_tokens=1,
            temperature=0,
            logprobs=True,
            extra={"logprob_token_ids": tokens, "return_tokens_as_token_ids": True},
        )
        self.usage.forward_passes += 1
        by_name = dict(entries)
        if len(by_name) < len(entries) or not by_name.keys() >= {
            f"token_id:{token}" for token in tokens
        }:
            said = f"expected one log-probability of each letter's token, got {', '.join(map(str, by_name))[:300]}"
            raise VLMError(
                f"{self.client.label}: {said}",
                "it must be a vLLM server that honours logprob_token_ids",
            )
        return {token: by_name[f"token_id:{token}"] for token in tokens}

    def _ask(
        self,
        rendered: Rendered,
        parts: Callable[[Any], Answer],
        extra: dict[str, Any],
        **options: Any,
    ) -> Answer:
        """`parts` of one chat completion with `options`; `extra` are vLLM's own fields. Raises VLMError when
        the server saw other tokens than the processor here makes."""
        client, renderer = self.client, self.client.renderer
        whole = rendered.prompt_with(self._expand(rendered)) + rendered.answer_ids
        layout = client.settings.prompt_layout
        messages: Any = chat_messages(rendered.prompt, len(self.images), layout, self._parts)
        extra |= PLAIN_SAMPLING | {"return_token_ids": True}
        if rendered.answer_prefix:
            messages.append({"role": "assistant", "content": rendered.answer_prefix})
            extra |= {"add_generation_prompt": False, "continue_final_message": True}
        # the server must have been started to allow it
        if renderer.size and (client.settings.min_pixels or client.settings.max_pixels):
            extra["mm_processor_kwargs"] = {"size": renderer.size}

        def call() -> tuple[list[int], int, Answer]:
            answer: Any = client.openai.chat.completions.create(
                model=client.served, messages=messages, extra_body=extra, **options
            )
            details = getattr(answer.usage, "prompt_tokens_details", None)
            return (
                answer.prompt_token_ids,
                int((details and details.cached_tokens) or 0),
                parts(answer),
            )

        seen, reused, found = client.ask(call)
        if seen != whole:
            said = (
                f"{client.label}: expected it to see the {len(whole)} tokens that the processor in"
            )
            advice = "serve the same model folder with vLLM"
            raise VLMError(f"{said} {renderer.folder} makes, it saw others", advice)
        self._count(whole, reused)
        return found
