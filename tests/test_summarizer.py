"""summarizer-core.md, should_replan of summarizer-design.md, and the evidence in the prompt, with a scripted
model."""

import json
import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import (
    ScriptedClient,
    ScriptedTools,
    moderate_blur,
    plan_reply,
    prompts,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local.config import FusionSettings, Settings
from agentic_iqa_local.nodes.evidence import should_replan, votes
from agentic_iqa_local.nodes.prompts import (
    EXPLANATION_PROMPT_TEMPLATE,
    SCORING_PROMPT_TEMPLATE,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.summarizer import summarizer_node
from agentic_iqa_local.state import ExecutorOutput, PlannerOutput, SummarizerOutput
from agentic_iqa_local.vlm_client import ModelLost, OutOfMemory, VLMError

# summarizer-core.md, verbatim
EXPLANATION_TEXT = """System:
You are a visual quality assessment assistant. Your task is to select the most appropriate answer to the user's
question. You are given:
- Distortion analysis (severity and visual impact of listed distortions)
- Tool response (overall quality scores from IQA models)
- Image content
Decision process
1. First, understand what kind of visual information is needed to answer the user's question.
2. Check if the provided distortion analysis or tool response already contains the required information.
3. If the provided information is sufficient, use it to answer.
4. If the information is unclear or insufficient, analyze the image directly to determine the best answer.
Return a valid JSON object in the following format:
{
  "final_answer": "<one of the above letters>",
  "quality_reasoning": "<brief explanation, based on either distortion analysis, tool response, or direct visual observation>"
}
"""
SCORING_TEXT = """System:
You are a visual quality assessment assistant. Given the question and the analysis (tool scores, distortion
analysis). Your task is to assess the image quality.
You must select one single answer from the following:
A. Excellent
B. Good
C. Fair
D. Poor
E. Bad
Return the JSON:
{
  "final_answer": "<one letter>",
  "quality_reasoning": "<concise justification referencing distortions or tool scores>"
}
"""

# The example of docs/04_module_summarizer.md, as the specification's README gives it
QUERY = "Rate the perceptual quality of this image."
ANALYSIS = {
    "Global": [
        {"type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."},
        {
            "type": "Brightness change",
            "severity": "slight",
            "explanation": "Image slightly bright.",
        },
    ]
}
SCORES = {"Global": {"Blurs": ["TOPIQ_FR", 2.6], "Brightness change": ["TOPIQ_FR", 2.8]}}

FLAT = dict.fromkeys("ABCDE", math.log(0.19))
ALL_OFF = dict.fromkeys(
    ("distortion_detection", "distortion_analysis", "tool_selection", "tool_execution"), False
)
FREE = {"query_type": "Other", "plan": ALL_OFF}  # a question that gets free text


def peaked_at(letter: str) -> dict[str, float]:
    """Log-probabilities of .6 for one letter and .09 for each other."""
    return {other: math.log(0.6 if other == letter else 0.09) for other in "ABCDE"}


def plan(**changes) -> PlannerOutput:
    return PlannerOutput.model_validate(plan_reply(**changes))


def evidence(analysis=ANALYSIS, scores=SCORES, **others) -> ExecutorOutput:
    return ExecutorOutput.model_validate(
        {"distortion_analysis": analysis, "quality_scores": scores, **others}
    )


def contradictory() -> ExecutorOutput:
    return evidence(moderate_blur(severity="severe"), {"Global": {"Blurs": ["NIQE", 4.5]}})


def state_of(picture: str, **fields) -> dict:
    return {
        "query": QUERY,
        "image_path": picture,
        "plan": plan(),
        "executor_evidence": evidence(),
    } | fields


def run(client: ScriptedClient, state: dict, **fusion) -> dict:
    services = scripted_services(
        client, ScriptedTools({}), Settings(fusion=FusionSettings(**fusion))
    )
    return summarizer_node(state, {"configurable": {"services": services}})


def result_of(
    client: ScriptedClient, picture: str, fusion: dict | None = None, **fields
) -> SummarizerOutput:
    return run(client, state_of(picture, **fields), **(fusion or {}))["summarizer_result"]


def failure_of(update: dict) -> str:
    """Why the Summarizer has no answer: its result's error, with the fallback's words and no replan."""
    result = update["summarizer_result"]
    assert (set(update), update["iteration_count"]) == ({"summarizer_result", "iteration_count"}, 0)
    assert (result.final_answer, result.quality_reasoning, result.need_replan) == (
        "Unable to determine",
        "VLM call failed",
        False,
    )
    return result.error


def scripted(logprobs=FLAT, *, reads_logits: bool = True, **replies) -> ScriptedClient:
    return ScriptedClient(scripted_answers(**replies), logprobs, reads_logits)


def messages(caplog, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_templates_are_the_specifications_word_for_word():
    assert EXPLANATION_PROMPT_TEMPLATE == EXPLANATION_TEXT
    assert SCORING_PROMPT_TEMPLATE == SCORING_TEXT


@pytest.mark.parametrize("scoring", [True, False])
@pytest.mark.parametrize(
    ("known", "shown"),
    [
        (evidence(), {"Distortion analysis": ANALYSIS, "Tool scores": SCORES}),
        (evidence({}, SCORES), {"Tool scores": SCORES}),
        (None, {}),
    ],
)
def test_evidence_stands_in_the_prompt_as_the_specified_json(scoring, known, shown):
    limit, *lines = summarizer_prompt(QUERY, known, scoring=scoring).case.splitlines()
    assert limit == "Keep quality_reasoning below 300 characters."  # what the schema allows
    found = {name: json.loads(text) for name, _, text in (line.partition(": ") for line in lines)}
    assert found == {"Query": QUERY} | shown


def test_the_documented_example_gives_c_without_a_replan(picture):
    client = scripted()
    update = run(client, state_of(picture, iteration_count=1))
    result = update["summarizer_result"]
    assert (set(update), update["iteration_count"]) == ({"summarizer_result", "iteration_count"}, 1)
    assert (result.final_answer, result.need_replan) == ("C", False)
    assert result.fusion.q_bar == pytest.approx(2.7)  # (2.6 + 2.8)/2
    assert result.used_evidence == {"distortion_analysis": ANALYSIS, "quality_scores": SCORES}
    assert prompts(client, "SummaryReply")[0].instructions == SCORING_TEXT


def test_the_fused_level_and_not_the_models_own_letter_is_the_answer(picture):
    # p(E) = 1.5/5.5, the others 1/5.5. At q̄ = 4.6: exp(−.4²), exp(−.6²), exp(−1.6²), exp(−2.6²) = .852144,
    # .697676, .077305, .001159, and 2e−6 for level 1: 7.2856/1.6283 = 4.474, so B.
    logprobs = {letter: math.log((1.5 if letter == "E" else 1) / 5.5) for letter in "ABCDE"}
    known = evidence(moderate_blur(severity="slight"), {"Global": {"Blurs": ["NIQE", 4.6]}})
    result = result_of(scripted(logprobs), picture, {"eta": 1.0}, executor_evidence=known)
    assert result.fusion.q == pytest.approx(4.474, abs=1e-3)
    assert (result.final_answer, result.fusion.vlm_letter) == ("B", "E")


@pytest.mark.parametrize(
    ("query_type", "choices", "template"),
    [
        ("IQA", None, SCORING_TEXT),
        ("Other", None, EXPLANATION_TEXT),
        ("IQA", ["Yes", "No"], EXPLANATION_TEXT),
    ],
)
def test_the_mode_follows_the_query_type_and_choices_mean_qa(
    picture, query_type, choices, template
):
    client = scripted()
    result_of(client, picture, plan=plan(query_type=query_type), choices=choices)
    assert {prompt.instructions for _, prompt in client.calls} == {template}


def test_choices_are_read_as_their_own_letters_without_a_quality_score(picture):
    client = scripted(
        {"A": math.log(0.3), "B": math.log(0.6), "C": math.log(0.1)}
    )  # which sum to 1
    result = result_of(client, picture, choices=["The car", "The sky", "Neither"])
    assert result.final_answer == "B"
    assert result.fusion.p_c == pytest.approx({"A": 0.3, "B": 0.6, "C": 0.1})
    assert (result.fusion.q, result.fusion.q_bar, result.fusion.alpha) == (None, None, None)


def test_a_question_without_choices_gets_free_text_and_no_letters(picture):
    client = scripted(
        SummaryReply={"final_answer": " the sky ", "quality_reasoning": "It is blurred."}
    )
    result = result_of(client, picture, plan=plan(**FREE))
    assert (result.final_answer, result.fusion) == ("the sky", None)
    assert prompts(client, "read_letters") == []


def test_a_model_without_logits_is_an_error_in_logits_mode(picture):
    assert "logits" in failure_of(run(scripted(reads_logits=False), state_of(picture)))


def test_classification_replaces_missing_logits_only_by_configuration(picture):
    client = scripted(reads_logits=False, LetterReply={"final_answer": "D"})
    fusion = result_of(client, picture, {"on_missing_logits": "classification"}).fusion
    assert (fusion.mode, fusion.vlm_letter, fusion.off_letter_mass) == ("classification", "D", None)
    assert fusion.p_c == pytest.approx({"A": 0.05, "B": 0.05, "C": 0.05, "D": 0.8, "E": 0.05})


@pytest.mark.parametrize(("choices", "value"), [(None, math.nan), (["Yes", "No"], -math.inf)])
def test_no_answer_is_made_of_letters_that_could_not_be_read(picture, choices, value):
    client = scripted(dict.fromkeys("ABCDE", value))
    assert failure_of(run(client, state_of(picture, choices=choices)))


def test_without_tool_scores_alpha_is_uniform_with_a_warning(picture, caplog):
    fusion = result_of(scripted(peaked_at("B")), picture, executor_evidence=None).fusion
    assert fusion.alpha == dict.fromkeys((1, 2, 3, 4, 5), 0.2)
    assert fusion.q == pytest.approx(3.53125)  # (.09·(1 + 2 + 3 + 5) + .6·4)/.96
    assert any("No tool gave a score" in message for message in messages(caplog, logging.WARNING))


# NIQE listed three times is one vote: (2 + 4)/2, and by entries (2 + 2 + 2 + 4)/4
@pytest.mark.parametrize(("vote", "expected"), [("runs", 3.0), ("entries", 2.5)])
def test_a_global_score_listed_three_times_is_one_vote(vote, expected):
    niqe = {kind: ["NIQE", 2.0] for kind in ("Blurs", "Noise", "Contrast")}
    scores = [
        score
        for _, score in votes(evidence(None, {"Global": niqe | {"Sharpness": ["PIQE", 4.0]}}), vote)
    ]
    assert sum(scores) / len(scores) == expected


def test_responses_and_failed_attempts_are_logged(picture, caplog):
    output = "The image is fair. " * 500
    with caplog.at_level(logging.DEBUG):
        run(scripted(SummaryReply=output), state_of(picture))
    records = [
        json.loads(m[m.index("{") :])
        for m in messages(caplog, logging.WARNING)
        if m.startswith("Attempt")
    ]
    assert [(r["retry_count"], r["details"]["attempt"]) for r in records] == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]
    told = {(r["error_type"], r["details"]["exception"], r["details"]["backend"]) for r in records}
    assert told == {("validation_error", "ValidationError", "transformers.embedded")}
    assert any(output in message for message in messages(caplog, logging.ERROR))
    debug = messages(caplog, logging.DEBUG)
    answered = [message for message in debug if message.startswith("VLM response")]
    assert len(answered) == 3
    assert all("truncated" in message and len(message) < len(output) for message in answered)


@pytest.mark.parametrize("missing", ["plan", "executor_evidence"])
def test_a_missing_prerequisite_is_an_error(picture, missing):
    state, client = state_of(picture), scripted()
    del state[missing]
    update = run(client, state)
    assert set(update) == {"error"}
    assert missing in update["error"]
    assert client.calls == []


def test_nothing_new_after_an_earlier_nodes_error(picture):
    client = scripted()
    assert run(client, state_of(picture, error="Planner: no valid JSON")) == {}
    assert client.calls == []


class Raising(ScriptedClient):
    """Its first letter reads raise what `errors` holds, one a read."""

    def __init__(self, *errors: Exception):
        super().__init__(scripted_answers())
        self.errors = [*errors]

    def open(self, images):
        session = super().open(images)
        read = session.read_letters

        def read_letters(*asked):
            if self.errors:
                self.calls.append(("failed", asked[0]))
                raise self.errors.pop(0)
            return read(*asked)

        session.read_letters = read_letters
        return session


HUNG_UP = VLMError("the server hung up")


@pytest.mark.parametrize(
    ("error", "calls"),
    [(HUNG_UP, 3), (KeyError("logits"), 3), (OutOfMemory("no memory"), 1), (ModelLost("gone"), 1)],
    ids=["an error", "of any kind", "no memory", "a lost model"],
)
@pytest.mark.parametrize("choices", [None, ["Yes", "No"]])
def test_a_backend_that_raises_is_asked_three_times_and_ends_in_an_error_of_the_result(
    picture, caplog, choices, error, calls
):
    client = Raising(*[error] * 9)
    failed = failure_of(run(client, state_of(picture, choices=choices)))
    assert str(error) in failed
    assert len(client.calls) == calls
    logged = [m for m in messages(caplog, logging.WARNING) if m.startswith("Attempt")]
    assert len(logged) == calls
    assert all('"error_type":"api_error"' in m for m in logged)


def test_a_backend_that_recovers_within_three_calls_gives_the_answer(picture):
    result = result_of(Raising(HUNG_UP, HUNG_UP), picture)
    assert (result.final_answer, result.error) == ("C", None)


def test_a_reading_survives_a_backend_that_raises_at_the_words(picture):
    result = result_of(scripted(SummaryReply=HUNG_UP), picture)
    assert (result.final_answer, result.error) == (
        "Unable to determine",
        "Summarizer: the server hung up",
    )
    assert result.fusion == result_of(scripted(), picture).fusion


def test_a_file_that_is_no_image_is_an_error_of_the_result(picture, tmp_path):
    path = tmp_path / "no image.png"
    path.write_bytes(b"no image")
    assert str(path) in failure_of(run(scripted(), state_of(str(path))))


def test_a_replan_raises_the_count_appends_to_the_history_and_is_logged(picture, caplog):
    caplog.set_level(logging.INFO)
    state = state_of(
        picture, executor_evidence=contradictory(), iteration_count=1, max_replan_iterations=3
    )
    update = run(scripted(), state | {"replan_history": ["[Iteration 1] gap"]})
    assert set(update) == {"summarizer_result", "iteration_count", "replan_history"}
    result, reason = update["summarizer_result"], update["summarizer_result"].replan_reason
    assert reason.startswith("Contradictory evidence: severe Blurs")
    assert reason in result.quality_reasoning
    assert (result.need_replan, update["iteration_count"]) == (True, 2)
    assert update["replan_history"] == ["[Iteration 1] gap", f"[Iteration 2] {reason}"]
    logged = "\n".join(messages(caplog, logging.INFO))
    assert f"need_replan=true, replan_reason={reason}, iteration_count=1" in logged


@pytest.mark.parametrize(("iteration", "limit"), [(2, None), (5, 2), (0, 0)])
def test_at_the_limit_nothing_is_replanned_and_a_warning_says_so(picture, caplog, iteration, limit):
    state = state_of(
        picture,
        executor_evidence=contradictory(),
        iteration_count=iteration,
        max_replan_iterations=limit,
    )
    update = run(scripted(), state)
    assert set(update) == {"summarizer_result", "iteration_count"}
    assert (update["summarizer_result"].need_replan, update["iteration_count"]) == (
        False,
        iteration,
    )
    assert "Max replanning iterations reached" in messages(caplog, logging.WARNING)


def test_the_model_sees_image_and_reference_and_the_start_is_logged(picture, caplog):
    caplog.set_level(logging.INFO)
    client = scripted()
    run(client, state_of(picture, reference_path=picture))
    assert client.opened == [2]
    start = next(
        message for message in messages(caplog, logging.INFO) if message.startswith("Summarizer")
    )
    parts = ("query_type=IQA", "mode=scoring", "2 distortions", "2 tool scores", f"image={picture}")
    assert all(part in start for part in (*parts, f"reference={picture}"))


@given(
    st.booleans(), st.booleans(), st.sampled_from([None, ANALYSIS]), st.sampled_from([None, SCORES])
)
def test_a_gap_counts_only_where_the_plan_asked_for_the_part(
    wants_analysis, wants_scores, analysis, scores
):
    asked = plan(
        plan=ALL_OFF | {"distortion_analysis": wants_analysis, "tool_execution": wants_scores}
    )
    need_replan, _ = should_replan(evidence(analysis, scores), "Global", asked)
    assert need_replan is (
        (wants_analysis and analysis is None) or (wants_scores and scores is None)
    )


def scores_of(kind: str, score: float = 2.6, name: str = "Global") -> dict:
    return {name: {kind: ["NIQE", score]}}


FAILED = {
    "tool_name": "LPIPS",
    "object_name": "Global",
    "distortion": "Blurs",
    "error": "no weights",
}


@pytest.mark.parametrize(
    ("known", "changes", "words"),
    [
        (evidence(moderate_blur("car") | moderate_blur("sky"), scores_of("Blurs", name="car")), {"query_scope": ["car", "sky"]}, ["tool scores", "sky"]),
        # The plan's own distortions are the key ones, else those of severity moderate and above.
        (evidence(ANALYSIS, scores_of("Blurs")), {"distortions": {"Global": ["Blurs", "Noise"]}}, ["scores", "Noise"]),
        (evidence(moderate_blur(), scores_of("Noise")), {}, ["tool scores", "Blurs"]),
        (evidence(uncertainty="cannot tell blur from haze"), {}, ["cannot tell blur from haze"]),
        (evidence(error="no valid JSON"), {}, ["no valid JSON"]),
        (contradictory(), {}, ["Contradictory evidence", "severe"]),
        # enough: slight damage without a score, a score of the whole, nothing found, a tool that could not run
        (evidence(moderate_blur(severity="slight"), scores_of("Noise")), {}, []),
        (evidence(moderate_blur(), scores_of("Overall quality")), {}, []),
        (evidence({"Global": []}, scores_of("Overall quality", 4.6)), {}, []),
        (evidence(moderate_blur(), {}, tool_logs=[FAILED]), {}, []),
    ],
)  # fmt: skip
def test_with_the_plan_specific_gaps_are_named(known, changes, words):
    asked = plan(**changes)
    need_replan, reason = should_replan(known, asked.query_scope, asked)
    assert need_replan is bool(words)
    assert all(word in reason for word in words)
