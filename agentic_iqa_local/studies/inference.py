"""Everything that a study needs of one image, in one pass: no mode is chosen here, `modes` derives
them all later.

The agent plans and gathers evidence as always. Then the letters are read image alone and with all
evidence, each right after {"final_answer": " with the letters forward (A. Excellent) and reversed
(A. Bad, stored by meaning). Beside the image alone its crops are read too (`CROPS`), as an
assessment does that is to be surer.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentic_iqa_local.graph import initial_state, run_graph
from agentic_iqa_local.images.reading import ImageError
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, Prompt, summarizer_prompt
from agentic_iqa_local.nodes.replies import answer_reply
from agentic_iqa_local.nodes.sessions import RoleSession
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.services import Observer, Services
from agentic_iqa_local.state import LETTERS, ExecutorOutput
from agentic_iqa_local.studies.datasets import Question, RatedImage
from agentic_iqa_local.studies.eye_curve import stored_statistics
from agentic_iqa_local.vlm_client import VLMError

CROPS = "image_alone/crops"  # the name of that read
MEANING = dict(zip(LETTERS, reversed(LETTERS), strict=True))  # of a letter in the reversed order


@dataclass(frozen=True)
class Plan:
    """What is asked of each image, and the tools that measure it beside those of the agent."""

    query: str = DEFAULT_QUERY
    tools: tuple[str, ...] = ()


def infer(
    sample: RatedImage, plan: Plan, services: Services, observer: Observer | None = None
) -> dict[str, Any]:
    """A row's part that comes from models and tools. What fails is an `error` where it failed;
    nothing is filled in."""
    try:
        bench = Workbench(services, *_paths(sample), observer)
    except ImageError as error:
        return {"error": str(error)}
    row: dict[str, Any] = {}
    try:
        _read_all(plan, bench, row)
    except VLMError as error:
        row |= {"error": str(error), "model_failed": not isinstance(error, InvalidAnswer)}
    finally:
        row |= {"sha256": bench.pictures.image.sha256, "warnings": bench.warnings}
        bench.close()
    return row


def _read_all(plan: Plan, bench: Workbench, row: dict[str, Any]) -> None:
    """Puts the agent's work and its cost, the tools' scores and the letters into `row`."""
    began = time.perf_counter()
    evidence = _gather(plan.query, bench, row)
    seconds, used = time.perf_counter() - began, bench.models.usage
    tokens = {"prefilled": used.prefilled, "reused": used.reused, "decoded": used.decoded}
    row["cost"] = {"agent": {"seconds": seconds, **tokens}}
    row["tools"] = {tool: _tool(tool, bench, row["cost"]) for tool in plan.tools}
    row |= _statistics(bench)
    prompts, models = _prompts(plan.query, None), bench.models
    reads = row["reads"] = {"image_alone": {"views": _views(bench, prompts)}}
    crops = [_letters(session, prompts) for session in models.sessions(ROLE, models.crops(ROLE))]
    if crops:
        reads[CROPS] = {"views": crops}
    if evidence is not None:
        reads["all_evidence"] = {"views": _views(bench, _prompts(plan.query, evidence))}


def answer(
    sample: Question, services: Services, observer: Observer | None = None
) -> dict[str, Any]:
    """A row of a multiple-choice question: the probability of each choice, whether a measurement is
    part of it, and the letter that the agent answered; and `alone` the probabilities by the
    pipeline letters, which reads the picture alone."""
    asked = (*_paths(sample), sample.question, sample.choices)
    result = assess(*asked, services=services, observer=observer)
    alone = assess(*asked, pipeline="letters", services=services, observer=observer)
    row = {
        "probabilities": result.p and list(result.p.values()),
        "measured": result.fusion is not None and result.fusion.product is not None,
        "alone": alone.p and list(alone.p.values()),
        "answered": None if result.error else result.final_answer,
        "plan": result.plan and result.plan.model_dump(mode="json"),
        "sha256": result.sha256,
        "warnings": result.warnings,
    }
    if result.error:
        row["error"] = result.error
    return row


def _paths(sample: RatedImage | Question) -> tuple[str, str | None]:
    return str(sample.image), sample.reference and str(sample.reference)


def _gather(query: str, bench: Workbench, row: dict[str, Any]) -> ExecutorOutput | None:
    """The whole agent: plan, evidence and its own result go into `row`."""
    pictures, limit = bench.pictures, bench.services.settings.max_replan_iterations
    paths = pictures.image.path, pictures.reference and pictures.reference.path
    state = run_graph(initial_state(query, *paths, limit), bench)
    evidence, result = state.get("executor_evidence"), state.get("summarizer_result")
    for key, told in (("plan", state.get("plan")), ("evidence", evidence), ("agent", result)):
        row[key] = told and told.model_dump(mode="json")
    failed = (told.error for told in (evidence, result) if told)
    row["agent_error"] = state.get("error") or next(filter(None, failed), None)
    return evidence


def _prompts(query: str, evidence: ExecutorOutput | None) -> list[Prompt]:
    """What is asked with the letters forward, and reversed."""
    return [
        summarizer_prompt(query, evidence, scoring=True, reversed_letters=turned)
        for turned in (False, True)
    ]


def _views(bench: Workbench, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """Letters of every view in both orders, and the letter that the model writes."""
    views = []
    schema, section = answer_reply(LETTERS, reasoned=False), bench.services.section(ROLE)
    for session in bench.models.sessions(ROLE, bench.models.views(ROLE)):
        letters = _letters(session, prompts)
        reply = ask(session, prompts[0], schema, section)
        views.append(letters | {"generated": reply.final_answer})
    return views


def _letters(session: RoleSession, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Log-probabilities of the letters in both orders, by what they mean in the usual order."""
    usual, opposite = (
        session.read_letters(prompt, ANSWER_PREFIX, LETTERS).logprobs for prompt in prompts
    )
    turned = {MEANING[letter]: value for letter, value in opposite.items()}
    return {"forward": usual, "reversed": turned}


def _statistics(bench: Workbench) -> dict[str, str]:
    """LocalNR's statistics, which an eye can learn from; none of a picture with a reference, or too
    small."""
    if bench.pictures.has_reference:
        return {}
    try:
        examined = bench.services.tools.examine(bench.pictures.image.pixels)
    except ToolError:
        return {}
    return {"statistics": stored_statistics(examined.statistics)}


def _tool(tool: str, bench: Workbench, costs: dict[str, Any]) -> dict[str, Any]:
    try:
        reading = bench.tools.score(tool)
    except ToolError as error:
        return {"error": str(error)}
    costs[tool] = {"seconds": reading.seconds}
    return {"raw": reading.raw, "normalized": reading.normalized}
