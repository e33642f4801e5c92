"""One picture's assessment: what the pipeline answers, how sure that is and where the damage lies, as a typed
result (`result.Assessment`)."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

from agentic_iqa_local.config import Pipeline, Settings, boxes_of, check_query
from agentic_iqa_local.errors import PICTURE, one_line
from agentic_iqa_local.files import path_text
from agentic_iqa_local.graph import initial_state, run_graph
from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.pictures import Picture, PictureFile, as_file
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.judgement.fit import calibration_for
from agentic_iqa_local.judgement.gates import Sureness
from agentic_iqa_local.judgement.identity import named_in_row
from agentic_iqa_local.judgement.quality_map import MapRequest, map_request, mapped
from agentic_iqa_local.nodes.evidence import of_object
from agentic_iqa_local.nodes.letter_reading import ROLE, answer_letter, read_and_fuse, read_choices
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY, choice_letters, summarizer_prompt
from agentic_iqa_local.nodes.query import named_metrics
from agentic_iqa_local.nodes.regions import with_boxes
from agentic_iqa_local.nodes.summarizer import without_words
from agentic_iqa_local.nodes.tool_runs import known_and_unknown, measure, told_of_quoted
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.result import Assessment, Seen, SeenView, file_sha256
from agentic_iqa_local.services import Observer, Services, load_services
from agentic_iqa_local.state import OVERALL, AgenticIQAState, ToolExecutionLog
from agentic_iqa_local.vlm_client import VLMError

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
    box: Any = None,
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
        box: Where the regions that the query names lie: "NAME=LEFT,TOP,RIGHT,BOTTOM" in pixels of the upright picture,
            several parted by ";", four numbers, or {name: four numbers}. Tools measure them.
        map: Whether the quality is mapped from place to place too; a path is the PNG that it is drawn to.
        services: Models and tools; those of the embedded set-up where it is left out, loaded once.
        observer: Sees each call of them.

    Returns:
        The result; whatever goes wrong with this picture is in its `error`, and logged as a warning.

    Raises:
        VLMError: A model that cannot be loaded at all.
        ValueError, TypeError: Arguments that make no sense.
    """
    request = map_request(map)
    with (
        as_file(image) as picture,
        nullcontext() if reference is None else as_file(reference) as original,
    ):
        services = services or load_services()
        state = start_state(
            picture, original, query, choices, max_replan_iterations, services.settings, box
        )

        def opened() -> AbstractContextManager[Workbench]:
            return closing(
                Workbench(services, state["image_path"], state.get("reference_path"), observer)
            )

        row = answered_row(state, picture, original, pipeline, services.settings, opened, request)
    if row.error and observer is None:  # a batch shows its failures itself
        logging.getLogger(__name__).warning("not assessed: %s", row.error)
    return row


def start_state(
    picture: PictureFile,
    original: PictureFile | None,
    query: str | None,
    choices: Sequence[str] | None,
    max_replan_iterations: int | None,
    settings: Settings,
    box: Any = None,
) -> AgenticIQAState:
    """The state that an assessment starts from, a rating where there is no query. Raises ValueError."""
    query = DEFAULT_QUERY if query is None else check_query(query)
    limit = (
        settings.max_replan_iterations if max_replan_iterations is None else max_replan_iterations
    )
    reference = original and str(original.path)
    return initial_state(query, str(picture.path), reference, limit, choices, box)


def new_row(
    image: str | os.PathLike[str],
    reference: str | os.PathLike[str] | None,
    query: str,
    choices: Sequence[str] | None,
    pipeline: Pipeline,
    settings: Settings,
    box: str | None = None,
) -> Assessment:
    """What is known of an assessment before it begins."""
    return Assessment(
        image=path_text(image),
        reference=None if reference is None else path_text(reference),
        query=query,
        choices=list(choices) if choices else None,
        box=box,
        fusion_settings=settings.fusion,
        pipeline=pipeline,
    )


