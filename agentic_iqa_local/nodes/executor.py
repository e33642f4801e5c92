"""The Executor: the plan's subtasks as evidence: detection, tool selection, tool execution,
analysis. The plan's flags say which run; what was found stays in the evidence even when a later
subtask fails."""

import copy
import logging
from collections.abc import Collection, Iterator
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.detection import detect, found_families, severity_probabilities
from agentic_iqa_local.nodes.evidence import (
    damaged_half,
    doubts,
    found_damage,
    has_shallow_focus,
    not_looked_for,
)
from agentic_iqa_local.nodes.prompts import objects_prompt
from agentic_iqa_local.nodes.query import asks_where
from agentic_iqa_local.nodes.reasoning import explains
from agentic_iqa_local.nodes.replanning import gaps_to_close
from agentic_iqa_local.nodes.replies import analysis_reply
from agentic_iqa_local.nodes.tool_runs import (
    ROLE,
    ByObject,
    Task,
    run_tools,
)
from agentic_iqa_local.nodes.workbench import Workbench, opened
from agentic_iqa_local.nodes.written import sound
from agentic_iqa_local.state import (
    EVERYWHERE,
    UNCLEAR,
    AgenticIQAState,
    Detection,
    DistortionAnalysis,
    ExecutorOutput,
    FamilyDetection,
    PlannerOutput,
    revised,
)
from agentic_iqa_local.vlm_client import VLMError

logger = logging.getLogger(__name__)


def executor_node(
    state: AgenticIQAState,
    config: RunnableConfig | None = None,
    runtime: Runtime[Any] | None = None,
) -> dict[str, Any]:
    """Returns `executor_evidence`; nothing when an earlier node failed. When this one does, the
    evidence has an `error` beside what the pass before found, or what was found so far."""
    if state.get("error"):
        return {}
    plan = state.get("plan")
    if plan is None:
        return {"error": "Executor: the state has no plan; the Planner must run first"}
    gaps, evidence = gaps_to_close(state), ExecutorOutput()
    before = (state.get("executor_evidence") if gaps else None) or ExecutorOutput()
    try:
        with opened(state, config, runtime) as bench:
            bench.models.evidence = evidence
            gather(Task(evidence, state["query"], plan, bench, before, gaps))
    except (ToolError, VLMError, OSError, ValueError) as error:
        kept = {name: part for name, part in before if part}
        evidence = revised(evidence, **kept | {"error": one_line(str(error))})
        logger.error("Executor failed: %s", evidence.error)
    return {"executor_evidence": ExecutorOutput.model_validate(evidence.model_dump())}


def gather(task: Task) -> None:
    """Fills the task's evidence in place, subtask by subtask; on a replan what is missing or in
    doubt, and one more tool if scores disagree. Raises ToolError, VLMError."""
    evidence, flags = task.evidence, task.plan.plan
    distortions = find_distortions(task)
    try:
        if flags.tool_selection or flags.tool_execution:
            run_tools(task, distortions)
    finally:  # the analysis is evidence even if no tool could be chosen
        if flags.distortion_analysis:
            analyse(task, distortions)
    if task.plan.query_type == "IQA":
        _warn_of_regions_without_place(task)
    _find_place(task)
    evidence.uncertainty = doubts(evidence)


def _find_place(task: Task) -> None:
    """Where the damage lies, if that is asked, or if a part alone is damaged."""
    evidence = task.evidence
    whole = (evidence.detection or {}).get("Global")
    if not (asks_where(task.query) or (whole and whole.in_part)):
        return
    kinds = {one.type for one in found_damage(evidence)}
    part = (whole and whole.blurred_part) or _damaged_part(task.bench, kinds or _soft(evidence))
    if kinds or part != EVERYWHERE:
        evidence.damaged_part = part


def _soft(evidence: ExecutorOutput) -> set[str]:
    """The family of a part that is soft, which may be shallow focus and then is no damage."""
    return {"Blurs"} if has_shallow_focus(evidence) else set()


def _warn_of_regions_without_place(task: Task) -> None:
    for name in task.plan.objects:
        if name not in ("Global", *task.bench.pictures.boxes):
            said = f"Missing tool scores for {name} region: no place is known of it (assess takes --box)"
            if task.plan.required_tool:
                said += "; the tool that the query names measures the whole picture in its stead"
            task.bench.warn(said)


def _damaged_part(bench: Workbench, kinds: Collection[str]) -> str | None:
    """Where the damage of these kinds lies, in words; None where no part stands out, or where it was
    not measured."""
    try:
        examined = bench.services.tools.places(*bench.pictures.parts())
        grids = [grid for kind, grid in examined.places.items() if kind in kinds]
        return damaged_half(grids) or examined.damaged_part()
    except ToolError as error:
        bench.warn(f"where the damage lies was not measured: {error}")
        return None


