"""The reasoning: the model's words with the notes behind them, or sentences made of the evidence where it wrote none or
others than were found."""

import pytest
from scripted import ScriptedClient, ScriptedTools, plan_reply, scripted_answers, scripted_services

from agentic_iqa_local import assess
from agentic_iqa_local.nodes.reasoning import reasoned
from agentic_iqa_local.output.report import account
from agentic_iqa_local.output.words import level_word
from agentic_iqa_local.state import LETTER_TO_LEVEL, LEVEL_WORDS, DistortionAnalysis, ExecutorOutput

SUMMARY = {"final_answer": "C", "quality_reasoning": "Moderate blur."}


def evidence(severity: str | None, **fields) -> ExecutorOutput:
    items = (
        [DistortionAnalysis(type="Noise", severity=severity, explanation="It shows.")]
        if severity
        else []
    )
    scores = {"Global": {"Noise": ("NIQE", 3.0)}}
    return ExecutorOutput(distortion_analysis={"Global": items}, quality_scores=scores, **fields)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (evidence("moderate"), "Moderate noise: It shows."),
        (evidence("unclear"), "The severity of noise cannot be told."),
        (evidence("none"), "No visible distortion was found."),
        (
            evidence(None, damaged_part="upper left"),
            "LocalNR's map has the damage in the upper left quarter. The model saw no distortion as a whole.",
        ),
        (
            None,
            "No distortion analysis or tool scores were available; judged from the image directly.",
        ),
    ],
)
def test_sentences_made_of_the_evidence_stand_in_for_words_that_the_model_did_not_write(
    known, said
):
    assert reasoned(None, known, None, None) == said


def test_the_models_words_stand_as_they_are_and_the_notes_follow(picture):
    client = ScriptedClient(scripted_answers(SummaryReply=SUMMARY))
    row = assess(picture, services=scripted_services(client, ScriptedTools({"NIQE": 3.0})))
    assert row.quality_reasoning.startswith("Moderate blur. ")
    assert row.quality_reasoning.endswith(f"the model alone {level_word(row.vlm_letter)}.")
    assert "Reasoning: Moderate blur." in " ".join(account(row).split())


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        ("Severe noise covers the sky.", False),
        ("Moderate blur: edges are soft.", False),
        ("No visible distortion.", False),
        ("Moderate noise: The picture is clean.", False),
        ("The picture is sharp, with moderate noise and no compression artefacts.", True),
    ],
)
def test_words_that_contradict_what_was_found_give_way_to_it(text, stands):
    said = reasoned(text, evidence("moderate"), None, None)
    assert said == (text if stands else "Moderate noise: It shows.")


def test_without_words_the_answer_that_was_chosen_is_said(picture):
    """The letters prefer C."""
    answers = scripted_answers(PlannerReply=plan_reply(query_type="Other"), SummaryReply="no words")
    client = ScriptedClient(answers, {"A": -3.0, "B": -3.0, "C": -0.2})
    services = scripted_services(client, ScriptedTools({"NIQE": 3.0}))
    choices = ["red ball", "blue ball", "kite"]
    row = assess(picture, query="What lies on the grass?", choices=choices, services=services)
    assert row.quality_reasoning.startswith("The most probable answer is kite (0.")
    assert any("no valid reasoning in three tries" in line for line in row.warnings)


def test_what_the_shipped_model_says_of_a_damaged_picture_contradicts_nothing(services, noisy_path):
    """Judged apart from the rules: a finding stands in the text with its severity, and the level is the fused one."""
    row = assess(noisy_path, services=services)
    text, items = row.quality_reasoning.lower(), row.evidence.distortion_analysis["Global"]
    assert any(
        f"{item.severity} {item.type}".lower() in text for item in items if item.severity != "none"
    )
    assert f"the quality is {LEVEL_WORDS[LETTER_TO_LEVEL[row.final_answer]].lower()}." in text
