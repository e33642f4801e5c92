"""How an answer is read, how a text that reached its limit ends, and what is kept of a failed try."""

import json
from types import SimpleNamespace

import pytest
from scripted import ScriptedClient, ScriptedTools, plan_reply, scripted_answers, scripted_services

from agentic_iqa_local import Assessment, assess
from agentic_iqa_local.batch.work import as_line
from agentic_iqa_local.config import RoleSettings
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, Prompt
from agentic_iqa_local.nodes.replies import (
    PlannerReply,
    answer_reply,
    detection_reply,
    selection_reply,
)
from agentic_iqa_local.state import LETTERS

SUMMARY = {"final_answer": "C", "quality_reasoning": "Edges are soft."}
COMPACT = json.dumps(SUMMARY)
PLAN = plan_reply(query_scope=["sky"], distortions={"sky": ["Noise"]})


def asked(text, schema=None, prefix=""):
    """The answer of a model that always writes `text`."""
    session = SimpleNamespace(
        role="summarizer",
        models=SimpleNamespace(failed_tries=[]),
        generate=lambda *_, **__: text,
    )
    return ask(
        session,
        Prompt("", ""),
        schema or answer_reply(LETTERS),
        RoleSettings(),
        answer_prefix=prefix,
    )


def refused(text, schema=None, prefix="") -> str:
    with pytest.raises(InvalidAnswer, match="no valid JSON in 3 attempts") as caught:
        asked(text, schema, prefix)
    return caught.value.attempts[-1].message


@pytest.mark.parametrize(
    "text",
    [
        f"\n  {COMPACT} \n\n",
        f"```json\n{json.dumps(SUMMARY, indent=2)}\n```",
        json.dumps({"thought": {"deep": [1]}, **SUMMARY, "confidence": 0.5}),
        json.dumps(SUMMARY | {"quality_reasoning": "\tEdges are soft.  "}),
    ],
    ids=["blanks around it", "fenced", "more keys", "blanks in texts"],
)
@pytest.mark.parametrize("prefix", ["", ANSWER_PREFIX + "C"])
def test_every_spelling_of_an_answer_is_taken(text, prefix):
    assert asked(text, prefix=prefix).model_dump() == SUMMARY


@pytest.mark.parametrize(
    "text",
    [
        f"Here it is: {COMPACT}",
        COMPACT + COMPACT,
        '{"final_answer": "C"}',
        '{"final_answer": "C", "quality_reasoning": " \\n"}',
        '{"final_answer": "F", "quality_reasoning": "Soft."}',
        '{"final_answer": 3, "quality_reasoning": "Soft."}',
        "",
        '{"final_answer": ' + "[" * 100_000,
        '{"final_answer": "C", "quality_reasoning": "\\ud800"}',
    ],
    ids=lambda text: text[:50],
)
def test_what_is_no_answer_is_refused(text):
    refused(text)


def test_the_letter_that_was_begun_with_must_be_the_answer():
    said = refused(f"```json\n{COMPACT}\n```", prefix=ANSWER_PREFIX + "D")
    assert said.startswith(
        'expected an answer that begins with {"final_answer": "D, got {"final_answer": "C"'
    )


@pytest.mark.parametrize(
    ("schema", "said", "kept"),
    [
        (
            PlannerReply,
            PLAN | {"why": "?", "plan": PLAN["plan"] | {"more": 1}, "query_scope": [" sky "]},
            PLAN,
        ),
        (detection_reply(["sky"]), {"sky": ["Blurs"], "sea": ["Noise"]}, {"sky": ["Blurs"]}),
        (
            selection_reply({"sky": ["Blurs"]}, ["NIQE"]),
            {"sky": {"Blurs": "NIQE", "x": ""}},
            {"sky": {"Blurs": "NIQE"}},
        ),
    ],
)
def test_more_keys_are_dropped_in_every_roles_answer(schema, said, kept):
    assert asked(json.dumps(said), schema).model_dump(mode="json", by_alias=True) == kept


@pytest.mark.parametrize("length", [300, 1280])
def test_a_text_that_reached_its_limit_ends_with_a_sentence(length):
    # 300 characters hold four whole sentences of 64, the last blank stripped, and 44 characters of a fifth
    words = "Edges are soft everywhere and fine detail in the grass is lost. "
    reply = asked(json.dumps(SUMMARY | {"quality_reasoning": (words * 20)[:length]}))
    assert reply.quality_reasoning == (words * 4).strip()


# Failed tries


def rated(picture, **replies):
    """The row of a picture whose model answers `replies`, and of each failed try (role, number, kind, output)."""
    services = scripted_services(
        ScriptedClient(scripted_answers(**replies)), ScriptedTools({"NIQE": 2.6})
    )
    row = assess(picture, services=services)
    return row, [
        (t.details["role"], t.details["attempt"], t.error_type, t.details["output"])
        for t in row.failed_tries
    ]


def test_failed_tries_of_every_role_stand_in_the_row(picture):
    detection = ["?", {"Global": []}]
    row, tries = rated(
        picture,
        PlannerReply=["no plan", plan_reply()],
        SummaryReply=["{}", "[]", COMPACT],
        DetectionReply=detection,
    )
    assert row.error is None
    assert tries == [
        ("planner", 1, "validation_error", "no plan"),
        ("executor", 1, "validation_error", "?"),
        ("summarizer", 1, "validation_error", "{}"),
        ("summarizer", 2, "validation_error", "[]"),
    ]
    assert Assessment.model_validate_json(as_line(row)).failed_tries == row.failed_tries


def test_an_output_is_kept_up_to_a_limit_and_as_text(picture):
    row, tries = rated(picture, PlannerReply=["b" * 23_456, '{"\ud800": "\x1b[2J', plan_reply()])
    assert [output for *_, output in tries] == [
        "b" * 20_000 + "… (truncated)",
        '{"\\ud800": "\x1b[2J',
    ]
    assert as_line(row).isprintable()
