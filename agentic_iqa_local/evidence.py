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
    """(need_replan, reason): missing analysis, missing tool scores, contradiction, explicit uncertainty.

    With two arguments every part is expected, as in the specification's code. With the plan, a gap counts only where the
    plan asked for that part. A tool known to be unavailable is a warning elsewhere, not a reason here.
    """
    if executor_output is None:
        executor_output = ExecutorOutput()
    if executor_output.error:
        return True, f"Executor failed: {executor_output.error}"
    objects = required_objects(query_scope)
    wants_analysis = plan is None or plan.plan.distortion_analysis
    wants_scores = plan is None or plan.plan.tool_execution

    analysis = executor_output.distortion_analysis
    if wants_analysis and (analysis or plan is not None):
        missing = [name for name in objects if name not in (analysis or {})]
        if missing:
            return True, f"Missing analysis for {_listed(missing)}"

    if wants_scores:
        scores = executor_output.quality_scores
        if not scores:
            return True, "No tool scores available"
        unscored = [name for name in objects if not scores.get(name)]
        if unscored:
            return True, f"Missing tool scores for {_listed(unscored)} region"
        for name in objects:
            missing = [d for d in key_distortions(executor_output, name, plan) if d not in scores[name]]
            if missing and OVERALL not in scores[name]:
                return True, f"Missing tool scores for {_listed(missing)} of {name}"

    if lines := contradictions(executor_output):
        return True, lines[0]
    if executor_output.uncertainty:
        return True, f"Executor is uncertain: {executor_output.uncertainty}"
    return False, ""


def key_distortions(evidence: ExecutorOutput, name: str, plan: PlannerOutput | None) -> list[str]:
    """The plan's distortions of an object, else those that the analysis found moderate or worse."""
    if plan is not None and plan.distortions:
        return plan.distortions.get(name, [])
    return [a.type for a in (evidence.distortion_analysis or {}).get(name, []) if a.severity in KEY_SEVERITIES]


def tool_scores(evidence: ExecutorOutput | None, vote: str = "runs") -> list[float]:
    """The scores that q̄ is the mean of: one for each distinct (tool, region) run, or one for each listed entry."""
    if evidence is None or not evidence.quality_scores:
        return []
    if vote == "entries":
        return [score for scores in evidence.quality_scores.values() for _, score in scores.values()]
    crops = {log.object_name for log in evidence.tool_logs if log.region == "crop"}
    runs = {
        (tool, name if name in crops else None): score
        for name, scores in evidence.quality_scores.items()
        for tool, score in scores.values()
    }
    return list(runs.values())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
