"""The routes of the service."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from agentic_iqa_local import __version__
from agentic_iqa_local.config import Settings
from agentic_iqa_local.judgement.ordering import MOST_PICTURES
from agentic_iqa_local.serve.asks import Answer
from agentic_iqa_local.serve.batches import Batches
from agentic_iqa_local.serve.descriptions import FROM, NO_BATCH, described, docs_page
from agentic_iqa_local.serve.engine import Engine
from agentic_iqa_local.serve.errors import Refused
from agentic_iqa_local.serve.fields import (
    OPTIONS,
    PAIRWISE,
    Defaults,
    Sent,
    arguments,
    asked,
    bad,
    check_known,
    from_json,
    name_of,
    pipeline_of,
    settings_for,
)
from agentic_iqa_local.serve.guard import Held
from agentic_iqa_local.serve.metrics import Metrics
from agentic_iqa_local.serve.pending import Pending, refused
from agentic_iqa_local.state import LETTER_TO_LEVEL, LEVEL_WORDS

PAGE = Path(__file__).parent.parent / "output" / "pages" / "serve"
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
ASSETS = {file.name: KINDS[file.suffix] for file in PAGE.iterdir() if file.suffix in KINDS}
AS_A_FILE = "curl -F image=@photo.jpg, or JSON with the file in base64"
LONGEST_FIELD = 64 * 1024  # bytes of a form's field that is no file
PRESETS = (
    ("Rate the quality", "", None),
    ("Which distortion dominates?", "Which distortion dominates?", ["Blur", "Noise", "Compression", "None"]),
    ("Is it sharp enough?", "Is the picture sharp enough to print?", ["Yes", "No"]),
    (
        "Too dark or too bright?",
        "Is the picture too dark or too bright?",
        ["Too dark", "Too bright", "Neither"],
    ),
)


@dataclass
class SetUp:
    """What the service was started with. `seconds` for a request; at most `pictures` in one."""

    settings: Settings
    engine: Engine
    batches: Batches
    temporary: Path
    defaults: Defaults
    model: str
    small: bool
    backend: str
    bytes: int
    pictures: int
    token_required: bool
    metrics: Metrics
    held: Held
    decoding: asyncio.Lock = field(
        default_factory=asyncio.Lock
    )  # JSON takes several times its size meanwhile


async def sent_with(request: Request, set_up: SetUp, *, many: bool, extra: tuple[str, ...] = ()) -> Sent:
    """A request's fields and pictures. Raises Refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        body = b"".join([part async for part in request.stream()])  # `body()` would keep it until the answer
        async with set_up.decoding:
            sent = await asyncio.to_thread(from_json, body, many, extra)
    elif kind == "multipart/form-data":
        sent = await _from_form(request, set_up, many, extra)
    else:
        raise Refused(415, "media_type", "expected multipart/form-data or application/json", AS_A_FILE)
    if not sent.pictures or (sent.pictures and not all(data for _, data in sent.pictures)):
        raise bad(f"{'images' if many else 'image'}: expected a picture, got nothing")
    if len(sent.pictures) > set_up.pictures:
        raise Refused(413, "too_many", f"expected at most {set_up.pictures} pictures")
    return sent


async def _from_form(request: Request, set_up: SetUp, many: bool, extra: tuple[str, ...]) -> Sent:
    picture = "images" if many else "image"
    sent = Sent()
    try:
        form = await request.form(max_files=set_up.pictures + 1, max_fields=64, max_part_size=LONGEST_FIELD)
    except HTTPException as error:
        raise Refused(400, "bad_form", str(error.detail)) from error
    except (ValueError, KeyError, UnicodeError) as error:
        raise Refused(400, "bad_form", "the form could not be read") from error
    async with _closing(form):
        check_known(form.keys(), (picture, "reference", *OPTIONS, *extra))
        for name, value in form.multi_items():
            _check_part(name, value, name in (picture, "reference"))
            if name not in (picture, "choices") and len(form.getlist(name)) > 1:
                raise bad(f"{name}: expected it once")
            if isinstance(value, UploadFile):
                one = name_of(value.filename), await value.read()
                if name == "reference":
                    sent.reference = one
                else:
                    sent.pictures.append(one)
            elif name == "choices":
                sent.options.setdefault(name, []).append(value)
            else:
                sent.options[name] = value
    if not many and len(sent.pictures) > 1:
        raise bad("image: expected one picture", "POST /v1/compare or /v1/batches takes several")
    return sent


