"""Whether the evidence suffices, and which of its scores vote. Pure: evidence and plan in, a decision with
its reason out.

The limits below were set on synthetic pictures, so that few sound passes are doubted; human scores were not
looked at.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from agentic_iqa_local.iqa_tools.detector import load_detector
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.score_fusion import expected_level
from agentic_iqa_local.state import (
    LETTER_TO_LEVEL,
    OVERALL,
    UNCLEAR,
    DistortionAnalysis,
    ExecutorOutput,
    FusionResult,
    Gap,
    GapKind,
    PlannerOutput,
)

SEVERE = ("severe", "extreme")
KEY_SEVERITIES = ("moderate", "severe", "extreme")
MILD = ("none", "slight")
HIGH_SCORE = 4.0
# A little above the mirror of 4.0: of the tools without weights only NIQE's map ends below 2.0.
LOW_SCORE = 2.2
LOW_QUALITY = 2.9  # the fused score below which damage should have been found
APART = 3.0  # standard deviations of the difference that two tools' errors alone make
NEARLY_UNIFORM = 0.98  # of the greatest entropy
LEAST_OVERLAP = 0.05  # Σα_c·p_c; 0.2 where letters or tools say nothing
OFF_THE_LETTERS = 0.5

Score = tuple[str, float]  # (tool, 1..5)
Reachable = Mapping[str, tuple[float, float]]  # the ends of what each tool's map can return


def of_object(name: str) -> str:
    """ " of sky" for a region, nothing for the whole picture."""
    return "" if name == "Global" else f" of {name}"


def in_picture(name: str) -> str:
    """A region's name, or "the picture"."""
    return "the picture" if name == "Global" else name


def by_object(evidence: ExecutorOutput | None, part: str) -> dict[str, Any]:
    """A part of the evidence, {object: ...}; empty where there is none."""
    return (evidence and getattr(evidence, part)) or {}


# Scores


def _voting_scores(evidence: ExecutorOutput, name: str, with_checks: bool = False) -> dict[str, Score]:
    """An object's scores that have a vote, by distortion; `with_checks`: also those that only check them."""
    silent = {
        log.tool_name
        for log in evidence.tool_logs
        if log.object_name == name and (log.outvoted or (log.trailing and not with_checks))
    }
    scores = by_object(evidence, "quality_scores").get(name, {})
    return {kind: (tool, score) for kind, (tool, score) in scores.items() if tool not in silent}


def votes(evidence: ExecutorOutput | None, vote: str = "runs") -> list[Score]:
    """The scores that q̄ is the mean of: one for each distinct (tool, region) run, or one for each listed
    entry ("entries"); none of a tool that was outvoted, or that only checks a better one."""
    if evidence is None or not evidence.quality_scores:
        return []
    listed = [
        (name, pair) for name in evidence.quality_scores for pair in _voting_scores(evidence, name).values()
    ]
    if vote == "entries":
        return [pair for _, pair in listed]
    crops = {log.object_name for log in evidence.tool_logs if log.region == "crop"}
    # The score is part of the key: two different scores cannot come from one run.
    runs = {(name if name in crops else None, pair) for name, pair in listed}
    return sorted((pair for _, pair in runs), key=itemgetter(1, 0))


def checks(evidence: ExecutorOutput | None) -> list[Score]:
    """The scores that only check a better tool's, each once."""
    if evidence is None:
        return []
    names = by_object(evidence, "quality_scores")
    known = {pair for name in names for pair in _voting_scores(evidence, name, with_checks=True).values()}
    return sorted(known - {pair for name in names for pair in _voting_scores(evidence, name).values()})


def object_votes(evidence: ExecutorOutput, name: str) -> list[Score]:
    """The scores of one object that have a vote, each once, the lowest first."""
    return sorted(set(_voting_scores(evidence, name).values()), key=itemgetter(1, 0))


