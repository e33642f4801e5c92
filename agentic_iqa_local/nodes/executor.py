"""The Executor: gathers the evidence that the plan asks for. Four subtasks, each only if its flag is on."""

import json
import logging
import re
import time
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.evidence import disagreement, doubts, open_severities, outvoted, unexplained
from agentic_iqa_local.iqa_tools import ToolError, ToolInfo, find_tool
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.levels import OVERALL, Severity
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.replies import analysis_reply, detection_reply, location_reply, selection_reply
from agentic_iqa_local.prompts import (
    Prompt,
    analysis_prompt,
    detection_prompt,
    location_prompt,
    selection_prompt,
)
from agentic_iqa_local.query import asks_where, named_tools
from agentic_iqa_local.replanning import gaps_to_close
from agentic_iqa_local.score_fusion import letter_probabilities
from agentic_iqa_local.state import (
    AgenticIQAState,
    DistortionAnalysis,
    ExecutorOutput,
    Gap,
    PlannerOutput,
    ToolExecutionLog,
)
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import VLMError
from agentic_iqa_local.workbench import Box, Context, OpenImages, opened

logger = logging.getLogger(__name__)

ROLE = "executor"
SEVERITIES = get_args(Severity)
ANOTHER_TOOL = ("scores", "contradiction", "tools", "letters")  # kinds of gaps that another opinion may close
SEVERITY_VALUE = re.compile(r'"severity": "')
COORDINATES = {"pixels": "pixels of the image", "thousandths": "thousandths of the image's width and height"}


def tool_line(reference: str, good_for: tuple[str, ...], reliability: str = "") -> str:
    """How a tool is described to the model that chooses among tools."""
    kind = "full-reference" if reference == "FR" else "no-reference"
    return "; ".join(filter(None, (kind, ", ".join(good_for) or "any distortion", reliability)))


def executor_node(
    state: AgenticIQAState,
    config: RunnableConfig | None = None,
    runtime: Runtime[Context] | None = None,
) -> dict[str, Any]:
    """Returns `executor_evidence`; nothing when an earlier node failed, and an `error` inside the evidence
    when this one does."""
    if state.get("error"):
        return {}
    if "plan" not in state:
        return {"error": "Executor: the state has no plan; the Planner must run first"}
    plan, gaps = state["plan"], gaps_to_close(state)
    evidence = earlier_evidence(state) if gaps else ExecutorOutput()
    try:
        with opened(state, config, runtime) as images:
            gather(evidence, state["query"], plan, images, gaps)
    except (InvalidAnswer, ToolError, VLMError, OSError, ValueError) as error:
        evidence.error = one_line(str(error))
        logger.error("Executor failed: %s", evidence.error)
    logger.info(
        "Evidence: %d distortions analysed, %d tool runs",
        sum(len(items) for items in (evidence.distortion_analysis or {}).values()),
        len(evidence.tool_logs),
    )
    return {"executor_evidence": ExecutorOutput.model_validate(evidence.model_dump())}


def earlier_evidence(state: AgenticIQAState) -> ExecutorOutput:
    """What earlier passes found about the objects of the present plan: a pass that closes a gap starts from
    it."""
    objects, earlier = state["plan"].objects, state.get("executor_evidence") or ExecutorOutput()

    def kept(part: dict[str, Any] | None) -> dict[str, Any] | None:
        return {name: found for name, found in part.items() if name in objects} or None if part else None

    return ExecutorOutput(
        distortion_set=kept(earlier.distortion_set),
        distortion_analysis=kept(earlier.distortion_analysis),
        severity_probabilities=kept(earlier.severity_probabilities),
        selected_tools=kept(earlier.selected_tools),
        quality_scores=kept(earlier.quality_scores),
        tool_logs=[log.model_copy() for log in earlier.tool_logs if log.object_name in objects],
        boxes=kept(earlier.boxes),
    )


