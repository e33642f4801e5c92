"""The fields of a request, from a form or from JSON: checked before anything waits in the queue."""

import base64
import binascii
import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from agentic_iqa_local.config import ConfigError, Settings
from agentic_iqa_local.levels import Mode, lower_edge
from agentic_iqa_local.request import Pipeline, check_choices, check_limit, check_query
from agentic_iqa_local.serve.errors import Refused
from agentic_iqa_local.text import one_line

OPTIONS = {
    "query": "a question or an instruction; default: rate the perceptual quality",
    "choices": "2 to 10 answers: a multiple-choice question; repeated in a form, a list in JSON",
    "pipeline": "agent or letters",
    "mode": "logits, classification or uniform",
    "max_replan_iterations": "N allows N - 1 replans",
    "map": "true: the quality from place to place too",
    "at_least": "pass, fail or unsure: a level from D to A, a word, or 1 to 5",
    "error_rate": "how often pass or fail may be wrong",
    "target_width": "look again while the interval is wider",
    "background": "what stands behind transparent pictures",
}
DECISIONS = ("at_least", "error_rate", "target_width")
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


def settings_for(options: Mapping[str, Any], base: Settings) -> Settings:
    """The service's settings with what a request changes in them. Raises Refused."""
    settings = base
    try:
        if mode := _one_of("mode", options.get("mode"), get_args(Mode)):
            settings = settings.with_mode(mode)
        decisions = {name: options[name] for name in DECISIONS if options.get(name) not in (None, "")}
        for name in ("error_rate", "target_width"):
            if name in decisions:
                decisions[name] = _number(name, decisions[name])
        if "at_least" in decisions:
            decisions["at_least"] = str(decisions["at_least"])[:80]
            try:
                lower_edge(decisions["at_least"])
            except ValueError as error:
                raise bad(f"at_least: {error}") from error
        if "error_rate" in decisions and "at_least" not in decisions:
            raise bad("error_rate: expected together with at_least")
        if decisions:
            settings = settings.with_decisions(**decisions)
        if background := options.get("background"):
            settings = settings.with_background(str(background)[:80])
    except (ConfigError, ValueError) as error:
        raise bad(getattr(error, "message", str(error)), getattr(error, "remedy", None)) from error
    return settings


@dataclass(frozen=True)
class Defaults:
    """What a request leaves out: a pipeline of `pipelines`, which are those whose models are here, and how
    often it may replan."""

    pipeline: Pipeline
    pipelines: tuple[Pipeline, ...]
    max_replan_iterations: int | None = None


def arguments(options: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """What an ask takes of the options beside its settings. Raises Refused."""
    query, choices = options.get("query"), options.get("choices")
    limit = options.get("max_replan_iterations")
    try:
        if query in (None, ""):
            query = None
        else:
            check_query(query)
        choices = choices or None
        if isinstance(choices, list) and len(choices) == 1:
            raise bad("choices: expected 2 to 10 answers, got 1", "repeat it: -F choices=Yes -F choices=No")
        check_choices(choices)
        if isinstance(limit, str):
            limit = _whole("max_replan_iterations", limit) if limit.strip() else None
        limit = defaults.max_replan_iterations if limit is None else limit
        if limit is not None:
            check_limit(limit)
    except (ValueError, TypeError) as error:
        raise bad(str(error)) from error
    return {
        "query": query,
        "choices": choices and tuple(choices),
        "max_replan_iterations": limit,
        "pipeline": pipeline_of(options, defaults, defaults.pipeline),
        "map": truth("map", options.get("map")) or False,
    }


def pipeline_of(options: Mapping[str, Any], defaults: Defaults, otherwise: Pipeline) -> Pipeline:
    """The pipeline that is asked for, or `otherwise`. Raises Refused where its models are not here."""
    pipeline = _one_of("pipeline", options.get("pipeline"), get_args(Pipeline)) or otherwise
    if pipeline not in defaults.pipelines:
        here = ", ".join(defaults.pipelines)
        raise bad(f"pipeline: the models of {pipeline} are not here", f"this service has: {here}")
    return pipeline


def truth(name: str, value: Any) -> bool | None:
    """true or false, as JSON or as a form's text; None where it is left out. Raises Refused."""
    if value in (None, ""):
        return None
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise bad(f"{name}: expected true or false, got {str(value)[:80]}")


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> Any:
    if value in (None, ""):
        return None
    if value not in known:
        raise bad(f"{name}: expected {', '.join(known)}, got {str(value)[:80]}")
    return value


def _whole(name: str, value: str) -> int:
    if not (value.strip().isascii() and value.strip().isdigit() and len(value) < 10):
        raise bad(f"{name}: expected a whole number, 0 or more, got {value[:80]}")
    return int(value)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise bad(f"{name}: expected a number, got {str(value)[:80]}")
    return number
