"""One picture's assessment: what the pipeline answers, how sure that is and where the damage lies, as a typed
result (`result.Assessment`)."""

import functools
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentic_iqa_local.config import Pipeline, Settings, check_query
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.files import path_text
from agentic_iqa_local.graph import initial_state, run_graph
from agentic_iqa_local.images.files import ImageError, read_file
from agentic_iqa_local.images.frames import moved
from agentic_iqa_local.images.pictures import Picture, PictureFile, as_file
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.judgement.fit import calibration_of
from agentic_iqa_local.judgement.gates import Sureness
from agentic_iqa_local.judgement.quality_map import MapRequest, map_request, mapped
from agentic_iqa_local.nodes.evidence import evidence_warnings
from agentic_iqa_local.nodes.letter_reading import (
    ROLE,
    answer_letter,
    read_and_fuse,
    read_choices,
    scoring_prompts,
)
from agentic_iqa_local.nodes.planner import taken_choices
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY, choice_letters, summarizer_prompt
from agentic_iqa_local.nodes.query import named_metrics
from agentic_iqa_local.nodes.summarizer import without_words
from agentic_iqa_local.nodes.tool_runs import run_tool
from agentic_iqa_local.nodes.workbench import PICTURE, Box, Observer, OpenImages, open_images
from agentic_iqa_local.result import Assessment, Seen, SeenView, Tokens
from agentic_iqa_local.services import Services, load_services
from agentic_iqa_local.state import (
    OVERALL,
    AgenticIQAState,
    DamagedBox,
    FusionResult,
    SummarizerOutput,
    ToolExecutionLog,
    revised,
)
from agentic_iqa_local.vlm_client import SeenImage, VLMError

UNLIKE_PHOTOGRAPH = (
    "the content is unlike a photograph (a screenshot, drawing, chart or code): LocalNR and NIQE know"
    " photographs alone, so that q says little; a reference would help"
)


def assess(
    image: Picture,
    reference: Picture | None = None,
    query: str | None = None,
    choices: Sequence[str] | None = None,
    *,
    pipeline: Pipeline = "agent",
    max_replan_iterations: int | None = None,
    map: bool | str | Path | MapRequest = False,
    services: Services | None = None,
    observer: Observer | None = None,
) -> Assessment:
    """Assesses one picture on this machine.

    Args:
        image: A path, a Pillow image, a NumPy array (`images.pictures.as_file`) or an image file's bytes.
        reference: Its pristine original of the same size.
        query: A question or an instruction; a rating where it is left out.
        choices: 2 to 10 answers, which make it a multiple-choice question.
        pipeline: "letters" reads the letters once and runs the configured tools, without planning.
        max_replan_iterations: n allows n - 1 replans; the configuration's where it is left out.
        map: Whether the quality is mapped from place to place too; a path is the PNG that it is drawn to.
        services: Models and tools; those of the embedded set-up where it is left out, loaded once.
        observer: Sees each call of them.

    Returns:
        The result; whatever goes wrong with this picture is in its `error`.

    Raises:
        VLMError: A model that cannot be loaded at all.
        ValueError, TypeError: Arguments that make no sense.
    """
    request = map_request(map)
    with as_file(image) as picture, nullcontext() if reference is None else as_file(reference) as original:
        services = services or load_services()
        state = question(picture, original, query, choices, max_replan_iterations, services.settings)

        def answer(state: AgenticIQAState) -> dict[str, Any]:
            try:
                images = open_images(services, state, observer)
            except ImageError as error:
                return {"error": str(error), "sha256": file_sha256(state["image_path"])}
            try:
                return answered(state, images, pipeline, request)
            finally:
                images.close()

        return assessment(state, picture, original, answer, pipeline, services.settings)


def question(
    picture: PictureFile,
    original: PictureFile | None,
    query: str | None,
    choices: Sequence[str] | None,
    max_replan_iterations: int | None,
    settings: Settings,
) -> AgenticIQAState:
    """The state that an assessment starts from, a rating where there is no query. Raises ValueError."""
    query = DEFAULT_QUERY if query is None else check_query(query)
    limit = settings.max_replan_iterations if max_replan_iterations is None else max_replan_iterations
    return initial_state(query, str(picture.path), original and str(original.path), limit, choices)


def assessment(
    state: AgenticIQAState,
    picture: PictureFile,
    original: PictureFile | None,
    answer: Callable[[AgenticIQAState], dict[str, Any]],
    pipeline: Pipeline,
    settings: Settings,
) -> Assessment:
    """What `answer` makes of a state, with the seconds that it took, told by the names that the caller knows
    the pictures by."""
    row = unassessed(
        picture.path, original and original.path, state["query"], state.get("choices"), pipeline, settings
    )
    known = {name: getattr(row, name) for name in row.model_fields_set}
    began = time.perf_counter()
    logged = PICTURE.set(PICTURE.get() or row.image)
    try:
        changes = answer(state)
    finally:
        PICTURE.reset(logged)
    changes["seconds"] = round(time.perf_counter() - began, 3)
    row = Assessment.model_validate(known | changes)
    row.image, row.reference = path_text(picture.name), original and path_text(original.name)
    for file in filter(None, (picture, original)):
        row.error, row.warnings = row.error and file.hide(row.error), [*map(file.hide, row.warnings)]
    row.error, row.warnings = row.error and one_line(row.error), [one_line(line) for line in row.warnings]
    return row


