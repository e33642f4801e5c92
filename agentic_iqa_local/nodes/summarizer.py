"""The Summarizer: evidence and image in, an answer with its probabilities out, and the decision whether to
plan again.

Scoring: the letters A–E are read at the JSON value position of the answer, fused with the tools' scores, and
the fused level's letter is written there; the reasoning follows in the same sequence. The user's own choices
are read in the same way, without fusion. A question without choices gets free text.
"""

import logging
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.conversation import earlier_lines
from agentic_iqa_local.nodes.detection import model_trust
from agentic_iqa_local.nodes.evidence import (
    by_object,
    checks,
    contradictions,
    find_gaps,
    should_replan,
    votes,
)
from agentic_iqa_local.nodes.letter_reading import (
    ROLE,
    answer_letter,
    read_and_fuse,
    read_choices,
    scoring_prompts,
)
from agentic_iqa_local.nodes.measured_answers import agree, measure_choices
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    choice_letters,
    chosen_answer,
    is_scoring,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.reasoning import (
    from_evidence,
    misstatements,
    place_of_damage,
    says_nothing_measured,
    speaks_for_another,
)
from agentic_iqa_local.nodes.replanning import (
    REPLAN_HISTORY_LIMIT,
    append_replan_reason,
    may_replan,
    record,
    replan_limit,
    support,
)
from agentic_iqa_local.nodes.replies import summary_reply
from agentic_iqa_local.nodes.workbench import Context, OpenImages, Sureness, opened
from agentic_iqa_local.state import (
    LETTER_TO_LEVEL,
    LETTERS,
    LEVEL_WORDS,
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

logger = logging.getLogger(__name__)

UNABLE = "Unable to determine"
UNPARSED = "VLM output parsing failed"
NO_EVIDENCE = "No distortion analysis or tool scores were available; judged from the image directly."
NO_SCORES = "No tool scores were available."


def summarizer_node(
    state: AgenticIQAState,
    config: RunnableConfig | None = None,
    runtime: Runtime[Context] | None = None,
) -> dict[str, Any]:
    """Returns `summarizer_result`, `iteration_count` and, on a replan, `replan_history`.

    Nothing when an earlier node failed; `error` when plan or evidence is missing from the state or the model
    cannot run.
    """
    if state.get("error"):
        return {}
    plan, evidence = state.get("plan"), state.get("executor_evidence")
    if plan is None or "executor_evidence" not in state:
        known = {"plan": plan is not None, "executor_evidence": "executor_evidence" in state}
        missing = " and no ".join(key for key, there in known.items() if not there)
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
            except InvalidAnswer as error:  # of a letter: without logits
                result = _unable(error)
            return close_pass(state, basis, result, images.lap(), images.sureness)
    except (VLMError, OSError, ValueError) as error:
        reason = one_line(str(error))
        logger.error("Summarizer failed: %s", reason)
        return {"error": f"Summarizer: {reason}"}


# The decision


def close_pass(
    state: AgenticIQAState,
    basis: Basis,
    result: SummarizerOutput,
    cost: tuple[int, float],
    sureness: Sureness | None,
) -> dict[str, Any]:
    """The state's changes after a pass: its own result on its own `basis`, or that of an earlier pass that is
    better supported, and whether to plan again. `cost` is in tokens and seconds."""
    gaps = [] if result.error else find_gaps(basis.evidence, basis.plan, result.fusion)
    if not gaps and (gap := _width_gap(result, basis, sureness)):
        gaps = [gap]
    answer, basis, changes = _better(state, revised(result, basis=basis, gaps=gaps), basis, cost)
    iteration = state.get("iteration_count", 0)
    changes |= {"summarizer_result": answer, "iteration_count": iteration}
    reason = _what_to_close(answer, basis, sureness, last=iteration + 1 >= replan_limit(state))
    if result.error or reason is None:
        return changes
    if not may_replan(state):
        logger.warning("Max replanning iterations reached")
        return changes | {"summarizer_result": revised(answer, replan_reason=reason)}
    logger.info("need_replan=true, replan_reason=%s, iteration_count=%d", one_line(reason), iteration)
    return changes | {
        "summarizer_result": revised(answer, need_replan=True, replan_reason=reason),
        "iteration_count": iteration + 1,
        "replan_history": append_replan_reason(state.get("replan_history", []), iteration + 1, reason),
    }


def _better(
    state: AgenticIQAState, answer: SummarizerOutput, basis: Basis, cost: tuple[int, float]
) -> tuple[SummarizerOutput, Basis, dict[str, Any]]:
    """(this pass's answer or the better supported one of an earlier pass, with the account of all passes;
    what it rests on; what of the state is put back to that)."""
    earlier = state.get("summarizer_result")
    if (
        earlier is None or not earlier.need_replan or earlier.basis is None
    ):  # a first pass, or another run's answer
        return revised(answer, passes=[record(answer, basis, None, cost)]), basis, {}
    latest = record(answer, basis, earlier, cost)
    if support(earlier) <= support(answer):
        passes = [*(revised(other, kept=False) for other in earlier.passes), latest]
        return revised(answer, passes=passes[-REPLAN_HISTORY_LIMIT:]), basis, {}
    logger.info("Pass %d is less well supported than an earlier one, whose answer stays", latest.number)
    error, basis = basis.evidence and basis.evidence.error, earlier.basis
    if error and basis.evidence:
        basis = revised(basis, evidence=revised(basis.evidence, error=error))
    passes = [*earlier.passes, revised(latest, kept=False)][-REPLAN_HISTORY_LIMIT:]
    return revised(earlier, need_replan=False, replan_reason=None, passes=passes), basis, basis.state()


def _width_gap(result: SummarizerOutput, basis: Basis, sureness: Sureness | None) -> Gap | None:
    """What is to be measured with more tools: a fused score whose interval is wider than asked for, though
    its letters were read as closely as they can be."""
    if result.error or result.fusion is None or sureness is None:
        return None
    width, wanted = sureness.width(result.fusion, basis.plan), sureness.decisions.target_width
    if width is None or wanted is None or width <= wanted:
        return None
    return Gap(kind="tools", reason=f"q's interval is {width:.1f} levels wide, {wanted:g} were asked for")


def _what_to_close(
    answer: SummarizerOutput, basis: Basis, sureness: Sureness | None, *, last: bool
) -> str | None:
    """The reason for another pass; None where the evidence suffices. Where a width is asked for, that of the
    interval decides, and the budget; a wide interval after the `last` pass that is allowed is no reason."""
    if sureness and answer.fusion and (width := sureness.width(answer.fusion, basis.plan)) is not None:
        wanted = sureness.decisions.target_width
        if wanted is not None and (width <= wanted or not sureness.affords_replan()):
            return None
    need_replan, reason = should_replan(basis.evidence, basis.plan.query_scope, basis.plan, answer.fusion)
    if need_replan:
        return reason
    gap = None if last else _width_gap(answer, basis, sureness)
    return gap and gap.reason


# The answer


def summarize(
    state: AgenticIQAState, plan: PlannerOutput, evidence: ExecutorOutput | None, images: OpenImages
) -> SummarizerOutput:
    """The answer, without the replan decision. Where the reasoning fails three times, the fusion that was
    read stays in it. Raises VLMError, and InvalidAnswer where no letter could be had."""
    query, choices = state["query"], state.get("choices")
    scoring, earlier = is_scoring(plan, choices), earlier_lines(state.get("prior_context"))
    prompt = summarizer_prompt(query, evidence, scoring=scoring, choices=choices, earlier=earlier)
    scores = votes(evidence, images.services.settings.fusion.vote)
    letters, fusion = (LETTERS if scoring else choice_letters(choices) if choices else None), None
    if scoring:
        prompts, look = scoring_prompts(query, evidence, earlier), _first_look(state)
        fusion = read_and_fuse(prompts, scores, images, checks=checks(evidence), look=look, plan=plan)
    elif choices:
        fusion = _decide(
            read_choices(prompt, choice_letters(choices), images), query, choices, plan, evidence, images
        )
    letter = answer_letter(fusion) if fusion else ""
    try:
        written = ask(
            images.session(ROLE),
            prompt,
            summary_reply(letters),
            images.services.section(ROLE),
            answer_prefix=ANSWER_PREFIX + letter if letter else "",
        )
    except InvalidAnswer as error:
        return _unable(error, fusion)
    reasoning = written.quality_reasoning
    wrong = _mistakes(reasoning, evidence, fusion, choices)
    if wrong:
        logger.info("The reasoning %r %s", reasoning, one_line("; ".join(wrong)))
        reasoning = _facts(evidence, fusion, choices)
    if (place := place_of_damage(evidence)) and place not in reasoning:
        reasoning = f"{place} {reasoning}"
    used = {"distortion_analysis", "quality_scores"}
    return SummarizerOutput(
        final_answer=written.final_answer,
        quality_reasoning=" ".join([reasoning, *_notes(evidence, scores, fusion)]),
        reasoning_corrections=wrong,
        used_evidence=(
            None if evidence is None or evidence.is_empty else evidence.model_dump(include=used, mode="json")
        ),
        fusion=fusion,
    )


def _first_look(state: AgenticIQAState) -> Look:
    """How closely the letters are looked at to begin with: in both orders where the last pass asks for it,
    and as closely as it did in the end."""
    result = state.get("summarizer_result")
    if not (result and result.need_replan):
        return "one order"
    if result.fusion and result.fusion.crops:
        return "crops"
    asked = any(gap.kind == "letters" for gap in result.gaps)
    return "both orders" if asked or (result.fusion and result.fusion.both_orders) else "one order"


def _decide(
    letters: FusionResult,
    query: str,
    choices: Sequence[str],
    plan: PlannerOutput,
    evidence: ExecutorOutput | None,
    images: OpenImages,
) -> FusionResult:
    """The letters of a question times what was measured of its answers; about distortions, as far as the
    model's own word of them is trusted. Where the letters decide against the measurement, the evidence
    follows them: both are of one question."""
    measured = measure_choices(query, choices, plan, evidence)
    if measured.p is None:
        return revised(letters, measurement=measured.basis)
    trust = model_trust(images, ROLE) if measured.claims else 1.0
    weights = {letter: p**trust * measured.p[letter] for letter, p in letters.p_c.items()}
    total = sum(weights.values())
    product = {letter: weight / total for letter, weight in weights.items()} if total else letters.p_c
    fusion = revised(letters, measured=measured.p, product=product, measurement=measured.basis)
    answer = answer_letter(fusion)
    if evidence is not None and answer in measured.claims:
        agree(evidence, plan.objects[0], measured.claims[answer], product[answer])
    return fusion


def _level_word(fusion: FusionResult | None, choices: Sequence[str] | None) -> str | None:
    """The word of the fused level; None where no level was decided."""
    return LEVEL_WORDS[LETTER_TO_LEVEL[answer_letter(fusion)]] if fusion and not choices else None


def _mistakes(
    reasoning: str,
    evidence: ExecutorOutput | None,
    fusion: FusionResult | None,
    choices: Sequence[str] | None,
) -> list[str]:
    """What the model's reasoning gets wrong, a line each."""
    lines = misstatements(reasoning, evidence, _level_word(fusion, choices))
    if fusion and fusion.measured and says_nothing_measured(reasoning):
        lines.append("says nothing of what was measured")
    if fusion and choices:
        lines += speaks_for_another(reasoning, choices, chosen_answer(choices, answer_letter(fusion)))
    return lines


def _facts(
    evidence: ExecutorOutput | None, fusion: FusionResult | None, choices: Sequence[str] | None
) -> str:
    """What the letters, if any were read, and the evidence say, in sentences."""
    facts = from_evidence(evidence, _level_word(fusion, choices))
    if not (fusion and choices):
        return facts
    letter = answer_letter(fusion)
    return f"The most probable answer is {chosen_answer(choices, letter)} ({fusion.p[letter]:.2f}). {facts}".strip()


def _unable(error: InvalidAnswer, fusion: FusionResult | None = None) -> SummarizerOutput:
    """The specified result of three invalid answers."""
    return SummarizerOutput(
        final_answer=UNABLE, quality_reasoning=UNPARSED, need_replan=False, fusion=fusion, error=str(error)
    )


def without_words(
    fusion: FusionResult,
    evidence: ExecutorOutput | None,
    choices: Sequence[str] | None,
    settings: FusionSettings,
) -> SummarizerOutput:
    """The answer of a fusion whose reasoning failed: its letter, and sentences made of the evidence."""
    notes = _notes(evidence, votes(evidence, settings.vote), fusion)
    return SummarizerOutput(
        final_answer=answer_letter(fusion),
        quality_reasoning=" ".join([_facts(evidence, fusion, choices), *notes]),
        fusion=fusion,
    )


def _notes(
    evidence: ExecutorOutput | None, scores: list[tuple[str, float]], fusion: FusionResult | None
) -> list[str]:
    """What must stand in the reasoning whatever the model wrote: missing evidence, contradictions, the fused
    score."""
    notes = []
    if evidence is None or evidence.is_empty:
        notes.append(NO_EVIDENCE)
    elif not scores:
        notes.append(NO_SCORES)
    if evidence is not None:
        notes += [f"{line}." for line in contradictions(evidence)]
        notes += [f"Part of the evidence is missing: {evidence.error}."] if evidence.error else []
    if fusion is not None and fusion.q is not None:
        whose = scores[0][0] if len(scores) == 1 else "tools' mean"
        tools = "no tool scores" if fusion.q_bar is None else f"{whose} {fusion.q_bar:.2f}"
        letter = fusion.vlm_letter or "not read"
        notes.append(f"Fused score {fusion.q:.2f} of 5 ({tools}, model's own letter {letter}).")
    return notes
