"""The Planner: query, pictures and feedback in, a plan out.

The model fills every field from the query. Where its answer differs from what is given, what the
query says in so many words, or the paper's rules for the flags, code corrects it and says so. A
replan may add distortions.
"""

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.config import Box, box_text, boxes_of
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.ask import ask
from agentic_iqa_local.nodes.measured_answers import families_named
from agentic_iqa_local.nodes.prompts import earlier_lines, planner_prompt
from agentic_iqa_local.nodes.query import (
    asks_about_damage,
    asks_for_rating,
    distortions_in,
    named_metrics,
    region_in,
)
from agentic_iqa_local.nodes.regions import ROLE, found_boxes, placed, with_boxes
from agentic_iqa_local.nodes.replanning import gaps_to_close
from agentic_iqa_local.nodes.replies import PlannerReply
from agentic_iqa_local.nodes.workbench import Workbench, opened
from agentic_iqa_local.state import (
    AgenticIQAState,
    Gap,
    PlanControlFlags,
    PlannerOutput,
    revised,
)
from agentic_iqa_local.vlm_client import VLMError

logger = logging.getLogger(__name__)


def derive_flags(
    query_type: str, query_scope: list[str] | str, distortion_source: str, required_tool: str | None
) -> PlanControlFlags:
    """The Executor's switches by the paper's rules. Other: everything off. IQA: analysis on,
    detection when the distortions are to be inferred; tools are selected when the query names
    neither a region nor a tool, and executed when it names a tool or no region."""
    if query_type != "IQA":
        return PlanControlFlags()
    whole, tool = query_scope == "Global", required_tool is not None
    return PlanControlFlags(
        distortion_detection=distortion_source == "Inferred",
        distortion_analysis=True,
        tool_selection=whole and not tool,
        tool_execution=whole or tool,
    )


def flags_against(gaps: Sequence[Gap], flags: PlanControlFlags) -> PlanControlFlags:
    """The flags, with the parts on that can close the gaps of the last pass."""
    kinds = {gap.kind for gap in gaps}
    closing = {
        "distortion_detection": {"contradiction"},
        "distortion_analysis": {"analysis", "contradiction", "severity"},
        "tool_execution": {"scores", "contradiction", "tools"},
    }
    return revised(flags, **{part: True for part, closed in closing.items() if kinds & closed})


def correct_plan(
    made: PlannerOutput,
    query: str,
    has_reference: bool,
    before: PlannerOutput | None = None,
    choices: Sequence[str] = (),
    boxes: Mapping[str, Box] | None = None,
) -> PlannerOutput:
    """The plan that the model made, with its derivable fields set by rule.

    Args:
        made: The model's plan.
        query: The question, whose own words win.
        has_reference: Whether a reference is given.
        before: On a replan the last pass's plan: its type and regions stay, and the model may
            add distortions.
        choices: Answers to choose from. If they name distortions, the question is about quality.
        boxes: Where regions lie. Tools are chosen for these, and run.
    """
    plans = [before, made] if before else [made]
    regions = _regions(plans, query, boxes)
    scope: Any = list(regions) or "Global"
    facts = {
        "query_scope": scope,
        "reference_mode": "Full-Reference" if has_reference else "No-Reference",
    }
    if not is_about_quality(plans, query, has_reference, choices):
        nothing = {"distortion_source": "Inferred", "distortions": None, "required_tool": None}
        return revised(made, query_type="Other", plan=PlanControlFlags(), **facts, **nothing)
    kinds = distortions_in(query)
    source = "Explicit" if kinds else "Inferred"
    tool = next(iter(named_metrics(query, has_reference)), None)
    if before:
        kinds = list(dict.fromkeys([*kinds, *itertools.chain(*(made.distortions or {}).values())]))
    return revised(
        made,
        query_type="IQA",
        distortion_source=source,
        distortions=dict.fromkeys(regions or ["Global"], kinds) if kinds else None,
        required_tool=tool,
        plan=_flags(scope, source, tool, any(regions.values())),
        **facts,
    )


