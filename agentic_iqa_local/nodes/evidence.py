"""What the evidence says: its findings, which scores vote, what contradicts what, and whether
another pass is needed. Pure functions.

The limits were set on synthetic pictures, so that few sound passes are doubted; human scores were
not looked at.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from agentic_iqa_local.iqa_tools.detector import load_detector
from agentic_iqa_local.iqa_tools.reliability import Reachable, Score, load_reliability
from agentic_iqa_local.state import (
    OVERALL,
    UNCLEAR,
    ExecutorOutput,
    FusionResult,
    Gap,
    GapKind,
    PlannerOutput,
    in_words,
)

Evidence = ExecutorOutput | None  # None: nothing was gathered

SEVERE = ("severe", "extreme")
HIGH_SCORE = 4.0
LOW_SCORE = 2.2  # 6 − 4.0 = 2.0, raised since most tools without weights cannot score below 2.0
LOW_QUALITY = 2.9  # the fused score below which damage should have been found
APART = 3.0  # standard deviations of the difference that two tools' errors alone make


def of_object(name: str) -> str:
    """ " of sky" for a region, nothing for the whole picture."""
    return "" if name == "Global" else f" of {name}"


# Findings


@dataclass(frozen=True)
class Finding:
    """How one distortion of one object was judged: a row of the evidence."""

    object: str
    type: str
    severity: str
    explanation: str
    words: str  # as a person calls it: "underexposure"

    @property
    def in_place(self) -> str:
        """ "blur of sky", of the whole picture without an object."""
        return f"{self.words}{of_object(self.object)}"

    @property
    def with_severity(self) -> str:
        """ "severe blur of sky"; without a severity that cannot be told."""
        return self.in_place if self.severity == UNCLEAR else f"{self.severity} {self.in_place}"


def findings(evidence: Evidence) -> list[Finding]:
    """Every distortion that was judged, there or not."""
    if evidence is None:
        return []
    rows = []
    for name, items in (evidence.distortion_analysis or {}).items():
        for item in items:
            words = in_words(evidence, name, item.type)
            rows.append(Finding(name, item.type, item.severity, item.explanation, words))
    return rows


def found_damage(evidence: Evidence) -> list[Finding]:
    """Each distortion that was judged to be there."""
    return [finding for finding in findings(evidence) if finding.severity != "none"]


def not_looked_for(evidence: Evidence) -> dict[str, str]:
    """Why nobody could look for distortions, by object."""
    detections = (evidence and evidence.detection) or {}
    return {name: one.error for name, one in detections.items() if one.error and one.unread}


def summed_up(evidence: Evidence) -> str:
    """The evidence in a few words, for the log."""
    scores = len(votes(evidence, "entries", checking=True))
    return f"{len(findings(evidence))} distortions, {scores} tool scores"


# Votes


def votes(
    evidence: Evidence,
    vote: str = "runs",
    *,
    checking: bool = False,
    name: str | None = None,
    distortion: str | None = None,
) -> list[Score]:
    """The scores that q̄ is the mean of, the lowest first, or those about one object or distortion:
    one for each distinct run, or one for each listed entry ("entries"); none of a tool that was
    outvoted, nor, unless `checking`, of one that only checks a better one."""
    scores = []
    for run in evidence.tool_logs if evidence else ():
        silent = run.outvoted or (run.trailing and not checking)
        about = name in (None, run.object_name) and distortion in (None, run.distortion)
        if run.normalized_score is not None and about and not silent:
            scores.append((run.tool_name, run.normalized_score))
    # Two different scores cannot come from one run: a tool's run on the whole picture has one,
    # whatever is listed.
    return scores if vote == "entries" else sorted(set(scores), key=itemgetter(1, 0))


def _apart(one: Score, other: Score, reachable: Reachable) -> bool:
    """Whether two tools' scores lie further apart than their errors explain."""
    sigma = load_reliability().sigma_of_difference(one, other, reachable)
    return abs(one[1] - other[1]) > APART * sigma


def outvoted(scores: Sequence[Score], reachable: Reachable) -> str | None:
    """The tool, of three or more, whose score stands apart from every other one; of several, the
    furthest from the median. Two against one is a vote, one against one and two against two are
    none."""
    if len(scores) < 3:
        return None
    alone = []
    for one in scores:
        others = [other for other in scores if other[0] != one[0]]
        if all(_apart(one, other, reachable) for other in others):
            alone.append(one)
    if not alone:
        return None
    median = statistics.median(score for _, score in scores)
    tool, _ = max(alone, key=lambda one: abs(one[1] - median))
    return tool


def mark_votes(evidence: ExecutorOutput, reachable: Reachable, *, all_vote: bool = False) -> None:
    """Takes votes away in place: of a tool whose score stands apart from all others', and unless
    `all_vote` of one that is clearly less reliable than another. Notes which of the other tools
    disagree."""
    lines = []
    for name in dict.fromkeys(run.object_name for run in evidence.tool_logs):
        scores = votes(evidence, name=name)
        outlier = outvoted(scores, reachable)
        others = [score for score in scores if score[0] != outlier]
        worse = load_reliability().clearly_worse(list(dict(others)))
        for run in evidence.tool_logs:
            if run.object_name == name:
                run.outvoted = run.tool_name == outlier
                run.trailing = run.tool_name in worse and not all_vote
        if others and _apart(others[0], others[-1], reachable):
            lines.append(f"tools disagree about {name} ({_listed(others)})")
    evidence.disagreement = "; ".join(lines) or None


def _listed(scores: Iterable[Score]) -> str:
    return ", ".join(f"{tool} {score:.2f}" for tool, score in scores)


# Doubts