def _check_part(name: str, value: Any, is_picture: bool) -> None:
    if isinstance(value, UploadFile) and not is_picture:
        raise bad(f"{name}: expected a text, got a file")
    if is_picture and not isinstance(value, UploadFile):
        raise bad(f"{name}: expected a file, got a text", f"curl -F {name}=@photo.jpg")


class _closing:
    def __init__(self, form: Any):
        self._form = form

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        await self._form.close()


async def answer_to(request: Request, set_up: SetUp, sent: Sent, last: str, **ask: Any) -> Response:
    """The answer to what was asked: JSON, or a stream of events whose last is called `last`."""
    if set_up.engine.state != "ok":
        why = f"the model is {set_up.engine.state}"
        raise Refused(503, set_up.engine.state, why, "ask again later", Retry_After="10")
    pending = Pending(set_up.engine, set_up.temporary, sent, **ask)
    sent.forget()
    if "text/event-stream" in request.headers.get("accept", ""):
        return StreamingResponse(_stream(set_up, pending, last), media_type="text/event-stream")
    return await _plain(request, set_up, pending)


def _settled(set_up: SetUp, answer: Answer) -> str:
    """The answer's JSON. Raises Refused where it has an error."""
    if answer.error is not None:
        raise refused(answer, set_up.engine.timeout, set_up.engine.state)
    return answer.text


async def _plain(request: Request, set_up: SetUp, pending: Pending) -> Response:
    async def answered() -> Any:
        async for event in pending.events(set_up.engine.timeout):
            if event and event[0] == "answer":
                return event[1]

    async def gone() -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(0.5)

    waits = [asyncio.ensure_future(answered()), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not waits[0].done():
            return Response(status_code=499)
        return Response(_settled(set_up, waits[0].result()), media_type="application/json")
    finally:
        for wait in waits:
            wait.cancel()
        pending.leave()


async def _stream(set_up: SetUp, pending: Pending, last: str) -> AsyncIterator[str]:
    try:
        yield _event("queued", json.dumps({"id": pending.key, "position": pending.position}))
        async for event in pending.events(set_up.engine.timeout):
            if event is None:
                yield ": keep-alive\n\n"
            elif event[0] == "progress":
                yield _event("progress", json.dumps(event[1]))
            else:
                yield _event(last, _settled(set_up, event[1]))
    except Refused as error:
        if "row" in error.extra:
            yield _event(last, json.dumps(error.extra["row"], ensure_ascii=False))
        else:
            yield _event("error", json.dumps(error.body(), ensure_ascii=False))
    finally:
        pending.leave()


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"


def make_app(set_up: SetUp) -> FastAPI:
    """The application; what stands before it is in `guard`."""
    app = FastAPI(title="agentic-iqa", version=__version__, docs_url=None, redoc_url=None)

    @app.exception_handler(Refused)
    async def refusal(_: Request, error: Refused) -> Response:
        return JSONResponse(error.body(), error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        told = Refused(error.status_code, "http", str(error.detail))
        if error.status_code == 404:
            told = Refused(404, "not_found", "there is no such route", "/docs lists them")
        if error.status_code == 405:
            told = Refused(405, "method", f"{request.method}: not for this route", "/docs lists them")
        return JSONResponse(told.body(), error.status_code, error.headers)

    _page(app)
    _about(app, set_up)
    _asking(app, set_up)
    _batches(app, set_up)
    return app


def _page(app: FastAPI) -> None:
    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", media_type="text/html; charset=utf-8")

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in ASSETS:
            raise Refused(404, "not_found", "there is no such file")
        return FileResponse(PAGE / name, media_type=ASSETS[name])

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))


