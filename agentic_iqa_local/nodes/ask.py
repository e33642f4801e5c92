"""The one place where an agent asks its model: three tries at an answer that validates, or at its
letters, then an honest failure."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel

from agentic_iqa_local.config import RoleSettings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.evidence import summed_up
from agentic_iqa_local.nodes.prompts import Prompt
from agentic_iqa_local.nodes.sessions import RoleSession, shortened
from agentic_iqa_local.state import PlannerError
from agentic_iqa_local.vlm_client import LetterRead, ModelLost, OutOfMemory, VLMError

logger = logging.getLogger(__name__)

TRIES = 3
MOST_KEPT = 20_000  # characters of an output in the record of a failed try

Reply = TypeVar("Reply", bound=BaseModel)
Result = TypeVar("Result")


class InvalidAnswer(VLMError):
    """No valid answer in three tries."""


def ask(session: RoleSession, prompt: Prompt, schema: type[Reply], role: RoleSettings) -> Reply:
    """The model's answer to a prompt, as a `schema`.

    A failed try is logged, kept in `failed_tries` and repeated with "Return ONLY valid JSON" added.
    After three tries it raises InvalidAnswer, or what the model itself raised last (VLMErrors both).
    """
    strict = replace(prompt, case=f"{prompt.case}\nReturn ONLY valid JSON.")
    limits = {"temperature": role.temperature, "max_tokens": role.max_tokens}

    def once(attempt: int) -> Reply:
        asked = prompt if attempt == 1 else strict
        return schema.model_validate_json(session.generate(asked, schema, **limits))

    wanted = f"valid {schema.__name__}"
    try:
        return _in_three_tries(once, session, role, wanted)
    except VLMError:
        raise
    except ValueError as error:  # which pydantic's errors are
        full = session.written
        logger.error("No %s after %d attempts. Full VLM output: %r", wanted, TRIES, full)
        reason = str(error).splitlines()[0]
        said = f"no valid JSON in {TRIES} attempts; the last error was: {reason}"
        raise InvalidAnswer(said) from error


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

    return _in_three_tries(once, session, role, "letters")


def _in_three_tries(
    call: Callable[[int], Result], session: RoleSession, role: RoleSettings, wanted: str
) -> Result:
    """What `call` (of the attempt's number, from 1 on) returns. Each failure is logged and recorded
    with what the model had written. Raises the last one; a lack of memory and a lost model at once,
    with which a batch knows what to do."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return call(attempt)
        except (VLMError, ValueError) as error:
            failure = PlannerError.from_exception(
                error,
                attempt=attempt,
                backend=role.backend,
                role=session.role,
                evidence=summed_up(session.models.evidence),
                output=shortened(session.written, MOST_KEPT),
            )
            session.models.failed_tries.append(failure)
            told = one_line(failure.model_dump_json(exclude={"details": {"output"}}))
            logger.warning("Attempt %d of %d gave no %s: %s", attempt, TRIES, wanted, told)
            if attempt == TRIES or isinstance(error, (OutOfMemory, ModelLost)):
                raise
