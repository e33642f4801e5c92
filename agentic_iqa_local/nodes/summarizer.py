"""The Summarizer: evidence and image in, an answer with its probabilities out, and whether to plan again.

The letters are read at the JSON value position of the answer, fused with the tools' scores, and the fused letter is
written there; the reasoning follows. The user's own choices are read so too; other questions get free text.
"""

import logging
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes import replanning
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.detection import model_trust
from agentic_iqa_local.nodes.evidence import Evidence, by_object, find_gaps, should_replan, votes
from agentic_iqa_local.nodes.letter_reading import ROLE, answer_letter, read_and_fuse, read_choices
from agentic_iqa_local.nodes.measured_answers import SCORES, measure_choices
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, choice_letters, earlier_lines, is_scoring, summarizer_prompt
from agentic_iqa_local.nodes.reasoning import reasoned
from agentic_iqa_local.nodes.replies import summary_reply
from agentic_iqa_local.nodes.workbench import OpenImages, opened
from agentic_iqa_local.state import LETTERS, AgenticIQAState, Basis, FusionResult, SummarizerOutput, revised
from agentic_iqa_local.vlm_client import VLMError

__all__ = ["ROLE", "should_replan", "summarizer_node", "without_words"]

logger = logging.getLogger(__name__)


def summarizer_node(
    state: AgenticIQAState, config: RunnableConfig | None = None, runtime: Runtime[Any] | None = None
) -> dict[str, Any]:
    """Returns `summarizer_result`, `iteration_count` and, on a replan, `replan_history`; nothing when an earlier node
    failed; `error` when plan or evidence is missing from the state or the model cannot run."""
    if state.get("error"):
        return {}
    plan, evidence = state.get("plan"), state.get("executor_evidence")
    if plan is None or "executor_evidence" not in state:
        missing = "plan" if plan is None else "executor_evidence"
        return {"error": f"Summarizer: the state has no {missing}; run the earlier nodes first"}
    mode = "scoring" if is_scoring(plan, state.get("choices")) else "explanation/QA"
    kinds, scores = (
        sum(map(len, by_object(evidence, part).values())) for part in ("distortion_analysis", "quality_scores")
    )
    pictures = one_line(f"image={state['image_path']}, reference={state.get('reference_path') or 'none'}")
    said = "Summarizer: query_type=%s, mode=%s, %d distortions, %d tool scores, %s"
    logger.info(said, plan.query_type, mode, kinds, scores, pictures)
    basis = Basis(plan=plan, plan_corrections=state.get("plan_corrections", []), evidence=evidence)
    try:
        with opened(state, config, runtime) as images:
            return close_pass(state, basis, summarize(state, basis, images))
    except (VLMError, OSError, ValueError) as error:
        reason = one_line(str(error))
        logger.error("Summarizer failed: %s", reason)
        return {"error": f"Summarizer: {reason}"}


# The answer


def summarize(state: AgenticIQAState, basis: Basis, images: OpenImages) -> SummarizerOutput:
    """The answer, without the replan decision; where the words fail three times, it has the fusion that was read.
    Raises VLMError."""
    query, choices, evidence = state["query"], state.get("choices"), basis.evidence
    scoring, earlier = is_scoring(basis.plan, choices), earlier_lines(state.get("prior_context"))
    prompt = summarizer_prompt(query, evidence, scoring=scoring, choices=choices, earlier=earlier)
    letters = LETTERS if scoring else choice_letters(choices) if choices else None
    fusion = None
    try:
        if scoring:
            voting = votes(evidence, images.services.settings.fusion.vote)
            fusion = read_and_fuse(query, evidence, voting, images, earlier=earlier, plan=basis.plan)
        elif choices:
            fusion = _with_measurement(read_choices(prompt, choice_letters(choices), images), state, basis, images)
        begun = ANSWER_PREFIX + answer_letter(fusion) if fusion else ""
        schema, section = summary_reply(letters), images.services.section(ROLE)
        written = ask(images.session(ROLE), prompt, schema, section, answer_prefix=begun)
    except InvalidAnswer as error:  # of the words, or of a letter that classification mode writes
        answer, why = "Unable to determine", "VLM output parsing failed"
        return SummarizerOutput(final_answer=answer, quality_reasoning=why, fusion=fusion, error=str(error))
    used = {"distortion_analysis", "quality_scores"}
    return SummarizerOutput(
        final_answer=written.final_answer,
        quality_reasoning=reasoned(written.quality_reasoning, evidence, fusion, choices),
        used_evidence=evidence.model_dump(include=used, mode="json") if evidence and not evidence.is_empty else None,
        fusion=fusion,
    )


