"""The Executor: gathers the evidence that the plan asks for. Four subtasks, each only if its flag is on."""

import json
import logging
import re
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.judgement.quality_map import mapped
from agentic_iqa_local.levels import Severity
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.detection import detect, found_families, severity_probabilities
from agentic_iqa_local.nodes.evidence import doubts, open_severities
from agentic_iqa_local.nodes.prompts import (
    Prompt,
    analysis_prompt,
    location_prompt,
)
from agentic_iqa_local.nodes.query import asks_where, named_metrics
from agentic_iqa_local.nodes.replanning import gaps_to_close
from agentic_iqa_local.nodes.replies import analysis_reply, location_reply
from agentic_iqa_local.nodes.tool_choice import choose_tools
from agentic_iqa_local.nodes.tool_runs import count_votes, find_damaged_part, run_tools
from agentic_iqa_local.nodes.workbench import Box, Context, OpenImages, opened
from agentic_iqa_local.score_fusion import letter_probabilities
from agentic_iqa_local.state import (
    AgenticIQAState,
    Detection,
    DistortionAnalysis,
    ExecutorOutput,
    Gap,
    PlannerOutput,
)
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import VLMError

logger = logging.getLogger(__name__)

ROLE = "executor"
SEVERITIES = get_args(Severity)
SEVERITY_VALUE = re.compile(r'"severity": "')
COORDINATES = {"pixels": "pixels of the image", "thousandths": "thousandths of the image's width and height"}


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
    gaps = gaps_to_close(state)
    before = state.get("executor_evidence")
    evidence = earlier_evidence(plan, before) if gaps and before else ExecutorOutput()
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


