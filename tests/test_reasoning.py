"""The reasoning: the model's words with the notes behind them, or sentences made of the evidence
where it wrote none or others than were found."""

import re

import pytest
from scripted import (
    ScriptedClient,
    ScriptedTools,
    plan_reply,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local import assess
from agentic_iqa_local.nodes.reasoning import explains, reasoned
from agentic_iqa_local.nodes.regions import unplaced
from agentic_iqa_local.output.report import account
from agentic_iqa_local.state import (
    Detection,
    DistortionAnalysis,
    ExecutorOutput,
    FusionResult,
    PlannerOutput,
)


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
            "If there is damage, it lies in the top left quarter. No blur, noise, compression or wrong"
            " exposure was found.",
        ),
        (
            evidence("moderate", damaged_part="left half"),
            "The damage lies in the left half. Moderate noise: It shows.",
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


def test_damage_of_a_part_is_not_spread_over_the_picture():
    said = reasoned(
        "Moderate noise is everywhere.", evidence("moderate", damaged_part="middle"), None, None
    )
    assert said == "The damage lies in the middle. Moderate noise: It shows."


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        ("Severe noise and slight blur spoil the picture.", True),
        ("Slight noise and severe blur spoil the picture.", False),
        ("Slight blur spoils the picture.", False),
        ("Das Bild ist stark verrauscht, severe noise.", False),
        ("Le bruit est fort: severe noise, slight blur, beaucoup.", False),
        ("The sky has a nice colour.", False),
    ],
)
def test_words_tell_the_worst_with_its_own_severity_in_english(text, stands):
    known = seen(Noise="severe", Blurs="slight")
    told = "Severe noise: It shows. Slight blur: It shows."
    assert reasoned(text, known, None, None).startswith(text if stands else told)


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("**A fern** beside a [path](http://a.b)", "A fern beside a path"),
        ("C", "Unable to determine"),
        ("图像非常模糊。", "Unable to determine"),
        ("Extreme blur covers everything.", "Unable to determine"),
    ],
)
def test_an_answer_in_words_is_one_and_judges_nothing_that_nobody_measured(
    picture, written, answer
):
    words = {"final_answer": written, "quality_reasoning": "Severe noise."}
    replies = scripted_answers(PlannerReply=plan_reply(query_type="Other"), SummaryReply=words)
    services = scripted_services(ScriptedClient(replies), ScriptedTools({}))
    row = assess(picture, query="What is in the middle?", services=services)
    assert row.final_answer == answer
    assert "noise" not in row.quality_reasoning


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        ("Blocks show along the edges.", True),
        ("Detail sinks into the shadows.", True),
        ("Answer {}", False),
        ("No visible distortion.", False),
        ("Slight compression blurs the edges.", False),
        ("Die Kanten sind sehr stark verpixelt.", False),
    ],
)
def test_words_on_a_distortion_are_about_it(text, stands):
    assert explains(text, "Compression", "severe") == stands


@pytest.mark.parametrize(
    ("query", "boxes", "unknown"),
    [
        ("Rate the face", {}, ["face"]),
        ("How sharp are my dogs?", {"dog": (0, 0, 9, 9)}, []),
        ("Rate the sharpness of this picture", {}, []),
        ("Rate the colours", {}, []),
    ],
)
def test_a_region_without_a_place_is_said_to_have_none(query, boxes, unknown):
    plan = PlannerOutput.model_validate(plan_reply())
    assert unplaced(query, plan, boxes) == unknown
    said = reasoned(None, evidence("moderate"), None, None, unknown)
    assert ("No place is known of the face" in said) == bool(unknown)


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
        (seen(), D, "Blurs: Edges smear in one direction.", "No blur, noise, compression or wrong exposure was found."),
        (seen(Compression="severe"), C, "Extreme.", "Severe compression: It shows."),
        (seen(Compression="severe"), C, "The quality is fair.", "Severe compression: It shows."),
        (seen(Compression="severe"), C, "Blocks show in the sky.", "Severe compression: It shows. Blocks show in the sky."),
        (seen(Noise="severe"), {"A": 0.1, "B": 0.9, "C": 0.0, "D": 0.0}, "Noise: It shows.", "Severe noise: It shows."),
        (seen(Contrast="severe"), D, "It is dull.", "Severe contrast distortion: It shows. No answer names contrast distortion."),
        (evidence("none"), D, "No visible distortion.", "No noise was found."),
    ],
)  # fmt: skip
def test_the_reason_of_a_choice_is_what_decided_it(known, p, text, said):
    letter = max(p, key=p.get)
    answer = f"The most probable answer is {CHOICES['ABCD'.index(letter)]} ({p[letter]:.2f})"
    begun = f"{answer}, by a measurement alone: the model's own answer (0.25) changes nothing."
    assert reasoned(text, known, chosen(p), CHOICES) == f"{begun} {said}"


