"""A connection to a model's HTTP server: one request, its time limit, and each failure as one
sentence."""

import base64
import io
import os
import re
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, TypeVar

import openai
from PIL import Image
from pydantic import BaseModel, ValidationError

from agentic_iqa_local.errors import first_line
from agentic_iqa_local.files import first_mistake
from agentic_iqa_local.vlm_client import ModelLost, VLMError

NOT_REACHED = (502, 503, 504)  # what stands between gives these statuses when the server is gone
# By what they write as the owner of their models
KINDS = {
    "vllm": "vLLM",
    "llamacpp": "llama.cpp",
    "library": "Ollama",
    "organization_owner": "LM Studio",
    "sglang": "SGLang",
}
ENGINES_OF = {"vLLM": "server", "llama.cpp": "llamacpp"}

Answer = TypeVar("Answer", bound=BaseModel)


class ServedModel(BaseModel):
    """One model of a server's list; `owned_by` tells many servers apart."""

    id: str
    owned_by: str = ""


class ServedModels(BaseModel):
    """A server's list of models."""

    data: list[ServedModel]


def server_key() -> str:
    """The key of the user's server, "none" without one. Raises VLMError for one that no header can
    hold."""
    key = os.environ.get("AGENTIC_IQA_SERVER_KEY") or "none"
    if not re.fullmatch("[!-~]+", key):
        mistake = "$AGENTIC_IQA_SERVER_KEY: expected printable ASCII without blanks"
        raise VLMError(mistake, "set it anew")
    return key


def png_text(image: Image.Image, exif: Image.Exif | None = None) -> str:
    """A picture as PNG, with its every pixel and nothing else (but `exif`), in base64."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1, exif=exif)
    return base64.b64encode(buffer.getvalue()).decode()


@dataclass
class Connection:
    """A server by its address. `kind` is what it is expected to be and `start` how a user starts
    one; `limit` is in seconds."""

    url: str
    key: str
    limit: float
    kind: str
    start: str

    def __post_init__(self) -> None:
        self.certificates = ssl.create_default_context()
        self.label = f"server {self.url}"

    def ask(self, kind: type[Answer], path: str, body: dict[str, Any] | None = None) -> Answer:
        """What the server has at `path` (below /v1 unless it begins with the address), or answers
        to a `body` that is posted there. Raises ModelLost for a server or engine that is gone,
        VLMError for every other failure and for an answer of another shape."""
        ends = time.monotonic() + self.limit
        try:
            return kind.model_validate_json(self._text(path, body))
        except openai.APIStatusError as error:
            status, text = error.status_code, " ".join(error.response.text[:300].split())
            lost = status in NOT_REACHED or (status == 500 and not self._is_healthy())
            kind_of_error = ModelLost if lost else VLMError
            raise kind_of_error(f"{self.label}: failed with {status} ({text})") from None
        except openai.APIConnectionError as error:
            if isinstance(error, openai.APITimeoutError) or time.monotonic() >= ends:
                expected = f"expected an answer in {self.limit:g} s, got none"
                raise VLMError(f"{self.label}: {expected}", "raise server_timeout") from None
            got = f"got none ({first_line(error.__cause__ or error)})"
            mistake = f"{self.label}: expected a {self.kind} server, {got}"
            raise ModelLost(mistake, f"start one with {self.start} or set server") from None
        except ValidationError as error:
            got = f"got something else ({first_mistake(error)})"
            mistake = f"{self.label}: expected a {self.kind} server's answer, {got}"
            raise VLMError(mistake, f"is it {self.kind}?") from None

    def _text(self, path: str, body: dict[str, Any] | None = None) -> str:
        """The server's answer. The time limit is of the whole of it, which ends with its
        connection: the library's own begins anew with each byte."""
        # A proxy of the environment would be asked for this machine's own server, and a redirection
        # would take the pictures elsewhere.
        http = openai.DefaultHttpxClient(
            trust_env=False, follow_redirects=False, verify=self.certificates
        )
        connection = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.key,
            timeout=self.limit,
            max_retries=0,
            http_client=http,
        )
        clock = threading.Timer(self.limit, connection.close)
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

    def served(self) -> ServedModel:
        """The model that the server has: the first, before adapters of it. Raises VLMError for a
        server that is known to be of another kind."""
        models = self.ask(ServedModels, "/models").data
        if not models:
            mistake = f"{self.label}: expected a model, it serves none"
            raise VLMError(mistake, f"start {self.start}")
        kind = KINDS.get(models[0].owned_by, self.kind)
        if kind == self.kind:
            return models[0]
        mistake = f"{self.label}: expected a {self.kind} server, this is {kind}"
        if kind in ENGINES_OF:
            raise VLMError(mistake, f"use engine {ENGINES_OF[kind]}")
        advice = "serve the model with llama-server (engine llamacpp) or vLLM (engine server)"
        raise VLMError(f"{mistake}, which gives no log-probabilities by token id", advice)