def answered(
    state: AgenticIQAState, images: OpenImages, pipeline: Pipeline, map: MapRequest | None = None
) -> dict[str, Any]:
    """What a row holds of a question about opened images; whatever goes wrong with them is its `error`.
    Raises VLMError for a model that cannot be loaded."""
    services = images.services
    services.client(ROLE)
    _ = services.tools  # a bad maps file is an error of the set-up, not of an image
    calibration, missing = calibration_of(services)
    make_map = functools.cache(lambda: {} if map is None else mapped(images, map))
    images.find_worst_part = lambda: _worst_part(make_map())
    images.sureness = sureness = Sureness(
        services.settings.decisions,
        calibration,
        missing,
        pipeline=pipeline,
        reference=images.reference is not None,
        query=state["query"],
        unlike_photograph=images.unlike_photograph is not None,
    )
    if sureness.unlike_photograph:
        images.warn(UNLIKE_PHOTOGRAPH)
    try:
        if pipeline == "letters":
            images.observer.step("summarizer", "started")
            changes = _letters(state, images)
            images.observer.step("summarizer", "finished")
        else:
            changes = _agent(state, images)
    except ToolError as error:
        changes = {"error": f"{images.image.path}: {error}"}
    except (ImageError, VLMError) as error:
        changes = {"error": str(error)}
    if not changes.get("error"):
        changes |= make_map()
    changes |= {"unlike_photograph": images.unlike_photograph}
    changes |= _in_original_pixels(changes, images.image.offset)
    return changes | _how_sure(changes, sureness) | _record(images)


def _worst_part(map_fields: dict[str, Any]) -> DamagedBox | None:
    """The worst part of the map in `map_fields`; None where no map was made, or no part is clearly worse than
    the rest."""
    q_map = map_fields.get("map")
    return q_map.worst[0] if q_map and q_map.worst else None


def _how_sure(changes: dict[str, Any], sureness: Sureness) -> dict[str, Any]:
    """The interval of a rating or the set of answers of a question, and what follows from it."""
    if changes.get("error") or not changes.get("p_c"):
        return {}
    plan = changes.get("plan")
    if changes.get("q") is None:
        evidence = changes.get("evidence")
        told = evidence is not None and evidence.worst_part is not None
        p = changes.get("product") or changes["p_c"]
        answers, why = sureness.answer_set(p, changes["mode"], plan, told_of_map=told)
        return {"answer_set": answers, "no_interval": why}
    fusion = FusionResult.model_validate({name: changes[name] for name in FusionResult.model_fields})
    interval, why = sureness.interval(fusion, plan)
    return {
        "interval": interval,
        "no_interval": why,
        "not_sure": sureness.not_sure(interval),
        "gate": sureness.gate(interval, changes["q"]),
    }


def _in_original_pixels(changes: dict[str, Any], offset: tuple[int, int]) -> dict[str, Any]:
    """Evidence and map of a picture whose frame was left out, with their places in pixels of the original."""
    moved_parts = {}
    if (evidence := changes.get("evidence")) is not None:
        boxes = evidence.boxes and {name: box and moved(box, offset) for name, box in evidence.boxes.items()}
        worst = evidence.worst_part and revised(
            evidence.worst_part, box=moved(evidence.worst_part.box, offset)
        )
        moved_parts["evidence"] = revised(evidence, boxes=boxes, worst_part=worst)
    if (q_map := changes.get("map")) is not None:
        moved_parts["map"] = revised(
            q_map,
            xs=[x + offset[0] for x in q_map.xs],
            ys=[y + offset[1] for y in q_map.ys],
            worst=[revised(part, box=moved(part.box, offset)) for part in q_map.worst],
        )
    return moved_parts


