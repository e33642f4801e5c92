"""The one place where an agent asks its model: three tries at an answer that validates, or at its
letters, then an honest failure."""

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel

from agentic_iqa_local.config import RoleSettings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.evidence import summed_up
from agentic_iqa_local.nodes.prompts import Prompt
from agentic_iqa_local.nodes.sessions import RoleSession
from agentic_iqa_local.state import PlannerError
from agentic_iqa_local.vlm_client import LetterRead, ModelLost, OutOfMemory, VLMError

logger = logging.getLogger(__name__)

TRIES = 3
MOST_LOGGED = 2000  # characters of an output in the log
MOST_KEPT = 20_000  # and in the record of a failed try
_FENCED = re.compile(r"\s*```(?:json)?(.*)```\s*", re.DOTALL)

Reply = TypeVar("Reply", bound=BaseModel)
Result = TypeVar("Result")


class InvalidAnswer(RuntimeError):
    """No valid answer in three tries; `attempts` has a record of each."""

    def __init__(self, attempts: list[PlannerError]):
        reason = one_line(attempts[-1].message.splitlines()[0])
        super().__init__(f"no valid JSON in {len(attempts)} attempts; the last error was: {reason}")
        self.attempts = attempts


def ask(
    session: RoleSession,
    prompt: Prompt,
    schema: type[Reply],
    role: RoleSettings,
    *,
    answer_prefix: str = "",
) -> Reply:
    """The model's answer to a prompt, as a `schema`: keys that it does not have are dropped, no
    value is converted. `answer_prefix` is the JSON that the answer begins with, up to a text's open
    end.

    A failed try is logged, kept in `failed_tries` and repeated with "Return ONLY valid JSON" added.
    After three tries it raises InvalidAnswer, or what the model itself raised last (VLMError).
    """
    text: str | None = None

    def once(attempt: int) -> Reply:
        nonlocal text
        text = None
        strict = replace(prompt, case=f"{prompt.case}\nReturn ONLY valid JSON.")
        written = session.generate(
            prompt if attempt == 1 else strict,
            schema,
            answer_prefix=answer_prefix,
            temperature=role.temperature,
            max_tokens=role.max_tokens,
        )
        # half a surrogate pair cannot be stored
        text = written.encode(errors="backslashreplace").decode()
        logger.debug("VLM response: %s", _shortened(text, MOST_LOGGED))
        return _read(text, schema, answer_prefix)

    wanted = f"valid {schema.__name__}"
    try:
        return _in_three_tries(once, session, role.backend, wanted, lambda: text)
    except VLMError:
        raise
    except ValueError as error:
        logger.error("No %s after %d attempts. Full VLM output: %r", wanted, TRIES, text)
        raise InvalidAnswer(session.models.failed_tries[-TRIES:]) from error


def read_letters(
    session: RoleSession,
    prompt: Prompt,
    answer_prefix: str,
    letters: Sequence[str],
    role: RoleSettings,
) -> LetterRead:
    """The session's letter read, tried again as `ask` does where the model raises. Raises
    VLMError."""

    def once(attempt: int) -> LetterRead:
        return session.read_letters(prompt, answer_prefix, letters)

    return _in_three_tries(once, session, role.backend, "letters")


def _in_three_tries(
    call: Callable[[int], Result],
    session: RoleSession,
    backend: str,
    wanted: str,
    output: Callable[[], str | None] = lambda: None,
) -> Result:
    """What `call` (of the attempt's number, from 1 on) returns. Each failure is logged and recorded
    with the `output` that led to it. Raises the last one; a lack of memory and a lost model at
    once, with which a batch knows what to do."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return call(attempt)
        except (VLMError, ValueError) as error:
            written = output()
            failure = PlannerError.from_exception(
                error,
                attempt=attempt,
                backend=backend,
                role=session.role,
                evidence=summed_up(session.models.evidence),
                output=None if written is None else _shortened(written, MOST_KEPT),
            )
            session.models.failed_tries.append(failure)
            told = one_line(failure.model_dump_json(exclude={"details": {"output"}}))
            logger.warning("Attempt %d of %d gave no %s: %s", attempt, TRIES, wanted, told)
            if attempt == TRIES or isinstance(error, (OutOfMemory, ModelLost)):
                raise


def _read(text: str, schema: type[Reply], answer_prefix: str) -> Reply:
    """A written answer, fenced or not, as a `schema`. Raises ValueError, which pydantic's errors
    are."""
    written = fenced[1] if (fenced := _FENCED.fullmatch(text)) else text
    reply = schema.model_validate_json(
        written, strict=True, extra="ignore", by_alias=True, by_name=False
    )
    said = json.dumps(reply.model_dump(mode="json", by_alias=True))
    if not said.startswith(answer_prefix):
        raise ValueError(
            f"expected an answer that begins with {answer_prefix}, got {_shortened(said, 80)}"
        )
    return reply


def _shortened(text: str, most: int) -> str:
    return text[:most] + ("… (truncated)" if len(text) > most else "")
