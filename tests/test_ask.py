"""How an answer is read, how a text that reached its limit ends, and what is kept of a failed
try."""

import json
from types import SimpleNamespace

import pytest
from scripted import ScriptedClient, ScriptedTools, plan_reply, scripted_answers, scripted_services

from agentic_iqa_local import Assessment, assess
from agentic_iqa_local.batch.work import as_line
from agentic_iqa_local.config import RoleSettings
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.prompts import Prompt
from agentic_iqa_local.nodes.replies import (
    answer_reply,
)
from agentic_iqa_local.state import LETTERS

SUMMARY = {"final_answer": "C", "quality_reasoning": "Edges are soft."}
COMPACT = json.dumps(SUMMARY)
PLAN = plan_reply(query_scope=["sky"], distortions={"sky": ["Noise"]})


def asked(text, schema=None):
    """The answer of a model that always writes `text`."""
    models = SimpleNamespace(failed_tries=[], evidence=None)
    session = SimpleNamespace(role="summarizer", models=models, written=text)
    session.generate = lambda *_, **__: text
    return ask(session, Prompt("", ""), schema or answer_reply(LETTERS), RoleSettings())


@pytest.mark.parametrize("blanks", [" ", "\n  "])
def test_blanks_around_an_answer_and_its_texts_do_not_count(blanks):
    words = f"{blanks}Edges are soft.{blanks}"
    text = json.dumps(SUMMARY | {"quality_reasoning": words})
    assert asked(blanks + text + blanks).model_dump() == SUMMARY


@pytest.mark.parametrize(
    "text",
    [
        f"Here it is: {COMPACT}",
        '{"final_answer": "C"}',
        '{"final_answer": "C", "quality_reasoning": " \\n"}',
        '{"final_answer": "F", "quality_reasoning": "Soft."}',
        '{"final_answer": ' + "[" * 100_000,
    ],
    ids=lambda text: text[:50],
)
def test_what_is_no_answer_is_refused(text):
    with pytest.raises(InvalidAnswer, match="no valid JSON in 3 attempts"):
        asked(text)


def test_an_answer_that_did_not_begin_with_the_letter_is_refused():
    with pytest.raises(InvalidAnswer):
        asked(COMPACT, answer_reply(["D"]))


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
