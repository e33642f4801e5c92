"""Reasoning that contradicts its evidence gives way to the evidence."""

import json

import pytest
from conftest import DATA
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedClient, ScriptedTools, plan_reply, prompts, scripted_answers, scripted_services

from agentic_iqa_local import assess
from agentic_iqa_local.nodes.reasoning import from_evidence, misstatements
from agentic_iqa_local.output.report import account
from agentic_iqa_local.state import (
    DISTORTION_TYPES,
    LETTER_TO_LEVEL,
    LEVEL_WORDS,
    DistortionAnalysis,
    ExecutorOutput,
)


def evidence(*found: tuple[str, str]) -> ExecutorOutput:
    items = [DistortionAnalysis(type=kind, severity=severity, explanation="It shows.") for kind, severity in found]
    return ExecutorOutput(distortion_analysis={"Global": items})


NOISE = evidence(("Noise", "moderate"), ("Compression", "none"))
CLEAN = evidence(("Compression", "none"))


@pytest.mark.parametrize(
    ("text", "known", "level", "wrong"),
    [
        *((f"Moderate {kind.lower()}: It shows.", CLEAN, None, f"names {kind}") for kind in DISTORTION_TYPES),
        ("Severe noise covers the sky.", NOISE, None, "calls Noise severe"),
        ("There is no noise.", NOISE, None, "denies Noise"),
        ("No distortion is visible.", NOISE, None, "nothing is visible"),
        ("The quality is good.", CLEAN, "Fair", "says that the quality is good"),
        ("The image shows moderate noise, but no visible compression artifacts.", NOISE, None, None),
        ("The picture is sharp and bright, with good contrast.", NOISE, None, None),  # virtues
        ("The picture is blurry.", None, None, None),  # nothing is known of distortions
        ("Fair quality, consistent with a tool score of 2.6.", NOISE, "Fair", None),
    ],
)
def test_contradictions_are_found_and_what_fits_is_left_alone(text, known, level, wrong):
    lines = misstatements(text, known, level)
    assert any(wrong in line for line in lines) if wrong else not lines


def test_sentences_that_a_reviewer_collected():
    """112 sound and wrong ones, by someone who had not written the check: no sound one is refused, most wrong ones are."""
    rows = [json.loads(line) for line in (DATA / "reasoning.jsonl").read_text(encoding="utf-8").splitlines()]
    refused = {True: [], False: []}
    for row in rows:
        found = misstatements(row["text"], evidence(*row["evidence"].items()), row["level"])
        refused[row["sound"]].append(bool(found))
    assert not any(refused[True])
    assert sum(refused[False]) >= 0.8 * len(refused[False])


ITEMS = st.lists(
    st.builds(
        DistortionAnalysis,
        type=st.sampled_from(DISTORTION_TYPES),
        severity=st.sampled_from(["none", "slight", "moderate", "severe", "extreme"]),
        explanation=st.sampled_from(["Edges appear soft.", "No distortion is visible.", "Severe blur."]),
    ),
    max_size=3,
    unique_by=lambda item: item.type,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["Global", "sky"]), ITEMS), st.sampled_from([None, *LEVEL_WORDS.values()]))
def test_sentences_made_of_the_evidence_never_contradict_it(analysis, level):
    known = ExecutorOutput(distortion_analysis=analysis)
    text = from_evidence(known, level)
    assert misstatements(text, known, level) == []
    found = [item for items in analysis.values() for item in items if item.severity != "none"]
    assert all(f"{item.severity} {item.type}".casefold() in text.casefold() for item in found)


def test_a_contradiction_gives_way_to_the_evidence_and_the_account_says_so(picture):
    client = ScriptedClient(scripted_answers(SummaryReply={"final_answer": "C", "quality_reasoning": "Severe noise."}))
    row = assess(picture, services=scripted_services(client, ScriptedTools({"NIQE": 3.0})))
    assert row.quality_reasoning.startswith("Moderate blurs: Edges appear soft. The quality is fair.")
    assert row.reasoning_corrections == ["names Noise, but nothing of that kind was found"]
    assert len(prompts(client, "SummaryReply")) == 1
    assert "The model's own words are left out" in " ".join(account(row).split())


def test_reasoning_for_another_answer_gives_way_to_the_chosen_one(picture):
    """The letters prefer C: the written reason speaks for A."""
    said = {"final_answer": "C", "quality_reasoning": "A red ball, plainly."}
    answers = scripted_answers(PlannerReply=plan_reply(query_type="Other"), SummaryReply=said)
    client = ScriptedClient(answers, {"A": -3.0, "B": -3.0, "C": -0.2})
    services = scripted_services(client, ScriptedTools({"NIQE": 3.0}))
    choices = ["red ball", "blue ball", "kite"]
    row = assess(picture, query="What lies on the grass?", choices=choices, services=services)
    assert row.quality_reasoning.startswith("The most probable answer is kite (0.")
    assert row.reasoning_corrections == ["speaks for red ball, the answer is kite"]


def test_what_the_shipped_model_says_of_a_damaged_picture_contradicts_nothing(services, noisy_path):
    """Judged apart from the rules: a finding stands in the text with its severity, and the level is the fused one."""
    row = assess(noisy_path, services=services)
    text, items = row.quality_reasoning.lower(), row.evidence.distortion_analysis["Global"]
    assert any(f"{item.severity} {item.type}".lower() in text for item in items if item.severity != "none")
    assert f"the quality is {LEVEL_WORDS[LETTER_TO_LEVEL[row.final_answer]].lower()}." in text
