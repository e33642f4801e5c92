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


def test_the_default_configuration_has_the_specified_keys():
    sections = yaml.safe_load((ROOT / "configs" / "model_backends.yaml").read_text())
    assert list(sections) == ["planner", "executor", "summarizer"]
    for section in sections.values():
        assert list(section) == ["backend", "temperature", "max_tokens"]
        assert re.match("(transformers|vllm|server)[.]", section["backend"])  # open and local


# summarizer-design.md 2: the formula


def test_fusion_is_the_formula_of_the_design():
    scores, eta = [2.6, 3.4], 1.5
    log_p = dict(zip("EDCBA", [-3.0, -0.5, -1.0, -2.0, -6.0], strict=True))
    levels = np.arange(1, 6)
    gauss = np.exp(-eta * (np.mean(scores) - levels) ** 2)
    alpha = gauss / gauss.sum()
    odds = np.exp(list(log_p.values()))
    p = dict(zip(levels.tolist(), odds / odds.sum(), strict=True))
    joint = alpha * [*p.values()]
    fusion, literal = ScoreFusion(eta), ScoreFusion(eta, normalize=False)
    assert [*fusion.compute_perceptual_weights(scores).values()] == pytest.approx(alpha)
    assert fusion.extract_vlm_probabilities(log_p) == pytest.approx(p)
    assert literal.fuse_scores(scores, p) == pytest.approx(joint @ levels)
    assert fusion.fuse_scores(scores, p) == pytest.approx(joint @ levels / joint.sum())


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


@pytest.mark.parametrize("need_replan", [False, True])
def test_decide_next_node_is_the_specified_function(need_replan):
    reason = "No tool scores available"
    fields = {"need_replan": need_replan, "replan_reason": reason}
    result = SummarizerOutput(final_answer="C", quality_reasoning="Soft.", **fields)
    for iteration, limit in itertools.product([0, 1, 2, 5], [0, 1, 2, 6]):
        state = {"iteration_count": iteration, "max_replan_iterations": limit}
        for given in (state, state | {"summarizer_result": result}, {"summarizer_result": result}):
            assert decide_next_node(given) == specified_next_node(given)


@pytest.mark.parametrize("scope", ["Global", ["car"], ["car", "sky"]], ids=str)
def test_should_replan_is_the_specified_function(scope):
    car, sky = moderate_blur("car"), moderate_blur("sky")
    analyses = [None, {}, moderate_blur(), car, car | sky]
    for analysis, scores in itertools.product(analyses, [None, {}, SCORES]):
        given = evidence(analysis, scores)
        need_replan, reason = should_replan(given, scope)
        assert need_replan == specified_should_replan(given, scope) == bool(reason)


# summarizer-core.md: the fallback, and what code notes


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        (None, "No distortion analysis or tool scores"),
        (evidence({}, {}), "No distortion analysis or tool scores"),
        (evidence(moderate_blur(severity="severe"), HIGH), "Contradictory evidence: severe Blurs"),
    ],
)
def test_code_notes_what_the_model_leaves_out(picture, given, noted):
    client = ScriptedClient(scripted_answers())  # says "Edges appear soft." and nothing else
    result = summarize(picture, client, executor_evidence=given)["summarizer_result"]
    assert result.quality_reasoning.startswith("Edges appear soft.")
    assert noted in result.quality_reasoning


@pytest.mark.parametrize(
    "asked", [{}, {"query_type": "Other"}, {"query_type": "Other", "choices": ["Yes", "No"]}]
)
def test_three_invalid_answers_end_in_the_fallback(picture, asked):
    client = ScriptedClient(scripted_answers(SummaryReply="The image is fair."))
    update = summarize(picture, client, executor_evidence=evidence(moderate_blur(), None), **asked)
    result = update["summarizer_result"]
    assert len(prompts(client, "SummaryReply")) == 3
    assert result.final_answer == "Unable to determine"
    assert result.quality_reasoning == "VLM output parsing failed"
    assert (result.need_replan, update["iteration_count"]) == (False, 0)


# summarizer-core.md: the log of prompts and responses


def test_every_prompt_is_logged_and_every_letter_read(services, photo_path, caplog):
    caplog.set_level(logging.DEBUG, "agentic_iqa_local")
    row = assess(photo_path, services=services)
    told = [record.getMessage() for record in caplog.records]
    sent = [m.partition("as it is sent:\n")[2] for m in told if m.startswith("Prompt, as it is")]
    read = [m for m in told if m.startswith("Letters read for the")]
    assert len(sent) == row.tokens.calls
    assert len(read) == 8  # of them seven say Yes or No
    chat = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>The image is the test image.\n"
    assert all(text.startswith(chat) and "System:" not in text for text in sent)
    assert any(SCORING_PROMPT_TEMPLATE.removeprefix("System:\n") in text for text in sent)
    assert re.search(r"for the summarizer after .*: A -\d+\.\d+, B -", read[-1])
