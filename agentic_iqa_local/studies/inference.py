"""Everything that a study needs of one image, in one pass: no mode is chosen here, `readings` derives them all later.

The agent plans and gathers evidence as always. Then the letters are read image alone, with evidence but without scores,
and with all evidence, each right after {"final_answer": " with the letters forward (A. Excellent) and reversed (A. Bad,
stored by meaning). Beside the image alone its crops are read too (`CROPS`), as an assessment does that is to be surer.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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
from agentic_iqa_local.state import CONTEXTS, LETTERS, ExecutorOutput
from agentic_iqa_local.studies.datasets import Question, RatedImage
from agentic_iqa_local.vlm_client import VLMError

CROPS = "image_alone/crops"  # the name of that read
MEANING = dict(zip(LETTERS, reversed(LETTERS), strict=True))  # of a letter in the reversed order

Spending = Callable[
    [str], AbstractContextManager[None]
]  # a block whose seconds and tokens count to a part of the cost
View = dict[
    str, Any
]  # log-probabilities of the letters, "forward" and "reversed", and the letter "generated"


@dataclass(frozen=True)
class Plan:
    """What is read of each image."""

    query: str = DEFAULT_QUERY
    contexts: tuple[str, ...] = CONTEXTS
    tools: tuple[str, ...] = ()


def infer(
    sample: RatedImage, plan: Plan, services: Services, observer: Observer | None = None
) -> dict[str, Any]:
    """A row's part that comes from models and tools. What fails is an `error` where it failed; nothing is filled in."""
    try:
        bench = Workbench(services, *_paths(sample), observer)
    except ImageError as error:
        return {"error": str(error)}
    row: dict[str, Any] = {"cost": {}}

    @contextmanager
    def spending(part: str) -> Iterator[None]:
        began, before = time.perf_counter(), bench.models.usage
        yield
        used, seconds = bench.models.usage - before, time.perf_counter() - began
        spent = {
            "seconds": seconds,
            "prefilled": used.prefilled,
            "reused": used.reused,
            "decoded": used.decoded,
        }
        row["cost"].setdefault(part, Counter()).update(spent)

    try:
        with spending("agent"):  # before the tools, so that it pays for those that it runs
            evidence = _gather(plan.query, bench, row)
        row["tools"] = {tool: _tool(tool, bench, row["cost"]) for tool in plan.tools}
        row["reads"] = {}
        without_scores = evidence and evidence.model_copy(update={"tool_logs": []})
        shown = {"image_alone": None, "without_scores": without_scores, "all_evidence": evidence}
        for context in plan.contexts:
            usual = summarizer_prompt(plan.query, shown[context], scoring=True)
            prompts = (
                usual,
                summarizer_prompt(plan.query, shown[context], scoring=True, reversed_letters=True),
            )
            if context == "image_alone" or evidence is not None:
                row["reads"][context] = {"views": list(_views(bench, prompts, context, spending))}
            if context == "image_alone" and bench.models.crops(ROLE):
                row["reads"][CROPS] = {"views": list(_crops(bench, prompts, spending))}
    except (VLMError, InvalidAnswer) as error:
        row |= {"error": str(error), "model_failed": isinstance(error, VLMError)}
    finally:
        row["seen"] = [
            {"box": box, "tokens": seen.tokens} for box, seen in bench.models.seen_views(ROLE)
        ]
        row |= {"sha256": bench.pictures.image.sha256, "warnings": bench.warnings}
        bench.close()
    return row


def answer(
    sample: Question, services: Services, observer: Observer | None = None
) -> dict[str, Any]:
    """A row of a multiple-choice question: the probability of each choice, whether a measurement is part of it, and
    the letter that the agent answered; and `alone` the probabilities by the pipeline letters, which reads the picture
    alone."""
    told = {"services": services, "observer": observer}
    result = assess(*_paths(sample), sample.question, sample.choices, **told)
    alone = assess(*_paths(sample), sample.question, sample.choices, pipeline="letters", **told)
    row = {
        "probabilities": result.p and list(result.p.values()),
        "measured": result.fusion is not None and result.fusion.product is not None,
        "alone": alone.p and list(alone.p.values()),
        "answered": None if result.error else result.final_answer,
        "plan": result.plan and result.plan.model_dump(mode="json"),
        "sha256": result.sha256,
        "warnings": result.warnings,
    }
    return row | ({"error": result.error} if result.error else {})


def _paths(sample: RatedImage | Question) -> tuple[str, str | None]:
    return str(sample.image), sample.reference and str(sample.reference)


def _gather(query: str, bench: Workbench, row: dict[str, Any]) -> ExecutorOutput | None:
    """The whole agent: plan, evidence and its own result go into `row`."""
    paths = bench.pictures.image.path, bench.pictures.reference and bench.pictures.reference.path
    state = run_graph(
        initial_state(query, *paths, bench.services.settings.max_replan_iterations), bench
    )
    plan, evidence, result = (
        state.get(name) for name in ("plan", "executor_evidence", "summarizer_result")
    )
    own = {"final_answer", "quality_reasoning", "fusion"}
    row |= {
        "plan": plan and plan.model_dump(mode="json"),
        "plan_corrections": state.get("plan_corrections", []),
        "replan_history": state.get("replan_history", []),
        "passes": [told.model_dump(mode="json") for told in result.passes] if result else [],
        "evidence": evidence and evidence.model_dump(mode="json"),
        "agent": result and result.model_dump(mode="json", include=own),
        "agent_error": state.get("error")
        or (evidence and evidence.error)
        or (result and result.error),
    }
    return evidence


def _views(
    bench: Workbench, prompts: Sequence[Prompt], read: str, spending: Spending
) -> Iterator[View]:
    """Letters of every view in both orders, and the letter that the model writes."""
    for session in bench.models.sessions(ROLE, bench.models.views(ROLE)):
        letters = _letters(session, prompts, read, spending)
        with spending(f"{read}, generated"):
            reply = ask(
                session,
                prompts[0],
                answer_reply(LETTERS, reasoned=False),
                bench.services.section(ROLE),
            )
        yield letters | {"generated": reply.final_answer}


def _crops(bench: Workbench, prompts: Sequence[Prompt], spending: Spending) -> Iterator[View]:
    """Letters of each crop by itself in both orders."""
    for session in bench.models.sessions(ROLE, bench.models.crops(ROLE)):
        yield _letters(session, prompts, CROPS, spending)


def _letters(
    session: RoleSession, prompts: Sequence[Prompt], read: str, spending: Spending
) -> View:
    """Log-probabilities of the letters in both orders, by what they mean in the usual order."""
    with spending(f"{read}, both orders"):
        with spending(f"{read}, forward"):
            usual = session.read_letters(prompts[0], ANSWER_PREFIX, LETTERS).logprobs
        opposite = session.read_letters(prompts[1], ANSWER_PREFIX, LETTERS).logprobs
    return {
        "forward": usual,
        "reversed": {MEANING[letter]: value for letter, value in opposite.items()},
    }


def _tool(tool: str, bench: Workbench, costs: dict[str, Any]) -> dict[str, Any]:
    try:
        reading = bench.tools.score(tool)
    except ToolError as error:
        return {"error": str(error)}
    costs[tool] = {"seconds": reading.seconds}
    scored = {"raw": reading.raw, "normalized": reading.normalized}
    return scored | ({"crops": len(reading.crops)} if reading.crops else {})
