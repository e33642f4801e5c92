"""The Planner: query, pictures and feedback in, a plan out.

The model fills every field from the query. Some things are not its to decide: whether a reference was given
is a fact, the names of the tools are a closed list, regions and distortions must stand in the query, and the
flags follow from the other fields by the paper's rules. Where its answer differs, code corrects it and says
so. On a replan it may refine the plan: what the user said stays, and distortions and a tool may be added.
"""

import itertools
import logging
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from pydantic import ValidationError

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools.specs import TOOLS
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.conversation import earlier_lines, going_on
from agentic_iqa_local.nodes.executor import box_style
from agentic_iqa_local.nodes.measured_answers import families_named
from agentic_iqa_local.nodes.named_distortions import asks_about_damage, distortions_in
from agentic_iqa_local.nodes.prompts import planner_prompt
from agentic_iqa_local.nodes.query import choices_in, named_metrics, region_in
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

Distortions = dict[str, list[str]]  # by object, or "Global"
BY_THE_QUERY = ("query_type", "query_scope", "distortions", "required_tool")  # fields that its words decide


def derive_flags(
    query_type: str, query_scope: list[str] | str, distortion_source: str, required_tool: str | None
) -> PlanControlFlags:
    """The Executor's switches by the paper's rules.

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
    """The flags, with the parts on that can close the gaps of the last pass. `scores`: whether tools had measured,
    so that another one may decide."""
    kinds = {gap.kind for gap in gaps}
    tools = "scores" in kinds or (scores and bool(kinds & {"contradiction", "tools", "letters"}))
    return PlanControlFlags(
        distortion_detection=flags.distortion_detection or "contradiction" in kinds,
        distortion_analysis=flags.distortion_analysis or bool(kinds & {"analysis", "contradiction", "severity"}),
        tool_selection=flags.tool_selection,
        tool_execution=flags.tool_execution or tools,
    )


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
) -> PlannerOutput:
    """The plan with its derivable fields set by rule.

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
    metrics, regions = named_metrics(query, has_reference), _regions(plan, query, before)
    scope: list[str] | str = regions or "Global"
    fixed = {"query_scope": scope, "reference_mode": "Full-Reference" if has_reference else "No-Reference"}
    if not (metrics or _is_about_quality(plan, query, before, choices)):
        nothing = {"distortion_source": "Inferred", "distortions": None, "required_tool": None}
        return revised(plan, query_type="Other", plan=PlanControlFlags(), **fixed, **nothing)
    tool = _added_tool(plan, has_reference) if replanning and not metrics else next(iter(metrics), None)
    named = distortions_in(query, regions) or list(carried)
    source = "Explicit" if named else "Inferred"
    by_rule = derive_flags("IQA", scope, source, tool)
    flags = _with_wished(by_rule, plan.plan, replanning, locates and bool(regions))
    distortions = _distortions(plan.distortions or {}, regions or ["Global"], named, replanning)
    asked = {"required_tool": tool, "distortion_source": source, "distortions": distortions}
    return revised(plan, query_type="IQA", plan=flags, **fixed, **asked)


def _is_about_quality(
    plan: PlannerOutput, query: str, before: PlannerOutput | None, choices: Sequence[str] | None
) -> bool:
    planned = plan.query_type == "IQA" or (before is not None and before.query_type == "IQA")
    return planned or asks_about_damage(query) or bool(families_named(choices or ()))


def _with_wished(
    by_rule: PlanControlFlags, wished: PlanControlFlags, replanning: bool, located: bool
) -> PlanControlFlags:
    """The flags by rule, and what the plan may switch on besides: every part on a replan, and tools for regions that
    are located."""
    free = list(PlanControlFlags.model_fields) if replanning else ["tool_execution"] * located
    return revised(by_rule, **{name: True for name in free if getattr(wished, name)})


def _regions(plan: PlannerOutput, query: str, before: PlannerOutput | None) -> list[str]:
    """The last pass's regions, and those of the plan that stand in the query: any other was invented by the
    model."""
    earlier = [] if before is None or before.query_scope == "Global" else before.query_scope
    named = (region_in(query, name) for name in plan.objects)
    return list(dict.fromkeys([*earlier, *filter(None, named)]))


def _added_tool(plan: PlannerOutput, has_reference: bool) -> str | None:
    """The tool of the table that a plan asks for."""
    return next((name for name in named_metrics(plan.required_tool or "", has_reference) if name in TOOLS), None)


def _distortions(
    planned: Distortions, objects: Sequence[str], named: Sequence[str], replanning: bool
) -> Distortions | None:
    """What is analysed of each object: the distortions that the query names, and on a replan what the plan adds."""
    made = _divided(planned, objects, named)
    if replanning:
        every = list(itertools.chain(*planned.values()))
        made = {name: list(dict.fromkeys([*kinds, *planned.get(name, every)])) for name, kinds in made.items()}
    return {name: kinds for name, kinds in made.items() if kinds} or None


def _divided(planned: Distortions, objects: Sequence[str], named: Sequence[str]) -> Distortions:
    """The distortions that the query names for each object: as the plan divides them, where it leaves none out."""
    made = {name: [kind for kind in planned.get(name, named) if kind in named] for name in objects}
    complete = all(made.values()) and set(named) == set(itertools.chain(*made.values()))
    return made if complete else {name: list(named) for name in objects}


def corrections(made: PlannerOutput, corrected: PlannerOutput) -> list[str]:
    """A line for each field in which the corrected plan differs from what the model made."""
    return [
        f"{name}: {_told(before)} → {_told(after)}{' (by the words of the query)' if name in BY_THE_QUERY else ''}"
        for name, before in made
        if (after := getattr(corrected, name)) != before
    ]


def _told(value: Any) -> str:
    if isinstance(value, PlanControlFlags):
        return ", ".join(name for name, on in value if on) or "no part"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {', '.join(kinds)}" for name, kinds in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


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
        context = state.get("prior_context", {}) | ({"replan_history": history} if history else {})
        given = {name: state.get(name) for name in ("query", "image_path", "reference_path")}
        decoded = runtime is not None and runtime.context is not None  # the graph's files are known to hold images
        task = PlannerInput.model_validate(given | {"prior_context": context or None}, context={"decoded": decoded})
        turns = earlier_lines(context)
        prompt = planner_prompt(task.query, has_reference, choices, history, before, evidence, earlier=turns)
        with opened(state, config, runtime) as images:
            section = images.services.section("planner")
            made = ask(images.session("planner"), prompt, PlannerReply, section).to_plan()
            locates = box_style(images) != "none"
    except (InvalidAnswer, VLMError, OSError, ValueError) as error:
        told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        reason = one_line(told.removeprefix("Value error, "))
        logger.error("Planner failed: %s", reason)
        return {"error": f"Planner: {reason}"}
    plan, carried = going_on(made, task.query, context)
    known = {"before": before, "carried": carried, "choices": choices}
    plan = correct_plan(plan, task.query, has_reference, bool(history), locates, **known)
    lines = taken_choices(task.query, choices) + corrections(made, plan)
    if plan.query_type == "IQA" and gaps:
        measured = bool(evidence and evidence.quality_scores)
        plan = revised(plan, plan=flags_against(gaps, plan.plan, measured))
    for line in lines:
        logger.info("Plan corrected by rule: %s", one_line(line))
    logger.info("Plan: %s", one_line(plan.model_dump_json()))
    return {"plan": plan, "plan_corrections": lines}
