"""The Planner: query, pictures and feedback in, a plan out.

The model fills every field from the query. Where its answer differs from what is given, what the query says in so many
words, or the paper's rules for the flags, code corrects it and says so. A replan may add distortions.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from pydantic import ValidationError

from agentic_iqa_local.config import Box, box_text, boxes_of
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import is_tool
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.measured_answers import families_named
from agentic_iqa_local.nodes.prompts import earlier_lines, planner_prompt
from agentic_iqa_local.nodes.query import (
    asks_about_damage,
    distortions_in,
    named_metrics,
    region_in,
)
from agentic_iqa_local.nodes.regions import found_boxes, with_boxes
from agentic_iqa_local.nodes.replanning import gaps_to_close
from agentic_iqa_local.nodes.replies import PlannerReply
from agentic_iqa_local.nodes.workbench import opened
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


def derive_flags(
    query_type: str, query_scope: list[str] | str, distortion_source: str, required_tool: str | None
) -> PlanControlFlags:
    """The Executor's switches by the paper's rules. Other: everything off. IQA: analysis on, detection when the
    distortions are to be inferred; tools are selected when the query names neither a region nor a tool, and executed
    when it names a tool or no region."""
    quality, whole, tool = query_type == "IQA", query_scope == "Global", required_tool is not None
    return PlanControlFlags(
        distortion_detection=quality and distortion_source == "Inferred",
        distortion_analysis=quality,
        tool_selection=quality and whole and not tool,
        tool_execution=quality and (tool or whole),
    )


def flags_against(gaps: Sequence[Gap], flags: PlanControlFlags, scores: bool) -> PlanControlFlags:
    """The flags, with the parts on that can close the gaps of the last pass. `scores`: whether tools had measured,
    so that another one may decide."""
    closing = {
        "distortion_detection": ("contradiction",),
        "distortion_analysis": ("analysis", "contradiction", "severity"),
        "tool_execution": ("scores", "contradiction", "tools") if scores else ("scores",),
    }
    kinds = {gap.kind for gap in gaps}
    return revised(flags, **{name: True for name, closed in closing.items() if kinds & {*closed}})


def correct_plan(
    made: PlannerOutput,
    query: str,
    has_reference: bool,
    before: PlannerOutput | None = None,
    choices: Sequence[str] = (),
    boxes: Mapping[str, Box] | None = None,
) -> PlannerOutput:
    """The plan that the model made, with its derivable fields set by rule.

    `choices` that name distortions make the question one about quality. `before` is on a replan the last pass's plan,
    whose type and regions stay; the model may then add parts and distortions. `boxes` say where regions lie: tools
    are chosen for these, and run.
    """
    plans = [before, made] if before else [made]
    named_regions = (region_in(query, name) for plan in plans for name in plan.objects)
    located = with_boxes(dict.fromkeys(filter(None, named_regions)), boxes or {})
    regions = list(located)
    scope: Any = regions or "Global"
    fixed = {
        "query_scope": scope,
        "reference_mode": "Full-Reference" if has_reference else "No-Reference",
    }
    tools = named_metrics(query, has_reference)
    planned = any(plan.query_type == "IQA" for plan in plans)
    if not (tools or planned or asks_about_damage(query) or families_named(choices)):
        nothing = {"distortion_source": "Inferred", "distortions": None, "required_tool": None}
        return revised(made, query_type="Other", plan=PlanControlFlags(), **fixed, **nothing)
    named = distortions_in(query, regions)
    asked = {
        "distortion_source": "Explicit" if named else "Inferred",
        "required_tool": next(iter(tools), None),
    }
    flags, chosen = derive_flags("IQA", scope, **asked), any(located.values())
    if tools and not is_tool(tools[0]):  # the model may choose what measures in its place
        flags = revised(flags, tool_selection=scope == "Global" or chosen)
    elif chosen:
        flags = revised(flags, tool_selection=not tools)
    flags = revised(flags, tool_execution=flags.tool_execution or chosen)
    flags = revised(flags, **{name: True for name, on in made.plan if on and before})
    added = (
        [kind for kinds in (made.distortions or {}).values() for kind in kinds] if before else []
    )
    kinds = list(dict.fromkeys([*named, *added]))
    distortions = dict.fromkeys(regions or ["Global"], kinds) if kinds else None
    return revised(made, query_type="IQA", plan=flags, distortions=distortions, **fixed, **asked)


def corrections(made: PlannerOutput, corrected: PlannerOutput) -> list[str]:
    """A line for each field in which the corrected plan differs from what the model made."""
    before, after = (
        {
            k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
            for k, v in plan.model_dump().items()
        }
        for plan in (made, corrected)
    )
    return [f"{name}: {old} → {after[name]}" for name, old in before.items() if old != after[name]]


def planner_node(
    state: AgenticIQAState,
    config: RunnableConfig | None = None,
    runtime: Runtime[Any] | None = None,
) -> dict[str, Any]:
    """Returns `plan`, `plan_corrections` and, where the place of a region is known, `box`; or `error` when no valid
    plan could be had."""
    query, choices, has_reference = (
        state["query"],
        state.get("choices"),
        bool(state.get("reference_path")),
    )
    history, gaps = state.get("replan_history", []), gaps_to_close(state)
    before, evidence = (state.get("plan"), state.get("executor_evidence")) if gaps else (None, None)
    context = state.get("prior_context", {}) | ({"replan_history": history} if history else {})
    given = {name: state.get(name) for name in PlannerInput.model_fields} | {
        "prior_context": context or None
    }
    decoded = (
        runtime is not None and runtime.context is not None
    )  # the graph's files are known to hold images
    try:
        PlannerInput.model_validate(given, context={"decoded": decoded})
        prompt = planner_prompt(
            query, has_reference, choices, history, before, evidence, earlier_lines(context)
        )
        with opened(state, config, runtime) as bench:
            reply = ask(
                bench.models.session("planner"),
                prompt,
                PlannerReply,
                bench.services.section("planner"),
            )
            made = PlannerOutput.model_validate(reply.model_dump(by_alias=True))
            boxes, rest = boxes_of(state.get("box")), (has_reference, before, choices or ())
            plan = correct_plan(made, query, *rest, boxes)
            boxes = {name: box for name, box in with_boxes(plan.objects, boxes).items() if box}
            if plan.query_type == "IQA" and not gaps:  # a replan has the boxes of the first pass
                without = [name for name in plan.objects if name not in ("Global", *boxes)]
                boxes |= found_boxes(query, without, bench)
                plan = correct_plan(made, query, *rest, boxes)
    except (InvalidAnswer, VLMError, OSError, ValueError) as error:
        reason = one_line(
            error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        )
        logger.error("Planner failed: %s", reason)
        return {"error": f"Planner: {reason}"}
    lines = corrections(made, plan)
    if plan.query_type == "IQA":
        plan = revised(
            plan, plan=flags_against(gaps, plan.plan, bool(evidence and evidence.quality_scores))
        )
    for line in lines:
        logger.info("Plan corrected by rule: %s", one_line(line))
    logger.info("Plan: %s", one_line(plan.model_dump_json()))
    changes = {"plan": plan, "plan_corrections": lines}
    return changes | ({"box": box_text(boxes)} if boxes else {})
