"""Everything that a study needs of one image, in one pass: no mode is chosen here, `readings` derives them
all later.

The agent plans and gathers evidence as always. Then the letters are read image alone, with evidence but
without scores, and with all evidence, each with the letters forward (A. Excellent) and reversed (A. Bad,
stored by meaning), at each position asked for:

    json              right after {"final_answer": "        the product's own read
    bare              as the answer's first token
    after_reasoning   in JSON whose reasoning, written by the model, stands before the letter

Beside the image alone its crops are read too (`CROPS`), as an assessment does that is to be surer of q.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints

from agentic_iqa_local.graph import initial_state, run_graph
from agentic_iqa_local.images.crops import Box
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
POSITIONS = ("json", "bare", "after_reasoning")
MEANING = dict(zip(LETTERS, reversed(LETTERS), strict=True))  # of a letter in the reversed order


class ReasoningReply(BaseModel):
    """The reasoning alone, before any letter."""

    model_config = ConfigDict(extra="forbid")

    quality_reasoning: Annotated[str, StringConstraints(min_length=1, max_length=300)]


def infer(
    image: str,
    reference: str | None,
    query: str,
    services: Services,
    *,
    contexts: Sequence[str] = CONTEXTS,
    positions: Sequence[str] = ("json",),
    tools: Sequence[str] = (),
    observer: Observer | None = None,
) -> dict[str, Any]:
    """A row's part that comes from models and tools. What fails is an `error` where it failed; nothing is
    filled in."""
    try:
        images = OpenImages(services, image, reference, observer)
    except ImageError as error:
        return {"error": str(error)}
    row: dict[str, Any] = {"cost": {}}
    try:
        with _Cost(images, row, "agent"):  # before the tools, so that it pays for those that it runs
            evidence = _gather(query, images, row)
        row["tools"] = {tool: _tool(tool, images) for tool in tools}
        row["reads"] = {}
        for context in contexts:
            given = {
                "image_alone": None,
                "without_scores": _without_scores(evidence),
                "all_evidence": evidence,
            }[context]
            if context != "image_alone" and given is None:
                continue
            for position in positions:
                name = context if position == "json" else f"{context}/{position}"
                row["reads"][name] = _reads(query, given, position, images, row, name)
            if context == "image_alone" and (crops := images.crops(ROLE)):
                row["reads"][CROPS] = _crops(query, crops, images, row)
    except (VLMError, InvalidAnswer) as error:
        row["error"] = str(error)
        row["model_failed"] = isinstance(error, VLMError)
    finally:
        row["seen"] = [{"box": box, "tokens": seen.tokens} for box, seen in images.seen_views(ROLE)]
        row["sha256"] = images.image.sha256
        row["warnings"] = images.warnings
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
    """A multiple-choice question through the whole agent: the probability of each choice and the letter that
    was answered; `alone` are the probabilities by the pipeline letters, which reads the picture alone."""
    result = assess(image, reference, question, choices, services=services, observer=observer)
    alone = assess(
        image, reference, question, choices, pipeline="letters", services=services, observer=observer
    )
    return {
        "probabilities": result.p and list(result.p.values()),
        "alone": alone.p_c and list(alone.p_c.values()),
        "answered": result.final_answer if result.error is None else None,
        "plan": result.plan and result.plan.model_dump(mode="json"),
        "cost": {
            "agent": {"seconds": result.seconds} | (result.tokens.model_dump() if result.tokens else {})
        },
        "sha256": result.sha256,
        "warnings": result.warnings,
        **({"error": result.error} if result.error else {}),
    }


class _Cost:
    """Seconds and tokens of a block, added to row["cost"]."""

    def __init__(self, images: OpenImages, row: dict[str, Any], name: str):
        self.images, self.row, self.name = images, row, name

    def __enter__(self) -> None:
        self.began, self.before = time.perf_counter(), asdict(self.images.usage)

    def __exit__(self, *_: object) -> None:
        spent = {key: value - self.before[key] for key, value in asdict(self.images.usage).items()}
        spent["seconds"] = time.perf_counter() - self.began
        known = self.row["cost"].get(self.name, {})
        self.row["cost"][self.name] = {key: value + known.get(key, 0) for key, value in spent.items()}


def _gather(query: str, images: OpenImages, row: dict[str, Any]) -> ExecutorOutput | None:
    """The whole agent: plan, evidence and its own result go into `row`."""
    paths = images.image.path, images.reference and images.reference.path
    state = run_graph(initial_state(query, *paths, images.services.settings.max_replan_iterations), images)
    evidence, result = state.get("executor_evidence"), state.get("summarizer_result")
    row["plan"] = state["plan"].model_dump(mode="json") if "plan" in state else None
    row["plan_corrections"] = state.get("plan_corrections", [])
    row["replan_history"] = state.get("replan_history", [])
    row["passes"] = [told.model_dump(mode="json") for told in result.passes] if result else []
    row["evidence"] = evidence and evidence.model_dump(mode="json")
    row["agent"] = result and result.model_dump(
        mode="json", include={"final_answer", "quality_reasoning", "fusion"}
    )
    row["agent_error"] = state.get("error") or (evidence and evidence.error) or (result and result.error)
    return evidence


def _without_scores(evidence: ExecutorOutput | None) -> ExecutorOutput | None:
    return evidence and evidence.model_copy(update={"quality_scores": None, "tool_logs": []})


def _reads(
    query: str,
    evidence: ExecutorOutput | None,
    position: str,
    images: OpenImages,
    row: dict[str, Any],
    name: str,
) -> dict[str, Any]:
    """Letters of every view, forward and reversed, by meaning, and the letter that the model writes by
    itself; each has a cost of its own in `row`."""
    forward = summarizer_prompt(query, evidence, scoring=True)
    backward = summarizer_prompt(query, evidence, scoring=True, reversed_letters=True)
    views: list[dict[str, Any]] = []
    for view in range(len(images.views(ROLE))):
        session = images.session(ROLE, view)
        with _Cost(images, row, name):
            begun = _begun(forward, position, images, session)
            read = session.read_letters(forward, begun, LETTERS)
        found = {"forward": read.logprobs, "off_letters": read.off_letter_mass}
        if position == "json":
            with _Cost(images, row, f"{name}, generated"):
                reply = ask(session, forward, letter_reply(LETTERS), images.services.section(ROLE))
            found["generated"] = reply.final_answer
        with _Cost(images, row, f"{name}, reversed"):
            begun = _begun(backward, position, images, session)
            read = session.read_letters(backward, begun, LETTERS)
        found["reversed"] = _by_meaning(read.logprobs)
        views.append(found)
        if view > 0:
            images.close_session(ROLE, view)
    return {"views": views}


def _crops(query: str, crops: Sequence[Box], images: OpenImages, row: dict[str, Any]) -> dict[str, Any]:
    """Letters of each crop by itself, forward and reversed, by meaning."""
    forward = summarizer_prompt(query, None, scoring=True)
    backward = summarizer_prompt(query, None, scoring=True, reversed_letters=True)
    views: list[dict[str, Any]] = []
    with _Cost(images, row, CROPS):
        for crop in crops:
            with images.session_on(ROLE, crop) as session:
                read = session.read_letters(forward, ANSWER_PREFIX, LETTERS)
                opposite = session.read_letters(backward, ANSWER_PREFIX, LETTERS)
            views.append(
                {
                    "forward": read.logprobs,
                    "off_letters": read.off_letter_mass,
                    "reversed": _by_meaning(opposite.logprobs),
                }
            )
    return {"views": views}


def _by_meaning(logprobs: Mapping[str, float]) -> dict[str, float]:
    """What was read of the reversed letters, under the letters of the usual order."""
    return {MEANING[letter]: value for letter, value in logprobs.items()}


def _begun(prompt: Prompt, position: str, images: OpenImages, session: RoleSession) -> str:
    """The answer up to the letter."""
    if position == "json":
        return ANSWER_PREFIX
    if position == "bare":
        return ""
    reasoning = ask(session, prompt, ReasoningReply, images.services.section(ROLE)).model_dump_json()
    return f'{json.dumps(json.loads(reasoning), ensure_ascii=False)[:-1]}, "final_answer": "'


def _tool(tool: str, images: OpenImages) -> dict[str, Any]:
    try:
        reading = images.score(tool)
    except ToolError as error:
        return {"error": str(error)}
    found = {"raw": reading.raw, "normalized": reading.normalized, "seconds": reading.seconds}
    return found | ({"crops": len(reading.crops)} if reading.crops else {})
