"""The replan loop's bookkeeping: the limit, what the next pass should close, and the history of reasons."""

import logging

from agentic_iqa_local.state import DEFAULT_MAX_REPLAN_ITERATIONS, NO_REASON, AgenticIQAState, Gap

logger = logging.getLogger(__name__)

REPLAN_HISTORY_LIMIT = 10


def replan_limit(state: AgenticIQAState) -> int:
    """The state's limit; absent or None means the default, 0 stays 0."""
    limit = state.get("max_replan_iterations")
    return DEFAULT_MAX_REPLAN_ITERATIONS if limit is None else limit


def may_replan(state: AgenticIQAState) -> bool:
    """The one place where the limit is judged: whether fewer rounds were asked for than it allows."""
    return state.get("iteration_count", 0) < replan_limit(state)


def gaps_to_close(state: AgenticIQAState) -> list[Gap]:
    """What the last pass's Summarizer asked the present one to close; nothing in a first pass."""
    result = state.get("summarizer_result")
    if not (result and result.need_replan):
        return []
    return result.gaps or [Gap(kind="analysis", reason=result.replan_reason or NO_REASON)]


def append_replan_reason(history: list[str], iteration: int, reason: str) -> list[str]:
    """A new history with "[Iteration n] reason" at its end, cut to the latest ten entries with a warning."""
    longer = [*history, f"[Iteration {iteration}] {reason}"]
    if len(longer) > REPLAN_HISTORY_LIMIT:
        logger.warning(
            "Excessive replanning: replan_history keeps its latest %d entries", REPLAN_HISTORY_LIMIT
        )
    return longer[-REPLAN_HISTORY_LIMIT:]
