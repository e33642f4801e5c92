"""The replan loop: its limit, what the next pass should close, the history of reasons, and which pass is the better
supported. Pure: plans, evidence and answers in."""

import logging
from typing import Literal

from agentic_iqa_local.nodes.evidence import found_damage, of_object
from agentic_iqa_local.score_fusion import ScoreFusion, expected_level
from agentic_iqa_local.state import (
    DEFAULT_MAX_REPLAN_ITERATIONS,
    LETTER_TO_LEVEL,
    LEVEL_WORDS,
    AgenticIQAState,
    Basis,
    ExecutorOutput,
    FusionResult,
    Gap,
    PassRecord,
    SummarizerOutput,
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
    """A new history with "[Iteration n] reason" at its end, cut to the latest ten entries with a warning."""
    longer = [*history, f"[Iteration {iteration}] {reason}"]
    if len(longer) > REPLAN_HISTORY_LIMIT:
        logger.warning("Excessive replanning: replan_history keeps its latest %d entries", REPLAN_HISTORY_LIMIT)
    return longer[-REPLAN_HISTORY_LIMIT:]


def support(result: SummarizerOutput) -> tuple[int, ...]:
    """How well a pass is supported, to compare by: an answer before none, then the fewest missing parts, then
    the fewest contradictions and doubts."""
    missing = sum(gap.kind in ("executor", "analysis", "scores") for gap in result.gaps)
    return (result.error is None, -missing, -len(result.gaps))


def record(
    result: SummarizerOutput, basis: Basis, earlier: SummarizerOutput | None, cost: tuple[int, float]
) -> PassRecord:
    """The account of a pass by its answer and the plan and evidence of that. `earlier` is the answer before it, a
    gap of which it was to close (None for a first pass); the cost is in tokens and seconds."""
    q, before = (one and one.fusion and one.fusion.q for one in (result, earlier))
    evidence = basis.evidence or ExecutorOutput()
    seen = [f"{item.severity} {item.type}{of_object(name)}" for name, item in found_damage(evidence)]
    none_seen = "nothing was looked for" if evidence.distortion_analysis is None else "no distortion"
    scores = [
        f"{log.tool_name} {log.normalized_score:.2f}{of_object(log.object_name)}"
        f"{' (without a vote)' if log.outvoted or log.trailing else ''}"
        for log in evidence.tool_logs
        if log.normalized_score is not None
    ]
    return PassRecord(
        number=earlier.passes[-1].number + 1 if earlier else 1,
        asked=earlier and earlier.replan_reason,
        seen=", ".join(seen) or none_seen,
        measured=", ".join(dict.fromkeys(scores)) or "nothing",
        concluded=result.final_answer if q is None else f"{LEVEL_WORDS[_level(q)]}, q {q:.2f}",
        decided=decided(result.fusion),
        q=q,
        dq=None if q is None or before is None else q - before,
        gaps=[gap.reason for gap in result.gaps],
        tokens=cost[0],
        seconds=round(cost[1], 3),
    )


def decided(fusion: FusionResult | None) -> Literal["seen", "measured", "concluded"]:
    """What decided the answer: the model's letters ("seen"), the tools ("measured"), whichever lies nearer to
    q; "concluded" where both name the same level, or the answer was not fused."""
    if fusion is None or fusion.q is None:
        return "concluded"
    if fusion.q_bar is None or fusion.vlm_letter is None:
        return "seen" if fusion.q_bar is None else "measured"
    letters = expected_level(fusion.p_c)
    if _level(letters) == _level(fusion.q_bar):
        return "concluded"
    return "measured" if abs(fusion.q - fusion.q_bar) <= abs(fusion.q - letters) else "seen"


def _level(q: float) -> int:
    return LETTER_TO_LEVEL[ScoreFusion().map_to_level(q)]
