"""One picture's assessment: what the pipeline answers, how sure that is and where the damage lies,
as a typed result (`result.Assessment`)."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from agentic_iqa_local.config import Pipeline, Request, Settings, boxes_of
from agentic_iqa_local.errors import assessing, one_line
from agentic_iqa_local.files import file_hash
from agentic_iqa_local.images.files import ImageError
from agentic_iqa_local.images.pictures import Picture, PictureFile, as_file
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.iqa_tools.eye import NUMBERS
from agentic_iqa_local.judgement.fit import calibration_for, read_fit
from agentic_iqa_local.judgement.gates import Sureness
from agentic_iqa_local.judgement.identity import SHORT, named_in_row
from agentic_iqa_local.judgement.intervals import SHIPPED, IntervalCalibration
from agentic_iqa_local.judgement.quality_map import mapped
from agentic_iqa_local.nodes.evidence import votes
from agentic_iqa_local.nodes.letter_reading import ROLE, read_and_fuse, read_choices
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY, summarizer_prompt
from agentic_iqa_local.nodes.query import named_metrics, speaks_of_reference
from agentic_iqa_local.nodes.reasoning import without_words
from agentic_iqa_local.nodes.regions import unplaced
from agentic_iqa_local.nodes.tool_runs import decide_votes, measure
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.result import Assessment, NamedEye, Seen, SeenView, file_sha256, new_row
from agentic_iqa_local.score_fusion import answer_letter
from agentic_iqa_local.services import Observer, Services, load_services
from agentic_iqa_local.state import (
    OVERALL,
    AgenticIQAState,
    Box,
    ExecutorOutput,
    FusionResult,
    SummarizerOutput,
)
from agentic_iqa_local.vlm_client import SeenImage, VLMError

UNLIKE_PHOTOGRAPH = (
    "the content is unlike a photograph (a screenshot, drawing, chart or code): LocalNR and NIQE know"
    " photographs alone, so that q says little; a reference would help"
)
NO_REFERENCE = (
    "the query speaks of an original, and none was given (assess takes --reference): the picture is"
    " judged by itself"
)
# the fields of a Summarizer's result that a row has too
ANSWERED = ("fusion", "final_answer", "quality_reasoning", "need_replan", "error")
# and what it has of the agent's state
KEPT = ("plan", "plan_corrections", "replan_history", "iteration_count")
NO_WORDS = "the model gave no valid reasoning in three tries: sentences made of the evidence stand in for it"


def assess(
    image: Picture,
    reference: Picture | None = None,
    query: str | None = None,
    choices: Sequence[str] | None = None,
    *,
    pipeline: Pipeline = "agent",
    max_replan_iterations: int | None = None,
    box: Any = None,
    map: bool | str | Path = False,
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
    request = Path(map) if isinstance(map, str) else map
    with ExitStack() as files:
        picture = files.enter_context(as_file(image))
        original = None if reference is None else files.enter_context(as_file(reference))
        services = services or load_services()
        asked = query, choices, box, max_replan_iterations
        state = start_state(services.settings, picture, original, *asked)
        how = {"map": request, "observer": observer}
        row = answered_row(state, picture, original, pipeline, services, **how)
    if row.error and observer is None:  # a batch shows its failures itself
        logging.getLogger(__name__).warning("not assessed: %s", row.error)
    return row


def start_state(
    settings: Settings,
    picture: PictureFile,
    original: PictureFile | None,
    query: str | None,
    choices: Sequence[str] | None,
    box: Any = None,
    max_replan_iterations: int | None = None,
) -> AgenticIQAState:
    """The state that an assessment starts from, a rating where there is no query. Raises
    ValueError."""
    from agentic_iqa_local.graph import initial_state

    query = Request.of({"query": query}).query or DEFAULT_QUERY
    paths = str(picture.path), original and str(original.path)
    return initial_state(query, *paths, max_replan_iterations, choices, box, settings=settings)


def answered_row(
    state: AgenticIQAState,
    picture: PictureFile,
    original: PictureFile | None,
    pipeline: Pipeline,
    services: Services,
    *,
    map: bool | Path = False,
    observer: Observer | None = None,
    bench: Workbench | None = None,
) -> Assessment:
    """The answer to a state's question about pictures, which stay open on a `bench` that is given,
    with the names that the caller has for them; whatever goes wrong with them is its `error`.
    Raises VLMError for a model that cannot be loaded."""
    paths = state["image_path"], state.get("reference_path")
    asked = new_row(
        picture.name,
        original and original.name,
        state["query"],
        state.get("choices"),
        pipeline,
        services.settings,
        state.get("box"),
    )
    row = asked.model_copy()
    began, loading = time.perf_counter(), services.seconds_loading
    try:
        with assessing(row.image), ExitStack() as opened:
            if bench is None:
                bench = opened.enter_context(closing(Workbench(services, *paths, observer)))
            bench.pictures.locate(boxes_of(state.get("box")))
            _answer(row, state, bench, map)
    except ImageError as error:
        row = asked.model_copy(update={"error": str(error)})
    except MemoryError:
        error = f"{picture.name}: memory ran out; free some, or crop the picture."
        row = asked.model_copy(update={"error": error})
    if row.sha256 is None:
        row.sha256 = file_sha256(state["image_path"])
    loading = services.seconds_loading - loading
    row.seconds = round(time.perf_counter() - began - loading, 3)
    files = [picture] if original is None else [picture, original]
    row.warnings = [_said(line, files) for line in row.warnings]
    row.error = row.error and _said(row.error, files)
    return row


def _said(text: str, files: Sequence[PictureFile]) -> str:
    """A text in one line, with the names of files in place of their paths."""
    for file in files:
        text = file.hide(text)
    return one_line(text)


def _answer(row: Assessment, state: AgenticIQAState, bench: Workbench, map: bool | Path) -> None:
    """Fills a row with the answer, how sure it is and what it took."""
    services = bench.services
    _ = services.tools  # a bad maps file is an error of the set-up, not of an image
    row.sha256 = bench.pictures.image.sha256
    row.unlike_photograph = bench.tools.unlike_photograph
    sureness = Sureness(
        services.settings.decisions,
        calibration_for(services.settings, services.client(ROLE).describe()),
        pipeline=row.pipeline,
        reference=bench.pictures.has_reference,
        query=row.query,
        by_eye=_calibration_of_eye(services),
        unlike_photograph=row.unlike_photograph is not None,
        of_part=bool(bench.pictures.boxes),
    )
    bench.wants_more = sureness.wants_more
    if sureness.unlike_photograph:
        bench.warn(UNLIKE_PHOTOGRAPH)
    if speaks_of_reference(row.query) and not bench.pictures.has_reference:
        bench.warn(NO_REFERENCE)
    try:
        if row.pipeline == "letters":
            _read_once(row, bench)
        else:
            _run_agent(row, state, bench)
    except ToolError as error:
        row.error = f"{bench.pictures.image.path}: {error}"
    except (ImageError, VLMError) as error:
        row.error = str(error)
    if not row.error:
        if map:
            _set(row, mapped(bench, map if isinstance(map, Path) else None))
        if row.fusion:
            _set(row, sureness.fields(row.fusion, row.plan))
    _record(row, bench)


def _calibration_of_eye(services: Services) -> IntervalCalibration | None:
    """Of answers in which the user's eye votes; None without one."""
    eye = services.tools.eye
    if eye is None:
        return None
    shipped = read_fit(SHIPPED).intervals
    assert shipped is not None
    return IntervalCalibration.of_eye(eye.card, shipped)