def answered_row(
    state: AgenticIQAState,
    picture: PictureFile,
    original: PictureFile | None,
    pipeline: Pipeline,
    settings: Settings,
    opened: Callable[[], AbstractContextManager[Workbench]],
    map: MapRequest | None = None,
) -> Assessment:
    """The answer to a state's question about the pictures that `opened` gives for its time, with the names that
    the caller has for them; whatever goes wrong with them is its `error`. Raises VLMError for a model that cannot
    be loaded."""
    row = new_row(
        picture.name,
        original and original.name,
        state["query"],
        state.get("choices"),
        pipeline,
        settings,
        state.get("box"),
    )
    began = time.perf_counter()
    logged = PICTURE.set(PICTURE.get() or row.image)
    changes: dict[str, Any]
    try:
        with opened() as bench:
            bench.pictures.locate(boxes_of(state.get("box")))
            changes = _answer(state, bench, pipeline, map)
    except ImageError as error:
        changes = {"error": str(error)}
    except MemoryError:
        changes = {"error": f"{picture.name}: memory ran out; free some, or crop the picture."}
    finally:
        PICTURE.reset(logged)
    if "sha256" not in changes:
        changes["sha256"] = file_sha256(state["image_path"])
    changes["seconds"] = round(time.perf_counter() - began, 3)
    row = Assessment.model_validate(dict(row) | changes)
    for file in filter(None, (picture, original)):
        row.error, row.warnings = (
            row.error and file.hide(row.error),
            [file.hide(line) for line in row.warnings],
        )
    row.error, row.warnings = (
        row.error and one_line(row.error),
        [one_line(line) for line in row.warnings],
    )
    return row


def _answer(
    state: AgenticIQAState, bench: Workbench, pipeline: Pipeline, map: MapRequest | None
) -> dict[str, Any]:
    """What the row of an answer holds."""
    services = bench.services
    _ = services.tools  # a bad maps file is an error of the set-up, not of an image

    sureness = Sureness(
        services.settings.decisions,
        calibration_for(services.settings, services.client(ROLE).describe()),
        pipeline=pipeline,
        reference=bench.pictures.has_reference,
        query=state["query"],
        unlike_photograph=bench.tools.unlike_photograph is not None,
        of_part=bool(bench.pictures.boxes),
    )
    bench.wants_more = sureness.wants_more
    if sureness.unlike_photograph:
        bench.warn(UNLIKE_PHOTOGRAPH)
    changes: dict[str, Any]
    try:
        changes = _letters(state, bench) if pipeline == "letters" else _agent(state, bench)
    except ToolError as error:
        changes = {"error": f"{bench.pictures.image.path}: {error}"}
    except (ImageError, VLMError) as error:
        changes = {"error": str(error)}
    if not changes.get("error"):
        changes |= mapped(bench, map) if map else {}
        told = told_of_quoted(state["query"], bench)
        if told:
            reasoning = [*told, changes.get("quality_reasoning") or ""]
            changes["quality_reasoning"] = " ".join(reasoning).strip()
        if fusion := changes.get("fusion"):
            changes |= sureness.fields(fusion, changes.get("plan"))
    return changes | _record(bench)


def _agent(state: AgenticIQAState, bench: Workbench) -> dict[str, Any]:
    """What the graph answers; where another pass broke off, the answer of the pass before stays."""
    final: dict[str, Any] = {**run_graph(state, bench)}
    result, error = final.get("summarizer_result"), final.get("error") or None
    if error and result and not result.error:
        bench.warn(
            f"another pass was asked for and failed ({error}); the answer is that of the pass before"
        )
        error = None
    evidence = final.get("executor_evidence")
    names = ("plan", "plan_corrections", "replan_history", "iteration_count")
    changes: dict[str, Any] = {name: final[name] for name in names if final.get(name) is not None}
    changes |= {"passes": result.passes if result else [], "error": error}
    if evidence is not None:
        changes |= {"evidence": evidence, "tools": evidence.tool_logs}
        if evidence.error:
            bench.warn(f"the Executor failed, its evidence is incomplete: {evidence.error}")
        for log in (log for log in evidence.tool_logs if log.outvoted):
            apart = f"its score{of_object(log.object_name)} stands apart from every other tool's"
            bench.warn(f"{log.tool_name} has no vote: {apart}")
    if result is None or error:
        return changes
    if result.error and result.fusion:
        bench.warn(
            "the model gave no valid reasoning in three tries: sentences made of the evidence stand in for it"
        )
        result = without_words(result.fusion, evidence, state.get("choices"))
    names = ("final_answer", "quality_reasoning", "error", "need_replan", "fusion")
    return changes | {name: getattr(result, name) for name in names}


