"""Which scores of the evidence vote, what contradicts what, and whether another pass is needed. Pure functions.

The limits were set on synthetic pictures, so that few sound passes are doubted; human scores were not looked at.
"""

import statistics
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from agentic_iqa_local.iqa_tools.detector import load_detector
from agentic_iqa_local.iqa_tools.reliability import Reachable, Score, load_reliability
from agentic_iqa_local.state import (
    OVERALL,
    UNCLEAR,
    ExecutorOutput,
    FusionResult,
    Gap,
    PlannerOutput,
)
from agentic_iqa_local.state import DistortionAnalysis as Analysis

Evidence = ExecutorOutput | None  # None: nothing was gathered

SEVERE = ("severe", "extreme")
HIGH_SCORE = 4.0
LOW_SCORE = 2.2  # 6 − 4.0 = 2.0, raised since most tools without weights cannot score below 2.0
LOW_QUALITY = 2.9  # the fused score below which damage should have been found
APART = 3.0  # standard deviations of the difference that two tools' errors alone make


def of_object(name: str) -> str:
    """ " of sky" for a region, nothing for the whole picture."""
    return "" if name == "Global" else f" of {name}"


def by_object(evidence: Evidence, part: str) -> dict[str, Any]:
    """A part of the evidence, {object: ...}; empty where there is none."""
    return (evidence and getattr(evidence, part)) or {}


def summed_up(evidence: Evidence) -> str:
    """The evidence in a few words, for the log."""
    analysed = by_object(evidence, "distortion_analysis").values()
    measured = by_object(evidence, "quality_scores").values()
    return f"{sum(map(len, analysed))} distortions, {sum(map(len, measured))} tool scores"


def found_damage(evidence: Evidence) -> list[tuple[str, Analysis]]:
    """(object, judgement) of each distortion that was judged to be there."""
    analysis = by_object(evidence, "distortion_analysis")
    return [
        (name, item)
        for name, items in analysis.items()
        for item in items
        if item.severity != "none"
    ]


def not_looked_for(evidence: Evidence) -> dict[str, str]:
    """By object of which nobody could look for distortions, why."""
    detection = by_object(evidence, "detection")
    return {name: one.error for name, one in detection.items() if one.unread}


# Votes


def _counting(evidence: Evidence, *, checking: bool = False) -> dict[str, dict[str, Score]]:
    """{object: {distortion: score}} of the scores that have a vote; `checking`: also of those that only check them."""
    logs = evidence.tool_logs if evidence else []
    silent = {
        (log.object_name, log.tool_name)
        for log in logs
        if log.outvoted or (log.trailing and not checking)
    }
    return {
        name: {
            kind: (tool, score)
            for kind, (tool, score) in scores.items()
            if (name, tool) not in silent
        }
        for name, scores in by_object(evidence, "quality_scores").items()
    }


def votes(evidence: Evidence, vote: str = "runs", *, checking: bool = False) -> list[Score]:
    """The scores that q̄ is the mean of, the lowest first: one for each distinct run, or one for each listed entry
    ("entries"); none of a tool that was outvoted, nor, unless `checking`, of one that only checks a better one."""
    scores = [
        pair
        for of_kinds in _counting(evidence, checking=checking).values()
        for pair in of_kinds.values()
    ]
    # Two different scores cannot come from one run: a tool's run on the whole picture has one, whatever is listed.
    return scores if vote == "entries" else sorted(set(scores), key=itemgetter(1, 0))


def _apart(one: Score, other: Score, reachable: Reachable) -> bool:
    """Whether two tools' scores lie further apart than their errors explain."""
    return abs(one[1] - other[1]) > APART * load_reliability().sigma_of_difference(
        one, other, reachable
    )


def outvoted(scores: Sequence[Score], reachable: Reachable) -> str | None:
    """The tool, of three or more, whose score stands apart from every other one; of several, the furthest from the
    median. Two against one is a vote, one against one and two against two are none."""
    if len(scores) < 3:
        return None
    middle = statistics.median(score for _, score in scores)
    alone = [
        one
        for one in scores
        if all(_apart(one, other, reachable) for other in scores if other[0] != one[0])
    ]
    return max(alone, key=lambda one: abs(one[1] - middle))[0] if alone else None


def mark_votes(
    evidence: ExecutorOutput, reachable: Reachable, *, trailing_only_check: bool
) -> None:
    """Takes votes away in place: of a tool whose score stands apart from all others', and, if `trailing_only_check`, of
    one that is clearly less reliable than another. Notes which of the other tools disagree."""
    lines = []
    for name, scores in by_object(evidence, "quality_scores").items():
        measured = list(dict.fromkeys(scores.values()))
        outlier = outvoted(measured, reachable)
        others = sorted((pair for pair in measured if pair[0] != outlier), key=itemgetter(1))
        worse = (
            load_reliability().clearly_worse([tool for tool, _ in others])
            if trailing_only_check
            else set()
        )
        for log in evidence.tool_logs:
            if log.object_name == name:
                log.outvoted, log.trailing = log.tool_name == outlier, log.tool_name in worse
        if others and _apart(others[0], others[-1], reachable):
            lines.append(f"tools disagree about {name} ({_in_words(others)})")
    evidence.disagreement = "; ".join(lines) or None