def tool_scores(evidence: ExecutorOutput | None, vote: str = "runs") -> list[float]:
    """The scores of `votes` alone, 1..5."""
    return [score for _, score in votes(evidence, vote)]


def apart(one: Score, other: Score, reachable: Reachable) -> bool:
    """Whether two tools' scores lie further apart than their errors explain."""
    return abs(one[1] - other[1]) > APART * load_reliability().sigma_of_difference(one, other, reachable)


def outvoted(scores: Sequence[Score], reachable: Reachable) -> set[str]:
    """The tools, of three or more, whose score stands apart from every other one, the furthest from the
    others' median first. Two against one is a vote, one against one and two against two are none."""
    left = dict(scores)
    while len(left) > 2:
        outliers = {
            tool: abs(score - statistics.median(left[other] for other in left if other != tool))
            for tool, score in left.items()
            if all(apart((tool, score), pair, reachable) for pair in left.items() if pair[0] != tool)
        }
        if not outliers:
            break
        del left[max(outliers, key=outliers.__getitem__)]
    return {tool for tool, _ in scores} - left.keys()


def mark_votes(evidence: ExecutorOutput, reachable: Reachable, *, trailing_only_check: bool) -> None:
    """Takes the vote from tools that stand apart from all others on the same object and, with
    `trailing_only_check`, from those that one of the others clearly leads; notes which of the rest disagree.
    """
    lines = []
    for name, scores in by_object(evidence, "quality_scores").items():
        measured = list(dict.fromkeys(scores.values()))
        outliers = outvoted(measured, reachable)
        others = [tool for tool, _ in measured if tool not in outliers]
        worse = load_reliability().clearly_worse(others) if trailing_only_check else set()
        for log in evidence.tool_logs:
            if log.object_name == name:
                log.outvoted, log.trailing = log.tool_name in outliers, log.tool_name in worse
        rest = sorted(set(_voting_scores(evidence, name, with_checks=True).values()), key=itemgetter(1))
        if len(rest) > 1 and apart(rest[0], rest[-1], reachable):
            lines.append(f"tools disagree about {name} ({_in_words(rest)})")
    evidence.disagreement = "; ".join(lines) or None


def _in_words(scores: Iterable[Score]) -> str:
    return ", ".join(f"{tool} {score:.2f}" for tool, score in dict.fromkeys(scores))


# Contradictions and doubts


def contradictions(evidence: ExecutorOutput) -> list[str]:
    """One line for each of two kinds: a severe or extreme distortion whose own tool score is above 4.0, or
    whose object's scores all are; an object whose scores are all below 2.2 while nothing, or only slight
    damage, was found of it."""
    lines = []
    for name, items in by_object(evidence, "distortion_analysis").items():
        scores = _voting_scores(evidence, name)
        if not scores or _is_graphic(evidence, name):
            continue
        for item in items:
            own = [scores[item.type]] if item.type in scores else list(scores.values())
            if item.severity in SEVERE and all(score > HIGH_SCORE for _, score in own):
                found = f"{item.severity} {item.type} of {name}"
                lines.append(f"Contradictory evidence: {found} but high scores ({_in_words(own)})")
        if _only_mild(items) and all(score < LOW_SCORE for _, score in scores.values()):
            told = _in_words(scores.values())
            lines.append(f"Contradictory evidence: {_mild(items)} of {name} but low scores ({told})")
    return lines


def _is_graphic(evidence: ExecutorOutput, name: str) -> bool:
    """Whether the object is no photograph, so that the tools' scores of it contradict nothing."""
    detection = by_object(evidence, "detection").get(name)
    return detection is not None and (detection.graphic or 0.0) >= load_detector().graphic


def _unseen_flaw(evidence: ExecutorOutput, fusion: FusionResult | None) -> str | None:
    """A line where the fused score is low, though the analysis found nothing: the letters saw something."""
    if fusion is None or fusion.q is None or fusion.q >= LOW_QUALITY:
        return None
    items = [item for items in by_object(evidence, "distortion_analysis").values() for item in items]
    if not evidence.distortion_analysis or not _only_mild(items) or _is_graphic(evidence, "Global"):
        return None
    return f"Contradictory evidence: {_mild(items)} was found but the fused score is {fusion.q:.1f} of 5"


