"""The former place of what `files` holds now."""

from agentic_iqa_local.files import read_yaml  # noqa: F401
