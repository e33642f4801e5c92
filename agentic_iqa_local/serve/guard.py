"""What stands before every route: hosts, origins, the token, limits of size and of patience, headers."""

import asyncio
import hmac
import ipaddress
import json
import logging
import secrets
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.serve.errors import Refused

logger = logging.getLogger(__name__)

SHORTEST_TOKEN = 16  # characters
PATIENCE = 15.0  # seconds for the next part of a body
WHOLE_BODY = 300.0  # seconds for all of it
# what needs no token, beside /assets/
OPEN = ("/", "/docs", "/openapi.json", "/healthz", "/metrics", "/v1/info")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass
class Held:
    """Bytes of all requests that are not answered yet, at most `most`. `again` says in how many seconds to
    come back."""

    most: int
    again: Callable[[], int]
    now: int = 0

    def check(self, more: int) -> None:
        """Raises Refused where so many more are too many."""
        if self.now + more > self.most:
            seconds = self.again()
            raise Refused(
                429,
                "too_much_at_once",
                f"the requests that are not answered yet hold {self.now} of {self.most} bytes",
                f"ask again in {seconds} s",
                Retry_After=str(seconds),
            )

    def take(self, more: int) -> None:
        """Raises Refused."""
        self.check(more)
        self.now += more


@dataclass
class Guard:
    """An ASGI application before `app`. `hosts` are names that requests may be sent to beside the loopback's;
    None lets any pass. The body of a request has at most `most_bytes`."""

    app: Any
    token: str | None
    hosts: Sequence[str] | None
    most_bytes: int
    held: Held
    counted: MutableMapping[tuple[str, int], int] = field(default_factory=dict)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request, headers = secrets.token_hex(6), dict(scope["headers"])
        began = False

        async def answer(message: Any) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                if message["status"] >= 400 and _closes(scope, headers):
                    await body.drain(awaited=b"expect" in headers)
                route = getattr(scope.get("route"), "path", "other")
                self.counted[(route, message["status"])] = self.counted.get((route, message["status"]), 0) + 1
                names = {name.lower() for name, _ in message["headers"]}
                more = {**HEADERS, "x-request-id": request}
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in more.items() if k.encode() not in names),
                ]
                logger.info(
                    "%s %s %s %d", request, scope["method"], one_line(scope["path"])[:200], message["status"]
                )
            await send(message)

        body = _Body(receive, self.most_bytes, self.held)
        try:
            self._check(scope, headers)
            await self.app(scope, body, answer)
        except Refused as error:
            if not began:
                await refuse(error, answer)
        except Exception as error:
            logger.error("%s: %s", request, one_line(f"{type(error).__name__}: {error}")[:500])
            if not began:
                await refuse(
                    Refused(500, "internal", "the service failed", f"see its log: {request}"), answer
                )
        finally:
            body.forget()

    def _check(self, scope: Any, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts is not None and not self._may(_name(host)):
            raise Refused(403, "foreign_host", "the Host header names another machine", "--allow-host NAME")
        origin = headers.get(b"origin")
        foreign = origin is not None and _place(origin.decode("latin-1")) != host.lower()
        if foreign and scope["method"] not in ("GET", "HEAD"):
            raise Refused(403, "foreign_origin", "a page of another origin may not ask here")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self.token and path not in OPEN and not path.startswith("/assets/"):
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token.encode()):
                raise Refused(
                    401,
                    "token",
                    "expected the service's token",
                    "Authorization: Bearer TOKEN",
                    WWW_Authenticate="Bearer",
                )
        with_length = headers.get(b"content-length", b"0")
        if with_length.isdigit() and int(with_length) > self.most_bytes:
            raise _too_large(self.most_bytes)
        self.held.check(int(with_length) if with_length.isdigit() else 0)

    def _may(self, name: str) -> bool:
        return is_loopback(name) or name in (self.hosts or ())


def _closes(scope: Any, headers: dict[bytes, bytes]) -> bool:
    """Whether the connection ends with this answer."""
    return scope["http_version"] == "1.0" or headers.get(b"connection", b"").lower() == b"close"


def _place(origin: str) -> str:
    """The host and port of an origin; "" for one that is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _too_large(most: int) -> Refused:
    return Refused(
        413, "too_large", f"expected a body of at most {most} bytes", "send less, or raise --max-bytes"
    )


class _Body:
    """A request's body within its limits. Raises Refused."""

    def __init__(self, receive: Any, most: int, held: Held):
        self._receive, self._most, self._held = receive, most, held
        self._got, self._whole = 0, False
        self._begun = self._late = False
        self._until: float | None = None

    async def __call__(self) -> Any:
        if self._whole:
            return await self._receive()
        message = await self._next()
        more = len(message.get("body", b""))
        if self._got + more > self._most:
            raise _too_large(self._most)
        self._held.take(more)
        self._got += more
        return message

    async def _next(self) -> Any:
        now, self._begun = asyncio.get_running_loop().time(), True
        self._until = self._until or now + WHOLE_BODY
        try:
            message = await asyncio.wait_for(self._receive(), max(0.01, min(PATIENCE, self._until - now)))
        except TimeoutError:
            self._late = True
            raise Refused(408, "too_slow", "the body did not come in time", Connection="close") from None
        self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def drain(self, *, awaited: bool = False) -> None:
        """Reads on to the body's end and forgets it: a connection that is closed with bytes unread is reset,
        and the sender would not see why it was refused. On one that stays open the server does it. Nothing
        comes of a body that was too slow, nor where the sender is `awaited`: it waits until it is asked to
        begin."""
        left = 0 if self._late or (awaited and not self._begun) else 2 * self._most
        with suppress(Refused):
            while not self._whole and left > 0:
                left -= len((await self._next()).get("body", b""))

    def forget(self) -> None:
        """The request is over."""
        self._held.now -= self._got
        self._got = 0


async def refuse(error: Refused, send: Any) -> None:
    """The answer to a request that is refused."""
    body = json.dumps(error.body(), ensure_ascii=False).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    await send(
        {
            "type": "http.response.start",
            "status": error.status,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
