"""state-models.md and summarizer-state-models.md: the models, their messages, and what LangGraph does with
the state."""

import itertools
import json
import logging
from datetime import UTC

import jsonschema
import pytest
from langgraph.graph import END, START, StateGraph
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
        ("query_type", "INVALID"), ("query_scope", "vehicle"), ("query_scope", [""]), ("query_scope", []),
        ("distortion_source", "Guessed"), ("distortions", {"Global": "Blurs"}),
        ("reference_mode", "Reduced-Reference"), ("required_tool", 3), ("plan", None),
    ],
)  # fmt: skip
def test_planner_output_names_the_invalid_field(field, value):
    with pytest.raises(ValidationError) as caught:
        PlannerOutput.model_validate_json(json.dumps(plan_reply(**{field: value})))
    assert {error["loc"][0] for error in caught.value.errors()} == {field}


@pytest.mark.parametrize("model", [PlannerOutput, SummarizerOutput])
def test_schema_examples_validate_against_their_model_and_schema(model):
    schema = model.model_json_schema()
    examples = model.model_config["json_schema_extra"]["examples"]
    assert schema["examples"] == examples != []
    for example in examples:
        assert model.model_validate(example).model_dump(exclude_unset=True) == example
        jsonschema.validate(example, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("field", ["image_path", "reference_path"])
def test_planner_input_reports_missing_and_wrong_files(picture, tmp_path, field):
    given = {
        "query": "Is it sharp?",
        "image_path": picture,
        "reference_path": picture,
        "prior_context": {"turn": 1},
    }
    assert PlannerInput.model_validate(given).model_dump() == given
    missing = [str(tmp_path / name) for name in ("missing.png", "missing", "missing.txt", "")]
    bare = tmp_path / "bare"
    bare.touch()
    expected = {path: f"Image file not found: {path}" for path in (*missing, "x" * 5000)}
    expected |= dict.fromkeys((__file__, str(bare)), "Invalid image format")
    for path, message in expected.items():
        with pytest.raises(ValueError, match=message):
            PlannerInput.model_validate(given | {field: path})


def test_a_failed_try_keeps_what_its_exception_was_and_the_retry_metadata():
    first = PlannerError.from_exception(OSError())
    assert (first.error_type, first.message, first.retry_count) == ("api_error", "OSError", 0)
    assert first.timestamp.tzinfo is UTC
    third = PlannerError.from_exception(
        ValueError("no JSON"), attempt=3, backend="transformers.embedded", output="{"
    )
    assert (third.error_type, third.message, third.retry_count) == (
        "validation_error",
        "no JSON",
        2,
    )
    about = {
        "exception": "ValueError",
        "attempt": 3,
        "backend": "transformers.embedded",
        "output": "{",
    }
    assert third.details == about
    assert PlannerError.model_validate_json(third.model_dump_json()) == third


def test_executor_output_round_trips_and_every_part_is_optional():
    evidence = ExecutorOutput.model_validate(EVIDENCE)
    assert evidence.quality_scores == EVIDENCE["quality_scores"]
    assert ExecutorOutput.model_validate_json(evidence.model_dump_json()) == evidence
    assert (evidence.is_empty, ExecutorOutput().is_empty) == (False, True)
    assert set(ExecutorOutput().model_dump(exclude={"tool_logs"}).values()) == {None}


@pytest.mark.parametrize(
    "change",
    [
        *({"distortion_analysis": {"Global": [{"type": "Blurs", "severity": severity, "explanation": text}]}}
          for severity, text in (("moderate", "  "), ("mild", "Soft."))),
        *({"quality_scores": {"Global": {"Blurs": ("NIQE", score)}}, "tool_logs": []} for score in (5.1, float("nan"))),
        {"tool_logs": [{"object_name": "Global", "distortion": "Blurs"}]}, {"tool_logs": [LOG | {"normalized_score": 6.0}]},
    ],
    ids=str,
)  # fmt: skip
def test_evidence_is_checked_on_construction(change):
    with pytest.raises(ValidationError):
        ExecutorOutput.model_validate(EVIDENCE | change)


def test_summarizer_output_has_the_specified_fields_and_defaults():
    result = SummarizerOutput(final_answer=" B\n", quality_reasoning="  Soft edges. ")
    names = ["final_answer", "quality_reasoning", "need_replan", "replan_reason", "used_evidence"]
    assert list(SummarizerOutput.model_fields)[:5] == names
    assert [getattr(result, name) for name in names] == ["B", "Soft edges.", False, None, None]


@pytest.mark.parametrize("field", ["final_answer", "quality_reasoning"])
def test_summarizer_output_refuses_blank_texts(field):
    with pytest.raises(ValidationError, match=field):
        SummarizerOutput.model_validate(SOFT | {field: " \n\t"})
    with pytest.raises(ValidationError, match=field):
        setattr(SummarizerOutput(**SOFT), field, "")


@pytest.mark.parametrize("reason", [None, "", "  ", "No scores"])
def test_a_replan_without_a_reason_is_given_one_with_a_warning(reason, caplog):
    with caplog.at_level(logging.WARNING):
        result = SummarizerOutput(**SOFT, need_replan=True, replan_reason=reason)
    has_one = reason == "No scores"
    assert result.replan_reason == (reason if has_one else "No reason provided")
    assert ("replan_reason" in caplog.text) is not has_one


def test_state_requires_query_and_image_and_nothing_else():
    assert AgenticIQAState.__required_keys__ == {"query", "image_path"}
    optional = "reference_path plan executor_evidence summarizer_result iteration_count max_replan_iterations replan_history error choices"  # fmt: skip
    assert AgenticIQAState.__optional_keys__ >= set(optional.split())


def test_langgraph_replaces_plan_and_error_and_leaves_the_rest():
    evidence = ExecutorOutput.model_validate(EVIDENCE)
    old = plan(query_scope=["vehicle"], distortions={"vehicle": ["Blurs"]})
    graph = StateGraph(AgenticIQAState)
    graph.add_node(
        "first", lambda _: {"plan": old, "executor_evidence": evidence, "error": "first"}
    )
    graph.add_node("second", lambda _: {"plan": plan(), "error": "second"})
    for source, target in itertools.pairwise([START, "first", "second", END]):
        graph.add_edge(source, target)
    start = {"query": "Rate it.", "image_path": "a.png", "reference_path": "b.png"}
    expected = start | {"plan": plan(), "error": "second", "executor_evidence": evidence}
    assert graph.compile().invoke(start).items() >= expected.items()


def test_history_entries_carry_iteration_and_reason_and_the_latest_ten_stay(caplog):
    history: list[str] = []
    for iteration in range(1, 11):
        history = append_replan_reason(history, iteration, "gap")
    assert (len(history), history[0], caplog.records) == (10, "[Iteration 1] gap", [])
    longer = append_replan_reason(history, 11, "no scores")
    assert (len(longer), longer[0], longer[-1]) == (
        10,
        "[Iteration 2] gap",
        "[Iteration 11] no scores",
    )
    assert "xcessive replanning" in caplog.text
