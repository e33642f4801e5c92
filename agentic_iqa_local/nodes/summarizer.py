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

from agentic_iqa_local.config import FusionSettings
from agentic_iqa_local.conversation import earlier_lines
from agentic_iqa_local.evidence import contradictions, find_gaps, should_replan, tool_scores, votes
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.levels import LETTER_TO_LEVEL, LETTERS, LEVEL_WORDS, Mode
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.replies import SummaryReply, letter_reply, summary_reply
from agentic_iqa_local.passes import record, support
from agentic_iqa_local.prompts import (
    ANSWER_PREFIX,
    Prompt,
    choice_letters,
    chosen_answer,
    is_scoring,
    summarizer_prompt,
)
from agentic_iqa_local.reasoning import (
    from_evidence,
    misstatements,
    place_of_damage,
    quarters_named,
    speaks_for_another,
)
from agentic_iqa_local.replanning import REPLAN_HISTORY_LIMIT, append_replan_reason, may_replan
from agentic_iqa_local.score_fusion import ScoreFusion, letter_probabilities, written_probabilities
from agentic_iqa_local.state import (
    AgenticIQAState,
    Basis,
    ExecutorOutput,
    FusionResult,
    SummarizerOutput,
    revised,
)
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import VLMError, VLMSession
from agentic_iqa_local.workbench import Context, OpenImages, opened

logger = logging.getLogger(__name__)

ROLE = "summarizer"
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
    if "plan" not in state or "executor_evidence" not in state:
        missing = " and no ".join(key for key in ("plan", "executor_evidence") if key not in state)
        return {"error": f"Summarizer: the state has no {missing}; run the earlier nodes first"}
    plan, evidence, choices = state["plan"], state["executor_evidence"], state.get("choices")
    basis = Basis(plan=plan, plan_corrections=state.get("plan_corrections", []), evidence=evidence)
    scoring = is_scoring(plan, choices)
    logger.info(
        "Summarizer: query_type=%s, mode=%s, %d distortions, %d tool scores, image=%s, reference=%s",
        plan.query_type,
        "scoring" if scoring else "explanation/QA",
        sum(len(items) for items in ((evidence and evidence.distortion_analysis) or {}).values()),
        len(tool_scores(evidence, "entries")),
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
                    scoring=scoring,
                    choices=choices,
                    both_orders=_reads_both_orders(state),
                    earlier=earlier_lines(state.get("prior_context")),
                )
            except InvalidAnswer as error:  # of a letter: without logits
                result = _unable(error)
            return close_pass(state, basis, result, images.lap())
    except (VLMError, OSError, ValueError) as error:
        reason = one_line(str(error))
        logger.error("Summarizer failed: %s", reason)
        return {"error": f"Summarizer: {reason}"}


def _reads_both_orders(state: AgenticIQAState) -> bool:
    """Whether the last pass asks for it, or did it."""
    result = state.get("summarizer_result")
    if not (result and result.need_replan):
        return False
    return any(gap.kind == "letters" for gap in result.gaps) or bool(
        result.fusion and result.fusion.both_orders
    )


