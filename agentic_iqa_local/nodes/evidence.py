"""What the evidence says: its findings, which scores vote, what contradicts what, and whether
another pass is needed. Pure functions.

The limits were set on synthetic pictures, so that few sound passes are doubted; human scores were
not looked at.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import get_args

import numpy as np

from agentic_iqa_local.iqa_tools.detector import load_detector
from agentic_iqa_local.iqa_tools.reliability import Reachable, Reliability, Score
from agentic_iqa_local.state import (
    OVERALL,
    UNCLEAR,
    Detection,
    ExecutorOutput,
    FusionResult,
    Gap,
    GapKind,
    PlannerOutput,
    Severity,
    in_words,
)

Evidence = ExecutorOutput | None  # None: nothing was gathered

SEVERE = ("severe", "extreme")
HIGH_SCORE = 4.0
LOW_SCORE = 2.2  # 6 − 4.0 = 2.0, raised since most tools without weights cannot score below 2.0
LOW_QUALITY = 2.9  # the fused score below which damage should have been found
APART = 3.0  # standard deviations of the difference that two tools' errors alone make


def in_object(name: str) -> str:
    """ " in sky" for a region, nothing for the whole picture."""
    return "" if name == "Global" else f" in {name}"


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
        """ "blur in sky", of the whole picture without an object."""
        return f"{self.words}{in_object(self.object)}"

    @property
    def with_severity(self) -> str:
        """ "severe blur in sky"; without a severity that cannot be told."""
        return self.in_place if self.severity == UNCLEAR else f"{self.severity} {self.in_place}"


def findings(evidence: Evidence) -> list[Finding]:
    """Every distortion that was judged, there or not."""
    rows = []
    for name, items in ((evidence and evidence.distortion_analysis) or {}).items():
        for item in items:
            words = in_words(evidence, name, item.type)
            rows.append(Finding(name, item.type, item.severity, item.explanation, words))
    return rows


def found_damage(evidence: Evidence, name: str | None = None) -> list[Finding]:
    """Each distortion that was judged to be there, or those of one object."""
    there = [finding for finding in findings(evidence) if finding.severity != "none"]
    return [finding for finding in there if name in (None, finding.object)]


def worst_damage(evidence: Evidence) -> Finding | None:
    """The most severe distortion; None where none was found."""
    order = [UNCLEAR, *get_args(Severity)]
    found = found_damage(evidence)
    return max(found, key=lambda one: order.index(one.severity), default=None)


def is_undamaged(evidence: Evidence) -> bool:
    """Whether distortions were looked for and none was found."""
    return bool(evidence and evidence.distortion_analysis and not found_damage(evidence))


def damaged_half(grids: Sequence[np.ndarray]) -> str | None:
    """The half of a picture in which damage lies: its quarters have about the same
    severity, more than twice that of each other one, by the medians of the rows×columns `grids` of
    several kinds."""
    if not grids or min(grids[0].shape) < 2:
        return None
    severity = np.sum(grids, axis=0)
    for turns, name in enumerate(("top half", "right half", "bottom half", "left half")):
        turned = np.rot90(severity, turns)  # so that this half is the upper one
        rows = len(turned) // 2
        milder, worse = _medians_of_sides(turned[:rows])
        _, other = _medians_of_sides(turned[-rows:])
        if milder > max(2 * other, worse / 2):
            return name
    return None


def _medians_of_sides(cells: np.ndarray) -> list[float]:
    """Of the left and the right half of a grid, the lesser first."""
    columns = cells.shape[1] // 2
    return sorted(float(np.median(side)) for side in (cells[:, :columns], cells[:, -columns:]))


def has_shallow_focus(evidence: Evidence) -> bool:
    """Whether the picture's background alone is out of focus, which is no damage."""
    whole = ((evidence and evidence.detection) or {}).get("Global")
    return whole is not None and whole.shallow_focus


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


def _apart(one: Score, other: Score, reachable: Reachable, known: Reliability) -> bool:
    """Whether two tools' scores lie further apart than their errors explain."""
    sigma = known.sigma_of_difference(one, other, reachable)
    return abs(one[1] - other[1]) > APART * sigma


def outvoted(scores: Sequence[Score], reachable: Reachable, known: Reliability) -> str | None:
    """The one tool, of three or more, whose score stands apart from every other one. Two against
    one is a vote; one against one and two against two are none."""
    alone = []
    for one in scores:
        if all(_apart(one, other, reachable, known) for other in scores if other != one):
            alone.append(one[0])
    return alone[0] if len(alone) == 1 < len(scores) else None


