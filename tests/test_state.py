"""state-models.md and summarizer-state-models.md: the models, their messages, and what LangGraph does with
the state."""

import json
from datetime import UTC

import jsonschema
import pytest
from langgraph.graph import START, StateGraph
from pydantic import ValidationError
from scripted import plan_reply

from agentic_iqa_local.nodes.replanning import append_replan_reason
from agentic_iqa_local.state import (
    AgenticIQAState,
    ExecutorOutput,
    PlannerError,
    PlannerInput,
    PlannerOutput,
    SummarizerOutput,
)

LOG = {"tool_name": "TOPIQ_FR", "object_name": "Global", "distortion": "Blurs"}
EVIDENCE = {
    "distortion_set": {"Global": ["Blurs"]},
    "distortion_analysis": {"Global": [{"type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."}]},
    "selected_tools": {"Global": {"Blurs": "TOPIQ_FR"}},
    "quality_scores": {"Global": {"Blurs": ("TOPIQ_FR", 2.6)}},
    "tool_logs": [LOG | {"raw_score": 0.4, "normalized_score": 2.6, "timestamp": "2025-01-01T00:00:00Z"}],
}  # fmt: skip
SOFT = {"final_answer": "B", "quality_reasoning": "Soft edges."}


def plan(**changes) -> PlannerOutput:
    return PlannerOutput.model_validate(plan_reply(**changes))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query_type", "INVALID"),
        ("query_scope", []),
        ("distortions", {"Global": "Blurs"}),
        ("required_tool", 3),
        ("plan", None),
    ],
)
def test_planner_output_names_the_invalid_field(field, value):
    with pytest.raises(ValidationError, match=field):
        PlannerOutput.model_validate_json(json.dumps(plan_reply(**{field: value})))


@pytest.mark.parametrize("model", [PlannerOutput, SummarizerOutput])
def test_schema_examples_validate_against_their_model_and_schema(model):
    schema = model.model_json_schema()
    examples = model.model_config["json_schema_extra"]["examples"]
    assert schema["examples"] == examples != []
    for example in examples:
        assert model.model_validate(example).model_dump(exclude_unset=True) == example
        jsonschema.validate(example, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("field", ["image_path", "reference_path"])
def test_planner_input_reports_missing_and_wrong_files(picture, field):
    given = {"query": "Is it sharp?", "image_path": picture, "reference_path": picture}
    given["prior_context"] = {"turn": 1}
    assert PlannerInput.model_validate(given).model_dump() == given
    for path in ("missing.png", "", "x" * 5000):
        with pytest.raises(ValueError, match=f"Image file not found: {path}"):
            PlannerInput.model_validate(given | {field: path})
    with pytest.raises(ValueError, match="Invalid image format"):
        PlannerInput.model_validate(given | {field: __file__})


def test_a_failed_try_keeps_its_exception_and_the_retry_metadata():
    first = PlannerError.from_exception(OSError())
    assert (first.error_type, first.message, first.retry_count) == ("api_error", "OSError", 0)
    assert first.timestamp.tzinfo is UTC
    error = ValueError("no JSON")
    third = PlannerError.from_exception(error, attempt=3, backend="embedded", output="{")
    assert (third.error_type, third.message) == ("validation_error", "no JSON")
    assert third.retry_count == 2
    told = {"exception": "ValueError", "attempt": 3, "backend": "embedded", "output": "{"}
    assert third.details == told
    assert PlannerError.model_validate_json(third.model_dump_json()) == third


def test_executor_output_round_trips_and_every_part_is_optional():
    evidence = ExecutorOutput.model_validate(EVIDENCE)
    assert ExecutorOutput.model_validate_json(evidence.model_dump_json()) == evidence
    assert (evidence.is_empty, ExecutorOutput().is_empty) == (False, True)
    assert set(ExecutorOutput().model_dump(exclude={"tool_logs"}).values()) == {None}


def test_scores_are_those_of_the_runs_also_in_rows_without_them():
    evidence = ExecutorOutput.model_validate(EVIDENCE)
    assert evidence.quality_scores == EVIDENCE["quality_scores"]
    stored = evidence.model_dump(mode="json", exclude={"tool_logs"})
    assert ExecutorOutput.model_validate(stored).quality_scores == EVIDENCE["quality_scores"]


def analysed(severity: str, text: str) -> dict:
    item = {"type": "Blurs", "severity": severity, "explanation": text}
    return {"distortion_analysis": {"Global": [item]}}


@pytest.mark.parametrize(
    "given",
    [
        analysed("moderate", "  "),
        analysed("mild", "Soft."),
        {"quality_scores": {"Global": {"Blurs": ("NIQE", 5.1)}}},
        {"tool_logs": [LOG | {"normalized_score": float("nan")}]},
    ],
)
def test_evidence_is_checked_on_construction(given):
    with pytest.raises(ValidationError):
        ExecutorOutput.model_validate(given)


def test_summarizer_output_has_the_specified_fields_and_defaults():
    result = SummarizerOutput(final_answer=" B\n", quality_reasoning="  Soft edges. ")
    defaults = {"need_replan": False, "replan_reason": None, "used_evidence": None}
    assert result.model_dump(include={*SOFT, *defaults}) == SOFT | defaults


@pytest.mark.parametrize("field", ["final_answer", "quality_reasoning"])
def test_summarizer_output_refuses_blank_texts(field):
    with pytest.raises(ValidationError, match=field):
        SummarizerOutput.model_validate(SOFT | {field: " \n\t"})
    with pytest.raises(ValidationError, match=field):
        setattr(SummarizerOutput(**SOFT), field, "")


@pytest.mark.parametrize("reason", [None, "  "])
def test_a_replan_without_a_reason_is_given_one_with_a_warning(reason, caplog):
    result = SummarizerOutput(**SOFT, need_replan=True, replan_reason=reason)
    assert result.replan_reason == "No reason provided"
    assert "replan_reason" in caplog.text


def test_state_requires_query_and_image_and_nothing_else():
    assert AgenticIQAState.__required_keys__ == {"query", "image_path"}
    optional = "reference_path plan executor_evidence summarizer_result iteration_count max_replan_iterations replan_history error choices"  # fmt: skip
    assert AgenticIQAState.__optional_keys__ >= set(optional.split())


def test_langgraph_replaces_plan_and_error_and_leaves_the_rest():
    evidence = ExecutorOutput.model_validate(EVIDENCE)
    old = {"plan": plan(query_scope=["vehicle"]), "executor_evidence": evidence, "error": "first"}
    new = {"plan": plan(), "error": "second"}
    graph = StateGraph(AgenticIQAState)
    graph.add_sequence([("first", lambda _: old), ("second", lambda _: new)])
    graph.add_edge(START, "first")
    start = {"query": "Rate it.", "image_path": "a.png", "reference_path": "b.png"}
    expected = start | old | new
    assert graph.compile().invoke(start).items() >= expected.items()


def test_the_latest_ten_reasons_stay_in_the_history(caplog):
    history: list[str] = []
    for iteration in range(1, 11):
        history = append_replan_reason(history, iteration, "gap")
    assert (history[0], caplog.text) == ("[Iteration 1] gap", "")
    longer = append_replan_reason(history, 11, "no scores")
    assert longer == [*history[1:], "[Iteration 11] no scores"]
    assert "xcessive replanning" in caplog.text
