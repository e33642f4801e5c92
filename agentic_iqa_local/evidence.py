"""Whether the evidence suffices. Pure: evidence and plan in, a decision with its reason out."""

from collections.abc import Iterable

from agentic_iqa_local.levels import OVERALL
from agentic_iqa_local.state import ExecutorOutput, PlannerOutput

SEVERE = ("severe", "extreme")
KEY_SEVERITIES = ("moderate", "severe", "extreme")
HIGH_SCORE = 4.0


def required_objects(query_scope: list[str] | str) -> list[str]:
    """["Global"], or the objects that the plan names."""
    return ["Global"] if query_scope == "Global" else list(query_scope)


def contradictions(evidence: ExecutorOutput) -> list[str]:
    """One line for each severe or extreme distortion whose own tool score is above 4.0, or whose object's scores all are."""
    lines = []
    for name, items in (evidence.distortion_analysis or {}).items():
        scores = (evidence.quality_scores or {}).get(name, {})
        for item in items:
            if item.severity not in SEVERE or not scores:
                continue
            judged = [scores[item.type]] if item.type in scores else list(scores.values())
            if all(score > HIGH_SCORE for _, score in judged):
                tools = ", ".join(f"{tool} {score:.2f}" for tool, score in judged)
                lines.append(f"Contradictory evidence: {item.severity} {item.type} of {name} but high scores ({tools})")
    return lines


def should_replan(
    executor_output: ExecutorOutput | None, query_scope: list[str] | str, plan: PlannerOutput | None = None
) -> tuple[bool, str]:
    """(need_replan, reason).

    With two arguments the specification's literal code: an analysis must cover the scope, and there must be scores. With
    the plan a gap counts only where the plan asked for that part; a failed executor, a contradiction and explicit
    uncertainty count too. A tool that was tried and could not run is a warning elsewhere, not a reason here.
    """
    evidence = executor_output or ExecutorOutput()
    objects = required_objects(query_scope)
    if plan is None:
        missing = [name for name in objects if name not in (evidence.distortion_analysis or objects)]
        if missing:
            return True, f"Missing analysis for {_listed(missing)}"
        return (False, "") if evidence.quality_scores else (True, "No tool scores available")
    if evidence.error:
        return True, f"Executor failed: {evidence.error}"
    missing = [name for name in objects if name not in (evidence.distortion_analysis or {})]
    if plan.plan.distortion_analysis and missing:
        return True, f"Missing analysis for {_listed(missing)}"
    if plan.plan.tool_execution and (gap := _score_gap(evidence, objects, plan)):
        return True, gap
    if lines := contradictions(evidence):
        return True, lines[0]
    if evidence.uncertainty:
        return True, f"Executor is uncertain: {evidence.uncertainty}"
    return False, ""


def _score_gap(evidence: ExecutorOutput, objects: list[str], plan: PlannerOutput) -> str | None:
    """Which scores are missing, leaving out those whose tools were tried and failed: another plan would not get them either."""
    scores = evidence.quality_scores or {}
    failed = {(log.object_name, log.distortion) for log in evidence.tool_logs if log.error}
    if not scores and not failed:
        return "No tool scores available"
    unscored = [name for name in objects if not scores.get(name) and name not in {name for name, _ in failed}]
    if unscored:
        return f"Missing tool scores for {_listed(unscored)} region"
    for name in objects:
        covered = {*scores.get(name, {}), *(distortion for owner, distortion in failed if owner == name)}
        missing = [d for d in key_distortions(evidence, name, plan) if d not in covered]
        if missing and OVERALL not in covered:
            return f"Missing tool scores for {_listed(missing)} of {name}"
    return None


def key_distortions(evidence: ExecutorOutput, name: str, plan: PlannerOutput) -> list[str]:
    """The plan's distortions of an object, else those that the analysis found moderate or worse."""
    if plan.distortions:
        return plan.distortions.get(name, [])
    return [a.type for a in (evidence.distortion_analysis or {}).get(name, []) if a.severity in KEY_SEVERITIES]


def votes(evidence: ExecutorOutput | None, vote: str = "runs") -> list[tuple[str, float]]:
    """The (tool, score) that q̄ is the mean of: one for each distinct (tool, region) run, or one for each listed entry."""
    if evidence is None or not evidence.quality_scores:
        return []
    if vote == "entries":
        return [pair for scores in evidence.quality_scores.values() for pair in scores.values()]
    crops = {log.object_name for log in evidence.tool_logs if log.region == "crop"}
    # The score is part of the key: two different scores cannot come from one run.
    runs = {
        (tool, name if name in crops else None, score)
        for name, scores in evidence.quality_scores.items()
        for tool, score in scores.values()
    }
    return sorted(((tool, score) for tool, _, score in runs), key=lambda pair: pair[::-1])


def tool_scores(evidence: ExecutorOutput | None, vote: str = "runs") -> list[float]:
    """The scores of `votes` alone, 1..5."""
    return [score for _, score in votes(evidence, vote)]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
