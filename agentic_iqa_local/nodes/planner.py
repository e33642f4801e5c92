"""The Planner: query, image and feedback in, a plan out.

The model fills every field from the query. Some things are not its to decide: whether a reference was given
is a fact, the names of the tools are a closed list, regions and distortions must stand in the query, and the
flags follow from the other fields by the paper's rules. Where its answer differs, code corrects it and says
so. On a replan it may refine the plan: what the user said stays, and distortions and a tool may be added.
"""

import logging
from collections.abc import KeysView, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from pydantic import ValidationError

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.conversation import carried_on, earlier_lines, going_on
from agentic_iqa_local.nodes.executor import box_style
from agentic_iqa_local.nodes.measured_answers import families_named
from agentic_iqa_local.nodes.named_distortions import asks_about_damage, distortions_in
from agentic_iqa_local.nodes.prompts import planner_prompt
from agentic_iqa_local.nodes.query import choices_in, named_metrics, named_tools, region_in
from agentic_iqa_local.nodes.replanning import gaps_to_close
from agentic_iqa_local.nodes.replies import PlannerReply
from agentic_iqa_local.nodes.workbench import Context, opened
from agentic_iqa_local.state import (
    AgenticIQAState,
    Gap,
    PlanControlFlags,
    PlannerInput,
    PlannerOutput,
    revised,
)
from agentic_iqa_local.vlm_client import VLMError

logger = logging.getLogger(__name__)

REASONS = {
    "query_type": " (a tool, damage, or where it is, is a matter of technical quality)",
    "query_scope": " (the regions that the query names)",
    "required_tool": " (the tool that the query names)",
}


def derive_flags(
    query_type: str, query_scope: list[str] | str, distortion_source: str, required_tool: str | None
) -> PlanControlFlags:
    """The executor's switches by the paper's rules.

    Other: everything off. IQA: analysis on, detection when the distortions are to be inferred; tools are
    selected when the query names neither a region nor a tool, and executed when it names a tool or no region.
    """
    if query_type == "Other":
        return PlanControlFlags()
    region, tool = query_scope != "Global", required_tool is not None
    return PlanControlFlags(
        distortion_detection=distortion_source == "Inferred",
        distortion_analysis=True,
        tool_selection=not region and not tool,
        tool_execution=tool or not region,
    )


def flags_against(gaps: Sequence[Gap], flags: PlanControlFlags, scores: bool) -> PlanControlFlags:
    """The flags with the parts on that gaps of the last pass need: scores that contradict each other, the
    analysis or the letters want another tool, where tools had measured (`scores`)."""
    kinds = {gap.kind for gap in gaps}
    wanted = {
        "distortion_detection": "contradiction" in kinds,
        "distortion_analysis": bool(kinds & {"analysis", "contradiction", "severity"}),
        "tool_execution": "scores" in kinds
        or (scores and bool(kinds & {"contradiction", "tools", "letters"})),
    }
    return revised(flags, **{name: True for name, on in wanted.items() if on})


def correct_plan(
    plan: PlannerOutput,
    query: str,
    has_reference: bool,
    replanning: bool,
    locates: bool = False,
    *,
    before: PlannerOutput | None = None,
    carried: Sequence[str] = (),
    choices: Sequence[str] | None = None,
) -> tuple[PlannerOutput, list[str]]:
    """The plan with its derivable fields set by rule, and one line for each correction.

    Args:
        plan: as the model made it.
        query: the user's question.
        has_reference: whether a reference image was given.
        replanning: the model may then switch on more parts than the rules ask for, add distortions to look at
            and, where the query names no tool, one.
        locates: whether the model gives boxes; it may then always have tools measure a region.
        before: the last pass's plan, whose type and regions stay.
        carried: the distortions of the last turn, for a query that goes on from it.
        choices: the user's answers; some that name distortions make the question one about quality.
    """
    named_tool = next(iter(named_metrics(query, has_reference)), None)  # the Executor runs the others too
    about_quality = named_tool or asks_about_damage(query) or families_named(choices or ())
    if about_quality or plan.query_type == "IQA" or (before and before.query_type == "IQA"):
        query_type, tool = "IQA", named_tool
        if replanning and plan.required_tool:
            tool = named_tool or next(iter(named_tools(plan.required_tool, has_reference)), None)
    else:
        query_type, tool = "Other", None
    regions, named, distortions = _regions(plan, query, before), [], None
    scope = regions or "Global"
    if query_type == "IQA":
        named = distortions_in(query, regions, _kinds(plan.distortions)) or list(carried)
        distortions = _distortions(plan, regions or ["Global"], named, replanning)
    source = "Explicit" if named else "Inferred"
    flags = derive_flags(query_type, scope, source, tool)
    if query_type == "IQA" and (replanning or (locates and regions)):
        free = list(PlanControlFlags.model_fields) if replanning else ["tool_execution"]
        flags = revised(flags, **{name: True for name in free if getattr(plan.plan, name)})
    changes = {
        "query_type": query_type,
        "query_scope": scope,
        "required_tool": tool,
        "distortion_source": source,
        "distortions": distortions,
        "reference_mode": "Full-Reference" if has_reference else "No-Reference",
        "plan": flags,
    }
    return revised(plan, **changes), _corrections(plan, changes, named)


