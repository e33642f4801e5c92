"""How an answer is read with and without a grammar, how a text that reached its limit ends, and what is kept
of a failed try."""

import json

import pytest
from scripted import ScriptedClient, ScriptedTools, plan_reply, scripted_answers, scripted_services

from agentic_iqa_local import Assessment, assess
from agentic_iqa_local.batch.work import as_line
from agentic_iqa_local.config import RoleSettings
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, Prompt
from agentic_iqa_local.nodes.replies import (
    PlannerReply,
    detection_reply,
    location_reply,
    selection_reply,
    summary_reply,
)
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client import VLMError

SUMMARY = {"final_answer": "C", "quality_reasoning": "Edges are soft."}
COMPACT = json.dumps(SUMMARY)
PLAN = {
    "query_type": "IQA", "query_scope": ["sky"], "distortion_source": "Explicit", "distortions": {"sky": ["Noise"]},
    "reference_mode": "No-Reference", "required_tool": None,
    "plan": {"distortion_detection": False, "distortion_analysis": True, "tool_selection": False, "tool_execution": False},
}  # fmt: skip


class Says:
    """A session that always writes `text`, with or without a grammar."""

    def __init__(self, text: str, constrained: bool = False):
        self.text, self.constrained = text, constrained

    def generate(self, *_, **__) -> str:
        return self.text


def asked(text, schema=None, prefix="", **session):
    schema = schema or summary_reply(LETTERS)
    return ask(Says(text, **session), Prompt("", ""), schema, RoleSettings(), answer_prefix=prefix)


def refused(text, schema=None, prefix="", **session) -> str:
    with pytest.raises(InvalidAnswer) as caught:
        asked(text, schema, prefix, **session)
    return f"{caught.value}: {caught.value.attempts[-1].message}"


# Without a grammar

