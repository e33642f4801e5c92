"""The bodies of requests: pictures and options in a form, in JSON or in OpenAI's messages, checked
at once."""

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import from_json
from starlette.datastructures import UploadFile

from agentic_iqa_local import config
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import first_mistake
from agentic_iqa_local.images.pictures import PictureFile
from agentic_iqa_local.output.comparison_report import explain
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.serve.asks import TO_ASSESS, TO_COMPARE, Ask, Refused, SetUp

MOST = 1000  # pictures in a request
MOST_BYTES = 2**27  # of the body of a request
FORM, JSON = "multipart/form-data", "application/json"
HOW_TO_SEND = "curl -F image=@photo.jpg (to compare images=@a.jpg), or JSON with the file in base64"
Sent = TypeVar("Sent", bound=BaseModel)


def _fit_for_a_file(name: str) -> str:
    last = one_line(name.replace("\\", "/").rstrip("/").rpartition("/")[2])
    short = last.encode("utf-8", "replace")[:200].decode("utf-8", "ignore")  # disks take 255 bytes
    return "picture" if short in ("", ".", "..") else short


def _decoded(data: Any) -> Any:
    if not isinstance(data, str):
        return data
    if data.startswith("data:"):  # as browsers write it
        data = data.partition(",")[2]
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        remedy = "encode the file's bytes, no path is read"
        raise ValueError(f"expected a picture in base64; {remedy}") from error


class Upload(BaseModel):
    """A picture as it was sent: the bytes of its file, and its sender's name, which is only ever
    shown."""

    name: Annotated[str, AfterValidator(_fit_for_a_file)] = "picture"
    data: Annotated[bytes, BeforeValidator(_decoded), Field(min_length=1)]

    def stored(self, path: Path) -> PictureFile:
        """The picture in a file, under its sender's name."""
        path.write_bytes(self.data)
        return PictureFile(str(path), self.name)


def _as_upload(value: Any) -> Any:
    return {"data": value} if isinstance(value, str) else value


IN_SCHEMA = {"type": "string", "format": "binary", "description": "a file; in JSON it is in base64"}
Picture = Annotated[Upload, BeforeValidator(_as_upload), WithJsonSchema(IN_SCHEMA)]


class Body(BaseModel, extra="allow"):
    """Pictures to assess, each by itself. Everything else that is sent is an option, one of
    `known`."""

    known: ClassVar = TO_ASSESS
    usual: ClassVar[dict[str, Any]] = {}
    event: ClassVar = "row"
    images: list[Picture] = Field(min_length=1, max_length=MOST)
    reference: Picture | None = Field(default=None, description="the pristine original")

    @property
    def options(self) -> dict[str, Any]:
        return self.usual | (self.model_extra or {})

    def ask(self, set_up: SetUp) -> Ask:
        """What is asked with the options. Raises Refused."""
        return set_up.ask(self.options, self.known)

    @contextmanager
    def stored(self, ask: Ask, below: Path) -> Iterator[Ask]:
        """The ask about these pictures, which lie in a private folder meanwhile."""
        with tempfile.TemporaryDirectory(dir=below) as folder:
            pictures = []
            for number, upload in enumerate(self.images):
                pictures.append(upload.stored(Path(folder, str(number))))
            reference = self.reference and self.reference.stored(Path(folder, "reference"))
            yield ask.about(pictures, reference)


class OnePicture(Body):
    """A picture to assess, in the field `image`."""

    images: Annotated[Picture, AfterValidator(lambda one: [one])] = Field(alias="image")  # pyright: ignore


class Compared(Body):
    """Pictures to compare, by the pipeline letters unless another is named."""

    known: ClassVar = TO_COMPARE
    usual: ClassVar = {"pipeline": "letters"}
    event: ClassVar = "comparison"
    images: list[Picture] = Field(min_length=2, max_length=MOST)


