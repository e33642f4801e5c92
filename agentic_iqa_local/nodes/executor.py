"""The Executor: the plan's subtasks in order — detection, analysis, tool selection, tool execution — as
evidence. Each runs only if its flag is on; what was found stays in the evidence even when a later subtask
fails.
"""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.detection import detect, found_families, severity_probabilities
from agentic_iqa_local.nodes.evidence import by_object, doubts, mark_votes, open_severities
from agentic_iqa_local.nodes.prompts import Prompt, analysis_prompt, location_prompt
from agentic_iqa_local.nodes.query import asks_where
from agentic_iqa_local.nodes.replanning import gaps_to_close
from agentic_iqa_local.nodes.replies import analysis_reply, location_reply
from agentic_iqa_local.nodes.tool_runs import Gathering, choose_tools, find_damaged_part, run_tools
from agentic_iqa_local.nodes.workbench import Box, Context, OpenImages, opened
from agentic_iqa_local.score_fusion import letter_probabilities
from agentic_iqa_local.state import (
    AgenticIQAState,
    Detection,
    DistortionAnalysis,
    ExecutorOutput,
    PlannerOutput,
    Severity,
)
from agentic_iqa_local.vlm_client import VLMError

logger = logging.getLogger(__name__)

ROLE = "executor"
SEVERITIES = get_args(Severity)
SEVERITY_VALUE = re.compile(r'"severity": "')
COORDINATES = {"pixels": "pixels of the image", "thousandths": "thousandths of the image's width and height"}
CARRIED = (  # what a pass that closes a gap starts from, by object
    "distortion_set", "detection", "distortion_analysis", "severity_probabilities", "selected_tools", "quality_scores",
    "boxes",
)  # fmt: skip

ByObject = dict[str, list[str]]  # {object: [distortion]}


def executor_node(
    state: AgenticIQAState,
    config: RunnableConfig | None = None,
    runtime: Runtime[Context] | None = None,
) -> dict[str, Any]:
    """Returns `executor_evidence`; nothing when an earlier node failed, and an `error` inside the evidence
    when this one does."""
    if state.get("error"):
        return {}
    if (plan := state.get("plan")) is None:
        return {"error": "Executor: the state has no plan; the Planner must run first"}
    gaps, before = gaps_to_close(state), state.get("executor_evidence")
    evidence = _earlier_evidence(plan, before) if gaps and before else ExecutorOutput()
    try:
        with opened(state, config, runtime) as images:
            gather(Gathering(evidence, state["query"], plan, images, gaps))
    except (InvalidAnswer, ToolError, VLMError, OSError, ValueError) as error:
        evidence.error = one_line(str(error))
        logger.error("Executor failed: %s", evidence.error)
    analysed = sum(map(len, by_object(evidence, "distortion_analysis").values()))
    logger.info("Evidence: %d distortions analysed, %d tool runs", analysed, len(evidence.tool_logs))
    return {"executor_evidence": ExecutorOutput.model_validate(evidence.model_dump())}


def _earlier_evidence(plan: PlannerOutput, earlier: ExecutorOutput) -> ExecutorOutput:
    """What earlier passes found about the objects of `plan`."""

    def kept(part: str) -> Any:
        return {name: of for name, of in by_object(earlier, part).items() if name in plan.objects} or None

    logs = [log.model_copy() for log in earlier.tool_logs if log.object_name in plan.objects]
    return ExecutorOutput(**{part: kept(part) for part in CARRIED}, tool_logs=logs)