def _only_mild(items: Sequence[DistortionAnalysis]) -> bool:
    return all(item.severity in MILD for item in items)


def _mild(items: Sequence[DistortionAnalysis]) -> str:
    return ", ".join(f"slight {item.type}" for item in items if item.severity == "slight") or "no distortion"


def open_severities(evidence: ExecutorOutput) -> dict[str, list[DistortionAnalysis]]:
    """By object, the distortions whose severity the model cannot tell, or finds all words nearly equally
    probable for."""
    probabilities = by_object(evidence, "severity_probabilities")
    in_doubt = {
        name: [
            item
            for item in items
            if item.severity == UNCLEAR or _is_open(probabilities.get(name, {}).get(item.type))
        ]
        for name, items in by_object(evidence, "distortion_analysis").items()
    }
    return {name: items for name, items in in_doubt.items() if items}


def _is_open(probabilities: Mapping[str, float] | None) -> bool:
    """Whether the entropy is nearly the greatest that so many outcomes can have."""
    if not probabilities:
        return False
    entropy = -math.fsum(p * math.log(p) for p in probabilities.values() if p > 0)
    return entropy > NEARLY_UNIFORM * math.log(len(probabilities))


def doubts(evidence: ExecutorOutput) -> str | None:
    """What the evidence leaves open by its own account, for `ExecutorOutput.uncertainty`: severities that
    cannot be told, and tools that disagree. None where nothing is."""
    lines = [
        f"cannot tell how severe {item.type} of {name} is"
        for name, items in open_severities(evidence).items()
        for item in items
    ]
    return "; ".join(filter(None, [*lines, evidence.disagreement])) or None


def evidence_warnings(evidence: ExecutorOutput) -> list[str]:
    """What whoever reads the scores must know: a failed Executor, tools without a vote, and regions that were
    not found."""
    lines = [f"the Executor failed, its evidence is incomplete: {evidence.error}"] if evidence.error else []
    for tool, name in dict.fromkeys(
        (log.tool_name, log.object_name) for log in evidence.tool_logs if log.outvoted
    ):
        lines.append(
            f"{tool} has no vote: its score of {in_picture(name)} stands apart from every other tool's"
        )
    missed = [name for name, box in by_object(evidence, "boxes").items() if box is None]
    return lines + ([f"no box for {', '.join(missed)}, tools see the whole image"] if missed else [])


# Gaps


def should_replan(
    executor_output: ExecutorOutput | None,
    query_scope: list[str] | str,
    plan: PlannerOutput | None = None,
    fusion: FusionResult | None = None,
) -> tuple[bool, str]:
    """(need_replan, reason).

    Without a plan the analysis must cover the scope, and there must be scores. With one, and the letters if
    they were read, the first of `find_gaps` decides.
    """
    evidence = executor_output or ExecutorOutput()
    if plan is not None:
        gaps = find_gaps(evidence, plan, fusion)
        return bool(gaps), gaps[0].reason if gaps else ""
    objects = ["Global"] if query_scope == "Global" else query_scope
    missing = [name for name in objects if name not in (evidence.distortion_analysis or objects)]
    if missing:
        return True, f"Missing analysis for {', '.join(missing)}"
    return (False, "") if evidence.quality_scores else (True, "No tool scores available")


