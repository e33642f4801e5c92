"""state-models.md and summarizer-state-models.md: the models, their messages, and what LangGraph does with
the state."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, ValidationError
from scripted import plan_reply

from agentic_iqa_local.nodes.replanning import append_replan_reason
from agentic_iqa_local.state import (
    AgenticIQAState,
    Basis,
    ExecutorOutput,
    FusionResult,
    PassRecord,
    PlanControlFlags,
    PlannerError,
    PlannerInput,
    PlannerOutput,
    SummarizerOutput,
    ToolExecutionLog,
    revised,
)

FLAGS = ("distortion_detection", "distortion_analysis", "tool_selection", "tool_execution")
EVIDENCE = {
    "distortion_set": {"Global": ["Blurs"]},
    "distortion_analysis": {"Global": [{"type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."}]},
    "selected_tools": {"Global": {"Blurs": "TOPIQ_FR"}},
    "quality_scores": {"Global": {"Blurs": ("TOPIQ_FR", 2.6)}},
    "tool_logs": [
        {
            "tool_name": "TOPIQ_FR", "object_name": "Global", "distortion": "Blurs", "raw_score": 0.4,
            "normalized_score": 2.6, "execution_time": 0.5, "fallback": False, "error": None,
            "timestamp": "2025-01-01T00:00:00Z",
        }
    ],
}  # fmt: skip


def plan(**changes) -> PlannerOutput:
    return PlannerOutput.model_validate(plan_reply(**changes))


def fields(model: type[BaseModel]) -> dict[str, object]:
    return {name: field.annotation for name, field in model.model_fields.items()}


def accepts(schema: dict, value, root: dict | None = None) -> bool:
    """Whether `value` satisfies the parts of JSON Schema Draft 2020-12 that pydantic's schemas use."""
    root = root or schema
    if "$ref" in schema:
        return accepts(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, root)
    if "anyOf" in schema:
        return any(accepts(part, value, root) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}
    if not isinstance(value, kinds[schema["type"]]):
        return False
    if schema["type"] == "string":
        return len(value) >= schema.get("minLength", 0)
    if schema["type"] == "array":
        return all(accepts(schema["items"], item, root) for item in value)
    if schema["type"] == "object":
        known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        return set(schema.get("required", [])) <= set(value) and all(
            accepts(known.get(key, other), item, root) if key in known or isinstance(other, dict) else other
            for key, item in value.items()
        )
    return True


# PlannerOutput


def test_planner_output_has_the_specified_fields():
    assert list(fields(PlannerOutput)) == [
        "query_type", "query_scope", "distortion_source", "distortions", "reference_mode", "required_tool", "plan",
    ]  # fmt: skip
    assert get_args(fields(PlannerOutput)["query_type"]) == ("IQA", "Other")
    assert get_args(fields(PlannerOutput)["distortion_source"]) == ("Explicit", "Inferred")
    assert get_args(fields(PlannerOutput)["reference_mode"]) == ("Full-Reference", "No-Reference")
    assert fields(PlannerOutput)["plan"] is PlanControlFlags


@pytest.mark.parametrize("model", [PlannerOutput, PlanControlFlags, PlannerInput, PlannerError])
def test_models_and_fields_are_described(model):
    assert model.__doc__
    undescribed = [name for name, field in model.model_fields.items() if not field.description]
    assert set(undescribed) <= {"timestamp"}


def test_plan_control_flags_are_four_booleans_with_defaults():
    assert fields(PlanControlFlags) == dict.fromkeys(FLAGS, bool)
    assert PlanControlFlags().model_dump() == dict.fromkeys(FLAGS, False)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"query_scope": ["vehicle", "sky"]},
        {"distortion_source": "Explicit", "distortions": {"Global": ["Blurs", "Noise"]}},
        {"query_type": "Other", "reference_mode": "Full-Reference", "required_tool": "LPIPS"},
    ],
)
def test_planner_output_round_trips(changes):
    parsed = PlannerOutput.model_validate_json(json.dumps(plan_reply(**changes)))
    assert parsed.model_dump() == plan_reply(**changes)
    assert PlannerOutput.model_validate(parsed.model_dump()) == parsed
    assert PlannerOutput.model_validate_json(parsed.model_dump_json()) == parsed