@pytest.mark.parametrize("text", ["No visible distortion was found.", "The picture is clean."])
def test_what_was_looked_at_is_all_that_is_said(text):
    """That a picture is clean is more than anybody knows, whether noise or all was looked for."""
    assert reasoned(text, evidence("none"), None, None) == "No noise was found."
    said = "No blur, noise, compression or wrong exposure was found. No tool scores were available."
    assert reasoned(text, seen(), None, None) == said


def test_without_words_the_answer_that_the_letters_chose_is_said():
    said = reasoned(None, None, chosen(None), CHOICES)
    assert said.startswith("The most probable answer is blur (0.25). No distortion analysis")


@pytest.mark.parametrize(
    ("known", "worst"),
    [
        (seen(Noise="slight", Blurs="severe"), "; the strongest distortion that it found is severe blur."),
        (seen(), ". No blur, "),
        (None, ". No distortion analysis "),
    ],
)  # fmt: skip
def test_a_question_what_to_do_is_told_that_no_advice_is_given(known, worst):
    said = reasoned("Sharpen it.", known, None, None, query="What should I fix first?")
    assert said.startswith(f"This program judges pictures and gives no advice on editing{worst}")
    answers = reasoned(None, known, chosen(C), CHOICES, query="What should I fix first?")
    assert "advice" not in answers


@pytest.mark.parametrize(
    ("known", "voters", "said"),
    [
        (seen(), ["LocalNR"], "the grade is what LocalNR reads. LocalNR learned from people's scores: "),
        (seen(), ["NIQE", "PIQE"], "the grade is what NIQE and PIQE read. "),
        (seen(Noise="slight"), ["LocalNR"], None),
        (seen(), [], None),
    ],
)  # fmt: skip
def test_why_a_grade_is_what_it_is_where_nothing_was_found(known, voters, said):
    letters = {"mode": "logits", "vlm_letter": "C", "off_letter_mass": 0.1}
    fused = FusionResult(**letters, p_c=dict.fromkeys("ABCDE", 0.2), q=3.0, voters=voters)
    text = reasoned(None, known, fused, None, query="Why is it only fair?")
    assert ("None of the distortions that are looked for explains it: " in text) is bool(said)
    assert (said or "") in text
    assert "the grade is" not in reasoned(None, known, fused, None, query="Is it fair?")


def test_the_shipped_model_contradicts_no_damage(services, noisy_path):
    """Judged apart from the rules: the finding and the fused level stand in the text."""
    row = assess(noisy_path, services=services)
    text = row.quality_reasoning.lower()
    assert re.search("(severe|extreme) noise", text)
    assert f"the quality is {row.level.lower()}." in text


def test_of_what_nobody_could_look_for_the_model_says_nothing():
    """LocalNR reads no drawings: then words about distortions rest on nothing."""
    unread = Detection(model_trust=0.0, error="this is unlike a photograph")
    known = ExecutorOutput(detection={"Global": unread})
    letters = {"mode": "logits", "vlm_letter": "C", "off_letter_mass": 0.1}
    fused = FusionResult(**letters, p_c=dict.fromkeys("ABCDE", 0.2), q=3.0)
    said = reasoned("Moderate compression: blocks show.", known, fused, None)
    assert "ompression" not in said
    assert "Extreme" not in reasoned("Extreme.", known, fused, None)
    assert "unlike a photograph" in said
    assert reasoned("A drawing of a house.", known, fused, None).startswith("A drawing of a house.")


@pytest.mark.parametrize(
    ("severity", "part", "q", "is_told"),
    [
        ("severe", "left half", 4.0, True),
        ("severe", "everywhere", 4.0, False),
        ("severe", "left half", 3.0, False),
        ("moderate", "left half", 4.0, False),
    ],
)
def test_severe_damage_of_a_part_beside_good_quality_is_explained(severity, part, q, is_told):
    letters = {"mode": "logits", "vlm_letter": "B", "off_letter_mass": 0.1}
    fused = FusionResult(**letters, p_c=dict.fromkeys("ABCDE", 0.2), q=q)
    said = reasoned(None, evidence(severity, damaged_part=part), fused, None)
    assert ("The damage is severe, but in one part alone." in said) is is_told
