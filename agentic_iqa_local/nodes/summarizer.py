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
    Evidence,
    find_gaps,
    should_replan,
    summed_up,
    votes,
)
from agentic_iqa_local.nodes.letter_reading import ROLE, answer_letter, read_and_fuse, read_choices
from agentic_iqa_local.nodes.measured_answers import SCORES, measure_choices
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    choice_letters,
    earlier_lines,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.reasoning import from_evidence, reasoned
from agentic_iqa_local.nodes.repetition import sound
from agentic_iqa_local.nodes.replanning import (
    append_replan_reason,
    replan_limit,
)
from agentic_iqa_local.nodes.replies import answer_reply
from agentic_iqa_local.nodes.workbench import Workbench, opened
from agentic_iqa_local.state import (
    LETTERS,
    AgenticIQAState,
    FusionResult,
    PlannerOutput,
    SummarizerOutput,
    revised,
)
from agentic_iqa_local.vlm_client import VLMError

__all__ = ["ROLE", "should_replan", "summarizer_node", "without_words"]

logger = logging.getLogger(__name__)

NO_ANSWER = "Unable to determine"


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
    try:
        with opened(state, config, runtime) as bench:
            bench.models.evidence = evidence
            answer = summarize(state, plan, scoring, bench)
            if answer.error and _earlier(state):
                failed = f"another pass was asked for and failed ({answer.error})"
                bench.warn(f"{failed}; the answer is that of the pass before")
    except (VLMError, OSError, ValueError) as error:
        answer = _without_answer(error)
    return close_pass(state, plan, answer)


# The answer


def summarize(
    state: AgenticIQAState, plan: PlannerOutput, scoring: bool, bench: Workbench
) -> SummarizerOutput:
    """The answer, without the replan decision; where the model failed in three tries, one with that
    `error`, and with the fusion if that was read."""
    query, choices, evidence = state["query"], state.get("choices"), state.get("executor_evidence")
    earlier = earlier_lines(state.get("prior_context"))
    prompt = summarizer_prompt(query, evidence, scoring=scoring, choices=choices, earlier=earlier)
    letters, fusion, begun = None, None, ""
    try:
        if scoring:
            letters, scores = LETTERS, votes(evidence, bench.settings.fusion.vote)
            about = {"plan": plan, "objects": plan.objects}
            fusion = read_and_fuse(query, evidence, scores, bench, earlier=earlier, **about)
        elif choices:
            letters = choice_letters(choices)
            read = read_choices(prompt, letters, bench, plan.objects)
            fusion = _with_measurement(read, state, plan, bench)
        if fusion:
            begun = ANSWER_PREFIX + answer_letter(fusion)
        schema, section = answer_reply(letters), bench.services.section(ROLE)
        written = ask(bench.models.session(ROLE), prompt, schema, section, answer_prefix=begun)
    except (InvalidAnswer, VLMError) as error:
        return _without_answer(error, fusion)
    words = sound(written.quality_reasoning, "its reasoning", bench.warn)
    answer = sound(written.final_answer, "its answer", bench.warn)
    result = SummarizerOutput(
        final_answer=answer or " ".join(from_evidence(evidence, fusion, choices)) or NO_ANSWER,
        quality_reasoning=reasoned(words, evidence, fusion, choices),
        fusion=fusion,
    )
    if evidence and not evidence.is_empty:
        used = {"distortion_analysis", "quality_scores"}
        result.used_evidence = evidence.model_dump(include=used, mode="json")
    return result


def _without_answer(error: Exception, fusion: FusionResult | None = None) -> SummarizerOutput:
    """The fallback's honest failure."""
    reason = one_line(str(error))
    logger.error("Summarizer failed: %s", reason)
    unread = isinstance(error, InvalidAnswer)
    return SummarizerOutput(
        final_answer=NO_ANSWER,
        quality_reasoning="VLM output parsing failed" if unread else "VLM call failed",
        fusion=fusion,
        error=f"Summarizer: {reason}",
    )


def _earlier(state: AgenticIQAState) -> SummarizerOutput | None:
    """The answer of the pass before, which asked for this one."""
    result = state.get("summarizer_result")
    return result if result and result.need_replan else None


def _with_measurement(
    letters: FusionResult, state: AgenticIQAState, plan: PlannerOutput, bench: Workbench
) -> FusionResult:
    """The letters of a question, about distortions as far as the model is trusted, times what was
    measured."""
    evidence, choices = state.get("executor_evidence"), state.get("choices", [])
    measured, basis = measure_choices(state["query"], choices, plan, evidence)
    letters.measurement = basis
    if measured is None:
        return letters
    trust = 1.0 if basis == SCORES else bench.services.model_trust(ROLE)
    weights = {letter: p**trust * measured[letter] for letter, p in letters.p_c.items()}
    total = sum(weights.values())
    letters.measured, letters.product = measured, letters.p_c
    if total:
        letters.product = {letter: weight / total for letter, weight in weights.items()}
    return letters


def without_words(
    fusion: FusionResult, evidence: Evidence, choices: Sequence[str] | None
) -> SummarizerOutput:
    """The answer of a fusion whose reasoning failed: its letter, and sentences made of the
    evidence."""
    reasoning = reasoned(None, evidence, fusion, choices)
    return SummarizerOutput(
        final_answer=answer_letter(fusion), quality_reasoning=reasoning, fusion=fusion
    )


# The decision


def close_pass(
    state: AgenticIQAState, plan: PlannerOutput, answer: SummarizerOutput
) -> dict[str, Any]:
    """The state's changes after a pass: its answer, or that of the pass before where this one has
    none, and whether to plan again."""
    iteration, before = state.get("iteration_count", 0), _earlier(state)
    if not answer.error:
        answer.gaps = find_gaps(state.get("executor_evidence"), plan, answer.fusion)
    elif before:
        answer = revised(before, need_replan=False, replan_reason=None, gaps=[])
    gaps = answer.gaps
    changes = {"summarizer_result": answer, "iteration_count": iteration}
    if not gaps:
        return changes
    reason = answer.replan_reason = gaps[0].reason
    if iteration >= replan_limit(state):
        logger.warning("Max replanning iterations reached")
        return changes
    told = "need_replan=true, replan_reason=%s, iteration_count=%d"
    logger.info(told, one_line(reason), iteration)
    answer.need_replan = True
    history = append_replan_reason(state.get("replan_history", []), iteration + 1, reason)
    return changes | {"iteration_count": iteration + 1, "replan_history": history}
