"""The service over HTTP: its routes, and its start."""

import asyncio
import hmac
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Annotated, Any

import prometheus_client
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sse_starlette import EventSourceResponse
from starlette.staticfiles import StaticFiles

from agentic_iqa_local import __version__
from agentic_iqa_local.batch.runner import Runner
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.judgement.comparison import Comparison, Ranking
from agentic_iqa_local.output.account import parts_of
from agentic_iqa_local.output.pages import ACCOUNT, FOLDER
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.serve import bodies
from agentic_iqa_local.serve.asks import Answer, Ask, Refused, SetUp, failure_of, line_of, rows_of
from agentic_iqa_local.serve.batches import Batches
from agentic_iqa_local.serve.bodies import (
    JSON,
    MOST_BYTES,
    Body,
    Compared,
    Completion,
    OnePicture,
    body_of,
    described,
)
from agentic_iqa_local.serve.guard import guard, run, same_origin, url_of
from agentic_iqa_local.serve.queue import REQUESTS, Queue
from agentic_iqa_local.serve.refusals import RESPONSES, Failing, refusal_of, responses

PAGE = FOLDER / "serve"


class Service:
    """What the routes share: what a request leaves out, a runner for which at most `places`
    requests wait, the folders of `batches` and of `uploads`, and the token that every question
    needs."""

    def __init__(self, set_up: SetUp, runner: Runner, batches: Path, uploads: Path, *, places: int = 64,
                 token: str | None = None):  # fmt: skip
        self.set_up = set_up
        self.uploads = uploads
        self.token = token
        self.queue = Queue(runner, places)
        self.batches = Batches(batches, self.queue, set_up)


def _service(request: Request) -> Service:
    return request.app.state.service