BAD_FIELDS = [
    ("query_type", "INVALID"),
    ("query_scope", "vehicle"),
    ("query_scope", [""]),
    ("distortion_source", "Guessed"),
    ("distortions", {"Global": "Blurs"}),
    ("reference_mode", "Reduced-Reference"),
    ("required_tool", 3),
    ("plan", None),
]


@pytest.mark.parametrize(("field", "value"), [*BAD_FIELDS, ("query_scope", [])])
def test_planner_output_names_the_invalid_field(field, value):
    with pytest.raises(ValidationError) as caught:
        PlannerOutput.model_validate_json(json.dumps(plan_reply(**{field: value})))
    assert {error["loc"][0] for error in caught.value.errors()} == {field}


def test_planner_outputs_with_identical_values_are_equal_and_hash_alike():
    assert plan() == plan()
    assert plan() != plan(required_tool="LPIPS")
    assert hash(plan()) == hash(plan())  # Global scope and no distortions: every field is hashable


@pytest.mark.parametrize("model", [PlannerOutput, SummarizerOutput])
def test_schema_examples_validate_against_their_model_and_schema(model):
    examples = model.model_config["json_schema_extra"]["examples"]
    assert examples
    for example in examples:
        assert model.model_validate(example).model_dump(exclude_unset=True) == example
    assert model.model_json_schema()["examples"] == examples


def test_planner_json_schema_is_draft_2020_12_with_descriptions_and_constraints():
    schema = PlannerOutput.model_json_schema()
    assert schema["properties"]["query_type"]["enum"] == ["IQA", "Other"]
    assert all(prop.get("description") for prop in schema["properties"].values())
    assert "definitions" not in schema  # drafts before 2019-09 said definitions
    assert set(schema["$defs"]["PlanControlFlags"]["properties"]) == set(FLAGS)
    assert {"query_type", "query_scope", "distortion_source", "reference_mode", "plan"} <= set(
        schema["required"]
    )


def test_planner_json_schema_validates_external_json():
    schema = PlannerOutput.model_json_schema()
    assert accepts(schema, plan_reply())
    assert accepts(
        schema, plan_reply(query_scope=["vehicle"], distortions={"vehicle": ["Blurs"]}, required_tool="NIQE")
    )
    assert not accepts(schema, {key: value for key, value in plan_reply().items() if key != "plan"})
    assert [field for field, value in BAD_FIELDS if accepts(schema, plan_reply(**{field: value}))] == []


# PlannerInput


def test_planner_input_takes_existing_images(picture):
    task = PlannerInput(
        query="Is it sharp?", image_path=picture, reference_path=picture, prior_context={"turn": 1}
    )
    assert task.model_dump() == {
        "query": "Is it sharp?", "image_path": picture, "reference_path": picture, "prior_context": {"turn": 1},
    }  # fmt: skip
    assert PlannerInput(query="Is it sharp?", image_path=picture).reference_path is None


@pytest.mark.parametrize("field", ["image_path", "reference_path"])
def test_planner_input_reports_missing_and_wrong_files(picture, tmp_path, field):
    text = tmp_path / "notes.txt"
    text.write_text("no image")
    missing = str(tmp_path / "missing.png")
    for path, message in ((missing, f"Image file not found: {missing}"), (str(text), "Invalid image format")):
        with pytest.raises(ValueError, match=message):
            PlannerInput.model_validate({"query": "Is it sharp?", "image_path": picture, field: path})


