"""The words by which queries and answers are read: the tables of words.yaml as patterns."""

import re
from pathlib import Path
from typing import Any

import yaml

WORDS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))


def alternatives(words: str | list[str]) -> str:
    """A row of the tables as one expression."""
    return words if isinstance(words, str) else "|".join(words)


def pattern(words: str | list[str]) -> re.Pattern[str]:
    """Any of the words, whole and in any case."""
    return re.compile(rf"\b(?:{alternatives(words)})\b", re.IGNORECASE)


def patterns(table: str) -> dict[Any, re.Pattern[str]]:
    """A table of rows, {key: pattern}."""
    return {key: pattern(words) for key, words in WORDS[table].items()}
