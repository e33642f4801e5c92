"""The replan loop: its limit, what the next pass should close, the history of reasons, the account
of a pass."""

import logging

from agentic_iqa_local.state import (
    DEFAULT_MAX_REPLAN_ITERATIONS,
    AgenticIQAState,
    Gap,
)

logger = logging.getLogger(__name__)

REPLAN_HISTORY_LIMIT = 10


def replan_limit(state: AgenticIQAState) -> int:
    """The state's limit; absent or None means the default, 0 stays 0."""
    limit = state.get("max_replan_iterations")
    return DEFAULT_MAX_REPLAN_ITERATIONS if limit is None else limit


def gaps_to_close(state: AgenticIQAState) -> list[Gap]:
    """What the last pass's Summarizer asked the present one to close; nothing in a first pass."""
    result = state.get("summarizer_result")
    return result.gaps if result and result.need_replan else []


def append_replan_reason(history: list[str], iteration: int, reason: str) -> list[str]:
    """A new history with "[Iteration n] reason" at its end, cut to the latest ten entries with a
    warning."""
    longer = [*history, f"[Iteration {iteration}] {reason}"]
    if len(longer) > REPLAN_HISTORY_LIMIT:
        logger.warning("Excessive replanning: the history keeps its latest entries")
    return longer[-REPLAN_HISTORY_LIMIT:]