def test_planner_input_takes_any_name_of_a_picture_that_was_decoded(picture, tmp_path):
    unnamed = tmp_path / "photo.dat"
    unnamed.write_bytes(Path(picture).read_bytes())
    data = {"query": "Is it sharp?", "image_path": str(unnamed)}
    assert PlannerInput.model_validate(data, context={"decoded": True}).image_path == str(unnamed)
    with pytest.raises(ValueError, match="Invalid image format"):
        PlannerInput.model_validate(data)


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
def test_planner_input_refuses_a_blank_query_for_its_length(picture, query):
    with pytest.raises(ValidationError) as caught:
        PlannerInput(query=query, image_path=picture)
    assert [(e["loc"], e["type"], e["ctx"]) for e in caught.value.errors()] == [
        (("query",), "string_too_short", {"min_length": 1})
    ]


# PlannerError


@pytest.mark.parametrize(
    ("exception", "error_type"),
    [
        (ValueError("no JSON"), "validation_error"),
        (RuntimeError("out of memory"), "api_error"),
        (OSError("gone"), "api_error"),
    ],
)
def test_planner_error_from_exception_keeps_type_and_message(exception, error_type):
    error = PlannerError.from_exception(exception)
    assert (error.error_type, error.message, error.retry_count) == (error_type, str(exception), 0)
    assert error.details["exception"] == type(exception).__name__
    assert error.timestamp.tzinfo is UTC


def test_planner_error_carries_the_retry_metadata():
    with pytest.raises(ValidationError) as caught:
        PlannerOutput.model_validate_json("no JSON")
    error = PlannerError.from_exception(
        caught.value, attempt=3, backend="transformers.embedded", output="no JSON"
    )
    assert (error.error_type, error.retry_count) == ("validation_error", 2)
    assert error.details == {
        "exception": "ValidationError",
        "attempt": 3,
        "backend": "transformers.embedded",
        "output": "no JSON",
    }
    assert PlannerError.model_validate_json(error.model_dump_json()) == error


# ExecutorOutput


def test_executor_output_round_trips():
    evidence = ExecutorOutput.model_validate(EVIDENCE)
    assert evidence.model_dump(include=set(EVIDENCE) - {"tool_logs"}, mode="json") == json.loads(
        json.dumps({key: value for key, value in EVIDENCE.items() if key != "tool_logs"})
    )
    assert evidence.tool_logs[0].timestamp == datetime(2025, 1, 1, tzinfo=UTC)
    assert ExecutorOutput.model_validate_json(evidence.model_dump_json()) == evidence


def test_every_part_of_the_evidence_is_optional():
    assert ExecutorOutput().model_dump(exclude={"tool_logs"}) == dict.fromkeys(
        ("distortion_set", "distortion_analysis", "selected_tools", "quality_scores", "uncertainty", "error",
         "severity_probabilities", "detection", "boxes", "disagreement", "damaged_part", "worst_part")
    )  # fmt: skip
    assert ExecutorOutput().is_empty


@pytest.mark.parametrize(
    "change",
    [
        {"distortion_analysis": {"Global": [{"type": "Blurs", "severity": "moderate"}]}},
        {"distortion_analysis": {"Global": [{"type": "Blurs", "severity": "moderate", "explanation": "  "}]}},
        {"distortion_analysis": {"Global": [{"type": "Blurs", "severity": "mild", "explanation": "Soft."}]}},
        {"quality_scores": {"Global": {"Blurs": ("NIQE", 0.9)}}},
        {"quality_scores": {"Global": {"Blurs": ("NIQE", 5.1)}}},
        {"quality_scores": {"Global": {"Blurs": ("NIQE", float("nan"))}}},
        {"quality_scores": {"Global": {"Blurs": 3.0}}},
        {"tool_logs": [{"object_name": "Global", "distortion": "Blurs"}]},
        {"tool_logs": [EVIDENCE["tool_logs"][0] | {"normalized_score": 6.0}]},
    ],
)
def test_evidence_is_checked_on_construction(change):
    with pytest.raises(ValidationError):
        ExecutorOutput.model_validate(EVIDENCE | change)


# SummarizerOutput


