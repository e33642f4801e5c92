"""The one place where an agent asks its model: three tries at an answer that validates, then an honest failure."""

import json
import logging
from typing import TypeVar

from pydantic import BaseModel

from agentic_iqa_local.config import RoleSettings
from agentic_iqa_local.prompts import Prompt
from agentic_iqa_local.state import PlannerError, with_each_key_once
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import VLMSession

logger = logging.getLogger(__name__)

TRIES = 3
LOGGED_CHARACTERS = 2000

Reply = TypeVar("Reply", bound=BaseModel)


class InvalidAnswer(RuntimeError):
    """No valid answer in three tries; `attempts` has one record each, `output` the last text."""

    def __init__(self, attempts: list[PlannerError], output: str):
        reason = one_line(attempts[-1].message.splitlines()[0])
        super().__init__(f"no valid JSON in {len(attempts)} attempts; the last error was: {reason}")
        self.attempts, self.output = attempts, output


def ask(session: VLMSession, prompt: Prompt, schema: type[Reply], role: RoleSettings, *, answer_prefix: str = "") -> Reply:
    """A validated `schema`, which goes on from `answer_prefix`. A failed try is logged and repeated with "Return ONLY valid
    JSON" added to the prompt.

    Raises InvalidAnswer after three tries. VLMError from the model itself is not retried: the same call would fail again.
    """
    attempts: list[PlannerError] = []
    for attempt in range(1, TRIES + 1):
        asked = prompt if attempt == 1 else prompt.stricter()
        logger.debug("Prompt (attempt %d):\n%s\n%s", attempt, asked.instructions, asked.case)
        text = session.generate(
            asked, schema, answer_prefix=answer_prefix, temperature=role.temperature, max_tokens=role.max_tokens
        )
        text = text.encode(errors="backslashreplace").decode()  # a lone surrogate is no text that could be kept or sent on
        logger.debug("VLM response: %s", text[:LOGGED_CHARACTERS] + ("… (truncated)" if len(text) > LOGGED_CHARACTERS else ""))
        try:
            return _validated(text, schema, answer_prefix)
        except ValueError as error:
            record = PlannerError.from_exception(
                error, retry_count=attempt, backend=role.backend, output=text[:LOGGED_CHARACTERS]
            )
            attempts.append(record)
            told = one_line(record.model_dump_json())
            logger.warning("Attempt %d of %d gave no valid %s: %s", attempt, TRIES, schema.__name__, told)
    logger.error("No valid %s after %d attempts. Full VLM output: %r", schema.__name__, TRIES, text)
    raise InvalidAnswer(attempts, text)


def _validated(text: str, schema: type[Reply], answer_prefix: str) -> Reply:
    """`text` as a `schema`, nothing in it converted, dropped or said twice. Raises ValueError, which pydantic's errors are."""
    reply = schema.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    if not text.startswith(answer_prefix):
        raise ValueError(f"expected an answer that begins with {answer_prefix}")
    json.loads(text, object_pairs_hook=with_each_key_once)
    return reply
