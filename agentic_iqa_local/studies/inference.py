"""Everything that a study needs of one image, in one pass: no mode is chosen here, `readings` derives them all later.

The agent plans and gathers evidence as always. Then the letters are read image alone, with evidence but without scores,
and with all evidence, each right after {"final_answer": " with the letters forward (A. Excellent) and reversed (A. Bad,
stored by meaning). Beside the image alone its crops are read too (`CROPS`), as an assessment does that is to be surer.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from agentic_iqa_local.graph import initial_state, run_graph
from agentic_iqa_local.images.reading import ImageError
from agentic_iqa_local.iqa_tools import ToolError
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, Prompt, summarizer_prompt
from agentic_iqa_local.nodes.replies import letter_reply
from agentic_iqa_local.nodes.workbench import Observer, OpenImages, RoleSession
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LETTERS, ExecutorOutput
from agentic_iqa_local.vlm_client import VLMError

CROPS = "image_alone/crops"  # the name of that read
CONTEXTS = ("image_alone", "without_scores", "all_evidence")
USUAL = dict(zip(LETTERS, LETTERS, strict=True))
MEANING = dict(zip(LETTERS, reversed(LETTERS), strict=True))  # of a letter in the reversed order

View = dict[str, Any]  # log-probabilities of the letters, "forward" and "reversed", and the letter "generated"


def infer(
    image: str,
    reference: str | None,
    query: str,
    services: Services,
    *,
    contexts: Sequence[str] = CONTEXTS,
    tools: Sequence[str] = (),
    observer: Observer | None = None,
) -> dict[str, Any]:
    """A row's part that comes from models and tools. What fails is an `error` where it failed; nothing is filled in."""
    try:
        images = OpenImages(services, image, reference, observer)
    except ImageError as error:
        return {"error": str(error)}
    row: dict[str, Any] = {"cost": {}}
    try:
        with _cost(images, row, "agent"):  # before the tools, so that it pays for those that it runs
            evidence = _gather(query, images, row)
        row["tools"] = {tool: _tool(tool, images) for tool in tools}
        row["reads"] = {}
        without_scores = evidence and evidence.model_copy(update={"quality_scores": None, "tool_logs": []})
        shown = {"image_alone": None, "without_scores": without_scores, "all_evidence": evidence}
        for context in contexts:
            usual = summarizer_prompt(query, shown[context], scoring=True)
            prompts = usual, summarizer_prompt(query, shown[context], scoring=True, reversed_letters=True)
            if context == "image_alone" or evidence is not None:
                row["reads"][context] = {"views": list(_views(images, prompts, row, context))}
            if context == "image_alone" and images.crops(ROLE):
                row["reads"][CROPS] = {"views": list(_crops(images, prompts, row))}
    except (VLMError, InvalidAnswer) as error:
        row |= {"error": str(error), "model_failed": isinstance(error, VLMError)}
    finally:
        row["seen"] = [{"box": box, "tokens": seen.tokens} for box, seen in images.seen_views(ROLE)]
        row |= {"sha256": images.image.sha256, "warnings": images.warnings}
        images.close()
    return row


def answer(
    image: str,
    reference: str | None,
    question: str,
    choices: Sequence[str],
    services: Services,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """A row of a multiple-choice question: the probability of each choice and the letter that the agent answered, and
    `alone` the probabilities by the pipeline letters, which reads the picture alone."""
    told = {"services": services, "observer": observer}
    result = assess(image, reference, question, choices, **told)
    alone = assess(image, reference, question, choices, pipeline="letters", **told)
    tokens = result.tokens.model_dump() if result.tokens else {}
    row = {
        "probabilities": result.p and list(result.p.values()),
        "alone": alone.p_c and list(alone.p_c.values()),
        "answered": None if result.error else result.final_answer,
        "plan": result.plan and result.plan.model_dump(mode="json"),
        "cost": {"agent": {"seconds": result.seconds} | tokens},
        "sha256": result.sha256,
        "warnings": result.warnings,
    }
    return row | ({"error": result.error} if result.error else {})


@contextmanager
def _cost(images: OpenImages, row: dict[str, Any], name: str) -> Iterator[None]:
    """Adds seconds and tokens of a block to row["cost"]."""
    began, before = time.perf_counter(), asdict(images.usage)
    try:
        yield
    finally:
        spent = {key: value - before[key] for key, value in asdict(images.usage).items()}
        spent["seconds"] = time.perf_counter() - began
        known = row["cost"].get(name, {})
        row["cost"][name] = {key: value + known.get(key, 0) for key, value in spent.items()}


def _gather(query: str, images: OpenImages, row: dict[str, Any]) -> ExecutorOutput | None:
    """The whole agent: plan, evidence and its own result go into `row`."""
    paths = images.image.path, images.reference and images.reference.path
    state = run_graph(initial_state(query, *paths, images.services.settings.max_replan_iterations), images)
    plan, evidence, result = (state.get(name) for name in ("plan", "executor_evidence", "summarizer_result"))
    own = {"final_answer", "quality_reasoning", "fusion"}
    row |= {
        "plan": plan and plan.model_dump(mode="json"),
        "plan_corrections": state.get("plan_corrections", []),
        "replan_history": state.get("replan_history", []),
        "passes": [told.model_dump(mode="json") for told in result.passes] if result else [],
        "evidence": evidence and evidence.model_dump(mode="json"),
        "agent": result and result.model_dump(mode="json", include=own),
        "agent_error": state.get("error") or (evidence and evidence.error) or (result and result.error),
    }
    return evidence


def _views(images: OpenImages, prompts: Sequence[Prompt], row: dict[str, Any], name: str) -> Iterator[View]:
    """Letters of every view in both orders, and the letter that the model writes; each has its cost in `row`."""
    for view in range(len(images.views(ROLE))):
        session = images.session(ROLE, view)
        with _cost(images, row, name):
            read = _letters(session, prompts[0])
        with _cost(images, row, f"{name}, generated"):
            reply = ask(session, prompts[0], letter_reply(LETTERS), images.services.section(ROLE))
        with _cost(images, row, f"{name}, reversed"):
            opposite = _letters(session, prompts[1], MEANING)
        yield {"forward": read, "generated": reply.final_answer, "reversed": opposite}
        if view > 0:
            images.close_session(ROLE, view)


def _crops(images: OpenImages, prompts: Sequence[Prompt], row: dict[str, Any]) -> Iterator[View]:
    """Letters of each crop by itself in both orders."""
    for crop in images.crops(ROLE):
        with _cost(images, row, CROPS), images.session_on(ROLE, crop) as session:
            read = {"forward": _letters(session, prompts[0]), "reversed": _letters(session, prompts[1], MEANING)}
        yield read


def _letters(session: RoleSession, prompt: Prompt, meaning: Mapping[str, str] = USUAL) -> dict[str, float]:
    """Log-probabilities of the letters, by what they mean in the usual order."""
    read = session.read_letters(prompt, ANSWER_PREFIX, LETTERS)
    return {meaning[letter]: value for letter, value in read.logprobs.items()}


def _tool(tool: str, images: OpenImages) -> dict[str, Any]:
    try:
        reading = images.score(tool)
    except ToolError as error:
        return {"error": str(error)}
    scored = {"raw": reading.raw, "normalized": reading.normalized, "seconds": reading.seconds}
    return scored | ({"crops": len(reading.crops)} if reading.crops else {})
