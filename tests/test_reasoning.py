"""Reasoning that contradicts its evidence gives way to the evidence."""

import json

import numpy as np
import pytest
from conftest import DATA
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scripted import ScriptedClient, ScriptedTools, plan_reply, prompts, scripted_answers, scripted_services

from agentic_iqa_local import assess
from agentic_iqa_local.nodes.reasoning import findings, from_evidence, misstatements, speaks_for_another
from agentic_iqa_local.output.report import account
from agentic_iqa_local.state import (
    DISTORTION_TYPES,
    LETTER_TO_LEVEL,
    LEVEL_WORDS,
    DistortionAnalysis,
    ExecutorOutput,
)
from agentic_iqa_local.synthetic.distortions import draw_sample


def evidence(*found: tuple[str, str], **fields) -> ExecutorOutput:
    items = [
        DistortionAnalysis(type=kind, severity=severity, explanation="It shows.") for kind, severity in found
    ]
    return ExecutorOutput(distortion_analysis={"Global": items}, **fields)


NOISE = evidence(("Noise", "moderate"), ("Compression", "none"))
CLEAN = evidence(("Compression", "none"))
TOP_LEFT = evidence(("Blurs", "moderate"), damaged_part="top left")


@pytest.mark.parametrize(
    ("text", "known", "level", "wrong"),
    [
        *((f"Moderate {kind.lower()}: It shows.", CLEAN, None, f"names {kind}") for kind in DISTORTION_TYPES),
        ("Severe noise covers the sky.", NOISE, None, "calls Noise severe"),
        ("There is no noise.", NOISE, None, "denies Noise"),
        ("No distortion is visible.", NOISE, None, "nothing is visible"),
        ("The quality is good.", CLEAN, "Fair", "says that the quality is good"),
        ("It has excellent overall quality.", CLEAN, "Poor", "says that the quality is excellent"),
        ("Moderate blurs at the lower right.", TOP_LEFT, None, "LocalNR's map"),
    ],
)
def test_contradictions_are_found(text, known, level, wrong):
    assert any(wrong in line for line in misstatements(text, known, level))


@pytest.mark.parametrize(
    ("text", "known", "level"),
    [
        ("The image shows moderate noise, but no visible compression artifacts.", NOISE, None),
        ("The picture is sharp and bright, with good contrast.", NOISE, None),  # virtues
        ("The picture is blurry.", None, None),  # nothing is known of distortions
        ("Fair quality, consistent with a tool score of 2.6.", NOISE, "Fair"),
        ("Moderate blurs in the upper-left corner.", TOP_LEFT, None),
    ],
)
def test_what_fits_is_left_alone(text, known, level):
    assert misstatements(text, known, level) == []


def test_sentences_that_a_reviewer_collected():
    """112 sound and wrong ones, by someone who had not written the check: no sound one is refused, most wrong ones are."""
    rows = [json.loads(line) for line in (DATA / "reasoning.jsonl").read_text(encoding="utf-8").splitlines()]
    refused = {True: [], False: []}
    for row in rows:
        found = misstatements(row["text"], evidence(*row["evidence"].items()), row["level"])
        refused[row["sound"]].append(bool(found))
    assert not any(refused[True])
    assert sum(refused[False]) >= 0.8 * len(refused[False])


SENTENCES = [
    "Edges appear soft.",
    "Grain covers flat areas.",
    "No distortion is visible.",
    "Ringing shows.",
    "Severe blur.",
]
ITEMS = st.lists(
    st.builds(
        DistortionAnalysis,
        type=st.sampled_from(DISTORTION_TYPES),
        severity=st.sampled_from(["none", "slight", "moderate", "severe", "extreme"]),
        explanation=st.sampled_from(SENTENCES),
    ),
    max_size=3,
    unique_by=lambda item: item.type,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["Global", "sky"]), ITEMS), st.sampled_from([None, *LEVEL_WORDS.values()])
)
def test_sentences_made_of_the_evidence_never_contradict_it(analysis, level):
    known = ExecutorOutput(distortion_analysis=analysis)
    text = from_evidence(known, level)
    assert misstatements(text, known, level) == []
    for items in findings(known).values():
        assert all(f"{item.severity} {item.type}".casefold() in text.casefold() for item in items)


@pytest.mark.parametrize(
    ("text", "reasoning", "corrections"),
    [
        ("Moderate blur.", "Moderate blur.", []),
        ("Severe noise.", "Moderate blurs: Edges appear soft. The quality is fair.", ["names Noise, which the evidence does not hold"]),
    ],
)  # fmt: skip
def test_a_contradiction_gives_way_to_the_evidence_and_the_account_says_so(
    picture, text, reasoning, corrections
):
    reply = {"final_answer": "C", "quality_reasoning": text}
    client = ScriptedClient(scripted_answers(SummaryReply=reply))
    row = assess(picture, services=scripted_services(client, ScriptedTools({"NIQE": 3.0})))
    assert row.quality_reasoning.startswith(reasoning)
    assert row.reasoning_corrections == corrections
    assert len(prompts(client, "SummaryReply")) == 1
    assert ("the model's own words contradicted them" in " ".join(account(row).split())) is bool(corrections)


@pytest.mark.parametrize(
    ("text", "chosen", "wrong"),
    [
        ("Blurs: Edges smear in one direction.", "None", True),
        ("There is more noise than blur.", "Noise", False),  # it names both
        ("No distortion is visible.", "None", False),
    ],
)
def test_reasoning_that_speaks_for_another_answer_is_found(text, chosen, wrong):
    assert bool(speaks_for_another(text, ["Blur", "Noise", "Compression", "None"], chosen)) is wrong


def test_reasoning_for_another_answer_gives_way_to_the_chosen_one(picture):
    """The letters prefer C: the written reason speaks for A."""
    said = {"final_answer": "C", "quality_reasoning": "A red ball, plainly."}
    answers = scripted_answers(PlannerReply=plan_reply(query_type="Other"), SummaryReply=said)
    services = scripted_services(
        ScriptedClient(answers, {"A": -3.0, "B": -3.0, "C": -0.2}), ScriptedTools({"NIQE": 3.0})
    )
    choices = ["red ball", "blue ball", "kite"]
    row = assess(picture, query="What lies on the grass?", choices=choices, services=services)
    assert row.final_answer == "C"
    assert row.quality_reasoning.startswith("The most probable answer is kite (0.")
    assert row.reasoning_corrections == ["speaks for red ball, the answer is kite"]


def test_what_the_shipped_model_says_of_damaged_crops_contradicts_nothing(services, tmp_path):
    """Judged apart from the rules: each finding stands in the text with its severity, and the level is the fused one."""
    rng = np.random.default_rng(14)
    photo = np.asarray(Image.open(DATA / "sumac.png").convert("RGB"))
    for _ in range(8):
        top, left = rng.integers(0, 512 - 224, 2)
        sample = draw_sample(photo[top : top + 224, left : left + 224], rng)
        Image.fromarray(sample.image).save(tmp_path / "crop.png")
        row = assess(tmp_path / "crop.png", services=services)
        held = {f"{x.severity} {x.type}".lower() for items in findings(row.evidence).values() for x in items}
        text = row.quality_reasoning.lower()
        assert any(found in text for found in held) or not held
        assert f"the quality is {LEVEL_WORDS[LETTER_TO_LEVEL[row.final_answer]].lower()}." in text