def gather(task: Gathering) -> None:
    """Fills the task's evidence in place, subtask by subtask, so that what was found stays when a later one
    fails.

    With gaps it holds what earlier passes found: only what is missing or in doubt is asked for again, with
    the reason, and one more tool measures where scores contradict each other, the analysis or the letters.
    """
    evidence, plan, images = task.evidence, task.plan, task.images
    if plan.plan.distortion_analysis or plan.plan.tool_execution:
        find_boxes(task)
    distortions = find_distortions(task)
    unjudged = _to_judge(task, distortions)
    with ThreadPoolExecutor(1) as background:  # the tools measure while the model writes its analysis
        measuring = None
        try:
            measuring = _start_tools(task, distortions, background)
        finally:
            if plan.plan.distortion_analysis:
                analyse(task, distortions, unjudged)
        if measuring is not None:
            measuring.result()
    # Tools that a query names all have a vote; one that a replan adds is like any other.
    if plan.required_tool is None or (task.gaps and not task.named_metrics):
        reachable = {name: fitted.reachable for name, fitted in images.services.tools.maps.items()}
        only_check = images.services.settings.fusion.trailing_tools == "check"
        mark_votes(evidence, reachable, trailing_only_check=only_check)
    if asks_where(task.query):
        evidence.damaged_part = find_damaged_part(images)
    evidence.worst_part = images.find_worst_part()
    evidence.uncertainty = doubts(evidence)


def _start_tools(
    task: Gathering, distortions: ByObject, background: ThreadPoolExecutor
) -> Future[None] | None:
    """Chooses the tools and has them run in the `background`; None where none is to run."""
    if not (chosen := choose_tools(task, distortions)):
        return None
    selected = by_object(task.evidence, "selected_tools")
    task.evidence.selected_tools = {
        name: selected.get(name, {}) | chosen.get(name, {}) for name in distortions
    }
    if not task.plan.plan.tool_execution:
        return None
    task.images.services.tools.prepare()
    return background.submit(copy_context().run, run_tools, task.evidence, chosen, task.images)


def find_distortions(task: Gathering) -> ByObject:
    """By object, the distortions that the query names, those of earlier passes, and those that are now
    detected. Of those that the query names it is read whether they are there."""
    evidence, objects, named = task.evidence, task.plan.objects, task.plan.distortions or {}
    earlier, known = by_object(evidence, "distortion_set"), by_object(evidence, "detection")
    unread = not set(objects) <= known.keys()
    look = task.plan.plan.distortion_detection and (unread or task.closes("contradiction", "executor"))
    detected: ByObject = {}
    if look or (named and unread):
        boxes = by_object(evidence, "boxes")
        found = detect(task.query, objects, boxes, task.images, task.reason, None if look else named)
        evidence.detection = known | found
        detected = {name: found_families(detection) for name, detection in found.items()} if look else {}
    parts = (named, earlier, detected)
    distortions = {
        name: list(dict.fromkeys(kind for part in parts for kind in part.get(name, []))) for name in objects
    }
    if look or earlier:
        evidence.distortion_set = distortions
    return distortions


def _to_judge(task: Gathering, distortions: ByObject) -> ByObject:
    """By object, the distortions that were not judged yet or whose severity is open; all of them where the
    evidence contradicts itself."""
    if task.closes("contradiction"):
        return distortions
    in_doubt = open_severities(task.evidence)
    settled = {
        name: {item.type for item in items if item not in in_doubt.get(name, [])}
        for name, items in by_object(task.evidence, "distortion_analysis").items()
    }
    return {
        name: [kind for kind in types if kind not in settled.get(name, ())]
        for name, types in distortions.items()
    }


def analyse(task: Gathering, distortions: ByObject, unjudged: ByObject) -> None:
    """Puts the model's judgement of each of the `unjudged` distortions into the evidence, beside what is
    known of the others, and how probable it finds each severity; nothing is asked about objects without any.
    Raises InvalidAnswer, VLMError."""
    evidence, asked = task.evidence, {name: types for name, types in unjudged.items() if types}
    known = {
        name: {item.type: item for item in items}
        for name, items in by_object(evidence, "distortion_analysis").items()
    }
    probable = by_object(evidence, "severity_probabilities")
    for name, kind, item, p in _judged(task, asked) if asked else ():
        known.setdefault(name, {})[kind] = item
        probable.setdefault(name, {}).pop(kind, None)
        if p:
            probable[name][kind] = p
    evidence.severity_probabilities = {name: found for name, found in probable.items() if found} or None
    evidence.distortion_analysis = {
        name: [known[name][kind] for kind in types if kind in known.get(name, {})]
        for name, types in distortions.items()
    }


