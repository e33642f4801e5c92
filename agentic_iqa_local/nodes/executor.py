"""The Executor: the plan's subtasks as evidence: detection, tool selection, tool execution, analysis. The plan's flags
say which run; what was found stays in the evidence even when a later subtask fails."""

import logging
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.detection import detect, found_families, severity_probabilities
from agentic_iqa_local.nodes.evidence import by_object, doubts, mark_votes, not_looked_for
from agentic_iqa_local.nodes.prompts import distortion_prompt
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
    give_box,
    run_tools,
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


def executor_node(
    state: AgenticIQAState,
    config: RunnableConfig | None = None,
    runtime: Runtime[Any] | None = None,
) -> dict[str, Any]:
    """Returns `executor_evidence`; nothing when an earlier node failed. When this one does, the evidence has an `error`
    beside what the pass before found, or what was found so far."""
    if state.get("error"):
        return {}
    if (plan := state.get("plan")) is None:
        return {"error": "Executor: the state has no plan; the Planner must run first"}
    gaps, evidence = gaps_to_close(state), ExecutorOutput()
    before = (state.get("executor_evidence") if gaps else None) or ExecutorOutput()
    try:
        with opened(state, config, runtime) as bench:
            gather(Task(evidence, state["query"], plan, bench, before, gaps))
    except (InvalidAnswer, ToolError, VLMError, OSError, ValueError) as error:
        evidence = revised(
            evidence,
            **{name: part for name, part in before if part} | {"error": one_line(str(error))},
        )
        logger.error("Executor failed: %s", evidence.error)
    return {"executor_evidence": ExecutorOutput.model_validate(evidence.model_dump())}


def gather(task: Task) -> None:
    """Fills the task's evidence in place, subtask by subtask; on a replan what is missing or in doubt, and one more
    tool if scores disagree. Raises InvalidAnswer, ToolError, VLMError."""
    evidence, bench, flags = task.evidence, task.bench, task.plan.plan
    distortions = find_distortions(task)
    try:
        evidence.selected_tools = choose_tools(task, distortions) or None
        if flags.tool_execution:
            run_tools(evidence, bench)
    finally:  # the analysis is evidence even if no tool could be chosen
        if flags.distortion_analysis:
            analyse(task, distortions)
    for name in unmeasured(task):
        bench.warn(f"Missing tool scores for {name} region: {give_box(name)}")
    if not task.named_tools()[0]:  # those that a query names all have a vote
        only_check = bench.settings.fusion.trailing_tools == "check"
        mark_votes(evidence, bench.tools.reachable(), trailing_only_check=only_check)
    if asks_where(task.query):
        try:
            places = bench.services.tools.places(*bench.pictures.parts())
            evidence.damaged_part = places.damaged_part()
        except ToolError as error:
            bench.warn(f"where the damage lies was not measured: {error}")
    evidence.uncertainty = doubts(evidence)


def unmeasured(task: Task) -> list[str]:
    """The regions of a question about quality that no tool can measure, for nobody said where they are."""
    if task.plan.query_type != "IQA" or any(task.named_tools()):
        return []
    return [
        name for name in task.plan.objects if name not in ("Global", *task.bench.pictures.boxes)
    ]


def find_distortions(task: Task) -> ByObject:
    """By object, the distortions that the query names, those of the pass before, and those that are now detected.
    Raises InvalidAnswer, VLMError."""
    evidence, objects, look = task.evidence, task.plan.objects, task.plan.plan.distortion_detection
    named, earlier = task.plan.distortions or {}, by_object(task.before, "distortion_set")
    detected = (
        {} if task.closes("contradiction", "executor") else by_object(task.before, "detection")
    )
    if (look or named) and not detected.keys() >= set(objects):
        detected = detect(task)
    evidence.detection = {name: detected[name] for name in objects if name in detected} or None
    found = (
        {name: found_families(one) for name, one in by_object(evidence, "detection").items()}
        if look
        else {}
    )
    parts = (named, earlier, found)
    distortions = {
        name: list(dict.fromkeys(k for part in parts for k in part.get(name, [])))
        for name in objects
    }
    evidence.distortion_set = distortions if look or earlier else None
    return distortions


def analyse(task: Task, distortions: ByObject) -> None:
    """Puts a judgement of each distortion, and how probable each severity is, into the evidence. The model is not asked
    again for those of the pass before that are not in doubt, nor of an object that nobody could look at. Raises
    InvalidAnswer, VLMError."""
    evidence, bench = task.evidence, task.bench
    unread = not_looked_for(evidence)
    if unread and bench.tools.unlike_photograph is None:
        why = "; ".join(dict.fromkeys(unread.values()))
        bench.warn(f"distortions were not looked for: {why}")
    distortions = {name: kinds for name, kinds in distortions.items() if name not in unread}
    before = (
        []
        if task.closes("contradiction")
        else by_object(task.before, "distortion_analysis").items()
    )
    judged = {
        (name, one.type): one for name, items in before for one in items if one.severity != UNCLEAR
    }
    earlier = by_object(task.before, "severity_probabilities")
    probable = {(name, kind): earlier.get(name, {}).get(kind) for name, kind in judged}
    asked = {
        name: [kind for kind in kinds if (name, kind) not in judged]
        for name, kinds in distortions.items()
    }
    if asked := {name: kinds for name, kinds in asked.items() if kinds}:
        prompt = distortion_prompt("analysis", task.query, asked, task.reason)
        reply = ask(
            bench.models.session(ROLE), prompt, analysis_reply(asked), bench.services.section(ROLE)
        )
        for name, items in reply.model_dump(by_alias=True).items():
            detection = by_object(evidence, "detection").get(name)
            for item in items:
                place = name, item["type"]
                probable[place] = severity_probabilities(detection, item, None, bench)
                words = sound(item["explanation"], f"its words on {item['type']}", bench.warn)
                judged[place] = _judgement(item, words, probable[place], detection)
    told = {
        name: {kind: p for kind in kinds if (p := probable[name, kind])}
        for name, kinds in distortions.items()
    }
    evidence.severity_probabilities = {
        name: of_kinds for name, of_kinds in told.items() if of_kinds
    } or None
    evidence.distortion_analysis = {
        name: [judged[name, kind] for kind in kinds] for name, kinds in distortions.items()
    } or None


def _judgement(
    item: dict[str, str],
    words: str | None,
    p: dict[str, float] | None,
    detection: Detection | None,
) -> DistortionAnalysis:
    """A distortion with its likeliest severity, explained by the model's `words` where they are about this distortion
    and this severity, else by the measurement."""
    likeliest = max(p, key=p.__getitem__) if p else item["severity"]
    if words and likeliest == item["severity"] and speaks_of(words, item["type"]):
        return DistortionAnalysis.model_validate(item)
    judged = item | {"severity": likeliest}
    if detection is None:
        return DistortionAnalysis.model_validate(
            judged | {"explanation": "The model judged it so."}
        )
    family = detection.families[item["type"]]
    reading = f"it is there with probability {family.probability:.2f}"
    if likeliest != "none" and family.severity is not None:
        reading = f"{detection.tool} reads severity {family.severity:.1f} of 5"
    differs = detection.model_trust and likeliest != item["severity"]
    wrote = f"; the model wrote {item['severity']}" if differs else ""
    return DistortionAnalysis.model_validate(judged | {"explanation": f"{reading}{wrote}."})
