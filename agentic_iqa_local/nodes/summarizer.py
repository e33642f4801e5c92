"""The Summarizer: evidence and image in, an answer with its probabilities out, and whether to plan again.

Scoring: the letters A–E are read at the JSON value position of the answer, fused with the tools' scores, and the
fused level's letter is written there; the reasoning follows in the same sequence. The user's own choices are read in
the same way, without fusion. A question without choices gets free text.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes import replanning
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.conversation import earlier_lines
from agentic_iqa_local.nodes.detection import model_trust
from agentic_iqa_local.nodes.evidence import by_object, checks, find_gaps, should_replan, votes
from agentic_iqa_local.nodes.letter_reading import ROLE, answer_letter, read_and_fuse, read_choices
from agentic_iqa_local.nodes.measured_answers import measure_choices
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, choice_letters, is_scoring, summarizer_prompt
from agentic_iqa_local.nodes.reasoning import reasoned
from agentic_iqa_local.nodes.replies import summary_reply
from agentic_iqa_local.nodes.workbench import Context, OpenImages, opened
from agentic_iqa_local.state import (
    LETTERS,
    AgenticIQAState,
    Basis,
    ExecutorOutput,
    FusionResult,
    Gap,
    Look,
    PlannerOutput,
    SummarizerOutput,
    revised,
)
from agentic_iqa_local.vlm_client import VLMError

__all__ = ["ROLE", "should_replan", "summarizer_node", "without_words"]

if TYPE_CHECKING:
    from agentic_iqa_local.judgement.gates import Sureness

logger = logging.getLogger(__name__)


def summarizer_node(
    state: AgenticIQAState,
    config: RunnableConfig | None = None,
    runtime: Runtime[Context] | None = None,
) -> dict[str, Any]:
    """Returns `summarizer_result`, `iteration_count` and, on a replan, `replan_history`; nothing when an earlier node
    failed; `error` when plan or evidence is missing from the state or the model cannot run."""
    if state.get("error"):
        return {}
    plan, evidence = state.get("plan"), state.get("executor_evidence")
    if plan is None or "executor_evidence" not in state:
        missing = "plan" if plan is None else "executor_evidence"
        return {"error": f"Summarizer: the state has no {missing}; run the earlier nodes first"}
    logger.info(
        "Summarizer: query_type=%s, mode=%s, %d distortions, %d tool scores, image=%s, reference=%s",
        plan.query_type,
        "scoring" if is_scoring(plan, state.get("choices")) else "explanation/QA",
        sum(map(len, by_object(evidence, "distortion_analysis").values())),
        sum(map(len, by_object(evidence, "quality_scores").values())),
        one_line(state["image_path"]),
        one_line(state.get("reference_path") or "none"),
    )
    basis = Basis(plan=plan, plan_corrections=state.get("plan_corrections", []), evidence=evidence)
    try:
        with opened(state, config, runtime) as images:
            try:
                result = summarize(state, plan, evidence, images)
            except InvalidAnswer as error:  # the written letter of classification mode
                result = _unable(error)
            return close_pass(state, basis, result, images)
    except (VLMError, OSError, ValueError) as error:
        reason = one_line(str(error))
        logger.error("Summarizer failed: %s", reason)
        return {"error": f"Summarizer: {reason}"}


# The decision


def close_pass(state: AgenticIQAState, basis: Basis, result: SummarizerOutput, images: OpenImages) -> dict[str, Any]:
    """The state's changes after a pass: its own result on its own `basis`, or that of an earlier pass that is better
    supported, and whether to plan again."""
    iteration, sureness = state.get("iteration_count", 0), images.sureness
    result = revised(result, basis=basis, gaps=_gaps(result, basis, sureness))
    answer, basis, changes = _better(state, result, basis, images.lap())
    changes |= {"summarizer_result": answer, "iteration_count": iteration}
    last = iteration + 1 >= replanning.replan_limit(state)
    gaps = [] if result.error else _gaps(answer, basis, sureness, last=last)
    width = sureness.width(answer.fusion, basis.plan) if sureness and answer.fusion else None
    narrow = sureness and width is not None and width <= (sureness.decisions.target_width or 0)
    if not gaps or narrow or (sureness and width is not None and not sureness.affords(1)):
        return changes
    reason = gaps[0].reason
    if iteration >= replanning.replan_limit(state):
        logger.warning("Max replanning iterations reached")
        return changes | {"summarizer_result": revised(answer, replan_reason=reason)}
    logger.info("need_replan=true, replan_reason=%s, iteration_count=%d", one_line(reason), iteration)
    history = replanning.append_replan_reason(state.get("replan_history", []), iteration + 1, reason)
    answer = revised(answer, need_replan=True, replan_reason=reason)
    return changes | {
        "summarizer_result": answer,
        "iteration_count": iteration + 1,
        "replan_history": history,
    }


def _gaps(result: SummarizerOutput, basis: Basis, sureness: "Sureness | None", *, last: bool = False) -> list[Gap]:
    """What another pass should close; where that is nothing, an interval wider than asked for, which in the `last`
    pass is no gap."""
    if result.error:
        return []
    gaps = find_gaps(basis.evidence, basis.plan, result.fusion)
    width = sureness.width(result.fusion, basis.plan) if sureness and result.fusion else None
    wanted = sureness.decisions.target_width if sureness else None
    if gaps or last or width is None or wanted is None or width <= wanted:
        return gaps
    return [Gap(kind="tools", reason=f"q's interval is {width:.1f} levels wide, {wanted:g} were asked for")]


def _better(
    state: AgenticIQAState, answer: SummarizerOutput, basis: Basis, cost: tuple[int, float]
) -> tuple[SummarizerOutput, Basis, dict[str, Any]]:
    """The better supported answer of this pass and the earlier ones, with the account of all passes; its basis; and the
    changes of the state that restore that basis."""
    earlier = state.get("summarizer_result")
    if earlier is None or not earlier.need_replan or earlier.basis is None:  # the latter: of another run
        return revised(answer, passes=[replanning.record(answer, basis, None, cost)]), basis, {}
    latest = replanning.record(answer, basis, earlier, cost)
    if replanning.support(earlier) <= replanning.support(answer):
        passes = [*(revised(other, kept=False) for other in earlier.passes), latest]
        return revised(answer, passes=passes[-replanning.REPLAN_HISTORY_LIMIT :]), basis, {}
    error, basis = basis.evidence and basis.evidence.error, earlier.basis
    if error and basis.evidence:
        basis = revised(basis, evidence=revised(basis.evidence, error=error))
    passes = [*earlier.passes, revised(latest, kept=False)][-replanning.REPLAN_HISTORY_LIMIT :]
    return revised(earlier, need_replan=False, replan_reason=None, passes=passes), basis, basis.state()


# The answer


def summarize(
    state: AgenticIQAState, plan: PlannerOutput, evidence: ExecutorOutput | None, images: OpenImages
) -> SummarizerOutput:
    """The answer, without the replan decision. Where the reasoning fails three times, the fusion that was read stays
    in it. Raises VLMError, and InvalidAnswer where no letter could be had."""
    query, choices, settings = state["query"], state.get("choices"), images.services.settings.fusion
    scoring, earlier = is_scoring(plan, choices), earlier_lines(state.get("prior_context"))
    prompt = summarizer_prompt(query, evidence, scoring=scoring, choices=choices, earlier=earlier)
    letters = LETTERS if scoring else choice_letters(choices) if choices else None
    fusion, begun = None, ""
    if scoring:
        voting, checking = votes(evidence, settings.vote), checks(evidence)
        options = {"earlier": earlier, "checks": checking, "look": _first_look(state), "plan": plan}
        fusion = read_and_fuse(query, evidence, voting, images, **options)
    elif choices:
        read = read_choices(prompt, choice_letters(choices), images)
        fusion = _with_measurement(read, query, choices, plan, evidence, images)
    if fusion:
        begun = ANSWER_PREFIX + answer_letter(fusion)
    schema, section = summary_reply(letters), images.services.section(ROLE)
    try:
        written = ask(images.session(ROLE), prompt, schema, section, answer_prefix=begun)
    except InvalidAnswer as error:
        return _unable(error, fusion)
    reasoning, wrong = reasoned(written.quality_reasoning, evidence, fusion, choices, settings.vote)
    used = {"distortion_analysis", "quality_scores"}
    told = evidence is not None and not evidence.is_empty
    return SummarizerOutput(
        final_answer=written.final_answer,
        quality_reasoning=reasoning,
        reasoning_corrections=wrong,
        used_evidence=evidence.model_dump(include=used, mode="json") if evidence and told else None,
        fusion=fusion,
    )


def _first_look(state: AgenticIQAState) -> Look:
    """How closely the letters are read first: with A for Excellent and again with A for Bad ("both orders") if the last
    pass asked for it, and never less closely than that pass did."""
    result = state.get("summarizer_result")
    fusion = result.fusion if result and result.need_replan else None
    if not (result and fusion):
        return "one order"
    if fusion.crops:
        return "crops"
    asked = any(gap.kind == "letters" for gap in result.gaps)
    return "both orders" if asked or fusion.both_orders else "one order"


def _with_measurement(
    letters: FusionResult,
    query: str,
    choices: Sequence[str],
    plan: PlannerOutput,
    evidence: ExecutorOutput | None,
    images: OpenImages,
) -> FusionResult:
    """The letters of a question times what was measured of its answers; about distortions, as far as the model's own
    word of them is trusted."""
    measured = measure_choices(query, choices, plan, evidence)
    if measured.p is None:
        return revised(letters, measurement=measured.basis)
    trust = model_trust(images, ROLE) if measured.of_distortions else 1.0
    weights = {letter: p**trust * measured.p[letter] for letter, p in letters.p_c.items()}
    total = sum(weights.values())
    product = {letter: weight / total for letter, weight in weights.items()} if total else letters.p_c
    return revised(letters, measured=measured.p, product=product, measurement=measured.basis)


def _unable(error: InvalidAnswer, fusion: FusionResult | None = None) -> SummarizerOutput:
    """The specified result of three invalid answers."""
    return SummarizerOutput(
        final_answer="Unable to determine",
        quality_reasoning="VLM output parsing failed",
        fusion=fusion,
        error=str(error),
    )


def without_words(
    fusion: FusionResult,
    evidence: ExecutorOutput | None,
    choices: Sequence[str] | None,
    settings: FusionSettings,
) -> SummarizerOutput:
    """The answer of a fusion whose reasoning failed: its letter, and sentences made of the evidence."""
    reasoning, _ = reasoned(None, evidence, fusion, choices, settings.vote)
    return SummarizerOutput(final_answer=answer_letter(fusion), quality_reasoning=reasoning, fusion=fusion)
