"""What a caller may ask for: a query, answers to choose from, a replan limit. What cannot be asked raises
ValueError, whose one sentence is for the caller. Standard library alone."""

from collections.abc import Sequence
from typing import Literal

Pipeline = Literal["agent", "letters"]
LONGEST_TEXT = 4000  # characters


def check_query(query: str) -> None:
    """Raises ValueError for a query that is no text, is empty, longer than 4000 characters, or holds bytes
    that are no text."""
    if not isinstance(query, str):
        raise ValueError(f"query: expected a text, got {type(query).__name__}")
    if not query.strip():
        raise ValueError(
            "query: expected a question or an instruction, got an empty text; leave it out for a plain rating"
        )
    _check_text("query", query)


def _check_text(name: str, text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{name}: expected at most {LONGEST_TEXT} characters, got {len(text)}; shorten it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name}: expected text in UTF-8, got another byte as character {error.start + 1}; retype it"
        ) from None


def check_choices(choices: Sequence[str] | None) -> None:
    """Raises ValueError unless there are 2 to 10 answers that differ and are not blank, or none at all."""
    if choices is None:
        return
    if not isinstance(choices, (list, tuple)) or not all(isinstance(choice, str) for choice in choices):
        raise ValueError(f"choices: expected a list of texts such as ['Yes', 'No'], got {repr(choices)[:80]}")
    if not 2 <= len(choices) <= 10:
        raise ValueError(f"choices: expected 2 to 10 answers, got {len(choices)}")
    if len({choice.strip().casefold() for choice in choices} - {""}) < len(choices):
        raise ValueError(
            "choices: expected answers that differ and are not blank, whether in capitals or not, got"
            f" {list(choices)}"
        )
    _check_text("choices", "".join(choices))


def check_limit(limit: int) -> None:
    """Raises ValueError for what is no number of iterations."""
    if type(limit) is not int or limit < 0:
        raise ValueError(f"max_replan_iterations: expected 0 or more, got {limit!r}")