def _in_words(scores: Iterable[Score]) -> str:
    return ", ".join(f"{tool} {score:.2f}" for tool, score in dict.fromkeys(scores))


# Doubts


def contradictions(evidence: ExecutorOutput, fusion: FusionResult | None = None) -> list[str]:
    """A line for each severe distortion whose tool's score, or else all of its object's, is above 4.0; and for each
    object whose scores are all below 2.2, or the fused one below 2.9, though no more than slight damage was found.
    What is no photograph contradicts nothing: the tools know photographs alone."""
    lines = []
    for name, items in by_object(evidence, "distortion_analysis").items():
        detection, scores = (
            by_object(evidence, "detection").get(name),
            _counting(evidence).get(name, {}),
        )
        if detection and (detection.graphic or 0.0) >= load_detector().graphic:
            continue
        for item in items:
            own = [scores[item.type]] if item.type in scores else list(scores.values())
            if item.severity in SEVERE and own and all(score > HIGH_SCORE for _, score in own):
                lines.append(
                    f"{item.severity} {item.type} of {name} but high scores ({_in_words(own)})"
                )
        if any(item.severity not in ("none", "slight") for item in items):
            continue
        mild = (
            ", ".join(f"slight {item.type}" for item in items if item.severity == "slight")
            or "no distortion"
        )
        if scores and all(score < LOW_SCORE for _, score in scores.values()):
            lines.append(f"{mild} of {name} but low scores ({_in_words(scores.values())})")
        elif name == "Global" and fusion and fusion.q is not None and fusion.q < LOW_QUALITY:
            lines.append(f"{mild} was found but the fused score is {fusion.q:.1f} of 5")
    return [f"Contradictory evidence: {line}" for line in lines]


def doubts(evidence: ExecutorOutput) -> str | None:
    """What the evidence leaves open by its own account, for `ExecutorOutput.uncertainty`; None where nothing is."""
    unclear = [(name, item) for name, item in found_damage(evidence) if item.severity == UNCLEAR]
    lines = [f"cannot tell how severe {item.type} of {name} is" for name, item in unclear]
    return "; ".join(filter(None, [*lines, evidence.disagreement])) or None


# Another pass


def should_replan(
    executor_output: Evidence,
    query_scope: list[str] | str,
    plan: PlannerOutput | None = None,
    fusion: FusionResult | None = None,
) -> tuple[bool, str]:
    """(need_replan, reason). Without a plan the analysis must cover the scope, and there must be scores. With one,
    and the letters if they were read, the first of `find_gaps` decides."""
    if plan is not None:
        gaps = find_gaps(executor_output, plan, fusion)
        return bool(gaps), gaps[0].reason if gaps else ""
    objects = ["Global"] if query_scope == "Global" else query_scope
    missing = [
        name
        for name in objects
        if name not in (by_object(executor_output, "distortion_analysis") or objects)
    ]
    if missing:
        return True, f"Missing analysis for {', '.join(missing)}"
    return (
        (False, "")
        if by_object(executor_output, "quality_scores")
        else (True, "No tool scores available")
    )


def find_gaps(
    evidence: Evidence, plan: PlannerOutput, fusion: FusionResult | None = None
) -> list[Gap]:
    """What another pass should gather anew, the most serious first. A missing part counts only where the plan asked
    for it; a tool that was tried and could not run is a warning elsewhere, not a gap, LocalNR's look among them."""
    evidence = evidence or ExecutorOutput()
    analysed, wanted = by_object(evidence, "distortion_analysis"), plan.plan.distortion_analysis
    tried = analysed.keys() | not_looked_for(evidence).keys()
    missing = ", ".join(name for name in plan.objects if wanted and name not in tried)
    reasons = {
        "executor": evidence.error and f"Executor failed: {evidence.error}",
        "analysis": missing and f"Missing analysis for {missing}",
        "scores": plan.plan.tool_execution and _score_gap(evidence, plan),
        "contradiction": next(iter(contradictions(evidence, fusion)), None),
        "tools" if evidence.disagreement else "severity": evidence.uncertainty
        and f"Executor is uncertain: {evidence.uncertainty}",
    }
    return [
        Gap.model_validate({"kind": kind, "reason": why}) for kind, why in reasons.items() if why
    ]


def _score_gap(evidence: ExecutorOutput, plan: PlannerOutput) -> str | None:
    """Which scores are missing, but for those whose tools were tried and failed."""
    scores, failed = (
        by_object(evidence, "quality_scores"),
        [log for log in evidence.tool_logs if log.error],
    )
    if plan.query_scope == "Global" and not (scores or failed):
        return "No tool scores available"
    for name in plan.objects:
        tried = {log.distortion for log in failed if log.object_name == name} | scores.get(
            name, {}
        ).keys()
        if not tried:
            return f"Missing tool scores for {name} region"
        items = by_object(evidence, "distortion_analysis").get(name, [])
        key = [item.type for item in items if item.severity in ("moderate", *SEVERE)]
        missing = set(key if plan.distortions is None else plan.distortions.get(name, ())) - tried
        if missing and not any(purpose.startswith(OVERALL) for purpose in tried):
            return f"Missing tool scores for {', '.join(sorted(missing))} of {name}"
    return None
