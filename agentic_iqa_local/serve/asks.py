"""What can be asked over HTTP and MCP, and the work that answers it in the process that has the
models."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

from agentic_iqa_local.batch.work import ROLES, AssessWork, Work
from agentic_iqa_local.config import ConfigError, Pipeline, Request, Settings
from agentic_iqa_local.errors import UserError, did_you_mean, one_line
from agentic_iqa_local.images.pictures import PictureFile
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.judgement.comparison import Comparison, Ranking, compare, rank
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY
from agentic_iqa_local.result import Assessment, new_row
from agentic_iqa_local.services import Observer, Services

TO_ASSESS = ("query", "choices", "box", "pipeline", "mode", "max_replan_iterations", "map", "at_least",
             "error_rate", "target_width", "background")  # fmt: skip
TO_COMPARE = ("pipeline", "background")
LONGEST_NAME = 40  # characters of a field's name in an error
REPEAT = "in a form repeat the field: -F choices=Yes -F choices=No"

Answer: TypeAlias = Assessment | Comparison | Ranking


class Fault(BaseModel):
    """What is wrong: a code for programs, a sentence, and where there is something to do about it,
    what; otherwise `remedy` is absent."""

    code: str
    message: str
    remedy: str = ""


class Refused(UserError):
    """A request without an answer: a status of HTTP, a code for programs, a sentence and what to do
    about it."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        remedy: str = "",
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ):
        super().__init__(message, remedy)
        self.status, self.code, self.headers, self.more = status, code, headers, more

    def body(self) -> dict[str, Any]:
        """What stands in the answer of HTTP: the error, and `more` beside it."""
        fault = Fault(code=self.code, message=self.message, remedy=self.remedy)
        return {"error": fault.model_dump(exclude_defaults=True), **self.more}


@dataclass(frozen=True)
class Ask:
    """What is asked, checked: `settings` have the request's options in them. Of one picture it asks
    for an assessment, of several for a comparison; `about` names them."""

    request: Request
    settings: Settings
    pipeline: Pipeline
    pictures: Sequence[PictureFile] = ()
    reference: PictureFile | None = None

    def about(self, pictures: Sequence[PictureFile], reference: PictureFile | None = None) -> "Ask":
        return replace(self, pictures=pictures, reference=reference)

    def identity(self, device: str) -> dict[str, Any]:
        """What the answers depend on beside the pictures. Raises BundleError."""
        asked = {"request": self.request.model_dump(mode="json")}
        return AssessWork(self.settings, self.pipeline).identity(device, asked)

    @property
    def image(self) -> Path:
        return Path(self.pictures[0].path)


@dataclass(frozen=True)
class SetUp:
    """What was chosen at the start, and stands in for what a request leaves out."""

    settings: Settings
    pipeline: Pipeline

    @property
    def model(self) -> str:
        return self.settings.folder(self.settings.role("summarizer").backend).name

    def ask(self, options: Mapping[str, Any], known: Sequence[str] = TO_ASSESS) -> Ask:
        """What is asked with options of `config.Request`, if all of them are `known`. Empty ones,
        as forms send them, count as left out. Raises Refused (400), which quotes nothing of what
        was sent but a field's name."""
        if unknown := [name for name in options if name not in known]:
            near = did_you_mean(unknown[0][:80], known).removeprefix("; ")
            remedy = near or f"there are: {', '.join(known)}"
            said = f"{one_line(unknown[0][:LONGEST_NAME])}: there is no such field"
            raise Refused(400, "unknown_field", said, remedy)
        given = {name: value for name, value in options.items() if value not in (None, "", [])}
        try:
            request = Request.of(given)
            settings = request.applied_to(self.settings)
        except ConfigError as error:
            expected = error.message.partition(", got ")[0]  # what follows is what was sent
            remedy = REPEAT if expected.startswith("choices: expected 2") else error.remedy
            raise Refused(400, "bad_request", expected, remedy) from error
        return Ask(request, settings, request.pipeline or self.pipeline)


def answered(ask: Ask, services: Services, observer: Observer | None = None) -> Answer:
    """The assessment of one picture, which of two is better, or the order of more. The answer tells
    what is wrong with a picture. Raises VLMError for a model that cannot run."""
    services, request = copy.copy(services), ask.request
    services.settings = ask.settings
    how: dict[str, Any] = {
        "reference": ask.reference,
        "pipeline": ask.pipeline,
        "services": services,
    }
    how["observer"] = observer
    if len(ask.pictures) == 1:
        how |= {"query": request.query, "choices": request.choices, "box": request.box}
        return assess(ask.pictures[0], map=request.map, **how)
    if len(ask.pictures) == 2:
        return compare(*ask.pictures, **how)
    return rank(ask.pictures, **how)


def failure_of(answer: Answer) -> str | None:
    """Why an answer is none."""
    if isinstance(answer, Ranking):
        return None if answer.order else answer.failed[0].error
    return answer.error


def rows_of(answer: Answer) -> list[Assessment]:
    """The pictures of an answer: of a comparison the first and the second, of an order the best
    first."""
    if isinstance(answer, Comparison):
        return [answer.first, answer.second]
    if isinstance(answer, Ranking):
        return [*(ranked.assessment for ranked in answer.order), *answer.failed]
    return [answer]


def line_of(answer: Answer) -> str:
    """An answer as one line of JSON."""
    return one_line(json.dumps(answer.to_dict(), ensure_ascii=False))


class ServiceWork(Work[Ask, Answer]):
    """The service's work: an answer to each ask."""

    def __init__(self, set_up: SetUp):
        self.settings, self.roles = set_up.settings, ROLES[set_up.pipeline]

    def row(self, item: Ask, services: Services, observer: Observer) -> Answer:
        return answered(item, services, observer)

    def failure(self, item: Ask, error: str, sha256: str | None = None) -> Answer:
        """Of several pictures the first stands for all."""
        picture, request = item.pictures[0], item.request
        row = new_row(
            picture.name,
            item.reference and item.reference.name,
            request.query or DEFAULT_QUERY,
            request.choices,
            item.pipeline,
            item.settings,
            request.box,
            error=picture.hide(error),
        )
        row.sha256 = sha256
        return row if len(item.pictures) == 1 else Ranking(order=[], failed=[row])