def gather(
    evidence: ExecutorOutput, query: str, plan: PlannerOutput, images: OpenImages, gaps: Sequence[Gap] = ()
) -> None:
    """Fills `evidence` in place, subtask by subtask, so that what was found stays when a later one fails.

    With `gaps` it holds what earlier passes found: only what is missing or in doubt is asked for again, with
    the reason, and one more tool measures where scores contradict each other, the analysis or the letters.
    """
    flags = plan.plan
    reason = gaps[0].reason if gaps else None
    distortions = find_distortions(evidence, query, plan, images, gaps)
    unjudged = to_judge(evidence, distortions, anew=any(gap.kind == "contradiction" for gap in gaps))
    with ThreadPoolExecutor(1) as background:  # the tools measure while the model writes its analysis
        measured = None
        try:
            if flags.tool_execution:
                find_boxes(evidence, [name for name in distortions if name != "Global"], images, reason)
            chosen = choose_tools(evidence, query, plan, distortions, images, gaps)
            if chosen:
                evidence.selected_tools = {
                    name: (evidence.selected_tools or {}).get(name, {}) | chosen.get(name, {})
                    for name in distortions
                }
            if flags.tool_execution and chosen:
                images.services.tools.prepare()
                measured = background.submit(copy_context().run, run_tools, evidence, chosen, images)
        finally:
            if flags.distortion_analysis:
                evidence.distortion_analysis = analyse(evidence, query, distortions, unjudged, images, reason)
        if measured is not None:
            measured.result()
    if evidence.quality_scores and plan.required_tool is None:  # tools that a query names all have a vote
        reachable = {name: fitted.reachable for name, fitted in images.services.tools.maps.items()}
        mark_votes(evidence, reachable, checks=images.services.settings.fusion.trailing_tools == "check")
        evidence.disagreement = disagreement(evidence, reachable)
    if flags.distortion_detection and not gaps:
        look_twice(evidence, query, images)
    if asks_where(query):
        evidence.damaged_part = find_damaged_part(images)
    evidence.uncertainty = doubts(evidence)


def find_distortions(
    evidence: ExecutorOutput, query: str, plan: PlannerOutput, images: OpenImages, gaps: Sequence[Gap]
) -> dict[str, list[str]]:
    """By object, the distortions that the query names, those of earlier passes, and those that the model now
    detects."""
    earlier = evidence.distortion_set or {}
    named = plan.distortions or {}
    look = plan.plan.distortion_detection and (
        not gaps
        or any(gap.kind in ("contradiction", "executor") for gap in gaps)
        or any(name not in earlier for name in plan.objects)
    )
    detected: dict[str, list[str]] = {}
    if look:
        detected = detect(query, plan.objects, images, gaps[0].reason if gaps else None)
    found = {
        name: list(dict.fromkeys([*named.get(name, []), *earlier.get(name, []), *detected.get(name, [])]))
        for name in plan.objects
    }
    if look or earlier:
        evidence.distortion_set = found
    return found


def detect(query: str, objects: list[str], images: OpenImages, reason: str | None) -> dict[str, list[str]]:
    """The distortions that the model sees of each object; `reason` says why it is asked again. Raises
    InvalidAnswer, VLMError."""
    prompt = detection_prompt(query, objects, reason)
    reply = ask(images.session(ROLE), prompt, detection_reply(objects), images.services.section(ROLE))
    return reply.model_dump(by_alias=True)


def look_twice(evidence: ExecutorOutput, query: str, images: OpenImages) -> None:
    """Looks once more for distortions of what the tools find flawed and the analysis does not, and judges
    those that are new."""
    if not (missed := unexplained(evidence)):
        return
    logger.info("Looking for distortions once more: %s", one_line("; ".join(missed.values())))
    try:
        detected = detect(query, list(missed), images, "; ".join(missed.values()))
    except InvalidAnswer as error:
        logger.info("The second look gave nothing: %s", error)
        return
    for name, types in detected.items():
        known = (evidence.distortion_set or {}).get(name, [])
        evidence.distortion_set = (evidence.distortion_set or {}) | {
            name: list(dict.fromkeys([*known, *types]))
        }
    distortions = {name: evidence.distortion_set.get(name, []) for name in evidence.distortion_analysis}
    evidence.distortion_analysis = analyse(
        evidence, query, distortions, to_judge(evidence, distortions, anew=False), images, None
    )