def mark_votes(
    evidence: ExecutorOutput,
    reachable: Reachable,
    known: Reliability,
    *,
    all_vote: bool,
) -> None:
    """Takes votes away in place: of a tool whose score stands apart from all others', and unless
    `all_vote` of one that is clearly less reliable than another, by what is `known` of them. Notes
    which of the other tools disagree."""
    lines = []
    for name in dict.fromkeys(run.object_name for run in evidence.tool_logs):
        scores = votes(evidence, name=name)
        outlier = outvoted(scores, reachable, known)
        others = [score for score in scores if score[0] != outlier]
        worse = set() if all_vote else known.clearly_worse([*dict(others)])
        for run in evidence.tool_logs:
            if run.object_name == name:
                run.outvoted = run.tool_name == outlier
                run.trailing = run.tool_name in worse
        if others and _apart(others[0], others[-1], reachable, known):
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
        detection = (evidence.detection or {}).get(name, Detection())
        if (detection.graphic or 0.0) < load_detector().graphic:
            lines += _severe_but_high(evidence, name)
            q = fusion.q if fusion and name == "Global" else None
            lines += _mild_but_low(evidence, name, q)
    return [f"Contradictory evidence: {line}" for line in lines]


def _severe_but_high(evidence: ExecutorOutput, name: str) -> list[str]:
    lines = []
    for one in found_damage(evidence, name):
        own = votes(evidence, name=name, distortion=one.type) or votes(evidence, name=name)
        if one.severity in SEVERE and own and own[0][1] > HIGH_SCORE:
            said = f"{one.severity} {one.type} of {name}"
            lines.append(f"{said} but high scores ({_listed(own)})")
    return lines


def _mild_but_low(evidence: ExecutorOutput, name: str, q: float | None) -> list[str]:
    found = found_damage(evidence, name)
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
    reasons = []
    if plan is not None:
        reasons = [gap.reason for gap in find_gaps(evidence, plan, fusion)]
    else:
        objects = ["Global"] if query_scope == "Global" else query_scope
        if evidence.distortion_analysis:
            reasons += _missing_analysis(objects, evidence.distortion_analysis)
        if not evidence.quality_scores:
            reasons.append("No tool scores available")
    return bool(reasons), next(iter(reasons), "")


def find_gaps(
    evidence: Evidence, plan: PlannerOutput, fusion: FusionResult | None = None
) -> list[Gap]:
    """What another pass should gather anew, the most serious first. A missing part counts only
    where the plan asked for it; a tool that was tried and could not run is a warning elsewhere, not
    a gap, LocalNR's look among them."""
    evidence = evidence or ExecutorOutput()
    reasons: dict[GapKind, list[str]] = {"contradiction": contradictions(evidence, fusion)}
    if plan.plan.distortion_analysis:
        tried = {*(evidence.distortion_analysis or ()), *not_looked_for(evidence)}
        reasons["analysis"] = _missing_analysis(plan.objects, tried)
    if plan.plan.tool_execution:
        reasons["scores"] = _missing_scores(evidence, plan)
    if evidence.error:
        reasons["executor"] = [f"Executor failed: {evidence.error}"]
    if evidence.uncertainty:
        kind = "tools" if evidence.disagreement else "severity"
        reasons[kind] = [f"Executor is uncertain: {evidence.uncertainty}"]
    gaps = []
    for kind in get_args(GapKind):
        gaps += [Gap(kind=kind, reason=reason) for reason in reasons.get(kind, ())]
    return gaps


def _missing_analysis(objects: Sequence[str], tried: Collection[str]) -> list[str]:
    missing = [name for name in objects if name not in tried]
    return [f"Missing analysis for {', '.join(missing)}"] if missing else []


def _missing_scores(evidence: ExecutorOutput, plan: PlannerOutput) -> list[str]:
    """Which scores are missing; a tool that was tried and failed leaves no gap."""
    if plan.query_scope == "Global" and not evidence.tool_logs:
        return ["No tool scores available"]
    lines = []
    for name in plan.objects:
        tried = {run.distortion for run in evidence.tool_logs if run.object_name == name}
        missing = _key_distortions(evidence, plan, name) - tried
        if not tried:
            lines.append(f"Missing tool scores for {name} region")
        elif missing and not any(purpose.startswith(OVERALL) for purpose in tried):
            lines.append(f"Missing tool scores for {', '.join(sorted(missing))} of {name}")
    return lines


def _key_distortions(evidence: ExecutorOutput, plan: PlannerOutput, name: str) -> set[str]:
    """The plan's distortions of an object, else those that were judged to be more than slight."""
    if plan.distortions is not None:
        return set(plan.distortions.get(name, ()))
    found = found_damage(evidence, name)
    return {one.type for one in found if one.severity in ("moderate", *SEVERE)}
