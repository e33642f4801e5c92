"""The Summarizer: evidence and image in, an answer with its probabilities out, and whether to plan
again.

The letters are read at the JSON value position of the answer, fused with the tools' scores, and the
fused letter is written there; the reasoning follows. The user's own choices are read so too; other
questions get free text.
"""

import logging
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.evidence import (
    find_gaps,
    should_replan,
    summed_up,
)
from agentic_iqa_local.nodes.letter_reading import ROLE, read_and_fuse, read_choices
from agentic_iqa_local.nodes.measured_answers import SCORES, measure_choices
from agentic_iqa_local.nodes.prompts import (
    Prompt,
    earlier_lines,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.query import distortions_in
from agentic_iqa_local.nodes.reasoning import answers, from_evidence, reasoned
from agentic_iqa_local.nodes.regions import unplaced
from agentic_iqa_local.nodes.replanning import (
    append_replan_reason,
    replan_limit,
)
from agentic_iqa_local.nodes.replies import answer_reply
from agentic_iqa_local.nodes.workbench import Workbench, opened
from agentic_iqa_local.nodes.written import sound
from agentic_iqa_local.score_fusion import answer_letter
from agentic_iqa_local.state import (
    AgenticIQAState,
    ExecutorOutput,
    FusionResult,
    PlannerOutput,
    SummarizerOutput,
)
from agentic_iqa_local.vlm_client import VLMError

__all__ = ["ROLE", "should_replan", "summarizer_node"]

logger = logging.getLogger(__name__)

NO_ANSWER = "Unable to determine"
NOTHING_USABLE = "The model wrote no answer that can be used, and nothing was measured."


def summarizer_node(
    state: AgenticIQAState,
    config: RunnableConfig | None = None,
    runtime: Runtime[Any] | None = None,
) -> dict[str, Any]:
    """Returns `summarizer_result`, whose `error` says why there is no answer, `iteration_count`
    and, on a replan, `replan_history`; nothing when an earlier node failed; `error` when the state
    lacks plan or evidence."""
    if state.get("error"):
        return {}
    plan, evidence = state.get("plan"), state.get("executor_evidence")
    if plan is None or "executor_evidence" not in state:
        missing = "plan" if plan is None else "executor_evidence"
        return {"error": f"Summarizer: the state has no {missing}; run the earlier nodes first"}
    scoring = plan.query_type == "IQA" and not state.get("choices")
    pictures = one_line(
        f"image={state['image_path']}, reference={state.get('reference_path') or 'none'}"
    )
    mode, known = "scoring" if scoring else "explanation/QA", summed_up(evidence)
    logger.info(
        "Summarizer: query_type=%s, mode=%s, %s, %s", plan.query_type, mode, known, pictures
    )
    fusion = None
    try:
        with opened(state, config, runtime) as bench:
            bench.models.evidence = evidence
            fusion = _read(state, plan, scoring, bench)
            answer = _written(state, plan, scoring, fusion, bench)
    except (VLMError, OSError, ValueError) as error:
        answer = _without_answer(error, fusion)
    return close_pass(state, plan, answer)


# The answer


def _prompt(state: AgenticIQAState, scoring: bool) -> Prompt:
    return summarizer_prompt(
        state["query"],
        state.get("executor_evidence"),
        scoring=scoring,
        choices=state.get("choices"),
        earlier=earlier_lines(state.get("prior_context")),
    )


def _read(
    state: AgenticIQAState, plan: PlannerOutput, scoring: bool, bench: Workbench
) -> FusionResult | None:
    """The probabilities of the answer's letters, fused with what was measured; None for a question
    that is answered in words. Raises VLMError."""
    query, choices, evidence = state["query"], state.get("choices"), state.get("executor_evidence")
    if scoring:
        earlier = earlier_lines(state.get("prior_context"))
        about = {"plan": plan, "objects": plan.objects}
        return read_and_fuse(query, evidence, bench, earlier=earlier, **about)
    if not choices:
        return None
    return _choose(_prompt(state, scoring), choices, state, plan, bench)


def _usable_answer(written: str, state: AgenticIQAState, bench: Workbench) -> str | None:
    """A free answer where it is sound and says nothing that was not found."""
    answer = sound(written, "its answer", bench.warn)
    if not answer or answers(answer, state["query"], state.get("executor_evidence")):
        return answer
    bench.warn(f"the model's answer is nothing that was found, and is left out: {answer}")
    return None


def _usable_reasoning(
    written: str, evidence: ExecutorOutput | None, bench: Workbench
) -> str | None:
    """A reasoning that is sound; where nobody looked for distortions, and the model's own word of
    them is worth nothing, one that leaves them out."""
    words = sound(written, "its reasoning", bench.warn)
    unlooked = evidence is None or not evidence.distortion_analysis
    if words and unlooked and not bench.services.model_trust(ROLE) and distortions_in(words):
        return None
    return words


def _written(
    state: AgenticIQAState,
    plan: PlannerOutput,
    scoring: bool,
    fusion: FusionResult | None,
    bench: Workbench,
) -> SummarizerOutput:
    """The answer with its reasoning, without the replan decision; it begins with the letter that
    was read. Raises VLMError."""
    choices, evidence = state.get("choices"), state.get("executor_evidence")
    schema = answer_reply([answer_letter(fusion)] if fusion else None)
    session, section = bench.models.session(ROLE), bench.services.section(ROLE)
    written = ask(session, _prompt(state, scoring), schema, section)
    words = _usable_reasoning(written.quality_reasoning, evidence, bench)
    answer = None if fusion else _usable_answer(written.final_answer, state, bench)
    regions = unplaced(state["query"], plan, bench.pictures.boxes)
    reasoning = reasoned(words, evidence, fusion, choices, regions, state["query"])
    told = " ".join(from_evidence(evidence, fusion, choices))
    if fusion is None and not (answer or told):
        answer, reasoning = NO_ANSWER, NOTHING_USABLE
    result = SummarizerOutput(
        final_answer=answer_letter(fusion) if fusion else answer or told,
        quality_reasoning=reasoning,
        fusion=fusion,
    )
    if evidence and not evidence.is_empty:
        used = {"distortion_analysis", "quality_scores"}
        result.used_evidence = evidence.model_dump(include=used, mode="json")
    return result


def _without_answer(error: Exception, fusion: FusionResult | None) -> SummarizerOutput:
    """The fallback's honest failure, with the fusion if that was read."""
    reason = one_line(str(error))
    logger.error("Summarizer failed: %s", reason)
    unread = isinstance(error, InvalidAnswer)
    return SummarizerOutput(
        final_answer=NO_ANSWER,
        quality_reasoning="VLM output parsing failed" if unread else "VLM call failed",
        fusion=fusion,
        error=f"Summarizer: {reason}",
    )


def _choose(
    prompt: Prompt,
    choices: Sequence[str],
    state: AgenticIQAState,
    plan: PlannerOutput,
    bench: Workbench,
) -> FusionResult:
    """The letters of a question, about distortions as far as the model is trusted, times what was
    measured. Raises VLMError."""
    evidence = state.get("executor_evidence")
    measured, basis = measure_choices(state["query"], choices, plan, evidence)
    trust = 1.0
    if measured and basis != SCORES:
        trust = bench.services.model_trust(ROLE)
    letters = read_choices(prompt, choices, bench, plan.objects, count=trust > 0)
    letters.measurement = basis
    if measured is None:
        return letters
    weights = {letter: p**trust * measured[letter] for letter, p in letters.p_c.items()}
    total = sum(weights.values())
    letters.measured, letters.product = measured, letters.p_c
    if total:
        letters.product = {letter: weight / total for letter, weight in weights.items()}
    return letters


# The decision


def close_pass(
    state: AgenticIQAState, plan: PlannerOutput, answer: SummarizerOutput
) -> dict[str, Any]:
    """The state's changes after a pass: its answer, and whether to plan again."""
    iteration = state.get("iteration_count", 0)
    changes = {"summarizer_result": answer, "iteration_count": iteration}
    if not answer.error:
        answer.gaps = find_gaps(state.get("executor_evidence"), plan, answer.fusion)
    if not answer.gaps:
        return changes
    reason = answer.replan_reason = answer.gaps[0].reason
    if iteration >= replan_limit(state):
        logger.warning("Max replanning iterations reached")
        return changes
    told = "need_replan=true, replan_reason=%s, iteration_count=%d"
    logger.info(told, one_line(reason), iteration)
    answer.need_replan = True
    history = append_replan_reason(state.get("replan_history", []), iteration + 1, reason)
    return changes | {"iteration_count": iteration + 1, "replan_history": history}