SPELLINGS = {
    "blanks around it": f"\n  {COMPACT} \n\n",
    "indented": json.dumps(SUMMARY, indent=4),
    "fenced": f"```json\n{json.dumps(SUMMARY, indent=2)}\n```",
    "extra keys": json.dumps({"thought": {"deep": [1]}, **SUMMARY, "confidence": 0.5}),
    "blanks in texts": json.dumps({"final_answer": " C\n", "quality_reasoning": "\tEdges are soft.  "}),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("prefix", ["", ANSWER_PREFIX + "C"])
def test_without_a_grammar_every_spelling_of_an_answer_is_taken(spelling, prefix):
    assert asked(SPELLINGS[spelling], prefix=prefix).model_dump() == SUMMARY


@pytest.mark.parametrize("spelling", ["fenced", "extra keys", "blanks in texts"])
def test_under_a_grammar_what_the_grammar_forbids_is_refused(spelling):
    assert "no valid JSON in 3 attempts" in refused(SPELLINGS[spelling], constrained=True)


REFUSED = {
    "words before": f"Here it is: {COMPACT}",
    "two answers": COMPACT + COMPACT,
    "a key twice": '{"final_answer": "A", "final_answer": "C", "quality_reasoning": "Soft."}',
    "no reasoning": '{"final_answer": "C"}',
    "a blank reasoning": '{"final_answer": "C", "quality_reasoning": " \\n"}',
    "another letter": '{"final_answer": "F", "quality_reasoning": "Soft."}',
    "a number": '{"final_answer": 3, "quality_reasoning": "Soft."}',
    "nothing": "",
    "nested without end": '{"final_answer": ' + "[" * 100_000,
    "a number of 5000 digits": '{"a": ' + "9" * 5000 + f", {COMPACT[1:]}",
    "half a character": '{"final_answer": "C", "quality_reasoning": "\\ud800"}',
}


@pytest.mark.parametrize("kind", REFUSED)
def test_without_a_grammar_what_is_no_answer_is_refused(kind):
    assert "no valid JSON in 3 attempts" in refused(REFUSED[kind])


@pytest.mark.parametrize("text", [json.dumps(SUMMARY, indent=2), f"```json\n{COMPACT}\n```"])
def test_the_letter_that_was_begun_with_must_be_the_answer_however_it_is_written(text):
    assert 'expected {"final_answer": "D"} as begun, got {"final_answer": "C"}' in refused(
        text, prefix=ANSWER_PREFIX + "D"
    )


@pytest.mark.parametrize(
    ("schema", "said", "kept"),
    [
        (
            PlannerReply,
            PLAN | {"why": "?", "plan": PLAN["plan"] | {"more": True}, "query_scope": [" sky "]},
            PLAN,
        ),
        (detection_reply(["sky"]), {"sky": [" Blurs "], "sea": ["Noise"]}, {"sky": ["Blurs"]}),
        (
            selection_reply({"sky": ["Blurs"]}, ["NIQE"]),
            {"sky": {"Blurs": "NIQE", "Noise": "NIQE"}},
            {"sky": {"Blurs": "NIQE"}},
        ),
        (location_reply(["sky"]), {"sky": [1, 2, 3, 4], "label": "x"}, {"sky": [1, 2, 3, 4]}),
    ],
)
def test_extra_keys_and_blanks_are_dropped_in_every_roles_answer(schema, said, kept):
    assert asked(json.dumps(said), schema).model_dump(mode="json", by_alias=True) == kept


def test_without_a_grammar_no_value_is_converted():
    for said in ({"sky": ["1", 2, 3, 4]}, {"sky": [True, 2, 3, 4]}, {"sky": [1.0, 2, 3, 4]}, {"sky": 5}):
        assert "no valid JSON" in refused(json.dumps(said), location_reply(["sky"]))


# Limits

WORDS = "Edges are soft everywhere and fine detail in the grass is lost. "  # 64 characters


def test_a_text_that_reached_its_limit_ends_with_a_sentence():
    # 300 characters of 64-character sentences: four whole ones (256 characters, the last blank stripped), and
    # 44 of a fifth
    text = json.dumps(SUMMARY | {"quality_reasoning": (WORDS * 5)[:300]})
    for constrained in (True, False):
        assert asked(text, constrained=constrained).quality_reasoning == (WORDS * 4).strip()


def test_a_longer_text_is_cut_where_no_grammar_bounds_it_and_refused_where_one_should_have():
    text = json.dumps(SUMMARY | {"quality_reasoning": WORDS * 20})
    assert asked(text).quality_reasoning == (WORDS * 4).strip()
    assert "at most 300 characters" in refused(text, constrained=True)


# Failed tries


def scripted(**replies):
    return scripted_services(ScriptedClient(scripted_answers(**replies)), ScriptedTools({"NIQE": 2.6}))


def tries_of(row) -> list[tuple]:
    return [
        (t.details["role"], t.details["attempt"], t.error_type, t.details["output"]) for t in row.failed_tries
    ]


def test_failed_tries_of_every_role_stand_in_the_row_although_a_later_one_succeeded(picture):
    plan, summary = json.dumps(plan_reply()), '{"final_answer": "C", "quality_reasoning": "Soft."}'
    services = scripted(
        PlannerReply=["no plan", plan],
        SummaryReply=["{}", "[]", summary],
        DetectionReply=["?", '{"Global": []}'],
    )
    row = assess(picture, services=services)
    assert row.error is None
    assert tries_of(row) == [
        ("planner", 1, "validation_error", "no plan"),
        ("executor", 1, "validation_error", "?"),
        ("summarizer", 1, "validation_error", "{}"),
        ("summarizer", 2, "validation_error", "[]"),
    ]
    assert Assessment.model_validate_json(as_line(row)).failed_tries == row.failed_tries


def test_a_model_that_fails_is_a_failed_try_without_an_output(picture):
    row = assess(picture, services=scripted(PlannerReply=VLMError("the card is gone")))
    assert tries_of(row) == [("planner", 1, "api_error", None)]
    assert row.failed_tries[0].message == "the card is gone"
    assert row.failed_tries[0].details["exception"] == "VLMError"


def test_the_output_is_kept_up_to_a_limit_that_is_said(picture):
    outputs = ["a" * 20_000, "b" * 23_456, json.dumps(plan_reply())]
    row = assess(picture, services=scripted(PlannerReply=outputs))
    whole, cut = (t.details for t in row.failed_tries)
    assert (whole["output"], whole.get("cut")) == (outputs[0], None)
    assert (cut["output"], cut["cut"]) == (outputs[1][:20_000], "the first 20000 of 23456 characters")


def test_an_output_that_is_no_text_is_kept_as_text(picture):
    row = assess(picture, services=scripted(PlannerReply=['{"\ud800": "\x1b[2J', json.dumps(plan_reply())]))
    (failed,) = row.failed_tries
    assert failed.details["output"] == '{"\\ud800": "\x1b[2J'
    assert as_line(row).isprintable()