def is_about_quality(
    plans: Sequence[PlannerOutput], query: str, has_reference: bool, choices: Sequence[str]
) -> bool:
    """Whether a model planned so, the query wants a rating, or it or the choices name a tool or a
    distortion."""
    planned = any(plan.query_type == "IQA" for plan in plans)
    named = named_metrics(query, has_reference) or asks_about_damage(query)
    return bool(planned or named or asks_for_rating(query) or families_named(choices))


def _regions(
    plans: Sequence[PlannerOutput], query: str, boxes: Mapping[str, Box] | None
) -> dict[str, Box | None]:
    """The regions that the query names or the user marked, each with its box if there is one."""
    names = [region_in(query, name) for plan in plans for name in plan.objects]
    return with_boxes(dict.fromkeys(filter(None, names)), boxes or {})


def _flags(scope: Any, source: str, tool: str | None, boxed: bool) -> PlanControlFlags:
    """The paper's flags; and tools measure a region that has a box."""
    flags = derive_flags("IQA", scope, source, tool)
    measurable = scope == "Global" or boxed
    return revised(
        flags,
        tool_selection=measurable and not tool,
        tool_execution=flags.tool_execution or measurable,
    )


def corrections(made: PlannerOutput, corrected: PlannerOutput) -> list[str]:
    """A line for each field in which the corrected plan differs from what the model made."""
    old, new = made.model_dump(), corrected.model_dump()
    return [f"{name}: {old[name]} → {new[name]}" for name in old if old[name] != new[name]]


def planner_node(
    state: AgenticIQAState,
    config: RunnableConfig | None = None,
    runtime: Runtime[Any] | None = None,
) -> dict[str, Any]:
    """Returns `plan`, `plan_corrections` and, where the place of a region is known, `box`; or
    `error` when no valid plan could be had."""
    try:
        with opened(state, config, runtime) as bench:
            return _planned(state, bench)
    except (VLMError, OSError, ValueError) as error:
        reason = one_line(str(error))
        logger.error("Planner failed: %s", reason)
        return {"error": f"Planner: {reason}"}


def _planned(state: AgenticIQAState, bench: Workbench) -> dict[str, Any]:
    """The changes of the state by a plan that the model makes. Raises VLMError."""
    query, choices = state["query"], state.get("choices") or []
    has_reference = bool(state.get("reference_path"))
    gaps = gaps_to_close(state)
    last_pass = state if gaps else {}
    before, evidence = last_pass.get("plan"), last_pass.get("executor_evidence")
    prompt = planner_prompt(
        query,
        has_reference,
        choices,
        state.get("replan_history", []),
        before,
        evidence,
        earlier_lines(state.get("prior_context")),
    )
    reply = ask(bench.models.session(ROLE), prompt, PlannerReply, bench.services.section(ROLE))
    made = PlannerOutput.model_validate(reply.model_dump(by_alias=True))

    boxes = boxes_of(state.get("box"))
    if not gaps:  # a replan has the boxes of the first pass
        boxes = _located(made, boxes, state, bench)
    plan = correct_plan(made, query, has_reference, before, choices, boxes)
    lines = corrections(made, plan)
    if lines:
        logger.info("Plan corrected by rule: %s", one_line("; ".join(lines)))
    if plan.query_type == "IQA":
        plan = revised(plan, plan=flags_against(gaps, plan.plan))
    logger.info("Plan: %s", one_line(plan.model_dump_json()))
    changes: dict[str, Any] = {"plan": plan, "plan_corrections": lines}
    if boxes:
        changes["box"] = box_text(boxes)
    return changes


def _located(
    made: PlannerOutput, boxes: Mapping[str, Box], state: AgenticIQAState, bench: Workbench
) -> dict[str, Box]:
    """The boxes of a plan's regions: the user's; of those that are named by their place; and for the
    rest those that the model writes of a question about quality."""
    query = state["query"]
    located, missing = dict[str, Box](), []
    for name, box in _regions([made], query, boxes).items():
        place = placed(name, bench.pictures.content)
        if box is None and place is not None and bench.pictures.holds(place):
            box = place
        if box is None:
            missing.append(name)
        else:
            located[name] = box
    if is_about_quality([made], query, bench.pictures.has_reference, state.get("choices") or []):
        located |= found_boxes(query, missing, bench)
    return located
