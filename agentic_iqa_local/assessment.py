"""`assess()`: one image in, one typed result out. The result is what assess.py prints, field by field."""

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentic_iqa_local.config import FusionSettings, Settings
from agentic_iqa_local.graph import initial_state, run_graph
from agentic_iqa_local.images import ImageError
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.nodes.summarizer import ROLE, fused_letter, read_and_fuse, read_choices
from agentic_iqa_local.prompts import DEFAULT_QUERY, choice_letters, summarizer_prompt
from agentic_iqa_local.services import OpenImages, Services, load_services
from agentic_iqa_local.state import AgenticIQAState, ExecutorOutput, PlannerOutput, ToolExecutionLog, check_query
from agentic_iqa_local.vlm_client import VLMError

SCHEMA_VERSION = 1
Pipeline = Literal["agent", "letters"]


class Tokens(BaseModel):
    """Counted over every model call of the assessment."""

    calls: int = Field(description="Letter reads and generations.")
    prefilled: int = Field(description="Tokens that went through the model as input.")
    reused: int = Field(description="Tokens that were found in the cache instead.")
    forced: int = Field(
        description="Template tokens of the answers that were put in without being decoded, counted in prefilled."
    )
    decoded: int = Field(description="Tokens that the model chose one by one.")
    forward_passes: int = Field(description="Passes of the model.")
    prefill_seconds: float = Field(description="Seconds of the passes over prompts (0 where the engine does not tell).")
    decode_seconds: float = Field(description="Seconds of the passes over one chosen token each.")


class SeenView(BaseModel):
    """One piece of the image as the model saw it."""

    box: tuple[int, int, int, int] = Field(description="left, top, right, bottom in pixels of the upright image.")
    pixels: tuple[int, int] | None = Field(description="Width and height after the processor; None where it tiles.")
    tokens: int = Field(description="Image tokens of the test image (the reference takes as many again).")


class Seen(BaseModel):
    """What the model saw of the test image; several views when it was too large for one."""

    pixels: int | None
    tokens: int
    views: list[SeenView]


class Assessment(BaseModel):
    """One assessed image. A failed one has `error` and no answer: a score that could not be had is never filled in."""

    model_config = ConfigDict(protected_namespaces=())

    schema_version: int = SCHEMA_VERSION
    image: str
    sha256: str | None = Field(None, description="Of the image file's bytes.")
    reference: str | None = None
    query: str
    choices: list[str] | None = None
    mode: str = Field(description="logits, classification or uniform: where p_c came from.")
    pipeline: Pipeline = "agent"
    final_answer: str | None = Field(None, description="The fused level's letter, the chosen letter, or free text.")
    vlm_letter: str | None = None
    p_c: dict[str, float] | None = Field(None, description="Probability of each letter; sums to 1.")
    off_letter_mass: float | None = None
    alpha: dict[int, float] | None = Field(None, description="Weight of each level 1..5 from the tools; sums to 1.")
    q_bar: float | None = Field(None, description="Mean of the tools' normalised scores, 1..5.")
    q: float | None = Field(None, description="Fused quality, 1 (bad) to 5 (excellent).")
    dq_dqbar: float | None = Field(None, description="How far q moves when q_bar moves by one.")
    fusion: FusionSettings | None = Field(None, description="η, temperature and the rest of the settings that made q.")
    tools: list[ToolExecutionLog] = []
    plan: PlannerOutput | None = None
    plan_corrections: list[str] = []
    evidence: ExecutorOutput | None = Field(None, description="The executor's evidence; its tool runs are in `tools`.")
    quality_reasoning: str | None = None
    need_replan: bool = False
    replan_history: list[str] = []
    iteration_count: int = 0
    tokens: Tokens | None = None
    seen: Seen | None = None
    model: dict[str, Any] | None = None
    seconds: float = 0.0
    warnings: list[str] = []
    error: str | None = None


def assess(
    image: str | Path,
    reference: str | Path | None = None,
    query: str | None = None,
    choices: Sequence[str] | None = None,
    *,
    pipeline: Pipeline = "agent",
    max_replan_iterations: int | None = None,
    services: Services | None = None,
) -> Assessment:
    """Assesses one image on this machine.

    `query` defaults to a rating; `choices` (2 to 10) makes it a multiple-choice question. `pipeline` "letters" reads the
    letters once and runs the configured tools, without planning. Models and tools are loaded at the first call and kept.
    Whatever goes wrong with this image is in the result's `error`; a model that cannot be loaded at all raises VLMError,
    and arguments that make no sense raise ValueError.
    """
    services = services or load_services()
    settings = services.settings
    limit = settings.max_replan_iterations if max_replan_iterations is None else max_replan_iterations
    query = DEFAULT_QUERY if query is None else query
    check_query(query)
    state = initial_state(query, str(image), reference and str(reference), limit, choices)
    services.client(ROLE)
    _ = services.tools  # a bad maps file is an error of the set-up, not of an image
    row = unassessed(image, reference, query, choices, pipeline, settings)
    began = time.perf_counter()
    images: OpenImages | None = None
    try:
        images = OpenImages(services, state["image_path"], state.get("reference_path"))
        changes = _letters(state, images) if pipeline == "letters" else _agent(state, images)
    except (ImageError, ToolError, VLMError) as error:
        changes = {"error": printable(str(error)), "sha256": file_sha256(image)}
    if images is not None:
        changes |= _record(images)
        images.close()
    return row.model_copy(update={**changes, "seconds": round(time.perf_counter() - began, 3)})