def to_judge(evidence: ExecutorOutput, distortions: dict[str, list[str]], anew: bool) -> dict[str, list[str]]:
    """By object, the distortions that were not judged yet or whose severity is open; all of them where
    `anew`."""
    in_doubt = open_severities(evidence)
    settled = {
        name: {item.type for item in items if item not in in_doubt.get(name, [])}
        for name, items in (evidence.distortion_analysis or {}).items()
    }
    return {
        name: [kind for kind in types if anew or kind not in settled.get(name, set())]
        for name, types in distortions.items()
    }


def choose_tools(
    evidence: ExecutorOutput,
    query: str,
    plan: PlannerOutput,
    distortions: dict[str, list[str]],
    images: OpenImages,
    gaps: Sequence[Gap],
) -> dict[str, dict[str, str]]:
    """{object: {distortion: tool}}: what is to run now. Raises ToolError when no tool can run."""
    flags = plan.plan
    if not (flags.tool_selection or flags.tool_execution):
        return {}
    lacking = {name: types for name, types in distortions.items() if _is_unmeasured(evidence, name)}
    if plan.required_tool is not None:
        others = [
            tool for tool in named_tools(query, images.reference is not None) if tool != plan.required_tool
        ]
        return {
            name: (
                dict.fromkeys(types or [OVERALL], plan.required_tool)
                | {f"{OVERALL} ({tool})": tool for tool in others}
            )
            for name, types in lacking.items()
        }
    chosen: dict[str, dict[str, str]] = {}
    if lacking:
        selected = (
            select_tools(query, lacking, images) if flags.tool_selection else {name: {} for name in lacking}
        )
        chosen = with_panel(selected, images)
    if flags.tool_execution and any(gap.kind in ANOTHER_TOOL for gap in gaps):
        for name in distortions:
            if name not in lacking and (another := another_tool(evidence, name, images)):
                chosen[name] = {f"{OVERALL} ({another})": another}
    return chosen


def _is_unmeasured(evidence: ExecutorOutput, name: str) -> bool:
    """Whether no tool was tried on an object, or only on the whole picture before its box was found."""
    return all(log.object_name != name or _precedes_box(log, evidence) for log in evidence.tool_logs)


def _precedes_box(log: ToolExecutionLog, evidence: ExecutorOutput) -> bool:
    return log.region == "global" and (evidence.boxes or {}).get(log.object_name) is not None


def another_tool(evidence: ExecutorOutput, name: str, images: OpenImages) -> str | None:
    """The best tool that has not been tried on an object; None where all have."""
    tried = {log.tool_name for log in evidence.tool_logs if log.object_name == name}
    trusted, others = ranked_tools(images)
    return next((tool.name for tool in (*trusted, *others) if tool.name not in tried), None)


def analyse(
    evidence: ExecutorOutput,
    query: str,
    distortions: dict[str, list[str]],
    unjudged: dict[str, list[str]],
    images: OpenImages,
    reason: str | None,
) -> dict[str, list[DistortionAnalysis]]:
    """The model's judgement of each of the `unjudged` distortions, and what is known of the others; nothing
    is asked about objects without any."""
    asked = {name: types for name, types in unjudged.items() if types}
    judged: dict[str, Any] = {}
    if asked:
        role = images.services.section(ROLE)
        prompt = analysis_prompt(query, asked, reason)
        reply = ask(images.session(ROLE), prompt, analysis_reply(asked), role)
        judged = reply.model_dump(by_alias=True)
        before, read = evidence.severity_probabilities or {}, read_severities(prompt, judged, images)
        evidence.severity_probabilities = {
            name: (
                {kind: p for kind, p in before.get(name, {}).items() if kind not in asked.get(name, [])}
                | read.get(name, {})
            )
            for name in before.keys() | read.keys()
        } or None
    new = ExecutorOutput.model_validate({"distortion_analysis": judged}).distortion_analysis
    analysis = {}
    for name, types in distortions.items():
        known = {item.type: item for item in (evidence.distortion_analysis or {}).get(name, [])}
        known |= {item.type: item for item in new.get(name, [])}
        analysis[name] = [known[kind] for kind in types if kind in known]
    return analysis