Here = Annotated[Service, Depends(_service)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def _with_token(service: Here, given: Bearer) -> None:
    """Raises Refused (401) for a request without the service's token, if it has one."""
    sent = given.credentials if given else ""
    if service.token and not hmac.compare_digest(sent.encode(), service.token.encode()):
        remedy = "send the header Authorization: Bearer TOKEN"
        headers = {"WWW-Authenticate": "Bearer"}
        raise Refused(401, "token", "expected the service's token", remedy, headers)


public = APIRouter()
private = APIRouter(prefix="/v1", dependencies=[Depends(_with_token)], responses=responses(401))
SENT = responses(403, 413, 415)  # of what a client sends
ASKED = SENT | responses(422, 429, 503)
STORED = responses(404, 503)  # of one batch


@public.get("/v1/info")
def info(service: Here) -> dict[str, Any]:
    """What answers here, and within which limits."""
    model = service.set_up.model
    return {
        "version": __version__,
        "model": model,
        "small_model": model == "embedded",
        "device": service.queue.runner.device,
        "limits": {"bytes": MOST_BYTES, "pictures": bodies.MOST},
        "token_required": service.token is not None,
    }


@public.get("/healthz", responses={503: {"description": "failing", "model": Failing}})
def healthz(service: Here) -> JSONResponse:
    """Whether the models answer."""
    queue = service.queue
    if not queue.failure:
        return JSONResponse({"status": "ok", "waiting": queue.waiting})
    refused = Refused(503, "failing", queue.failure, "see the service's log").body()
    return JSONResponse({"status": "failing", "waiting": queue.waiting} | refused, 503)


@public.get("/metrics")
def metrics() -> Response:
    """Counters, gauges and a histogram of seconds as Prometheus reads them."""
    return Response(prometheus_client.generate_latest(), media_type="text/plain; version=0.0.4")


@private.post(
    "/assess", openapi_extra=described(OnePicture), responses=ASKED | {200: {"model": Assessment}}
)
async def assess(request: Request, service: Here) -> Response:
    """Assesses a picture: the row, or with Accept: text/event-stream its progress and then the
    row."""
    return await _told(request, service, await body_of(request, OnePicture))


@private.post(
    "/compare",
    openapi_extra=described(Compared),
    responses=ASKED | {200: {"model": Comparison | Ranking}},
)
async def compare(request: Request, service: Here) -> Response:
    """Compares two pictures, or orders several; the pipeline is letters unless another is named."""
    return await _told(request, service, await body_of(request, Compared))


async def _told(request: Request, service: Service, body: Body) -> Response:
    """The answer as JSON, or as a stream of events."""
    asked = body.ask(service.set_up)
    if "text/event-stream" in request.headers.get("accept", ""):
        service.queue.check_room()
        return EventSourceResponse(_events(service, body, asked), sep="\n")
    return Response(line_of(await _answer(service, body, asked)), media_type="application/json")


async def _answer(service: Service, body: Body, asked: Ask) -> Answer:
    """Raises Refused (422), with the row, for pictures that have no answer."""
    service.queue.check_room()
    with body.stored(asked, service.uploads) as ask:
        answer = await service.queue.answer(ask)
    if error := failure_of(answer):
        raise Refused(422, "not_assessed", error, row=answer.to_dict())
    return answer


async def _events(service: Service, body: Body, asked: Ask) -> AsyncIterator[dict[str, str]]:
    """First "queued", "progress" for each step, and at last the pictures' "accounts" and the
    answer, or an "error"."""
    steps, loop = asyncio.Queue[Any](), asyncio.get_running_loop()

    def tell(step: Any) -> None:
        with suppress(RuntimeError):  # the service has ended
            loop.call_soon_threadsafe(steps.put_nowait, dict(step))

    try:
        with body.stored(asked, service.uploads) as ask:
            before = service.queue.waiting + service.queue.busy
            yield {"event": "queued", "data": json.dumps({"position": before})}
            answer = asyncio.create_task(service.queue.answer(ask, tell))
            answer.add_done_callback(lambda _: steps.put_nowait(None))
            try:
                while step := await steps.get():
                    yield {"event": "progress", "data": json.dumps(step)}
                found = answer.result()
                accounts = [parts_of(row) for row in rows_of(found)]
                yield {"event": "accounts", "data": one_line(json.dumps(accounts))}
                yield {"event": body.event, "data": line_of(found)}
            finally:
                answer.cancel()
    except Exception as error:
        yield {"event": "error", "data": json.dumps(refusal_of(error).body())}


@private.get("/models")
def models(service: Here) -> dict[str, Any]:
    """The model that answers, as clients of OpenAI list them."""
    return {
        "object": "list",
        "data": [{"id": service.set_up.model, "object": "model", "created": 0, "owned_by": ""}],
    }


@private.post("/chat/completions", responses=ASKED)
async def complete(request: Request, service: Here) -> Response:
    """OpenAI's form: assesses the last picture (a data URL) with the last text as the query, and
    gives the account."""
    sent = await body_of(request, Completion, [JSON])
    body = sent.picture()
    row = await _answer(service, body, body.ask(service.set_up))
    assert isinstance(row, Assessment)  # one picture was asked about
    return sent.reply(row, service.set_up.model)


@private.post(
    "/batches",
    status_code=202,
    openapi_extra=described(Body),
    responses=SENT | responses(503),
)
async def submit(request: Request, service: Here) -> dict[str, Any]:
    """Takes pictures to assess when nobody waits. The batch outlasts a restart, and stays until it
    is deleted."""
    return await service.batches.submit(await body_of(request, Body))


@private.get("/batches", responses=responses(503))
def listed(service: Here) -> list[dict[str, Any]]:
    """Every batch, the newest first."""
    return service.batches.listed()


@private.get("/batches/{name}", responses=STORED)
def status(name: str, service: Here) -> dict[str, Any]:
    """How far a batch is."""
    return service.batches.status(name)


@private.get("/batches/{name}/rows", responses=STORED | responses(409))
def rows(
    name: str, service: Here, start: Annotated[int, Query(alias="from", ge=0)] = 0
) -> Response:
    """A batch's rows so far, from number ?from=N on, one a line."""
    return Response(service.batches.lines(name, start), media_type="application/x-ndjson")


@private.get("/batches/{name}/accounts", responses=STORED | responses(409))
def accounts(name: str, service: Here) -> list[list[dict[str, Any]]]:
    """What the page shows of each of a batch's rows so far: the parts of its account."""
    return [parts_of(row) for row in service.batches.rows(name)]


@private.get("/batches/{name}/gallery", responses=STORED | responses(409))
def gallery(name: str, service: Here) -> HTMLResponse:
    """A page of a batch's pictures and rows, to look through, sort and triage; it opens from disk
    too."""
    policy = {"Content-Security-Policy": "frame-ancestors 'none'"}  # beside the page's own
    return HTMLResponse(service.batches.gallery(name), headers=policy)


@private.delete("/batches/{name}", status_code=204, responses=STORED | responses(403))
def delete(name: str, service: Here) -> None:
    """Deletes a batch with its pictures and rows."""
    service.batches.delete(name)


def make_app(service: Service, hosts: list[str]) -> FastAPI:
    """The application, for requests to these host names ("*": to any)."""

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(service.batches.work())
        yield
        work.cancel()
        await asyncio.wait([work])

    app = FastAPI(title="agentic-iqa", version=__version__, docs_url=None, redoc_url=None, lifespan=working,
                  redirect_slashes=False, dependencies=[Depends(same_origin)], responses=RESPONSES)  # fmt: skip
    app.state.service = service
    app.include_router(public)
    app.include_router(private)
    # not mounted at "/": that would take every request whose method a route above does not take
    page = StaticFiles(directory=PAGE, html=True)
    page.all_directories.append(ACCOUNT)
    app.router.default = page
    guard(app, hosts, MOST_BYTES, _counted)
    return app


def _counted(request: Request, response: Response) -> None:
    route = getattr(request.scope.get("route"), "path", "other")
    REQUESTS.labels(route, response.status_code).inc()


def serve(
    service: Service, address: socket.socket, hosts: list[str], *, log_requests: bool = False
) -> None:
    """Serves on a socket that listens until a signal; `hosts` as for `make_app`. Raises VLMError
    for a model that cannot be loaded."""
    runner = service.queue.runner
    with closing(runner):
        runner.load()
        about = f"{service.set_up.model} on {runner.device}"
        sys.stderr.write(one_line(f"{url_of(address)}: {about}") + "\n")
        run(make_app(service, hosts), address, log_requests=log_requests)
