"""Which scores of the evidence vote, what contradicts what, and whether another pass is needed. Pure functions.

The limits were set on synthetic pictures, so that few sound passes are doubted; human scores were not looked at.
"""

import statistics
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from agentic_iqa_local.iqa_tools.detector import load_detector
from agentic_iqa_local.iqa_tools.reliability import Reachable, Score, load_reliability
from agentic_iqa_local.score_fusion import expected_level
from agentic_iqa_local.state import (
    LETTER_TO_LEVEL,
    OVERALL,
    UNCLEAR,
    DistortionAnalysis,
    ExecutorOutput,
    FusionResult,
    Gap,
    PlannerOutput,
)

SEVERE = ("severe", "extreme")
HIGH_SCORE = 4.0
LOW_SCORE = 2.2  # 6 − 4.0 = 2.0, raised since most tools without weights cannot score below 2.0
LOW_QUALITY = 2.9  # the fused score below which damage should have been found
APART = 3.0  # standard deviations of the difference that two tools' errors alone make
LEAST_OVERLAP = 0.05  # of Σα_c·p_c, which is 0.2 where α or p is uniform


def of_object(name: str) -> str:
    """ " of sky" for a region, nothing for the whole picture."""
    return "" if name == "Global" else f" of {name}"


def in_picture(name: str) -> str:
    """A region's name, or "the picture"."""
    return "the picture" if name == "Global" else name


def by_object(evidence: ExecutorOutput | None, part: str) -> dict[str, Any]:
    """A part of the evidence, {object: ...}; empty where there is none."""
    return (evidence and getattr(evidence, part)) or {}


def found_damage(evidence: ExecutorOutput | None) -> list[tuple[str, DistortionAnalysis]]:
    """(object, judgement) of each distortion that was judged to be there."""
    analysis = by_object(evidence, "distortion_analysis")
    return [(name, item) for name, items in analysis.items() for item in items if item.severity != "none"]


# Votes


def _counting(evidence: ExecutorOutput | None, *, checking: bool = False) -> dict[str, dict[str, Score]]:
    """{object: {distortion: score}} of the scores that have a vote; `checking`: also of those that only check them."""
    logs = evidence.tool_logs if evidence else []
    silent = {(log.object_name, log.tool_name) for log in logs if log.outvoted or (log.trailing and not checking)}
    return {
        name: {kind: (tool, score) for kind, (tool, score) in scores.items() if (name, tool) not in silent}
        for name, scores in by_object(evidence, "quality_scores").items()
    }


def votes(evidence: ExecutorOutput | None, vote: str = "runs") -> list[Score]:
    """The scores that q̄ is the mean of, the lowest first: one for each distinct (tool, region) run, or one for
    each listed entry ("entries"); none of a tool that was outvoted, or that only checks a better one."""
    listed = [(name, pair) for name, scores in _counting(evidence).items() for pair in scores.values()]
    if vote == "entries":
        return [pair for _, pair in listed]
    # Tools measure the whole picture, and two different scores cannot come from one run.
    return sorted({pair for _, pair in listed}, key=itemgetter(1, 0))


def checks(evidence: ExecutorOutput | None) -> list[Score]:
    """The scores that only check a better tool's, each once."""
    every = {pair for scores in _counting(evidence, checking=True).values() for pair in scores.values()}
    return sorted(every - set(votes(evidence)))


def _apart(one: Score, other: Score, reachable: Reachable) -> bool:
    """Whether two tools' scores lie further apart than their errors explain."""
    return abs(one[1] - other[1]) > APART * load_reliability().sigma_of_difference(one, other, reachable)


def outvoted(scores: Sequence[Score], reachable: Reachable) -> str | None:
    """The tool, of three or more, whose score stands apart from every other one; of several, the furthest from the
    median. Two against one is a vote, one against one and two against two are none."""
    middle = statistics.median(score for _, score in scores)
    alone = {
        tool: abs(score - middle)
        for tool, score in scores
        if len(scores) > 2 and all(_apart((tool, score), other, reachable) for other in scores if other[0] != tool)
    }
    return max(alone, key=alone.__getitem__, default=None)


def mark_votes(evidence: ExecutorOutput, reachable: Reachable, *, trailing_only_check: bool) -> None:
    """Takes votes away in place, and notes which of the other tools disagree.

    Args:
        evidence: whose tool runs are marked.
        reachable: by tool, the ends of what its map can return.
        trailing_only_check: a tool that is clearly less reliable than another one only checks it. Without a vote is
            also what stands apart from all other tools' scores of the same object.
    """
    lines = []
    for name, scores in by_object(evidence, "quality_scores").items():
        measured = list(dict.fromkeys(scores.values()))
        outlier = outvoted(measured, reachable)
        others = [pair for pair in measured if pair[0] != outlier]
        worse = load_reliability().clearly_worse([tool for tool, _ in others]) if trailing_only_check else set()
        for log in evidence.tool_logs:
            if log.object_name == name:
                log.outvoted, log.trailing = log.tool_name == outlier, log.tool_name in worse
        others.sort(key=itemgetter(1))
        if others and _apart(others[0], others[-1], reachable):
            lines.append(f"tools disagree about {name} ({_in_words(others)})")
    evidence.disagreement = "; ".join(lines) or None


def _in_words(scores: Iterable[Score]) -> str:
    return ", ".join(f"{tool} {score:.2f}" for tool, score in dict.fromkeys(scores))


# Doubts


