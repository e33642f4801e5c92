"""The Executor: gathers the evidence that the plan asks for. Four subtasks, each only if its flag is on."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from langchain_core.runnables import RunnableConfig

from agentic_iqa_local.iqa_tools import ToolError, ToolInfo, find_tool
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.levels import OVERALL
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.replies import analysis_reply, detection_reply, location_reply, selection_reply
from agentic_iqa_local.prompts import analysis_prompt, detection_prompt, location_prompt, selection_prompt
from agentic_iqa_local.query import named_tools
from agentic_iqa_local.services import Box, OpenImages, opened
from agentic_iqa_local.state import AgenticIQAState, DistortionAnalysis, ExecutorOutput, PlannerOutput, ToolExecutionLog
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import VLMError

logger = logging.getLogger(__name__)

ROLE = "executor"
COORDINATES = {"pixels": "pixels of the image", "thousandths": "thousandths of the image's width and height"}


def tool_line(reference: str, good_for: tuple[str, ...], reliability: str = "") -> str:
    """How a tool is described to the model that chooses among tools."""
    kind = "full-reference" if reference == "FR" else "no-reference"
    return "; ".join(filter(None, (kind, ", ".join(good_for) or "any distortion", reliability)))


def executor_node(state: AgenticIQAState, config: RunnableConfig | None = None) -> dict[str, Any]:
    """Returns `executor_evidence`; nothing when an earlier node failed, and an `error` inside the evidence when this one does."""
    if state.get("error"):
        return {}
    if "plan" not in state:
        return {"error": "Executor: the state has no plan; the Planner must run first"}
    evidence = ExecutorOutput()
    try:
        with opened(state, config) as images:
            gather(evidence, state["query"], state["plan"], images)
    except (InvalidAnswer, ToolError, VLMError, OSError, ValueError) as error:
        evidence.error = one_line(str(error))
        logger.error("Executor failed: %s", evidence.error)
    logger.info(
        "Evidence: %d distortions analysed, %d tool runs",
        sum(len(items) for items in (evidence.distortion_analysis or {}).values()),
        len(evidence.tool_logs),
    )
    return {"executor_evidence": ExecutorOutput.model_validate(evidence.model_dump())}


def gather(evidence: ExecutorOutput, query: str, plan: PlannerOutput, images: OpenImages) -> None:
    """Fills `evidence` in place, subtask by subtask, so that what was found stays when a later one fails."""
    flags, role = plan.plan, images.services.section(ROLE)
    distortions: dict[str, list[str]] = {name: (plan.distortions or {}).get(name, []) for name in plan.objects}

    if flags.distortion_detection:
        reply = ask(images.session(ROLE), detection_prompt(query, plan.objects), detection_reply(plan.objects), role)
        distortions = {name: list(dict.fromkeys(types)) for name, types in reply.model_dump(by_alias=True).items()}
        evidence.distortion_set = distortions

    with ThreadPoolExecutor(1) as background:  # the tools measure while the model writes its analysis
        try:
            if flags.tool_selection and plan.required_tool is None:
                evidence.selected_tools = with_panel(select_tools(query, distortions, images), images)
            elif flags.tool_selection or flags.tool_execution:
                first = plan.required_tool or default_tool(images)
                others = [tool for tool in named_tools(query, images.reference is not None) if tool != first]
                evidence.selected_tools = {
                    name: dict.fromkeys(types or [OVERALL], first) | {f"{OVERALL} ({tool})": tool for tool in others}
                    for name, types in distortions.items()
                }
            if flags.tool_execution and evidence.selected_tools:
                boxes = locate([name for name in evidence.selected_tools if name != "Global"], images)
                images.services.tools.prepare()
                measured = background.submit(copy_context().run, run_tools, evidence, boxes, images)
        finally:
            if flags.distortion_analysis:
                evidence.distortion_analysis = analyse(query, distortions, images)
        if flags.tool_execution and evidence.selected_tools:
            measured.result()


def analyse(query: str, distortions: dict[str, list[str]], images: OpenImages) -> dict[str, list[DistortionAnalysis]]:
    """The model's judgement of each distortion; nothing is asked about objects without any."""
    found = {name: types for name, types in distortions.items() if types}
    analysis: dict[str, Any] = {name: [] for name in distortions}
    if found:
        role = images.services.section(ROLE)
        reply = ask(images.session(ROLE), analysis_prompt(query, found), analysis_reply(found), role)
        analysis |= reply.model_dump(by_alias=True)
    return ExecutorOutput.model_validate({"distortion_analysis": analysis}).distortion_analysis


def ranked_tools(images: OpenImages) -> tuple[list[ToolInfo], list[ToolInfo]]:
    """The tools that can run on these images: those that are not clearly worse than another, best first, and the others; between
    equals the configuration's favourites come first. Raises ToolError when there are none."""
    full_reference = images.reference is not None
    settings = images.services.settings.tools
    favourites = settings.full_reference if full_reference else settings.no_reference
    tools = {t.name: t for t in images.services.tools.available(full_reference) if t.name not in settings.not_offered}
    if full_reference:  # a tool that compares beats one that has to guess what was there
        tools = {name: t for name, t in tools.items() if t.reference == "FR"} or tools
    if not tools:
        raise ToolError("no IQA tool can run on these images: see the tools listed as unavailable and their reasons")
    names = sorted(tools, key=lambda name: favourites.index(name) if name in favourites else len(favourites))
    trusted = load_reliability().trusted(names)
    return [tools[name] for name in trusted], [tools[name] for name in names if name not in trusted]