def _set(row: Assessment, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        setattr(row, name, value)


def _run_agent(row: Assessment, state: AgenticIQAState, bench: Workbench) -> None:
    """The graph's answer; where another pass broke off, the answer of the pass before stays."""
    from agentic_iqa_local.graph import run_graph

    final = run_graph(state, bench)
    result = final.get("summarizer_result")
    _set(row, {name: value for name in KEPT if (value := final.get(name))})
    row.error = final.get("error") or None
    _take_evidence(row, final.get("executor_evidence"), bench)
    if result is None:
        return
    if row.error and not result.error:
        failed = f"another pass was asked for and failed ({row.error})"
        bench.warn(f"{failed}; the answer is that of the pass before")
        row.error = None
    if row.error:
        return
    if result.error and result.fusion:
        result = _answer_without_words(row, result.fusion, bench)
    _set(row, {name: getattr(result, name) for name in ANSWERED})


def _answer_without_words(
    row: Assessment, fusion: FusionResult, bench: Workbench
) -> SummarizerOutput:
    """The answer that was read, where the model's words failed."""
    bench.warn(NO_WORDS)
    regions = unplaced(row.query, row.plan, bench.pictures.boxes) if row.plan else ()
    return without_words(fusion, row.evidence, row.choices, regions, row.query)


def _take_evidence(row: Assessment, evidence: ExecutorOutput | None, bench: Workbench) -> None:
    if evidence is None:
        return
    row.evidence = evidence
    row.tools = evidence.tool_logs
    if evidence.error:
        bench.warn(f"the Executor failed, its evidence is incomplete: {evidence.error}")


def _read_once(row: Assessment, bench: Workbench) -> None:
    """One read, and the tools that the query names, else those of the configuration that vote: no
    plan, no evidence in the prompt, no reasoning. Raises VLMError, and ToolError where none of the
    configured ones can measure."""
    bench.observer.step("summarizer", "started")
    if row.choices:
        _choose_once(row, bench)
    else:
        _rate_once(row, bench)
    bench.observer.step("summarizer", "finished")


def _choose_once(row: Assessment, bench: Workbench) -> None:
    choices = row.choices or []
    prompt = summarizer_prompt(row.query, None, scoring=False, choices=choices)
    row.fusion = read_choices(prompt, choices, bench, [*bench.pictures.boxes])
    row.final_answer = row.fusion.vlm_letter
    tools = named_metrics(row.query, bench.pictures.has_reference)
    if tools:
        lead = "the pipeline letters runs no tool beside choices"
        bench.warn(f"{lead}: {' and '.join(tools)} did not measure")


def _rate_once(row: Assessment, bench: Workbench) -> None:
    has_reference = bench.pictures.has_reference
    named = named_metrics(row.query, has_reference)
    tools = named or bench.tools.leading()
    entries = [(OVERALL, tool) for tool in tools]
    regions = [*bench.pictures.boxes]
    measured = ExecutorOutput()
    for name in regions or ["Global"]:
        measured.tool_logs += measure(name, entries, bench)
    decide_votes(measured, named, bench)
    if not named and not votes(measured):
        raise ToolError(measured.tool_logs[0].error or "no tool measured")
    row.fusion = read_and_fuse(row.query, measured, bench, shown=False, objects=regions)
    row.final_answer = answer_letter(row.fusion)
    row.tools = measured.tool_logs


def _record(row: Assessment, bench: Workbench) -> None:
    """Tokens, views, model and warnings of an assessment, as far as it came."""
    client = bench.services.client(ROLE)
    views = [_view(box, one, client.name, bench) for box, one in bench.models.seen_views(ROLE)]
    if views:
        sizes = [view.pixels for view in views if view.pixels]
        pixels = (
            sum(width * height for width, height in sizes) if len(sizes) == len(views) else None
        )
        row.seen = Seen(pixels=pixels, tokens=sum(view.tokens for view in views), views=views)
    row.tokens = bench.models.usage
    row.failed_tries = bench.models.failed_tries
    name = one_line(client.name)  # a folder's name may be no text that JSON can hold
    decided_by = named_in_row(bench.settings, bench.services.device)
    row.model = client.describe() | {"name": name} | decided_by
    row.eye = _named_eye(bench)
    row.warnings = bench.warnings
    row.raw_preview = bench.pictures.image.raw_size


def _named_eye(bench: Workbench) -> NamedEye | None:
    """The eye of the set-up; None without one."""
    eye = bench.services.tools.eye
    if eye is None:
        return None
    folder = Path(bench.settings.tools.eye or "")
    sha256 = file_hash(folder / NUMBERS)[:SHORT]
    told = {"ratings": eye.card.ratings, "forced": eye.card.forced}
    return NamedEye(name=one_line(folder.name), sha256=sha256, **told)


def _view(box: Box, seen: SeenImage, model: str, bench: Workbench) -> SeenView:
    """A view as the model saw it. Warns where it did not see the pixels as they are."""
    width, height = box[2] - box[0], box[3] - box[1]
    if not seen.width or not seen.height:
        resizes = f"{model}'s processor resizes and tiles"
        bench.warn(f"{resizes}: which pixels it saw is not known exactly")
        return SeenView(box=box, pixels=None, tokens=seen.tokens)
    if (width, height) != (seen.width, seen.height):
        resized = f"{width}×{height} pixels to {seen.width}×{seen.height}"
        bench.warn(
            f"{model}'s processor resized {resized}: distortions may look other than they are"
        )
    return SeenView(box=box, pixels=(seen.width, seen.height), tokens=seen.tokens)
