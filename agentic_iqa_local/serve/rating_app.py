"""The rating page over HTTP, for the person at this machine alone: its routes."""

import io
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from fastapi import Path as InPath
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.staticfiles import StaticFiles

from agentic_iqa_local.batch.rating_file import BEST, WORST
from agentic_iqa_local.files import read_bytes
from agentic_iqa_local.images.reading import load_image
from agentic_iqa_local.output.pages import ACCOUNT, FOLDER
from agentic_iqa_local.serve.asks import Refused
from agentic_iqa_local.serve.guard import LOOPBACK, guard, same_origin
from agentic_iqa_local.serve.rating import RatingSession
from agentic_iqa_local.serve.refusals import RESPONSES

PAGE = FOLDER / "rate"
MOST_BYTES = 10_000  # of a request
LARGEST = 2**30  # bytes of a picture's file
SHOWN = {b"\xff\xd8": "image/jpeg", b"\x89PNG": "image/png", b"RIFF": "image/webp"}  # as they are


class Rating(BaseModel):
    """A rating as the page sends it."""

    number: int = Field(ge=0)
    rating: int = Field(ge=WORST, le=BEST)


class Skip(BaseModel):
    """A picture that is not to be rated."""

    number: int = Field(ge=0)


def make_app(session: RatingSession) -> FastAPI:
    """The application, which asks for this machine's own host names. The session's worker runs as
    long as it does."""

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        worker = threading.Thread(target=session.work)
        worker.start()
        yield
        session.end()
        worker.join()  # the picture in hand is finished

    app = FastAPI(title="agentic-iqa rate", docs_url=None, redoc_url=None, lifespan=working,
                  redirect_slashes=False, dependencies=[Depends(same_origin)], responses=RESPONSES)  # fmt: skip

    @app.get("/v1/state")
    def state() -> dict[str, Any]:
        return session.state()

    @app.post("/v1/ratings")
    def rate(sent: Rating) -> dict[str, Any]:
        _picture(session, sent.number)
        session.rate(sent.number, sent.rating)
        return session.state()

    @app.post("/v1/skips")
    def skip(sent: Skip) -> dict[str, Any]:
        _picture(session, sent.number)
        session.skip(sent.number)
        return session.state()

    @app.post("/v1/undo")
    def undo() -> dict[str, Any]:
        session.undo()
        return session.state()

    @app.get("/v1/pictures/{number}")
    def picture(number: Annotated[int, InPath(ge=0)]) -> Response:
        return _shown(_picture(session, number))

    page = StaticFiles(directory=PAGE, html=True)
    page.all_directories.append(ACCOUNT)
    app.router.default = page
    guard(app, LOOPBACK, MOST_BYTES)
    return app


def _picture(session: RatingSession, number: int) -> Path:
    """Raises Refused (404) for a number that no picture has."""
    if number >= len(session.pictures):
        raise Refused(404, "no_picture", f"there is no picture {number}")
    return session.pictures[number]


def _shown(picture: Path) -> Response:
    """A picture as a browser can show it: its file, or its pixels as PNG. Raises FileError,
    ImageError."""
    data = read_bytes(picture, LARGEST)
    for mark, kind in SHOWN.items():
        if data.startswith(mark):
            return Response(data, media_type=kind)
    file = io.BytesIO()
    load_image(picture).pixels.save(file, "PNG", compress_level=1)
    return Response(file.getvalue(), media_type="image/png")