def unassessed(
    image: str | Path,
    reference: str | Path | None,
    query: str,
    choices: Sequence[str] | None,
    pipeline: Pipeline,
    settings: Settings,
) -> Assessment:
    """What is known of an assessment before it begins."""
    return Assessment(
        image=printable(image), reference=reference and printable(reference), query=query,
        choices=choices and list(choices), mode=settings.fusion.mode, fusion=settings.fusion, pipeline=pipeline,
    )  # fmt: skip


def printable(path: str | Path) -> str:
    """A path as text that JSON can hold; bytes of a file name that are not UTF-8 appear as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def file_sha256(path: str | Path) -> str | None:
    """SHA-256 (hex) of a file's bytes, None where there is no file that can be read."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _agent(state: AgenticIQAState, images: OpenImages) -> dict[str, Any]:
    final = run_graph(state, images)
    evidence, result = final.get("executor_evidence"), final.get("summarizer_result")
    changes: dict[str, Any] = {
        "plan": final.get("plan"),
        "plan_corrections": final.get("plan_corrections", []),
        "replan_history": final.get("replan_history", []),
        "iteration_count": final.get("iteration_count", 0),
        "error": final.get("error") or None,
    }
    if evidence is not None:
        changes |= {"evidence": evidence, "tools": evidence.tool_logs}
    if result is None or final.get("error"):
        return changes
    if result.error:
        return changes | {
            "final_answer": result.final_answer,
            "quality_reasoning": result.quality_reasoning,
            "error": result.error,
        }
    return changes | {
        "final_answer": result.final_answer,
        "quality_reasoning": result.quality_reasoning,
        "need_replan": result.need_replan,
        **(result.fusion.model_dump() if result.fusion else {}),
    }


def _letters(state: AgenticIQAState, images: OpenImages) -> dict[str, Any]:
    """One read and the configured tools: no plan, no evidence in the prompt, no reasoning."""
    choices = state.get("choices")
    prompt = summarizer_prompt(state["query"], None, scoring=not choices, choices=choices)
    if choices:
        fusion = read_choices(prompt, choice_letters(choices), images)
        return fusion.model_dump() | {"final_answer": fusion.vlm_letter}
    settings = images.services.settings.tools
    logs = []
    for tool in settings.full_reference if images.reference else settings.no_reference:
        reading = images.score(tool)
        logs.append(
            ToolExecutionLog(
                tool_name=reading.tool,
                object_name="Global",
                distortion="Overall quality",
                raw_score=reading.raw,
                normalized_score=reading.normalized,
                execution_time=reading.seconds,
                cached=reading.cached,
                crops=len(reading.crops),
            )
        )
    fusion = read_and_fuse(prompt, [log.normalized_score for log in logs], images)
    return fusion.model_dump() | {"final_answer": fused_letter(fusion), "tools": logs}


def _record(images: OpenImages) -> dict[str, Any]:
    """Tokens, views, model and warnings of an assessment, as far as it came."""
    usage, client = images.usage, images.services.client(ROLE)
    views = images.seen_views(ROLE)
    for box, seen in views:
        size = (box[2] - box[0], box[3] - box[1])
        if seen.width is None:
            images.warn(f"{client.name}'s processor resizes and tiles: which pixels it saw is not known exactly")
        elif size != (seen.width, seen.height) and size[0] * size[1] > seen.width * seen.height:
            images.warn(
                f"{client.name}'s processor resized {size[0]}×{size[1]} pixels to {seen.width}×{seen.height}: distortions may look milder"
            )
    return {
        "tokens": Tokens(**asdict(usage)),
        "seen": Seen(
            pixels=None if any(v.width is None for _, v in views) else sum(v.width * v.height for _, v in views),
            tokens=sum(v.tokens for _, v in views),
            views=[SeenView(box=box, pixels=v.width and (v.width, v.height), tokens=v.tokens) for box, v in views],
        )
        if views
        else None,
        "sha256": images.image.sha256,
        "model": client.describe(),
        "warnings": images.warnings,
    }