def _letters(state: AgenticIQAState, bench: Workbench) -> dict[str, Any]:
    """One read, and the tools that the query names, else those that are configured: no plan, no evidence in the
    prompt, no reasoning. Raises VLMError, and ToolError where none of the configured ones can measure."""
    query, choices, settings = state["query"], state.get("choices"), bench.services.settings.tools
    boxes = with_boxes((), boxes_of(state.get("box")))
    bench.pictures.locate({name: box for name, box in boxes.items() if box})
    regions = [*bench.pictures.boxes]
    logs: list[ToolExecutionLog] = []
    named, unknown = known_and_unknown(named_metrics(query, bench.pictures.has_reference))
    bench.observer.step("summarizer", "started")
    if choices:
        prompt = summarizer_prompt(query, None, scoring=False, choices=choices)
        fusion = read_choices(prompt, choice_letters(choices), bench, regions)
        answer = fusion.vlm_letter
        if named or unknown:
            tools = " and ".join([*named, *unknown])
            bench.warn(f"the pipeline letters runs no tool beside choices: {tools} did not measure")
    else:
        tools = named or settings.configured(bench.pictures.has_reference)
        entries = [(OVERALL, tool) for tool in (*tools, *unknown)]
        logs = [log for name in regions or ["Global"] for log in measure(name, entries, bench)]
        scores = {
            (log.object_name, log.tool_name): log.normalized_score
            for log in logs
            if log.normalized_score is not None
        }
        if not (named or scores):
            raise ToolError(logs[0].error or "no tool measured")
        voting = [(tool, score) for (_, tool), score in scores.items()]
        fusion = read_and_fuse(query, None, voting, bench, objects=regions)
        answer = answer_letter(fusion)
    bench.observer.step("summarizer", "finished")
    return {"fusion": fusion, "final_answer": answer, "tools": logs}


def _record(bench: Workbench) -> dict[str, Any]:
    """Tokens, views, model and warnings of an assessment, as far as it came. Warns where the model did not see the
    pixels as they are."""
    services = bench.services
    client, views, pixels = services.client(ROLE), [], 0
    for box, seen in bench.models.seen_views(ROLE):
        width, height = box[2] - box[0], box[3] - box[1]
        size = (seen.width, seen.height) if seen.width and seen.height else None
        views.append(SeenView(box=box, pixels=size, tokens=seen.tokens))
        if size is None:
            bench.warn(
                f"{client.name}'s processor resizes and tiles: which pixels it saw is not known exactly"
            )
        elif width * height > size[0] * size[1]:
            resized = f"{width}×{height} pixels to {size[0]}×{size[1]}"
            bench.warn(f"{client.name}'s processor resized {resized}: distortions may look milder")
        pixels = None if size is None or pixels is None else pixels + size[0] * size[1]
    return {
        "tokens": bench.models.usage,
        "seen": Seen(pixels=pixels, tokens=sum(view.tokens for view in views), views=views)
        if views
        else None,
        "sha256": bench.pictures.image.sha256,
        "unlike_photograph": bench.tools.unlike_photograph,
        # a folder's name may be no text that JSON can hold
        "model": {
            key: one_line(x) if isinstance(x, str) else x for key, x in client.describe().items()
        }
        | named_in_row(services.settings, services.device),
        "warnings": bench.warnings,
        "failed_tries": bench.models.failed_tries,
    }