def test_summarizer_output_has_the_specified_fields_and_defaults():
    result = SummarizerOutput(final_answer="B", quality_reasoning="Soft edges.")
    assert list(fields(SummarizerOutput))[:5] == [
        "final_answer", "quality_reasoning", "need_replan", "replan_reason", "used_evidence",
    ]  # fmt: skip
    assert (result.need_replan, result.replan_reason, result.used_evidence) == (False, None, None)


def test_summarizer_output_trims_its_texts():
    result = SummarizerOutput(final_answer=" B\n", quality_reasoning="  Soft edges. ")
    assert (result.final_answer, result.quality_reasoning) == ("B", "Soft edges.")


@pytest.mark.parametrize("field", ["final_answer", "quality_reasoning"])
@pytest.mark.parametrize("text", ["", " \n\t"])
def test_summarizer_output_refuses_blank_texts(field, text):
    with pytest.raises(ValidationError) as caught:
        SummarizerOutput.model_validate(
            {"final_answer": "B", "quality_reasoning": "Soft edges.", field: text}
        )
    assert [error["loc"] for error in caught.value.errors()] == [(field,)]


@pytest.mark.parametrize("reason", [None, "", "  "])
def test_a_replan_without_a_reason_is_given_one_with_a_warning(reason, caplog):
    with caplog.at_level(logging.WARNING):
        result = SummarizerOutput(
            final_answer="B", quality_reasoning="Soft.", need_replan=True, replan_reason=reason
        )
    assert result.replan_reason == "No reason provided"
    assert "replan_reason" in caplog.text


def test_a_replan_with_a_reason_keeps_it_without_a_warning(caplog):
    result = SummarizerOutput(
        final_answer="B", quality_reasoning="Soft.", need_replan=True, replan_reason="No scores"
    )
    assert result.replan_reason == "No scores"
    assert not caplog.records


def test_summarizer_output_round_trips():
    result = SummarizerOutput(
        final_answer="Unable to determine", quality_reasoning="Insufficient evidence.", need_replan=True,
        replan_reason="Missing tool scores for vehicle region", used_evidence={"tools": ["NIQE"], "mean": 2.6},
        fusion={"mode": "logits", "vlm_letter": "C", "p_c": {"C": 1.0}, "off_letter_mass": 0.1, "alpha": {3: 1.0}, "q": 3.0},
        error="none",
    )  # fmt: skip
    assert SummarizerOutput.model_validate_json(result.model_dump_json()) == result


def test_summarizer_schema_shows_the_specified_examples():
    assert SummarizerOutput.model_json_schema()["examples"] == [
        {
            "final_answer": "B",
            "quality_reasoning": (
                "The image shows moderate blur affecting sharpness, consistent with tool score of 2.6."
            ),
            "need_replan": False,
        },
        {
            "final_answer": "Unable to determine",
            "quality_reasoning": "Insufficient evidence for vehicle region.",
            "need_replan": True,
            "replan_reason": "Missing tool scores for vehicle region",
        },
    ]


# AgenticIQAState


def test_state_requires_query_and_image_and_nothing_else():
    assert AgenticIQAState.__required_keys__ == {"query", "image_path"}
    assert AgenticIQAState.__optional_keys__ >= {
        "reference_path", "plan", "executor_evidence", "summarizer_result", "iteration_count", "max_replan_iterations",
        "replan_history", "error", "choices",
    }  # fmt: skip
    hints = get_type_hints(AgenticIQAState)
    assert (hints["plan"], hints["summarizer_result"]) == (PlannerOutput, SummarizerOutput)
    assert (hints["iteration_count"], hints["max_replan_iterations"], hints["replan_history"]) == (
        int,
        int,
        list[str],
    )
    assert AgenticIQAState.__doc__


def run_nodes(state: AgenticIQAState, *updates: dict) -> AgenticIQAState:
    """The state after a compiled graph whose nodes return `updates` one after the other."""
    graph = StateGraph(AgenticIQAState)
    names = [f"node_{i}" for i in range(len(updates))]
    for name, update in zip(names, updates, strict=True):
        graph.add_node(name, lambda _state, update=update: update)
    for source, target in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(source, target)
    return graph.compile().invoke(state)