class Address(BaseModel):
    """Where a picture is: in the address itself, for nothing is fetched."""

    url: str = Field(pattern="^data:")


class SentText(BaseModel):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class SentPicture(BaseModel):
    """A piece of a message."""

    type: Literal["image_url"]
    image_url: Address


def _in_parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [] if content is None else content


class Message(BaseModel):
    """A turn of a conversation, whoever says it."""

    content: Annotated[list[SentText | SentPicture], BeforeValidator(_in_parts)] = []


class Completion(BaseModel, extra="allow"):
    """What a client of OpenAI sends. Options of an assessment may stand beside it; OpenAI's own are
    ignored."""

    messages: list[Message]
    stream: bool | None = None

    def picture(self) -> OnePicture:
        """The last picture (a data URL) with the last text as its query. Raises Refused."""
        fields = {name: x for name, x in (self.model_extra or {}).items() if name in TO_ASSESS}
        for message in self.messages:
            for part in message.content:
                if isinstance(part, SentPicture):
                    fields["image"] = part.image_url.url
                else:
                    fields["query"] = part.text
        if "image" not in fields:
            said = "image: expected a picture in the messages, found none"
            part = '{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}'
            raise Refused(400, "bad_request", said, f"send a part {part}")
        return checked(OnePicture, fields)

    def reply(self, row: Assessment, model: str) -> Response:
        """The account of a row in words, with the row beside it; as a stream in one piece."""
        message = {"role": "assistant", "content": explain(row)}
        about = {
            "id": f"chatcmpl-{row.sha256}",
            "created": int(time.time()),
            "model": model,
            "row": row.to_dict(),
        }
        choice = {"index": 0, "finish_reason": "stop"}
        if not self.stream:
            choices = [choice | {"message": message}]
            return JSONResponse(about | {"object": "chat.completion", "choices": choices})
        about |= {"object": "chat.completion.chunk", "choices": [choice | {"delta": message}]}
        text = f"data: {json.dumps(about)}\n\ndata: [DONE]\n\n"
        return Response(text, media_type="text/event-stream")


async def body_of(request: Request, model: type[Sent], kinds: Sequence[str] = (FORM, JSON)) -> Sent:
    """The body of a request, of this model and one of these kinds. Raises Refused for one that
    cannot be read or lacks a picture."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:
        raise Refused(415, "media_type", f"expected {' or '.join(kinds)}", HOW_TO_SEND)
    if kind == FORM:
        return checked(model, await _form_fields(request))
    return await asyncio.to_thread(_read, model, await request.body())


def _read(model: type[Sent], content: bytes) -> Sent:
    try:
        fields = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise Refused(400, "bad_request", f"expected JSON: {error}") from error
    return checked(model, fields)


def checked(model: type[Sent], fields: Any) -> Sent:
    """What a model makes of fields. Raises Refused if they make no sense."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first, *_ = error.errors()
        lacks_picture = first["type"] == "missing" and first["loc"][-1] in ("image", "images")
        remedy = HOW_TO_SEND if lacks_picture else ""
        raise Refused(400, "bad_request", first_mistake(error), remedy) from error


async def _form_fields(request: Request) -> dict[str, Any]:
    """The last value of each field; of pictures and choices all."""
    fields: dict[str, Any] = {}
    async with request.form(max_files=MOST + 1) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                value = {"name": value.filename or "", "data": await value.read()}
            if name in ("images", "choices"):
                fields.setdefault(name, []).append(value)
            else:
                fields[name] = value
    return fields


def described(model: type[Body]) -> dict[str, Any]:
    """What OpenAPI says of a route's body: its pictures, and its options of `config.Request`."""
    schema = model.model_json_schema()
    options = config.Request.model_json_schema()["properties"]
    schema["properties"] |= {name: options[name] for name in model.known}
    content = {kind: {"schema": schema} for kind in (FORM, JSON)}
    return {"requestBody": {"required": True, "content": content}}
