"""How an answer is read, how a text that reached its limit ends, and what is kept of a failed
try."""

import json
import re
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
)
from agentic_iqa_local.state import LETTERS

SUMMARY = {"final_answer": "C", "quality_reasoning": "Edges are soft."}
COMPACT = json.dumps(SUMMARY)
PLAN = plan_reply(query_scope=["sky"], distortions={"sky": ["Noise"]})


def asked(text, schema=None, prefix=""):
    """The answer of a model that always writes `text`."""
    models = SimpleNamespace(failed_tries=[], evidence=None)
    session = SimpleNamespace(role="summarizer", models=models, generate=lambda *_, **__: text)
    schema = schema or answer_reply(LETTERS)
    return ask(session, Prompt("", ""), schema, RoleSettings(), answer_prefix=prefix)


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
        '{"final_answer": ' + "[" * 100_000,
        '{"final_answer": "C", "quality_reasoning": "\\ud800"}',
    ],
    ids=lambda text: text[:50],
)
def test_what_is_no_answer_is_refused(text):
    with pytest.raises(InvalidAnswer, match="no valid JSON in 3 attempts"):
        asked(text)


def test_the_letter_that_was_begun_with_must_be_the_answer():
    said = 'expected an answer that begins with {"final_answer": "D, got {"final_answer": "C"'
    with pytest.raises(InvalidAnswer, match=re.escape(said)):
        asked(COMPACT, prefix=ANSWER_PREFIX + "D")


@pytest.mark.parametrize(
    ("schema", "said", "kept"),
    [
        (PlannerReply, PLAN | {"why": "?", "query_scope": [" sky "]}, PLAN),
        (detection_reply(["sky"]), {"sky": ["Blurs"], "sea": ["Noise"]}, {"sky": ["Blurs"]}),
    ],
)
def test_more_keys_are_dropped_in_every_roles_answer(schema, said, kept):
    assert asked(json.dumps(said), schema).model_dump(mode="json", by_alias=True) == kept


@pytest.mark.parametrize("length", [300, 1280])
def test_a_text_that_reached_its_limit_ends_with_a_sentence(length):
    # 300 characters hold four whole sentences of 64, the last blank stripped, and 44 characters of
    # a fifth
    words = "Edges are soft everywhere and fine detail in the grass is lost. "
    reply = asked(json.dumps(SUMMARY | {"quality_reasoning": (words * 20)[:length]}))
    assert reply.quality_reasoning == (words * 4).strip()


# Failed tries


def rated(picture, **replies):
    """The row of a picture whose model answers `replies`, and (role, number, output) of each failed
    try."""
    client = ScriptedClient(scripted_answers(**replies))
    row = assess(picture, services=scripted_services(client, ScriptedTools({"NIQE": 2.6})))
    details = [failed.details for failed in row.failed_tries]
    return row, [(told["role"], told["attempt"], told["output"]) for told in details]


def test_failed_tries_stand_in_a_row_that_succeeded(picture):
    row, tries = rated(
        picture,
        PlannerReply=["no plan", plan_reply()],
        SummaryReply=["{}", "[]", COMPACT],
    )
    assert row.error is None
    assert tries == [("planner", 1, "no plan"), ("summarizer", 1, "{}"), ("summarizer", 2, "[]")]
    assert Assessment.model_validate_json(as_line(row)).failed_tries == row.failed_tries


def test_an_output_is_kept_up_to_a_limit_and_as_text(picture):
    row, tries = rated(picture, PlannerReply=["b" * 23_456, '{"\ud800": "\x1b[2J', plan_reply()])
    kept = ["b" * 20_000 + "… (truncated)", '{"\\ud800": "\x1b[2J']
    assert [output for *_, output in tries] == kept
    assert as_line(row).isprintable()