def _corrections(plan: PlannerOutput, changes: dict[str, Any], named: Sequence[str]) -> list[str]:
    """A line for each field that is changed."""
    reasons = REASONS | {"distortions": " (what the query names)" if named else " (the query names none)"}
    return [
        f"{name}: {_in_words(getattr(plan, name), value)}{reasons.get(name, '')}"
        for name, value in changes.items()
        if getattr(plan, name) != value
    ]


def _regions(plan: PlannerOutput, query: str, before: PlannerOutput | None) -> list[str]:
    """The last pass's regions, and those of the plan that stand in the query: any other was invented by the
    model."""
    regions = [] if before is None or before.query_scope == "Global" else list(before.query_scope)
    regions += [region for name in plan.objects if (region := region_in(query, name))]
    return list(dict.fromkeys(regions))


def _distortions(
    plan: PlannerOutput, objects: Sequence[str], named: Sequence[str], replanning: bool
) -> dict[str, list[str]] | None:
    """`distortions` for the objects of a corrected scope: those that the query names, which the plan may only
    divide among the objects, and on a replan what the plan adds."""
    planned = plan.distortions or {}
    made = {name: [kind for kind in planned.get(name, named) if kind in named] for name in objects}
    if not all(made.values()) or set(named) != _kinds(made):
        made = {name: list(named) for name in objects}
    if replanning:
        every = list(_kinds(planned))
        made = {name: list(dict.fromkeys([*made[name], *planned.get(name, every)])) for name in objects}
    return {name: kinds for name, kinds in made.items() if kinds} or None


def _kinds(distortions: dict[str, list[str]] | None) -> KeysView[str]:
    """All types of distortions, each once."""
    return dict.fromkeys(kind for kinds in (distortions or {}).values() for kind in kinds).keys()


def _in_words(before: Any, after: Any) -> str:
    if isinstance(after, PlanControlFlags):
        was = before.model_dump()
        switched = {name: on for name, on in after.model_dump().items() if was[name] != on}
        return ", ".join(f"{name} {'on' if on else 'off'}" for name, on in switched.items())

    def told(value: Any) -> str:
        if not isinstance(value, dict):
            return str(value)
        kinds = {name: ", ".join(listed) for name, listed in value.items()}
        return kinds.get("Global") or "; ".join(f"{name}: {listed}" for name, listed in kinds.items())

    return f"{told(before)} → {told(after)}"


def taken_choices(query: str, choices: list[str] | None) -> list[str]:
    """A line that tells that the query itself lists the answers to choose from; none where it does not."""
    listed = choices and choices == choices_in(query)
    return [f"choices: {' | '.join(choices)} (the query lists them)"] if choices and listed else []


def planner_node(
    state: AgenticIQAState,
    config: RunnableConfig | None = None,
    runtime: Runtime[Context] | None = None,
) -> dict[str, Any]:
    """Returns `plan` and `plan_corrections`, or `error` when no valid plan could be had."""
    has_reference, history = bool(state.get("reference_path")), state.get("replan_history", [])
    choices, gaps = state.get("choices"), gaps_to_close(state)
    before, evidence = (state.get("plan"), state.get("executor_evidence")) if gaps else (None, None)
    try:
        task = _task(state, decoded=runtime is not None and runtime.context is not None)
        turns = earlier_lines(task.prior_context)
        prompt = planner_prompt(task.query, has_reference, choices, history, before, evidence, earlier=turns)
        with opened(state, config, runtime) as images:
            section = images.services.section("planner")
            plan = ask(images.session("planner"), prompt, PlannerReply, section).to_plan()
            locates = box_style(images) != "none"
    except ValidationError as error:
        return {"error": one_line(f"Planner: {error.errors()[0]['msg'].removeprefix('Value error, ')}")}
    except (InvalidAnswer, VLMError, OSError, ValueError) as error:
        reason = one_line(str(error))
        logger.error("Planner failed: %s", reason)
        return {"error": f"Planner: {reason}"}
    plan, inherited = going_on(plan, task.query, task.prior_context)
    plan, corrections = correct_plan(
        plan,
        task.query,
        has_reference,
        bool(history),
        locates,
        before=before,
        carried=carried_on(task.query, task.prior_context),
        choices=choices,
    )
    if plan.query_type == "IQA" and gaps:
        measured = bool(evidence and evidence.quality_scores)
        plan = revised(plan, plan=flags_against(gaps, plan.plan, measured))
    corrections = taken_choices(task.query, choices) + inherited + corrections
    for line in corrections:
        logger.info("Plan corrected by rule: %s", one_line(line))
    logger.info("Plan: %s", one_line(plan.model_dump_json()))
    return {"plan": plan, "plan_corrections": corrections}


def _task(state: AgenticIQAState, decoded: bool) -> PlannerInput:
    """The question with what went before; `decoded`: the files are known to hold images. Raises
    ValidationError."""
    history = state.get("replan_history", [])
    context = state.get("prior_context", {}) | ({"replan_history": history} if history else {})
    task = {
        "query": state["query"],
        "image_path": state["image_path"],
        "reference_path": state.get("reference_path"),
        "prior_context": context or None,
    }
    return PlannerInput.model_validate(task, context={"decoded": decoded})
