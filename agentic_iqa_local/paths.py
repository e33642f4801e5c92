"""The former place of what `files` holds now."""

from agentic_iqa_local.files import (  # noqa: F401
    EMBEDDED,
    PACKAGE,
    PROGRAM,
    ROOT,
    about_missing_model,
    command,
)
