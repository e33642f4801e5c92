"""The Summarizer: evidence and image in, an answer with its probabilities out, and the decision whether to
plan again.

Scoring: the letters A–E are read at the JSON value position of the answer, fused with the tools' scores, and
the fused level's letter is written there; the reasoning follows in the same sequence. The user's own choices
are read in the same way, without fusion. A question without choices gets free text.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentic_iqa_local.config_sections import FusionSettings
from agentic_iqa_local.judgement.gates import Sureness
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LETTERS, LEVEL_WORDS, Look
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.conversation import earlier_lines
from agentic_iqa_local.nodes.detection import model_trust
from agentic_iqa_local.nodes.evidence import checks, contradictions, find_gaps, should_replan, votes
from agentic_iqa_local.nodes.letter_reading import (
    ROLE,
    answer_letter,
    read_and_fuse,
    read_choices,
    scoring_prompts,
)
from agentic_iqa_local.nodes.measured_answers import agree, measure_choices
from agentic_iqa_local.nodes.passes import record, support
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    Prompt,
    choice_letters,
    chosen_answer,
    is_scoring,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.reasoning import (
    from_evidence,
    misstatements,
    names_a_distortion,
    place_of_damage,
    quarters_named,
    speaks_for_another,
)
from agentic_iqa_local.nodes.replanning import (
    REPLAN_HISTORY_LIMIT,
    append_replan_reason,
    may_replan,
    replan_limit,
)
from agentic_iqa_local.nodes.replies import SummaryReply, summary_reply
from agentic_iqa_local.nodes.workbench import Context, OpenImages, opened
from agentic_iqa_local.state import (
    AgenticIQAState,
    Basis,
    ExecutorOutput,
    FusionResult,
    Gap,
    PlannerOutput,
    SummarizerOutput,
    revised,
)
from agentic_iqa_local.text import one_line
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
    plan, evidence, choices = state.get("plan"), state.get("executor_evidence"), state.get("choices")
    if plan is None or "executor_evidence" not in state:
        known = {"plan": plan is not None, "executor_evidence": "executor_evidence" in state}
        missing = " and no ".join(key for key, there in known.items() if not there)
        return {"error": f"Summarizer: the state has no {missing}; run the earlier nodes first"}
    basis = Basis(plan=plan, plan_corrections=state.get("plan_corrections", []), evidence=evidence)
    scoring = is_scoring(plan, choices)
    logger.info(
        "Summarizer: query_type=%s, mode=%s, %d distortions, %d tool scores, image=%s, reference=%s",
        plan.query_type,
        "scoring" if scoring else "explanation/QA",
        sum(len(items) for items in ((evidence and evidence.distortion_analysis) or {}).values()),
        sum(map(len, ((evidence and evidence.quality_scores) or {}).values())),
        one_line(state["image_path"]),
        one_line(state.get("reference_path") or "none"),
    )
    try:
        with opened(state, config, runtime) as images:
            try:
                result = summarize(
                    state["query"],
                    evidence,
                    images,
                    plan=plan,
                    choices=choices,
                    look=_first_look(state),
                    earlier=earlier_lines(state.get("prior_context")),
                )
            except InvalidAnswer as error:  # of a letter: without logits
                result = _unable(error)
            return close_pass(state, basis, result, images.lap(), images.sureness)
    except (VLMError, OSError, ValueError) as error:
        reason = one_line(str(error))
        logger.error("Summarizer failed: %s", reason)
        return {"error": f"Summarizer: {reason}"}


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


def close_pass(
    state: AgenticIQAState,
    basis: Basis,
    result: SummarizerOutput,
    cost: tuple[int, float],
    sureness: Sureness,
) -> dict[str, Any]:
    """The state's changes after a pass: its own result on its own `basis`, or that of an earlier pass that is
    better supported, and whether to plan again. `cost` is in tokens and seconds."""
    gaps = [] if result.error else find_gaps(basis.evidence, basis.plan, result.fusion)
    if not gaps and (gap := _width_gap(result, basis, sureness)):
        gaps = [gap]
    answer = revised(result, basis=basis, gaps=gaps)
    earlier = _earlier_answer(state)
    latest = record(answer, basis, earlier, cost)
    passes = [*earlier.passes, latest] if earlier else [latest]
    changes: dict[str, Any] = {}
    if earlier and earlier.basis and support(earlier) > support(answer):
        logger.info("Pass %d is less well supported than an earlier one, whose answer stays", latest.number)
        error = basis.evidence and basis.evidence.error
        answer, basis = revised(earlier, need_replan=False, replan_reason=None), earlier.basis
        if error and basis.evidence:
            basis = revised(basis, evidence=revised(basis.evidence, error=error))
        changes = basis.state()
        passes[-1] = revised(latest, kept=False)
    else:
        passes = [*(revised(other, kept=False) for other in passes[:-1]), latest]
    answer = revised(answer, passes=passes[-REPLAN_HISTORY_LIMIT:])
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


def _width_gap(result: SummarizerOutput, basis: Basis, sureness: Sureness) -> Gap | None:
    """What is to be measured with more tools: a fused score whose interval is wider than asked for, though
    its letters were read as closely as they can be."""
    if result.error or result.fusion is None:
        return None
    width, wanted = sureness.width(result.fusion, basis.plan), sureness.decisions.target_width
    if width is None or wanted is None or width <= wanted:
        return None
    return Gap(kind="tools", reason=f"q's interval is {width:.1f} levels wide, {wanted:g} were asked for")


def _what_to_close(answer: SummarizerOutput, basis: Basis, sureness: Sureness, *, last: bool) -> str | None:
    """The reason for another pass; None where the evidence suffices. Where a width is asked for, that of the
    interval decides, and the budget; a wide interval after the `last` pass that is allowed is no reason."""
    if answer.fusion and (width := sureness.width(answer.fusion, basis.plan)) is not None:
        wanted = sureness.decisions.target_width
        if wanted is not None and (width <= wanted or not sureness.affords_replan()):
            return None
    need_replan, reason = should_replan(basis.evidence, basis.plan.query_scope, basis.plan, answer.fusion)
    if not (need_replan or last) and (gap := _width_gap(answer, basis, sureness)):
        return gap.reason
    return reason if need_replan else None


def _earlier_answer(state: AgenticIQAState) -> SummarizerOutput | None:
    """The answer whose gaps the present pass was to close; None in a first pass, also where the state holds
    the answer of another run."""
    earlier = state.get("summarizer_result")
    return earlier if earlier and earlier.need_replan and earlier.basis else None


def summarize(
    query: str,
    evidence: ExecutorOutput | None,
    images: OpenImages,
    *,
    plan: PlannerOutput,
    choices: Sequence[str] | None,
    look: Look = "one order",
    earlier: Sequence[str] = (),
) -> SummarizerOutput:
    """The answer, without the replan decision; `look` is how closely the scoring letters are looked at to
    begin with. Where the reasoning fails three times, the fusion that was read stays in it. Raises VLMError,
    and InvalidAnswer where no letter could be had.
    """
    scoring = is_scoring(plan, choices)
    prompt = summarizer_prompt(query, evidence, scoring=scoring, choices=choices, earlier=earlier)
    scores = votes(evidence, images.services.settings.fusion.vote)
    letters: Sequence[str] | None = None
    fusion: FusionResult | None = None
    if scoring:
        letters = LETTERS
        fusion = read_and_fuse(
            scoring_prompts(query, evidence, earlier),
            scores,
            images,
            checks=checks(evidence),
            look=look,
            plan=plan,
        )
    elif choices:
        letters = choice_letters(choices)
        fusion = _decide(read_choices(prompt, letters, images), query, choices, plan, evidence, images)
    try:
        written, wrong = _write(prompt, letters, evidence, fusion, choices, images)
    except InvalidAnswer as error:
        return _unable(error, fusion)
    reasoning = _facts(evidence, fusion, choices) if wrong else written.quality_reasoning
    if (place := place_of_damage(evidence)) and not (quarters_named(reasoning) or place in reasoning):
        reasoning = f"{place} {reasoning}"
    return SummarizerOutput(
        final_answer=written.final_answer,
        quality_reasoning=" ".join([reasoning, *_notes(evidence, scores, fusion)]),
        reasoning_corrections=wrong,
        used_evidence=(
            None
            if evidence is None or evidence.is_empty
            else evidence.model_dump(include={"distortion_analysis", "quality_scores"}, mode="json")
        ),
        fusion=fusion,
    )


def _decide(
    letters: FusionResult,
    query: str,
    choices: Sequence[str],
    plan: PlannerOutput,
    evidence: ExecutorOutput | None,
    images: OpenImages,
) -> FusionResult:
    """The letters of a question times what was measured of its answers; about distortions, as far as the model's own
    word of them is trusted. Where the letters decide against the measurement, the evidence follows them: both are of
    one question."""
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


def _write(
    prompt: Prompt,
    letters: Sequence[str] | None,
    evidence: ExecutorOutput | None,
    fusion: FusionResult | None,
    choices: Sequence[str] | None,
    images: OpenImages,
) -> tuple[SummaryReply, list[str]]:
    """The model's answer, which goes on from the letter of `fusion`, and what its reasoning gets wrong; where
    that is anything it is asked once more. Raises InvalidAnswer where the first answer is none."""
    schema, role, session = summary_reply(letters), images.services.section(ROLE), images.session(ROLE)
    letter = answer_letter(fusion) if fusion else ""
    prefix = ANSWER_PREFIX + letter if letter else ""
    level = LEVEL_WORDS[LETTER_TO_LEVEL[letter]] if letter and not choices else None

    def mistakes(reply: SummaryReply) -> list[str]:
        lines = misstatements(reply.quality_reasoning, evidence, level)
        if fusion and fusion.measured and not names_a_distortion(reply.quality_reasoning):
            lines.append("says nothing of what was measured")
        if choices:
            lines += speaks_for_another(reply.quality_reasoning, choices, chosen_answer(choices, letter))
        return lines

    reply = ask(session, prompt, schema, role, answer_prefix=prefix)
    if not (wrong := mistakes(reply)):
        return reply, []
    logger.info("The reasoning %r %s; asking once more", reply.quality_reasoning, one_line("; ".join(wrong)))
    with suppress(InvalidAnswer):
        again = prompt.holding_to(_facts(evidence, fusion, choices))
        reply = ask(session, again, schema, role, answer_prefix=prefix)
    return reply, wrong if mistakes(reply) else []


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


def _facts(
    evidence: ExecutorOutput | None, fusion: FusionResult | None, choices: Sequence[str] | None
) -> str:
    """What the letters, if any were read, and the evidence say, in sentences."""
    letter = answer_letter(fusion) if fusion else None
    if fusion is None or letter is None or not choices:
        return from_evidence(evidence, LEVEL_WORDS[LETTER_TO_LEVEL[letter]] if letter else None)
    answer = f"The most probable answer is {chosen_answer(choices, letter)} ({fusion.p[letter]:.2f})."
    return f"{answer} {from_evidence(evidence, None)}".strip()


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
        if evidence.error:
            notes.append(f"Part of the evidence is missing: {evidence.error}.")
    if fusion is not None and fusion.q is not None:
        tools = "no tool scores"
        if fusion.q_bar is not None:
            whose = scores[0][0] if len(scores) == 1 else "tools' mean"
            tools = f"{whose} {fusion.q_bar:.2f}"
        notes.append(
            f"Fused score {fusion.q:.2f} of 5 ({tools}, model's own letter"
            f" {fusion.vlm_letter or 'not read'})."
        )
    return notes