START_STATE: AgenticIQAState = {"query": "Rate it.", "image_path": "a.png"}


def test_langgraph_replaces_the_plan_and_leaves_the_rest():
    evidence = ExecutorOutput.model_validate(EVIDENCE)
    old = plan(query_scope=["vehicle"], distortions={"vehicle": ["Blurs"]})
    final = run_nodes(
        START_STATE | {"reference_path": "b.png"},
        {"plan": old, "executor_evidence": evidence},
        {"plan": plan()},
    )
    assert final["plan"] == plan()
    assert (final["query"], final["image_path"], final["reference_path"]) == ("Rate it.", "a.png", "b.png")
    assert final["executor_evidence"] == evidence


def test_langgraph_replaces_errors_and_a_run_without_one_has_none():
    assert run_nodes(START_STATE, {"error": "first"}, {"error": "second"})["error"] == "second"
    assert "error" not in run_nodes(START_STATE, {"plan": plan()})


def test_langgraph_merges_the_result_and_preserves_plan_and_evidence():
    evidence = ExecutorOutput.model_validate(EVIDENCE)
    result = SummarizerOutput(
        final_answer="C", quality_reasoning="Soft edges.", need_replan=True, replan_reason="No scores"
    )
    final = run_nodes(
        START_STATE | {"iteration_count": 0},
        {"plan": plan(), "executor_evidence": evidence},
        {"summarizer_result": result, "iteration_count": 1, "replan_history": ["[Iteration 1] No scores"]},
    )
    assert (final["plan"], final["executor_evidence"], final["summarizer_result"]) == (
        plan(),
        evidence,
        result,
    )
    assert (final["iteration_count"], final["replan_history"]) == (1, ["[Iteration 1] No scores"])


@pytest.mark.parametrize(
    "update", [{"plan": plan()}, {"plan": plan(), "executor_evidence": ExecutorOutput()}]
)
def test_states_without_evidence_or_result_are_valid(update):
    final = run_nodes(START_STATE, update)
    assert final.items() >= update.items()
    assert "summarizer_result" not in final


# replan_history


def test_history_entries_carry_iteration_and_reason_without_touching_the_old_history():
    old = ["[Iteration 1] No scores"]
    assert append_replan_reason(old, 2, "Missing tool scores for vehicle region") == [
        "[Iteration 1] No scores",
        "[Iteration 2] Missing tool scores for vehicle region",
    ]
    assert old == ["[Iteration 1] No scores"]


def test_history_keeps_the_latest_ten_and_warns_from_the_eleventh_on(caplog):
    history: list[str] = []
    for iteration in range(1, 11):
        history = append_replan_reason(history, iteration, "gap")
    assert (len(history), caplog.records) == (10, [])
    history = append_replan_reason(history, 11, "gap")
    assert (len(history), history[0], history[-1]) == (10, "[Iteration 2] gap", "[Iteration 11] gap")
    assert "xcessive replanning" in caplog.text


def test_a_changed_copy_is_validated_and_keeps_the_rest():
    first = plan(query_scope=["car"])
    changed = revised(first, query_scope="Global")
    assert (changed, first.query_scope) == (plan(), ["car"])
    assert revised(first) == first
    with pytest.raises(ValidationError, match="query_scope"):
        revised(first, query_scope=[])


# What is left out, and what is out of range


