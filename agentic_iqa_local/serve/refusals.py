"""What a client gets instead of an answer: every error of every route in one form."""

import logging
from http import HTTPStatus
from typing import Any, Literal

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from agentic_iqa_local.errors import UserError, one_line
from agentic_iqa_local.serve.asks import Fault, Refused

logger = logging.getLogger(__name__)

FOREIGN_HOST = Refused(
    400,
    "foreign_host",
    "this service does not answer to this host name",
    "ask for localhost, or start the service with a token",
)


class FaultBody(BaseModel):
    """An error."""

    error: Fault


class NotAssessed(FaultBody):
    """Why pictures have no answer, with what is known of them."""

    row: dict[str, Any]


class Failing(FaultBody):
    """Why the models do not answer, and how many requests wait."""

    status: Literal["failing"]
    waiting: int


Responses = dict[int | str, dict[str, Any]]

_SAID: dict[int | str, str] = {
    400: "the request makes no sense, or is for another host name",
    401: "the service's token is missing or wrong",
    403: "a page of another origin asks",
    404: "there is no such batch, or it has no rows yet",
    409: "the batch cannot be read",
    413: "the body is too large",
    415: "the body is of another media type",
    422: "the pictures could not be assessed or compared, or not in time",
    429: "the queue is full; the header Retry-After says when to ask again",
    500: "the service failed at this request",
    503: "the models do not answer, or a file could not be read or written",
    "4XX": "the request cannot be answered as it is",
    "5XX": "the service cannot answer now",
}


def responses(*statuses: int | str) -> Responses:
    """What OpenAPI says of a route's errors with these statuses."""
    told: Responses = {}
    for status in statuses:
        body = NotAssessed if status == 422 else FaultBody
        told[status] = {"description": _SAID[status], "model": body}
    return told


RESPONSES = responses(400, 500, "4XX", "5XX")  # of every route


def refusal_of(error: Exception) -> Refused:
    """What a client is told of an error, whatever it is; the log has what a client is not told."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return Refused(400, "bad_request", f"{first['loc'][-1]}: {first['msg']}")
    if isinstance(error, HTTPException):
        code = HTTPStatus(error.status_code).name.lower()
        return Refused(error.status_code, code, error.detail, headers=error.headers)
    if isinstance(error, ClientDisconnect):
        return Refused(400, "client_left", "the client left before its request was whole")
    remedy = "see the service's log"
    if isinstance(error, OSError | UserError):
        logger.error("a file could not be read or written: %s", one_line(str(error)))
        said = "a file of the service could not be read or written"
        return Refused(503, "storage", said, remedy)
    logger.error("a request failed", exc_info=error)
    return Refused(500, "internal", "the service failed at this request", remedy)


def answer_of(error: Exception) -> JSONResponse:
    """The answer of HTTP to an error."""
    refusal = refusal_of(error)
    return JSONResponse(refusal.body(), refusal.status, refusal.headers)