def contradictions(evidence: ExecutorOutput, fusion: FusionResult | None = None) -> list[str]:
    """A line for each severe distortion whose tool's score, or else all of its object's, is above
    4.0; and for each object whose scores are all below 2.2, or the fused one below 2.9, though no
    more than slight damage was found. What is no photograph contradicts nothing: the tools know
    photographs alone."""
    lines = []
    for name in evidence.distortion_analysis or {}:
        if _is_photograph(evidence, name):
            lines += _severe_but_high(evidence, name)
            q = fusion.q if fusion and name == "Global" else None
            lines += _mild_but_low(evidence, name, q)
    return [f"Contradictory evidence: {line}" for line in lines]


def _is_photograph(evidence: ExecutorOutput, name: str) -> bool:
    detection = (evidence.detection or {}).get(name)
    graphic = detection.graphic if detection else None
    return graphic is None or graphic < load_detector().graphic


def _severe_but_high(evidence: ExecutorOutput, name: str) -> list[str]:
    lines = []
    for one in findings(evidence):
        if one.object == name and one.severity in SEVERE:
            own = votes(evidence, name=name, distortion=one.type) or votes(evidence, name=name)
            if own and own[0][1] > HIGH_SCORE:
                said = f"{one.severity} {one.type} of {name}"
                lines.append(f"{said} but high scores ({_listed(own)})")
    return lines


def _mild_but_low(evidence: ExecutorOutput, name: str, q: float | None) -> list[str]:
    found = [one for one in found_damage(evidence) if one.object == name]
    if any(one.severity != "slight" for one in found):
        return []
    mild = ", ".join(f"slight {one.type}" for one in found) or "no distortion"
    scores = votes(evidence, name=name)
    if scores and scores[-1][1] < LOW_SCORE:
        return [f"{mild} of {name} but low scores ({_listed(scores)})"]
    if q is not None and q < LOW_QUALITY:
        return [f"{mild} was found but the fused score is {q:.1f} of 5"]
    return []


def doubts(evidence: ExecutorOutput) -> str | None:
    """What the evidence leaves open by its own account, for `ExecutorOutput.uncertainty`; None
    where nothing is."""
    lines = []
    for finding in findings(evidence):
        if finding.severity == UNCLEAR:
            lines.append(f"cannot tell how severe {finding.type} of {finding.object} is")
    if evidence.disagreement:
        lines.append(evidence.disagreement)
    return "; ".join(lines) or None


# Another pass


def should_replan(
    executor_output: Evidence,
    query_scope: list[str] | str,
    plan: PlannerOutput | None = None,
    fusion: FusionResult | None = None,
) -> tuple[bool, str]:
    """(need_replan, reason). Without a plan the analysis must cover the scope, and there must be
    scores. With one, and the letters if they were read, the first of `find_gaps` decides."""
    evidence = executor_output or ExecutorOutput()
    if plan is not None:
        gaps = find_gaps(evidence, plan, fusion)
        return bool(gaps), gaps[0].reason if gaps else ""
    objects = ["Global"] if query_scope == "Global" else list(query_scope)
    missing = [name for name in objects if name not in (evidence.distortion_analysis or objects)]
    if missing:
        return True, f"Missing analysis for {', '.join(missing)}"
    if not evidence.quality_scores:
        return True, "No tool scores available"
    return False, ""


def find_gaps(
    evidence: Evidence, plan: PlannerOutput, fusion: FusionResult | None = None
) -> list[Gap]:
    """What another pass should gather anew, the most serious first. A missing part counts only
    where the plan asked for it; a tool that was tried and could not run is a warning elsewhere, not
    a gap, LocalNR's look among them."""
    evidence = evidence or ExecutorOutput()
    reasons: dict[GapKind, str | None] = {}
    if evidence.error:
        reasons["executor"] = f"Executor failed: {evidence.error}"
    if plan.plan.distortion_analysis:
        reasons["analysis"] = _analysis_gap(evidence, plan)
    if plan.plan.tool_execution:
        reasons["scores"] = _score_gap(evidence, plan)
    reasons["contradiction"] = next(iter(contradictions(evidence, fusion)), None)
    if evidence.uncertainty:
        kind = "tools" if evidence.disagreement else "severity"
        reasons[kind] = f"Executor is uncertain: {evidence.uncertainty}"
    return [Gap(kind=kind, reason=reason) for kind, reason in reasons.items() if reason]


def _analysis_gap(evidence: ExecutorOutput, plan: PlannerOutput) -> str | None:
    tried = {*(evidence.distortion_analysis or {}), *not_looked_for(evidence)}
    missing = ", ".join(name for name in plan.objects if name not in tried)
    return f"Missing analysis for {missing}" if missing else None


def _score_gap(evidence: ExecutorOutput, plan: PlannerOutput) -> str | None:
    """Which scores are missing; a tool that was tried and failed leaves no gap."""
    if plan.query_scope == "Global" and not evidence.tool_logs:
        return "No tool scores available"
    for name in plan.objects:
        tried = {run.distortion for run in evidence.tool_logs if run.object_name == name}
        if not tried:
            return f"Missing tool scores for {name} region"
        if any(purpose.startswith(OVERALL) for purpose in tried):
            continue
        missing = _key_distortions(evidence, plan, name) - tried
        if missing:
            return f"Missing tool scores for {', '.join(sorted(missing))} of {name}"
    return None


def _key_distortions(evidence: ExecutorOutput, plan: PlannerOutput, name: str) -> set[str]:
    """The plan's distortions of an object, else those that were judged to be more than slight."""
    if plan.distortions is not None:
        return set(plan.distortions.get(name, ()))
    items = (evidence.distortion_analysis or {}).get(name, [])
    return {item.type for item in items if item.severity in ("moderate", *SEVERE)}