def find_gaps(
    evidence: ExecutorOutput | None, plan: PlannerOutput, fusion: FusionResult | None = None
) -> list[Gap]:
    """What another pass should gather anew, the most serious first.

    A part that is missing counts only where the plan asked for it; a failed executor, a contradiction,
    explicit uncertainty and letters that say nothing, or the opposite of the tools, count too. A tool that
    was tried and could not run is a warning elsewhere, not a gap.
    """
    evidence = evidence or ExecutorOutput()
    unseen = _unseen_flaw(evidence, fusion) if plan.plan.distortion_analysis else None
    doubt_kind: GapKind = "tools" if evidence.disagreement else "severity"
    reasons: list[tuple[GapKind, str | None]] = [
        ("executor", f"Executor failed: {evidence.error}" if evidence.error else None),
        ("analysis", _analysis_gap(evidence, plan)),
        ("scores", _score_gap(evidence, plan)),
        ("contradiction", next(iter(contradictions(evidence)), unseen)),
        (doubt_kind, f"Executor is uncertain: {evidence.uncertainty}" if evidence.uncertainty else None),
        ("letters", _letter_gap(fusion)),
    ]
    return [Gap(kind=kind, reason=reason) for kind, reason in reasons if reason]


def _analysis_gap(evidence: ExecutorOutput, plan: PlannerOutput) -> str | None:
    missing = [name for name in plan.objects if name not in by_object(evidence, "distortion_analysis")]
    return f"Missing analysis for {', '.join(missing)}" if plan.plan.distortion_analysis and missing else None


def _letter_gap(fusion: FusionResult | None) -> str | None:
    """What is wrong with the letters that were read in one order; once they were read in both, nothing more
    can be done. Letters that prefer nothing are a gap only where no tool speaks."""
    if fusion is None or fusion.q is None or fusion.mode != "logits" or fusion.both_orders:
        return None
    if (fusion.off_letter_mass or 0) > OFF_THE_LETTERS:
        return f"{fusion.off_letter_mass:.0%} of the probability lies off the letters"
    if fusion.q_bar is None or fusion.alpha is None:
        return "No tool scores, and the letters are nearly equally probable" if _is_open(fusion.p_c) else None
    if sum(fusion.alpha[LETTER_TO_LEVEL[letter]] * p for letter, p in fusion.p_c.items()) >= LEAST_OVERLAP:
        return None
    alone = expected_level(fusion.p_c)
    return f"Letters and tools exclude each other: the letters say {alone:.1f}, the tools {fusion.q_bar:.1f}"


def _score_gap(evidence: ExecutorOutput, plan: PlannerOutput) -> str | None:
    """Which scores that the plan asked for are missing, leaving out those whose tools were tried and failed:
    another plan would not get them either."""
    if not plan.plan.tool_execution:
        return None
    if not evidence.quality_scores and not any(log.error for log in evidence.tool_logs):
        return "No tool scores available"
    tried = {name: _tried(evidence, name) for name in plan.objects}
    if unscored := [name for name, purposes in tried.items() if not purposes]:
        return f"Missing tool scores for {', '.join(unscored)} region"
    for name, purposes in tried.items():
        missing = [kind for kind in _key_distortions(evidence, name, plan) if kind not in purposes]
        if missing and not any(purpose.startswith(OVERALL) for purpose in purposes):
            return f"Missing tool scores for {', '.join(missing)} of {name}"
    return None


def _tried(evidence: ExecutorOutput, name: str) -> set[str]:
    """What tools measured of an object, or failed to: distortions, or the overall quality. Scores of the
    whole picture do not count for a region that a model, which gives boxes, did not find."""
    unlocated = name in by_object(evidence, "boxes") and not by_object(evidence, "boxes")[name]
    scores = {} if unlocated else by_object(evidence, "quality_scores").get(name, {})
    return {*scores, *(log.distortion for log in evidence.tool_logs if log.error and log.object_name == name)}


def _key_distortions(evidence: ExecutorOutput, name: str, plan: PlannerOutput) -> list[str]:
    """The plan's distortions of an object, else those that the analysis found moderate or worse."""
    if plan.distortions:
        return plan.distortions.get(name, [])
    items = by_object(evidence, "distortion_analysis").get(name, [])
    return [item.type for item in items if item.severity in KEY_SEVERITIES]
