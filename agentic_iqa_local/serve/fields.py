"""The fields of a request, from a form or from JSON: checked before anything waits in the queue."""

import base64
import binascii
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentic_iqa_local.config import ConfigError, Pipeline, Request, Settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.serve.errors import Refused

OPTIONS = {  # what a request may ask for, and what the API's page says of it
    name: Request.model_fields[name].description or ""
    for name in (
        *("query", "choices", "pipeline", "mode", "max_replan_iterations", "map"),
        *("at_least", "error_rate", "target_width", "background"),
    )
}
PAIRWISE = {"pairwise": Request.model_fields["pairwise"].description or ""}
LONGEST_NAME = 200  # characters of a picture's name


@dataclass
class Sent:
    """A request's content: options by name, and pictures with their senders' names."""

    options: dict[str, Any] = field(default_factory=dict)
    pictures: list[tuple[str, bytes]] = field(default_factory=list)
    reference: tuple[str, bytes] | None = None

    def forget(self) -> None:
        """Lets go of the pictures, which are on the disk by now."""
        self.pictures, self.reference = [], None


def bad(message: str, remedy: str | None = None) -> Refused:
    return Refused(400, "bad_request", message, remedy)


def check_known(names: Any, known: Any) -> None:
    """Raises Refused for a field that there is none of, with the near one."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), list(known), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            raise Refused(400, "unknown_field", f"{str(name)[:80]}: there is no such field", hint)


def name_of(name: Any) -> str:
    """A sender's name for a picture, without folders; only ever shown."""
    last = str(name or "").replace("\\", "/").rstrip("/").rpartition("/")[2]
    return one_line(last.encode("utf-8", "replace").decode())[:LONGEST_NAME] or "picture"


def from_json(body: bytes, many: bool, extra: tuple[str, ...] = ()) -> Sent:
    """The content of a JSON body with pictures in base64. Raises Refused."""
    try:
        about = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "bad_json", "expected JSON, got something else", "check the body") from error
    if not isinstance(about, dict):
        raise Refused(400, "bad_json", f"expected a JSON object, got {type(about).__name__}")
    own = ("images",) if many else ("image", "image_name")
    check_known(about, (*own, "reference", "reference_name", *OPTIONS, *extra))
    sent = Sent({name: about[name] for name in (*OPTIONS, *extra) if about.get(name) is not None})
    if about.get("reference") is not None:
        sent.reference = name_of(about.get("reference_name")), _decoded("reference", about["reference"])
    if not many:
        if about.get("image") is not None:
            sent.pictures = [(name_of(about.get("image_name")), _decoded("image", about["image"]))]
        return sent
    images = about.get("images") or []
    if not isinstance(images, list) or not all(isinstance(one, (dict, str)) for one in images):
        raise bad('images: expected a list of {"name", "data"}, or of pictures in base64')
    for number, one in enumerate(images, 1):
        one = {"data": one} if isinstance(one, str) else one
        check_known(one, ("name", "data"))
        name = name_of(one.get("name") or f"picture {number}")
        sent.pictures.append((name, _decoded("images", one.get("data"))))
    return sent


def _decoded(name: str, data: Any) -> bytes:
    if isinstance(data, str) and data.startswith("data:"):  # as browsers write it
        data = data[data.find(",", 0, 200) + 1 :]
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise bad(
            f"{name}: expected a picture in base64", "encode the file's bytes; no path or address is read"
        ) from error


def asked(options: Mapping[str, Any]) -> Request:
    """A request's options; an empty text, as forms send it, leaves one out. Raises Refused."""
    try:
        return Request.of({name: value for name, value in options.items() if value not in (None, "", [])})
    except ConfigError as error:
        raise bad(error.message, error.remedy) from error


def settings_for(options: Mapping[str, Any], base: Settings) -> Settings:
    """The service's settings with what a request changes in them. Raises Refused."""
    try:
        return asked(options).applied_to(base)
    except ConfigError as error:
        raise bad(error.message, error.remedy) from error


@dataclass(frozen=True)
class Defaults:
    """What a request leaves out: a pipeline of `pipelines`, which are those whose models are here, and how
    often it may replan."""

    pipeline: Pipeline
    pipelines: tuple[Pipeline, ...]
    max_replan_iterations: int | None = None


def arguments(options: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """What an ask takes of the options beside its settings. Raises Refused."""
    request, limit = asked(options), defaults.max_replan_iterations
    return {
        "query": request.query,
        "choices": request.choices and tuple(request.choices),
        "max_replan_iterations": limit
        if request.max_replan_iterations is None
        else request.max_replan_iterations,
        "pipeline": pipeline_of(request, defaults, defaults.pipeline),
        "map": request.map,
    }


def pipeline_of(request: Request, defaults: Defaults, otherwise: Pipeline) -> Pipeline:
    """The pipeline that is asked for, or `otherwise`. Raises Refused where its models are not here."""
    pipeline = request.pipeline or otherwise
    if pipeline not in defaults.pipelines:
        here = ", ".join(defaults.pipelines)
        raise bad(f"pipeline: the models of {pipeline} are not here", f"this service has: {here}")
    return pipeline
