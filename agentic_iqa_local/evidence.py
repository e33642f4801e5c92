"""Whether the evidence suffices. Pure: evidence and plan in, a decision with its reason out.

The limits below were set on synthetic pictures, so that few sound passes are doubted; human scores were not
looked at.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.levels import LETTER_TO_LEVEL, OVERALL, UNCLEAR
from agentic_iqa_local.score_fusion import expected_level
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput, FusionResult, Gap, PlannerOutput

SEVERE = ("severe", "extreme")
KEY_SEVERITIES = ("moderate", "severe", "extreme")
MILD = ("none", "slight")
HIGH_SCORE = 4.0
LOW_SCORE = (
    2.2  # a little above the mirror of 4.0: no map of the tools without weights ends below 2.0 but NIQE's
)
LOW_QUALITY = 2.9  # the fused score below which damage should have been found
FLAWED = 3.0  # the tools' mean below which the Executor looks twice for a distortion
APART = 3.0  # standard deviations of the difference that two tools' errors alone make
NEARLY_UNIFORM = 0.98  # of the greatest entropy
LEAST_OVERLAP = 0.05  # Σα_c·p_c; 0.2 where letters or tools say nothing
OFF_THE_LETTERS = 0.5

Reachable = Mapping[str, tuple[float, float]]  # the ends of what each tool's map can return


def required_objects(query_scope: list[str] | str) -> list[str]:
    """["Global"], or the objects that the plan names."""
    return ["Global"] if query_scope == "Global" else list(query_scope)


def contradictions(evidence: ExecutorOutput) -> list[str]:
    """One line for each of two kinds: a severe or extreme distortion whose own tool score is above 4.0, or
    whose object's scores all are; an object whose scores are all below 2.2 while nothing, or only slight
    damage, was found of it.
    """
    lines = []
    for name, items in (evidence.distortion_analysis or {}).items():
        scores = _standing(evidence, name)
        if not scores:
            continue
        for item in items:
            judged = [scores[item.type]] if item.type in scores else list(scores.values())
            if item.severity in SEVERE and all(score > HIGH_SCORE for _, score in judged):
                lines.append(
                    f"Contradictory evidence: {item.severity} {item.type} of {name} but high scores"
                    f" ({_told(judged)})"
                )
        if all(item.severity in MILD for item in items) and all(
            score < LOW_SCORE for _, score in scores.values()
        ):
            lines.append(
                f"Contradictory evidence: {_mild(items)} of {name} but low scores ({_told(scores.values())})"
            )
    return lines


def unexplained(evidence: ExecutorOutput) -> dict[str, str]:
    """By object, a line where the tools' mean is below `FLAWED` while nothing, or only slight damage, was
    found: it may be missed."""
    lines = {}
    for name, items in (evidence.distortion_analysis or {}).items():
        scores = dict(_standing(evidence, name).values())
        if (
            scores
            and statistics.mean(scores.values()) < FLAWED
            and all(item.severity in MILD for item in items)
        ):
            lines[name] = f"{_mild(items)} of {name} but low scores ({_told(scores.items())})"
    return lines


def _unseen_flaw(evidence: ExecutorOutput, fusion: FusionResult | None) -> str | None:
    """A line where the fused score is low, though neither the analysis nor the tools' mean says so: the
    letters saw something. Where the tools' mean is low as well the Executor has looked twice already."""
    found = [item for items in (evidence.distortion_analysis or {}).values() for item in items]
    if (
        not evidence.distortion_analysis
        or fusion is None
        or fusion.q is None
        or fusion.q >= LOW_QUALITY
        or unexplained(evidence)
    ):
        return None
    if any(item.severity not in MILD for item in found):
        return None
    return f"Contradictory evidence: {_mild(found)} was found but the fused score is {fusion.q:.1f} of 5"


def _mild(items: Sequence[DistortionAnalysis]) -> str:
    return _listed(f"slight {item.type}" for item in items if item.severity == "slight") or "no distortion"


def _standing(evidence: ExecutorOutput, name: str, with_checks: bool = False) -> dict[str, tuple[str, float]]:
    """The scores of an object that have a vote, by distortion; `with_checks`: also those that only check
    them."""
    silent = {
        log.tool_name
        for log in evidence.tool_logs
        if log.object_name == name and (log.outvoted or (log.trailing and not with_checks))
    }
    scores = (evidence.quality_scores or {}).get(name, {})
    return {distortion: (tool, score) for distortion, (tool, score) in scores.items() if tool not in silent}


