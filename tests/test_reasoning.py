"""The reasoning: the model's words with the notes behind them, or sentences made of the evidence where it wrote none or
others than were found."""

import pytest
from scripted import ScriptedClient, ScriptedTools, plan_reply, scripted_answers, scripted_services

from agentic_iqa_local import assess
from agentic_iqa_local.nodes.reasoning import reasoned
from agentic_iqa_local.output.report import account
from agentic_iqa_local.output.words import level_word
from agentic_iqa_local.state import (
    LETTER_TO_LEVEL,
    LEVEL_WORDS,
    DistortionAnalysis,
    ExecutorOutput,
    FusionResult,
)

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
        (evidence("none"), "No noise was found."),
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
    assert row.quality_reasoning.endswith(f"the model alone {level_word(row.fusion.vlm_letter)}.")
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


CHOICES = ["blur", "noise", "compression", "none"]


def seen(**severities):
    """Evidence in which all distortions were looked for."""
    items = [
        DistortionAnalysis(type=kind, severity=severity, explanation="It shows.")
        for kind, severity in severities.items()
    ]
    kinds = [item.type for item in items]
    return ExecutorOutput(distortion_set={"Global": kinds}, distortion_analysis={"Global": items})


def chosen(p_c, measured, product, measurement="a measurement"):
    letters = {"mode": "logits", "vlm_letter": max(p_c, key=p_c.get), "off_letter_mass": 0.1}
    told = {"p_c": p_c, "measured": measured, "product": product, "measurement": measurement}
    return FusionResult(**letters, **told)


FLAT = dict.fromkeys("ABCD", 0.25)
C = {"A": 0.1, "B": 0.1, "C": 0.6, "D": 0.2}
D = {"A": 0.1, "B": 0.1, "C": 0.1, "D": 0.7}


@pytest.mark.parametrize(
    ("known", "product", "text", "said"),
    [
        (seen(Compression="severe"), C, "Blurs: Edges smear in one direction.", "Severe compression: It shows."),
        (seen(), D, "Blurs: Edges smear in one direction.", "No visible distortion was found."),
        (seen(Compression="severe"), C, "Extreme.", "Severe compression: It shows."),
        (seen(Compression="severe"), C, "The quality is fair.", "Severe compression: It shows."),
        (seen(Compression="severe"), C, "No compression.", "Severe compression: It shows."),
        (seen(Compression="severe"), C, "Noise noise noise noise noise.", "Severe compression: It shows."),
        (seen(Compression="severe"), C, "Blocks show in the sky.", "Severe compression: It shows. Blocks show in the sky."),
        (seen(Contrast="severe"), D, "It is dull.", "Not among the answers: severe contrast."),
        (evidence("none"), D, "No visible distortion.", "No noise was found."),
    ],
)  # fmt: skip
def test_the_reason_of_a_choice_is_what_decided_it(known, product, text, said):
    """The letters are flat, so the product is the measurement."""
    reason = reasoned(text, known, chosen(FLAT, product, product), CHOICES)
    letter = max(product, key=product.get)
    answer = f"The most probable answer is {CHOICES['ABCD'.index(letter)]} ({product[letter]:.2f})"
    begun = f"{answer}: by a measurement it has {product[letter]:.2f}, by the model's letters 0.25."
    assert reason == f"{begun} {said}"


def test_what_was_looked_at_is_all_that_is_said():
    """Only noise was looked for: that the picture is clean is more than anybody knows."""
    for text in ("No visible distortion was found.", "The picture is clean."):
        assert reasoned(text, evidence("none"), None, None) == "No noise was found."


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