def earlier_evidence(plan: PlannerOutput, earlier: ExecutorOutput) -> ExecutorOutput:
    """What earlier passes found about the objects of `plan`: a pass that closes a gap starts from
    it."""
    objects = plan.objects

    def kept(part: dict[str, Any] | None) -> dict[str, Any] | None:
        return {name: value for name, value in part.items() if name in objects} or None if part else None

    return ExecutorOutput(
        distortion_set=kept(earlier.distortion_set),
        detection=kept(earlier.detection),
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
    if flags.distortion_analysis or flags.tool_execution:
        find_boxes(evidence, [name for name in plan.objects if name != "Global"], images, reason_of(gaps))
    distortions = find_distortions(evidence, query, plan, images, gaps)
    unjudged = to_judge(evidence, distortions, anew=any(gap.kind == "contradiction" for gap in gaps))
    with ThreadPoolExecutor(1) as background:  # the tools measure while the model writes its analysis
        measuring = None
        try:
            measuring = start_tools(evidence, query, plan, distortions, images, gaps, background)
        finally:
            if flags.distortion_analysis:
                reason = reason_of(gaps)
                evidence.distortion_analysis = analyse(evidence, query, distortions, unjudged, images, reason)
        if measuring is not None:
            measuring.result()
    # Tools that a query names all have a vote; one that a replan adds is like any other.
    added = gaps and not named_metrics(query, images.reference is not None)
    if evidence.quality_scores and (plan.required_tool is None or added):
        count_votes(evidence, images)
    if asks_where(query):
        evidence.damaged_part = find_damaged_part(images)
    if (found := mapped(images).get("map")) and found.worst:
        evidence.worst_part = found.worst[0]
    evidence.uncertainty = doubts(evidence)


def reason_of(gaps: Sequence[Gap]) -> str | None:
    """Why the model is asked again; None in a first pass."""
    return gaps[0].reason if gaps else None


def start_tools(
    evidence: ExecutorOutput,
    query: str,
    plan: PlannerOutput,
    distortions: dict[str, list[str]],
    images: OpenImages,
    gaps: Sequence[Gap],
    background: Executor,
) -> Future[None] | None:
    """Chooses the tools and has them run in the `background`; None where none is to run. Raises ToolError,
    VLMError."""
    chosen = choose_tools(evidence, query, plan, distortions, images, gaps)
    if not chosen:
        return None
    selected = evidence.selected_tools or {}
    evidence.selected_tools = {name: selected.get(name, {}) | chosen.get(name, {}) for name in distortions}
    if not plan.plan.tool_execution:
        return None
    images.services.tools.prepare()
    return background.submit(copy_context().run, run_tools, evidence, chosen, images)


def find_distortions(
    evidence: ExecutorOutput, query: str, plan: PlannerOutput, images: OpenImages, gaps: Sequence[Gap]
) -> dict[str, list[str]]:
    """By object, the distortions that the query names, those of earlier passes, and those that are now detected. Of
    those that the query names it is read whether they are there."""
    earlier, named, boxes = evidence.distortion_set or {}, plan.distortions or {}, evidence.boxes or {}
    unread = any(name not in (evidence.detection or {}) for name in plan.objects)
    look = plan.plan.distortion_detection and (
        unread or any(gap.kind in ("contradiction", "executor") for gap in gaps)
    )
    detected: dict[str, list[str]] = {}
    if look or (named and unread):
        found = detect(query, plan.objects, boxes, images, reason_of(gaps), None if look else named)
        evidence.detection = (evidence.detection or {}) | found
        if look:
            detected = {name: found_families(detection) for name, detection in found.items()}
    distortions = {
        name: list(dict.fromkeys([*named.get(name, []), *earlier.get(name, []), *detected.get(name, [])]))
        for name in plan.objects
    }
    if look or earlier:
        evidence.distortion_set = distortions
    return distortions


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
    known = {
        name: {item.type: item for item in items}
        for name, items in (evidence.distortion_analysis or {}).items()
    }
    for name, items in (judge(evidence, query, asked, images, reason) if asked else {}).items():
        known[name] = known.get(name, {}) | {item.type: item for item in items}
    return {
        name: [known[name][kind] for kind in types if kind in known.get(name, {})]
        for name, types in distortions.items()
    }


def judge(
    evidence: ExecutorOutput,
    query: str,
    asked: dict[str, list[str]],
    images: OpenImages,
    reason: str | None,
) -> dict[str, list[DistortionAnalysis]]:
    """The model's judgement of each distortion in `asked`; how probable it finds each severity goes into the
    evidence. Raises InvalidAnswer, VLMError."""
    prompt = analysis_prompt(query, asked, reason)
    reply = ask(images.session(ROLE), prompt, analysis_reply(asked), images.services.section(ROLE))
    written = reply.model_dump(by_alias=True)
    words, judged, known = read_severities(prompt, written, images), {}, evidence.severity_probabilities or {}
    for name, items in written.items():
        detection, judged[name] = (evidence.detection or {}).get(name), []
        of_object = {kind: p for kind, p in known.get(name, {}).items() if kind not in asked[name]}
        for item in items:
            kind = item["type"]
            p = severity_probabilities(detection, item, words.get(name, {}).get(kind), images)
            judged[name].append(with_severity(item, p, detection))
            of_object |= {kind: p} if p else {}
        known |= {name: of_object}
    evidence.severity_probabilities = {name: found for name, found in known.items() if found} or None
    return ExecutorOutput.model_validate({"distortion_analysis": judged}).distortion_analysis or {}


def with_severity(
    item: dict[str, Any], probabilities: dict[str, float] | None, detection: Detection | None
) -> dict[str, Any]:
    """The model's judgement with its likeliest severity; an explanation of another severity gives way to what was
    measured."""
    likeliest = max(probabilities, key=probabilities.__getitem__) if probabilities else item["severity"]
    if detection is None or likeliest == item["severity"]:
        return item
    family = detection.families[item["type"]]
    reading = (
        f"{detection.tool} reads severity {family.severity:.1f} of 5"
        if likeliest != "none" and family.severity is not None
        else f"it is there with probability {family.probability:.2f}"
    )
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


def find_boxes(evidence: ExecutorOutput, objects: list[str], images: OpenImages, reason: str | None) -> None:
    """Adds the boxes of regions that have none yet, where the model gives any; without a box tools see the
    whole image."""
    wanted = [name for name in objects if (evidence.boxes or {}).get(name) is None]
    if wanted and box_style(images) != "none":
        boxes = locate(wanted, images, reason)
        evidence.boxes = (evidence.boxes or {}) | {name: boxes.get(name) for name in wanted}


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
