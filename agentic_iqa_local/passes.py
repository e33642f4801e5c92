"""What a pass of the graph did, in a few words, and which pass is the better supported. Pure: plans, evidence
and answers in."""

from typing import Literal

from agentic_iqa_local.evidence import votes
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LEVEL_WORDS, UNCLEAR
from agentic_iqa_local.score_fusion import ScoreFusion, expected_level
from agentic_iqa_local.state import Basis, ExecutorOutput, FusionResult, PassRecord, SummarizerOutput

SERIOUS = ("executor", "analysis", "scores")


def support(result: SummarizerOutput) -> tuple[int, ...]:
    """How well a pass is supported, as something to compare: an answer before none, then the fewest missing
    parts, then the fewest contradictions and doubts."""
    serious = sum(gap.kind in SERIOUS for gap in result.gaps)
    return (result.error is None, -serious, serious - len(result.gaps))


def seen(evidence: ExecutorOutput | None) -> str:
    """The distortions that the model found."""
    if evidence is None or evidence.distortion_analysis is None:
        return "nothing was looked for"
    found = [
        (
            f"{item.type}{_of(name)}, severity unclear"
            if item.severity == UNCLEAR
            else f"{item.severity} {item.type}{_of(name)}"
        )
        for name, items in evidence.distortion_analysis.items()
        for item in items
        if item.severity != "none"
    ]
    return ", ".join(found) or "no distortion"


def measured(evidence: ExecutorOutput | None) -> str:
    """The tools' scores, 1..5; those without a vote are named."""
    regions = (evidence and evidence.quality_scores) or {}
    counted = dict.fromkeys(
        f"{tool} {score:.2f}{_of(name)}"
        for name in regions
        for tool, score in votes(evidence.model_copy(update={"quality_scores": {name: regions[name]}}))
    )
    ignored = dict.fromkeys(
        f"{log.tool_name} {log.normalized_score:.2f}{_of(log.object_name)}"
        for log in (evidence.tool_logs if evidence else ())
        if log.normalized_score is not None and (log.outvoted or log.trailing)
    )
    told = ", ".join(counted) or "nothing"
    return f"{told} (without a vote: {', '.join(ignored)})" if ignored else told


def _of(name: str) -> str:
    return "" if name == "Global" else f" of {name}"


def concluded(result: SummarizerOutput) -> str:
    """The answer."""
    fusion = result.fusion
    if fusion is None or fusion.q is None:
        return result.final_answer
    return f"{LEVEL_WORDS[LETTER_TO_LEVEL[ScoreFusion().map_to_level(fusion.q)]]}, q {fusion.q:.2f}"


def decided(fusion: FusionResult | None) -> Literal["seen", "measured", "concluded"]:
    """What decided the answer: the model's letters ("seen"), the tools ("measured"), whichever lies nearer to
    q; "concluded" where both name the same level, or the answer was not fused."""
    if fusion is None or fusion.q is None or fusion.vlm_letter is None:
        return "concluded" if fusion is None or fusion.q_bar is None else "measured"
    if fusion.q_bar is None:
        return "seen"
    letters = expected_level(fusion.p_c)
    level = ScoreFusion().map_to_level
    if level(letters) == level(fusion.q_bar):
        return "concluded"
    return "measured" if abs(fusion.q - fusion.q_bar) <= abs(fusion.q - letters) else "seen"


def changes(before: Basis, after: Basis) -> list[str]:
    """What a pass did otherwise than the one that it started from, a line each."""
    lines = []
    if before.plan.query_scope != after.plan.query_scope:
        lines.append(f"about {', '.join(after.plan.objects)}, before {', '.join(before.plan.objects)}")
    old, new = _severities(before), _severities(after)
    for item, severity in new.items():
        if item not in old:
            lines.append(
                f"found {severity} {' of '.join(item)}"
                if severity != "none"
                else f"looked for {' of '.join(item)}"
            )
        elif old[item] != severity:
            lines.append(f"{' of '.join(item)}: {severity}, before {old[item]}")
    lines += [f"no longer looked at: {' of '.join(item)}" for item in old if item not in new]
    ran = _ran(before)
    lines += [f"{tool} measured too" for tool in _ran(after) if tool not in ran]
    boxes = [
        [name for name, box in ((basis.evidence and basis.evidence.boxes) or {}).items() if box]
        for basis in (before, after)
    ]
    lines += [f"tools measured {name} alone" for name in boxes[1] if name not in boxes[0]]
    return lines


def _severities(basis: Basis) -> dict[tuple[str, ...], str]:
    analysis = (basis.evidence and basis.evidence.distortion_analysis) or {}
    return {
        (item.type,) if name == "Global" else (item.type, name): item.severity
        for name, items in analysis.items()
        for item in items
    }


def _ran(basis: Basis) -> list[str]:
    logs = basis.evidence.tool_logs if basis.evidence else []
    return list(dict.fromkeys(log.tool_name for log in logs if log.error is None))


def record(
    result: SummarizerOutput, earlier: SummarizerOutput | None, asked: str | None, cost: tuple[int, float]
) -> PassRecord:
    """What is told of the pass that `result` ends and that began with `earlier`, to close the gap `asked`.
    The cost is in tokens and seconds."""
    fusion, before = result.fusion, earlier and earlier.fusion
    changed = changes(earlier.basis, result.basis) if earlier else []
    if fusion and fusion.both_orders and not (before and before.both_orders):
        changed.append("the letters were read in both orders")
    q = fusion and fusion.q
    return PassRecord(
        number=earlier.passes[-1].number + 1 if earlier else 1,
        asked=asked,
        changed=changed,
        seen=seen(result.basis.evidence),
        measured=measured(result.basis.evidence),
        concluded=concluded(result),
        decided=decided(fusion),
        q=q,
        dq=q - before.q if q is not None and before and before.q is not None else None,
        gaps=[gap.reason for gap in result.gaps],
        tokens=cost[0],
        seconds=round(cost[1], 3),
    )
