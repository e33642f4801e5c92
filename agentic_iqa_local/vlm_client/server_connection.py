"""One HTTP connection to a vLLM server: one request at a time within limits of time and bytes.

A server is trusted with the pictures and with the model's answers, and with nothing else: what it sends has a
schema, a limit of bytes and one deadline. It is printed in one short line, and never with the key or the
password that was sent to it.
"""

import base64
import logging
import threading
from contextlib import suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from pydantic import ValidationError

from agentic_iqa_local.config_sections import ConfigError, server_key, split_server
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import ModelLost, VLMError
from agentic_iqa_local.vlm_client.server_answers import Answer

for library in ("httpx", "httpcore"):  # they log status texts and headers as a server sends them
    logging.getLogger(library).setLevel(logging.WARNING)

MAX_ANSWER = 8 * 2**20
"""Bytes of one answer. The ids of a prompt of 262144 tokens, the largest part of any, take two MiB."""

START_TIMEOUT = 15.0
"""Seconds for what a server knows without its model: which models it serves, its version and its health."""

MIN_SECRET = 8
"""Characters from which on a key or a password inside an answer's text is no ordinary word."""

SHUT_RDWR = 2  # socket's own; a module that imports socket would be one more way out of this machine
AnAnswer = TypeVar("AnAnswer", bound=Answer)


class Connection:
    """Requests to the server at `address`. `timeout` is in seconds; messages say to serve the model folder
    `folder`. Raises VLMError for an address that cannot be used."""

    def __init__(self, address: str, timeout: float, folder: Path):
        self._timeout, self._folder = timeout, folder
        try:
            (self.url, login), key = split_server(address), server_key()
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

    def call(
        self, method: str, path: str, kind: type[AnAnswer], body: dict[str, Any] | None = None
    ) -> AnAnswer:
        """One request's answer. Raises VLMError for an answer that is late, too long, of another kind or an
        error, ModelLost where the server or its engine is gone."""
        response, content = self._exchange(method, path, body)
        if response.is_redirect:
            raise VLMError(
                f"server {self.url}: {path} sends on to another address, which is not followed",
                "set server to where vLLM listens",
            )
        if not response.is_success:
            gone = response.status_code in (502, 503, 504) or (
                response.status_code == 500 and not self.healthy()
            )
            reason = self.shown(content.decode(errors="replace"))
            raise (ModelLost if gone else VLMError)(
                f"server {self.url}: {path} failed with {response.status_code} ({reason})"
            )
        if len(content) > MAX_ANSWER:
            raise VLMError(
                f"server {self.url}: expected at most {MAX_ANSWER} bytes from {path}, got more", "is it vLLM?"
            )
        try:
            return kind.model_validate_json(content)
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
        """An answer and its bytes, cut off soon after MAX_ANSWER. Raises VLMError, ModelLost."""
        seconds = self._timeout if body else min(START_TIMEOUT, self._timeout)
        content = bytearray()
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
                        content += part
                        if len(content) > MAX_ANSWER:
                            break
            except httpx.TimeoutException:
                deadline.passed = True
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
                if not deadline.passed:
                    raise ModelLost(
                        f"server {self.url}: expected a vLLM server, got none ({self.shown(str(error))})",
                        f"start one with vllm serve {self._folder} or set server",
                    ) from None
        if deadline.passed:  # a body without a length only seems to end where its connection was ended
            remedy = "raise server_timeout" if seconds == self._timeout else "see what keeps the server busy"
            raise VLMError(
                f"server {self.url}: expected the whole answer of {path} in {seconds:g} s, got none", remedy
            )
        return response, bytes(content)

    def healthy(self) -> bool:
        """Whether the server's engine still runs; vLLM's server may outlive it."""
        try:
            return self._exchange("GET", "/health")[0].is_success
        except VLMError:
            return False

    def shown(self, text: str, most: int = 300) -> str:
        """`text` from the server for a message or a row: one short line without escapes, key or password."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return one_line(" ".join(text[: 4 * most].split())[:most])

    def without_secrets(self, text: str) -> str:
        """A model's answer, unchanged. Raises VLMError for one that quotes the key or the password, which
        would end up in the rows."""
        if any(secret in text for secret in self._secrets if len(secret) >= MIN_SECRET):
            raise VLMError(
                f"server {self.url}: expected a model's answer, got one that quotes the key or password",
                "is it vLLM?",
            )
        return text

    def close(self) -> None:
        self._http.close()


class _Deadline:
    """Ends a request that takes longer than `seconds` in all: httpx limits only each wait for a few bytes.

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
                # The plain socket's shutdown: that of TLS would take the encryption from a thread that reads.
                with suppress(OSError):
                    super(type(self._socket), self._socket).shutdown(SHUT_RDWR)  # pyright: ignore[reportAttributeAccessIssue]  # httpx does not say which class it is