@pytest.mark.parametrize(
    ("model", "given", "left_out"),
    [
        (
            ToolExecutionLog,
            {"tool_name": "NIQE", "object_name": "Global", "distortion": "Blurs"},
            {
                "raw_score": None, "normalized_score": None, "execution_time": 0.0, "fallback": False, "cached": False,
                "region": "global", "crops": 0, "outvoted": False, "trailing": False, "error": None,
            },
        ),
        (
            FusionResult,
            {"mode": "uniform", "vlm_letter": None, "p_c": {}, "off_letter_mass": None},
            dict.fromkeys(("alpha", "q_bar", "q", "dq_dqbar", "eta", "sigma", "order_gap", "crop_spread", "disagreement",
                           "measured", "product", "measurement"))
                | {"both_orders": False, "crops": 0, "voters": []},
        ),
        (
            PassRecord,
            {"number": 1, "seen": "s", "measured": "m", "concluded": "c", "decided": "seen"},
            {"asked": None, "changed": [], "q": None, "dq": None, "gaps": [], "tokens": 0, "seconds": 0.0, "kept": True},
        ),
        (PlannerError, {"error_type": "api_error", "message": "m"}, {"details": None, "retry_count": 0}),
    ],
)  # fmt: skip
def test_what_is_left_out_claims_nothing(model, given, left_out):
    made = model(**given).model_dump(exclude={"timestamp"})
    assert made == given | left_out


@pytest.mark.parametrize(
    ("model", "given", "below"),
    [
        (ToolExecutionLog, {"tool_name": "NIQE", "object_name": "a", "distortion": "b"}, {"execution_time": -0.5}),
        (ToolExecutionLog, {"tool_name": "NIQE", "object_name": "a", "distortion": "b"}, {"crops": -1}),
        (PlannerError, {"error_type": "api_error", "message": "m"}, {"retry_count": -1}),
        (PassRecord, {"seen": "s", "measured": "m", "concluded": "c", "decided": "seen"}, {"number": 0}),
        (PassRecord, {"number": 1, "seen": "s", "measured": "m", "concluded": "c", "decided": "seen"}, {"tokens": -1}),
        (PassRecord, {"number": 1, "seen": "s", "measured": "m", "concluded": "c", "decided": "seen"}, {"seconds": -0.5}),
    ],
)  # fmt: skip
def test_counts_and_seconds_are_not_negative(model, given, below):
    with pytest.raises(ValidationError, match="greater than or equal to"):
        model(**given, **below)


def test_a_failed_try_keeps_what_its_exception_was():
    kept = PlannerError.from_exception(ValueError("no JSON"), attempt=2, backend="b", role="planner")
    assert (kept.error_type, kept.message, kept.retry_count) == ("validation_error", "no JSON", 1)
    assert kept.details == {"exception": "ValueError", "attempt": 2, "backend": "b", "role": "planner"}
    silent = PlannerError.from_exception(OSError())
    assert (silent.error_type, silent.message, silent.retry_count) == ("api_error", "OSError", 0)
    assert silent.details == {"exception": "OSError", "attempt": 1, "backend": None}


@pytest.mark.parametrize(
    "suffix",
    [
        "png",
        "jpg",
        "jpeg",
        "webp",
        "bmp",
        "tif",
        "tiff",
        "jp2",
        "gif",
        "ppm",
        "avif",
        "heic",
        "heif",
        "jfif",
        "jpe",
    ],
)
def test_every_kind_of_picture_that_pillow_reads_is_taken_by_its_name(tmp_path, suffix):
    file = tmp_path / f"photo.{suffix}"
    file.touch()
    assert PlannerInput(query="Rate it.", image_path=str(file)).image_path == str(file)


def test_what_an_answer_rests_on_is_stored_with_it():
    basis = Basis(plan=plan(), evidence=ExecutorOutput.model_validate(EVIDENCE))
    answer = SummarizerOutput(final_answer="A", quality_reasoning="Sharp.", basis=basis)
    assert SummarizerOutput.model_validate_json(answer.model_dump_json()) == answer
    assert "basis" not in repr(answer)


@pytest.mark.parametrize("field", ["final_answer", "quality_reasoning"])
def test_a_blank_text_is_refused_when_it_is_assigned_too(field):
    answer = SummarizerOutput(final_answer="A", quality_reasoning="Sharp.")
    with pytest.raises(ValidationError, match=field):
        setattr(answer, field, "  ")
    answer.need_replan = True
    assert answer.replan_reason == "No reason provided"
