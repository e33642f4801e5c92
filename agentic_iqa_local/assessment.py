"""The former place of what `judgement.assessment` holds now."""

from agentic_iqa_local.judgement.assessment import (  # noqa: F401
    answered,
    assess,
    assessment,
    file_sha256,
    question,
    unassessed,
)