def close_pass(
    state: AgenticIQAState, basis: Basis, result: SummarizerOutput, cost: tuple[int, float]
) -> dict[str, Any]:
    """The state's changes after a pass: its own result on its own `basis`, or that of an earlier pass that is
    better supported, and whether to plan again. `cost` is in tokens and seconds."""
    gaps = [] if result.error else find_gaps(basis.evidence, basis.plan, result.fusion)
    answer = revised(result, basis=basis, gaps=gaps)
    earlier = _earlier_answer(state)
    latest = record(answer, basis, earlier, cost)
    passes = [*earlier.passes, latest] if earlier else [latest]
    changes: dict[str, Any] = {}
    if earlier and earlier.basis and support(earlier) > support(answer):
        logger.info("Pass %d is less well supported than an earlier one, whose answer stays", latest.number)
        answer, basis = revised(earlier, need_replan=False, replan_reason=None), earlier.basis
        changes = basis.state()
        passes[-1] = revised(latest, kept=False)
    else:
        passes = [*(revised(other, kept=False) for other in passes[:-1]), latest]
    answer = revised(answer, passes=passes[-REPLAN_HISTORY_LIMIT:])
    iteration = state.get("iteration_count", 0)
    changes |= {"summarizer_result": answer, "iteration_count": iteration}
    need_replan, reason = should_replan(basis.evidence, basis.plan.query_scope, basis.plan, answer.fusion)
    if result.error or not need_replan:
        return changes
    if not may_replan(state):
        logger.warning("Max replanning iterations reached")
        return changes
    logger.info("need_replan=true, replan_reason=%s, iteration_count=%d", one_line(reason), iteration)
    return changes | {
        "summarizer_result": revised(answer, need_replan=True, replan_reason=reason),
        "iteration_count": iteration + 1,
        "replan_history": append_replan_reason(state.get("replan_history", []), iteration + 1, reason),
    }


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
    scoring: bool,
    choices: Sequence[str] | None,
    both_orders: bool = False,
    earlier: Sequence[str] = (),
) -> SummarizerOutput:
    """The answer, without the replan decision; `both_orders` reads the scoring letters also with A for Bad.
    Where the reasoning fails three times, the fusion that was read stays in it. Raises VLMError, and
    InvalidAnswer where no letter could be had.
    """
    prompt = summarizer_prompt(query, evidence, scoring=scoring, choices=choices, earlier=earlier)
    backward = None
    if scoring and both_orders:
        backward = summarizer_prompt(query, evidence, scoring=True, earlier=earlier, reversed_letters=True)
    scores = votes(evidence, images.services.settings.fusion.vote)
    letters: Sequence[str] | None = None
    fusion: FusionResult | None = None
    if scoring:
        letters, fusion = LETTERS, read_and_fuse(prompt, scores, images, backward)
    elif choices:
        letters = choice_letters(choices)
        fusion = read_choices(prompt, letters, images)
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
    answer = (
        f"The answer that the model finds most probable is {chosen_answer(choices, letter)}"
        f" ({fusion.p_c[letter]:.2f})."
    )
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


def fusion_of(settings: FusionSettings, sigma: float | None) -> ScoreFusion:
    """The fusion that the configuration describes. α is a Gaussian likelihood of q̄ with variance σ², so that
    `eta: auto` is 1/(2σ²); without tools (None) α is uniform whatever η is."""
    eta = settings.eta
    if eta == "auto":
        eta = 1 / (2 * sigma**2) if sigma else 1.0
    return ScoreFusion(
        eta, temperature=settings.temperature, classification_confidence=settings.classification_confidence
    )


def answer_letter(fusion: FusionResult) -> str:
    """The letter that a fusion answers with: of the level nearest to q, or of the likeliest choice. Raises
    ValueError where there is neither."""
    if fusion.q is not None:
        return ScoreFusion().map_to_level(fusion.q)
    if fusion.vlm_letter is None:
        raise ValueError("fusion: expected a score or a letter, got neither")
    return fusion.vlm_letter


def read_and_fuse(
    prompt: Prompt, tools: Sequence[tuple[str, float]], images: OpenImages, backward: Prompt | None = None
) -> FusionResult:
    """p_c from the model's letters, averaged over the image's views, fused with the scores (1..5) of `tools`.
    `backward` is the prompt whose letters mean the opposite levels; with it p_c is the mean of both readings.
    """
    settings, scores = images.services.settings.fusion, [score for _, score in tools]
    sigma = None
    if settings.eta == "auto" and tools:
        maps = images.services.tools.maps
        reachable = {name: maps[name].reachable for name, _ in tools if name in maps}
        sigma = load_reliability().sigma_of_mean(tools, reachable)
    fusion = fusion_of(settings, sigma)
    letters = read_probabilities(prompt, LETTERS, images, backward)
    p_c = {LETTER_TO_LEVEL[letter]: p for letter, p in letters.p_c.items()}
    if not scores:
        images.note("no tool scores: q rests on the model's letters alone")  # ScoreFusion logs it
    return revised(
        letters,
        alpha=fusion.compute_perceptual_weights(scores),
        q_bar=fusion.mean_score(scores),
        q=fusion.fuse_scores(scores, p_c),
        dq_dqbar=fusion.sensitivity(scores, p_c),
        eta=fusion.eta if scores else None,
        sigma=sigma,
        both_orders=backward is not None,
    )


