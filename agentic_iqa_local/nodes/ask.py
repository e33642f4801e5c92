"""The one place where an agent asks its model: three tries at an answer that validates, then an honest
failure."""

import json
import logging
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentic_iqa_local.config import RoleSettings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import with_each_key_once
from agentic_iqa_local.nodes.prompts import Prompt
from agentic_iqa_local.state import PlannerError, revised
from agentic_iqa_local.vlm_client import VLMError, VLMSession

logger = logging.getLogger(__name__)

TRIES = 3
LOGGED_CHARACTERS = 2000
LONGEST_OUTPUT, LONGEST_MESSAGE = 20_000, 2000  # characters, in the record of a failed try: a row has an end
_FENCED = re.compile(r"```(?:json)?(.*)```", re.DOTALL)

Reply = TypeVar("Reply", bound=BaseModel)


class InvalidAnswer(RuntimeError):
    """No valid answer in three tries; `attempts` has one record each, `output` the last text."""

    def __init__(self, attempts: list[PlannerError], output: str):
        reason = one_line(attempts[-1].message.splitlines()[0])
        super().__init__(f"no valid JSON in {len(attempts)} attempts; the last error was: {reason}")
        self.attempts, self.output = attempts, output


def ask(
    session: VLMSession, prompt: Prompt, schema: type[Reply], role: RoleSettings, *, answer_prefix: str = ""
) -> Reply:
    """A validated `schema` whose text begins with `answer_prefix`. A failed try is logged and repeated with
    "Return ONLY valid JSON" added to the prompt; each is kept in the session's `failed_tries`, if it has them
    (`workbench.RoleSession`).

    Raises InvalidAnswer after three tries. VLMError from the model itself is not retried: the same call would
    fail again.
    """
    attempts: list[PlannerError] = []
    text = ""
    for attempt in range(1, TRIES + 1):
        asked = prompt if attempt == 1 else prompt.stricter()
        logger.debug("Prompt (attempt %d):\n%s\n%s", attempt, asked.instructions, asked.case)
        options = {"temperature": role.temperature, "max_tokens": role.max_tokens}
        try:
            text = session.generate(asked, schema, answer_prefix=answer_prefix, **options)
        except VLMError as error:
            _keep(error, attempt, None, session, role)
            raise
        text = _as_text(text)
        logger.debug("VLM response: %s", _shortened(text))
        try:
            parse = _strict if getattr(session, "constrained", False) else _lenient
            return parse(text, schema, answer_prefix)
        except ValueError as error:
            attempts.append(record := _keep(error, attempt, text, session, role))
            brief = revised(record, details={**(record.details or {}), "output": text[:LOGGED_CHARACTERS]})
            line = one_line(brief.model_dump_json())
            logger.warning("Attempt %d of %d gave no valid %s: %s", attempt, TRIES, schema.__name__, line)
    logger.error("No valid %s after %d attempts. Full VLM output: %r", schema.__name__, TRIES, text)
    raise InvalidAnswer(attempts, text)


def _keep(
    error: Exception, attempt: int, output: str | None, session: VLMSession, role: RoleSettings
) -> PlannerError:
    """The record of a failed try, put beside the others of the assessment."""
    details = {"role": getattr(session, "role", None), "output": output and output[:LONGEST_OUTPUT]}
    if output and len(output) > LONGEST_OUTPUT:
        details["cut"] = f"the first {LONGEST_OUTPUT} of {len(output)} characters"
    record = PlannerError.from_exception(error, attempt=attempt, backend=role.backend, **details)
    record = revised(record, message=_shortened(_as_text(record.message), LONGEST_MESSAGE))
    getattr(session, "failed_tries", []).append(record)
    return record


def _as_text(text: str) -> str:
    """A lone surrogate is no text that could be kept or sent on: it becomes an escape."""
    return text.encode(errors="backslashreplace").decode()


def _shortened(text: str, most: int = LOGGED_CHARACTERS) -> str:
    return text[:most] + ("… (truncated)" if len(text) > most else "")


def _strict(text: str, schema: type[Reply], answer_prefix: str) -> Reply:
    """What was written under a grammar as a `schema`, nothing in it converted, dropped or said twice. Raises
    ValueError, which pydantic's errors are."""
    reply = schema.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    if not text.startswith(answer_prefix):
        raise ValueError(f"expected an answer that begins with {answer_prefix}")
    json.loads(text, object_pairs_hook=with_each_key_once)
    return reply


def _lenient(text: str, schema: type[Reply], answer_prefix: str) -> Reply:
    """What was written without a grammar as a `schema`: indented or not, fenced or not, with blanks around
    its texts or not. Keys that were not asked for are dropped and texts beyond their limit cut; no value is
    converted. Raises ValueError."""
    if fenced := _FENCED.fullmatch(text.strip()):
        text = fenced[1]
    try:
        answer = json.loads(text, object_pairs_hook=_stripped)
        begun = json.loads(f'{answer_prefix}"}}') if answer_prefix else {}
        reply = _without_other_keys(answer, schema)
    except RecursionError as error:
        raise ValueError("expected JSON of a few levels, got it nested beyond reading") from error
    values = reply.model_dump(mode="json", by_alias=True)
    if wrong := {name: values[name] for name, value in begun.items() if values[name] != value}:
        raise ValueError(f"expected {json.dumps(begun)} as begun, got {json.dumps(wrong)}")
    return reply


def _without_other_keys(answer: Any, schema: type[Reply]) -> Reply:
    """`answer` as a `schema`, without the keys that this forbids. Raises ValueError."""

    def validated() -> (
        Reply
    ):  # through JSON, where a list may stand for a tuple although nothing is converted
        context = {"cut": True}
        options = {"strict": True, "by_alias": True, "by_name": False, "context": context}
        return schema.model_validate_json(json.dumps(answer), **options)

    try:
        return validated()
    except ValidationError as error:
        others = [mistake["loc"] for mistake in error.errors() if mistake["type"] == "extra_forbidden"]
        if not others:
            raise
    for *path, key in others:
        part = answer
        for step in path:
            part = part[step]
        del part[key]
    return validated()


def _stripped(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object with each key once, without blanks around its texts and those in its lists."""

    def strip(value: Any) -> Any:
        if isinstance(value, list):
            return [part.strip() if isinstance(part, str) else part for part in value]
        return value.strip() if isinstance(value, str) else value

    return {name: strip(value) for name, value in with_each_key_once(pairs).items()}
