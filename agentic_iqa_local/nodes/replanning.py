"""The replan loop's bookkeeping: the limit, what the next pass should close, the history of reasons, what a
pass did in a few words, and which pass is the better supported. Pure: plans, evidence and answers in."""

import logging
from typing import Literal

from agentic_iqa_local.nodes.evidence import by_object, object_votes, of_object
from agentic_iqa_local.score_fusion import ScoreFusion, expected_level
from agentic_iqa_local.state import (
    DEFAULT_MAX_REPLAN_ITERATIONS,
    LETTER_TO_LEVEL,
    LEVEL_WORDS,
    NO_REASON,
    UNCLEAR,
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
SERIOUS = ("executor", "analysis", "scores")


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


def support(result: SummarizerOutput) -> tuple[int, ...]:
    """How well a pass is supported, as something to compare: an answer before none, then the fewest missing
    parts, then the fewest contradictions and doubts."""
    serious = sum(gap.kind in SERIOUS for gap in result.gaps)
    return (result.error is None, -serious, serious - len(result.gaps))


def record(
    result: SummarizerOutput, basis: Basis, earlier: SummarizerOutput | None, cost: tuple[int, float]
) -> PassRecord:
    """The account of the pass that ends with `result` on `basis` and that was to close a gap of the `earlier`
    answer, if there is one. The cost is in tokens and seconds."""
    fusion, before = result.fusion, earlier and earlier.fusion
    q, q_before = fusion and fusion.q, before and before.q
    return PassRecord(
        number=earlier.passes[-1].number + 1 if earlier else 1,
        asked=earlier and earlier.replan_reason,
        changed=[
            *(changes(earlier.basis, basis) if earlier and earlier.basis else ()),
            *_closer_looks(before, fusion),
        ],
        seen=_seen(basis.evidence),
        measured=_measured(basis.evidence),
        concluded=result.final_answer if q is None else f"{LEVEL_WORDS[_level(q)]}, q {q:.2f}",
        decided=decided(fusion),
        q=q,
        dq=None if q is None or q_before is None else q - q_before,
        gaps=[gap.reason for gap in result.gaps],
        tokens=cost[0],
        seconds=round(cost[1], 3),
    )


def _closer_looks(before: FusionResult | None, after: FusionResult | None) -> list[str]:
    """How much more closely the letters were looked at than in the pass before."""
    lines = []
    if after and after.both_orders and not (before and before.both_orders):
        lines.append("the letters were read in both orders")
    if after and after.crops and not (before and before.crops):
        lines.append(f"the letters of {after.crops} crops were read")
    return lines


def _level(q: float) -> int:
    return LETTER_TO_LEVEL[ScoreFusion().map_to_level(q)]


def _seen(evidence: ExecutorOutput | None) -> str:
    """The distortions that the model found."""
    if evidence is None or evidence.distortion_analysis is None:
        return "nothing was looked for"
    found = [
        f"{item.type}{of_object(name)}, severity unclear"
        if item.severity == UNCLEAR
        else f"{item.severity} {item.type}{of_object(name)}"
        for name, items in evidence.distortion_analysis.items()
        for item in items
        if item.severity != "none"
    ]
    return ", ".join(found) or "no distortion"


def _measured(evidence: ExecutorOutput | None) -> str:
    """The tools' scores, 1..5; those without a vote are named."""
    if evidence is None:
        return "nothing"
    counted = dict.fromkeys(
        f"{tool} {score:.2f}{of_object(name)}"
        for name in by_object(evidence, "quality_scores")
        for tool, score in object_votes(evidence, name)
    )
    ignored = dict.fromkeys(
        f"{log.tool_name} {log.normalized_score:.2f}{of_object(log.object_name)}"
        for log in evidence.tool_logs
        if log.normalized_score is not None and (log.outvoted or log.trailing)
    )
    scores = ", ".join(counted) or "nothing"
    return f"{scores} (without a vote: {', '.join(ignored)})" if ignored else scores


def decided(fusion: FusionResult | None) -> Literal["seen", "measured", "concluded"]:
    """What decided the answer: the model's letters ("seen"), the tools ("measured"), whichever lies nearer to
    q; "concluded" where both name the same level, or the answer was not fused."""
    if fusion is None or fusion.q is None or fusion.vlm_letter is None:
        return "concluded" if fusion is None or fusion.q_bar is None else "measured"
    if fusion.q_bar is None:
        return "seen"
    letters = expected_level(fusion.p_c)
    if _level(letters) == _level(fusion.q_bar):
        return "concluded"
    return "measured" if abs(fusion.q - fusion.q_bar) <= abs(fusion.q - letters) else "seen"


def changes(before: Basis, after: Basis) -> list[str]:
    """What a pass did otherwise than the one that it started from, a line each."""
    was, now = _planned(before), _planned(after)
    lines = [f"{name} {value}, before {was[name]}" for name, value in now.items() if value != was[name]]
    was, now = _severities(before), _severities(after)
    for item, severity in now.items():
        if item not in was:
            lines.append(f"looked for {item}" if severity == "none" else f"found {severity} {item}")
        elif was[item] != severity:
            lines.append(f"{item}: {severity}, before {was[item]}")
    lines += [f"no longer looked at: {item}" for item in was if item not in now]
    lines += [f"{tool} measured too" for tool in _tools_run(after) if tool not in _tools_run(before)]
    return lines + [
        f"tools measured {name} alone" for name in _located(after) if name not in _located(before)
    ]


def _planned(basis: Basis) -> dict[str, str]:
    """What a plan asks, by the word that a line about a change begins with."""
    plan = basis.plan
    kinds = [f"{kind}{of_object(name)}" for name, kinds in (plan.distortions or {}).items() for kind in kinds]
    return {
        "type": plan.query_type,
        "about": ", ".join(plan.objects),
        "distortions": ", ".join(kinds) or "not planned",
        "tool": plan.required_tool or "not planned",
    }


def _severities(basis: Basis) -> dict[str, str]:
    analysis = by_object(basis.evidence, "distortion_analysis")
    return {
        f"{item.type}{of_object(name)}": item.severity for name, items in analysis.items() for item in items
    }


def _tools_run(basis: Basis) -> list[str]:
    logs = basis.evidence.tool_logs if basis.evidence else []
    return list(dict.fromkeys(log.tool_name for log in logs if log.error is None))


def _located(basis: Basis) -> list[str]:
    boxes = by_object(basis.evidence, "boxes")
    return [name for name, box in boxes.items() if box]