def listed_tools(images: OpenImages) -> list[ToolInfo]:
    """What the model may choose from: the tools that are not clearly worse than another, best first. Raises ToolError."""
    return ranked_tools(images)[0]


def default_tool(images: OpenImages) -> str:
    """The tool that stands in where none was chosen. Raises ToolError when no tool can run."""
    return listed_tools(images)[0].name


def panel(images: OpenImages) -> list[str]:
    """The tools that vote on every picture beside the chosen ones: those of the configuration that can run, else the best."""
    full_reference = images.reference is not None
    settings = images.services.settings.tools
    available = {tool.name for tool in images.services.tools.available(full_reference)}
    favourites = settings.full_reference if full_reference else settings.no_reference
    return [name for name in favourites if name in available] or [default_tool(images)]


def with_panel(selected: dict[str, dict[str, str]], images: OpenImages) -> dict[str, dict[str, str]]:
    """The chosen tools, and for each object those of the panel that were not chosen for it."""
    members = panel(images)
    return {
        name: chosen | {f"{OVERALL} ({tool})": tool for tool in members if tool not in chosen.values()}
        for name, chosen in selected.items()
    }


def select_tools(query: str, distortions: dict[str, list[str]], images: OpenImages) -> dict[str, dict[str, str]]:
    """The model's choice of a tool for each distortion, among those that are listed; one alone is no choice."""
    tools, reliability = listed_tools(images), load_reliability()
    if len(tools) == 1:
        return {name: dict.fromkeys(types or [OVERALL], tools[0].name) for name, types in distortions.items()}
    lines = [(t.name, tool_line(t.reference, t.good_for, reliability.summary(t.name))) for t in tools]
    schema = selection_reply(distortions, [t.name for t in tools])
    reply = ask(images.session(ROLE), selection_prompt(query, distortions, lines), schema, images.services.section(ROLE))
    return reply.model_dump(by_alias=True)


def locate(objects: list[str], images: OpenImages) -> dict[str, Box]:
    """Boxes in pixels of the whole image, where the model gives usable ones; the others' tools see the whole image."""
    services = images.services
    style = services.settings.model(services.section(ROLE).backend).boxes
    if style == "none" or not objects:
        return {}
    session, view = images.session(ROLE), images.views(ROLE)[0].box
    try:
        reply = ask(session, location_prompt(objects, COORDINATES[style]), location_reply(objects), services.section(ROLE))
    except InvalidAnswer as error:
        images.warn(f"no box for {', '.join(objects)}, tools see the whole image: {error}")
        return {}
    seen = session.seen[-1]
    scale_x, scale_y = (1000, 1000) if style == "thousandths" else (seen.width, seen.height)
    boxes = {}
    for name, box in reply.model_dump(by_alias=True).items():
        if box is None:
            continue
        left, top, right, bottom = box
        width, height = view[2] - view[0], view[3] - view[1]
        pixels = (
            view[0] + round(left * width / scale_x),
            view[1] + round(top * height / scale_y),
            min(view[2], view[0] + round(right * width / scale_x)),
            min(view[3], view[1] + round(bottom * height / scale_y)),
        )
        if min(pixels[2] - pixels[0], pixels[3] - pixels[1]) >= services.settings.images.min_side:
            boxes[name] = pixels
    return boxes


def run_tools(evidence: ExecutorOutput, boxes: dict[str, Box], images: OpenImages) -> None:
    """Runs the selected tools and logs each run; a tool that cannot run is replaced by the default one, and marked so."""
    scores: dict[str, dict[str, tuple[str, float]]] = {}
    for name, chosen in (evidence.selected_tools or {}).items():
        for distortion, tool in chosen.items():
            entry = run_tool(name, distortion, tool, boxes.get(name), images)
            evidence.tool_logs += entry
            if entry[-1].normalized_score is not None:
                scores.setdefault(name, {})[distortion] = (entry[-1].tool_name, entry[-1].normalized_score)
    evidence.quality_scores = scores


def run_tool(name: str, distortion: str, tool: str, box: Box | None, images: OpenImages) -> list[ToolExecutionLog]:
    """The runs of one entry: the chosen tool, and while that fails the ranked ones in their order; the last run counts."""
    first = _attempt(name, distortion, tool, box, images, fallback=False)
    if first.error is None:
        return [first]
    try:
        trusted, others = ranked_tools(images)
        stand_ins = [info.name for info in (*trusted, *others) if info.name != first.tool_name]
    except ToolError:
        stand_ins = []
    logs = [first]
    while stand_ins and logs[-1].error is not None:
        logs.append(_attempt(name, distortion, stand_ins.pop(0), box, images, fallback=True))
    instead = f"{logs[-1].tool_name} ran instead" if logs[-1].error is None else "no other tool could either"
    images.warn(
        f"{first.tool_name} could not score {'the picture' if name == 'Global' else name}: {first.error.rstrip('.')}; {instead}"
    )
    return logs


def _attempt(name: str, distortion: str, tool: str, box: Box | None, images: OpenImages, fallback: bool) -> ToolExecutionLog:
    entry = ToolExecutionLog(
        tool_name=tool, object_name=name, distortion=distortion, fallback=fallback, region="crop" if box else "global"
    )
    began = time.perf_counter()
    try:
        entry.tool_name = find_tool(tool).name
        reading = images.score(entry.tool_name, box)
    except ToolError as error:
        return entry.model_copy(update={"error": str(error), "execution_time": time.perf_counter() - began})
    return entry.model_copy(
        update={
            "raw_score": reading.raw,
            "normalized_score": reading.normalized,
            "execution_time": reading.seconds,
            "cached": reading.cached,
            "crops": len(reading.crops),
        }
    )