def _told(scores: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{tool} {score:.2f}" for tool, score in dict.fromkeys(scores))


def open_severities(evidence: ExecutorOutput) -> dict[str, list[DistortionAnalysis]]:
    """By object, the distortions whose severity the model cannot tell, or finds all words nearly equally
    probable for."""
    read = evidence.severity_probabilities or {}
    return {
        name: found
        for name, items in (evidence.distortion_analysis or {}).items()
        if (
            found := [
                item
                for item in items
                if item.severity == UNCLEAR or _is_open(read.get(name, {}).get(item.type))
            ]
        )
    }


def _is_open(probabilities: Mapping[str, float] | None) -> bool:
    """Whether the entropy is nearly the greatest that so many outcomes can have."""
    if not probabilities:
        return False
    entropy = -math.fsum(p * math.log(p) for p in probabilities.values() if p > 0)
    return entropy > NEARLY_UNIFORM * math.log(len(probabilities))


def apart(one: tuple[str, float], other: tuple[str, float], reachable: Reachable) -> bool:
    """Whether two tools' scores, (tool, 1..5), lie further apart than their errors explain."""
    return abs(one[1] - other[1]) > APART * load_reliability().sigma_of_difference(one, other, reachable)


def outvoted(scores: Sequence[tuple[str, float]], reachable: Reachable) -> set[str]:
    """The tools, of three or more, whose score stands apart from every other one, the furthest from the
    others' median first.

    Two against one is a vote, one against one and two against two are none.
    """
    left = dict(scores)
    while len(left) > 2:
        alone = {
            tool: abs(score - statistics.median(left[other] for other in left if other != tool))
            for tool, score in left.items()
            if all(apart((tool, score), pair, reachable) for pair in left.items() if pair[0] != tool)
        }
        if not alone:
            break
        del left[max(alone, key=alone.__getitem__)]
    return {tool for tool, _ in scores} - left.keys()


def disagreement(evidence: ExecutorOutput, reachable: Reachable) -> str | None:
    """Which tools that vote or check lie further apart than their errors explain; None where none do."""
    lines = []
    for name in evidence.quality_scores or {}:
        scores = sorted(set(_standing(evidence, name, with_checks=True).values()), key=lambda pair: pair[1])
        if len(scores) > 1 and apart(scores[0], scores[-1], reachable):
            lines.append(f"tools disagree about {name} ({_told(scores)})")
    return "; ".join(lines) or None


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
    """What whoever reads the scores must know: tools without a vote, and regions that were not found."""
    alone = dict.fromkeys((log.tool_name, log.object_name) for log in evidence.tool_logs if log.outvoted)
    lines = [
        f"{tool} has no vote: its score of {'the picture' if name == 'Global' else name} stands apart from"
        " every other tool's"
        for tool, name in alone
    ]
    missed = [name for name, box in (evidence.boxes or {}).items() if box is None]
    return lines + ([f"no box for {_listed(missed)}, tools see the whole image"] if missed else [])


def should_replan(
    executor_output: ExecutorOutput | None,
    query_scope: list[str] | str,
    plan: PlannerOutput | None = None,
    fusion: FusionResult | None = None,
) -> tuple[bool, str]:
    """(need_replan, reason).

    With two arguments the specification's literal code: an analysis must cover the scope, and there must be
    scores. With the plan, and the letters if they were read, the first of `find_gaps`.
    """
    evidence = executor_output or ExecutorOutput()
    if plan is not None:
        gaps = find_gaps(evidence, plan, fusion)
        return bool(gaps), gaps[0].reason if gaps else ""
    objects = required_objects(query_scope)
    missing = [name for name in objects if name not in (evidence.distortion_analysis or objects)]
    if missing:
        return True, f"Missing analysis for {_listed(missing)}"
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
    objects = required_objects(plan.query_scope)
    gaps = []
    if evidence.error:
        gaps.append(Gap(kind="executor", reason=f"Executor failed: {evidence.error}"))
    missing = [name for name in objects if name not in (evidence.distortion_analysis or {})]
    if plan.plan.distortion_analysis and missing:
        gaps.append(Gap(kind="analysis", reason=f"Missing analysis for {_listed(missing)}"))
    if plan.plan.tool_execution and (reason := _score_gap(evidence, objects, plan)):
        gaps.append(Gap(kind="scores", reason=reason))
    lines = contradictions(evidence)
    if not lines and plan.plan.distortion_analysis and (line := _unseen_flaw(evidence, fusion)):
        lines = [line]
    if lines:
        gaps.append(Gap(kind="contradiction", reason=lines[0]))
    if evidence.uncertainty:
        kind = "tools" if evidence.disagreement else "severity"
        gaps.append(Gap(kind=kind, reason=f"Executor is uncertain: {evidence.uncertainty}"))
    if reason := _letter_gap(fusion):
        gaps.append(Gap(kind="letters", reason=reason))
    return gaps


def _letter_gap(fusion: FusionResult | None) -> str | None:
    """What is wrong with the letters that were read in one order; once they were read in both, nothing more
    can be done. Letters that prefer nothing are a gap only where no tool speaks."""
    if fusion is None or fusion.q is None or fusion.mode != "logits" or fusion.both_orders:
        return None
    if (fusion.off_letter_mass or 0) > OFF_THE_LETTERS:
        return f"{fusion.off_letter_mass:.0%} of the probability lies off the letters"
    if fusion.q_bar is None:
        return "No tool scores, and the letters are nearly equally probable" if _is_open(fusion.p_c) else None
    if sum(fusion.alpha[LETTER_TO_LEVEL[letter]] * p for letter, p in fusion.p_c.items()) < LEAST_OVERLAP:
        alone = expected_level(fusion.p_c)
        return (
            f"Letters and tools exclude each other: the letters say {alone:.1f}, the tools {fusion.q_bar:.1f}"
        )
    return None


def _score_gap(evidence: ExecutorOutput, objects: list[str], plan: PlannerOutput) -> str | None:
    """Which scores are missing, leaving out those whose tools were tried and failed: another plan would not
    get them either."""
    scores = {
        name: found
        for name, found in (evidence.quality_scores or {}).items()
        if not is_unlocated(evidence, name)
    }
    failed = {(log.object_name, log.distortion) for log in evidence.tool_logs if log.error}
    if not evidence.quality_scores and not failed:
        return "No tool scores available"
    unscored = [name for name in objects if not scores.get(name) and name not in {name for name, _ in failed}]
    if unscored:
        return f"Missing tool scores for {_listed(unscored)} region"
    for name in objects:
        covered = {*scores.get(name, {}), *(distortion for owner, distortion in failed if owner == name)}
        missing = [d for d in key_distortions(evidence, name, plan) if d not in covered]
        if missing and not any(purpose.startswith(OVERALL) for purpose in covered):
            return f"Missing tool scores for {_listed(missing)} of {name}"
    return None


def is_unlocated(evidence: ExecutorOutput, name: str) -> bool:
    """Whether the tools measured the whole picture because the model, which gives boxes, found none of this
    region."""
    return name in (evidence.boxes or {}) and evidence.boxes[name] is None


def key_distortions(evidence: ExecutorOutput, name: str, plan: PlannerOutput) -> list[str]:
    """The plan's distortions of an object, else those that the analysis found moderate or worse."""
    if plan.distortions:
        return plan.distortions.get(name, [])
    return [
        a.type for a in (evidence.distortion_analysis or {}).get(name, []) if a.severity in KEY_SEVERITIES
    ]


def votes(evidence: ExecutorOutput | None, vote: str = "runs") -> list[tuple[str, float]]:
    """The (tool, score) that q̄ is the mean of: one for each distinct (tool, region) run, or one for each
    listed entry; none of a tool that was outvoted, or that only checks a better one."""
    if evidence is None or not evidence.quality_scores:
        return []
    counted = {name: _standing(evidence, name).values() for name in evidence.quality_scores}
    if vote == "entries":
        return [pair for scores in counted.values() for pair in scores]
    crops = {log.object_name for log in evidence.tool_logs if log.region == "crop"}
    # The score is part of the key: two different scores cannot come from one run.
    runs = {
        (tool, name if name in crops else None, score)
        for name, scores in counted.items()
        for tool, score in scores
    }
    return sorted(((tool, score) for tool, _, score in runs), key=lambda pair: pair[::-1])


def tool_scores(evidence: ExecutorOutput | None, vote: str = "runs") -> list[float]:
    """The scores of `votes` alone, 1..5."""
    return [score for _, score in votes(evidence, vote)]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