def _texts(value: Any) -> Any:
    """What describes a model, with texts that JSON can hold: a folder's name may be none."""
    if isinstance(value, dict):
        return {name: _texts(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_texts(part) for part in value]
    return one_line(value) if isinstance(value, str) else value


def unassessed(
    image: str | os.PathLike[str],
    reference: str | os.PathLike[str] | None,
    query: str,
    choices: Sequence[str] | None,
    pipeline: Pipeline,
    settings: Settings,
) -> Assessment:
    """What is known of an assessment before it begins."""
    return Assessment(
        image=path_text(image),
        reference=None if reference is None else path_text(reference),
        query=query,
        choices=list(choices) if choices else None,
        mode=settings.fusion.mode,
        fusion=settings.fusion,
        pipeline=pipeline,
    )


def file_sha256(path: str | Path) -> str | None:
    """SHA-256 (hex) of a file's bytes, None where there is none that could be a picture: missing, no regular
    file, or beyond 1 GiB."""
    try:
        return hashlib.sha256(read_file(path)).hexdigest()
    except ImageError:
        return None


def _agent(state: AgenticIQAState, images: OpenImages) -> dict[str, Any]:
    final = _best_supported(run_graph(state, images), images)
    result, error = final.get("summarizer_result"), final.get("error") or None
    evidence = final.get("executor_evidence")
    changes: dict[str, Any] = {
        "plan": final.get("plan"),
        "plan_corrections": final.get("plan_corrections", []),
        "replan_history": final.get("replan_history", []),
        "iteration_count": final.get("iteration_count", 0),
        "passes": result.passes if result else [],
        "error": error,
    }
    if evidence is not None:
        changes |= {"evidence": evidence, "tools": evidence.tool_logs}
    for line in evidence_warnings(evidence) if evidence else ():
        images.warn(line)
    if result is None or error:
        return changes
    if result.error and result.fusion:
        images.warn(
            "the model gave no valid reasoning in three tries: sentences made of the evidence stand in for it"
        )
        result = without_words(result.fusion, evidence, state.get("choices"), images.services.settings.fusion)
    return changes | _answer_fields(result)


def _best_supported(final: AgenticIQAState, images: OpenImages) -> dict[str, Any]:
    """The final state of a run; where another pass broke off, that of the pass before, whose answer stays."""
    result, error = final.get("summarizer_result"), final.get("error")
    if not error or result is None or result.error or result.basis is None:
        return {**final}
    images.warn(f"another pass was asked for and failed ({error}); the answer is that of the pass before")
    return {**final, **result.basis.state(), "error": None}


def _answer_fields(result: SummarizerOutput) -> dict[str, Any]:
    """What a row holds of the Summarizer's answer, or of its failure."""
    said = {"final_answer": result.final_answer, "quality_reasoning": result.quality_reasoning}
    if result.error:
        return said | {"error": result.error}
    said |= {"reasoning_corrections": result.reasoning_corrections, "need_replan": result.need_replan}
    return said | (result.fusion.model_dump() if result.fusion else {})


def _letters(state: AgenticIQAState, images: OpenImages) -> dict[str, Any]:
    """One read and the configured tools: no plan, no evidence in the prompt, no reasoning."""
    if choices := state.get("choices"):
        prompt = summarizer_prompt(state["query"], None, scoring=False, choices=choices)
        fusion = read_choices(prompt, choice_letters(choices), images)
        corrections = taken_choices(state["query"], choices)
        return fusion.model_dump() | {"final_answer": fusion.vlm_letter, "plan_corrections": corrections}
    settings = images.services.settings.tools
    configured = settings.full_reference if images.reference else settings.no_reference
    logs = []
    for tool in named_metrics(state["query"], images.reference is not None):
        logs += run_tool("Global", OVERALL, tool, None, images)
    for tool in () if logs else configured:
        reading = images.score(tool)
        about = {"object_name": "Global", "distortion": OVERALL, "crops": len(reading.crops)}
        scores = {"raw_score": reading.raw, "normalized_score": reading.normalized}
        log = {"tool_name": reading.tool, "execution_time": reading.seconds} | about | scores
        logs.append(ToolExecutionLog.model_validate(log))
    scores = {log.tool_name: log.normalized_score for log in logs if log.normalized_score is not None}
    fusion = read_and_fuse(scoring_prompts(state["query"], None), list(scores.items()), images)
    return fusion.model_dump() | {"final_answer": answer_letter(fusion), "tools": logs}


def _record(images: OpenImages) -> dict[str, Any]:
    """Tokens, views, model and warnings of an assessment, as far as it came."""
    client, views = images.services.client(ROLE), images.seen_views(ROLE)
    for box, seen in views:
        if line := _of_resizing(client.name, box, seen):
            images.warn(line)
    return {
        "tokens": Tokens(**asdict(images.usage)),
        "seen": _seen(views) if views else None,
        "sha256": images.image.sha256,
        "model": _texts(client.describe()),
        "warnings": images.warnings,
        "failed_tries": images.failed_tries,
    }


def _of_resizing(model: str, box: Box, seen: SeenImage) -> str | None:
    """A warning, where the model did not see a view's pixels as they are."""
    width, height = box[2] - box[0], box[3] - box[1]
    if seen.width is None or seen.height is None:
        return f"{model}'s processor resizes and tiles: which pixels it saw is not known exactly"
    if width * height <= seen.width * seen.height:
        return None
    return (
        f"{model}'s processor resized {width}×{height} pixels to {seen.width}×{seen.height}: distortions may look"
        " milder"
    )


def _seen(views: Sequence[tuple[Box, SeenImage]]) -> Seen:
    known = [(seen.width, seen.height) if seen.width and seen.height else None for _, seen in views]
    pixels = None if None in known else sum(width * height for width, height in filter(None, known))
    seen = [
        SeenView(box=box, pixels=size, tokens=s.tokens) for (box, s), size in zip(views, known, strict=True)
    ]
    return Seen(pixels=pixels, tokens=sum(view.tokens for view in seen), views=seen)