def contradictions(evidence: ExecutorOutput, fusion: FusionResult | None = None) -> list[str]:
    """A line for each distortion that is severe or extreme though its tool's score, or else all of its object's, is
    above 4.0; and for each object whose scores are all below 2.2, or the fused one below 2.9, though no more than
    slight damage was found. What is no photograph contradicts nothing: the tools know photographs alone."""
    lines = []
    for name, items in by_object(evidence, "distortion_analysis").items():
        detection, scores = by_object(evidence, "detection").get(name), _counting(evidence).get(name, {})
        if detection and (detection.graphic or 0.0) >= load_detector().graphic:
            continue
        for item in items:
            own = [scores[item.type]] if item.type in scores else list(scores.values())
            if item.severity in SEVERE and own and all(score > HIGH_SCORE for _, score in own):
                lines.append(f"{item.severity} {item.type} of {name} but high scores ({_in_words(own)})")
        if any(item.severity not in ("none", "slight") for item in items):
            continue
        mild = ", ".join(f"slight {item.type}" for item in items if item.severity == "slight") or "no distortion"
        if scores and all(score < LOW_SCORE for _, score in scores.values()):
            lines.append(f"{mild} of {name} but low scores ({_in_words(scores.values())})")
        elif name == "Global" and fusion and fusion.q is not None and fusion.q < LOW_QUALITY:
            lines.append(f"{mild} was found but the fused score is {fusion.q:.1f} of 5")
    return [f"Contradictory evidence: {line}" for line in lines]


def open_severities(evidence: ExecutorOutput) -> list[tuple[str, str]]:
    """(object, distortion) of each whose severity the model cannot tell."""
    analysis = by_object(evidence, "distortion_analysis")
    return [(name, item.type) for name, items in analysis.items() for item in items if item.severity == UNCLEAR]


def doubts(evidence: ExecutorOutput) -> str | None:
    """What the evidence leaves open by its own account, for `ExecutorOutput.uncertainty`; None where nothing is."""
    lines = [f"cannot tell how severe {kind} of {name} is" for name, kind in open_severities(evidence)]
    return "; ".join([*lines, *filter(None, [evidence.disagreement])]) or None


def evidence_warnings(evidence: ExecutorOutput) -> list[str]:
    """What a reader of the scores must know: a failed Executor, tools without a vote."""
    lines = [f"the Executor failed, its evidence is incomplete: {evidence.error}"] if evidence.error else []
    for tool, name in dict.fromkeys((log.tool_name, log.object_name) for log in evidence.tool_logs if log.outvoted):
        lines.append(f"{tool} has no vote: its score of {in_picture(name)} stands apart from every other tool's")
    return lines


# Another pass


def should_replan(
    executor_output: ExecutorOutput | None,
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
    missing = [name for name in objects if name not in (by_object(executor_output, "distortion_analysis") or objects)]
    if missing:
        return True, f"Missing analysis for {', '.join(missing)}"
    return (False, "") if by_object(executor_output, "quality_scores") else (True, "No tool scores available")


def find_gaps(evidence: ExecutorOutput | None, plan: PlannerOutput, fusion: FusionResult | None = None) -> list[Gap]:
    """What another pass should gather anew, the most serious first. A missing part counts only where the plan asked
    for it; a tool that was tried and could not run is a warning elsewhere, not a gap."""
    evidence = evidence or ExecutorOutput()
    analysed, wanted = by_object(evidence, "distortion_analysis"), plan.plan.distortion_analysis
    missing = ", ".join(name for name in plan.objects if wanted and name not in analysed)
    reasons = {
        "executor": evidence.error and f"Executor failed: {evidence.error}",
        "analysis": missing and f"Missing analysis for {missing}",
        "scores": plan.plan.tool_execution and _score_gap(evidence, plan),
        "contradiction": next(iter(contradictions(evidence, fusion)), None),
        "tools" if evidence.disagreement else "severity": evidence.uncertainty
        and f"Executor is uncertain: {evidence.uncertainty}",
        "letters": fusion and _letter_gap(fusion),
    }
    return [Gap.model_validate({"kind": kind, "reason": why}) for kind, why in reasons.items() if why]


def _score_gap(evidence: ExecutorOutput, plan: PlannerOutput) -> str | None:
    """Which scores are missing, but for those whose tools were tried and failed."""
    scores = by_object(evidence, "quality_scores")
    failed = [log for log in evidence.tool_logs if log.error]
    if not (scores or failed):
        return "No tool scores available"
    for name in plan.objects:
        tried = {log.distortion for log in failed if log.object_name == name} | scores.get(name, {}).keys()
        if not tried:
            return f"Missing tool scores for {name} region"
        items = by_object(evidence, "distortion_analysis").get(name, [])
        key = [item.type for item in items if item.severity in ("moderate", *SEVERE)]
        missing = set(key if plan.distortions is None else plan.distortions.get(name, ())) - tried
        if missing and not any(purpose.startswith(OVERALL) for purpose in tried):
            return f"Missing tool scores for {', '.join(sorted(missing))} of {name}"
    return None


def _letter_gap(fusion: FusionResult) -> str | None:
    """What is wrong with letters that were read in one order; once they were read in both, nothing more can be
    done."""
    if fusion.q is None or fusion.mode != "logits" or fusion.both_orders:
        return None
    overlap = sum((fusion.alpha or {}).get(LETTER_TO_LEVEL[letter], 0) * p for letter, p in fusion.p_c.items())
    if fusion.q_bar is None or overlap >= LEAST_OVERLAP:
        return None
    alone = expected_level(fusion.p_c)
    return f"Letters and tools exclude each other: the letters say {alone:.1f}, the tools {fusion.q_bar:.1f}"