def _judged(
    task: Gathering, asked: ByObject
) -> Iterator[tuple[str, str, DistortionAnalysis, dict[str, float] | None]]:
    """(object, distortion, the model's judgement, how probable each severity is)."""
    prompt, section = analysis_prompt(task.query, asked, task.reason), task.images.services.section(ROLE)
    reply = ask(task.images.session(ROLE), prompt, analysis_reply(asked), section)
    written = reply.model_dump(by_alias=True)
    words = read_severities(prompt, written, task.images)
    for name, items in written.items():
        detection = by_object(task.evidence, "detection").get(name)
        for item in items:
            kind = item["type"]
            p = severity_probabilities(detection, item, words.get(name, {}).get(kind), task.images)
            yield name, kind, DistortionAnalysis(**_with_severity(item, p, detection)), p


def _with_severity(
    item: dict[str, Any], probabilities: dict[str, float] | None, detection: Detection | None
) -> dict[str, Any]:
    """The model's judgement with its likeliest severity; an explanation of another severity gives way to what
    was measured."""
    likeliest = max(probabilities, key=probabilities.__getitem__) if probabilities else item["severity"]
    if detection is None or likeliest == item["severity"]:
        return item
    family = detection.families[item["type"]]
    reading = f"it is there with probability {family.probability:.2f}"
    if likeliest != "none" and family.severity is not None:
        reading = f"{detection.tool} reads severity {family.severity:.1f} of 5"
    wrote = f"; the model wrote {item['severity']}" if detection.model_trust else ""
    return item | {"severity": likeliest, "explanation": f"{reading}{wrote}."}


def read_severities(
    prompt: Prompt, judged: dict[str, Sequence[dict[str, Any]]], images: OpenImages
) -> dict[str, dict[str, dict[str, float]]]:
    """How probable the model finds each severity where it wrote one, {object: {distortion: {severity: p}}}.
    Nothing in modes without logits, and where severities begin with the same token."""
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


def find_boxes(task: Gathering) -> None:
    """Adds the boxes of regions that have none yet, where the model gives any; without a box tools see the
    whole image."""
    known = by_object(task.evidence, "boxes")
    wanted = [name for name in task.plan.objects if name != "Global" and known.get(name) is None]
    if wanted and box_style(task.images) != "none":
        boxes = locate(wanted, task.images, task.reason)
        task.evidence.boxes = known | {name: boxes.get(name) for name in wanted}


def box_style(images: OpenImages) -> str:
    """How the Executor's model gives boxes; "none" where it does not."""
    return images.services.settings.model(images.services.section(ROLE).backend).boxes


def locate(objects: list[str], images: OpenImages, reason: str | None = None) -> dict[str, Box]:
    """Boxes in pixels of the whole image, where the model finds usable ones."""
    style, session, view = box_style(images), images.session(ROLE), images.views(ROLE)[0].box
    prompt = location_prompt(objects, COORDINATES[style], reason)
    try:
        reply = ask(session, prompt, location_reply(objects), images.services.section(ROLE))
    except InvalidAnswer as error:
        logger.warning("No box for %s: %s", one_line(", ".join(objects)), error)
        return {}
    seen = session.seen[-1]
    scale_x, scale_y = (1000, 1000) if style == "thousandths" else (seen.width, seen.height)
    width, height = view[2] - view[0], view[3] - view[1]
    boxes = {}
    for name, (left, top, right, bottom) in filter(
        lambda one: one[1], reply.model_dump(by_alias=True).items()
    ):
        box = (
            view[0] + round(left * width / scale_x),
            view[1] + round(top * height / scale_y),
            min(view[2], view[0] + round(right * width / scale_x)),
            min(view[3], view[1] + round(bottom * height / scale_y)),
        )
        if min(box[2] - box[0], box[3] - box[1]) >= images.services.settings.images.min_side:
            boxes[name] = box
    return boxes
