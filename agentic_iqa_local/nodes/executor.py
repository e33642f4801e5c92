"""The Executor: the plan's subtasks as evidence: detection, tool selection, tool execution,
analysis. The plan's flags say which run; what was found stays in the evidence even when a later
subtask fails."""

import logging
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.detection import detect, found_families, severity_probabilities
from agentic_iqa_local.nodes.evidence import doubts, mark_votes, not_looked_for
from agentic_iqa_local.nodes.prompts import objects_prompt
from agentic_iqa_local.nodes.query import asks_where
from agentic_iqa_local.nodes.reasoning import speaks_of
from agentic_iqa_local.nodes.repetition import sound
from agentic_iqa_local.nodes.replanning import gaps_to_close
from agentic_iqa_local.nodes.replies import analysis_reply
from agentic_iqa_local.nodes.tool_runs import (
    ROLE,
    ByObject,
    Task,
    choose_tools,
    measure,
)
from agentic_iqa_local.nodes.workbench import opened
from agentic_iqa_local.state import (
    UNCLEAR,
    AgenticIQAState,
    Detection,
    DistortionAnalysis,
    ExecutorOutput,
    revised,
)
from agentic_iqa_local.vlm_client import VLMError

logger = logging.getLogger(__name__)

# By object and distortion: how it was judged, and how probable each severity is
Judged = dict[tuple[str, str], tuple[DistortionAnalysis, dict[str, float]]]


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
    except (InvalidAnswer, ToolError, VLMError, OSError, ValueError) as error:
        kept = {name: part for name, part in before if part}
        evidence = revised(evidence, **kept | {"error": one_line(str(error))})
        logger.error("Executor failed: %s", evidence.error)
    return {"executor_evidence": ExecutorOutput.model_validate(evidence.model_dump())}


def gather(task: Task) -> None:
    """Fills the task's evidence in place, subtask by subtask; on a replan what is missing or in
    doubt, and one more tool if scores disagree. Raises InvalidAnswer, ToolError, VLMError."""
    evidence, bench, flags = task.evidence, task.bench, task.plan.plan
    distortions = find_distortions(task)
    try:
        evidence.selected_tools = choose_tools(task, distortions) or None
        if flags.tool_execution:
            for name, tools in (evidence.selected_tools or {}).items():
                evidence.tool_logs += measure(name, list(tools.items()), bench)
    finally:  # the analysis is evidence even if no tool could be chosen
        if flags.distortion_analysis:
            analyse(task, distortions)
    _warn_of_places(task)
    if not task.named_tools()[0]:  # those that a query names all have a vote
        all_vote = bench.settings.fusion.trailing_tools == "vote"
        mark_votes(evidence, bench.tools.reachable(), all_vote=all_vote)
    if asks_where(task.query):
        try:
            places = bench.services.tools.places(*bench.pictures.parts())
            evidence.damaged_part = places.damaged_part()
        except ToolError as error:
            bench.warn(f"where the damage lies was not measured: {error}")
    evidence.uncertainty = doubts(evidence)


def _warn_of_places(task: Task) -> None:
    """Says of each region whose place nobody gave what was measured in its stead."""
    for name in task.plan.objects:
        if name == "Global" or name in task.bench.pictures.boxes:
            continue
        lead = f"Missing tool scores for {name} region"
        runs = [log for log in task.evidence.tool_logs if log.object_name == name]
        tools = dict.fromkeys(log.tool_name for log in runs if not log.error)
        if tools:
            lead = f"{' and '.join(tools)} measured the whole picture, which stands for {name}"
        if task.plan.query_type == "IQA":
            remedy = f"say where that lies (box: {name}=LEFT,TOP,RIGHT,BOTTOM)"
            task.bench.warn(f"{lead}: {remedy}")


def find_distortions(task: Task) -> ByObject:
    """By object, the distortions that the query names, those of the pass before, and those that are
    now detected. Raises InvalidAnswer, VLMError."""
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
    object that nobody could look at. Raises InvalidAnswer, VLMError."""
    evidence, bench = task.evidence, task.bench
    unread = not_looked_for(evidence)
    if unread and bench.tools.unlike_photograph is None:
        bench.warn(f"distortions were not looked for: {'; '.join(dict.fromkeys(unread.values()))}")
    looked_for = {name: kinds for name, kinds in distortions.items() if name not in unread}
    judged = judge(task, looked_for)
    analysis, probabilities = {}, {}
    for name, kinds in looked_for.items():
        analysis[name] = [judged[name, kind][0] for kind in kinds]
        for kind in kinds:
            _, p = judged[name, kind]
            if p:
                probabilities.setdefault(name, {})[kind] = p
    evidence.distortion_analysis = analysis or None
    evidence.severity_probabilities = probabilities or None


def _undoubted(task: Task) -> Judged:
    """The judgements of the pass before that another one need not repeat."""
    judged: Judged = {}
    if task.closes("contradiction"):
        return judged
    probabilities = task.before.severity_probabilities or {}
    for name, items in (task.before.distortion_analysis or {}).items():
        for item in items:
            if item.severity != UNCLEAR:
                judged[name, item.type] = item, probabilities.get(name, {}).get(item.type, {})
    return judged


def judge(task: Task, distortions: ByObject) -> Judged:
    """The model's judgement of each distortion, with LocalNR's reading. Raises InvalidAnswer,
    VLMError."""
    bench, judged = task.bench, _undoubted(task)
    asked: ByObject = {}
    for name, kinds in distortions.items():
        doubted = [kind for kind in kinds if (name, kind) not in judged]
        if doubted:
            asked[name] = doubted
    if not asked:
        return judged
    prompt = objects_prompt("analysis", task.query, asked, task.reason)
    section = bench.services.section(ROLE)
    reply = ask(bench.models.session(ROLE), prompt, analysis_reply(asked), section)
    detections = task.evidence.detection or {}
    for name, items in reply.model_dump(by_alias=True).items():
        for item in map(DistortionAnalysis.model_validate, items):
            detection = detections.get(name)
            p = severity_probabilities(detection, item.type, item.severity, None, bench)
            words = sound(item.explanation, f"its words on {item.type}", bench.warn)
            judged[name, item.type] = _likeliest(item, words, p, detection), p
    return judged


def _likeliest(
    item: DistortionAnalysis,
    words: str | None,
    p: dict[str, float],
    detection: Detection | None,
) -> DistortionAnalysis:
    """A distortion with its likeliest severity, explained by the model's `words` where they are
    about this distortion and this severity, else by the measurement."""
    severity = max(p, key=p.__getitem__) if p else item.severity
    if words and severity == item.severity and speaks_of(words, item.type):
        return item
    explanation = "The model judged it so."
    if detection is not None:
        family = detection.families[item.type]
        explanation = f"it is there with probability {family.probability:.2f}."
        if severity != "none" and family.severity is not None:
            explanation = f"{detection.tool} reads severity {family.severity:.1f} of 5."
    return revised(item, severity=severity, explanation=explanation)