def read_severities(
    prompt: Prompt, judged: dict[str, Sequence[dict[str, Any]]], images: OpenImages
) -> dict[str, dict[str, dict[str, float]]]:
    """How probable the model finds each severity where it wrote one, {object: {distortion: {severity: p}}}.
    Nothing in modes without logits, and where a severity is not told apart from the others by its first
    token."""
    client, session = images.services.client(ROLE), images.session(ROLE)
    if images.services.settings.fusion.mode != "logits" or not getattr(client, "reads_words", False):
        return {}
    written = json.dumps(judged, ensure_ascii=False)
    places = [match.end() for match in SEVERITY_VALUE.finditer(written)]
    items = [(name, item["type"]) for name, items in judged.items() for item in items]
    found: dict[str, dict[str, dict[str, float]]] = {}
    # the last first: each cuts the cache shorter
    for (name, kind), place in reversed(list(zip(items, places, strict=True))):
        try:
            read = session.read_letters(prompt, written[:place], SEVERITIES)
        except VLMError as error:
            logger.info("Severities were not read: %s", one_line(str(error)))
            return {}
        found.setdefault(name, {})[kind] = letter_probabilities(read.logprobs)
    return found


def ranked_tools(images: OpenImages) -> tuple[list[ToolInfo], list[ToolInfo]]:
    """The tools that can run on these images: those that are not clearly worse than another, and the others,
    each best first; between equals the configuration's favourites come first. Raises ToolError when there are
    none."""
    full_reference = images.reference is not None
    settings = images.services.settings.tools
    favourites = settings.full_reference if full_reference else settings.no_reference
    tools = {
        t.name: t
        for t in images.services.tools.available(full_reference)
        if t.name not in settings.not_offered
    }
    if full_reference:  # a tool that compares beats one that has to guess what was there
        tools = {name: t for name, t in tools.items() if t.reference == "FR"} or tools
    if not tools:
        raise ToolError(
            "no IQA tool can run on these images: see the tools listed as unavailable and their reasons"
        )
    names = sorted(tools, key=lambda name: favourites.index(name) if name in favourites else len(favourites))
    reliability = load_reliability()
    trusted = reliability.trusted(names)
    others = reliability.trailing([name for name in names if name not in trusted], trusted[0])
    return [tools[name] for name in trusted], [tools[name] for name in others]


def listed_tools(images: OpenImages) -> list[ToolInfo]:
    """What the model may choose from: the tools that are not clearly worse than another, best first. Raises
    ToolError."""
    return ranked_tools(images)[0]


def default_tool(images: OpenImages) -> str:
    """The tool that stands in where none was chosen. Raises ToolError when no tool can run."""
    return listed_tools(images)[0].name


def panel(images: OpenImages) -> list[str]:
    """The tools that vote on every picture beside the chosen ones: those of the configuration that can run,
    else the best."""
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


def find_damaged_part(images: OpenImages) -> str | None:
    """Where LocalNR's map has damage; None where it has none, or cannot be made."""
    try:
        return images.services.tools.damaged_part(images.image.pixels)
    except ToolError as error:
        images.warn(f"where the damage lies was not measured: {one_line(str(error))}")
        return None


def select_tools(
    query: str, distortions: dict[str, list[str]], images: OpenImages
) -> dict[str, dict[str, str]]:
    """The model's choice of a tool for each distortion, among those that are listed; one alone is no
    choice."""
    tools, reliability = listed_tools(images), load_reliability()
    if len(tools) == 1:
        return {name: dict.fromkeys(types or [OVERALL], tools[0].name) for name, types in distortions.items()}
    lines = [(t.name, tool_line(t.reference, t.good_for, reliability.summary(t.name))) for t in tools]
    schema = selection_reply(distortions, [t.name for t in tools])
    try:
        reply = ask(
            images.session(ROLE),
            selection_prompt(query, distortions, lines),
            schema,
            images.services.section(ROLE),
        )
    except InvalidAnswer as error:
        images.warn(f"the model chose no tool ({error}); those of the configuration measured")
        return {name: {} for name in distortions}
    return reply.model_dump(by_alias=True)


