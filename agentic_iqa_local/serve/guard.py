"""What stands before the routes of a service on this machine, and how it listens: its own host
names and pages alone, and one form for errors."""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.serve.asks import Refused
from agentic_iqa_local.serve.refusals import FOREIGN_HOST, answer_of

LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": CSP, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
           "Cache-Control": "no-store"}  # fmt: skip


def same_origin(request: Request) -> None:
    """Raises Refused (403) if a page of another origin sends something."""
    origin = request.headers.get("origin")
    if origin is None or request.method in ("GET", "HEAD"):
        return
    if origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
        raise Refused(403, "foreign_origin", "a page of another origin may not ask here")


def guard(
    app: FastAPI,
    hosts: list[str],
    most_bytes: int,
    count: Callable[[Request, Response], None] = lambda _request, _response: None,
) -> None:
    """Lets requests of `most_bytes` to these host names ("*": to any) reach an application, marks
    its answers and gives its errors one form. `count` is told of each answer."""
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=most_bytes)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)

    @app.middleware("http")
    async def mark(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            response = await answer(request)
        except Exception as error:
            response = answer_of(error)
        plain = response.headers.get("content-type", "").startswith("text/plain")
        if plain and response.status_code == 400:
            response = answer_of(FOREIGN_HOST)
        elif plain and response.status_code > 400:  # Starlette's middleware answers in plain text
            response = answer_of(HTTPException(response.status_code))
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        count(request, response)
        return response

    async def refused(_: Request, error: Exception) -> Response:
        return answer_of(error)

    for kind in (HTTPException, RequestValidationError):  # which FastAPI would answer by itself
        app.add_exception_handler(kind, refused)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises UserError for an address of another machine, and for a port
    that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        said = f"--host {host} --port {port}: expected a free address of this machine, got {error}"
        raise UserError(said, "choose another, or end what listens there") from error


def url_of(address: socket.socket) -> str:
    """Where a socket that listens is found."""
    host, port = address.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: FastAPI, address: socket.socket, *, log_requests: bool = False) -> None:
    """Serves on a socket that listens until a signal."""
    config = uvicorn.Config(app, log_config=None, access_log=log_requests, ws="none",
                            server_header=False, proxy_headers=False, timeout_keep_alive=15,
                            timeout_graceful_shutdown=5)  # fmt: skip
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that ended it
        uvicorn.Server(config).run([address])
