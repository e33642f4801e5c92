"""The one place where an agent asks its model: three tries at an answer that validates, then an honest failure."""

import json
import logging
import re
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel

from agentic_iqa_local.config import RoleSettings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.prompts import Prompt
from agentic_iqa_local.nodes.workbench import RoleSession
from agentic_iqa_local.state import PlannerError
from agentic_iqa_local.vlm_client import VLMError

logger = logging.getLogger(__name__)

TRIES = 3
MOST_LOGGED, MOST_KEPT = (
    2000,
    20_000,
)  # characters of an output, in the log and in the record of a failed try
_FENCED = re.compile(r"\s*```(?:json)?(.*)```\s*", re.DOTALL)

Reply = TypeVar("Reply", bound=BaseModel)


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
    """The model's answer to a prompt, as a `schema`: keys that it does not have are dropped, no value is converted.
    `answer_prefix` is the JSON that the answer begins with, up to a text's open end.

    A failed try is logged, kept in the session's `failed_tries` and repeated with "Return ONLY valid JSON" added.
    Raises InvalidAnswer after three tries, and VLMError from the model itself, which is not retried: the same call
    would fail again.
    """
    text, options = "", {"temperature": role.temperature, "max_tokens": role.max_tokens}
    for attempt in range(1, TRIES + 1):
        asked = (
            prompt
            if attempt == 1
            else replace(prompt, case=f"{prompt.case}\nReturn ONLY valid JSON.")
        )
        logger.debug("Prompt (attempt %d):\n%s\n%s", attempt, asked.instructions, asked.case)
        try:
            text = session.generate(asked, schema, answer_prefix=answer_prefix, **options)
            text = text.encode(
                errors="backslashreplace"
            ).decode()  # half a surrogate pair cannot be stored
            logger.debug("VLM response: %s", _shortened(text, MOST_LOGGED))
            return _read(text, schema, answer_prefix)
        except (VLMError, ValueError) as error:
            output = None if isinstance(error, VLMError) else _shortened(text, MOST_KEPT)
            about = {"backend": role.backend, "role": session.role, "output": output}
            session.failed_tries.append(
                PlannerError.from_exception(error, attempt=attempt, **about)
            )
            if isinstance(error, VLMError):
                raise
        told = one_line(session.failed_tries[-1].model_dump_json(exclude={"details": {"output"}}))
        logger.warning(
            "Attempt %d of %d gave no valid %s: %s", attempt, TRIES, schema.__name__, told
        )
    logger.error("No valid %s after %d attempts. Full VLM output: %r", schema.__name__, TRIES, text)
    raise InvalidAnswer(session.failed_tries[-TRIES:])


def _read(text: str, schema: type[Reply], answer_prefix: str) -> Reply:
    """A written answer, fenced or not, as a `schema`. Raises ValueError, which pydantic's errors are."""
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
