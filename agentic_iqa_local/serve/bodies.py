"""The bodies of requests: pictures and options in a form, in JSON or in OpenAI's messages, checked at once."""

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import from_json
from starlette.datastructures import UploadFile

from agentic_iqa_local.config import Request as Options
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import first_mistake
from agentic_iqa_local.images.pictures import PictureFile
from agentic_iqa_local.output.comparison_report import explain
from agentic_iqa_local.serve.asks import TO_ASSESS, TO_COMPARE, Ask, Refused, SetUp

MOST = 1000  # pictures in a request
MOST_BYTES = 2**27  # of the body of a request
FORM, JSON = "multipart/form-data", "application/json"
COMPONENT = "#/components/schemas/{model}"  # where a route's OpenAPI refers to
Sent = TypeVar("Sent", bound=BaseModel)


def _fit_for_a_file(name: str) -> str:
    last = one_line(name.replace("\\", "/").rstrip("/").rpartition("/")[2])
    short = last.encode("utf-8", "replace")[:200].decode(
        "utf-8", "ignore"
    )  # a file system takes 255
    return "picture" if short in ("", ".", "..") else short


def _decoded(data: Any) -> Any:
    if not isinstance(data, str):
        return data
    text = (
        data[data.find(",", 0, 200) + 1 :] if data.startswith("data:") else data
    )  # as browsers write it
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(
            "expected a picture in base64; encode the file's bytes, no path is read"
        ) from error


class Upload(BaseModel):
    """A picture as it was sent: the bytes of its file, and its sender's name, which is only ever shown."""

    name: Annotated[str, AfterValidator(_fit_for_a_file)] = "picture"
    data: Annotated[bytes, BeforeValidator(_decoded), Field(min_length=1)]


Picture = Annotated[
    Upload,
    BeforeValidator(lambda value: {"data": value} if isinstance(value, str) else value),
    WithJsonSchema(
        {"type": "string", "format": "binary", "description": "a file; in JSON it is in base64"}
    ),
]


class Body(BaseModel, extra="allow"):
    """Pictures to assess, each by itself. What else is sent are options, of which `known` may be there."""

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
        files, count = [], len(self.images)
        with tempfile.TemporaryDirectory(dir=below) as folder:
            for number, upload in enumerate(
                [*self.images, self.reference] if self.reference else self.images
            ):
                path = Path(folder) / str(number)
                path.write_bytes(upload.data)
                files.append(PictureFile(str(path), upload.name))
            yield ask.about(files[:count], *files[count:])


class OnePicture(Body):
    """A picture to assess, in the field `image`."""

    images: Annotated[Picture, AfterValidator(lambda one: [one])] = Field(alias="image")  # pyright: ignore


class Compared(Body):
    """Pictures to compare, by the pipeline letters unless another is named."""

    known: ClassVar = TO_COMPARE
    usual: ClassVar = {"pipeline": "letters"}
    event: ClassVar = "comparison"
    images: list[Picture] = Field(min_length=2, max_length=MOST)


def _is_data(url: str) -> str:
    if not url.startswith("data:"):
        raise ValueError("expected a data URL (data:image/png;base64,...), for nothing is fetched")
    return url


class Address(BaseModel):
    """Where a picture is: in the address itself."""

    url: Annotated[str, AfterValidator(_is_data)]


class Part(BaseModel):
    """A piece of a message: a text or a picture."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: Address | None = None

    @model_validator(mode="after")
    def _has_what_it_is(self) -> Self:
        if getattr(self, self.type) is None:
            raise ValueError(f"expected {self.type}, which its type names")
        return self


def _in_parts(content: Any) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ValueError("expected a text or a list of parts")
    return content


class Message(BaseModel):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[
        list[Part],
        BeforeValidator(_in_parts, json_schema_input_type=str | list[Part] | None),
    ] = []


class Completion(BaseModel, extra="allow"):
    """What a client of OpenAI sends. Options of an assessment may stand beside it; OpenAI's own are ignored."""

    known: ClassVar = TO_ASSESS
    messages: list[Message]
    stream: bool | None = None

    def picture(self) -> OnePicture:
        """The last picture (a data URL) with the last text as its query. Raises Refused."""
        sent = self.model_extra or {}
        fields = {name: sent[name] for name in sent if name in TO_ASSESS}
        for part in (part for message in self.messages for part in message.content):
            if part.type == "image_url" and part.image_url:
                fields["image"] = part.image_url.url
            elif part.text:
                fields["query"] = part.text
        if "image" not in fields:
            remedy = 'send a part {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}'
            raise Refused(
                400, "bad_request", "image: expected a picture in the messages, found none", remedy
            )
        return checked(OnePicture.model_validate, fields)

    def reply(self, row: Any, model: str) -> Response:
        """The account of a row in words, with the row beside it; as a stream in one piece."""
        choice = {"index": 0, "finish_reason": "stop"}
        choice["delta" if self.stream else "message"] = {
            "role": "assistant",
            "content": explain(row),
        }
        about = {"id": f"chatcmpl-{row.sha256}", "created": int(time.time()), "model": model}
        kind = "chat.completion.chunk" if self.stream else "chat.completion"
        about |= {"object": kind, "choices": [choice], "row": row.to_dict()}
        text = f"data: {json.dumps(about)}\n\ndata: [DONE]\n\n"
        return (
            Response(text, media_type="text/event-stream") if self.stream else JSONResponse(about)
        )


async def body_of(request: Request, model: type[Sent], kinds: Sequence[str] = (FORM, JSON)) -> Sent:
    """The body of a request, of this model and one of these kinds. Raises Refused for one that cannot be read or
    lacks a picture."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:
        remedy = "curl -F image=@photo.jpg, or JSON with the file in base64"
        raise Refused(415, "media_type", f"expected {' or '.join(kinds)}", remedy)
    if kind == FORM:
        return checked(model.model_validate, await _form_fields(request))
    return await asyncio.to_thread(_read, model, await request.body())


def _read(model: type[Sent], content: bytes) -> Sent:
    try:
        fields = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise Refused(400, "bad_request", f"expected JSON: {error}") from error
    return checked(model.model_validate, fields)


def checked(validate: Callable[[Any], Any], fields: Any) -> Any:
    """What `validate` makes of fields. Raises Refused where they make no sense."""
    try:
        return validate(fields)
    except ValidationError as error:
        raise Refused(400, "bad_request", first_mistake(error)) from error


async def _form_fields(request: Request) -> dict[str, Any]:
    """Of a field that is sent twice, the last counts, but for pictures and choices."""
    fields: dict[str, Any] = {}
    async with request.form(max_files=MOST + 1) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                value = {"name": value.filename or "", "data": await value.read()}
            fields[name] = (
                [*fields.get(name, []), value] if name in ("images", "choices") else value
            )
    return fields


def described(
    model: type[Body | Completion], kinds: Sequence[str] = (FORM, JSON)
) -> dict[str, Any]:
    """What OpenAPI says of a route's body: its pictures, and its options of `config.Request`."""
    schema = model.model_json_schema(ref_template=COMPONENT)
    schema.pop("$defs", None)
    options = Options.model_json_schema()["properties"]
    schema["properties"] |= {name: options[name] for name in model.known}
    content = {kind: {"schema": schema} for kind in kinds}
    return {"requestBody": {"required": True, "content": content}}


def components() -> dict[str, Any]:
    """The schemas that `described` refers to."""
    return Completion.model_json_schema(ref_template=COMPONENT)["$defs"]
