"""The former place of what `config` holds now."""

from agentic_iqa_local.config import Pipeline, check_choices, check_limit, check_query  # noqa: F401