def _with_measurement(letters: FusionResult, state: AgenticIQAState, basis: Basis, images: OpenImages) -> FusionResult:
    """The letters of a question, about distortions as far as the model is trusted, times what was measured."""
    measured, rests_on = measure_choices(state["query"], state.get("choices", []), basis.plan, basis.evidence)
    if measured is None:
        return revised(letters, measurement=rests_on)
    trust = 1.0 if rests_on == SCORES else model_trust(images, ROLE)
    weights = {letter: p**trust * measured[letter] for letter, p in letters.p_c.items()}
    total = sum(weights.values())
    product = {letter: weight / total for letter, weight in weights.items()} if total else letters.p_c
    return revised(letters, measured=measured, product=product, measurement=rests_on)


def without_words(fusion: FusionResult, evidence: Evidence, choices: Sequence[str] | None) -> SummarizerOutput:
    """The answer of a fusion whose reasoning failed: its letter, and sentences made of the evidence."""
    reasoning = reasoned(None, evidence, fusion, choices)
    return SummarizerOutput(final_answer=answer_letter(fusion), quality_reasoning=reasoning, fusion=fusion)


# The decision


def close_pass(state: AgenticIQAState, basis: Basis, result: SummarizerOutput) -> dict[str, Any]:
    """The state's changes after a pass: its own result on its own `basis`, or that of an earlier pass that is better
    supported, and whether to plan again."""
    iteration, limit = state.get("iteration_count", 0), replanning.replan_limit(state)
    own = [] if result.error else find_gaps(basis.evidence, basis.plan, result.fusion)
    answer, kept = _best(state, revised(result, gaps=own), basis)
    changes = {"summarizer_result": answer, "iteration_count": iteration} | ({} if kept is basis else kept.state())
    gaps = [] if result.error else find_gaps(kept.evidence, kept.plan, answer.fusion)
    if not gaps:
        return changes
    reason = gaps[0].reason
    if iteration >= limit:
        logger.warning("Max replanning iterations reached")
        return changes | {"summarizer_result": revised(answer, replan_reason=reason)}
    logger.info("need_replan=true, replan_reason=%s, iteration_count=%d", one_line(reason), iteration)
    return changes | {
        "summarizer_result": revised(answer, need_replan=True, replan_reason=reason),
        "iteration_count": iteration + 1,
        "replan_history": replanning.append_replan_reason(state.get("replan_history", []), iteration + 1, reason),
    }


def _best(state: AgenticIQAState, answer: SummarizerOutput, basis: Basis) -> tuple[SummarizerOutput, Basis]:
    """The better supported answer of this pass and the earlier ones, with its basis and the account of all passes.
    An earlier one that stays gets this pass's error."""
    earlier, limit = state.get("summarizer_result"), replanning.REPLAN_HISTORY_LIMIT
    if earlier is None or not earlier.need_replan or earlier.basis is None:  # the latter: of another run
        return revised(answer, basis=basis, passes=[replanning.record(answer)]), basis
    latest = replanning.record(answer, earlier)
    if replanning.support(earlier) <= replanning.support(answer):
        passes = [*(revised(other, kept=False) for other in earlier.passes), latest]
        return revised(answer, basis=basis, passes=passes[-limit:]), basis
    failed, basis = basis.evidence and basis.evidence.error, earlier.basis
    if failed and basis.evidence:
        basis = revised(basis, evidence=revised(basis.evidence, error=failed))
    passes = [*earlier.passes, revised(latest, kept=False)][-limit:]
    return revised(earlier, basis=basis, need_replan=False, replan_reason=None, passes=passes), basis
