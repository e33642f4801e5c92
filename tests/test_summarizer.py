"""summarizer-core.md, should_replan of summarizer-design.md, and the evidence in the prompt, with a scripted
model."""

import json
import logging
import math

import pytest
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


def test_choices_are_read_as_their_own_letters_without_q(picture):
    client = scripted(
        {"A": math.log(0.3), "B": math.log(0.6), "C": math.log(0.1)}
    )  # which sum to 1
    result = result_of(client, picture, choices=["The car", "The sky", "Neither"])
    assert result.final_answer == "B"
    assert result.fusion.p_c == pytest.approx({"A": 0.3, "B": 0.6, "C": 0.1})
    assert (result.fusion.q, result.fusion.q_bar, result.fusion.alpha) == (None, None, None)


@pytest.mark.parametrize(("trust", "told"), [(0.0, False), (1.0, True)])
def test_a_model_without_trust_speaks_of_no_distortion_that_nobody_looked_for(picture, trust, told):
    words = "Bright rims surround the leaves, which is oversharpening."
    reply = {"final_answer": "A", "quality_reasoning": words}
    asked = {"plan": plan(**FREE), "choices": ["Crop", "Denoise"], "executor_evidence": None}
    read = {"A": math.log(0.6), "B": math.log(0.4)}
    fusion = {"model_trust": trust}
    result = result_of(scripted(read, SummaryReply=reply), picture, fusion, **asked)
    assert (words in result.quality_reasoning) == told


def test_a_question_without_choices_gets_free_text(picture):
    client = scripted(
        SummaryReply={"final_answer": " the sky ", "quality_reasoning": "It is blurred."}
    )
    result = result_of(client, picture, plan=plan(**FREE))
    assert (result.final_answer, result.fusion) == ("the sky", None)
    assert prompts(client, "read_letters") == []


def test_classification_replaces_logits_only_by_configuration(picture):
    client = scripted(reads_logits=False, LetterReply={"final_answer": "D"})
    assert "logits" in failure_of(run(client, state_of(picture)))
    fusion = result_of(client, picture, {"on_missing_logits": "classification"}).fusion
    assert (fusion.mode, fusion.vlm_letter, fusion.off_letter_mass) == ("classification", "D", None)
    assert fusion.p_c == pytest.approx(dict.fromkeys("ABCE", 0.05) | {"D": 0.8})


def test_without_tool_scores_the_letters_decide_alone(picture):
    fusion = result_of(scripted(), picture, executor_evidence=None).fusion
    assert fusion.alpha == dict.fromkeys((1, 2, 3, 4, 5), 0.2)
    assert (fusion.q, fusion.q_bar) == (pytest.approx(3.0), None)


# NIQE listed three times is one vote: (2 + 4)/2, and by entries (2 + 2 + 2 + 4)/4
@pytest.mark.parametrize(("vote", "expected"), [("runs", [2, 4]), ("entries", [2, 2, 2, 4])])
def test_a_global_score_listed_three_times_is_one_vote(vote, expected):
    niqe = dict.fromkeys(("Blurs", "Noise", "Contrast"), ("NIQE", 2.0))
    known = evidence(None, {"Global": niqe | {"Sharpness": ("PIQE", 4.0)}})
    assert [score for _, score in votes(known, vote)] == expected


def test_responses_and_failed_attempts_are_logged(picture, caplog):
    output = "The image is fair. " * 500
    with caplog.at_level(logging.DEBUG):
        run(scripted(SummaryReply=output), state_of(picture))
    failed = [m for m in messages(caplog, logging.WARNING) if m.startswith("Attempt")]
    records = [json.loads(message[message.index("{") :]) for message in failed]
    assert [record["details"]["attempt"] for record in records] == [1, 2, 3]
    assert {record["details"]["exception"] for record in records} == {"ValidationError"}
    assert {record["details"]["backend"] for record in records} == {"transformers.embedded"}
    evidence = {record["details"]["evidence"] for record in records}
    assert evidence == {"2 distortions, 2 tool scores"}
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
def test_a_model_that_raises_ends_in_an_error_of_the_result(picture, error, calls):
    client = Raising(*[error] * 9)
    assert str(error) in failure_of(run(client, state_of(picture)))
    assert len(client.calls) == calls


def test_a_model_that_recovers_within_three_calls_answers(picture):
    assert result_of(Raising(HUNG_UP, HUNG_UP), picture).final_answer == "C"


def test_a_reading_survives_a_model_that_raises_at_the_words(picture):
    result = result_of(scripted(SummaryReply=HUNG_UP), picture)
    assert (result.final_answer, bool(result.error)) == ("Unable to determine", True)
    assert result.fusion == result_of(scripted(), picture).fusion


