"""What a client gets instead of an answer: every error of every route in one form."""

import logging
from http import HTTPStatus
from typing import Any

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
    """An error; of pictures that were not assessed `row` stands beside it."""

    error: Fault


# What OpenAPI says of every route's errors
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "the request cannot be answered as it is", "model": FaultBody},
    "5XX": {"description": "the service cannot answer now", "model": FaultBody},
}


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
