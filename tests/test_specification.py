"""Requirements of the specification that the modules' own tests leave open: its code and its formulas, word for
word, as the expected values.
"""

import importlib
import itertools
import logging
import math
import re

import numpy as np
import pytest
import yaml
from conftest import ROOT
from scripted import (
    ScriptedClient,
    ScriptedTools,
    moderate_blur,
    plan_reply,
    prompts,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local import assess
from agentic_iqa_local.config import Settings
from agentic_iqa_local.graph import decide_next_node
from agentic_iqa_local.nodes.prompts import SCORING_PROMPT_TEMPLATE
from agentic_iqa_local.nodes.summarizer import should_replan, summarizer_node
from agentic_iqa_local.score_fusion import ScoreFusion
from agentic_iqa_local.state import ExecutorOutput, PlannerOutput, SummarizerOutput

QUERY = "Rate the perceptual quality of this image."
SCORES, HIGH = ({"Global": {"Blurs": ["NIQE", score]}} for score in (2.6, 4.5))


def evidence(analysis: dict | None, scores: dict | None) -> ExecutorOutput:
    return ExecutorOutput.model_validate(
        {"distortion_analysis": analysis, "quality_scores": scores}
    )


def summarize(
    picture: str, client: ScriptedClient, settings: Settings | None = None, **state
) -> dict:
    """The Summarizer's changes of a state with a plain plan and a moderate blur measured at 2.6, but for
    `state`."""
    plan = PlannerOutput.model_validate(plan_reply(query_type=state.pop("query_type", "IQA")))
    given = {"plan": plan, "executor_evidence": evidence(moderate_blur(), SCORES)} | state
    services = scripted_services(client, ScriptedTools({}), settings)
    return summarizer_node(
        {"query": QUERY, "image_path": picture, **given}, {"configurable": {"services": services}}
    )


NAMES = {
    "state": "PlanControlFlags PlannerOutput PlannerInput PlannerError ExecutorOutput SummarizerOutput AgenticIQAState",
    "score_fusion": "ScoreFusion",
    "nodes.planner": "planner_node",
    "nodes.executor": "executor_node",
    "nodes.summarizer": "summarizer_node should_replan",
    "graph": "decide_next_node run_pipeline visualize_graph",
    "vlm_client": "create_vlm_client",
}


@pytest.mark.parametrize(("module", "names"), NAMES.items(), ids=NAMES)
def test_the_documents_names_can_be_imported(module, names):
    found = importlib.import_module(f"agentic_iqa_local.{module}")
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_the_default_configuration_has_the_specified_sections_and_keys():
    sections = yaml.safe_load((ROOT / "configs" / "model_backends.yaml").read_text())
    assert list(sections) == ["planner", "executor", "summarizer"]
    for section in sections.values():
        assert list(section) == ["backend", "temperature", "max_tokens"]
        assert re.fullmatch(
            r"(transformers|vllm|server)\.\w+", section["backend"]
        )  # open and local
    assert (sections["summarizer"]["temperature"], sections["summarizer"]["max_tokens"]) == (
        0.0,
        512,
    )


# summarizer-design.md 2: the formula


def test_fusion_is_the_formula_of_the_design():
    """q̄, α_c, p_c and q in the design's own terms, over random scores, log-probabilities and η."""
    levels, random = (1, 2, 3, 4, 5), np.random.default_rng(5)
    for _ in range(100):
        scores, eta = random.uniform(1, 5, random.integers(1, 5)).tolist(), random.uniform(0.2, 4)
        log_p = dict(zip("EDCBA", random.normal(0, 2, 5).tolist(), strict=True))
        mean = sum(scores) / len(scores)
        gauss = {c: math.exp(-eta * (mean - c) ** 2) for c in levels}
        alpha = {c: gauss[c] / sum(gauss.values()) for c in levels}
        odds = dict(zip(levels, map(math.exp, log_p.values()), strict=True))
        p = {c: odds[c] / sum(odds.values()) for c in levels}
        q = sum(alpha[c] * p[c] * c for c in levels)
        fusion, literal = ScoreFusion(eta), ScoreFusion(eta, normalize=False)
        assert fusion.compute_perceptual_weights(scores) == pytest.approx(alpha)
        assert fusion.extract_vlm_probabilities(log_p) == pytest.approx(p)
        assert literal.fuse_scores(scores, p) == pytest.approx(q)
        assert fusion.fuse_scores(scores, p) == pytest.approx(
            q / sum(alpha[c] * p[c] for c in levels)
        )


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_letters_temperature_is_not_that_of_the_generation(picture, temperature):
    settings = Settings(summarizer={"temperature": temperature}, fusion={"temperature": 2.0})
    # odds 16 : 1 : 1 : 1 : 1, and at temperature 2 their roots 4 : 1 : 1 : 1 : 1
    letters = {letter: math.log(0.8 if letter == "A" else 0.05) for letter in "ABCDE"}
    update = summarize(picture, ScriptedClient(scripted_answers(), letters), settings)
    assert update["summarizer_result"].fusion.p_c["A"] == pytest.approx(4 / 8)


# summarizer-design.md 3 and 6: the functions


def specified_next_node(state: dict) -> str:
    summarizer_result = state.get("summarizer_result")
    if not summarizer_result:
        return "__end__"
    iteration = state.get("iteration_count", 0)
    max_iterations = state.get("max_replan_iterations", 2)
    if summarizer_result.need_replan and iteration < max_iterations:
        return "planner"
    return "__end__"


def specified_should_replan(executor_output: ExecutorOutput, query_scope: list[str] | str) -> bool:
    if executor_output.distortion_analysis:
        covered_objects = set(executor_output.distortion_analysis.keys())
        required_objects = set(query_scope) if query_scope != "Global" else {"Global"}
        if not required_objects.issubset(covered_objects):
            return True
    return executor_output.quality_scores is None or len(executor_output.quality_scores) == 0


@pytest.mark.parametrize("need_replan", [None, False, True], ids=["no result", "enough", "more"])
def test_decide_next_node_is_the_specified_function(need_replan):
    for iteration, limit in itertools.product([None, 0, 1, 2, 5], [None, 0, 1, 2, 6]):
        state = {} if iteration is None else {"iteration_count": iteration}
        if limit is not None:
            state["max_replan_iterations"] = limit
        if need_replan is not None:
            state["summarizer_result"] = SummarizerOutput(
                final_answer="C",
                quality_reasoning="Soft.",
                need_replan=need_replan,
                replan_reason="why",
            )
        assert decide_next_node(state) == specified_next_node(state)


@pytest.mark.parametrize("scope", ["Global", ["car"], ["car", "sky"]], ids=str)
def test_should_replan_is_the_specified_function(scope):
    analyses = [
        None,
        {},
        moderate_blur(),
        moderate_blur("car"),
        moderate_blur("car") | moderate_blur("sky"),
    ]
    for analysis, scores in itertools.product(analyses, [None, {}, SCORES]):
        given = evidence(analysis, scores)
        need_replan, reason = should_replan(given, scope)
        assert need_replan == specified_should_replan(given, scope)
        assert bool(reason) == need_replan


# summarizer-core.md: the fallback, and what code notes


@pytest.mark.parametrize(
    ("query_type", "choices"), [("IQA", None), ("Other", None), ("Other", ["Yes", "No"])], ids=str
)
def test_three_invalid_answers_end_in_the_fallback_in_either_mode(picture, query_type, choices):
    client = ScriptedClient(scripted_answers(SummaryReply="The image is fair."))
    state = {"executor_evidence": evidence(moderate_blur(), None), "query_type": query_type}
    update = summarize(picture, client, **state, **({"choices": choices} if choices else {}))
    result = update["summarizer_result"]
    assert len(prompts(client, "SummaryReply")) == 3
    assert (result.final_answer, result.quality_reasoning) == (
        "Unable to determine",
        "VLM output parsing failed",
    )
    assert (result.need_replan, update["iteration_count"]) == (False, 0)


@pytest.mark.parametrize("query_type", ["IQA", "Other"])
@pytest.mark.parametrize(
    ("given", "noted"),
    [
        (None, "No distortion analysis or tool scores"),
        (evidence({}, {}), "No distortion analysis or tool scores"),
        (evidence(moderate_blur(severity="severe"), HIGH), "Contradictory evidence: severe Blurs"),
    ],
    ids=["no evidence", "empty evidence", "a contradiction"],
)
def test_code_notes_what_the_model_leaves_out(picture, query_type, given, noted):
    client = ScriptedClient(scripted_answers())  # says "Edges appear soft." and nothing else
    update = summarize(picture, client, query_type=query_type, executor_evidence=given)
    reasoning = update["summarizer_result"].quality_reasoning
    assert reasoning.startswith("Edges appear soft.")
    assert noted in reasoning


# summarizer-core.md: the log of prompts and responses


@pytest.mark.parametrize("pipeline", ["agent", "letters"])
def test_every_prompt_is_logged_as_it_is_sent_and_every_letter_read(
    services, photo_path, pipeline, caplog
):
    caplog.set_level(logging.DEBUG, "agentic_iqa_local")
    row = assess(photo_path, pipeline=pipeline, services=services)
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    sent = [m.partition("as it is sent:\n")[2] for m in told if m.startswith("Prompt, as it is sent")]
    read = [m for m in told if m.startswith("Letters read for the")]
    assert len(sent) == row.tokens.calls
    assert len(read) == (8 if pipeline == "agent" else 1)  # of them seven say Yes or No
    chat = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>The image is the test image.\n"
    assert all(text.startswith(chat) and "System:" not in text for text in sent)
    scoring = next(text for text in sent if text.endswith('{"final_answer": "'))
    assert SCORING_PROMPT_TEMPLATE.removeprefix("System:\n") in scoring
    letters = re.match(r".*the summarizer after [^:]*: \": (.*); off", read[-1])
    odds = {one[0]: math.exp(float(one[2:])) for one in letters[1].split(", ")}
    p_c = {letter: odd / sum(odds.values()) for letter, odd in odds.items()}
    assert p_c == pytest.approx(row.fusion.p_c, abs=1e-4)
