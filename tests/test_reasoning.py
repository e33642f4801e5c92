"""The reasoning: the model's words with the notes behind them, or sentences made of the evidence
where it wrote none or others than were found."""

import re

import pytest
from scripted import ScriptedClient, ScriptedTools, scripted_answers, scripted_services

from agentic_iqa_local import assess
from agentic_iqa_local.nodes.reasoning import reasoned
from agentic_iqa_local.output.report import account
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput, FusionResult


def evidence(severity: str | None, **fields) -> ExecutorOutput:
    """Evidence in which noise alone was looked for."""
    items = [judged("Noise", severity)] if severity else []
    scores = {"Global": {"Noise": ("NIQE", 3.0)}}
    return ExecutorOutput(distortion_analysis={"Global": items}, quality_scores=scores, **fields)


def judged(kind: str, severity: str) -> DistortionAnalysis:
    return DistortionAnalysis(type=kind, severity=severity, explanation="It shows.")


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (evidence("unclear"), "The severity of noise cannot be told."),
        (
            evidence(None, damaged_part="top left"),
            "LocalNR's map has the damage in the top left quarter.",
        ),
        (
            evidence(None, damaged_part="middle"),
            "LocalNR's map has the damage in the middle.",
        ),
        (
            None,
            "No distortion analysis or tool scores were available; judged from the image directly.",
        ),
    ],
)
def test_sentences_of_the_evidence_stand_in_for_words(known, said):
    assert reasoned(None, known, None, None) == said


def test_the_models_words_stand_as_they_are_and_the_notes_follow(picture):
    words = {"final_answer": "C", "quality_reasoning": "Moderate blur."}
    client = ScriptedClient(scripted_answers(SummaryReply=words))
    row = assess(picture, services=scripted_services(client, ScriptedTools({"NIQE": 3.0})))
    assert row.quality_reasoning.startswith("Moderate blur. Fused score ")
    assert "Reasoning: Moderate blur." in " ".join(account(row).split())


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        ("Severe noise covers the sky.", False),
        ("Moderate blur: edges are soft.", False),
        ("No visible distortion.", False),
        ("Moderate noise: The picture is clean.", False),
        ("Moderate noise covers the sky.", True),
        ("There is no noise.", False),
    ],
)
def test_words_that_contradict_what_was_found_give_way_to_it(text, stands):
    said = reasoned(text, evidence("moderate"), None, None)
    assert said == (text if stands else "Moderate noise: It shows.")


CHOICES = ["blur", "noise", "compression", "none"]


def seen(**severities):
    """Evidence in which all distortions were looked for."""
    items = [judged(*item) for item in severities.items()]
    known = {
        "distortion_set": {"Global": list(severities)},
        "distortion_analysis": {"Global": items},
    }
    return ExecutorOutput(**known)


def chosen(measured):
    """Flat letters, so that the product is the measurement."""
    letters = {"mode": "logits", "vlm_letter": "A", "off_letter_mass": 0.1, "p_c": FLAT}
    product = {"measured": measured, "product": measured, "measurement": "a measurement"}
    return FusionResult(**letters, **product)


FLAT = dict.fromkeys("ABCD", 0.25)
C = {"A": 0.1, "B": 0.1, "C": 0.6, "D": 0.2}
D = {"A": 0.1, "B": 0.1, "C": 0.1, "D": 0.7}


@pytest.mark.parametrize(
    ("known", "p", "text", "said"),
    [
        (seen(Compression="severe"), C, "Blurs: Edges smear in one direction.", "Severe compression: It shows."),
        (seen(), D, "Blurs: Edges smear in one direction.", "No visible distortion was found."),
        (seen(Compression="severe"), C, "Extreme.", "Severe compression: It shows."),
        (seen(Compression="severe"), C, "The quality is fair.", "Severe compression: It shows."),
        (seen(Compression="severe"), C, "Blocks show in the sky.", "Severe compression: It shows. Blocks show in the sky."),
        (seen(Contrast="severe"), D, "It is dull.", "Severe contrast: It shows."),
        (evidence("none"), D, "No visible distortion.", "No noise was found."),
    ],
)  # fmt: skip
def test_the_reason_of_a_choice_is_what_decided_it(known, p, text, said):
    letter = max(p, key=p.get)
    answer = f"The most probable answer is {CHOICES['ABCD'.index(letter)]} ({p[letter]:.2f})"
    begun = f"{answer}: by a measurement it has {p[letter]:.2f}, by the model's letters 0.25."
    assert reasoned(text, known, chosen(p), CHOICES) == f"{begun} {said}"


@pytest.mark.parametrize("text", ["No visible distortion was found.", "The picture is clean."])
def test_what_was_looked_at_is_all_that_is_said(text):
    """Only noise was looked for: that the picture is clean is more than anybody knows."""
    assert reasoned(text, evidence("none"), None, None) == "No noise was found."


def test_without_words_the_answer_that_the_letters_chose_is_said():
    said = reasoned(None, None, chosen(None), CHOICES)
    assert said.startswith("The most probable answer is blur (0.25). No distortion analysis")


def test_the_shipped_model_contradicts_no_damage(services, noisy_path):
    """Judged apart from the rules: the finding and the fused level stand in the text."""
    row = assess(noisy_path, services=services)
    text = row.quality_reasoning.lower()
    assert re.search("(severe|extreme) noise", text)
    assert f"the quality is {row.level.lower()}." in text