def _about(app: FastAPI, set_up: SetUp) -> None:
    engine = set_up.engine

    @app.get("/v1/info")
    async def info() -> dict[str, Any]:
        """What answers here, and within which limits."""
        levels = [
            {"letter": letter, "name": LEVEL_WORDS[level], "level": level}
            for letter, level in LETTER_TO_LEVEL.items()
        ]
        return {
            "version": __version__,
            "model": set_up.model,
            "small_model": set_up.small,
            "engine": set_up.backend,
            "device": engine.device,
            "pipelines": list(set_up.defaults.pipelines),
            "modes": ["logits", "classification", "uniform"],
            "presets": [{"label": a, "query": b, "choices": c} for a, b, c in PRESETS],
            "levels": levels,
            "limits": {
                "bytes": set_up.bytes,
                "pixels": set_up.settings.images.max_pixels,
                "seconds": engine.timeout,
                "pictures": set_up.pictures,
            },
            "token_required": set_up.token_required,
        }

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz")
    async def healthz() -> Response:
        """Whether the service can answer."""
        status = 200 if engine.state == "ok" else 503
        return JSONResponse({"status": engine.state, "waiting": engine.waiting}, status)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters and a histogram of seconds as Prometheus text."""
        gauges = {
            "up": (float(engine.state == "ok"), "Whether the models are loaded."),
            "queue_length": (engine.waiting, "Requests that wait."),
            "in_hand": (engine.in_hand, "Requests and pictures of batches that are worked on."),
            "batch_pictures_left": (set_up.batches.left, "Pictures of batches without a row."),
            "held_bytes": (set_up.held.now, "Bytes of requests that are not answered yet."),
        }
        return Response(set_up.metrics.text(gauges), media_type="text/plain; version=0.0.4")


def _asking(app: FastAPI, set_up: SetUp) -> None:
    @app.post("/v1/assess", openapi_extra=described("image", OPTIONS, "The row."))
    async def assess(request: Request) -> Response:
        """Assesses a picture: the row, or with Accept: text/event-stream its progress and then the row."""
        sent = await sent_with(request, set_up, many=False)
        ask = arguments(sent.options, set_up.defaults)
        settings = settings_for(sent.options, set_up.settings)
        return await answer_to(request, set_up, sent, "row", settings=settings, **ask)

    options = PAIRWISE | {name: OPTIONS[name] for name in ("pipeline", "background")}

    @app.post("/v1/compare", openapi_extra=described("images", options, "The comparison, or the order."))
    async def compare(request: Request) -> Response:
        """Compares two pictures, or orders several; the pipeline is letters unless another is named."""
        sent = await sent_with(request, set_up, many=True, extra=("pairwise",))
        check_known(sent.options, (*options, "images", "reference"))
        most = min(MOST_PICTURES, set_up.pictures)
        if not 2 <= len(sent.pictures) <= most:
            raise bad(f"images: expected 2 to {most} pictures, got {len(sent.pictures)}")
        wanted = asked(sent.options)
        pipeline = pipeline_of(wanted, set_up.defaults, "letters")
        about = {"settings": settings_for(sent.options, set_up.settings), "pairwise": wanted.pairwise}
        return await answer_to(request, set_up, sent, "comparison", pipeline=pipeline, **about)


def _base(request: Request) -> str:
    """Where a proxy has put the service."""
    return request.scope.get("root_path", "")


def _batches(app: FastAPI, set_up: SetUp) -> None:
    batches = set_up.batches

    @app.post(
        "/v1/batches", status_code=202, openapi_extra=described("images", OPTIONS, "The batch's status.", 202)
    )
    async def submit(request: Request) -> Response:
        """Takes pictures to assess when nobody waits. The batch outlasts a restart."""
        sent = await sent_with(request, set_up, many=True)
        return JSONResponse(await asyncio.to_thread(batches.submit, sent, _base(request)), 202)

    @app.get("/v1/batches")
    def listed(request: Request) -> list[dict[str, Any]]:
        """Every batch, the newest first."""
        return batches.all(_base(request))

    @app.get("/v1/batches/{name}", responses=NO_BATCH)
    def status(name: str, request: Request) -> dict[str, Any]:
        """How far a batch is."""
        return batches.status(name, _base(request))

    @app.get("/v1/batches/{name}/rows", responses=NO_BATCH, openapi_extra=FROM)
    def rows(name: str, request: Request) -> Response:
        """A batch's rows so far, from number ?from=N on, one a line."""
        start = request.query_params.get("from", "0")
        if not (start.isascii() and start.isdigit() and len(start) < 10):
            raise bad("from: expected a number, 0 or more")
        return Response("".join(batches.rows(name, int(start))), media_type="application/x-ndjson")

    @app.delete("/v1/batches/{name}", status_code=204, responses=NO_BATCH)
    def delete(name: str) -> Response:
        """Deletes a batch and its rows."""
        batches.delete(name)
        return Response(status_code=204)