def test_a_file_that_is_no_image_is_an_error_of_the_result(picture, tmp_path):
    path = tmp_path / "no image.png"
    path.write_bytes(b"no image")
    assert str(path) in failure_of(run(scripted(), state_of(str(path))))


def test_a_replan_is_counted_kept_in_the_history_and_logged(picture, caplog):
    caplog.set_level(logging.INFO)
    limits = {"iteration_count": 1, "max_replan_iterations": 3}
    state = state_of(picture, executor_evidence=contradictory(), **limits)
    update = run(scripted(), state | {"replan_history": ["[Iteration 1] gap"]})
    result = update["summarizer_result"]
    reason = result.replan_reason
    assert reason.startswith("Contradictory evidence: severe Blurs")
    assert reason in result.quality_reasoning
    assert (result.need_replan, update["iteration_count"]) == (True, 2)
    assert update["replan_history"] == ["[Iteration 1] gap", f"[Iteration 2] {reason}"]
    logged = "\n".join(messages(caplog, logging.INFO))
    assert f"need_replan=true, replan_reason={reason}, iteration_count=1" in logged


@pytest.mark.parametrize(("iteration", "limit"), [(2, None), (5, 2), (0, 0)])
def test_at_the_limit_nothing_is_replanned_with_a_warning(picture, caplog, iteration, limit):
    limits = {"iteration_count": iteration, "max_replan_iterations": limit}
    update = run(scripted(), state_of(picture, executor_evidence=contradictory(), **limits))
    assert not update["summarizer_result"].need_replan
    assert update["iteration_count"] == iteration
    assert "Max replanning iterations reached" in messages(caplog, logging.WARNING)


def test_the_model_sees_both_pictures_and_the_start_is_logged(picture, caplog):
    caplog.set_level(logging.INFO)
    client = scripted()
    run(client, state_of(picture, reference_path=picture))
    assert client.opened == [2]
    start = next(m for m in messages(caplog, logging.INFO) if m.startswith("Summarizer"))
    for part in ("query_type=IQA", "mode=scoring", "2 distortions", "2 tool scores"):
        assert part in start
    assert f"image={picture}, reference={picture}" in start


@pytest.mark.parametrize(
    ("flag", "analysis", "scores", "gap"),
    [
        ("distortion_analysis", None, SCORES, True),
        ("distortion_analysis", ANALYSIS, None, False),
        ("tool_execution", None, SCORES, False),
        ("tool_execution", ANALYSIS, None, True),
    ],
)
def test_a_gap_counts_only_where_the_plan_asked_for_the_part(flag, analysis, scores, gap):
    asked = plan(plan=ALL_OFF | {flag: True})
    assert should_replan(evidence(analysis, scores), "Global", asked)[0] is gap


def blur(scored: str, severity: str = "moderate", **others) -> ExecutorOutput:
    """A blur, and a score of NIQE for what is `scored`."""
    analysis = moderate_blur(severity=severity)
    return evidence(analysis, {"Global": {scored: ["NIQE", 2.6]}}, **others)


@pytest.mark.parametrize(
    ("known", "named", "gap"),
    [
        # The plan's own distortions are the key ones, else those of severity moderate and above.
        (blur("Blurs"), ["Blurs", "Noise"], "Missing tool scores for Noise"),
        (blur("Noise"), None, "Missing tool scores for Blurs"),
        (blur("Blurs", uncertainty="blur or haze"), None, "blur or haze"),
        (blur("Blurs", error="no valid JSON"), None, "no valid JSON"),
        (contradictory(), None, "Contradictory evidence: severe"),
        (blur("Noise", "slight"), None, ""),
        (blur("Overall quality"), None, ""),
    ],
)
def test_with_the_plan_specific_gaps_are_named(known, named, gap):
    asked = plan(distortions={"Global": named} if named else None)
    need_replan, reason = should_replan(known, "Global", asked)
    assert need_replan is bool(gap)
    assert gap in reason


def test_a_region_without_scores_is_a_gap_a_failed_tool_is_none():
    both = moderate_blur("car") | moderate_blur("sky")
    scores = {"car": {"Blurs": ["NIQE", 2.6]}}
    asked = plan(query_scope=["car", "sky"])
    reason = should_replan(evidence(both, scores), ["car", "sky"], asked)[1]
    assert reason == "Missing tool scores for sky region"
    failed = {"tool_name": "LPIPS", "object_name": "Global", "distortion": "Blurs", "error": "none"}
    known = evidence(moderate_blur(), {}, tool_logs=[failed])
    assert not should_replan(known, "Global", plan())[0]