def find_distortions(task: Task) -> ByObject:
    """By object, the distortions that the query names, those of the pass before, and those that are
    now detected. Raises VLMError."""
    evidence, look = task.evidence, task.plan.plan.distortion_detection
    named, earlier = task.plan.distortions or {}, task.before.distortion_set or {}
    detections = detections_of(task)
    evidence.detection = detections or None
    distortions = {}
    for name in task.plan.objects:
        kinds = [*named.get(name, ()), *earlier.get(name, ())]
        if look and name in detections:
            kinds += found_families(detections[name])
        distortions[name] = list(dict.fromkeys(kinds))
    if look or earlier:
        evidence.distortion_set = distortions
    return distortions


def detections_of(task: Task) -> dict[str, Detection]:
    """What is read of each object; what the pass before read counts where it is in no doubt."""
    known: dict[str, Detection] = {}
    if not task.closes("contradiction", "executor"):
        known = task.before.detection or {}
    objects, wanted = task.plan.objects, task.plan.plan.distortion_detection
    if (wanted or task.plan.distortions) and not known.keys() >= set(objects):
        known = detect(task)
    return {name: known[name] for name in objects if name in known}


def analyse(task: Task, distortions: ByObject) -> None:
    """Puts a judgement of each distortion, and how probable each severity is, into the evidence.
    The model is not asked again for those of the pass before that are not in doubt, nor of an
    object that nobody could look at. What a plan adds to a query that names none, and is not there,
    is left out. Raises VLMError."""
    evidence, unread = task.evidence, not_looked_for(task.evidence)
    before = ExecutorOutput() if task.closes("contradiction") else copy.deepcopy(task.before)
    probabilities = evidence.severity_probabilities = before.severity_probabilities or {}
    analysis, asked = _told(before), {}
    for name, kinds in distortions.items():
        if name not in unread:
            judged = [item.type for item in analysis.setdefault(name, [])]
            asked[name] = [kind for kind in kinds if kind not in judged]
    for name, item, p in judge(task, asked):
        analysis[name] += _to_tell(task.plan, name, item)
        if p:
            probabilities.setdefault(name, {})[item.type] = p
    evidence.distortion_analysis = analysis or None


def _to_tell(plan: PlannerOutput, name: str, item: DistortionAnalysis) -> list[DistortionAnalysis]:
    """The judgement; none of a distortion that is not there, and that the model added to a query
    which names none."""
    supposed = plan.distortions if plan.distortion_source == "Inferred" else None
    absent = item.severity == "none" and item.type in (supposed or {}).get(name, ())
    return [] if absent else [item]


def _told(before: ExecutorOutput) -> dict[str, list[DistortionAnalysis]]:
    """The judgements of the pass before that have a severity, by object."""
    told = {}
    for name, items in (before.distortion_analysis or {}).items():
        told[name] = [item for item in items if item.severity != UNCLEAR]
    return told


def judge(
    task: Task, asked: ByObject
) -> Iterator[tuple[str, DistortionAnalysis, dict[str, float]]]:
    """Each object with the model's judgement of a distortion of it, and how probable each severity
    is with LocalNR's reading. The likeliest is explained by the model's words where they are about
    it, else by the measurement. Raises VLMError."""
    asked = {name: kinds for name, kinds in asked.items() if kinds}
    if not asked:
        return
    bench, detections = task.bench, task.evidence.detection or {}
    for name, items in _written(task, asked).items():
        for item in items:
            family = detections[name].families[item.type]
            p = severity_probabilities(family, item.severity, bench)
            severity = max(p, key=p.__getitem__, default=item.severity)
            words = None if family.shown else _words_on(item, severity, bench)
            words = words or _explained(severity, family)
            yield name, revised(item, severity=severity, explanation=words), p


def _words_on(item: DistortionAnalysis, severity: str, bench: Workbench) -> str | None:
    """The model's words on a distortion, where they explain it with this severity."""
    words = sound(item.explanation, f"its words on {item.type}", bench.warn)
    if words and severity == item.severity and explains(words, item.type, severity):
        return words
    return None


def _written(task: Task, asked: ByObject) -> dict[str, list[DistortionAnalysis]]:
    """The model's judgements, by object; where it wrote none that is valid, unclear ones if all are
    measured, so that the measurement decides. Raises VLMError."""
    bench, detections = task.bench, task.evidence.detection or {}
    prompt = objects_prompt("analysis", task.query, asked, task.reason)
    section = bench.services.section(ROLE)
    try:
        reply = ask(bench.models.session(ROLE), prompt, analysis_reply(asked), section)
    except InvalidAnswer as error:
        families = [detections[name].families[kind] for name in asked for kind in asked[name]]
        if any(family.severity is None for family in families):
            raise
        bench.warn(f"the model judged no distortion ({error}): the measurement alone counts")
        nothing = {"severity": UNCLEAR, "explanation": "The model did not judge it."}
        written = {name: [nothing | {"type": kind} for kind in asked[name]] for name in asked}
    else:
        written = reply.model_dump(by_alias=True)
    judged = {}
    for name, items in written.items():
        judged[name] = [DistortionAnalysis.model_validate(item) for item in items]
    return judged


def _explained(severity: str, family: FamilyDetection) -> str:
    if severity == "none" or family.severity is None:
        return f"it is there with probability {family.probability:.2f}."
    read = f"LocalNR reads severity {family.severity:.1f} of 5."
    return f"{family.shown}; {read}" if family.shown else read