def find_boxes(evidence: ExecutorOutput, objects: list[str], images: OpenImages, reason: str | None) -> None:
    """Adds the boxes of regions that have none yet, where the model gives any; without a box tools see the
    whole image."""
    wanted = [name for name in objects if (evidence.boxes or {}).get(name) is None]
    if wanted and box_style(images) != "none":
        found = locate(wanted, images, reason)
        evidence.boxes = (evidence.boxes or {}) | {name: found.get(name) for name in wanted}


def box_style(images: OpenImages) -> str:
    """How the Executor's model gives boxes; "none" where it does not."""
    return images.services.settings.model(images.services.section(ROLE).backend).boxes


def locate(objects: list[str], images: OpenImages, reason: str | None = None) -> dict[str, Box]:
    """Boxes in pixels of the whole image, where the model finds usable ones."""
    services, style = images.services, box_style(images)
    session, view = images.session(ROLE), images.views(ROLE)[0].box
    try:
        prompt = location_prompt(objects, COORDINATES[style], reason)
        reply = ask(session, prompt, location_reply(objects), services.section(ROLE))
    except InvalidAnswer as error:
        logger.warning("No box for %s: %s", one_line(", ".join(objects)), error)
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


def run_tools(evidence: ExecutorOutput, chosen: dict[str, dict[str, str]], images: OpenImages) -> None:
    """Runs the chosen tools and logs each run; a tool that cannot run is replaced by the default one, and
    marked so."""
    scores = dict(evidence.quality_scores or {})
    for name, tools in chosen.items():
        box = (evidence.boxes or {}).get(name)
        if any(log.object_name == name and _precedes_box(log, evidence) for log in evidence.tool_logs):
            evidence.tool_logs = [log for log in evidence.tool_logs if log.object_name != name]
            scores.pop(name, None)
        tried = {log.tool_name for log in evidence.tool_logs if log.object_name == name}
        for distortion, tool in tools.items():
            entry = run_tool(name, distortion, tool, box, images, tried)
            evidence.tool_logs += entry
            if entry[-1].normalized_score is not None:
                scores[name] = scores.get(name, {}) | {
                    distortion: (entry[-1].tool_name, entry[-1].normalized_score)
                }
    evidence.quality_scores = scores


def mark_votes(evidence: ExecutorOutput, reachable: dict[str, tuple[float, float]], checks: bool) -> None:
    """Takes the vote from tools that stand apart from all others on the same object and, with `checks`, from
    those that one of the others clearly leads."""
    for name, scores in (evidence.quality_scores or {}).items():
        measured = list(dict.fromkeys(scores.values()))
        alone = outvoted(measured, reachable)
        left = [tool for tool, _ in measured if tool not in alone]
        behind = load_reliability().clearly_worse(left) if checks else set()
        for log in evidence.tool_logs:
            if log.object_name == name:
                log.outvoted, log.trailing = log.tool_name in alone, log.tool_name in behind


def run_tool(
    name: str, distortion: str, tool: str, box: Box | None, images: OpenImages, tried: Container[str] = ()
) -> list[ToolExecutionLog]:
    """The runs of one entry: the chosen tool, and while that fails the ranked ones in their order but for
    those that were `tried` in an earlier pass; the last run counts."""
    first = _attempt(name, distortion, tool, box, images, fallback=False)
    if first.error is None:
        return [first]
    try:
        trusted, others = ranked_tools(images)
        stand_ins = [
            info.name
            for info in (*trusted, *others)
            if info.name != first.tool_name and info.name not in tried
        ]
    except ToolError:
        stand_ins = []
    logs = [first]
    while stand_ins and logs[-1].error is not None:
        logs.append(_attempt(name, distortion, stand_ins.pop(0), box, images, fallback=True))
    instead = f"{logs[-1].tool_name} ran instead" if logs[-1].error is None else "no other tool could either"
    images.warn(
        f"{first.tool_name} could not score {'the picture' if name == 'Global' else name}:"
        f" {first.error.rstrip('.')}; {instead}"
    )
    return logs


def _attempt(
    name: str, distortion: str, tool: str, box: Box | None, images: OpenImages, fallback: bool
) -> ToolExecutionLog:
    entry = ToolExecutionLog(
        tool_name=tool,
        object_name=name,
        distortion=distortion,
        fallback=fallback,
        region="crop" if box else "global",
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