def read_choices(prompt: Prompt, letters: Sequence[str], images: OpenImages) -> FusionResult:
    """Probabilities of the user's own choices. Raises VLMError in uniform mode: no letter is preferred there,
    so none can be answered."""
    read = read_probabilities(prompt, letters, images)
    if read.vlm_letter is None:
        raise VLMError(
            "mode uniform reads no letters, so it cannot answer a question with choices",
            "use logits or classification",
        )
    return read


def read_probabilities(
    prompt: Prompt, letters: Sequence[str], images: OpenImages, backward: Prompt | None = None
) -> FusionResult:
    """The letters' part of a fusion, averaged over the image's views and, with `backward`, whose letters mean
    the opposite levels, over both prompts. Raises VLMError, and InvalidAnswer where no logits are read."""
    settings, mode = images.services.settings.fusion, usable_mode(images)
    if mode == "uniform":
        p_c = dict.fromkeys(letters, 1 / len(letters))
        return FusionResult(mode=mode, vlm_letter=None, p_c=p_c, off_letter_mass=None)
    readings, off_masses = [], []
    for view in range(len(images.views(ROLE))):
        session = images.session(ROLE, view)
        for asked in filter(None, (backward, prompt)):  # the reasoning goes on from the last one
            reading, off_mass = read_once(session, asked, letters, mode, images)
            if asked is backward:
                reading = dict(zip(letters, reversed(reading.values()), strict=True))
            readings.append(reading)
            off_masses += [] if off_mass is None else [off_mass]
        if view > 0:
            images.close_session(ROLE, view)
    p_c = {letter: sum(reading[letter] for reading in readings) / len(readings) for letter in letters}
    off_mass = sum(off_masses) / len(off_masses) if off_masses else None
    if off_mass is not None and off_mass > settings.off_letter_warning:
        images.warn(
            f"{off_mass:.0%} of the probability lies off the letters {letters[0]}–{letters[-1]}: "
            "this model hardly takes the answer format, trust its letters less"
        )
    likeliest = max(p_c, key=p_c.__getitem__)
    return FusionResult(mode=mode, vlm_letter=likeliest, p_c=p_c, off_letter_mass=off_mass)


def usable_mode(images: OpenImages) -> Mode:
    """The configured mode, or what the configuration allows for a model that gives no logits. Raises VLMError
    where it allows nothing."""
    settings = images.services.settings.fusion
    if settings.mode != "logits" or (client := images.services.client(ROLE)).reads_logits:
        return settings.mode
    if settings.on_missing_logits == "error":
        raise VLMError(
            f"{client.name}: expected a client that reads logits, this one cannot",
            "use mode classification or set on_missing_logits: classification",
        )
    images.warn(f"{client.name} gives no logits: p_c comes from the generated letter (classification)")
    return "classification"


def read_once(
    session: VLMSession, prompt: Prompt, letters: Sequence[str], mode: Mode, images: OpenImages
) -> tuple[dict[str, float], float | None]:
    """(probability of each letter, probability off the letters) of one prompt on one view; without logits the
    written letter's, and None."""
    settings = images.services.settings.fusion
    if mode == "logits":
        read = session.read_letters(prompt, ANSWER_PREFIX, letters)
        return letter_probabilities(read.logprobs, settings.temperature), read.off_letter_mass
    answer = ask(session, prompt, letter_reply(letters), images.services.section(ROLE)).final_answer
    return written_probabilities(answer, letters, settings.classification_confidence), None
